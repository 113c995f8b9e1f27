"""Soft weights from concentration scores: w_i = 1 - s_i with suspicion s_i = min(1, exp(-L·(κ_i/B - f₁))).

    >>> import numpy as np
    >>> scores = np.array([3.0, 3.0, 3.0, 1.0])
    >>> soft_weights(suspicions(scores, cohort_size=4, slope=100.0, cutoff=0.7)).round(4)
    array([0.9933, 0.9933, 0.9933, 0.    ])

A deterministic filter, smooth on the log scale: a small change of the score changes s by a small *factor*. It needs the
scores themselves, of all pairs. An isolated slot scores 1, which lies below every admissible cutoff: its weight is 0.

Source: Algorithm 2S and Theorem 2 of docs/privacy/soft-filter.md.
"""

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from quoron_protos.errors import ConfigError
from quoron_server._validate import count, positive
from quoron_server.mechanisms.concentration import Matrix, Vector


def suspicions(scores: ArrayLike, *, cohort_size: int, slope: float, cutoff: float) -> Vector:
    """s_i in [0, 1], (k,) -> (k,); their sum over all rounds is the statistic V of the release test.

    Args:
        scores: κ_i of every slot, isolated slots included (`concentration.cohort_scores`).
        cohort_size: B, the public number of slots, at least 2.
        slope: L > 0.
        cutoff: f₁, in (1/2, 1), as a fraction of B.

    Raises:
        ConfigError: a parameter out of range.
    """
    count(cohort_size=cohort_size)
    positive(slope=slope)
    if cohort_size < 2 or not 0.5 < cutoff < 1.0:
        raise ConfigError(f"Expected cohort_size >= 2 and cutoff in (1/2, 1), got {cohort_size} and {cutoff}.")
    excess = np.asarray(scores, dtype=np.float64) / cohort_size - cutoff
    return np.exp(-slope * np.maximum(excess, 0.0))


def soft_weights(suspicions: Vector) -> Vector:
    """w_i = 1 - s_i in [0, 1), (k,) -> (k,); exactly 0 at and below the cutoff."""
    return 1.0 - suspicions


@njit(cache=True)
def _weighted_sum(gradients: Matrix, shares: Vector) -> Vector:
    total = np.zeros(gradients.shape[1])
    for first in range(0, len(gradients), 512):  # blocks: rounding grows with 512 + B/512, not with B
        part = np.zeros(gradients.shape[1])
        for i in range(first, min(first + 512, len(gradients))):
            if shares[i] > 0.0:
                for k in range(gradients.shape[1]):
                    part[k] += shares[i] * gradients[i, k]
        total += part
    return total


def soft_mean(gradients: ArrayLike, weights: NDArray[np.float64]) -> Vector:
    """Σ w_i q_i / Σ w_i over rows of positive weight, (k, d) and (k,) -> (d,); zeros when every weight is 0.

    Rows of weight 0 are never read, so it does not matter whether they are finite.
    """
    rows = np.ascontiguousarray(gradients, dtype=np.float64)
    whole = float(weights.sum())
    if whole <= 0.0:
        return np.zeros(rows.shape[1])
    mean: Vector = _weighted_sum(rows, weights / whole)
    return mean
