"""Gaussian differential privacy: the exact exchange between μ, ε and δ, rounded to the safe side.

    >>> round(mu_for(1.0, 1e-6), 4)
    0.2367
    >>> round(epsilon_for(compose(0.1, 0.1), 1e-6), 4)
    0.5751

A release is μ-GDP when telling two neighbouring datasets apart from it is no easier than telling N(0, 1) from N(μ, 1).

Source: Balle & Wang (2018), Theorem 8; Dong, Roth & Su (2022); Kairouz, Oh & Viswanath (2017), Theorem 3.3.
Statement, proof and symbols: docs/privacy/gaussian.md.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import overload

import numpy as np
import scipy
from numpy.typing import NDArray

from quoron_privacy.accounts.roots import root
from quoron_privacy.errors import Infeasible, non_negative, probability
from quoron_privacy.noise.streams import total_variation

_SLACK = 1e-12  # relative; the formulas below are good to a few 1e-13, measured against 60-digit arithmetic


@overload
def delta_for(mu: float, epsilon: float) -> float: ...
@overload
def delta_for(mu: float, epsilon: NDArray[np.float64]) -> NDArray[np.float64]: ...
@overload
def delta_for(mu: NDArray[np.float64], epsilon: float | NDArray[np.float64]) -> NDArray[np.float64]: ...
def delta_for(mu: float | NDArray[np.float64], epsilon: float | NDArray[np.float64]) -> float | NDArray[np.float64]:
    """Return the least δ for which a μ-GDP release is (ε, δ)-DP, for any real ε; broadcasts; never below the truth.

    δ = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ), and for μ = 0 the limit max(0, 1 − e^ε).
    """
    size = np.abs(np.asarray(epsilon, dtype=np.float64))
    mus = np.asarray(mu, dtype=np.float64)
    if not ((mus >= 0) & (mus < np.inf)).all():
        non_negative(mu=float(mus.min()))
    safe = np.where(mus > 0, mus, 1.0)
    # Beyond ±38 the density underflows: clip, so that nothing overflows on the way to the same answer.
    u = np.minimum(np.maximum(size / safe - safe / 2, -38.5), 38.5)
    # φ(u) = e^ε φ(u + μ), so both terms share the factor φ(u) and only Mills ratios are subtracted: no overflow.
    density = np.exp(-0.5 * u * u) / math.sqrt(2 * math.pi)
    ratio = _mills(u + safe)
    far, near = density * np.maximum(_mills(np.maximum(u, 0.0)) - ratio, 0.0), scipy.special.ndtr(-u) - density * ratio
    value = np.where(u > 0, far, near)
    # Cancellation of the two terms is absolute at the size of the first of them: a few units in its last place.
    value += _SLACK * value + 8e-16 * np.where(u > 0, density * _mills(np.maximum(u, 0.0)), 1.0) + 1e-300
    value = np.where(mus > 0, value, 0.0)
    # H_α(P‖Q) = 1 − α + α H_{1/α}(Q‖P), and a shifted Gaussian pair is symmetric.
    negative = np.asarray(epsilon) < 0
    value = np.minimum(np.where(negative, (np.exp(-size) * value - np.expm1(-size)) * (1 + 4e-16), value), 1.0)
    return float(value) if value.ndim == 0 else value


@lru_cache(maxsize=1024)
def mu_for(epsilon: float, delta: float, *, gaussians: int = 0) -> float:
    """Return the largest μ for which every μ-GDP release is (ε, δ)-DP, rounded down. Needs ε ≥ 0 and δ in (0, 1).

    δ pays for the total variation of so many sampled `gaussians` (noise#n3); Infeasible where that is all of it.
    """
    non_negative(epsilon=epsilon)
    probability(delta=delta)
    delta = left(epsilon, delta, gaussians=gaussians)
    high = 1.0
    while delta_for(high, epsilon) <= delta:
        high *= 2
    low = high / 2
    while delta_for(low, epsilon) > delta:
        high, low = low, low / 2
    mu = root(lambda value: delta_for(value, epsilon) - delta, low, high, xtol=1e-300, rtol=1e-13)
    return _step_until(mu, 1 - 1e-13, lambda value: delta_for(value, epsilon) <= delta)


def left(epsilon: float, delta: float, *, gaussians: int, laplaces: int = 0, name: str = "gaussian") -> float:
    """Return δ less what so many samples of ours add (noise#n3); Infeasible, of `name`, where that is all of it."""
    rest = delta - (1 + math.exp(min(epsilon, 700.0))) * total_variation(gaussians=gaussians, laplaces=laplaces)
    if rest <= 0:
        raise Infeasible(name, f"delta={delta:g} is below the resolution of the noise", "a larger delta")
    return rest


def epsilon_for(mu: float, delta: float) -> float:
    """Return the smallest ε ≥ 0 for which a μ-GDP release is (ε, δ)-DP, rounded up. δ in (0, 1)."""
    non_negative(mu=mu)
    probability(delta=delta)
    if delta_for(mu, 0.0) <= delta:
        return 0.0
    high = 1.0
    while delta_for(mu, high) > delta:
        high *= 2
    epsilon = root(lambda value: delta_for(mu, value) - delta, 0.0, high, xtol=1e-15, rtol=1e-13)
    return _step_until(epsilon, 1 + 1e-13, lambda value: delta_for(mu, value) <= delta)


def compose(*mus: float) -> float:
    """Return μ of releasing everything, each release chosen after seeing the earlier ones: √(Σ μ²)."""
    non_negative(**{f"mus[{index}]": mu for index, mu in enumerate(mus)})
    return math.hypot(*mus)


def pure_mu(epsilon: float) -> float:
    """Return the smallest μ for which every (ε, 0)-DP release is μ-GDP: 2 Φ⁻¹(1 / (1 + e^−ε)), rounded up."""
    non_negative(epsilon=epsilon)
    exact = -2 * float(scipy.special.ndtri(scipy.special.expit(-epsilon)))
    return exact * (1 + 1e-11) + 1e-11


def _mills(u: NDArray[np.float64]) -> NDArray[np.float64]:
    """Φ(−u) / φ(u)."""
    ratio: NDArray[np.float64] = math.sqrt(math.pi / 2) * scipy.special.erfcx(u / math.sqrt(2))
    return ratio


def _step_until(value: float, factor: float, good: Callable[[float], bool]) -> float:
    """`value` pushed by `factor`, ever faster, until `good`: root finders stop on either side of the root."""
    while not good(value):
        value *= factor
        factor *= factor
    return value
