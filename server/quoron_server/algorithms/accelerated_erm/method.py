"""Accelerated phased ERM: multi-stage AC-SA on disjoint users, outlier gradients removed, one noisy release a step.

    for phase i:                                       (fresh users D_i, fixed by a public permutation; c = x_{i-1})
        AC-SA on (1/n_i) Σ_{u in D_i} F_u(x) + (λ_i/2) ‖x - c‖², with at every step
            q_u = ∇F_u(md)    for K_i users of D_i: a secret uniform subset, or all of them
            S   = #{(u, v) : ‖q_u - q_v‖ <= τ};   a private test of S decides whether the step is released
            g   = r + (mean of q_u - r, outliers weighing nothing) + N(0, σ_i² I);     r = the last released gradient
            step with g + λ_i (md - c)
        x_i = the last stage's aggregate point

A step whose test fails is skipped: nothing moves, and the stage has one step less; later steps go on. Users are asked
as planned in any case: nothing visible but the releases depends on data. Everything sent out is a function of releases:
trust model `central-broadcast`.

Source: Lowy, Liu & Asi (2024), Algorithms 2 and 3, section 4; where this differs from the paper, and
why, and the proof: docs/privacy/accelerated-erm.md.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from quoron_client.protocol.questions import Answers, AverageGradient, Question
from quoron_client.protocol.smoothing import Convolution
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.noise.streams import NoiseSource
from quoron_privacy.release import Release
from quoron_privacy.robust.subsampled_lottery import SubsampledLottery
from quoron_server.algorithm import InPhases, Update, Vector
from quoron_server.algorithms import acsa
from quoron_server.algorithms.acsa import Shape
from quoron_server.algorithms.slots import partition
from quoron_server.parameters import Assumption, Kind, Parameters
from quoron_server.problem import Problem
from quoron_server.schedule import RoundRelease, Rounds, gradients


@dataclass(frozen=True, slots=True)
class AcceleratedERMOptions:
    """Planning options; None lets the plan choose by predicted excess risk."""

    rounds: int | None = None  # all of them, exactly
    phases: int | None = None
    stages: int | None = None  # of each phase
    cohort: int | None = None  # K; at most a phase's users
    regularisation: float | None = None  # λ_1
    radius: float | None = None  # τ, from public knowledge
    smoothing: float | None = None  # r, for losses whose slope jumps


class ReleasedGradients:
    """What public numbers say of gradients that are released: tested and without outliers."""

    __slots__ = ()
    cohort_size: int  # K
    radius: float  # τ
    accounting: SubsampledLottery  # the mechanism with its account
    noise_scale: float  # σ per coordinate, rounding included
    if TYPE_CHECKING:

        @property
        def users(self) -> int:
            """Whom cohorts are drawn from."""

        @property
        def rounds(self) -> int:
            """How many gradients."""

    @property
    def noise(self) -> GaussianNoise:
        """Of a released step."""
        return GaussianNoise(self.radius * self.accounting.mean.sensitivity, self.noise_scale)


@dataclass(frozen=True, slots=True)
class Phase(ReleasedGradients):
    """One phase's public numbers."""

    first: int  # its users hold the slots first .. first + users - 1
    users: int  # n_i
    cohort_size: int  # K_i
    stages: tuple[int, ...]  # N_1 .. N_S
    regularisation: float  # λ_i
    strength: float  # μ of the steps: λ_i and what is known of the loss's curvature
    smoothness: float  # Ls
    radius: float  # τ
    accounting: SubsampledLottery
    noise_scale: float  # σ_i per coordinate, rounding included

    @property
    def rounds(self) -> int:
        """T_i."""
        return sum(self.stages)

    @property
    def drawn(self) -> bool:
        """Whether cohorts are secret uniform subsets; else they are all of the users."""
        return self.cohort_size < self.users

    @property
    def shape(self) -> Shape:
        """What a step knows of the objective."""
        return Shape(self.strength, self.smoothness)


@dataclass(frozen=True, slots=True)
class AcceleratedERMParameters(Parameters):
    """Public numbers of one run."""

    phases: tuple[Phase, ...]
    smoothing: float | None  # r

    def stretches(self, problem: Problem) -> Iterator[Rounds]:
        """A decision in every round, and the noisy step where it passes.

        Beside what a test may withhold there is no room for a count.
        """
        task = gradients(problem, smoothing=None if self.smoothing is None else Convolution(self.smoothing, 0))
        for phase in self.phases:
            test, step = phase.accounting.lottery, RoundRelease(phase.accounting, phase.noise.entry(), tested=True)
            made = RoundRelease(test, test.entry()), step
            yield Rounds(phase.rounds, phase.cohort_size, task, made, often=phase.rounds)

    def assumptions(self, problem: Problem) -> tuple[Assumption, ...]:
        """Secret cohorts, unless everybody is asked."""
        drawn = any(phase.drawn for phase in self.phases)
        secret = (Kind.SECRET_COHORTS, Kind.FORGETFUL_CLIENTS) if drawn else ()
        return tuple(map(Assumption, (Kind.ABSENT_IS_OUTLIER, *secret)))


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What became of one cohort's answers."""

    gradient: Vector | None  # None: the test withheld it
    entries: tuple[Release, ...]
    diagnostics: dict[str, Any]  # functions of private data, for simulation only


