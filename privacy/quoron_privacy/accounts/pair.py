"""A run's dominating pair: its stages, composed adaptively, and certified δ at ε.

    >>> run = DominatingPair.sampled(0.05, 0.5, 100, "replace-one").and_(DominatingPair.response(0.1))
    >>> run.delta(2.0) < 1e-9 < run.delta(1.9)
    True

This is the second account: it shares no function, table or cache with those that find noise (`gdp`,
`subsampling`), which never ask it, and every `verify` does. Statement and proof: docs/privacy/pairs.md.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from quoron_privacy.accounts import pld_lattice
from quoron_privacy.accounts.pld_lattice import Coins, Lattice, Response, Sampled, Stage, Stages, Table
from quoron_privacy.errors import ConfigError, count, non_negative, positive, probability
from quoron_privacy.release import Adjacency

if TYPE_CHECKING:
    from dp_accounting import DpEvent

NEAR = 1e-12  # the δ below which nothing is resolved, by default
_USERS = 10**7  # up to so many, dp-accounting is given the exact share B/n


@dataclass(frozen=True, slots=True)
class DominatingPair:
    """All that a run releases is as (ε, δ)-DP as this says, under one adjacency, whatever the data and the past.

    `variation` is the total variation of samplers from exact noise; it adds (1 + e^ε) · variation to δ.
    """

    mu: float = 0.0  # of all Gaussian stages together
    stages: Stages = ()  # in one order
    variation: float = 0.0

    @classmethod
    def gaussian(cls, mu: float, variation: float = 0.0) -> "DominatingPair":
        """Return one μ-GDP stage."""
        positive(mu=mu)
        return cls(mu).with_variation(variation)

    @classmethod
    def sampled(cls, rate: float, mu: float, rounds: int, adjacency: Adjacency) -> "DominatingPair":
        """Return μ-GDP rounds on secret samples of a share `rate`: uniform cohorts for replace-one, coins for zero-out.

        μ is that of a member replaced, or left out. Coins under replace-one are `coins`.
        """
        _check(rate, rounds, adjacency)
        positive(mu=mu)
        if rate == 1:
            return cls(_up(math.sqrt(rounds) * mu))
        return cls(0.0, ((Sampled(rate, mu, adjacency), rounds),))

    @classmethod
    def coins(cls, rate: float, mu: float, rounds: int) -> "DominatingPair":
        """Return rounds that users join by coins, replace-one; μ is that of a user who is there against absent."""
        _check(rate, rounds, "replace-one")
        positive(mu=mu)
        if rate == 1:
            return cls(_up(math.sqrt(rounds) * 2 * mu))
        return cls(0.0, ((Coins(rate, mu), rounds),))

    @classmethod
    def response(cls, epsilon: float, times: int = 1) -> "DominatingPair":
        """Stages that are (ε, 0)-DP, such as all decisions of a minimum cohort together."""
        positive(epsilon=epsilon)
        count(times=times)
        return cls(0.0, ((Response(epsilon), times),))

    @classmethod
    def approximate(cls, epsilon: float, delta: float) -> "DominatingPair":
        """Return a stage of which nothing is known but that it is (ε, δ)-DP: the worst such pair."""
        non_negative(epsilon=epsilon)
        if not 0 <= delta < 1:
            raise ConfigError(f"Expected delta in [0, 1), got delta={delta}.")
        losses = (-epsilon, epsilon) if 0 < epsilon <= 700 else (float(epsilon),)
        masses = tuple((1 - delta) / (1 + math.exp(-loss)) for loss in losses) if losses[1:] else (1 - delta,)
        return cls(0.0, ((Table(losses, masses, delta), 1),))  # the same in both orders

    @classmethod
    def table(
        cls, losses: Sequence[float], masses: Sequence[float], infinite: float = 0.0, *, times: int = 1
    ) -> "DominatingPair":
        """A stage that is the same in both orders, whose loss has a law that others certify.

        Masses (k,) are at ascending losses (k,), and `infinite` is that of infinite loss.
        """
        count(times=times)
        found = Table(tuple(map(float, losses)), tuple(map(float, masses)), float(infinite))
        ascending = all(one < other for one, other in zip(found.losses, found.losses[1:], strict=False))
        finite = all(map(math.isfinite, (*found.losses, *found.masses, found.infinite)))
        if not (len(losses) == len(masses) > 0 and finite and ascending):
            raise ConfigError(f"Expected as many masses as ascending losses, all finite, got {len(losses)} losses.")
        total = math.fsum((*found.masses, found.infinite))
        if min(*found.masses, found.infinite) < 0 or not abs(total - 1) <= 1e-9:
            raise ConfigError(f"Expected masses of at least 0 that add up to 1, got a sum of {total}.")
        back = [(-loss, mass * math.exp(min(-loss, 700.0))) for loss, mass in zip(losses, masses, strict=True)][::-1]
        if not np.allclose(back, list(zip(losses, masses, strict=True)), rtol=1e-12, atol=1e-15):
            raise ConfigError(
                "Expected a law with masses m at losses l and m·exp(-l) at -l, got one of one order alone."
            )
        return cls(0.0, ((found, times),))

    def and_(self, other: "DominatingPair") -> "DominatingPair":
        """Both, one after the other in any order, the later ones chosen by what the earlier released."""
        both = Counter(dict(self.stages))
        both.update(dict(other.stages))
        ordered = tuple(sorted(both.items(), key=repr))
        mu = _up(math.hypot(self.mu, other.mu)) if self.mu and other.mu else self.mu or other.mu
        made = DominatingPair(mu, ordered, self.variation)
        _ = made.adjacency  # refuses two of them
        return made.with_variation(other.variation)

    def with_variation(self, variation: float) -> "DominatingPair":
        """Return the same, by samplers that are so much farther from exact noise in total variation."""
        non_negative(variation=variation)
        if not variation:
            return self
        return replace(self, variation=_up(self.variation + variation) if self.variation else variation)

    @property
    def adjacency(self) -> Adjacency:
        """That of its stages; "none" where the pair is the same under any. ConfigError where stages differ."""
        found = {stage.adjacency for stage, _ in self.stages} - {"none"}
        if len(found) > 1:
            raise ConfigError(f"Expected stages under one adjacency, got {' and '.join(sorted(found))}.")
        return found.pop() if found else "none"

    @property
    def is_gaussian(self) -> bool:
        """Whether all of it is μ-GDP, and nothing else."""
        return not self.stages

    def delta(self, epsilon: float, near: float = NEAR) -> float:
        """Return δ at ε as the run is drawn, never below the truth; values far below `near` are not resolved."""
        non_negative(epsilon=epsilon)
        probability(near=near)
        exact = pld_lattice.exactly(self.mu, self.stages, epsilon, near)
        inexact = (1 + math.exp(min(epsilon, 700.0))) * self.variation * (1 + 1e-12)
        return min(1.0, exact + inexact)

    def epsilon(self, delta: float) -> float:
        """Return the least ε at δ, rounded up: to 1e-6 of itself or 1e-9; infinite if no ε up to 1,000 has that δ."""
        probability(delta=delta)
        return pld_lattice.crossing(lambda epsilon: self.delta(epsilon, delta), delta)

    def lattice(self, near: float = NEAR) -> Lattice:
        """Return the law of the whole loss, exact enough for every δ from `near` on, and for others' accountants.

        ConfigError where that would take more than a million places.
        """
        probability(near=near)
        return pld_lattice.lattice(self.mu, self.stages, self.variation, near)

    def event(self) -> "DpEvent | None":
        """Return what an accountant of dp-accounting composes; None where it has no event for a stage."""
        from dp_accounting import dp_event  # heavy

        events = [dp_event.GaussianDpEvent(1 / self.mu)] if self.mu else []
        for stage, times in self.stages:
            if (once := _event(stage)) is None:
                return None
            events.append(dp_event.SelfComposedDpEvent(once, times) if times > 1 else once)
        return events[0] if len(events) == 1 else dp_event.ComposedDpEvent(events)


def _event(stage: Stage) -> "DpEvent | None":
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


def _up(value: float) -> float:
    return math.nextafter(value * (1 + 2.0**-52), math.inf)


def _check(rate: float, rounds: int, adjacency: Adjacency) -> None:
    count(rounds=rounds)
    if not 0 < rate <= 1:
        raise ConfigError(f"Expected rate in (0, 1], got rate={rate}.")
    if adjacency not in ("zero-out", "replace-one"):
        raise ConfigError(f"Expected adjacency zero-out or replace-one, got adjacency={adjacency!r}.")
