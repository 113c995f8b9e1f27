import math
from dataclasses import replace
from fractions import Fraction
from math import exp

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from privacy.references import OneNoise, laplace_tail
from quoron_privacy.accounts.gdp import delta_for
from quoron_privacy.errors import VerificationError
from quoron_privacy.noise.streams import RandomStream, SeededNoise
from quoron_privacy.robust import smooth_test
from quoron_privacy.robust.filter.thresholds import LaplaceThreshold
from quoron_privacy.robust.laplace_gate import (
    LaplaceGate,
    LaplaceOneShot,
    certified_epsilon,
    enough,
    verify_laplace_gate,
)
from quoron_privacy.robust.outlier_mean import fitting, in_score_units, score_scale, score_step, weighted_mean

DELTA = 1e-6


class TestLaplaceTest:
    def test_one_user_changes_the_chance_of_either_answer_by_the_claimed_factor(self):
        test = LaplaceGate(cohort_size=20, core=14, threshold=15.0, scale=3.0)
        assert dict(test.entry().parameters) == {"cohort_size": 20, "threshold": 15.0, "scale": 3.0}
        claimed = exp(2 * 19 / 20 / 3.0) * (1 + 1e-12)
        limit, scale = in_score_units(15.0, 20), score_scale(3.0, 20)
        for score in range(20, 401):
            for other in range(max(20, score - 38), min(400, score + 38) + 1):
                p, q = laplace_tail(limit - score, scale), laplace_tail(limit - other, scale)
                assert p <= claimed * q
                assert 1 - p <= claimed * (1 - q)
        assert test.decide(400, OneNoise(-100))
        assert not test.decide(400, OneNoise(-101))

    def test_threshold_and_scale_are_rounded_up(self):
        for average, size in ((0.1, 10), (1 / 3, 3), (700.0, 1000), (5.1, 7)):
            exact = Fraction(average) * size
            assert exact <= in_score_units(average, size) < exact + 1
            assert Fraction(score_scale(average, size)) > exact


def of_test(epsilon: float, delta: float, size: int) -> LaplaceOneShot | None:
    """The least noise behind a Laplace test that costs 0.35 ε and nearly always passes at full concentration."""
    step, delta = score_step(size) / size, delta * (1 - 1e-4)
    passing = math.log(1 / (2 * delta)) + math.log(500)
    core = math.floor(size - step - step / (0.35 * epsilon) * passing)
    if not fitting(size, core):
        return None
    mean = weighted_mean(size, core)
    scale = (size - step - core) / passing * (1 - 1e-12)
    test = LaplaceGate(size, core, scale, (core + step + scale * math.log(1 / (2 * delta))) * (1 + 1e-13))
    low, high = 0.1 / size, 1e3
    while high > low * (1 + 1e-5):
        middle = math.sqrt(low * high)
        good = enough(LaplaceOneShot(mean, test, middle), epsilon, delta)
        low, high = (low, middle) if good else (middle, high)
    return LaplaceOneShot(mean, test, high)


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_the_smooth_test_needs_less_noise(epsilon):
    plan = of_test(epsilon, DELTA, 500)
    assert 0.99 * DELTA <= verify_laplace_gate(plan, epsilon, DELTA) <= DELTA
    assert plan.test.chance(plan.test.cohort_size**2) >= 0.999 - 1e-9
    assert smooth_test.calibrate(epsilon, DELTA, 500).noise_multiplier < 0.8 * plan.noise_multiplier


@given(size=st.integers(40, 200), epsilon=st.floats(1.0, 6.0), seed=st.integers(0, 2**32 - 1))
@settings(derandomize=True, deadline=None, max_examples=20)
def test_no_pair_of_neighbouring_scores_exceeds_delta(size, epsilon, seed):
    plan, rng = of_test(epsilon, 1e-3, size), np.random.default_rng(seed)
    if plan is None:
        return
    mu, test = plan.mean.sensitivity / plan.noise_multiplier, plan.test
    for score in rng.integers(size, size**2 + 1, 60):
        other = int(np.clip(score + rng.integers(-score_step(size), score_step(size) + 1), size, size**2))
        p, q = test.chance(int(score)), test.chance(other)
        shift = mu if min(score, other) >= size * test.core else 300.0
        silent = max((1 - p) - math.exp(epsilon) * (1 - q), 0.0)
        assert silent + p * delta_for(shift, epsilon - math.log(p / q)) <= 1e-3


