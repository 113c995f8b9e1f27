"""The loops of `norm_counts`: exact sums of clipped vectors, with what their norms say (free-presence#p3)."""

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.kernels.shipped import njit
from quoron_privacy.means.clipping_loops import added
from quoron_privacy.means.clipping_loops import clipped_sum as clipped_sum
from quoron_privacy.means.free_presence_loops import whiten

Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]
Mask = NDArray[np.bool_]
Integers = NDArray[np.int64]

BLOCK = 1 << 18  # numbers of transformed rows that are held at a time: 2 MB


def sum_norm_counts(
    values: Matrix, answered: Mask, transform: Matrix, centre: Vector, radius: float, unit: float
) -> tuple[Integers, Integers, int]:
    """Over answered rows: exact Σ ⌊c · unit⌋ towards zero; the shares of their norms, (4,); how many were clipped.

    A row of several parts of as many numbers as `transform` is for is clipped as one.
    """
    total, counts, d = np.zeros(len(centre), np.int64), np.zeros(5, np.int64), len(centre)
    here, loop = np.ascontiguousarray(answered, np.bool_), clipped_sum().address
    if not len(transform):
        added(loop, values, centre, here, radius, unit, total, counts)
        return total, counts[:4], int(counts[4])
    few, zero = max(1, BLOCK // max(1, d)), np.zeros(d)
    room = np.empty((min(few, len(values)), d))
    for first in range(0, len(values), few):
        some = values[first : first + few]
        rows = room[: len(some)]
        whitened(some, transform, centre, rows)
        added(loop, rows, zero, here[first : first + few], radius, unit, total, counts)
    return total, counts[:4], int(counts[4])


@njit(cache=True, nogil=True)
def whitened(values, transform, centre, out):  # type: ignore[no-untyped-def]
    """out = Lᵀ value - centre of every row, as `whiten`."""
    for user in range(len(values)):
        whiten(values[user], transform, centre, out[user])
