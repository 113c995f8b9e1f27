"""Bounded range: what choosing by the exponential mechanism costs, alone, many times in a round, and over a run.

    >>> round(bounded_range_mu(1.0), 4)
    0.6239
    >>> crude_mean_users(dimension=10, bins=64, mu=0.2367, failure=1e-3)
    871

A mechanism is η-bounded-range when the log-likelihood ratio of two neighbouring datasets varies by at most η over its
outputs. That is η-DP, η²/8-zCDP, and as hard to tell apart as N(0, 1) and N(μ, 1) with μ = 2 Φ⁻¹(1 / (1 + e^(-η/2))).
The last converts exactly and is closed under sampling, so a round of many choices and one Gaussian is one number μ,
and a run of rounds on random cohorts is `subsampling.wor_epsilon` of it. Proofs: docs/privacy/private-mean.md.
"""

import math

import numpy as np
from scipy.special import gammaln, log_ndtr, logsumexp

from quoron_protos.errors import ConfigError
from quoron_server._validate import count, non_negative, positive, probability
from quoron_server.accounting import gdp
from quoron_server.mechanisms.hadamard import padded

_ORDERS = (*range(2, 65), *range(72, 257, 8), *range(288, 1025, 32))


def bounded_range_mu(epsilon: float) -> float:
    """Smallest μ for which every `epsilon`-bounded-range choice is μ-GDP, rounded up (lemma M1)."""
    positive(epsilon=epsilon)
    return gdp.pure_mu(epsilon / 2)


def bounded_range_epsilon(mu: float) -> float:
    """Largest η for which every η-bounded-range choice is μ-GDP, rounded down: 2 ln(Φ(μ/2) / Φ(-μ/2))."""
    positive(mu=mu)
    epsilon = 2 * float(log_ndtr(mu / 2) - log_ndtr(-mu / 2))
    slack = 1e-11
    while epsilon > 0 and bounded_range_mu(epsilon) > mu:
        epsilon, slack = epsilon * (1 - slack) - slack, 2 * slack
    if epsilon <= 0:
        raise ConfigError(f"Expected mu above the resolution of the accountant, got mu={mu:g}.")
    return epsilon


def round_mu(*, epsilon: float, choices: int, gaussian_mu: float) -> float:
    """μ of one round: `choices` choices of bounded range `epsilon` and one release, each given the earlier ones."""
    count(choices=choices)
    return math.hypot(math.sqrt(choices) * bounded_range_mu(epsilon), gaussian_mu)


def range_epsilon(*, users: int, bins: int, choices: int, failure: float) -> float:
    """ε₁ with which `choices` private ranges all fall between the smallest and largest value, but with `failure`.

    Every bin outside has a cost larger by at least n - ⌊n/2⌋ than the median's: (2 / (n - ⌊n/2⌋)) ln(bins choices /
    failure). Proposition M4.
    """
    count(users=users, bins=bins, choices=choices)
    probability(failure=failure)
    return 2 * math.log(bins * choices / failure) / (users - users // 2)


def crude_mean_users(
    *, dimension: int, bins: int, mu: float, failure: float, rounds: int = 1, share: float = 0.5
) -> int:
    """Fewest users from which a private range of every rotated coordinate takes at most `share` of μ² in each round.

    Half of `failure` is for the ranges of all rounds, half for the rotation. μ is a round's, given its cohort.
    """
    positive(mu=mu)
    probability(share=share)
    choices = padded(dimension)
    allowed = math.sqrt(share / choices) * mu

    def enough(users: int) -> bool:
        epsilon = range_epsilon(users=users, bins=bins, choices=choices * rounds, failure=failure / 2)
        return bounded_range_mu(epsilon) <= allowed

    high = 1
    while not enough(high):
        high *= 2
        if high > 1 << 60:
            raise ConfigError(f"Expected mu large enough for some number of users, got mu={mu:g}.")
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def renyi_ceiling(rate: float, rounds: int, rho: float, delta: float) -> float:
    """ε at δ of `rounds` ρ-zCDP rounds, each on a uniform cohort of a share `rate`: independent of, and above, μ.

    (1/(α-1)) ln(1 + q² C(α,2) min{4(e^ε(2) - 1), 2e^ε(2)} + Σ_{j≥3} 2 q^j C(α,j) e^((j-1) ε(j))), ε(j) = ρj, at integer
    orders α only, for cohorts of a fixed size drawn without replacement, replace-one: that is where it is proved (Wang,
    Balle & Kasiviswanathan 2019, Theorem 9). For checking, never for setting noise.
    """
    probability(delta=delta)
    count(rounds=rounds)
    non_negative(rho=rho)
    if not 0 < rate <= 1:
        raise ConfigError(f"Expected rate in (0, 1], got rate={rate}.")
    return max(0.0, min(_converted(rounds * _renyi(rate, rho, order), order, delta) for order in _ORDERS))


def _renyi(rate: float, rho: float, order: int) -> float:
    """Rényi divergence of one round at an integer order; without sampling where that is better."""
    plain = rho * order
    if rate == 1 or rho == 0:
        return plain
    j = np.arange(2, order + 1, dtype=np.float64)
    chosen = gammaln(order + 1) - gammaln(j + 1) - gammaln(order - j + 1)
    terms = j * math.log(rate) + chosen + math.log(2) + (j - 1) * rho * j
    if rho < 10:
        terms[0] = min(terms[0], 2 * math.log(rate) + chosen[0] + math.log(4 * math.expm1(2 * rho)))
    return min(plain, float(logsumexp([0.0, *terms])) / (order - 1))


def _converted(divergence: float, order: int, delta: float) -> float:
    """ε at δ of a Rényi divergence (Canonne, Kamath & Steinke 2020, Proposition 12)."""
    return divergence + math.log1p(-1 / order) - math.log(delta * order) / (order - 1)
