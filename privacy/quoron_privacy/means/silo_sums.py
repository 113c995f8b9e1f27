"""What sums over several people's rows can be: checks, in whole numbers, of sums that somebody else has made.

    >>> three = ClippedSum(1.0, 100).of(np.full((3, 2), 0.1), np.ones(3, bool))
    >>> objection(three, ClippedSum(1.0, 100), persons=3, length=2)
    >>> objection(three, ClippedSum(1.0, 100), persons=2, length=2)
    'answers of 3 persons, of 2 who were asked'

A silo that adds up its own persons' rows is trusted with their clip, by these persons. Nobody else needs to: whatever
passes here is no farther from zero, in the directions that the page names, than as many rows of the worst kind, and
adds without overflow. Sums that our own loops make always pass. Statement and proof: docs/privacy/silos.md#si3.
"""

from dataclasses import dataclass
from math import isqrt

import numpy as np

from quoron_privacy.arrays import Integers
from quoron_privacy.errors import ConfigError
from quoron_privacy.means.clipping import ChangeSum, ClippedSum
from quoron_privacy.means.free_counts import (
    KINDS,
    ColumnSum,
    ContrastSum,
    LengthSum,
    NormCountSum,
    ShapedMomentSum,
    VectorLengthSum,
)
from quoron_privacy.release import Reduction, Sums, packed, sum_bits

CELLS = 4


@dataclass(frozen=True, slots=True)
class Longest:
    """Of one person's row, in steps of the grid: what no sum may have more of than persons times as much."""

    unit: int  # 2ᵇ
    norm: int  # its ℓ2 length; of a matrix that in Frobenius norm
    tells_norms: bool = False  # cells say how far each row stays within the unit ball (free-presence#p3)
    dimension: int = 0  # of a symmetric matrix, packed by rows of its upper triangle; 0: a vector


def longest(reduction: Reduction) -> Longest:
    """Raise ConfigError for a reduction of which nothing is proved here."""
    match reduction:
        case ChangeSum() | ContrastSum():  # of other vectors than those that were sent: what bounds them is the same
            return longest(reduction.own)
        case ClippedSum():
            unit = 1 << reduction.bits
            return Longest(unit, unit, tells_norms=True)
        case NormCountSum():
            unit = 1 << sum_bits(0, reduction.users)
            return Longest(unit, unit, tells_norms=True)
        case LengthSum() | VectorLengthSum():
            unit = 1 << sum_bits(0, reduction.users)
            return Longest(unit, unit // 2)
        case ColumnSum():
            unit = 1 << sum_bits(0, reduction.users)
            return Longest(unit, unit)
        case ShapedMomentSum():
            unit = 1 << sum_bits(0, reduction.users)
            return Longest(unit, unit, dimension=len(reduction.transform))
        case _:
            raise ConfigError(f"Expected a sum that persons' rows are known to bound, got {type(reduction).__name__}.")


def objection(sums: Sums, reduction: Reduction, *, persons: int, length: int) -> str | None:
    """Return what is wrong with sums of `length` numbers over at most so many persons' rows; None where nothing is.

    The result depends on these sums and on public values alone, and not on what other clients send.
    """
    row = longest(reduction)
    total, cells = sums.total, sums.cells
    if total.shape != (length,) or cells.shape != (CELLS,) or not (total.dtype == cells.dtype == np.int64):
        return f"sums of shape {total.shape} and {cells.shape}, where {(length,)} and {(CELLS,)} are due"
    if row.dimension and length != packed(row.dimension):
        return f"{length} numbers, where a matrix of dimension {row.dimension} has {packed(row.dimension)}"
    if not 0 <= sums.answered <= persons:
        return f"answers of {sums.answered} persons, of {persons} who were asked"
    columns = _columns(sums, reduction) if isinstance(reduction, ColumnSum) else None
    return columns or _counts(sums, row) or _lengths(sums, row)


def _counts(sums: Sums, row: Longest) -> str | None:
    """Of the cells alone."""
    short, within, third, soft = map(int, sums.cells)
    if not row.tells_norms:
        if within or third or soft or sums.clipped or not 0 <= short <= sums.answered:
            return "counts that no rows have"
        return None
    here, unit = third, row.unit
    if not (0 <= here <= sums.answered and 0 <= sums.clipped <= here and 0 <= within <= here):
        return "counts of more rows than there are"
    if not within * unit <= 3 * short <= 3 * within * unit + (here - within) * (unit - 1):
        return "norms that do not go with how many rows are well within the ball"
    if not short <= soft <= here * unit or (
        3 * short < here * unit and soft**2 > short * (4 * here * unit - 3 * short)
    ):
        return "norms that do not go with the soft share"
    return None


def _columns(sums: Sums, reduction: ColumnSum) -> str | None:
    """Of numbers of columns, each by itself: |m| <= s <= 1, s² <= q <= s, at one place at most.

    What rows have is cut towards zero, by less than two steps, the rounding of a product included.
    """
    here, times = int(sums.cells[0]), 1 + 2.0**-40
    if len(sums.total) != reduction.length:
        return f"{len(sums.total)} numbers, where columns have {reduction.length}"
    if not 0 <= here <= sums.answered:
        return "counts that no rows have"
    weights = reduction.weights(2.0 ** sum_bits(0, reduction.users))
    total = sums.total.astype(np.float64).reshape(KINDS, -1)
    mean, spread, square, still = total[0], total[1], total[2], total[3:]
    own, cut = weights[:4], 2.0 * here
    within = (np.abs(mean) * own[1] <= (spread + cut) * own[0] * times).all() and (
        spread <= here * own[1] * times
    ).all()
    bent = (square >= 0).all() and (square <= spread * times).all()
    bent = bent and (spread**2 <= here * own[1] * (square + cut) * times).all()
    if not ((np.abs(mean) <= here * own[0] * times).all() and within and bent):
        return "means and mean squares of columns that no rows have"
    if not ((still >= 0).all() and (still.sum(axis=0) <= here * own[3] * times).all()):
        return "shares at places that no rows have"
    if not reduction.constant and (mean.any() or still[0].any() or still[2].any()):
        return "means of columns, where no feature is constant"
    return None


def _lengths(sums: Sums, row: Longest) -> str | None:
    """Of the total, given its cells."""
    short, here = int(sums.cells[0]), int(sums.cells[2 if row.tells_norms else 0])
    most = here * row.norm - (short if row.tells_norms else 0)
    weights = np.ones(len(sums.total), np.int64)
    if row.dimension:
        across, down = np.triu_indices(row.dimension)
        weights, diagonal = np.where(across == down, 1, 2), sums.total[across == down]
        if diagonal.min(initial=0) < 0:
            return "a matrix with a negative number on its diagonal"
    length = _length(sums.total, weights, most)
    return None if length <= most else "a sum that is longer than so many rows are"


def _length(total: Integers, weights: Integers, most: int) -> int:
    """⌈√Σ w z²⌉, exactly where it is near `most`."""
    rough = float(np.sqrt(np.sum(weights * total.astype(np.float64) ** 2)))
    if not most * (1 - 1e-6) <= rough <= most * (1 + 1e-6):
        return int(rough)
    times: list[int] = weights.tolist()
    numbers: list[int] = total.tolist()
    square = sum(weight * number * number for weight, number in zip(times, numbers, strict=True))
    root = isqrt(square)
    return root + (root * root < square)
