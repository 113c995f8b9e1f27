"""Where the coefficients of least squares lie, by the moment that one round released: noise and sampling of users.

The population's θ solves (S + λ) θ = b. Of the moment M that is released, b̃ - (S̃ + λ) θ is noise of a known law, linear
in that of M, and a mean over users of a (y - aᵀθ); its variance along v is at most max (vᵀa)² times the mean square of
the residuals, and that M tells, too. Everything here is a function of released and public numbers.

Statement and proof: docs/privacy/uncertainty.md#ui1.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtri, ndtri

from quoron_server.algorithms.one_round.method import OneRoundParameters

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

SURE = float(ndtri(0.98))  # of a normal law 96 % lie within; the rest of 5 % pays for the two below
LONG, FAR = (
    0.005,
    3.5,
)  # chance that a Gaussian vector is longer; deviations of a spectral norm, missed by 2 exp(-FAR²/2)
MOST_DOUBT = 0.5  # δ, from which directions are not told from noise


@dataclass(frozen=True, slots=True, eq=False)
class Solved:
    """The least squares of a released moment, without the ridge that its noise asks for, and how far off they are."""

    point: Vector  # θ̃, (d,)
    inverse: Matrix  # (S̃ + λ)⁻¹, (d, d)
    noise: float  # standard deviation, at most, of b̃ - (S̃ + λ) θ along any direction, from noise
    residual: float  # mean square of the residuals, at most
    doubt: float  # δ
    longest: float  # ‖b̃ - (S̃ + λ) θ‖, at most
    feature_norm: float  # R
    users: int

    @classmethod
    def of(cls, moment: Matrix, p: OneRoundParameters, free: Matrix | None = None) -> "Solved | None":
        """Of the noisy moment (d + 1, d + 1) of (a, c y); None where a direction of a cannot be told from noise.

        `free` (k, d) are directions in which θ is held at zero, as no item tells anything of it there: public ones.
        """
        basis = _beside(len(moment) - 1, free)
        d, s, c = basis.shape[1], p.moment_scale, p.label_scale
        bent = basis.T @ moment[:-1, :-1] @ basis + p.ridge * np.eye(d)
        spectral, values = (math.sqrt(2 * d) + FAR) * s, np.linalg.eigvalsh(bent)
        if not values[0] >= spectral * (1 + 1 / MOST_DOUBT):
            return None
        inverse = basis @ np.linalg.inv(bent) @ basis.T
        point = inverse @ moment[:-1, -1] / c
        residual = min(_residual(moment, at, p) for at in (point, 0 * point))
        own = p.feature_norm**2 * residual / p.cohort_size
        most, length = float(chdtri(d, LONG)), float(np.linalg.norm(point))
        # How long θ is follows from how far it may be from θ̃, and that from how long it is: the least that agrees.
        reach, gain = length, math.sqrt(most) / float(values[0])
        for _ in range(200):
            reach = length + gain * math.sqrt(own + _noise(s, c, reach) ** 2)
        if not reach < 1e6 * (length + 1):
            return None
        noise = _noise(s, c, reach)
        longest = math.sqrt(most * (own + noise**2))
        doubt = spectral / float(values[0] - spectral)
        return cls(point, inverse, noise, residual, doubt, longest, p.feature_norm, p.cohort_size)

    def along(self, direction: Vector) -> Vector:
        """v = (S̃ + λ)⁻¹ ℓ, of whose largest product with an item's features `reach` wants to know."""
        found: Vector = self.inverse @ direction
        return found

    def reach(self, along: Vector, farthest: float) -> float:
        """How far ℓᵀθ is from ℓᵀθ̃ at most, with 95 %: for v = `along`, and max |vᵀa| over all items there can be."""
        length = float(np.linalg.norm(along))
        noise = (1 + self.doubt) * length * self.noise
        sampling = (farthest + self.doubt * length * self.feature_norm) * math.sqrt(self.residual / self.users)
        return SURE * math.hypot(noise, sampling) + self.doubt * length * self.longest


def _beside(dimension: int, free: Matrix | None) -> Matrix:
    """An orthonormal basis (d, d - k) of all directions at right angles to k free ones."""
    if free is None or not len(free):
        return np.eye(dimension)
    whole, _ = np.linalg.qr(free.T, mode="complete")
    basis: Matrix = whole[:, np.linalg.matrix_rank(free) :]
    return basis


def _noise(scale: float, label_scale: float, length: float) -> float:
    """Of b̃ - S̃ θ along a unit vector, for a θ of such a length at most: s √(½ (2 ‖θ‖² + c⁻²))."""
    return scale * math.sqrt(0.5 * (2 * length**2 + label_scale**-2))


def _residual(moment: Matrix, point: Vector, p: OneRoundParameters) -> float:
    """The mean square of y - aᵀθ at the best θ, at most: what it is here, with the ridge, and the noise's norm."""
    ends = np.append(-point, 1 / p.label_scale)
    far = (math.sqrt(2 * len(moment)) + FAR) * p.moment_scale
    square = float(ends @ ends)
    return max(0.0, float(ends @ moment @ ends)) + far * square + p.ridge * float(point @ point)
