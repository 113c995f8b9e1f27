"""What each client adds to its reports in the local model, as the coordinator knows it, and what a user reports on."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from quoron_privacy import local
from quoron_privacy.accounts import gdp
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.noise.streams import SeededNoise
from quoron_privacy.release import Release


@dataclass(frozen=True, slots=True)
class RangeReports:
    """What each client adds to a range report, as the coordinator knows it."""

    epsilon: float  # ε₁
    bins: int

    def entry(self) -> Release:
        """Return the ledger entry of one interaction's reports."""
        return Release("range-reports", {"epsilon": self.epsilon, "bins": self.bins})


@dataclass(frozen=True, slots=True)
class VectorReports:
    """What each client adds to a vector report for a radius of 1, as the coordinator knows it."""

    epsilon: float
    delta: float
    scale: float  # σ per coordinate, as clients compute it

    def entry(self) -> Release:
        """Return the ledger entry of one interaction's reports."""
        return Release(
            "vector-reports", {"epsilon": self.epsilon, "delta": self.delta, "radius": 1.0, "scale": self.scale}
        )


def vector_scale(epsilon: float, delta: float, dimension: int) -> float:
    """σ of a vector report for a radius of 1."""
    kept = delta * (1 - 1e-9)  # clients keep as much for their own arithmetic
    mu = gdp.mu_for(epsilon, kept, gaussians=dimension)
    return GaussianNoise.for_mu(sensitivity=2.0, mu=mu, dimension=dimension).scale


@lru_cache(maxsize=2)
def public_coordinates(seed: int, step: int, users: int, dimension: int) -> NDArray[np.int64]:
    """Return which rotated coordinate each user of a range interaction reports, shape (users,). Public, read-only."""
    assigned = local.assign_coordinates(users, dimension, SeededNoise(seed).stream("public coordinates", step))
    assigned.setflags(write=False)
    return assigned
