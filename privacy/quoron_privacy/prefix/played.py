"""What correlated noise is worth as GDP by what it does: a user's rounds are played through the sampler itself.

Who finds noise takes the column norm that a factorisation says of itself; who verifies a plan asks this. Statement:
docs/privacy/prefix-noise.md#c2, several-epochs#c3.
"""

import math

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.prefix.noise import PrefixNoise

_STEP = 2.0**-30  # of the grid of the noise, in standard deviations
_PLAYED = 1 << 14  # users' first rounds up to which all are played where no one is known to be the worst: seconds


def mu(noise: PrefixNoise, moved: float, dimension: int) -> float:
    """GDP of all releases for a user who moves each of its rounds so far in ℓ2, at most.

    C times the user's rounds is what the sampler predicts of these, and themselves. Where C is no Toeplitz matrix every
    first round is played, up to 16,384; where there are more, the column norm is believed. Where it is one, the user of
    rounds 0, b, 2b, ... is the worst as long as the column of round 0, played beside it, never grows; else inf.
    """
    return _worth(noise, _reach(noise), moved, dimension)


def mu_with_shares(noise: PrefixNoise, scales: NDArray[np.float64], moved: float, dimension: int) -> float:
    """The same where each round moves by so much in its vector and in shares with noise of their own `scales`, (T,).

    Of a user in all rounds t ≡ r modulo b the part x_t of each shift that is in its vector counts R_t, and the rest
    (σ/s_t)², at most: free-presence#p5. Where C is a Toeplitz matrix R_t is that of the column of round 0, played; else
    users take part once, and R_t is at most what `mu` asks of a column.
    """
    rounds, several = noise.rounds, noise.participations > 1
    apart = noise.separation if several else rounds
    squares = (noise.scale / scales) ** 2
    if noise.factors.coefficients is None:
        squares = np.maximum(squares, _reach(noise) ** 2)
    else:
        column = _column(noise)
        if several and not (np.all(column >= 0) and np.all(np.diff(column) <= 1e-12)):
            return math.inf
        squares = np.maximum(squares, _together(column, apart))
    reach = math.sqrt(float(np.bincount(np.arange(rounds) % apart, weights=squares).max()))
    return _worth(noise, reach, moved, dimension)


def _reach(noise: PrefixNoise) -> float:
    factors, often, apart = noise.factors, noise.participations, noise.separation
    toeplitz, falls, last = factors.coefficients is not None, True, math.inf
    firsts = np.zeros(1 + (often > 1), np.int64) if toeplitz else np.arange(apart if often > 1 else noise.rounds)
    times = np.array([often, 1][: len(firsts)]) if toeplitz else often
    if len(firsts) > _PLAYED:
        reach = noise.column_norm
    else:
        memory, square = np.zeros((factors.slots, len(firsts))), np.zeros(len(firsts))
        for t in range(noise.rounds):
            since = t - firsts
            own = ((since >= 0) & (since % apart == 0) & (since // apart < times)).astype(np.float64)
            now = factors.predict(t, memory) + own
            memory, square = factors.remember(t, memory, own), square + now**2
            falls = falls and (not toeplitz or often == 1 or 0 <= now[1] <= last + 1e-12)
            last = float(now[-1])
        reach = math.sqrt(float(square.max())) if falls else math.inf
    return reach


def _column(noise: PrefixNoise) -> NDArray[np.float64]:
    """What the sampler makes of a user of round 0: the first column of C, shape (T,)."""
    memory, made = np.zeros((noise.factors.slots, 1)), np.empty(noise.rounds)
    for t in range(noise.rounds):
        own = np.array([float(t == 0)])
        made[t] = (noise.factors.predict(t, memory) + own)[0]
        memory = noise.factors.remember(t, memory, own)
    return made


def _together(column: NDArray[np.float64], apart: int) -> NDArray[np.float64]:
    """R_t: inner products of each column of a Toeplitz matrix with the sum of all columns t + j·apart; shape (T,).

    From the first row of its class on, that sum is the same for every class. Takes T²/apart steps.
    """
    rounds, summed, made = len(column), column.copy(), np.empty(len(column))
    for first in range(apart, rounds, apart):
        block = summed[first : first + apart]
        block += summed[first - apart : first][: len(block)]
    for first in range(0, rounds, apart):
        worth = np.cumsum(column[: rounds - first] * summed[first:])
        own = np.arange(first, min(first + apart, rounds))
        made[own] = worth[rounds - 1 - own]
    return made


def _worth(noise: PrefixNoise, reach: float, moved: float, dimension: int) -> float:
    rounding = (2 * reach + 2 * noise.factors.rounding * math.sqrt(noise.rounds)) * math.sqrt(dimension) * _STEP
    return reach * moved / noise.scale * (1 + 1e-9) + rounding
