"""What an adaptive series of fixed-threshold tests costs when only the hits are counted.

A test is a decision whose two outcomes are each within e^±e0 of one another between neighbouring datasets. The series
stops at the `hits`-th hit; afterwards, unless it stopped, one μ-GDP release is made.

* `game_values` is exact: the value of the game in which an adversary picks every test (outlier-filter-charging#f3).
* `recounted_values` bounds the same by value iteration from above and the second account: what `verify` asks.
* `truncated_composition` is a looser ceiling from finite sums alone (outlier-filter-charging#f2), and shares no code
  with the game.

Source: docs/privacy/outlier-filter-charging.md#f3.
"""

import math

import numpy as np
import scipy
from numpy.typing import NDArray

from quoron_privacy.accounts import mixtures
from quoron_privacy.accounts.gdp import delta_for, randomised_response_delta
from quoron_privacy.errors import VerificationError, count, positive
from quoron_privacy.kernels.on_first_use import OnFirstUse

loops = OnFirstUse("quoron_privacy.robust.filter.charging_loops")

LARGEST_RESIDUAL = 1e-15
_SWEEPS = 400
_AGREED = 1e-11  # of a value, and what a level of the recount may be above its fixed point


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
    residual = loops.solve(
        current, np.empty_like(current), np.empty_like(current), values, rare, likely, picks, _SWEEPS
    )
    if not residual < LARGEST_RESIDUAL:
        raise VerificationError(f"Expected the charging game to converge below 1e-15, got residual={residual}.")
    lift = np.arange(1, hits + 1) * residual * (1 + math.exp(each))
    bounded: NDArray[np.float64] = np.minimum(values + lift[:, None, None], 1.0)
    return bounded


def recounted_values(
    *, epsilon: float, each: float, hits: int, offsets: tuple[int, ...], mus: NDArray[np.float64], near: float
) -> NDArray[np.float64]:
    """The same, shape (hits, offsets, mus), by a route of its own; what lies far below `near` is not told apart.

    1 is a supersolution of every level, and the recursion makes of one another that is nowhere larger: whenever this
    stops it is an upper bound.
    """
    positive(epsilon=epsilon, each=each, near=near)
    count(hits=hits)
    if each > 5:
        raise VerificationError(f"Expected decisions of at most e0 = 5, got {each:g}.")
    lowest = min(*offsets, 0) - max(math.ceil(0.2 * epsilon / each), 16)
    points = np.arange(lowest, max(math.ceil(1.4 * epsilon / each) + 16, *offsets) + 1, dtype=np.float64)
    stop = np.stack([mixtures.gaussian(float(mu), epsilon - points * each)[1] for mu in mus], axis=1)
    likely = 1 / (1 + math.exp(-each))
    rare, shape = 1 / (1 + math.exp(each)), (len(points) + 2, len(mus))
    before, values = np.ones(shape), np.empty((hits, len(offsets), len(mus)))  # below the lattice, on it, above it
    before[1:-1], before[0] = stop, stop[0]
    for level in range(hits):
        hit_up, hit_down, now = likely * before[2:], rare * before[:-2], np.ones(shape)
        while True:
            found = np.maximum(stop, np.maximum(hit_up + rare * now[:-2], hit_down + likely * now[2:]))
            done = np.all(now[1:-1] - found <= _AGREED * (now[1:-1] + 100 * near / hits))
            now[1:-1] = np.minimum(now[1:-1], found)
            now[0] = now[1]
            if done:
                break
        before = np.minimum(now * (1 + 1e-12), 1.0)  # for rounding: 6 units in the last place over q0, at most
        values[level] = before[np.array(offsets) - lowest + 1]
    return values


def truncated_composition(*, epsilon: float, each: float, hits: int, mu: float) -> float:
    """The same bound at l = 0 by outlier-filter-charging#f2: the exact curve of K randomised responses and one μ-GDP
    release, plus the probability that K of them make fewer than `hits` hits; smallest over K."""
    positive(epsilon=epsilon, each=each)
    count(hits=hits)
    rare = 1 / (1 + math.exp(each))

    def ceiling(uses: int) -> float:
        tail = float(scipy.stats.binom.cdf(hits - 1, uses, rare)) * (1 + 1e-9)
        return tail + randomised_response_delta(epsilon, each, uses, mu)

    first = max(hits, int(hits / rare))
    spread = max(1, int(math.sqrt(hits) / rare / 6))
    return min(1.0, min(ceiling(first + step * spread) for step in range(64)))