def test_a_threshold_that_lets_the_core_through_has_no_epsilon():
    plan = of_test(1.0, DELTA, 500)
    low = replace(plan, test=replace(plan.test, threshold=plan.test.core + 3.0))
    assert certified_epsilon(low, DELTA, 0.0) == math.inf
    assert certified_epsilon(plan, DELTA, DELTA) == math.inf


def test_broken_plans_of_one_test_do_not_verify():
    plan = of_test(1.0, DELTA, 500)
    for broken in (
        replace(plan, noise_multiplier=plan.noise_multiplier / 16),
        replace(plan, noise_multiplier=plan.noise_multiplier * 0.99),
        replace(plan, test=replace(plan.test, threshold=plan.test.threshold - 1.0)),
        replace(plan, test=replace(plan.test, scale=plan.test.scale * 0.9)),
    ):
        with pytest.raises(VerificationError, match="certified delta"):
            verify_laplace_gate(broken, 1.0, DELTA)
    for test in (
        LaplaceGate(500, plan.test.core, 1.0, plan.test.threshold),
        LaplaceGate(500, plan.test.core - 1, plan.test.scale, plan.test.threshold),
    ):
        with pytest.raises(VerificationError, match="scale >= "):
            verify_laplace_gate(replace(plan, test=test), 1.0, DELTA)
    with pytest.raises(VerificationError, match="threshold >= core"):
        verify_laplace_gate(replace(plan, test=replace(plan.test, threshold=plan.test.core)), 1.0, DELTA)


SOURCE = SeededNoise(4)
fast = settings(derandomize=True, deadline=None, max_examples=60)


@given(scale=st.floats(1e-3, 1e6), threshold=st.floats(-1e6, 1e6), moved=st.floats(0, 3), score=st.floats(-10, 10))
@fast
def test_moving_a_score_changes_either_probability_by_no_more_than_epsilon(scale, threshold, moved, score):
    test = LaplaceThreshold(scale, threshold * scale / 1e6)
    # the decision is that of an exact Laplace variable at whole steps: read both grid points off noise-free decisions
    a, b = (score * scale, (score + moved) * scale)
    steps = [np.rint(x / test.grid) * test.grid for x in (a, b)]
    epsilon = test.epsilon(moved * scale)
    for law in (stats.laplace.logsf, stats.laplace.logcdf):
        logs = [law((np.ceil(test.threshold / test.grid) * test.grid - step) / test.scale) for step in steps]
        assert abs(logs[0] - logs[1]) <= epsilon * (1 + 1e-9)


def test_a_decision_is_strict_on_the_grid():
    # words for noise of exactly zero steps (u = 1, sign clear): score = threshold is no hit, one step above is
    test = LaplaceThreshold(scale=2.0**20, threshold=7.0)
    zero = RandomStream(lambda size: np.full(size, 2**64 - 2, np.uint64))
    assert test.decide(np.array([6.0, 7.0, 8.0]), zero).tolist() == [False, False, True]


def test_every_score_has_a_decision():
    test = LaplaceThreshold(scale=2.0, threshold=1.0)
    scores = np.array([np.nan, -np.inf, -1e300, np.inf, 1e300])
    assert test.decide(scores, SOURCE.stream("hostile")).tolist() == [False, False, False, True, True]
    assert test.decide(np.zeros((0,)), SOURCE.stream()).shape == (0,)


def test_the_noise_of_one_score_does_not_depend_on_the_other_scores():
    test = LaplaceThreshold(scale=2.0, threshold=1.0)
    scores = np.linspace(-3, 3, 200)
    other = np.where(np.arange(200) == 7, np.nan, scores)
    one, two = (test.decide(x, SOURCE.stream("rows")) for x in (scores, other))
    assert np.array_equal(np.delete(one, 7), np.delete(two, 7))
