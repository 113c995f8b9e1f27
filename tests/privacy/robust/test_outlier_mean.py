import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cover import by_default
from quoron_privacy.robust.outlier_mean import (
    OutlierMean,
    random_inclusion,
    score_step,
    weighted_mean,
)

MEANS = [weighted_mean(5, 5), weighted_mean(6, 5), weighted_mean(7, 6), weighted_mean(8, 7)]
MEANS += [weighted_mean(12, 10), weighted_mean(20, 18)]


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


@pytest.mark.parametrize("mean", by_default(MEANS, MEANS[::3]), ids=lambda m: f"C{m.cohort_size}k{m.core}")
def test_replacing_one_user_moves_the_weighted_mean_by_no_more_than_the_sensitivity(mean):
    rng = np.random.default_rng(3)
    worst, met = 0.0, 0
    for trial in range(2000):
        first, second = neighbours(rng, mean.cohort_size, 1 + trial % 2)
        if min(score_of(first), score_of(second)) < mean.cohort_size * mean.core:
            continue
        met += 1
        one, two = weights_of(first, mean), weights_of(second, mean)
        worst = max(worst, float(np.linalg.norm(one @ first / one.sum() - two @ second / two.sum())))
    assert met > 100
    assert worst <= mean.sensitivity
    assert worst > 0.1 * mean.sensitivity  # the search does come near


@given(size=st.integers(2, 40), seed=st.integers(0, 2**32 - 1))
@settings(derandomize=True, deadline=None, max_examples=60)
def test_replacing_one_user_moves_the_score_by_at_most_one_level(size, seed):
    first, second = neighbours(np.random.default_rng(seed), size, 2)
    assert abs(score_of(first) - score_of(second)) <= score_step(size)


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
