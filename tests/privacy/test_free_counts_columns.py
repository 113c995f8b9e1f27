"""Where columns lie and how wide they are: the distances of free-presence#p6, on the grid, and means."""

from itertools import pairwise

import numpy as np
import pytest

from quoron_privacy.means.free_counts import COLUMN_PRESENCE as HERE
from quoron_privacy.means.free_counts import ColumnSum
from quoron_privacy.release import sum_bits


def factor(items):
    """(d (d + 1) / 2,) of the mean of a aᵀ over rows a."""
    upper = np.linalg.qr(np.vstack([items, np.zeros((len(items[0]), len(items[0])))]) / np.sqrt(len(items)))[1]
    return upper[np.triu_indices(len(upper))]


def row(values, windows, constant, answered=True):
    """One user's weighted row, as it is added, n = 1: its numbers, and whether it is here."""
    sums = ColumnSum(1, windows, 1.0, constant).of(np.array([values]), np.array([answered]))
    return np.append(sums.total / 2.0 ** sum_bits(1, 1), HERE * sums.cells[0])


def test_pairs_of_corners_are_as_far_apart_as_claimed_and_none_is_farther():
    """Of one column: opposite ends, and an end against the middle with everybody's items at it, are at 1."""
    whole = np.array([[0.0], [1.0]])
    ends = [row(factor([[x, 1.0]]), whole, True) for x in (-1.0, 0.0, 1.0)]
    for one, other in pairwise(ends):
        assert np.linalg.norm(one - other) == pytest.approx(1, rel=1e-12)
    assert np.linalg.norm(ends[0] - ends[2]) == pytest.approx(1, rel=1e-12)
    assert np.linalg.norm(ends[0]) == pytest.approx(1, abs=1e-6)  # and from nobody
    grid = np.linspace(0, 1, 101)
    near, far = np.meshgrid(grid, grid)
    apart = (near + far) ** 2 + 1.5 * (near - far) ** 2 + 1.5 * (near**2 - far**2) ** 2
    assert apart.max() <= 4 + 1e-12
