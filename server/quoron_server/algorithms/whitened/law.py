"""What is known of a loss before anybody answers: mean curvatures over Gaussian predictions."""

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from quoron_server.algorithms.whitened.contrasts import Contrasts

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

DRAWS = 512  # of predictions of several classes, by which means over Gaussian ones are taken
LEAST_CURVATURE = 0.05  # of a contrast, over that of even chances
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(21)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()


def curvature_share(sigmoid: bool, square: float) -> float:
    """κ: mean curvature over its bound, for predictions N(0, square)."""
    if not sigmoid:
        return 1.0
    return float(_WEIGHTS @ (1 / np.cosh(0.5 * _NODES * math.sqrt(max(square, 0.0))) ** 2))


def mean_chance(mean: float, variance: float) -> float:
    """Of the positive class, for predictions N(mean, variance)."""
    return 0.5 + 0.5 * float(_WEIGHTS @ np.tanh(0.5 * (mean + _NODES * math.sqrt(max(variance, 0.0)))))


@cache
def _draws(parts: int) -> Matrix:
    """Standard normal vectors (DRAWS, q), each with its opposite, the same ones every time."""
    half = np.random.Generator(np.random.Philox(0)).standard_normal((DRAWS // 2, parts))
    return np.concatenate([half, -half])


@dataclass(frozen=True, slots=True)
class Law:
    """The mean curvature at a point of q parts; of K classes it is a matrix among their K - 1 contrasts."""

    curvature: float  # φ₂, of one prediction; of several 1 / K, at even chances
    sigmoid: bool  # whether curvature falls as predictions grow
    outputs: int = 1  # K

    @property
    def parts(self) -> int:
        """q."""
        return max(1, self.outputs - 1)

    def at(self, x: Vector) -> tuple[Vector, Matrix]:
        """Mean curvatures (q,) at x (q d,), and the directions (q, q) among parts, as columns, that they are of."""
        if self.outputs == 1:
            return np.array([self.curvature * curvature_share(self.sigmoid, float(x @ x))]), np.ones((1, 1))
        values, basis = np.linalg.eigh(self._mean(x))
        return np.maximum(values, LEAST_CURVATURE * self.curvature), basis

    def gradient(self, x: Vector) -> Vector:
        """γ(x), (q d,): exact where features are Gaussian in the metric and labels told nothing."""
        if self.outputs == 1:
            return self.curvature * curvature_share(self.sigmoid, float(x @ x)) * x
        return (self._mean(x) @ x.reshape(self.parts, -1)).ravel()

    def _mean(self, x: Vector) -> Matrix:
        """E Qᵀ (diag(p) - p pᵀ) Q over predictions Q u, u of N(0, X Xᵀ): docs/privacy/whitened-tracking.md#w3."""
        points = x.reshape(self.parts, -1)
        chances = self.chances(np.zeros(self.parts), points @ points.T)
        contrasts = Contrasts(1, self.outputs).matrix()
        spread = np.diag(chances.mean(axis=0)) - chances.T @ chances / len(chances)
        found: Matrix = contrasts.T @ spread @ contrasts
        return found

    def chances(self, level: Vector, covariance: Matrix) -> Matrix:
        """Of every class, for some predictions Q u, u of N(level, covariance), (draws, K)."""
        values, basis = np.linalg.eigh(covariance)
        drawn = level + _draws(self.parts) @ (basis * np.sqrt(np.maximum(values, 0.0))).T
        scores = drawn @ Contrasts(1, self.outputs).matrix().T
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        found: Matrix = shares / shares.sum(axis=1, keepdims=True)
        return found

    def variety(self, levels: Vector, rest: float) -> float:
        """p̄ (1 - p̄) of the mean chance p̄ at predictions N(level, rest), a label that is rare having little."""
        if self.outputs == 1:
            chance = mean_chance(float(levels[0]), rest)
            return chance * (1 - chance)
        shares = self.chances(levels, max(rest, 0.0) / self.parts * np.eye(self.parts)).mean(axis=0)
        return 0.25 * (1 - float(shares @ shares)) * self.outputs / self.parts
