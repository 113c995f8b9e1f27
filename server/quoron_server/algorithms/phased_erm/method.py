"""Phased ERM: regularised empirical risk minimisation on fresh, disjoint users, one noisy release a phase.

    x_0 = 0
    for phase k:   c = x_{k-1}, users D_k;      J_k times                        (Zhang, Thekumparampil, Oh & He 2022)
        gd:    g = (1/n_k) Σ_{u in D_k} ∇F_u(x) + λ_k (x - c);      x = Proj(x - η_k g)                 x = c at first
        agd:   y = (x + α z)/(1 + α);   g at y as above;            z = Proj(α y + (1 - α) z - (α/λ_k) g)
               x = α z + (1 - α) x                                  α = √(λ_k / (β + λ_k));         x = z = c at first
        x_k = Proj(x + N(0, σ_k² I))

The paper asks for a point near the minimiser, by any solver. Here the number of steps is fixed, and what is charged is
how far one user moves the point that those steps reach: by contraction for `gd`, from a certificate for `agd`. Nobody
clips, and no step looks at data for when to stop. Statement and proof: docs/privacy/phased-erm.md.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from quoron_client.protocol.questions import Answers, AverageGradient, Question
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.noise.streams import NoiseSource
from quoron_server.algorithm import InPhases, Update, Vector
from quoron_server.algorithms.localised.method import PlainMean
from quoron_server.algorithms.slots import partition
from quoron_server.parameters import Assumption, Kind, Parameters
from quoron_server.problem import Problem
from quoron_server.schedule import RoundRelease, Rounds, gradients

Solver = Literal["gd", "agd"]
SIMULATED = (
    "solver='agd' rests on a certificate that one absent client voids; take solver='gd', whose bound holds for "
    "absences, or simulate"
)


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase's public numbers."""

    first: int  # its users hold the slots first .. first + users - 1
    users: int  # n_k, all of them asked in every step
    rounds: int  # J_k
    step_size: float  # η_k of gd
    regularisation: float  # λ_k
    sensitivity: float  # Δ_k: one user replaced moves the last point by at most this, in ℓ2
    release_scale: float  # σ_k, standard deviation per coordinate

    @property
    def noise(self) -> GaussianNoise:
        """Of the phase's release."""
        return GaussianNoise(self.sensitivity, self.release_scale)


def apart(problem: Problem, solver: Solver, phase: Phase) -> float:
    """Δ of a phase by its recursion: the distance shrinks by 1 - ηλ and grows by 2Lη/n, step by step."""
    beta, pull = problem.beta or 0.0, phase.regularisation
    if solver == "gd":
        distance = 0.0
        for _ in range(phase.rounds):
            distance = max(1 - phase.step_size * pull, 0.0) * distance
            distance += 2 * problem.lipschitz * phase.step_size / phase.users
        return distance
    gap = problem.lipschitz**2 / pull
    for _ in range(phase.rounds):
        gap *= 1 - math.sqrt(pull / (beta + pull))
    return 2 * problem.lipschitz / (pull * phase.users) + 2 * math.sqrt(2 * gap / pull)


@dataclass(frozen=True, slots=True)
class PhasedERMParameters(Parameters):
    """Public numbers of one run."""

    solver: Solver
    phases: tuple[Phase, ...]
    mu: float  # GDP parameter of every phase, as computed

    def stretches(self, problem: Problem) -> Iterator[Rounds]:
        """All users of a phase, in all of its rounds; one noisy point a phase."""
        for phase in self.phases:
            made = RoundRelease(phase.noise, phase.noise.entry(), self.mu, at_end=True)
            yield Rounds(phase.rounds, phase.users, gradients(problem), (made,), often=phase.rounds)

    def assumptions(self, problem: Problem) -> tuple[Assumption, ...]:
        """Contraction, and whatever the solver's bound takes of absences."""
        del problem
        absent = Kind.UNMOVED_PARTICIPATION if self.solver == "gd" else Kind.FULL_PARTICIPATION
        return tuple(map(Assumption, (Kind.CONTRACTING_LOSSES, Kind.TRUE_GRADIENTS, absent)))

    def simulation_only(self) -> str | None:
        """Of the accelerated solver."""
        return SIMULATED if self.solver == "agd" else None


@dataclass(frozen=True, slots=True, eq=False)
class PhasedERMState:
    """Everything between two rounds."""

    round: int
    released: Vector  # c = x_{k-1}
    x: Vector
    z: Vector  # of agd; x for gd


class PhasedERM(InPhases[PhasedERMParameters]):
    """Algorithm object for a plan with PhasedERMParameters."""

    kind = PhasedERMParameters

    def init(self) -> PhasedERMState:
        """Start at zero."""
        zero = np.zeros(self.plan.problem.dimension)
        return PhasedERMState(0, zero, zero, zero)

    def request(self, state: PhasedERMState, noise: NoiseSource) -> Question | None:
        """Average gradients of all users of the phase."""
        del noise
        if state.round == self._ends[-1]:
            return None
        phase, problem = self.parameters.phases[self.phase_index(state.round)], self.plan.problem
        cohort = partition(seed=self.plan.seed, users=problem.users)[phase.first : phase.first + phase.users]
        point = self._point(state, phase)
        return Question(state.round, cohort, AverageGradient(point[None, :], (1.0,), problem.user_smoothness))

    def update(self, state: PhasedERMState, answers: Answers, noise: NoiseSource) -> Update[PhasedERMState]:
        """One step; at the end of a phase, its release."""
        index = self.phase_index(state.round)
        phase, project = self.parameters.phases[index], self.plan.problem.domain.project
        mean = PlainMean(phase.users, self.plan.problem.lipschitz).aggregate(answers, noise, state.round)
        point = self._point(state, phase)
        gradient = mean.gradient + phase.regularisation * (point - state.released)
        if self.parameters.solver == "gd":
            x = z = project(point - phase.step_size * gradient)
        else:
            share = momentum(phase.regularisation, self.plan.problem.beta or 0.0)
            z = project(share * point + (1 - share) * state.z - share / phase.regularisation * gradient)
            x = share * z + (1 - share) * state.x
        moved = replace(state, round=state.round + 1, x=x, z=z)
        public: dict[str, Any] = {"phase": index}
        if moved.round < self._ends[index]:
            return Update(moved, (), public)
        released = project(phase.noise.release(x, noise.stream("release", index)))
        return Update(PhasedERMState(moved.round, released, released, released), (phase.noise.entry(),), public)

    def model(self, state: PhasedERMState) -> Vector:
        """The last release."""
        return state.released

    def iterate(self, state: PhasedERMState) -> Vector:
        """Where the phase's steps have come to."""
        return state.x

    def _point(self, state: PhasedERMState, phase: Phase) -> Vector:
        """Where the gradient is taken: in the domain, as x and z are."""
        if self.parameters.solver == "gd":
            return state.x
        share = momentum(phase.regularisation, self.plan.problem.beta or 0.0)
        point: Vector = (state.x + share * state.z) / (1 + share)
        return point


def momentum(regularisation: float, smoothness: float) -> float:
    """α = √(λ / (β + λ)): every step of agd takes this share off the gap."""
    return math.sqrt(regularisation / (smoothness + regularisation))
