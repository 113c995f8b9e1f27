"""Laplace threshold tests: the probability of a hit is right, on a grid, whatever the score."""

from math import exp

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


def hit_probability(test, score):
    """P[score + Laplace(scale) > threshold] from the distribution function."""
    return stats.laplace.sf(test.effective_threshold - score, scale=test.scale)


@pytest.mark.parametrize("score", [-20.0, 5.0, 9.9, 10.0, 12.5, 40.0])
def test_a_score_hits_as_often_as_the_continuous_mechanism(score):
    test = LaplaceThreshold(scale=3.0, threshold=10.0)
    hits = int(test.decide(np.full(300_000, score), SOURCE.stream("hits", str(score))).sum())
    assert stats.binomtest(hits, 300_000, hit_probability(test, score)).pvalue > 1e-8  # false alarm 1e-8 each


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


@given(scale=st.floats(1e-3, 1e3), threshold=st.floats(-1e3, 1e3))
@fast
def test_the_effective_threshold_is_on_the_grid_and_not_below_the_threshold(scale, threshold):
    test = LaplaceThreshold(scale, threshold)
    assert (
        0 <= test.effective_threshold - threshold * (1 - np.sign(threshold) * 1e-15) <= test.grid * (1 + 1e-9) + 1e-12
    )
    assert test.grid == scale * 2.0**-20


def test_a_decision_is_strict_on_the_grid():
    # words for noise of exactly zero steps (u = 1, sign clear): score = threshold is no hit, one step above is
    test = LaplaceThreshold(scale=2.0**20, threshold=7.0)
    zero = RandomStream(lambda size: np.full(size, 2**64 - 2, np.uint64))
    assert test.decide(np.array([6.0, 7.0, 8.0]), zero).tolist() == [False, False, True]


def test_limits_drawn_beforehand_give_the_same_decisions():
    test, scores = LaplaceThreshold(scale=2.0, threshold=1.0), np.linspace(-9, 9, 500)
    limits = test.limits(500, SOURCE.stream("limits"))
    assert np.array_equal(np.rint(scores / test.grid) > limits, test.decide(scores, SOURCE.stream("limits")))


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


def test_epsilon_is_sensitivity_over_scale_and_hardly_more():
    assert exp(LaplaceThreshold(4.0, 0.0).epsilon(1.0)) == pytest.approx(exp(0.25), rel=1e-5)
    assert LaplaceThreshold(4.0, 0.0).epsilon(1.0) > 0.25
