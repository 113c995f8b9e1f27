"""Which items users take when: the same shapes for all, whatever anybody holds.

    timetable = Timetable(items, items_per_user=50, local=LocalSGD(batch_size=10))
    minibatches = timetable.minibatches(round, users, noise)     # places and weights, (k, steps, batch)

Every user has the same `steps` x `batch` places: a place without an item repeats one of the user's own with weight
zero. So shapes say nothing of anybody's items, and the kernels that compute a user's row are the same whatever others
hold. A user of more than `items_per_user` items takes part with so many of them, drawn anew in each round.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quoron.training.items import Items
from quoron.training.rows import Users
from quoron_privacy.errors import count, positive
from quoron_privacy.noise.streams import NoiseSource


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
class Minibatches:
    """Which items users take when. All of a user's follows from how many items it has itself, and its own dice."""

    places: NDArray[np.int64]  # (k, steps, batch), into the items of all users
    weights: NDArray[np.float32]  # (k, steps, batch), each step's sum to one, or to zero where there is none


@dataclass(frozen=True, slots=True, eq=False)
class Timetable:
    """Minibatches of any users in any round. `local` None asks for average gradients."""

    items: Items
    items_per_user: int
    local: LocalSGD | None

    def __post_init__(self) -> None:
        count(items_per_user=self.items_per_user)

    @property
    def steps(self) -> int:
        """Gradients that each user takes one after the other."""
        return 1 if self.local is None else self.local.epochs * -(-self.items_per_user // self.local.batch_size)

    @property
    def batch(self) -> int:
        """Items of one gradient."""
        return self.items_per_user if self.local is None else min(self.local.batch_size, self.items_per_user)

    def dice(self, round_: int, users: Users, noise: NoiseSource) -> NDArray[np.uint64]:
        """A seed below 2^63 for each of `users` (k,), of its own, the same again for the same round."""
        words = [noise.stream("dice", round_, int(user)).words(1)[0] for user in users]
        return np.array(words, np.uint64) >> np.uint64(1)

    def minibatches(self, round_: int, users: Users, noise: NoiseSource) -> Minibatches:
        """Of `users` (k,), drawn by each with dice of its own."""
        places = np.zeros((len(users), self.steps, self.batch), np.int64)
        weights = np.zeros(places.shape, np.float32)
        for row, user in enumerate(users.tolist()):
            first, held = int(self.items.offsets[user]), int(self.items.counts[user])
            if held == 0:
                continue
            taken, stream = min(held, self.items_per_user), noise.stream("items", round_, user)
            chosen = first + (np.arange(held) if held == taken else stream.subset(held, taken))
            places[row] = chosen[0]
            passes = 1 if self.local is None else self.local.epochs
            a_pass = self.steps // passes
            for number in range(passes):
                order = chosen if self.local is None else chosen[stream.permutation(taken)]
                for step, at in enumerate(range(0, taken, self.batch), number * a_pass):
                    some = order[at : at + self.batch]
                    places[row, step, : len(some)] = some
                    weights[row, step, : len(some)] = 1 / len(some)
        return Minibatches(places, weights)
