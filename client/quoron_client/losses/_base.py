"""What every loss shares: f(x; (a, y, w)) = w φ(⟨a, x⟩, y) + ridge/2 · ‖x‖², with public bounds on a, y and w.

Proofs of the constants: docs/privacy/losses.md.
"""

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from quoron_client.protocol.domains import Box, Domain
from quoron_client.protocol.smoothing import Moreau, Smoothing
from quoron_privacy.arrays import Vector
from quoron_privacy.errors import ConfigError
from quoron_privacy.kernels.compiled import Pointwise


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss(ABC):
    """A convex generalised linear loss, whose constants hold for every item within the bounds, anywhere in the domain.

    An item's weight w in [0, 1] multiplies φ and leaves every constant as it is. A loss with several `outputs` has as
    many predictions ⟨a, x_k⟩ of an item: the model is x_1, ..., x_K one after the other, and `values`, `slopes` and
    `envelope` are not there.

    `enforcement.bounded` brings items within the bounds, so the constants hold for whatever a user may hold.
    """

    feature_norm: float = 1.0  # R: bound on ‖a‖₂
    ridge: float = 0.0
    feature_bound: float | None = None  # A: bound on every |a_j|; None: R
    active_features: int | None = None  # k: at most so many a_j are not zero; None: all may be

    name: ClassVar[str]
    values: ClassVar[Pointwise]  # φ, compiled
    slopes: ClassVar[Pointwise]  # φ', the derivative by the prediction (a subgradient where there is none), compiled
    envelope: ClassVar[Pointwise | None] = None  # slopes of φ's Moreau envelope, the parameters its λ; if φ' jumps

    def __post_init__(self) -> None:
        self._positive("feature_norm", self.feature_norm)
        if not (np.isfinite(self.ridge) and self.ridge >= 0):
            raise ConfigError(f"Expected ridge >= 0 and finite, got ridge={self.ridge}.")
        if self.feature_bound is not None:
            self._positive("feature_bound", self.feature_bound)
        most: Any = self.active_features
        if most is not None:
            if isinstance(most, bool) or not 1 <= most < 2**31 or most != int(most):
                raise ConfigError(f"Expected active_features to be a whole number >= 1, got active_features={most}.")
            object.__setattr__(self, "active_features", int(most))

    @property
    def bounds(self) -> dict[str, Any]:
        """The public bounds that are given, by name: what `make_loss` makes the same loss of."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @property
    def narrow(self) -> bool:
        """Whether entries of features are bounded beside their norm."""
        return self.feature_bound is not None or self.active_features is not None

    @property
    def outputs(self) -> int:
        """K: predictions of an item, and so how many times as many numbers as features the model has."""
        return 1

    @property
    def parameter(self) -> float:
        """The one number that φ depends on, such as a threshold or a width; 0 where there is none."""
        return 0.0

    @property
    @abstractmethod
    def curvature(self) -> float | None:
        """sup φ'' over predictions and labels; None where φ' jumps."""

    @abstractmethod
    def slope_bound(self, largest_prediction: float) -> float:
        """sup |φ'| over predictions of at most that magnitude and labels within their bound."""

    @abstractmethod
    def bound_labels(self, labels: Vector) -> Vector:
        """Return labels brought within their bound; NaN stays NaN."""

    def opposite(self, labels: Vector) -> Vector:
        """Wrong labels in place of these, for users who are made to mislead in simulations."""
        return -labels

    def value(self, predictions: ArrayLike, labels: ArrayLike) -> Vector:
        """φ(prediction, label) elementwise, without the ridge term."""
        return self.values(predictions, labels, self.parameter)

    def slope(self, predictions: ArrayLike, labels: ArrayLike) -> Vector:
        """φ'(prediction, label) elementwise; an item's gradient is slope · a + ridge · x."""
        return self.slopes(predictions, labels, self.parameter)

    def slopes_with(self, smoothing: Smoothing | None) -> Pointwise:
        """Return what stands for φ': itself, or the slopes of its envelope.

        Raises `ConfigError` for `Moreau` and a loss that needs none.
        """
        if not isinstance(smoothing, Moreau):
            return self.slopes
        if self.envelope is None:
            raise ConfigError(f"Expected loss absolute or hinge with Moreau smoothing, got loss={self.name!r}.")
        return self.envelope

    def lipschitz(self, domain: Domain, dimension: int, smoothing: Smoothing | None = None) -> float:
        """Return a bound on item gradients' ℓ2 norms over the domain, with ridge; with `smoothing` of the stand-in."""
        radius = domain.norm_bound(dimension)
        reached = radius + (0.0 if smoothing is None else smoothing.reach)
        slope = self.slope_bound(self.feature_norm * reached)
        return self.feature_norm * slope + self.largest_diagonal(dimension) * radius

    def quadratic_diagonal(self, dimension: int) -> Vector:
        """Diagonal of the Hessian of the public quadratic that every item's loss contains, shape (d,): the ridge."""
        return np.full(dimension, self.ridge)

    def largest_diagonal(self, dimension: int) -> float:
        """Return the largest number of that diagonal, in every dimension that a problem may have, without making it."""
        del dimension
        return self.ridge

    def coordinate_lipschitz(self, domain: Domain, dimension: int) -> float:
        """Return a bound on every coordinate of every item's gradient over the domain, with ridge: Lipschitz in ℓ1."""
        largest, total, _ = self._features(dimension)
        widest = domain.half_width if isinstance(domain, Box) else domain.radius
        reached = min(self.feature_norm * domain.norm_bound(dimension), total * widest)
        return largest * self.slope_bound(reached) + self.ridge * widest

    def coordinate_smoothness(self, dimension: int) -> float | None:
        """β∞: bound on every row sum of |Hessian| of every item, if all these Hessians are diagonally dominant.

        None where that is not certain: see `min_dominant_ridge`.
        """
        needed = self.min_dominant_ridge(dimension)
        if needed is None or self.ridge < needed or self.curvature is None:
            return None
        # max |a_j| ‖a‖₁ over ‖a‖₂ ≤ R and k numbers is R²(1 + √k)/2 (docs/privacy/losses.md#l4)
        largest, total, active = self._features(dimension)
        row = min(self.feature_norm**2 * (1 + np.sqrt(active)) / 2, largest * total)
        return float(self.curvature * row * (1 + 1e-12) + self.ridge)

    def min_dominant_ridge(self, dimension: int) -> float | None:
        """Return the ridge from which on the Hessian of every item within the bounds is diagonally dominant.

        0 where φ is linear, or an item has one feature that is not zero. None for losses without a Hessian and for
        those of several outputs, whose Hessians have blocks that are not.
        """
        if self.curvature is None or self.outputs > 1:
            return None
        # φ'' |a_j| (Σ_{i≠j} |a_i| - |a_j|) <= ridge for all j; its largest value over ‖a‖₂ ≤ R is R²(√k - 1)/2
        largest, _, active = self._features(dimension)
        excess = self.feature_norm**2 * (np.sqrt(active) - 1) / 2
        held = largest**2 * ((active - 1) / 2) ** 2 if active <= 3 else largest**2 * (active - 2)
        return float(self.curvature * min(excess, held) * (1 + 1e-12))

    def _features(self, dimension: int) -> tuple[float, float, int]:
        """Bounds on |a_j|, on ‖a‖₁, and on how many a_j are not zero."""
        features = max(1, dimension // self.outputs)
        active = features if self.active_features is None else min(self.active_features, features)
        largest = self.feature_norm if self.feature_bound is None else min(self.feature_bound, self.feature_norm)
        return largest, min(float(np.sqrt(active)) * self.feature_norm, active * largest), active

    @property
    def start_gradient(self) -> float:
        """Bound on every item gradient's ℓ2 norm at x = 0: all slopes here are monotone in the label."""
        extremes = self.bound_labels(np.array([-np.inf, np.inf]))
        slopes = (self.slopes.once(0.0, label, self.parameter) for label in extremes.tolist())
        return self.feature_norm * max(abs(slope) for slope in slopes)

    @property
    def start_loss(self) -> float | None:
        """An item's loss at x = 0 is at most so much above the least that any item's can be; None: nobody knows."""
        return None

    @property
    def smoothness(self) -> float | None:
        """Bound on the largest eigenvalue of every item's Hessian, ridge included; None where φ' jumps."""
        return None if self.curvature is None else self.curvature * self.feature_norm**2 + self.ridge

    @staticmethod
    def _positive(name: str, value: float) -> None:
        if not (np.isfinite(value) and value > 0):
            raise ConfigError(f"Expected {name} > 0 and finite, got {name}={value}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Classification(Loss):
    """A loss of the margin y · prediction, with labels -1 and +1."""

    def bound_labels(self, labels: Vector) -> Vector:
        """+1 for positive labels and -1 for all others, so that labels 0 and 1 work as well; NaN stays NaN."""
        return np.where(np.isnan(labels), np.nan, np.where(labels > 0, 1.0, -1.0))

    @property
    def start_loss(self) -> float | None:
        """The value at margin zero: no margin has one below zero."""
        return self.values.once(0.0, 1.0, self.parameter)

    def slope_bound(self, largest_prediction: float) -> float:
        """1: these losses fall by at most 1 for each unit of margin."""
        del largest_prediction
        return 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Regression(Loss):
    """A loss of the residual prediction - y, with |y| at most `label_bound`."""

    label_bound: float = 1.0

    def __post_init__(self) -> None:
        Loss.__post_init__(self)
        self._positive("label_bound", self.label_bound)

    @property
    def start_loss(self) -> float | None:
        """The value at the largest residual of prediction zero: that of residual zero is zero."""
        return self.values.once(0.0, self.label_bound, self.parameter)

    def bound_labels(self, labels: Vector) -> Vector:
        """Return labels clipped to [-label_bound, label_bound]; NaN stays NaN."""
        return np.clip(labels, -self.label_bound, self.label_bound)
