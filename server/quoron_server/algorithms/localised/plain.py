"""The rule of plain means: the mean of a cohort with a fixed divisor (Feldman, Koren & Talwar 2020, Algorithm 2)."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from quoron_client.protocol.questions import Answers, PlacedGradient
from quoron_privacy.noise.streams import NoiseSource
from quoron_server.algorithms.localised.method import Aggregate, LocalisedParameters, Phase, Rule
from quoron_server.parameters import ContractingPhases
from quoron_server.problem import Problem
from quoron_server.schedule import RoundRelease, Rounds, count_beside, gradients


@dataclass(frozen=True, slots=True)
class PhasedParameters(LocalisedParameters):
    """Public numbers of one run."""

    mu: float  # GDP parameter of every phase, as computed

    def stretches(self, problem: Problem) -> Iterator[Rounds]:
        """One noisy average a phase, which a user moves half as far by staying away as by being another."""
        for index, phase in enumerate(self.phases):
            made = RoundRelease(phase.noise, phase.entry(index), self.mu, at_end=True)
            yield Rounds(phase.rounds, self.cohort_size, gradients(problem), (made,), leaks=count_beside(phase.noise))


class PlainMean(Rule):
    """The mean with fixed divisor B: absent users contribute zero."""

    def __init__(self, cohort_size: int, lipschitz: float) -> None:
        self.cohort_size, self.longest = cohort_size, lipschitz * (1 + 1e-6)

    def aggregate(self, answers: Answers, noise: NoiseSource, round_: int) -> Aggregate:
        """(1/B) Σ of the answers; absent rows are zero, and so are rows that no honest client can send."""
        del noise, round_
        with np.errstate(over="ignore"):  # an overflow is longer than anything, silently: nothing in the data may warn
            lengths = np.sqrt(np.sum(answers.values**2, axis=1))
        usable = answers.answered & (lengths <= self.longest)
        columns = np.ascontiguousarray(np.where(usable[:, None], answers.values, 0.0).T)
        # numpy adds contiguous numbers pairwise: the error stays below 1e-6 of b for any cohort that fits in memory
        return Aggregate(np.sum(columns, axis=1) / self.cohort_size)


@dataclass(frozen=True, slots=True)
class Share:
    """Whose places a phase uses: slots `first_user` on, places `first_place` on, each in one of `questions` visits."""

    first_user: int
    users: int
    first_place: int
    places: int  # k: of each user, a multiple of `questions`
    questions: int  # to each user, about places / questions of its places each
    cohorts: int  # into which the users are cut; those that are left over are never asked
    cohort_size: int  # users asked in a round

    @property
    def asked_for(self) -> int:
        """Places in one question."""
        return self.places // self.questions

    @property
    def rounds(self) -> int:
        """That ask each cohort `questions` times."""
        return self.questions * self.cohorts


@dataclass(frozen=True, slots=True)
class GroupedParameters(ContractingPhases):
    """Public numbers of one run on the items of users."""

    layout: str  # "spread": a phase uses some places of all users; "disjoint": all places of some users
    phases: tuple[Phase, ...]
    shares: tuple[Share, ...]  # of each phase
    mus: tuple[float, ...]  # GDP parameter of each phase's release
    mu: float  # and of the run

    @property
    def cohort_size(self) -> int:
        """Users asked in the first round."""
        return self.shares[0].cohort_size

    def share_of(self, round_: int) -> tuple[Share, int]:
        """The share that a round belongs to, and its number among that share's rounds."""
        for share in self.shares:
            if round_ < share.rounds:
                return share, round_
            round_ -= share.rounds
        raise IndexError(round_)

    def stretches(self, problem: Problem) -> Iterator[Rounds]:
        """One noisy average a phase, of gradients at its places."""
        for index, (phase, share, mu) in enumerate(zip(self.phases, self.shares, self.mus, strict=True)):
            places, point = np.arange(share.asked_for, dtype=np.int64)[None, :], np.zeros((1, problem.dimension))
            task = PlacedGradient(point, places, float(share.asked_for), None, share.asked_for)
            made = RoundRelease(phase.noise, phase.entry(index), mu, at_end=True)
            fresh = self.layout != "spread"
            yield Rounds(share.rounds, share.cohort_size, task, (made,), often=share.questions, fresh=fresh)


class PlainMeans(Rule):
    """`PlainMean` of each round's own cohort."""

    def __init__(self, parameters: GroupedParameters, lipschitz: float) -> None:
        self.parameters, self.lipschitz = parameters, lipschitz

    def aggregate(self, answers: Answers, noise: NoiseSource, round_: int) -> Aggregate:
        """(1/B) Σ of the answers, B the round's cohort."""
        share, _ = self.parameters.share_of(round_)
        return PlainMean(share.cohort_size, self.lipschitz).aggregate(answers, noise, round_)
