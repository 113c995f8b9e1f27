"""Rows of users under a module: average gradients or local SGD, many users at once.

    compute = Rows(network, items, items_per_user=50, local=LocalSGD(batch_size=10))
    rows = compute(round, users, point, noise)              # (k, d)

Every user has the same schedule of `steps` x `batch` places, whatever items there are: a place without an item repeats
one of the user's own with weight zero. So shapes say nothing of anybody's items, and the kernels that compute a user's
row are the same whatever others hold. A user of more than `items_per_user` items takes part with so many of them, drawn
anew in each round; one of none has the zero row.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.func import grad, vmap

from quoron.torch.items import Items
from quoron.torch.modules import Network, cuda_of
from quoron.training.black_box import Vector
from quoron.training.rows import Users
from quoron_privacy.noise import NoiseSource
from quoron_privacy.validate import count, positive

Weights = dict[str, torch.Tensor]
Step = Callable[..., Weights]


@dataclass(frozen=True, slots=True)
class LocalSGD:
    """What a user does with the model: so many passes over its items in shuffled batches. A row is how far it went."""

    epochs: int = 1
    batch_size: int = 10
    step_size: float = 0.1  # η

    def __post_init__(self) -> None:
        count(epochs=self.epochs, batch_size=self.batch_size)
        positive(step_size=self.step_size)


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """Which items users take when. All of a user's follows from how many items it has itself, and its own dice."""

    places: NDArray[np.int64]  # (k, steps, batch), into the items of all users
    weights: NDArray[np.float32]  # (k, steps, batch), each step's sum to one, or to zero where there is none


