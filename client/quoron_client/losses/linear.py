"""Linear loss: φ(p) = -p, so f(x; a) = -⟨a, x⟩: mean estimation, the hard instance of the lower bounds.

Over a ball of radius D the minimiser of the average is D times the direction of the mean feature vector.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from quoron_client.losses._base import Loss
from quoron_privacy.kernels.compiled import Pointwise


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
    values: ClassVar[Pointwise] = Pointwise(_values)
    slopes: ClassVar[Pointwise] = Pointwise(_slopes)

    @property
    def curvature(self) -> float:
        """0 everywhere."""
        return 0.0

    def slope_bound(self, largest_prediction: float) -> float:
        """1, whatever the prediction."""
        del largest_prediction
        return 1.0

    def bound_labels(self, labels: NDArray[np.float64]) -> NDArray[np.float64]:
        """Labels as they are."""
        return labels
