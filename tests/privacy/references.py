"""What tests compare with, in closed form: costs of messages of one user, the longest rows of a μ, Laplace tails."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from quoron_privacy.accounts.gdp import delta_for
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.noise.streams import total_variation
from quoron_privacy.selection.trials import Trials
from quoron_privacy.two_servers.noise import _ARITHMETIC, _STEP
from quoron_privacy.two_servers.specification import ADJACENCIES, KINDS


def responses_delta(epsilon: float, each: float, times: int, mu: float = 0.0) -> float:
    """δ at ε of so many adaptive (each, 0)-DP releases, and then a μ-GDP one (Kairouz, Oh & Viswanath 2017)."""
    flips = np.arange(times + 1)
    weights = scipy.stats.binom.pmf(flips, times, 1 / (1 + math.exp(each)))
    left = np.asarray(epsilon - (times - 2 * flips) * each, dtype=np.float64)
    return min(1.0, float(weights @ delta_for(mu, left)) * (1 + 1e-9))


def bits_epsilon(flips: int) -> float:
    """ε of one range report whose bits flip with probability flips / 2⁶⁴: of two bits."""
    return 2 * math.log((2**64 - flips) / flips)


def vector_delta(*, radius: float, scale: float, dimension: int, epsilon: float) -> float:
    """δ at ε of a report of a vector clipped to a radius, with noise of this scale, sampler and grid included."""
    mu = GaussianNoise(2 * radius, scale).effective_mu(dimension)
    return delta_for(mu, epsilon) + (1 + math.exp(epsilon)) * total_variation(gaussians=dimension)


def unit_for(mu: float, kind: str, adjacency: str = "replace-one", *, length: int = 1, column_norm: float = 1.0) -> int:
    """How long rows of a block of so many numbers may be for μ-GDP against either of two servers."""
    made, which = KINDS[kind], ADJACENCIES.index(adjacency)
    cut = 0.0 if which else made.cut * math.sqrt(length)
    return math.floor((mu / column_norm / _STEP - cut) / math.sqrt(made.square_apart[which]) / _ARITHMETIC**2)


def always(number: int) -> Trials:
    """So many trials, known to everybody: no more than composition in another dress, and priced as dear."""
    return Trials((*(0,) * (number - 1), 1 << 60), f"always {number}")


class OneNoise:
    """A stream whose every Laplace draw is this one."""

    def __init__(self, noise: int) -> None:
        self.noise = noise

    def laplace_steps(self, scale: float, shape: int) -> np.ndarray:
        """Return it."""
        assert shape == 1
        return np.array([self.noise])


def laplace_tail(x: float, scale: float) -> float:
    """P(Laplace(scale) >= x)."""
    return 0.5 * math.exp(-x / scale) if x > 0 else 1 - 0.5 * math.exp(x / scale)


def worst_pair(eta, top):
    """Two-point laws whose log-ratios are top and top - eta (private-mean#m1)."""
    q = -math.expm1(top - eta) / (math.exp(top) - math.exp(top - eta))  # mass of Q where the ratio is e^top
    p = q * math.exp(top)
    return np.array([p, 1 - p]), np.array([q, 1 - q])


def strategy_matrix(factors: Any, rounds: int) -> NDArray[np.float64]:
    """C (rounds, rounds) of a factorisation, by streaming the unit vectors."""
    memory, rows = np.zeros((factors.slots, rounds)), []
    for t, unit in enumerate(np.eye(rounds)):
        rows.append(factors.predict(t, memory) + unit)
        memory = factors.remember(t, memory, unit)
    return np.array(rows)


class Chosen:
    """A stream whose choices are known."""

    def __init__(self, places: Iterable[int]) -> None:
        self.places = iter(places)

    def weighted_choice(self, _: object) -> int:
        return next(self.places)
