"""Compiled kernels: lanes, threads, loops behind an address, and roots are what they say, number by number."""

import math
import threading
from functools import partial

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given
from hypothesis import strategies as st
from numba import cfunc, njit, types

from quoron_privacy.accounts.roots import root
from quoron_privacy.kernels.compiled import run
from quoron_privacy.kernels.simd import (
    SINGLES,
    WIDTH,
    add_whole,
    aligned,
    alike,
    first_lanes,
    fused,
    held,
    keep,
    keep_first,
    lanes,
    larger,
    max_of,
    minus,
    over,
    plus,
    pointer,
    single,
    singles,
    sum_of,
    sums_of,
    times,
    turned,
)
from quoron_privacy.kernels.threads import at_once, in_pieces

FLOATS = pytest.mark.parametrize("dtype", [np.float32, np.float64])


@njit
def few(values, index, count, out):
    keep(out, 0, first_lanes(values, index, count))


@njit
def combined(a, b, c, out):
    keep(out, 0, fused(lanes(a, 0), lanes(b, 0), lanes(c, 0)))
    keep(out, 4, over(lanes(a, 0), lanes(b, 0)))
    keep(out, 8, plus(lanes(a, 0), alike(c[0])))
    keep(out, 12, larger(lanes(a, 0), lanes(b, 0)))
    keep(out, 16, minus(lanes(a, 0), lanes(b, 0)))
    keep(out, 20, times(lanes(a, 0), lanes(b, 0)))
    keep(out, 24, held(lanes(a, 0), alike(abs(c[0]))))


@njit
def joined(values):
    return sum_of(lanes(values, 0)), max_of(lanes(values, 0))


@njit
def four_sums(values, out):
    keep(out, 0, sums_of(lanes(values, 0), lanes(values, 4), lanes(values, 8), lanes(values, 12)))


@njit
def kept(values, index, count, out):
    keep_first(out, index, count, lanes(values, 0))


@njit
def added(total, values):
    add_whole(total, 1, lanes(values, 0), lanes(values, 4), lanes(values, 8), lanes(values, 12))


@njit
def through_a_pointer(values, out):
    for i in range(2):
        keep(pointer(out), 4 * i, lanes(pointer(values), 4 * i))


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
    out = np.empty(7 * WIDTH)
    combined(a, b, c, out)
    exact = a.astype(np.longdouble) * b + c
    np.testing.assert_array_equal(out[:4], exact.astype(np.float64))
    np.testing.assert_array_equal(out[4:8], a / b)
    np.testing.assert_array_equal(out[8:12], a + c[0])
    np.testing.assert_array_equal(out[12:16], np.where(np.abs(b) > a, np.abs(b), a))
    np.testing.assert_array_equal(out[16:20], a - b)
    np.testing.assert_array_equal(out[20:24], a * b)
    np.testing.assert_array_equal(out[24:], np.clip(a, -abs(c[0]), abs(c[0])))


def test_nan_is_never_larger_and_is_not_hidden_by_a_bound():
    a, b, out = np.zeros(WIDTH), np.full(WIDTH, np.nan), np.empty(7 * WIDTH)
    combined(a, b, a, out)
    np.testing.assert_array_equal(out[12:16], 0.0)
    combined(b, a, a, out)
    assert np.isnan(out[24:]).all()


def test_a_sum_has_the_order_that_is_written_down():
    for seed in range(50):
        a = np.random.default_rng(seed).standard_normal(WIDTH) * 10.0 ** np.arange(WIDTH)
        found, most = joined(a)
        assert found == (a[0] + a[2]) + (a[1] + a[3])
        assert most == a.max()


def test_four_sums_at_once_have_the_bits_of_each():
    for seed in range(50):
        values, out = np.random.default_rng(seed).standard_normal((4, WIDTH)), np.empty(WIDTH)
        four_sums(values.reshape(-1), out)
        np.testing.assert_array_equal(out, [joined(row)[0] for row in values])


@pytest.mark.parametrize("count", range(6))
def test_no_more_than_the_first_few_are_written(count):
    out = np.zeros(8)
    kept(np.arange(1.0, 5.0), 2, count, out)
    np.testing.assert_array_equal(out, [0, 0, *np.where(np.arange(4) < count, np.arange(1.0, 5.0), 0), 0, 0])


def test_numbers_are_cut_towards_zero_and_added_exactly():
    values = np.random.default_rng(2).uniform(-1, 1, (4, WIDTH)) * 2.0**51
    values[:2] = [2.0**51, -(2.0**51), 0.75, -0.75], [2.0**51 - 0.5, 0.5 - 2.0**51, -0.0, 1.0]
    total = np.array([7, 2**61, -(2**61), 1, 0, 9])
    expected = total.tolist()
    for row in values:
        for j in range(WIDTH):
            expected[1 + j] += int(row[j])
    added(total, values.reshape(-1))
    assert total.tolist() == expected


def test_a_pointer_reads_and_writes_what_the_array_holds():
    values, out = np.arange(8, dtype=np.float32), np.zeros(8)
    through_a_pointer(values, out)
    np.testing.assert_array_equal(out, values)


