"""Noisy projected SGD that privatises every step: clip, average with a fixed divisor, add Gaussian noise.

    g_t = (1/B) Σ_{u in cohort t} clip_C(∇F_u(x_t)) + N(0, σ² I);   x_{t+1} = Proj(x_t - η g_t)
    model = uniform average of the last `suffix` iterates

Another optimiser may take the step. With an adaptive clip the norm C_t follows the users, privately: rows enter in
units of it, and four noisy counts of how far they reach set the next one (docs/privacy/adaptive-clip.md).

    g_t = C_t ((1/B) Σ clip_1(∇F_u(x_t)/C_t) + N(0, σ² I));   C_{t+1} from noisy shares within C_t, C_t/2, C_t/4

The state machine of every baseline in this family; what differs is how cohorts are drawn and what that costs:
disjoint (one pass), a fresh uniform subset each round, or Poisson. Whoever is absent contributes exactly zero and the
divisor stays B. Everything sent out is private: exposure `broadcast`.
"""

from dataclasses import dataclass, replace
from math import isinf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quoron_client.protocol.gradients import AverageGradient
from quoron_client.protocol.questions import Answers, Question, summed
from quoron_privacy.accounts import moved
from quoron_privacy.accounts.pair import Pair
from quoron_privacy.gaussian import SPARE, GaussianNoise
from quoron_privacy.means.clipping import ClippedSum, clipped_mean
from quoron_privacy.means.radius_cells import CELLS, RadiusCells, updated_spread
from quoron_privacy.noise.streams import NoiseSource, RandomStream, total_variation
from quoron_privacy.release import Adjacency, Release, Sums
from quoron_server.algorithm import Update, Vector
from quoron_server.algorithms.noisy import sampled
from quoron_server.algorithms.noisy.sampled import COINS, Sampling
from quoron_server.algorithms.optimisers import SGD, Moments, Optimiser
from quoron_server.algorithms.slots import partition
from quoron_server.parameters import Assumption, Attendance, Parameters, PlannedRelease
from quoron_server.plan import Plan
from quoron_server.problem import Problem

REACH = 2.0**20  # an adaptive clip norm stays within this factor of the first one, both ways


@dataclass(frozen=True, slots=True)
class AdaptiveClip:
    """How the clip norm follows the users."""

    cells: RadiusCells  # of every round
    quantile: float  # γ: share of users meant to be within the clip

    def following(self, radius: float, counts: NDArray[np.int64], stream: RandomStream, first: float) -> float:
        """The next round's clip norm from this round's, `radius`, and how many users were in each cell."""
        fractions = self.cells.release(counts, stream)
        return updated_spread(
            radius,
            fractions,
            target=self.quantile,
            deviation=self.cells.scale,
            may_shrink=True,
            least=first / REACH,
            largest=first * REACH,
        )


