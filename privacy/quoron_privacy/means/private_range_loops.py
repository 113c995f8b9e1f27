"""The loops of `private_range`, and of `winsorised_mean`, which clamps around what it chooses."""

import numpy as np

from quoron_privacy.kernels.shipped import njit


@njit(cache=True)
def tally(rotated, half_width, counts):  # type: ignore[no-untyped-def]
    """Adds every row to the bins of its coordinates; counts (d₂, bins)."""
    bins = counts.shape[1]
    for i in range(len(rotated)):
        for j in range(rotated.shape[1]):
            place = (rotated[i, j] / half_width + 1.0) * (bins / 2)
            # The comparisons are False for NaN, which an overflow of finite rows could leave.
            index = np.int64(place) if 0.0 <= place < bins else (bins - 1 if place >= bins else 0)
            counts[j, index] += 1


@njit(cache=True)
def add_clamped(rotated, middles, half_width, unit, total):  # type: ignore[no-untyped-def]
    """Adds every row's ⌊clamp((y - a) / h, ±1) · unit⌋ towards zero to `total`; returns how many were clamped."""
    clamped = 0
    for i in range(len(rotated)):
        for j in range(rotated.shape[1]):
            share = (rotated[i, j] - middles[j]) / half_width
            if share >= 1.0:
                clamped += 1
                total[j] += np.int64(unit)
            elif share > -1.0:
                total[j] += np.int64(share * unit)
            else:  # NaN, which an overflow of finite rows could leave, too
                clamped += 1
                total[j] -= np.int64(unit)
    return clamped
