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

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

LENGTH_PRIOR = 1.2, 0.8  # how far below its bound the logarithm of a length is taken to be, and the deviation of that
FLOOR = (0.3, 0.3, 0.5)  # eigenvalues stay this times the noise's edge above 0, and within these times their mean
DOUBT = 0.15  # by which a step is shorter, times the noise's edge over the eigenvalue
MOST_DOUBT = 10.0
LEARNT = 0.5  # share of the curvature that is not known beforehand: deviation of the Hessian, over φ₂
WALK = 0.3  # share of a step's gradient by which no model of it holds
NULL_ODDS = 3.0  # logarithm of the odds that there is nothing to learn
GRID = 60  # scales of what there is to learn
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(21)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()


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


def whitening(moment: Moment, share: float, deviation: float, radius: float) -> Whitening:
    """From a second moment whose diagonal carries noise of `deviation`, over `share` of n users, clipped at `radius`.

    Pairs of eigenvalues are pushed apart by noise; the sum over pairs takes that back. What is below the edge of the
    noise's spectrum cannot be told from nothing, and takes a share of the mean eigenvalue instead.
    """
    d, s = len(moment.mean), deviation / share
    whole = moment.mean / share
    trace = float(np.trace(whole))
    around = whole - trace / d * np.eye(d)
    edge, trace = math.sqrt(2 * d) * s, max(trace, radius, 1e-6)  # a trace is at least the Frobenius norm
    base = trace / d
    values, basis = np.linalg.eigh(around)
    if d > 1 and np.sum(around * around) > 0.5 * (d * (d + 1) - 2) * s * s:
        gaps, width = values[:, None] - values[None, :], 0.5 * edge / math.sqrt(d)
        values = np.maximum.accumulate(values - s * s * np.sum(gaps / (gaps**2 + width**2), axis=1))
        values = values - values.mean()
    else:
        values = np.zeros(d)
    times, least, most = FLOOR
    eigenvalues = np.maximum(base + values, 0.0) + min(max(times * edge, least * base), most * base)
    return Whitening(basis / np.sqrt(eigenvalues), np.minimum(edge / eigenvalues, MOST_DOUBT))


def curvature_share(sigmoid: bool, square: float, mean: float = 0.0) -> float:
    """κ: mean curvature over its bound, for predictions N(mean, square)."""
    if not sigmoid:
        return 1.0
    return float(_WEIGHTS @ (1 / np.cosh(0.5 * (mean + _NODES * math.sqrt(max(square, 0.0)))) ** 2))


def mean_chance(mean: float, variance: float) -> float:
    """Of the positive class, for predictions N(mean, variance)."""
    return 0.5 + 0.5 * float(_WEIGHTS @ np.tanh(0.5 * (mean + _NODES * math.sqrt(max(variance, 0.0)))))


@dataclass(frozen=True, slots=True, eq=False)
class GradientModel:
    """Regression of released gradients on their points, the same weights for every coordinate.

    The gradient at θ is φ₂ κ(‖θ‖²) θ, a constant that nothing is known of, a linear function of deviation LEARNT φ₂,
    and a walk of what no model holds.
    """

    points: Matrix  # (t, d)
    residuals: Matrix  # (t, d): released, less φ₂ κ θ
    walks: Vector  # (t,): b, the walk's variance at each point
    inverse: Matrix  # (t, t), of the covariance
    slope_variance: float  # σ_H²
    curvature: float  # φ₂
    sigmoid: bool

    @classmethod
    def of(
        cls, points: Matrix, gradients: Matrix, variances: Vector, walks: Vector, *, curvature: float, sigmoid: bool
    ) -> "GradientModel":
        """From t rounds: `variances` (t,) of the noise of a coordinate."""
        slope_variance = (LEARNT * curvature) ** 2 / points.shape[1]
        known = np.array([curvature * curvature_share(sigmoid, float(x @ x)) * x for x in points])
        covariance = slope_variance * points @ points.T + np.minimum.outer(walks, walks) + np.diag(variances)
        return cls(points, gradients - known, walks, np.linalg.inv(covariance), slope_variance, curvature, sigmoid)

    def at(self, x: Vector, walk: float) -> tuple[Vector, float]:
        """Mean and variance of a coordinate of the gradient at x (d,), `walk` being b there."""
        ones = np.ones(len(self.points))
        level = self.inverse @ ones
        own = 1 / float(ones @ level)  # variance of the constant
        near = self.slope_variance * (self.points @ x) + np.minimum(self.walks, walk)
        weights = self.inverse @ near
        rest = 1 - float(ones @ weights)
        known = self.curvature * curvature_share(self.sigmoid, float(x @ x)) * x
        variance = self.slope_variance * float(x @ x) + walk - float(near @ weights) + own * rest * rest
        return known + (weights + level * own * rest) @ self.residuals, max(variance, 1e-300)


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
