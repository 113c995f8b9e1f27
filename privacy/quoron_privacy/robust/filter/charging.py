"""What an adaptive series of fixed-threshold tests costs when only the hits are counted.

A test is a decision whose two outcomes are each within e^±e0 of one another between neighbouring datasets. The series
stops at the `hits`-th hit; afterwards, unless it stopped, one μ-GDP release is made.

* `game_values` is exact: the value of the game in which an adversary picks every test (outlier-filter-charging#f3).
* `truncated_composition` is a looser ceiling from finite sums alone (outlier-filter-charging#f2), and shares no code
  with the game.

Source: docs/privacy/outlier-filter-charging.md#f3.
"""

import math

import numpy as np
import scipy
from numpy.typing import NDArray

from quoron_privacy.accounts.gdp import delta_for, randomised_response_delta
from quoron_privacy.errors import VerificationError, count, positive
from quoron_privacy.kernels.on_first_use import OnFirstUse

loops = OnFirstUse("quoron_privacy.robust.filter.charging_loops")

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
    residual = loops.solve(
        current, np.empty_like(current), np.empty_like(current), values, rare, likely, picks, _SWEEPS
    )
    if not residual < LARGEST_RESIDUAL:
        raise VerificationError(f"Expected the charging game to converge below 1e-15, got residual={residual}.")
    lift = np.arange(1, hits + 1) * residual * (1 + math.exp(each))
    bounded: NDArray[np.float64] = np.minimum(values + lift[:, None, None], 1.0)
    return bounded


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
