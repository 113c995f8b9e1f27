import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from quoron_privacy.accounts.gdp import delta_for
from quoron_privacy.errors import ConfigError, Infeasible, VerificationError
from quoron_privacy.robust.outlier_mean import (
    OutlierMean,
    aggregate,
    best_mean,
    ramp_floor,
    random_inclusion,
    verify_outlier_mean,
    weighted_mean,
    weighted_shifts,
)
from quoron_privacy.robust.outlier_mean_loops import largest_ratios

MEANS = [weighted_mean(5, 5, 1), weighted_mean(6, 5, 1), weighted_mean(7, 6, 1), weighted_mean(8, 7, 1)]
MEANS += [weighted_mean(6, 5, 2), weighted_mean(7, 7, 2), weighted_mean(8, 7, 2), weighted_mean(12, 10, 2)]
MEANS += [weighted_mean(12, 10, 1), weighted_mean(20, 18, 1), weighted_mean(20, 17, 2)]


def counts(points: np.ndarray, radius: float) -> np.ndarray:
    """h_j, self included; points (C, d), τ = 1."""
    return (np.linalg.norm(points[:, None] - points[None], axis=2) <= radius).sum(1)


def weights_of(points: np.ndarray, mean: OutlierMean) -> np.ndarray:
    heights = counts(points, mean.removal_radius)
    return np.clip((heights - mean.ramp_low) / (mean.ramp_high - mean.ramp_low), 0, 1)


def score_of(points: np.ndarray) -> int:
    return int(counts(points, 1.0).sum())


def neighbours(rng: np.random.Generator, size: int, dimension: int) -> tuple[np.ndarray, np.ndarray]:
    """Cohorts that tend to sit at the theorem's edges: clusters at critical distances, one point replaced."""
    centres = rng.choice([0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0], size=(3, 1)) * rng.choice([-1, 1], size=(3, 1))
    centres = centres * np.eye(1, dimension)
    if dimension > 1 and rng.random() < 0.5:
        centres = centres + rng.normal(0, 0.5, (3, dimension))
    share = rng.dirichlet([6.0, 0.4, 0.3])
    points = centres[rng.choice(3, size, p=share)] * 0.999
    other = points.copy()
    points[0] = rng.choice([-2.0, -1.0, 0.0, 1.0, 2.0, 40.0]) * np.eye(1, dimension)[0] * 0.999
    other[0] = rng.choice([-2.0, -1.0, 0.0, 1.0, 2.0, -40.0]) * np.eye(1, dimension)[0] * 0.999
    return points, other


@pytest.mark.parametrize(("size", "core"), [(1000, 950), (1000, 600), (301, 280), (84, 60), (10, 8)])
@pytest.mark.parametrize("kappa", [1, 2])
def test_every_shift_passes_the_exact_verification_and_a_smaller_one_does_not(size, core, kappa):
    mean = weighted_mean(size, core, kappa)
    verify_outlier_mean(mean)
    smaller = OutlierMean(
        mean.kind, size, core, kappa, mean.ramp_low, mean.ramp_high, (mean.shifts[0] * (1 - 2e-7),), (1.0,)
    )
    with pytest.raises(VerificationError, match="shift of at least"):
        verify_outlier_mean(smaller)


