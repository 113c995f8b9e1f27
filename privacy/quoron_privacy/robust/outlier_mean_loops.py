"""The loops of `outlier_mean`: a weighted sum of answers about one of them, in whole steps; all heights of a ramp."""

import numpy as np

from quoron_privacy.kernels.shipped import njit
from quoron_privacy.robust.outlier_mean import Integers, Matrix, Vector


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
    width, found = high - low, np.zeros(len(losses))
    for place in range(len(losses)):
        lost, worst = losses[place], 0.0
        for height in range(low, high + 1):
            below = size * (size - height) * width - lost * (high - height)
            if below <= 0:
                worst = np.inf
                break
            worst = max(worst, 2 * ((size - height) * width + lost) / below)
        found[place] = worst
    return found
