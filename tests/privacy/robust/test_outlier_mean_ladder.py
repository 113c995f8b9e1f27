"""The bound of an outlier mean by the larger of two scores: every small cohort, a climbing adversary, broken twins."""

import functools
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quoron_privacy.accounts.gdp import delta_for, mu_for
from quoron_privacy.errors import VerificationError
from quoron_privacy.robust.lottery import (
    Lottery,
    OneShot,
    calibrate,
    core_for,
    ladder_mus,
    smallest_cohort,
    verify_one_shot,
)
from quoron_privacy.robust.lottery_loops import ladder
from quoron_privacy.robust.outlier_mean import (
    LARGEST_COHORT,
    OutlierMean,
    certified_shifts,
    ramp_floor,
    random_inclusion,
    score_step,
    weighted_mean,
)

FAR = 1e3  # isolated


def means(size: int) -> list[OutlierMean]:
    """Every ramp of a weighted mean; the core plays no part in `shifts_at`."""
    low = ramp_floor(size)
    return [
        OutlierMean("weighted", size, high + 1, kappa, low, high, (1.0,), (1.0,))
        for kappa in (1, 2)
        for high in range(low + 1, size)
    ]


def seen(points: np.ndarray, mean: OutlierMean) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(scores, total weights, weighted means) of cohorts on a line, points (N, C), τ = 1; means are 0 at weight 0."""
    gaps = np.abs(points[:, :, None] - points[:, None, :])
    heights = (gaps <= mean.removal_radius).sum(2)
    weights = np.clip((heights - mean.ramp_low) / (mean.ramp_high - mean.ramp_low), 0, 1)
    total = weights.sum(1)
    return (gaps <= 1).sum((1, 2)), total, (weights * points).sum(1) / np.maximum(total, 1e-9)


def ratios(first: np.ndarray, second: np.ndarray, mean: OutlierMean, *, higher: int = 0) -> np.ndarray:
    """Shifts over their bound by the larger score, for pairs that a lottery may release; `higher`: score too large."""
    (one, weight, x), (two, other, y) = seen(first, mean), seen(second, mean)
    top = np.maximum(one, two)
    if mean.kappa == 1:  # both reach C(A + 1), so that both have a mean
        met = np.minimum(one, two) >= mean.cohort_size * (mean.ramp_low + 1)
    else:  # the larger score alone: its core is of weight 1 in both
        met = -(-top // mean.cohort_size) > mean.ramp_high
    assert np.all((weight > 0) & (other > 0) | ~met)
    return np.abs(x - y)[met] / mean.shifts_at(top[met] + higher)[0][:, 0]


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
    assert sum(map(len, worst)) > 200
    assert 0.9 < max(found.max(initial=0.0) for found in worst) <= 1


def test_the_shift_of_the_next_rung_is_too_small():
    """The twin: one outlier in both is a rung below full agreement, and there a pair moves the mean by 2τ/(C − 1)."""
    for size in (4, 5, 6, 7):
        worst = [ratios(*every_pair(size), mean, higher=score_step(size)) for mean in means(size)]
        assert max(found.max(initial=0.0) for found in worst) > 1.01


@given(size=st.integers(8, 60), seed=st.integers(0, 2**32 - 1), kappa=st.sampled_from([1, 2]))
@settings(derandomize=True, deadline=None, max_examples=60)
def test_clusters_stay_below_the_bound_of_their_larger_score(size, seed, kappa):
    rng = np.random.default_rng(seed)
    low = ramp_floor(size)
    mean = OutlierMean("weighted", size, size, kappa, low, int(rng.integers(low + 1, size)), (1.0,), (1.0,))
    places = rng.choice([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0], 3)
    points = np.append(places, FAR)[rng.choice(4, (50, size), p=rng.dirichlet([8.0, 0.5, 0.3, 0.3]))]
    other = points.copy()
    points[:, 0], other[:, 0] = rng.choice([-2.0, -1.0, 0.0, 1.0, 2.0, FAR], (2, 50))
    assert ratios(points, other, mean).max(initial=0.0) <= 1


@given(size=st.one_of(st.integers(6, 100), st.integers(100, 2**19)), data=st.data())
@settings(derandomize=True, deadline=None, max_examples=60)
def test_both_routes_to_the_bounds_agree_and_they_fall_with_the_score(size, data):
    core = data.draw(st.integers(ramp_floor(size) + 2, size))
    mean = data.draw(st.sampled_from([weighted_mean(size, core, 1), weighted_mean(size, core, 2)]))
    if size <= 10_000:
        mean = data.draw(st.sampled_from([mean, random_inclusion(size, core)]))
    scores = np.unique(np.linspace(size * core, size**2 + 3 * size, 12).astype(np.int64))
    shifts, chances = mean.shifts_at(scores)
    second, others = certified_shifts(mean, scores)
    usual = (shifts * chances).sum(1)
    assert np.all(np.diff(usual) <= 1e-15)
    assert shifts.min() > mean.least_shift
    assert np.allclose(usual, (second * others).sum(1), rtol=3e-7, atol=0)
    assert np.all(shifts[:, 0] >= second[:, 0])
    assert np.all(others.sum(1) >= 1)
    assert np.all(chances.sum(1) >= 1)


def test_a_bound_where_the_theorem_has_none_is_refused():
    mean = weighted_mean(40, 30, 2)
    with pytest.raises(VerificationError, match="core of more than 29"):
        certified_shifts(mean, np.array([40 * 28]))
    with pytest.raises(VerificationError, match="positive total weight"):
        certified_shifts(weighted_mean(40, 30, 1), np.array([40 * 20]))


# Lotteries.


def exact(epsilon: float, p: float, mu: float) -> float:
    """H between releasing N(μ, 1) and N(0, 1) with the same chance."""
    return p * delta_for(mu, epsilon)


def outliers_in_both(plan: OneShot, most: int) -> list[tuple[float, float]]:
    """(chance, μ) of cohorts of which j users are far away in both worlds and one answers from opposite ends."""
    size = plan.mean.cohort_size
    return [(plan.lottery.chance((size - j) ** 2 + j), 2 / (size - j) / plan.noise_multiplier) for j in range(most + 1)]


def test_a_ladder_that_charges_every_rung_with_the_shift_of_the_top_is_caught():
    """The twin's noise is what full agreement needs; ten outliers in both cohorts then leak more than δ."""
    epsilon, delta, size, rungs = 8.0, 1e-6, 200, 40
    core = core_for(size, rungs)
    mean = weighted_mean(size, core, 1)
    noise = mean.shifts_at(np.array([size**2]))[0][0, 0] / mu_for(epsilon, 0.99 * delta)
    mus, chances = ladder_mus(mean, rungs, noise)
    table = ladder(epsilon, delta, delta, np.full_like(mus, mus[-1]), chances, 1.0)
    table = tuple(map(float, np.append(table, np.ones(rungs + 1 - len(table)))))
    twin = OneShot(mean, Lottery(size, core, table), noise)
    assert max(exact(epsilon, p, mu) for p, mu in outliers_in_both(twin, 20)) > 1.5 * delta
    with pytest.raises(VerificationError, match="certified delta"):
        verify_one_shot(twin, epsilon, delta)
    plan = calibrate(epsilon, delta, size)
    assert 0 < max(exact(epsilon, p, mu) for p, mu in outliers_in_both(plan, 20)) <= delta


def twin(plan: OneShot, epsilon: float, delta: float, shifts: np.ndarray, chances: np.ndarray) -> OneShot:
    """The least noise, and its ladder, were these the rows of the plan's."""
    size, low, high = plan.mean.cohort_size, plan.noise_multiplier / 8, 8 * plan.noise_multiplier

    def table(noise: float) -> np.ndarray:
        return np.asarray(ladder(epsilon, delta, delta, shifts / noise, chances, 0.999))

    for _ in range(40):
        noise = math.sqrt(low * high)
        low, high = (low, noise) if table(noise)[-1] >= 0.999 else (noise, high)
    return OneShot(plan.mean, Lottery(size, plan.mean.core, tuple(map(float, table(high)))), high)


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
        assert plan.lottery.at_concentration >= 0.999
