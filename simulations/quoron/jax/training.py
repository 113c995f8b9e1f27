"""The front door for JAX: a pure loss, parameters, users' items, a promise."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Unpack

import jax
import jax.numpy as jnp

from quoron.jax.computing import Loss, LossRows, Params
from quoron.run_folder import RunFolder
from quoron.sections import Keep, Method, Privacy, door, only, with_keywords
from quoron.training.black_box import Vector
from quoron.training.figures import figures_of, require_figures
from quoron.training.items import Array, Data, ItemColumns, items_of
from quoron.training.rows import CHUNK, METHOD, HoldOut, Setting, carry_out, items_needed
from quoron.training.start import Start
from quoron.training.trained import TrainedRows
from quoron_privacy.errors import count
from quoron_server.rounds import Observer

_log = logging.getLogger("quoron")


@door
def train(
    loss: Loss,
    params: Params,
    data: Data,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    items_per_user: int | None = None,
    privacy: Privacy = Privacy(),  # noqa: B008  # frozen
    method: Method,
    keep: Keep = Keep(),  # noqa: B008  # frozen
    draws: bool = False,
    watch: Callable[[int, Params], None] | None = None,
    observers: Sequence[Observer] = (),
    hold_out: HoldOut | None = None,
    **items: Unpack[ItemColumns],
) -> TrainedRows[Params]:
    """Train `params`, a tree of arrays, with (ε, δ)-differential privacy for all items of each user.

    `loss(params, *parts)` is a pure function of parameters and of the parts of one item, without a batch dimension; a
    number. With `draws=True` it has a key as its last argument, of the user's own: dropout. Data, and arguments that
    are not named here, are those of `quoron.torch.train` and `quoron.train_rows`.

    | argument | meaning                                                                                           |
    | -------- | ------------------------------------------------------------------------------------------------- |
    | `params` | where training starts; public. What is not trained the loss closes over                           |
    | `method` | `items_per_user`, needed; `local`: a row is what `LocalSGD` makes of the parameters; None: the    |
    |          | average gradient. `chunk`: users computed at once, 64 unless told. All chunks have this size, and |
    |          | are compiled once                                                                                 |
    | `watch`  | called before each round with the released parameters that it asks at                             |

    `hold_out`, a `HoldOut`, as for torch: figures(params, *parts) gets all items of one held-out user, (m, ...) each.

    The loss is traced by JAX, before anything is charged, so it cannot keep or branch on what it is given: ConfigError
    for one that cannot be traced. Other devices are JAX's own affair (`jax.default_device`).
    """
    privacy = with_keywords(privacy, "jax.train", epsilon=epsilon, delta=delta)
    method = with_keywords(method, "jax.train", items_per_user=items_per_user)
    only("jax.train", (*METHOD, "local", "chunk"), method)
    per_user, chunk, local = (
        items_needed(method, "jax.train"),
        CHUNK if method.chunk is None else method.chunk,
        method.local,
    )
    count(chunk=chunk)
    people = items_of(data, **items)
    compute = LossRows(loss, params, people, items_per_user=per_user, local=local, chunk=chunk, draws=draws)
    begin, kept = Start(compute.origin), None if keep.out is None else Start.of_run(RunFolder(Path(keep.out)))
    if kept is not None and kept.weights.shape == begin.weights.shape and kept.digest != begin.digest:
        begin = kept
        _log.warning("these parameters are not those that the run in %s began with, which goes on from those", keep.out)
    described = f"{jax.tree.structure(params)} {local} {draws}"
    setting = Setting.of(
        privacy,
        method,
        keep,
        users=people.users,
        start=begin,
        door="jax.train",
        model=described,
        evaluate=hold_out,
    )

    def tree(point: Vector) -> Params:
        return compute.unflat(jnp.asarray(point, compute.type))

    def watched(round_: int, point: Vector) -> None:
        if watch is not None:
            watch(round_, tree(point))

    if hold_out is not None:
        require_figures(people, hold_out, tree(begin.weights), _arrays)
    seen = None if watch is None else watched
    figures = None if hold_out is None else figures_of(people, hold_out, tree, _arrays)
    done = carry_out(compute, setting, begin, keep, chunk=chunk, watch=seen, observers=observers, figures=figures)
    return TrainedRows(tree(done.weights), done.weights, done.statement, done.directory, done.plan, done.evaluation)


def _arrays(*parts: Array) -> tuple[Array, ...]:
    return parts
