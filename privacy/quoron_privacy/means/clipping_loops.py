"""The loops of `clipping`: norms that neither overflow nor fall short, and exact sums of clipped rows.

What they sum and why it is exact: docs/privacy/noise.md#n6.
"""

from functools import cache
from typing import Any

import numpy as np
from numba import carray, types  # type: ignore[attr-defined]
from numpy.typing import NDArray

from quoron_privacy.kernels.compiled import run
from quoron_privacy.kernels.lanes import (
    WIDTH,
    add_whole,
    alike,
    first_lanes,
    fused,
    keep,
    lanes,
    larger,
    max_of,
    minus,
    over,
    sum_of,
    sums_of,
    times,
)
from quoron_privacy.kernels.shipped import cfunc, njit

Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]
Mask = NDArray[np.bool_]
Integers = NDArray[np.int64]

_ULP = 2.0**-52
_FEW = 64  # rows whose norms are taken at a time
_pointer: Any = types.CPointer
_NUMBERS, _INTEGERS, _FLAGS = (_pointer(kind) for kind in (types.float64, types.int64, types.boolean))
# rows, how many, their length; centre, answered; norm, unit; total and counts to add to
SUMMING: Any = types.void(
    _NUMBERS, types.intp, types.intp, _NUMBERS, _FLAGS, types.float64, types.float64, _INTEGERS, _INTEGERS
)


@njit(cache=True)
def shrink(row: Vector, norm: float) -> tuple[float, float, float]:
    """(largest coordinate m, s, length): row / m * s has norm at most one, s = m / norm if that is enough.

    s = -1 marks a row that is not finite, a row of zeros has s = 0; both come with m = 1. Norms are computed after
    division by m, so nothing overflows or underflows, and s allows for more than the error of the norm. `row` is
    contiguous.
    """
    largest = _largest(row)
    if largest < 0.0:
        return 1.0, -1.0, np.inf
    if largest == 0.0:
        return 1.0, 0.0, 0.0
    whole, rest = len(row) // WIDTH * WIDTH, len(row) % WIDTH
    # Divided by the largest first: squares of 1e200 would overflow, those of 1e-200 vanish, and the norm be wrong.
    squares, divisor = alike(0.0), alike(largest)
    for j in range(0, whole, WIDTH):
        part = over(lanes(row, j), divisor)
        squares = fused(part, part, squares)
    if rest > 0:
        part = over(first_lanes(row, whole, rest), divisor)
        squares = fused(part, part, squares)
    root = np.sqrt(sum_of(squares))
    return largest, _limit(largest, root, len(row), norm), largest * root


@njit(cache=True)
def _largest(row: Vector) -> float:
    """Largest magnitude of a contiguous row; -1 if anything is not finite."""
    whole, rest = len(row) // WIDTH * WIDTH, len(row) % WIDTH
    most = nothing = zero = alike(0.0)
    for j in range(0, whole, WIDTH):
        part = lanes(row, j)
        most, nothing = larger(most, part), fused(part, zero, nothing)  # 0 · v is 0 for finite v, else NaN
    if rest > 0:
        part = first_lanes(row, whole, rest)
        most, nothing = larger(most, part), fused(part, zero, nothing)
    return max_of(most) if sum_of(nothing) == 0.0 else -1.0


@njit(cache=True)
def _limit(largest: float, root: float, count: int, norm: float) -> float:
    return min(largest / norm, 1.0 / (root * (1 + (count + 8) * _ULP)))


@njit(cache=True)
def clip(rows: Matrix, norm: float) -> None:
    """Shorten rows that are longer than `norm`, in place; those that are not finite become zeros."""
    for i in range(len(rows)):
        largest, s, _ = shrink(rows[i], norm)
        if s < 0:
            rows[i] = 0.0
        elif s < largest / norm:
            for j in range(rows.shape[1]):
                rows[i, j] = rows[i, j] / largest * s * norm


