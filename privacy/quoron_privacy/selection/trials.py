"""How often a private search tries: the law of a secret number K, cut off at a public one, and drawn exactly.

    >>> law = Trials.negative_binomial(20.0)
    >>> round(law.mean, 6), law.most, round(law.missed(1 / 20), 2)
    (20.0, 100, 0.44)

K = 1, 2, ..., most. Everything that the price depends on is computed from the very integers that K is drawn by, so
nothing is lost by the cut, nor by rounding. Statement and proof: docs/privacy/selection.md.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from quoron_privacy.accounts.roots import root
from quoron_privacy.arrays import Vector
from quoron_privacy.errors import ConfigError, count
from quoron_privacy.noise.streams import NoiseSource

SHAPE = 2.0  # η of the law that a search takes by default: of all tried the best rank for a price (docs/tuning.md)
CUT = 5  # times the mean, beyond which there is next to nothing of that law
MOST = 10_000  # trials
_BITS = 60  # chances are whole multiples of 2⁻⁶⁰


@dataclass(frozen=True)
class Trials:
    """The law of K: `weights[k - 1] / 2⁶⁰` is the chance of k trials."""

    weights: tuple[int, ...]
    words: str  # what it is, for people

    def __post_init__(self) -> None:
        if not self.weights or min(self.weights) < 0 or sum(self.weights) != 1 << _BITS:
            raise ConfigError(f"Expected chances that add up to one, got {len(self.weights)} others.")

    @classmethod
    def negative_binomial(cls, mean: float, *, shape: float = SHAPE, most: int | None = None) -> "Trials":
        """P(K = k) in proportion to (1 - γ)^k Γ(k + η) / k! up to `most`, with the γ that gives it this mean.

        η = `shape` > -1: at 1 the geometric law, at 0 the logarithmic one (Liu & Talwar 2019; Papernot & Steinke 2022).
        """
        most = math.ceil(CUT * mean) if most is None else most
        count(most=most)
        if most > MOST:
            raise ConfigError(f"Expected at most {MOST} trials, got most={most}.")
        if not 1 < mean < most:
            raise ConfigError(f"Expected a mean number of trials between 1 and most={most}, got {mean}.")
        if not -1 < shape <= 1000:
            raise ConfigError(f"Expected shape in (-1, 1000], got shape={shape}.")
        steps = np.arange(1, most)
        logs = np.concatenate([[0.0], np.cumsum(np.log((steps + shape) / (steps + 1)))])
        found = _tilted(logs, mean)
        return cls(_weights(found), f"negative binomial of shape {shape:g}, mean {mean:g}, at most {most}")

    @property
    def most(self) -> int:
        """The largest K."""
        return len(self.weights)

    @cached_property
    def chances(self) -> Vector:
        """P(K = k), k = 1, 2, ..., (most,)."""
        return np.array([math.ldexp(float(weight), -_BITS) for weight in self.weights])

    @cached_property
    def mean(self) -> float:
        """E K, which is the largest slope of its generating function."""
        return sum(number * weight for number, weight in enumerate(self.weights, 1)) / (1 << _BITS)

    def slopes(self, above: Vector) -> Vector:
        """f'(1 - s) = E K (1 - s)^(K - 1) at s = `above` in [0, 1], (m,): falls from E K; right to 1e-12 of itself."""
        found, left = np.zeros(len(above)), 1.0 - above
        for number, chance in zip(range(self.most, 0, -1), self.chances[::-1].tolist(), strict=True):
            found *= left
            found += number * chance
        return found

    def missed(self, share: float) -> float:
        """Return the chance that no trial draws any of this share of the candidates."""
        return float(self.chances @ (1 - share) ** np.arange(1, self.most + 1))

    def draw(self, noise: NoiseSource) -> int:
        """K, the same of the same source: exactly of this law."""
        return 1 + noise.stream("number of trials").weighted_choice(self.weights)


def drawn(noise: NoiseSource, trial: int, candidates: int) -> int:
    """Return which of so many candidates a trial takes: any alike, whatever the others took."""
    return int(noise.stream("candidate", trial).uniform_below(candidates, 1)[0])


def _tilted(logs: Vector, mean: float) -> Vector:
    """Return the law in proportion to exp(logs + t k), with the t of this mean."""
    numbers = np.arange(1, len(logs) + 1)

    def law(tilt: float) -> Vector:
        found = logs + tilt * numbers
        found = np.exp(found - found.max())
        return np.asarray(found / found.sum())

    low, high = -1.0, 1.0

    def average(tilt: float) -> float:
        return math.fsum((law(tilt) * numbers).tolist())

    while average(low) > mean:
        low *= 2
    while average(high) < mean:
        high *= 2
    # To twelve digits: the last bits are another processor's own, and a search that goes on has to have the same law.
    return law(float(f"{root(lambda tilt: average(tilt) - mean, low, high):.12g}"))


def _weights(chances: Vector) -> tuple[int, ...]:
    """Whole multiples of 2⁻⁶⁰; what rounding leaves goes to the likeliest."""
    found = [int(math.ldexp(float(chance), _BITS)) for chance in chances]
    found[int(np.argmax(chances))] += (1 << _BITS) - sum(found)
    return tuple(found)
