"""The bound of an outlier mean by the larger of two scores: every small cohort, exact references, broken twins."""

import functools
import itertools
import math
from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from cover import by_default
from privacy.robust.means import mean_at
from quoron_privacy.accounts.gdp import delta_for, mu_for
from quoron_privacy.errors import VerificationError
from quoron_privacy.noise.streams import SeededNoise
from quoron_privacy.robust.outlier_mean import (
    LARGEST_COHORT,
    REACH,
    OutlierMean,
    certified_shifts,
    fitting,
    ramp_floor,
    random_inclusion,
    score_step,
    verify_outlier_mean,
    weighted_mean,
    weighted_shifts,
)
from quoron_privacy.robust.outlier_mean_loops import largest_ratios
from quoron_privacy.robust.smooth_test import (
    OneShot,
    SmoothTest,
    calibrate,
    core_for,
    ladder_mus,
    smallest_cohort,
    verify_one_shot,
)
from quoron_privacy.robust.smooth_test_loops import ladder

FAR = 1e3  # isolated


def means(size: int) -> list[OutlierMean]:
    """Every ramp of a weighted mean; the core plays no part in `shifts_at`."""
    low = ramp_floor(size)
    return [OutlierMean("weighted", size, high + 1, low, high, (1.0,), (1.0,)) for high in range(low + 1, size)]


def seen(points: np.ndarray, mean: OutlierMean) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(scores, total weights, weighted means) of cohorts on a line, points (N, C), τ = 1; means are 0 at weight 0."""
    gaps = np.abs(points[:, :, None] - points[:, None, :])
    heights = (gaps <= mean.removal_radius).sum(2)
    weights = np.clip((heights - mean.ramp_low) / (mean.ramp_high - mean.ramp_low), 0, 1)
    total = weights.sum(1)
    return (gaps <= 1).sum((1, 2)), total, (weights * points).sum(1) / np.maximum(total, 1e-9)


def ratios(first: np.ndarray, second: np.ndarray, mean: OutlierMean, *, higher: int = 0) -> np.ndarray:
    """Shifts over their bound by the larger score, for pairs that the test may release; `higher`: score too large."""
    (one, weight, x), (two, other, y) = seen(first, mean), seen(second, mean)
    top = np.maximum(one, two)
    met = np.minimum(one, two) >= mean.cohort_size * (mean.ramp_low + 1)  # so that both have a mean
    assert np.all((weight > 0) & (other > 0) | ~met)
    return np.abs(x - y)[met] / mean.shifts_at(top[met] + higher)


@functools.cache
def every_pair(size: int) -> tuple[np.ndarray, np.ndarray]:
    """All cohorts at multiples of τ/2 that differ in one answer, up to translation and order."""
    places = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 2.5])
    ends = np.array([-1.0, 0.0, 0.5, 1.0, 1.5, 2.0, 3.0, FAR])
    common = np.array(list(itertools.combinations_with_replacement(places, size - 1)))
    common = common[common[:, 0] == 0]
    pairs = np.array(list(itertools.combinations(ends, 2)))
    rows = np.repeat(common, len(pairs), axis=0)
    return tuple(np.column_stack([np.tile(pairs[:, k], len(common)), rows]) for k in (0, 1))  # type: ignore[return-value]


@pytest.mark.parametrize("size", [4, 5, 6, 7])
def test_no_small_cohort_moves_the_mean_by_more_than_its_larger_score_allows(size):
    worst = [ratios(*every_pair(size), mean) for mean in means(size)]
    assert sum(map(len, worst)) >= 99
    assert 0.9 < max(found.max(initial=0.0) for found in worst) <= 1


def test_the_shift_of_the_next_rung_is_too_small():
    """The twin: one outlier in both is a level below full agreement, and there a pair moves the mean by 2τ/(C − 1)."""
    for size in (4, 5, 6, 7):
        worst = [ratios(*every_pair(size), mean, higher=score_step(size)) for mean in means(size)]
        assert max(found.max(initial=0.0) for found in worst) > 1.01


@given(size=st.one_of(st.integers(6, 100), st.integers(100, 2**19)), data=st.data())
@settings(derandomize=True, deadline=None, max_examples=60)
def test_both_routes_to_the_bounds_agree_and_they_fall_with_the_score(size, data):
    core = data.draw(st.integers(ramp_floor(size) + 2, size))
    mean = weighted_mean(size, core)
    scores = np.unique(np.linspace(size * core, size**2 + 3 * size, 12).astype(np.int64))
    shifts, second = mean.shifts_at(scores), certified_shifts(mean, scores)
    assert np.all(np.diff(shifts) <= 1e-15)
    assert shifts.min() > mean.least_shift
    assert np.allclose(shifts, second, rtol=3e-7, atol=0)
    assert np.all(shifts >= second)


# Lotteries.


def exact(epsilon: float, p: float, mu: float) -> float:
    """H between releasing N(μ, 1) and N(0, 1) with the same chance."""
    return p * delta_for(mu, epsilon)


def outliers_in_both(plan: OneShot, most: int) -> list[tuple[float, float]]:
    """(chance, μ) of cohorts of which j users are far away in both worlds and one answers from opposite ends."""
    size = plan.mean.cohort_size
    return [(plan.test.chance((size - j) ** 2 + j), 2 / (size - j) / plan.noise_multiplier) for j in range(most + 1)]


def test_a_ladder_that_charges_every_rung_with_the_shift_of_the_top_is_caught():
    """The twin's noise is what full agreement needs; ten outliers in both cohorts then leak more than δ."""
    epsilon, delta, size, levels = 8.0, 1e-6, 200, 40
    core = core_for(size, levels)
    mean = weighted_mean(size, core)
    noise = mean.shifts_at(np.array([size**2]))[0] / mu_for(epsilon, 0.99 * delta)
    mus = ladder_mus(mean, levels, noise)
    table = ladder(epsilon, delta, delta, np.full_like(mus, mus[-1]), 1.0)
    table = tuple(map(float, np.append(table, np.ones(levels + 1 - len(table)))))
    twin = OneShot(mean, SmoothTest(size, core, table), noise)
    assert max(exact(epsilon, p, mu) for p, mu in outliers_in_both(twin, 20)) > 1.5 * delta
    with pytest.raises(VerificationError, match="certified delta"):
        verify_one_shot(twin, epsilon, delta)
    plan = calibrate(epsilon, delta, size)
    assert 0 < max(exact(epsilon, p, mu) for p, mu in outliers_in_both(plan, 20)) <= delta


