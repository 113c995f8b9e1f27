"""Compiled loops of `outlier_mean`: neighbour counts, weighted sums of answers in whole steps, heights of a ramp.

Distances to one centre decide whole blocks of pairs by the triangle inequality, matrix products most of the others, and
the rule, `squared_distance`, what lies within their certified error of the radius. So the counts are those of the rule
whatever the products' precision, blocking and threads. Proof: docs/privacy/outlier-mean.md.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.arrays import Integers, Mask, Matrix, Vector
from quoron_privacy.kernels.prebuilt import njit
from quoron_privacy.kernels.threads import all_threads, at_once
from quoron_privacy.robust.outlier_mean import distance_slack

Rule = Callable[[NDArray[np.float64], NDArray[np.float64]], float]
Single = NDArray[np.float32]

GRAM_HEIGHT = 512  # rows of a block
DEPTH = 1 << 13  # columns of a slice
STRETCH = 64  # heights of a ramp that are bounded together
GRAM_SAMPLE = 9  # rows whose median is the centre; any centre is valid, one in the middle leaves fewest pairs in doubt
UNIT_ROUNDOFF = 2.0**-53

HEIGHT, WIDTH, CHUNK = 512, 256, 128  # rows and columns of one product, and terms of one sum in it
ERROR = 64 * 2.0**-24  # of sums of one chunk, relative to the sum of absolute terms, inputs rounded too
WIDE = 1 << 15  # numbers from which answers are compared by blocks of their Gram matrix
SAMPLE = 1001  # rows that choose a centre; any centre is valid, one in the middle of the many is fast
VIEWS = 4  # centres tried before whatever is left is computed about the last one
REACH = 4.0  # in units of the largest radius: answers farther from a centre are left to the next one
FARTHEST = 1e17  # in the same units: products of farther answers could overflow in single precision


def certain_within(dimension: int) -> float:
    """e such that a squared distance by products errs by at most e (ρ + ρ')², and the rule as much again.

    ρ, ρ' are the rows' computed distances from the centre, by the same products.
    """
    return 3 * (dimension + 32) * UNIT_ROUNDOFF


def middle(rows: Matrix) -> NDArray[np.float64]:
    """Return a centre of rows (C, d), shape (d,)."""
    picked = np.linspace(0, len(rows) - 1, min(GRAM_SAMPLE, len(rows))).astype(np.int64)
    centre: NDArray[np.float64] = np.median(rows[picked], axis=0)
    return centre


def counts_by_gram(rows: Matrix, centre: NDArray[np.float64], radii: Sequence[float], rule: Rule) -> Integers:
    """Return counts for each radius, (len(radii), C), of finite rows (C, d): how many are within it, itself included.

    `rule` gives the squared distance of two rows, and decides by `rule(a, b) <= r * r` wherever products cannot.

    For answers of more than some ten thousand numbers: single-precision buffers would not fit, and their error would
    leave all pairs in doubt. Inner products of rows about a centre are summed in double precision over slices of
    columns. There is no random projection: a user could hide any shift in its kernel. Memory beyond the answers: three
    blocks. Proof: docs/privacy/outlier-mean.md, "Wide answers".
    """
    size, dimension = rows.shape
    limits = np.array([radius * radius for radius in radii])
    counts = np.zeros((len(radii), size), np.int64)
    blocks = [slice(first, min(first + GRAM_HEIGHT, size)) for first in range(0, size, GRAM_HEIGHT)]
    with np.errstate(all="ignore"):  # what overflows is in doubt
        squares = np.concatenate([_squares(rows, block, centre) for block in blocks])
        lengths = np.sqrt(squares)
        for upper, over in enumerate(blocks):
            for under in blocks[upper:]:
                distances = squares[over, None] + squares[None, under] - 2 * _product(rows, over, under, centre)
                band = certain_within(dimension) * (lengths[over, None] + lengths[None, under]) ** 2
                for k, limit in enumerate(limits):
                    near = distances + band < limit
                    for i, j in np.argwhere(~(near | (distances - band > limit))):
                        near[i, j] = rule(rows[over][i], rows[under][j]) <= limit
                    counts[k, over] += near.sum(axis=1)
                    if over != under:
                        counts[k, under] += near.sum(axis=0)
    return counts


def _squares(rows: Matrix, block: slice, centre: NDArray[np.float64]) -> NDArray[np.float64]:
    """Squared distances of a block of rows from the centre."""
    total = np.zeros(block.stop - block.start)
    for part in _slices(rows.shape[1]):
        moved = rows[block, part] - centre[part]
        total += np.einsum("ij,ij->i", moved, moved)
    return total


def _product(rows: Matrix, over: slice, under: slice, centre: NDArray[np.float64]) -> Matrix:
    """Inner products about the centre of two blocks of rows, by slices of columns."""
    total = np.zeros((over.stop - over.start, under.stop - under.start))
    for part in _slices(rows.shape[1]):
        left = rows[over, part] - centre[part]
        total += left @ (left if over == under else rows[under, part] - centre[part]).T
    return total


def _slices(dimension: int) -> Iterator[slice]:
    for first in range(0, dimension, DEPTH):
        yield slice(first, min(first + DEPTH, dimension))


@njit(cache=True, nogil=True)
def squared_distance(a: Vector, b: Vector) -> float:
    """‖a - b‖² by four interleaved sums: relative error below (d/4 + 5)·2⁻⁵³, the same bits for (b, a)."""
    first = second = third = fourth = 0.0
    whole = len(a) - len(a) % 4
    for k in range(0, whole, 4):
        first += (a[k] - b[k]) ** 2
        second += (a[k + 1] - b[k + 1]) ** 2
        third += (a[k + 2] - b[k + 2]) ** 2
        fourth += (a[k + 3] - b[k + 3]) ** 2
    for k in range(whole, len(a)):
        first += (a[k] - b[k]) ** 2
    return (first + third) + (second + fourth)


def counts(rows: Matrix, present: Mask, radii: Sequence[float]) -> Integers:
    """Return counts among the rows that are `present`, (len(radii), C); the others are left at 0."""
    if rows.shape[1] < WIDE:
        return _counts_by_bounds(rows, present, radii)
    found = np.zeros((len(radii), len(rows)), np.int64)
    if present.any():
        chosen = rows if present.all() else rows[present]
        found[:, present] = counts_by_gram(chosen, middle(chosen), radii, squared_distance)
    return found


def _counts_by_bounds(rows: Matrix, present: Mask, radii: Sequence[float]) -> Integers:
    counts = np.zeros((len(radii), len(rows)), np.int64)
    left = np.flatnonzero(present)
    for turn in range(VIEWS):
        if not len(left):
            break
        view = _observe(rows, left, max(radii))
        inner = len(left) if turn == VIEWS - 1 else int(np.searchsorted(view.distances, REACH * max(radii), "right"))
        counts[:, view.order] += _counts_in(view, inner, radii)
        left = view.order[inner:]
    return counts


@dataclass(frozen=True, slots=True, eq=False)
class _View:
    """Some answers as seen from one centre, nearest first."""

    rows: Matrix  # all answers
    centre: Vector
    order: Integers  # (n,) indices of the answers in view
    distances: Vector  # (n,) computed distances to the centre, ascending; inf where they overflow


def _observe(rows: Matrix, indices: Integers, radius: float) -> _View:
    """Return the view from the mean of what lies within `radius` of the sampled answer nearest the sample's median."""
    sample = rows[indices[np.linspace(0, len(indices) - 1, min(SAMPLE, len(indices))).astype(np.int64)]]
    every, half = np.arange(len(sample)), (len(sample) - 1) // 2
    median = np.ascontiguousarray(np.partition(sample, half, axis=0)[half])
    seed = sample[np.argmin(distances_to(sample, every, median))]
    close = sample[distances_to(sample, every, seed) <= radius]
    centre = seed + (close - seed).mean(axis=0)
    distances = distances_to(rows, indices, centre)
    order = np.argsort(distances, kind="stable")
    return _View(rows, centre, indices[order], distances[order])


@dataclass(frozen=True, slots=True)
class _Block:
    """Rows first:last of a view, and for each radius the columns start:stop that the centre leaves undecided."""

    first: int
    last: int
    spans: tuple[tuple[int, int], ...]


def _blocks(view: _View, inner: int, radii: Sequence[float]) -> Iterator[_Block]:
    """Blocks over the first `inner` answers: nearer columns are neighbours of the whole block, farther ones of none."""
    distances, slack = view.distances, 4 * distance_slack(view.rows.shape[1])
    first = 0
    while first < inner:
        # Within a block distances differ by a factor of two at most, or the certified error of near rows would grow.
        doubled = np.searchsorted(distances, max(2 * float(distances[first]), max(radii)), "right")
        last = min(first + HEIGHT, int(doubled), inner)
        outer = float(distances[last - 1])
        spans = []
        for radius in radii:
            start = np.searchsorted(distances, radius * (1 - slack) - outer, "right")
            stop = np.searchsorted(distances, (outer + radius) * (1 + slack), "right")
            spans.append((max(int(start), first), int(stop)))
        yield _Block(first, last, tuple(spans))
        first = last


def _counts_in(view: _View, inner: int, radii: Sequence[float]) -> Integers:
    """Neighbours among pairs with a member in the first `inner`, each pair from the block of its nearer member."""
    size = len(view.order)
    counts, steps = np.zeros((len(radii), size), np.int64), np.zeros((len(radii), size + 1), np.int64)
    open_ = []
    for block in _blocks(view, inner, radii):
        for k, (start, _) in enumerate(block.spans):
            counts[k, block.first : block.last] += start - block.first
            if start > block.last:
                steps[k, block.last] += block.last - block.first
                steps[k, start] -= block.last - block.first
        if any(start < stop for start, stop in block.spans):
            open_.append(block)
    counts += np.cumsum(steps, axis=1)[:, :-1]
    if not open_:
        return counts
    lanes = min(all_threads(), len(open_))
    parts = np.zeros((lanes, *counts.shape), np.int64)
    at_once([partial(_undecided, view, open_[lane::lanes], radii, parts[lane]) for lane in range(lanes)], lanes)
    found: Integers = counts + parts.sum(axis=0)
    return found


def _undecided(view: _View, blocks: Sequence[_Block], radii: Sequence[float], counts: Integers) -> None:
    """Add to the counts what the undecided columns of these blocks have."""
    dimension = view.rows.shape[1]
    depth = -(-(dimension + 2) // 4) * 4
    buffers = (
        np.zeros((HEIGHT, depth), np.float32),
        np.zeros((depth, WIDTH), np.float32),
        np.zeros((4, WIDTH), np.float32),
        np.zeros((HEIGHT, WIDTH), np.float32),
    )
    lengths = np.array(radii)
    for block in blocks:
        spans = np.array(block.spans, np.int64)
        _settle_block(
            view.rows,
            view.order,
            view.distances,
            view.centre,
            lengths,
            block.first,
            block.last,
            spans,
            counts,
            *buffers,
        )


@njit(cache=True, nogil=True)
def distances_to(rows: Matrix, indices: Integers, centre: Vector) -> Vector:
    """‖row - centre‖ for each of `indices`; overflow gives inf."""
    out = np.empty(len(indices))
    for i in range(len(indices)):
        out[i] = np.sqrt(squared_distance(rows[indices[i]], centre))
    return out


@njit(cache=True, nogil=True)
def _standardise(row: Vector, centre: Vector, scale: float, out: Single) -> None:
    """(row - centre) · scale in single precision."""
    for k in range(len(row)):
        out[k] = np.float32((row[k] - centre[k]) * scale)


@njit(cache=True, nogil=True)
def _multiply(left: Single, right: Single, part: Single, product: Single) -> None:
    """product = left @ right, four rows at a time; sums of CHUNK terms are added up, which keeps the error small."""
    for i in range(0, len(product), 4):
        # Short sums in `part`, sums of those in `product`: the error grows with chunks, not with coordinates.
        total0, total1, total2, total3 = product[i], product[i + 1], product[i + 2], product[i + 3]
        sum0, sum1, sum2, sum3 = part[0], part[1], part[2], part[3]
        product[i : i + 4] = 0.0
        for low in range(0, len(right), CHUNK):
            part[:] = 0.0
            for k in range(low, min(low + CHUNK, len(right)), 4):
                a0, a1, a2, a3 = left[i, k], left[i, k + 1], left[i, k + 2], left[i, k + 3]
                b0, b1, b2, b3 = left[i + 1, k], left[i + 1, k + 1], left[i + 1, k + 2], left[i + 1, k + 3]
                c0, c1, c2, c3 = left[i + 2, k], left[i + 2, k + 1], left[i + 2, k + 2], left[i + 2, k + 3]
                d0, d1, d2, d3 = left[i + 3, k], left[i + 3, k + 1], left[i + 3, k + 2], left[i + 3, k + 3]
                row0, row1, row2, row3 = right[k], right[k + 1], right[k + 2], right[k + 3]
                for j in range(WIDTH):
                    x0, x1, x2, x3 = row0[j], row1[j], row2[j], row3[j]
                    sum0[j] += a0 * x0 + a1 * x1 + a2 * x2 + a3 * x3
                    sum1[j] += b0 * x0 + b1 * x1 + b2 * x2 + b3 * x3
                    sum2[j] += c0 * x0 + c1 * x1 + c2 * x2 + c3 * x3
                    sum3[j] += d0 * x0 + d1 * x1 + d2 * x2 + d3 * x3
            for j in range(WIDTH):
                total0[j] += sum0[j]
                total1[j] += sum1[j]
                total2[j] += sum2[j]
                total3[j] += sum3[j]


@njit(cache=True, nogil=True)
def _tally(
    product: Single, low: int, sure: np.float32, possible: np.float32, mirrored: bool, own: Integers, others: Integers
) -> int:
    """Count entries >= sure, from column `low` on, by row and, if mirrored, by column; return how many are in doubt."""
    width = len(others)
    columns = np.zeros(width, np.int32)
    doubtful = 0
    for i in range(len(own)):
        entries = product[i, low : low + width]
        # No branch: entries are compared eight or sixteen at a time. Doubtful are those between the two levels.
        near, maybe = np.int32(0), np.int32(0)
        for j in range(width):
            yes = np.int32(entries[j] >= sure)
            near += yes
            maybe += np.int32(entries[j] >= possible)
            columns[j] += yes
        own[i] += near
        doubtful += int(maybe - near)
    if mirrored:
        for j in range(width):
            others[j] += columns[j]
    return doubtful


@njit(cache=True, nogil=True)
def _settle_block(
    rows: Matrix,
    order: Integers,
    distances: Vector,
    centre: Vector,
    radii: Vector,
    first: int,
    last: int,
    spans: Integers,
    counts: Integers,
    left: Single,
    right: Single,
    part: Single,
    product: Single,
) -> None:
    """Pairs of rows first:last with the columns in `spans`: -‖a - b‖²/2 by products, where in doubt by the rule.

    One product of (z, -‖z‖²/2, -1) and (z', 1, ‖z'‖²/2), z in units of the largest radius, gives -‖z - z'‖²/2. Its
    error is below ERROR (1 + chunks) times the sum of absolute terms, itself at most (ρ + ρ')²/2.
    """
    dimension, height, unit = rows.shape[1], last - first, radii.max()
    error = ERROR * (1 + dimension / (32 * CHUNK))
    outer = distances[last - 1] / unit
    # Beyond, single precision says nothing of these pairs. All are then in doubt, and decided by the exact rule.
    certain = outer < FARTHEST and error < 0.1
    if certain:
        for i in range(height):
            _standardise(rows[order[first + i]], centre, 1 / unit, left[i])
            left[i, dimension], left[i, dimension + 1] = -0.5 * (distances[first + i] / unit) ** 2, -1.0
    else:
        product[:] = 0.0
    z = np.empty(dimension, np.float32)
    for low in range(spans[:, 0].min(), spans[:, 1].max(), WIDTH):
        high = min(low + WIDTH, spans[:, 1].max())
        band = np.inf
        if certain:
            for j in range(high - low):
                _standardise(rows[order[low + j]], centre, 1 / unit, z)
                for k in range(dimension):
                    right[k, j] = z[k]
                right[dimension, j], right[dimension + 1, j] = 1.0, 0.5 * (distances[low + j] / unit) ** 2
            _multiply(left, right, part, product[: (height + 3) // 4 * 4])
            # Half the width of doubt: the largest error of an entry of this block of columns.
            band = error * (outer + distances[high - 1] / unit) ** 2 / 2 + 1e-30
        for r in range(len(radii)):
            level = -((radii[r] / unit) ** 2) / 2
            sure, possible = np.float32(level + band), np.float32(level - band)
            # Columns of this very block count for its rows only, as each pair in it is met twice; later columns for
            # both.
            for mirrored in (False, True):
                start = max(spans[r, 0], low, last if mirrored else first)
                stop = min(spans[r, 1], high, len(order) if mirrored else last)
                if start >= stop:
                    continue
                own, others = counts[r, first:last], counts[r, start:stop]
                if _tally(product, start - low, sure, possible, mirrored, own, others) == 0:
                    continue
                for i in range(height):
                    for j in range(stop - start):
                        entry = product[i, start - low + j]
                        # The rule of record, in float64 and in one order: the count is a function of the rows, not of
                        # blocks or threads.
                        if entry >= possible and not entry >= sure:
                            square = squared_distance(rows[order[first + i]], rows[order[start + j]])
                            near = square <= radii[r] * radii[r]
                            own[i] += near
                            if mirrored:
                                others[j] += near


@njit(cache=True)
def weighted_sum(
    rows: Matrix, chosen: Integers, weights: Integers, reference: Vector, step: float
) -> tuple[Integers, Integers]:
    """(z_first, Σ w_j (z_j - z_first)) with z_j = round((row - reference) / step): integers, exact in any order."""
    first = np.empty(rows.shape[1], np.int64)
    for k in range(rows.shape[1]):
        first[k] = np.int64(np.rint((rows[chosen[0], k] - reference[k]) / step))
    total = np.zeros(rows.shape[1], np.int64)
    for i in range(1, len(chosen)):
        row, weight = rows[chosen[i]], weights[chosen[i]]
        for k in range(rows.shape[1]):
            total[k] += weight * (np.int64(np.rint((row[k] - reference[k]) / step)) - first[k])
    return first, total


@njit(cache=True)
def largest_ratios(size: int, low: int, high: int, losses: Integers) -> Vector:
    """For each `lost` the largest (2 + 2 points/(B − A)) / (C − points (B − h)/(B − A)) over all h = A .. B, and points
    = lost/(C − h), rounded once; inf where some height leaves no weight. Exact up to C = 2²⁰."""
    found = np.zeros(len(losses))
    for place in range(len(losses)):
        lost, height, worst = losses[place], high, _quotient(size, low, high, losses[place], low, low)  # an end first
        while height > low and worst < np.inf:
            worst = max(worst, _quotient(size, low, high, lost, height, height))
            # Down to the last height of a stretch what is above the line grows, and what is below it is linear.
            last = max(height - STRETCH, low)
            alike = max(_quotient(size, low, high, lost, last, height), _quotient(size, low, high, lost, last, last))
            height = last if alike <= worst else height - 1
        found[place] = worst
    return found


@njit(cache=True)
def _quotient(size, low, high, lost, above, below):  # type: ignore[no-untyped-def]
    """The ratio of `largest_ratios` times C − h, with one height above the line and one below it."""
    width = high - low
    rest = size * (size - below) * width - lost * (high - below)
    return 2 * ((size - above) * width + lost) / rest if rest > 0 else np.inf
