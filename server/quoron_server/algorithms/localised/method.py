"""Localisation: phases of projected SGD on fresh, disjoint users, each ending in one noisy release.

    x_0 = 0
    for phase s:                                  (Ghazi et al. Algorithm 1; Feldman, Koren & Talwar 2020, Algorithm 2)
        x = x_{s-1}
        for t = 1..T_s:   g = rule.aggregate(gradients of the next B users at x);   x = Proj(x - η_s g)
        x_s = Proj(Σ_t w_t x_t + N(0, σ_s² I))    if rule.passes(tally) else x_{s-1}      (HALT)

What differs between algorithms is the rule: how a cohort's gradients become one, and whether the phase may release. The
rules that look at no single answer, means with a fixed divisor (Feldman, Koren & Talwar 2020), are here.

The weights w_t are uniform on the last `suffix` iterates: any public combination is as private as the plain average,
because the coupling bounds every iterate (docs/privacy/outlier-filter.md#f1). A phase that will halt goes on asking its
users: nothing visible, neither timing nor the schedule, depends on data before the phase's end.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from quoron_client.protocol.questions import Answers, AverageGradient, PlacedGradient, Question
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.noise.streams import NoiseSource
from quoron_privacy.release import Release
from quoron_server.algorithm import InPhases, Update, Vector
from quoron_server.algorithms.slots import partition
from quoron_server.parameters import ContractingPhases
from quoron_server.problem import Problem
from quoron_server.schedule import RoundRelease, Rounds, count_beside, gradients


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase's public numbers."""

    rounds: int  # T_s
    step_size: float  # η_s
    suffix: int  # the last so many iterates are averaged
    sensitivity: float  # b: one user replaced moves the average by at most this, in ℓ2
    release_scale: float  # σ_s, standard deviation per coordinate; 0 releases without noise

    @property
    def noise(self) -> GaussianNoise | None:
        """Of the phase's release."""
        return GaussianNoise(self.sensitivity, self.release_scale) if self.release_scale else None

    def entry(self, index: int) -> Release:
        """Return the ledger entry of the phase's release, or of its having none."""
        return Release("phase", {"phase": index, "scale": self.release_scale, "sensitivity": self.sensitivity})


@dataclass(frozen=True, slots=True)
class LocalisedParameters(ContractingPhases):
    """What all runs in phases of equal cohorts have in common."""

    cohort_size: int  # B
    phases: tuple[Phase, ...]


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One cohort's gradient estimate, its part of the phase's test statistic, and simulation diagnostics."""

    gradient: Vector  # (d,)
    tally: float = 0.0
    diagnostics: Mapping[str, Any] = field(default_factory=dict)


Numbers = TypeVar("Numbers", bound=ContractingPhases)


@dataclass(frozen=True, slots=True, eq=False)
class LocalisedState:
    """Everything between two rounds."""

    round: int
    released: Vector  # x_{s-1}
    iterate: Vector  # x_t
    running: Vector  # weighted sum of the phase's iterates so far
    tally: float


class LocalisedSGD(InPhases[Numbers]):
    """Any run in phases, but for how answers become one gradient; test statistics start at 0 and never fall."""

    @abstractmethod
    def aggregate(self, answers: Answers, noise: NoiseSource, round_: int) -> Aggregate:
        """Return the estimate for the cohort of `round_`."""

    def combine(self, tally: float, more: float) -> float:
        """Return the phase's test statistic with that of one more round: their sum."""
        return tally + more

    def passes(self, tally: float, noise: NoiseSource, phase: int) -> bool:
        """Return whether phase number `phase`, with this test statistic, may release: always."""
        return True

    def question(self, round_: int, point: Vector) -> Question:
        """Return what is asked about a point: average gradients of the next `cohort_size` users."""
        size = self.parameters.cohort_size
        cohort = partition(seed=self.plan.seed, users=self.plan.problem.users)[round_ * size : (round_ + 1) * size]
        return Question(round_, cohort, AverageGradient(point[None, :], (1.0,), self.plan.problem.user_smoothness))

    def init(self) -> LocalisedState:
        """Start at zero."""
        zero = np.zeros(self.plan.problem.dimension)
        return LocalisedState(0, zero, zero, zero, 0.0)

    def request(self, state: LocalisedState, noise: NoiseSource) -> Question | None:
        """Return what is asked about the current iterate."""
        return None if state.round == self._ends[-1] else self.question(state.round, state.iterate)

    def update(self, state: LocalisedState, answers: Answers, noise: NoiseSource) -> Update[LocalisedState]:
        """One SGD step; at the end of a phase, its release."""
        index = self.phase_index(state.round)
        phase, left = self.parameters.phases[index], int(self._ends[index]) - state.round
        estimate = self.aggregate(answers, noise, state.round)
        iterate = self.plan.problem.domain.project(state.iterate - phase.step_size * estimate.gradient)
        moved = replace(
            state,
            round=state.round + 1,
            iterate=iterate,
            running=state.running + iterate / phase.suffix if left <= phase.suffix else state.running,
            tally=self.combine(state.tally, estimate.tally),
        )
        public: dict[str, Any] = {"phase": index}
        if left > 1:
            return Update(moved, (), public, estimate.diagnostics)
        passed = self.passes(moved.tally, noise, index)
        released = self._release(moved.running, phase, noise, index) if passed else state.released
        ended = LocalisedState(moved.round, released, released, np.zeros_like(released), 0.0)
        return Update(ended, (phase.entry(index),), public | {"halted": not passed}, estimate.diagnostics)

    def model(self, state: LocalisedState) -> Vector:
        """Return the last release."""
        return state.released

    def iterate(self, state: LocalisedState) -> Vector:
        """Return the point of the next question."""
        return state.iterate

    def _release(self, average: Vector, phase: Phase, noise: NoiseSource, index: int) -> Vector:
        if (mechanism := phase.noise) is not None:
            average = mechanism.release(average, noise.stream("release", index))
        return self.plan.problem.domain.project(average)


