"""The task of a pass of SGD over a user's own items."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from quoron_client.protocol.domains import Bounds, Domain
from quoron_client.protocol.questions import Matrix, Task

if TYPE_CHECKING:
    from quoron_client.protocol.smoothing import Smoothing


@dataclass(frozen=True, slots=True, eq=False)
class LocalSGD(Task):
    """One pass of projected SGD over a user's items, item by item, from that user's own start iterate.

    The answer holds the final iterate and the mean of the iterates after each step: shape (k, 2, d). With `smoothing`
    every item's loss is replaced by its smooth stand-in.
    """

    own: ClassVar[str] = "starts"
    starts: Matrix  # (k, d), one per asked user
    step_size: float  # η
    domain: Domain
    smoothing: "Smoothing | None" = None

    @property
    def model_size(self) -> int:
        """d."""
        return int(self.starts.shape[1])

    @property
    def gradients_per_user(self) -> int:
        """A pass costs as many item gradients as one average gradient."""
        return 1

    def answer_shape(self, dimension: int) -> tuple[int, ...]:
        """Final iterate and mean iterate."""
        return (2, dimension)

    def numbers_down(self, dimension: int) -> int:
        """The start iterate."""
        return dimension

    def honest(self, bounds: Bounds) -> float:
        """An iterate lies in the domain."""
        return bounds.radius

    def directed(self, seed: int) -> Self:
        """See Task."""
        return self if self.smoothing is None else replace(self, smoothing=self.smoothing.redrawn(seed))
