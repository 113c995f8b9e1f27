"""Users' own random words in a curator's run: what workers are given, without all that plans a run."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.noise.streams import NoiseSource

Users = NDArray[np.int64]


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