@njit(cache=True, nogil=True)
def added(
    adding: int,
    rows: Matrix,
    centre: Vector,
    answered: Mask,
    norm: float,
    unit: float,
    total: Integers,
    counts: Integers,
) -> None:
    """Call the loop of a `LoopReduction`: `total` and `counts` grow by what it makes of contiguous rows."""
    # A whole number would be handed over as one, and the loop would find any number at all in its place.
    run(adding, (rows, len(rows), rows.shape[1], centre, answered, float(norm), float(unit), total, counts))


@cache
def clipped_sum() -> Any:
    """The compiled loop: on first use, not when this module is imported."""
    return cfunc(SUMMING, cache=True, error_model="numpy")(_sum_clipped)


@njit(cache=True, error_model="numpy")
def square_norms(flat: Vector, count: int, dimension: int, centre: Vector, out: Vector) -> None:
    """‖row - centre‖² of `count` rows, with `centre`; `out` has room for three more."""
    whole, rest = dimension // WIDTH * WIDTH, dimension % WIDTH
    for i in range(0, count, 4):
        # Four rows side by side, the last one repeated where fewer are left: sums of a row are in one order in either
        # case.
        p, q = i * dimension, min(i + 1, count - 1) * dimension
        r, s = min(i + 2, count - 1) * dimension, min(i + 3, count - 1) * dimension
        a = b = c = d = alike(0.0)
        for j in range(0, whole, WIDTH):
            at = lanes(centre, j)
            e, f = minus(lanes(flat, p + j), at), minus(lanes(flat, q + j), at)
            g, h = minus(lanes(flat, r + j), at), minus(lanes(flat, s + j), at)
            a, b, c, d = fused(e, e, a), fused(f, f, b), fused(g, g, c), fused(h, h, d)
        if rest > 0:
            at = first_lanes(centre, whole, rest)
            e, f = minus(first_lanes(flat, p + whole, rest), at), minus(first_lanes(flat, q + whole, rest), at)
            g, h = minus(first_lanes(flat, r + whole, rest), at), minus(first_lanes(flat, s + whole, rest), at)
            a, b, c, d = fused(e, e, a), fused(f, f, b), fused(g, g, c), fused(h, h, d)
        keep(out, i, sums_of(a, b, c, d))


@njit(cache=True, error_model="numpy")
def clip_factors(
    flat: Vector, count: int, dimension: int, centre: Vector, norm: float, unit: float, squares: Vector, factors: Vector
) -> None:
    """‖row - centre‖² of `count` rows, as `square_norms`, and min(1/norm, 1/‖row - centre‖↑) · unit (noise#n6)."""
    square_norms(flat, count, dimension, centre, squares)
    # The norm is rounded up by more than its error, so the factor is never too large: the bound of noise#n6 is certain.
    unclipped, above = unit / norm, 1 + (dimension + 8) * _ULP
    for i in range(count):
        factors[i] = min(unclipped, unit / (np.sqrt(squares[i]) * above))


@njit(cache=True, error_model="numpy")
def add_cut(
    flat: Vector, dimension: int, centre: Vector, chosen: Integers, count: int, factors: Vector, total: Integers
) -> None:
    """total += ⌊(row - centre) · factor⌋, towards zero, over `count` chosen rows; exact in any order."""
    whole = dimension // WIDTH * WIDTH
    for i in range(0, count, 4):
        # A row that is not there is the last one again, with the factor 0: it adds integers 0.
        at, to = chosen[i], chosen[min(i + 1, count - 1)]
        up, on = chosen[min(i + 2, count - 1)], chosen[min(i + 3, count - 1)]
        a, b = factors[at], factors[to] if i + 1 < count else 0.0
        c, d = factors[up] if i + 2 < count else 0.0, factors[on] if i + 3 < count else 0.0
        p, q, r, s = at * dimension, to * dimension, up * dimension, on * dimension
        e, f, g, h = alike(a), alike(b), alike(c), alike(d)
        for j in range(0, whole, WIDTH):
            less = lanes(centre, j)
            add_whole(
                total,
                j,
                times(minus(lanes(flat, p + j), less), e),
                times(minus(lanes(flat, q + j), less), f),
                times(minus(lanes(flat, r + j), less), g),
                times(minus(lanes(flat, s + j), less), h),
            )
        for j in range(whole, dimension):
            total[j] += np.int64((flat[p + j] - centre[j]) * a) + np.int64((flat[q + j] - centre[j]) * b)
            total[j] += np.int64((flat[r + j] - centre[j]) * c) + np.int64((flat[s + j] - centre[j]) * d)


