"""The smooth test: one release of an outlier mean, made with a chance that climbs with the concentration score.

    >>> plan = calibrate(1.0, 1e-6, 1000)
    >>> round(plan.noise_multiplier, 4)
    0.0134
    >>> verify_one_shot(plan, 1.0, 1e-6) <= 1e-6
    True

With score S the aggregate plus N(0, σ²) is released with chance π[level(S)], level(S) = ⌊(S − Ck)/(2(C − 1))⌋; never
when S < Ck. One user moves the level by at most one. The ladder π starts at δ and climbs as fast as outlier-mean#o3
allows; a cohort in full agreement stands at its top. The higher the level, the less one user can move the mean: a pair
of cohorts is charged with the shift of its larger score, while σ is the same on all. Cohorts that may not release
and cohorts that may are different pairs, so δ is the larger of two costs and not their sum. One coin decides: no
Laplace noise, and no floating-point attack on it.

`release` finds one that passes its test although some answers are lost; `release_scale` is σ of any with its rounding.
σ is in units of τ throughout. A noise source whose law is off by s in total variation costs (1 + e^ε)·s: take that off
δ first.

Source: in place of the Laplace tests of Lowy, Liu & Asi (2024), Algorithms 1 and 2. Statement, proof and symbols:
docs/privacy/outlier-mean.md.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, TypeVar, Union

import numpy as np
from scipy.special import ndtr

from quoron_privacy.accounts import gdp, sensitivity_recount
from quoron_privacy.accounts.roots import least_number
from quoron_privacy.arrays import Integers, Matrix, Vector
from quoron_privacy.errors import ConfigError, Infeasible, VerificationError, count, positive, probability
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.kernels.on_first_use import OnFirstUse
from quoron_privacy.noise.streams import RandomStream
from quoron_privacy.release import Release
from quoron_privacy.robust.outlier_mean import (
    LARGEST_CERTIFIED,
    LARGEST_COHORT,
    RADII,
    OutlierMean,
    Whole,
    certified_shifts,
    fitting,
    recounted_slack,
    recounted_step,
    score_step,
    verify_outlier_mean,
    weighted_mean,
)

if TYPE_CHECKING:
    from quoron_privacy.robust.laplace_gate import LaplaceOneShot
    from quoron_privacy.robust.subsampled_test import SubsampledTest

Option = TypeVar("Option")
Tested = Union["OneShot", "LaplaceOneShot", "SubsampledTest"]  # an aggregate behind a test, and its noise

loops = OnFirstUse("quoron_privacy.robust.smooth_test_loops")

TICKETS = 2**63
LARGEST_NOISE = 1e3  # in units of τ; beyond, a release says nothing
RELEASE = 0.999  # chance of a release when all answers lie within τ of one another
_OPTIONS = 60  # numbers of levels that are tried, from the fewest to 18 times as many
_VANISHING = 1e-4  # share of μ(ε, δ) that is next to nothing
_SURELY = np.ones(1)  # the chance of a shift that is no mixture


def cheapest(options: Sequence[Option], cost: Callable[[Option], float]) -> tuple[Option, float]:
    """Return the cheapest of `options` and its cost, by golden section; each cost is asked for once."""
    values: dict[int, float] = {}

    def at(place: int) -> float:
        if place not in values:
            values[place] = cost(options[place])
        return values[place]

    low, high = 0, len(options) - 1
    while high - low > 2:
        step = max(1, round(0.382 * (high - low)))
        left, right = low + step, max(low + step + 1, high - step)
        low, high = (low, right) if at(left) <= at(right) else (left, high)
    best = min(range(low, high + 1), key=at)
    return options[best], at(best)


@dataclass(frozen=True, slots=True)
class SmoothTest:
    """Release with probability table[level], with the last chance from the last level on, and never below level 0.

    A level is as high as one user can move the integer score, so neighbouring cohorts stand on the same level or on
    adjacent ones. One uniform integer decides: there is no noise to round.

        >>> from quoron_privacy.noise.streams import SeededNoise
        >>> test = SmoothTest(cohort_size=10, core=8, table=(1e-6, 1.0))
        >>> test.level(79), test.level(80), test.level(100), test.decide(100, SeededNoise(1).stream("test", 0))
        (None, 0, 1, True)

    Formal guarantee: (ε, δ) with the ladder conditions of outlier-mean#o3, which `calibrate` keeps and
    `verify_one_shot` checks. Each chance is used as ⌊2⁶³ chance⌋ / 2⁶³: exactly, as they are multiples of 2⁻⁵³.
    """

    cohort_size: int  # C
    core: int  # k: nothing is released when the score is below C·k
    table: tuple[float, ...]  # π_0, π_1, …; whole multiples of 2⁻⁵³; the last one holds for every higher level

    def __post_init__(self) -> None:
        count(cohort_size=self.cohort_size, core=self.core)
        if self.core > self.cohort_size:
            raise ConfigError(f"Expected core <= cohort_size, got {self.core} and {self.cohort_size}.")
        if not self.table or not all(0 < chance <= 1 for chance in self.table):
            raise ConfigError(f"Expected at least one chance, each in (0, 1], got {self.table}.")

    def level(self, score: int) -> int | None:
        """⌊(S - C·k) / (2(C - 1))⌋, at most the last one in the table; None when S < C·k."""
        above = score - self.cohort_size * self.core
        return None if above < 0 else min(above // max(score_step(self.cohort_size), 1), len(self.table) - 1)

    def chance(self, score: int) -> float:
        """Return the chance of a release at integer score S in [C, C²]."""
        level = self.level(score)
        return 0.0 if level is None else self.table[level]

    @property
    def scores(self) -> Integers:
        """The least score on each level, shape (R + 1,)."""
        return self.cohort_size * self.core + score_step(self.cohort_size) * np.arange(len(self.table))

    def tickets(self, score: int) -> int:
        """Return how many of the 2⁶³ equally likely draws release at this score."""
        return int(self.chance(score) * TICKETS)

    def decide(self, score: int, stream: RandomStream) -> bool:
        """Return whether to release a cohort of score S (a Python integer). One draw, whatever the score."""
        return int(stream.uniform_below(TICKETS, 1)[0]) < self.tickets(score)

    def entry(self) -> Release:
        """Return the ledger entry of one decision, whichever way it went."""
        return Release("lottery-test", {"cohort_size": self.cohort_size, "core": self.core, "rungs": len(self.table)})


@dataclass(frozen=True, slots=True)
class OneShot:
    """One release: the aggregate, its test and its noise. Made by `calibrate`, checked by `verify_one_shot`."""

    mean: OutlierMean
    test: SmoothTest
    noise_multiplier: float  # σ/τ, per coordinate


def calibrate(epsilon: float, delta: float, cohort_size: int, *, forgiven: int = 0) -> OneShot:
    """Return the least noise for one (ε, δ)-DP release, over the core.

    It is made with chance RELEASE at full concentration, or where the average count misses C by `forgiven`. Raises
    Infeasible naming the smallest cohort that would do.
    """
    _check(epsilon, delta, cohort_size, forgiven)
    found, more = _search(epsilon, _aim(delta), cohort_size, forgiven), 1e-5
    while found is not None:
        mean, levels, noise = found
        table = loops.ladder(epsilon, _aim(delta), _aim(delta), ladder_mus(mean, levels, noise), RELEASE)
        plan = OneShot(mean, SmoothTest(cohort_size, mean.core, tuple(map(float, table))), noise)
        try:
            verify_one_shot(plan, epsilon, delta)
        except VerificationError:
            if more > 0.1:
                raise
            found, more = (mean, levels, noise * (1 + more)), 2 * more
        else:
            return plan
    least = max(smallest_cohort(epsilon, delta), cohort_size + 1)
    why = f"at epsilon={epsilon:g}, delta={delta:g}"
    raise Infeasible.small_cohort("smooth test (outlier-mean#o3)", cohort_size, why, least, 2 * least)


def estimate(epsilon: float, delta: float, size: int, *, forgiven: int = 0) -> float:
    """About the noise of what `calibrate` finds, inf where it finds nothing; for searches, as nothing certifies it."""
    _check(epsilon, delta, size, forgiven)
    found = _search(epsilon, _aim(delta), size, forgiven)
    return math.inf if found is None else found[2]


@lru_cache(maxsize=256)
def smallest_cohort(epsilon: float, delta: float) -> int:
    """C_min: the least cohort for which a plan exists, however noisy. Useful noise needs two to three times that."""
    positive(epsilon=epsilon)
    probability(delta=delta)
    levels = _fewest_levels(epsilon, _aim(delta))

    def exists(size: int) -> bool:
        return bool(fitting(size, core_for(size, levels)))

    size = 4 * levels  # below, the core would be less than half
    while size > 2 and exists(size):
        size -= 1
    while not exists(size):
        size += 1
    return size


def core_for(cohort_size: Whole, levels: Whole) -> Whole:
    """Return the largest k that leaves `levels` levels between Ck and C²; of numbers or of arrays."""
    return (cohort_size**2 - score_step(cohort_size) * levels) // cohort_size


def verify_one_shot(plan: OneShot, epsilon: float, delta: float) -> float:
    """Return δ that outlier-mean#o3 certifies at ε, by trying all pairs of neighbouring levels; at most `delta`.

    Independent of the search: each pair's divergence is the mass of the best test's region under both laws, and the
    shifts are checked in rational arithmetic. Raises VerificationError.
    """
    positive(epsilon=epsilon, noise_multiplier=plan.noise_multiplier)
    probability(delta=delta)
    verify_outlier_mean(plan.mean)
    verify_smooth_test(plan.test, plan.mean)
    table = np.asarray(plan.test.table)
    mus = certified_shifts(plan.mean, recounted_scores(plan.test)[1:])[:, None] / plan.noise_multiplier
    worst = table[0]  # what happens on level 0 happens with its chance only
    for p, q in ((table[1:], table[1:]), (table[1:], table[:-1]), (table[:-1], table[1:])):
        if len(p):
            worst = float(np.maximum(worst, pair_divergence(epsilon, p, q, mus).max()))  # NaN stays
    certified = float(worst) * (1 + 1e-9)
    if not certified <= delta:
        raise VerificationError(f"Expected a certified delta <= {delta:g} at epsilon={epsilon:g}, got {certified:.6g}.")
    return certified


def verify_smooth_test(test: SmoothTest, mean: OutlierMean) -> None:
    """Raise VerificationError unless the ladder fits the aggregate, one user moves a cohort by a level at most, and its
    chances can be tossed exactly."""
    fits = (test.cohort_size, test.core) == (mean.cohort_size, mean.core)
    table = np.asarray(test.table)
    tossed = len(table) > 0 and bool(
        np.all((table > 0) & (table <= 1) & (table * 2.0**53 == np.floor(table * 2.0**53)))
    )
    if not (fits and tossed and bool(np.all(np.diff(table) >= 0))):
        raise VerificationError(
            "Expected a climbing ladder in multiples of 2^-53 on the aggregate's own cohort and core."
        )
    for level, score in enumerate(recounted_scores(test).tolist()):
        if (test.level(score), test.level(score - 1)) != (level, level - 1 if level else None):
            raise VerificationError(f"Expected level {level} to begin at score {score}, as far as one user moves it.")


def recounted_scores(test: SmoothTest) -> Integers:
    """`SmoothTest.scores` again: from the core on, each as far above the one before as one user can move the score."""
    low, step = test.cohort_size * test.core, max(1, recounted_step(test.cohort_size))
    return np.array([low + level * step for level in range(len(test.table))])


def ladder_mus(mean: OutlierMean, levels: int, noise: float) -> Vector:
    """Return μ of cohorts the larger score of which stands on level 0, 1, .. `levels`, (R + 1,)."""
    scores = mean.cohort_size * mean.core + score_step(mean.cohort_size) * np.arange(levels + 1)
    return mean.shifts_at(scores) / noise


@lru_cache(maxsize=256)
def ladder_means(size: int, levels: int, forgiven: int) -> tuple[OutlierMean, Vector]:
    """Return the best weights whose core leaves so many levels, and their `ladder_mus` at noise 1; it has to fit."""
    core = core_for(size, levels) - forgiven
    mean = weighted_mean(size, core, (core + size - forgiven) // 2)
    return mean, ladder_mus(mean, levels, 1.0)


def pair_divergence(epsilon: float, p: Vector, q: Vector, mus: Matrix | Vector, chances: Vector = _SURELY) -> Vector:
    """H_{e^ε} between releasing N(μ, 1) with chance p and N(0, 1) with chance q, averaged over a mixture of shifts.

    Shapes (P,), (P,), and (M,) where all pairs have the same mixture, or (P, 1) of one shift each. The best test
    releases iff x > t with t = (ε + ln(q/p))/μ + μ/2, and adds the silent outcome when that pays.
    """
    # Chances are multiples of 2⁻⁵³, so 1 − p is exact and the difference is off by rounding of its second term alone.
    silent = np.maximum((1 - p) - math.exp(epsilon) * (1 - q) + 4e-16 * (1 - p), 0.0)
    cut = (epsilon + np.log(q / p))[:, None] / mus + mus / 2
    spoken = p[:, None] * ndtr(mus - cut) - math.exp(epsilon) * q[:, None] * ndtr(-cut)
    total: Vector = silent + (chances * np.maximum(spoken, 0.0)).sum(1)
    return total


def _aim(delta: float) -> float:
    """Return what proposals aim at: δ less what float arithmetic in the verification may cost."""
    return delta * (1 - 1e-6) - 5e-16


def _check(epsilon: float, delta: float, size: int, forgiven: int) -> None:
    positive(epsilon=epsilon)
    probability(delta=delta)
    count(cohort_size=size)
    if forgiven < 0 or size > LARGEST_CERTIFIED:
        raise ConfigError(
            f"Expected forgiven >= 0 and cohort_size <= {LARGEST_CERTIFIED:,}, got {forgiven} and {size:,}."
        )


@lru_cache(maxsize=1024)
def _search(epsilon: float, delta: float, size: int, forgiven: int) -> tuple[OutlierMean, int, float] | None:
    """(aggregate, levels, noise) of the least noise whose ladder climbs from δ to RELEASE, from above; None without."""
    fewest = _fewest_levels(epsilon, delta)
    if not fitting(size, core_for(size, fewest) - forgiven):
        return None
    means = partial(ladder_means, size, forgiven=forgiven)

    @cache  # a finer tolerance begins as the other did
    def reaches(levels: int, noise: float) -> bool:
        return bool(loops.ladder(epsilon, delta, delta, means(levels)[1] / noise, RELEASE)[-1] >= RELEASE)

    def least(levels: int, tolerance: float = 1e-3) -> float:
        shifts, full = means(levels)[1], gdp.mu_for(epsilon, delta)
        high = float(shifts[1:].max()) / (_VANISHING * full)
        low = min(float(shifts[-1]) / full, high / 2)
        step = 1.1
        while reaches(levels, low):
            low, high = low / 1.5, low
        while low * step < high and not reaches(levels, low * step):
            low, step = low * step, step**2
        high = min(high, low * step)
        while high > low * (1 + tolerance):
            middle = math.sqrt(low * high)
            low, high = (low, middle) if reaches(levels, middle) else (middle, high)
        return high

    numbers = dict.fromkeys(round(fewest * 1.05**power) for power in range(_OPTIONS))
    fit = [levels for levels in numbers if fitting(size, core_for(size, levels) - forgiven)]
    levels, _ = cheapest(fit, least)
    return means(levels)[0], levels, least(levels, 1e-5)


def least_noise(epsilon: float, delta: float, size: int, *, forgiven: int = 0) -> float:
    """Return less than `estimate`, at once: the top of a ladder alone needs that much."""
    fits = fitting(size, size - forgiven)
    return 2 / size / gdp.mu_for(epsilon, min(delta / RELEASE, 0.5)) if fits else math.inf


@lru_cache(maxsize=256)
def _fewest_levels(epsilon: float, delta: float) -> int:
    """How many levels a ladder needs that climbs from δ to `release` next to noise that leaves nothing else to tell."""
    most = math.ceil(80 / epsilon) + 80
    mus = np.full(most + 1, _VANISHING * gdp.mu_for(epsilon, delta))
    return len(loops.ladder(epsilon, delta, delta, mus, RELEASE)) - 1


def release(
    epsilon: float, delta: float, cohort_size: int, *, forgiven: int = 0, name: str = "outlier mean"
) -> OneShot:
    """Return the release, certified. Raises Infeasible, in the name of `name`, where there is none of use.

    A calibration at full concentration passes with its chance at S = C² only. One for S = C² - s·C has all its levels
    lower by s·C, and passes with the same chance there; the aggregate's bound grows, and the noise with it.
    """
    with suppress(Infeasible):
        made = calibrate(epsilon, delta, cohort_size, forgiven=forgiven)
        if made.noise_multiplier < LARGEST_NOISE:
            return made
    raise Infeasible(name, f"a cohort of {cohort_size:,} is too small", "a larger cohort")


def release_scale(plan: Tested, radius: float, dimension: int) -> float:
    """Return σ per coordinate at τ = `radius`: the theorem's, with slack for the mean's arithmetic and noise's grid.

    The grid costs the same μ whatever the shift, so the smallest shift needs the most room. 1e-8 of μ and 1e-9 are left
    to the arithmetic of those who verify.
    """
    shift = plan.mean.least_shift
    sensitivity = shift * radius * (1 + plan.mean.rounding_slack(dimension))
    mu = shift / plan.noise_multiplier * (1 - 1e-8) - 1e-9
    return GaussianNoise.for_mu(sensitivity=sensitivity, mu=mu, dimension=dimension).scale


def verify_scale(plan: Tested, scale: float, radius: float, dimension: int) -> None:
    """Raise VerificationError unless noise of this σ at τ = `radius` is what `plan` was certified for."""
    if not RADII[0] < radius < RADII[1]:
        raise VerificationError(f"Expected radius in {RADII}, got {radius:g}.")
    slack, least = recounted_slack(plan.mean, dimension), 2 * plan.mean.kappa / plan.mean.cohort_size
    for shift in (least, *plan.mean.shifts):
        truth = sensitivity_recount.mu(shift * radius * (1 + slack), scale, dimension)
        if not truth <= shift / plan.noise_multiplier * (1 + 1e-12):
            raise VerificationError(
                f"Expected release_scale >= {radius * plan.noise_multiplier:g} and a little, got {scale:g}."
            )


def smallest(noise: Callable[[int], float]) -> int | None:
    """C_min: the least cohort with a useful `noise`(C) = σ/τ, which falls; None where it is too large to compare."""
    return least_number(lambda size: noise(size) < LARGEST_NOISE, 4, most=LARGEST_COHORT)
