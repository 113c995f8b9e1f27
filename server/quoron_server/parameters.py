"""The face of every algorithm: what its public numbers say of a run.

An algorithm's own frozen dataclass of numbers and mechanisms derives from `Parameters`. Whatever the rest of the system
must know of a plan (whom it asks, what it releases and at what charge, what its guarantee rests on), it asks of the
very numbers that the algorithm runs by.

What a guarantee rests on beside its numbers are `Assumption`s: kinds that rules read. `wording` says them to people.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Self

from quoron_privacy.errors import ConfigError
from quoron_server.problem import Problem
from quoron_server.schedule import RoundRelease, Rounds, Schedule, gradients


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
    ABSENT_IS_OUTLIER = "absent-is-outlier"
    ABSENT_IS_ZERO_ROW = "absent-is-zero-row"
    ABSENT_IS_ZERO = "absent-is-zero"
    DECLARED_PARTICIPATION = "declared-participation"
    ONE_REPORT = "one-report"
    TWO_REPORTS = "two-reports"
    CARELESS_PARTICIPATION = "careless-participation"
    # Of a federation.
    ONE_KEY_ONE_USER = "one-key-one-user"
    ONE_PARTITION_ONE_USER = "one-partition-one-user"
    EARLY_ENDS = "early-ends"
    PERSONS_OF_SILOS = "persons-of-silos"
    SILOS_CLIP = "silos-clip"
    # What rules decide by.
    SECRET_COHORTS = "secret-cohorts"
    FORGETFUL_CLIENTS = "forgetful-clients"
    UNMOVED_PARTICIPATION = "unmoved-participation"
    PUBLIC_PARTICIPATION = "public-participation"
    DOMINANT_HESSIANS = "dominant-hessians"


# How many words and numbers the text of an assumption leaves open, where that is not none.
OPEN: Mapping[Kind, int] = MappingProxyType(
    {
        Kind.ABSENT_IS_ZERO: 1,
        Kind.DECLARED_PARTICIPATION: 1,
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


def merged(*parts: Iterable[Assumption]) -> tuple[Assumption, ...]:
    """Return all of them, each once, in the order of their kinds; those of one kind in the order given."""
    return tuple(sorted(dict.fromkeys(fact for part in parts for fact in part), key=lambda fact: _ORDER[fact.kind]))


@dataclass(frozen=True, slots=True)
class Parameters(ABC):
    """Public numbers of one run. What a method here says by default is so of an algorithm that says nothing else."""

    rests_on: ClassVar[tuple[Assumption, ...]] = ()  # of any numbers: what a guarantee of them rests on

    @abstractmethod
    def stretches(self, problem: Problem) -> Iterable[Rounds]:
        """What all rounds ask and release, by the mechanisms that the algorithm itself makes, one after the other."""

    def schedule(self, problem: Problem) -> Schedule:
        """Return what follows from the rounds."""
        return Schedule(tuple(rounds for rounds in self.stretches(problem) if rounds.count))

    @property
    def poisson_sampling(self) -> bool:
        """Whether users join a cohort independently, by Poisson sampling."""
        return False

    def long_once(self) -> bool:
        """Whether only the first answers are so long, and what is made of them looks at a block of them at a time."""
        return False

    def assumptions(self, problem: Problem) -> tuple[Assumption, ...]:
        """Return what a guarantee of these numbers rests on."""
        return self.rests_on

    def separate(self, problem: Problem) -> bool:
        """Whether every round releases fresh Gaussian noise alone, of everybody, and is as much μ-GDP as the others."""
        return False

    def forecast_broken(self, last: Mapping[str, Any]) -> bool:
        """Whether what the last round made public says that users' answers were longer than a forecast takes them."""
        del last
        return False

    def simulation_only(self) -> str | None:
        """Return why a plan with these numbers is not for real clients; None: it is."""
        return None


class ContractingPhases(Parameters):
    """Numbers of a run in phases of SGD steps that bring no two iterates farther apart, `cohort_size` users a step."""

    __slots__ = ()
    rests_on = CONTRACTION  # non-expansive steps, and participation that tells nothing of the iterates
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


@dataclass(frozen=True, slots=True)
class PrintedParameters(Parameters):
    """Public numbers of an algorithm exactly as its paper prints it: for comparison, in simulations."""

    epsilon: float  # that the paper claims
    delta: float
    filled_in: tuple[str, ...]  # constants that the paper leaves open, and what stands for them here
    void: tuple[str, ...]  # conditions of the paper's own lemmas that these numbers break, and steps without a proof

    def judged(self, conditions: Iterable[tuple[bool, str]]) -> Self:
        """Return the same, void by the sentences of those of the paper's conditions that do not hold."""
        return replace(self, void=tuple(sentence for holds, sentence in conditions if not holds))

    def remarks(self) -> tuple[str, ...]:
        """Return the paper's claim, the constants that were filled in and the void conditions, a sentence each."""
        claim = f"As printed, for simulations only: the paper claims ε = {self.epsilon:g}, δ = {self.delta:g}."
        filled = (f"Filled in where the paper leaves a constant open: {'; '.join(self.filled_in)}.",)
        return (claim, *(filled if self.filled_in else ()), *self.void)

    def simulation_only(self) -> str:
        """Return the reason, whatever an accountant finds for the numbers."""
        return "its numbers are those that the paper prints, for comparison"