@njit(cache=True)
def usual(square: float) -> bool:
    """Whether a sum of squares is far from overflow and underflow, so that it is as exact as it looks."""
    return 1e-250 < square < 1e250


def _sum_clipped(
    rows: Any,
    number: int,
    dimension: int,
    centre: Any,
    answered: Any,
    norm: float,
    unit: float,
    total: Any,
    counts: Any,
) -> None:
    """Add over answered rows, exactly: c = ⌊clip(row - centre) · unit / norm⌋ towards zero; its shares; those clipped.

    Shares are q = ⌊(1 - a) · unit⌋, whether a <= 2/3, that it is here, and its soft share. With a' = 1 - q / unit, of a
    rounded up, ‖c‖ <= a' · unit, and the other shares are functions of a' (free-presence#p3, adaptive-clip#ac1).
    """
    every, around, here = carray(rows, number * dimension), carray(centre, dimension), carray(answered, number)
    sums, shares = carray(total, dimension), carray(counts, 5)
    squares, factors, chosen, row = np.empty(_FEW + 3), np.empty(_FEW), np.empty(_FEW, np.int64), np.empty(dimension)
    unclipped, above = unit / norm, 1 + (dimension + 8) * _ULP
    # Few rows at a time: they are read for their norms and again, from cache, for their sum.
    for first in range(0, number, _FEW):
        few, good, flat = min(_FEW, number - first), 0, every[first * dimension :]
        clip_factors(flat, few, dimension, around, norm, unit, squares, factors)
        for i in range(few):
            # Norms of all rows were taken above, answered or not: that costs less than to pick them out.
            if not here[first + i]:
                continue
            if usual(squares[i]):
                a = np.sqrt(squares[i]) * above * (factors[i] / unit) * (1 + 4 * _ULP)  # above ‖c‖
                shortened = factors[i] < unclipped
                chosen[good] = i
                good += 1
            else:
                # Squares that overflow or vanish: the slow way, which divides first. Rows that are not finite count as
                # no answer.
                for j in range(dimension):
                    row[j] = flat[i * dimension + j] - around[j]
                largest, s, _ = shrink(row, norm)
                if s < 0.0:
                    continue
                square = 0.0
                for j in range(dimension):
                    row[j] = row[j] / largest
                    square += row[j] ** 2
                a = np.sqrt(square) * above * s * (1 + 4 * _ULP)  # above ‖row · s‖
                shortened = 0.0 < s < largest / norm  # zeros are as short as can be
                for j in range(dimension):
                    sums[j] += np.int64(row[j] * s * unit)
            # What the clipped row's norm leaves of 1, rounded down: the two together stay within their bound.
            short = int(max(1.0 - a, 0.0) * unit * (1 - 4 * _ULP))
            shares[0] += short
            shares[1] += int(3 * short >= int(unit))
            shares[2] += 1
            shares[3] += soft_share(short, unit)
            shares[4] += int(shortened)
        add_cut(flat, dimension, around, chosen, good, factors, sums)


@njit(cache=True, error_model="numpy")
def soft_share(short: int, unit: float) -> int:
    """⌊min(1, √(x (4 - 3x))) unit⌋, or less by roundings, for x = short / unit: from 1 at x >= 1/3 to 0 at 0."""
    if 3 * short >= int(unit):
        return int(unit)
    x = short / unit
    return int(np.sqrt(x * (4.0 - 3.0 * x)) * (1 - 4 * _ULP) * unit)