def twin(plan: OneShot, epsilon: float, delta: float, shifts: np.ndarray) -> OneShot:
    """The least noise, and its ladder, were these the rows of the plan's."""
    size, low, high = plan.mean.cohort_size, plan.noise_multiplier / 8, 8 * plan.noise_multiplier

    def table(noise: float) -> np.ndarray:
        return np.asarray(ladder(epsilon, delta, delta, shifts / noise, 0.999))

    for _ in range(40):
        noise = math.sqrt(low * high)
        low, high = (low, noise) if table(noise)[-1] >= 0.999 else (noise, high)
    return OneShot(plan.mean, SmoothTest(size, plan.mean.core, tuple(map(float, table(high)))), high)


BUDGETS = [(epsilon, delta) for epsilon in (0.05, 0.4, 3.0, 12.0) for delta in (1e-12, 1e-8, 1e-4)]


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [pytest.param(*each, marks=[] if each in ((3.0, 1e-12), (12.0, 1e-4)) else pytest.mark.slow) for each in BUDGETS],
)
def test_plans_are_certified_at_every_budget_and_use_it_up(epsilon, delta):
    edge = smallest_cohort(epsilon, delta)
    for size in (edge, edge + 1, 3 * edge, 40 * edge, LARGEST_COHORT if epsilon > 0.2 else 10 * edge):
        plan = calibrate(epsilon, delta, size)
        assert 0.999 * delta <= verify_one_shot(plan, epsilon, delta) <= delta
        assert plan.test.chance(plan.test.cohort_size**2) >= 0.999


@pytest.mark.parametrize(("size", "core"), [(1000, 950), (1000, 600), (301, 280), (84, 60), (10, 8)])
def test_every_shift_passes_the_exact_verification_and_a_smaller_one_does_not(size, core):
    mean = weighted_mean(size, core)
    verify_outlier_mean(mean)
    smaller = replace(mean, shifts=(mean.shifts[0] * (1 - 2e-7),))
    with pytest.raises(VerificationError, match="shift of at least"):
        verify_outlier_mean(smaller)


