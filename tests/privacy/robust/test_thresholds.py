"""Thresholds of the filter: hits are as likely as their law says, and a shift of the hidden cutoff reveals little."""

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from quoron_privacy.noise.streams import SeededNoise
from quoron_privacy.robust.filter.thresholds import HiddenCutoff, LaplaceThreshold

SOURCE = SeededNoise(4)


def hit_probability(test, score):
    """P[score + Laplace(scale) > threshold] from the distribution function."""
    return stats.laplace.sf(np.ceil(test.threshold / test.grid) * test.grid - score, scale=test.scale)


@pytest.mark.parametrize("score", [-20.0, 5.0, 9.9, 10.0, 12.5, 40.0])
def test_a_score_hits_as_often_as_the_continuous_mechanism(score):
    test = LaplaceThreshold(scale=3.0, threshold=10.0)
    hits = int(test.decide(np.full(300_000, score), SOURCE.stream("hits", str(score))).sum())
    assert stats.binomtest(hits, 300_000, hit_probability(test, score)).pvalue > 1e-8  # false alarm 1e-8 each


@given(centre=st.integers(1, 60), decay=st.floats(0.01, 5))
@settings(derandomize=True, deadline=None, max_examples=40)
def test_a_shift_by_one_changes_no_probability_by_more_than_the_decay(centre, decay):
    weights = np.array(HiddenCutoff(centre, decay).weights, dtype=object)
    assert len(weights) == 2 * centre - 1
    assert list(weights) == list(weights[::-1])
    for a, b in pairwise(weights):
        slack = 1 + 2.0 / min(a, b)  # weights are whole numbers
        assert float(Fraction(max(a, b), min(a, b))) <= np.exp(decay) * slack * (1 + 1e-14)
