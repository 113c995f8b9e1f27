"""Clipped means: exact norms, exact sensitivity, any order, any row."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from quoron_privacy.errors import ConfigError
from quoron_privacy.gaussian import acute_sensitivity, mean_sensitivity
from quoron_privacy.means import norm_counts_loops
from quoron_privacy.means.clipping import ClippedSum, clip_rows, clipped_mean
from quoron_privacy.means.norm_counts import NormCountSum
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

    @given(rows=ROWS, norm=NORMS)
    @fast
    def test_rows_inside_come_back_unchanged_others_keep_their_direction(self, rows, norm):
        clipped = clip_rows(rows, norm)
        for row, out in zip(rows, clipped, strict=True):
            if not np.isfinite(row).all():
                assert not out.any()
            elif square(row) <= Fraction(norm * (1 - 1e-13)) ** 2:
                assert np.array_equal(out, row)
            else:
                length = float(np.linalg.norm(row / np.abs(row).max()))
                direction = row / np.abs(row).max() / length
                assert out == pytest.approx(norm * direction, rel=1e-12, abs=1e-12 * norm)

    def test_what_a_row_becomes_depends_on_that_row_alone(self):
        rows = np.random.default_rng(0).normal(size=(5, 3))
        hostile = rows.copy()
        hostile[2] = [np.nan, np.inf, 1e300]
        assert np.array_equal(np.delete(clip_rows(rows, 1.0), 2, 0), np.delete(clip_rows(hostile, 1.0), 2, 0))

    def test_around_a_centre_it_clips_the_difference(self):
        centre = np.array([1.0, -2.0])
        out = clip_rows(np.array([[4.0, 2.0], [1.0, -2.0], [1.7e308, 0.0]]), 1.0, centre)
        assert out == pytest.approx(np.array([[0.6, 0.8], [0.0, 0.0], [1.0, 0.0]]))
        assert not clip_rows(np.array([[1.7e308]]), 1.0, np.array([-1.7e308])).any()  # the difference overflows

    def test_the_input_is_not_changed(self):
        rows = np.full((2, 2), 9.0)
        clip_rows(rows, 1.0)
        assert (rows == 9.0).all()

    @pytest.mark.parametrize("norm", [0.0, -1.0, float("nan"), float("inf"), 1e200])
    def test_a_norm_out_of_range_is_refused(self, norm):
        with pytest.raises(ConfigError, match=r"Expected norm in \(1e-150, 1e150\)"):
            clip_rows(np.ones((1, 1)), norm)


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

    @given(rows=ROWS, norm=NORMS, who=st.integers(0, 5))
    @fast
    def test_leaving_one_row_out_moves_the_mean_by_half_of_that(self, rows, norm, who):
        everyone = np.ones(len(rows), bool)
        without = np.arange(len(rows)) != who % len(rows)
        one, two = (clipped_mean(rows, answered, norm, 7)[0] for answered in (everyone, without))
        moved = [Fraction(float(a)) - Fraction(float(b)) for a, b in zip(one, two, strict=True)]
        assert sum(x * x for x in moved) <= Fraction(mean_sensitivity(norm, 7, "zero-out")) ** 2

    def test_the_worst_pair_of_users_attains_the_sensitivity(self):
        rows = np.zeros((10, 4))
        rows[0, 0] = 5.0
        one, _ = clipped_mean(rows, np.ones(10, bool), 2.0, 10)
        two, _ = clipped_mean(-rows, np.ones(10, bool), 2.0, 10)
        assert np.linalg.norm(one - two) == pytest.approx(mean_sensitivity(2.0, 10), rel=1e-12)

    @given(rows=ROWS, norm=NORMS, data=st.data())
    @fast
    def test_the_order_of_rows_changes_no_bit(self, rows, norm, data):
        order = data.draw(st.permutations(range(len(rows))))
        answered = np.ones(len(rows), bool)
        one, two = (clipped_mean(x, answered, norm, 8) for x in (rows, rows[order]))
        assert one[0].tobytes() == two[0].tobytes()
        assert one[1] == two[1]

    def test_ten_thousand_rows_in_any_order_give_the_same_bits(self):
        # float sums of these differ between orders
        rng = np.random.default_rng(1)
        rows = rng.normal(size=(10_000, 3)) * np.exp(rng.normal(size=(10_000, 1)) * 8)
        everyone = np.ones(10_000, bool)
        one, two = (clipped_mean(x, everyone, 100.0, 10_000)[0] for x in (rows, rows[::-1]))
        assert one.tobytes() == two.tobytes()
        assert abs(one - slow_mean(rows, everyone, 100.0, 10_000)).max() < 1e-9

    @pytest.mark.parametrize("absent", [np.nan, np.inf, 1e300, 0.0])
    def test_an_absent_row_contributes_exactly_zero(self, absent):
        rows = np.array([[1.0, 2.0], [absent, absent]])
        mean, clipped = clipped_mean(rows, np.array([True, False]), 8.0, 2)
        assert mean.tolist() == [0.5, 1.0]
        assert clipped == 0

    @pytest.mark.parametrize("norm", [1.0, float("inf")])
    def test_nobody_answering_gives_zero(self, norm):
        rows = np.full((3, 2), np.nan)
        assert clipped_mean(rows, np.zeros(3, bool), norm, 3)[0].tolist() == [0.0, 0.0]
        assert clipped_mean(rows, np.ones(3, bool), norm, 3)[0].tolist() == [0.0, 0.0]
        assert clipped_mean(np.zeros((0, 2)), np.zeros(0, bool), norm, 3)[0].tolist() == [0.0, 0.0]

    def test_the_divisor_is_the_cohort_whoever_answers(self):
        mean, _ = clipped_mean(np.ones((2, 1)), np.array([True, False]), 10.0, 100)
        assert mean[0] == pytest.approx(0.01, rel=1e-14)

    def test_it_counts_clipped_rows(self):
        rows = np.array([[3.0], [0.5], [-2.0], [np.nan], [1.0 - 1e-12]])
        assert clipped_mean(rows, np.ones(5, bool), 1.0, 5)[1] == 2

    def test_without_a_clip_norm_it_is_the_plain_mean(self):
        rows = np.array([[3.0], [1e6], [np.inf]])
        assert clipped_mean(rows, np.ones(3, bool), float("inf"), 4)[0].tolist() == [(3.0 + 1e6) / 4]

    def test_full_cohorts_at_the_norm_do_not_overflow(self):
        for size in (1, 2, 15, 16, 1000):
            rows = np.ones((64 * size, 1))
            mean, _ = clipped_mean(rows, np.ones(64 * size, bool), 1.0, size)
            assert mean[0] == pytest.approx(64.0, rel=1e-12)

    def test_more_rows_than_the_sum_can_hold_are_refused(self):
        with pytest.raises(ConfigError, match=r"Expected at most 64 \* divisor rows, got 65 with divisor=1"):
            clipped_mean(np.ones((65, 1)), np.ones(65, bool), 1.0, 1)


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

    @given(rows=ROWS, who=st.integers(0, 5), data=st.data())
    @fast
    def test_rows_are_normalised_so_that_no_radius_enters_the_sensitivity(self, rows, who, data):
        radius = data.draw(st.floats(-140, 140).map(lambda power: 10.0**power))
        other = rows.copy()
        other[who % len(rows)] = data.draw(hnp.arrays(np.float64, rows.shape[1], elements=ANY))
        centre = data.draw(hnp.arrays(np.float64, rows.shape[1], elements=ANY))
        one, two = (clipped_residuals(x, centre, np.ones(len(rows), bool), radius, len(rows))[0] for x in (rows, other))
        moved = [Fraction(float(a)) - Fraction(float(b)) for a, b in zip(one, two, strict=True)]
        assert sum(x * x for x in moved) <= Fraction(mean_sensitivity(1.0, len(rows))) ** 2

    @given(rows=ROWS, norm=NORMS, data=st.data())
    @fast
    def test_the_order_of_rows_changes_no_bit(self, rows, norm, data):
        order = data.draw(st.permutations(range(len(rows))))
        answered = np.ones(len(rows), bool)
        one, two = (clipped_residuals(x, None, answered, norm, 8) for x in (rows, rows[order]))
        assert one[0].tobytes() == two[0].tobytes()
        assert one[1].tolist() == two[1].tolist()
        assert one[2] == two[2]

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

    @pytest.mark.parametrize("reduction", [ClippedSum(1e-3, 4), ClippedSum(1e3, 4), NormCountSum(1e-3, 4)])
    def test_zeros_are_counted_and_never_as_shortened(self, reduction):
        for width in (1, 4, 9):
            sums = reduction.of(np.zeros((3, width)), np.ones(3, bool))
            assert (sums.answered, sums.clipped) == (3, 0)
            assert not sums.total.any()

    @pytest.mark.parametrize("reduction", [ClippedSum, NormCountSum])
    def test_a_norm_that_is_a_whole_number_clips_as_any_other(self, reduction):
        rows, answered = np.random.default_rng(3).normal(size=(9, 4)), np.ones(9, bool)
        for centre in (np.zeros(4), np.ones(4, np.int64)):
            whole, other = (reduction(norm, 9, centre=centre).of(rows, answered) for norm in (1, 1.0))
            assert whole.total.tolist() == other.total.tolist() != ClippedSum(1.0, 9).of(rows, ~answered).total.tolist()

    @pytest.mark.parametrize("reduction", [ClippedSum, NormCountSum])
    def test_a_centre_of_another_shape_is_refused(self, reduction):
        with pytest.raises(ConfigError, match=r"centre of shape \(4,\)"):
            reduction(1.0, 9, centre=np.zeros(3)).of(np.zeros((9, 4)), np.ones(9, bool))

    def test_an_absent_user_is_in_no_share_and_adds_exactly_zero(self):
        rows = np.array([[1.0, 0.0], [0.0, 0.0], [np.nan, 1e300]])
        answered = np.array([True, False, False])
        mean, shares, clipped = clipped_residuals(rows, np.array([0.5, 0.0]), answered, 1.0, 2)
        assert (mean.tolist(), shares[1:3].tolist(), clipped) == ([0.25, 0.0], [1, 1], 0)

    def test_public_mistakes_are_refused_by_name(self):
        rows, everyone = np.ones((2, 3)), np.ones(2, bool)
        with pytest.raises(ConfigError, match=r"Expected a centre of shape \(3,\), got \(1, 3\)"):
            clipped_residuals(rows, np.ones((1, 3)), everyone, 1.0, 2)
        with pytest.raises(ConfigError, match=r"Expected norm in \(1e-150, 1e150\), got norm=0\.0"):
            clipped_residuals(rows, None, everyone, 0.0, 2)
        with pytest.raises(ConfigError, match=r"Expected at most 64 \* divisor rows, got 65 with divisor=1"):
            clipped_residuals(np.ones((65, 1)), None, np.ones(65, bool), 1.0, 1)


class TestClippedSum:
    @given(ROWS, NORMS, st.data())
    @fast
    def test_sums_of_parts_add_to_the_sums_of_the_whole(self, rows, norm, data):
        answered = np.array(data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))))
        cut = data.draw(st.integers(0, len(rows)))
        reduction = ClippedSum(norm, len(rows), rows[0])
        whole = reduction.of(rows, answered)
        parts = reduction.of(rows[cut:], answered[cut:]) + reduction.of(rows[:cut], answered[:cut])
        assert np.array_equal(parts.total, whole.total)
        assert np.array_equal(parts.cells, whole.cells)
        assert (parts.clipped, parts.answered) == (whole.clipped, whole.answered)

    def test_more_answers_than_the_sum_can_hold_give_no_mean(self):
        reduction = ClippedSum(1.0, 1)
        with pytest.raises(ConfigError, match="at most 64"):
            reduction.mean(reduction.of(np.zeros((65, 1)), np.ones(65, bool)))


class TestNormCountSum:
    @pytest.mark.parametrize(("outputs", "length", "width"), [(1, 4, 3), (3, 2, 2), (50, 12, 12)])
    def test_of_a_transform_it_is_the_sum_of_rows_each_part_of_which_was_multiplied(self, outputs, length, width):
        draw = np.random.default_rng(7)
        rows, transform = draw.standard_normal((40, outputs * length)), draw.standard_normal((length, width))
        rows[3], rows[5, 0], answered = 1e-200, np.nan, draw.random(40) < 0.8
        centre = 0.1 * draw.standard_normal(outputs * width)
        whole = np.kron(np.eye(outputs), transform)  # as large as nobody should hold it
        sums = NormCountSum(5.0, 40, transform, centre).of(rows, answered)
        expected = NormCountSum(5.0, 40).of(rows @ whole - centre, answered)
        np.testing.assert_allclose(sums.total, expected.total, rtol=1e-6, atol=1e-12 * 2.0 ** sum_bits(0, 40))
        np.testing.assert_allclose(sums.cells, expected.cells, rtol=1e-9, atol=1e-12 * 2.0 ** sum_bits(0, 40))
        assert (sums.clipped, sums.answered) == (expected.clipped, expected.answered)

    @pytest.mark.parametrize("held", [1, 7, 30, 100_000])
    def test_a_transform_is_applied_to_few_rows_at_a_time_and_to_any_number_with_the_same_bits(self, monkeypatch, held):
        draw = np.random.default_rng(8)
        rows, transform, answered = draw.standard_normal((50, 6)), draw.standard_normal((3, 3)), draw.random(50) < 0.8
        reduction = NormCountSum(2.0, 50, transform, draw.standard_normal(6))
        whole = reduction.of(rows, answered)
        monkeypatch.setattr(norm_counts_loops, "BLOCK", held)
        sums = reduction.of(rows, answered)
        assert np.array_equal(sums.total, whole.total)
        assert np.array_equal(sums.cells, whole.cells)
        assert (sums.clipped, sums.answered) == (whole.clipped, whole.answered)


def test_vectors_at_acute_angles_need_root_two_or_one_and_nothing_else_has_a_sensitivity():
    assert acute_sensitivity(3.0, 10) == pytest.approx(3 * 2**0.5 / 10)
    assert acute_sensitivity(3.0, 10, "zero-out") == pytest.approx(0.3)
    with pytest.raises(ConfigError, match="got adjacency='none'"):
        acute_sensitivity(3.0, 10, "none")


def test_no_adjacency_has_no_sensitivity():
    for sensitivity in (mean_sensitivity, acute_sensitivity):
        with pytest.raises(ConfigError, match="adjacency"):
            sensitivity(1.0, 10, "none")
