"""The task of a gradient of some of a user's items, by their places."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from quoron_client.protocol.domains import Bounds
from quoron_client.protocol.questions import Matrix, Task


@dataclass(frozen=True, slots=True, eq=False)
class PlacedGradient(Task):
    """(1/divisor) Σ_p clip(∇f(x; z_p)) over the places p of a user that row i of `places` names; x the one point.

    Places are numbers, 0, 1, ..., of a user's items in their stored order. A place without an item, and -1, adds zero:
    what is there changes neither the divisor nor any other place. `clip` bounds each item's gradient on its own.
    """

    own: ClassVar[str] = "places"
    points: Matrix  # (1, d)
    places: NDArray[np.int64]  # (k, w), one row per asked user
    divisor: float
    clip: float | None = None
    expected: int = 1  # items of an asked user, as told in public

    @property
    def model_size(self) -> int:
        """d."""
        return int(self.points.shape[1])

    @property
    def gradients_per_user(self) -> int:
        """At most one of all its items."""
        return 1

    def planned_gradients(self, items: int) -> int:
        """Those expected, whatever the user has."""
        del items
        return self.expected

    def computed_gradients(self, items: NDArray[np.int64]) -> int:
        """Of the places with an item."""
        return int(np.sum((self.places >= 0) & (self.places < items[:, None])))

    def answer_shape(self, dimension: int) -> tuple[int, ...]:
        """Of one user's answer."""
        return (dimension,)

    def numbers_down(self, dimension: int) -> int:
        """The point and the places."""
        return dimension + int(self.places.shape[1])

    def honest(self, bounds: Bounds) -> float:
        """A bound on that many gradients."""
        return bounds.lipschitz * float(self.places.shape[1]) / self.divisor