def largest_ratio(mean: OutlierMean) -> Fraction:
    """Of all heights, as the second route has it, rounded up."""
    lost = np.array([mean.cohort_size * (mean.cohort_size - mean.core)])
    return Fraction(float(largest_ratios(mean.cohort_size, mean.ramp_low, mean.ramp_high, lost)[0]) * (1 + 1e-15))


@given(st.integers(4, 3000), st.floats(0, 1), st.lists(st.floats(0, 0.5), min_size=1, max_size=5))
def test_no_height_that_is_left_out_is_worse(size, steep, shares):
    low = (size + 1) // 2
    high, lost = min(low + 1 + int(steep * (size - low)), size - 1), [int(share * size**2) for share in shares]
    heights, width = np.arange(low, high + 1), high - low
    for points, worst in zip(lost, largest_ratios(size, low, high, np.array(lost)), strict=True):
        below = size * (size - heights) * width - points * (high - heights)
        if below.min() <= 0:
            assert worst == np.inf
        else:
            assert worst == (2 * ((size - heights) * width + points) / below).max()


def largest_ratio_by_fractions(size: int, core: int, low: int, high: int) -> Fraction | None:
    """outlier-mean#o1 (b) as it is written, height by height; None where the total weight may vanish."""
    worst = Fraction(0)
    for height in range(low, high + 1):
        points = Fraction(size * (size - core), size - height)
        below = size - points * (1 - Fraction(height - low, high - low))
        if below <= 0:
            return None
        worst = max(worst, (2 + 2 * points / (high - low)) / below)
    return worst


