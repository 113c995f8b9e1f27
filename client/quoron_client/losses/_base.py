"""What every loss shares: f(x; (a, y, w)) = w φ(⟨a, x⟩, y) + ridge/2 · ‖x‖², with public bounds on a, y and w.

Proofs of the constants: docs/losses.md.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quoron_client.compute.compiled import Pointwise
from quoron_client.protocol.domains import Domain
from quoron_client.protocol.smoothing import Moreau, Smoothing
from quoron_privacy.errors import ConfigError

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss(ABC):
    """A generalised linear loss. Its constants hold for every item within the bounds, at every point of the domain.

    An item's weight w in [0, 1] multiplies φ and leaves every constant as it is. A loss with several `outputs` has as
    many predictions ⟨a, x_k⟩ of an item: the model is x_1, ..., x_K one after the other, and `values`, `slopes` and
    `envelope` are not there.

    `enforcement.bounded` brings items within the bounds, so the constants hold for whatever a user may hold.
    """

    feature_norm: float = 1.0  # R: bound on ‖a‖₂
    ridge: float = 0.0

    name: ClassVar[str]
    convex: ClassVar[bool] = True
    c11: ClassVar[bool]  # continuously differentiable with a Lipschitz gradient
    c2: ClassVar[bool]  # twice continuously differentiable
    values: ClassVar[Pointwise]  # φ, compiled
    slopes: ClassVar[Pointwise]  # φ', the derivative by the prediction (a subgradient where there is none), compiled
    envelope: ClassVar[Pointwise | None] = None  # slopes of φ's Moreau envelope, the parameters its λ; if φ' jumps

    def __post_init__(self) -> None:
        self._positive("feature_norm", self.feature_norm)
        if not (np.isfinite(self.ridge) and self.ridge >= 0):
            raise ConfigError(f"Expected ridge >= 0 and finite, got ridge={self.ridge}.")

    @property
    def outputs(self) -> int:
        """K: predictions of an item, and so how many times as many numbers as features the model has."""
        return 1

    @property
    def vouched(self) -> str | None:
        """Who stands in for the constants, in words for a promise; None where they are proved."""
        return None

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
        """Labels brought within their bound; NaN stays NaN."""

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
        """What stands for φ': itself, or the slopes of its envelope.

        Raises `ConfigError` for `Moreau` and a loss that needs none.
        """
        if not isinstance(smoothing, Moreau):
            return self.slopes
        if self.envelope is None:
            raise ConfigError(f"Expected loss absolute or hinge with Moreau smoothing, got loss={self.name!r}.")
        return self.envelope

    def lipschitz(self, domain: Domain, dimension: int, smoothing: Smoothing | None = None) -> float:
        """Bound on every item gradient's ℓ2 norm over the domain, ridge included; with `smoothing` of the stand-in."""
        radius = domain.norm_bound(dimension)
        reached = radius + (0.0 if smoothing is None else smoothing.reach)
        steepest = float(self.bend(dimension).max())
        return self.feature_norm * self.slope_bound(self.feature_norm * reached) + steepest * radius

    def bend(self, dimension: int) -> Vector:
        """Diagonal of the Hessian of the public quadratic that every item's loss contains, shape (d,): the ridge."""
        return np.full(dimension, self.ridge)

    @property
    def start_gradient(self) -> float:
        """Bound on every item gradient's ℓ2 norm at x = 0: all slopes here are monotone in the label."""
        extremes = self.bound_labels(np.array([-np.inf, np.inf]))
        return self.feature_norm * float(np.abs(self.slope(np.zeros(2), extremes)).max())

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

    def bound_labels(self, labels: Vector) -> Vector:
        """Labels clipped to [-label_bound, label_bound]; NaN stays NaN."""
        return np.clip(labels, -self.label_bound, self.label_bound)
