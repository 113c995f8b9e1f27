"""Made-up populations: users by number of a declared law, and a risk that is known exactly.

    >>> from quoron_client.protocol.domains import L2Ball
    >>> crowd = Synthetic(family="logistic", users=10_000_000, items_per_user=50, dimension=10, domain=L2Ball(5.0),
    ...                   seed=1, signal_norm=3.0)
    >>> crowd.items(np.array([9_999_999, 3])).features.shape
    (100, 10)
    >>> crowd.excess_risk(crowd.optimum)
    0.0

Users are made when asked for: ten million of them take no memory. Excess risks are accurate in relative terms down to
rounding. Each is written around its optimum x* as non-negative terms, so that nothing cancels when the excess is 1e-8:

    F(x) - F(x*) = <grad F(x*), x - x*> + E[ D(x, x*) ] + ridge/2 |x - x*|^2,

D the Bregman divergence of the item loss. At an interior optimum the first term is zero; on the sphere of a ball it is
multiplier/2 (|x - x*|^2 + |x*|^2 - |x|^2).

For the logistic loss D is the Kullback-Leibler divergence between label laws: labels never need to be drawn. The design
is rotation invariant: x* = c theta* with one number c found by quadrature (c = 1 for i.i.d. users without ridge). So
E[ D(x, x*) ] is an integral over the plane of x and x*, in which a feature has any direction and a square length of law
Beta(1, d/2 - 1). No items are needed.

Users are i.i.d. unless `heterogeneity` says otherwise. With a signal theta*
of norm `signal_norm` in a direction drawn from the seed, user u has theta_u = theta* + heterogeneity v_u, v_u uniform
on the unit sphere. Of the quadratic family the signal is the optimum x*, orthogonal to the steep direction, and theta*
= flat x*.

The item laws are one compiled loop that writes any users' items from their streams:

    logistic       a uniform on the sphere of radius R,  y = +1 with probability sigmoid(<a, theta_u>), else -1
    least_squares  a uniform on the sphere of radius R,  y = <a, theta_u> + uniform noise in [-w, w]
    linear         z = theta_u + rho a, with a uniform on the unit sphere; no label (zero)
    quadratic      the same

theta_u is bounded, so that no label or norm ever needs clipping.
Every user's items come from that user's streams alone: the same bits for any cohort, order or thread count. As in
`users` only additions, products, quotients and square roots are used, so every machine makes the same bits.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from itertools import pairwise
from typing import Any, Literal

import numba
import numpy as np
import scipy
from numpy.typing import NDArray
from scipy.special import expit

from quoron.data.users import (
    Corruption,
    Outliers,
    PublicKnowledge,
    Purpose,
    Users,
    Vector,
    about_boundary,
    fill_normals,
    fill_uniforms,
    normals,
    uniforms,
    words,
)
from quoron_client.data.items import ItemBatch
from quoron_client.losses import Loss, make_loss
from quoron_client.losses.standard import exponential
from quoron_client.protocol.domains import Domain, L2Ball, free_ball
from quoron_privacy.accounts.roots import root
from quoron_privacy.errors import ConfigError, positive
from quoron_privacy.kernels.prebuilt import njit
from quoron_privacy.kernels.simd import WIDTH, aligned, alike, fused, keep, lanes, sum_of, sums_of, times
from quoron_privacy.kernels.threads import at_once
from quoron_server.problem import Beliefs

_NODES = 200
_RADII, _ANGLES = 48, 192  # relative error: below 1e-13 for scores up to 10, 1e-9 up to 30, 1e-3 up to 100


@lru_cache(maxsize=64)
def sphere_coordinate(dimension: int) -> tuple[Vector, Vector]:
    """Quadrature nodes and weights for one coordinate of a uniform point of the unit sphere of R^dimension.

    The arrays are shared and read-only.
    """
    if dimension == 1:
        return np.array([-1.0, 1.0]), np.array([0.5, 0.5])
    # Golub and Welsch (1969): eigenvalues of the Jacobi matrix of the Gegenbauer polynomials, sound for any dimension.
    k = np.arange(2, _NODES)
    half = (dimension - 2) / 2
    squares = np.concatenate([[1 / dimension], k * (k + 2 * half - 1) / (4 * (k + half) * (k + half - 1))])
    nodes, vectors = scipy.linalg.eigh_tridiagonal(np.zeros(_NODES), np.sqrt(squares))
    weights: Vector = vectors[0] ** 2
    for array in (nodes, weights):
        array.setflags(write=False)
    return nodes, weights


@lru_cache(maxsize=64)
def sphere_plane(dimension: int) -> tuple[Vector, Vector, Vector]:
    """Two coordinates of a uniform point of the unit sphere of R^dimension, and weights: for functions f(v) = f(-v).

    Gauss and Jacobi over the square length, the trapezoidal rule over half a turn. Of one dimension the second
    coordinate is zero. The arrays are shared and read-only.
    """
    if dimension <= 2:  # of one dimension a point is 1 or -1, which are alike
        squares, weights = np.ones(1), np.ones(1)
    else:
        # Golub and Welsch for the weight (1 - s)^a on [0, 1]: Jacobi's recurrence, moved from [-1, 1].
        a, n = (dimension - 4) / 2, np.arange(1.0, _RADII)
        middle = (2 * n * n + 2 * n + 2 * n * a + a) / ((2 * n + a) * (2 * n + a + 2))
        beside = n * (n + a) / ((2 * n + a) * np.sqrt((2 * n + a) ** 2 - 1))
        squares, vectors = scipy.linalg.eigh_tridiagonal(np.concatenate([[1 / (a + 2)], middle]), beside)
        weights = vectors[0] ** 2
    angles = np.pi * np.arange(1 if dimension == 1 else _ANGLES) / _ANGLES
    lengths = np.sqrt(np.maximum(squares, 0.0))
    along, across = (np.outer(lengths, turned(angles)).ravel() for turned in (np.cos, np.sin))
    shares = np.repeat(weights / len(angles), len(angles))
    for array in (along, across, shares):
        array.setflags(write=False)
    return along, across, shares


@dataclass(frozen=True, slots=True)
class LogisticDesign:
    """Expectations of the logistic family by quadrature; theta* has norm `signal`, features norm `radius`."""

    dimension: int
    radius: float
    signal: float
    spread: float
    ridge: float

    def optimal_norm(self, largest: float) -> float:
        """|x*|, at most `largest`; x* points along theta*."""

        def slope(norm: float) -> float:
            return self.expected(norm)[0]

        top = min(self.signal, largest)  # spread and ridge only shrink the optimum
        if top == 0.0 or slope(top) <= 0.0:
            return top
        return root(slope, 0.0, top, xtol=1e-15, rtol=1e-14)

    def multiplier(self, norm: float) -> float:
        """Return how strongly the ball holds the optimum back: -<grad F(x*), x*> / |x*|^2, zero in the interior."""
        return max(0.0, -self.expected(norm)[0]) / norm if norm > 0.0 else 0.0

    def least_curvature(self, norm: float) -> float:
        """Smallest eigenvalue of the expected Hessian at x*: along the signal or across it."""
        t, weights = sphere_coordinate(self.dimension)
        fitted = expit(self.radius * norm * t)
        along = self.radius**2 * float(weights @ (t * t * fitted * (1.0 - fitted))) + self.ridge
        if self.dimension == 1:
            return along
        return min(along, (self.dimension * self.expected(norm)[1] - along) / (self.dimension - 1))

    def expected(self, norm: float) -> tuple[float, float, float]:
        """At x*: the risk's slope along it, its Hessian's mean eigenvalue, and sqrt(E |g - E g|^2) of items' gradients.

        E g is zero there but for the ball and the ridge.
        """
        t, weights = sphere_coordinate(self.dimension)
        scores = self.radius * self.signal * t
        if self.spread > 0.0:
            chances = expit(scores[:, None] + self.radius * self.spread * t) @ weights
        else:
            chances = expit(scores)
        fitted = expit(self.radius * norm * t)
        mean = self.radius * float(weights @ (t * (fitted - chances)))
        slope = mean + self.ridge * norm
        hessian = self.radius**2 / self.dimension * float(weights @ (fitted * (1.0 - fitted))) + self.ridge
        square = self.radius**2 * float(weights @ (chances * (1.0 - chances) + (chances - fitted) ** 2))
        return slope, hessian, float(np.sqrt(square - mean**2))


@dataclass(frozen=True, slots=True, eq=False)
class LogisticRisk:
    """Excess logistic risk where features are uniform on the sphere of `radius`, labels integrated out."""

    optimum: Vector
    radius: float  # R
    ridge: float
    multiplier: float

    @property
    def is_constrained(self) -> bool:
        """Whether the ball holds the optimum back."""
        return self.multiplier > 0.0

    def excess(self, model: Vector) -> float:
        """F(model) - F(optimum), for a model of the domain."""
        apart = float(np.sum((model - self.optimum) ** 2))
        inward = float(self.optimum @ self.optimum - model @ model)
        held = 0.5 * self.multiplier * max(0.0, apart + inward)
        return self._divergence(model) + 0.5 * self.ridge * apart + held

    def _divergence(self, model: Vector) -> float:
        """E[ D(<a, model>, <a, optimum>) ]: of the difference's parts along the optimum and across it."""
        gap, norm = model - self.optimum, float(np.linalg.norm(self.optimum))
        unit = self.optimum / norm if norm > 0.0 else np.zeros_like(gap)
        forward = float(gap @ unit)
        sideways = float(np.linalg.norm(gap - forward * unit))
        along, across, weights = sphere_plane(len(gap))
        if norm == 0.0:  # any direction is along it
            forward, sideways = sideways, 0.0
        best, apart = self.radius * norm * along, self.radius * (forward * along + sideways * across)
        return float(weights @ divergence(best, apart))


