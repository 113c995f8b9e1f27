"""What a run of `whitened-tracking` makes of its columns, its second moments and its gradients.

All here are functions of released and public numbers; why each is as it is: docs/privacy/whitened-tracking.md.

    WhitenedState what has been released so far, and what follows from it
    GradientModel a regression over all rounds: released gradients are a smooth function of the point, plus noise
    shrunk        a step is taken as far as it stands out of its noise
    in_groups     the same, of every curve and product apart
    tail_power    how fast users get fewer farther out
    Windows       of every column a centre and a half width, and what is told of it by now
    narrowed      by a release: a window of three times the width that stands out of the noise
    scaled        a transform that widens those that surely are narrow
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quoron_client.protocol.domains import Domain, L2Ball
from quoron_privacy.arrays import Matrix
from quoron_privacy.means.free_counts import ColumnMean, Columns, Presence
from quoron_server.algorithm import Vector
from quoron_server.algorithms.whitened.parameters import CurvatureModel

WINDOW = 3.0  # times the root mean square around the centre: beyond it are few
SURELY = 2.5  # deviations of noise: what may be there as well, and, twice that, what surely is
STILL = 0.5  # share of users at one place, above which a column's width is that of few users
USUAL = 0.3  # root mean square, in half ranges, to which columns that surely have less are widened
NARROWEST = 1e-3  # of a window, of the next one
WIDER = 2.0  # at most, of a window, the next one


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """Of k columns; all of it is released."""

    centre: Vector  # (k,), of what is looked at next
    half: Vector  # (k,): half the width of it
    found: Matrix  # (2, k): centre and root mean square by what was released last
    still: Matrix  # (3, k): share of users at -1, 0 and 1, by all releases
    known: float  # precision of that

    @classmethod
    def declared(cls, k: int) -> "Windows":
        """Return all of every range."""
        whole = np.stack([np.zeros(k), np.ones(k)])
        return cls(whole[0], whole[1], whole, np.zeros((3, k)), 0.0)

    @property
    def held(self) -> NDArray[np.bool_]:
        """(k,): columns that most users surely have at one place."""
        found: NDArray[np.bool_] = self.still.max(axis=0) > STILL + SURELY * max(self.known, 1e-300) ** -0.5
        return found

    @property
    def both(self) -> Matrix:
        """(2, k)."""
        return np.stack([self.centre, self.half])


def narrowed(windows: Windows, released: Columns, share: float, mechanism: ColumnMean, *, constant: bool) -> Windows:
    """By a release, over `share` of users. The first one is of whole ranges, whose ends are public."""
    first = windows.known == 0.0
    errors = [deviation / share for deviation in mechanism.deviations]
    mean, spread, square = released.mean / share, np.maximum(released.spread / share, 0.0), released.square / share
    precision = errors[3] ** -2
    known = windows.known + precision
    still = windows.still + precision / known * (released.still / share - windows.still)
    moved = np.where(np.abs(mean) > SURELY * errors[0], mean, 0.0) if constant else np.zeros_like(mean)
    variance, error = square - moved**2, np.hypot(errors[2], 2 * np.abs(moved) * errors[0])
    seen = variance > 2 * SURELY * error
    width = np.sqrt(np.maximum(variance, 0.0) + np.where(seen, 0.0, SURELY * error))
    width = np.where(seen, width, np.minimum(width, spread + np.abs(moved) + SURELY * errors[1]))
    if first and constant:  # distances from an end of the range are all of one sign: their mean is known
        end = np.maximum(1 - np.abs(mean), 0.0) + SURELY * errors[0]
        near = (moved != 0) & (end < width) & ~seen
        moved, width = np.where(near, np.sign(mean), moved), np.where(near, end, width)
    centre = windows.centre + windows.half * moved
    found = np.stack([centre, windows.half * width])
    half = windows.half * np.clip(WINDOW * width, NARROWEST, 1.0 if first else WIDER)
    return Windows(centre, half, found, still, known)


def scaled(windows: Windows, *, constant: bool) -> Matrix:
    """(d, d): columns that surely fill little of their ranges, less their centres, as wide as is usual; others stay.

    Columns that most users have at one place stay, too: few have all that varies of them, and would be clipped.
    """
    centre, width = windows.found
    wider, k = np.where(windows.held, 1.0, np.maximum(USUAL / width, 1.0)), len(width)
    made = np.eye(k + constant)
    made[:k, :k] = np.diag(wider)
    if constant:
        made[-1, :k] = np.where(wider > 1, -centre * wider, 0.0)
    return made


DOUBT = 0.15  # by which a step is shorter, times the noise's edge over the eigenvalue
LEARNT = 0.5  # deviation of a linear function of the expected gradient, which is not known beforehand
USUAL_TAIL = 4.0, 2.0  # α of a tail r^-α of users' lengths as it is expected, and the deviation of that
TAIL_SCATTER = 0.3  # by which logarithms of shares are off that law
LARGEST_CHANGE = 4.0  # of a curvature by what rounds have taught
WALK = 0.3  # share of a step's change of the gradient by which no model of it holds
POWERS = (0.0, 0.5, 1.0, 1.5, 2.0)  # of features' variance, by which there may be more to learn where they vary
CLIPPING, TOLD = 1.25, 3.0  # of noise, and deviations, beyond which a gradient shows directions
LEAST = 0.2  # of what a gradient tells, the constant apart, along directions that no look has heard
GRID = 60  # scales of what there is to learn


@dataclass(frozen=True, slots=True, eq=False)
class WhitenedState:
    """Everything between two rounds; all of it is released."""

    round: int
    part: int  # of the first message: looks so far
    typical: float  # length of second moments, as released last
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
    pace: float  # share of a step that is taken
    error: float  # P⁺: variance of a coordinate of c_t
    walk: float  # b_t
    points: Vector  # (T, D)
    gradients: Vector  # (T, D), y
    variances: Vector  # (T,)
    walks: Vector  # (T,)
    radii: Vector  # (T,), C
    beyond: Vector  # (T,): share of users beyond ⅔ C
    tail: float  # the least power of the tail of users' lengths so far
    alike: bool = False  # whether all misclassified users count alike


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
    law: CurvatureModel

    @classmethod
    def of(
        cls, points: Matrix, gradients: Matrix, variances: Vector, walks: Vector, *, law: CurvatureModel
    ) -> "GradientModel":
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


def in_groups(z: Vector, variances: Vector, groups: NDArray[np.int64], signal: Vector | None = None) -> Vector:
    """As `shrunk`, the coordinates of each group by themselves: `groups` (d,), z of parts of d numbers."""
    found, noise = z.reshape(-1, len(groups)).copy(), variances.reshape(-1, len(groups))
    expected = None if signal is None else signal.reshape(found.shape)
    for group in range(int(groups.max(initial=0)) + 1):
        at = groups == group
        likely = None if expected is None else expected[:, at].ravel()
        found[:, at] = shrunk(found[:, at].ravel(), noise[:, at].ravel(), likely).reshape(len(found), -1)
    return found.ravel()


def told(gradient: Vector, error: float, along: NDArray[np.bool_], *, constant: bool) -> bool:
    """Whether a gradient, (D,), tells of these directions, (d,), more than noise of `error` does, and not little.

    An eigenvector that noise turns has some of its neighbours' gradient: a tenth of all of it was seen.
    """
    rows = gradient.reshape(-1, len(along))
    found, own = rows[:, along], rows[:, : len(along) - constant]
    tells, noise = float(np.sum(found * found)), CLIPPING * found.size + TOLD * math.sqrt(2 * found.size)
    return tells > noise * error and tells > LEAST * float(np.sum(own * own))


def within(point: Vector, limit: float) -> Vector:
    """Return the point, brought to at most that length."""
    length = float(np.linalg.norm(point))
    return point if length <= limit else point * (limit / length)


def fitting(domain: Domain, model: Vector) -> float:
    """Return how much of a model lies in the domain, along the way from zero."""
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
