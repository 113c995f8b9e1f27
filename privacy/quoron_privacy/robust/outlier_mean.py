"""The mean of a cohort without its outliers: how far one user can move it while most answers lie close together.

    >>> mean = weighted_mean(1000, 950)
    >>> round(1000 * mean.sensitivity, 2)
    3.6

`neighbour_counts` counts the answers near each answer, which gives it a weight: used as it is in `weighted_mean`
(outlier-mean#o1), as the chance of a coin in `random_inclusion` (outlier-mean#o2), which is as printed. The tests of
`smooth_test` and `laplace_gate` see to it that nothing is released of a cohort of low score.

Source: Lowy, Liu & Asi (2024), Algorithms 1 and 2, with constants and a ramp of our own. Statement, proof and symbols:
docs/privacy/outlier-mean.md.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Literal, TypeVar

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from quoron_privacy.accounts import gdp
from quoron_privacy.arrays import Integers, Mask, Matrix, Vector
from quoron_privacy.errors import ConfigError, Infeasible, VerificationError, count
from quoron_privacy.kernels.on_first_use import OnFirstUse
from quoron_privacy.noise.streams import RandomStream
from quoron_privacy.robust.filter.concentration import usable

Kind = Literal["weighted", "random"]

SMALLEST, LARGEST = 1e-120, 1e120  # radii whose squares neither overflow nor vanish
UNIT_ROUNDOFF = 2.0**-53

loops = OnFirstUse("quoron_privacy.robust.outlier_mean_loops")

Whole = TypeVar("Whole", int, NDArray[np.int64])

REACH = 2.0**20  # in units of τ: answers farther from the reference are isolated before any arithmetic
LARGEST_COHORT = 2**19
RADII = 1e-100, 1e100  # τ is between
REMOVAL_SLACK = 1e-6  # for κ = 2 neighbours are counted up to 2τ(1 + REMOVAL_SLACK), so that rounding keeps the core
# Distances of declared neighbours are right to 1e-9, and a mean summed about one of its points to far less.
_GEOMETRY = (1 + REMOVAL_SLACK) * (1 + 1e-8)
LARGEST_CERTIFIED = 2**20  # of C: whole numbers of `certified_shifts` are at most C³/2
_BINOMIAL_TAIL = 1e-18  # flips beyond this quantile are all charged at the largest conceivable number


def distance_slack(dimension: int) -> float:
    """s such that neighbours at r lie within r(1 + s) of each other, and answers within r(1 - s) are neighbours."""
    return (dimension + 8) * UNIT_ROUNDOFF


def neighbour_counts(points: ArrayLike, answered: Mask, radii: Sequence[float]) -> Integers:
    """Return counts for each radius, shape (len(radii), C); entries in [1, C]. The same for any number of threads.

    | input                                | what happens                                             |
    | ------------------------------------ | -------------------------------------------------------- |
    | slot not answered, or row not finite | isolated: its count is 1, and no other count includes it |
    | finite row of any magnitude          | takes part; distances that overflow are infinite         |
    | distance exactly r                   | neighbours                                               |

    O(C·d + C·log C) while all answers lie within r/2 of a common centre, a few far ones aside; at worst a product of
    all pairs. Memory beyond `points` is O(C) and a few blocks. Running time depends on the answers: do not let it be
    observed.

    Args:
        points: answers (C, d), one row a slot.
        answered: slots with a usable answer, (C,).
        radii: lengths in (1e-120, 1e120).

    Raises:
        ConfigError: wrong shapes or a radius out of range; never because of a value in `points`.

    One rule decides every pair: a and b are neighbours iff `loops.squared_distance(a, b)`, a float64 sum in a fixed
    order, is at most r · r as a float. The rule is symmetric, holds for each answer with itself and reads two rows
    only. So replacing an answer moves every other count by at most one and the score Σ_j h_j by at most 2(C - 1), in
    floating point as on paper.

        >>> points = np.array([[0.0], [1.0], [2.5], [np.nan]])
        >>> counts = neighbour_counts(points, np.ones(4, dtype=np.bool_), (1.0, 2.0))
        >>> counts.tolist(), score(counts[0])
        ([[2, 2, 1, 1], [2, 3, 2, 1]], 6)
    """
    rows = np.ascontiguousarray(points, dtype=np.float64)
    if rows.ndim != 2:
        raise ConfigError(f"Expected points of shape (slots, dimension), got shape {rows.shape}.")
    if not radii or not all(SMALLEST < radius < LARGEST for radius in radii):
        raise ConfigError(f"Expected radii in ({SMALLEST:g}, {LARGEST:g}), got {tuple(radii)}. Change the units.")
    present = usable(rows, answered)
    counts: Integers = loops.counts(rows, present, radii)
    counts[:, ~present] = 1
    return counts


def distances_to(rows: Matrix, centre: Vector) -> Vector:
    """‖row - centre‖ of every row (C, d), by the rule's sum, shape (C,); overflow gives inf."""
    found: Vector = loops.distances_to(rows, np.arange(len(rows)), centre)
    return found