@dataclass(frozen=True, slots=True)
class NoisySGDParameters(Parameters):
    """Public numbers of one run."""

    sampling: Sampling
    cohort_size: int  # B: users a round; the expected number under Poisson sampling
    rounds: int  # T
    step_size: float  # η
    suffix: int  # iterates averaged
    clip_norm: float  # C, on a user's average gradient, or C_0 where it is adaptive; inf without privacy
    # Of one round's mean, ℓ2, one user replaced, or there against absent with coins; of unit rows where C is adaptive.
    sensitivity: float
    noise_scale: float  # σ per coordinate of that mean; 0 without privacy
    round_mu: float  # each round, as a function of its cohort, is this GDP for such a change; inf without privacy
    optimiser: Optimiser = SGD
    adaptive: AdaptiveClip | None = None

    @property
    def noise(self) -> GaussianNoise | None:
        """Of one round's mean; None without privacy."""
        return GaussianNoise(self.sensitivity, self.noise_scale) if self.noise_scale else None

    def reduction(self, radius: float) -> ClippedSum | None:
        """All that a round with clip norm C_t = `radius` reads of its answers; None without a clip."""
        return None if isinf(radius) else ClippedSum(radius, self.cohort_size)

    def releases(self, dimension: int) -> tuple[PlannedRelease, ...]:
        """A noisy mean in every round, in proportion to an adaptive clip and with the counts that it follows."""
        del dimension
        if (noise := self.noise) is None:
            return ()
        every, adaptive = range(self.rounds), self.adaptive
        mean = PlannedRelease(noise, noise.entry(), self.rounds, every, self.answer_mu, scaled=adaptive is not None)
        if adaptive is None:
            return (mean,)
        return mean, PlannedRelease(adaptive.cells, adaptive.cells.entry(), self.rounds, every, self.answer_mu)

    def cohorts(self) -> tuple[int, ...]:
        """As many users in every round."""
        return (self.cohort_size,) * self.rounds

    @property
    def poisson_sampling(self) -> bool:
        """With Poisson sampling."""
        return self.sampling in COINS

    @property
    def answer_mu(self) -> float:
        """GDP of a round whose cohort is known."""
        return sampled.answer_mu(self.sampling, self.round_mu)

    def participations(self) -> int:
        """Once where cohorts are disjoint."""
        return 1 if self.sampling == "disjoint" else self.rounds

    def attendance(self, problem: Problem) -> tuple[Attendance, ...]:
        """Beside means of vectors cut to a fixed length, of which one may be replaced; with coins nothing is spare."""
        del problem
        if self.poisson_sampling or self.adaptive is not None or not self.noise_scale:
            return ()
        return (Attendance(SPARE * self.sensitivity / self.noise_scale),) * self.rounds

    def room_for_counts(self, problem: Problem, epsilon: float, delta: float) -> float:
        """Of users who join by coins of their own."""
        own = self.cohort_size / problem.users, self.rounds, self.round_mu
        return sampled.room_for_counts(self.sampling, *own, epsilon, delta, drawn(problem, self.adaptive is not None))

    def with_count(self, mu: float) -> "NoisySGDParameters | None":
        """With so much less noise, of users who join by coins."""
        if (noise := self.noise) is None or not self.poisson_sampling:
            return None
        scale, round_mu = sampled.with_count(noise, self.round_mu, mu)
        return replace(self, noise_scale=scale, round_mu=round_mu)

    def pairs(self, problem: Problem, adjacency: Adjacency) -> tuple[Pair, ...]:
        """Of disjoint cohorts that of the own round, whose noise alone has to be exact; else that of all rounds."""
        if not self.noise_scale:
            return ()
        once, mu = drawn(problem, self.adaptive is not None), self.recounted_mu(problem.dimension)
        if self.sampling == "disjoint":
            return (Pair.gaussian(mu, total_variation(gaussians=once)),)
        users, size = problem.users, self.cohort_size
        return sampled.pairs(self.sampling, adjacency, users, size, self.rounds, mu, once)

    def recounted_mu(self, dimension: int) -> float:
        """GDP of a round for one who is replaced in its cohort, with coins for one who is left out; by its scales."""
        how: Adjacency = "zero-out" if self.poisson_sampling else "replace-one"
        unit = self.clip_norm if self.adaptive is None else 1.0
        mean = moved.mu(moved.rows(unit, self.cohort_size, how), self.noise_scale, dimension)
        if self.adaptive is None:
            return mean
        counts = moved.mu(moved.acute(1.0, self.cohort_size, how), self.adaptive.cells.scale, CELLS)
        return moved.together(mean, counts)

    def assumptions(self, problem: Problem) -> tuple[Assumption, ...]:
        """Secret cohorts, where they are drawn."""
        if self.sampling == "disjoint":
            return ()
        return sampled.assumptions_of(self.sampling, problem.users, self.cohort_size)


def drawn(problem: Problem, adaptive: bool) -> int:
    """Noise samples of one round."""
    return problem.dimension + (CELLS if adaptive else 0)


