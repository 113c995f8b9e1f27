"""Clipping to an ℓ2 ball, and the mean of clipped rows whose sensitivity holds in floating point, not only on paper.

    >>> rows = np.array([[3.0, 4.0], [np.nan, 0.0], [0.6, 0.0]])
    >>> clip_rows(rows, 1.0).round(6).tolist()
    [[0.6, 0.8], [0.0, 0.0], [0.6, 0.0]]

The mean adds integers: every clipped row is cut towards zero to a fixed grid, so the sum is exact, the same in every
order, and one row changes it by no more than its own norm. Statement and proof: docs/privacy/noise.md, theorem N6.
Residuals around a centre: docs/privacy/second-moment.md, theorem M3.
"""

from math import isinf, sqrt

import numpy as np
from numba import njit
from numpy.typing import NDArray

from quoron_privacy.errors import ConfigError
from quoron_privacy.gaussian import mean_slack
from quoron_privacy.release import Adjacency
from quoron_privacy.validate import count

Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]
Mask = NDArray[np.bool_]
Integers = NDArray[np.int64]

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


def clipped_mean(values: Matrix, answered: Mask, norm: float, cohort_size: int) -> tuple[Vector, int]:
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
    bits = sum_bits(len(rows), cohort_size)
    total, clipped = _sum_clipped(rows, np.zeros(rows.shape[1]), answered, norm, 2.0**bits)
    return total.astype(np.float64) * (norm / 2.0**bits / cohort_size), int(clipped)


def clipped_residuals(
    values: Matrix, centre: Vector | None, answered: Mask, radius: float, divisor: int
) -> tuple[Vector, int]:
    """Around `centre` (shape (d,), None for zero): the mean of unit rows, and how many were clipped.

    The first is Σ clip(v - c; C) / (C · divisor) over answered rows, C = `radius`: rows enter the *unit* ball before
    anything else uses them, so its sensitivity is `mean_sensitivity(1.0, divisor)` whatever C is. Rows that are absent,
    or not finite after subtracting the centre, add nothing. `values` has shape (k, d), k at most 64 · divisor.
    """
    _check_norm(radius)
    rows = np.ascontiguousarray(values, np.float64)
    around = np.zeros(rows.shape[1]) if centre is None else np.ascontiguousarray(centre, np.float64)
    if around.shape != rows.shape[1:]:
        raise ConfigError(f"Expected a centre of shape {rows.shape[1:]}, got {around.shape}.")
    bits = sum_bits(len(rows), divisor)
    total, clipped = _sum_clipped(rows, around, answered, radius, 2.0**bits)
    return total.astype(np.float64) * (1.0 / 2.0**bits / divisor), int(clipped)


def mean_sensitivity(norm: float, cohort_size: int, adjacency: Adjacency = "replace-one") -> float:
    """ℓ2 sensitivity of `clipped_mean`, rounding included: 2 norm / cohort_size, or half of it for zero-out."""
    _check_norm(norm)
    _check_adjacency(adjacency)
    rows = 2 if adjacency == "replace-one" else 1
    return rows * norm / cohort_size * (1 + mean_slack(cohort_size))


def acute_sensitivity(norm: float, divisor: int, adjacency: Adjacency = "replace-one") -> float:
    """ℓ2 sensitivity of a mean of vectors no two of which make an obtuse angle: √2 norm / divisor; zero-out without √2.

    Such are one-hot vectors and positive semidefinite matrices: ‖a - b‖² = ‖a‖² + ‖b‖² - 2⟨a, b⟩ <= 2 norm². Leaving
    a user out moves the sum by norm, so zero-out saves a factor √2 here, not 2. Slack as in `mean_sensitivity`.
    """
    _check_norm(norm)
    count(divisor=divisor)
    _check_adjacency(adjacency)
    moved = sqrt(2.0) if adjacency == "replace-one" else 1.0
    return moved * norm / divisor * (1 + mean_slack(divisor))


def sum_bits(rows: int, divisor: int) -> int:
    """b such that `rows` integers of magnitude at most 2ᵇ sum to less than 2⁶²; depends on the divisor alone.

    ConfigError beyond 64 · divisor rows: more than a planned divisor can be wrong by.
    """
    count(divisor=divisor)
    if rows > 64 * divisor:
        raise ConfigError(f"Expected at most 64 * divisor rows, got {rows} with divisor={divisor}.")
    return min(52, 56 - divisor.bit_length())


def _check_adjacency(adjacency: Adjacency) -> None:
    if adjacency not in ("replace-one", "zero-out"):
        raise ConfigError(f"Expected adjacency replace-one or zero-out, got adjacency={adjacency!r}.")


def _check_norm(norm: float) -> None:
    if not 1e-150 < norm < 1e150:
        raise ConfigError(f"Expected norm in (1e-150, 1e150), got norm={norm}. Change the units.")


@njit(cache=True)
def shrink(row: Vector, norm: float) -> tuple[float, float, float]:
    """(largest coordinate m, s, length): row / m * s has norm at most one, s = m / norm if that is enough.

    s = -1 marks a row that is not finite, a row of zeros has s = 0; both come with m = 1. Norms are computed after
    division by m, so nothing overflows or underflows, and s allows for more than the error of the norm.
    """
    largest, finite = 0.0, True
    for value in row:
        finite &= np.isfinite(value)
        largest = max(largest, abs(value))
    if not finite:
        return 1.0, -1.0, np.inf
    if largest == 0.0:
        return 1.0, 0.0, 0.0
    square = 0.0
    for value in row:
        square += (value / largest) ** 2
    root = np.sqrt(square)
    above = root * (1 + (len(row) + 8) * _ULP)
    return largest, min(largest / norm, 1.0 / above), largest * root


@njit(cache=True)
def _clip(rows: Matrix, norm: float) -> None:
    for i in range(len(rows)):
        largest, s, _ = shrink(rows[i], norm)
        if s < 0:
            rows[i] = 0.0
        elif s < largest / norm:
            for j in range(rows.shape[1]):
                rows[i, j] = rows[i, j] / largest * s * norm


@njit(cache=True)
def _sum_clipped(rows: Matrix, centre: Vector, answered: Mask, norm: float, unit: float) -> tuple[Integers, int]:
    """Over answered rows: exact Σ ⌊clip(row - centre) · unit / norm⌋ towards zero, number clipped."""
    total = np.zeros(rows.shape[1], np.int64)
    row = np.empty(rows.shape[1])
    clipped = 0
    for i in range(len(rows)):
        if not answered[i]:
            continue
        for j in range(len(row)):
            row[j] = rows[i, j] - centre[j]
        largest, s, _ = shrink(row, norm)
        if s <= 0:
            continue
        clipped += s < largest / norm
        for j in range(len(row)):
            total[j] += np.int64(row[j] / largest * s * unit)
    return total, clipped