@dataclass(frozen=True, slots=True, eq=False)
class QuadraticRisk:
    """F(x) = <x - centre, curvature (x - centre)>/2 + constant: least squares, means with a ridge or a quadratic.

    A curvature for each coordinate (d,) needs a centre inside the domain.
    """

    curvature: float | Vector
    centre: Vector
    domain: Domain

    @property
    def optimum(self) -> Vector:
        """The nearest point of the domain to the centre."""
        return self.domain.project(self.centre)

    @property
    def is_constrained(self) -> bool:
        """Whether the centre lies outside the domain."""
        return not np.array_equal(self.optimum, self.centre)

    def excess(self, model: Vector) -> float:
        """F(model) - F(optimum)."""
        best = self.optimum
        apart = model - best
        return float((self.curvature * (best - self.centre)) @ apart + 0.5 * ((self.curvature * apart) @ apart))


@dataclass(frozen=True, slots=True, eq=False)
class LinearRisk:
    """F(x) = <slope, x>, smallest on the boundary of the domain."""

    slope: Vector
    domain: Domain

    @property
    def optimum(self) -> Vector:
        """-radius slope/|slope| on a ball, -half_width sign(slope) on a box."""
        if isinstance(self.domain, L2Ball):
            return -self.domain.radius * self.slope / np.linalg.norm(self.slope)
        return -self.domain.half_width * np.sign(self.slope)

    def excess(self, model: Vector) -> float:
        """F(model) - F(optimum)."""
        return float(self.slope @ (model - self.optimum))


