"""What an adaptive series of fixed-threshold tests costs when only the hits are counted.

A test is a decision whose two outcomes are each within e^±e0 of one another between neighbouring datasets. The series
stops at the `hits`-th hit; afterwards, unless it stopped, one μ-GDP release is made.

* `game_values` is exact: the value of the game in which an adversary picks every test (Theorem G).
* `truncated_composition` is a looser ceiling from finite sums alone (Lemma T), and shares no code with the game.

Source: docs/privacy/outlier-filter.md, "Charging only the hits".
"""

import math

import numpy as np
import scipy
from numba import njit
from numpy.typing import NDArray

from quoron_privacy.accounts.gdp import delta_for, randomised_response_delta
from quoron_privacy.errors import VerificationError, count, positive

LARGEST_RESIDUAL = 1e-15
_SWEEPS = 400


def game_values(
    *, epsilon: float, each: float, hits: int, offsets: tuple[int, ...], mus: NDArray[np.float64]
) -> NDArray[np.float64]:
    """V_r(l; μ) for r = 1, …, hits, at prior log-likelihood ratios l = offset·each; shape (hits, offsets, mus).

    V_r(l) bounds the hockey-stick divergence at ε of everything released, for every adaptive adversary with at most r
    hits, when the likelihood ratio before the first test is e^l. `each` is e0.

    Raises VerificationError when the fixed point is not reached to 1e-15. What remains of the residual is added, so the
    values returned are a supersolution of the recursion and hence an upper bound whatever the iteration did.
    """
    positive(epsilon=epsilon, each=each)
    count(hits=hits)
    # Above the lattice the value is replaced by 1 and below it by its value at the bottom, both upper bounds.
    low = -max(math.ceil(0.2 * epsilon / each), 16) + min(*offsets, 0)
    high = math.ceil(1.4 * epsilon / each) + 16
    lattice = np.arange(low, max(high, *offsets) + 1, dtype=np.float64)
    after = delta_for(mus[None, :], epsilon - lattice[:, None] * each)
    picks = np.array([offset - low for offset in offsets])
    rare, likely = 1 / (1 + math.exp(each)), 1 / (1 + math.exp(-each))
    current = np.concatenate([after[:1], after, np.ones_like(after[:1])])
    values = np.empty((hits, len(offsets), len(mus)))
    residual = _solve(current, np.empty_like(current), np.empty_like(current), values, rare, likely, picks, _SWEEPS)
    if not residual < LARGEST_RESIDUAL:
        raise VerificationError(f"Expected the charging game to converge below 1e-15, got residual={residual}.")
    lift = np.arange(1, hits + 1) * residual * (1 + math.exp(each))
    bounded: NDArray[np.float64] = np.minimum(values + lift[:, None, None], 1.0)
    return bounded


def truncated_composition(*, epsilon: float, each: float, hits: int, mu: float) -> float:
    """The same bound at l = 0 by Lemma T: the exact curve of K randomised responses and one μ-GDP release, plus the
    probability that K of them make fewer than `hits` hits; smallest over K."""
    positive(epsilon=epsilon, each=each)
    count(hits=hits)
    rare = 1 / (1 + math.exp(each))

    def ceiling(uses: int) -> float:
        tail = float(scipy.stats.binom.cdf(hits - 1, uses, rare)) * (1 + 1e-9)
        return tail + randomised_response_delta(epsilon, each, uses, mu)

    first = max(hits, int(hits / rare))
    spread = max(1, int(math.sqrt(hits) / rare / 6))
    return min(1.0, min(ceiling(first + step * spread) for step in range(64)))


@njit(cache=True)
def _solve(current, hit_up, hit_down, values, rare, likely, picks, sweeps):  # type: ignore[no-untyped-def]
    """Fills `values` with the least fixed points, level by level, from below; returns the largest residual.

    Row i + 1 of `current` is lattice point i, at first h; row 0 stands for everything below, the last row for
    everything above. Plain loops over arrays of the caller's: slices take seconds to compile.
    """
    points, columns = current.shape[0] - 2, current.shape[1]
    worst = 0.0
    for level in range(len(values)):
        # What a hit is worth does not change while a level is solved. The level below is a valid start.
        for i in range(1, points + 1):
            for c in range(columns):
                hit_up[i, c] = likely * current[i + 1, c]
                hit_down[i, c] = rare * current[i - 1, c]
        # Until the next hit a strategy moves one way along the lattice, or to and fro between two neighbours for ever.
        # The worth of to and fro solves two linear equations; what leads there takes one sweep each way.
        for c in range(columns):
            current[1, c] = max(current[1, c], hit_up[1, c] / likely)  # the point below the lowest is itself
        for i in range(2, points + 1):
            for c in range(columns):
                current[i, c] = max(current[i, c], (hit_up[i, c] + rare * hit_down[i - 1, c]) / (1 - rare * likely))
        rise = 1.0
        for _ in range(sweeps):
            # A test for the odds reaches only upwards for V_r and a test against them only downwards.
            for i in range(1, points + 1):
                for c in range(columns):
                    current[i, c] = max(current[i, c], hit_up[i, c] + rare * current[i - 1, c])
            for i in range(points, 0, -1):
                for c in range(columns):
                    current[i, c] = max(current[i, c], hit_down[i, c] + likely * current[i + 1, c])
            for c in range(columns):
                current[0, c] = current[1, c]
            rise = 0.0
            for i in range(1, points + 1):
                for c in range(columns):
                    rise = max(rise, hit_up[i, c] + rare * current[i - 1, c] - current[i, c])
                    rise = max(rise, hit_down[i, c] + likely * current[i + 1, c] - current[i, c])
            if rise <= 1e-17:
                break
        worst = max(worst, rise)
        for k in range(len(picks)):
            for c in range(columns):
                values[level, k, c] = current[picks[k] + 1, c]
    return worst
