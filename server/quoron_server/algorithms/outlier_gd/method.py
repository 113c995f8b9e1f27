"""Gradient descent with outlier removal: every step a mean of all users' gradients without those far from the others.

    x_0 = 0
    for t = 0 .. T-1:                                  all n users; no sampling, no phases        (Asi & Liu 2024)
        q_u     = ∇F_u(x_t)
        S       = #{(u, v) : ‖q_u - q_v‖ <= τ};   a private test of S decides whether the step is released
        g_t     = r + (mean of q_u - r, outliers weighing nothing) + N(0, σ² I);      r = the last released gradient
        x_{t+1} = Proj(x_t - η g_t),   or x_t where nothing is released
    model: mean of the last w iterates

Users are asked as planned in any case, and everything sent out is a function of releases: trust model
`central-broadcast`.

Source: Asi & Liu (2024), as Lowy, Liu & Asi (2024), Algorithm 2, has its step; what differs from print, and the proof:
docs/privacy/outlier-gd.md.
"""

from dataclasses import dataclass, replace

import numpy as np

from quoron_client.protocol.questions import Answers, AverageGradient, Question
from quoron_client.protocol.smoothing import moreau
from quoron_privacy.noise.streams import NoiseSource
from quoron_privacy.robust.subsampled_lottery import SubsampledLottery
from quoron_server.algorithm import OfPlan, Update, Vector
from quoron_server.algorithms.accelerated_erm.method import ReleasedGradients, released_gradient
from quoron_server.algorithms.slots import partition
from quoron_server.parameters import Assumption, Kind, Parameters
from quoron_server.problem import Problem
from quoron_server.schedule import RoundRelease, Rounds, gradients


@dataclass(frozen=True, slots=True)
class OutlierGDParameters(ReleasedGradients, Parameters):
    """Public numbers of one run."""

    cohort_size: int  # n: all of them in every round
    rounds: int  # T
    step_size: float  # η
    suffix: int  # w: iterates averaged
    radius: float  # τ
    forgiven: float  # share of pairs of honest users beyond τ that the test forgives
    accounting: SubsampledLottery
    noise_scale: float  # σ per coordinate, rounding included
    smoothing: float  # λ of the Moreau envelope; 0 without

    @property
    def users(self) -> int:
        """Whom cohorts are drawn from: themselves."""
        return self.cohort_size

    def stretches(self, problem: Problem) -> tuple[Rounds, ...]:
        """A decision in every round, and the noisy step where it passes."""
        test, task = self.accounting.lottery, gradients(problem, smoothing=moreau(self.smoothing))
        decision = RoundRelease(test, test.entry())
        step = RoundRelease(self.accounting, self.noise.entry(), tested=True)
        return (Rounds(self.rounds, self.cohort_size, task, (decision, step), often=self.rounds),)

    def assumptions(self, problem: Problem) -> tuple[Assumption, ...]:
        """Return what becomes of users who do not answer."""
        del problem
        return (Assumption(Kind.ABSENT_IS_OUTLIER),)


@dataclass(frozen=True, slots=True, eq=False)
class OutlierGDState:
    """Everything between two rounds; all of it a function of releases."""

    round: int
    iterate: Vector  # x_t
    gradient: Vector  # r
    running: Vector  # sum of the averaged iterates, divided by their planned number


class OutlierGD(OfPlan[OutlierGDParameters]):
    """Algorithm object for a plan with OutlierGDParameters."""

    kind = OutlierGDParameters

    def init(self) -> OutlierGDState:
        """Start at zero."""
        zero = np.zeros(self.plan.problem.dimension)
        return OutlierGDState(0, zero, zero, zero)

    def request(self, state: OutlierGDState, noise: NoiseSource) -> Question | None:
        """Average gradients of all users at the iterate."""
        del noise
        p, problem = self.parameters, self.plan.problem
        if state.round == p.rounds:
            return None
        cohort = partition(seed=self.plan.seed, users=problem.users)[: p.cohort_size]
        task = AverageGradient(state.iterate[None, :], (1.0,), problem.user_smoothness, smoothing=moreau(p.smoothing))
        return Question(state.round, cohort, task)

    def update(self, state: OutlierGDState, answers: Answers, noise: NoiseSource) -> Update[OutlierGDState]:
        """One tested, noisy step."""
        p, t = self.parameters, state.round
        step = released_gradient(p, answers, state.gradient, noise, t)
        after = replace(state, round=t + 1)
        if step.gradient is not None:
            moved = self.plan.problem.domain.project(state.iterate - p.step_size * step.gradient)
            after = replace(after, iterate=moved, gradient=step.gradient)
        if p.rounds - t <= p.suffix:
            after = replace(after, running=state.running + after.iterate / p.suffix)
        return Update(after, step.entries, {"released": step.gradient is not None}, step.diagnostics)
