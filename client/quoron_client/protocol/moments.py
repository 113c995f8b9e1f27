"""The task of the second moment of a user's features."""

from dataclasses import dataclass

from quoron_client.protocol.domains import Bounds
from quoron_client.protocol.questions import Task


@dataclass(frozen=True, slots=True, eq=False)
class SecondMoment(Task):
    """A triangular factor of the second moment of a user's features: upper triangular U with Uᵀ U = (1/m_u) Σ w a aᵀ.

    Items have weights w in [0, 1]. Its rows are packed without the zeros below the diagonal: (d (d + 1) / 2,) numbers
    whose Euclidean norm is the root mean squared norm of the features, so at most the feature norm R. The factor says
    no more than the moment. With `label_scale` the label, times it, is one more feature, the last.
    """

    dimension: int  # d, of the features, the label among them if it is one: that of the model, with one prediction
    label_scale: float | None = None

    @property
    def model_size(self) -> int:
        """Of the features."""
        return self.dimension - (self.label_scale is not None)

    @property
    def gradients_per_user(self) -> int:
        """None of features only; with labels what they have in common is the gradient at zero."""
        return int(self.label_scale is not None)

    def answer_shape(self, dimension: int) -> tuple[int, ...]:
        """Of one user's answer."""
        del dimension
        return (self.dimension * (self.dimension + 1) // 2,)

    def numbers_down(self, dimension: int) -> int:
        """None."""
        del dimension
        return 0

    def honest(self, bounds: Bounds) -> float:
        """A feature norm."""
        return bounds.feature_norm
