"""Two audits of a privacy claim. Each gives a bound that is wrong with probability at most `failure`.

`epsilon_lower_bound` sees outputs only: it picks an event on one half of the draws and measures it on the other half
with Clopper–Pearson bounds. `delta_bounds` also knows the log-likelihood ratio of each output, as for a whole
transcript, and sees what no single event shows. A mechanism passes when neither lower bound exceeds its claim; an audit
counts only if the same call catches a broken twin.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Floats = NDArray[np.float64]
Sampler = Callable[[int], NDArray[np.generic]]  # number of draws -> one scalar statistic a draw

FAILURE = 1e-8  # of each bound; fewer than 100 audits call it, so a false alarm anywhere has probability below 1e-6


def clopper_pearson(hits: NDArray[np.int64], trials: int, failure: float) -> tuple[Floats, Floats]:
    """Lower and upper confidence bounds for a success probability; each fails with probability at most `failure`."""
    low = np.where(hits > 0, stats.beta.ppf(failure, np.maximum(hits, 1), trials - hits + 1), 0.0)
    high = np.where(hits < trials, stats.beta.isf(failure, hits + 1, np.maximum(trials - hits, 1)), 1.0)
    return low, high


def epsilon_lower_bound(
    world_p: Sampler, world_q: Sampler, *, delta: float, draws: int, failure: float = FAILURE, cuts: int = 400
) -> float:
    """An ε that the pair of worlds provably exceeds at this δ; 0 when nothing is found."""
    chosen, kept = np.split(np.array([world_p(draws), world_q(draws)], dtype=np.float64), 2, axis=1)
    levels = np.unique(np.quantile(chosen, np.linspace(0, 1, cuts), method="nearest"))
    best, event = -np.inf, (0, 1, 0.0)
    for sign in (1, -1):  # events statistic >= level and statistic <= level
        hits = _at_least(sign * chosen, np.sort(sign * levels))
        low, high = clopper_pearson(hits, chosen.shape[1], failure / 2)
        for first in (0, 1):
            gain = np.log(np.maximum(low[first] - delta, 1e-300) / high[1 - first])
            if gain.max() > best:
                best, event = gain.max(), (first, sign, np.sort(sign * levels)[gain.argmax()])
    first, sign, level = event
    low, high = clopper_pearson((sign * kept >= level).sum(axis=1), kept.shape[1], failure / 2)
    return float(max(0.0, np.log(max(low[first] - delta, 1e-300) / high[1 - first])))


def delta_bounds(log_ratio: Floats, *, epsilon: float, failure: float = FAILURE) -> tuple[float, float]:
    """Lower and upper bound for δ(ε) = E[(1 - e^(ε - L))₊] from draws of L = ln P/Q (output) under P.

    Empirical Bernstein (Maurer & Pontil, 2009, theorem 4) for a variable in [0, 1].
    """
    lost = -np.expm1(np.minimum(epsilon - log_ratio, 0.0))
    log = np.log(2 / failure)
    margin = np.sqrt(2 * lost.var(ddof=1) * log / len(lost)) + 7 * log / (3 * (len(lost) - 1))
    return float(lost.mean() - margin), float(lost.mean() + margin)


def _at_least(values: Floats, levels: Floats) -> NDArray[np.int64]:
    """How many values of each row are >= each level; shape (rows, levels)."""
    return np.array([len(row) - np.searchsorted(np.sort(row), levels, side="left") for row in values])
