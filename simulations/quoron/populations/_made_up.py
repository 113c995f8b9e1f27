"""What made-up populations share: users by number, which of them are outliers, and a risk that is known exactly.

Excess risk over a synthetic population, accurate in relative terms down to rounding.

Each is written around its optimum x* as non-negative terms, so that nothing cancels when the excess is 1e-8:

    F(x) - F(x*) = <grad F(x*), x - x*> + E[ D(x, x*) ] + ridge/2 |x - x*|^2,

D the Bregman divergence of the item loss. At an interior optimum the first term is zero; on the sphere of a ball it is
multiplier/2 (|x - x*|^2 + |x*|^2 - |x|^2).

For the logistic loss D is the Kullback-Leibler divergence between label laws: labels never need to be drawn. The design
is rotation invariant: x* = c theta* with one number c found by quadrature (c = 1 for i.i.d. users without ridge), and
E[ D(x, x*) ] is an integral over the plane of x and x*, in which a feature has any direction and a square length of law
Beta(1, d/2 - 1). No items are needed.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import pairwise

import numba
import numpy as np
import scipy
from numpy.typing import NDArray
from scipy.special import expit

from quoron.populations.users import Beside, Outliers, Users, Vector, about_boundary
from quoron_client.protocol.domains import Domain, L2Ball
from quoron_privacy.accounts.roots import root
from quoron_privacy.errors import ConfigError, count
from quoron_privacy.kernels.threads import at_once

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
    for each in (nodes, weights):
        each.setflags(write=False)
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
    for each in (along, across, shares):
        each.setflags(write=False)
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
            return self._expected(norm)[0]

        top = min(self.signal, largest)  # spread and ridge only shrink the optimum
        if top == 0.0 or slope(top) <= 0.0:
            return top
        return root(slope, 0.0, top, xtol=1e-15, rtol=1e-14)

    def multiplier(self, norm: float) -> float:
        """How strongly the ball holds the optimum back: -<grad F(x*), x*> / |x*|^2, zero in the interior."""
        return max(0.0, -self._expected(norm)[0]) / norm if norm > 0.0 else 0.0

    def curvature(self, norm: float) -> float:
        """Mean eigenvalue of the expected Hessian at x*."""
        return self._expected(norm)[1]

    def least_curvature(self, norm: float) -> float:
        """Smallest eigenvalue of the expected Hessian at x*: along the signal or across it."""
        t, weights = sphere_coordinate(self.dimension)
        fitted = expit(self.radius * norm * t)
        along = self.radius**2 * float(weights @ (t * t * fitted * (1.0 - fitted))) + self.ridge
        if self.dimension == 1:
            return along
        return min(along, (self.dimension * self.curvature(norm) - along) / (self.dimension - 1))

    def deviation(self, norm: float) -> float:
        """sqrt(E |g - E g|^2) of an item's gradient at x*; E g is zero there but for the ball and the ridge."""
        return self._expected(norm)[2]

    def _expected(self, norm: float) -> tuple[float, float, float]:
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
    def held(self) -> bool:
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
    def held(self) -> bool:
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


@dataclass(frozen=True, kw_only=True)
class MadeUp(ABC):
    """Users 0 to `users` - 1 of a declared law, drawn by `seed`: equal arguments give equal bits.

    Outliers do not enter the optimum or the risk. Raises ConfigError for arguments out of range.
    """

    users: int  # n
    items_per_user: int  # m
    dimension: int  # d
    domain: Domain
    seed: int = 0
    outliers: Outliers = field(default_factory=Outliers)

    def __post_init__(self) -> None:
        count(users=self.users, items_per_user=self.items_per_user, dimension=self.dimension)
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"Expected seed in [0, 2^63), got seed={self.seed}.")

    @property
    @abstractmethod
    def _risk(self) -> Risk:
        """Of the honest users."""

    @property
    def _free(self) -> Risk:
        """The same over all models; of a loss without a least value over those of the domain."""
        return self._risk

    @property
    def makes(self) -> bool:
        """Whether items are made when they are asked for: within the bounds of the loss, for any number of threads."""
        return True

    @property
    def hostile_share(self) -> float:
        """The share of outliers that a plan may know."""
        return min(self.outliers.fraction, 0.49)

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

    def beside(self, model: Vector) -> Beside:
        """What the domain's bound costs: users are as declared."""
        held = max(0.0, self.excess_risk(self.optimum))
        return Beside(held_back=held, remarks=tuple(about_boundary(self.domain, model, self.optimum, held)))

    def corruption(self, users: Users) -> NDArray[np.uint8]:
        """`Corruption` of each of `users`, shape (k,)."""
        return self.outliers.corruption(self._known(users), seed=self.seed)

    def _known(self, users: Users) -> Users:
        asked = np.array(users, np.int64)  # a copy: compiled loops want writable memory
        if asked.size and not (asked.min() >= 0 and asked.max() < self.users):
            raise ConfigError(f"Expected users in [0, {self.users}), got {asked.min()} to {asked.max()}.")
        return asked


def in_ranges(loop: Callable[[int, int], object], offsets: NDArray[np.int64], width: int = 1) -> None:
    """Call a compiled loop(first, last) on ranges over 0 .. len(offsets) - 1, each of about as many numbers, not many.

    There are offsets[-1] * width numbers; what a loop needs beside its output is therefore little.
    """
    size = int(offsets[-1]) * width
    threads = 1 if size < _SMALL else numba.get_num_threads()
    shares = np.linspace(0, offsets[-1], max(threads, -(-size // _LARGE)) + 1)[1:-1]
    ends = {0, *np.searchsorted(offsets[1:], shares).tolist(), len(offsets) - 1}
    at_once([partial(loop, *each) for each in pairwise(sorted(ends))], threads)