def score(counts: Integers) -> int:
    """S = Σ_j h_j of one radius's counts (C,), in [C, C²]; one user moves it by at most 2(C - 1)."""
    return int(counts.sum())


@dataclass(frozen=True, slots=True, eq=False)
class Observation:
    """One cohort's score and weights: functions of private data, for the release test and the aggregate only."""

    score: int  # S = Σ_j h_j at radius τ
    weights: Integers  # (C,) from 0 to B - A; 0 for an isolated slot


@dataclass(frozen=True, slots=True)
class OutlierMean:
    """One cohort's aggregate; lengths in units of τ.

    Formal guarantee: for neighbouring cohorts that both score at least cohort_size·core, the aggregates can be coupled
    so that their distance is dominated by shift `shifts[i]` with probability `chances[i]`, up to a factor
    1 + `rounding_slack`. Where the larger score is known to be higher, it is dominated by those of `shifts_at`. The
    score moves by at most 2(cohort_size - 1), always.

    | input                                        | what happens                                     |
    | -------------------------------------------- | ------------------------------------------------ |
    | no answer, non-finite, or beyond REACH · τ   | isolated: h = 1, weight 0, contributes nothing   |
    | every weight zero                            | the aggregate is the reference                   |

    Weights and scores are integers, answers are rounded to a grid, so sums are exact and the same in every order.
    Everything is released relative to a public reference, which the caller adds after the noise.

    Of C answers y_j the count h_j is of the answers within κτ of y_j, itself included. The weight of y_j climbs from 0
    at h_j = A to 1 at h_j = B. The score is S = #{(i, j) : |y_i − y_j| <= τ}, in [C, C²].

        >>> mean, at = weighted_mean(8, 7), {"radius": 1.0, "reference": np.zeros(1)}
        >>> answers = np.array([[0.0], [0.25], [0.5], [0.5], [0.5], [0.5], [0.75], [1e6]])
        >>> seen = mean.observe(answers, np.ones(8, dtype=np.bool_), **at)
        >>> seen.score, seen.weights.tolist(), mean.aggregate(answers, seen.weights, **at).round(3).tolist()
        (50, [2, 2, 2, 2, 2, 2, 2, 0], [0.429])
    """

    kind: Kind
    cohort_size: int  # C
    core: int  # k: the score, a user, that both neighbours reach
    ramp_low: int  # A: weight 0 up to here
    ramp_high: int  # B: weight 1 from here
    shifts: tuple[float, ...]  # Δ/τ, or Δ_b/τ for b flips
    chances: tuple[float, ...]

    @property
    def kappa(self) -> int:
        """κ: answers are counted within κτ; of weights the one of less noise, of coins the one with a proof."""
        return {"weighted": 1, "random": 2}[self.kind]

    @property
    def sensitivity(self) -> float:
        """Largest possible shift in units of τ; exceeded never, for `random` rarely approached."""
        return max(self.shifts)

    @property
    def least_shift(self) -> float:
        """A length below every shift at every score: what full agreement leaves."""
        return 2 * self.kappa / self.cohort_size

    @property
    def removal_radius(self) -> float:
        """Radius in units of τ within which answers are counted for the weights."""
        return 2 * (1 + REMOVAL_SLACK) if self.kappa == 2 else 1.0

    def shifts_at(self, scores: Integers) -> Vector:
        """Return the shift of weights in units of τ when the larger of both scores is at least scores[r], (R,).

        It falls as the score grows; the smaller score has to be at least C·core, too. Each at least C·core + 1
        (outlier-mean#o1).
        """
        size = self.cohort_size
        bounds = np.maximum(*_shift(size, np.maximum(size**2 - scores, 0), self.ramp_low, self.ramp_high))
        return np.asarray(bounds * _GEOMETRY * (1 + 1e-14))

    def profile(self, noise_multiplier: float, epsilon: float | Vector) -> Vector:
        """Return δ at each ε (any sign) of the aggregate plus N(0, (noise_multiplier·τ)²), both scores at least C·k."""
        mus = np.asarray(self.shifts) / noise_multiplier
        flat = np.asarray(epsilon, dtype=np.float64)
        deltas = gdp.delta_for(mus, flat[..., None])
        mixed: Vector = np.minimum(np.asarray(deltas) @ np.asarray(self.chances) * (1 + 1e-12), 1.0)
        return mixed

    def observe(self, points: ArrayLike, answered: Mask, *, radius: float, reference: Vector) -> Observation:
        """Score and weights of one cohort.

        Args:
            points: answers (C, d), one row a slot.
            answered: slots with a usable answer, (C,).
            radius: τ, in (1e-100, 1e100).
            reference: a public vector (d,) near which answers are expected.

        Raises:
            ConfigError: wrong shapes; never because of a value in `points`.
        """
        rows = self._checked(points, radius, reference)
        near = distances_to(rows, reference) <= REACH * radius
        radii = sorted({radius, self.removal_radius * radius})
        counts = neighbour_counts(rows, usable(rows, answered) & near, radii)
        return Observation(score(counts[0]), np.clip(counts[-1] - self.ramp_low, 0, self.ramp_high - self.ramp_low))

    def include(self, weights: Integers, stream: RandomStream) -> Integers:
        """Random inclusion: 1 with probability weight / (B - A), else 0, independently and exactly; shape (C,)."""
        coins = stream.uniform_below(self.ramp_high - self.ramp_low, self.cohort_size)
        return (coins < weights).astype(np.int64)

    def aggregate(self, points: ArrayLike, weights: Integers, *, radius: float, reference: Vector) -> Vector:
        """Σ w_j (y_j - reference) / Σ w_j, shape (d,); zeros when every weight is 0.

        `weights` are those of `observe` or `include`. Rows of weight 0 are never read.
        """
        rows = self._checked(points, radius, reference)
        chosen = np.flatnonzero(weights)
        if not len(chosen):
            return np.zeros(rows.shape[1])
        step = radius * 2.0**-self._grid_bits
        first, total = loops.weighted_sum(rows, chosen, weights, reference, step)
        whole, rest = np.divmod(total, weights.sum())  # whole + first and rest do not depend on which answer is first
        mean: Vector = ((first + whole).astype(np.float64) + rest / weights.sum()) * step
        return mean

    def rounding_slack(self, dimension: int) -> float:
        """Relative increase of shifts (outlier-mean#o1, #o2) by floating point; multiply the noise by 1 + this.

        Rounded answers lie within e = τ(√d 2⁻ᵍ⁻¹ + 2⁻³¹) of the answers, so a distance bound of 2τ or more grows by a
        factor 1 + e/τ. Neighbours may be `distance_slack` farther apart. The final quotient, at most REACH · τ, errs by
        less than 2⁻³¹τ in each cohort, against a shift of 2τ/C at least.
        """
        count(dimension=dimension)
        grid = math.sqrt(dimension) * 2.0 ** -(self._grid_bits + 1) + 2.0**-31
        return (1 + grid) * (1 + 2 * distance_slack(dimension)) * (1 + self.cohort_size * 2.0**-31) - 1

    @property
    def _grid_bits(self) -> int:
        """g, for a grid of τ 2⁻ᵍ: weighted answers lie within 8τ of each other, so their sums stay below 2⁶³."""
        return min(40, 60 - (self.cohort_size * (self.ramp_high - self.ramp_low)).bit_length())

    def _checked(self, points: ArrayLike, radius: float, reference: Vector) -> Matrix:
        if not (2 <= self.cohort_size <= LARGEST_COHORT and RADII[0] < radius < RADII[1]):
            raise ConfigError(
                f"Expected cohort_size in [2, {LARGEST_COHORT:,}] and radius in {RADII}, got "
                f"{self.cohort_size} and {radius}. Change the units."
            )
        rows = np.ascontiguousarray(points, dtype=np.float64)
        if rows.ndim != 2 or len(rows) != self.cohort_size or reference.shape != rows.shape[1:]:
            raise ConfigError(
                f"Expected points of shape ({self.cohort_size}, d) and a reference of shape (d,), got {rows.shape} "
                f"and {reference.shape}."
            )
        if not np.isfinite(reference).all():
            raise ConfigError("Expected a finite reference, got one that is not. It must be a public vector.")
        return rows


