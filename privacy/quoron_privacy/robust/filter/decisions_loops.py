"""The loop of `decisions`: the sum of the kept rows, whose bits no number of threads changes."""

from functools import partial

import numpy as np

from quoron_privacy.kernels.shipped import njit
from quoron_privacy.kernels.threads import in_pieces
from quoron_privacy.robust.filter.concentration import Matrix, Vector
from quoron_privacy.robust.filter.decisions import Mask

_BLOCK = 512  # rows with a sum of their own: rounding grows with 512 + B/512, not with B


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
