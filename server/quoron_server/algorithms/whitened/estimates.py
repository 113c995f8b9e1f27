"""What a run of `whitened-tracking` makes of its gradients. All here are functions of released and public numbers.

    WhitenedState what has been released so far, and what follows from it
    GradientModel a regression over all rounds: released gradients are a smooth function of the point, plus noise
    shrunk        a step is taken as far as it stands out of its noise
    tail_power    how fast users get fewer farther out

Why each is as it is: docs/privacy/whitened-tracking.md, "What each part is for".
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quoron_client.protocol.domains import Domain, L2Ball
from quoron_privacy.means.norm_counts import Presence
from quoron_server.algorithms.whitened.columns import Windows
from quoron_server.algorithms.whitened.law import Law

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

DOUBT = 0.15  # by which a step is shorter, times the noise's edge over the eigenvalue
LEARNT = 0.5  # deviation of a linear function of the expected gradient, which is not known beforehand
USUAL_TAIL = 4.0, 2.0  # α of a tail r^-α of users' lengths as it is expected, and the deviation of that
TAIL_SCATTER = 0.3  # by which logarithms of shares are off that law
LARGEST_CHANGE = 4.0  # of a curvature by what rounds have taught
WALK = 0.3  # share of a step's change of the gradient by which no model of it holds
POWERS = (0.0, 0.5, 1.0, 1.5, 2.0)  # of features' variance, by which there may be more to learn where they vary
CLIPPING, TOLD = 1.25, 3.0  # of noise, and deviations, beyond which a gradient tells of directions
LEAST = 0.2  # of what a gradient tells, the constant apart, along directions that no look has heard
GRID = 60  # scales of what there is to learn


@dataclass(frozen=True, slots=True, eq=False)
class WhitenedState:
    """Everything between two rounds; all of it is released."""

    round: int
    presence: Presence
    transform: Vector  # L, (d, d): the model is L θ
    doubt: Vector  # (d,)
    heard: float  # how far features vary, in deviations of the noise in that
    windows: Windows  # of columns
    moment: Vector  # (d, d), mean of the second moments since features were whitened last
    known: float  # its precision, that of a diagonal entry
    unwidened: Vector | None  # L as it would be had the first narrow directions not been widened; None: none were
    widened: NDArray[np.bool_]  # (d,): directions that no look has heard, though they were widened for it
    point: Vector  # θ_t, (D,): q parts of d numbers, D = qd; q = 1 but for several classes
    centre: Vector  # c_t, (D,)
    radius: float  # C_t
    start_length: float  # G₀
    factor: float  # k
    spread: float  # S
    target: float  # π*: share of users meant beyond the radius
    error: float  # P⁺: variance of a coordinate of c_t
    walk: float  # b_t
    points: Vector  # (T, D)
    gradients: Vector  # (T, D), y
    variances: Vector  # (T,)
    walks: Vector  # (T,)
    radii: Vector  # (T,), C
    beyond: Vector  # (T,): share of users beyond ⅔ C
    tail: float  # the least power of the tail of users' lengths so far
    alike: bool = False  # whether all users who are told wrong count alike


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
    def of(
        cls, points: Matrix, gradients: Matrix, variances: Vector, walks: Vector, *, law: Law, learnt: float = LEARNT
    ) -> "GradientModel":
        """From t rounds: `variances` (t,) of the noise of a coordinate, `learnt` the deviation of what is linear."""
        slope_variance = learnt**2 / points.shape[1]
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


def shrunk(z: Vector, variances: Vector, signal: Vector | None = None) -> Vector:
    """The mean of what z (d,) is an estimate of, whose coordinates are N(0, τ² p), τ² = 0 as likely as all of a grid.

    p is 1, or with `signal` (d,) one of its POWERS, of a mean of 1.
    """
    top = float(np.mean(z * z)) + 1e-300
    grid = top * np.geomspace(1e-4, 4, GRID)[:, None]
    shapes = [np.ones(1)] if signal is None else [signal**power / np.mean(signal**power) for power in POWERS]
    scales = np.concatenate([np.zeros((1, len(shapes[0]))), *(grid * shape for shape in shapes)])
    spread = scales + variances
    logs = -0.5 * np.sum(np.log(spread) + z * z / spread, axis=1)
    logs[1:] -= math.log(len(scales) - 1)
    weights = np.exp(logs - logs.max())
    moved: Vector = z * ((weights / weights.sum())[:, None] * scales / spread).sum(axis=0)
    return moved


def told(gradient: Vector, error: float, along: NDArray[np.bool_], *, constant: bool) -> bool:
    """Whether a gradient, (D,), tells of these directions, (d,), more than noise of `error` does, and not little.

    An eigenvector that noise turns has some of its neighbours' gradient: a tenth of all of it was seen.
    """
    rows = gradient.reshape(-1, len(along))
    found, own = rows[:, along], rows[:, : len(along) - constant]
    tells, noise = float(np.sum(found * found)), CLIPPING * found.size + TOLD * math.sqrt(2 * found.size)
    return tells > noise * error and tells > LEAST * float(np.sum(own * own))


def within(point: Vector, limit: float) -> Vector:
    """The point, brought to at most that length."""
    length = float(np.linalg.norm(point))
    return point if length <= limit else point * (limit / length)


def fitting(domain: Domain, model: Vector) -> float:
    """How much of a model lies in the domain, along the way from zero."""
    largest, length = (
        (domain.radius, np.linalg.norm(model))
        if isinstance(domain, L2Ball)
        else (domain.half_width, np.abs(model).max())
    )
    return 1.0 if length <= largest else float(largest / length)


def tail_power(radii: Vector, beyond: Vector, deviation: float, most: float) -> float:
    """α of a tail r^-α of users' lengths, by the shares `beyond` some radii: those of at most `most`.

    Least squares of logarithms, with what is expected as one observation more; noise in a share is of `deviation`.
    """
    counted = beyond <= most
    mean, known = USUAL_TAIL[0], USUAL_TAIL[1] ** -2
    if np.count_nonzero(counted) < 2:
        return mean
    shares = np.maximum(beyond[counted], deviation)
    weights = 1 / ((deviation / shares) ** 2 + TAIL_SCATTER**2)
    x, y = np.log(radii[counted]), np.log(shares)
    x, y = x - np.average(x, weights=weights), y - np.average(y, weights=weights)
    return float((known * mean - np.sum(weights * x * y)) / (known + np.sum(weights * x * x)))
