"""From reports to a crude mean: counting, hostile reports, and enough users finding what is there."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quoron_privacy.errors import ConfigError
from quoron_privacy.local import count_bits, crude_mean, mean_of_reports

fast = settings(derandomize=True, deadline=None, max_examples=60)


class TestCounting:
    @given(seed=st.integers(0, 999), users=st.integers(0, 30))
    @fast
    def test_counts_equal_a_slow_count_and_add_over_chunks(self, seed, users):
        rng = np.random.default_rng(seed)
        reports, at = rng.integers(0, 2, (users, 5)).astype(np.uint8), rng.integers(0, 4, users)
        answered = rng.random(users) < 0.8
        slow = np.zeros((4, 5), int)
        for report, group, here in zip(reports, at, answered, strict=True):
            slow[group] += report * here
        assert np.array_equal(count_bits(reports, answered, at, 4), slow)
        halves = [count_bits(reports[part], answered[part], at[part], 4) for part in (slice(0, 7), slice(7, None))]
        assert np.array_equal(sum(halves), slow)

    @pytest.mark.parametrize("bad", [np.nan, np.inf, 1e300, 0.5, -1.0, 2.0])
    def test_a_report_that_is_not_bits_counts_for_nothing(self, bad):
        reports = np.array([[1.0, 0.0], [bad, 1.0], [0.0, 1.0]])
        counts = count_bits(reports, np.ones(3, bool), np.zeros(3, int), 1)
        assert counts.tolist() == [[1, 1]]

    def test_a_coordinate_for_each_report_is_required(self):
        with pytest.raises(ConfigError, match="Expected a coordinate for each report"):
            count_bits(np.ones((3, 2)), np.ones(3, bool), np.zeros(2, int), 1)


class TestRange:
    def test_counts_of_another_rotation_are_refused(self):
        with pytest.raises(ConfigError, match="Expected counts of 8 coordinates, got 4"):
            crude_mean(np.ones((4, 3), np.int64), 1.0, np.ones(5))


class TestMeanOfReports:
    CENTRE = np.array([1.0, -1.0])

    @pytest.mark.parametrize("bad", [np.nan, np.inf, 1e308])
    def test_a_hostile_report_moves_it_by_at_most_its_share(self, bad):
        reports = np.tile(self.CENTRE, (10, 1))
        reports[4] = bad
        assert np.linalg.norm(mean_of_reports(reports, np.ones(10, bool), self.CENTRE, 5.0) - self.CENTRE) <= 0.5 + 1e-9
