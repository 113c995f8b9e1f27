"""Gaussian noise drawn by a client: exact on an integer grid, and calibrated by the client itself.

    >>> round(noise_scale(radius=1.0, epsilon=1.0, delta=1e-6, dimension=10), 2)
    8.45

The coordinator is the adversary here, so a client trusts no noise scale that it is told. Sampler and grid are those of
the server's release (docs/privacy/noise.md, theorems N1, N3 and N4); the calibration is the analytic Gaussian mechanism
for a vector that one user moves by up to 2 radius (docs/privacy/local-model.md, theorem R2).
"""

import math
from decimal import Decimal, localcontext
from itertools import accumulate

import numpy as np
from numba import njit
from numpy.typing import NDArray

from quoron_client.randomisers.randomness import LocalRandomness, Users, Words
from quoron_protos.errors import ConfigError

Steps = NDArray[np.int64]

GRID_BITS = 30  # noise counts in units of 2⁻³⁰ standard deviations
_BIN_BITS = 4  # the proposal is flat on bins of width 1/16
_ARITHMETIC = 1 + 1e-9  # rounding of clipped norms and of this calibration
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
    lacking = (1 + math.exp(epsilon)) * (2.0**-49 * math.sqrt(dimension) + 2.0**-57 * dimension)
    left = delta * (1 - 1e-9) - lacking
    from scipy.optimize import brentq  # only here: SciPy takes longer to import than all the rest

    mu = brentq(lambda value: _delta(value, epsilon) - left, 1e-9, 60.0, rtol=1e-13) if left > 0 else 0.0
    usable = float(mu) * (1 - 1e-12) - 2 * math.sqrt(dimension) * 2.0**-GRID_BITS
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
    rows = max(1, _WORDS // (3 * proposals))
    for start in range(0, len(users), rows):
        part, used = slice(start, start + rows), 0
        done = np.zeros(len(users[part]), np.int64)
        while len(short := np.flatnonzero(done < dimension)):
            words = randomness.words(round=round, users=users[part][short], first=used, size=3 * proposals)
            _accept(words, short, _BINS, steps[part], done)
            used += 3 * proposals
    return steps


def _delta(mu: float, epsilon: float) -> float:
    """Φ(μ/2 - ε/μ) - e^ε Φ(-μ/2 - ε/μ), as φ(u) (M(u) - M(u + μ)) with Mills ratios M and u = ε/μ - μ/2."""
    u = epsilon / mu - mu / 2
    if u > 38:
        return 0.0
    density = math.exp(-u * u / 2) / math.sqrt(2 * math.pi)
    far = density * _mills(u + mu)
    from scipy.special import ndtr

    return float(density * _mills(u) - far if u > 0 else ndtr(-u) - far)


def _mills(u: float) -> float:
    from scipy.special import erfcx

    return math.sqrt(math.pi / 2) * float(erfcx(u / math.sqrt(2)))


def _bins() -> Words:
    """⌊2⁶⁴ P(bin <= k)⌉ for k = 0..254, where P(bin = k) ∝ exp(-(k/16)²/2), from 50 digits."""
    with localcontext() as context:
        context.prec = 50
        heights = [(-(Decimal(k * k) / 2 ** (2 * _BIN_BITS + 1))).exp() for k in range(256)]
        total = sum(heights)
        below = [int((2**64 * part / total).to_integral_value()) for part in accumulate(heights[:255])]
    bins = np.array([min(level, 2**64 - 1) for level in below], np.uint64)
    bins.setflags(write=False)
    return bins


_BINS = _bins()


@njit(cache=True)
def _accept(words, rows, bins, steps, done):  # type: ignore[no-untyped-def]
    """Appends accepted proposals (three words each) of words[r] to steps[rows[r]], of which done[rows[r]] are there."""
    for r in range(len(rows)):
        i = rows[r]
        filled = done[i]
        for p in range(words.shape[1] // 3):
            k = 0
            for level in range(7, -1, -1):  # binary search in fixed time: k = number of thresholds <= word
                k += (words[r, 3 * p] >= bins[k + (1 << level) - 1]) << level
            inside = words[r, 3 * p + 1]
            w = (inside >> np.uint64(11)) * 2.0**-53
            accept = np.exp(-(2.0 ** -(2 * _BIN_BITS + 1)) * (w * (2 * k + w)))
            if filled < steps.shape[1] and (words[r, 3 * p + 2] >> np.uint64(11)) * 2.0**-53 < accept:
                magnitude = (np.int64(k) << (GRID_BITS - _BIN_BITS)) | np.int64(
                    inside >> np.uint64(64 - GRID_BITS + _BIN_BITS)
                )
                steps[i, filled] = magnitude ^ -np.int64(inside & np.uint64(1))  # sign bit: -magnitude - 1, the floor
                filled += 1
        done[i] = filled
