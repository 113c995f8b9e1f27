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
from functools import partial

import numpy as np
from numba import njit
from numpy.typing import NDArray

from quoron_privacy.kernels.threads import in_pieces
from quoron_privacy.robust.filter.concentration import (
    DECAY_ERROR,
    UNIT_ROUNDOFF,
    Blocks,
    Matrix,
    Norm,
    Vector,
    _decay,
    distances,
    pack,
    score_error,
)

REACH = 1e6  # in units of 1/τ: farther users count as one far-away crowd
SHARES = (0.5, 0.8, 0.95)  # of all users, nearest first: where shells end
CROWD = 2.0  # and one ends at this many median radii, where far users begin
LEAST_DECAYS = 4e-11  # above 2·exp(-25), what _decay adds to products of far decays
_PIECE = 1 << 12  # users whose sums one thread makes
SAMPLE = 101  # rows whose coordinatewise median is the centre; any centre is valid, a robust one is tight


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """All users as seen from one centre, in one norm."""

    blocks: Blocks  # the rows, packed
    centre: Vector  # (d,)
    radii: Vector  # (k,) computed distances to the centre; inf where they overflow
    order: NDArray[np.int64]  # (k,) users by increasing radius
    norm: Norm


def observe(gradients: Matrix, norm: Norm = "l2") -> View:
    """The view from a coordinatewise median of SAMPLE evenly spaced rows of `gradients` (k, d), k >= 1, finite."""
    return _seen_from(_centre(gradients), pack(gradients), len(gradients), norm)


def _centre(gradients: Matrix) -> Vector:
    sample = gradients[np.linspace(0, len(gradients) - 1, min(SAMPLE, len(gradients))).astype(np.int64)]
    middle = (len(sample) - 1) // 2  # a middle order statistic: averaging two could overflow
    return np.ascontiguousarray(np.partition(sample, middle, axis=0)[middle])


def second_view(gradients: Matrix, view: View, tau: float) -> View:
    """The view from the farthest user still in reach: it tells clusters apart that lie around the first centre."""
    inside = _within_reach(view, tau)
    return _seen_from(gradients[view.order[max(inside - 1, 0)]], view.blocks, len(gradients), view.norm)


def _seen_from(centre: Vector, blocks: Blocks, users: int, norm: Norm) -> View:
    radii = distances(blocks, centre, users, norm)
    return View(blocks, centre, radii, np.argsort(radii), norm)


