"""Absolute loss: φ(p, y) = |p - y|, labels bounded. Not smooth."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from quoron_client.losses._base import Regression
from quoron_privacy.kernels.compiled import Pointwise


def _values(predictions: Any, labels: Any, unused: Any, out: Any, count: int) -> None:
    for i in range(count):
        out[i] = abs(predictions[i] - labels[i])


def _slopes(predictions: Any, labels: Any, unused: Any, out: Any, count: int) -> None:
    for i in range(count):
        out[i] = np.sign(predictions[i] - labels[i])


def _envelope(predictions: Any, labels: Any, widths: Any, out: Any, count: int) -> None:
    for i in range(count):
        out[i] = min(max((predictions[i] - labels[i]) / widths[i], -1.0), 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Absolute(Regression):
    """Median regression: 1-Lipschitz in the prediction, with subgradient 0 at the kink."""

    name: ClassVar[str] = "absolute"
    values: ClassVar[Pointwise] = Pointwise(_values)
    slopes: ClassVar[Pointwise] = Pointwise(_slopes)
    envelope: ClassVar[Pointwise] = Pointwise(_envelope)

    @property
    def curvature(self) -> None:
        """None: the slope jumps at residual 0."""
        return

    def slope_bound(self, largest_prediction: float) -> float:
        """1, whatever the residual."""
        del largest_prediction
        return 1.0
