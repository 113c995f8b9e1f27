"""The losses that come with quoron: of two classes, of a number, of several classes, and the linear one.

exp for compiled loops, written so that the compiler can do several at once (a call to the C library cannot be).

exp(t) = 2^k · exp(r) with k = round(t / log 2) and |r| ≤ log(2)/2, exp(r) by its Taylor polynomial of degree 13, whose
remainder is below 2^-56. Relative error at most 2^-52; the result is monotone to within that. Arguments beyond ±700 are
taken as ±700. NaN gives NaN.

Losses of two classes: labels y of -1 and +1, φ a function of the margin z = y p.

Logistic: φ(p, y) = log(1 + exp(-z)).

Hinge: φ(p, y) = max(0, 1 - z). Not smooth.

Smoothed hinge: quadratic over a band of margins below 1, linear beyond it: φ(p, y) = 0 for z ≥ 1, (1 - z)² / 2w for
1 - w ≤ z ≤ 1, and 1 - z - w/2 below. It is the Moreau envelope of the hinge with parameter w: within w/2 of the hinge
and 1/w-smooth.

Linear loss: φ(p) = -p, so f(x; a) = -⟨a, x⟩: mean estimation, the hard instance of the lower bounds.

Over a ball of radius D the minimiser of the average is D times the direction of the mean feature vector.

Means under a public quadratic: f(x; a) = ½ ⟨x, H x⟩ - ⟨a, x⟩ with H = diag(steep, flat, ..., flat) + ridge · I.

    >>> loss = Quadratic(steep=1.0, flat=0.01, feature_norm=0.5)
    >>> loss.smoothness
    1.0
    >>> loss.quadratic_diagonal(3)
    array([1.  , 0.01, 0.01])

Every item has the same Hessian, which shows how many rounds or gradients a method needs: about 1/flat of plain descent,
1/√flat of accelerated descent. For experiments, on the synthetic family of that name.

Losses of a number: labels y bounded, φ a function of the residual r = p - y.

Least squares: φ(p, y) = r² / 2.

Huber loss: quadratic for residuals up to a threshold t, linear beyond: r²/2 for |r| ≤ t and t (|r| - t/2) otherwise
(Huber 1964).

Absolute loss: φ(p, y) = |r|. Not smooth.

Softmax loss: f(x; (a, y)) = log Σ_k exp⟨a, x_k⟩ - ⟨a, x_y⟩, labels 0 to K - 1.

Every class has a vector of its own. A reference class without one would save a K-th of the numbers. But noise along the
direction that all classes share changes no prediction, and this way a ball and a ridge treat all classes alike.
"""

from dataclasses import dataclass
from math import factorial
from typing import Any, ClassVar

import numpy as np
from numba import float64, int64
from numba.extending import intrinsic
from numpy.typing import ArrayLike, NDArray

from quoron_client.losses._base import Classification, Loss, Regression
from quoron_client.protocol.smoothing import Smoothing
from quoron_privacy.arrays import Vector
from quoron_privacy.errors import ConfigError
from quoron_privacy.kernels.compiled import Pointwise
from quoron_privacy.kernels.prebuilt import njit

_SHIFT = 1.5 * 2.0**52  # adding it rounds to an integer, which is then in the lowest bits
_LOG2_HIGH = float.fromhex("0x1.62e42fefa0000p-1")  # log 2 in two parts: k · _LOG2_HIGH is exact
_LOG2_LOW = float.fromhex("0x1.cf79abc9e3b39p-40")
_INVERSE = float.fromhex("0x1.71547652b82fep+0")  # 1 / log 2
_C2, _C3, _C4, _C5, _C6, _C7, _C8, _C9, _C10, _C11, _C12, _C13 = (1.0 / factorial(k) for k in range(2, 14))


