"""Huber loss: quadratic for residuals up to a threshold t, linear beyond.

φ(p, y) = r²/2 for |r| ≤ t and t (|r| - t/2) otherwise, r = p - y (Huber 1964).
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from quoron_client.losses._base import Regression
from quoron_privacy.kernels.compiled import Pointwise


def _values(predictions: Any, labels: Any, thresholds: Any, out: Any, count: int) -> None:
    for i in range(count):
        residual = abs(predictions[i] - labels[i])
        banded = min(residual, thresholds[i])
        out[i] = banded * (residual - 0.5 * banded)


def _slopes(predictions: Any, labels: Any, thresholds: Any, out: Any, count: int) -> None:
    for i in range(count):
        out[i] = min(max(predictions[i] - labels[i], -thresholds[i]), thresholds[i])


@dataclass(frozen=True, slots=True, kw_only=True)
class Huber(Regression):
    """Robust linear regression: threshold-Lipschitz and 1-smooth in the prediction."""

    threshold: float = 1.0  # t, in units of the label

    name: ClassVar[str] = "huber"
    values: ClassVar[Pointwise] = Pointwise(_values)
    slopes: ClassVar[Pointwise] = Pointwise(_slopes)

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
