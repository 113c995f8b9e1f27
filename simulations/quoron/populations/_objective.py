"""The training objective of a table: the mean over users of each user's average loss, and its non-private minimiser.

As clients do, an item's weight multiplies its loss and not the ridge, and a user's average divides by its number of
items.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy

from quoron_client.data.items import ItemBatch
from quoron_client.losses import Absolute, Hinge, Huber, Linear, Logistic, Loss, SmoothedHinge, Softmax
from quoron_client.protocol.domains import Domain, L2Ball, Vector
from quoron_client.protocol.questions import Matrix
from quoron_privacy.accounts.roots import root
from quoron_privacy.errors import RunError

_ROWS = 1 << 16  # items whose products are held at a time
_NONE = 1e-12  # share of the largest moment, below which a direction holds nothing
_TOLD_APART = 1e-8  # p (1 - p): no table has a chance as small that is not approached without end
_WIDTHS = (1.0, 0.1, 0.01, 1e-3)  # smoothing of the non-smooth losses, each solution the next one's start
Objective = Callable[[Vector], tuple[float, Vector, Matrix]]
_STEPS = 200
SETTLED = 1e-9  # of what there is to gain, where no point is best and better ones are ever farther away
_FLAT = 1e-12  # eigenvalues below this share of the largest are lifted to it, so that unused columns stay at zero


@dataclass(frozen=True, slots=True, eq=False)
class TrainingObjective:
    """F(x) = mean over users u of (1/m_u) sum of u's weighted item losses, plus ridge/2 |x|^2."""

    items: ItemBatch
    loss: Loss

    @property
    def weights(self) -> Vector:
        """What one item counts: its weight / (n m_u), shape (N,)."""
        counts = np.diff(self.items.offsets)
        shares = np.repeat(1.0 / (self.items.users * counts), counts)
        return shares if self.items.weights is None else shares * self.items.weights

    def scores(self, model: Vector) -> Vector:
        """<a, x> of every item, shape (N,), float64; <a, x_k>, shape (N, K), of a loss with K outputs."""
        point = model if self.loss.outputs == 1 else model.reshape(self.loss.outputs, -1).T
        return np.concatenate(
            [self.items.features[i : i + _ROWS].astype(np.float64) @ point for i in self._starts]
            or [np.zeros((0, *point.shape[1:]))]
        )

    def difference(self, model: Vector, other: Vector) -> float:
        """F(model) - F(other), subtracted item by item so that little cancels."""
        labels = self.loss.bound_labels(self.items.labels)
        apart = self.loss.value(self.scores(model), labels) - self.loss.value(self.scores(other), labels)
        return float(self.weights @ apart + 0.5 * self.loss.ridge * ((model - other) @ (model + other)))

    def expansion(self, model: Vector) -> tuple[float, Vector, Matrix]:
        """Value, gradient (d,) and Hessian (d, d) at `model`; second derivatives are central differences of slopes.

        Those of the softmax loss are diag(p) - p p' between its classes.
        """
        if isinstance(self.loss, Softmax):
            return self._expansion_of_classes(self.loss, model)
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

    def _expansion_of_classes(self, loss: Softmax, model: Vector) -> tuple[float, Vector, Matrix]:
        labels, scores, weights = loss.bound_labels(self.items.labels), self.scores(model), self.weights
        slopes, chances = weights[:, None] * loss.slope(scores, labels), loss.chances(scores)
        classes, features = loss.classes, self.items.dimension
        gradient, hessian = np.zeros((classes, features)), np.zeros((classes, features, classes, features))
        for i in self._starts:
            rows, part = self.items.features[i : i + _ROWS].astype(np.float64), slice(i, i + _ROWS)
            gradient += slopes[part].T @ rows
            for k in range(classes):
                for j in range(k + 1):
                    bends = weights[part] * chances[part, k] * ((k == j) - chances[part, j])
                    hessian[k, :, j] += rows.T @ (bends[:, None] * rows)
        for k in range(classes):
            for j in range(k):
                hessian[j, :, k] = hessian[k, :, j].T
        whole = hessian.reshape(model.size, model.size) + loss.ridge * np.eye(model.size)
        value = weights @ loss.value(scores, labels) + 0.5 * loss.ridge * (model @ model)
        return float(value), gradient.ravel() + loss.ridge * model, whole

    @property
    def has_infimum(self) -> bool:
        """Whether it is bounded below over all models: a linear loss is not, unless a ridge holds it."""
        return self.loss.name != Linear.name or self.loss.ridge > 0

    def separates(self, model: Vector) -> bool:
        """Whether no model is best: in some direction from `model`, a minimiser, classes are told apart without error.

        There the curvature is next to nothing beside what it is for even chances, as all chances are next to 0 or 1.
        """
        if self.loss.ridge or not isinstance(self.loss, Logistic | Softmax):
            return False
        even, basis = np.linalg.eigh(self._moment())
        used = even > _NONE * even[-1]
        whiten = np.kron(np.eye(self.loss.outputs), basis[:, used] / np.sqrt(even[used]))
        curvatures = np.linalg.eigvalsh(whiten.T @ self.expansion(model)[2] @ whiten)
        alike = int(used.sum()) if self.loss.outputs > 1 else 0  # the same added to all classes changes nothing
        return bool(np.any(curvatures[alike:] < _TOLD_APART))

    def _moment(self) -> Matrix:
        """Second moment of the items by their weights, (p, p)."""
        features, weights = self.items.features, self.weights
        moment = np.zeros((self.items.dimension, self.items.dimension))
        for i in self._starts:
            rows = features[i : i + _ROWS].astype(np.float64)
            moment += rows.T @ (weights[i : i + _ROWS, None] * rows)
        return moment

    def minimiser(self, domain: Domain) -> Vector:
        """argmin over `domain`, shape (d,).

        For the hinge and absolute losses it is that of their smoothed forms, whose value is at most 5e-4 above.
        """
        point = np.zeros(self.items.dimension * self.loss.outputs)
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


