"""Compiled loops of `clipping`, `free_counts` and `two_servers.rows`: norms and exact sums.

Norms neither overflow nor fall short; clipped rows are added as whole steps, exact in any order. Proofs:
docs/privacy/noise.md#n6, free-presence.md#p3, private-mean.md#m1 and two-servers.md#rows.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numba import carray, types  # type: ignore[attr-defined]
from numpy.typing import NDArray

from quoron_privacy.arrays import Integers, Mask, Matrix, Vector
from quoron_privacy.kernels.prebuilt import cfunc, njit
from quoron_privacy.kernels.simd import (
    WIDTH,
    add_whole,
    aligned,
    alike,
    first_lanes,
    fused,
    keep,
    lanes,
    larger,
    max_of,
    minus,
    over,
    plus,
    sum_of,
    sums_of,
    times,
    whole,
)
from quoron_privacy.kernels.threads import in_pieces

Numbers = NDArray[np.floating]  # float32 or float64
_ULP = 2.0**-52
_FEW = 64  # rows whose norms are taken at a time
_pointer: Any = types.CPointer
_NUMBERS, _INTEGERS, _FLAGS = (_pointer(kind) for kind in (types.float64, types.int64, types.boolean))
# rows, how many, their length; centre, answered; norm, unit; total and counts to add to
SUMMING: Any = types.void(
    _NUMBERS, types.intp, types.intp, _NUMBERS, _FLAGS, types.float64, types.float64, _INTEGERS, _INTEGERS
)

PIECE = 1 << 16  # numbers of rows that one thread looks at at a time
_LEAST = 1e-250  # of the square of a norm: below it products have lost digits, and a norm may come out too short
_STILL = 1e-10  # of a mean square, below which all items are at a place
_EIGHT = 2 * WIDTH  # numbers of a row at a time; those of `aligned` are filled up to it

BLOCK = 1 << 18  # numbers of transformed rows that are held at a time: 2 MB


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
def _largest(row: Numbers) -> float:
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


@njit(cache=True, error_model="numpy")
def square_norms(flat: Numbers, count: int, dimension: int, centre: Vector, out: Vector) -> None:
    """‖row - centre‖² of `count` rows; `out` has room for three more."""
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
def add_cut(
    flat: Numbers, dimension: int, centre: Vector, chosen: Integers, count: int, factors: Vector, total: Integers
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
    """Return whether a sum of squares is far from overflow and underflow, so that it is as exact as it looks."""
    return (square > 1e-250) & (square < 1e250)


@njit(cache=True, error_model="numpy")
def add_unusual(
    flat: Numbers, first: int, dimension: int, centre: Vector, norm: float, unit: float, row: Vector, total: Integers
) -> tuple[float, bool]:
    """Add ⌊clip(row - centre) · unit / norm⌋ of a row that begins at `first` and whose square overflows or vanishes.

    Return a number above ‖clip(row - centre)‖ / norm, and whether the row was shortened. A row that is not finite adds
    nothing and has -1. `row` is for work.
    """
    for j in range(dimension):
        row[j] = flat[first + j] - centre[j]
    largest, s, _ = shrink(row, norm)
    if s < 0.0:
        return -1.0, False
    square = 0.0
    for j in range(dimension):
        row[j] = row[j] / largest
        square += row[j] ** 2
        total[j] += np.int64(row[j] * s * unit)
    above = 1 + (dimension + 8) * _ULP
    return np.sqrt(square) * above * s * (1 + 4 * _ULP), 0.0 < s < largest / norm  # zeros are as short as can be


@njit(cache=True, nogil=True, error_model="numpy")
def added(
    rows: Numbers,
    centre: Vector,
    answered: Mask,
    norm: float,
    unit: float,
    largest: float,
    total: Integers,
    counts: Integers,
) -> None:
    """Add over answered rows, exactly: c = ⌊clip(row - centre) · unit / norm⌋ towards zero; its shares; those clipped.

    `counts` (6,) are of shares, rows that were clipped, and rows that have answered: one that is not finite or has a
    coordinate beyond a finite `largest` has not. Shares are q = ⌊(1 - a) · unit⌋, whether a <= 2/3, that it is here,
    and its soft share. With a' = 1 - q / unit, of a rounded up, ‖c‖ <= a' · unit, and the other shares are functions of
    a' (free-presence#p3, free-presence#ac1). Rows are contiguous, of float32 or float64.
    """
    (number, dimension), every, here = rows.shape, rows.reshape(-1), np.empty(_FEW, np.bool_)
    squares, factors, chosen, row = np.empty(_FEW + 3), np.empty(_FEW), np.empty(_FEW, np.int64), np.empty(dimension)
    unclipped, above = unit / norm, 1 + (dimension + 8) * _ULP
    step = 1.0 / unit  # exact: a power of two, wherever shares are read
    left = near = present = soft = shortened = came = 0
    # The square of a norm bounds all coordinates, where it is that of the row itself.
    enough = min(largest * largest, 1e300) if not centre.any() else -1.0
    # Few rows at a time: they are read for their norms and again, from cache, for their sum.
    for first in range(0, number, _FEW):
        few, good, flat = min(_FEW, number - first), 0, every[first * dimension :]
        square_norms(flat, few, dimension, centre, squares)
        for i in range(few):
            here[i] = answered[first + i]
            if largest < np.inf and not squares[i] <= enough:
                here[i] &= 0.0 <= _largest(flat[i * dimension : (i + 1) * dimension]) <= largest
            came += here[i]
        # All rows without a branch, several at once: that costs less than to pick out those that count.
        for i in range(few):
            # The norm is rounded up by more than its error, so the factor is never too large (noise#n6).
            root, chosen[i] = np.sqrt(squares[i]) * above, i
            factors[i] = min(unclipped, unit / root)
            counted = here[i] & usual(squares[i])
            a = root * (factors[i] * step) * (1 + 4 * _ULP)  # above ‖c‖
            # What the clipped row's norm leaves of 1, rounded down: the two together stay within their bound.
            short = np.floor((max(1.0 - a, 0.0) if counted else 0.0) * unit * (1 - 4 * _ULP))
            good += int(counted)
            left += whole(short)
            near += int(counted & (3 * short >= unit))
            soft += whole(soft_share(short, unit))
            shortened += int(counted & (factors[i] < unclipped))
        present += good
        if good < few:
            good = 0
            for i in range(few):
                if not here[i]:
                    continue
                if usual(squares[i]):
                    chosen[good] = i
                    good += 1
                    continue
                a, cut = add_unusual(flat, i * dimension, dimension, centre, norm, unit, row, total)
                if a >= 0.0:
                    short = np.floor(max(1.0 - a, 0.0) * unit * (1 - 4 * _ULP))
                    left += whole(short)
                    near += int(3 * short >= unit)
                    present += 1
                    soft += whole(soft_share(short, unit))
                    shortened += int(cut)
        add_cut(flat, dimension, centre, chosen, good, factors, total)
    counts[0] += left
    counts[1] += near
    counts[2] += present
    counts[3] += soft
    counts[4] += shortened
    counts[5] += came


@cache
def clipped_sum() -> Any:
    """Return the loop for calls by its address: compiled on first use, not when this module is imported."""
    return cfunc(SUMMING, cache=True, error_model="numpy")(_added)


def _added(
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
    here, around = carray(answered, number), carray(centre, dimension)
    out, cells = carray(total, dimension), carray(counts, 6)
    added(carray(rows, (number, dimension)), around, here, norm, unit, np.inf, out, cells)


@njit(cache=True, error_model="numpy")
def soft_share(short: float, unit: float) -> float:
    """⌊min(1, √(x (4 - 3x))) unit⌋, or less by roundings, for x = short / unit: from 1 at x >= 1/3 to 0 at 0."""
    x = short * (1.0 / unit)  # exact for a power of two, and not a division for each row
    part = np.floor(np.sqrt(x * (4.0 - 3.0 * x)) * (1 - 4 * _ULP) * unit)
    return unit if 3 * short >= unit else float(part)


def each_piece(block: NDArray[np.float64], start: int, work: Callable[[NDArray[np.float64], slice], object]) -> None:
    """work(some rows of a block, where they stand) for all of them, on all threads; the first one stands at `start`."""
    length = block.shape[1]

    def part(first: int, last: int) -> None:
        work(block[first:last], slice(start + first, start + last))

    in_pieces(part, len(block), length, max(1, PIECE // length))


@njit(cache=True)
def _whiten_moment(factor, transform, plain, scaled, product, moment):  # type: ignore[no-untyped-def]
    """(largest entry m, Frobenius norm) of Lᵀ (U / m)ᵀ (U / m) L, left in `moment`; m = -1 where it is not finite.

    A norm below 10⁻¹²⁵ is zero: what is left of so small numbers has no digits to be clipped by.
    No library product: its order of additions, so its bits, may change with the number of threads.
    """
    # m leaves the factor first, so that no product overflows; the caller puts m² back as a logarithm or a quotient.
    d, width = transform.shape
    largest, finite = 0.0, True
    for value in factor:
        finite &= np.isfinite(value)
        largest = max(largest, abs(value))
    if not finite:
        return -1.0, 0.0
    if largest == 0.0:
        moment[:] = 0.0
        return 1.0, 0.0
    # A user of few items has few rows that are not zero, the first ones. Zeros below would change no bit of a sum.
    last = len(factor)
    while factor[last - 1] == 0.0:
        last -= 1
    for place in range(last):
        scaled[place] = factor[place] / largest
    tall, end = 0, 0
    while end < last:
        end += d - tall
        tall += 1
    scaled[last:end] = 0.0
    # U L, U upper triangular: its packed rows, from the diagonal on, times the rows of L. Every entry is one sum in the
    # order of its terms, eight entries at a time. Where L is `plain`, the identity, these are U's rows, to the bit.
    flat, rows, out = transform.reshape(-1), product.reshape(-1), moment.reshape(-1)
    first = 0
    for i in range(tall):
        for j in range(d if plain else 0):
            rows[i * width + j] = scaled[first + j] if j >= i else 0.0
        for c in range(0, 0 if plain else width, _EIGHT):
            low, high = alike(0.0), alike(0.0)
            for j in range(i, d):
                weight = alike(scaled[first + j])
                low = plus(low, times(weight, lanes(flat, j * width + c)))
                high = plus(high, times(weight, lanes(flat, j * width + c + WIDTH)))
            keep(rows, i * width + c, low)
            keep(rows, i * width + c + WIDTH, high)
        first += d - i - 1
    # (U L)ᵀ(U L), the upper triangle and a little more; infinities stand on the diagonal all the same.
    square, beside = 0.0, 0.0
    for r in range(d):
        low_squares, high_squares, block = alike(0.0), alike(0.0), r // _EIGHT * _EIGHT
        for c in range(block, width, _EIGHT):
            low, high = alike(0.0), alike(0.0)
            for i in range(min(tall, r + 1) if plain else tall):  # below, U has zeros
                weight = alike(rows[i * width + r])
                low = plus(low, times(weight, lanes(rows, i * width + c)))
                high = plus(high, times(weight, lanes(rows, i * width + c + WIDTH)))
            keep(out, r * width + c, low)
            keep(out, r * width + c + WIDTH, high)
            if c > block:
                low_squares, high_squares = fused(low, low, low_squares), fused(high, high, high_squares)
        beside += sum_of(plus(low_squares, high_squares))
        square += moment[r, r] ** 2
        for c in range(r + 1, min(block + _EIGHT, d)):
            beside += moment[r, c] ** 2
    square += 2 * beside
    if not np.isfinite(square):
        return -1.0, 0.0
    return (largest, np.sqrt(square)) if square > _LEAST else (1.0, 0.0)


@njit(cache=True)
def _room(transform):  # type: ignore[no-untyped-def]
    """L filled up with zeros, whether it is the identity, and room for a factor, U L and a moment."""
    d = len(transform)
    filled, plain = aligned(d, d), True
    for row in range(d):  # a whole assignment is checked by what takes three seconds to compile
        for column in range(d):
            filled[row, column] = transform[row, column]
            plain &= filled[row, column] == (1.0 if row == column else 0.0)
    return filled, plain, np.empty(d * (d + 1) // 2), aligned(d, d), aligned(d, d)


@njit(cache=True, nogil=True)
def moment_logs(factors, transform, out):  # type: ignore[no-untyped-def]
    """out[u] = ln ‖Lᵀ UᵀU L‖ of every factor U; NaN where not finite."""
    filled, plain, scaled, product, moment = _room(transform)
    for user in range(len(factors)):
        largest, norm = _whiten_moment(factors[user], filled, plain, scaled, product, moment)
        if largest < 0:
            out[user] = np.nan
        else:
            out[user] = np.log(norm) + 2 * np.log(largest) if norm > 0 else -np.inf


@njit(cache=True, nogil=True)
def sum_moments(factors, answered, transform, radius, unit, across=1.0):  # type: ignore[no-untyped-def]
    """Exact Σ ⌊A · unit / B⌋ towards zero over answered rows, upper triangle by rows, and how many rows there are.

    Entries off the diagonal are multiplied by unit · `across`.
    """
    d, here = len(transform), 0
    filled, plain, scaled, product, moment = _room(transform)
    width, nothing, step = filled.shape[1], alike(0.0), alike(unit * across)
    whole, diagonal = np.zeros(d * width, np.int64), np.zeros(d, np.int64)
    for user in range(len(factors)):
        if not answered[user]:
            continue
        largest, norm = _whiten_moment(factors[user], filled, plain, scaled, product, moment)
        if largest < 0:
            continue
        here += 1
        if norm == 0.0:
            continue
        # Clipped to norm one by a norm that is rounded up; products before sums, so m² never stands alone.
        above = norm * (1 + (d * d + 8) * _ULP)
        shrunk, flat = min(largest / radius * largest, 1.0 / above), moment.reshape(-1)
        scale = alike(shrunk)
        for r in range(d):
            diagonal[r] += np.int64(moment[r, r] * shrunk * unit)
            for at in range(r * width + r // WIDTH * WIDTH, (r + 1) * width, WIDTH):
                add_whole(whole, at, times(times(lanes(flat, at), scale), step), nothing, nothing, nothing)
    total, place = np.empty(d * (d + 1) // 2, np.int64), 0
    for r in range(d):
        for c in range(r, d):
            total[place] = diagonal[r] if r == c else whole[r * width + c]
            place += 1
    return total, here


@njit(cache=True)
def vector_logs(values, transform, out):  # type: ignore[no-untyped-def]
    """out[u] = ln ‖Lᵀ g‖ of every vector g, of which L is for each part; NaN where not finite."""
    numbers = values.shape[1] // transform.shape[0] * transform.shape[1]
    rows, zero = np.empty((_FEW, numbers)), np.zeros(numbers)
    for user in range(len(values)):
        if user % _FEW == 0:
            some = values[user : user + _FEW]
            whitened(some, transform, zero, rows[: len(some)])
        row = rows[user % _FEW]
        largest, s, _ = shrink(row, 1.0)
        if s < 0:
            out[user] = np.nan
        elif s == 0:
            out[user] = -np.inf
        else:
            square = 0.0
            for value in row:
                square += (value / largest) ** 2
            out[user] = np.log(largest) + 0.5 * np.log(square)


@njit(cache=True, nogil=True)
def sum_columns(factors, answered, windows, scale, constant, weights, total):  # type: ignore[no-untyped-def]
    """Add ⌊weight · (m, s, q, z)⌋ towards zero of every answered factor, six rows of k numbers; how many there are.

    Columns are sums of squares of a column of U less c times the last one, so that nothing cancels.
    """
    k = windows.shape[1]
    d, here = k + int(constant), 0
    square, row = np.zeros((d, d)), np.zeros(6 * k)
    for user in range(len(factors)):
        if not answered[user]:
            continue
        largest, finite, place = 0.0, True, 0
        for value in factors[user]:
            finite &= np.isfinite(value)
            largest = max(largest, abs(value))
        if not finite:
            continue
        largest = largest if largest > 0 else 1.0
        tall = i = 0  # rows of U up to the last that is not zero: those of few items are few
        while place < factors.shape[1]:
            for j in range(i, d):
                square[i, j] = factors[user, place] / largest
                if square[i, j] != 0.0:
                    tall = i + 1
                place += 1
            i += 1
        mass = 1.0
        if constant:
            mass = 0.0
            for i in range(tall):
                mass += square[i, d - 1] ** 2
            if mass < _LEAST:
                continue
        own = 1.0 if constant else largest * scale
        usable = True
        for j in range(k):
            centre, width = windows[0, j], windows[1, j]
            cross, around, low, middle, high = 0.0, 0.0, 0.0, 0.0, 0.0
            for i in range(tall):
                last = square[i, d - 1] if constant else 0.0
                value = square[i, j] * own if i <= j else 0.0
                cross += value * last
                around += (value - centre * last) ** 2
                low += (value + last) ** 2
                middle += value**2
                high += (value - last) ** 2
            mean = (cross / mass - centre) / width if constant else 0.0
            spread = np.sqrt(around / mass) / width
            usable &= not (np.isnan(mean) or np.isnan(spread))
            mean = min(max(mean, -1.0), 1.0)
            spread = min(max(spread, abs(mean)), 1.0)
            row[j], row[k + j], row[2 * k + j] = mean, spread, spread * spread
            row[3 * k + j] = 1.0 if constant and low <= _STILL * mass else 0.0
            row[4 * k + j] = 1.0 if middle <= _STILL * mass else 0.0
            row[5 * k + j] = 1.0 if constant and high <= _STILL * mass else 0.0
        if not usable:
            continue
        here += 1
        for kind in range(6):
            for j in range(k):
                total[kind * k + j] += np.int64(row[kind * k + j] * weights[kind])
    return here


def sum_norm_counts(
    values: Matrix, answered: Mask, transform: Matrix, centre: Vector, radius: float, unit: float
) -> tuple[Integers, Integers, int]:
    """Over answered rows: exact Σ ⌊c · unit⌋ towards zero; the shares of their norms, (4,); how many were clipped.

    A row of several parts of as many numbers as `transform` is for is clipped as one.
    """
    total, counts, d = np.zeros(len(centre), np.int64), np.zeros(6, np.int64), len(centre)
    here = np.ascontiguousarray(answered, np.bool_)
    few, zero = max(1, BLOCK // max(1, d)), np.zeros(d)
    room = np.empty((min(few, len(values)), d))
    for first in range(0, len(values), few):
        some = values[first : first + few]
        rows = room[: len(some)]
        whitened(some, transform, centre, rows)
        added(rows, zero, here[first : first + few], float(radius), float(unit), np.inf, total, counts)
    return total, counts[:4], int(counts[4])


@njit(cache=True, nogil=True)
def whitened(values, transform, centre, out):  # type: ignore[no-untyped-def]
    """out = Lᵀ value - centre of every row; Lᵀ of each part of a value that is several times as long as L.

    Four rows at a time, eight columns of L in cache; the order of each sum is that of its terms.
    """
    length, width = transform.shape
    users, parts, panel = len(values), values.shape[1] // length, aligned(length, _EIGHT).reshape(-1)
    around, found = aligned(parts, width + _EIGHT), aligned(4, _EIGHT).reshape(-1)
    for part in range(parts):
        for j in range(width):
            around[part, j] = -centre[part * width + j]
    stride, start = around.shape[1], around.reshape(-1)
    for first in range(0, width, _EIGHT):
        some = min(_EIGHT, width - first)
        for i in range(length):
            for j in range(some):
                panel[i * _EIGHT + j] = transform[i, first + j]
        for user in range(0, users, 4):
            one, two, three = min(user + 1, users - 1), min(user + 2, users - 1), min(user + 3, users - 1)
            for part in range(parts):
                own, place = part * length, part * stride + first
                a = c = e = g = lanes(start, place)
                b = d = f = h = lanes(start, place + WIDTH)
                for i in range(length):
                    low, high = lanes(panel, i * _EIGHT), lanes(panel, i * _EIGHT + WIDTH)
                    p, q = alike(values[user, own + i]), alike(values[one, own + i])
                    r, s = alike(values[two, own + i]), alike(values[three, own + i])
                    a, b = plus(a, times(p, low)), plus(b, times(p, high))
                    c, d = plus(c, times(q, low)), plus(d, times(q, high))
                    e, f = plus(e, times(r, low)), plus(f, times(r, high))
                    g, h = plus(g, times(s, low)), plus(h, times(s, high))
                for at, value in enumerate((a, b, c, d, e, f, g, h)):
                    keep(found, at * WIDTH, value)
                for row in range(min(4, users - user)):
                    for j in range(some):
                        out[user + row, part * width + first + j] = found[row * _EIGHT + j]


@njit(cache=True, nogil=True, error_model="numpy")
def add_norm_counts(rows, centre, answered, norm, unit, steps, weights, soft, total, shares):  # type: ignore[no-untyped-def]
    """Add ⌊w₀ c · unit⌋ to `total` and ⌊w (1 - a, within or h, here) · steps⌋ to `shares`, over answered rows.

    c = clip(row - centre) / norm and a above ‖c‖; all cut towards zero. Rows are (k, d), contiguous, weights (4,).
    """
    number, dimension = rows.shape
    every, above, own = rows.reshape(-1), 1 + (dimension + 8) * _ULP, weights[0] * unit
    squares, factors, chosen, row = np.empty(_FEW + 3), np.empty(_FEW), np.empty(_FEW, np.int64), np.empty(dimension)
    present = np.int64(weights[3] * steps)
    for first in range(0, number, _FEW):
        few, good, flat = min(_FEW, number - first), 0, every[first * dimension :]
        square_norms(flat, few, dimension, centre, squares)
        for i in range(few):
            factors[i] = min(own / norm, own / (np.sqrt(squares[i]) * above))
        for i in range(few):
            if not answered[first + i]:
                continue
            if usual(squares[i]):
                a = np.sqrt(squares[i]) * above * (factors[i] / own) * (1 + 4 * _ULP)  # above ‖c‖
                chosen[good] = i
                good += 1
            else:
                a, _ = add_unusual(flat, i * dimension, dimension, centre, norm, own, row, total)
                if a < 0.0:
                    continue
            # What the norm leaves of 1, rounded down: shares are functions of it, so that they fit to a longer vector.
            left = max(1.0 - a, 0.0) * (1 - 4 * _ULP)
            near = 1.0 if left > 1 / 3 else 0.0  # the float is below a third
            if soft and near == 0.0:
                near = np.sqrt(left * (4.0 - 3.0 * left)) * (1 - 4 * _ULP)
            shares[0] += np.int64(weights[1] * left * steps * (1 - 4 * _ULP))
            shares[1] += np.int64(weights[2] * near * steps * (1 - 4 * _ULP * (near < 1.0)))
            shares[2] += present
        add_cut(flat, dimension, centre, chosen, good, factors, total)