Risk = LogisticRisk | QuadraticRisk | LinearRisk


def logistic_risk(design: LogisticDesign, direction: Vector, domain: Domain) -> LogisticRisk:
    """The risk around c `direction`; ConfigError where a box cuts the optimum off, which symmetry cannot solve."""
    largest = domain.radius if isinstance(domain, L2Ball) else np.inf
    norm = design.optimal_norm(largest)
    optimum = norm * direction
    if not isinstance(domain, L2Ball) and np.abs(optimum).max() > domain.half_width:
        raise ConfigError(
            f"Expected the optimum inside the box, got half_width={domain.half_width} with a coordinate of magnitude "
            f"{np.abs(optimum).max():.3g}; lower signal_norm or widen the box."
        )
    multiplier = design.multiplier(norm) if norm == largest else 0.0
    return LogisticRisk(optimum, design.radius, design.ridge, multiplier)


def divergence(best: NDArray[np.float64], gap: NDArray[np.float64]) -> NDArray[np.float64]:
    """softplus(best + gap) - softplus(best) - sigmoid(best) gap, by Taylor where the difference would cancel."""
    s = expit(best)
    v, w = s * (1.0 - s), 1.0 - 2.0 * s
    third, fourth, fifth = v * w, v * (w * w - 2.0 * v), v * w * (w * w - 8.0 * v)
    near = gap * gap * (v / 2 + gap * (third / 6 + gap * (fourth / 24 + gap * fifth / 120)))
    far = np.logaddexp(0.0, best + gap) - np.logaddexp(0.0, best) - s * gap
    whole: NDArray[np.float64] = np.where(np.abs(gap) < 1e-2, near, far)
    return whole


