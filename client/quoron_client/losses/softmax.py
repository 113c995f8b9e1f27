"""Softmax loss: f(x; (a, y)) = log Σ_k exp⟨a, x_k⟩ - ⟨a, x_y⟩, labels 0 to K - 1.

Every class has a vector of its own. A reference class without one would save a K-th of the numbers. But noise along the
direction that all classes share changes no prediction, and this way a ball and a ridge treat all classes alike.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quoron_client.losses._base import Loss
from quoron_client.protocol.smoothing import Smoothing
from quoron_privacy.errors import ConfigError
from quoron_privacy.kernels.compiled import Pointwise

Vector = NDArray[np.float64]

MOST_CLASSES = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Softmax(Loss):
    """Multinomial logistic regression: √2-Lipschitz and 1/2-smooth in the K predictions of an item."""

    classes: int  # K

    name: ClassVar[str] = "softmax"

    def __post_init__(self) -> None:
        Loss.__post_init__(self)
        given: Any = self.classes
        if isinstance(given, bool) or not (2 <= given <= MOST_CLASSES) or given != int(given):
            raise ConfigError(f"Expected classes to be a whole number from 2 to {MOST_CLASSES:,}, got classes={given}.")
        object.__setattr__(self, "classes", int(given))

    @property
    def outputs(self) -> int:
        """K."""
        return self.classes

    @property
    def curvature(self) -> float:
        """1/2: the largest eigenvalue of diag(p) - p pᵀ, at two classes of chance one half."""
        return 0.5

    def slope_bound(self, largest_prediction: float) -> float:
        """√2: the norm of p - e_y where all chance is on one wrong class."""
        del largest_prediction
        return float(np.sqrt(2.0))

    @property
    def start_gradient(self) -> float:
        """R √(1 - 1/K), as all classes have the same chance at x = 0."""
        return self.feature_norm * float(np.sqrt(1.0 - 1.0 / self.classes))

    @property
    def start_loss(self) -> float:
        """ln K, as all classes have the same chance at x = 0."""
        return float(np.log(self.classes))

    def bound_labels(self, labels: Vector) -> Vector:
        """Class numbers as they are; NaN for what is none, which no class could stand for."""
        known = (labels >= 0) & (labels < self.classes) & (labels == np.floor(labels))
        return np.where(known, labels, np.nan)

    def opposite(self, labels: Vector) -> Vector:
        """The next class."""
        following: Vector = (labels + 1) % self.classes
        return following

    def value(self, predictions: ArrayLike, labels: ArrayLike) -> Vector:
        """Values (N,) at predictions (N, K) and labels (N,) within their bound, without the ridge term."""
        scores, wanted = np.asarray(predictions, np.float64), np.asarray(labels).astype(np.int64)
        top = scores.max(axis=1)
        total: Vector = np.log(np.exp(scores - top[:, None]).sum(axis=1))
        values: Vector = total - (np.take_along_axis(scores, wanted[:, None], axis=1)[:, 0] - top)
        return values

    def slope(self, predictions: ArrayLike, labels: ArrayLike) -> Vector:
        """p - e_y, shape (N, K); an item's gradient by x_k is its k-th entry · a + ridge · x_k."""
        slopes = self.chances(predictions)
        slopes[np.arange(len(slopes)), np.asarray(labels).astype(np.int64)] -= 1.0
        return slopes

    def chances(self, predictions: ArrayLike) -> Vector:
        """p: each class's chance, shape (N, K)."""
        scores = np.asarray(predictions, np.float64)
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        chances: Vector = shares / shares.sum(axis=1, keepdims=True)
        return chances

    def slopes_with(self, smoothing: Smoothing | None) -> Pointwise:
        """Refused: slopes of several predictions are computed by loops of their own, and are smooth."""
        raise ConfigError(f"Expected a loss of one prediction with {smoothing}, got loss='softmax', which is smooth.")
