"""A compiled function that is called by its address gets what it is handed, and another address another function."""

import numpy as np
from numba import cfunc, njit, types

from quoron_privacy.kernels.compiled import run

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