@dataclass(frozen=True, slots=True)
class PhasedParameters(LocalisedParameters):
    """Public numbers of one run."""

    mu: float  # GDP parameter of every phase, as computed

    def stretches(self, problem: Problem) -> Iterator[Rounds]:
        """One noisy average a phase, which a user moves half as far by staying away as by being another."""
        for index, phase in enumerate(self.phases):
            made = RoundRelease(phase.noise, phase.entry(index), self.mu, at_end=True)
            yield Rounds(phase.rounds, self.cohort_size, gradients(problem), (made,), leaks=count_beside(phase.noise))


class PlainMean(LocalisedSGD[ContractingPhases]):
    """The mean with the fixed divisor of each round: absent users contribute zero."""

    kind: type[ContractingPhases] = ContractingPhases

    def divisor(self, round_: int) -> int:
        """Return how many users a round asks."""
        return self.parameters.cohort_size

    def aggregate(self, answers: Answers, noise: NoiseSource, round_: int) -> Aggregate:
        """(1/B) Σ of the answers; absent rows are zero, and so are rows that no honest client can send."""
        with np.errstate(over="ignore"):  # an overflow is longer than anything, silently: nothing in the data may warn
            lengths = np.sqrt(np.sum(answers.values**2, axis=1))
        usable = answers.answered & (lengths <= self.plan.problem.lipschitz * (1 + 1e-6))
        columns = np.ascontiguousarray(np.where(usable[:, None], answers.values, 0.0).T)
        # numpy adds contiguous numbers pairwise: the error stays below 1e-6 of b for any cohort that fits in memory
        return Aggregate(np.sum(columns, axis=1) / self.divisor(round_))


@dataclass(frozen=True, slots=True)
class Share:
    """Which places of all users a phase uses: so many from `first_place` on, all in one question to each user."""

    first_place: int
    places: int  # k: of each user
    rounds: int  # cohorts into which the users are cut; those that are left over are never asked
    cohort_size: int  # users asked in a round


@dataclass(frozen=True, slots=True)
class GroupedParameters(ContractingPhases):
    """Public numbers of one run on the items of users."""

    phases: tuple[Phase, ...]
    shares: tuple[Share, ...]  # of each phase
    mus: tuple[float, ...]  # GDP parameter of each phase's release
    mu: float  # and of the run

    @property
    def cohort_size(self) -> int:
        """Users asked in the first round."""
        return self.shares[0].cohort_size

    def share_of(self, round_: int) -> tuple[Share, int]:
        """Return the share that a round belongs to, and its number among that share's rounds."""
        for share in self.shares:
            if round_ < share.rounds:
                return share, round_
            round_ -= share.rounds
        raise IndexError(round_)

    def stretches(self, problem: Problem) -> Iterator[Rounds]:
        """One noisy average a phase, of gradients at its places."""
        for index, (phase, share, mu) in enumerate(zip(self.phases, self.shares, self.mus, strict=True)):
            places, point = np.arange(share.places, dtype=np.int64)[None, :], np.zeros((1, problem.dimension))
            task = PlacedGradient(point, places, float(share.places), None, share.places)
            made = RoundRelease(phase.noise, phase.entry(index), mu, at_end=True)
            yield Rounds(share.rounds, share.cohort_size, task, (made,), fresh=False)


class PlacedMean(PlainMean):
    """The same of gradients at the places of a round's phase, for a plan with GroupedParameters."""

    kind = GroupedParameters

    def divisor(self, round_: int) -> int:
        """Return how many users a round asks."""
        return self.plan.parameters_of(GroupedParameters).share_of(round_)[0].cohort_size

    def question(self, round_: int, point: Vector) -> Question:
        """Return what is asked about a point: gradients at all places of the phase, of the next users."""
        share, cohort = self.plan.parameters_of(GroupedParameters).share_of(round_)
        order, first = partition(seed=self.plan.seed, users=self.plan.problem.users), cohort * share.cohort_size
        rows = np.tile(share.first_place + np.arange(share.places, dtype=np.int64), (share.cohort_size, 1))
        task = PlacedGradient(point[None, :], rows, float(share.places), None, share.places)
        return Question(round_, order[first : first + share.cohort_size], task)
