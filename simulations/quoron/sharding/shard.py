"""Which users are a worker's own, what it is given of them, and how it answers.

Users are cut into as many equal stretches as there are workers: by number, or of files by where they are, so that a
worker reads its own part of them. What is made up when it is asked for needs no cutting of data.
"""

import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from quoron.populations.users import Answering, Users
from quoron.simulation.pieces import engine_for
from quoron_client.randomisers.randomness import LocalRandomness
from quoron_privacy.noise.streams import NoiseSource

if TYPE_CHECKING:  # a worker needs nothing of a coordinator
    from quoron_server.rounds import Engine


@runtime_checkable
class Parted(Protocol):
    """Users that can be given away in parts."""

    def part(self, users: Users) -> Answering:
        """Some of them (k,), sorted by number, under the same numbers; it can be pickled."""


@runtime_checkable
class Stored(Protocol):
    """Users that are somewhere in files."""

    def storage(self) -> Users:
        """Position (n,) of each user among all, in the order of the files."""


@dataclass(frozen=True, slots=True)
class KeyedRandomness:
    """Users' own random words for local reports, from the noise of this start: none serves a second table."""

    noise: NoiseSource

    def words(self, *, round: int, users: Users, first: int, size: int) -> NDArray[np.uint64]:
        """Words `first` to `first + size` of each user's stream of this round, shape (k, size)."""
        streams = (self.noise.stream("local report", round, int(user)) for user in users)
        return np.stack([stream.words(first + size)[first:] for stream in streams])

    def require_deployable(self) -> None:
        """RunError unless the key is secret."""
        self.noise.require_deployable()


@dataclass(frozen=True, slots=True)
class Settings:
    """What a worker's engine is made with, whatever its users."""

    seed: int = 0
    dropout: float = 0.0
    randomness: LocalRandomness | None = None

    def engine(self, people: Answering) -> "Engine":
        """The engine of a worker."""
        return engine_for(people, seed=self.seed, dropout=self.dropout, randomness=self.randomness)


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """A population cut into shards."""

    population: Answering
    shards: int
    shard_of: NDArray[np.int32]  # (n,)

    @classmethod
    def of(cls, population: Answering, workers: int) -> "Cut":
        """As many shards as workers, but no more than users."""
        users, shards = population.users, min(workers, population.users)
        place = population.storage() if isinstance(population, Stored) else np.arange(users)
        return cls(population, shards, (place * shards // users).astype(np.int32))

    def letter(self, shard: int, settings: Settings) -> bytes:
        """What a worker is given at its start."""
        own = np.flatnonzero(self.shard_of == shard)
        return pickle.dumps((settings, part(self.population, own)), pickle.HIGHEST_PROTOCOL)


def part(population: Answering, own: Users) -> Answering:
    """Some users of a population; all of one that is made up when it is asked for."""
    if isinstance(population, Parted):
        return population.part(own)
    return population


def opened(letter: bytes) -> "Engine":
    """The engine of a worker, from what it was given."""
    settings, people = pickle.loads(letter)  # from whoever started this process, and nobody else
    return checked(settings).engine(people)


def checked(settings: Any) -> Settings:
    """What it has to be."""
    assert isinstance(settings, Settings)
    return settings
