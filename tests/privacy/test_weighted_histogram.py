"""Weights of users over cells: what one user moves, by a slow reference; their price by both accounts; their sums."""

import math

import numpy as np
import pytest

from quoron_privacy.histograms.weighted_histogram import WeightedHistogram

CELLS = 6


def weighed(own: list[int], most: int, **kinds) -> tuple[WeightedHistogram, np.ndarray]:
    """One user's weights beside nobody else's."""
    made = WeightedHistogram(10, 2, CELLS, 1.0, most=most, **kinds)
    owners = np.zeros(len(own), np.int64)
    return made, made.held(owners, np.array(own, np.int64), made.weights(owners))


def test_the_bound_is_reached_by_users_of_two_groups():
    made, first = weighed([0], 1)
    _, second = weighed([CELLS], 1)
    assert np.linalg.norm(first - second) == pytest.approx(math.sqrt(2))
    assert made.sensitivity == pytest.approx(math.sqrt(2), rel=1e-6)
