"""Laplace threshold tests: the probability of a hit is right, on a grid, whatever the score."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from quoron_privacy.errors import ConfigError
from quoron_privacy.noise.sources import SeededNoise
from quoron_privacy.noise.streams import RandomStream
from quoron_privacy.robust.filter.thresholds import LaplaceThreshold

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
        logs = [law((test.effective_threshold - step) / test.scale) for step in steps]
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


@pytest.mark.parametrize(("scale", "threshold"), [(0.0, 1.0), (-1.0, 1.0), (1.0, 1e12), (1.0, float("nan"))])
def test_parameters_out_of_range_are_refused(scale, threshold):
    with pytest.raises(ConfigError, match="Expected"):
        LaplaceThreshold(scale, threshold)
