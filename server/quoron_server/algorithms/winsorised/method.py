"""Winsorised ERM: full-batch noisy gradient descent, each gradient a mean of rotated coordinates clamped in a box.

    x_0 = 0
    for phase i:   n_i fresh users, all asked in each of K_i rounds;   x = c = x_{i-1}              (Levy et al. 2021)
        X_u = ∇F_u(x);   Y_u = H D X_u                                  D: public signs, new in every round
        a_j = a private choice of the bin in which coordinate j's middle lies
        z_j = a_j + (1/n_i) Σ_u clamp(Y_uj - a_j, ±h) + N(0, σ²)
        g   = the first d coordinates of D H z;   x = Proj(x - η_i (g + λ_i (x - c)))
        x_i = the mean of the phase's last w_i iterates

Statement, proof and the three choices of h: docs/privacy/winsorised-erm.md.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from quoron_client.protocol.questions import Answers, AverageGradient, Question
from quoron_privacy.means.private_range import WinsorisedMean
from quoron_privacy.noise.streams import NoiseSource
from quoron_privacy.release import Adjacency
from quoron_server.algorithm import InPhases, Update, Vector
from quoron_server.algorithms.centring import public_signs
from quoron_server.algorithms.slots import partition
from quoron_server.parameters import Parameters
from quoron_server.problem import Problem
from quoron_server.schedule import RoundRelease, Rounds, gradients


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase's public numbers."""

    first: int  # its users hold the slots first .. first + users - 1
    users: int  # n_i
    rounds: int  # K_i
    step_size: float  # η_i
    regularisation: float  # λ_i
    suffix: int  # w_i
    mean: WinsorisedMean  # of a round
    round_mu: float  # a round is this GDP, given the past


@dataclass(frozen=True, slots=True)
class WinsorisedERMParameters(Parameters):
    """Public numbers of one run."""

    radius: str  # which choice of h: usual, fresh, uniform, or given
    adjacency: Adjacency
    phases: tuple[Phase, ...]
    mu: float  # GDP parameter of every phase

    def stretches(self, problem: Problem) -> Iterator[Rounds]:
        """Yield all users of a phase, in all of its rounds: choices and a mean."""
        for phase in self.phases:
            pairs = zip((phase.mean.crude, phase.mean.noise), phase.mean.entries(problem.dimension), strict=True)
            made = tuple(RoundRelease(*pair, phase.round_mu) for pair in pairs)
            yield Rounds(phase.rounds, phase.users, gradients(problem), made, often=phase.rounds)


@dataclass(frozen=True, slots=True, eq=False)
class WinsorisedERMState:
    """Everything between two rounds; all of it is released."""

    round: int
    centre: Vector  # c: where the phase began
    iterate: Vector  # x
    running: Vector  # sum of the averaged iterates, divided by their planned number


class WinsorisedERM(InPhases[WinsorisedERMParameters]):
    """Algorithm object for a plan with WinsorisedERMParameters."""

    kind = WinsorisedERMParameters

    def init(self) -> WinsorisedERMState:
        """Start at zero."""
        zero = np.zeros(self.plan.problem.dimension)
        return WinsorisedERMState(0, zero, zero, zero)

    def request(self, state: WinsorisedERMState, noise: NoiseSource) -> Question | None:
        """Average gradients of all users of the phase."""
        del noise
        if state.round == self._ends[-1]:
            return None
        phase, problem = self.parameters.phases[self.phase_index(state.round)], self.plan.problem
        cohort = partition(seed=self.plan.seed, users=problem.users)[phase.first : phase.first + phase.users]
        task = AverageGradient(state.iterate[None, :], (1.0,), problem.user_smoothness)
        return Question(state.round, cohort, task)

    def update(self, state: WinsorisedERMState, answers: Answers, noise: NoiseSource) -> Update[WinsorisedERMState]:
        """Release the winsorised mean, and step."""
        index, t = self.phase_index(state.round), state.round
        phase = self.parameters.phases[index]
        signs = public_signs(self.plan.seed, t, len(state.iterate))
        gradient, clamped = phase.mean.release(
            answers.values, answers.answered, signs, noise.stream("range", t), noise.stream("release", t)
        )
        pull = phase.regularisation * (state.iterate - state.centre)
        iterate = self.plan.problem.domain.project(state.iterate - phase.step_size * (gradient + pull))
        left = int(self._ends[index]) - t
        running = state.running + iterate / phase.suffix if left <= phase.suffix else state.running
        after = WinsorisedERMState(t + 1, state.centre, iterate, running)
        if left == 1:
            after = WinsorisedERMState(t + 1, running, running, np.zeros_like(running))
        answered = int(np.sum(answers.answered))
        diagnostics: dict[str, Any] = {"answered": answered, "clamped_fraction": clamped / max(1, answered)}
        return Update(after, phase.mean.entries(len(iterate)), {"phase": index}, diagnostics)

    def model(self, state: WinsorisedERMState) -> Vector:
        """Return where the last complete phase ended, or within a phase the iterate."""
        return state.iterate
