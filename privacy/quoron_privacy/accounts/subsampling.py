"""What T rounds on random cohorts of users cost together.

    >>> round(wor_round_mu(0.01, 1000, 1.0, 1e-6), 2)
    0.57

* `wor_*`: uniform cohorts of fixed size, replace-one. Every round is μ-GDP given its cohort (subsampling#k1).
* `poisson_*`: every user joins independently, fixed divisor. Add/remove or zero-out: every round is μ-GDP (#k2);
  replace-one: a Gaussian release that one user's contribution moves by μ standard deviations at most (#k3).

`composition` has the sum over rounds. Statement and proof: docs/privacy/subsampling.md.
"""

import math
from functools import lru_cache, partial

import numpy as np
import scipy

from quoron_privacy.accounts import composition, gdp
from quoron_privacy.arrays import Vector
from quoron_privacy.errors import ConfigError, count, positive, probability
from quoron_privacy.release import Adjacency


@lru_cache(maxsize=1024)
def wor_round_mu(rate: float, rounds: int, epsilon: float, delta: float) -> float:
    """Return the largest μ with which `rounds` rounds, each on a fresh uniform cohort, are (ε, δ)-DP; replace-one.

    Each cohort is a share `rate` of the users. Rounded down, to a relative 1e-5.
    """
    _check(rate, rounds, delta)
    positive(epsilon=epsilon)
    full = gdp.mu_for(epsilon, delta) / math.sqrt(rounds)
    if rate == 1:
        return full * (1 - 1e-15)
    return composition.largest(lambda mu: _wor(rate, rounds, mu, epsilon, least=delta), _typical(rate, full), delta)


@lru_cache(maxsize=1024)
def poisson_round_mu(
    rate: float, rounds: int, epsilon: float, delta: float, adjacency: Adjacency = "zero-out"
) -> float:
    """Return the same of `rounds` rounds that each user joins with probability `rate`; zero-out is add/remove, too.

    μ is the round's parameter when one user's contribution is present against absent, under either adjacency.
    """
    _check(rate, rounds, delta)
    positive(epsilon=epsilon)
    ends = 2 if adjacency == "replace-one" else 1
    full = gdp.mu_for(epsilon, delta) / math.sqrt(rounds) / ends
    if rate == 1:
        return full * (1 - 1e-15)

    def cost(mu: float) -> float:
        return _poisson(rate, rounds, mu, adjacency, epsilon, least=delta)

    return composition.largest(cost, _typical(rate, full), delta)


def wor_profile(rate: float, mu: float, epsilon: Vector) -> Vector:
    """Return δ at each ε (any sign) of one μ-GDP round on a uniform cohort of a share `rate` < 1; replace-one."""
    size = np.abs(epsilon)
    inside: Vector = rate * np.asarray(gdp.delta_for(mu, np.log1p(np.expm1(size) / rate)))
    # Replace-one is symmetric, so the profile below ε = 0 is the mirror of the one above.
    return np.minimum(np.where(epsilon < 0, np.exp(-size) * inside - np.expm1(-size), inside), 1.0)


def absent_profile(rate: float, mu: float, epsilon: Vector) -> Vector:
    """Return δ at each ε >= 0 of (N(0, 1), (1-q) N(0, 1) + q N(μ, 1)); first order: `wor_profile` (subsampling#k2)."""
    excess = np.expm1(epsilon)
    share = rate - (1 - rate) * excess  # 1 - α (1 - q): beyond its zero nothing is left
    inside = np.where(share > 0, share, 1.0)
    with np.errstate(over="ignore"):
        found = inside * np.asarray(gdp.delta_for(mu, np.log1p(excess / inside)))
    most: Vector = np.where(share > 0, found, 0.0)
    return most


def replaced_profile(rate: float, mu: float, epsilon: Vector) -> Vector:
    """Return δ at each ε >= 0 of ((1-q) N(0, 1) + q N(μ, 1), (1-q) N(0, 1) + q N(-μ, 1)), its own mirror (#k3).

    Where the likelihood ratio is e^ε, y = e^{μx} solves q' y² - (e^ε - 1)(1 - q) y - e^ε q' = 0, q' = q e^{-μ²/2}.
    """
    excess = np.expm1(epsilon)
    half = excess * (1 - rate) / 2
    logs = math.log(rate) - mu * mu / 2  # of q'
    # y = (h + √(h² + α q'²)) / q', as logarithms: q' may underflow
    with np.errstate(divide="ignore"):
        root = np.logaddexp(2 * np.log(half), epsilon + 2 * logs) / 2
        x = (np.logaddexp(np.log(half), root) - logs) / mu
    tails = scipy.special.ndtr(mu - x), scipy.special.ndtr(-x), scipy.special.ndtr(-mu - x)
    off = np.exp(np.minimum(epsilon + np.log(np.maximum(tails[2], 1e-320)), 0.0))  # e^ε Φ(-μ - x), without overflow
    gain = rate * (tails[0] - off) - (1 - rate) * excess * tails[1]
    # Any x gives no more than the truth; the terms' own rounding is some units in the last place, and of the tails
    # a share that grows with x² (erfc).
    terms = rate * (tails[0] + off) + (1 - rate) * excess * tails[1]
    rounding = (4e-15 + 1e-15 * np.minimum(x * x, 1500.0)) * terms
    most: Vector = np.minimum(np.maximum(gain, 0.0) + rounding + 1e-300, 1.0)
    return most


def _check(rate: float, rounds: int, delta: float) -> None:
    probability(delta=delta)
    count(rounds=rounds)
    if not 0 < rate <= 1:
        raise ConfigError(f"Expected rate in (0, 1], got rate={rate}.")


def _wor(rate: float, rounds: int, mu: float, epsilon: float, *, least: float) -> float:
    """Return δ of the composition. One order suffices: the pair of a round is its own mirror."""
    profile = partial(wor_profile, rate, mu)
    return composition.delta(profile, profile, rounds, epsilon, least=least)


def _poisson(rate: float, rounds: int, mu: float, adjacency: Adjacency, epsilon: float, *, least: float) -> float:
    """Return δ of the composition, the worse of both orders."""
    if adjacency == "replace-one":
        profile = partial(replaced_profile, rate, mu)
        return composition.delta(profile, profile, rounds, epsilon, least=least)
    present, absent = partial(wor_profile, rate, mu), partial(absent_profile, rate, mu)
    return max(
        composition.delta(present, absent, rounds, epsilon, least=least),
        composition.delta(absent, present, rounds, epsilon, least=least),
    )


def _typical(rate: float, mu: float) -> float:
    """Return a guess at the μ of a round on a sample that is worth about `mu` without one: e^{μ²} - 1 = (mu / q)²."""
    return math.sqrt(math.log1p((mu / rate) ** 2))
