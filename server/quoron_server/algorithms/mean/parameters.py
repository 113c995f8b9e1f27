"""Public numbers of `mean-sgd` and `recentred-sgd`."""

from dataclasses import dataclass
from typing import Literal

from quoron_privacy.gaussian import SPARE, GaussianNoise, mean_sensitivity
from quoron_privacy.means.private_range import PrivateRange
from quoron_privacy.release import Adjacency
from quoron_server.algorithms.noisy import sampled
from quoron_server.algorithms.noisy.sampled import COINS, Sampling
from quoron_server.parameters import Assumption, Attendance, MaskedRounds, Parameters, PlannedRelease
from quoron_server.problem import Problem

Estimator = Literal["clip", "tracking", "range"]


@dataclass(frozen=True, slots=True)
class MeanSGDParameters(Parameters):
    """Public numbers of one run."""

    estimator: Estimator
    reason: str  # why this estimator
    sampling: Sampling  # how cohorts are drawn
    cohort_size: int  # B
    rounds: int  # T
    step_size: float  # η
    suffix: int  # iterates averaged
    first_radius: float  # C_0, and C_t of all rounds unless tracking
    noise_scale: float  # σ: noise per coordinate of g_t for a radius of 1
    spread: float  # s, of users' averages around their mean
    sampling_variance: float  # of a cohort's mean
    smoothness: float  # M: how fast gradients are taken to change
    smoothing: float  # λ; 0 without
    range_epsilon: float  # ε₁ of each choice; 0 without ranges
    bins: int
    half_width: float  # of the range; 0 without
    # Each round, given its cohort and the past, is this GDP, one user replaced, or there against absent with coins.
    round_mu: float

    @property
    def noise(self) -> GaussianNoise:
        """For means of unit rows."""
        moved: Adjacency = "zero-out" if self.poisson_sampling else "replace-one"
        return GaussianNoise(mean_sensitivity(1.0, self.cohort_size, moved), self.noise_scale)

    @property
    def poisson_sampling(self) -> bool:
        """With coins."""
        return self.sampling in COINS

    @property
    def answer_mu(self) -> float:
        """GDP of a round whose cohort is known."""
        return sampled.answer_mu(self.sampling, self.round_mu)

    def reads_sums(self) -> bool:
        """Without a crude mean, which looks at every row."""
        return not self.range_epsilon

    @property
    def crude(self) -> PrivateRange | None:
        """The private range of a round."""
        return PrivateRange(self.range_epsilon, self.bins, self.half_width) if self.range_epsilon else None

    def releases(self, dimension: int) -> tuple[PlannedRelease, ...]:
        """A mean in every round, in proportion to the round's radius, behind a range where there is one."""
        rounds, noise, crude = range(self.rounds), self.noise, self.crude
        mean = PlannedRelease(noise, noise.entry(), self.rounds, rounds, self.answer_mu, scaled=True)
        if crude is None:
            return (mean,)
        return PlannedRelease(crude, crude.entry(dimension), self.rounds, rounds, self.round_mu), mean

    def masked(self, problem: Problem) -> MaskedRounds | None:
        """A vector clipped around its centre; a range chooses by whole histograms."""
        unit = 1 / self.cohort_size / self.noise_scale
        rows = (("row", "clipped", problem.dimension, unit),)
        return None if self.crude else MaskedRounds(sampled.adjacency_of(self.sampling), ((self.rounds, rows),))

    def cohorts(self) -> tuple[int, ...]:
        """As many users in every round."""
        return (self.cohort_size,) * self.rounds

    def participations(self) -> int:
        """In every round."""
        return self.rounds

    def smooths_loss(self) -> bool:
        """Where its slope jumps."""
        return bool(self.smoothing)

    def attendance(self, problem: Problem) -> tuple[Attendance, ...]:
        """Beside the means, unless cohorts are drawn by coins."""
        del problem
        if self.poisson_sampling:
            return ()
        return (Attendance(SPARE * self.noise.sensitivity / self.noise_scale),) * self.rounds

    def assumptions(self, problem: Problem) -> tuple[Assumption, ...]:
        """Secret cohorts, unless they are everybody."""
        return sampled.assumptions_of(self.sampling, problem.users, self.cohort_size)
