"""Concentration scores κ_i = Σ_j exp(-τ‖q_i - q_j‖), own term 1, their certified bounds, and the users who pass a test.

    >>> scores(np.array([[0.0, 0.0], [0.0, 0.0], [1e9, 0.0]]), tau=1.0)
    array([2., 2., 1.])

`lower_bounds` and `upper_bounds` take O(k·d + k·log k), without pairs; `decide` asks exact scores only of users whom
they leave undecided. The norm is ℓ2; scores alone also in ℓ∞, for boxes (docs/privacy/linf.md).

Source: Ghazi, Kumar, Liu & Manurangsi, "Nearly linear-time user-level DP-SCO", Algorithm 2. Sensitivities, bounds and
their margins, proofs: docs/privacy/concentration-score.md.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quoron_privacy.arrays import Integers, Mask, Matrix, Vector
from quoron_privacy.errors import ConfigError, count, positive
from quoron_privacy.kernels.on_first_use import OnFirstUse

Norm = Literal["l2", "linf"]

loops = OnFirstUse("quoron_privacy.robust.filter.concentration_loops")

RESOLUTION = 2.0**-34  # every kernel entry is a multiple of it
LARGEST_COHORT = 2**19  # beyond it sums of such entries, kept in 53 bits, would no longer be exact
SMALLEST_TAU, LARGEST_TAU = 1e-120, 1e120  # squares of distances that matter neither overflow nor vanish
UNIT_ROUNDOFF = 2.0**-53
DECAY_ERROR = 1e-12  # of `decay` against exp(-x), relative for x < 25

REACH = 1e6  # in units of 1/τ: farther users count as one far-away crowd
SHARES = (0.5, 0.8, 0.95)  # of all users, nearest first: where shells end
LEAST_DECAYS = 4e-11  # above 2·exp(-25), what `decay` adds to products of far decays
FEW = 16  # undecided users, up to whom exact scores cost less than bounds by shells
SAMPLE = 101  # rows whose coordinatewise median is the centre; any centre is valid, a robust one is tight


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
    """Return rows that enter the arithmetic: answered, and finite by a look at that row only. Shape (k,)."""
    if answered.shape != (len(gradients),) or answered.dtype != np.bool_:
        raise ConfigError(
            f"Expected boolean answered of shape ({len(gradients)},), got {answered.dtype} {answered.shape}."
        )
    found: NDArray[np.bool_] = loops.finite(gradients, answered)
    return found


def scores(gradients: ArrayLike, tau: float, *, norm: Norm = "l2") -> Vector:
    """κ_i = Σ_j exp(-τ‖q_i - q_j‖), all pairs; shapes (k, d) and (k,), entries of the result in [1, k].

    Rows must be finite; of any magnitude (distances that overflow count as infinite). Costs k²·d/2 differences and
    O(k·d) memory. Within `score_error` of the real-number score. Same bits for any number of threads,
    and permuting the rows permutes the result bit by bit.

    Raises:
        ConfigError: see `checked_rows`.

    Every term is computed from its two rows alone, in double precision from direct differences, and rounded to a
    multiple of 2⁻³⁴. Sums of such terms are exact, so a score depends neither on the order of users nor on the number
    of threads, and replacing one user moves every other *computed* score by at most one, without any rounding slack.
    The expansion ‖a‖² + ‖b‖² - 2⟨a, b⟩ is never used: it lets one user's magnitude change all scores at once.
    """
    rows = checked_rows(gradients, tau)
    each, work = norm == "linf", rows.size * len(rows) / 2
    found: Vector = loops.on_lanes(loops.all_pairs, rows, loops.pack(rows), tau, each, size=len(rows), work=work)
    return found


def scores_of(gradients: ArrayLike, indices: NDArray[np.int64], tau: float) -> Vector:
    """Return the same bits as `scores(gradients, tau)[indices]`, at k·d differences an index; shape (len(indices),)."""
    rows = checked_rows(gradients, tau)
    points, work = rows[indices], float(rows.size * len(indices))
    found: Vector = loops.on_lanes(
        loops.some_rows, points, loops.pack(rows), len(rows), tau, size=len(points), work=work
    )
    return found


def cohort_scores(gradients: ArrayLike, answered: NDArray[np.bool_], tau: float, *, norm: Norm = "l2") -> Vector:
    """Return all slots' scores, shape (k,): a slot without a usable answer is isolated, scores 1, adds 0 to others."""
    rows = checked_rows(gradients, tau)
    present = usable(rows, answered)
    result = np.ones(len(rows))
    result[present] = scores(rows[present], tau, norm=norm)
    return result