def ramp_floor(cohort_size: Whole) -> Whole:
    """Return a = ⌈C/2⌉: two answers with more neighbours than this share one, in either world and across worlds."""
    return (cohort_size + 1) // 2


def score_step(cohort_size: Whole) -> Whole:
    """2(C − 1): how far one user moves the integer score S."""
    return 2 * (cohort_size - 1)


def in_score_units(average: float, cohort_size: int) -> int:
    """⌈C · average⌉, exactly: a threshold for the integer score S from one for S / C."""
    return math.ceil(Fraction(average) * cohort_size)


def score_scale(scale: float, cohort_size: int) -> float:
    """C · scale, rounded up: the scale of noise on S from that of noise on S / C. ConfigError beyond 2⁵⁰."""
    widened = math.nextafter(scale * cohort_size, math.inf)
    if not widened <= 2.0**50:
        raise ConfigError(f"Expected cohort_size * scale <= 2**50, got {widened:g}.")
    return widened


@lru_cache(maxsize=4096)
def weighted_mean(cohort_size: int, core: int, ramp_core: int | None = None) -> OutlierMean:
    """outlier-mean#o1 on the ramp that is best at the core.

    `ramp_core`: a higher core at which the ramp is to be the best, for scores that are seldom as low as k. Raises
    Infeasible when the core is too small a part of the cohort for any bound.
    """
    _check(cohort_size, core)
    low = ramp_floor(cohort_size)
    if cohort_size <= low + 1:
        raise Infeasible("outlier mean", f"cohort_size={cohort_size} leaves no ramp", "cohort_size >= 4")
    _require_core(cohort_size, core, low + 1)
    high = int(_best_ramps(np.array([cohort_size]), np.array([ramp_core or core]))[0][0])
    mean = OutlierMean("weighted", cohort_size, core, low, high, (), (1.0,))
    return replace(mean, shifts=(float(mean.shifts_at(np.array([cohort_size * core]))[0]),))


