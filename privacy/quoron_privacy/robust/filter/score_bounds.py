"""Certified lower and upper bounds of all concentration scores in O(k·d + k·log k), without looking at pairs.

    >>> import numpy as np
    >>> rows = np.array([[0.0], [0.1], [0.2], [50.0]])
    >>> view = observe(rows)
    >>> bool((lower_bounds(rows, view, tau=1.0) <= upper_bounds(view, tau=1.0)).all())
    True

Three inequalities, for distances r to any centre and any sets J of users:

* Jensen, ℓ2 only:  κ_i >= Σ_J |J| exp(-τ √(‖q_i - mean_J‖² + var_J)), J running over disjoint shells, or with one J
  alone, the crowd: that needs no order of users, and is enough for nearly everybody in an ordinary cohort;
* triangle:         κ_i >= exp(-τ r_i) Σ_J exp(-τ r_j);
* reverse triangle: κ_i <= Σ_j exp(-τ |r_i - r_j|), for all i at once by sorting and two linear recursions.

All of them include the margin for rounding, theirs and that of `concentration.scores`: they hold for the *computed*
score. Users beyond REACH/τ from the centre never enter a mean, so nothing overflows.

Source: docs/privacy/concentration-score.md, where each bound and its margin is proved.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.kernels.on_first_use import OnFirstUse
from quoron_privacy.robust.filter.concentration import (
    DECAY_ERROR,
    UNIT_ROUNDOFF,
    Matrix,
    Norm,
    Vector,
    score_error,
)

loops = OnFirstUse("quoron_privacy.robust.filter.score_bounds_loops")

REACH = 1e6  # in units of 1/τ: farther users count as one far-away crowd
SHARES = (0.5, 0.8, 0.95)  # of all users, nearest first: where shells end
CROWD = 2.0  # and one ends at this many median radii, where far users begin
LEAST_DECAYS = 4e-11  # above 2·exp(-25), what `decay` adds to products of far decays
SAMPLE = 101  # rows whose coordinatewise median is the centre; any centre is valid, a robust one is tight


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """All users as seen from one centre, in one norm."""

    blocks: Vector  # the rows, packed: (blocks, d, rows of a block)
    centre: Vector  # (d,)
    radii: Vector  # (k,) computed distances to the centre; inf where they overflow
    order: NDArray[np.int64]  # (k,) users by increasing radius
    norm: Norm


def observe(gradients: Matrix, norm: Norm = "l2") -> View:
    """The view from a coordinatewise median of SAMPLE evenly spaced rows of `gradients` (k, d), k >= 1, finite."""
    return _seen_from(_centre(gradients), loops.pack(gradients), len(gradients), norm)


def _centre(gradients: Matrix) -> Vector:
    sample = gradients[np.linspace(0, len(gradients) - 1, min(SAMPLE, len(gradients))).astype(np.int64)]
    middle = (len(sample) - 1) // 2  # a middle order statistic: averaging two could overflow
    return np.ascontiguousarray(np.partition(sample, middle, axis=0)[middle])


def second_view(gradients: Matrix, view: View, tau: float) -> View:
    """The view from the farthest user still in reach: it tells clusters apart that lie around the first centre."""
    inside = _within_reach(view, tau)
    return _seen_from(gradients[view.order[max(inside - 1, 0)]], view.blocks, len(gradients), view.norm)


def _seen_from(centre: Vector, blocks: Vector, users: int, norm: Norm) -> View:
    radii = loops.distances(blocks, centre, users, norm)
    return View(blocks, centre, radii, np.argsort(radii), norm)


def lower_bounds(gradients: Matrix, view: View, tau: float) -> Vector:
    """For every user a number no larger than its computed score, and at least 1; shape (k,)."""
    inside = _within_reach(view, tau)
    if inside == 0:
        return np.ones(len(gradients))
    scale, margin = _margins(*gradients.shape)
    with np.errstate(over="ignore"):
        near = loops.decays(tau * view.radii * (1 + scale))
        found = near * near[view.order[:inside]].sum()  # triangle: any norm
        if view.norm == "l2":
            found = np.maximum(found, _jensen(gradients, view, tau, inside, scale))
    bounds: Vector = np.maximum(found - margin, 1.0)
    return bounds


def crowd_bounds(gradients: Matrix, tau: float) -> Vector:
    """The same from one set of users, all that are near a middle one: two reads of `gradients` (k, d), ℓ2 only.

    On all threads: each piece of the users has sums of its own, so the bits do not depend on how many there are.
    """
    users, dimension = gradients.shape
    centre, near, squares = _centre(gradients), np.empty(users, np.bool_), np.empty(users)
    pieces = -(-users // loops.PIECE)
    totals, largest, spreads = np.empty((pieces, dimension)), np.empty(pieces), np.empty(pieces)
    scale, margin = _margins(users, dimension)
    loops.crowd(gradients, centre, REACH / tau, near, totals, largest)
    members = int(np.count_nonzero(near))
    if members == 0:
        return np.ones(users)
    with np.errstate(over="ignore"):
        offset = totals.sum(axis=0) / members
        mean = centre + offset
        loops.squares(gradients, mean, near, squares, spreads)
        slack, spread = scale * largest.max() + 2 * _drift(mean, offset), spreads.sum() / members
    loops.jensen_of(squares, spread, tau, scale, slack, members, dimension)
    bounds: Vector = np.maximum(squares - margin, 1.0)
    return bounds


def _margins(users: int, dimension: int) -> tuple[float, float]:
    """Relative error of a distance and of a sum of decays; what a lower bound is lowered by."""
    scale = 4 * (users + dimension + 16) * UNIT_ROUNDOFF
    return scale, score_error(users, dimension) + users * (LEAST_DECAYS + 4 * DECAY_ERROR + scale)


def _drift(mean: Vector, offset: Vector) -> float:
    """How far `mean` may be from the mean of its set: rounding of the sum, and of its addition to the centre."""
    return float(min(UNIT_ROUNDOFF * np.abs(mean).sum(), np.abs(offset).sum()))


def _jensen(gradients: Matrix, view: View, tau: float, inside: int, scale: float) -> Vector:
    """Σ_J |J| exp(-τ √(‖q_i - mean_J‖² + var_J)) over shells: the mean square distance is this in ℓ2 alone."""
    ends, jensen, first = _shell_ends(view, inside), np.zeros(len(gradients)), 0
    for end, offset in zip(ends, loops.offset_means(gradients, view.centre, view.order, ends), strict=True):
        members, mean = view.order[first:end], view.centre + offset
        squares = loops.distances(view.blocks, mean, len(gradients)) ** 2
        spread = squares[members].mean()
        slack = scale * view.radii[members[-1]] + 2 * _drift(mean, offset)
        jensen += len(members) * loops.decays(tau * (np.sqrt(squares + spread) * (1 + scale) + slack))
        first = end
    return jensen


def upper_bounds(view: View, tau: float) -> Vector:
    """For every user a number no smaller than its computed score; shape (k,)."""
    users, dimension = len(view.radii), len(view.centre)
    with np.errstate(over="ignore"):
        reach = np.minimum(tau * view.radii[view.order], REACH)  # 1-Lipschitz, so the inequality survives
    relative = users * 2 * DECAY_ERROR + REACH * (2 * dimension + 32) * UNIT_ROUNDOFF
    bounds = np.empty(users)
    bounds[view.order] = loops.neighbour_sums(np.diff(reach)) * (1 + relative) + score_error(users, dimension)
    return np.minimum(bounds, users)


def _shell_ends(view: View, inside: int) -> NDArray[np.int64]:
    """Where each shell of users ends, nearest first: far users must not spoil the bound of the many."""
    radii = view.radii[view.order[:inside]]
    crowd = int(np.searchsorted(radii, CROWD * radii[inside // 2], side="right"))
    return np.unique([*(max(1, int(share * inside)) for share in SHARES), crowd, inside]).astype(np.int64)


def _within_reach(view: View, tau: float) -> int:
    return int(np.searchsorted(view.radii[view.order], REACH / tau))
