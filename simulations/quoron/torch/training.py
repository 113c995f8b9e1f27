"""The front door for torch: a module, users' items, a promise."""

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from quoron.run_folder import RunFolder
from quoron.torch.computing import Rows
from quoron.torch.modules import Loss, Network
from quoron.training.black_box import Vector, problem_of
from quoron.training.items import Data, items_of
from quoron.training.rows import Setting, carry_out
from quoron.training.start import Start
from quoron.training.timetable import LocalSGD
from quoron_server.plan import Guarantee, Plan
from quoron_server.rounds import Observer

_log = logging.getLogger("quoron")


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """A released module and what was promised for it."""

    module: torch.nn.Module  # a copy of what was given, with released weights, on the processor
    model: NDArray[np.float64]  # (d,): the weights that were trained, in the module's order
    plan: Plan

    @property
    def guarantee(self) -> Guarantee:
        """ε, δ, adjacency, exposure and assumptions; `sentence()` says it in words."""
        return self.plan.guarantee


def train(
    module: torch.nn.Module,
    data: Data,
    *,
    loss: Loss | None = None,
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
    smoothness: float | None = None,
    device: str | torch.device = "cpu",
    chunk: int = 64,
    compiled: bool | None = None,
    population: str = "default",
    ledger: str | Path | None = None,
    out: str | Path | None = None,
    simulation_seed: int | None = None,
    allow_large_delta: bool = False,
    watch: Callable[[int, torch.nn.Module], None] | None = None,
    observers: Sequence[Observer] = (),
) -> Trained:
    """Train `module` with (ε, δ)-differential privacy for all items of each user, from the weights that it has.

    `data` is a tuple of tensors or arrays with one entry an item, or a torch Dataset of such tuples, with `user` that
    says whose each item is, or with `offsets` where items are sorted by user; or a table, that is a DataFrame or a
    Dataset of Hugging Face, with the columns `user`, `features` and `label`. The loss of an item is
    loss(module(*inputs), target), its last part the target, each part as a batch of one; without `loss` it is what the
    module itself returns.

    | argument         | meaning                                                                                   |
    | ---------------- | ----------------------------------------------------------------------------------------- |
    | `items_per_user` | public; who has more takes part with so many, drawn anew each round                       |
    | `local`          | a row is what `LocalSGD` makes of the model; None: the average gradient                   |
    | `clip_norm`      | rows are shortened to this norm: the promise's base. None: it follows the users,          |
    |                  | privately, for a share of ε; then `options` need a `step_size`                            |
    | `radius`         | the model stays within this distance of the module's weights, which have to be public     |
    | `chunk`          | users computed at once: bounds memory on the device                                       |
    | `compiled`       | by `torch.compile`; None: where it was measured to pay, which is on "cuda" only           |
    | `watch`          | called before each round with a module of the weights that it asks at, which are          |
    |                  | released: evaluate on public data there                                                   |

    Other arguments, charges, interruptions and errors are those of `quoron.train_rows`. Only parameters that require
    gradients are trained. A module that writes buffers in its forward pass is refused with the replacement; what torch
    cannot batch over users is computed user by user, what it cannot compile without; the log of "quoron" says why.
    """
    network, kept = Network.of(module, loss, device), None if out is None else Start.of_run(RunFolder(Path(out)))
    if kept is not None and network.begins_elsewhere(kept):
        network.begin(kept)
        _log.warning("this module is not the one that the run in %s began with, which goes on from that", out)
    items = items_of(data, user=user, offsets=offsets, features=features, label=label)
    quick = network.device.type == "cuda" if compiled is None else compiled
    compute = Rows(network, items, items_per_user=items_per_user, local=local, compiled=quick)
    if compute.why_looped is not None:
        _log.warning("users are computed one by one, as torch cannot batch this module: %s", compute.why_looped)
    if compute.why_eager is not None:
        _log.warning("rows are computed without torch.compile, which failed: %s", compute.why_eager)
    problem = problem_of(
        users=items.users,
        items_per_user=items_per_user,
        dimension=network.dimension,
        radius=radius,
        clip_norm=clip_norm,
        smoothness=smoothness,
    )
    begin = network.start()
    described = f"{network.module}{sorted(network.weights())}{local}"
    setting = Setting(
        problem=problem,
        epsilon=epsilon,
        delta=delta,
        clip_norm=clip_norm,
        algorithm=algorithm,
        options=dict(options or {}),
        start=begin.digest,
        model=hashlib.sha256(described.encode()).hexdigest(),
        simulation_seed=simulation_seed,
        population=population,
        allow_large_delta=allow_large_delta,
    )

    def watched(round_: int, point: Vector) -> None:
        if watch is not None:
            watch(round_, network.trained(point))

    done = carry_out(
        compute,
        setting,
        begin,
        chunk=chunk,
        ledger=ledger,
        out=out,
        watch=None if watch is None else watched,
        observers=observers,
        summing=compute.sums if network.device.type == "cuda" else None,
    )
    return Trained(network.trained(done.model), done.model, done.plan)