def largest_ratio(mean: OutlierMean) -> Fraction:
    """Of all heights, as the second route has it, rounded up."""
    lost = np.array([mean.cohort_size * (mean.cohort_size - mean.core)])
    return Fraction(float(largest_ratios(mean.cohort_size, mean.ramp_low, mean.ramp_high, lost)[0]) * (1 + 1e-15))


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
    """(C, k, A, B) with C/2 <= A < B < C, at every size that a lottery may have and some beyond; short where large."""
    size = draw(st.one_of(st.integers(4, 400), st.integers(400, 2**19), st.integers(2**20 - 50, 2**20)))
    low = draw(st.integers((size + 1) // 2, size - 2))
    high = draw(st.integers(low + 1, min(size - 1, low + 300)))
    return size, draw(st.integers(size // 2, size)), low, high


@given(ramp=ramps())
@settings(derandomize=True, deadline=None, max_examples=150)
def test_the_largest_ratio_over_all_heights_is_that_of_rational_arithmetic_rounded_up(ramp):
    exact = largest_ratio_by_fractions(*ramp)
    mean = OutlierMean("weighted", ramp[0], ramp[1], 1, ramp[2], ramp[3], (1.0,), (1.0,))
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
    mean = OutlierMean("weighted", size, core, 1, low, high, (1.0,), (1.0,))
    assert max(ends) <= largest_ratio(mean) <= max(ends) * (1 + Fraction(2, 10**15))


@given(size=st.integers(2, 60), kappa=st.sampled_from([1, 2, None]))
@settings(derandomize=True, deadline=None, max_examples=60)
def test_shifts_of_many_cores_are_those_of_each_aggregate(size, kappa):
    cores = np.arange(-2, size + 3)
    means = [best_mean(size, int(core), kappa, "weighted") for core in cores]
    expected = [math.inf if mean is None else mean.sensitivity for mean in means]
    assert weighted_shifts(np.full_like(cores, size), cores, kappa).tolist() == expected


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
    halved = OutlierMean("random", size, core, 2, mean.ramp_low, mean.ramp_high, mean.shifts, tuple(np.array(mean.chances) / 2))  # fmt: skip  # noqa: E501
    with pytest.raises(VerificationError, match=r"dominate|add up"):
        verify_outlier_mean(halved)


def mixture(points: np.ndarray, mean: OutlierMean) -> tuple[np.ndarray, np.ndarray]:
    """(chance, aggregate) of every outcome of the coins, one dimension."""
    weights = weights_of(points, mean)
    sure, unsure = np.flatnonzero(weights == 1), np.flatnonzero((weights > 0) & (weights < 1))
    chances, means = [], []
    for pattern in range(1 << len(unsure)):
        coins = np.array([pattern >> i & 1 for i in range(len(unsure))], bool)
        chosen = np.concatenate([sure, unsure[coins]]).astype(int)
        chances.append(float(np.prod(np.where(coins, weights[unsure], 1 - weights[unsure]))))
        means.append(float(points[chosen, 0].mean()))
    return np.array(chances), np.array(means)


@pytest.mark.parametrize("ramp_high", [None, 8])  # 8 of 12 is the printed 2C/3
def test_random_inclusion_with_noise_stays_below_its_profile(ramp_high):
    rng, mean, sigma = np.random.default_rng(5), random_inclusion(12, 10, ramp_high), 0.4
    met, worst = 0, 0.0
    for _ in range(600):
        first, second = neighbours(rng, 12, 1)
        if min(score_of(first), score_of(second)) < 120:
            continue
        met += 1
        laws = [mixture(points, mean) for points in (first, second)]
        x = np.linspace(-6, 6, 1201)
        p, q = (
            (np.exp(-0.5 * ((x[:, None] - m) / sigma) ** 2) / sigma / math.sqrt(2 * math.pi) * 0.01) @ c
            for c, m in laws
        )
        for epsilon in (0.0, 1.0):
            bound = float(mean.profile(sigma, epsilon))
            for one, two in ((p, q), (q, p)):
                worst = max(worst, float(np.maximum(one - math.exp(epsilon) * two, 0).sum()) / bound)
    assert met > 50
    assert 0.1 < worst <= 1 + 1e-6  # quadrature


def test_cores_and_kinds_without_a_bound_are_refused_by_name():
    with pytest.raises(Infeasible, match="core=50"):
        weighted_mean(100, 50, 1)
    with pytest.raises(Infeasible, match="core >= 52"):
        weighted_mean(100, 51, 2)
    with pytest.raises(Infeasible, match="core >= 68"):
        random_inclusion(100, 67, 67)
    with pytest.raises(VerificationError, match="B <= k - 1"):
        verify_outlier_mean(replace(random_inclusion(100, 68, 67), core=67))
    coins = random_inclusion(200, 160)
    for wrong in ({"kappa": 1}, {"kappa": 1, "ramp_high": 170}, {"kind": "other"}):
        with pytest.raises(VerificationError, match="coins with kappa=2"):
            verify_outlier_mean(replace(coins, **wrong))
    with pytest.raises(ConfigError, match="kappa=2 with random inclusion"):
        aggregate(100, 90, 1, "random")
    with pytest.raises(ConfigError, match="core <= cohort_size=10"):
        weighted_mean(10, 11, 1)


@pytest.mark.parametrize("kind", ["weighted", "random"])
@pytest.mark.parametrize(("size", "core"), [(9, 8), (20, 16), (200, 151), (1001, 900)])
def test_a_ramp_that_ends_lower_needs_the_larger_shifts_of_its_own(size, core, kind):
    """Fewer steps of the ramp: weights move by more, and coins differ more often."""
    mean = aggregate(size, core, 2, kind)
    verify_outlier_mean(mean)
    for lower in {mean.ramp_low + 1, mean.ramp_high - 1}:
        with pytest.raises(VerificationError):
            verify_outlier_mean(replace(mean, ramp_high=lower))
