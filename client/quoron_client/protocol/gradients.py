"""The task of a gradient at points that the coordinator names."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import numpy as np

from quoron_client.protocol.domains import Bounds
from quoron_client.protocol.questions import Matrix, Task, Vector

if TYPE_CHECKING:
    from quoron_client.protocol.smoothing import Smoothing


@dataclass(frozen=True, slots=True, eq=False)
class AverageGradient(Task):
    """w_u · (Σ_k weights[k] · ∇F_u(points[k]) - centre), with F_u the average loss of user u's m_u items.

    One point with weight 1 is the plain gradient; two weighted points are a recursive gradient, computed in one pass
    over the items. With `user_smoothness` the client scales its loss by min(1, user_smoothness / λ_u), λ_u an upper
    bound on its Hessian over the whole domain, so that every conceivable user is `user_smoothness`-smooth. With
    `reference_items` w_u = min(1, √(m_u / reference_items)), else 1: users with few items, whose averages are far
    from the centre by chance alone, count for less. With `smoothing` every item's loss is replaced by its smooth
    stand-in.
    """

    points: Matrix  # (p, d), p = 1 or 2
    weights: tuple[float, ...]  # (p,)
    user_smoothness: float | None = None
    centre: Vector | None = None  # (d,); None is zero
    reference_items: int | None = None
    smoothing: "Smoothing | None" = None

    @property
    def model_size(self) -> int:
        """d."""
        return int(self.points.shape[1])

    @property
    def gradients_per_user(self) -> int:
        """User-average gradients each asked user computes."""
        return len(self.weights)

    def answer_shape(self, dimension: int) -> tuple[int, ...]:
        """Of one user's answer."""
        return (dimension,)

    def numbers_down(self, dimension: int) -> int:
        """Numbers in the question to one user."""
        return (len(self.weights) + (self.centre is not None)) * dimension

    def honest(self, bounds: Bounds) -> float:
        """The weighted bound of the gradients, and the centre."""
        centre = 0.0 if self.centre is None else float(np.linalg.norm(self.centre))
        return bounds.lipschitz * float(np.abs(self.weights).sum()) + centre

    def directed(self, seed: int) -> Self:
        """See Task."""
        return self if self.smoothing is None else replace(self, smoothing=self.smoothing.redrawn(seed))
