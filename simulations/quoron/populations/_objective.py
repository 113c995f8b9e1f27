"""The training objective of a table: the mean over users of each user's average loss, and its non-private minimiser."""

from dataclasses import dataclass

import numpy as np

from quoron.populations._optimum import minimise
from quoron_client.domains import Domain, Vector
from quoron_client.items import ItemBatch
from quoron_client.losses import Absolute, Hinge, Huber, Loss, SmoothedHinge
from quoron_client.questions import Matrix

_ROWS = 1 << 16  # items whose products are held at a time
_WIDTHS = (1.0, 0.1, 0.01, 1e-3)  # smoothing of the non-smooth losses, each solution the next one's start


@dataclass(frozen=True, slots=True, eq=False)
class TrainingObjective:
    """F(x) = mean over users u of (1/m_u) sum of u's item losses, ridge included."""

    items: ItemBatch
    loss: Loss

    @property
    def weights(self) -> Vector:
        """What one item counts: 1 / (n m_u), shape (N,)."""
        counts = np.diff(self.items.offsets)
        return np.repeat(1.0 / (self.items.users * counts), counts)

    def scores(self, model: Vector) -> Vector:
        """<a, x> of every item, shape (N,), float64."""
        return np.concatenate(
            [self.items.features[i : i + _ROWS].astype(np.float64) @ model for i in self._starts] or [np.zeros(0)]
        )

    def difference(self, model: Vector, other: Vector) -> float:
        """F(model) - F(other), subtracted item by item so that little cancels."""
        labels = self.loss.bound_labels(self.items.labels)
        apart = self.loss.value(self.scores(model), labels) - self.loss.value(self.scores(other), labels)
        return float(self.weights @ apart + 0.5 * self.loss.ridge * ((model - other) @ (model + other)))

    def expansion(self, model: Vector) -> tuple[float, Vector, Matrix]:
        """Value, gradient (d,) and Hessian (d, d) at `model`; second derivatives are central differences of slopes."""
        labels, scores, weights = self.loss.bound_labels(self.items.labels), self.scores(model), self.weights
        slopes = weights * self.loss.slope(scores, labels)
        nudge = 1e-5
        bends = self.loss.slope(scores + nudge, labels) - self.loss.slope(scores - nudge, labels)
        bends *= weights / (2 * nudge)
        gradient = self.loss.ridge * model
        hessian = self.loss.ridge * np.eye(len(model))
        for i in self._starts:
            rows = self.items.features[i : i + _ROWS].astype(np.float64)
            gradient = gradient + slopes[i : i + _ROWS] @ rows
            hessian += rows.T @ (bends[i : i + _ROWS, None] * rows)
        value = weights @ self.loss.value(scores, labels) + 0.5 * self.loss.ridge * (model @ model)
        return float(value), gradient, hessian

    def minimiser(self, domain: Domain) -> Vector:
        """argmin over `domain`, shape (d,).

        For the hinge and absolute losses it is that of their smoothed forms, whose value is at most 5e-4 above.
        """
        point = np.zeros(self.items.dimension)
        for loss, scale in _smooth_forms(self.loss):
            smooth = TrainingObjective(self.items, loss)

            def scaled(
                x: Vector, smooth: TrainingObjective = smooth, scale: float = scale
            ) -> tuple[float, Vector, Matrix]:
                value, gradient, hessian = smooth.expansion(x)
                return scale * value, scale * gradient, scale * hessian

            point = minimise(scaled, domain, point)
        return point

    @property
    def _starts(self) -> range:
        return range(0, len(self.items.features), _ROWS)


def _smooth_forms(loss: Loss) -> list[tuple[Loss, float]]:
    """Smooth losses, each with its scale, that approach `loss`; the loss itself where it is smooth."""
    norm, ridge = loss.feature_norm, loss.ridge
    if isinstance(loss, Hinge):
        return [(SmoothedHinge(feature_norm=norm, ridge=ridge, width=w), 1.0) for w in _WIDTHS]
    if isinstance(loss, Absolute):  # |r| is the limit of Huber's loss divided by its threshold
        bound = loss.label_bound
        return [(Huber(feature_norm=norm, ridge=ridge * w, label_bound=bound, threshold=w), 1.0 / w) for w in _WIDTHS]
    return [(loss, 1.0)]
