"""What noise on random cohorts costs by the first account: the inverse of what plans ask it for."""

import math
from collections.abc import Callable
from functools import partial

from quoron_privacy.accounts import gdp, subsampling
from quoron_privacy.accounts.composition import SAFETY
from quoron_privacy.accounts.roots import root
from quoron_privacy.release import Adjacency


def epsilon_for(delta_at: Callable[[float], float], delta: float) -> float:
    """Return the ε >= 0 at which `delta_at`, which falls with ε, is SAFETY · δ; to a relative 1e-6, rounded up."""
    wanted = math.log(SAFETY * delta)

    def excess(epsilon: float) -> float:
        return math.log(max(delta_at(epsilon), 1e-300)) - wanted

    if excess(0.0) <= 0:
        return 0.0
    low, high = 0.0, 1.0
    while excess(high) > 0:
        low, high = high, 2 * high
    found = root(excess, low, high, xtol=1e-300, rtol=1e-6)
    while excess(found) > 0:
        found *= 1 + 1e-6
    return found


def wor_epsilon(rate: float, rounds: int, mu: float, delta: float) -> float:
    """ε at δ of `rounds` μ-GDP rounds, each on a fresh uniform cohort of a share `rate` of the users; replace-one.

    At rate = 1 it is exact: ε of √rounds·μ.
    """
    if rate == 1 or mu == 0:
        return gdp.epsilon_for(math.sqrt(rounds) * mu, delta)
    return epsilon_for(partial(subsampling._wor, rate, rounds, mu, least=delta), delta)


def poisson_epsilon(rate: float, rounds: int, mu: float, delta: float, adjacency: Adjacency = "zero-out") -> float:
    """Return ε at δ of `rounds` rounds that each user joins with probability `rate`; zero-out is add/remove, too.

    μ is the round's parameter when one user's contribution is present against absent, under either adjacency.
    """
    if rate == 1 or mu == 0:
        return gdp.epsilon_for(math.sqrt(rounds) * (2 if adjacency == "replace-one" else 1) * mu, delta)
    return epsilon_for(partial(subsampling._poisson, rate, rounds, mu, adjacency, least=delta), delta)
