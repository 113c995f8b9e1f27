"""T adaptive smooth-test releases, each on a fresh random cohort: what they cost together, and the noise they need.

    >>> plan = calibrate(1.0, 1e-6, users=10_000, cohort_size=10_000, releases=50)
    >>> verify_subsampled(plan, 1.0, 1e-6) <= 1e-6
    True

Every release draws a uniform cohort of K of the n users without replacement (or asks everybody), tests it smoothly and
releases its outlier mean with noise. The test sits *inside* what is sampled: a release, silent or not, is one
symbol, dominated by one pair of distributions, and pairs compose (subsampled-lottery#o4). Nothing is conditioned on a
test that has passed; once one has, the cohort is no longer a uniform one, which is where the printed proof fails.

Statement, proof and symbols: docs/privacy/subsampled-lottery.md.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtr, ndtri

from quoron_privacy.accounts import composition, gdp
from quoron_privacy.accounts.roots import least_number, root
from quoron_privacy.arrays import Vector
from quoron_privacy.errors import ConfigError, Infeasible, VerificationError, count, positive, probability
from quoron_privacy.kernels.on_first_use import OnFirstUse
from quoron_privacy.robust.outlier_mean import (
    OutlierMean,
    certified_shifts,
    fitting,
    verify_outlier_mean,
)
from quoron_privacy.robust.smooth_test import (
    RELEASE,
    SmoothTest,
    cheapest,
    core_for,
    ladder_means,
    ladder_mus,
    pair_divergence,
    recounted_scores,
    verify_smooth_test,
)

if TYPE_CHECKING:
    from quoron_privacy.accounts.pair import DominatingPair


_SMALLEST_DELTA = 1e-13  # below, chances in multiples of 2⁻⁵³ and their complements are no longer small against δ
_TICKET = 2.0**-53  # the least chance that can be tossed
_SILENT_SHARE = 1 / 20  # of δ, for releases of cohorts just above the threshold
_OVERWHELMING = 1e3  # a factor of noise that leaves the cost of the tests alone
_COARSE, _FINE = 12, 96  # places of a release's profile per standard deviation of its share of the total loss
_WIDE = 6  # standard deviations up to which they are equally far apart
_FARTHEST = 30.0  # losses so far above ε count as infinite
_DENSE = 256  # losses that the second account resolves in each typical one, and farther out in each factor e
_LARGEST = 700.0  # losses beyond count as infinite there
_SPARE = 1e-9  # relative, for the arithmetic of its law

loops = OnFirstUse("quoron_privacy.robust.smooth_test_loops")
approximate_gdp = OnFirstUse("quoron_privacy.accounts.approximate_gdp")  # who calibrates asks no second account
accounts = OnFirstUse("quoron_privacy.accounts.pair")


@dataclass(frozen=True, slots=True)
class SubsampledTest:
    """Numbers of T releases, fixed before the first. A silent release may be followed by others."""

    users: int  # n
    releases: int  # T: at most this many; with a public schedule, at most this many that ask the same user
    mean: OutlierMean  # on cohorts of K
    test: SmoothTest
    noise_multiplier: float  # σ/τ, per coordinate

    @property
    def rate(self) -> float:
        """γ: chance that a user is drawn, given that one other was not: K/(n − 1), 1 when everybody is asked."""
        return sampling_rate(self.users, self.mean.cohort_size)


def sampling_rate(users: int, cohort_size: int) -> float:
    """K/(n − 1), or 1 when everybody is asked: it holds against an observer who knows of one, that it was not drawn."""
    if not 1 <= cohort_size <= users:
        raise ConfigError(f"Expected cohort_size in 1..users={users}, got cohort_size={cohort_size}.")
    return 1.0 if cohort_size == users else cohort_size / (users - 1)


def subsampled_delta(plan: SubsampledTest, epsilon: float, *, points: int = _FINE) -> float:
    """Return δ at ε of all T releases (subsampled-lottery#o4), an upper bound for every number of lattice points."""
    positive(epsilon=epsilon, noise_multiplier=plan.noise_multiplier)
    verify_smooth_test(plan.test, plan.mean)
    table = np.asarray(plan.test.table)
    mus = ladder_mus(plan.mean, len(table) - 1, plan.noise_multiplier)
    typical = _typical(table, mus, plan.rate)
    return _composed(table, mus, plan.rate, plan.releases, typical, points, epsilon) / composition.SAFETY


def calibrate(
    epsilon: float,
    delta: float,
    *,
    users: int,
    cohort_size: int,
    releases: int,
    forgiven: int = 0,
) -> SubsampledTest:
    """Return the least noise found for (ε, δ)-DP of `releases` releases.

    Each is made with chance RELEASE at full concentration, or where the average count misses K by `forgiven`.
    For batches on a public schedule pass users=cohort_size and, as `releases`, the most that any user takes part in.
    Raises Infeasible naming the smallest cohort that would do at this rate, ConfigError for δ < 1e-13.
    """
    positive(epsilon=epsilon)
    probability(delta=delta)
    count(users=users, cohort_size=cohort_size, releases=releases)
    if delta < _SMALLEST_DELTA:
        raise ConfigError(f"Expected delta >= {_SMALLEST_DELTA} with composed releases, got delta={delta}.")
    if forgiven < 0:
        raise ConfigError(f"Expected forgiven >= 0, got {forgiven}.")
    rate = sampling_rate(users, cohort_size)
    if rate * releases * _TICKET > delta / 2:
        raise Infeasible(
            "sampled smooth test (subsampled-lottery#o4)",
            f"{releases:,} releases by tests of chances 2^-53 and more leave too little of delta={delta:g}",
            f"fewer releases, or delta >= {2 * rate * releases * _TICKET:.3g}",
        )
    found = _calibrate(epsilon, delta, rate, cohort_size, releases, forgiven)
    if found is None and forgiven:
        raise Infeasible(
            "sampled smooth test (subsampled-lottery#o4)",
            f"{forgiven:,} of {cohort_size:,} answers may be far away",
            "fewer outliers or a larger cohort",
        )
    if found is None:
        least = max(smallest_cohort(epsilon, delta, releases, rate=rate), cohort_size + 1)
        why = f"for {releases} releases at epsilon={epsilon:g}, delta={delta:g}"
        raise Infeasible.small_cohort("sampled smooth test (subsampled-lottery#o4)", cohort_size, why, least, 2 * least)
    mean, test, noise = found
    plan, more = SubsampledTest(users, releases, mean, test, noise), 1e-7
    while subsampled_delta(plan, epsilon) > delta:  # the search takes less care for rounding
        plan, more = replace(plan, noise_multiplier=plan.noise_multiplier * (1 + more)), 2 * more
    return plan


@lru_cache(maxsize=64)
def smallest_cohort(epsilon: float, delta: float, releases: int, *, rate: float = 1.0) -> int:
    """Return the least K at this rate with a plan, however noisy. Useful noise needs two to three times that."""
    levels = least_number(lambda levels: _tests_alone(epsilon, delta, rate, releases, levels) <= 1, 2)
    assert levels is not None
    size = 4 * levels + 4
    while fitting(size - 2, core_for(size - 2, levels)):
        size -= 2
    return size


def verify_subsampled(plan: SubsampledTest, epsilon: float, delta: float) -> float:
    """Return δ that subsampled-lottery#o4 certifies at ε by a second route; at most `delta`.

    Independent of the search and of `subsampled_delta`: see `pair`. Raises VerificationError.
    """
    positive(epsilon=epsilon)
    probability(delta=delta)
    certified = pair(plan).delta(epsilon, delta)
    if not certified <= delta:
        raise VerificationError(f"Expected a certified delta <= {delta:g} at epsilon={epsilon:g}, got {certified:.6g}.")
    return certified


@lru_cache(maxsize=32)  # a plan is verified when it is made and before it runs
def pair(plan: SubsampledTest) -> "DominatingPair":
    """Return the pair of all T releases together, by the second account (subsampled-lottery#o4 and #o8).

    Every pair of neighbouring levels by the mass of its best test's region, its shift by the second route: it shares no
    function with the calibration. Raises VerificationError where a theorem does not hold of the plan, or one release
    already tells too much.
    """
    positive(noise_multiplier=plan.noise_multiplier)
    verify_outlier_mean(plan.mean)
    verify_smooth_test(plan.test, plan.mean)
    # Shift r is of two cohorts the larger score of which stands on level r.
    mus = certified_shifts(plan.mean, recounted_scores(plan.test)) / plan.noise_multiplier
    table, rate = np.asarray(plan.test.table), _recounted_rate(plan)
    spare = _SPARE + 1e-13 / float(mus[1:].min(initial=1.0))  # Φ cancels by up to 40/μ
    least = rate * float(table[0]) * (1 + spare)  # what happens on level 0 is charged with all of its chance

    def once(size: float) -> float:
        inner, found = math.log1p(math.expm1(size) / rate), least
        for p, q in ((table[1:], table[1:]), (table[1:], table[:-1]), (table[:-1], table[1:])):
            worst = pair_divergence(inner, p, q, mus[1:, None]).max(initial=0.0)
            found = max(found, rate * float(worst) * (1 + spare))
        return found

    def from_above(values: Vector) -> Vector:
        """Sums of each and all behind it."""
        return np.cumsum(values[::-1])[::-1]

    sizes, deltas = [0.0], [once(0.0)]
    typical = 2.5 * deltas[0]
    while deltas[-1] > least and sizes[-1] < _LARGEST:
        sizes.append(min(typical * math.sinh(len(sizes) / _DENSE), _LARGEST))
        deltas.append(min(once(sizes[-1]), deltas[-1]))
    # A convex profile below the dots is below their lower hull, whatever rounding does to single dots.
    known = approximate_gdp.convex(np.exp(np.array(sizes)), np.array(deltas))
    widths = np.diff(known.x)
    other = np.diff(np.diff(known.deltas) / widths, append=0.0)  # masses of the other law at losses above 0
    losses, own, infinite = np.log(known.x[1:]), known.x[1:] * other, float(known.deltas[-1])
    middle = 1 - infinite - float(own.sum() + other.sum())
    again = infinite + from_above(widths * from_above(other))  # the law's own profile: sums of positive numbers
    if not (middle >= 0 and np.all(again >= known.deltas[:-1] * (1 - spare / 2))):
        raise VerificationError(f"Expected a certified delta < 1 of every release, got {deltas[0]:.6g} at epsilon=0.")
    at, masses = np.concatenate([-losses[::-1], [0.0], losses]), np.concatenate([other[::-1], [middle], own])
    made: DominatingPair = accounts.DominatingPair.table(at.tolist(), masses.tolist(), infinite, times=plan.releases)
    return made


def _recounted_rate(plan: SubsampledTest) -> float:
    """γ again, rounded up: of all but the one who knows that it was not drawn, not the share that is left out."""
    hidden, asked = plan.users - 1, plan.mean.cohort_size
    if not 1 <= asked <= plan.users:
        raise VerificationError(f"Expected a cohort of 1 to {plan.users} users, got {asked}.")
    return 1.0 if hidden <= asked else math.nextafter(float(1 - Fraction(hidden - asked, hidden)), 1.0)


@lru_cache(maxsize=256)
def _calibrate(
    epsilon: float,
    delta: float,
    rate: float,
    size: int,
    releases: int,
    forgiven: int,
) -> tuple[OutlierMean, SmoothTest, float] | None:
    first, typical = _first(delta, rate, releases), gdp.mu_for(epsilon, delta) / math.sqrt(releases)

    steep = rate / typical  # tests with normal noise of so many levels cost as much as the releases
    high = min(max(64, math.ceil(40 * steep)), size // 4)
    ladders = {max(2, round(levels)) for levels in np.geomspace(max(2.0, min(3 * steep, high)), max(high, 2), 60)}
    options = [levels for levels in sorted(ladders) if fitting(size, core_for(size, levels) - forgiven)]
    if not options:
        return None

    means = partial(ladder_means, size, forgiven=forgiven)

    @cache  # where the search for a noise ends that for levels begins
    def excess(levels: int, noise: float, *, fine: bool = False) -> float:
        table, mus = _table(levels, first), means(levels)[1] / noise
        each, points = (_typical(table, mus, rate), _FINE) if fine else (typical, _COARSE)
        found = _composed(table, mus, rate, releases, each, points, epsilon, delta)
        return found / (composition.SAFETY * delta)

    def untested(levels: int) -> float:
        """Noise that about suffices when tests are free and sampling amplifies in full."""
        return float(means(levels)[1][-1]) * rate / typical

    def least(levels: int, guess: float, factor: float) -> float:
        return _decreasing_root(lambda noise: excess(levels, noise), guess, factor, 3e-3)

    def leading(noise: float) -> tuple[int, float]:
        """Return the levels of the least δ at one noise, which are about those of the least noise; their share of δ."""
        return cheapest(options, lambda levels: excess(levels, noise))

    best, noise = options[len(options) // 2], _OVERWHELMING * untested(options[-1])
    if excess(best, noise) > 1:  # its tests alone take too much
        best, share = leading(noise)
        if share > 1:
            return None
    noise = least(best, 1.1 * untested(best), 1.2)
    while (better := leading(noise)[0]) != best:
        last, lower = noise, least(better, noise, 1.03)
        if lower < noise:
            best, noise = better, lower
        if lower > 0.999 * last:
            break
    noise = _decreasing_root(lambda noise: excess(best, noise, fine=True), noise, 1.02, 2e-7)
    if not math.isfinite(noise):
        return None
    mean = means(best)[0]
    return mean, SmoothTest(size, mean.core, tuple(map(float, _table(best, first)))), noise


def _decreasing_root(excess: Callable[[float], float], guess: float, factor: float, tolerance: float) -> float:
    """Least x, to a relative `tolerance` and from above, with excess(x) <= 1; inf if none. Steps out by `factor`."""

    @cache  # the ends of the bracket and the root itself are looked at twice
    def height(log: float) -> float:
        return math.log(max(excess(math.exp(log)), 1e-300))

    low = high = start = math.log(guess)
    step = math.log(factor)
    if height(start) > 0:
        while height(high := high + step) > 0:
            low, step = high, min(2 * step, math.log(10))
            if high > start + math.log(1e9):
                return math.inf
    else:
        while height(low := low - step) <= 0:
            high, step = low, min(2 * step, math.log(10))
    zero = root(height, low, high, xtol=tolerance / 2, rtol=1e-12)
    while height(zero) > 0:
        zero += tolerance / 2
    return math.exp(zero)


def _tests_alone(epsilon: float, delta: float, rate: float, releases: int, levels: int) -> float:
    """Share of δ that the tests take when the releases carry almost nothing."""
    typical = gdp.mu_for(epsilon, delta) / math.sqrt(releases)
    table = _table(levels, _first(delta, rate, releases))
    mus = np.full(len(table), 1e-3 * typical / rate)
    found = _composed(table, mus, rate, releases, typical, _COARSE, epsilon, delta)
    return found / (composition.SAFETY * delta)


def _composed(
    table: Vector,
    mus: Vector,
    rate: float,
    releases: int,
    typical: float,
    points: int,
    epsilon: float,
    least: float = _SMALLEST_DELTA,
) -> float:
    """Return δ at ε of all releases, from the profile of one at `points` places to each `typical` loss, fewer far out.

    `table` and `mus` have shape (R + 1,): shift r is of two cohorts, the larger score of which is on level r. That of
    level 0 bears on nothing, as level 0 is charged with all of its chance.
    """

    def inside(epsilons: Vector) -> Vector:
        """Return the largest divergence over all pairs of neighbouring levels at each ε >= 0, rounded up."""
        found = np.empty(len(epsilons))
        loops.step_profile(epsilons, table, np.log(table[1:] / table[:-1]), mus, found)
        return found

    low, high = 0.0, math.log1p(math.expm1(epsilon + _FARTHEST) / rate)
    for _ in range(14):
        middle = (low + high) / 2
        low, high = (low, middle) if inside(np.array([middle]))[0] <= 1.001 * table[0] else (middle, high)
    reach, near = math.log1p(rate * math.expm1(high)), _WIDE * points
    wider = near * np.exp(np.arange(max(1.0, near * math.log(reach / typical / _WIDE))) / near)
    places = np.append(np.arange(near), wider) * (typical / points)
    places = np.append(places[places < reach], reach)
    upper = rate * inside(np.log1p(np.expm1(places) / rate)) * (1 + 1e-12)
    knots, deltas = np.expm1(places), np.minimum.accumulate(np.minimum(upper, 1.0))

    def profile(epsilons: Vector) -> Vector:
        """By straight lines in e^ε, which are above a convex profile; beyond the last dot as there."""
        return np.interp(np.expm1(epsilons), knots, deltas)

    return composition.delta(profile, profile, releases, epsilon, least=least)


def _first(delta: float, rate: float, releases: int) -> float:
    """π_0: what cohorts just above the threshold release with."""
    return max(_SILENT_SHARE * delta / (rate * releases), _TICKET)


def _typical(table: Vector, mus: Vector, rate: float) -> float:
    """Return a length on the scale of one release's loss: bears on the lattice alone."""
    spread = len(table) / (1 + max(-float(ndtri(table[0])), 0.0))
    return rate * math.hypot(float(mus[-1]), 1 / spread)


def _table(levels: int, first: float) -> Vector:
    """A ladder in the shape of a normal distribution function: many releases together see a test with normal noise."""
    start, end = float(ndtri(first)), float(ndtri(RELEASE)) + 1e-9
    table = ndtr(np.linspace(start, end, levels + 1))
    table[-1] = max(table[-1], RELEASE)
    floor: Vector = np.maximum(np.floor(table / _TICKET), 1.0) * _TICKET
    return floor
