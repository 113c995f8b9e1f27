"""The same module and loss where users hold their own items: what a client answers, and weights as one flat array.

    @app.query("private")
    def private(message, context):
        rows = answering(network, own_items, loss=loss, items_per_user=50, local=LocalSGD())
        return answer_with(message, context, rows)

The server's side is `quoron.flower.train_privately(grid, start=weights(network), dimension=len(start), ...)`, and
`with_weights(network, trained.weights)` at its end. Page: docs/models.md.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from quoron.torch.computing import ModuleRows
from quoron.torch.modules import Loss, TorchModule
from quoron.training.items import Data, LocalSGD, items_of
from quoron.training.rows import Vector
from quoron_privacy.noise.sources import SecureNoise


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

    Arguments, rows and refusals are those of `quoron.torch.train`; `data` is a tuple of tensors or arrays, or a torch
    Dataset. Shuffles and dropout are drawn anew in each call.
    """
    size = len(data[0]) if isinstance(data, tuple | list) else len(data)
    items = items_of(data, offsets=np.array([0, size]))
    rows = ModuleRows(TorchModule.of(module, loss, device), items, items_per_user=items_per_user, local=local)

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