def score_summary(scores: Vector) -> dict[str, float]:
    """Return the least, middle and largest of a cohort's scores (n,), for simulation reports; empty without scores."""
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
    """Return the bound again as derived, without slack: of every entry but the own, grid, exponential and distance."""
    entry = math.fsum((2.0**-35, DECAY_ERROR, (dimension / 2 + 3) * math.exp(-1) * 2.0**-53))
    return cohort_size * entry - entry


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """All users as seen from one centre."""

    centre: Vector  # (d,)
    radii: Vector  # (k,) computed distances to the centre; inf where they overflow
    order: NDArray[np.int64]  # (k,) users by increasing radius


def observe(gradients: Matrix, centre: Vector) -> View:
    """Return the view of rows (k, d), finite, from any centre (d,)."""
    radii = loops.distances(gradients, centre)
    return View(centre, radii, np.argsort(radii))


def middle(gradients: Matrix) -> Vector:
    """Return a coordinatewise median of SAMPLE even-spaced rows of `gradients` (k, d), k >= 1, finite; shape (d,)."""
    sample = gradients[np.linspace(0, len(gradients) - 1, min(SAMPLE, len(gradients))).astype(np.int64)]
    half = (len(sample) - 1) // 2  # a middle order statistic: averaging two could overflow
    return np.ascontiguousarray(np.partition(sample, half, axis=0)[half])