class Rows:
    """Rows of any users at any point. A function of them, of their items and of dice: nothing is kept between calls."""

    def __init__(
        self, network: Network, items: Items, *, items_per_user: int, local: LocalSGD | None, compiled: bool = False
    ) -> None:
        """`local` None asks for average gradients. ConfigError for a module that writes buffers or takes no item.

        What torch cannot batch over users, or not compile, is computed without: `why_looped`, `why_eager` say why.
        """
        count(items_per_user=items_per_user)
        self._network, self._items, self._most, self._local = network, items, items_per_user, local
        network.require_pure(*items.blank(1))
        dims = (None if local is None else 0, 0, 0)
        self._gradients: Step = vmap(grad(self._loss), in_dims=dims, randomness="different")
        self.why_looped = self._tried(self._gradients)
        self.why_eager: str | None = None
        if compiled and self.why_looped is None:
            quick: Step = torch.compile(self._gradients)
            self.why_eager = self._tried(quick)
            self._gradients = quick if self.why_eager is None else self._gradients

    @property
    def steps(self) -> int:
        """Gradients that each user takes one after the other."""
        return 1 if self._local is None else self._local.epochs * -(-self._most // self._local.batch_size)

    @property
    def batch(self) -> int:
        """Items of one gradient."""
        return self._most if self._local is None else min(self._local.batch_size, self._most)

    def __call__(self, round_: int, users: Users, point: Vector, noise: NoiseSource) -> NDArray[np.float64]:
        """Rows (k, d) of `users` (k,) at `point` (d,); `noise` has the dice, the same again for the same round."""
        schedule = self.schedule(round_, users, noise)
        seeds = np.array([noise.stream("dice", round_, int(user)).words(1)[0] >> np.uint64(1) for user in users])
        start = self._network.unflat(point)
        with torch.random.fork_rng(devices=cuda_of(self._network.device)):
            if self.why_looped is None:
                torch.manual_seed(int(seeds[0]))
                rows = self._many(schedule, start)
            else:
                rows = torch.cat([self._one(schedule, start, place, int(seed)) for place, seed in enumerate(seeds)])
        empty = torch.from_numpy(self._items.counts[users] == 0)
        found: NDArray[np.float64] = torch.where(empty[:, None], 0.0, rows.double().cpu()).numpy()
        return found

    def schedule(self, round_: int, users: Users, noise: NoiseSource) -> Schedule:
        """Of `users` (k,), drawn by each with dice of its own."""
        places = np.zeros((len(users), self.steps, self.batch), np.int64)
        weights = np.zeros(places.shape, np.float32)
        for row, user in enumerate(users.tolist()):
            first, held = int(self._items.offsets[user]), int(self._items.counts[user])
            if held == 0:
                continue
            taken, stream = min(held, self._most), noise.stream("items", round_, user)
            chosen = first + (np.arange(held) if held == taken else stream.subset(held, taken))
            places[row] = chosen[0]
            passes = 1 if self._local is None else self._local.epochs
            a_pass = self.steps // passes
            for number in range(passes):
                order = chosen if self._local is None else chosen[stream.permutation(taken)]
                for step, at in enumerate(range(0, taken, self.batch), number * a_pass):
                    some = order[at : at + self.batch]
                    places[row, step, : len(some)] = some
                    weights[row, step, : len(some)] = 1 / len(some)
        return Schedule(places, weights)

    def _many(self, schedule: Schedule, start: Weights) -> torch.Tensor:
        """Rows of all users of a schedule at once."""
        if self._local is None:
            return _rows(self._gradients(start, *self._step(schedule, slice(None), 0)))
        users = len(schedule.places)
        moved = {name: weight.expand(users, *weight.shape) for name, weight in start.items()}
        return _rows(self._walk(self._gradients, schedule, slice(None), start, moved))

    def _one(self, schedule: Schedule, start: Weights, place: int, seed: int) -> torch.Tensor:
        """The same of one user, item by item."""
        torch.manual_seed(seed)
        here = slice(place, place + 1)

        def step(weights: Weights, weight: torch.Tensor, parts: tuple[torch.Tensor, ...]) -> Weights:
            own = {name: each[0].detach().requires_grad_() for name, each in weights.items()}
            with torch.enable_grad():
                total = torch.zeros((), device=self._network.device)
                for index in range(self.batch):
                    lost = self._network.item_loss(own, *(part[0, index] for part in parts))
                    total = total + weight[0, index] * lost
                gradient = torch.autograd.grad(total, list(own.values()), allow_unused=True)
            each = zip(own.items(), gradient, strict=True)
            return {name: (torch.zeros_like(w) if g is None else g)[None] for (name, w), g in each}

        moved = {name: weight[None] for name, weight in start.items()}
        if self._local is None:
            return _rows(step(moved, *self._step(schedule, here, 0)))
        return _rows(self._walk(step, schedule, here, start, moved))

    def _walk(self, step: Step, schedule: Schedule, users: slice, start: Weights, moved: Weights) -> Weights:
        """How far local SGD goes from `start`, of each user: start less end."""
        assert self._local is not None
        for number in range(self.steps):
            gradients = step(moved, *self._step(schedule, users, number))
            moved = {name: weight - self._local.step_size * gradients[name] for name, weight in moved.items()}
        return {name: start[name] - weight for name, weight in moved.items()}

    def _step(self, schedule: Schedule, users: slice, number: int) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """Weights (k, batch) and items (k, batch, ...) of one step, on the device."""
        places = torch.from_numpy(schedule.places[users, number])
        weights = torch.from_numpy(schedule.weights[users, number]).to(self._network.device)
        return weights, tuple(part[places].to(self._network.device) for part in self._items.parts)

    def _loss(self, weights: Weights, weight: torch.Tensor, parts: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Of one user: the weighted sum over a step's items, each by itself."""
        each = vmap(self._network.item_loss, in_dims=(None, *(0 for _ in parts)), randomness="different")
        return (weight * each(weights, *parts)).sum()

    def _tried(self, gradients: Step) -> str | None:
        """Why these cannot be computed for users at once, tried on items of nobody; None if they can."""
        blank = tuple(part.expand(2, *part.shape).to(self._network.device) for part in self._items.blank(self.batch))
        start, weight = self._network.weights(), torch.ones((2, self.batch), device=self._network.device)
        if self._local is not None:
            start = {name: each.expand(2, *each.shape) for name, each in start.items()}
        try:
            with torch.random.fork_rng(devices=cuda_of(self._network.device)):
                gradients(start, weight, blank)
        except Exception as error:  # whatever torch makes of a module that it cannot batch, or not compile
            return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no reason given'}"
        return None


def _rows(weights: Weights) -> torch.Tensor:
    """Weights of k users, flat: (k, d)."""
    return torch.cat([each.detach().flatten(1).float() for each in weights.values()], dim=1)
