"""Rounds on random cohorts: what T rounds cost together when each asks a fresh random share of the users.

    >>> round(wor_epsilon(0.01, 1000, 0.5, 1e-6), 2)
    0.83

* `wor_*`: uniform cohorts of fixed size, replace-one. Every round is μ-GDP given its cohort (K1).
* `poisson_*`: every user joins independently, add/remove or zero-out, fixed divisor (K2).

Both compose exact privacy-loss distributions, discretised on the pessimistic side. Statement and proof:
docs/privacy/subsampling.md.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.accounts import gdp
from quoron_privacy.accounts.roots import root
from quoron_privacy.errors import ConfigError, count, non_negative, positive, probability

_SAFETY = 0.97  # share of δ that the distribution may use; the rest covers float arithmetic of the convolution
_SMALLEST_DELTA = 1e-10  # below, the convolution's rounding is no longer small against δ


@lru_cache(maxsize=1024)
def wor_epsilon(rate: float, rounds: int, mu: float, delta: float) -> float:
    """ε at δ of `rounds` μ-GDP rounds, each on a fresh uniform cohort of a share `rate` of the users; replace-one.

    rate = 1 is exact: ε of √rounds·μ. Raises ConfigError for δ < 1e-10, where the numbers would not be trustworthy.
    """
    _check(rate, rounds, delta)
    non_negative(mu=mu)
    if rate == 1 or mu == 0:
        return gdp.epsilon_for(math.sqrt(rounds) * mu, delta)
    return _epsilon(_wor(rate, rounds, mu, delta), delta)


@lru_cache(maxsize=1024)
def wor_round_mu(rate: float, rounds: int, epsilon: float, delta: float) -> float:
    """Largest per-round μ with `wor_epsilon(rate, rounds, μ, δ) ≤ ε`, to a relative 1e-4, rounded down."""
    _check(rate, rounds, delta)
    positive(epsilon=epsilon)
    if rate == 1:
        return gdp.mu_for(epsilon, delta) / math.sqrt(rounds) * (1 - 1e-15)
    return _largest_mu(lambda mu: wor_epsilon(rate, rounds, mu, delta), gdp.mu_for(epsilon, delta), rounds, epsilon)


@lru_cache(maxsize=1024)
def poisson_epsilon(rate: float, rounds: int, mu: float, delta: float) -> float:
    """ε at δ of `rounds` μ-GDP rounds that each user joins with probability `rate`; add/remove or zero-out.

    μ is the round's parameter when one user's contribution is present against absent.
    """
    _check(rate, rounds, delta)
    non_negative(mu=mu)
    if rate == 1 or mu == 0:
        return gdp.epsilon_for(math.sqrt(rounds) * mu, delta)
    return _epsilon(_poisson(rate, rounds, mu, delta), delta)


@lru_cache(maxsize=1024)
def poisson_round_mu(rate: float, rounds: int, epsilon: float, delta: float) -> float:
    """Largest per-round μ with `poisson_epsilon(rate, rounds, μ, δ) ≤ ε`, to a relative 1e-4, rounded down."""
    _check(rate, rounds, delta)
    positive(epsilon=epsilon)
    if rate == 1:
        return gdp.mu_for(epsilon, delta) / math.sqrt(rounds) * (1 - 1e-15)
    return _largest_mu(lambda mu: poisson_epsilon(rate, rounds, mu, delta), gdp.mu_for(epsilon, delta), rounds, epsilon)


def wor_profile(rate: float, mu: float, epsilon: NDArray[np.float64]) -> NDArray[np.float64]:
    """δ at each ε (any sign) of one μ-GDP round on a uniform cohort of a share `rate` < 1; replace-one."""
    size = np.abs(epsilon)
    inside: NDArray[np.float64] = rate * np.asarray(gdp.delta_for(mu, np.log1p(np.expm1(size) / rate)))
    # Replace-one is symmetric, so the profile below ε = 0 is the mirror of the one above.
    return np.minimum(np.where(epsilon < 0, np.exp(-size) * inside - np.expm1(-size), inside), 1.0)


def _check(rate: float, rounds: int, delta: float) -> None:
    probability(delta=delta)
    count(rounds=rounds)
    if not 0 < rate <= 1:
        raise ConfigError(f"Expected rate in (0, 1], got rate={rate}.")
    if delta < _SMALLEST_DELTA and rate < 1:
        raise ConfigError(f"Expected delta >= {_SMALLEST_DELTA} with subsampled rounds, got delta={delta}.")


def _wor(rate: float, rounds: int, mu: float, delta: float) -> Any:
    """Pessimistic loss distribution of the composition. One half suffices: the pair of a round is its own mirror."""
    from dp_accounting.pld import pld_pmf  # it brings much of scipy

    top, gap = _lattice(rate, rounds, mu, delta)
    grid = np.arange(-top, top + 1, dtype=np.float64)
    # Connecting the dots of the profile itself leaves no remainder to be placed anywhere.
    once = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(gap, -top, top, wor_profile(rate, mu, grid * gap))
    return once.to_dense_pmf().self_compose(rounds, 1e-4 * delta)


def _poisson(rate: float, rounds: int, mu: float, delta: float) -> Any:
    """dp-accounting's distribution for Poisson sampling, adding and removing one user."""
    from dp_accounting.pld import privacy_loss_distribution

    _, gap = _lattice(rate, rounds, mu, delta)
    once = privacy_loss_distribution.from_gaussian_mechanism(
        1 / mu,
        pessimistic_estimate=True,
        value_discretization_interval=gap,
        log_mass_truncation_bound=math.log(1e-3 * delta / rounds),
        sampling_prob=rate,
        use_connect_dots=True,
    )
    return once.self_compose(rounds, 1e-4 * delta)


def _lattice(rate: float, rounds: int, mu: float, delta: float) -> tuple[int, float]:
    """(points on either side of 0, gap): the losses of one round up to a tail of δ/1000 in all rounds."""
    tail = min(1e-3 * delta / rounds / rate, 0.1)
    reach = math.log1p(rate * math.expm1(min(gdp.epsilon_for(mu, tail), 700.0)))
    spread = 20 * math.sqrt(rounds) * min(rate * mu, reach) + reach
    gap = min(max(reach / 4000, spread / 300_000, 1e-7), 2e-3)
    return math.ceil(reach / gap) + 1, gap


def _epsilon(composed: Any, delta: float) -> float:
    return max(0.0, float(composed.get_epsilon_for_delta(_SAFETY * delta)))


def _largest_mu(cost: Callable[[float], float], full: float, rounds: int, epsilon: float) -> float:
    """Bracket from no amplification upwards, then a root finder, then a check of the answer itself."""
    low = full / math.sqrt(rounds) * 0.95
    while cost(low) > epsilon:
        low *= 0.9
    high = 2 * low
    while cost(high) <= epsilon:
        low, high = high, 2 * high
    mu = math.exp(root(lambda log: cost(math.exp(log)) - epsilon, math.log(low), math.log(high), xtol=3e-5, rtol=1e-12))
    while cost(mu) > epsilon:
        mu *= 1 - 3e-5
    return mu
