"""Compiled loops of `concentration`: scores, bounds and sums of kept rows, bit-identical for any number of threads."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.arrays import Mask, Matrix, Vector
from quoron_privacy.kernels.prebuilt import njit
from quoron_privacy.kernels.threads import all_threads, at_once, in_pieces

Blocks = NDArray[np.float64]  # (blocks, d, BLOCK): rows of the matrix as columns, padded with zeros

BLOCK = 64
_PIECE = 1 << 12  # rows that one thread looks at
_SMALL = 1 << 22  # differences below which other threads cost more than they save

PIECE = 1 << 12  # users whose sums one thread makes

_BLOCK = 512  # rows with a sum of their own: rounding grows with 512 + B/512, not with B


@njit(cache=True)
def decay(x: float) -> float:
    """exp(-x) for 0 <= x < 25, exp(-25) beyond: the 256th power of a Taylor polynomial, in plain IEEE operations.

    A library's exponential may differ by position in a vector; then an entry would not be a function of two rows.
    """
    # x/256 is small enough for seven terms; then eight squarings bring the 256 back.
    y = (x if x < 25.0 else 25.0) * (1.0 / 256.0)
    series = 1.0 - y * (1.0 / 7.0 - y * (1.0 / 56.0))
    series = 1.0 / 120.0 - y * (1.0 / 720.0) * series
    series = 1.0 - y * (1.0 / 2.0 - y * (1.0 / 6.0 - y * (1.0 / 24.0 - y * series)))
    power = 1.0 - y * series
    for _ in range(8):
        power = power * power
    return power


@njit(cache=True)
def _squared_distances(row: Vector, columns: Matrix, out: Vector) -> None:
    """‖row - column‖² for each of BLOCK columns; the order of summation is that of the coordinates."""
    for j in range(BLOCK):
        out[j] = 0.0
    for k in range(len(row)):
        coordinate = row[k]
        for j in range(BLOCK):
            difference = coordinate - columns[k, j]
            out[j] += difference * difference


@njit(cache=True)
def _largest_differences(row: Vector, columns: Matrix, out: Vector) -> None:
    """‖row - column‖∞ for each of BLOCK columns."""
    for j in range(BLOCK):
        out[j] = 0.0
    for k in range(len(row)):
        coordinate = row[k]
        for j in range(BLOCK):
            difference = abs(coordinate - columns[k, j])
            out[j] = difference if difference > out[j] else out[j]


@njit(cache=True)
def _lengths(row: Vector, columns: Matrix, out: Vector) -> None:
    """‖row - column‖ for each of BLOCK columns."""
    _squared_distances(row, columns, out)
    for j in range(BLOCK):
        out[j] = math.sqrt(out[j])


@njit(cache=True)
def _kernel(row: Vector, columns: Matrix, used: int, tau: float, coordinatewise: bool, out: Vector) -> None:
    """exp(-τ‖row - column‖), or of ‖·‖∞, rounded to a multiple of RESOLUTION; zero for the columns that only pad."""
    if coordinatewise:
        _largest_differences(row, columns, out)
    else:
        _lengths(row, columns, out)
    for j in range(BLOCK):
        out[j] = np.floor(decay(tau * out[j]) * 2.0**34 + 0.5) * 2.0**-34
    for j in range(used, BLOCK):
        out[j] = 0.0


@njit(cache=True, fastmath={"reassoc"})
def _exact_sum(values: Vector) -> float:
    """Sum of multiples of RESOLUTION: exact, so its order is free."""
    total = 0.0
    for value in values:
        total += value
    return total


@njit(cache=True)
def _pack(gradients: Matrix, blocks: Blocks) -> None:
    users, dimension = gradients.shape
    for block in range(len(blocks)):
        first = block * BLOCK
        for j in range(min(BLOCK, users - first)):
            for k in range(dimension):
                blocks[block, k, j] = gradients[first + j, k]


@njit(cache=True, nogil=True)
def all_pairs(
    gradients: Matrix, blocks: Blocks, tau: float, coordinatewise: bool, lane: int, lanes: int, total: Vector
) -> None:
    """Each unordered pair of blocks once; lanes take block rows to and fro, so that they do equal work."""
    users, height = len(gradients), len(blocks)
    entries = np.empty(BLOCK)
    # Block row b has height - b blocks to do, so lanes take turns from either end.
    for turn in range((height + lanes - 1) // lanes):
        upper = turn * lanes + (lane if turn % 2 == 0 else lanes - 1 - lane)
        for lower in range(upper, height):
            first = lower * BLOCK
            used = min(BLOCK, users - first)
            for i in range(upper * BLOCK, min((upper + 1) * BLOCK, users)):
                # An entry is a function of its two rows alone, on a grid: sums are exact, in any order and on any
                # number of lanes.
                _kernel(gradients[i], blocks[lower], used, tau, coordinatewise, entries)
                total[i] += _exact_sum(entries)
                if lower > upper:
                    for j in range(used):
                        total[first + j] += entries[j]


@njit(cache=True, nogil=True)
def some_rows(points: Matrix, blocks: Blocks, users: int, tau: float, lane: int, lanes: int, total: Vector) -> None:
    """The same of some rows against all blocks."""
    entries = np.empty(BLOCK)
    for block in range(lane, len(blocks), lanes):
        for i in range(len(points)):
            _kernel(points[i], blocks[block], min(BLOCK, users - block * BLOCK), tau, False, entries)
            total[i] += _exact_sum(entries)


def on_lanes(loop: Callable[..., None], *arguments: Any, size: int, work: float) -> Vector:
    """Return the sum over lanes of what `loop` adds up in each: exact sums, bit-identical for any number of lanes."""
    lanes = all_threads() if work > _SMALL else 1
    sums = np.zeros((lanes, size))
    at_once([partial(loop, *arguments, lane, lanes, sums[lane]) for lane in range(lanes)], lanes)
    total: Vector = sums.sum(axis=0)
    return total


def pack(gradients: Matrix) -> Blocks:
    """Copy of `gradients` (k, d) in blocks of BLOCK columns, the layout in which distances are computed."""
    blocks = np.zeros((-(-len(gradients) // BLOCK), gradients.shape[1], BLOCK))
    _pack(gradients, blocks)
    return blocks


def distances(gradients: Matrix, point: Vector) -> Vector:
    """‖q_i - point‖ of every row, relative error at most (d/2 + 2)·2⁻⁵³; overflow gives inf."""
    users = len(gradients)
    out = np.empty(users)
    squares(gradients, point, np.zeros(users, np.bool_), out, np.empty(-(-users // PIECE)))
    return np.sqrt(out)


@njit(cache=True, nogil=True, fastmath={"reassoc"})
def _finite(gradients: Matrix, answered: NDArray[np.bool_], out: NDArray[np.bool_], first: int, last: int) -> None:
    """Rows `first` to `last` that are answered and finite."""
    for i in range(first, last):
        row, total = gradients[i], 0.0
        for k in range(len(row)):
            total += 0.0 * row[k]  # 0 · v is 0 for finite v, else NaN
        out[i] = answered[i] and total == 0.0


def finite(gradients: Matrix, answered: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which rows are answered and finite, (k,)."""
    out = np.empty(len(gradients), np.bool_)
    in_pieces(partial(_finite, gradients, answered, out), len(gradients), gradients.shape[1], _PIECE)
    return out


