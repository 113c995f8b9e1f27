"""The face of every algorithm: what its public numbers say of a run.

An algorithm's own frozen dataclass of numbers and mechanisms derives from `Parameters`. Whatever the rest of the system
must know of a plan (whom it asks, what it releases and at what charge, what its promise rests on), it asks of the very
numbers that the algorithm runs by.

What a promise rests on beside its numbers are `Assumption`s: kinds that rules read. `wording` says them to people.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate, chain, pairwise
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from quoron_client.protocol.questions import AverageGradient
from quoron_privacy.errors import ConfigError, VerificationError
from quoron_privacy.gaussian import SPARE, GaussianNoise
from quoron_privacy.kernels.on_first_use import OnFirstUse
from quoron_privacy.release import Adjacency, MaskedBlock, Release
from quoron_server.problem import Problem

if TYPE_CHECKING:
    from quoron_client.protocol.questions import Task
    from quoron_client.protocol.smoothing import Smoothing
    from quoron_privacy.counts.min_cohort import TellsPresence
    from quoron_privacy.prefix.noise import PrefixNoise
    from quoron_privacy.two_servers.specification import Sheet

two_servers = OnFirstUse("quoron_privacy.two_servers.specification")  # plans of that trust model alone


class Kind(StrEnum):
    """Kinds of assumptions, in the order in which statements list them."""

    # Of a function or a table that its owner alone knows, where one machine holds everything.
    OWN_ROWS = "own-rows"
    FORGETFUL_FUNCTION = "forgetful-function"
    SECRET_DURATION = "secret-duration"
    SECRET_ORDER = "secret-order"
    ROWS_ARE_USERS = "rows-are-users"
    FEATURE_RANGES_PUBLIC = "feature-ranges-public"
    CLASSES_PUBLIC = "classes-public"
    LABEL_RANGE_PUBLIC = "label-range-public"
    LARGEST_WEIGHT_PUBLIC = "largest-weight-public"
    CONTRACTING_LOSSES = "contracting-losses"  # from here on of users' losses and answers
    TRUE_GRADIENTS = "true-gradients"
    SECRET_ITEMS = "secret-items"
    ABSENT_IS_OUTLIER = "absent-is-outlier"
    ABSENT_IS_ZERO_ROW = "absent-is-zero-row"
    ABSENT_IS_ZERO = "absent-is-zero"
    FIRST_ANSWERS_COUNT = "first-answers-count"
    DECLARED_PARTICIPATION = "declared-participation"
    ONE_REPORT = "one-report"
    TWO_REPORTS = "two-reports"
    CARELESS_PARTICIPATION = "careless-participation"
    UNPROVED_CONSTANTS = "unproved-constants"
    # Of a federation.
    ONE_KEY_ONE_USER = "one-key-one-user"
    ONE_PARTITION_ONE_USER = "one-partition-one-user"
    EARLY_ENDS = "early-ends"
    PERSONS_OF_SILOS = "persons-of-silos"
    SILOS_CLIP = "silos-clip"
    # What rules decide by.
    SECRET_COHORTS = "secret-cohorts"
    FORGETFUL_CLIENTS = "forgetful-clients"
    FULL_PARTICIPATION = "full-participation"
    UNMOVED_PARTICIPATION = "unmoved-participation"
    PUBLIC_PARTICIPATION = "public-participation"
    DOMINANT_HESSIANS = "dominant-hessians"


# How many words and numbers the text of an assumption leaves open, where that is not none.
OPEN: Mapping[Kind, int] = MappingProxyType(
    {
        Kind.ABSENT_IS_ZERO: 1,
        Kind.FIRST_ANSWERS_COUNT: 2,
        Kind.DECLARED_PARTICIPATION: 1,
        Kind.UNPROVED_CONSTANTS: 1,
        Kind.PERSONS_OF_SILOS: 2,
    }
)
_ORDER: Mapping[Kind, int] = MappingProxyType({kind: place for place, kind in enumerate(Kind)})


@dataclass(frozen=True, slots=True)
class Assumption:
    """One of a kind; `of` are the words and numbers that its text leaves open."""

    kind: Kind
    of: tuple[str | float, ...] = ()

    def __post_init__(self) -> None:
        if OPEN.get(self.kind, 0) != len(self.of):
            raise ConfigError(f"Expected what {self.kind} is said of where its text asks for it, got {self.of!r}.")


# What steps of SGD rest on that bring no two iterates farther apart; in ℓ∞ on dominant Hessians, too.
CONTRACTION = tuple(map(Assumption, (Kind.CONTRACTING_LOSSES, Kind.TRUE_GRADIENTS, Kind.UNMOVED_PARTICIPATION)))
DOMINANT = Assumption(Kind.DOMINANT_HESSIANS)


def together(*parts: Iterable[Assumption]) -> tuple[Assumption, ...]:
    """All of them, each once, in the order of their kinds; those of one kind in the order given."""
    return tuple(sorted(dict.fromkeys(each for part in parts for each in part), key=lambda each: _ORDER[each.kind]))


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
    mu: float | None  # charged for an answer in all that it goes into, as GDP; None: paid by the promise's (ε, δ)
    scaled: bool = False  # for a radius of 1
    tested: bool = False  # a private test may withhold it


@dataclass(frozen=True, slots=True)
class GaussianPromise:
    """Everything that a run releases is μ-GDP up to a total variation (docs/privacy/lifetime.md, "Gaussian runs").

    That is: under the plan's adjacency and assumptions, with exact noise wherever the proof needs it for one user, it
    is `mu`-GDP; and what it releases, as drawn, is within `variation` of that, whatever the dataset.
    """

    mu: float  # rounded up
    variation: float  # s, rounded up


@dataclass(frozen=True, slots=True)
class NearGaussianPromise:
    """Everything that a run releases is μ-GDP but for t, up to a total variation, for *replacing* one user.

    With every pair (μ, t) of `near` at once (lifetime#lt6), under the plan's assumptions, whatever its adjacency.
    """

    near: tuple[tuple[float, float], ...]
    variation: float  # s, rounded up


@dataclass(frozen=True, slots=True)
class Attendance:
    """What the release that a round's answers go into says, or leaves room to say for nothing, of how many answered.

    Statement and proof: docs/privacy/min-cohort.md#q4.
    """

    mu: float  # of such a count of users; inf: who answers is seen anyway; 0: nothing
    told: bool = False  # the release says it: `Update.present`
    most: int | None = None  # of users, whose answers alone count; None: all who were asked


@dataclass(frozen=True, slots=True)
class MaskedRounds:
    """What users' rows are, where each of two servers adds noise of its own to their sum."""

    adjacency: Adjacency
    rounds: tuple[tuple[int, tuple[MaskedBlock, ...]], ...]  # so many in a row, and what one's row is made of
    factorisation: str | None = None  # of correlated rows
    separation: int = 1  # of two rounds of one user, at least


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
    cohort: int  # users asked in a round, as planned: expected ones where each joins by a coin of its own
    task: "Task"  # of a round, for its size alone: its points are zero
    releases: tuple[RoundRelease, ...] = ()  # an object that stands in several `Rounds` of a run is one planned release
    often: int = 1  # a user is asked in so many of these rounds at most
    fresh: bool = True  # they ask nobody who was asked before
    present: Attendance = Attendance(0.0)
    summed: bool = False  # questions have a reduction, and nothing else of the answers is read: then no single row is
    rows: MaskedRows | None = None  # None: nobody proved that no single row is needed


@dataclass(frozen=True, slots=True)
class Schedule:
    """All rounds of a run, and what follows from them."""

    stretches: tuple[Rounds, ...]

    def total(self, of: "Callable[[Task], int]") -> int:
        """Return the sum of `of` over all questions to single users."""
        return sum(each.count * each.cohort * of(each.task) for each in self.stretches)

    @property
    def cohorts(self) -> tuple[int, ...]:
        """Users asked in each round, as planned."""
        return tuple(each.cohort for each in self.stretches for _ in range(each.count))

    @property
    def participations(self) -> int:
        """Questions to one user, at most."""
        most = asked = 0
        for each in self.stretches:
            asked = each.often if each.fresh else asked + each.often
            most = max(most, asked)
        return most

    @property
    def releases(self) -> tuple[PlannedRelease, ...]:
        """What is released, in the order of first rounds."""
        found: dict[int, tuple[RoundRelease, list[int], list[range]]] = {}
        ends = accumulate((each.count for each in self.stretches), initial=0)
        for each, (first, end) in zip(self.stretches, pairwise(ends), strict=True):
            for made in each.releases:
                _, counts, rounds = found.setdefault(id(made), (made, [], []))
                counts.append(1 if made.at_end else each.count)
                if not rounds or rounds[-1].start != first:
                    rounds.append(range(first, end))
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
    def attendance(self) -> tuple[Attendance, ...]:
        """Of each round; () where nothing of the kind is proved."""
        given = tuple(each.present for each in self.stretches for _ in range(each.count))
        return given if any(each.mu for each in given) else ()

    @property
    def reads_sums(self) -> bool:
        """Whether no single row is read in any round."""
        return all(each.summed for each in self.stretches)

    @property
    def gradients_asked(self) -> int:
        """Average gradients that a question asks for, at most."""
        return max(each.task.gradients_per_user for each in self.stretches)

    def answer_length(self, dimension: int) -> int:
        """Return the numbers of the largest answer, for models of `dimension`."""
        return max(prod(each.task.answer_shape(dimension)) for each in self.stretches)

    @property
    def usual_task(self) -> "Task":
        """What most questions ask of one user, for its size alone."""
        return max(self.stretches, key=lambda each: each.count * each.cohort).task

    @property
    def smooths_loss(self) -> bool:
        """Whether clients smooth their loss."""
        return any(getattr(each.task, "smoothing", None) is not None for each in self.stretches)

    @property
    def masked(self) -> MaskedRows | None:
        """The first round's rows; None where two servers cannot sum the rows of all."""
        rows = [each.rows for each in self.stretches]
        return None if None in rows else rows[0]

    def sheet(self, groups: int = 1) -> "Sheet":
        """Return what both servers and every client agree on of each round. VerificationError where there is none."""
        if (first := self.masked) is None:
            raise VerificationError("Expected rows that two servers may sum, got a method that looks at single ones.")
        rounds = [(each.count, each.rows.blocks) for each in self.stretches if each.rows is not None]
        correlation = first.factorisation, self.participations, first.separation
        sheet: Sheet = two_servers.sheet_of(rounds, first.adjacency, *correlation, groups)
        return sheet


def gradients(problem: Problem, points: int = 1, smoothing: "Smoothing | None" = None) -> AverageGradient:
    """Return a question for average gradients at so many points, for its size alone."""
    return AverageGradient(np.zeros((points, problem.dimension)), (1.0,) * points, smoothing=smoothing)


def clipped_row(dimension: int, unit: float, name: str = "row") -> tuple[MaskedBlock, ...]:
    """Return the row of a vector cut to a fixed length; `unit` is that length in deviations of all noise."""
    return ((name, "clipped", dimension, unit),)


def beside(noise: "GaussianNoise | PrefixNoise | None", most: int | None = None, norm: float = 1.0) -> Attendance:
    """Return the count that a mean of vectors cut to a fixed length leaves room for, one of which may be replaced."""
    return Attendance(0.0) if noise is None else Attendance(SPARE * norm * noise.sensitivity / noise.scale, most=most)


def told_by(mechanism: "TellsPresence") -> Attendance:
    """Return the count that a release tells."""
    return Attendance(1 / (mechanism.users * mechanism.presence_deviation), told=True)


@dataclass(frozen=True, slots=True)
class Moves:
    """How far one user moves the mean of a round, in deviations of its noise, counted again by its scales.

    What rounding to the noise's grid adds is left out: it is added to the whole, count and all.
    """

    replaced: float  # by being another
    away: float  # by staying away
    most: int | None = None  # of users, whose answers alone are in the mean; None: all who were asked

    @classmethod
    def of(cls, far: Callable[[Adjacency], float], most: int | None = None) -> "Moves":
        """By how `far` either adjacency moves it."""
        return cls(far("replace-one"), far("zero-out"), most)


@dataclass(frozen=True, slots=True)
class Parameters(ABC):
    """Public numbers of one run. What a method here says by default is so of an algorithm that says nothing else."""

    def stretches(self, problem: Problem) -> Iterable[Rounds]:
        """What all rounds ask and release, one after the other."""
        raise NotImplementedError

    def schedule(self, problem: Problem) -> Schedule:
        """What follows from the rounds."""
        return Schedule(tuple(each for each in self.stretches(problem) if each.count))

    @abstractmethod
    def releases(self, dimension: int) -> tuple[PlannedRelease, ...]:
        """What these numbers release of `dimension` coordinates, by the mechanisms that the algorithm itself makes."""

    @abstractmethod
    def cohorts(self) -> tuple[int, ...]:
        """Users asked in each round, as planned: expected ones where each joins by a coin of its own."""

    @property
    def poisson_sampling(self) -> bool:
        """Whether each user joins a cohort by a coin of its own."""
        return False

    def participations(self) -> int:
        """Questions to one user, at most."""
        return 1

    def answer_length(self, problem: Problem) -> int:
        """Numbers in the largest answer of any task: those of the model."""
        return problem.dimension

    def long_once(self) -> bool:
        """Whether only the first answers are so long, and what is made of them looks at a block of them at a time."""
        return False

    def reads_sums(self) -> bool:
        """Whether every question has a reduction, and nothing else of its answers is read: then no single row is."""
        return False

    def points_asked(self) -> int:
        """Points at which a question asks for a gradient, at most."""
        return 1

    def smooths_loss(self) -> bool:
        """Whether clients smooth their loss."""
        return False

    def asks(self, problem: Problem) -> "Task | None":
        """What most questions ask of one user, for its size alone; None: an average gradient at `points_asked`."""
        del problem
        return None

    def attendance(self, problem: Problem) -> tuple[Attendance, ...]:
        """Of each round; () where nothing of the kind is proved."""
        del problem
        return ()

    def assumptions(self, problem: Problem) -> tuple[Assumption, ...]:
        """What a promise of these numbers rests on."""
        del problem
        return ()

    def masked(self, problem: Problem) -> MaskedRounds | None:
        """What users' rows are for two servers; None where nobody proved that these numbers need no single rows."""
        del problem
        return None

    def sheet(self, problem: Problem, groups: int = 1) -> "Sheet":
        """What both servers and every client agree on of each round. VerificationError where there is none."""
        made = self.masked(problem)
        if made is None:
            raise VerificationError("Expected rows that two servers may sum, got a method that looks at single ones.")
        correlation = made.factorisation, self.participations(), made.separation
        sheet: Sheet = two_servers.sheet_of(made.rounds, made.adjacency, *correlation, groups)
        return sheet

    def outgrown(self, last: Mapping[str, Any]) -> bool:
        """Whether what the last round made public says that users' answers were longer than a forecast takes them."""
        del last
        return False

    def simulation_only(self) -> str | None:
        """Why a plan with these numbers is not for real clients; None: it is."""
        return None


def spans(phases: Iterable[Any]) -> list[range]:
    """Return the rounds of each of consecutive phases, which have `rounds` each."""
    ends = accumulate((phase.rounds for phase in phases), initial=0)
    return [range(first, end) for first, end in pairwise(ends)]


class EqualRounds(Parameters):
    """Numbers of a run that asks `cohort_size` users in each of `rounds` rounds, any user in any round."""

    __slots__ = ()
    cohort_size: int
    rounds: int

    def cohorts(self) -> tuple[int, ...]:
        """As many users in every round."""
        return (self.cohort_size,) * self.rounds

    def participations(self) -> int:
        """In every round."""
        return self.rounds


class PhasedRounds(Parameters):
    """Numbers of a run that asks all users of a phase in each of its rounds; phases share no user."""

    __slots__ = ()
    phases: Sequence[Any]  # with `users` and `rounds`

    def cohorts(self) -> tuple[int, ...]:
        """All users of a phase, in each of its rounds."""
        return tuple(phase.users for phase in self.phases for _ in range(phase.rounds))

    def participations(self) -> int:
        """Those of the longest phase."""
        return int(max(phase.rounds for phase in self.phases))


class ContractingPhases(Parameters):
    """Numbers of a run in phases of SGD steps that bring no two iterates farther apart, `cohort_size` users a step."""

    __slots__ = ()
    phases: Sequence[Any]  # with `rounds`, `noise` and `entry`
    if TYPE_CHECKING:

        @property
        def cohort_size(self) -> int:
            """Users asked in the first round."""

    def mechanism(self, phase: Any) -> object:
        """Return what the theorem of a phase's release is about."""
        return phase.noise

    def stretches(self, problem: Problem) -> Iterator[Rounds]:
        """One noisy average at the end of each phase; as printed, a halt ends the run without those that are left."""
        for index, phase in enumerate(self.phases):
            halts = isinstance(self, PrintedParameters)
            made = RoundRelease(self.mechanism(phase), phase.entry(index), tested=halts, at_end=True)
            yield Rounds(phase.rounds, self.cohort_size, gradients(problem), (made,))

    def releases(self, dimension: int) -> tuple[PlannedRelease, ...]:
        """One noisy average at the end of each phase."""
        del dimension
        return tuple(
            PlannedRelease(self.mechanism(phase), phase.entry(index), 1, rounds, None)
            for index, (phase, rounds) in enumerate(zip(self.phases, spans(self.phases), strict=True))
        )

    def cohorts(self) -> tuple[int, ...]:
        """As many users in every round."""
        return (self.cohort_size,) * sum(map(len, spans(self.phases)))

    def assumptions(self, problem: Problem) -> tuple[Assumption, ...]:
        """Non-expansive steps, and participation that tells nothing of the iterates."""
        del problem
        return CONTRACTION


@dataclass(frozen=True, slots=True)
class PrintedParameters(Parameters):
    """Public numbers of an algorithm exactly as its paper prints it: for comparison, in simulations."""

    epsilon: float  # that the paper claims
    delta: float
    filled_in: tuple[str, ...]  # constants that the paper leaves open, and what stands for them here
    void: tuple[str, ...]  # conditions of the paper's own lemmas that these numbers break, and steps without a proof

    def remarks(self) -> tuple[str, ...]:
        """Return the paper's claim, the constants that were filled in and the void conditions, a sentence each."""
        claim = f"As printed, for simulations only: the paper claims ε = {self.epsilon:g}, δ = {self.delta:g}."
        filled = (f"Filled in where the paper leaves a constant open: {'; '.join(self.filled_in)}.",)
        return (claim, *(filled if self.filled_in else ()), *self.void)

    def simulation_only(self) -> str:
        """Return the reason, whatever an accountant finds for the numbers."""
        return "its numbers are those that the paper prints, for comparison"
