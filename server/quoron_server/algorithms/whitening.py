"""Features made alike in every direction by what was released of them, and predictions that are Gaussian in them.

    typical_length   of a user, from the mean logarithm of lengths, with what is known of it before
    whitening        from a noisy second moment: eigenvalues freed of what noise adds to their spread, never below noise
    widened, without  directions that looks lengthened and never heard; points without what lies along them
    curvature_share, mean_chance   of a logistic loss, over Gaussian predictions

All here are functions of released and public numbers. Why each is as it is: docs/privacy/whitened-tracking.md, "What
each part is for".
"""

import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.arrays import Matrix, Vector
from quoron_privacy.means.free_counts import SPAN, LogLength, Moment, Presence
from quoron_privacy.means.free_counts import Length as Released

LENGTH_PRIOR = 1.2, 0.8  # how far below its bound the logarithm of a length is taken to be, and the deviation of that
FLOOR = 0.3  # eigenvalues stay this times the noise's edge above 0, and this times their mean
ROOM = 0.5  # times the mean is the most that the edge adds
AROUND = 2.5  # or, around a mean, what brings the mean to this times that of all, the mean's own part included
MAX_DOUBT = 10.0
WIDENED = 0.01  # times their mean that eigenvalues stay above 0 where some are narrow and there is another look
FINE = 0.25  # of the floor: where the noise's edge is below that, what lies surely below the floor is widened as well
NARROW, SURELY = 0.3, 2.0  # of the constant feature's mean square, and by how many deviations less a hidden one varies
UNHEARD = 0.42  # the edge of the noise over an eigenvalue, floor and all, above which that may be noise alone
LONGER = 3.0  # times as long as unwidened
EQUAL = 1e-8, 1e-13  # of the own and of the largest eigenvalue: those no farther apart have no directions of their own
WIDTH = math.sqrt(8 / math.pi)  # the logistic function is nearly Φ(u / WIDTH), as steep at 0
_NORMAL = NormalDist()


def typical_length(released: Released, mechanism: LogLength, top: float) -> float:
    """Return a user's length, from the mean logarithm of those above 0: at most `top`, at least exp(-SPAN) of it.

    Who has no length, such as a user without a row that can be used, is not in that mean: its own presence says so.
    """
    share = Presence().seen(released.presence, mechanism.presence_deviation).share
    fall, deviation = SPAN * (released.mean / share + 0.5), mechanism.deviation / share
    mean, known = LENGTH_PRIOR[0], LENGTH_PRIOR[1] ** 2
    fall = (fall / deviation**2 + mean / known) / (1 / deviation**2 + 1 / known)
    return top * math.exp(-min(max(fall, 0.0), SPAN))


class Whitening(NamedTuple):
    """Of the features as they were transformed before."""

    transform: Matrix  # (d, d): to be multiplied from the right
    doubt: Vector  # (d,): how much of each eigenvalue may be noise
    heard: float  # how far features vary at all, in deviations of the noise in that
    narrow: bool  # whether those that the floor hides surely vary far less than the constant, or the mean, one does


