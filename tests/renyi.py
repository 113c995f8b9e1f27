"""A bound on ε by Rényi divergences, independent of the Gaussian account that it is held against."""

import math

import numpy as np
from scipy.special import gammaln, logsumexp

ORDERS = (*range(2, 65), *range(72, 257, 8), *range(288, 1025, 32))


def renyi_ceiling(rate: float, rounds: int, rho: float, delta: float) -> float:
    """ε at δ of `rounds` ρ-zCDP rounds, each on a uniform cohort of a share `rate`: independent of, and above, μ.

    (1/(α-1)) ln(1 + q² C(α,2) min{4(e^ε(2) - 1), 2e^ε(2)} + Σ_{j≥3} 2 q^j C(α,j) e^((j-1) ε(j))), ε(j) = ρj, at integer
    orders α only, for cohorts of a fixed size drawn without replacement, replace-one: that is where it is proved (Wang,
    Balle & Kasiviswanathan 2019, Theorem 9).
    """
    return max(0.0, min(_converted(rounds * _renyi(rate, rho, order), order, delta) for order in ORDERS))


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
