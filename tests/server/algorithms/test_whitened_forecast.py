"""What `whitened-tracking` says of itself by its releases: that it could not see, or that labels are told exactly."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.server.algorithms.test_whitened_tracking import INFO, plan_of, run, table

from quoron_client import average_loss
from quoron_privacy.errors import Infeasible
from quoron_server.algorithms.info import start_risk
from quoron_server.algorithms.whitened.method import before, hidden, learnt
from quoron_server.algorithms.whitened.parameters import Law
from quoron_server.algorithms.whitened.plan import ROUNDS
from quoron_server.plan import Privacy

LOGISTIC = Law(0.25, sigmoid=True, intercept=True)


@given(level=st.floats(-8, 8), deviation=st.floats(0, 40))
def test_what_was_learnt_is_the_fall_of_the_labels_entropy(level, deviation):
    z = np.linspace(-9, 9, 200_001)
    weights = np.exp(-0.5 * z * z)
    chances = 1 / (1 + np.exp(-np.abs(level + deviation * z)))
    doubt = -(chances * np.log(chances) + (1 - chances) * np.log(np.maximum(1 - chances, 1e-300)))
    expected = math.log(2) - np.average(doubt, weights=weights)
    assert learnt(LOGISTIC, np.array([deviation, level])) == pytest.approx(expected, abs=0.003)


def test_hidden_are_directions_far_below_the_mean_and_the_constant_is_none_of_them():
    alike, few = np.full(10, 0.1), np.append(np.full(4, 0.6), np.full(6, 0.1))
    assert hidden(alike, constant=False) == 0
    assert hidden(few, constant=False) == pytest.approx(0.4)
    assert hidden(few[::-1], constant=True) == pytest.approx(3 / 9)
    assert hidden(np.array([0.1]), constant=True) == 0
    assert hidden(np.append(np.full(8, 2.0), [0.7, 0.7]), constant=False) == pytest.approx(0.8)
    assert hidden(np.full(10, 2.0), constant=False) == 0  # all alike: noise hides how much, and the bound counts it


def test_labels_that_columns_tell_exactly_are_said_and_are_within_the_bound():
    """By the plan alone a hundredth of that is foretold."""
    batch = table(users=3000, features=6)
    direction = np.linspace(1, 2, batch.dimension)
    batch.labels[:] = np.where(batch.features @ direction > 0, 1.0, -1.0)
    plan = plan_of(batch)
    known, model, told = run(batch, plan)
    risk = float(average_loss(known, batch, model).mean())  # nothing is left of the best
    assert told["grows"]
    assert plan.predicted_excess_risk < risk <= told["left"]
    _, _, usual = run(table(users=3000, features=6), plan)
    assert not usual["grows"]
    assert not usual["unseen"]


@settings(derandomize=True, deadline=None, max_examples=120)
@given(
    users=st.integers(300, 10**6),
    features=st.integers(2, 300),
    items=st.integers(1, 1000),
    epsilon=st.floats(0.1, 15),
    outputs=st.sampled_from([1, 1, 3, 26]),
    rate=st.sampled_from([None, 0.001, 0.3]),
    squares=st.booleans(),
    more=st.floats(1, 30),
)
def test_more_users_items_or_epsilon_never_make_a_plans_forecast_larger(
    users, features, items, epsilon, outputs, rate, squares, more
):
    """Where a plan is refused, all that there is may be left."""
    base = plan_of(table(users=400, features=6)).problem
    beliefs = replace(base.beliefs, label_rate=rate if outputs == 1 and not squares else None)
    if squares:
        outputs, beliefs = 1, replace(beliefs, sigmoid=False, label_bound=1.0, start_loss=0.5)
    dimension = features * outputs
    problem = replace(base, users=users, dimension=dimension, items_per_user=items, outputs=outputs, beliefs=beliefs)

    def told(epsilon=epsilon, **other):
        try:
            plan = INFO.plan(replace(problem, **other), Privacy(epsilon, 1e-7))
        except Infeasible:
            return math.inf
        assert 0 < plan.predicted_excess_risk <= start_risk(plan.problem)
        return plan.predicted_excess_risk

    found = told() * (1 + 1e-12)
    assert told(users=int(users * more)) <= found
    assert told(epsilon=min(epsilon * more, 15.0)) <= found
    assert told(items_per_user=int(items * more)) <= found


@pytest.mark.parametrize("outputs", [2, 26])
@pytest.mark.parametrize("features", [2, 15, 300])
@pytest.mark.parametrize("items", [1, 3, 1000])
def test_a_forecast_of_labels_is_never_below_what_noise_on_the_best_release_leaves(outputs, features, items):
    """One Gaussian gradient at the optimum, whitened: users' have a mean square of D/m, so 2D/(mν²) is left."""
    base = plan_of(table()).problem
    numbers, known = features * (outputs - 1), outputs if outputs > 2 else 1
    problem = replace(base, dimension=features * known, outputs=known, items_per_user=items)
    for resolution in np.geomspace(10, 1e6, 60):
        least = min(2 * numbers / (items * resolution**2), start_risk(problem))
        assert before(problem, ROUNDS, resolution) >= least
