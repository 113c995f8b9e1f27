"""Eight numbers at a time: each operation is what it says, number by number, and reads nothing it was not told to."""

import numpy as np
import pytest
from numba import njit

from quoron_privacy.lanes import (
    WIDTH,
    aligned,
    alike,
    first_lanes,
    fused,
    keep,
    lanes,
    larger,
    max_of,
    over,
    plus,
    sum_of,
)

FLOATS = pytest.mark.parametrize("dtype", [np.float32, np.float64])


@njit
def copied(values, index, out):
    keep(out, 0, lanes(values, index))


@njit
def few(values, index, count, out):
    keep(out, 0, first_lanes(values, index, count))


@njit
def combined(a, b, c, out):
    keep(out, 0, fused(lanes(a, 0), lanes(b, 0), lanes(c, 0)))
    keep(out, 8, over(lanes(a, 0), lanes(b, 0)))
    keep(out, 16, plus(lanes(a, 0), alike(c[0])))
    keep(out, 24, larger(lanes(a, 0), lanes(b, 0)))


@njit
def joined(values):
    return sum_of(lanes(values, 0)), max_of(lanes(values, 0))


@FLOATS
def test_eight_numbers_are_read_from_where_they_are_and_widened(dtype):
    values, out = np.random.default_rng(0).standard_normal(30).astype(dtype), np.empty(WIDTH)
    for index in range(23):
        copied(values, index, out)
        np.testing.assert_array_equal(out, values[index : index + WIDTH].astype(np.float64))


@FLOATS
def test_what_is_past_the_first_few_is_zero_whatever_is_there(dtype):
    values, out = np.full(2 * WIDTH, np.nan, dtype), np.empty(WIDTH)
    values[:4] = 1.5
    for count in range(5):
        few(values, 0, count, out)
        np.testing.assert_array_equal(out, np.where(np.arange(WIDTH) < count, 1.5, 0.0))


def test_operations_are_those_of_single_numbers_and_a_fused_one_rounds_once():
    rng = np.random.default_rng(1)
    a, b, c = rng.standard_normal((3, WIDTH))
    out = np.empty(4 * WIDTH)
    combined(a, b, c, out)
    exact = a.astype(np.longdouble) * b + c
    np.testing.assert_array_equal(out[:8], exact.astype(np.float64))
    np.testing.assert_array_equal(out[8:16], a / b)
    np.testing.assert_array_equal(out[16:24], a + c[0])
    np.testing.assert_array_equal(out[24:], np.where(np.abs(b) > a, np.abs(b), a))


def test_nan_is_never_larger():
    a, b, out = np.zeros(WIDTH), np.full(WIDTH, np.nan), np.empty(4 * WIDTH)
    combined(a, b, a, out)
    np.testing.assert_array_equal(out[24:], 0.0)


def test_a_sum_has_the_order_that_is_written_down():
    for seed in range(50):
        a = np.random.default_rng(seed).standard_normal(WIDTH) * 10.0 ** np.arange(WIDTH)
        found, most = joined(a)
        assert found == ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]))
        assert most == a.max()


@pytest.mark.parametrize("columns", [1, 8, 13])
def test_aligned_rows_are_zero_padded_and_start_on_cache_lines(columns):
    rows = aligned(3, columns)
    assert rows.shape == (3, -(-columns // WIDTH) * WIDTH)
    assert not rows.any()
    assert all(row.ctypes.data % 64 == 0 for row in rows)
