"""The rounds of a run as its algorithm declares them, and what follows from them for the rest of the system.

    def stretches(self, problem):
        release = RoundRelease(self.noise, self.noise.entry(), self.mu)
        return (Rounds(self.rounds, self.cohort_size, gradients(problem), (release,), often=self.rounds),)

Cohorts, costs, the ledger's entries, counts of a minimum cohort and what two servers sum are functions of these.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from quoron_client.protocol.questions import AverageGradient, Task
from quoron_privacy.errors import VerificationError
from quoron_privacy.gaussian import SPARE, GaussianNoise
from quoron_privacy.kernels.on_first_use import OnFirstUse
from quoron_privacy.release import Adjacency, MaskedBlock, Release
from quoron_server.problem import Problem

if TYPE_CHECKING:
    from quoron_client.protocol.smoothing import Smoothing
    from quoron_privacy.histograms.min_cohort import TellsPresence
    from quoron_privacy.prefix.noise import PrefixNoise
    from quoron_privacy.two_servers.specification import MechanismSpec

two_servers = OnFirstUse("quoron_privacy.two_servers.specification")  # plans of that trust model alone


@dataclass(frozen=True, slots=True)
class PlannedRelease:
    """What a run will release by one mechanism, how often, and what that is charged.

    A run's ledger holds `count` entries equal to `entry`, written in some of `rounds`: for `scaled` ones to
    `entry.scaled(radius)` with the public radius of their round; of `tested` ones, and of a run that ends early, fewer.
    """

    mechanism: object  # of quoron_privacy: what draws, or what the theorem is about
    entry: Release
    count: int
    rounds: Sequence[int]  # whose answers go into it
    mu: float | None  # charged for an answer in all that it goes into, as GDP; None: paid by the guarantee's (ε, δ)
    scaled: bool = False  # for a radius of 1
    tested: bool = False  # a private test may withhold it


@dataclass(frozen=True, slots=True)
class CountLeakage:
    """What the release that a round's answers go into says, or leaves room to say for nothing, of how many answered.

    Statement and proof: docs/privacy/min-cohort.md#q4.
    """

    mu: float  # of such a count of users; inf: who answers is seen anyway; 0: nothing
    released: bool = False  # the release says it: `Update.present`


@dataclass(frozen=True, slots=True)
class RoundRelease:
    """What rounds release by one mechanism: a `PlannedRelease` without its rounds."""

    mechanism: object
    entry: Release
    mu: float | None = None
    scaled: bool = False
    tested: bool = False
    at_end: bool = False  # once, of the answers of consecutive rounds; else in every round


@dataclass(frozen=True, slots=True)
class MaskedRows:
    """What a user's row is where each of two servers adds noise of its own to the sum of rows."""

    adjacency: Adjacency
    blocks: tuple[MaskedBlock, ...]
    factorisation: str | None = None  # of correlated rows
    separation: int = 1  # of two rounds of one user, at least


@dataclass(frozen=True, slots=True)
class Rounds:
    """Consecutive rounds alike: what they ask of how many users, and what they release."""

    count: int
    cohort: int  # users asked in a round, as planned: the expected number under Poisson sampling
    task: Task  # of a round, for its size alone: its points are zero
    releases: tuple[RoundRelease, ...] = ()  # an object that stands in several `Rounds` of a run is one planned release
    often: int = 1  # a user is asked in so many of these rounds at most
    fresh: bool = True  # they ask users not asked before; False: users of the stretches since the last fresh one
    leaks: CountLeakage = CountLeakage(0.0)
    summed: bool = False  # questions have a reduction, and nothing else of the answers is read: then no single row is
    rows: MaskedRows | None = None  # None: no proof that single rows are not needed


