"""Public groups of users under two servers, their median, and the lemma on two floors."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from quoron_privacy.errors import ConfigError
from quoron_privacy.two_servers.groups import median, noise_factor


class TestGroups:
    @given(st.integers(1, 9), st.data())
    def test_fewer_than_half_of_the_groups_leave_the_median_between_the_others(self, groups, data):
        numbers = st.lists(st.floats(-10, 10), min_size=groups, max_size=groups)
        means = np.array([data.draw(numbers) for _ in range(3)]).T
        vandals = data.draw(st.integers(0, (groups - 1) // 2))
        sent = means.copy()
        sent[:vandals] = data.draw(st.floats(-1e300, 1e300))
        honest = means[vandals:]
        made = median(sent)
        assert ((honest.min(axis=0) <= made) & (made <= honest.max(axis=0))).all()

    def test_groups_that_have_no_middle_and_means_that_are_none_are_refused(self):
        with pytest.raises(ConfigError, match="odd"):
            noise_factor(4)
        for means in (np.zeros((0, 2)), np.zeros(3), np.array([[np.nan]])):
            with pytest.raises(ConfigError, match="means"):
                median(means)


@pytest.mark.parametrize("sigma", [0.7, 1.0, 1.4])
def test_two_floors_are_nearly_one_of_the_sum_less_something_uniform(sigma):
    """docs/privacy/two-servers.md#ts5: total variation at most (2/π) Σ exp(-π² j² σ²) / j, and not much less."""
    cells = np.arange(-40, 41)
    floor = np.diff(stats.norm.cdf(np.append(cells, 41) / sigma))
    floors = np.convolve(floor, floor)
    places, wide = np.arange(-80, 81), sigma * 2**0.5

    def below(x):  # ∫ P(a + b <= x) dx
        return x * stats.norm.cdf(x / wide) + wide * stats.norm.pdf(x / wide)

    one = below(places + 2) - 2 * below(places + 1) + below(places)
    bound = 2 / np.pi * sum(np.exp(-((np.pi * j * sigma) ** 2)) / j for j in (1, 2, 3))
    found = np.abs(floors - one).sum() / 2
    assert bound / 3 < found <= bound
