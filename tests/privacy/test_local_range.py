"""From reports to a crude mean: counting, hostile reports, and enough users finding what is there."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quoron_client.randomisers import RangeBits, SeededRandomness
from quoron_client.randomisers.hadamard import rotated_coordinates
from quoron_privacy import local
from quoron_privacy.errors import ConfigError
from quoron_privacy.local import assign_coordinates, count_bits, crude_mean, fullest_bins, mean_of_reports
from quoron_privacy.means.rotation import coordinate_bound, padded, random_signs
from quoron_privacy.noise.sources import SeededNoise

fast = settings(derandomize=True, deadline=None, max_examples=60)
SOURCE = SeededRandomness(12)


class TestDealing:
    @given(users=st.integers(1, 300), dimension=st.integers(1, 30))
    @fast
    def test_groups_differ_by_one_user_at_most(self, users, dimension):
        dealt = assign_coordinates(users, dimension, SeededNoise(1).stream("public"))
        sizes = np.bincount(dealt, minlength=padded(dimension))
        assert dealt.shape == (users,)
        assert len(sizes) == padded(dimension)
        assert sizes.max() - sizes.min() <= 1


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
    def test_the_middle_of_the_fullest_bin_or_zero(self):
        assert fullest_bins(np.array([[0, 5, 2, 0], [0, 0, 0, 0]]), 2.0).tolist() == [-0.5, 0.0]

    @pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
    def test_a_scalar_range_is_found_with_the_group_size_of_the_theorem(self, epsilon):
        # Algorithm 2. 40 runs of failure chance 1e-3 each: four failures have probability below 1e-7.
        bins, bits = 32, RangeBits(epsilon, 32, 1.0)
        size = local.group_size(epsilon=epsilon, bins=bins, failure=1e-3)
        values = np.where(np.arange(size) % 2, 0.374, 0.376)  # two neighbouring bins share them
        failures = 0
        for run in range(40):
            reports = bits.randomise(values, SOURCE, round=run, users=np.arange(size))
            counts = count_bits(reports, np.ones(size, bool), np.zeros(size, int), 1)
            failures += abs(fullest_bins(counts, 1.0)[0] - 0.375) > 2 / bins
        assert failures < 4

    def test_a_crude_mean_is_within_the_radius_of_the_theorem(self):
        dimension, epsilon, spread = 5, 3.0, 0.02
        rng, signs = np.random.default_rng(5), random_signs(dimension, SeededNoise(4).stream("public"))
        deviation = coordinate_bound(spread, dimension=dimension, rows=10_000, failure=1e-3)
        bins = int(np.ceil(1.0 / deviation))
        users = local.crude_mean_users(dimension=dimension, epsilon=epsilon, bins=bins, failure=1e-3)
        assert users < 10_000
        offsets = rng.normal(size=(users, dimension))
        values = 0.3 + spread * offsets / np.linalg.norm(offsets, axis=1, keepdims=True)
        at = assign_coordinates(users, dimension, SeededNoise(4).stream("deal"))
        bits = RangeBits(epsilon, bins, 1.0)
        reports = bits.randomise(rotated_coordinates(values, signs, at), SOURCE, round=0, users=np.arange(users))
        found = crude_mean(count_bits(reports, np.ones(users, bool), at, 8), 1.0, signs)
        radius = local.centred_radius(spread, dimension=dimension, users=10_000, failure=1e-3)
        assert np.linalg.norm(values - found, axis=1).max() <= radius
        assert radius < 0.3 * 5**0.5  # closer than zero is

    def test_counts_of_another_rotation_are_refused(self):
        with pytest.raises(ConfigError, match="Expected counts of 8 coordinates, got 4"):
            crude_mean(np.ones((4, 3), np.int64), 1.0, np.ones(5))


class TestMeanOfReports:
    CENTRE = np.array([1.0, -1.0])

    def test_it_is_the_mean_over_those_who_answered(self):
        reports = np.array([[1.0, 0.0], [3.0, 0.0], [9.0, 9.0]])
        found = mean_of_reports(reports, np.array([True, True, False]), self.CENTRE, 100.0)
        assert found == pytest.approx([2.0, 0.0])

    @pytest.mark.parametrize("bad", [np.nan, np.inf, 1e308])
    def test_a_hostile_report_moves_it_by_at_most_its_share(self, bad):
        reports = np.tile(self.CENTRE, (10, 1))
        reports[4] = bad
        assert np.linalg.norm(mean_of_reports(reports, np.ones(10, bool), self.CENTRE, 5.0) - self.CENTRE) <= 0.5 + 1e-9

    def test_without_answers_it_is_the_centre(self):
        assert np.array_equal(mean_of_reports(np.ones((2, 2)), np.zeros(2, bool), self.CENTRE, 1.0), self.CENTRE)
