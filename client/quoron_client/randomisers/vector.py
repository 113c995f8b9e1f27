"""The vector randomiser: a user's vector clipped around a public centre, with Gaussian noise of its own.

    report = centre + clip_C(x - centre) + N(0, σ² I),     σ = 2C / μ(ε, δ)

Source: Bassily & Sun (2023), Algorithm 1, line 2 and Theorem 4.3; there σ is the classical formula, valid for ε < 1
only. Proof: docs/privacy/local-model.md#r2.

Gaussian noise drawn by a client: exact on an integer grid, and calibrated by the client itself.

    >>> round(noise_scale(radius=1.0, epsilon=1.0, delta=1e-6, dimension=10), 2)
    8.45

The coordinator is the adversary here, so a client trusts no noise scale that it is told. Sampler and grid are those of
every release (docs/privacy/noise.md#n1, noise#n3 and noise#n4); the calibration is the analytic Gaussian mechanism for
a vector that one user moves by up to 2 radius (docs/privacy/local-model.md#r2).
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quoron_client.randomisers.randomness import LocalRandomness, Users
from quoron_privacy.errors import ConfigError
from quoron_privacy.kernels.shipped import njit
from quoron_privacy.noise.gaussian_proposals import SETTLING, gaussian_bins, propose_gaussian, settle_gaussian
from quoron_privacy.noise.streams import GRID_BITS, total_variation

Steps = NDArray[np.int64]

_ARITHMETIC = 1 + 1e-9  # rounding of clipped norms and of this calibration
_SETTLED = 1 << 32  # words from here on settle what three words do not decide
_WORDS = 1 << 18  # at a time, so that they stay in cache


def noise_scale(*, radius: float, epsilon: float, delta: float, dimension: int) -> float:
    """Standard deviation a coordinate that makes one report of a vector within `radius` (ε, δ)-locally private.

    2 radius / μ with the largest μ that is (ε, δ), less what grid and sampler lack. Raises ConfigError outside
    0 < ε <= 15, 1e-12 <= δ < 1.
    """
    if not 0 < epsilon <= 15 or not 1e-12 <= delta < 1:
        raise ConfigError(f"Expected epsilon in (0, 15] and delta in [1e-12, 1), got {epsilon} and {delta}.")
    if not 1e-100 < radius < 1e100 or dimension < 1:
        raise ConfigError(f"Expected radius in (1e-100, 1e100) and dimension >= 1, got {radius} and {dimension}.")
    from quoron_privacy.accounts import gdp  # only here: SciPy takes longer to import than all the rest

    lacking = (1 + math.exp(epsilon)) * total_variation(gaussians=dimension)
    left = delta * (1 - 1e-9) - lacking
    mu = gdp.mu_for(epsilon, left) if left > 0 else 0.0
    usable = mu * (1 - 1e-12) - 2 * math.sqrt(dimension) * 2.0**-GRID_BITS
    if usable <= 0:
        raise ConfigError(f"Expected delta well above {lacking:.1g}, the resolution of the noise, got delta={delta}.")
    return 2 * radius * _ARITHMETIC / usable


def gaussian_steps(dimension: int, randomness: LocalRandomness, *, round: int, users: Users) -> Steps:
    """⌊2³⁰ Z⌋ for independent standard normal Z, shape (k, dimension); a user's row depends on that user alone.

    A fixed number of proposals a user, whatever they are, falls short with probability below 2⁻⁶⁰ and is then topped
    up; how many are rejected says nothing about those that are kept.
    """
    proposals = dimension + dimension // 32 + 2 * math.isqrt(dimension) + 12
    steps = np.empty((len(users), dimension), np.int64)
    rows, bins = max(1, _WORDS // (3 * proposals)), gaussian_bins()
    for start in range(0, len(users), rows):
        part, used = slice(start, start + rows), 0
        done = np.zeros(len(users[part]), np.int64)
        while len(short := np.flatnonzero(done < dimension)):
            words = randomness.words(round=round, users=users[part][short], first=used, size=3 * proposals)
            row = place = 0
            while True:
                row, place = _accept(words, short, bins, steps[part], done, row, place)
                if row == len(short):
                    break
                i, further = short[row], _SETTLED + 2 * (used + 3 * place)
                own = users[part][i : i + 1]
                more = randomness.words(round=round, users=own, first=further, size=SETTLING)[0]
                accepted, step = settle_gaussian(words[row, 3 * place : 3 * place + 3], more)
                if accepted and done[i] < dimension:
                    steps[part][i, done[i]] = step
                    done[i] += 1
                place += 1
            used += 3 * proposals
    return steps


@njit(cache=True)
def _accept(words, rows, bins, steps, done, row, place):  # type: ignore[no-untyped-def]
    """Appends accepted proposals (three words each) of words[r] to steps[rows[r]], of which done[rows[r]] are there.

    Begins at proposal `place` of row `row`, and returns row and place of the first that is not sure, or (rows, 0).
    """
    for r in range(row, len(rows)):
        i = rows[r]
        filled = done[i]
        for p in range(place, words.shape[1] // 3):
            accepted, step, sure = propose_gaussian(words[r, 3 * p], words[r, 3 * p + 1], words[r, 3 * p + 2], bins)
            if not sure:
                done[i] = filled
                return r, p
            if accepted and filled < steps.shape[1]:
                steps[i, filled] = step
                filled += 1
        done[i] = filled
        place = 0
    return len(rows), 0


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
