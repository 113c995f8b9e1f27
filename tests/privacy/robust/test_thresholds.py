"""Laplace threshold tests: the probability of a hit is right, on a grid, whatever the score."""

import numpy as np
import pytest
from scipy import stats

from quoron_privacy.noise.streams import SeededNoise
from quoron_privacy.robust.filter.thresholds import LaplaceThreshold

SOURCE = SeededNoise(4)


def hit_probability(test, score):
    """P[score + Laplace(scale) > threshold] from the distribution function."""
    return stats.laplace.sf(np.ceil(test.threshold / test.grid) * test.grid - score, scale=test.scale)


@pytest.mark.parametrize("score", [-20.0, 5.0, 9.9, 10.0, 12.5, 40.0])
def test_a_score_hits_as_often_as_the_continuous_mechanism(score):
    test = LaplaceThreshold(scale=3.0, threshold=10.0)
    hits = int(test.decide(np.full(300_000, score), SOURCE.stream("hits", str(score))).sum())
    assert stats.binomtest(hits, 300_000, hit_probability(test, score)).pvalue > 1e-8  # false alarm 1e-8 each