def weighted_shifts(sizes: Integers, cores: Integers) -> Vector:
    """Return the sensitivity of a `weighted_mean` for each cohort and core, in units of τ; inf without a bound."""
    found = np.full(len(cores), np.inf)
    fit = fitting(sizes, cores)
    found[fit] = _best_ramps(sizes[fit], cores[fit])[1] * _GEOMETRY * (1 + 1e-14)
    return found


@lru_cache(maxsize=4096)
def random_inclusion(cohort_size: int, core: int, ramp_high: int | None = None) -> OutlierMean:
    """outlier-mean#o2 (κ = 2, B <= k − 1): the number of coins that differ is at most Bin(C − k, 1/(B − A)).

    `ramp_high` is B; None takes k − 1, of which the fewest coins differ.
    """
    _check(cohort_size, core)
    low, high = ramp_floor(cohort_size), core - 1 if ramp_high is None else ramp_high
    _require_core(cohort_size, core, max(low + 2, high + 1))
    flips, chances = _flips(cohort_size - core, 1 / (high - low))
    heaviest = 2 * (2 - max(low + core - cohort_size, 0) / cohort_size)
    shifts = (4 + flips * heaviest) / core * _GEOMETRY * (1 + 1e-14)
    numbers = tuple(map(float, shifts[chances > 0])), tuple(map(float, chances[chances > 0]))
    return OutlierMean("random", cohort_size, core, low, high, *numbers)


