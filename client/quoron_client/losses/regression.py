"""Losses of a number: labels y bounded, φ a function of the residual r = p - y.

Least squares: φ(p, y) = r² / 2.

Huber loss: quadratic for residuals up to a threshold t, linear beyond: r²/2 for |r| ≤ t and t (|r| - t/2) otherwise
(Huber 1964).

Absolute loss: φ(p, y) = |r|. Not smooth.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from quoron_client.losses._base import Regression
from quoron_privacy.kernels.compiled import Pointwise


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
    values: ClassVar[Pointwise] = Pointwise(_absolute_values)
    slopes: ClassVar[Pointwise] = Pointwise(_absolute_slopes)
    envelope: ClassVar[Pointwise] = Pointwise(_absolute_envelope)

    @property
    def curvature(self) -> None:
        """None: the slope jumps at residual 0."""
        return

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
    values: ClassVar[Pointwise] = Pointwise(_huber_values)
    slopes: ClassVar[Pointwise] = Pointwise(_huber_slopes)

    def __post_init__(self) -> None:
        Regression.__post_init__(self)
        self._positive("threshold", self.threshold)

    @property
    def parameter(self) -> float:
        """The threshold t."""
        return self.threshold

    @property
    def curvature(self) -> float:
        """1, for residuals below the threshold."""
        return 1.0

    def slope_bound(self, largest_prediction: float) -> float:
        """The threshold, or the largest residual where that is smaller."""
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
    values: ClassVar[Pointwise] = Pointwise(_squared_values)
    slopes: ClassVar[Pointwise] = Pointwise(_squared_slopes)

    @property
    def curvature(self) -> float:
        """1 everywhere."""
        return 1.0

    def slope_bound(self, largest_prediction: float) -> float:
        """Largest residual."""
        return largest_prediction + self.label_bound
