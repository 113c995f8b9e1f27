"""Tasks of rounds in a metric that the users' own second moment gives."""

from dataclasses import dataclass

from quoron_client.protocol.domains import Bounds
from quoron_client.protocol.gradients import AverageGradient
from quoron_client.protocol.moments import SecondMoment
from quoron_client.protocol.questions import Matrix, Task, Vector


@dataclass(frozen=True, slots=True, eq=False)
class MomentAndGradient(Task):
    """The factor of `SecondMoment`, then the average gradient at `point` less `centre`: one message of fixed length.

    ((p (p + 1) / 2) + d,) numbers for p features and a model of d, whatever the number of items.
    """

    dimension: int  # p, of the features
    point: Vector  # (d,)
    centre: Vector | None = None  # (d,); None is zero

    @property
    def model_size(self) -> int:
        """d."""
        return len(self.point)

    @property
    def moment(self) -> SecondMoment:
        """The first part."""
        return SecondMoment(self.dimension)

    @property
    def gradient(self) -> AverageGradient:
        """The second part."""
        return AverageGradient(self.point[None, :], (1.0,), centre=self.centre)

    @property
    def gradients_per_user(self) -> int:
        """One."""
        return 1

    def answer_shape(self, dimension: int) -> tuple[int, ...]:
        """Of one user's answer."""
        return (self.moment.answer_shape(dimension)[0] + len(self.point),)

    def numbers_down(self, dimension: int) -> int:
        """The gradient's."""
        return self.gradient.numbers_down(dimension)

    def honest(self, bounds: Bounds) -> float:
        """The larger of both."""
        return max(self.moment.honest(bounds), self.gradient.honest(bounds))


@dataclass(frozen=True, slots=True, eq=False)
class AverageLoss(Task):
    """F_u(points[k]) for each of p points, ridge included, F_u the average of user u's items: an answer of (p,)."""

    points: Matrix  # (p, d)

    @property
    def model_size(self) -> int:
        """d."""
        return int(self.points.shape[1])

    @property
    def gradients_per_user(self) -> int:
        """None; a loss costs as much as a gradient, but is none."""
        return 0

    def answer_shape(self, dimension: int) -> tuple[int, ...]:
        """Of one user's answer."""
        del dimension
        return (len(self.points),)

    def numbers_down(self, dimension: int) -> int:
        """The points."""
        return len(self.points) * dimension

    def honest(self, bounds: Bounds) -> float:
        """A loss rises by at most the Lipschitz bound times the radius above a few units of slope."""
        return (1.0 + bounds.lipschitz) * (1.0 + bounds.radius)