@njit(cache=True)
def _offset_means(gradients: Matrix, centre: Vector, order: NDArray[np.int64], ends: NDArray[np.int64]) -> Matrix:
    """Mean of q_j - centre over each shell: users ends[s - 1] to ends[s] of `order`."""
    means, first = np.zeros((len(ends), len(centre))), 0
    for s in range(len(ends)):
        for position in range(first, ends[s]):
            row = gradients[order[position]]
            for k in range(len(centre)):
                means[s, k] += row[k] - centre[k]
        means[s] /= ends[s] - first
        first = ends[s]
    return means


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _crowd(
    gradients: Matrix,
    centre: Vector,
    reach: float,
    near: NDArray[np.bool_],
    totals: Matrix,
    largest: Vector,
    first: int,
    last: int,
) -> None:
    """Users `first` to `last` within reach of the centre: marked in `near`; Σ (q_j - centre) and the largest distance.

    These are of the piece that begins at `first`.
    """
    total, farthest = np.zeros(len(centre)), 0.0
    for i in range(first, last):
        row, square = gradients[i], 0.0
        for k in range(len(centre)):
            square += (row[k] - centre[k]) * (row[k] - centre[k])
        radius = np.sqrt(square)
        near[i] = radius <= reach
        if near[i]:
            farthest = max(farthest, radius)
            for k in range(len(centre)):
                total[k] += row[k] - centre[k]
    totals[first // _PIECE], largest[first // _PIECE] = total, farthest


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _squares(
    gradients: Matrix, point: Vector, near: NDArray[np.bool_], out: Vector, totals: Vector, first: int, last: int
) -> None:
    """‖q_i - point‖² of users `first` to `last`, and the sum of those in `near`, of the piece that begins there."""
    total = 0.0
    for i in range(first, last):
        row, square = gradients[i], 0.0
        for k in range(len(point)):
            square += (row[k] - point[k]) * (row[k] - point[k])
        out[i] = square
        total += square if near[i] else 0.0
    totals[first // _PIECE] = total


@njit(cache=True, nogil=True)
def _jensen_of(
    squares: Vector, spread: float, tau: float, scale: float, slack: float, members: int, first: int, last: int
) -> None:
    """members · exp(-τ (√(square + spread) (1 + scale) + slack)) of users `first` to `last`, in place."""
    for i in range(first, last):
        squares[i] = members * _decay(tau * (np.sqrt(squares[i] + spread) * (1 + scale) + slack))


@njit(cache=True)
def _decays(values: Vector) -> Vector:
    out = np.empty(len(values))
    for i in range(len(values)):
        out[i] = _decay(values[i])
    return out


@njit(cache=True)
def _neighbour_sums(gaps: Vector) -> Vector:
    """Σ_j exp(-|s_i - s_j|) for sorted s with gaps[i] = s_{i+1} - s_i >= 0: one sweep up, one down."""
    total = np.ones(len(gaps) + 1)
    below = above = 0.0
    for i in range(len(gaps)):
        below = (below + 1.0) * _decay(gaps[i])
        total[i + 1] += below
        last = len(gaps) - 1 - i
        above = (above + 1.0) * _decay(gaps[last])
        total[last] += above
    return total


def lower_bounds(gradients: Matrix, view: View, tau: float) -> Vector:
    """For every user a number no larger than its computed score, and at least 1; shape (k,)."""
    inside = _within_reach(view, tau)
    if inside == 0:
        return np.ones(len(gradients))
    scale, margin = _margins(*gradients.shape)
    with np.errstate(over="ignore"):
        near = _decays(tau * view.radii * (1 + scale))
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
    pieces = -(-users // _PIECE)
    totals, largest, spreads = np.empty((pieces, dimension)), np.empty(pieces), np.empty(pieces)
    scale, margin = _margins(users, dimension)
    in_pieces(partial(_crowd, gradients, centre, REACH / tau, near, totals, largest), users, dimension, _PIECE)
    members = int(np.count_nonzero(near))
    if members == 0:
        return np.ones(users)
    with np.errstate(over="ignore"):
        offset = totals.sum(axis=0) / members
        mean = centre + offset
        in_pieces(partial(_squares, gradients, mean, near, squares, spreads), users, dimension, _PIECE)
        slack, spread = scale * largest.max() + 2 * _drift(mean, offset), spreads.sum() / members
    in_pieces(partial(_jensen_of, squares, spread, tau, scale, slack, members), users, dimension, _PIECE)
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
    for end, offset in zip(ends, _offset_means(gradients, view.centre, view.order, ends), strict=True):
        members, mean = view.order[first:end], view.centre + offset
        squares = distances(view.blocks, mean, len(gradients)) ** 2
        spread = squares[members].mean()
        slack = scale * view.radii[members[-1]] + 2 * _drift(mean, offset)
        jensen += len(members) * _decays(tau * (np.sqrt(squares + spread) * (1 + scale) + slack))
        first = end
    return jensen


def upper_bounds(view: View, tau: float) -> Vector:
    """For every user a number no smaller than its computed score; shape (k,)."""
    users, dimension = len(view.radii), len(view.centre)
    with np.errstate(over="ignore"):
        reach = np.minimum(tau * view.radii[view.order], REACH)  # 1-Lipschitz, so the inequality survives
    relative = users * 2 * DECAY_ERROR + REACH * (2 * dimension + 32) * UNIT_ROUNDOFF
    bounds = np.empty(users)
    bounds[view.order] = _neighbour_sums(np.diff(reach)) * (1 + relative) + score_error(users, dimension)
    return np.minimum(bounds, users)


def _shell_ends(view: View, inside: int) -> NDArray[np.int64]:
    """Where each shell of users ends, nearest first: far users must not spoil the bound of the many."""
    radii = view.radii[view.order[:inside]]
    crowd = int(np.searchsorted(radii, CROWD * radii[inside // 2], side="right"))
    return np.unique([*(max(1, int(share * inside)) for share in SHARES), crowd, inside]).astype(np.int64)


def _within_reach(view: View, tau: float) -> int:
    return int(np.searchsorted(view.radii[view.order], REACH / tau))
