"""The Gaussian mechanism on an integer grid: the least noise that makes a bounded change (ε, δ)-indistinguishable.

    >>> from quoron_privacy.accounts.gdp import mu_for
    >>> noise = GaussianNoise.for_mu(sensitivity=0.02, mu=mu_for(1.0, 1e-6, gaussians=1), dimension=1)
    >>> round(noise.scale, 4)
    0.0845

Source: Balle & Wang (2018), Theorem 8, on a grid of 2⁻³⁰ standard deviations. Proof: docs/privacy/noise.md#n4.
"""

from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.errors import ConfigError, Infeasible, count, positive
from quoron_privacy.noise.streams import GRID_BITS, RandomStream
from quoron_privacy.release import Adjacency, NoisySums, Release

LARGEST = 2.0**22  # a released coordinate is at most this many standard deviations before noise
# Of the μ of a mean, what a user who is away in one of two worlds leaves to a count of those who are there
# (min-cohort#q4): below √¾ where two vectors are farther apart than one and nobody by 2.
SPARE = 0.866
_ARITHMETIC = 1 + 1e-9  # rounding of plans: products and quotients of public floats


@dataclass(frozen=True, slots=True)
class GaussianNoise:
    """Independent N(0, scale²) noise on every coordinate, rounded down to multiples of scale / 2³⁰.

    Formal guarantee: if replacing one user moves `value` by at most `sensitivity` in ℓ2, the release is
    `effective_mu(dimension)`-GDP with exact noise (noise#n4); `noise.total_variation` bounds the difference.

    | input                          | what happens                                               |
    | ------------------------------ | ---------------------------------------------------------- |
    | sensitivity = 0                | refused: the value needs no mechanism                      |
    | coordinate beyond 2²² · scale  | clamped to it, which moves no two values apart             |
    | non-finite coordinate          | clamped, NaN as zero: no value can raise. The guarantee    |
    |                                | is for finite values: aggregation has to exclude the rest  |
    """

    sensitivity: float  # ℓ2, one user replaced
    scale: float  # standard deviation per coordinate; the papers' σ

    def __post_init__(self) -> None:
        positive(sensitivity=self.sensitivity, scale=self.scale)
        if not 1e-200 < self.scale < 1e200:
            raise ConfigError(f"Expected scale in (1e-200, 1e200), got scale={self.scale}. Change the units.")

    @classmethod
    def for_mu(cls, *, sensitivity: float, mu: float, dimension: int) -> "GaussianNoise":
        """Return the least noise for a μ-GDP release of `dimension` numbers; Infeasible if rounding alone costs μ."""
        positive(sensitivity=sensitivity, mu=mu)
        count(dimension=dimension)
        left = mu - _grid_mu(dimension)
        if left <= 0:
            raise Infeasible("gaussian", f"mu={mu:g} is below the resolution of the grid", "fewer rounds")
        return cls(sensitivity, sensitivity * _ARITHMETIC / left)

    @property
    def step(self) -> float:
        """Distance of neighbouring outputs; a power of two times the scale, so exact."""
        return self.scale * 2.0**-GRID_BITS

    def effective_mu(self, dimension: int) -> float:
        """Return μ of one release: sensitivity / scale, plus what rounding the value to the grid can add."""
        count(dimension=dimension)
        return self.sensitivity * _ARITHMETIC / self.scale + _grid_mu(dimension)

    def release(self, value: NDArray[np.float64] | NoisySums, stream: RandomStream) -> NDArray[np.float64]:
        """NoisySums copy of `value`, any shape: a function of the integers round(value / step) + noise only.

        Of a sum in which the noise of two servers is already, that sum; half of the variance is each one's.
        """
        if isinstance(value, NoisySums):
            return value.total.astype(np.float64) * (self.step / sqrt(2.0))
        with np.errstate(all="ignore"):  # an overflow becomes a clamp, silently: nothing in the data may warn or raise
            scaled = np.asarray(value, np.float64) / self.scale
        numbers = np.where(np.isnan(scaled), 0.0, scaled)
        steps = np.rint(np.minimum(np.maximum(numbers, -LARGEST), LARGEST) * 2.0**GRID_BITS).astype(np.int64)
        return (steps + stream.gaussian_steps(steps.shape)).astype(np.float64) * self.step

    def entry(self, mechanism: str = "gaussian", **more: float) -> Release:
        """Return the ledger entry of one release of a mechanism with this noise, and `more` numbers of its own."""
        return Release(mechanism, {"sensitivity": self.sensitivity, "scale": self.scale, **more})


def mean_sensitivity(norm: float, cohort_size: int, adjacency: Adjacency = "replace-one") -> float:
    """ℓ2 sensitivity of a mean of clipped rows, rounding included: 2 norm / cohort_size, or half of it for zero-out."""
    check_norm(norm)
    check_adjacency(adjacency)
    rows = 2 if adjacency == "replace-one" else 1
    return rows * norm / cohort_size * (1 + mean_slack(cohort_size))


def acute_sensitivity(divisor: int, adjacency: Adjacency = "replace-one") -> float:
    """ℓ2 sensitivity of a mean of vectors of norm one at most, no two at an obtuse angle: √2 or, zero-out, 1 / divisor.

    Such are one-hot vectors and positive semidefinite matrices: ‖a - b‖² = ‖a‖² + ‖b‖² - 2⟨a, b⟩ <= 2. Leaving a user
    out moves the sum by 1, so zero-out saves a factor √2 here, not 2. Slack as in `mean_sensitivity`.
    """
    count(divisor=divisor)
    check_adjacency(adjacency)
    moved = sqrt(2.0) if adjacency == "replace-one" else 1.0
    return moved / divisor * (1 + mean_slack(divisor))


def mean_slack(cohort_size: int) -> float:
    """Rounding of such a mean relative to its sensitivity: its sum is exact, only the quotient is not."""
    count(cohort_size=cohort_size)
    return (64 * cohort_size + 4) * 2.0**-51


def check_norm(norm: float) -> None:
    """Raise ConfigError for a norm whose square leaves floating point."""
    if not 1e-150 < norm < 1e150:
        raise ConfigError(f"Expected norm in (1e-150, 1e150), got norm={norm}. Change the units.")


def check_adjacency(adjacency: Adjacency) -> None:
    """Raise ConfigError for an adjacency under which nothing is released."""
    if adjacency not in ("replace-one", "zero-out"):
        raise ConfigError(f"Expected adjacency replace-one or zero-out, got adjacency={adjacency!r}.")


def _grid_mu(dimension: int) -> float:
    """Each coordinate of each of two values is rounded by at most one step: 2 √d steps apart (noise#n4)."""
    return 2 * sqrt(dimension) * 2.0**-GRID_BITS
