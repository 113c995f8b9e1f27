"""What correlated noise is worth as GDP by what it does: a user's rounds are played through the sampler itself.

Who finds noise takes the column norm that a factorisation says of itself; who verifies a plan asks this. Statement:
docs/privacy/prefix-noise.md#c2, several-epochs#c3.
"""

import math

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.prefix.noise import PrefixNoise

_STEP = 2.0**-30  # of the grid of the noise, in standard deviations
_PLAYED = 1 << 11  # users' first rounds up to which all are played where no one is known to be the worst


def mu(noise: PrefixNoise, moved: float, dimension: int) -> float:
    """GDP of all releases for a user who moves each of its rounds so far in ℓ2, at most.

    C times the user's rounds is what the sampler predicts of these, and themselves. Where C is no Toeplitz matrix every
    first round is played, up to 2,048; where there are more, the column norm is believed. Where it is one, the user of
    rounds 0, b, 2b, ... is the worst as long as the column of round 0, played beside it, never grows; else inf.
    """
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
    return _worth(noise, reach, moved, dimension)


def mu_with_shares(noise: PrefixNoise, scales: NDArray[np.float64], moved: float, dimension: int) -> float:
    """The same where each round moves by so much in its vector and in shares with noise of their own `scales`, (T,).

    Of a user in all rounds t ≡ r modulo b the part x_t of each shift that is in its vector counts R_t, and the rest
    (σ/s_t)², at most: free-presence#p5. With more rounds than are played R_t is believed to be no more than the latter.
    """
    factors, rounds = noise.factors, noise.rounds
    classes = np.arange(rounds) % (noise.separation if noise.participations > 1 else rounds)
    squares = (noise.scale / scales) ** 2
    if rounds <= _PLAYED:
        memory, rows = np.zeros((factors.slots, rounds)), np.empty((rounds, rounds))
        for t, own in enumerate(np.eye(rounds)):
            rows[t] = factors.predict(t, memory) + own
            memory = factors.remember(t, memory, own)
        together = np.zeros((rounds, int(classes.max()) + 1))
        np.add.at(together.T, classes, rows.T)
        squares = np.maximum(squares, np.sum(rows * together[:, classes], axis=0))
    reach = max(math.sqrt(float(np.bincount(classes, weights=squares).max())), 0.0)
    return _worth(noise, reach, moved, dimension)


def _worth(noise: PrefixNoise, reach: float, moved: float, dimension: int) -> float:
    rounding = (2 * reach + 2 * noise.factors.rounding * math.sqrt(noise.rounds)) * math.sqrt(dimension) * _STEP
    return reach * moved / noise.scale * (1 + 1e-9) + rounding
