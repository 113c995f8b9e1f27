"""The loop of `rows` that no mechanism of one server has: clipped vectors whose shares are whole steps of a unit of
their own (free-presence#p3, docs/privacy/two-servers.md#rows)."""

import numpy as np

from quoron_privacy.kernels.shipped import njit
from quoron_privacy.kernels.threads import in_pieces as in_pieces
from quoron_privacy.means.clipping_loops import add_cut, clip_factors, shrink, usual

_ULP = 2.0**-52
_FEW = 64  # rows whose norms are taken at a time


@njit(cache=True, nogil=True, error_model="numpy")
def sum_norm_counts(rows, centre, answered, norm, unit, steps, weights, soft, total, shares):  # type: ignore[no-untyped-def]
    """Add ⌊w₀ c · unit⌋ to `total` and ⌊w (1 - a, within or h, here) · steps⌋ to `shares`, over answered rows.

    c = clip(row - centre) / norm and a above ‖c‖; all cut towards zero. Rows are (k, d), contiguous, weights (4,).
    """
    number, dimension = rows.shape
    every, above, own = rows.reshape(-1), 1 + (dimension + 8) * _ULP, weights[0] * unit
    squares, factors, chosen, row = np.empty(_FEW + 3), np.empty(_FEW), np.empty(_FEW, np.int64), np.empty(dimension)
    present = np.int64(weights[3] * steps)
    for first in range(0, number, _FEW):
        few, good, flat = min(_FEW, number - first), 0, every[first * dimension :]
        clip_factors(flat, few, dimension, centre, norm, own, squares, factors)
        for i in range(few):
            if not answered[first + i]:
                continue
            if usual(squares[i]):
                a = np.sqrt(squares[i]) * above * (factors[i] / own) * (1 + 4 * _ULP)  # above ‖c‖
                chosen[good] = i
                good += 1
            else:  # as `clipping_loops`: squares that overflow or vanish
                for j in range(dimension):
                    row[j] = flat[i * dimension + j] - centre[j]
                largest, s, _ = shrink(row, norm)
                if s < 0.0:
                    continue
                square = 0.0
                for j in range(dimension):
                    row[j] = row[j] / largest
                    square += row[j] ** 2
                a = np.sqrt(square) * above * s * (1 + 4 * _ULP)
                for j in range(dimension):
                    total[j] += np.int64(row[j] * s * own)
            # What the norm leaves of 1, rounded down: shares are functions of it, so that they fit to a longer vector.
            left = max(1.0 - a, 0.0) * (1 - 4 * _ULP)
            near = 1.0 if left > 1 / 3 else 0.0  # the float is below a third
            if soft and near == 0.0:
                near = np.sqrt(left * (4.0 - 3.0 * left)) * (1 - 4 * _ULP)
            shares[0] += np.int64(weights[1] * left * steps * (1 - 4 * _ULP))
            shares[1] += np.int64(weights[2] * near * steps * (1 - 4 * _ULP * (near < 1.0)))
            shares[2] += present
        add_cut(flat, dimension, centre, chosen, good, factors, total)
