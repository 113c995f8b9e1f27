"""The vector randomiser: a user's vector clipped around a public centre, with Gaussian noise of its own.

    report = centre + clip_C(x - centre) + N(0, σ² I),     σ = 2C / μ(ε, δ)

Source: Bassily & Sun (2023), Algorithm 1, line 2 and Theorem 4.3; there σ is the classical formula, valid for ε < 1
only. Proof: docs/privacy/local-model.md#r2.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quoron_client.randomisers.gaussian import gaussian_steps, noise_scale
from quoron_client.randomisers.randomness import LocalRandomness, Users
from quoron_privacy.errors import ConfigError
from quoron_privacy.kernels.shipped import njit
from quoron_privacy.noise.streams import GRID_BITS

Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class VectorNoise:
    """Reports of vectors within `radius` of a public centre.

    Formal guarantee: (`epsilon`, `delta`)-local differential privacy of one report, for every vector, all slack
    included.

    | input                        | what happens                                                     |
    | ---------------------------- | ---------------------------------------------------------------- |
    | farther than radius          | moved towards the centre until it is within                      |
    | anything not finite          | the centre is reported, with noise as for everybody: none can tell |
    """

    epsilon: float
    delta: float
    radius: float  # C

    def scale(self, dimension: int) -> float:
        """σ, per coordinate."""
        return noise_scale(radius=self.radius, epsilon=self.epsilon, delta=self.delta, dimension=dimension)

    def randomise(
        self, values: Matrix, centre: Vector, randomness: LocalRandomness, *, round: int, users: Users
    ) -> Matrix:
        """Each user's report, shape (k, d), as values (k, d); centre (d,), public; users (k,)."""
        if values.ndim != 2 or centre.shape != values.shape[1:] or not np.isfinite(centre).all():
            raise ConfigError(f"Expected a finite centre of shape {values.shape[1:]}, got shape {centre.shape}.")
        step = self.scale(values.shape[1]) * 2.0**-GRID_BITS
        steps = gaussian_steps(values.shape[1], randomness, round=round, users=users)
        out = np.empty(values.shape)
        _report(np.ascontiguousarray(values, np.float64), centre, self.radius, step, steps, out)
        # A function of whole steps and of the public centre only: no low bit tells what was added to what.
        return out


@njit(cache=True)
def _report(values, centre, radius, step, steps, out):  # type: ignore[no-untyped-def]
    for i in range(len(values)):
        largest, finite = 0.0, True
        for j in range(values.shape[1]):
            difference = values[i, j] - centre[j]
            finite &= np.isfinite(difference)
            largest = max(largest, abs(difference))
            out[i, j] = difference
        if not finite or largest == 0.0:
            out[i] = 0.0
            largest = 1.0
        square = 0.0
        for j in range(values.shape[1]):
            square += (out[i, j] / largest) ** 2
        far = largest * np.sqrt(square) > radius  # an overflow counts as far
        for j in range(values.shape[1]):
            inside = out[i, j] / largest * (radius / np.sqrt(square)) if far else out[i, j]
            out[i, j] = centre[j] + (np.rint(inside / step) + steps[i, j]) * step
