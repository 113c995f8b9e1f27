"""Accelerated SGD in the local model: clients send private reports only, and the coordinator is not trusted.

    y_t = x_t/γ_t + (1 - 1/γ_t) a_t                       γ_t = (t + 2)/2,  η_t = (t + 1)/(2β)
    c_t = the last ĝ_{t-1}, 0 at first;  or the crude mean of range reports at y_t, an interaction of its own
    ĝ_t = mean of the reports c_t + clip_{C_t}(∇F_u(y_t) - c_t) + N(0, (C_t σ)² I), noise by each client
    x_{t+1} = Proj(x_t - η_t ĝ_t);   a_{t+1} = x_{t+1}/γ_t + (1 - 1/γ_t) a_t;              model a_T

With the last ĝ as the centre some smaller interactions may come before: they find it at x_0, and make no step. Every
user answers one question of the run, so the report is that user's whole part in it. All randomness of the server is
public: it comes from the plan's seed, and never from `noise`.

Source: Bassily & Sun (2023), Algorithm 5, with the step from x_t and the projection that the printed line leaves out.
Statement and proof: docs/privacy/local-model.md.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from quoron_client.protocol.questions import Answers, AverageGradient, Question, RangeReport, VectorReport
from quoron_client.protocol.smoothing import moreau
from quoron_privacy import local
from quoron_privacy.means.rotation import padded
from quoron_privacy.noise.streams import NoiseSource
from quoron_privacy.release import Release
from quoron_server.algorithm import OfPlan, Update, Vector
from quoron_server.algorithms.centring import margin, next_radius, public_signs
from quoron_server.algorithms.local_reports import RangeReports, VectorReports, public_coordinates
from quoron_server.algorithms.slots import partition
from quoron_server.parameters import Assumption, Kind, Parameters
from quoron_server.problem import Problem
from quoron_server.schedule import CountLeakage, RoundRelease, Rounds

Estimator = Literal["tracking", "range"]


@dataclass(frozen=True, slots=True)
class LocalModelParameters(Parameters):
    """Public numbers of one run."""

    rests_on = Assumption(Kind.ONE_REPORT), Assumption(Kind.CARELESS_PARTICIPATION)
    estimator: Estimator
    reason: str  # why this estimator
    steps: int  # T
    scouts: int  # users of a step who send range reports; 0 without
    vectors: int  # n_0: users of a step who send vector reports
    inverse_step: float  # β
    first_radius: float  # C_0, and C_t of all steps of estimator "range"
    noise_scale: float  # σ: a report's noise per coordinate for a radius of 1, as clients compute it
    vector_epsilon: float  # what a vector report is private for
    vector_delta: float
    range_epsilon: float  # ε₁ of a range report; 0 without
    bins: int
    half_width: float  # of the range; 0 without
    spread: float  # s, of users' averages around their mean
    sampling_variance: float  # of the mean of n_0 users
    smoothness: float  # M
    smoothing: float  # λ; 0 without
    warm_ups: int = 0  # interactions that only look for a centre, from where the run starts
    warm_users: int = 0  # of each of them

    @property
    def interactions(self) -> int:
        """Adaptive interactions of a step."""
        return 2 if self.estimator == "range" else 1

    @property
    def rounds(self) -> int:
        """Adaptive interactions of the run."""
        return self.warm_ups + self.steps * self.interactions

    @property
    def users_a_step(self) -> int:
        """Users with a slot in a step."""
        return self.scouts + self.vectors

    @property
    def range_reports(self) -> RangeReports:
        """Of an interaction that seeks a range."""
        return RangeReports(self.range_epsilon, self.bins)

    @property
    def vector_reports(self) -> VectorReports:
        """Of an interaction that steps."""
        return VectorReports(self.vector_epsilon, self.vector_delta, self.noise_scale)

    def stretches(self, problem: Problem) -> tuple[Rounds, ...]:
        """Return the reports of every interaction, each of them private; the adversary sees which users answer."""
        zero, smoothing = np.zeros(problem.dimension), moreau(self.smoothing)
        gradient = AverageGradient(zero[None, :], (1.0,), problem.user_smoothness, smoothing=smoothing)
        report = VectorReport(gradient, self.vector_epsilon, self.vector_delta, self.first_radius, zero)
        sent, sought, seen = self.vector_reports, self.range_reports, CountLeakage(math.inf)
        step = Rounds(1, self.vectors, report, (RoundRelease(sent, sent.entry(), scaled=True),), leaks=seen)
        before = replace(step, count=self.warm_ups, cohort=self.warm_users)
        if self.interactions == 1:
            return before, replace(step, count=self.steps)
        bits = RangeReport(gradient, self.range_epsilon, self.bins, self.half_width, zero, np.zeros(1, np.int64))
        look = Rounds(1, self.scouts, bits, (RoundRelease(sought, sought.entry()),), leaks=seen)
        return (before, *(look, step) * self.steps)

    def step(self, round_: int) -> int:
        """t of an interaction; 0 of those before."""
        return max(0, round_ - self.warm_ups) // self.interactions

    def seeks(self, round_: int) -> bool:
        """Return whether an interaction asks for range reports."""
        return self.estimator == "range" and round_ % 2 == 0

    def cohort(self, round_: int) -> tuple[int, int]:
        """(first slot, users) of an interaction."""
        if round_ < self.warm_ups:
            return round_ * self.warm_users, self.warm_users
        start = self.warm_ups * self.warm_users + self.step(round_) * self.users_a_step
        if self.seeks(round_):
            return start, self.scouts
        return start + self.scouts, self.vectors

    def largest(self, radius: float, dimension: int, users: int) -> float:
        """Return how far from the centre honest vector reports are, but with chance 10⁻⁶ in the run."""
        noise = radius * self.noise_scale
        return radius + noise * (math.sqrt(dimension) + math.sqrt(2 * math.log(1e6 * users)))


@dataclass(frozen=True, slots=True, eq=False)
class LocalModelState:
    """Everything between two interactions; all of it is public."""

    round: int  # interactions so far
    point: Vector  # x_t
    aggregate: Vector  # a_t
    centre: Vector  # c_t
    radius: float  # C_t


class LocalModel(OfPlan[LocalModelParameters]):
    """Algorithm object for a plan with LocalModelParameters."""

    kind = LocalModelParameters

    def init(self) -> LocalModelState:
        """Start at zero, and expect gradients around zero."""
        zero = np.zeros(self.plan.problem.dimension)
        return LocalModelState(0, zero, zero, zero, self.parameters.first_radius)

    def request(self, state: LocalModelState, noise: NoiseSource) -> Question | None:
        """Return a report of the gradient at y_t from this interaction's users."""
        p = self.parameters
        if state.round == p.rounds:
            return None
        middle = _middle(state, p)
        gradient = AverageGradient(
            middle[None, :], (1.0,), self.plan.problem.user_smoothness, smoothing=moreau(p.smoothing)
        )
        start, size = p.cohort(state.round)
        cohort = partition(seed=self.plan.seed, users=self.plan.problem.users)[start : start + size]
        if p.seeks(state.round):
            task: RangeReport | VectorReport = RangeReport(
                gradient, p.range_epsilon, p.bins, p.half_width, self._signs(state), self._coordinates(state)
            )
        else:
            task = VectorReport(gradient, p.vector_epsilon, p.vector_delta, state.radius, state.centre)
        return Question(state.round, cohort, task)

    def update(self, state: LocalModelState, answers: Answers, noise: NoiseSource) -> Update[LocalModelState]:
        """Find the centre, or step."""
        p, seeking, d = self.parameters, self.parameters.seeks(state.round), len(state.point)
        if seeking:
            counts = local.count_bits(answers.values, answers.answered, self._coordinates(state), padded(d))
            centre = local.crude_mean(counts, p.half_width, self._signs(state))
            after, entry = replace(state, centre=centre), p.range_reports.entry()
        else:
            after, entry = self._stepped(state, answers)
        diagnostics = {"answered": int(np.sum(answers.answered))}
        public = {"phase": "range" if seeking else "vector", "radius": state.radius, **diagnostics}
        return Update(replace(after, round=state.round + 1), (entry,), public, diagnostics)

    def model(self, state: LocalModelState) -> Vector:
        """a_t: a function of reports."""
        return state.aggregate

    def _stepped(self, state: LocalModelState, answers: Answers) -> tuple[LocalModelState, Release]:
        p, d = self.parameters, len(state.point)
        scale = state.radius * p.noise_scale
        gradient = local.mean_of_reports(
            answers.values, answers.answered, state.centre, p.largest(state.radius, d, self.plan.problem.users)
        )
        step = p.step(state.round)
        share, length = 2 / (step + 2), (step + 1) / (2 * p.inverse_step)
        after, users = state, p.cohort(state.round)[1]
        if state.round >= p.warm_ups:
            point = self.plan.problem.domain.project(state.point - length * gradient)
            aggregate = share * point + (1 - share) * state.aggregate
            after = replace(state, point=point, aggregate=aggregate)
        if p.estimator == "tracking":
            moved = _middle(replace(after, round=state.round + 1), p) - _middle(state, p)
            variance = p.spread**2 / users + d * scale**2 / users
            drift = p.smoothness * float(np.linalg.norm(moved))
            radius = next_radius(p.spread, variance, drift, margin(d), p.first_radius)
            after = replace(after, centre=gradient, radius=radius)
        return after, p.vector_reports.entry().scaled(state.radius)

    def _signs(self, state: LocalModelState) -> Vector:
        return public_signs(self.plan.seed, self.parameters.step(state.round), len(state.point))

    def _coordinates(self, state: LocalModelState) -> NDArray[np.int64]:
        p = self.parameters
        return public_coordinates(self.plan.seed, p.step(state.round), p.cohort(state.round)[1], len(state.point))


def _middle(state: LocalModelState, p: LocalModelParameters) -> Vector:
    """y_t; the step of an interaction that is not there any more is that of the last one."""
    share = 2 / (p.step(min(state.round, p.rounds - 1)) + 2)
    return share * state.point + (1 - share) * state.aggregate
