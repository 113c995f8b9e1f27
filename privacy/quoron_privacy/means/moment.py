"""The second moment of a cohort's features, privately: what a step may be in each direction, learnt once and cheaply.

    >>> noise = SecondMomentNoise.for_mu(dimension=10, feature_norm=1.0, divisor=5000, mu=0.2367)
    >>> round(noise.scale * 1000, 3), round(noise.spectral_error * 1000, 3)
    (1.195, 5.344)

A user answers with a triangular factor U of A = Uᵀ U. The server scales U into a ball, so A is positive semidefinite
with trace at most R² *whatever was sent*, and two such matrices are at most √2 R² apart. Ours, after Dwork, Talwar,
Thakurta & Zhang (2014), whose noise has the same variance everywhere; half of it will do off the diagonal.
Statement and proof: docs/privacy/second-moment.md#sm1 and second-moment#sm2.
"""

from dataclasses import dataclass
from math import sqrt

import numpy as np

from quoron_privacy.arrays import Mask, Matrix, Vector
from quoron_privacy.errors import ConfigError, count, positive
from quoron_privacy.gaussian import GaussianNoise, acute_sensitivity
from quoron_privacy.kernels.on_first_use import OnFirstUse
from quoron_privacy.noise.streams import RandomStream
from quoron_privacy.release import Adjacency, MaskedBlock, NoisySums, Release, Sums, packed, sum_bits

loops = OnFirstUse("quoron_privacy.means.clipping_loops")

_ROUNDOFF = 2.0**-53


@dataclass(frozen=True, slots=True)
class SecondMomentNoise:
    """Symmetric Gaussian noise on Σ A_u / divisor: variance scale² on the diagonal, half of it off, one draw a pair.

    Formal guarantee: the release is `effective_mu`-GDP with exact noise (second-moment#sm2), for every answer of every
    user, the protected one's own included; `noise.total_variation(gaussians=d (d + 1) / 2)` bounds what the noise
    lacks.

    | input                                 | what happens                                              |
    | ------------------------------------- | --------------------------------------------------------- |
    | factor longer than `feature_norm`     | scaled down to it                                         |
    | non-finite factor, absent user        | the zero matrix, without a change of the divisor          |
    | more or fewer answers than `divisor`  | released like any other, up to 64 times as many           |
    """

    dimension: int  # d
    feature_norm: float  # R
    divisor: int  # planned answers: never a count of those that came
    adjacency: Adjacency
    scale: float  # s: standard deviation of a diagonal entry

    def __post_init__(self) -> None:
        count(dimension=self.dimension, divisor=self.divisor)
        positive(feature_norm=self.feature_norm, scale=self.scale)
        _ = self._gaussian  # refuses a scale or an adjacency out of range

    @classmethod
    def for_mu(
        cls, *, dimension: int, feature_norm: float, divisor: int, mu: float, adjacency: Adjacency = "replace-one"
    ) -> "SecondMomentNoise":
        """Return the least noise for a μ-GDP release; Infeasible if rounding to the grid alone costs μ."""
        sensitivity = moment_sensitivity(dimension, feature_norm, divisor, adjacency)
        gaussian = GaussianNoise.for_mu(sensitivity=sensitivity, mu=mu, dimension=packed(dimension))
        return cls(dimension, feature_norm, divisor, adjacency, gaussian.scale)

    @property
    def sensitivity(self) -> float:
        """In Frobenius norm, one user replaced or left out, rounding included."""
        return moment_sensitivity(self.dimension, self.feature_norm, self.divisor, self.adjacency)

    @property
    def effective_mu(self) -> float:
        """μ of the release."""
        return self._gaussian.effective_mu(packed(self.dimension))

    @property
    def spectral_error(self) -> float:
        """√(2d) · scale: the typical spectral norm of the noise (the limit for many dimensions)."""
        return sqrt(2 * self.dimension) * self.scale

    @property
    def reduction(self) -> "MomentSum":
        """All that a release reads of users' factors."""
        return MomentSum(self.dimension, self.feature_norm, self.divisor)

    @property
    def masked(self) -> tuple[MaskedBlock, ...]:
        """Of a user: its moment, in units of R²."""
        unit = self.feature_norm**2 / self.divisor / self.scale
        return (("moment", "moment", packed(self.dimension), unit),)

    def release(self, sums: Sums, stream: RandomStream) -> Matrix:
        """Return the noisy second moment, symmetric (d, d), of the sums that `reduction` makes of users' factors."""
        moment = sums if isinstance(sums, NoisySums) else self.reduction.mean(sums)
        rows, columns = np.triu_indices(self.dimension)
        noised = self._gaussian.release(moment, stream) / np.where(rows == columns, 1.0, sqrt(2.0))
        symmetric = np.empty((self.dimension, self.dimension))
        symmetric[rows, columns] = symmetric[columns, rows] = noised
        return symmetric

    def entry(self) -> Release:
        """Return the ledger entry of the release."""
        return self._gaussian.entry("second-moment", divisor=self.divisor, dimension=self.dimension)

    @property
    def _gaussian(self) -> GaussianNoise:
        return GaussianNoise(self.sensitivity, self.scale)


@dataclass(frozen=True, slots=True)
class MomentSum:
    """Σ ⌊vec(UᵀU) 2ᵇ / R²⌋ over answered rows, towards zero: U is a row scaled into the ball of radius R = `norm`.

    Rows are triangular factors, (k, d (d + 1) / 2), packed by rows. `cells` and `clipped` count nothing.
    """

    dimension: int  # d
    norm: float  # R
    divisor: int

    def __post_init__(self) -> None:
        positive(norm=self.norm)

    def of(self, values: Matrix, answered: Mask) -> Sums:
        """See clipping.Reduction. ConfigError for rows of another length."""
        rows = np.ascontiguousarray(values, np.float64)
        if rows.shape[1:] != (packed(self.dimension),):
            raise ConfigError(
                f"Expected factors of {packed(self.dimension)} numbers (dimension={self.dimension}), got {rows.shape}."
            )
        total = loops.sum_unit_moments(rows, answered, self.norm, 2.0 ** sum_bits(0, self.divisor), self.dimension)
        return Sums(total, np.zeros(4, np.int64), 0, int(np.count_nonzero(answered)))

    def mean(self, sums: Sums) -> Vector:
        """Σ vec(UᵀU) / divisor, entries off the diagonal times √2. ConfigError for more rows than 64 · divisor."""
        bits = sum_bits(sums.answered, self.divisor)
        diagonal, columns = np.triu_indices(self.dimension)
        unit = self.norm * self.norm / 2.0**bits / self.divisor
        mean: Vector = sums.total.astype(np.float64) * np.where(diagonal == columns, unit, sqrt(2.0) * unit)
        return mean


def moment_sensitivity(dimension: int, norm: float, divisor: int, adjacency: Adjacency = "replace-one") -> float:
    """Of `MomentSum.mean` in ℓ2: √2 norm² / divisor, zero-out norm² / divisor, rounded up (second-moment#sm1)."""
    count(dimension=dimension)
    off = 1.01 * (dimension + 2) * _ROUNDOFF + dimension * 2.0 ** -sum_bits(0, divisor)  # of one moment of trace one
    return acute_sensitivity(norm * norm, divisor, adjacency) * (1 + 1.5 * off)
