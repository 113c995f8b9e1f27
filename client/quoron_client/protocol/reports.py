"""Questions of the local model: reports that are private before they leave a client.

    >>> gradient = AverageGradient(np.zeros((1, 3)), (1.0,))
    >>> VectorReport(gradient, 1.0, 1e-6, 2.0, np.zeros(3)).spends
    (1.0, 1e-06)

Source: Bassily & Sun (2023), Algorithm 5, repaired; docs/privacy/local-model.md.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from quoron_client.protocol.domains import Bounds
from quoron_client.protocol.questions import Task
from quoron_client.protocol.tasks import AverageGradient

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class LocalReport(Task):
    """A report that is private before it leaves the client, made of its average gradient."""

    gradient: AverageGradient
    epsilon: float

    @property
    def model_size(self) -> int:
        """d."""
        return self.gradient.model_size

    @property
    def gradients_per_user(self) -> int:
        """Those of its gradient."""
        return self.gradient.gradients_per_user

    def directed(self, seed: int) -> Self:
        """The same report of the gradient with directions from `seed`."""
        return replace(self, gradient=self.gradient.directed(seed))


@dataclass(frozen=True, slots=True, eq=False)
class RangeReport(LocalReport):
    """Noisy bits of coordinate coordinates[i] of the rotated gradient of the i-th asked user: an answer of (bins,).

    The client makes them (ε, 0)-locally private before it sends them: `randomisers.RangeBits`.
    """

    own: ClassVar[str] = "coordinates"
    bins: int  # of equal width on [-half_width, half_width]
    half_width: float
    signs: Vector  # (d,), of the public rotation
    coordinates: NDArray[np.int64]  # (k,), below the padded dimension

    def answer_shape(self, dimension: int) -> tuple[int, ...]:
        """Bits, one a bin."""
        del dimension
        return (self.bins,)

    def numbers_down(self, dimension: int) -> int:
        """The gradient's, the signs, one coordinate."""
        return self.gradient.numbers_down(dimension) + dimension + 1

    def honest(self, bounds: Bounds) -> float:
        """A bit."""
        del bounds
        return 1.0

    @property
    def spends(self) -> tuple[float, float]:
        """(ε, 0)."""
        return self.epsilon, 0.0


@dataclass(frozen=True, slots=True, eq=False)
class VectorReport(LocalReport):
    """The gradient clipped to a ball around a public centre, with the client's own noise: an answer of (d,).

    The client makes it (ε, δ)-locally private before it sends it, with a noise scale of its own computing:
    `randomisers.VectorNoise`.
    """

    delta: float
    radius: float  # C
    centre: Vector  # (d,), public

    def answer_shape(self, dimension: int) -> tuple[int, ...]:
        """A vector."""
        return (dimension,)

    def numbers_down(self, dimension: int) -> int:
        """The gradient's and the centre."""
        return self.gradient.numbers_down(dimension) + dimension

    def honest(self, bounds: Bounds) -> float:
        """The centre, and noise, which is below 10⁴ radii."""
        del bounds
        return float(np.linalg.norm(self.centre)) + 1e4 * self.radius

    @property
    def spends(self) -> tuple[float, float]:
        """(ε, δ)."""
        return self.epsilon, self.delta
