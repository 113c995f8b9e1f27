"""Closed convex sets that models live in, and their exact Euclidean projections.

    >>> import numpy as np
    >>> L2Ball(radius=1.0).project(np.array([3.0, 4.0]))
    array([0.6, 0.8])

Projections are non-expansive, which is what the contraction arguments of phased SGD (Feldman, Koren, Talwar 2020) and
of Ghazi et al. (Algorithm 2) need. A box is the domain of the ℓ∞ variants.

Where a domain ends, and whether it does: a ball so large that it bounds nothing stands for all models.

>>> is_free(free_ball(feature_norm=2.0), feature_norm=2.0), is_free(L2Ball(3.0), feature_norm=2.0)
(True, False)
"""

from dataclasses import dataclass

import numpy as np

from quoron_privacy.arrays import Vector
from quoron_privacy.errors import positive

_NEAR = 0.99  # of the size: a model this large would have gone on
_FREE = 1e9  # predictions of an item, beyond which no arithmetic of theirs says anything


@dataclass(frozen=True, slots=True)
class L2Ball:
    """{x : ‖x‖₂ ≤ radius}, centred at zero."""

    radius: float

    def __post_init__(self) -> None:
        positive(radius=self.radius)

    def project(self, points: Vector) -> Vector:
        """Return the nearest points of the ball; `points` has shape (..., d), float64, and is left unchanged."""
        norms = np.sqrt(np.sum(points * points, axis=-1, keepdims=True))
        shrunk: Vector = points * np.minimum(1.0, self.radius / np.maximum(norms, self.radius))
        return shrunk

    def norm_bound(self, dimension: int) -> float:
        """Return the largest ‖x‖₂ of the set."""
        del dimension
        return self.radius


@dataclass(frozen=True, slots=True)
class Box:
    """{x : |x_j| ≤ half_width for every coordinate j}, centred at zero."""

    half_width: float

    def __post_init__(self) -> None:
        positive(half_width=self.half_width)

    def project(self, points: Vector) -> Vector:
        """Return the nearest points of the box; `points` has shape (..., d), float64, and is left unchanged."""
        return np.clip(points, -self.half_width, self.half_width)

    def norm_bound(self, dimension: int) -> float:
        """Return the largest ‖x‖₂ of the set."""
        return self.half_width * float(np.sqrt(dimension))


Domain = L2Ball | Box


@dataclass(frozen=True, slots=True)
class Bounds:
    """Public bounds of a problem that an honest answer keeps."""

    lipschitz: float  # of every item's gradient norm
    radius: float  # of the domain: the largest norm of an iterate
    feature_norm: float


def free_ball(feature_norm: float) -> L2Ball:
    """Return a ball that bounds nothing: models of any use for items with ‖a‖ at most `feature_norm` are far inside."""
    return L2Ball(_FREE / feature_norm)


def on_boundary(domain: Domain, model: Vector) -> bool:
    """Return whether a model (d,) is as large as its domain lets it be, to 1 %."""
    if isinstance(domain, L2Ball):
        return bool(np.linalg.norm(model) >= _NEAR * domain.radius)
    return bool(np.max(np.abs(model), initial=0.0) >= _NEAR * domain.half_width)


def is_free(domain: Domain, feature_norm: float) -> bool:
    """Return whether a domain bounds nothing, as a `free_ball`."""
    return isinstance(domain, L2Ball) and domain.radius >= free_ball(feature_norm).radius
