"""Linear loss: φ(p) = -p, so f(x; a) = -⟨a, x⟩: mean estimation, the hard instance of the lower bounds.

Over a ball of radius D the minimiser of the average is D times the direction of the mean feature vector.

Means under a public quadratic: f(x; a) = ½ ⟨x, H x⟩ - ⟨a, x⟩ with H = diag(steep, flat, ..., flat) + ridge · I.

    >>> loss = Quadratic(steep=1.0, flat=0.01, feature_norm=0.5)
    >>> loss.smoothness
    1.0
    >>> loss.quadratic_diagonal(3)
    array([1.  , 0.01, 0.01])

Every item has the same Hessian, which shows how many rounds or gradients a method needs: about 1/flat of plain descent,
1/√flat of accelerated descent. For experiments, on the synthetic family of that name.
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
