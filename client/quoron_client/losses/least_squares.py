"""Least squares: φ(p, y) = (p - y)² / 2, labels bounded."""

from dataclasses import dataclass
from typing import Any, ClassVar

from quoron_client.losses._base import Regression
from quoron_privacy.kernels.compiled import Pointwise


def _values(predictions: Any, labels: Any, unused: Any, out: Any, count: int) -> None:
    for i in range(count):
        residual = predictions[i] - labels[i]
        out[i] = 0.5 * residual * residual


def _slopes(predictions: Any, labels: Any, unused: Any, out: Any, count: int) -> None:
    for i in range(count):
        out[i] = predictions[i] - labels[i]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastSquares(Regression):
    """Linear regression: Lipschitz only because the domain and the labels are bounded; 1-smooth in the prediction."""

    name: ClassVar[str] = "least_squares"
    values: ClassVar[Pointwise] = Pointwise(_values)
    slopes: ClassVar[Pointwise] = Pointwise(_slopes)

    @property
    def curvature(self) -> float:
        """1 everywhere."""
        return 1.0

    def slope_bound(self, largest_prediction: float) -> float:
        """Largest residual."""
        return largest_prediction + self.label_bound