def shell(
    gradients: Matrix,
    centre: Vector,
    inner: float,
    outer: float,
    near: NDArray[np.bool_],
    totals: Matrix,
    largest: Vector,
) -> None:
    """`_shell` of all users."""
    made = partial(_shell, gradients, centre, inner, outer, near, totals, largest)
    in_pieces(made, len(gradients), gradients.shape[1], PIECE)


def squares(gradients: Matrix, point: Vector, near: NDArray[np.bool_], out: Vector, totals: Vector) -> None:
    """`_squares` of all users."""
    in_pieces(partial(_squares, gradients, point, near, out, totals), len(gradients), gradients.shape[1], PIECE)


def add_jensen(
    squares: Vector, spread: float, tau: float, scale: float, slack: float, members: int, total: Vector, dimension: int
) -> None:
    """`_add_jensen` of all users."""
    in_pieces(partial(_add_jensen, squares, spread, tau, scale, slack, members, total), len(squares), dimension, PIECE)


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _shell(
    gradients: Matrix,
    centre: Vector,
    inner: float,
    outer: float,
    near: NDArray[np.bool_],
    totals: Matrix,
    largest: Vector,
    first: int,
    last: int,
) -> None:
    """Users `first` to `last` whose distance from the centre is above `inner` and at most `outer`: marked in `near`;
    Σ (q_j - centre) and the largest distance.

    These are of the piece that begins at `first`.
    """
    # Sums may be in any order here: the bounds that are made of them have margins for that.
    total, farthest = np.zeros(len(centre)), 0.0
    for i in range(first, last):
        row, square = gradients[i], 0.0
        for k in range(len(centre)):
            square += (row[k] - centre[k]) * (row[k] - centre[k])
        radius = np.sqrt(square)
        near[i] = inner < radius <= outer
        if near[i]:
            farthest = max(farthest, radius)
            for k in range(len(centre)):
                total[k] += row[k] - centre[k]
    totals[first // PIECE], largest[first // PIECE] = total, farthest


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _squares(
    gradients: Matrix, point: Vector, near: NDArray[np.bool_], out: Vector, totals: Vector, first: int, last: int
) -> None:
    """‖q_i - point‖² of users `first` to `last`, and the sum of those in `near`, of the piece that begins there."""
    total = 0.0
    for i in range(first, last):
        row, square = gradients[i], 0.0
        for k in range(len(point)):
            square += (row[k] - point[k]) * (row[k] - point[k])
        out[i] = square
        total += square if near[i] else 0.0
    totals[first // PIECE] = total


@njit(cache=True, nogil=True)
def _add_jensen(
    squares: Vector,
    spread: float,
    tau: float,
    scale: float,
    slack: float,
    members: int,
    total: Vector,
    first: int,
    last: int,
) -> None:
    """total += members · exp(-τ (√(square + spread) (1 + scale) + slack)) of users `first` to `last`."""
    for i in range(first, last):
        total[i] += members * decay(tau * (np.sqrt(squares[i] + spread) * (1 + scale) + slack))


@njit(cache=True)
def neighbour_sums(gaps: Vector) -> Vector:
    """Σ_j exp(-|s_i - s_j|) for sorted s with gaps[i] = s_{i+1} - s_i >= 0: one sweep up, one down."""
    total = np.ones(len(gaps) + 1)
    below = above = 0.0
    for i in range(len(gaps)):
        below = (below + 1.0) * decay(gaps[i])
        total[i + 1] += below
        last = len(gaps) - 1 - i
        above = (above + 1.0) * decay(gaps[last])
        total[last] += above
    return total


def selected_sum(rows: Matrix, kept: Mask, scale: float) -> Vector:
    """Σ of the kept rows (k, d), times `scale`."""
    parts = np.empty((-(-len(rows) // _BLOCK), rows.shape[1]))
    in_pieces(partial(_selected_sums, rows, kept, scale, parts), len(rows), rows.shape[1], 8 * _BLOCK)
    total: Vector = _in_order(parts)
    return total


@njit(cache=True, nogil=True)
def _selected_sums(gradients: Matrix, kept: Mask, scale: float, parts: Matrix, first: int, last: int) -> None:
    """The sum of kept rows, times `scale`, of each block of rows among `first` to `last`."""
    for begin in range(first, last, _BLOCK):
        part = parts[begin // _BLOCK]
        part[:] = 0.0
        for i in range(begin, min(begin + _BLOCK, last)):
            if kept[i]:
                for k in range(gradients.shape[1]):
                    part[k] += gradients[i, k] * scale


@njit(cache=True)
def _in_order(parts: Matrix) -> Vector:
    """Their sum, one after the other."""
    total = np.zeros(parts.shape[1])
    for part in parts:
        total += part
    return total