def minimise(objective: Objective, domain: Domain, start: Vector) -> Vector:
    """argmin of `objective` (value, gradient (d,), Hessian (d, d)) over `domain`, from `start` (d,) of the domain.

    On a ball: Newton steps that solve each quadratic model exactly on the ball (the trust-region subproblem in the
    eigenbasis, More and Sorensen 1983), with Armijo's line search. On a box: L-BFGS-B of scipy.

    Where better points are ever farther away, as of classes that can be told apart, it is one from which Newton's next
    step would gain no more than SETTLED. Raises RunError if it does not settle.
    """
    if isinstance(domain, L2Ball):
        return _newton(objective, domain.radius, start)
    result = scipy.optimize.minimize(
        lambda x: objective(x)[:2],
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=[(-domain.half_width, domain.half_width)] * len(start),
        options={"maxiter": 10_000, "ftol": 0.0, "gtol": 1e-11},
    )
    return np.asarray(result.x, np.float64)


def _newton(objective: Objective, radius: float, start: Vector) -> Vector:
    point = start
    value, gradient, hessian = objective(point)
    for _ in range(_STEPS):
        towards = _least_on_ball(hessian, hessian @ point - gradient, radius) - point
        gain = -float(gradient @ towards)
        if gain <= 4e-16 * max(1.0, abs(value)):
            return point
        step = 1.0
        while True:
            candidate = point + step * towards
            reached = objective(candidate)
            if reached[0] <= value - 1e-4 * step * gain:
                break
            step /= 2
            if step < 1e-9:  # the remaining gain drowns in rounding
                return point
        point, (value, gradient, hessian) = candidate, reached
    if gain <= SETTLED * max(1.0, abs(value)):
        return point
    raise RunError(f"Expected the non-private optimum within {_STEPS} Newton steps; it is not finite or too flat.")


def _least_on_ball(hessian: Matrix, target: Vector, radius: float) -> Vector:
    """argmin of y'Hy/2 - target'y over |y| <= radius."""
    eigenvalues, basis = np.linalg.eigh(hessian)
    along = basis.T @ target
    pull = float(np.linalg.norm(along)) / radius  # a multiplier that keeps any step inside
    lifted = np.maximum(eigenvalues, _FLAT * max(eigenvalues[-1], pull))
    if pull == 0.0:
        return np.zeros_like(target)

    def beyond(multiplier: float) -> float:
        return float(np.linalg.norm(along / (lifted + multiplier))) - radius

    if beyond(0.0) <= 0.0:
        return np.asarray(basis @ (along / lifted))
    multiplier = root(beyond, 0.0, pull, xtol=1e-300, rtol=1e-14)
    inside = basis @ (along / (lifted + multiplier))
    return np.asarray(inside * (radius / max(radius, float(np.linalg.norm(inside)))))
