"""Clipped means of vectors: exact norms, exact sensitivity, any order, any row."""

from fractions import Fraction
from functools import reduce
from operator import add

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from quoron_privacy.gaussian import mean_sensitivity
from quoron_privacy.means.clipping import ClippedSum, clip_rows, clipped_mean
from quoron_privacy.means.free_counts import NormCountSum
from quoron_privacy.release import sum_bits
from sums import clipped_residuals

NORMS = st.floats(1e-3, 1e3)
ANY = st.floats(width=64, allow_nan=True, allow_infinity=True)
ROWS = hnp.arrays(np.float64, st.tuples(st.integers(1, 6), st.integers(1, 5)), elements=ANY | st.floats(-10, 10))
fast = settings(derandomize=True, deadline=None, max_examples=150)


def square(row):
    """Exact squared norm."""
    return sum(Fraction(float(x)) ** 2 for x in row)


def slow_mean(values, answered, norm, cohort_size):
    """The definition, row by row."""
    total = np.zeros(values.shape[1], np.longdouble)
    for row, here in zip(values, answered, strict=True):
        if here and np.isfinite(row).all() and row.any():
            row = row.astype(np.longdouble)
            size = np.abs(row).max() * np.sqrt(((row / np.abs(row).max()) ** 2).sum())
            total += row * min(1, norm / size)
    return total / cohort_size


class TestClipRows:
    @given(rows=ROWS, norm=NORMS)
    @fast
    def test_no_clipped_row_is_longer_than_the_norm_in_exact_arithmetic(self, rows, norm):
        for row in clip_rows(rows, norm):
            assert square(row) <= Fraction(norm) ** 2


