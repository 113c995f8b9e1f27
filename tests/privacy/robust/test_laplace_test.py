import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quoron_privacy.accounts.gdp import delta_for
from quoron_privacy.errors import VerificationError
from quoron_privacy.robust import lottery
from quoron_privacy.robust.laplace_test import (
    LaplaceTest,
    calibrate,
    certified_epsilon,
    smallest_cohort,
    verify_laplace_test,
)
from quoron_privacy.robust.outlier_mean import score_step

DELTA = 1e-6


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_the_lottery_needs_less_noise(epsilon):
    plan = calibrate(epsilon, DELTA, 500)
    assert 0.99 * DELTA <= verify_laplace_test(plan, epsilon, DELTA) <= DELTA
    assert plan.test.at_concentration >= 0.999 - 1e-9
    assert lottery.calibrate(epsilon, DELTA, 500).noise_multiplier < 0.8 * plan.noise_multiplier


@given(size=st.integers(40, 200), epsilon=st.floats(1.0, 6.0), seed=st.integers(0, 2**32 - 1))
@settings(derandomize=True, deadline=None, max_examples=20)
def test_no_pair_of_neighbouring_scores_exceeds_delta(size, epsilon, seed):
    if size < smallest_cohort(epsilon, 1e-3) + 4:
        return
    plan, rng = calibrate(epsilon, 1e-3, size), np.random.default_rng(seed)
    mu, test = plan.mean.sensitivity / plan.noise_multiplier, plan.test
    for score in rng.integers(size, size**2 + 1, 60):
        other = int(np.clip(score + rng.integers(-score_step(size), score_step(size) + 1), size, size**2))
        p, q = test.chance(int(score)), test.chance(other)
        shift = mu if min(score, other) >= size * test.core else 300.0
        silent = max((1 - p) - math.exp(epsilon) * (1 - q), 0.0)
        assert silent + p * delta_for(shift, epsilon - math.log(p / q)) <= 1e-3


@pytest.mark.parametrize("kind", ["weighted", "random"])
@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
def test_the_epsilon_of_a_plan_is_the_least_that_is_certified(epsilon, kind):
    plan = calibrate(epsilon, DELTA, 500, kind=kind)
    found = certified_epsilon(plan, DELTA, 0.0)
    assert 0.995 * epsilon < found <= epsilon * (1 + 1e-6)
    verify_laplace_test(plan, found, DELTA)
    with pytest.raises(VerificationError):
        verify_laplace_test(plan, 0.99 * found, DELTA)
    assert certified_epsilon(replace(plan, noise_multiplier=plan.noise_multiplier / 2), DELTA, 0.0) > found
    assert certified_epsilon(plan, DELTA, DELTA / 10) > found  # of δ that samplers take


def test_a_threshold_that_lets_the_core_through_has_no_epsilon():
    plan = calibrate(1.0, DELTA, 500)
    low = replace(plan, test=replace(plan.test, threshold=plan.test.core + 3.0))
    assert certified_epsilon(low, DELTA, 0.0) == math.inf
    assert certified_epsilon(plan, DELTA, DELTA) == math.inf


def test_broken_plans_do_not_verify():
    plan = calibrate(1.0, DELTA, 500)
    for broken in (
        replace(plan, noise_multiplier=plan.noise_multiplier / 16),
        replace(plan, noise_multiplier=plan.noise_multiplier * 0.99),
        replace(plan, test=replace(plan.test, threshold=plan.test.threshold - 1.0)),
        replace(plan, test=replace(plan.test, scale=plan.test.scale * 0.9)),
    ):
        with pytest.raises(VerificationError, match="certified delta"):
            verify_laplace_test(broken, 1.0, DELTA)
    for test in (
        LaplaceTest(500, plan.test.core, 1.0, plan.test.threshold),
        LaplaceTest(500, plan.test.core - 1, plan.test.scale, plan.test.threshold),
    ):
        with pytest.raises(VerificationError, match="scale >= "):
            verify_laplace_test(replace(plan, test=test), 1.0, DELTA)
    with pytest.raises(VerificationError, match="threshold >= core"):
        verify_laplace_test(replace(plan, test=replace(plan.test, threshold=plan.test.core)), 1.0, DELTA)
