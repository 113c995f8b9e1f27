"""What a run of `whitened-tracking` makes of its releases. All here are functions of released and public numbers.

    length        the logarithm of a typical user's length, with what is known of it before
    whitening     from a noisy second moment: eigenvalues freed of what noise adds to their spread, never below noise
    GradientModel a regression over all rounds: released gradients are a smooth function of the point, plus noise
    shrunk        a step is taken as far as it stands out of its noise

Why each is as it is: docs/privacy/whitened-tracking.md, "What each part is for".
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.means.free_presence import SPAN, LogLength, Moment
from quoron_privacy.means.free_presence import Length as Released
from quoron_server.algorithms.whitened.law import Law

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

LENGTH_PRIOR = 1.2, 0.8  # how far below its bound the logarithm of a length is taken to be, and the deviation of that
FLOOR = 0.3  # eigenvalues stay this times the noise's edge above 0, and this times their mean
ROOM = 0.5  # times the mean is the most that the edge adds
AROUND = 2.5  # or, around a mean, what brings the mean to this times that of all, the mean's own part included
DOUBT = 0.15  # by which a step is shorter, times the noise's edge over the eigenvalue
MOST_DOUBT = 10.0
LEARNT = 0.5  # deviation of a linear function of the expected gradient, which is not known beforehand
LARGEST_CHANGE = 4.0  # of a curvature by what rounds have taught
WALK = 0.3  # share of a step's change of the gradient by which no model of it holds
NULL_ODDS = 3.0  # logarithm of the odds that there is nothing to learn
GRID = 60  # scales of what there is to learn


def typical_length(released: Released, mechanism: LogLength, share: float, top: float) -> float:
    """A user's length, from its mean logarithm: at most `top`, at least exp(-SPAN) of it."""
    fall, deviation = SPAN * (released.mean / share + 0.5), mechanism.deviation / share
    mean, known = LENGTH_PRIOR[0], LENGTH_PRIOR[1] ** 2
    fall = (fall / deviation**2 + mean / known) / (1 / deviation**2 + 1 / known)
    return top * math.exp(-min(max(fall, 0.0), SPAN))


class Whitening(NamedTuple):
    """Of the features as they were transformed before."""

    transform: Matrix  # (d, d): to be multiplied from the right
    doubt: Vector  # (d,): how much of each eigenvalue may be noise


def whitening(moment: Moment, share: float, deviation: float, typical: float, *, constant: bool = False) -> Whitening:
    """From a second moment whose diagonal carries noise of `deviation`, over `share` of n users of a `typical` length.

    With a `constant` last feature, the others are whitened around their mean, which that feature's row tells, and the
    last coordinate stays that feature's.
    """
    d, s = len(moment.mean), deviation / share
    whole = moment.mean / share
    base = max(float(np.trace(whole)), typical, 1e-6) / d  # a trace is at least the Frobenius norm
    if not constant or d == 1:
        values, basis, edge = _resolved(whole, s, base, ROOM * base)
        return Whitening(basis / np.sqrt(values), np.minimum(edge / values, MOST_DOUBT))
    mass = max(float(whole[-1, -1]), s, 1e-6 / d)
    row, noise = whole[:-1, -1], 0.5 * (d - 1) * s * s
    row = row * max(0.0, 1 - noise / max(float(row @ row), noise))  # means that may all be noise are taken for 0
    means = row / mass
    around = whole[:-1, :-1] - np.outer(means, row)
    own = max(float(np.trace(around)), s * math.sqrt(d - 1), 1e-6) / (d - 1)
    values, basis, edge = _resolved(0.5 * (around + around.T), s, own, max(AROUND * base - own, ROOM * own))
    transform, scaled = np.zeros((d, d)), basis / np.sqrt(values)
    transform[:-1, :-1], transform[-1, :-1] = scaled, -means @ scaled
    transform[-1, -1] = 1 / math.sqrt((1 + FLOOR) * mass)
    return Whitening(transform, np.minimum(edge / np.append(values, mass), MOST_DOUBT))


def _resolved(whole: Matrix, s: float, base: float, room: float) -> tuple[Vector, Matrix, float]:
    """Eigenvalues of mean `base` with their vectors, freed of noise s (d, d), and the edge of the noise's spectrum.

    Pairs of eigenvalues are pushed apart by noise; the sum over pairs takes that back. What is below the edge of the
    noise's spectrum cannot be told from nothing, and takes a share of the mean eigenvalue instead.
    """
    d, edge = len(whole), math.sqrt(2 * len(whole)) * s
    around = whole - float(np.trace(whole)) / d * np.eye(d)
    values, basis = np.linalg.eigh(around)
    if d > 1 and np.sum(around * around) > 0.5 * (d * (d + 1) - 2) * s * s:
        gaps, width = values[:, None] - values[None, :], 0.5 * edge / math.sqrt(d)
        values = np.maximum.accumulate(values - s * s * np.sum(gaps / (gaps**2 + width**2), axis=1))
        values = values - values.mean()
    else:
        values = np.zeros(d)
    return np.maximum(base + values, 0.0) + max(min(FLOOR * edge, room), FLOOR * base), basis, edge