def whitening(
    moment: Moment, share: float, deviation: float, typical: float, *, constant: bool = False, again: bool = False
) -> Whitening:
    """From a second moment whose diagonal carries noise of `deviation`, over `share` of n users of a `typical` length.

    With a `constant` last feature, the others are whitened around their mean, which that feature's row tells, and the
    last coordinate stays that feature's. Where there is to be a look `again`, what is narrow is widened by far.
    """
    d, s = len(moment.mean), deviation / share
    whole = moment.mean / share
    base = max(float(np.trace(whole)), typical, 1e-6) / d  # a trace is at least the Frobenius norm
    if not constant or d == 1:
        usual = float(np.trace(whole)) / d
        values, basis, edge, narrow = _resolved(whole, s, base, ROOM * base, np.zeros(d), usual, again=again)
        doubt, heard = np.minimum(edge / values, MAX_DOUBT), float(np.trace(whole)) / max(s * math.sqrt(d), 1e-300)
        return Whitening(basis / np.sqrt(values), doubt, heard, narrow)
    mass = max(float(whole[-1, -1]), s, 1e-6 / d)
    row, noise = whole[:-1, -1], 0.5 * (d - 1) * s * s
    means = row / mass * max(0.0, 1 - noise / max(float(row @ row), noise))  # that may all be noise are taken for 0
    from_means = np.concatenate([np.eye(d - 1), -means[:, None]], axis=1)
    around = from_means @ whole @ from_means.T
    spread = math.sqrt(d - 2 + (1 + float(means @ means)) ** 2)  # of the trace, over s
    own = max(float(np.trace(around)), s * spread, 1e-6) / (d - 1)
    room = max(AROUND * base - own, ROOM * own)
    values, basis, edges, narrow = _resolved(0.5 * (around + around.T), s, own, room, means, mass, again=again)
    transform, scaled = np.zeros((d, d)), basis / np.sqrt(values)
    transform[:-1, :-1], transform[-1, :-1] = scaled, -means @ scaled
    transform[-1, -1] = 1 / math.sqrt((1 + FLOOR) * mass)
    doubt = np.append(edges / values, math.sqrt(2 * (d - 1)) * s / mass)
    heard = float(np.trace(around)) / max(s * spread, 1e-300)
    return Whitening(transform, np.minimum(doubt, MAX_DOUBT), heard, narrow)


def eigen(matrix: Matrix) -> tuple[Vector, Matrix]:
    """Return the eigenvalues (d,), ascending, of a symmetric matrix (d, d), and its eigenvectors (d, d) as columns.

    See `canonical`.
    """
    values, basis = np.linalg.eigh(matrix)
    return values, canonical(values, basis)


def canonical(values: Vector, basis: Matrix) -> Matrix:
    """Return orthonormal columns (d, k) that span the same as those of `basis` for all values that are about equal.

    LAPACK's vectors have either sign, and those of equal values any rotation, by the processor's rounding. These are
    projections of the first axes, nearly (none is orthogonal to all else), the same on every machine.
    """
    sizes = np.abs(values)
    near = np.maximum(EQUAL[0] * sizes[1:], EQUAL[1] * sizes.max(initial=0.0))
    borders = np.flatnonzero(np.diff(values) > near) + 1
    axes = np.eye(*basis.shape) + 1e-4 * np.random.default_rng(0).standard_normal(basis.shape)
    found = np.empty_like(basis)
    for part in np.split(np.arange(len(values)), borders):
        turn, upper = np.linalg.qr(basis[:, part].T @ axes[:, : len(part)])
        found[:, part] = basis[:, part] @ (turn * np.where(np.diag(upper) < 0, -1.0, 1.0))
    return found


def _narrow(values: Vector, floor: float, s: float, usual: float) -> bool:
    """Return whether most eigenvalues are hidden, and in the mean surely below a share of what is `usual`."""
    hidden = values[values < floor]
    return 2 * len(hidden) > len(values) and float(hidden.mean()) + SURELY * s / math.sqrt(len(hidden)) < NARROW * usual


def _resolved(
    whole: Matrix, s: float, base: float, room: float, means: Vector, usual: float, *, again: bool
) -> tuple[Vector, Matrix, Vector, bool]:
    """Eigenvalues of mean `base` with vectors, freed of noise, the edge of its spectrum along each, if any is narrow.

    The noise is (I + m mᵀ)^½ G (I + m mᵀ)^½, m the `means` and G of deviation s on its diagonal. Where it is made
    alike in every direction, pairs of eigenvalues are pushed apart by it; the sum over pairs takes that back. What is
    below the edge cannot be told from nothing, and takes a share of the mean eigenvalue instead.
    """
    d, edge, square = len(whole), math.sqrt(2 * len(whole)) * s, float(means @ means)
    along = np.outer(means, means) / max(square, 1e-300)
    calm, rough = (np.eye(d) + (math.pow(1 + square, power) - 1) * along for power in (-0.5, 0.5))
    around = calm @ (whole - float(np.trace(whole)) / d * np.eye(d)) @ calm
    values, basis = np.linalg.eigh(around)
    if d > 1 and np.sum(around * around) > 0.5 * (d * (d + 1) - 2) * s * s:
        gaps, width = values[:, None] - values[None, :], 0.5 * edge / math.sqrt(d)
        freed = np.maximum.accumulate(values - s * s * np.sum(gaps / (gaps**2 + width**2), axis=1))
        values = freed - freed.mean() + values.mean()
    else:
        values = np.zeros(d)
    sides = rough @ basis
    values, basis = np.linalg.eigh(base * np.eye(d) + (sides * values) @ sides.T)
    values = np.maximum(values, 0.0)
    narrow = _narrow(values, max(min(FLOOR * edge, room), FLOOR * base), s, usual)
    narrow = narrow or (edge < FINE * FLOOR * base and bool((values < FLOOR * base - edge).any()))
    least = (WIDENED if narrow and again else FLOOR) * base
    floors = [max(min(FLOOR * edge * times, room), least) for times in (1.0, 1 + square)]
    floor = floors[0] * np.eye(d) + (floors[1] - floors[0]) * along
    values, basis = eigen((basis * values) @ basis.T + floor)
    return values, basis, edge * (1 + (means @ basis) ** 2), narrow


