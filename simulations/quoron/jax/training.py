"""Training with JAX: a pure loss, parameters, users' items, a promise."""

import logging
from collections.abc import Callable, Mapping
from typing import Unpack

import jax
import jax.numpy as jnp

from quoron.arguments import entry_point
from quoron.jax.computing import Loss, LossRows, Params
from quoron.training.items import Array, Data, LocalSGD, ModuleTraining, figures_of, items_of, require_metrics
from quoron.training.rows import CHUNK, Metric, Setting, Vector, begun_with, carry_out, items_needed
from quoron.training.start import Start
from quoron.training.trained import TrainedRows
from quoron_privacy.errors import count

_log = logging.getLogger("quoron")


@entry_point
def train(
    loss: Loss,
    params: Params,
    data: Data,
    *,
    local: LocalSGD | None = None,
    draws: bool = False,
    watch: Callable[[int, Params], None] | None = None,
    holdout: float | None = None,
    metrics: Mapping[str, Metric] | None = None,
    **training: Unpack[ModuleTraining],
) -> TrainedRows[Params]:
    """Train `params`, a tree of arrays, with (ε, δ)-differential privacy for all items of each user.

    `loss(params, *parts)` is a pure function of parameters and of the parts of one item, without a batch dimension; a
    number. With `draws=True` it has a key as its last argument, of the user's own: dropout. Data, and arguments that
    are not named here, are those of `quoron.torch.train` and `quoron.train_rows`.

    Args:
        items_per_user: needed and public: a user with more items takes part with so many, drawn in each round.
        local: a row is what `LocalSGD` makes of the parameters; None: the average gradient.
        chunk: users computed at once, 64 unless given. All chunks have this size, and are compiled once.
        watch: called before each round with the released parameters that it asks at.
        metrics: as for torch: metric(params, *parts) gets all items of one held-out user, (m, ...) each.

    The loss is traced by JAX, before anything is charged, so it cannot keep or branch on what it is given: ConfigError
    for one that cannot be traced. Other devices are JAX's own affair (`jax.default_device`).
    """
    per_user, out = items_needed(training), training.get("out")
    chunk = CHUNK if training.get("chunk") is None else int(training["chunk"] or 0)
    count(chunk=chunk)
    people = items_of(data, **training)
    compute = LossRows(loss, params, people, items_per_user=per_user, local=local, chunk=chunk, draws=draws)
    begin, kept = Start(compute.origin), begun_with(training)
    if kept is not None and kept.weights.shape == begin.weights.shape and kept.digest != begin.digest:
        begin = kept
        _log.warning("these parameters are not those that the run in %s began with, which goes on from those", out)
    described = f"{jax.tree.structure(params)} {local} {draws}"
    setting = Setting.of(training, users=people.users, start=begin, model=described, holdout=holdout, metrics=metrics)

    def tree(point: Vector) -> Params:
        return compute.unflat(jnp.asarray(point, compute.type))

    def watched(round_: int, point: Vector) -> None:
        if watch is not None:
            watch(round_, tree(point))

    if metrics:
        require_metrics(people, metrics, tree(begin.weights), _arrays)
    seen = None if watch is None else watched
    figures = figures_of(people, metrics, tree, _arrays) if metrics else None
    done = carry_out(compute, setting, begin, training, chunk=chunk, watch=seen, figures=figures)
    return TrainedRows(tree(done.weights), done.weights, done.statement, done.directory, done.plan, done.evaluation)


def _arrays(*parts: Array) -> tuple[Array, ...]:
    return parts
