"""The front door for torch: a module, users' items, a promise."""

import hashlib
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Unpack

import torch

from quoron.run_folder import RunFolder
from quoron.sections import Keep, Method, Privacy, door, only, with_keywords
from quoron.torch.computing import ModuleRows
from quoron.torch.modules import Loss, TorchModule
from quoron.training.black_box import Vector
from quoron.training.figures import figures_of, require_figures
from quoron.training.items import Array, Data, ItemColumns, items_of
from quoron.training.rows import CHUNK, METHOD, HoldOut, Setting, carry_out, items_needed
from quoron.training.start import Start
from quoron.training.trained import TrainedRows
from quoron_server.rounds import Observer

_log = logging.getLogger("quoron")


@door
def train(
    module: torch.nn.Module,
    data: Data,
    *,
    loss: Loss | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    items_per_user: int | None = None,
    privacy: Privacy = Privacy(),  # noqa: B008  # frozen
    method: Method,
    keep: Keep = Keep(),  # noqa: B008  # frozen
    device: str | torch.device = "cpu",
    watch: Callable[[int, torch.nn.Module], None] | None = None,
    observers: Sequence[Observer] = (),
    hold_out: HoldOut | None = None,
    **items: Unpack[ItemColumns],
) -> TrainedRows[torch.nn.Module]:
    """Train `module` with (ε, δ)-differential privacy for all items of each user, from the weights that it has.

    `data` is a tuple of tensors or arrays with one entry an item, or a torch Dataset of such tuples, with `user` that
    says whose each item is, or with `offsets` where items are sorted by user; or a table, that is a DataFrame or a
    Dataset of Hugging Face, with the columns `user`, `features` and `label`. The loss of an item is
    loss(module(*inputs), target), its last part the target, each part as a batch of one; without `loss` it is what the
    module itself returns.

    | argument | meaning                                                                                           |
    | -------- | ------------------------------------------------------------------------------------------------- |
    | `method` | `items_per_user`, needed and public: who has more takes part with so many, drawn anew each round. |
    |          | `local`: a row is what `LocalSGD` makes of the model; None: the average gradient. `clip_norm`:    |
    |          | rows are shortened to this norm, the promise's base. `radius`: the model stays within this        |
    |          | distance of the module's weights, which have to be public. `chunk`: users computed at once, 64    |
    |          | unless told, bounds memory on the device. `compiled` by `torch.compile`; None: where it was       |
    |          | measured to pay, which is on "cuda" only                                                          |
    | `watch`  | called before each round with a module of the weights that it asks at, which are released:        |
    |          | evaluate on public data there                                                                     |

    `hold_out` is `HoldOut(share, figures, names)`: so many users are not trained on. figures(module, *parts) gets the
    final module, in eval mode and on the processor, and all items of one of them as tensors; it returns numbers in
    [0, 1], F an item. Means over users, with intervals, are in `evaluation` of the result (docs/evaluation.md).

    Other arguments, charges, interruptions and errors are those of `quoron.train_rows`. Only parameters that require
    gradients are trained. A module that writes buffers in its forward pass is refused with the replacement; what torch
    cannot batch over users is computed user by user, what it cannot compile without; the log of "quoron" says why.
    """
    privacy = with_keywords(privacy, "torch.train", epsilon=epsilon, delta=delta)
    method = with_keywords(method, "torch.train", items_per_user=items_per_user)
    only("torch.train", (*METHOD, "local", "chunk", "compiled"), method)
    per_user, local = items_needed(method, "torch.train"), method.local
    network, kept = (
        TorchModule.of(module, loss, device),
        None if keep.out is None else Start.of_run(RunFolder(Path(keep.out))),
    )
    if kept is not None and network.begins_elsewhere(kept):
        network.begin(kept)
        _log.warning("this module is not the one that the run in %s began with, which goes on from that", keep.out)
    people = items_of(data, **items)
    quick = network.device.type == "cuda" if method.compiled is None else method.compiled
    compute = ModuleRows(network, people, items_per_user=per_user, local=local, compiled=quick)
    if compute.why_looped is not None:
        _log.warning("users are computed one by one, as torch cannot batch this module: %s", compute.why_looped)
    if compute.why_eager is not None:
        _log.warning("rows are computed without torch.compile, which failed: %s", compute.why_eager)
    begin = network.start()
    described = hashlib.sha256(f"{network.module}{sorted(network.weights())}{local}".encode()).hexdigest()
    setting = Setting.of(
        privacy,
        method,
        keep,
        users=people.users,
        start=begin,
        door="torch.train",
        model=described,
        evaluate=hold_out,
    )

    def finished(point: Vector) -> torch.nn.Module:
        return network.trained(point).eval()

    if hold_out is not None:
        require_figures(people, hold_out, finished(begin.weights), _tensors)

    def watched(round_: int, point: Vector) -> None:
        if watch is not None:
            watch(round_, network.trained(point))

    done = carry_out(
        compute,
        setting,
        begin,
        keep,
        chunk=CHUNK if method.chunk is None else method.chunk,
        watch=None if watch is None else watched,
        observers=observers,
        summing=compute.sums if network.device.type == "cuda" else None,
        figures=None if hold_out is None else figures_of(people, hold_out, finished, _tensors),
    )
    model = network.trained(done.weights)
    return TrainedRows(model, done.weights, done.statement, done.directory, done.plan, done.evaluation)


def _tensors(*parts: Array) -> tuple[torch.Tensor, ...]:
    return tuple(torch.tensor(part) for part in parts)
