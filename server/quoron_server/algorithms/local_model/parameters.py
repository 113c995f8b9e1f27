"""Public numbers of `local-model`."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from quoron_client.protocol.questions import AverageGradient, VectorReport
from quoron_client.protocol.smoothing import Convolution
from quoron_server.algorithms.local_reports import RangeReports, VectorReports
from quoron_server.parameters import Assumption, Attendance, Kind, Parameters, PlannedRelease
from quoron_server.problem import Problem

Estimator = Literal["clip", "tracking", "range"]
Reports = Literal["disjoint", "split"]


@dataclass(frozen=True, slots=True)
class LocalModelParameters(Parameters):
    """Public numbers of one run."""

    estimator: Estimator
    reason: str  # why this estimator
    reports: Reports
    steps: int  # T
    scouts: int  # users of a step who send range reports; 0 without
    vectors: int  # n_0: users of a step who send vector reports; the same users when split
    inverse_step: float  # β
    first_radius: float  # C_0, and C_t of all steps unless tracking
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

    def asks(self, problem: Problem) -> VectorReport:
        """A report of a vector."""
        zero = np.zeros(problem.dimension)
        smoothing = Convolution(self.smoothing, 0) if self.smoothing else None
        gradient = AverageGradient(zero[None, :], (1.0,), problem.user_smoothness, smoothing=smoothing)
        return VectorReport(gradient, self.vector_epsilon, self.vector_delta, self.first_radius, zero)

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
        return self.vectors + (self.scouts if self.reports == "disjoint" else 0)

    @property
    def range_reports(self) -> RangeReports:
        """Of an interaction that seeks a range."""
        return RangeReports(self.range_epsilon, self.bins)

    @property
    def vector_reports(self) -> VectorReports:
        """Of an interaction that steps."""
        return VectorReports(self.vector_epsilon, self.vector_delta, self.noise_scale)

    def releases(self, dimension: int) -> tuple[PlannedRelease, ...]:
        """The reports of every interaction, each private by itself."""
        del dimension
        ranges = [round_ for round_ in range(self.rounds) if self.seeks(round_)]
        vectors = [round_ for round_ in range(self.rounds) if not self.seeks(round_)]
        sent, sought = self.vector_reports, self.range_reports
        steps = PlannedRelease(sent, sent.entry(), len(vectors), vectors, None, scaled=True)
        return (PlannedRelease(sought, sought.entry(), len(ranges), ranges, None), steps) if ranges else (steps,)

    def cohorts(self) -> tuple[int, ...]:
        """Scouts and vectors of the steps."""
        return tuple(self.cohort(round_)[1] for round_ in range(self.rounds))

    def participations(self) -> int:
        """Both reports of a user, where one sends both."""
        return 2 if self.reports == "split" else 1

    def answer_length(self, problem: Problem) -> int:
        """Bits of a range, or a vector."""
        return max(self.bins, problem.dimension)

    def attendance(self, problem: Problem) -> tuple[Attendance, ...]:
        """Whoever the promise protects against sees who answers."""
        del problem
        return (Attendance(math.inf),) * self.rounds

    def assumptions(self, problem: Problem) -> tuple[Assumption, ...]:
        """One report of each kind a user, and nothing told by who sends it."""
        del problem
        reports = Kind.ONE_REPORT if self.reports == "disjoint" else Kind.TWO_REPORTS
        return Assumption(reports), Assumption(Kind.CARELESS_PARTICIPATION)

    def step(self, round_: int) -> int:
        """t of an interaction; 0 of those before."""
        return max(0, round_ - self.warm_ups) // self.interactions

    def seeks(self, round_: int) -> bool:
        """Whether an interaction asks for range reports."""
        return self.estimator == "range" and round_ % 2 == 0

    def cohort(self, round_: int) -> tuple[int, int]:
        """(first slot, users) of an interaction."""
        if round_ < self.warm_ups:
            return round_ * self.warm_users, self.warm_users
        start = self.warm_ups * self.warm_users + self.step(round_) * self.users_a_step
        if self.seeks(round_):
            return start, self.scouts
        behind = self.scouts if self.reports == "disjoint" else 0
        return start + behind, self.vectors

    def largest(self, radius: float, dimension: int, users: int) -> float:
        """How far from the centre honest vector reports are, but with chance 10⁻⁶ in the run."""
        noise = radius * self.noise_scale
        return radius + noise * (math.sqrt(dimension) + math.sqrt(2 * math.log(1e6 * users)))
