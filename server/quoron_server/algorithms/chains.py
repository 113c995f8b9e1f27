"""Chains of users, each taking a local pass of SGD from where the one before it stopped, and a release of their means.

What `outlier-iterates` and the algorithm that Lowy, Liu & Asi (2024) print share: docs/papers/lowy.md.
"""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from quoron_client.protocol.questions import Answers, LocalSGD, Question
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.noise.streams import NoiseSource
from quoron_privacy.release import Release
from quoron_privacy.robust.laplace_gate import LaplaceOneShot
from quoron_privacy.robust.smooth_test import OneShot
from quoron_server.algorithm import InPhases, P, Update, Vector
from quoron_server.algorithms.slots import partition
from quoron_server.parameters import Parameters, PrintedParameters
from quoron_server.problem import Problem
from quoron_server.schedule import RoundRelease, Rounds

Chains = NDArray[np.bool_]  # (C,)


@dataclass(frozen=True, slots=True)
class ChainPhase:
    """One phase's public numbers."""

    users: int  # N: users of a chain, one after another, which is the phase's rounds
    averaged: int  # the iterates of the last so many of them are averaged
    step_size: float  # η
    radius: float  # τ
    release_scale: float  # σ, standard deviation per coordinate
    release: OneShot | LaplaceOneShot  # test and aggregate

    @property
    def rounds(self) -> int:
        """Of the phase: one for each user of a chain."""
        return self.users

    @property
    def noise(self) -> GaussianNoise:
        """Of the phase's release."""
        return GaussianNoise(self.release.mean.sensitivity * self.radius, self.release_scale)

    def entry(self, index: int) -> Release:
        """Return the ledger entry of the phase's release, or of its having none."""
        figures = {"scale": self.release_scale, "radius": self.radius, "core": float(self.release.mean.core)}
        return Release("outlier-mean", {"phase": float(index), **figures})


class ChainRounds(Parameters):
    """Numbers of a run whose rounds ask the next user of each of `cohort_size` chains."""

    __slots__ = ()
    cohort_size: int
    phases: tuple[ChainPhase, ...]

    def stretches(self, problem: Problem) -> Iterator[Rounds]:
        """Local passes of a user of every chain; one noisy mean a phase, behind its test."""
        for index, phase in enumerate(self.phases):  # as printed, a halt ends the run without those that are left
            task = LocalSGD(np.zeros((1, problem.dimension)), phase.step_size, problem.domain)
            halts = isinstance(self, PrintedParameters)
            made = RoundRelease(phase.release, phase.entry(index), tested=halts, at_end=True)
            yield Rounds(phase.users, self.cohort_size, task, (made,))


def largest(problem: Problem) -> float:
    """Return what no coordinate of a local pass exceeds: it ends in the domain."""
    return problem.domain.norm_bound(problem.dimension) * (1 + 1e-9)


@dataclass(frozen=True, slots=True, eq=False)
class ChainState:
    """Everything between two rounds."""

    round: int
    released: Vector  # x_{i-1}
    iterates: Vector  # (C, d), where each chain stands
    averages: Vector  # (C, d), the phase's averages so far
    whole: Chains  # chains that nobody has broken in this phase
    halted: bool  # as printed: whether all phases from here on output 0


class ChainSGD(InPhases[P]):
    """Phases of chains, but for what is released at their ends; parameters are `ChainRounds`."""

    halts = False  # whether a phase that releases nothing ends the run

    def init(self) -> ChainState:
        """x_0 = 0, and the chains of the first phase."""
        return self._begin(0, np.zeros(self.plan.problem.dimension), halted=False)

    def request(self, state: ChainState, noise: NoiseSource) -> Question | None:
        """One local pass of the next user of every chain, broken or not: nobody sees from the schedule which are."""
        if state.halted or state.round == self._ends[-1]:
            return None
        chains, problem = len(state.iterates), self.plan.problem
        cohort = partition(seed=self.plan.seed, users=problem.users)[state.round * chains :][:chains]
        step_size = self._phase(state).step_size
        return Question(state.round, cohort, LocalSGD(state.iterates, step_size, problem.domain))

    def update(self, state: ChainState, answers: Answers, noise: NoiseSource) -> Update[ChainState]:
        """Hand the iterates on; at the end of a phase, its release.

        A row that no local pass can produce breaks its own chain: its clients get the phase's start from then on.
        """
        index, phase, problem = self.phase_index(state.round), self._phase(state), self.plan.problem
        left = int(self._ends[index]) - state.round
        whole = state.whole & answers.answered & (np.abs(answers.values) <= largest(problem)).all(axis=(1, 2))
        values = np.where(whole[:, None, None], answers.values, 0.0)
        iterates = np.where(whole[:, None], problem.domain.project(values[:, 0]), state.released)
        averages = state.averages + values[:, 1] / phase.averaged if left <= phase.averaged else state.averages
        moved = replace(state, round=state.round + 1, iterates=iterates, averages=averages, whole=whole)
        private: dict[str, float] = {"broken_chains": int(np.sum(~whole))}
        if left > 1:
            return Update(moved, (), {"phase": index}, private)
        passed, released, seen = self.released(moved, phase, noise, index)
        ended = self._begin(moved.round, released, halted=self.halts and not passed)
        return Update(ended, (phase.entry(index),), {"phase": index, "halted": not passed}, private | seen)

    @abstractmethod
    def released(
        self, state: ChainState, phase: ChainPhase, noise: NoiseSource, index: int
    ) -> tuple[bool, Vector, dict[str, float]]:
        """Return whether the phase's test passes, x_i, and diagnostics."""

    def model(self, state: ChainState) -> Vector:
        """Return the last release."""
        return state.released

    def iterate(self, state: ChainState) -> Vector:
        """Return the mean of the points of the next question."""
        mean: Vector = state.iterates.mean(axis=0)
        return mean

    def _phase(self, state: ChainState) -> ChainPhase:
        phases: tuple[ChainPhase, ...] = self.plan.parameters_of(ChainRounds).phases
        return phases[self.phase_index(state.round)]

    def _begin(self, round_: int, start: Vector, *, halted: bool) -> ChainState:
        chains = self.plan.parameters_of(ChainRounds).cohort_size
        starts = np.tile(start, (chains, 1))
        return ChainState(round_, start, starts, np.zeros_like(starts), np.ones(chains, np.bool_), halted)
