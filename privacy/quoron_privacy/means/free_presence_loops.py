"""The loops of `free_presence`: moments and vectors in the metric that was released, their sizes and exact sums."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.kernels.lanes import WIDTH, aligned, alike, keep, lanes, plus, times
from quoron_privacy.kernels.shipped import njit
from quoron_privacy.kernels.threads import in_pieces
from quoron_privacy.means.clipping_loops import shrink

PIECE = 1 << 16  # numbers of rows that one thread looks at at a time
_ULP = 2.0**-52
_LEAST = 1e-250  # of the square of a norm: below it products have lost digits, and a norm may come out too short
_STILL = 1e-10  # of a mean square, below which all items are at a place
_EIGHT = 2 * WIDTH  # numbers of a row at a time; those of `aligned` are filled up to it


def each_piece(block: NDArray[np.float64], start: int, work: Callable[[NDArray[np.float64], slice], object]) -> None:
    """work(some rows of a block, where they stand) for all of them, on all threads; the first one stands at `start`."""
    length = block.shape[1]

    def part(first: int, last: int) -> None:
        work(block[first:last], slice(start + first, start + last))

    in_pieces(part, len(block), length, max(1, PIECE // length))


@njit(cache=True)
def _whiten_moment(factor, transform, scaled, product, moment):  # type: ignore[no-untyped-def]
    """(largest entry m, Frobenius norm) of Lᵀ (U / m)ᵀ (U / m) L, left in `moment`; m = -1 where it is not finite.

    A norm below 10⁻¹²⁵ is zero: what is left of so small numbers has no digits to be clipped by.
    No library product: its order of additions, so its bits, may change with the number of threads.
    """
    # m leaves the factor first, so that no product overflows; whoever calls puts m² back as a logarithm or a quotient.
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
    # order of its terms, eight entries at a time.
    flat, rows, out = transform.reshape(-1), product.reshape(-1), moment.reshape(-1)
    first = 0
    for i in range(tall):
        for c in range(0, width, _EIGHT):
            low, high = alike(0.0), alike(0.0)
            for j in range(i, d):
                weight = alike(scaled[first + j])
                low = plus(low, times(weight, lanes(flat, j * width + c)))
                high = plus(high, times(weight, lanes(flat, j * width + c + WIDTH)))
            keep(rows, i * width + c, low)
            keep(rows, i * width + c + WIDTH, high)
        first += d - i - 1
    # (U L)ᵀ(U L), the upper triangle and a little more; infinities stand on the diagonal all the same.
    for r in range(d):
        for c in range(r // _EIGHT * _EIGHT, width, _EIGHT):
            low, high = alike(0.0), alike(0.0)
            for i in range(tall):
                weight = alike(rows[i * width + r])
                low = plus(low, times(weight, lanes(rows, i * width + c)))
                high = plus(high, times(weight, lanes(rows, i * width + c + WIDTH)))
            keep(out, r * width + c, low)
            keep(out, r * width + c + WIDTH, high)
    square = 0.0
    for r in range(d):
        square += moment[r, r] ** 2
        for c in range(r + 1, d):
            square += 2 * moment[r, c] ** 2
    if not np.isfinite(square):
        return -1.0, 0.0
    return (largest, np.sqrt(square)) if square > _LEAST else (1.0, 0.0)


@njit(cache=True)
def _room(transform):  # type: ignore[no-untyped-def]
    """L filled up with zeros, and room for a factor, U L and a moment."""
    d = len(transform)
    filled = aligned(d, d)
    for row in range(d):  # a whole assignment is checked by what takes three seconds to compile
        for column in range(d):
            filled[row, column] = transform[row, column]
    return filled, np.empty(d * (d + 1) // 2), aligned(d, d), aligned(d, d)


@njit(cache=True, nogil=True)
def moment_logs(factors, transform, out):  # type: ignore[no-untyped-def]
    """out[u] = ln ‖Lᵀ UᵀU L‖ of every factor U; NaN where not finite."""
    filled, scaled, product, moment = _room(transform)
    for user in range(len(factors)):
        largest, norm = _whiten_moment(factors[user], filled, scaled, product, moment)
        if largest < 0:
            out[user] = np.nan
        else:
            out[user] = np.log(norm) + 2 * np.log(largest) if norm > 0 else -np.inf


@njit(cache=True, nogil=True)
def sum_moments(factors, answered, transform, radius, unit, across=1.0):  # type: ignore[no-untyped-def]
    """Exact Σ ⌊A · unit / B⌋ towards zero over answered rows, upper triangle by rows, and how many rows there are.

    Entries off the diagonal are multiplied by unit · `across`.
    """
    d = len(transform)
    total, here = np.zeros(d * (d + 1) // 2, np.int64), 0
    filled, scaled, product, moment = _room(transform)
    for user in range(len(factors)):
        if not answered[user]:
            continue
        largest, norm = _whiten_moment(factors[user], filled, scaled, product, moment)
        if largest < 0:
            continue
        here += 1
        if norm == 0.0:
            continue
        # Clipped to norm one by a norm that is rounded up; products before sums, so m² never stands alone.
        above = norm * (1 + (d * d + 8) * _ULP)
        shrunk = min(largest / radius * largest, 1.0 / above)
        place = 0
        for r in range(d):
            for c in range(r, d):
                total[place] += np.int64(moment[r, c] * shrunk * (unit if r == c else unit * across))
                place += 1
    return total, here


@njit(cache=True)
def whiten(value, transform, centre, out):  # type: ignore[no-untyped-def]
    """out = Lᵀ value - centre; Lᵀ of each part of a value that is several times as long as L."""
    length, width = transform.shape
    for j in range(len(out)):
        out[j] = -centre[j]
    for part in range(len(value) // length):
        first, place = part * length, part * width
        for i in range(length):
            for j in range(width):
                out[place + j] += value[first + i] * transform[i, j]


@njit(cache=True)
def vector_logs(values, transform, out):  # type: ignore[no-untyped-def]
    """out[u] = ln ‖Lᵀ g‖ of every vector g, of which L is for each part; NaN where not finite."""
    numbers = values.shape[1] // transform.shape[0] * transform.shape[1]
    row, zero = np.empty(numbers), np.zeros(numbers)
    for user in range(len(values)):
        whiten(values[user], transform, zero, row)
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
        tall = 0  # rows of U up to the last that is not zero: those of few items are few
        for i in range(d):
            for j in range(i, d):
                square[i, j] = factors[user, place] / largest
                if square[i, j] != 0.0:
                    tall = i + 1
                place += 1
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
