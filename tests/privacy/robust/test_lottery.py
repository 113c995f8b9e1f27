import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quoron_privacy.accounts.gdp import delta_for
from quoron_privacy.errors import ConfigError, Infeasible, VerificationError
from quoron_privacy.robust.lottery import (
    Lottery,
    OneShot,
    calibrate,
    pair_divergence,
    smallest_cohort,
    verify_one_shot,
)
from quoron_privacy.robust.outlier_mean import score_step

DELTA = 1e-6


@pytest.mark.parametrize("epsilon", [1.0, 8.0])
def test_the_smallest_cohort_is_feasible_and_no_smaller_one_is(epsilon):
    edge = smallest_cohort(epsilon, DELTA)
    assert verify_one_shot(calibrate(epsilon, DELTA, edge), epsilon, DELTA) <= DELTA
    with pytest.raises(Infeasible, match=f"cohort_size >= {edge}"):
        calibrate(epsilon, DELTA, edge - 2)


def exact(epsilon: float, p: float, q: float, mu: float) -> float:
    """H between (silent w.p. 1 − p, N(μ, 1) w.p. p) and (…, q, N(0, 1)), from outlier-mean#o3's own formula."""
    if p == 0:
        return max(1 - math.exp(epsilon) * (1 - q), 0.0)
    silent = max((1 - p) - math.exp(epsilon) * (1 - q), 0.0)
    return silent + (p if q == 0 else p * delta_for(mu, epsilon + math.log(q / p)))


@given(p=st.floats(1e-9, 1.0), q=st.floats(1e-9, 1.0), mu=st.floats(0.01, 8), epsilon=st.floats(0.05, 6))
@settings(derandomize=True, deadline=None, max_examples=200)
def test_pair_divergence_is_the_theorems_formula(p, q, mu, epsilon):
    found = float(pair_divergence(epsilon, np.array([p]), np.array([q]), np.array([mu]), np.ones(1))[0])
    assert found == pytest.approx(exact(epsilon, p, q, mu), rel=1e-8, abs=3e-15)


@given(size=st.integers(12, 60), epsilon=st.floats(1.0, 8.0), seed=st.integers(0, 2**32 - 1))
@settings(derandomize=True, deadline=None, max_examples=60)
def test_no_pair_of_neighbouring_scores_exceeds_delta(size, epsilon, seed):
    rng = np.random.default_rng(seed)
    if size < smallest_cohort(epsilon, 1e-3):
        return
    plan = calibrate(epsilon, 1e-3, size)
    score = int(rng.integers(size, size**2 + 1))
    other = int(np.clip(score + rng.integers(-score_step(size), score_step(size) + 1), size, size**2))
    p, q = plan.lottery.chance(score), plan.lottery.chance(other)
    larger = max(score, other)
    sure = larger >= size * plan.lottery.core + score_step(size)  # on rung 1: the smaller one is not below rung 0
    mu = plan.mean.shifts_at(np.array([larger]))[0][0, 0] / plan.noise_multiplier if sure else 1e9
    assert (0.0 if p == q == 0 else exact(epsilon, p, q, mu)) <= 1e-3


def test_broken_plans_do_not_verify():
    plan = calibrate(1.0, DELTA, 300)
    with pytest.raises(VerificationError, match="certified delta"):
        verify_one_shot(replace(plan, noise_multiplier=plan.noise_multiplier / 16), 1.0, DELTA)
    with pytest.raises(VerificationError, match="certified delta"):
        verify_one_shot(replace(plan, noise_multiplier=plan.noise_multiplier * 0.999), 1.0, DELTA)
    always = Lottery(300, plan.mean.core, (1.0,))
    with pytest.raises(VerificationError, match="certified delta"):
        verify_one_shot(OneShot(plan.mean, always, plan.noise_multiplier), 1.0, DELTA)
    skipping = Lottery(300, plan.mean.core, plan.lottery.table[::2])
    with pytest.raises(VerificationError, match="certified delta"):
        verify_one_shot(OneShot(plan.mean, skipping, plan.noise_multiplier), 1.0, DELTA)
    falling = Lottery(300, plan.mean.core, plan.lottery.table[::-1])
    with pytest.raises(VerificationError, match="climbing ladder"):
        verify_one_shot(OneShot(plan.mean, falling, plan.noise_multiplier), 1.0, DELTA)
    elsewhere = replace(plan.lottery, core=plan.lottery.core - 1)
    with pytest.raises(VerificationError, match="own cohort and core"):
        verify_one_shot(OneShot(plan.mean, elsewhere, plan.noise_multiplier), 1.0, DELTA)


def test_rungs_are_decided_in_integers():
    lottery = Lottery(10, 8, (0.25, 0.5, 1.0))
    assert [lottery.chance(score) for score in (79, 80, 97, 98, 100)] == [0.0, 0.25, 0.25, 0.5, 0.5]
    assert lottery.at_concentration == 0.5


def test_requests_without_a_theorem_are_refused():
    with pytest.raises(ConfigError, match="kappa=2 with random inclusion"):
        calibrate(1.0, DELTA, 300, kappa=1, kind="random")
    with pytest.raises(ConfigError, match="delta"):
        calibrate(1.0, 0.0, 300)
    with pytest.raises(ConfigError, match="cohort_size"):
        calibrate(1.0, DELTA, 0)
    with pytest.raises(ConfigError, match="forgiven >= 0"):
        calibrate(1.0, DELTA, 300, forgiven=-1)