@pytest.mark.parametrize("columns", [1, 8, 13])
def test_aligned_rows_are_zero_padded_and_start_on_cache_lines(columns):
    rows = aligned(3, columns)
    assert rows.shape == (3, -(-columns // 8) * 8)
    assert not rows.any()
    assert all(row.ctypes.data % 64 == 0 for row in rows)


@njit
def sixteen(a, b, c, out):
    keep(out, 0, fused(singles(a, 0), singles(b, 1), single(c)))
    keep(out, 16, over(singles(a, 0), singles(b, 1)))
    keep(out, 32, times(singles(a, 0), singles(b, 1)))


@FLOATS
def test_sixteen_at_a_time_are_float32_and_rounded_once(dtype):
    rng = np.random.default_rng(4)
    a, b, c, out = rng.normal(size=16).astype(dtype), rng.normal(size=17).astype(dtype), 0.1, np.empty(48, np.float32)
    sixteen(a, b, c, out)
    x, y = a.astype(np.float32), b[1:].astype(np.float32)
    exact = x.astype(np.longdouble) * y.astype(np.longdouble) + np.longdouble(np.float32(c))  # 48 bits and an addition
    np.testing.assert_array_equal(out[:16], exact.astype(np.float32))
    np.testing.assert_array_equal(out[16:32], x / y)
    np.testing.assert_array_equal(out[32:], x * y)


@njit
def side_by_side(values, begins, index, count, out):
    turned(values, begins, index, count, out, 16)


@FLOATS
@pytest.mark.parametrize("count", [1, 7, 16])
def test_rows_turn_into_columns_and_nothing_else_is_read(dtype, count):
    values = np.full(200, np.nan, dtype)
    begins = np.arange(SINGLES)[::-1] * 12  # they overlap, but for their ends
    for j in range(count):
        values[begins + 3 + j] = begins + 3 + j
    out = np.full(16 * 18, -1.0, np.float32)
    side_by_side(values[: begins[0] + 3 + count], begins, 3, count, out)
    expected = np.zeros((16, 16), np.float32)
    for j in range(count):
        expected[j] = values[begins + 3 + j]
    np.testing.assert_array_equal(out[16:-16].reshape(16, 16), expected)
    assert (np.concatenate([out[:16], out[-16:]]) == -1.0).all()


def test_an_error_of_another_thread_is_the_callers_and_the_next_call_is_as_the_first():
    mine, met = threading.get_ident(), threading.Barrier(2)

    def work():
        met.wait(60)  # so that both threads have one
        if threading.get_ident() != mine:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        at_once([work, work], 2)
    done = []
    at_once([partial(done.append, number) for number in range(9)], 2)
    assert sorted(done) == list(range(9))


@pytest.mark.parametrize("failing", [0, 5, 39])
def test_an_error_is_raised_when_nothing_is_at_work_any_more(failing):
    begun, over = [], []

    def work(number):
        begun.append(number)
        if number == failing:
            raise ZeroDivisionError
        over.append(number)

    with pytest.raises(ZeroDivisionError):
        at_once([partial(work, number) for number in range(40)], 4)
    assert sorted(begun) == sorted([*over, failing])


@pytest.mark.parametrize("rows", [0, 1, 7, 8, 9, 40])
def test_pieces_begin_at_multiples_and_cover_all_rows(rows):
    found = []
    in_pieces(lambda first, last: found.append((first, last)), rows, 1 << 20, 8)
    assert sorted(found) == [(first, min(first + 8, rows)) for first in range(0, rows, 8)]


SIGNATURE = types.void(types.CPointer(types.float64), types.CPointer(types.int64), types.intp, types.float64)


@cfunc(SIGNATURE)
def scaled(numbers, integers, count, factor):
    for i in range(count):
        numbers[i] = factor * numbers[i] + integers[i]


@cfunc(SIGNATURE)
def filled(numbers, integers, count, factor):
    for i in range(count):
        numbers[i] = factor


@njit
def called(address, numbers, integers, factor):
    run(address, (numbers, integers, len(numbers), factor))


def test_a_loop_runs_what_it_is_told_to():
    numbers, integers = np.arange(3.0), np.array([10, 20, 30])
    called(scaled.address, numbers, integers, 2.0)
    np.testing.assert_array_equal(numbers, [10, 22, 34])
    called(filled.address, numbers, integers, 0.5)
    np.testing.assert_array_equal(numbers, 0.5)


FUNCTIONS = {
    "line": lambda x, at: x - at,
    "cube": lambda x, at: (x - at) ** 3,
    "cliff": lambda x, at: math.tanh(1e4 * (x - at)),
    "exponential": lambda x, at: math.exp(3 * x) - math.exp(3 * at),
    "step": lambda x, at: 1.0 if x > at else -1.0,
    "tiny": lambda x, at: 1e-200 * math.sinh(x - at),
}


@given(
    name=st.sampled_from(sorted(FUNCTIONS)),
    at=st.floats(-5, 5),
    below=st.floats(0, 20),
    above=st.floats(0, 20),
    xtol=st.sampled_from([1e-300, 1e-15, 2e-12, 1e-4]),
    rtol=st.sampled_from([4 * 2.0**-52, 1e-13, 1e-6]),
)
def test_has_the_bits_of_scipys_brentq(
    name: str, at: float, below: float, above: float, xtol: float, rtol: float
) -> None:
    def function(x: float) -> float:
        return FUNCTIONS[name](x, at)

    low, high = at - below, at + above
    if function(low) * math.copysign(1, function(high)) > 0:
        return
    expected, _ = scipy.optimize.brentq(function, low, high, xtol=xtol, rtol=rtol, full_output=True, disp=False)
    assert root(function, low, high, xtol=xtol, rtol=rtol) == expected