class TestClippedMean:
    @given(rows=ROWS, norm=NORMS, data=st.data())
    @fast
    def test_it_agrees_with_the_definition(self, rows, norm, data):
        answered = np.array(data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))))
        mean, _ = clipped_mean(rows, answered, norm, len(rows))
        assert abs(mean - slow_mean(rows, answered, norm, len(rows))).max() <= norm * 1e-14

    @given(rows=ROWS, norm=NORMS, who=st.integers(0, 5), data=st.data())
    @fast
    def test_replacing_one_row_moves_the_mean_by_no_more_than_its_sensitivity(self, rows, norm, who, data):
        other = rows.copy()
        other[who % len(rows)] = data.draw(hnp.arrays(np.float64, rows.shape[1], elements=ANY))
        answered = np.ones(len(rows), bool)
        one, two = (clipped_mean(x, answered, norm, len(rows))[0] for x in (rows, other))
        moved = [Fraction(float(a)) - Fraction(float(b)) for a, b in zip(one, two, strict=True)]
        assert sum(x * x for x in moved) <= Fraction(mean_sensitivity(norm, len(rows))) ** 2

    @given(rows=ROWS, norm=NORMS, data=st.data())
    @fast
    def test_the_order_of_rows_changes_no_bit(self, rows, norm, data):
        order = data.draw(st.permutations(range(len(rows))))
        answered = np.ones(len(rows), bool)
        one, two = (clipped_mean(x, answered, norm, 8) for x in (rows, rows[order]))
        assert one[0].tobytes() == two[0].tobytes()
        assert one[1] == two[1]

    @pytest.mark.parametrize("norm", [1.0, 0.03])
    def test_rows_side_by_side_count_as_one_after_the_other(self, norm):
        rng, reduction = np.random.default_rng(0), ClippedSum(norm, 100)
        rows = rng.standard_normal((150, 5)) * 10.0 ** rng.integers(-3, 2, (150, 1))
        rows[::13, 2] = np.resize([np.nan, np.inf, 1e200, 1e308], 12)
        rows[::17] *= np.resize([0.0, 1e-200, 1e-308], (9, 1))
        answered = rng.random(150) < 0.9
        alone = reduce(add, (reduction.of(rows[i : i + 1], answered[i : i + 1]) for i in range(150)))
        sums = reduction.of(rows, answered)
        np.testing.assert_array_equal(np.r_[sums.total, sums.cells], np.r_[alone.total, alone.cells])
        assert (sums.clipped, sums.answered) == (alone.clipped, alone.answered)

    @given(
        rows=hnp.arrays(np.float32, st.tuples(st.integers(1, 70), st.integers(1, 9)), elements=st.floats(width=32)),
        norm=NORMS,
        shifted=st.booleans(),
        largest=st.sampled_from([1e-3, 1.0, 1e9, np.inf]),
        data=st.data(),
    )
    @fast
    def test_rows_of_single_precision_and_beyond_a_bound_count_as_those_that_are_copied_and_checked_first(
        self, rows, norm, shifted, largest, data
    ):
        dimension = rows.shape[1]
        answered = np.array(data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))))
        centre = data.draw(hnp.arrays(np.float64, dimension, elements=st.floats(-5, 5))) if shifted else None
        reduction, copied = ClippedSum(norm, 8, centre), rows.astype(np.float64)
        kept = answered & ((abs(copied) <= largest).all(axis=1) | (largest == np.inf))
        ours, theirs = reduction.of(rows, answered, largest), reduction.of(copied, kept)
        np.testing.assert_array_equal(np.r_[ours.total, ours.cells], np.r_[theirs.total, theirs.cells])
        assert (ours.clipped, ours.answered) == (theirs.clipped, theirs.answered)

    @pytest.mark.parametrize("size", [1.0, 3.0, 1e-3, 1e9])
    @pytest.mark.parametrize("centre", [None, np.array([0.5, 0.0])])
    def test_a_coordinate_at_the_bound_counts_and_the_next_number_does_not(self, size, centre):
        rows = np.array([[size, 0.0], [-size, size], [np.nextafter(size, 2 * size), 0.0]])
        for row, counts in zip(rows, (1, 1, 0), strict=True):
            assert ClippedSum(1.0, 3, centre).of(row[None], np.ones(1, bool), size).answered == counts

    @pytest.mark.parametrize("absent", [np.nan, np.inf, 1e300, 0.0])
    def test_an_absent_row_contributes_exactly_zero(self, absent):
        rows = np.array([[1.0, 2.0], [absent, absent]])
        mean, clipped = clipped_mean(rows, np.array([True, False]), 8.0, 2)
        assert mean.tolist() == [0.5, 1.0]
        assert clipped == 0

    def test_the_worst_pair_of_users_attains_the_sensitivity(self):
        rows = np.zeros((10, 4))
        rows[0, 0] = 5.0
        one, _ = clipped_mean(rows, np.ones(10, bool), 2.0, 10)
        two, _ = clipped_mean(-rows, np.ones(10, bool), 2.0, 10)
        assert np.linalg.norm(one - two) == pytest.approx(mean_sensitivity(2.0, 10), rel=1e-12)

    @given(rows=ROWS, norm=NORMS, who=st.integers(0, 5))
    @fast
    def test_leaving_one_row_out_moves_the_mean_by_half_of_that(self, rows, norm, who):
        everyone = np.ones(len(rows), bool)
        without = np.arange(len(rows)) != who % len(rows)
        one, two = (clipped_mean(rows, answered, norm, 7)[0] for answered in (everyone, without))
        moved = [Fraction(float(a)) - Fraction(float(b)) for a, b in zip(one, two, strict=True)]
        assert sum(x * x for x in moved) <= Fraction(mean_sensitivity(norm, 7, "zero-out")) ** 2


