"""What `whitened-tracking` says of itself by its releases: that it could not see, or that labels are told exactly."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.server.algorithms.test_whitened_tracking import plan_of, run, table

from quoron_client import average_loss
from quoron_server.algorithms.whitened.forecast import hidden, learnt
from quoron_server.algorithms.whitened.law import Law

LOGISTIC = Law(0.25, sigmoid=True, intercept=True)


@given(level=st.floats(-8, 8), deviation=st.floats(0, 40))
def test_what_was_learnt_is_the_fall_of_the_labels_entropy(level, deviation):
    z = np.linspace(-9, 9, 200_001)
    weights = np.exp(-0.5 * z * z)
    chances = 1 / (1 + np.exp(-np.abs(level + deviation * z)))
    doubt = -(chances * np.log(chances) + (1 - chances) * np.log(np.maximum(1 - chances, 1e-300)))
    expected = math.log(2) - np.average(doubt, weights=weights)
    assert learnt(LOGISTIC, np.array([deviation, level])) == pytest.approx(expected, abs=0.003)


def test_of_classes_it_is_nothing_at_the_start_and_nearly_all_where_predictions_are_sure():
    law = Law(0.25, sigmoid=True, outputs=4, intercept=True)
    assert learnt(law, np.zeros(12)) == pytest.approx(0, abs=1e-12)
    assert learnt(law, np.eye(3, 4).ravel() * 1000) == pytest.approx(math.log(4), abs=0.05)


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


def test_columns_of_very_different_fill_are_said():
    batch = table(users=1000, features=8)
    batch.features[:, :3] *= 0.003
    _, _, told = run(batch, plan_of(batch))
    assert told["unseen"]
