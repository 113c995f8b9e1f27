"""The users of a table that this machine holds, answering in this process.

Every user has one slot, in an order that nobody knows: a uniform permutation from the run's secret noise. So neither
how users are named nor how rows are sorted decides who is asked together, and a promise for a user's data is a promise
for its name as well.
"""

from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quoron.populations._base import Corruption, Declared
from quoron.simulation.inline import InlineEngine
from quoron_client.data.items import ItemBatch
from quoron_client.protocol.questions import Answers, Question
from quoron_privacy.clipping import Sums
from quoron_privacy.noise import NoiseSource

Users = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Holders(Declared):
    """The same users with their items: all of them answer, honestly."""

    batch: ItemBatch = field(kw_only=True)

    def items(self, users: Users) -> ItemBatch:
        """The items of `users` (k,), in that order."""
        return self.batch.of(users)

    def corruption(self, users: Users) -> NDArray[np.uint8]:
        """None."""
        return np.full(len(users), Corruption.HONEST, np.uint8)


class CuratorEngine:
    """Answers of all users of `batch`, user by slot in a secret order; local reports draw on secret words."""

    def __init__(self, declared: Declared, batch: ItemBatch, noise: NoiseSource) -> None:
        self._order = noise.stream("order of users").permutation(declared.users)
        self._engine = InlineEngine(_Holders(**_fields(declared), batch=batch), randomness=KeyedRandomness(noise))

    def ask(self, question: Question) -> Answers | Sums:
        """Answers of the question's cohort, in slot order, or their sums."""
        return self._engine.ask(replace(question, cohort=self._order[question.cohort]))


@dataclass(frozen=True, slots=True)
class KeyedRandomness:
    """Users' own random words for local reports, from the run's secret key: the same again after an interruption."""

    noise: NoiseSource

    def words(self, *, round: int, users: Users, first: int, size: int) -> NDArray[np.uint64]:
        """Words `first` to `first + size` of each user's stream of this round, shape (k, size)."""
        streams = (self.noise.stream("local report", round, int(user)) for user in users)
        return np.stack([stream.words(first + size)[first:] for stream in streams])

    def require_deployable(self) -> None:
        """RunError unless the key is secret."""
        self.noise.require_deployable()


def _fields(declared: Declared) -> dict[str, Any]:
    return {each.name: getattr(declared, each.name) for each in fields(declared)}