def lower_bounds(gradients: Matrix, tau: float, centre: Vector, ends: Sequence[float]) -> Vector:
    """For every user a number no larger than its computed score, and at least 1; shape (k,).

    For disjoint sets J of users, with the margin for rounding of both sides, by Jensen's inequality:

        κ_i >= Σ_J |J| exp(-τ √(‖q_i - mean_J‖² + var_J))

    A set is a shell around a centre, which may be any: the users who are farther from it than one of `ends` and not
    than the next. None may be above REACH/τ, so that nothing overflows.

    On all threads: each piece of the users is summed separately, so the bits do not depend on how many there are.

        >>> rows = np.array([[0.0], [0.1], [0.2], [50.0]])
        >>> lower = lower_bounds(rows, 1.0, middle(rows), [1.0, 100.0])
        >>> bool((lower <= upper_bounds(observe(rows, middle(rows)), tau=1.0)).all())
        True
    """
    users, dimension = gradients.shape
    near, squares, found = np.empty(users, np.bool_), np.empty(users), np.zeros(users)
    pieces = -(-users // loops.PIECE)
    totals, largest, spreads = np.empty((pieces, dimension)), np.empty(pieces), np.empty(pieces)
    scale, margin = _margins(users, dimension)
    for inner, outer in pairwise([-1.0, *ends]):
        loops.shell(gradients, centre, inner, outer, near, totals, largest)
        members = int(np.count_nonzero(near))
        if members == 0:
            continue
        with np.errstate(over="ignore"):
            offset = totals.sum(axis=0) / members
            mean = centre + offset
            loops.squares(gradients, mean, near, squares, spreads)
            slack, spread = scale * largest.max() + 2 * _drift(mean, offset), spreads.sum() / members
        loops.add_jensen(squares, spread, tau, scale, slack, members, found, dimension)
    bounds: Vector = np.maximum(found - margin, 1.0)
    return bounds


def _margins(users: int, dimension: int) -> tuple[float, float]:
    """Relative error of a distance and of a sum of decays; what a lower bound is lowered by."""
    scale = 4 * (users + dimension + 16) * UNIT_ROUNDOFF
    return scale, score_error(users, dimension) + users * (LEAST_DECAYS + 4 * DECAY_ERROR + scale)


def _drift(mean: Vector, offset: Vector) -> float:
    """Return how far `mean` may be from the mean of its set: rounding of the sum, and of its addition to the centre."""
    return float(min(UNIT_ROUNDOFF * np.abs(mean).sum(), np.abs(offset).sum()))


def upper_bounds(view: View, tau: float) -> Vector:
    """For every user a number no smaller than its computed score; shape (k,).

    κ_i <= Σ_j exp(-τ |r_i - r_j|), for all i at once by sorting and two linear recursions; with the margin for
    rounding.
    """
    users, dimension = len(view.radii), len(view.centre)
    with np.errstate(over="ignore"):
        reach = np.minimum(tau * view.radii[view.order], REACH)  # 1-Lipschitz, so the inequality survives
    relative = users * 2 * DECAY_ERROR + REACH * (2 * dimension + 32) * UNIT_ROUNDOFF
    bounds = np.empty(users)
    bounds[view.order] = loops.neighbour_sums(np.diff(reach)) * (1 + relative) + score_error(users, dimension)
    return np.minimum(bounds, users)


@dataclass(frozen=True, slots=True, eq=False)
class Decisions:
    """Outcome of one round's test. All fields are functions of private data: never shown outside simulation."""

    kept: Mask  # (k,), one entry a slot
    undecided: int  # users whose score had to be computed exactly
    score_bounds: Vector  # certified lower bound of each present slot's score, exact where undecided


def grid(scores: Vector, step: float) -> Integers:
    """Return scores in units of `step`, rounded to the nearest integer and capped at 2⁵²; nondecreasing, shape kept."""
    with np.errstate(over="ignore"):
        return np.rint(np.minimum(scores / step, 2.0**52)).astype(np.int64)


def decide(gradients: ArrayLike, answered: Mask, tau: float, thresholds: Integers, *, step: float) -> Decisions:
    """Kept users of one cohort, by bounds where they suffice.

    | input                                  | what happens                                         |
    | -------------------------------------- | ---------------------------------------------------- |
    | slot not answered, or row not finite   | isolated: filtered, and adds 0 to every other score  |
    | finite row of any magnitude            | takes part; distances that overflow are infinite     |
    | score exactly at the threshold         | filtered                                             |

    Running time depends on the data: do not let it be observed.

    Args:
        gradients: answers (k, d), one row a slot.
        answered: slots with a usable answer, (k,).
        tau: inverse length τ of the kernel.
        thresholds: F - ν_i in units of `step`, (k,) integers, drawn independently of the answers.
        step: grid of scores and thresholds (`LaplaceThreshold.grid`).

    Raises:
        ConfigError: wrong shapes, or `tau` or `step` out of range; never because of a value in `gradients`.

    User i is kept iff grid(κ_i) > threshold_i; the thresholds F - ν_i were drawn beforehand, in the same units, so that
    comparisons are between integers.

        >>> answers = np.array([[0.0], [0.1], [np.nan], [1e9]])
        >>> decide(answers, np.array([True, True, True, True]), tau=1.0, thresholds=np.full(4, 3), step=0.5).kept
        array([ True,  True, False, False])
    """
    rows = checked_rows(gradients, tau)
    positive(step=step)
    if thresholds.shape != (len(rows),) or thresholds.dtype.kind != "i":
        raise ConfigError(
            f"Expected integer thresholds of shape ({len(rows)},), got {thresholds.dtype} {thresholds.shape}."
        )
    present, kept = usable(rows, answered), np.zeros(len(rows), np.bool_)
    if not present.any():
        return Decisions(kept, 0, np.zeros(0))
    rows, limits = (rows, thresholds) if present.all() else (rows[present], thresholds[present])
    kept[present], undecided, lower = _by_bounds(rows, tau, limits, step)
    return Decisions(kept, undecided, lower)


def _by_bounds(rows: Matrix, tau: float, limits: Integers, step: float) -> tuple[Mask, int, Vector]:
    centre = middle(rows)
    lower = lower_bounds(rows, tau, centre, [REACH / tau])
    kept = grid(lower, step) > limits
    if kept.all():
        return kept, 0, lower
    view = observe(rows, centre)
    open_ = ~kept & (grid(upper_bounds(view, tau), step) > limits)
    if np.count_nonzero(open_) > FEW:
        lower = np.maximum(lower, lower_bounds(rows, tau, centre, _ends(view, tau)))
        kept = grid(lower, step) > limits
        open_ &= ~kept
    if np.count_nonzero(open_) > FEW:  # the farthest user in reach separates clusters that lie around the first centre
        farthest = view.order[max(int(np.count_nonzero(view.radii < REACH / tau)) - 1, 0)]
        open_ &= grid(upper_bounds(observe(rows, rows[farthest]), tau), step) > limits
    indices = np.flatnonzero(open_)
    if 2 * len(indices) > len(rows):  # from here on all pairs, each computed once, are cheaper
        lower = scores(rows, tau)
    elif len(indices):
        lower[indices] = scores_of(rows, indices, tau)
    kept[indices] = grid(lower[indices], step) > limits[indices]
    return kept, len(indices), lower


def _ends(view: View, tau: float) -> list[float]:
    """Return where shells end: at SHARES of all users, as far ones spoil their own shell alone, and at the reach."""
    places = (np.array(SHARES) * (len(view.order) - 1)).astype(np.int64)
    return sorted({min(float(end), REACH / tau) for end in [*view.radii[view.order[places]], math.inf]})


def filtered_mean(gradients: ArrayLike, kept: Mask) -> Vector:
    """Return the mean of the kept rows, (k, d) -> (d,); zeros when nobody is kept, which leaves the iterate unchanged.

    Rows are selected, never multiplied by zero, so what a filtered user sent has no effect at all.
    """
    rows = np.ascontiguousarray(gradients, dtype=np.float64)
    users = int(kept.sum())
    if users == 0:
        return np.zeros(rows.shape[1])
    scale = 2.0 ** -users.bit_length()  # exact, and keeps sums of huge finite rows finite
    total: Vector = loops.selected_sum(rows, kept, scale)
    return total / (users * scale)
