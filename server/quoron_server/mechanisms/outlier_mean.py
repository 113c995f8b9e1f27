"""The mean of a cohort without its outliers: answers weigh in by how many others lie close, the rest not at all.

    >>> import numpy as np
    >>> mean = OutlierMean(cohort_size=4, radius=1.0, removal_radius=1.0, ramp_low=2, ramp_high=3)
    >>> answers = np.array([[0.0], [0.25], [0.5], [1e6]])
    >>> seen = mean.observe(answers, np.ones(4, dtype=np.bool_), reference=np.zeros(1))
    >>> seen.score, seen.weights.tolist(), mean.aggregate(answers, seen.weights, reference=np.zeros(1)).tolist()
    (10, [1, 1, 1, 0], [0.25])

Answer j with h_j neighbours within the removal radius weighs min(max(h_j - A, 0), B - A). Weights and scores are
integers, answers are rounded to a grid, so sums are exact and the same in every order; what is left of floating point
is in `rounding_slack`. Everything is released relative to a public reference, which the caller adds after the noise.

Source: Lowy, Liu & Asi (2024), Algorithm 1 line 8 and Algorithm 2 line 9, with weights in place of random inclusion.
Theorems 1 and 2, proofs and symbols: docs/privacy/outlier-mean.md.
"""

from dataclasses import dataclass
from math import sqrt

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from quoron_protos.errors import ConfigError
from quoron_server._validate import count, positive
from quoron_server.mechanisms.concentration import usable
from quoron_server.mechanisms.neighbour_counts import distance_slack, distances_to, neighbour_counts, score
from quoron_server.noise import RandomStream

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]

REACH = 2.0**20  # in units of τ: answers farther from the reference are isolated before any arithmetic
LARGEST_COHORT = 2**19


@dataclass(frozen=True, slots=True, eq=False)
class Observation:
    """One cohort's score and weights: functions of private data, for the release test and the aggregate only."""

    score: int  # S = Σ_j h_j at radius τ
    weights: Integers  # (C,) from 0 to B - A; 0 for an isolated slot


