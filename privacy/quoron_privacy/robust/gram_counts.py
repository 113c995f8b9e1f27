"""Neighbour counts of wide answers: ‖a - b‖² from blocks of the exact Gram matrix, in doubt from the rule itself.

For answers of up to some ten thousand numbers `neighbour_counts` decides most pairs by bounds and the rest in single
precision. A network's rows are millions long: its buffers would not fit, and its error would leave all pairs in doubt.
Here inner products of rows about a centre are summed in double precision over slices of columns. Every pair whose
squared distance is farther from r² than the products' certified error is decided, every other one by the one rule,
`squared_distance`. So the counts are those of the rule, whatever the order in which a library multiplies. There is no
random projection: a user could hide any shift in its kernel.

Memory beyond the answers: three blocks. Proof: docs/privacy/outlier-mean.md, "Wide answers".
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
Integers = NDArray[np.int64]
Rule = Callable[[NDArray[np.float64], NDArray[np.float64]], float]

HEIGHT = 512  # rows of a block
DEPTH = 1 << 13  # columns of a slice
SAMPLE = 9  # rows whose median is the centre; any centre is valid, one in the middle leaves fewest pairs in doubt
UNIT_ROUNDOFF = 2.0**-53


def certain_within(dimension: int) -> float:
    """e such that a squared distance by products errs by at most e (ρ + ρ')², and the rule as much again.

    ρ, ρ' are the rows' computed distances from the centre, by the same products.
    """
    return 3 * (dimension + 32) * UNIT_ROUNDOFF


def middle(rows: Matrix) -> NDArray[np.float64]:
    """A centre of rows (C, d), shape (d,)."""
    picked = np.linspace(0, len(rows) - 1, min(SAMPLE, len(rows))).astype(np.int64)
    centre: NDArray[np.float64] = np.median(rows[picked], axis=0)
    return centre


def counts_by_gram(rows: Matrix, centre: NDArray[np.float64], radii: Sequence[float], rule: Rule) -> Integers:
    """Counts for each radius, shape (len(radii), C), of finite rows (C, d): how many are within it, itself included.

    `rule` gives the squared distance of two rows, and decides by `rule(a, b) <= r * r` wherever products cannot.
    """
    size, dimension = rows.shape
    limits = np.array([radius * radius for radius in radii])
    counts = np.zeros((len(radii), size), np.int64)
    blocks = [slice(first, min(first + HEIGHT, size)) for first in range(0, size, HEIGHT)]
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
