"""Means of a whole cohort's rows in one call, by the reductions that algorithms name."""

import numpy as np

from quoron_privacy.means.clipping import ClippedSum


def clipped_residuals(rows, centre, answered, radius, divisor):
    """(mean of unit rows around `centre`, what their norms say, how many were clipped)."""
    reduction = ClippedSum(radius, divisor, centre)
    sums = reduction.of(rows, np.asarray(answered))
    return reduction.unit_mean(sums), sums.cells, sums.clipped