@st.composite
def ramps(draw):
    """(C, k, A, B) with C/2 <= A < B < C, at every size that a test may have and some beyond; short where large."""
    size = draw(st.one_of(st.integers(4, 400), st.integers(400, 2**19), st.integers(2**20 - 50, 2**20)))
    low = draw(st.integers((size + 1) // 2, size - 2))
    high = draw(st.integers(low + 1, min(size - 1, low + 300)))
    return size, draw(st.integers(size // 2, size)), low, high


@given(ramp=ramps())
@settings(derandomize=True, deadline=None, max_examples=150)
def test_the_largest_ratio_over_all_heights_is_that_of_rational_arithmetic_rounded_up(ramp):
    exact = largest_ratio_by_fractions(*ramp)
    mean = OutlierMean("weighted", ramp[0], ramp[1], ramp[2], ramp[3], (1.0,), (1.0,))
    if exact is None:
        with pytest.raises(VerificationError, match="positive total weight"):
            verify_outlier_mean(mean)
    else:
        assert exact <= largest_ratio(mean) <= exact * (1 + Fraction(2, 10**15))


@pytest.mark.parametrize("core", [2**18 + 2, 2**19 - 1, 2**19])
def test_the_widest_ramp_of_the_largest_cohort_does_not_overflow(core):
    """All products are at their largest here. The ends are worst, or all heights alike, as in `_near_shift`."""
    size, low, high = 2**19, 2**18, 2**19 - 1
    ends = []
    for height in (low, high):
        points = Fraction(size * (size - core), size - height)
        below = size - points * (1 - Fraction(height - low, high - low))
        ends.append((2 + 2 * points / (high - low)) / below)
    mean = OutlierMean("weighted", size, core, low, high, (1.0,), (1.0,))
    assert max(ends) <= largest_ratio(mean) <= max(ends) * (1 + Fraction(2, 10**15))


@given(size=st.integers(2, 60))
@settings(derandomize=True, deadline=None, max_examples=60)
def test_shifts_of_many_cores_are_those_of_each_aggregate(size):
    cores = np.arange(-2, size + 3)
    expected = [
        weighted_mean(size, core).sensitivity if fitting(size, core) else math.inf for core in map(int, cores.tolist())
    ]
    assert weighted_shifts(np.full_like(cores, size), cores).tolist() == expected


FLIPPING = [(12, 11, None), (60, 50, None), (60, 50, 40), (1000, 900, None), (1000, 835, None), (1000, 700, 667)]


@pytest.mark.parametrize(("size", "core", "ramp_high"), FLIPPING)
def test_random_inclusion_dominates_the_binomial_number_of_flips(size, core, ramp_high):
    mean = random_inclusion(size, core, ramp_high)
    verify_outlier_mean(mean)
    chance, most = 1 / ((ramp_high or core - 1) - ramp_floor(size)), size - core
    exact = sum(
        binom.pmf(b, most, chance)
        * delta_for((4 + 2 * b * (2 - max(ramp_floor(size) + core - size, 0) / size)) / core / 0.05, 1.0)
        for b in range(most + 1)
    )
    assert exact <= mean.profile(0.05, 1.0) <= exact * (1 + 1e-3)
    halved = replace(mean, chances=tuple(np.array(mean.chances) / 2))
    with pytest.raises(VerificationError, match=r"dominate|add up"):
        verify_outlier_mean(halved)


@pytest.mark.parametrize(("size", "core"), [(9, 8), (20, 16), (200, 151), (1001, 900)])
def test_a_ramp_that_ends_lower_needs_the_larger_shifts_of_its_own(size, core):
    """Fewer steps of the ramp: coins differ more often."""
    mean = random_inclusion(size, core)
    verify_outlier_mean(mean)
    for lower in {mean.ramp_low + 1, mean.ramp_high - 1}:
        with pytest.raises(VerificationError):
            verify_outlier_mean(replace(mean, ramp_high=lower))


examples = settings(derandomize=True, deadline=None, max_examples=40)
SEED = st.integers(0, 2**32 - 1)


def floor_of(cohort_size):
    return (cohort_size + 1) // 2


def wide_mean(cohort_size, core, radius=1.0):
    return mean_at(cohort_size, radius, "random", floor_of(cohort_size), core - 1)


def near_mean(cohort_size, high, radius=1.0):
    return mean_at(cohort_size, radius, "weighted", floor_of(cohort_size), high)


def run(mean, rows, reference=None):
    """(score, weights, aggregate) with everybody answering."""
    reference = np.zeros(rows.shape[1]) if reference is None else reference
    seen = mean.observe(rows, np.ones(len(rows), dtype=bool), reference=reference)
    return seen.score, seen.weights, mean.aggregate(rows, seen.weights, reference=reference)


def reference_aggregate(mean, rows):
    """Score, weights and mean from the definition, in exact arithmetic (radii and answers as given)."""
    rows = [[Fraction(float(x)) for x in row] for row in rows]
    squares = [[sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) for b in rows] for a in rows]

    def heights(radius):
        return [sum(s <= Fraction(radius) ** 2 for s in row) for row in squares]

    width = mean.ramp_high - mean.ramp_low
    weights = [min(max(h - mean.ramp_low, 0), width) for h in heights(mean.radius * mean.removal_radius)]
    total = sum(weights)
    sums = [sum(w * row[k] for w, row in zip(weights, rows, strict=True)) for k in range(len(rows[0]))]
    return sum(heights(mean.radius)), weights, [float(s / total) if total else 0.0 for s in sums]


@examples
@given(seed=SEED, cohort_size=st.integers(5, 24), dimension=st.integers(1, 3), wide=st.booleans())
def test_score_weights_and_aggregate_equal_the_exact_reference(seed, cohort_size, dimension, wide):
    rng = np.random.default_rng(seed)
    mean = mean_at(cohort_size, 1.0, "random" if wide else "weighted", floor_of(cohort_size), cohort_size)
    rows = np.rint(8 * rng.normal(size=(cohort_size, dimension)) * rng.choice([0.1, 0.3, 1.0])) / 8
    score, weights, aggregate = run(mean, rows)
    expected = reference_aggregate(mean, rows)
    assert (score, weights.tolist()) == expected[:2]
    np.testing.assert_allclose(aggregate, expected[2], rtol=1e-12, atol=1e-11)


@examples
@given(seed=SEED, value=st.sampled_from([np.nan, np.inf, -np.inf, 1e300, 3e6, "absent"]))
def test_unusable_and_far_answers_contribute_exactly_nothing(seed, value):
    rng = np.random.default_rng(seed)
    mean = near_mean(20, 15)
    rows, answered, zero = rng.normal(size=(20, 3)) * 0.3, np.ones(20, dtype=bool), np.zeros(3)
    hostile, own = rows.copy(), int(rng.integers(20))
    if value == "absent":
        answered[own] = False
        hostile[own] = np.nan
    else:
        hostile[own, rng.integers(3)] = value
    seen = mean.observe(hostile, answered, reference=zero)
    others = near_mean(20, 15).observe(rows, np.arange(20) != own, reference=zero)
    assert seen.weights[own] == 0
    assert (seen.score, seen.weights.tolist()) == (others.score, others.weights.tolist())
    aggregate = mean.aggregate(hostile, seen.weights, reference=zero)
    assert np.isfinite(aggregate).all()
    assert np.array_equal(aggregate, mean.aggregate(rows, others.weights, reference=zero))


@examples
@given(seed=SEED, offset=st.sampled_from([0.0, 1.0, 1e3, 0.99 * REACH]), scale=st.sampled_from([1e-90, 1.0, 1e90]))
def test_aggregates_lie_within_the_rounding_that_the_slack_allows(seed, offset, scale):
    rng = np.random.default_rng(seed)
    size, dimension = 200, 5
    mean = mean_at(size, scale, "weighted", 100, 190)
    rows = rng.normal(size=(size, dimension)) * 0.1
    rows[:, 0] += offset
    rows *= scale
    _, weights, aggregate = run(mean, rows)
    units = [[Fraction(float(x)) / Fraction(scale) for x in row] for row in rows]
    exact = [sum(int(w) * row[k] for w, row in zip(weights, units, strict=True)) / int(weights.sum()) for k in range(5)]
    error = np.linalg.norm(
        [float(Fraction(float(a)) / Fraction(scale) - e) for a, e in zip(aggregate, exact, strict=True)]
    )
    assert weights.sum() > 0
    # Two cohorts err by this each, against a shift of at least 2/C; the grid error alone is the same for both.
    assert 2 * error <= mean.rounding_slack(dimension) * 2 / size


class Coins:
    """A stream whose coins are given."""

    def __init__(self, coins):
        self.coins = np.asarray(coins)

    def uniform_below(self, bound, size):
        assert size == len(self.coins)
        assert self.coins.max() < bound
        return self.coins


def test_random_inclusion_keeps_each_answer_with_exactly_its_weight_as_chance():
    mean = wide_mean(12, 10)  # A = 6, B = 9: thirds
    weights = np.array([0, 1, 2, 3] * 3)
    kept = [mean.include(weights, Coins(np.full(12, coin))) for coin in range(3)]
    assert np.array_equal(sum(kept), weights)
    drawn = mean.include(weights, SeededNoise(3).stream("include", 0))
    assert set(drawn.tolist()) <= {0, 1}
    assert (drawn[weights == 3] == 1).all()
    assert (drawn[weights == 0] == 0).all()


def test_the_smaller_score_must_leave_a_mean():
    """Of one score alone nothing follows: a user in reach of all, the others in a ring, and without it no weight."""
    angles = 2 * math.pi * np.arange(9) / 9
    ring = 0.7 * np.column_stack([np.cos(angles), np.sin(angles)])
    mean, reference = weighted_mean(10, 6), np.array([500.0, 0.0])
    scores, released = [], []
    for first in ([0.0, 0.0], [30.0, 0.0]):
        points, at = np.vstack([first, ring]), {"radius": 1.0, "reference": reference}
        cohort = mean.observe(points, np.ones(10, dtype=np.bool_), **at)
        scores.append(cohort.score)
        released.append(mean.aggregate(points, cohort.weights, **at))
    assert scores == [64, 46]
    assert np.linalg.norm(released[0] - released[1]) > 100 * mean.shifts_at(np.array([64])).max()
    assert SmoothTest(10, mean.core, (0.5, 1.0)).chance(46) == 0  # hence such a pair is never released


def climb(rng: np.random.Generator, mean: OutlierMean, turns: int) -> float:
    """The largest ratio that a hill climb over answers at multiples of τ/4 finds."""
    size = mean.cohort_size
    here = np.zeros((2, size))
    here[:, : int(rng.integers(0, size // 3 + 1)) + 1] = rng.choice([-1.0, 1.0, 2.0, FAR])
    here[0, 0], here[1, 0] = -1.0, 1.0
    best = 0.0
    for _ in range(turns):
        tried = np.repeat(here[None], 24, axis=0)
        for row in tried:
            for _ in range(int(rng.integers(1, 4))):
                if rng.random() < 0.3:
                    row[int(rng.integers(2)), 0] = rng.choice([-2.0, -1.0, 0.0, 1.0, 2.0, FAR])
                else:
                    chosen = rng.integers(1, size, int(rng.integers(1, 4)))
                    row[:, chosen] = rng.choice([-2.0, -1.25, -1.0, -0.5, 0.0, 0.5, 1.0, 1.25, 2.0, FAR, FAR + 5])
        values = np.array([ratios(row[:1], row[1:], mean).max(initial=-1.0) for row in tried])
        if values.max() >= best:
            best, here = float(values.max()), tried[values.argmax()]
    return best


@pytest.mark.parametrize(("size", "core"), by_default([(9, 8), (14, 11), (24, 20)], [(9, 8)]))
def test_a_climbing_adversary_stays_below_the_bound(size, core):
    rng, mean = np.random.default_rng(size), weighted_mean(size, core)
    found = [climb(rng, mean, 40) for _ in range(2)]
    assert 0.3 < max(found) <= 1


@given(size=st.integers(8, 60), seed=st.integers(0, 2**32 - 1))
@settings(derandomize=True, deadline=None, max_examples=60)
def test_clusters_stay_below_the_bound_of_their_larger_score(size, seed):
    rng = np.random.default_rng(seed)
    low = ramp_floor(size)
    mean = OutlierMean("weighted", size, size, low, int(rng.integers(low + 1, size)), (1.0,), (1.0,))
    places = rng.choice([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0], 3)
    points = np.append(places, FAR)[rng.choice(4, (50, size), p=rng.dirichlet([8.0, 0.5, 0.3, 0.3]))]
    other = points.copy()
    points[:, 0], other[:, 0] = rng.choice([-2.0, -1.0, 0.0, 1.0, 2.0, FAR], (2, 50))
    assert ratios(points, other, mean).max(initial=0.0) <= 1


@pytest.mark.parametrize(("epsilon", "size"), [(1.0, 200), (4.0, 600), (8.0, 60)])
def test_a_ladder_that_is_charged_one_level_too_high_does_not_verify(epsilon, size):
    plan = calibrate(epsilon, 1e-6, size)
    broken = twin(plan, epsilon, 1e-6, plan.mean.shifts_at(plan.test.scores + score_step(size)))
    assert broken.noise_multiplier < 0.995 * plan.noise_multiplier
    with pytest.raises(VerificationError, match="certified delta"):
        verify_one_shot(broken, epsilon, 1e-6)


def wide_shift(cohort_size, core):
    """outlier-mean#o1 (a), in units of τ."""
    low = floor_of(cohort_size)
    ramp = (
        Fraction(cohort_size - core, core - 1 - low) * 2 * (2 - Fraction(max(low + core - cohort_size, 0), cohort_size))
    )
    return float((4 + ramp) / core)


def near_shift(cohort_size, core, high):
    """outlier-mean#o1 (b), in units of τ: the largest over every height of the ramp."""
    low, worst = floor_of(cohort_size), Fraction(0)
    for h in range(low, high + 1):
        n = Fraction(cohort_size * (cohort_size - core), cohort_size - h)
        below = cohort_size - n * (1 - Fraction(h - low, high - low))
        if below <= 0:
            return float("inf")
        worst = max(worst, (2 + 2 * n / (high - low)) / below)
    return float(worst)


def neighbours_by_climbing(mean, core, dimension, rng, climbs, steps):
    """Pairs (score, score', distance) found by moving clusters between critical distances, with both scores high."""
    size, tau = mean.cohort_size, mean.radius
    places = np.array([-4, -3, -2, -1, -0.5, 0, 0, 0, 0, 0.5, 1, 2, 3, 4]) * tau

    def measure(rows, other):
        replaced = rows.copy()
        replaced[0] = other
        (first, _, before), (second, _, after) = run(mean, rows), run(mean, replaced)
        return np.linalg.norm(before - after) if min(first, second) >= size * core else -1.0

    for _ in range(climbs):
        rows, other = np.zeros((size, dimension)), np.zeros(dimension)
        best = measure(rows, other)
        for _ in range(steps):
            trial, changed = rows.copy(), other.copy()
            group = rng.integers(size, size=rng.integers(1, max(2, size // 3)))
            if rng.random() < 0.7:
                trial[group, rng.integers(dimension)] = rng.choice(places)
            else:
                trial[0], changed = rng.choice(places, dimension), rng.choice(places, dimension)
            if (found := measure(trial, changed)) >= best:
                rows, other, best = trial, changed, found
        yield best


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cohort_size", "core"),
    [
        (9, 7),
        pytest.param(12, 10, marks=pytest.mark.slow),
        pytest.param(21, 19, marks=pytest.mark.slow),
        pytest.param(40, 30, marks=pytest.mark.slow),
        (40, 38),
        pytest.param(101, 98, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("wide", [True, False])
def test_no_adversary_moves_the_aggregate_beyond_the_theorem(cohort_size, core, wide):
    rng = np.random.default_rng(cohort_size * core)
    if wide:
        mean, shift = wide_mean(cohort_size, core, 0.75), wide_shift(cohort_size, core)
    else:
        highs = range(floor_of(cohort_size) + 1, cohort_size)
        high = min(highs, key=lambda high: near_shift(cohort_size, core, high))
        mean, shift = near_mean(cohort_size, high, 0.75), near_shift(cohort_size, core, high)
    bound = 0.75 * shift * (1 + 1.1e-6) * (1 + mean.rounding_slack(2))
    for dimension in (1, 2):
        found = list(neighbours_by_climbing(mean, core, dimension, rng, climbs=3, steps=100))
        assert max(found) <= bound
        assert max(found) >= 0.1 * bound  # the search is not blind


def test_opposite_answers_reach_the_bound_when_everybody_is_close():
    size, tau = 50, 0.3
    mean = near_mean(size, 40, tau)
    rows = np.zeros((size, 2))
    rows[0, 0] = tau
    moved = rows.copy()
    moved[0, 0] = -tau
    distance = np.linalg.norm(run(mean, rows)[2] - run(mean, moved)[2])
    assert distance == pytest.approx(2 * tau / size, rel=1e-7)
    assert near_shift(size, size, 40) == pytest.approx(2 / size)


def test_weight_without_a_ramp_would_break_the_bound():
    # The broken twin: keep whoever has C/2 neighbours. One replaced answer then takes five others along.
    size, core = 100, 94
    rows = np.zeros((size, 1))
    rows[:6], rows[6:50] = 2.0, 1.0  # an answer at 2 has 50 neighbours until one of them leaves
    moved = rows.copy()
    moved[0] = 0.0
    high = min(range(51, size), key=lambda high: near_shift(size, core, high))
    bound = near_shift(size, core, high)

    def cliff(rows):
        return rows[(np.abs(rows - rows.T) <= 1.0).sum(axis=1) >= size / 2].mean()

    (score, _, before), (other, _, after) = run(near_mean(size, high), rows), run(near_mean(size, high), moved)
    assert min(score, other) >= size * core
    assert abs(before - after)[0] <= bound < 2 * bound < abs(cliff(rows) - cliff(moved))


@pytest.mark.slow
def test_random_inclusion_moves_with_flips_as_in_the_coupling_of_theorem_2():
    # All outcomes of the coins that matter, the same for both neighbours: distance at most Δ_b after b flips.
    size, core = 12, 10
    mean = wide_mean(size, core)
    low, zero = mean.ramp_low, np.zeros(1)
    heaviest = 2 * (2 - max(low + core - size, 0) / size)
    rng = np.random.default_rng(8)
    pairs = 0
    for _ in range(700):
        rows = np.zeros((size, 1))
        rows[:3, 0] = rng.choice([-2, -1, 1, 1.5, 2, 2.5, 3, 1e5], size=3)
        moved = rows.copy()
        moved[0] = rng.choice([-2, -1, 0, 1, 2, 3])
        seen, after = (mean.observe(r, np.ones(size, dtype=bool), reference=zero) for r in (rows, moved))
        if min(seen.score, after.score) < size * core:
            continue
        pairs += 1
        changed = np.abs(seen.weights - after.weights)[1:]
        assert changed.max() <= 1
        assert np.count_nonzero(changed) <= size - core
        for first in product(range(3), repeat=3):
            coins = np.array([*first, *[1] * (size - 3)])
            kept, other = mean.include(seen.weights, Coins(coins)), mean.include(after.weights, Coins(coins))
            flips = np.count_nonzero((kept != other)[1:])
            distance = abs(
                mean.aggregate(rows, kept, reference=zero)[0] - mean.aggregate(moved, other, reference=zero)[0]
            )
            assert distance <= (4 + flips * heaviest) / core * (1 + 1.1e-6) * (1 + mean.rounding_slack(1))
    assert pairs > 50
