"""What a run is composed of, each once, and what dp-accounting calls it.

`composed` has the laws of their losses. Statement and proof: docs/privacy/pairs.md#pl1.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.errors import ConfigError
from quoron_privacy.release import Adjacency

if TYPE_CHECKING:
    from dp_accounting import DpEvent

Vector = NDArray[np.float64]

_RARE = 1e-32  # chances of numbers of own items that are not resolved
_USERS = 10**7  # up to so many, dp-accounting is given the exact share B/n


@dataclass(frozen=True, slots=True)
class Sampled:
    """A μ-GDP release of a secret cohort: uniform of a fixed size (replace-one), or joined by coins (zero-out)."""

    rate: float
    mu: float
    adjacency: Adjacency

    def event(self) -> "DpEvent":
        """Of one round."""
        from dp_accounting import dp_event  # heavy

        gaussian = dp_event.GaussianDpEvent(1 / self.mu)
        if self.adjacency == "zero-out":
            return dp_event.PoissonSampledDpEvent(self.rate, gaussian)
        share = Fraction(self.rate).limit_denominator(_USERS)
        return dp_event.SampledWithoutReplacementDpEvent(share.denominator, share.numerator, gaussian)


@dataclass(frozen=True, slots=True)
class Items:
    """A Gaussian release of a sum of items, of which each of a user's at most `most` joins by a coin of its own."""

    rate: float
    most: int
    z: float  # noise in units of one item's clip
    adjacency: Adjacency

    def event(self) -> "DpEvent | None":
        """Of one round."""
        from dp_accounting import dp_event  # heavy

        if self.most == 1:
            return dp_event.PoissonSampledDpEvent(self.rate, dp_event.GaussianDpEvent(self.z))
        if self.adjacency == "replace-one":
            return None
        chances, numbers, _ = binomial(self.most, self.rate)
        return dp_event.MixtureOfGaussiansDpEvent(self.z, numbers.tolist(), chances.tolist())


@dataclass(frozen=True, slots=True)
class Response:
    """Whatever is (ε, 0)-DP: randomised response between two answers is the worst of it."""

    epsilon: float
    adjacency: Adjacency = "none"

    def event(self) -> "DpEvent":
        """Discrete Laplace noise of the same loss."""
        from dp_accounting import dp_event  # heavy

        return dp_event.DiscreteLaplaceDpEvent(self.epsilon, 1)


@dataclass(frozen=True, slots=True)
class Table:
    """Laws of losses that others certify, in both orders; `back` is None where both are the same."""

    losses: tuple[float, ...]
    masses: tuple[float, ...]
    infinite: float
    back: "Table | None" = None
    adjacency: Adjacency = "none"

    def event(self) -> None:
        """There is none."""


Stage = Sampled | Items | Response | Table


def binomial(most: int, rate: float) -> tuple[Vector, Vector, float]:
    """Return chances of numbers of own items, the numbers, and a bound on the chance of all that are left out.

    Each chance is a product of ratios from the likeliest number outwards: off by 4 roundings a step.
    """
    numbers = np.arange(most + 1, dtype=np.float64)
    ratios = (most - numbers[:-1]) / numbers[1:] * (rate / (1 - rate))
    mode = min(most, int((most + 1) * rate))
    chances = np.concatenate([np.cumprod(1 / ratios[:mode][::-1])[::-1], [1.0], np.cumprod(ratios[mode:])])
    kept = chances > _RARE
    return chances[kept] / chances[kept].sum(), numbers[kept], (most + 1) * _RARE


def one_adjacency(stages: tuple[Stage, ...]) -> Adjacency:
    """Of all of them that have one; ConfigError where they differ."""
    found = {stage.adjacency for stage in stages} - {"none"}
    if len(found) > 1:
        raise ConfigError(f"Expected stages under one adjacency, got {' and '.join(sorted(found))}.")
    return found.pop() if found else "none"
