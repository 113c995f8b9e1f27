"""The loops of `norm_counts`: exact sums of clipped vectors, with what their norms say (free-presence#p3)."""

from functools import cache
from typing import Any

import numpy as np
from numba import carray, cfunc, njit  # type: ignore[attr-defined]
from numpy.typing import NDArray

from quoron_privacy.means.clipping_loops import SUMMING, add_cut, added, clip_factors, shrink, usual
from quoron_privacy.means.free_presence_loops import whiten

Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]
Mask = NDArray[np.bool_]
Integers = NDArray[np.int64]

_ULP = 2.0**-52
_FEW = 64  # rows whose norms are taken at a time


def sum_norm_counts(
    values: Matrix, answered: Mask, transform: Matrix, centre: Vector, radius: float, unit: float
) -> tuple[Integers, Integers, int]:
    """Over answered rows: exact Σ ⌊c · unit⌋ towards zero; Σ ⌊(1 - a) unit⌋, how many a ≤ ⅔, how many; clipped ones."""
    rows, around = values, centre
    if len(transform):
        rows, around = np.empty((len(values), len(centre))), np.zeros(len(centre))
        _whitened(values, transform, centre, rows)
    total, counts = np.zeros(len(centre), np.int64), np.zeros(5, np.int64)
    here = np.ascontiguousarray(answered, np.bool_)
    added(norm_count_sum().address, rows, around, here, radius, radius, unit, total, counts)
    return total, counts[:3], int(counts[4])


@cache
def norm_count_sum() -> Any:
    """The compiled loop: on first use, not when this module is imported."""
    return cfunc(SUMMING, cache=True, error_model="numpy")(_add_norm_counts)


def _add_norm_counts(
    rows: Any,
    number: int,
    dimension: int,
    centre: Any,
    answered: Any,
    radius: float,
    quantile: float,
    unit: float,
    total: Any,
    counts: Any,
) -> None:
    """Add over answered rows what `sum_norm_counts` says; `quantile` is not looked at.

    With a' = 1 - ⌊(1 - a) unit⌋ / unit, of a rounded up, ‖c as added‖ ≤ a', and a' ≤ ⅔ is decided in whole numbers.
    """
    every, around, here = carray(rows, number * dimension), carray(centre, dimension), carray(answered, number)
    sums, shares = carray(total, dimension), carray(counts, 5)
    squares, factors, chosen, row = np.empty(_FEW + 3), np.empty(_FEW), np.empty(_FEW, np.int64), np.empty(dimension)
    unclipped, above = unit / radius, 1 + (dimension + 8) * _ULP
    for first in range(0, number, _FEW):
        few, good, flat = min(_FEW, number - first), 0, every[first * dimension :]
        clip_factors(flat, few, dimension, around, radius, unit, squares, factors)
        for i in range(few):
            if not here[first + i]:
                continue
            if usual(squares[i]):
                a = np.sqrt(squares[i]) * above * (factors[i] / unit) * (1 + 4 * _ULP)  # above ‖c‖
                shortened = factors[i] < unclipped
                chosen[good] = i
                good += 1
            else:
                # Squares that overflow or vanish: divided by the largest coordinate first, as in `clipping_loops`.
                for j in range(dimension):
                    row[j] = flat[i * dimension + j] - around[j]
                largest, s, _ = shrink(row, radius)
                if s < 0.0:
                    continue
                square = 0.0
                for j in range(dimension):
                    row[j] = row[j] / largest
                    square += row[j] ** 2
                a = np.sqrt(square) * above * s * (1 + 4 * _ULP)  # above ‖row · s‖
                shortened = 0.0 < s < largest / radius  # zeros are as short as can be
                for j in range(dimension):
                    sums[j] += np.int64(row[j] * s * unit)
            # What the clipped row's norm leaves of 1, rounded down: the two together stay within their bound.
            short = np.int64(max(1.0 - a, 0.0) * unit * (1 - 4 * _ULP))
            shares[0] += short
            shares[1] += int(3 * short >= np.int64(unit))
            shares[2] += 1
            shares[4] += int(shortened)
        add_cut(flat, dimension, around, chosen, good, factors, sums)


@njit(cache=True)
def _whitened(values, transform, centre, out):  # type: ignore[no-untyped-def]
    for user in range(len(values)):
        whiten(values[user], transform, centre, out[user])
