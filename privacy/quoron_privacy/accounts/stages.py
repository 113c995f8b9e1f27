"""What a run is composed of, each once, and what dp-accounting calls it.

`composed` has the laws of their losses. Statement and proof: docs/privacy/pairs.md#pl1.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from quoron_privacy.errors import ConfigError
from quoron_privacy.release import Adjacency

if TYPE_CHECKING:
    from dp_accounting import DpEvent

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
class Coins:
    """A μ-GDP release of a secret cohort that is joined by coins, where a user is there in both worlds, and moved."""

    rate: float
    mu: float  # of a user who is there against absent
    adjacency: Adjacency = "replace-one"

    def event(self) -> "DpEvent":
        """Of one round."""
        from dp_accounting import dp_event  # heavy

        return dp_event.PoissonSampledDpEvent(self.rate, dp_event.GaussianDpEvent(1 / self.mu))


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
    """A law of losses that others certify, the same in both orders."""

    losses: tuple[float, ...]
    masses: tuple[float, ...]
    infinite: float
    adjacency: Adjacency = "none"

    def event(self) -> None:
        """There is none."""


Stage = Sampled | Coins | Response | Table


def one_adjacency(stages: tuple[Stage, ...]) -> Adjacency:
    """Of all of them that have one; ConfigError where they differ."""
    found = {stage.adjacency for stage in stages} - {"none"}
    if len(found) > 1:
        raise ConfigError(f"Expected stages under one adjacency, got {' and '.join(sorted(found))}.")
    return found.pop() if found else "none"
