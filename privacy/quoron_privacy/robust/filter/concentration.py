"""Concentration scores: how close a user's answer lies to everyone else's, κ_i = Σ_j exp(-τ‖q_i - q_j‖), own term 1.

    >>> import numpy as np
    >>> scores(np.array([[0.0, 0.0], [0.0, 0.0], [1e9, 0.0]]), tau=1.0)
    array([2., 2., 1.])

The norm is ℓ2, or ℓ∞ for boxes (docs/privacy/linf-filter.md): all else is the same.

Every term is computed from its two rows alone, in double precision from direct differences, and rounded to a multiple
of 2⁻³⁴. Sums of such terms are exact, so a score depends neither on the order of users nor on the number of threads,
and replacing one user moves every other *computed* score by at most one, without any rounding slack. The expansion
‖a‖² + ‖b‖² - 2⟨a, b⟩ is never used: it lets one user's magnitude change all scores at once.

Source: Ghazi, Kumar, Liu & Manurangsi, "Nearly linear-time user-level DP-SCO", Algorithm 2. Sensitivities, error bound
and symbols: docs/privacy/concentration-score.md.
"""

import math
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quoron_privacy.errors import ConfigError, count
from quoron_privacy.kernels.on_first_use import OnFirstUse

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
Norm = Literal["l2", "linf"]

loops = OnFirstUse("quoron_privacy.robust.filter.concentration_loops")

RESOLUTION = 2.0**-34  # every kernel entry is a multiple of it
LARGEST_COHORT = 2**19  # beyond it sums of such entries, kept in 53 bits, would no longer be exact
SMALLEST_TAU, LARGEST_TAU = 1e-120, 1e120  # squares of distances that matter neither overflow nor vanish
UNIT_ROUNDOFF = 2.0**-53
DECAY_ERROR = 1e-12  # of `decay` against exp(-x), relative for x < 25


def checked_rows(gradients: ArrayLike, tau: float) -> Matrix:
    """`gradients` as a contiguous float64 matrix, with `tau` and the shape checked; errors never depend on values.

    Raises:
        ConfigError: a wrong shape, a cohort above LARGEST_COHORT, or tau outside [1e-120, 1e120].
    """
    rows = np.ascontiguousarray(gradients, dtype=np.float64)
    if rows.ndim != 2:
        raise ConfigError(f"Expected gradients of shape (users, dimension), got shape {rows.shape}.")
    if len(rows) > LARGEST_COHORT:
        raise ConfigError(f"Expected a cohort of at most {LARGEST_COHORT:,} users, got {len(rows):,}.")
    if not SMALLEST_TAU <= tau <= LARGEST_TAU:
        raise ConfigError(f"Expected tau in [{SMALLEST_TAU:g}, {LARGEST_TAU:g}], got tau={tau}.")
    return rows


def usable(gradients: Matrix, answered: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Rows that enter the arithmetic: answered, and finite by a look at that row only. Shape (k,)."""
    if answered.shape != (len(gradients),) or answered.dtype != np.bool_:
        raise ConfigError(
            f"Expected boolean answered of shape ({len(gradients)},), got {answered.dtype} {answered.shape}."
        )
    found: NDArray[np.bool_] = loops.finite(gradients, answered)
    return found


def scores(gradients: ArrayLike, tau: float, *, norm: Norm = "l2", threads: int | None = None) -> Vector:
    """κ_i = Σ_j exp(-τ‖q_i - q_j‖), all pairs; shapes (k, d) and (k,), entries of the result in [1, k].

    Rows must be finite; of any magnitude (distances that overflow count as infinite). Costs k²·d/2 differences and
    O(k·d) memory. Within `score_error` of the real-number score. Same bits for any number of threads (by default
    numba's), and permuting the rows permutes the result bit by bit.

    Raises:
        ConfigError: see `checked_rows`.
    """
    rows = checked_rows(gradients, tau)
    each, work = norm == "linf", rows.size * len(rows) / 2
    found: Vector = loops.on_lanes(
        loops.all_pairs, rows, loops.pack(rows), tau, each, size=len(rows), work=work, threads=threads
    )
    return found


def scores_of(
    gradients: ArrayLike, indices: NDArray[np.int64], tau: float, *, norm: Norm = "l2", threads: int | None = None
) -> Vector:
    """The same bits as `scores(gradients, tau)[indices]`, at k·d differences an index; shape (len(indices),)."""
    rows = checked_rows(gradients, tau)
    points, work, each = rows[indices], float(rows.size * len(indices)), norm == "linf"
    found: Vector = loops.on_lanes(
        loops.some_rows, points, loops.pack(rows), len(rows), tau, each, size=len(points), work=work, threads=threads
    )
    return found


def cohort_scores(gradients: ArrayLike, answered: NDArray[np.bool_], tau: float, *, norm: Norm = "l2") -> Vector:
    """Scores of all slots, shape (k,): a slot without a usable answer is isolated, scores 1 and adds 0 to others."""
    rows = checked_rows(gradients, tau)
    present = usable(rows, answered)
    result = np.ones(len(rows))
    result[present] = scores(rows[present], tau, norm=norm)
    return result


def score_summary(scores: Vector) -> dict[str, float]:
    """Least, middle and largest of a cohort's scores (n,), for simulation reports; empty for an empty cohort."""
    if not len(scores):
        return {}
    return {
        "score_min": float(scores.min()),
        "score_median": float(np.median(scores)),
        "score_max": float(scores.max()),
    }


def score_error(cohort_size: int, dimension: int) -> float:
    """Certified bound on |computed - real| for every score; the accountant adds it to Δ (twice), k₁ and k₂.

    Per entry: 2⁻³⁵ from rounding to RESOLUTION, DECAY_ERROR from the exponential, and (d/2 + 3)·2⁻⁵³/e (with slack)
    from the distance; the own entry and the sum are exact. The ℓ∞ distance rounds once, so the bound holds for it too.
    Derivation: docs/privacy/concentration-score.md.
    """
    count(cohort_size=cohort_size, dimension=dimension)
    return (cohort_size - 1) * (RESOLUTION / 2 + DECAY_ERROR + (0.2 * dimension + 2.0) * UNIT_ROUNDOFF)


def recounted_error(cohort_size: int, dimension: int) -> float:
    """The bound again as it is derived, without slack: of every entry but the own, grid, exponential and distance."""
    entry = math.fsum((2.0**-35, DECAY_ERROR, (dimension / 2 + 3) * math.exp(-1) * 2.0**-53))
    return cohort_size * entry - entry
