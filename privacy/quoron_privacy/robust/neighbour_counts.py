"""How many answers lie within r of each answer: h_j = #{i : ‖y_i - y_j‖ <= r}, itself included, exact for every pair.

    >>> import numpy as np
    >>> points = np.array([[0.0], [1.0], [2.5], [np.nan]])
    >>> counts = neighbour_counts(points, np.ones(4, dtype=np.bool_), (1.0, 2.0))
    >>> counts.tolist(), score(counts[0])
    ([[2, 2, 1, 1], [2, 3, 2, 1]], 6)

One rule decides every pair: a and b are neighbours iff `loops.squared_distance(a, b)`, a float64 sum in a fixed order,
is at most r · r as a float. The rule is symmetric, holds for each answer with itself and reads two rows only; so
replacing an answer moves every other count by at most one and the score Σ_j h_j by at most 2(C - 1), in floating point
as on paper. Most pairs are never computed, and the counts are those of the rule. Proof: docs/privacy/outlier-mean.md.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quoron_privacy.errors import ConfigError
from quoron_privacy.kernels.on_first_use import OnFirstUse
from quoron_privacy.robust.filter.concentration import usable

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
Mask = NDArray[np.bool_]
Integers = NDArray[np.int64]

SMALLEST, LARGEST = 1e-120, 1e120  # radii whose squares neither overflow nor vanish
UNIT_ROUNDOFF = 2.0**-53

loops = OnFirstUse("quoron_privacy.robust.neighbour_counts_loops")


def distance_slack(dimension: int) -> float:
    """s such that neighbours at r lie within r(1 + s) of each other, and answers within r(1 - s) are neighbours."""
    return (dimension + 8) * UNIT_ROUNDOFF


def neighbour_counts(
    points: ArrayLike, answered: Mask, radii: Sequence[float], *, threads: int | None = None
) -> Integers:
    """Counts for each radius, shape (len(radii), C); entries in [1, C]. The same for any number of threads.

    | input                                | what happens                                             |
    | ------------------------------------ | -------------------------------------------------------- |
    | slot not answered, or row not finite | isolated: its count is 1, and no other count includes it |
    | finite row of any magnitude          | takes part; distances that overflow are infinite         |
    | distance exactly r                   | neighbours                                               |

    O(C·d + C·log C) while all answers lie within r/2 of a common centre, a few far ones aside; at worst a product of
    all pairs. Memory beyond `points` is O(C) and a few blocks. Running time depends on the answers; where it can be
    observed use `neighbour_counts_by_all_pairs`, which gives the same counts.

    Args:
        points: answers (C, d), one row a slot.
        answered: slots with a usable answer, (C,).
        radii: lengths in (1e-120, 1e120).
        threads: how many blocks at a time; numba's number by default.

    Raises:
        ConfigError: wrong shapes or a radius out of range; never because of a value in `points`.
    """
    rows, present = _checked(points, answered, radii)
    counts: Integers = loops.counts(rows, present, radii, threads)
    counts[:, ~present] = 1
    return counts


def neighbour_counts_by_all_pairs(points: ArrayLike, answered: Mask, radii: Sequence[float]) -> Integers:
    """The same counts from the rule alone: running time depends on C, d and who answered only."""
    rows, present = _checked(points, answered, radii)
    counts = np.ones((len(radii), len(rows)), np.int64)
    counts[:, present] = loops.all_pairs(rows[present], np.array([r * r for r in radii]))
    return counts


def distances_to(rows: Matrix, centre: Vector) -> Vector:
    """‖row - centre‖ of every row (C, d), by the rule's sum, shape (C,); overflow gives inf."""
    found: Vector = loops.distances_to(rows, np.arange(len(rows)), centre)
    return found


def score(counts: Integers) -> int:
    """S = Σ_j h_j of one radius's counts (C,), in [C, C²]; one user moves it by at most 2(C - 1)."""
    return int(counts.sum())


def _checked(points: ArrayLike, answered: Mask, radii: Sequence[float]) -> tuple[Matrix, Mask]:
    rows = np.ascontiguousarray(points, dtype=np.float64)
    if rows.ndim != 2:
        raise ConfigError(f"Expected points of shape (slots, dimension), got shape {rows.shape}.")
    if not radii or not all(SMALLEST < radius < LARGEST for radius in radii):
        raise ConfigError(f"Expected radii in ({SMALLEST:g}, {LARGEST:g}), got {tuple(radii)}. Change the units.")
    return rows, usable(rows, answered)
