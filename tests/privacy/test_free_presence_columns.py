"""Where columns lie and how wide they are: the distances of free-presence#p6, on the grid, and means."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quoron_privacy.errors import ConfigError
from quoron_privacy.means.free_presence_columns import HERE, ColumnMean, ColumnSum, column_sensitivity
from quoron_privacy.release import packed, sum_bits

NUMBERS = st.one_of(st.floats(-3, 3), st.sampled_from([0.0, 1.0, -1.0, 1e-160, 1e160, 1e308, np.inf, np.nan]))


class Still:
    """A stream without noise."""

    def gaussian_steps(self, shape):
        return np.zeros(shape, np.int64)


def factor(items):
    """(d (d + 1) / 2,) of the mean of a aᵀ over rows a."""
    upper = np.linalg.qr(np.vstack([items, np.zeros((len(items[0]), len(items[0])))]) / np.sqrt(len(items)))[1]
    return upper[np.triu_indices(len(upper))]


def row(values, windows, constant, answered=True):
    """One user's weighted row, as it is added, n = 1: its numbers, and whether it is here."""
    sums = ColumnSum(1, windows, 1.0, constant).of(np.array([values]), np.array([answered]))
    return np.append(sums.total / 2.0 ** sum_bits(1, 1), HERE * sums.cells[0])


@st.composite
def two_users(draw):
    k, constant = draw(st.integers(1, 3)), draw(st.booleans())
    numbers = packed(k + constant)
    users = [draw(st.lists(NUMBERS, min_size=numbers, max_size=numbers)) for _ in range(2)]
    centres = draw(st.lists(st.floats(-1, 1), min_size=k, max_size=k))
    halves = draw(st.lists(st.sampled_from([1e-9, 0.1, 1.0]), min_size=k, max_size=k))
    return users, np.array([centres, halves]), constant


@settings(max_examples=300, deadline=None)
@given(two_users())
def test_any_two_users_are_within_one_and_any_one_of_nobody(both):
    (one, other), windows, constant = both
    with np.errstate(all="ignore"):
        first, second = row(one, windows, constant), row(other, windows, constant)
    most = column_sensitivity(windows.shape[1], 1)
    assert np.linalg.norm(first - second) <= most
    assert max(np.linalg.norm(first), np.linalg.norm(second)) <= most


def test_means_are_those_of_the_slow_obvious_way():
    rng, users = np.random.default_rng(1), 40
    numbers = [rng.uniform(-1, 1, (rng.integers(1, 5), 3)) for _ in range(users)]
    tables = [np.column_stack([own, np.ones(len(own))]) for own in numbers]
    tables[0][:, 1], tables[1][:, 2], tables[2][:, 0] = -1.0, 0.0, 1.0
    windows, answered = np.array([[0.2, -0.1, 0.0], [0.3, 2.0, 0.5]]), rng.random(users) < 0.8
    mechanism = ColumnMean.for_mu(columns=3, users=users, mu=1.0)
    found = mechanism.release(np.array([factor(own) for own in tables]), answered, windows, 1.0, True, Still())
    off = [(own[:, :3] - windows[0]) / windows[1] for own, here in zip(tables, answered, strict=True) if here]
    spreads = np.minimum([np.sqrt(np.mean(each**2, axis=0)) for each in off], 1)
    here = [own[:, :3] for own, there in zip(tables, answered, strict=True) if there]
    np.testing.assert_allclose(found.mean, np.clip([each.mean(axis=0) for each in off], -1, 1).sum(axis=0) / users)
    np.testing.assert_allclose(found.spread, spreads.sum(axis=0) / users)
    np.testing.assert_allclose(found.square, (spreads**2).sum(axis=0) / users)
    still = [[np.all(own == place, axis=0) for own in here] for place in (-1, 0, 1)]
    np.testing.assert_allclose(found.still, np.sum(still, axis=1) / users, atol=1e-12)
    assert found.presence == pytest.approx(answered.mean())


@pytest.mark.parametrize("windows", [[[0.0], [0.0]], [[np.nan], [1.0]], [[0.0, 0.0]], [[], []], [[0.0], [-1.0]]])
def test_windows_that_are_none_are_refused(windows):
    with pytest.raises(ConfigError, match="windows"):
        ColumnSum(10, np.array(windows), 1.0, True)