@dataclass(frozen=True, slots=True)
class OutlierMean:
    """The aggregate with its public numbers, which `accounting.outlier_mean` proposes.

    Formal guarantee: if two cohorts that differ in one answer both score at least cohort_size · core, their aggregates
    differ by at most radius · shift · (1 + `rounding_slack`), where `shift` is Theorem 1's for this ramp; and the score
    moves by at most 2(cohort_size - 1), always.

    | input                                        | what happens                                     |
    | -------------------------------------------- | ------------------------------------------------ |
    | no answer, non-finite, or beyond REACH · τ   | isolated: h = 1, weight 0, contributes nothing   |
    | every weight zero                            | the aggregate is the reference                   |
    """

    cohort_size: int  # C
    radius: float  # τ
    removal_radius: float  # radius in units of τ within which h counts: 1, or a little over 2
    ramp_low: int  # A: weight 0 up to here
    ramp_high: int  # B: full weight from here

    def __post_init__(self) -> None:
        count(cohort_size=self.cohort_size, ramp_low=self.ramp_low, ramp_high=self.ramp_high)
        positive(radius=self.radius, removal_radius=self.removal_radius)
        if not 2 <= self.cohort_size <= LARGEST_COHORT:
            raise ConfigError(f"Expected cohort_size in [2, {LARGEST_COHORT:,}], got {self.cohort_size}.")
        if not self.cohort_size <= 2 * self.ramp_low < 2 * self.ramp_high <= 2 * self.cohort_size:
            raise ConfigError(
                f"Expected cohort_size / 2 <= ramp_low < ramp_high <= cohort_size={self.cohort_size}, "
                f"got {self.ramp_low} and {self.ramp_high}."
            )
        if not (1e-100 < self.radius < 1e100 and 1 <= self.removal_radius <= 3):
            raise ConfigError(
                f"Expected radius in (1e-100, 1e100) and removal_radius in [1, 3], got {self.radius} and "
                f"{self.removal_radius}. Change the units."
            )

    def observe(self, points: ArrayLike, answered: Mask, *, reference: Vector) -> Observation:
        """Score and weights of one cohort.

        Args:
            points: answers (C, d), one row a slot.
            answered: slots with a usable answer, (C,).
            reference: a public vector (d,) near which answers are expected.

        Raises:
            ConfigError: wrong shapes; never because of a value in `points`.
        """
        rows = self._checked(points, reference)
        near = distances_to(rows, np.arange(len(rows)), reference) <= REACH * self.radius
        radii = sorted({self.radius, self.removal_radius * self.radius})
        counts = neighbour_counts(rows, usable(rows, answered) & near, radii)
        return Observation(score(counts[0]), np.clip(counts[-1] - self.ramp_low, 0, self.ramp_high - self.ramp_low))

    def include(self, weights: Integers, stream: RandomStream) -> Integers:
        """Random inclusion: 1 with probability weight / (B - A), else 0, independently and exactly; shape (C,)."""
        coins = stream.uniform_below(self.ramp_high - self.ramp_low, self.cohort_size)
        return (coins < weights).astype(np.int64)

    def aggregate(self, points: ArrayLike, weights: Integers, *, reference: Vector) -> Vector:
        """Σ w_j (y_j - reference) / Σ w_j, shape (d,); zeros when every weight is 0.

        `weights` are those of `observe` or `include`. Rows of weight 0 are never read.
        """
        rows = self._checked(points, reference)
        chosen = np.flatnonzero(weights)
        if not len(chosen):
            return np.zeros(rows.shape[1])
        step = self.radius * 2.0**-self._grid_bits
        first, total = _weighted_sum(rows, chosen, weights, reference, step)
        whole, rest = np.divmod(total, weights.sum())  # whole + first and rest do not depend on which answer is first
        mean: Vector = ((first + whole).astype(np.float64) + rest / weights.sum()) * step
        return mean

    def rounding_slack(self, dimension: int) -> float:
        """Relative increase of Theorem 1's and 2's shifts by floating point; multiply the noise by 1 + this.

        Rounded answers lie within e = τ(√d 2⁻ᵍ⁻¹ + 2⁻³¹) of the answers, so a distance bound of 2τ or more grows by a
        factor 1 + e/τ; neighbours may be `distance_slack` farther apart; and the final quotient, at most REACH · τ,
        errs by less than 2⁻³¹τ in each cohort, against a shift of 2τ/C at least.
        """
        count(dimension=dimension)
        grid = sqrt(dimension) * 2.0 ** -(self._grid_bits + 1) + 2.0**-31
        return (1 + grid) * (1 + 2 * distance_slack(dimension)) * (1 + self.cohort_size * 2.0**-31) - 1

    @property
    def _grid_bits(self) -> int:
        """g, for a grid of τ 2⁻ᵍ: weighted answers lie within 8τ of each other, so their sums stay below 2⁶³."""
        return min(40, 60 - (self.cohort_size * (self.ramp_high - self.ramp_low)).bit_length())

    def _checked(self, points: ArrayLike, reference: Vector) -> Matrix:
        rows = np.ascontiguousarray(points, dtype=np.float64)
        if rows.ndim != 2 or len(rows) != self.cohort_size or reference.shape != rows.shape[1:]:
            raise ConfigError(
                f"Expected points of shape ({self.cohort_size}, d) and a reference of shape (d,), got {rows.shape} "
                f"and {reference.shape}."
            )
        if not np.isfinite(reference).all():
            raise ConfigError("Expected a finite reference, got one that is not. It must be a public vector.")
        return rows


@njit(cache=True)
def _weighted_sum(
    rows: Matrix, chosen: Integers, weights: Integers, reference: Vector, step: float
) -> tuple[Integers, Integers]:
    """(z_first, Σ w_j (z_j - z_first)) with z_j = round((row - reference) / step): integers, exact in any order."""
    first = np.empty(rows.shape[1], np.int64)
    for k in range(rows.shape[1]):
        first[k] = np.int64(np.rint((rows[chosen[0], k] - reference[k]) / step))
    total = np.zeros(rows.shape[1], np.int64)
    for i in range(1, len(chosen)):
        row, weight = rows[chosen[i]], weights[chosen[i]]
        for k in range(rows.shape[1]):
            total[k] += weight * (np.int64(np.rint((row[k] - reference[k]) / step)) - first[k])
    return first, total