def fitting(cohort_size: Whole, core: Whole) -> NDArray[np.bool_]:
    """Whether this core allows a `weighted_mean`, A < B < C and k > A: of numbers or of arrays."""
    low = ramp_floor(cohort_size)
    return np.asarray((low < core) & (core <= cohort_size) & (low + 1 < cohort_size))


def verify_outlier_mean(mean: OutlierMean) -> None:
    """Raise VerificationError unless every shift at the core is at least what exact arithmetic gives for its theorem.

    Shares no formula with the constructors: weighted means by `certified_shifts`, outlier-mean#o2's chances are
    compared as tail sums.
    """
    size, core, low, high = mean.cohort_size, mean.core, mean.ramp_low, mean.ramp_high
    if mean.kind not in ("weighted", "random"):
        raise VerificationError(f"Expected weights, or coins; nothing is proved for others, got {mean}.")
    if not (2 * low >= size and low < high < size and core <= size and (mean.kind == "weighted" or high <= core - 1)):
        raise VerificationError(f"Expected a ramp with C/2 <= A < B < C (and B <= k - 1 for coins), got {mean}.")
    shifts_sound = all(0 < shift < math.inf for shift in mean.shifts)
    chances_sound = all(0 <= chance <= 1 + 1e-9 for chance in mean.chances) and sum(mean.chances) >= 1 - 1e-12
    if not (shifts_sound and chances_sound and len(mean.shifts) == len(mean.chances) >= 1):
        raise VerificationError(f"Expected positive shifts with chances that add up to 1, got {mean}.")
    if mean.kind == "weighted":
        least = float(certified_shifts(mean, np.array([size * core]))[0])
        if not (mean.chances == (1.0,) and mean.shifts[0] >= least):
            raise VerificationError(f"Expected a shift of at least {least:.9g}, which fails for {mean}.")
        return
    most, chance = size - core, 1 / (high - low)
    heaviest = Fraction(2) * (2 - Fraction(max(low + core - size, 0), size))
    order = np.argsort(mean.shifts)
    shifts, tails = np.asarray(mean.shifts)[order], np.cumsum(np.asarray(mean.chances)[order][::-1])[::-1]
    for b in range(most + 1):
        # P(shift >= Δ_b) must dominate P(flips >= b).
        least = float(Fraction(10**6 + 1, 10**6) * (4 + b * heaviest) / core)
        place = int(np.searchsorted(shifts, least))
        have = float(tails[place]) if place < len(tails) else 0.0
        if have < min(float(scipy.stats.binom.sf(b - 1, most, chance)), 1.0) * (1 - 1e-12):
            raise VerificationError(f"Expected P(shift >= {least:g}) to dominate {b} flips, which fails for {mean}.")


def certified_shifts(mean: OutlierMean, scores: Integers) -> Vector:
    """`shifts_at` by a second route, rounded up, (R,): when the larger score is at least scores[r].

    Shares no formula with it: over every height of the ramp, in integers up to one division. Raises VerificationError
    where the theorem has no bound, or coins have one of their own.
    """
    size = mean.cohort_size
    if mean.kind != "weighted":
        raise VerificationError(f"Expected weights, got {mean}.")
    if size > LARGEST_CERTIFIED:
        raise VerificationError(f"Expected a cohort of at most {LARGEST_CERTIFIED:,}, got {size:,}.")
    ratios = loops.largest_ratios(size, mean.ramp_low, mean.ramp_high, np.maximum(size * size - scores, 0))
    if not np.isfinite(ratios).all():
        raise VerificationError(f"Expected a positive total weight at every height, which fails for {mean}.")
    return np.asarray(ratios * (1 + 1e-15) * ((1 + REMOVAL_SLACK) * (1 + 1e-15)))


