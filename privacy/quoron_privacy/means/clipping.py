"""Clipping to an ℓ2 ball, and the mean of clipped rows whose sensitivity holds in floating point, not only on paper.

    >>> rows = np.array([[3.0, 4.0], [np.nan, 0.0], [0.6, 0.0]])
    >>> clip_rows(rows, 1.0).round(6).tolist()
    [[0.6, 0.8], [0.0, 0.0], [0.6, 0.0]]

The mean adds integers: every clipped row is cut towards zero to a fixed grid, so the sum is exact, the same in every
order, and one row changes it by no more than its own norm. Statement and proof: docs/privacy/noise.md#n6; residuals
around a centre: docs/privacy/free-presence.md#sm3.
"""

from dataclasses import dataclass
from math import isinf
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.arrays import Mask, Matrix
from quoron_privacy.errors import ConfigError, count
from quoron_privacy.gaussian import check_norm
from quoron_privacy.kernels.on_first_use import OnFirstUse
from quoron_privacy.release import Sums, sum_bits

Vector = Annotated[NDArray[np.float64], "d"]  # of a field: its axes, as messages are checked

loops = OnFirstUse("quoron_privacy.means.clipping_loops")


@dataclass(frozen=True, slots=True, eq=False)
class ClippedSum:
    """Σ ⌊clip_C(v - c) 2ᵇ / C⌋ over answered rows v, towards zero, with b = sum_bits(divisor).

    `cells` holds what `free_counts` releases, of a = ‖clip_C(v - c)‖ / C: Σ ⌊(1 - a) 2ᵇ⌋, how many a ≤ ⅔, how many
    are here, and Σ ⌊h 2ᵇ⌋, h = min(1, √((1 - a)(1 + 3a))) their soft share. Rows that are not finite after subtracting
    the centre add to nothing but `answered`.
    """

    norm: float  # C
    divisor: int  # of the mean
    centre: Vector | None = None  # c; None is zero

    def __post_init__(self) -> None:
        check_norm(self.norm)

    @property
    def bits(self) -> int:
        """b."""
        return sum_bits(0, self.divisor)

    def of(self, values: NDArray[np.floating], answered: Mask, largest: float = np.inf) -> Sums:
        """See Reduction. Rows with anything beyond a finite `largest` have not answered; float32 is read as it is.

        ConfigError for a centre of another shape.
        """
        rows = np.ascontiguousarray(values, np.float32 if values.dtype == np.float32 else np.float64)
        counted, total = np.ascontiguousarray(answered, np.bool_), np.zeros(rows.shape[1], np.int64)
        counts = np.zeros(6, np.int64)
        loops.added(rows, self.around(rows.shape[1]), counted, *self.scales, largest, total, counts)
        return Sums(total, counts[:4], int(counts[4]), int(counts[5]))

    def around(self, dimension: int) -> Vector:
        """c, (d,). ConfigError for a centre of another shape."""
        return centred(self.centre, dimension)

    @property
    def scales(self) -> tuple[float, float]:
        """C and 2ᵇ."""
        return float(self.norm), 2.0**self.bits

    @property
    def adding(self) -> int:
        """Address of the loop that makes the sum, a `cfunc` of type `clipping_loops.SUMMING`.

        The first four of its counts are `Sums.cells`, then come `Sums.clipped` and `Sums.answered`.
        """
        return int(loops.clipped_sum().address)

    def mean(self, sums: Sums) -> Vector:
        """(Σ clip(v - c)) / divisor, shape (d,). ConfigError for more rows than 64 · divisor."""
        return self._over(sums, self.norm)

    def unit_mean(self, sums: Sums) -> Vector:
        """Return the mean divided by C: rows are then in the *unit* ball, whatever C is."""
        return self._over(sums, 1.0)

    def _over(self, sums: Sums, unit: float) -> Vector:
        bits = sum_bits(sums.answered, self.divisor)
        mean: Vector = sums.total.astype(np.float64) * (unit / 2.0**bits / self.divisor)
        return mean


@dataclass(frozen=True, slots=True, eq=False)
class ChangeSum:
    """Σ clip(F_u(θ) - F_u(0)) over answers (F_u(θ), F_u(0))."""

    own: ClippedSum

    def of(self, values: Matrix, answered: Mask) -> Sums:
        """See Reduction. ConfigError for rows of another length."""
        if values.ndim != 2 or values.shape[1] != 2:
            raise ConfigError(f"Expected rows of two losses, got shape {values.shape}.")
        return self.own.of(changes(values), answered)


def centred(centre: Vector | None, dimension: int) -> Vector:
    """Return the centre, (dimension,); zero where there is none. ConfigError for another shape."""
    if centre is None:
        return np.zeros(dimension)
    if centre.shape != (dimension,):
        raise ConfigError(f"Expected a centre of shape {(dimension,)}, got {centre.shape}.")
    return np.ascontiguousarray(centre, np.float64)


def clip_rows(values: Matrix, norm: float, centre: Vector | None = None) -> Matrix:
    """Return each row of `values - centre` scaled into the ball of radius `norm`; shape (k, d).

    The exact ℓ2 norm of each returned row is at most `norm`. Rows inside the ball come back unchanged, rows with
    anything non-finite (after subtracting `centre`, shape (d,)) as zeros: a row becomes what that row alone says.
    """
    check_norm(norm)
    with np.errstate(all="ignore"):
        rows = np.array(values if centre is None else values - centre, np.float64, ndmin=2, order="C")
    loops.clip(rows, norm)
    return rows


def clip_shares(values: NDArray[np.floating]) -> Matrix:
    """Return numbers held within [0, 1]; NaN is 0."""
    given = np.asarray(values, np.float64)
    return np.asarray(np.clip(np.where(np.isnan(given), 0.0, given), 0.0, 1.0))


def changes(values: Matrix) -> Matrix:
    """Return the first of two numbers less the second, (users, 1)."""
    with np.errstate(all="ignore"):
        change: Matrix = values[:, :1] - values[:, 1:]
    return change


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
    sum_bits(len(rows), cohort_size)
    reduction = ClippedSum(norm, cohort_size)
    sums = reduction.of(rows, answered)
    return reduction.mean(sums), sums.clipped
