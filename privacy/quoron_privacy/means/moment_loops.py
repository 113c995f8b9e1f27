"""The loop of `moment`: sums of the second moments of triangular factors, exact in integers (private-mean#m1)."""

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.kernels.shipped import njit
from quoron_privacy.means.clipping_loops import shrink

Matrix = NDArray[np.float64]
Mask = NDArray[np.bool_]


@njit(cache=True, nogil=True)
def sum_moments(
    factors: Matrix, answered: Mask, norm: float, unit: float, d: int, across: float = 1.0
) -> NDArray[np.int64]:
    """Exact Σ ⌊UᵀU · unit⌋ towards zero over answered rows, U = row / norm in the unit ball; packed as the rows are.

    Entries off the diagonal are multiplied by unit · `across`.

    No library product: its order of additions, so its bits, may change with the number of threads.
    """
    total = np.zeros(d * (d + 1) // 2, np.int64)
    z, moment = np.empty(len(total)), np.empty(d)
    for user in range(len(factors)):
        if not answered[user]:
            continue
        largest, s, _ = shrink(factors[user], norm)
        if s <= 0:
            continue
        for j in range(len(z)):
            z[j] = factors[user, j] / largest * s
        start = 0  # of row i in the packing
        for i in range(d):
            # Row i of UᵀU is Σ_k U[k, i] U[k, i:], k ≤ i. In the packing row k begins d - k numbers after row k - 1:
            # hence the steps.
            width = d - i
            moment[:width] = 0.0
            at = i  # of entry (k, i)
            for k in range(i + 1):
                weight = z[at]
                for j in range(width):
                    moment[j] += weight * z[at + j]
                at += d - 1 - k
            total[start] += np.int64(moment[0] * unit)
            for j in range(1, width):
                total[start + j] += np.int64(moment[j] * (unit * across))
            start += width
    return total
