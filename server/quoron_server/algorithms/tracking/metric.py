"""The metric of a private curvature model: steps, lengths and projections in it. Everything here is public.

    >>> metric = Metric.of(np.diag([2.0, 0.5]), np.zeros(2), curvature=0.25, ridge=0.0)
    >>> metric.eigenvalues.round(3).tolist()  # features of variance 1/4 and 4, times 0.25
    [0.062, 1.0]
    >>> metric.step(np.array([1.0, 0.0])).round(3).tolist()
    [16.0, 0.0]

A pilot releases L such that LᵀSL is about the identity, S the second moment of the features. With H = φ₂ (LLᵀ)⁻¹ one
step x - (H + λ I)⁻¹ g needs no step size: every direction contracts at once (docs/privacy/tracking-srgd.md#t3). With
several outputs the model has a part for each, and the metric is H in every part (docs/privacy/losses.md#l1).
Gradients are as long as their dual norm √(gᵀ H⁻¹ g), in which noise is as large as the data in every direction.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from quoron_client.protocol.domains import Domain, L2Ball
from quoron_privacy.accounts.roots import root
from quoron_server.algorithms.whitening import eigen

Vector = NDArray[np.float64]
LEAST = 1e-12  # of the largest eigenvalue
_BOX_STEPS = 400, 20_000  # of accelerated projected gradient, at least and at most


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """H = Q diag(eigenvalues) Qᵀ in each part of d numbers of a model, and a public regulariser (λ/2) ‖x‖² besides."""

    eigenvalues: Vector  # (d,), of H, ascending and positive
    basis: Vector  # Q, (d, d), eigenvectors as columns
    ridge: float  # λ

    @classmethod
    def of(cls, transform: Vector, doubt: Vector, *, curvature: float, ridge: float) -> "Metric":
        """H = curvature · L⁻ᵀ (1 + q) L⁻¹ for a transform L (d, d), q (d,) noise's edge over each eigenvalue."""
        back = np.linalg.inv(transform)
        values, basis = eigen((back.T * (curvature * (1 + doubt))) @ back)
        return cls(np.maximum(values, LEAST * values[-1]), basis, ridge)

    def flatter(self, share: float) -> "Metric":
        """That of `share` times H."""
        return replace(self, eigenvalues=share * self.eigenvalues)

    def whiten(self, gradient: Vector) -> Vector:
        """Coordinates in which the dual norm is Euclidean: √H⁻¹ Qᵀ g, shape of g."""
        return self._along(gradient) / np.sqrt(self._scales(gradient, self.eigenvalues))

    def colour(self, whitened: Vector) -> Vector:
        """The inverse of `whiten`."""
        return self._back(whitened * np.sqrt(self._scales(whitened, self.eigenvalues)))

    @property
    def transform(self) -> Vector:
        """What each part of a gradient is multiplied by, from the left transposed, to be whitened: (d, d)."""
        return np.asarray(self.basis / np.sqrt(self.eigenvalues), np.float64)

    def apply(self, vector: Vector) -> Vector:
        """H v, shape of v: (d,), or any multiple."""
        return self._back(self._scales(vector, self.eigenvalues) * self._along(vector))

    def step(self, gradient: Vector) -> Vector:
        """(H + λ I)⁻¹ g, shape of g."""
        return self._back(self._along(gradient) / self._scales(gradient, self.eigenvalues + self.ridge))

    def length(self, vector: Vector) -> float:
        """√(vᵀ H v)."""
        return float(np.sqrt(np.sum(self._scales(vector, self.eigenvalues) * self._along(vector) ** 2)))

    def _along(self, vector: Vector) -> Vector:
        """Coordinates of each part in the basis."""
        return np.concatenate([self.basis.T @ part for part in vector.reshape(-1, len(self.basis))])

    def _back(self, coordinates: Vector) -> Vector:
        return np.concatenate([self.basis @ part for part in coordinates.reshape(-1, len(self.basis))])

    def _scales(self, like: Vector, scales: Vector) -> Vector:
        return np.tile(scales, like.size // scales.size)

    def project(self, domain: Domain, point: Vector) -> Vector:
        """The point of `domain` nearest to `point` in the metric H + λ I; Euclidean for points of the domain."""
        if np.array_equal(domain.project(point), point):
            return point
        if isinstance(domain, L2Ball):
            return domain.project(self._onto_ball(domain.radius, point))
        return self._onto_box(domain, point)

    def _onto_ball(self, radius: float, point: Vector) -> Vector:
        """(M + ν I)⁻¹ M z with M = H + λ I, and ν >= 0 such that its norm is the radius."""
        scales, inside = self._scales(point, self.eigenvalues + self.ridge), self._along(point)

        def beyond(level: float) -> float:
            return float(np.linalg.norm(scales * inside / (scales + level))) - radius

        largest = float(scales.max()) * float(np.linalg.norm(inside)) / radius * 2  # there the norm is below half of it
        level = root(beyond, 0.0, largest, xtol=1e-15 * largest) if beyond(0.0) > 0 else 0.0
        return self._back(scales * inside / (scales + level))

    def _onto_box(self, domain: Domain, point: Vector) -> Vector:
        """Accelerated projected gradient on ½ ‖x - z‖² of the metric."""
        scales, largest = self._scales(point, self.eigenvalues + self.ridge), self.eigenvalues[-1] + self.ridge
        ratio = float(np.sqrt(scales[0] / largest))
        momentum = (1 - ratio) / (1 + ratio)
        x = ahead = domain.project(point)
        for _ in range(round(min(_BOX_STEPS[1], max(_BOX_STEPS[0], 20 / ratio)))):
            slope = self._back(scales * self._along(ahead - point))
            following = domain.project(ahead - slope / largest)
            ahead = following + momentum * (following - x)
            x = following
        return x
