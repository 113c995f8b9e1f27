"""Smoothed hinge: quadratic over a band of margins below 1, linear beyond it.

φ(p, y) = 0 for margins z = y p ≥ 1, (1 - z)² / 2w for 1 - w ≤ z ≤ 1, and 1 - z - w/2 below. It is the Moreau envelope
of the hinge with parameter w: within w/2 of the hinge and 1/w-smooth.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from quoron_client.losses._base import Classification
from quoron_privacy.kernels.compiled import Pointwise


def _values(predictions: Any, labels: Any, widths: Any, out: Any, count: int) -> None:
    for i in range(count):
        short = 1.0 - labels[i] * predictions[i]
        banded = min(max(short, 0.0), widths[i])
        out[i] = banded * (short - 0.5 * banded) / widths[i]


def _slopes(predictions: Any, labels: Any, widths: Any, out: Any, count: int) -> None:
    for i in range(count):
        short = 1.0 - labels[i] * predictions[i]
        out[i] = -labels[i] * (min(max(short, 0.0), widths[i]) / widths[i])


@dataclass(frozen=True, slots=True, kw_only=True)
class SmoothedHinge(Classification):
    """Support vector classification made smooth: 1-Lipschitz and 1/width-smooth in the prediction."""

    width: float = 1.0  # w, in units of margin

    name: ClassVar[str] = "smoothed_hinge"
    values: ClassVar[Pointwise] = Pointwise(_values)
    slopes: ClassVar[Pointwise] = Pointwise(_slopes)

    def __post_init__(self) -> None:
        Classification.__post_init__(self)
        self._positive("width", self.width)

    @property
    def parameter(self) -> float:
        """The width w."""
        return self.width

    @property
    def curvature(self) -> float:
        """1/w, inside the band."""
        return 1.0 / self.width
