"""Training of a torch module: a module, users' items, a promise.

Where users hold their own items `answering` is what a client answers, and weights are one flat array:

    @app.query("private")
    def private(message, context):
        rows = answering(network, own_items, loss=loss, items_per_user=50, local=LocalSGD())
        return answer_with(message, context, rows)

The server's side is `quoron.flower.train_privately(grid, start=weights(network), dimension=len(start), ...)`, and
`with_weights(network, trained.weights)` at its end. Page: docs/models.md.

A module is a function of one flat vector of what it trains, and sees one user's items at a time. It gets all of a step
as one batch where made-up items show that it treats them apart, else each as a batch of one.

    compute = ModuleRows(network, items, items_per_user=50, local=LocalSGD(batch_size=10))
    rows = compute(round, users, point, noise)              # (k, d); a user without items has the zero row

Clipped rows are added where they are. Norms are added in the device's own order, which noise#n8 allows for: integers of
a GPU may differ in their last places from the processor's, the sensitivity is the same.
"""

import copy
import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import add
from pathlib import Path
from typing import Any, Literal, Unpack

import numpy as np
import torch
import torch._decomp.decompositions
from numpy.typing import NDArray
from torch.func import functional_call, grad, vmap
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from quoron.arguments import entry_point
from quoron.training.rows import (
    ITEMS,
    Bytes,
    Data,
    Items,
    LocalSGD,
    Minibatches,
    ModuleTraining,
    Start,
    Timetable,
    TrainedRows,
    Users,
    Vector,
    completed,
    items_of,
    of_one_user,
    released,
    start_of,
    train_model,
)
from quoron_client.protocol.questions import Question, plain
from quoron_privacy.errors import ConfigError, DataError
from quoron_privacy.kernels.threads import at_once
from quoron_privacy.means.clipping import ClippedSum
from quoron_privacy.noise.streams import NoiseSource, SecureNoise
from quoron_privacy.release import Sums

Loss = Callable[[Any, torch.Tensor], torch.Tensor]  # output of a batch of one and its target -> one number
Weights = dict[str, torch.Tensor]
_REPLACED = {
    "BatchNorm": "GroupNorm or LayerNorm, or its running statistics frozen with .eval()",
    "InstanceNorm": "InstanceNorm with track_running_stats=False, or GroupNorm",
}

_MEANS: tuple[Any, ...] = (  # of torch, over all numbers of a batch
    *(functional.mse_loss, functional.l1_loss, functional.huber_loss, functional.smooth_l1_loss),
    *(functional.binary_cross_entropy, functional.binary_cross_entropy_with_logits, functional.cross_entropy),
)
_RECURRENT = {"gru": "gru_impl", "lstm": "lstm_impl", "rnn_tanh": "rnn_tanh_input", "rnn_relu": "rnn_relu_input"}