@dataclass(frozen=True, slots=True, eq=False)
class NoisyState:
    """Everything between two rounds."""

    round: int
    iterate: Vector
    running: Vector  # sum of the averaged iterates, divided by their planned number
    radius: float  # C_t
    moments: Moments  # of the optimiser


class NoisySGD:
    """Algorithm object for a plan with NoisySGDParameters."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.parameters = plan.parameters_of(NoisySGDParameters)

    def init(self) -> NoisyState:
        """Start at zero."""
        p, zero = self.parameters, np.zeros(self.plan.problem.dimension)
        return NoisyState(0, zero, zero, p.clip_norm, p.optimiser.start(len(zero)))

    def request(self, state: NoisyState, noise: NoiseSource) -> Question | None:
        """Average gradients of this round's cohort at the current iterate."""
        if state.round == self.parameters.rounds:
            return None
        task = AverageGradient(state.iterate[None, :], (1.0,), self.plan.problem.user_smoothness)
        p = self.parameters
        cohort, drawn = self._cohort(state.round, noise)
        return Question(state.round, cohort, task, p.cohort_size, p.reduction(state.radius), drawn)

    def update(self, state: NoisyState, answers: Answers | Sums, noise: NoiseSource) -> Update[NoisyState]:
        """One noisy step."""
        p, t, radius, gaussian = self.parameters, state.round, state.radius, self.parameters.noise
        public: dict[str, Any] = {}
        releases: tuple[Release, ...] = ()
        reduction = p.reduction(radius)
        if reduction is None:
            assert isinstance(answers, Answers)
            gradient, clipped = clipped_mean(answers.values, answers.answered, p.clip_norm, p.cohort_size)
        else:
            sums = summed(answers, reduction)
            gradient, clipped = reduction.mean(sums) if p.adaptive is None else reduction.unit_mean(sums), sums.clipped
        if gaussian is not None:
            gradient = gaussian.release(gradient, noise.stream("release", t))
            releases = (gaussian.entry(),)
        if p.adaptive is not None:
            assert gaussian is not None
            gradient *= radius
            public, releases = {"radius": radius}, (gaussian.entry().scaled(radius), p.adaptive.cells.entry())
            radius = p.adaptive.following(radius, sums.cells, noise.stream("cells", t), p.clip_norm)
        wanted, moments = p.optimiser.step(state.iterate, gradient, state.moments, step_size=p.step_size, t=t)
        iterate = self.plan.problem.domain.project(wanted)
        averaged = p.rounds - t <= p.suffix
        running = state.running + iterate / p.suffix if averaged else state.running
        moved = NoisyState(t + 1, iterate, running, radius, moments)
        answered = int(np.sum(answers.answered))
        diagnostics: dict[str, Any] = {"answered": answered, "clipped_fraction": clipped / max(1, answered)}
        return Update(moved, releases, public, diagnostics)

    def noise_label(self, round_: int) -> tuple[str | int, ...]:
        """The stream of a round's noise."""
        return "release", round_

    def model(self, state: NoisyState) -> Vector:
        """The suffix average once complete, before that the current iterate."""
        return state.running if state.round == self.parameters.rounds else state.iterate

    def iterate(self, state: NoisyState) -> Vector:
        """As `model`: every iterate is already private."""
        return self.model(state)

    def _cohort(self, round_: int, noise: NoiseSource) -> tuple[NDArray[np.int64], bool]:
        """Whom a round asks, and whether coins said so."""
        users, size = self.plan.problem.users, self.parameters.cohort_size
        if self.parameters.sampling == "disjoint":
            return partition(seed=self.plan.seed, users=users)[round_ * size : (round_ + 1) * size], False
        if size == users:
            return np.arange(users, dtype=np.int64), False
        stream = noise.stream("cohort", round_)  # membership is secret: it is what amplification rests on
        if self.parameters.sampling == "without-replacement":
            return stream.subset(users, size), True
        return stream.poisson_subset(users, size / users), True
