"""What each client adds to its reports in the local model, as the coordinator knows it."""

from dataclasses import dataclass

from quoron_privacy.accounts import gdp
from quoron_privacy.gaussian import GaussianNoise
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
