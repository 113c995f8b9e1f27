"""Which users of a cohort count: those whose noisy concentration score exceeds a threshold, and the mean of the rest.

    >>> import numpy as np
    >>> answers = np.array([[0.0], [0.1], [np.nan], [1e9]])
    >>> decide(answers, np.array([True, True, True, True]), tau=1.0, thresholds=np.full(4, 3), step=0.5).kept
    array([ True,  True, False, False])

User i is kept iff grid(κ_i) > threshold_i, where grid(κ) is κ in units of `step`, rounded to the nearest integer, and
the thresholds F - ν_i were drawn beforehand, in the same units: comparisons are between integers. Certified bounds
decide most users and exact scores the others, so decisions are those of all pairs, always.

Source: Ghazi, Kumar, Liu & Manurangsi, Algorithm 2. Proof that the decisions are the same function of data and noise:
docs/privacy/concentration-score.md.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quoron_privacy.errors import ConfigError, positive
from quoron_privacy.kernels.on_first_use import OnFirstUse
from quoron_privacy.robust.filter import concentration, score_bounds
from quoron_privacy.robust.filter.concentration import Matrix, Norm, Vector

Mask = NDArray[np.bool_]
Integers = NDArray[np.int64]

loops = OnFirstUse("quoron_privacy.robust.filter.decisions_loops")


@dataclass(frozen=True, slots=True, eq=False)
class Decisions:
    """Outcome of one round's test. All fields are functions of private data: never shown outside simulation."""

    kept: Mask  # (k,), one entry a slot
    undecided: int  # users whose score had to be computed exactly
    score_bounds: Vector  # certified lower bound of each present slot's score, exact where undecided


def grid(scores: Vector, step: float) -> Integers:
    """Scores in units of `step`, rounded to the nearest integer and capped at 2⁵²; nondecreasing, shape kept."""
    with np.errstate(over="ignore"):
        return np.rint(np.minimum(scores / step, 2.0**52)).astype(np.int64)


def decide(
    gradients: ArrayLike, answered: Mask, tau: float, thresholds: Integers, *, step: float, norm: Norm = "l2"
) -> Decisions:
    """Kept users of one cohort, by bounds where they suffice.

    | input                                  | what happens                                         |
    | -------------------------------------- | ---------------------------------------------------- |
    | slot not answered, or row not finite   | isolated: filtered, and adds 0 to every other score  |
    | finite row of any magnitude            | takes part; distances that overflow are infinite     |
    | score exactly at the threshold         | filtered                                             |

    Running time depends on the data; where time can be observed use `decide_by_all_pairs`, which gives the same result.

    Args:
        gradients: answers (k, d), one row a slot.
        answered: slots with a usable answer, (k,).
        tau: inverse length τ of the kernel.
        thresholds: F - ν_i in units of `step`, (k,) integers, drawn independently of the answers.
        step: grid of scores and thresholds (`LaplaceThreshold.grid`).
        norm: of the kernel.

    Raises:
        ConfigError: wrong shapes, or `tau` or `step` out of range; never because of a value in `gradients`.
    """
    rows, present = _present(gradients, answered, tau, thresholds, step)
    limits = thresholds[present]
    if not len(rows):
        return Decisions(np.zeros(len(present), dtype=np.bool_), 0, np.zeros(0))
    chosen, undecided, lower = _by_bounds(rows, tau, limits, step, norm)
    return Decisions(_spread(chosen, present), undecided, lower)


def decide_by_all_pairs(
    gradients: ArrayLike, answered: Mask, tau: float, thresholds: Integers, *, step: float, norm: Norm = "l2"
) -> Decisions:
    """The same decisions as `decide`, from all exact scores: running time depends on k, d and who answered only."""
    rows, present = _present(gradients, answered, tau, thresholds, step)
    scores = concentration.scores(rows, tau, norm=norm)
    return Decisions(_spread(grid(scores, step) > thresholds[present], present), len(rows), scores)


def _present(
    gradients: ArrayLike, answered: Mask, tau: float, thresholds: Integers, step: float
) -> tuple[Matrix, Mask]:
    rows = concentration.checked_rows(gradients, tau)
    positive(step=step)
    if thresholds.shape != (len(rows),) or thresholds.dtype.kind != "i":
        raise ConfigError(
            f"Expected integer thresholds of shape ({len(rows)},), got {thresholds.dtype} {thresholds.shape}."
        )
    present = concentration.usable(rows, answered)
    return (rows if present.all() else rows[present]), present


def _spread(chosen: Mask, present: Mask) -> Mask:
    kept = np.zeros(len(present), dtype=np.bool_)
    kept[present] = chosen
    return kept


def _by_bounds(rows: Matrix, tau: float, limits: Integers, step: float, norm: Norm) -> tuple[Mask, int, Vector]:
    lower = score_bounds.crowd_bounds(rows, tau) if norm == "l2" else np.ones(len(rows))
    kept = grid(lower, step) > limits
    if kept.all():
        return kept, 0, lower
    view = score_bounds.observe(rows, norm)
    lower = np.maximum(lower, score_bounds.lower_bounds(rows, view, tau))
    kept = grid(lower, step) > limits
    open_ = ~kept
    for seen in (view, None):
        if open_.any():
            seen = seen or score_bounds.second_view(rows, view, tau)
            open_ &= grid(score_bounds.upper_bounds(seen, tau), step) > limits
    indices = np.flatnonzero(open_)
    if 2 * len(indices) > len(rows):  # from here on all pairs, each computed once, are cheaper
        lower = concentration.scores(rows, tau, norm=norm)
        kept[indices] = grid(lower[indices], step) > limits[indices]
    elif len(indices):
        lower[indices] = concentration.scores_of(rows, indices, tau, norm=norm)
        kept[indices] = grid(lower[indices], step) > limits[indices]
    return kept, len(indices), lower


def filtered_mean(gradients: ArrayLike, kept: Mask) -> Vector:
    """Mean of the kept rows, (k, d) -> (d,); zeros when nobody is kept, which leaves the iterate unchanged.

    Rows are selected, never multiplied by zero, so what a filtered user sent has no effect at all.
    """
    rows = np.ascontiguousarray(gradients, dtype=np.float64)
    users = int(kept.sum())
    if users == 0:
        return np.zeros(rows.shape[1])
    scale = 2.0 ** -users.bit_length()  # exact, and keeps sums of huge finite rows finite
    total: Vector = loops.selected_sum(rows, kept, scale)
    return total / (users * scale)
