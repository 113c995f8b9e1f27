"""Phased local SGD with outlier-iterate removal: Lowy, Liu & Asi (2024), Algorithm 1, with a test and noise of our own.

    x_0 = 0
    for phase i:   C chains side by side, each of N_i users one after another, all on fresh users
        a user takes one local pass of SGD from the iterate that it gets, and hands its last one on
        y_j = mean of the iterates along chain j
        S = #{(j, j') : ‖y_j - y_j'‖ <= τ_i}
        x_i = Proj(weighted mean of the y_j that lie close to most + N(0, σ_i² I))   if the test of S releases
        x_i = x_{i-1}                                                                otherwise

Privacy asks nothing of the losses: it holds for arbitrary vectors y_j, so clients may clip, and losses may be rough or
not convex. A chain in which anybody is silent, late or sends nonsense is an isolated point for the phase. Clients see
iterates without noise (trust model `central-release`), unless every chain is one user long (`central-broadcast`).

Changed from print, with proofs in docs/privacy/outlier-iterates.md: lottery and weighted mean in place of Laplace test
and random inclusion, our ramp, exact calibration, projected releases, free sizes.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from quoron_client.protocol.questions import Answers, LocalSGD, Question
from quoron_privacy.noise.streams import NoiseSource
from quoron_privacy.robust.outlier_mean import Observation
from quoron_server.algorithm import InPhases, Update, Vector
from quoron_server.algorithms.chains import ChainPhase, ChainRounds, Chains, handed_on
from quoron_server.algorithms.slots import partition

RELEASED, HALTED, PENDING = 1, 0, -1


@dataclass(frozen=True, slots=True)
class OutlierIterateParameters(ChainRounds):
    """Public numbers of one run."""

    cohort_size: int  # C: chains side by side, so users asked in a round
    phases: tuple[ChainPhase, ...]


@dataclass(frozen=True, slots=True, eq=False)
class OutlierIterateState:
    """Everything between two rounds."""

    round: int
    released: Vector  # x_{i-1}
    iterates: Vector  # (C, d), where each chain stands
    averages: Vector  # (C, d), the phase's averages so far
    whole: Chains  # chains that nobody has broken in this phase
    statuses: NDArray[np.int64]  # per phase, RELEASED, HALTED or PENDING


class OutlierIterates(InPhases[OutlierIterateParameters]):
    """Algorithm object for a plan with OutlierIterateParameters."""

    kind = OutlierIterateParameters

    def init(self) -> OutlierIterateState:
        """Start at zero."""
        return self._begin(0, np.zeros(self.plan.problem.dimension), np.full(len(self._ends), PENDING, np.int64))

    def request(self, state: OutlierIterateState, noise: NoiseSource) -> Question | None:
        """One local pass of the next user of every chain, broken or not: nobody sees from the schedule which are."""
        del noise
        if state.round == self._ends[-1]:
            return None
        chains, problem = self.parameters.cohort_size, self.plan.problem
        first = state.round * chains
        cohort = partition(seed=self.plan.seed, users=problem.users)[first : first + chains]
        step = self.parameters.phases[self.phase_index(state.round)].step_size
        return Question(state.round, cohort, LocalSGD(state.iterates, step, problem.domain))

    def update(self, state: OutlierIterateState, answers: Answers, noise: NoiseSource) -> Update[OutlierIterateState]:
        """Hand the iterates on; at the end of a phase, its release."""
        index = self.phase_index(state.round)
        phase, left = self.parameters.phases[index], int(self._ends[index]) - state.round
        iterates, means, whole = handed_on(answers, state.whole, state.released, self.plan.problem)
        moved = replace(
            state,
            round=state.round + 1,
            iterates=iterates,
            averages=state.averages + means / phase.averaged if left <= phase.averaged else state.averages,
            whole=whole,
        )
        diagnostics = {"broken_chains": int(np.sum(~whole))}
        if left > 1:
            return Update(moved, (), {"phase": index}, diagnostics)
        passed, released, seen = self._release(moved, phase, noise, index)
        statuses = state.statuses.copy()
        statuses[index] = RELEASED if passed else HALTED
        ended = self._begin(moved.round, released, statuses)
        mean = phase.release.mean
        private: dict[str, float] = {
            "removed_chains": int(np.sum(seen.weights == 0)),
            "weight": float(seen.weights.mean()) / (mean.ramp_high - mean.ramp_low),
            "score": seen.score / mean.cohort_size**2,
        }
        return Update(ended, (phase.entry(index),), {"phase": index, "halted": not passed}, diagnostics | private)

    def model(self, state: OutlierIterateState) -> Vector:
        """Return the last release."""
        return state.released

    def iterate(self, state: OutlierIterateState) -> Vector:
        """Return the mean of the points of the next question."""
        mean: Vector = state.iterates.mean(axis=0)
        return mean

    def _begin(self, round_: int, start: Vector, statuses: NDArray[np.int64]) -> OutlierIterateState:
        chains = self.parameters.cohort_size
        return OutlierIterateState(
            round=round_,
            released=start,
            iterates=np.tile(start, (chains, 1)),
            averages=np.zeros((chains, len(start))),
            whole=np.ones(chains, np.bool_),
            statuses=statuses,
        )

    def _release(
        self, state: OutlierIterateState, phase: ChainPhase, noise: NoiseSource, index: int
    ) -> tuple[bool, Vector, Observation]:
        """Return whether the phase releases, the next phase's start, and what the test saw."""
        release, domain = phase.release, self.plan.problem.domain
        mean = release.mean
        seen = mean.observe(state.averages, state.whole, radius=phase.radius, reference=state.released)
        if not release.test.decide(seen.score, noise.stream("test", index)):
            return False, state.released, seen
        shift = mean.aggregate(state.averages, seen.weights, radius=phase.radius, reference=state.released)
        noisy = phase.noise.release(shift, noise.stream("release", index))
        return True, domain.project(state.released + noisy), seen
