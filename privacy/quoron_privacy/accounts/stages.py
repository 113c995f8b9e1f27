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


@dataclass(frozen=True, slots=True)
class Coins:
    """A μ-GDP release of a secret cohort that is joined by coins, where a user is there in both worlds, and moved."""

    rate: float
    mu: float  # of a user who is there against absent
    adjacency: Adjacency = "replace-one"


@dataclass(frozen=True, slots=True)
class Response:
    """Whatever is (ε, 0)-DP: randomised response between two answers is the worst of it."""

    epsilon: float
    adjacency: Adjacency = "none"


@dataclass(frozen=True, slots=True)
class Table:
    """A law of losses that others certify, the same in both orders."""

    losses: tuple[float, ...]
    masses: tuple[float, ...]
    infinite: float
    adjacency: Adjacency = "none"


Stage = Sampled | Coins | Response | Table


def event(stage: Stage) -> "DpEvent | None":
    """Return what dp-accounting calls a stage that is there once; None where it has no event for it."""
    from dp_accounting import dp_event  # heavy

    if isinstance(stage, Table):
        return None
    if isinstance(stage, Response):
        return dp_event.DiscreteLaplaceDpEvent(stage.epsilon, 1)  # of the same loss
    gaussian = dp_event.GaussianDpEvent(1 / stage.mu)
    if isinstance(stage, Coins) or stage.adjacency == "zero-out":
        return dp_event.PoissonSampledDpEvent(stage.rate, gaussian)
    share = Fraction(stage.rate).limit_denominator(_USERS)
    return dp_event.SampledWithoutReplacementDpEvent(share.denominator, share.numerator, gaussian)


def one_adjacency(stages: tuple[Stage, ...]) -> Adjacency:
    """Of all of them that have one; ConfigError where they differ."""
    found = {stage.adjacency for stage in stages} - {"none"}
    if len(found) > 1:
        raise ConfigError(f"Expected stages under one adjacency, got {' and '.join(sorted(found))}.")
    return found.pop() if found else "none"
