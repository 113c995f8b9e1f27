"""What runs on secret samples are to a lifetime: Gaussian ones, but for a chance t.

    points(pairs, promise.epsilon, promise.delta)       # ((0.1113, 3e-09), ...)

Statement: docs/privacy/lifetime.md#lt6.
"""

from dataclasses import replace
from functools import lru_cache

from quoron_privacy.accounts import near_gaussian
from quoron_privacy.accounts.pair import Pair


@lru_cache(maxsize=64)
def points(pairs: tuple[Pair, ...], epsilon: float, delta: float) -> tuple[tuple[float, float], ...]:
    """(μ, t), with each of which a run that is about (ε, δ)-DP is μ-GDP but for t with exact noise, whichever its pair.

    By the second account, at more ε than the one that the plan is verified at.
    """
    exact = [replace(pair, lack=0.0) for pair in pairs]
    return near_gaussian.points(lambda at, near: max(pair.delta(at, near) for pair in exact), epsilon, delta)
