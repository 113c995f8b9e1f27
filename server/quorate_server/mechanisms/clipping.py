"""Clipping to an ℓ2 ball, and the mean of clipped rows whose sensitivity holds in floating point, not only on paper.

    >>> rows = np.array([[3.0, 4.0], [np.nan, 0.0], [0.6, 0.0]])
    >>> clip_rows(rows, 1.0).round(6).tolist()
    [[0.6, 0.8], [0.0, 0.0], [0.6, 0.0]]

The mean adds integers: every clipped row is cut towards zero to a fixed grid, so the sum is exact, the same in every
order, and one row changes it by no more than its own norm. Statement and proof: docs/privacy/noise.md, theorem N6.
"""

from math import isinf

import numpy as np
from numba import njit
from numpy.typing import NDArray

from quorate_protos.errors import ConfigError
from quorate_server._validate import count
from quorate_server.mechanisms.gaussian import mean_slack
from quorate_server.plan import Adjacency

Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]

_ULP = 2.0**-52


def clip_rows(values: Matrix, norm: float, centre: Vector | None = None) -> Matrix:
    """Each row of `values - centre` scaled into the ball of radius `norm`; shape (k, d).

    The exact ℓ2 norm of each returned row is at most `norm`. Rows inside the ball come back unchanged, rows with
    anything non-finite (after subtracting `centre`, shape (d,)) as zeros: a row becomes what that row alone says.
    """
    _check_norm(norm)
    with np.errstate(all="ignore"):
        rows = np.array(values if centre is None else values - centre, np.float64, ndmin=2, order="C")
    _clip(rows, norm)
    return rows


def clipped_mean(values: Matrix, answered: NDArray[np.bool_], norm: float, cohort_size: int) -> tuple[Vector, int]:
    """(Σ clip(row)) / cohort_size over answered rows, shape (d,), and how many rows were clipped.

    Absent and non-finite rows contribute exactly zero; the divisor stays `cohort_size`. `values` has shape (k, d),
    where k may exceed cohort_size under Poisson sampling, up to 64 times. norm = inf means no clipping: a plain float
    mean, without a sensitivity.
    """
    count(cohort_size=cohort_size)
    rows = np.ascontiguousarray(values, np.float64)
    if isinf(norm):
        usable = answered & np.isfinite(rows).all(axis=1)
        plain: Vector = np.where(usable[:, None], rows, 0.0).sum(axis=0) / cohort_size
        return plain, 0
    _check_norm(norm)
    if len(rows) > 64 * cohort_size:
        raise ConfigError(f"Expected at most 64 * cohort_size rows, got {len(rows)} with cohort_size={cohort_size}.")
    bits = min(52, 56 - cohort_size.bit_length())  # a function of public numbers only; the sum stays below 2⁶²
    total, clipped = _sum_clipped(rows, answered, norm, 2.0**bits)
    return total.astype(np.float64) * (norm / 2.0**bits / cohort_size), int(clipped)


def mean_sensitivity(norm: float, cohort_size: int, adjacency: Adjacency = "replace-one") -> float:
    """ℓ2 sensitivity of `clipped_mean`, rounding included: 2 norm / cohort_size, or half of it for zero-out."""
    _check_norm(norm)
    rows = 2 if adjacency == "replace-one" else 1
    return rows * norm / cohort_size * (1 + mean_slack(cohort_size))


def _check_norm(norm: float) -> None:
    if not 1e-150 < norm < 1e150:
        raise ConfigError(f"Expected norm in (1e-150, 1e150), got norm={norm}. Change the units.")


@njit(cache=True)
def _shrink(row: Vector, norm: float) -> tuple[float, float]:
    """(largest coordinate m, s) such that row / m * s has norm at most one, s = m / norm if that is enough.

    s = -1 marks a row with nothing to add: non-finite or zero. Norms are rounded up by more than their error.
    """
    largest, finite = 0.0, True
    for value in row:
        finite &= np.isfinite(value)
        largest = max(largest, abs(value))
    if not finite or largest == 0.0:
        return 1.0, -1.0
    square = 0.0
    for value in row:
        square += (value / largest) ** 2
    above = np.sqrt(square) * (1 + (len(row) + 8) * _ULP)
    return largest, min(largest / norm, 1.0 / above)


@njit(cache=True)
def _clip(rows: Matrix, norm: float) -> None:
    for i in range(len(rows)):
        largest, s = _shrink(rows[i], norm)
        if s < 0:
            rows[i] = 0.0
        elif s < largest / norm:
            for j in range(rows.shape[1]):
                rows[i, j] = rows[i, j] / largest * s * norm


@njit(cache=True)
def _sum_clipped(rows: Matrix, answered: NDArray[np.bool_], norm: float, unit: float) -> tuple[NDArray[np.int64], int]:
    """Exact Σ ⌊clip(row) · unit / norm⌋ towards zero over answered rows, and the number of clipped rows."""
    total = np.zeros(rows.shape[1], np.int64)
    clipped = 0
    for i in range(len(rows)):
        if not answered[i]:
            continue
        largest, s = _shrink(rows[i], norm)
        if s < 0:
            continue
        clipped += s < largest / norm
        for j in range(rows.shape[1]):
            total[j] += np.int64(rows[i, j] / largest * s * unit)
    return total, clipped
