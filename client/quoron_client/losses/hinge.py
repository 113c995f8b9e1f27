"""Hinge loss: φ(p, y) = max(0, 1 - y p), labels -1 and +1. Not smooth."""

from dataclasses import dataclass
from typing import Any, ClassVar

from quoron_client.losses._base import Classification
from quoron_client.losses.smoothed_hinge import SmoothedHinge
from quoron_privacy.kernels.compiled import Pointwise


def _values(predictions: Any, labels: Any, unused: Any, out: Any, count: int) -> None:
    for i in range(count):
        out[i] = max(0.0, 1.0 - labels[i] * predictions[i])


def _slopes(predictions: Any, labels: Any, unused: Any, out: Any, count: int) -> None:
    for i in range(count):
        out[i] = -labels[i] if labels[i] * predictions[i] < 1.0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Hinge(Classification):
    """Support vector classification: 1-Lipschitz in the prediction, with subgradient 0 at the kink."""

    name: ClassVar[str] = "hinge"
    values: ClassVar[Pointwise] = Pointwise(_values)
    slopes: ClassVar[Pointwise] = Pointwise(_slopes)
    envelope: ClassVar[Pointwise] = SmoothedHinge.slopes  # which is that envelope

    @property
    def curvature(self) -> None:
        """None: the slope jumps at margin 1."""
        return