@dataclass(frozen=True, slots=True, eq=False)
class TorchModule:
    """A copy of a module on a device, and the loss of one item under any weights."""

    module: torch.nn.Module
    loss: Loss | None  # None: the module returns its loss
    device: torch.device
    names: tuple[str, ...] = ()  # of an item's parts, which are then given by name
    batching: Literal["batch", "vmap", "loop"] = "vmap"  # how losses of a user's items are computed

    @classmethod
    def of(
        cls, module: torch.nn.Module, loss: Loss | None, device: str | torch.device, names: tuple[str, ...] = ()
    ) -> "TorchModule":
        """Raise ConfigError for a module that trains nothing or is known to write buffers."""
        if not isinstance(module, torch.nn.Module):
            raise ConfigError(f"Expected a torch.nn.Module, got {type(module).__name__}. Wrap a function in one.")
        _refuse_statistics(module)
        made = cls(copy.deepcopy(module), loss, torch.device(device), names)
        for part in made.module.modules():
            if isinstance(part, torch.nn.Embedding | torch.nn.EmbeddingBag):
                part.sparse = False  # the same gradient, which adds up with others
        if not made.weights():
            raise ConfigError("Expected a module with parameters that require gradients, got none. Unfreeze some.")
        made.module.to(made.device)
        return made

    def weights(self) -> dict[str, torch.Tensor]:
        """Return what is trained, by name: parameters that require gradients, each once."""
        named = self.module.named_parameters()
        return {name: weight.detach() for name, weight in named if weight.requires_grad}

    def flat(self) -> NDArray[np.float64]:
        """Return the module's weights, shape (d,)."""
        return np.concatenate([weight.double().cpu().numpy().ravel() for weight in self.weights().values()])

    def unflat(self, point: NDArray[np.float64]) -> dict[str, torch.Tensor]:
        """Weights of a point (d,), of the types and on the device of the module's own."""
        found, first = {}, 0
        for name, weight in self.weights().items():
            part = torch.from_numpy(point[first : first + weight.numel()]).reshape(weight.shape)
            found[name] = part.to(weight.device, weight.dtype)
            first += weight.numel()
        return found

    def tensors(self, *parts: NDArray[Any]) -> tuple[torch.Tensor, ...]:
        """Return arrays as tensors, of floats in the precision of the weights where all have one."""
        found, kinds = [torch.from_numpy(part) for part in parts], {weight.dtype for weight in self.weights().values()}
        only = kinds.pop() if len(kinds) == 1 else None
        return tuple(part.to(only) if only is not None and part.is_floating_point() else part for part in found)

    def start(self) -> Start:
        """Return what training starts from, and what of the module stays as it is."""
        return Start(self.flat(), {name: _bytes(tensor) for name, tensor in self._fixed().items()})

    def begin(self, start: Start) -> None:
        """Take another start."""
        with torch.no_grad():
            own = dict(self.module.named_parameters())
            for name, weight in self.unflat(start.weights).items():
                own[name].copy_(weight)
            for name, tensor in self._fixed().items():
                raw = torch.from_numpy(start.fixed[name].copy())
                tensor.copy_(raw.view(tensor.dtype).reshape(tensor.shape))

    def _fixed(self) -> dict[str, torch.Tensor]:
        """Parameters that are not trained, and buffers, by name."""
        trained, named = self.weights(), (*self.module.named_parameters(), *self.module.named_buffers())
        return {name: tensor.detach() for name, tensor in named if name not in trained}

    def item_losses(self, weights: Weights, parts: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Return the losses (m,) of one user's items, parts (m, ...)."""

        def call(inputs: tuple[torch.Tensor, ...], named: Weights) -> Any:
            return functional_call(self.module, dict(weights), inputs, named)

        def of_batch(*item: torch.Tensor) -> torch.Tensor:
            batch = tuple(part.unsqueeze(0) for part in item)
            return self._lost(self._output(call, batch), batch).reshape(())

        def of_output(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return self._lost(output.unsqueeze(0), (target.unsqueeze(0),)).reshape(())

        def of_outputs(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            classes = self.loss is functional.cross_entropy
            # A shape that torch would broadcast over items, or classes at several places, some of which are left out.
            if self.loss not in _MEANS or outputs.shape[: 1 if classes else None] != targets.shape:
                return vmap(of_output, randomness="different")(outputs, targets)
            losses = self.loss(outputs, targets, reduction="none")  # type: ignore[call-arg, misc]
            return losses.reshape(len(outputs), -1).mean(1)

        if self.batching == "loop":
            return torch.stack([of_batch(*item) for item in zip(*parts, strict=True)])
        if self.batching == "vmap":
            return vmap(of_batch, randomness="different")(*parts)
        return of_outputs(self._output(call, parts), parts[-1])

    def _output(self, call: Callable[[tuple[torch.Tensor, ...], Weights], Any], parts: tuple[torch.Tensor, ...]) -> Any:
        """Return what `call` makes of a batch, whose last part is a target unless the module returns its loss."""
        inputs = parts if self.loss is None else parts[:-1]
        return call((), dict(zip(self.names, inputs, strict=False))) if self.names else call(inputs, {})

    def _lost(self, output: Any, parts: tuple[torch.Tensor, ...]) -> Any:
        """Return the loss of a batch."""
        if self.loss is not None:
            return self.loss(output, parts[-1])
        return output["loss"] if isinstance(output, Mapping) else getattr(output, "loss", output)

    def is_itemwise(self, parts: tuple[torch.Tensor, ...]) -> bool:
        """Return whether outputs of these made-up items (m, ...) as a batch are those of batches of one."""
        probe = copy.deepcopy(self.module).eval()  # without dropout

        def output(batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
            return self._output(lambda inputs, named: probe(*inputs, **named), batch)

        try:
            with torch.random.fork_rng(devices=cuda_of(self.device)), torch.no_grad():
                alone = torch.cat([output(item) for item in zip(*(part.split(1) for part in parts), strict=True)])
                return self.loss is not None and torch.allclose(output(parts), alone, rtol=1e-4, atol=1e-5)
        except Exception:  # whatever a module makes of items that are none
            return False

    def trained(self, point: NDArray[np.float64]) -> torch.nn.Module:
        """Return a module on the processor with the weights of a point (d,)."""
        made = copy.deepcopy(self.module)
        with torch.no_grad():
            own = dict(made.named_parameters())
            for name, weight in self.unflat(point).items():
                own[name].copy_(weight)
        return made.cpu()

    def require_pure(self, *parts: torch.Tensor) -> bool:
        """Return whether a forward pass draws random numbers, on `parts`, zeros; ConfigError if it writes buffers."""
        probe = copy.deepcopy(self)  # with plain calls, which show every way to write
        before = {name: (buffer, buffer._version) for name, buffer in probe.module.named_buffers()}
        given = tuple(part[:1] for part in parts)
        try:
            with torch.random.fork_rng(devices=cuda_of(self.device)), torch.no_grad():
                before_it = self._generator()
                lost = self._lost(self._output(lambda inputs, named: probe.module(*inputs, **named), given), given)
                draws = before_it is None or not torch.equal(before_it, self._generator())
        except Exception as error:
            raise ConfigError(
                "Expected a module and a loss that take an item by itself, as a batch of one; on an item of zeros "
                f"they raised {type(error).__name__}: {error}. Without loss the module gets all parts and returns its "
                "loss."
            ) from error
        if not isinstance(lost, torch.Tensor) or lost.numel() != 1:
            found = f"shape {tuple(lost.shape)}" if isinstance(lost, torch.Tensor) else type(lost).__name__
            raise ConfigError(f"Expected a loss of one number, got {found}. Take its mean.")
        after = {name: (buffer, buffer._version) for name, buffer in probe.module.named_buffers()}
        written = [name for name, now in after.items() if name not in before or not _same(before[name], now)]
        if written:
            raise ConfigError(
                f"Expected a module that writes no buffer in its forward pass, got one that writes {written[0]!r}: it "
                "would carry one user's items to others, without noise. Freeze that part with .eval(), or replace it "
                "by one that keeps nothing, such as GroupNorm."
            )
        return draws

    def _generator(self) -> torch.Tensor | None:
        """Return the state of the device's generator; None where torch does not show it alike."""
        states = {"cpu": torch.get_rng_state, "cuda": partial(torch.cuda.get_rng_state, self.device)}
        return states[self.device.type]() if self.device.type in states else None


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


def _bytes(tensor: torch.Tensor) -> Bytes:
    """Of a tensor, whatever its type."""
    found: Bytes = tensor.contiguous().cpu().reshape(-1).view(torch.uint8).numpy()
    return found


def _same(before: tuple[torch.Tensor, int], after: tuple[torch.Tensor, int]) -> bool:
    return before[0] is after[0] and before[1] == after[1]


def cuda_of(device: torch.device) -> list[torch.device]:
    """Return where torch keeps another generator."""
    return [device] if device.type == "cuda" else []


CONVOLVED_ALONE = 32  # items of a gradient; from there a processor convolves user by user faster (docs/results.md)
BLOCK = 2**25  # numbers at once
CACHED = 2**21  # numbers of rows at once on a processor, as its cache holds them
_ULP = 2.0**-52


def sum_clipped(rows: torch.Tensor, reduction: ClippedSum, largest: float) -> Sums:
    """Return `ClippedSum.of` of rows (k, d), in torch; one not finite, or beyond `largest`, has not answered."""
    d, device = rows.shape[1], rows.device
    total = torch.zeros(d, dtype=torch.int64, device=device)
    cells = torch.zeros(4, dtype=torch.int64, device=device)
    counts = torch.zeros(2, dtype=torch.int64, device=device)
    centre = None if reduction.centre is None else torch.from_numpy(reduction.centre).to(device)
    unit = 2.0**reduction.bits
    for part in torch.split(rows, max(1, BLOCK // d)):
        row = part.double()
        answered = (row.amax(1) <= largest) & (row.amin(1) >= -largest)  # False for NaN
        row = row if centre is None else row - centre
        most = row.abs().amax(1)
        usable = answered & most.isfinite()
        row = torch.where(usable[:, None], row, 0.0)
        most = torch.where(usable & (most > 0), most, 1.0)
        ratio = row / most[:, None]
        root = (ratio * ratio).sum(1).sqrt()
        inside = most / reduction.norm
        s = torch.minimum(inside, 1.0 / (root * (1 + (d + 8) * _ULP)))
        total += (ratio * s[:, None] * unit).to(torch.int64).sum(0)
        # as `clipping_loops`: what the clipped row's norm leaves of 1, rounded down, and its soft share
        a = root * (1 + (d + 8) * _ULP) * s * (1 + 4 * _ULP)
        short = ((1 - a).clamp(min=0.0) * unit * (1 - 4 * _ULP)).to(torch.int64)
        within, x = 3 * short >= int(unit), short.double() / unit  # a quotient of integers would be of float32
        soft = ((x * (4 - 3 * x)).sqrt() * (1 - 4 * _ULP) * unit).to(torch.int64)
        soft = torch.where(within, torch.full_like(soft, int(unit)), soft)
        cells += torch.stack([values[usable].sum() for values in (short, within.long(), torch.ones_like(short), soft)])
        counts += torch.stack([(s < inside).sum(), answered.sum()])
    clipped, count = counts.tolist()
    return Sums(np.asarray(total.cpu()), np.asarray(cells.cpu()), clipped, count)


def _sum_on_processor(rows: torch.Tensor, reduction: ClippedSum, largest: float) -> Sums:
    """Return the same by the compiled loop, with the integers that `RowsEngine` has of all rows."""
    return reduction.of(rows.numpy(), np.ones(len(rows), np.bool_), largest)


Step = Callable[..., Weights]


class ModuleRows:
    """Rows of any users at any point. A function of them, of their items and of dice: nothing is kept between calls."""

    def __init__(
        self, network: TorchModule, items: Items, *, items_per_user: int, local: LocalSGD | None, compiled: bool = False
    ) -> None:
        """`local` None asks for average gradients. ConfigError for a module that writes buffers or takes no item.

        A module that torch cannot batch over users is computed user by user, one that it cannot compile without that:
        `why_looped` and `why_eager` say why. So are convolutions on a processor where that is faster.
        """
        self._counts, self._names, self._local = items.counts, items.names, local
        self.timetable = Timetable(items, items_per_user, local)
        blank = items.blank(2, self.timetable.batch)
        self._blank = tuple(part.to(network.device) for part in network.tensors(*blank))
        draws = network.require_pure(*(part[0] for part in self._blank))
        self._parts = _near(network.tensors(*items.at_least_one), network.device)
        self._network = replace(network, batching="batch" if network.is_itemwise(_made_up(self._blank)) else "vmap")
        dims = (None if local is None else 0, 0, 0)
        self._gradients: Step = vmap(grad(self._loss), in_dims=dims, randomness="different")
        self.why_looped = self._tried(self._gradients)
        if self.why_looped is not None and self._tried(traced := partial(_traced, self._gradients)) is None:
            self._gradients, self.why_looped = traced, None
        if self.why_looped is not None:
            self._network = replace(network, batching="loop")
        self.why_eager: str | None = None
        if compiled and self.why_looped is None:
            quick: Step = torch.compile(self._gradients)
            self.why_eager = self._tried(quick)
            self._gradients = quick if self.why_eager is None else self._gradients
        convolves = any(isinstance(part, torch.nn.modules.conv._ConvNd) for part in network.module.modules())
        alone = convolves and network.device.type == "cpu" and not compiled and self.timetable.batch >= CONVOLVED_ALONE
        self.one_by_one = alone or self.why_looped is not None
        self._draws = draws or self.why_looped is not None
        self._rows_on = "cuda" if network.device.type == "cuda" else "cpu"  # not every device has float64
        self.summed = sum_clipped if self._rows_on == "cuda" else _sum_on_processor

    def require_whole_numbers(self) -> None:
        """Raise DataError for labels or tokens that the module or its loss cannot take, tried on few items."""
        for place, part in enumerate(self.timetable.items.at_least_one):
            if part.dtype.kind == "f" or not part.size:
                continue
            held = part.reshape(len(part), -1)
            for which, item in (("least", held.min(1).argmin()), ("largest", held.max(1).argmax())):
                one = tuple(values[item][None].to(self._network.device) for values in self._parts)
                try:
                    with torch.random.fork_rng(devices=cuda_of(self._network.device)), torch.no_grad():
                        self._network.item_losses(self._network.weights(), one).cpu()
                except Exception as error:  # whose words quote a value
                    name = repr(self._names[place]) if self._names else f"part {place + 1} of {len(self._parts)}"
                    raise DataError(
                        "Expected whole numbers that the module and its loss take; of the item with the "
                        f"{which} in {name} they raised {type(error).__name__}. Classes and tokens count from 0 to "
                        "below the number of outputs or embeddings."
                    ) from None

    def __call__(self, round_: int, users: Users, point: Vector, noise: NoiseSource) -> NDArray[np.float64]:
        """Rows (k, d) of `users` (k,) at `point` (d,); `noise` has the dice, the same again for the same round."""
        found: NDArray[np.float64] = self._made(round_, users, point, noise).cpu().numpy()
        return found

    def sums(self, question: Question, users: Users, start: Vector, noise: NoiseSource, largest: float) -> Sums:
        """Return what the question's reduction is of the answers of `users`, from points that count from `start`."""
        task = plain(question.task)
        reduction = question.reduction
        assert isinstance(reduction, ClippedSum)
        if len(task.points) != 1 or task.weights[0] != 1 or task.centre is not None:
            given, less = zip(task.points, task.weights, strict=True), 0.0 if task.centre is None else task.centre
            rows = [weight * self._made(question.round, users, start + point, noise) for point, weight in given]
            return self.summed(reduce(torch.add, rows) - torch.as_tensor(less).to(self._rows_on), reduction, largest)
        made: list[Sums] = []  # exact, in any order

        def add_piece(rows: Callable[[], torch.Tensor]) -> None:
            made.append(self.summed(rows(), reduction, largest))

        most = min(CACHED, -(-len(users) // torch.get_num_threads()) * len(start))
        pieces = self._pieces(question.round, users, start + task.points[0], noise, most)
        if self.one_by_one or self._rows_on == "cuda":
            for piece in pieces:
                add_piece(piece)
        else:
            at_once([partial(add_piece, piece) for piece in pieces], torch.get_num_threads())
        return reduce(add, made)

    def _made(self, round_: int, users: Users, point: Vector, noise: NoiseSource) -> torch.Tensor:
        """Return rows in float64."""
        (rows,) = (piece() for piece in self._pieces(round_, users, point, noise, max(1, len(users)) * len(point)))
        return rows.double()

    def _pieces(
        self, round_: int, users: Users, point: Vector, noise: NoiseSource, most: int
    ) -> Iterator[Callable[[], torch.Tensor]]:
        """Yield what makes rows as precise as weights are, user after user: about `most` numbers at once, on a GPU all.

        Where users are computed one by one each is to be called before the next is asked for.
        """
        minibatches, start = self.timetable.minibatches(round_, users, noise), self._network.unflat(point)
        drawing = users if self.one_by_one else users[:1]
        write = _write if self._local is None else partial(_write, start=start)
        kind = reduce(torch.promote_types, (weight.dtype for weight in start.values()), torch.float32)
        seeds = self.timetable.dice(round_, drawing, noise).tolist() if self._draws else [0] * len(drawing)
        together: Weights = {}
        with torch.random.fork_rng(devices=cuda_of(self._network.device), enabled=self._draws):
            if not self.one_by_one:
                if self._draws:
                    torch.manual_seed(seeds[0])
                moved = {name: weight.expand(len(users), *weight.shape) for name, weight in start.items()}
                together = self._answers(self._gradients, minibatches, slice(None), start, moved)
            step = len(users) if self._rows_on == "cuda" else max(1, most // len(point))
            for first in range(0, len(users), step):

                def rows(first: int = first) -> torch.Tensor:
                    some = users[first : first + step]
                    found = torch.empty((len(some), len(point)), dtype=kind, device=self._rows_on)
                    if not self.one_by_one:
                        write(found, {name: tensor[first : first + step] for name, tensor in together.items()})
                    for place in range(len(found)) if self.one_by_one else ():
                        if self._draws:
                            torch.manual_seed(seeds[first + place])  # dice of a user's own
                        write(found[place], self._answers(self._gradient, minibatches, first + place, start, start))
                    found[np.flatnonzero(self._counts[some] == 0).tolist()] = 0.0
                    return found

                yield rows

    def _gradient(self, weights: Weights, weight: torch.Tensor, parts: tuple[torch.Tensor, ...]) -> Weights:
        """Return the gradient of one user."""
        own = {name: tensor.detach().requires_grad_() for name, tensor in weights.items()}
        with torch.enable_grad():
            total = self._loss(own, weight, parts)
            found = torch.autograd.grad(total, list(own.values()), allow_unused=True, materialize_grads=True)
        return dict(zip(own, found, strict=True))

    def _answers(
        self, gradients: Step, minibatches: Minibatches, users: slice | int, start: Weights, moved: Weights
    ) -> Weights:
        """Return gradients at `start` of users, or of one; of local SGD where it ends."""
        if self._local is None:
            return gradients(start, *self._step(minibatches, users, 0))
        for number in range(self.timetable.steps):
            steps = gradients(moved, *self._step(minibatches, users, number))
            # After the first step weights are users' own, and another array would cost as much as its numbers.
            less = torch.Tensor.sub_ if number else torch.sub
            moved = {name: less(weight, steps[name], alpha=self._local.step_size) for name, weight in moved.items()}
        return moved

    def _step(
        self, minibatches: Minibatches, users: slice | int, number: int
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """Weights (k, batch) and items (k, batch, ...) of one step, on the device; of one user without k."""
        places, device = torch.from_numpy(minibatches.places[users, number]), self._network.device
        weights = torch.from_numpy(minibatches.weights[users, number]).to(device)
        return weights, tuple(part[places.to(part.device)].to(device) for part in self._parts)

    def _loss(self, weights: Weights, weight: torch.Tensor, parts: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Of one user: the weighted sum over a step's items."""
        return (weight * self._network.item_losses(weights, parts)).sum()

    def _tried(self, gradients: Step) -> str | None:
        """Return why these cannot be computed for users at once, tried on synthetic items; None if they can."""
        start = self._network.weights()
        weight = torch.ones((2, self.timetable.batch), device=self._network.device)
        if self._local is not None:
            start = {name: tensor.expand(2, *tensor.shape) for name, tensor in start.items()}
        try:
            with torch.random.fork_rng(devices=cuda_of(self._network.device)):
                gradients(start, weight, self._blank)
        except Exception as error:  # whatever torch makes of a module that it cannot batch, or not compile
            return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no reason given'}"
        return None


class _Traced(TorchFunctionMode):  # type: ignore[misc]  # torch is not there where types are checked
    """Modules as a compiler of torch traces them, by whose rules vmap can batch more of them.

    Transformers then take no shortcut that depends on the values of a mask. Recurrent layers are torch's own
    decompositions, since vmap has no rule for the fused kernels.
    """

    def __enter__(self) -> Any:
        self._before, torch.compiler._is_compiling_flag = torch.compiler._is_compiling_flag, True
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        torch.compiler._is_compiling_flag = self._before
        super().__exit__(*raised)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = _RECURRENT.get(getattr(func, "__name__", ""))
        if name is None:
            return func(*args, **(kwargs or {}))
        fused, torch.backends.mkldnn.enabled = torch.backends.mkldnn.enabled, False  # its LSTM has no rule either
        try:
            return getattr(torch._decomp.decompositions, name)(*args, **(kwargs or {}))
        finally:
            torch.backends.mkldnn.enabled = fused


def _traced(gradients: Step, *given: Any) -> Weights:
    with _Traced():
        return gradients(*given)


def _made_up(parts: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Eight items of these shapes, parts (k, batch, ...), and types: normal numbers, whole ones of 0 and 1."""
    dice = torch.Generator().manual_seed(0)
    shapes = [(8, *part.shape[2:]) for part in parts]
    drawn = [torch.randn(shape, generator=dice) for shape in shapes]
    given = zip(drawn, parts, strict=True)
    return tuple((raw if part.is_floating_point() else raw > 0).to(part.device, part.dtype) for raw, part in given)


def _near(parts: tuple[torch.Tensor, ...], device: torch.device) -> tuple[torch.Tensor, ...]:
    """Items on a GPU if they take no more than a quarter of its free memory; else a round's are carried there."""
    size = sum(part.numel() * part.element_size() for part in parts)
    fit = device.type == "cuda" and 4 * size <= torch.cuda.mem_get_info(device)[0]
    return tuple(part.to(device) for part in parts) if fit else parts


def _write(rows: torch.Tensor, answers: Weights, start: Weights | None = None) -> None:
    """Write users' answers, flat, into `rows` (k, d), or one user's into (d,): with a `start`, that less the answer."""
    first = 0
    for name, answer in answers.items():
        own = answer.detach() if start is None else start[name] - answer.detach()
        part = own.flatten(rows.dim() - 1).to(rows.device)
        rows[..., first : first + part.shape[-1]] = part
        first += part.shape[-1]


def answering(
    module: torch.nn.Module,
    data: Data,
    *,
    loss: Loss | None = None,
    items_per_user: int,
    local: LocalSGD | None = None,
    device: str | torch.device = "cpu",
) -> Callable[[Vector], Vector]:
    """Return a function from a model (d,) to what one user, who holds all of `data`, answers: (d,).

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
    """Return what is trained of a module, flat: (d,)."""
    return TorchModule.of(module, None, "cpu").flat()


def with_weights(module: torch.nn.Module, model: Vector) -> torch.nn.Module:
    """Return a copy of a module, on the processor, with these weights (d,)."""
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

    Nothing else has to be given: without an algorithm it is `dp-sgd-wor`, with rounds, cohorts, clip norm and steps by
    a public rule of n, d, ε and δ (`completed` in quoron.training.rows); `options` replace any of them.

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
        evaluate_every, patience: rounds after which they measure the released point, too; and whether to stop where the
            first metric rises no more (docs/evaluation.md).

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
    compute.require_whole_numbers()
    if compute.why_looped is not None:
        _log.warning(
            "users are computed one by one, and so are items, as torch cannot batch this module: %s",
            compute.why_looped,
        )
    if compute.why_eager is not None:
        _log.warning("rows are computed without torch.compile, which failed: %s", compute.why_eager)
    return train_model(
        people,
        training,
        network.start(),
        hashlib.sha256(f"{network.module}{sorted(network.weights())}{local}".encode()).hexdigest(),
        compute=compute,
        summing=compute.sums,
        model_at=network.trained,
        measured_at=lambda point: network.trained(point).eval(),
        parts_of=lambda *parts: tuple(part.clone() for part in network.tensors(*parts)),
        watch=watch,
    )