def recounted_step(cohort_size: int) -> int:
    """`score_step` again, by counting: of all ordered pairs those that one user is in, but the one with itself."""
    return cohort_size**2 - (cohort_size - 1) ** 2 - 1


def recounted_slack(mean: OutlierMean, dimension: int) -> float:
    """`OutlierMean.rounding_slack` again: the finest grid whose sums stay below 2⁶³ is tried out, shares are summed."""
    weight, grid = mean.cohort_size * (mean.ramp_high - mean.ramp_low), 40
    while weight << (grid + 3) >= 2**63:  # of answers within 8τ of each other
        grid -= 1
    rounded = math.ldexp(math.sqrt(dimension), -grid - 1) + math.ldexp(1, -31)  # of an answer, in units of τ
    apart, quotient = math.ldexp(2 * (dimension + 8), -53), math.ldexp(mean.cohort_size, -31)
    return math.expm1(math.fsum(map(math.log1p, (rounded, apart, quotient))))


def require_exact(threshold: float, scale: float, cohort_size: int) -> None:
    """Raise VerificationError unless a test of S is drawn as one of S / C: no lower a threshold and no less noise."""
    drawn = Fraction(score_scale(scale, cohort_size)), in_score_units(threshold, cohort_size)
    if not (drawn[0] >= Fraction(scale) * cohort_size and drawn[1] >= Fraction(threshold) * cohort_size):
        raise VerificationError(f"Expected a test of {cohort_size} answers at {threshold} with {scale}, got {drawn}.")


def _flips(most: int, chance: float) -> tuple[Vector, Vector]:
    """(numbers of coins that differ, their chances), (M,): what lies beyond a quantile is charged at the most."""
    flips = np.arange(most + 1)
    kept = int(np.argmax(scipy.stats.binom.sf(flips, most, chance) <= _BINOMIAL_TAIL))
    chances = scipy.stats.binom.pmf(flips[: kept + 1], most, chance) * (1 + 1e-10)
    beyond = 2 * _BINOMIAL_TAIL if kept < most else 0.0
    return np.append(flips[: kept + 1], most).astype(float), np.append(chances, beyond)


def _best_ramps(sizes: Integers, cores: Integers) -> tuple[Integers, Vector]:
    """(B, the bound of outlier-mean#o1) at the best B for each cohort and core.

    From the middle of A and C on the bound at height A falls with B and the one at height B rises; before, neither is
    better than at the middle. So the best is next to where they cross, at B (B − A) = C (C − k).
    """
    low, lost = ramp_floor(sizes), sizes * (sizes - cores)
    steepest, middle = low + 1, (sizes + low) // 2
    crossing = np.ceil((low + np.sqrt(np.square(low, dtype=float) + 4.0 * lost)) / 2)
    around = np.clip(np.maximum(crossing.astype(np.int64), middle) + np.arange(-2, 3)[:, None], steepest, sizes - 1)
    tried = np.concatenate([steepest[None], around])  # the steepest ramp is the first of equals
    shifts = np.maximum(*_shift(sizes, lost, low, tried))
    best = np.argmin(shifts, axis=0), np.arange(len(cores))
    return tried[best], shifts[best]


def _shift(size: Whole, lost: Integers, low: Whole, high: Whole) -> tuple[Vector, Vector]:
    """outlier-mean#o1 for C² − S = `lost`, at heights A and B: linear over linear in it, so one end is worst."""
    width, at_low, at_high = high - low, lost / (size - low), lost / (size - high)
    return 2 * ((1 + at_low / width) / (size - at_low)), 2 * ((1 + at_high / width) / size)


def _check(cohort_size: int, core: int) -> None:
    count(cohort_size=cohort_size, core=core)
    if core > cohort_size:
        raise ConfigError(f"Expected core <= cohort_size={cohort_size}, got core={core}.")


def _require_core(size: int, core: int, least: int) -> None:
    if core < least:
        raise Infeasible("outlier mean", f"core={core} of {size} answers is too small", f"core >= {least}")
