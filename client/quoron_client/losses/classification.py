"""Losses of two classes: labels y of -1 and +1, φ a function of the margin z = y p.

Logistic: φ(p, y) = log(1 + exp(-z)).

Hinge: φ(p, y) = max(0, 1 - z). Not smooth.

Smoothed hinge: quadratic over a band of margins below 1, linear beyond it: φ(p, y) = 0 for z ≥ 1, (1 - z)² / 2w for
1 - w ≤ z ≤ 1, and 1 - z - w/2 below. It is the Moreau envelope of the hinge with parameter w: within w/2 of the hinge
and 1/w-smooth.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from quoron_client.losses._base import Classification
from quoron_client.losses.exponential import exponential
from quoron_privacy.kernels.compiled import Pointwise


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
    values: ClassVar[Pointwise] = Pointwise(_logistic_values)
    slopes: ClassVar[Pointwise] = Pointwise(_logistic_slopes)

    @property
    def curvature(self) -> float:
        """1/4, at margin zero."""
        return 0.25


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
    values: ClassVar[Pointwise] = Pointwise(_hinge_values)
    slopes: ClassVar[Pointwise] = Pointwise(_hinge_slopes)
    envelope: ClassVar[Pointwise] = SmoothedHinge.slopes  # which is that envelope

    @property
    def curvature(self) -> None:
        """None: the slope jumps at margin 1."""
        return