@dataclass(frozen=True, slots=True, eq=False)
class GradientModel:
    """Regression of released gradients on their points, the same weights for every coordinate.

    The gradient at θ is γ(θ), a constant that nothing is known of, a linear function of γ(θ) of deviation LEARNT,
    and a walk of what no model holds.
    """

    known: Matrix  # (t, d), γ at the points
    residuals: Matrix  # (t, d): released, less γ
    walks: Vector  # (t,): b, the walk's variance at each point
    inverse: Matrix  # (t, t), of the covariance
    slope_variance: float  # σ_H², of a coordinate
    law: Law

    @classmethod
    def of(cls, points: Matrix, gradients: Matrix, variances: Vector, walks: Vector, *, law: Law) -> "GradientModel":
        """From t rounds: `variances` (t,) of the noise of a coordinate."""
        slope_variance = LEARNT**2 / points.shape[1]
        known = np.array([law.gradient(x) for x in points])
        covariance = slope_variance * known @ known.T + np.minimum.outer(walks, walks) + np.diag(variances)
        return cls(known, gradients - known, walks, np.linalg.inv(covariance), slope_variance, law)

    def at(self, x: Vector, walk: float) -> tuple[Vector, float]:
        """Mean and variance of a coordinate of the gradient at x (d,), `walk` being b there."""
        ones = np.ones(len(self.known))
        level = self.inverse @ ones
        own = 1 / float(ones @ level)  # variance of the constant
        known = self.law.gradient(x)
        near = self.slope_variance * (self.known @ known) + np.minimum(self.walks, walk)
        weights = self.inverse @ near
        rest = 1 - float(ones @ weights)
        variance = self.slope_variance * float(known @ known) + walk - float(near @ weights) + own * rest * rest
        return known + (weights + level * own * rest) @ self.residuals, max(variance, 1e-300)

    def step(self, fall: Matrix, h: Matrix, basis: Matrix) -> tuple[Matrix, Matrix]:
        """(J⁻¹ fall, diagonal of J⁻²), each (q, d), J the Hessian that rounds have taught; h (q, d) is it before them.

        That of the mean of the regression, made symmetric, no eigenvalue more than LARGEST_CHANGE times what h says:
        of low rank beside h. Coordinates are of parts along `basis` (q, q).
        """

        def along(rows: Matrix) -> Matrix:
            return basis.T @ rows.reshape(len(rows), *h.shape)

        level = self.inverse.sum(axis=0)
        learnt = self.slope_variance * (self.inverse - np.outer(level, level) / level.sum())
        out = (along(self.residuals) / np.sqrt(h)).reshape(len(self.known), -1)
        into = (along(self.known) * np.sqrt(h)).reshape(len(self.known), -1)
        span = np.linalg.qr(np.concatenate([out, into]).T)[0]
        slope = (out @ span).T @ learnt @ (into @ span)
        slope = slope if np.isfinite(slope).all() else np.zeros_like(slope)
        values, vectors = np.linalg.eigh(0.5 * (slope + slope.T))
        change = 1 / np.clip(1 + values, 1 / LARGEST_CHANGE, LARGEST_CHANGE) - 1
        span = span @ vectors
        even = (fall / np.sqrt(h)).ravel()
        taken = (even + span @ (change * (span.T @ even))).reshape(h.shape) / np.sqrt(h)
        return taken, (1 + span**2 @ (change * (2 + change))).reshape(h.shape) / h**2


def shrunk(z: Vector, variances: Vector) -> Vector:
    """The mean of what z (d,) is an estimate of, whose coordinates are N(0, τ²), τ² = 0 or one of a grid."""
    top = float(np.mean(z * z)) + 1e-300
    scales = np.concatenate([[0.0], top * np.geomspace(1e-4, 4, GRID)])[:, None]
    spread = scales + variances
    logs = -0.5 * np.sum(np.log(spread) + z * z / spread, axis=1)
    logs[1:] -= math.log(GRID) + NULL_ODDS
    weights = np.exp(logs - logs.max())
    moved: Vector = z * ((weights / weights.sum())[:, None] * scales / spread).sum(axis=0)
    return moved


def within(point: Vector, limit: float) -> Vector:
    """The point, brought to at most that length."""
    length = float(np.linalg.norm(point))
    return point if length <= limit else point * (limit / length)
