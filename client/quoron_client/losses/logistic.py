"""Logistic loss: φ(p, y) = log(1 + exp(-y p)), labels -1 and +1."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from quoron_client.losses._base import Classification
from quoron_client.losses.exponential import exponential
from quoron_privacy.kernels.compiled import Pointwise


def _values(predictions: Any, labels: Any, unused: Any, out: Any, count: int) -> None:
    for i in range(count):
        margin = labels[i] * predictions[i]
        out[i] = max(-margin, 0.0) + np.log1p(np.exp(-abs(margin)))


def _slopes(predictions: Any, labels: Any, unused: Any, out: Any, count: int) -> None:
    for i in range(count):
        out[i] = -labels[i] / (1.0 + exponential(labels[i] * predictions[i]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Logistic(Classification):
    """Logistic regression: 1-Lipschitz and 1/4-smooth in the prediction."""

    name: ClassVar[str] = "logistic"
    values: ClassVar[Pointwise] = Pointwise(_values)
    slopes: ClassVar[Pointwise] = Pointwise(_slopes)

    @property
    def curvature(self) -> float:
        """1/4, at margin zero."""
        return 0.25
