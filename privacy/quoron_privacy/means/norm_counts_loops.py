"""The loops of `norm_counts`: exact sums of clipped vectors, with what their norms say (free-presence#p3)."""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from quoron_privacy.means.clipping_loops import added
from quoron_privacy.means.clipping_loops import clipped_sum as clipped_sum
from quoron_privacy.means.free_presence_loops import whiten

Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]
Mask = NDArray[np.bool_]
Integers = NDArray[np.int64]


def sum_norm_counts(
    values: Matrix, answered: Mask, transform: Matrix, centre: Vector, radius: float, unit: float
) -> tuple[Integers, Integers, int]:
    """Over answered rows: exact Σ ⌊c · unit⌋ towards zero; the shares of their norms, (4,); how many were clipped.

    A row of several parts of as many numbers as `transform` is for is clipped as one.
    """
    rows, around = values, centre
    if len(transform):
        rows, around = np.empty((len(values), len(centre))), np.zeros(len(centre))
        _whitened(values, transform, centre, rows)
    total, counts = np.zeros(len(centre), np.int64), np.zeros(5, np.int64)
    here = np.ascontiguousarray(answered, np.bool_)
    added(clipped_sum().address, rows, around, here, radius, unit, total, counts)
    return total, counts[:4], int(counts[4])


@njit(cache=True)
def _whitened(values, transform, centre, out):  # type: ignore[no-untyped-def]
    for user in range(len(values)):
        whiten(values[user], transform, centre, out[user])
