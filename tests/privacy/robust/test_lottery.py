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
    estimate,
    pair_divergence,
    smallest_cohort,
    verify_one_shot,
)
from quoron_privacy.robust.outlier_mean import score_step

DELTA = 1e-6
SIZES = (100, 200, 300, 500, 1000, 3000, 10_000)
# ε: C_min of an independent implementation, whose search was coarser at the edge, and σ/τ at SIZES of docs/privacy
TABLE = {
    0.5: (160, (None, 0.886, 0.278, 0.102, 0.0336, 0.00744, 0.00181)),
    1.0: (84, (1.03, 0.168, 0.0812, 0.036, 0.0134, 0.00341, 0.000901)),
    2.0: (48, (0.186, 0.0551, 0.0296, 0.0144, 0.00587, 0.00166, 0.000462)),
    4.0: (24, (0.0582, 0.021, 0.0121, 0.00636, 0.00281, 0.000846, 0.000243)),
    8.0: (12, (0.0211, 0.00878, 0.00542, 0.00303, 0.00142, 0.000449, 0.000132)),
}


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


@given(size=st.integers(60, 3000), epsilon=st.floats(0.5, 8.0), share=st.floats(0, 0.2), kappa=st.sampled_from([1, 2]))
@settings(derandomize=True, deadline=None, max_examples=20)
def test_a_lottery_that_forgives_passes_as_often_at_the_lower_score(size, epsilon, share, kappa):
    forgiven = round(share * size)
    try:
        plan = calibrate(epsilon, DELTA, size, kappa=kappa, forgiven=forgiven)
    except Infeasible:
        assert estimate(epsilon, DELTA, size, kappa=kappa, forgiven=forgiven) == math.inf
    else:
        assert plan.lottery.chance(size**2 - size * forgiven) >= 0.999
        assert plan.noise_multiplier >= 0.999 * calibrate(epsilon, DELTA, size, kappa=kappa).noise_multiplier
        assert verify_one_shot(plan, epsilon, DELTA) <= DELTA


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


def test_real_cohorts_at_critical_distances_stay_below_delta_and_sixteenth_noise_does_not():
    """Both orders, exact divergences: one dimension, so the shift of the aggregate is all that matters."""
    epsilon, delta = 2.0, 1e-3
    plan = calibrate(epsilon, delta, 60)
    mean = plan.mean
    rng = np.random.default_rng(1)

    def law(points: np.ndarray) -> tuple[float, float]:
        gaps = np.abs(points[:, None] - points)
        heights = (gaps <= mean.removal_radius).sum(1)
        weights = np.clip((heights - mean.ramp_low) / (mean.ramp_high - mean.ramp_low), 0, 1)
        centre = float(weights @ points / weights.sum()) if weights.sum() > 0 else 0.0
        return plan.lottery.chance(int((gaps <= 1).sum())), centre

    worst, broken = 0.0, 0.0
    for trial in range(1500):
        common = rng.choice([0.0, 1.0, 2.0], size=59, p=rng.dirichlet([6, 1, 0.5]))
        if trial % 3 == 0:
            common[:] = 0.0
        ends = rng.choice([-2.0, -1.0, 0.0, 1.0, 2.0, 9.0], size=2, replace=False)
        (p, x), (q, y) = (law(np.append(common, end)) for end in ends)
        if p == q == 0:
            continue
        for one, two in ((p, q), (q, p)):
            worst = max(worst, exact(epsilon, one, two, max(abs(x - y), 1e-9) / plan.noise_multiplier))
            broken = max(broken, exact(epsilon, one, two, max(abs(x - y), 1e-9) / plan.noise_multiplier * 16))
    assert 0 < worst <= delta
    assert broken > 10 * delta


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