def released_gradient(
    p: ReleasedGradients, answers: Answers, reference: Vector, noise: NoiseSource, round_: int
) -> Outcome:
    """Return the gradient of one round, where its test passes."""
    mean_of, test, answered = p.accounting.mean, p.accounting.lottery, int(np.sum(answers.answered))
    seen = mean_of.observe(answers.values, answers.answered, radius=p.radius, reference=reference)
    diagnostics = {
        "answered": answered,
        "concentration": seen.score / len(seen.weights) ** 2,
        "removed": answered - int(np.count_nonzero(seen.weights)),
    }
    if not test.decide(seen.score, noise.stream("test", round_)):
        return Outcome(None, (test.entry(),), diagnostics)
    shift = mean_of.aggregate(answers.values, seen.weights, radius=p.radius, reference=reference)
    gradient = reference + p.noise.release(shift, noise.stream("release", round_))
    return Outcome(gradient, (test.entry(), p.noise.entry()), diagnostics)


@dataclass(frozen=True, slots=True, eq=False)
class AcceleratedERMState:
    """Everything between two rounds; all of it a function of releases."""

    round: int
    centre: Vector  # c: where the phase began
    x: Vector
    ag: Vector
    steps: int  # released steps of the stage
    gradient: Vector  # the last released one


class AcceleratedERM(InPhases[AcceleratedERMParameters]):
    """Algorithm object for a plan with AcceleratedERMParameters."""

    kind = AcceleratedERMParameters

    def init(self) -> AcceleratedERMState:
        """Start at zero."""
        zero = np.zeros(self.plan.problem.dimension)
        return AcceleratedERMState(0, zero, zero, zero, 0, zero)

    def request(self, state: AcceleratedERMState, noise: NoiseSource) -> Question | None:
        """Average gradients of this round's cohort at md."""
        if state.round == self._ends[-1]:
            return None
        problem, r = self.plan.problem, self.parameters.smoothing
        phase = self.parameters.phases[self.phase_index(state.round)]
        smoothing = None if r is None else Convolution(r, self.plan.seed)
        task = AverageGradient(
            self._middle(state, phase)[None, :], (1.0,), problem.user_smoothness, smoothing=smoothing
        )
        cohort = partition(seed=self.plan.seed, users=problem.users)[phase.first : phase.first + phase.users]
        if phase.drawn:  # membership is secret: it is what amplification rests on
            cohort = cohort[noise.stream("cohort", state.round).subset(phase.users, phase.cohort_size)]
        return Question(state.round, cohort, task, planned=phase.cohort_size, drawn=phase.drawn)

    def update(self, state: AcceleratedERMState, answers: Answers, noise: NoiseSource) -> Update[AcceleratedERMState]:
        """One tested, noisy step of AC-SA."""
        index = self.phase_index(state.round)
        phase = self.parameters.phases[index]
        ends = self._ends[index] - phase.rounds + np.cumsum(phase.stages)  # of the phase's stages
        step = released_gradient(phase, answers, state.gradient, noise, state.round)
        after = replace(state, round=state.round + 1)
        if step.gradient is not None:
            after = self._step(after, step.gradient, phase)
        if after.round in ends:
            after = replace(after, x=after.ag, steps=0)
        if after.round == self._ends[index]:  # the next phase has new users and a new centre
            after = replace(after, centre=after.ag)
        stage = int(np.searchsorted(ends, state.round, side="right"))
        public = {"phase": index, "stage": stage, "released": step.gradient is not None}
        return Update(after, step.entries, public, step.diagnostics)

    def model(self, state: AcceleratedERMState) -> Vector:
        """Return the aggregate point; at the end that of the last phase."""
        return state.ag

    def _middle(self, state: AcceleratedERMState, phase: Phase) -> Vector:
        return acsa.middle(state.x, state.ag, state.steps + 1, phase.shape)

    def _step(self, state: AcceleratedERMState, gradient: Vector, phase: Phase) -> AcceleratedERMState:
        md, t = self._middle(state, phase), state.steps + 1
        whole = gradient + phase.regularisation * (md - state.centre)
        x, ag = acsa.step(state.x, state.ag, md, whole, t, phase.shape, self.plan.problem.domain)
        return replace(state, x=x, ag=ag, steps=t, gradient=gradient)