class TestClippedResiduals:
    @given(rows=ROWS, norm=NORMS, data=st.data())
    @fast
    def test_it_agrees_with_the_definition(self, rows, norm, data):
        centre = data.draw(hnp.arrays(np.float64, rows.shape[1], elements=st.floats(-5, 5)))
        answered = np.array(data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))))
        mean, shares, clipped = clipped_residuals(rows, centre, answered, norm, len(rows))
        with np.errstate(all="ignore"):
            residuals = rows - centre
        assert abs(mean - slow_mean(residuals, answered, norm, len(rows)) / norm).max() <= 1e-14
        finite = np.isfinite(residuals).all(axis=1) & answered
        a = [float(min(Fraction(1), square(row) / Fraction(norm) ** 2)) ** 0.5 for row in residuals[finite]]
        soft = [min(1.0, ((1 - each) * (1 + 3 * each)) ** 0.5) for each in a]
        unit = 2.0 ** sum_bits(0, len(rows))
        assert shares[0] / unit == pytest.approx(len(a) - sum(a), abs=1e-12)
        assert shares[3] / unit == pytest.approx(sum(soft), abs=1e-5)  # its slope is infinite where rows are clipped
        assert shares[2] == len(a)
        assert clipped == clipped_mean(residuals, answered, norm, len(rows))[1]

    @given(rows=ROWS, norm=NORMS)
    @fast
    def test_a_users_row_and_its_shares_are_in_their_ball_and_move_nobody_else(self, rows, norm):
        everyone, unit = np.ones(len(rows), bool), 2 ** sum_bits(0, 8)
        reduction = ClippedSum(norm, 8)
        together, alone = reduction.of(rows, everyone), [reduction.of(row[None], np.ones(1, bool)) for row in rows]
        assert together.cells.tolist() == np.sum([each.cells for each in alone], axis=0).tolist()
        for each in alone:
            q, _, here, soft = (int(number) for number in each.cells)
            left = Fraction(unit - q, unit) if here else Fraction(0)
            assert sum(Fraction(int(c), unit) ** 2 for c in each.total) <= left**2
            assert 0 <= Fraction(soft, unit) ** 2 <= min(1, (1 - left) * (1 + 3 * left)) * here

    @pytest.mark.parametrize("size", [1e-160, 5e-324, 1e-200, 1e200, 1.7e308])
    def test_no_norm_underflows_past_the_clip_or_overflows_into_no_share(self, size):
        # squared, such coordinates are 0 or infinite
        row, unit = np.full((1, 3), size), 2 ** sum_bits(0, 1)
        for radius in (1e-149, 1.0, 1e149):
            mean, shares, _ = clipped_residuals(row, None, np.ones(1, bool), radius, 1)
            assert square(mean) <= 1
            q, within, here, soft = shares.tolist()
            assert (within, here, soft == unit) == (int(size < radius), 1, size < radius)
            assert abs(q - unit * (size < radius)) <= 1e-9 * unit

    def test_an_absent_user_is_in_no_share_and_adds_exactly_zero(self):
        rows = np.array([[1.0, 0.0], [0.0, 0.0], [np.nan, 1e300]])
        answered = np.array([True, False, False])
        mean, shares, clipped = clipped_residuals(rows, np.array([0.5, 0.0]), answered, 1.0, 2)
        assert (mean.tolist(), shares[1:3].tolist(), clipped) == ([0.25, 0.0], [1, 1], 0)


class TestNormCountSum:
    @pytest.mark.parametrize(("outputs", "length", "width"), [(1, 4, 3), (3, 2, 2), (50, 12, 12)])
    def test_of_a_transform_it_is_the_sum_of_rows_each_part_of_which_was_multiplied(self, outputs, length, width):
        draw = np.random.default_rng(7)
        rows, transform = draw.standard_normal((40, outputs * length)), draw.standard_normal((length, width))
        rows[3], rows[5, 0], answered = 1e-200, np.nan, draw.random(40) < 0.8
        centre = 0.1 * draw.standard_normal(outputs * width)
        whole = np.kron(np.eye(outputs), transform)  # as large as nobody should hold it
        sums = NormCountSum(5.0, 40, transform, centre).of(rows, answered)
        expected = ClippedSum(5.0, 40).of(rows @ whole - centre, answered)
        np.testing.assert_allclose(sums.total, expected.total, rtol=1e-6, atol=1e-12 * 2.0 ** sum_bits(0, 40))
        np.testing.assert_allclose(sums.cells, expected.cells, rtol=1e-9, atol=1e-12 * 2.0 ** sum_bits(0, 40))
        assert (sums.clipped, sums.answered) == (expected.clipped, expected.answered)
