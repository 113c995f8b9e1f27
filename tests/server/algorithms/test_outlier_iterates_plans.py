"""What the planner chooses and refuses, and whether what it predicts is what chains do."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from contracts.scenes import PROBLEM
from problems import changed
from quoron_privacy.errors import Infeasible
from quoron_privacy.robust import smooth_test
from quoron_privacy.robust.smooth_test import estimate, verify_one_shot
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.outlier_iterates import (
    Stage,
    apart,
    count_slack,
    distance,
    relaxation,
    usual_factor,
)
from quoron_server.plan import Privacy

INFO = ALGORITHMS["outlier-iterates"]
ISSUE = changed(PROBLEM, users=100_000, items_per_user=200, gradient_deviation=0.4)
ONE = Privacy(1.0, 1e-6)


def plan_of(problem=ISSUE, privacy=ONE, **options):
    plan = INFO.plan(problem, privacy, INFO.options(**options), "calibrated", 3)
    INFO.verify(plan)
    return plan


@given(chains=st.integers(200, 20_000), lost=st.sampled_from([0.0, 0.01, 0.05]))
@settings(derandomize=True, deadline=None, max_examples=25)
def test_a_release_passes_at_the_score_it_is_meant_for_and_is_certified(chains, lost):
    asked = {"forgiven": count_slack(chains, lost)}
    made = smooth_test.release(4.0, 1e-6, chains, **asked)
    assert verify_one_shot(made, 4.0, 1e-6) <= 1e-6
    assert made.test.chance(chains * (chains - asked["forgiven"])) >= 0.999 * (1 - 1e-9)
    assert made.noise_multiplier == pytest.approx(estimate(4.0, 1e-6, chains, **asked), rel=1e-4)


def test_the_smallest_number_of_chains_is_feasible_and_one_less_is_not():
    least = smooth_test.smallest(lambda chains: estimate(4.0, 1e-6, chains, forgiven=count_slack(chains, 0.02)))
    assert least is not None
    smooth_test.release(4.0, 1e-6, least, forgiven=count_slack(least, 0.02))
    with pytest.raises(Infeasible):
        smooth_test.release(4.0, 1e-6, least - 1, forgiven=count_slack(least - 1, 0.02))


def test_too_few_users_are_told_the_least_number_of_chains_and_how_many_users_would_do():
    with pytest.raises(Infeasible, match=r"the test needs (\d+) \(C_min\)") as refused:
        plan_of(replace(ISSUE, users=50))
    assert "the test needs 82 (C_min)" in str(refused.value)
    assert plan_of(replace(ISSUE, users=refused.value.users)).problem.users < 100
    with pytest.raises(Infeasible, match=r"n >= [\d,]+, or fewer rounds") as refused:
        plan_of(replace(ISSUE, users=4_000), rounds=100)
    assert plan_of(replace(ISSUE, users=refused.value.users), rounds=100).problem.users >= 8_200
    with pytest.raises(Infeasible, match=r"cohort_size >= 82 \(C_min"):
        plan_of(cohort_size=80)


@given(steps=st.integers(1, 300), share=st.floats(0.0, 1.0))
@settings(derandomize=True, deadline=None, max_examples=50)
def test_chains_distance_is_the_average_of_square_roots_of_theorem_7(steps, share):
    suffix = max(1, round(share * steps))
    exact = np.sqrt(2 * np.arange(steps - suffix + 1, steps + 1)).mean()
    assert exact <= apart(steps, suffix) <= exact * (1 + 1 / steps) ** 1.5


def chains_of_sgd(dimension, users, averaged, seed, *, chains=600, items=20, rate=0.3):
    """Averages of chains of SGD on (h/2)‖x‖² with Gaussian gradient noise of total variance V² = 1; h = rate / T."""
    rng, steps = np.random.default_rng(seed), users * items
    curvature, step = rate / steps, 1.0
    x, total = np.zeros((chains, dimension)), np.zeros((chains, dimension))
    for t in range(steps):
        x = (1 - step * curvature) * x + step * rng.normal(size=x.shape) / np.sqrt(dimension)
        total += x * (t >= (users - averaged) * items)
    problem = changed(
        PROBLEM,
        dimension=dimension,
        items_per_user=items,
        gradient_deviation=1.0,
        typical_curvature=curvature,
        least_curvature=curvature,
    )
    return total / (averaged * items), problem, Stage(users, averaged, step, 0.0, float(chains))


@pytest.mark.parametrize("dimension", [1, 10, 100])
@pytest.mark.parametrize(("users", "averaged"), [(1, 1), (8, 2)])
def test_the_usual_radius_covers_honest_chains(dimension, users, averaged):
    """Disjoint pairs are independent: 300 of them, and P(Bin(300, 0.02) > 20) < 2e-6 per case, six cases; with the
    radius's own slack (OUTLIER_FRACTION = 0.01) P(Bin(300, 0.01) > 20) < 1e-10, the stated false alarm."""
    averages, problem, stage = chains_of_sgd(dimension, users, averaged, seed=dimension)
    radius = usual_factor(dimension) * distance(problem, stage, 1.0, relaxation(problem, stage)[1])
    pairs = np.linalg.norm(averages[::2] - averages[1::2], axis=1)
    assert np.sum(pairs > radius) <= 20
    assert stats.binom.sf(20, 300, 0.01) < 1e-10
    # and it is not a trivial cover: half of it would leave out many
    assert np.sum(pairs > radius / 2) > 20
