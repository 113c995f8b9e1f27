"""A module as a function of one flat vector of what it trains, and the modules that cannot be one.

An item is handed to the module by itself, as a batch of one: so nothing in it can see two users, or two items.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.func import functional_call

from quoron.training.start import Bytes, Start
from quoron_privacy.errors import ConfigError

Loss = Callable[[Any, torch.Tensor], torch.Tensor]  # output of a batch of one and its target -> one number
Weights = Mapping[str, torch.Tensor]
_REPLACED = {
    "BatchNorm": "GroupNorm or LayerNorm, or its running statistics frozen with .eval()",
    "InstanceNorm": "InstanceNorm with track_running_stats=False, or GroupNorm",
}


@dataclass(frozen=True, slots=True, eq=False)
class TorchModule:
    """A copy of a module on a device, and the loss of one item under any weights."""

    module: torch.nn.Module
    loss: Loss | None  # None: the module returns its loss
    device: torch.device

    @classmethod
    def of(cls, module: torch.nn.Module, loss: Loss | None, device: str | torch.device) -> "TorchModule":
        """ConfigError for a module that trains nothing or is known to write buffers."""
        if not isinstance(module, torch.nn.Module):
            raise ConfigError(f"Expected a torch.nn.Module, got {type(module).__name__}. Wrap a function in one.")
        _refuse_statistics(module)
        made = cls(copy.deepcopy(module), loss, torch.device(device))
        if not made.weights():
            raise ConfigError("Expected a module with parameters that require gradients, got none. Unfreeze some.")
        made.module.to(made.device)
        return made

    def weights(self) -> dict[str, torch.Tensor]:
        """What is trained, by name: parameters that require gradients, each once."""
        named = self.module.named_parameters()
        return {name: weight.detach() for name, weight in named if weight.requires_grad}

    @property
    def dimension(self) -> int:
        """d: numbers that are trained."""
        return sum(weight.numel() for weight in self.weights().values())

    def flat(self) -> NDArray[np.float64]:
        """The module's weights, shape (d,)."""
        return np.concatenate([weight.double().cpu().numpy().ravel() for weight in self.weights().values()])

    def unflat(self, point: NDArray[np.float64]) -> dict[str, torch.Tensor]:
        """Weights of a point (d,), of the types and on the device of the module's own."""
        found, first = {}, 0
        for name, weight in self.weights().items():
            part = torch.from_numpy(point[first : first + weight.numel()]).reshape(weight.shape)
            found[name] = part.to(weight.device, weight.dtype)
            first += weight.numel()
        return found

    def start(self) -> Start:
        """What training starts from, and what of the module stays as it is."""
        return Start(self.flat(), {name: _bytes(each) for name, each in self._fixed().items()})

    def begin(self, start: Start) -> None:
        """Take another start."""
        with torch.no_grad():
            own = dict(self.module.named_parameters())
            for name, weight in self.unflat(start.weights).items():
                own[name].copy_(weight)
            for name, each in self._fixed().items():
                raw = torch.from_numpy(start.fixed[name].copy())
                each.copy_(raw.view(each.dtype).reshape(each.shape))

    def _fixed(self) -> dict[str, torch.Tensor]:
        """Parameters that are not trained, and buffers, by name."""
        trained, named = self.weights(), (*self.module.named_parameters(), *self.module.named_buffers())
        return {name: each.detach() for name, each in named if name not in trained}

    def item_loss(self, weights: Weights, *parts: torch.Tensor) -> torch.Tensor:
        """Of one item, whose parts have no batch dimension: a number."""
        batch = tuple(part.unsqueeze(0) for part in parts)
        if self.loss is None:
            lost: torch.Tensor = functional_call(self.module, dict(weights), batch)
        else:
            lost = self.loss(functional_call(self.module, dict(weights), batch[:-1]), batch[-1])
        return lost.reshape(())

    def trained(self, point: NDArray[np.float64]) -> torch.nn.Module:
        """A module on the processor with the weights of a point (d,)."""
        made = copy.deepcopy(self.module)
        with torch.no_grad():
            own = dict(made.named_parameters())
            for name, weight in self.unflat(point).items():
                own[name].copy_(weight)
        return made.cpu()

    def require_pure(self, *parts: torch.Tensor) -> None:
        """ConfigError, naming them, if a forward pass on `parts`, items of nobody, writes buffers."""
        probe = copy.deepcopy(self)  # with plain calls, which show every way to write
        before = {name: (buffer, buffer._version) for name, buffer in probe.module.named_buffers()}
        given = [part[:1].to(self.device) for part in parts]
        try:
            with torch.random.fork_rng(devices=cuda_of(self.device)), torch.no_grad():
                output = probe.module(*(given if self.loss is None else given[:-1]))
                lost = output if self.loss is None else self.loss(output, given[-1])
        except Exception as error:
            raise ConfigError(
                f"Expected a module and a loss that take an item by itself, as a batch of one; on an item of zeros "
                f"they raised {type(error).__name__}: {error}"
            ) from error
        if lost.numel() != 1:
            raise ConfigError(f"Expected a loss of one number, got shape {tuple(lost.shape)}. Take its mean.")
        after = {name: (buffer, buffer._version) for name, buffer in probe.module.named_buffers()}
        written = [name for name, now in after.items() if name not in before or not _same(before[name], now)]
        if written:
            raise ConfigError(
                f"Expected a module that writes no buffer in its forward pass, got one that writes {written[0]!r}: it "
                "would carry one user's items to others, without noise. Freeze that part with .eval(), or replace it "
                "by one that keeps nothing, such as GroupNorm."
            )


def _refuse_statistics(module: torch.nn.Module) -> None:
    for name, part in module.named_modules():
        kind = type(part).__name__
        is_batch = isinstance(part, torch.nn.modules.batchnorm._BatchNorm)
        is_instance = isinstance(part, torch.nn.modules.instancenorm._InstanceNorm)
        if part.training and (is_batch or (is_instance and part.track_running_stats)):
            instead = _REPLACED["BatchNorm" if is_batch else "InstanceNorm"]
            raise ConfigError(
                f"Expected a module that keeps no statistics of items, got {kind} as {name or 'the module'!r}: it "
                f"would carry one user's items to others, without noise. Replace it by {instead}."
            )


def _bytes(each: torch.Tensor) -> Bytes:
    """Of a tensor, whatever its type."""
    found: Bytes = each.contiguous().cpu().reshape(-1).view(torch.uint8).numpy()
    return found


def _same(before: tuple[torch.Tensor, int], after: tuple[torch.Tensor, int]) -> bool:
    return before[0] is after[0] and before[1] == after[1]


def cuda_of(device: torch.device) -> list[torch.device]:
    """Where torch keeps another generator."""
    return [device] if device.type == "cuda" else []