@dataclass(frozen=True, slots=True)
class Schedule:
    """All rounds of a run, and what follows from them."""

    stretches: tuple[Rounds, ...]

    def total(self, of: Callable[[Task], int]) -> int:
        """Return the sum of `of` over all questions to single users."""
        return sum(stretch.count * stretch.cohort * of(stretch.task) for stretch in self.stretches)

    @property
    def cohorts(self) -> tuple[int, ...]:
        """Users asked in each round, as planned."""
        return tuple(stretch.cohort for stretch in self.stretches for _ in range(stretch.count))

    def slots(self, round_: int) -> slice:
        """Return the places of a round's users in a public order, where no two rounds ask the same."""
        first = sum(self.cohorts[:round_])
        return slice(first, first + self.cohorts[round_])

    @property
    def participations(self) -> int:
        """Questions to one user, at most."""
        most = asked = 0
        for stretch in self.stretches:
            asked = stretch.often if stretch.fresh else asked + stretch.often
            most = max(most, asked)
        return most

    @property
    def releases(self) -> tuple[PlannedRelease, ...]:
        """What is released, in the order of first rounds."""
        found: dict[int, tuple[RoundRelease, list[int], list[range]]] = {}
        ends = accumulate((stretch.count for stretch in self.stretches), initial=0)
        for stretch, (first, end) in zip(self.stretches, pairwise(ends), strict=True):
            for made in stretch.releases:
                _, counts, rounds = found.setdefault(id(made), (made, [], []))
                counts.append(1 if made.at_end else stretch.count)
                begin = rounds.pop().start if rounds and first <= rounds[-1].stop else first
                rounds.append(range(begin, end))
        return tuple(
            PlannedRelease(
                made.mechanism,
                made.entry,
                sum(counts),
                rounds[0] if len(rounds) == 1 else tuple(chain(*rounds)),
                made.mu,
                made.scaled,
                made.tested,
            )
            for made, counts, rounds in found.values()
        )

    @property
    def count_leakage(self) -> tuple[CountLeakage, ...]:
        """Of each round; () where nothing of the kind is proved."""
        given = tuple(stretch.leaks for stretch in self.stretches for _ in range(stretch.count))
        return given if any(leakage.mu for leakage in given) else ()

    @property
    def reads_sums(self) -> bool:
        """Whether no single row is read in any round."""
        return all(stretch.summed for stretch in self.stretches)

    @property
    def gradients_asked(self) -> int:
        """Average gradients that a question asks for, at most."""
        return max(stretch.task.gradients_per_user for stretch in self.stretches)

    @property
    def answer_length(self) -> int:
        """Numbers in the largest answer."""
        return max(numbers_up(stretch.task) for stretch in self.stretches)

    @property
    def smooths_loss(self) -> bool:
        """Whether clients smooth their loss."""
        return any(getattr(stretch.task, "smoothing", None) is not None for stretch in self.stretches)

    @property
    def rows(self) -> MaskedRows | None:
        """Those of the first round; None where two servers cannot sum the rows of all."""
        rows = [stretch.rows for stretch in self.stretches]
        return None if None in rows else rows[0]

    def spec(self, groups: int = 1) -> "MechanismSpec":
        """Return what both servers and every client agree on of each round. VerificationError where there is none."""
        if (first := self.rows) is None:
            raise VerificationError("Expected rows that two servers may sum, got a method that reads single ones.")
        rounds = [(stretch.count, stretch.rows.blocks) for stretch in self.stretches if stretch.rows is not None]
        correlation = first.factorisation, self.participations, first.separation
        spec: MechanismSpec = two_servers.spec_of(rounds, first.adjacency, *correlation, groups)
        return spec


def numbers_up(task: Task) -> int:
    """Return how many numbers an answer has."""
    return prod(task.answer_shape(task.model_size))


def gradients(problem: Problem, points: int = 1, smoothing: "Smoothing | None" = None) -> AverageGradient:
    """Return a question for average gradients at so many points, for its size alone."""
    return AverageGradient(np.zeros((points, problem.dimension)), (1.0,) * points, smoothing=smoothing)


def clipped_row(dimension: int, unit: float, name: str = "row") -> tuple[MaskedBlock, ...]:
    """Return the row of a vector cut to a fixed length; `unit` is that length in deviations of all noise."""
    return ((name, "clipped", dimension, unit),)


def count_beside(noise: "GaussianNoise | PrefixNoise | None", norm: float = 1.0) -> CountLeakage:
    """Return the count that a mean of vectors cut to a fixed length leaves room for, one of which may be replaced."""
    return CountLeakage(0.0 if noise is None else SPARE * norm * noise.sensitivity / noise.scale)


def count_in(mechanism: "TellsPresence") -> CountLeakage:
    """Return the count that a release tells."""
    return CountLeakage(1 / (mechanism.users * mechanism.presence_deviation), released=True)
