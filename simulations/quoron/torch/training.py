"""Training of a torch module: a module, users' items, a promise.

Where users hold their own items `answering` is what a client answers, and weights are one flat array:

    @app.query("private")
    def private(message, context):
        rows = answering(network, own_items, loss=loss, items_per_user=50, local=LocalSGD())
        return answer_with(message, context, rows)

The server's side is `quoron.flower.train_privately(grid, start=weights(network), dimension=len(start), ...)`, and
`with_weights(network, trained.weights)` at its end. Page: docs/models.md.
"""

import hashlib
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Unpack

import numpy as np
import torch
from numpy.typing import NDArray

from quoron.arguments import entry_point
from quoron.torch.computing import Loss, ModuleRows, TorchModule
from quoron.training.rows import (
    ITEMS,
    Array,
    Data,
    LocalSGD,
    Metric,
    ModuleTraining,
    Trainable,
    TrainedRows,
    Vector,
    completed,
    items_of,
    of_one_user,
    released,
    start_of,
)
from quoron_privacy.noise.streams import SecureNoise


def answering(
    module: torch.nn.Module,
    data: Data,
    *,
    loss: Loss | None = None,
    items_per_user: int,
    local: LocalSGD | None = None,
    device: str | torch.device = "cpu",
) -> Callable[[Vector], Vector]:
    """A function from a model (d,) to what one user, who holds all of `data`, answers: (d,).

    Arguments, rows and refusals are those of `quoron.torch.train`; `data` needs no `user`. Shuffles and dropout are
    drawn again in each call.
    """
    items = of_one_user(data)
    rows = ModuleRows(
        TorchModule.of(module, loss, device, items.names), items, items_per_user=items_per_user, local=local
    )

    def answer(model: Vector) -> Vector:
        found: NDArray[np.float64] = rows(0, np.zeros(1, np.int64), model, SecureNoise.fresh())[0]
        return found

    return answer


def weights(module: torch.nn.Module) -> Vector:
    """What is trained of a module, flat: (d,)."""
    return TorchModule.of(module, None, "cpu").flat()


def with_weights(module: torch.nn.Module, model: Vector) -> torch.nn.Module:
    """A copy of a module, on the processor, with these weights (d,)."""
    return TorchModule.of(module, None, "cpu").trained(model)


def load(folder: str | Path, module: torch.nn.Module) -> torch.nn.Module:
    """Return a copy of `module`, on the processor, with the weights that the run in `folder` released.

    Parameters that were not trained, and buffers, are those that the run began with.

    Raises:
        RunError: the run is not complete, or its files have changed.
        ConfigError: it trained a module of another shape.
    """
    network = TorchModule.of(module, None, "cpu")
    network.begin(released(folder, network.start()))
    return network.module


_log = logging.getLogger("quoron")


@entry_point
def train(
    module: torch.nn.Module,
    data: Data,
    *,
    loss: Loss | None = None,
    local: LocalSGD | None = None,
    compiled: bool | None = None,
    device: str | torch.device = "cpu",
    watch: Callable[[int, torch.nn.Module], None] | None = None,
    holdout: float | None = None,
    metrics: Mapping[str, Metric] | None = None,
    **training: Unpack[ModuleTraining],
) -> TrainedRows[torch.nn.Module]:
    """Train `module` with (ε, δ)-differential privacy for all items of each user, from the weights that it has.

    `data` is a tuple or a mapping of tensors or arrays with one entry an item, or a Dataset or DataLoader of them, with
    `user`, the user of each item, or with `offsets` where items are sorted by user. A DataLoader's collate function
    gets item by item, in the order of its Dataset. `data` may also be a table (a DataFrame or a Dataset of Hugging
    Face) with the columns `user`, `features` and `label`.

    The loss of an item is loss(module(*inputs), target) on batches of one, of a mapping loss(module(**inputs), target).
    The target is the last part, or that called `label`. Without `loss` the module gets all parts and returns its loss:
    a number, or an object or mapping with `loss`.

    Nothing else has to be given: without an algorithm it is `dp-sgd-wor`, with rounds, cohorts, clip norm and steps of
    Adam by a public rule of n, d, ε and δ (`completed` in quoron.training.rows); `options` replace any of them.

    Args:
        items_per_user: 32 unless given; public: a user with more items takes part with so many, drawn in each round.
        radius: the model stays within this ℓ2 distance of the module's weights, which are public; None: anywhere.
        clip_norm: rows are shortened to it: the guarantee rests on it. None: 0.001 by the rule, else it follows users.
        delta: 1e-6 unless given.
        local: a row is what `LocalSGD` makes of the model; None: the average gradient.
        chunk: users computed at once, 64 unless given; bounds memory on the device.
        compiled: whether `torch.compile` is used; None: where it was measured to pay, which is on "cuda" only.
        watch: called before each round with a module of the weights that it asks at, which are released: evaluate on
            public data there.
        holdout: share of the users that are not trained on but measure the final model, for the same ε.
        metrics: by name, metric(module, *parts) gets the final module, in eval mode and on the processor, and all items
            of one of these users as tensors; it returns a number in [0, 1] an item, (m,). Means over users, with
            intervals, are in `evaluation` of the result (docs/evaluation.md).

    Other arguments, charges, interruptions and errors are those of `quoron.train_rows`. Only parameters that require
    gradients are trained. A module that writes buffers in its forward pass is refused with the replacement; what torch
    cannot batch over users is computed user by user, what it cannot compile without; the log of "quoron" says why.
    """
    people = items_of(data, **training)
    network = TorchModule.of(module, loss, device, people.names)
    training = completed(training, people.users, len(network.flat()))
    most = training["items_per_user"] or ITEMS
    network.begin(start_of(training, network.start()))
    quick = network.device.type == "cuda" if compiled is None else compiled
    compute = ModuleRows(network, people, items_per_user=most, local=local, compiled=quick)
    if compute.why_looped is not None:
        _log.warning(
            "users are computed one by one, which takes tens of times as long, as torch cannot batch this module: %s",
            compute.why_looped,
        )
    if compute.why_eager is not None:
        _log.warning("rows are computed without torch.compile, which failed: %s", compute.why_eager)
    model = Trainable(
        network.start(),
        hashlib.sha256(f"{network.module}{sorted(network.weights())}{local}".encode()).hexdigest(),
        compute,
        network.trained,
        lambda point: network.trained(point).eval(),
        _tensors,
        compute.sums if network.device.type == "cuda" else None,
    )
    return model.train(people, training, watch=watch, holdout=holdout, metrics=metrics)


def _tensors(*parts: Array) -> tuple[torch.Tensor, ...]:
    return tuple(torch.tensor(part) for part in parts)