def _reinterpreted(result: Any, argument: Any) -> Any:
    def generate(target: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.bitcast(values[0], target.get_value_type(result))

    return result(argument), generate


_bits_of: Any = intrinsic(lambda context, value: _reinterpreted(int64, float64))
_number_of: Any = intrinsic(lambda context, bits: _reinterpreted(float64, int64))


def _exponential(t: float) -> float:
    t = min(max(t, -700.0), 700.0)
    shifted = t * _INVERSE + _SHIFT
    k = shifted - _SHIFT
    r = (t - k * _LOG2_HIGH) - k * _LOG2_LOW
    square = r * r
    fourth = square * square
    low = ((_C4 + _C5 * r) + (_C6 + _C7 * r) * square) * fourth + ((_C2 + _C3 * r) * square + r)
    high = (_C12 + _C13 * r) * fourth + ((_C8 + _C9 * r) + (_C10 + _C11 * r) * square)
    power: float = _number_of((_bits_of(shifted) + 1023) << 52)
    return (1.0 + (high * (fourth * fourth) + low)) * power


# No reordering: it would cancel the shift.
exponential = njit(cache=True, nogil=True, error_model="numpy")(_exponential)


def _logistic_values(predictions: Any, labels: Any, unused: Any, out: Any, count: int) -> None:
    for i in range(count):
        margin = labels[i] * predictions[i]
        out[i] = max(-margin, 0.0) + np.log1p(np.exp(-abs(margin)))


def _logistic_slopes(predictions: Any, labels: Any, unused: Any, out: Any, count: int) -> None:
    for i in range(count):
        out[i] = -labels[i] / (1.0 + exponential(labels[i] * predictions[i]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Logistic(Classification):
    """Logistic regression: 1-Lipschitz and 1/4-smooth in the prediction."""

    name: ClassVar[str] = "logistic"
    curvature: ClassVar[float | None] = 0.25  # at margin zero
    values: ClassVar[Pointwise] = Pointwise(_logistic_values)
    slopes: ClassVar[Pointwise] = Pointwise(_logistic_slopes)


def _smoothed_values(predictions: Any, labels: Any, widths: Any, out: Any, count: int) -> None:
    for i in range(count):
        short = 1.0 - labels[i] * predictions[i]
        banded = min(max(short, 0.0), widths[i])
        out[i] = banded * (short - 0.5 * banded) / widths[i]


def _smoothed_slopes(predictions: Any, labels: Any, widths: Any, out: Any, count: int) -> None:
    for i in range(count):
        short = 1.0 - labels[i] * predictions[i]
        out[i] = -labels[i] * (min(max(short, 0.0), widths[i]) / widths[i])


@dataclass(frozen=True, slots=True, kw_only=True)
class SmoothedHinge(Classification):
    """Support vector classification made smooth: 1-Lipschitz and 1/width-smooth in the prediction."""

    width: float = 1.0  # w, in units of margin

    name: ClassVar[str] = "smoothed_hinge"
    values: ClassVar[Pointwise] = Pointwise(_smoothed_values)
    slopes: ClassVar[Pointwise] = Pointwise(_smoothed_slopes)

    def __post_init__(self) -> None:
        Classification.__post_init__(self)
        self._positive("width", self.width)

    @property
    def parameter(self) -> float:
        """The width w."""
        return self.width

    @property
    def curvature(self) -> float:
        """1/w, inside the band."""
        return 1.0 / self.width


def _hinge_values(predictions: Any, labels: Any, unused: Any, out: Any, count: int) -> None:
    for i in range(count):
        out[i] = max(0.0, 1.0 - labels[i] * predictions[i])


def _hinge_slopes(predictions: Any, labels: Any, unused: Any, out: Any, count: int) -> None:
    for i in range(count):
        out[i] = -labels[i] if labels[i] * predictions[i] < 1.0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Hinge(Classification):
    """Support vector classification: 1-Lipschitz in the prediction, with subgradient 0 at the kink."""

    name: ClassVar[str] = "hinge"
    curvature: ClassVar[float | None] = None  # the slope jumps at margin 1
    values: ClassVar[Pointwise] = Pointwise(_hinge_values)
    slopes: ClassVar[Pointwise] = Pointwise(_hinge_slopes)
    envelope: ClassVar[Pointwise] = SmoothedHinge.slopes  # which is that envelope


def _values(predictions: Any, labels: Any, unused: Any, out: Any, count: int) -> None:
    for i in range(count):
        out[i] = -predictions[i]


def _slopes(predictions: Any, labels: Any, unused: Any, out: Any, count: int) -> None:
    for i in range(count):
        out[i] = -1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear(Loss):
    """Mean estimation: feature_norm-Lipschitz and, without a ridge, 0-smooth. Labels are not used."""

    name: ClassVar[str] = "linear"
    curvature: ClassVar[float | None] = 0.0
    values: ClassVar[Pointwise] = Pointwise(_values)
    slopes: ClassVar[Pointwise] = Pointwise(_slopes)

    def slope_bound(self, largest_prediction: float) -> float:
        """1, whatever the prediction."""
        del largest_prediction
        return 1.0

    def bound_labels(self, labels: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return labels as they are."""
        return labels


@dataclass(frozen=True, slots=True, kw_only=True)
class Quadratic(Linear):
    """(max(steep, flat) + ridge)-smooth for every item, whatever it holds."""

    steep: float = 1.0  # curvature along the first coordinate
    flat: float = 0.01  # along all others

    name: ClassVar[str] = "quadratic"

    def __post_init__(self) -> None:
        Linear.__post_init__(self)
        self._positive("steep", self.steep)
        self._positive("flat", self.flat)

    def quadratic_diagonal(self, dimension: int) -> NDArray[np.float64]:
        """H's diagonal, (dimension,)."""
        eigenvalues = np.full(dimension, self.flat + self.ridge)
        eigenvalues[:1] = self.steep + self.ridge
        return eigenvalues

    def largest_diagonal(self, dimension: int) -> float:
        """H's largest eigenvalue; of one dimension it has the steep one alone."""
        return self.smoothness if dimension > 1 else self.steep + self.ridge

    @property
    def smoothness(self) -> float:
        """H's largest eigenvalue."""
        return max(self.steep, self.flat) + self.ridge


def _absolute_values(predictions: Any, labels: Any, unused: Any, out: Any, count: int) -> None:
    for i in range(count):
        out[i] = abs(predictions[i] - labels[i])


def _absolute_slopes(predictions: Any, labels: Any, unused: Any, out: Any, count: int) -> None:
    for i in range(count):
        out[i] = np.sign(predictions[i] - labels[i])


def _absolute_envelope(predictions: Any, labels: Any, widths: Any, out: Any, count: int) -> None:
    for i in range(count):
        out[i] = min(max((predictions[i] - labels[i]) / widths[i], -1.0), 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Absolute(Regression):
    """Median regression: 1-Lipschitz in the prediction, with subgradient 0 at the kink."""

    name: ClassVar[str] = "absolute"
    curvature: ClassVar[float | None] = None  # the slope jumps at residual 0
    values: ClassVar[Pointwise] = Pointwise(_absolute_values)
    slopes: ClassVar[Pointwise] = Pointwise(_absolute_slopes)
    envelope: ClassVar[Pointwise] = Pointwise(_absolute_envelope)

    def slope_bound(self, largest_prediction: float) -> float:
        """1, whatever the residual."""
        del largest_prediction
        return 1.0


def _huber_values(predictions: Any, labels: Any, thresholds: Any, out: Any, count: int) -> None:
    for i in range(count):
        residual = abs(predictions[i] - labels[i])
        banded = min(residual, thresholds[i])
        out[i] = banded * (residual - 0.5 * banded)


def _huber_slopes(predictions: Any, labels: Any, thresholds: Any, out: Any, count: int) -> None:
    for i in range(count):
        out[i] = min(max(predictions[i] - labels[i], -thresholds[i]), thresholds[i])


@dataclass(frozen=True, slots=True, kw_only=True)
class Huber(Regression):
    """Robust linear regression: threshold-Lipschitz and 1-smooth in the prediction."""

    threshold: float = 1.0  # t, in units of the label

    name: ClassVar[str] = "huber"
    curvature: ClassVar[float | None] = 1.0  # for residuals below the threshold
    values: ClassVar[Pointwise] = Pointwise(_huber_values)
    slopes: ClassVar[Pointwise] = Pointwise(_huber_slopes)

    def __post_init__(self) -> None:
        Regression.__post_init__(self)
        self._positive("threshold", self.threshold)

    @property
    def parameter(self) -> float:
        """The threshold t."""
        return self.threshold

    def slope_bound(self, largest_prediction: float) -> float:
        """Return the threshold, or the largest residual where that is smaller."""
        return min(self.threshold, largest_prediction + self.label_bound)


def _squared_values(predictions: Any, labels: Any, unused: Any, out: Any, count: int) -> None:
    for i in range(count):
        residual = predictions[i] - labels[i]
        out[i] = 0.5 * residual * residual


def _squared_slopes(predictions: Any, labels: Any, unused: Any, out: Any, count: int) -> None:
    for i in range(count):
        out[i] = predictions[i] - labels[i]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastSquares(Regression):
    """Linear regression: Lipschitz only because the domain and the labels are bounded; 1-smooth in the prediction."""

    name: ClassVar[str] = "least_squares"
    curvature: ClassVar[float | None] = 1.0
    values: ClassVar[Pointwise] = Pointwise(_squared_values)
    slopes: ClassVar[Pointwise] = Pointwise(_squared_slopes)

    def slope_bound(self, largest_prediction: float) -> float:
        """Return the largest residual."""
        return largest_prediction + self.label_bound


MOST_CLASSES = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Softmax(Loss):
    """Multinomial logistic regression: √2-Lipschitz and 1/2-smooth in the K predictions of an item."""

    classes: int  # K

    name: ClassVar[str] = "softmax"
    curvature: ClassVar[float | None] = 0.5  # of diag(p) - p pᵀ, at two classes of chance one half

    def __post_init__(self) -> None:
        Loss.__post_init__(self)
        given: Any = self.classes
        if isinstance(given, bool) or not (2 <= given <= MOST_CLASSES) or given != int(given):
            raise ConfigError(f"Expected classes to be a whole number from 2 to {MOST_CLASSES:,}, got classes={given}.")
        object.__setattr__(self, "classes", int(given))

    @property
    def outputs(self) -> int:
        """K."""
        return self.classes

    def slope_bound(self, largest_prediction: float) -> float:
        """√2: the norm of p - e_y where all chance is on one wrong class."""
        del largest_prediction
        return float(np.sqrt(2.0))

    @property
    def start_gradient(self) -> float:
        """R √(1 - 1/K), as all classes have the same chance at x = 0."""
        return self.feature_norm * float(np.sqrt(1.0 - 1.0 / self.classes))

    @property
    def start_loss(self) -> float:
        """ln K, as all classes have the same chance at x = 0."""
        return float(np.log(self.classes))

    def bound_labels(self, labels: Vector) -> Vector:
        """Class numbers as they are; NaN for what is none, which no class could stand for."""
        known = (labels >= 0) & (labels < self.classes) & (labels == np.floor(labels))
        return np.where(known, labels, np.nan)

    def opposite(self, labels: Vector) -> Vector:
        """Return the next class."""
        following: Vector = (labels + 1) % self.classes
        return following

    def value(self, predictions: ArrayLike, labels: ArrayLike) -> Vector:
        """Return values (N,) at predictions (N, K) and labels (N,) within their bound, without the ridge term."""
        scores, wanted = np.asarray(predictions, np.float64), np.asarray(labels).astype(np.int64)
        top = scores.max(axis=1)
        total: Vector = np.log(np.exp(scores - top[:, None]).sum(axis=1))
        values: Vector = total - (np.take_along_axis(scores, wanted[:, None], axis=1)[:, 0] - top)
        return values

    def slope(self, predictions: ArrayLike, labels: ArrayLike) -> Vector:
        """p - e_y, shape (N, K); an item's gradient by x_k is its k-th entry · a + ridge · x_k."""
        slopes = self.chances(predictions)
        slopes[np.arange(len(slopes)), np.asarray(labels).astype(np.int64)] -= 1.0
        return slopes

    def chances(self, predictions: ArrayLike) -> Vector:
        """p: each class's chance, shape (N, K)."""
        scores = np.asarray(predictions, np.float64)
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        chances: Vector = shares / shares.sum(axis=1, keepdims=True)
        return chances

    def slopes_with(self, smoothing: Smoothing | None) -> Pointwise:
        """Refused: slopes of several predictions are computed by loops of their own, and are smooth."""
        raise ConfigError(f"Expected a loss of one prediction with {smoothing}, got loss='softmax', which is smooth.")
