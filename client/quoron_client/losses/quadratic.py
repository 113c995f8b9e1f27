"""Means under a public quadratic: f(x; a) = ½ ⟨x, H x⟩ - ⟨a, x⟩ with H = diag(steep, flat, ..., flat) + ridge · I.

    >>> loss = Quadratic(steep=1.0, flat=0.01, feature_norm=0.5)
    >>> loss.smoothness
    1.0
    >>> loss.quadratic_diagonal(3)
    array([1.  , 0.01, 0.01])

Every item has the same Hessian, which shows how many rounds or gradients a method needs: about 1/flat of plain descent,
1/√flat of accelerated descent. For experiments, on the synthetic family of that name.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from quoron_client.losses.linear import Linear


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