_SMALL, _LARGE = 1 << 17, 1 << 21  # numbers below which another thread costs more than it saves; of a range, at most


def in_ranges(loop: Callable[[int, int], object], offsets: NDArray[np.int64], width: int = 1) -> None:
    """Call a compiled loop(first, last) on ranges over 0 .. len(offsets) - 1, each of about as many numbers, not many.

    There are offsets[-1] * width numbers; what a loop needs beside its output is therefore little.
    """
    size = int(offsets[-1]) * width
    threads = 1 if size < _SMALL else numba.get_num_threads()
    shares = np.linspace(0, offsets[-1], max(threads, -(-size // _LARGE)) + 1)[1:-1]
    ends = {0, *np.searchsorted(offsets[1:], shares).tolist(), len(offsets) - 1}
    at_once([partial(loop, *part) for part in pairwise(sorted(ends))], threads)


# float32 rounding may lengthen a row by half a unit in the last place; this keeps it within its norm.
_SHRINK = 1.0 - 2.0**-23
_FEATURES, _SHIFT, _LABELS = (np.uint32(purpose) for purpose in (Purpose.FEATURES, Purpose.SHIFT, Purpose.LABELS))
_LOGISTIC, _SQUARES, _MEANS = 0, 1, 2  # laws of items, in compiled loops
_TOGETHER = 256  # items whose scores are held at a time: in the nearest cache, and their rows as well


@njit(cache=True, error_model="numpy")
def _to_sphere(flat, first, d, radius, mean, own, scores):  # type: ignore[no-untyped-def]
    """Rows of normals from row `first` on, as many as scores, become `radius` a + `mean` own, with |a| = 1.

    `radius` <a, own> goes into scores. Both sums of a row have one order, four numbers at a time; of four rows at a
    time, which changes no bit.
    """
    whole, fours, squares = d // WIDTH * WIDTH, scores.size // 4 * 4, np.empty(scores.size)
    for i in range(0, fours, 4):
        p = (first + i) * d
        q, r, s = p + d, p + 2 * d, p + 3 * d
        # Eight sums at once: one alone would wait for its own last addition at every number.
        a = b = c = e = at = bt = ct = et = alike(0.0)
        for j in range(0, whole, WIDTH):
            to = lanes(own, j)
            x, y = lanes(flat, p + j), lanes(flat, q + j)
            a, b, at, bt = fused(x, x, a), fused(y, y, b), fused(x, to, at), fused(y, to, bt)
            x, y = lanes(flat, r + j), lanes(flat, s + j)
            c, e, ct, et = fused(x, x, c), fused(y, y, e), fused(x, to, ct), fused(y, to, et)
        keep(squares, i, sums_of(a, b, c, e))
        keep(scores, i, sums_of(at, bt, ct, et))
    for i in range(fours, scores.size):
        begin = (first + i) * d
        square = score = alike(0.0)
        for j in range(begin, begin + whole, WIDTH):
            part = lanes(flat, j)
            square, score = fused(part, part, square), fused(part, lanes(own, j - begin), score)
        squares[i], scores[i] = sum_of(square), sum_of(score)
    for i in range(scores.size):
        begin = (first + i) * d
        for j in range(whole, d):
            number = np.float64(flat[begin + j])
            squares[i] += number * number
            scores[i] += number * own[j]
        if squares[i] == 0.0:  # probability about 1e-7 in one dimension, nil above
            flat[begin], squares[i], scores[i] = np.float32(1.0), 1.0, own[0]
    for i in range(scores.size):
        squares[i] = radius / np.sqrt(squares[i])
        scores[i] *= squares[i]
    for i in range(scores.size):
        begin, scale = (first + i) * d, squares[i]
        # The usual case needs no `own`: a multiplication a number.
        if mean == 0.0:
            for j in range(begin, begin + whole, WIDTH):
                keep(flat, j, times(lanes(flat, j), alike(scale)))
            for j in range(begin + whole, begin + d):
                flat[j] = np.float32(scale * flat[j])
        else:
            for j in range(d):
                flat[begin + j] = np.float32(scale * flat[begin + j] + mean * own[j])


@njit(cache=True, error_model="numpy")
def _label(labels, law, noise, scores):  # type: ignore[no-untyped-def]
    """Labels of uniforms (`labels`) and of the items' scores."""
    if law == _MEANS:
        labels[:] = 0.0
    elif law == _LOGISTIC:
        for item in range(labels.size):
            labels[item] = 1.0 if labels[item] * (1.0 + exponential(-scores[item])) < 1.0 else -1.0
    else:
        for item in range(labels.size):
            labels[item] = scores[item] + noise * (2.0 * labels[item] - 1.0)


@njit(cache=True, error_model="numpy")
def _shifted(own, signal, spread, normals):  # type: ignore[no-untyped-def]
    """own = signal + spread v, v the direction of `normals` (d,)."""
    total = 0.0
    for j in range(signal.size):
        total += np.float64(normals[j]) * normals[j]
    if total == 0.0:
        normals[0], total = np.float32(1.0), 1.0
    for j in range(signal.size):
        own[j] = signal[j] + spread * _SHRINK / np.sqrt(total) * normals[j]


@njit(cache=True, nogil=True, error_model="numpy")
def _shape(  # type: ignore[no-untyped-def]
    offsets, flipped, law, radius, noise, spread, signal, features, shifts, labels
):
    """Make items of normals (`features`, and `shifts` (k, d) of users) and of uniforms (`labels`)."""
    d, means, first = features.shape[1], law == _MEANS, offsets[0]
    flat, own, largest = features.reshape(features.size), aligned(1, d)[0], 0
    for j in range(d):
        own[j] = signal[j]
    if spread > 0.0 or means:  # each user has its own mean
        for i in range(flipped.size):
            largest = max(largest, offsets[i + 1] - offsets[i])
        scores = np.empty(largest)
        for i in range(flipped.size):
            start, stop = offsets[i] - first, offsets[i + 1] - first
            if spread > 0.0:
                _shifted(own, signal, spread, shifts[i])
            mean = 0.0 if not means else -_SHRINK if flipped[i] else _SHRINK
            own_scores = scores[: stop - start]
            _to_sphere(flat, start, d, radius * _SHRINK * (mean if means else 1.0), mean, own, own_scores)
            _label(labels[start:stop], law, noise, own_scores)
    else:
        scores = np.empty(_TOGETHER)
        for start in range(0, labels.size, _TOGETHER):
            stop = min(start + _TOGETHER, labels.size)
            _to_sphere(flat, start, d, radius * _SHRINK, 0.0, own, scores[: stop - start])
            _label(labels[start:stop], law, noise, scores)
    for i in range(flipped.size):
        for item in range(offsets[i] - first, offsets[i + 1] - first if flipped[i] else 0):
            labels[item] = -labels[item]


FamilyName = Literal["logistic", "least_squares", "linear", "quadratic"]

_LIKELY = 1.05  # room above the largest eigenvalue that m items in d dimensions show


@dataclass(frozen=True, kw_only=True)
class Synthetic:
    """Users 0 to `users` - 1 of one family, drawn by `seed`: equal arguments, equal bits, but for last places of exp.

    Outliers do not enter the optimum or the risk.
    """

    users: int  # n
    items_per_user: int  # m
    dimension: int  # d
    domain: Domain
    seed: int = 0
    outliers: Outliers = field(default_factory=Outliers)
    family: FamilyName
    feature_norm: float = 1.0  # R
    signal_norm: float = 1.0  # |theta*|; for the linear family the norm of the mean, for the quadratic one |x*|
    label_noise: float = 0.1  # least squares: labels are off by at most this
    steep: float = 1.0  # quadratic: curvature of every item's loss along the first coordinate
    flat: float = 0.01  # quadratic: along all others
    ridge: float = 0.0
    heterogeneity: float = 0.0  # h
    unequal_items: bool = False  # m_u uniform on 1 .. 2m - 1
    in_memory: bool = False  # all items are made once and kept

    def __post_init__(self) -> None:
        means, own = self.family in ("linear", "quadratic"), self._mean_norm + self.heterogeneity
        if means and not 0 < own <= self.feature_norm:
            raise ConfigError(
                f"Expected means of norm above 0, and up to feature_norm={self.feature_norm} with heterogeneity, got "
                f"{self._mean_norm:g} + {self.heterogeneity}. Change signal_norm, or curvature of the quadratic family."
            )
        if self.family == "quadratic":
            self._check_quadratic()

    def _check_quadratic(self) -> None:
        positive(signal_norm=self.signal_norm)
        if not self.dimension >= 2:
            raise ConfigError(f"Expected dimension >= 2 for a quadratic, got dimension={self.dimension}.")
        if not np.array_equal(self.domain.project(self.signal), self.signal):
            raise ConfigError(
                f"Expected the optimum of norm signal_norm={self.signal_norm} inside the domain {self.domain}, got one "
                "outside. Lower signal_norm or widen the domain."
            )

    @cached_property
    def loss(self) -> Loss:
        """The family's loss; its bounds hold for every item without clipping."""
        own: dict[str, float] = {}
        if self.family == "quadratic":
            own = {"steep": self.steep, "flat": self.flat}
        elif self.family == "least_squares":
            own = {"label_bound": self.feature_norm * (self.signal_norm + self.heterogeneity) + self.label_noise}
        return make_loss(self.family, feature_norm=self.feature_norm, ridge=self.ridge, **own)

    @cached_property
    def signal(self) -> Vector:
        """theta*, shape (d,); of the quadratic family x*, with nothing along the steep direction."""
        drawn = normals(seed=self.seed, purpose=Purpose.SIGNAL, user=0, count=self.dimension).astype(np.float64)
        if self.family == "quadratic":
            drawn[0] = 0.0
        return self.signal_norm * drawn / np.linalg.norm(drawn)

    @property
    def _mean_norm(self) -> float:
        """Norm of the means of the families that have some."""
        return self.signal_norm * (self.flat + self.ridge if self.family == "quadratic" else 1.0)

    def items(self, users: Users) -> ItemBatch:
        """Return the items of `users` (k,), in that order: features (N, d) float32, labels (N,) float64."""
        asked = np.array(users, np.int64)  # a copy: compiled loops want writable memory
        offsets = np.concatenate([[0], np.cumsum(self._counts(asked))]).astype(np.int64)
        flipped = self.corruption(asked) == Corruption.SHIFTED
        features = np.empty((int(offsets[-1]), self.dimension), np.float32)
        labels = np.empty(len(features))
        means = self.family in ("linear", "quadratic")
        within, signal = self.feature_norm, self.signal
        if means:
            within -= self._mean_norm + self.heterogeneity
            signal = signal * (self._mean_norm / self.signal_norm if self.signal_norm else 1.0)
        law = _MEANS if means else _LOGISTIC if self.family == "logistic" else _SQUARES
        numbers = float(within), float(self.label_noise), float(self.heterogeneity)  # another type is compiled again
        seed, d = np.uint64(self.seed), self.dimension

        def fill(first: int, last: int) -> None:
            own, ends, rows = asked[first:last], offsets[first : last + 1], slice(offsets[first], offsets[last])
            fill_normals(seed, _FEATURES, own, ends * d, features[rows].reshape(-1))
            shifts = np.empty((len(own) if self.heterogeneity else 0, d), np.float32)
            if self.heterogeneity:
                fill_normals(seed, _SHIFT, own, np.arange(len(own) + 1) * d, shifts.reshape(-1))
            if not means:
                fill_uniforms(seed, _LABELS, own, ends, labels[rows])
            _shape(ends, flipped[first:last], law, *numbers, signal, features[rows], shifts, labels[rows])

        in_ranges(fill, offsets, self.dimension)
        return ItemBatch(features, labels, offsets)

    @cached_property
    def all_items(self) -> ItemBatch | None:
        """All users' items, if they are to be kept in memory: within the bounds of the loss as they are made."""
        return self.items(np.arange(self.users)) if self.in_memory else None

    @property
    def generates_items(self) -> bool:
        """Whether items are made when they are asked for: within the bounds of the loss, for any number of threads."""
        return not self.in_memory

    @property
    def optimum(self) -> Vector:
        """argmin over the domain of the honest users' expected loss, shape (d,)."""
        return self._risk.optimum.copy()

    def excess_risk(self, model: Vector) -> float:
        """F(model) - inf F >= 0, F the honest users' expected loss; a linear one has its least in the domain."""
        return self._free.excess(np.asarray(model, np.float64))

    def test_metrics(self, model: Vector) -> dict[str, float]:
        """Empty: the excess risk already speaks of new users."""
        del model
        return {}

    def summary_fields(self, model: Vector) -> dict[str, Any]:
        """Return what the domain's bound costs, as a summary has it: users are as declared."""
        held = max(0.0, self.excess_risk(self.optimum))
        remarks = tuple(about_boundary(self.domain, model, self.optimum, held))
        return {"held_back": held, "remarks_simulation_only": remarks}

    def corruption(self, users: Users) -> NDArray[np.uint8]:
        """`Corruption` of each of `users`, shape (k,)."""
        return self.outliers.corruption(np.array(users, np.int64), seed=self.seed)

    @cached_property
    def knowledge(self) -> PublicKnowledge:
        """What the declared design says: expectations over the law of users, not functions of drawn items."""
        eigenvalue = self.feature_norm**2 / self.dimension
        law = f"the declared {self.family} design is public: it sets predictions and steps, never privacy"
        known = partial(Beliefs, hostile_share=min(self.outliers.fraction, 0.49))
        if self.family in ("linear", "quadratic"):
            within = self.feature_norm - self._mean_norm - self.heterogeneity
            deviation = float(np.hypot(within, self.heterogeneity))
            size = self.domain.radius if isinstance(self.domain, L2Ball) else self.domain.half_width
            inside = self.family == "linear" and self.signal_norm < self.ridge * size  # its optimum, in any direction
            # of a quadratic nothing but its smoothness is given: what a plan makes of that is the question; and a ridge
            # says nothing of a linear loss that is least on the boundary of the domain
            curvature: Any = {"curvature": "isotropic", "typical_curvature": self.ridge} if inside else {}
            beliefs = known(gradient_deviation=deviation or None, heterogeneity=self.heterogeneity, **curvature)
            return PublicKnowledge(beliefs, self.loss.smoothness or None, (law,))
        if self.family == "logistic":
            _, typical, deviation = self._design.expected(self._optimal_norm)
            least = self._design.least_curvature(self._optimal_norm)
        else:
            typical = least = eigenvalue + self.ridge
            # a (<a, x* - theta_u> - noise), less its mean
            off = float(np.sum((self.optimum - self.signal) ** 2))
            square = eigenvalue * (off + self.heterogeneity**2) + self.label_noise**2 / 3
            deviation = float(np.sqrt(self.feature_norm**2 * square - eigenvalue**2 * off))
        between = (typical - self.ridge) * self.heterogeneity  # to first order in the heterogeneity
        beliefs = known(
            gradient_deviation=deviation or None,
            heterogeneity=between,
            curvature="isotropic",
            typical_curvature=typical,
            least_curvature=least,
        )
        return PublicKnowledge(beliefs, self._isotropic_user_smoothness(), (law,))

    def _isotropic_user_smoothness(self) -> float:
        """Return what the average Hessian of nearly every user stays below: Marchenko-Pastur's edge, capped.

        curvature R^2/d (1 + sqrt(d/m))^2 1.05 + ridge, at most the item bound. A client scales down the few above it.
        """
        steepest = 0.25 if self.family == "logistic" else 1.0
        edge = _LIKELY * (1 + np.sqrt(self.dimension / self.items_per_user)) ** 2 / self.dimension
        return float(steepest * self.feature_norm**2 * min(1.0, edge) + self.ridge)

    @cached_property
    def _design(self) -> LogisticDesign:
        return LogisticDesign(self.dimension, self.feature_norm, self.signal_norm, self.heterogeneity, self.ridge)

    @cached_property
    def _optimal_norm(self) -> float:
        """Of the logistic family."""
        if isinstance(self.domain, L2Ball):  # whatever its direction, which a plan need not draw
            return self._design.optimal_norm(self.domain.radius)
        return float(np.linalg.norm(self.optimum))

    @cached_property
    def _risk(self) -> Risk:
        """Of the honest users."""
        return self._over(self.domain)

    @cached_property
    def _free(self) -> Risk:
        """The same over all models; of a loss without a least value over those of the domain."""
        risk = self._risk
        if isinstance(risk, LinearRisk) or not risk.is_constrained:
            return risk
        return self._over(free_ball(self.feature_norm))

    def _over(self, domain: Domain) -> Risk:
        if self.family == "logistic":
            direction = self.signal / self.signal_norm if self.signal_norm > 0 else self.signal
            return logistic_risk(self._design, direction, domain)
        if self.family == "least_squares":
            eigenvalue = self.feature_norm**2 / self.dimension
            curvature = eigenvalue + self.ridge
            return QuadraticRisk(curvature, self.signal * (eigenvalue / curvature), domain)
        if self.family == "quadratic":
            return QuadraticRisk(self.loss.quadratic_diagonal(self.dimension), self.signal, domain)
        # f(x; z) = -<z, x>
        if self.ridge > 0:
            return QuadraticRisk(self.ridge, self.signal / self.ridge, domain)
        return LinearRisk(-self.signal, domain)

    def _counts(self, users: Users) -> NDArray[np.int64]:
        if not self.unequal_items:
            return np.full(len(users), self.items_per_user, np.int64)
        draws = uniforms(words(seed=self.seed, purpose=Purpose.USER, users=users)[:, 1])
        return 1 + np.floor(draws * (2 * self.items_per_user - 1)).astype(np.int64)
