"""The front door for JAX: a pure loss, parameters, users' items, a promise."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from quoron.jax.computing import Loss, Params, Rows
from quoron.run_folder import RunFolder
from quoron.training.black_box import Vector, problem_of
from quoron.training.items import Data, items_of
from quoron.training.rows import Setting, carry_out
from quoron.training.start import Start
from quoron.training.timetable import LocalSGD
from quoron_privacy.errors import count
from quoron_server.plan import Guarantee, Plan
from quoron_server.rounds import Observer

_log = logging.getLogger("quoron")


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """Released parameters and what was promised for them."""

    params: Params  # a tree as given, with released numbers
    model: NDArray[np.float64]  # (d,): the same, in the order of `jax.flatten_util.ravel_pytree`
    plan: Plan

    @property
    def guarantee(self) -> Guarantee:
        """ε, δ, adjacency, exposure and assumptions; `sentence()` says it in words."""
        return self.plan.guarantee


def train(
    loss: Loss,
    params: Params,
    data: Data,
    *,
    user: str | Sequence[Any] | NDArray[Any] | None = None,
    offsets: Sequence[int] | NDArray[np.int64] | None = None,
    features: Sequence[str] | None = None,
    label: str | None = None,
    items_per_user: int,
    epsilon: float,
    delta: float,
    clip_norm: float | None = None,
    radius: float,
    algorithm: str = "one-pass-dp-sgd",
    options: Mapping[str, Any] | None = None,
    local: LocalSGD | None = None,
    draws: bool = False,
    smoothness: float | None = None,
    chunk: int = 64,
    population: str = "default",
    ledger: str | Path | None = None,
    out: str | Path | None = None,
    simulation_seed: int | None = None,
    allow_large_delta: bool = False,
    watch: Callable[[int, Params], None] | None = None,
    observers: Sequence[Observer] = (),
) -> Trained:
    """Train `params`, a tree of arrays, with (ε, δ)-differential privacy for all items of each user.

    `loss(params, *parts)` is a pure function of parameters and of the parts of one item, without a batch dimension; a
    number. With `draws=True` it has a key as its last argument, of the user's own: dropout. Data, and arguments that
    are not named here, are those of `quoron.torch.train` and `quoron.train_rows`.

    | argument         | meaning                                                                                   |
    | ---------------- | ----------------------------------------------------------------------------------------- |
    | `params`         | where training starts; public. What is not trained the loss closes over                   |
    | `local`          | a row is what `LocalSGD` makes of the parameters; None: the average gradient              |
    | `chunk`          | users computed at once: bounds memory. All chunks have this size, and are compiled once   |
    | `watch`          | called before each round with the released parameters that it asks at                     |

    The loss is traced by JAX, before anything is charged, so it cannot keep or branch on what it is given: ConfigError
    for one that cannot be traced. Other devices are JAX's own affair (`jax.default_device`).
    """
    count(chunk=chunk)
    items = items_of(data, user=user, offsets=offsets, features=features, label=label)
    compute = Rows(loss, params, items, items_per_user=items_per_user, local=local, chunk=chunk, draws=draws)
    begin, kept = Start(compute.origin), None if out is None else Start.of_run(RunFolder(Path(out)))
    if kept is not None and kept.weights.shape == begin.weights.shape and kept.digest != begin.digest:
        begin = kept
        _log.warning("these parameters are not those that the run in %s began with, which goes on from those", out)
    problem = problem_of(
        users=items.users,
        items_per_user=items_per_user,
        dimension=len(compute.origin),
        radius=radius,
        clip_norm=clip_norm,
        smoothness=smoothness,
    )
    setting = Setting(
        problem=problem,
        epsilon=epsilon,
        delta=delta,
        clip_norm=clip_norm,
        algorithm=algorithm,
        options=dict(options or {}),
        start=begin.digest,
        model=f"{jax.tree.structure(params)} {local} {draws}",
        simulation_seed=simulation_seed,
        population=population,
        allow_large_delta=allow_large_delta,
    )

    def tree(point: Vector) -> Params:
        return compute.unflat(jnp.asarray(point, compute.type))

    def watched(round_: int, point: Vector) -> None:
        if watch is not None:
            watch(round_, tree(point))

    done = carry_out(
        compute,
        setting,
        begin,
        chunk=chunk,
        ledger=ledger,
        out=out,
        watch=None if watch is None else watched,
        observers=observers,
    )
    return Trained(tree(done.model), done.model, done.plan)
