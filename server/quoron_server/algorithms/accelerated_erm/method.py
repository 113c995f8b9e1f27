"""Accelerated phased ERM: multi-stage AC-SA on disjoint users, outlier gradients removed, one noisy release a step.

    for phase i:                                       (fresh users D_i, fixed by a public permutation; c = x_{i-1})
        AC-SA on (1/n_i) Σ_{u in D_i} F_u(x) + (λ_i/2) ‖x - c‖², with at every step
            q_u = ∇F_u(md)    for K_i users of D_i: a secret uniform subset, a public batch, or all of them
            S   = #{(u, v) : ‖q_u - q_v‖ <= τ};   a private test of S decides whether the step is released
            g   = r + (mean of q_u - r, outliers weighing nothing) + N(0, σ_i² I);     r = the last released gradient
            step with g + λ_i (md - c)                               (with test="clip": no test, q_u - r clipped at C)
        x_i = the last stage's aggregate point

A step whose test fails is skipped: nothing moves, and the stage has one step less. With the lottery later steps go on;
with a noisy threshold the phase keeps its last point. Users are asked as planned in any case: nothing visible but the
releases depends on data. Everything sent out is a function of releases: trust model `central-broadcast`.

Source: Lowy, Liu & Asi (2024), Algorithms 2 and 3, section 4 and remark 3.6; where this differs from the paper, and
why, and the proof: docs/privacy/accelerated-erm.md.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from quoron_client.protocol.questions import Answers, AverageGradient, Question
from quoron_client.protocol.smoothing import Convolution
from quoron_privacy.noise.streams import NoiseSource
from quoron_privacy.release import Release
from quoron_privacy.robust.above_threshold import AboveThreshold
from quoron_server.algorithm import Update, Vector
from quoron_server.algorithms import acsa
from quoron_server.algorithms.accelerated_erm.parameters import SECRET, AcceleratedERMParameters, Phase
from quoron_server.algorithms.accelerated_erm.tested import decision, released_gradient
from quoron_server.algorithms.slots import partition
from quoron_server.plan import RunPlan


@dataclass(frozen=True, slots=True, eq=False)
class AcceleratedERMState:
    """Everything between two rounds; all of it a function of releases, but for the secret limit."""

    round: int
    centre: Vector  # c: where the phase began
    x: Vector
    ag: Vector
    steps: int  # released steps of the stage
    gradient: Vector  # the last released one
    halted: bool  # the phase's threshold was missed
    limit: int  # of the above-threshold test: drawn in the phase's first round, kept for all of it


class AcceleratedERM:
    """Algorithm object for a plan with AcceleratedERMParameters."""

    def __init__(self, plan: RunPlan) -> None:
        self.plan = plan
        self.parameters = plan.parameters_of(AcceleratedERMParameters)
        self._places = acsa.places(self.parameters.phases)

    def init(self) -> AcceleratedERMState:
        """Start at zero."""
        zero = np.zeros(self.plan.problem.dimension)
        return AcceleratedERMState(0, zero, zero, zero, 0, zero, False, 0)

    def request(self, state: AcceleratedERMState, noise: NoiseSource) -> Question | None:
        """Average gradients of this round's cohort at md."""
        if state.round == len(self._places):
            return None
        place, problem, r = self._places[state.round], self.plan.problem, self.parameters.smoothing
        phase = self.parameters.phases[place.phase]
        smoothing = None if r is None else Convolution(r, self.plan.seed)
        task = AverageGradient(
            self._middle(state, phase)[None, :], (1.0,), problem.user_smoothness, smoothing=smoothing
        )
        cohort, drawn = self._cohort(state.round, place, noise), self.parameters.sampling in SECRET
        return Question(state.round, cohort, task, planned=phase.cohort_size, drawn=drawn)

    def update(self, state: AcceleratedERMState, answers: Answers, noise: NoiseSource) -> Update[AcceleratedERMState]:
        """One tested, noisy step of AC-SA."""
        place = self._places[state.round]
        phase = self.parameters.phases[place.phase]
        state = self._with_limit(state, phase, place, noise)
        step = released_gradient(
            phase, answers, state.gradient, noise, state.round, lambda score: self._test(state, score, phase, noise)
        )
        after = replace(state, round=state.round + 1)
        if step.gradient is not None:
            after = self._step(after, step.gradient, phase)
        passed = step.gradient is not None
        after = replace(after, halted=self.parameters.test == "above-threshold" and not passed)
        public = {"phase": place.phase, "stage": place.stage, "released": passed}
        return Update(self._moved_on(after, place), step.entries, public, step.diagnostics)

    def model(self, state: AcceleratedERMState) -> Vector:
        """The aggregate point; at the end that of the last phase."""
        return state.ag

    def iterate(self, state: AcceleratedERMState) -> Vector:
        """As `model`: every point is already private."""
        return state.ag

    def _middle(self, state: AcceleratedERMState, phase: Phase) -> Vector:
        return acsa.middle(state.x, state.ag, state.steps + 1, phase.shape)

    def _step(self, state: AcceleratedERMState, gradient: Vector, phase: Phase) -> AcceleratedERMState:
        md, t = self._middle(state, phase), state.steps + 1
        whole = gradient + phase.regularisation * (md - state.centre)
        x, ag = acsa.step(state.x, state.ag, md, whole, t, phase.shape, self.plan.problem.domain)
        return replace(state, x=x, ag=ag, steps=t, gradient=gradient)

    def _moved_on(self, state: AcceleratedERMState, place: acsa.Place) -> AcceleratedERMState:
        """The next stage starts where this one ended, the next phase with new users and a new centre too."""
        if place.ends_phase:
            return replace(state, x=state.ag, centre=state.ag, steps=0, halted=False)
        return replace(state, x=state.ag, steps=0) if place.ends_stage else state

    def _with_limit(
        self, state: AcceleratedERMState, phase: Phase, place: acsa.Place, noise: NoiseSource
    ) -> AcceleratedERMState:
        """The state with the phase's noisy threshold, drawn where the phase begins."""
        if place.in_phase > 0 or not isinstance(phase.test, AboveThreshold):
            return state
        return replace(state, limit=phase.test.draw_limit(noise.stream("limit", place.phase)))

    def _test(
        self, state: AcceleratedERMState, score: int, phase: Phase, noise: NoiseSource
    ) -> tuple[bool, tuple[Release, ...]]:
        """Whether this step is released, and the ledger's entry of the decision."""
        stream = noise.stream("test", state.round)
        return decision(phase.test, score, stream, limit=state.limit, halted=state.halted)

    def _cohort(self, round_: int, place: acsa.Place, noise: NoiseSource) -> NDArray[np.int64]:
        phase, size = self.parameters.phases[place.phase], self.parameters.phases[place.phase].cohort_size
        order = partition(seed=self.plan.seed, users=self.plan.problem.users)
        users = order[phase.first : phase.first + phase.users]
        if self.parameters.sampling == "everybody":
            return users
        if self.parameters.sampling == "public-schedule":
            batch = place.in_phase % (phase.users // size)
            return users[batch * size : (batch + 1) * size]
        stream = noise.stream("cohort", round_)  # membership is secret: it is what amplification rests on
        if self.parameters.sampling == "poisson":
            return users[stream.poisson_subset(phase.users, size / phase.users)]
        return users[stream.subset(phase.users, size)]