def widened(transform: Matrix, doubt: Vector, unwidened: Matrix, *, constant: bool) -> NDArray[np.bool_]:
    """Directions that no look has heard, though they are longer for it than in a metric that widened none: (d,).

    Columns that sum to the constant, such as all categories of one, have such a direction: nothing holds it there.
    """
    own, found = len(transform) - constant, np.zeros(len(transform), np.bool_)
    lengths = np.linalg.norm(np.linalg.solve(unwidened[:own, :own], transform[:own, :own]), axis=0)
    found[:own] = (doubt[:own] > UNHEARD) & (lengths > LONGER)
    return found


def without(points: Matrix, directions: NDArray[np.bool_], transform: Matrix, unwidened: Matrix) -> Matrix:
    """Points, (q, d), less what lies along directions, (d,), of their metric: the nearest in the other one."""
    between = np.linalg.solve(unwidened, transform)
    basis = np.linalg.qr(between[:, directions])[0]
    found: Matrix = np.linalg.solve(between, (points @ between.T - (points @ between.T @ basis) @ basis.T).T).T
    return found


def aligned(transform: Matrix, doubt: Vector, groups: tuple[int, ...] = (), *, constant: bool) -> tuple[Matrix, Vector]:
    """Return the same metric in coordinates that are directions of the features themselves, those that vary most first.

    With `groups`, 0 or more of every feature, in coordinates of what a group adds to those before it. Models L w of the
    features of some groups are the w that are orthogonal to the rows of L of all others. So the last directions of a
    basis of rows, the last group's first, are those of the first groups. A `constant` feature's stays the last.
    """
    own, turn = len(transform) - constant, np.eye(len(transform))
    if groups:
        last_first = np.argsort(groups[:own], kind="stable")[::-1]
        turn[:own, :own] = np.linalg.qr(transform[:own, :own][last_first].T)[0][:, ::-1]
    else:
        _, lengths, directions = np.linalg.svd(transform[:own, :own])
        turn[:own, :own] = canonical(lengths[::-1], directions[::-1].T)
    return transform @ turn, doubt @ turn**2


def along(transform: Matrix, *, constant: bool) -> Vector:
    """Features' variance along directions of an aligned metric, (d,), over the largest; a `constant` one: the mean."""
    own = len(transform) - constant
    if not own:
        return np.ones(1)
    lengths = np.sum(transform[:own, :own] ** 2, axis=0)
    found = lengths.min() / lengths
    return np.append(found, [found.mean()] * constant)


def curvature_share(sigmoid: bool, square: float, mean: float = 0.0) -> float:
    """κ: mean curvature over its bound, for predictions N(mean, square)."""
    if not sigmoid:
        return 1.0
    width = math.sqrt(WIDTH**2 + max(square, 0.0))
    return WIDTH / width * math.exp(-0.5 * (mean / width) ** 2)


def mean_chance(mean: float, variance: float) -> float:
    """Of the positive class, for predictions N(mean, variance)."""
    return _NORMAL.cdf(mean / math.sqrt(WIDTH**2 + max(variance, 0.0)))
