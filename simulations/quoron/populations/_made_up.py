"""What made-up populations share: users by number, which of them are outliers, and a risk that is known exactly."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import numba
import numpy as np
from numpy.typing import NDArray

from quoron.populations._remarks import about_boundary
from quoron.populations._risk import Risk
from quoron.populations.users import Beside, Outliers, Users, Vector
from quoron_client.protocol.domains import Domain
from quoron_privacy.errors import ConfigError
from quoron_privacy.kernels.threads import at_once

_SMALL, _LARGE = 1 << 17, 1 << 21  # numbers below which another thread costs more than it saves; of a range, at most


class MadeUp(ABC):
    """Users 0 to `users` - 1 of a declared law, drawn by `seed`. Outliers do not enter the optimum or the risk."""

    users: int
    domain: Domain
    seed: int
    outliers: Outliers

    @property
    @abstractmethod
    def _risk(self) -> Risk:
        """Of the honest users."""

    @property
    def _free(self) -> Risk:
        """The same over all models; of a loss without a least value over those of the domain."""
        return self._risk

    @property
    def optimum(self) -> Vector:
        """argmin over the domain of the honest users' expected loss, shape (d,)."""
        return self._risk.optimum.copy()

    def excess_risk(self, model: Vector) -> float:
        """F(model) - inf F >= 0, F the honest users' expected loss; a linear one has its least in the domain."""
        return self._free.excess(np.asarray(model, np.float64))

    def test_metrics(self, model: Vector) -> dict[str, float]:
        """Empty: the excess risk already speaks of new users."""
        del model
        return {}

    def beside(self, model: Vector) -> Beside:
        """What the domain's bound costs: users are as declared."""
        held = max(0.0, self.excess_risk(self.optimum))
        return Beside(held_back=held, remarks=tuple(about_boundary(self.domain, model, self.optimum, held)))

    def corruption(self, users: Users) -> NDArray[np.uint8]:
        """`Corruption` of each of `users`, shape (k,)."""
        return self.outliers.corruption(self._known(users), seed=self.seed)

    def _check_seed(self) -> None:
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"Expected seed in [0, 2^63), got seed={self.seed}.")

    def _known(self, users: Users) -> Users:
        asked = np.array(users, np.int64)  # a copy: compiled loops want writable memory
        if asked.size and not (asked.min() >= 0 and asked.max() < self.users):
            raise ConfigError(f"Expected users in [0, {self.users}), got {asked.min()} to {asked.max()}.")
        return asked


def in_ranges(loop: Callable[[int, int], object], offsets: NDArray[np.int64], width: int = 1) -> None:
    """Call a compiled loop(first, last) on ranges over 0 .. len(offsets) - 1, each of about as many numbers, not many.

    There are offsets[-1] * width numbers; what a loop needs beside its output is therefore little.
    """
    size = int(offsets[-1]) * width
    threads = 1 if size < _SMALL else numba.get_num_threads()
    shares = np.linspace(0, offsets[-1], max(threads, -(-size // _LARGE)) + 1)[1:-1]
    ends = {0, *np.searchsorted(offsets[1:], shares).tolist(), len(offsets) - 1}
    at_once([partial(loop, *each) for each in pairwise(sorted(ends))], threads)
