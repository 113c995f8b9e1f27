"""Gradients of several predictions by their contrasts, of which there is one fewer, and sums of these.

A loss that only differences of its predictions change, such as softmax, has gradients whose parts sum to zero over the
K predictions. With orthonormal contrasts Q, (K, K - 1), whose columns sum to zero, Qᵀ keeps the length of every such
gradient and drops a K-th of the coordinates, so of the noise (docs/privacy/whitened-tracking.md#w2).

    >>> Contrasts(1, 3).of(np.array([[0.5, 1.0, -1.5]])).round(3).tolist()
    [[-0.354, 1.837]]
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.errors import ConfigError
from quoron_privacy.means.free_presence import VectorLengthSum
from quoron_privacy.means.norm_counts import NormCountSum
from quoron_privacy.release import Sums

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Contrasts:
    """Between models of K parts of p numbers, one part after the other, and points of q parts; q = 1 where K is 1."""

    features: int  # p
    outputs: int  # K

    @property
    def parts(self) -> int:
        """q."""
        return max(1, self.outputs - 1)

    @property
    def dimension(self) -> int:
        """Numbers of a point."""
        return self.parts * self.features

    def of(self, gradients: Matrix) -> Matrix:
        """Qᵀ G of every user's gradient (n, K p), shape (n, q p), without a product whose order of sums may change."""
        if self.outputs == 1:
            return gradients
        rows = gradients.reshape(len(gradients), self.outputs, self.features)
        found, total = np.empty((len(rows), self.parts, self.features)), rows[:, 0].copy()
        with np.errstate(all="ignore"):  # what is not finite is nobody's row
            for part in range(1, self.outputs):
                np.multiply(total - part * rows[:, part], (part * (part + 1)) ** -0.5, out=found[:, part - 1])
                total += rows[:, part]
        return found.reshape(len(rows), self.dimension)

    def model(self, transform: Matrix, point: Vector) -> Vector:
        """Of a point θ (q p,) in the metric L (p, p): Q θ Lᵀ, shape (K p,)."""
        if self.outputs == 1:
            return transform @ point
        parts: Vector = (self.matrix() @ point.reshape(self.parts, -1) @ transform.T).ravel()
        return parts

    def matrix(self) -> Matrix:
        """Q, (K, K - 1); 1 where K is 1."""
        if self.outputs == 1:
            return np.ones((1, 1))
        return Contrasts(1, self.outputs).of(np.eye(self.outputs))


@dataclass(frozen=True, slots=True, eq=False)
class ContrastSum:
    """A sum of gradients' contrasts, of which there is one vector fewer than classes."""

    contrasts: Contrasts
    own: NormCountSum | VectorLengthSum

    def of(self, values: Matrix, answered: NDArray[np.bool_]) -> Sums:
        """See clipping.Reduction. ConfigError for rows of another length."""
        numbers = self.contrasts.outputs * self.contrasts.features
        if values.ndim != 2 or values.shape[1] != numbers:
            raise ConfigError(f"Expected gradients of {numbers} numbers, got shape {values.shape}.")
        return self.own.of(self.contrasts.of(values), answered)
