"""Noisy projected SGD that privatises every step: clip, average with a fixed divisor, add Gaussian noise.

    g_t = (1/B) Σ_{u in cohort t} clip_C(∇F_u(x_t)) + N(0, σ² I);   x_{t+1} = Proj(x_t - η g_t)
    model = uniform average of the last `suffix` iterates

The state machine of every baseline in this family; what differs is how cohorts are drawn and what that costs:
disjoint (one pass), a fresh uniform subset each round, or Poisson. Whoever is absent contributes exactly zero and the
divisor stays B. Everything sent out is private: exposure `broadcast`.
"""

from dataclasses import dataclass, replace
from math import isinf
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from quoron_client.protocol.questions import Answers, AverageGradient, Question, summed
from quoron_privacy.clipping import ClippedSum, Sums, clipped_mean
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.noise import NoiseSource
from quoron_server.algorithm import Update, Vector
from quoron_server.algorithms.slots import partition
from quoron_server.plan import Plan, PlannedRelease

Sampling = Literal["disjoint", "without-replacement", "poisson"]


@dataclass(frozen=True, slots=True)
class NoisySGDParameters:
    """Public numbers of one run."""

    sampling: Sampling
    cohort_size: int  # B: users a round; the expected number under Poisson sampling
    rounds: int  # T
    step_size: float  # η
    suffix: int  # iterates averaged
    clip_norm: float  # C, on a user's average gradient; inf without privacy
    sensitivity: float  # of one round's mean, ℓ2, one user replaced (or zeroed out); 0 without privacy
    noise_scale: float  # σ per coordinate of the mean; 0 without privacy
    round_mu: float  # each round, as a function of its cohort, is this GDP; inf without privacy

    @property
    def noise(self) -> GaussianNoise | None:
        """Of one round's mean; None without privacy."""
        return GaussianNoise(self.sensitivity, self.noise_scale) if self.noise_scale else None

    @property
    def reduction(self) -> ClippedSum | None:
        """All that a round reads of its answers; None without a clip."""
        return None if isinf(self.clip_norm) else ClippedSum(self.clip_norm, self.cohort_size)

    def releases(self, dimension: int) -> tuple[PlannedRelease, ...]:
        """A noisy mean in every round."""
        del dimension
        if (noise := self.noise) is None:
            return ()
        return (PlannedRelease(noise, noise.entry(), self.rounds, range(self.rounds), self.round_mu),)


@dataclass(frozen=True, slots=True, eq=False)
class NoisyState:
    """Everything between two rounds."""

    round: int
    iterate: Vector
    running: Vector  # sum of the averaged iterates, divided by their planned number


class NoisySGD:
    """Algorithm object for a plan with NoisySGDParameters."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.parameters: NoisySGDParameters = plan.parameters

    def init(self) -> NoisyState:
        """Start at zero."""
        zero = np.zeros(self.plan.problem.dimension)
        return NoisyState(0, zero, zero)

    def request(self, state: NoisyState, noise: NoiseSource) -> Question | None:
        """Average gradients of this round's cohort at the current iterate."""
        if state.round == self.parameters.rounds:
            return None
        task = AverageGradient(state.iterate[None, :], (1.0,), self.plan.problem.user_smoothness)
        p = self.parameters
        return Question(state.round, self._cohort(state.round, noise), task, p.cohort_size, p.reduction)

    def update(self, state: NoisyState, answers: Answers | Sums, noise: NoiseSource) -> Update[NoisyState]:
        """One noisy step."""
        p = self.parameters
        if p.reduction is None:
            assert isinstance(answers, Answers)
            mean, clipped = clipped_mean(answers.values, answers.answered, p.clip_norm, p.cohort_size)
        else:
            sums = summed(answers, p.reduction)
            mean, clipped = p.reduction.mean(sums), sums.clipped
        if (gaussian := p.noise) is not None:
            mean = gaussian.release(mean, noise.stream("release", state.round))
        iterate = self.plan.problem.domain.project(state.iterate - p.step_size * mean)
        averaged = p.rounds - state.round <= p.suffix
        running = state.running + iterate / p.suffix if averaged else state.running
        moved = replace(state, round=state.round + 1, iterate=iterate, running=running)
        releases = () if gaussian is None else (gaussian.entry(),)
        answered = int(np.sum(answers.answered))
        diagnostics: dict[str, Any] = {"answered": answered, "clipped_fraction": clipped / max(1, answered)}
        return Update(moved, releases, {}, diagnostics)

    def model(self, state: NoisyState) -> Vector:
        """The suffix average once complete, before that the current iterate."""
        return state.running if state.round == self.parameters.rounds else state.iterate

    def iterate(self, state: NoisyState) -> Vector:
        """As `model`: every iterate is already private."""
        return self.model(state)

    def _cohort(self, round_: int, noise: NoiseSource) -> NDArray[np.int64]:
        users, size = self.plan.problem.users, self.parameters.cohort_size
        if self.parameters.sampling == "disjoint":
            return partition(seed=self.plan.seed, users=users)[round_ * size : (round_ + 1) * size]
        if size == users:
            return np.arange(users, dtype=np.int64)
        stream = noise.stream("cohort", round_)  # membership is secret: it is what amplification rests on
        if self.parameters.sampling == "without-replacement":
            return stream.subset(users, size)
        return stream.poisson_subset(users, size / users)
