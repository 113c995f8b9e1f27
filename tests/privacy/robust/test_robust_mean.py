"""The mean of users who agree: what it promises, when it speaks, and what outliers can and cannot do to it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quoron_privacy.errors import ConfigError, Infeasible, VerificationError
from quoron_privacy.noise.sources import SeededNoise
from quoron_privacy.noise.streams import total_variation
from quoron_privacy.robust.robust_mean import RobustMean, calibrate, verify

N, D = 600, 3
DECLARED = {"users": N, "dimension": D, "bound": 10.0, "spread": 1.0, "outliers": 0.05, "epsilon": 2.0, "delta": 1e-6}
LOST = 30  # outliers that are tolerated
EVERYBODY = np.ones(N, np.bool_)


def made(**changes) -> RobustMean:
    return calibrate(**{**DECLARED, **changes})


def scene(outliers: int, at: float, seed: int = 0) -> np.ndarray:
    """The honest on the sphere of the declared spread around (3, 3, 3), as far from one another as declared."""
    rows = np.random.default_rng(seed).normal(size=(N, D))
    rows = 3.0 + rows / np.linalg.norm(rows, axis=1, keepdims=True)
    rows[:outliers] = at
    return rows


def chance(mean: RobustMean, rows: np.ndarray) -> float:
    """Of a release."""
    seen = mean.plan.mean.observe(rows, EVERYBODY, radius=mean.radius, reference=np.zeros(D))
    return mean.plan.test.chance(seen.score)


@settings(max_examples=15, deadline=None)
@given(
    users=st.integers(600, 3000),
    outliers=st.sampled_from([0.0, 0.01, 0.07, 0.1]),
    epsilon=st.floats(1.0, 8.0),
    spread=st.floats(1e-6, 1.0),
)
def test_what_is_calibrated_is_certified_within_delta_samplers_included(users, outliers, epsilon, spread):
    mean = made(users=users, outliers=outliers, epsilon=epsilon, spread=spread)
    assert verify(mean, epsilon, 1e-6, D) <= 1e-6


def test_less_noise_a_smaller_core_and_a_smaller_epsilon_are_refused():
    mean = made()
    for wrong, epsilon in (
        (replace(mean, noise=replace(mean.noise, scale=0.999 * mean.noise.scale)), 2.0),
        (replace(mean, radius=1.001 * mean.radius), 2.0),
        (replace(mean, plan=replace(mean.plan, noise_multiplier=0.99 * mean.plan.noise_multiplier)), 2.0),
        (mean, 1.9),
    ):
        with pytest.raises(VerificationError):
            verify(wrong, epsilon, 1e-6, D)


def test_the_samplers_are_paid_for():
    slack = (1 + np.exp(2.0)) * total_variation(gaussians=D, laplaces=1)
    with pytest.raises(Infeasible, match="resolution"):
        made(delta=0.5 * slack)


@pytest.mark.parametrize("outliers", [0, 1, LOST])
@pytest.mark.parametrize("at", [-5.0, 1e6, np.nan, np.inf, 1e300])
def test_with_no_more_outliers_than_declared_a_release_is_nearly_certain_and_near_the_honest_mean(outliers, at):
    mean, rows = made(), scene(outliers, at)
    assert chance(mean, rows) >= 0.999
    value = mean.release(rows, EVERYBODY, SeededNoise(3))
    honest = rows[outliers:].mean(axis=0)
    # Honest users may differ in weight, by little; noise beyond seven standard deviations has probability below 1e-10.
    assert np.abs(value - honest).max() < 7 * mean.noise.scale + 0.02


@pytest.mark.parametrize("rows", [100 * scene(0, 0.0), scene(N // 2, -5.0), np.full((N, D), np.nan)])
def test_where_too_few_agree_nothing_is_released(rows):
    mean = made()
    assert chance(mean, rows) == 0
    assert mean.release(rows, EVERYBODY, SeededNoise(3)) is None


def test_what_no_number_of_users_allows_and_what_is_no_share_are_refused():
    with pytest.raises(Infeasible, match="smaller share"):
        made(outliers=0.4)
    with pytest.raises(Infeasible, match="too many"):
        made(users=10**6)
    for share in (-0.1, 0.5, np.nan):
        with pytest.raises(ConfigError, match="outliers in"):
            made(outliers=share)
