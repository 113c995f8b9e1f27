"""One epoch in few rounds: recursive gradients or fresh ones, accelerated or not, each user asked exactly once.

`ftrl` may go through the cohorts several times, in the same order (docs/privacy/several-epochs.md).

With weights η_t = t + 1, momentum τ_t = 2/(t + 2), x_0 = z_0 = 0 and fixed disjoint cohorts of B users:

    recursive    Δ_t(u) = η_t ∇F_u(x_t) - η_{t-1} ∇F_u(x_{t-1}),  clipped to C;   Ŝ_t = noised sum of the cohorts' means
    independent  Δ_t(u) = ∇F_u(x_t),  clipped to C;   Ŝ_t = η_t (mean + Gaussian noise)
    ftrl         Δ_t(u) = ∇F_u(x_t),  clipped to C;   Ŝ_t = noised sum of the cohorts' means

    accelerated  z_{t+1} = Proj(z_t - Ŝ_t/(2β));  y_{t+1} = Proj(x_t - Ŝ_t/(β η_t))
                 x_{t+1} = (1 - τ_{t+1}) y_{t+1} + τ_{t+1} z_{t+1}
    plain        x_{t+1} = Proj(x_t - Ŝ_t/(β η_t))
    anytime      z_{t+1} = Proj(z_t - Ŝ_t/(2β));  x_{t+1} = (1 - τ_{t+1}) x_t + τ_{t+1} z_{t+1}
    ftrl         x_{t+1} = Proj(-Ŝ_t/β); with another optimiser or an adaptive clip steps along Ŝ_t - Ŝ_{t-1}

Source: Choquette-Choo, Ganesh & Thakurta, Algorithm 1 (accelerated, recursive; the z-step halved as the proof needs),
section 4.3 (plain) and 5.5 (independent); Kairouz et al. (2021) for ftrl; Zhang, Tran & Cutkosky (2022) for anytime.
Proof: docs/privacy/srgd.md#s1.
"""

from dataclasses import dataclass, field
from math import isinf
from typing import Literal

import numpy as np

from quoron_client.protocol.gradients import AverageGradient
from quoron_client.protocol.questions import Answers, Question
from quoron_privacy.gaussian import SPARE, GaussianNoise
from quoron_privacy.means.clipping import ClippedSum, clipped_mean
from quoron_privacy.means.norm_counts import Presence
from quoron_privacy.means.prefix_norm_counts import PrefixNormCounts
from quoron_privacy.noise.streams import NoiseSource
from quoron_privacy.prefix.noise import PrefixNoise, PrefixState
from quoron_privacy.release import NoisySums, Release, Sums
from quoron_server.algorithm import Update, Vector
from quoron_server.algorithms.noisy.clip import AdaptiveClip
from quoron_server.algorithms.one_epoch.reserves import first_answered
from quoron_server.algorithms.optimisers import SGD, Moments, Optimiser
from quoron_server.algorithms.slots import partition
from quoron_server.parameters import Assumption, Attendance, Kind, MaskedRounds, Parameters, PlannedRelease
from quoron_server.plan import Plan
from quoron_server.problem import Problem

Gradients = Literal["recursive", "independent", "ftrl"]
Method = Literal["accelerated", "plain", "ftrl", "anytime"]


@dataclass(frozen=True, slots=True)
class OneEpochParameters(Parameters):
    """Public numbers of one run."""

    gradients: Gradients
    method: Method
    rounds: int  # T
    cohort_size: int  # users asked a round: divisor + reserve
    divisor: int  # B: answers that count, in slot order
    beta: float  # β: inverse step size
    suffix: int  # iterates averaged, without acceleration; 1 for anytime, whose x_t are averages of the z_t
    clip_norm: float  # C, on a user's Δ_t
    sensitivity: float  # of one round's mean, ℓ2
    noise_scale: float  # seed noise of the prefix sums, or of each round's mean when independent
    factorisation: str  # of the prefix sums; "-" when independent
    mu: float  # GDP parameter of the whole transcript
    epochs: int = 1  # k: how often the cohorts are gone through, at most
    optimiser: Optimiser = SGD  # of ftrl
    adaptive: AdaptiveClip | None = None  # of ftrl; then C is the first clip norm, and sums are of unit rows

    @property
    def batches(self) -> int:
        """b: disjoint ones, in whose order all epochs go. A user's rounds are exactly so far apart."""
        return -(-self.rounds // self.epochs)

    @property
    def noise(self) -> GaussianNoise | PrefixNoise:
        """Of each round's mean when independent, else of the prefix sums."""
        if self.gradients == "independent":
            return GaussianNoise(self.sensitivity, self.noise_scale)
        own = self.factorisation, self.epochs, self._separation
        return PrefixNoise(self.rounds, self.sensitivity, self.noise_scale, *own)

    @property
    def _separation(self) -> int:
        """Of two rounds of a user, as their noise counts it."""
        return self.batches if self.epochs > 1 else 1

    def shares(self, dimension: int) -> PrefixNormCounts | None:
        """All rounds' sums with the shares that an adaptive clip follows; None where it is fixed."""
        if self.adaptive is None:
            return None
        own = self.rounds, self.factorisation, self.epochs, self._separation
        return PrefixNormCounts(dimension, self.divisor, self.adaptive.adjacency, self.noise_scale, *own, soft=True)

    def entry(self) -> Release:
        """The ledger entry of one round."""
        name = "gaussian" if self.gradients == "independent" else "prefix-sum"
        return Release(name, {"scale": self.noise_scale, "sensitivity": self.sensitivity})

    def releases(self, dimension: int) -> tuple[PlannedRelease, ...]:
        """A noisy mean, or the noised sum of all so far, in every round; with it the shares of an adaptive clip."""
        every, shares = range(self.rounds), self.shares(dimension)
        if shares is None:
            return (PlannedRelease(self.noise, self.entry(), self.rounds, every, self.mu),)
        return (PlannedRelease(shares, shares.entry(), self.rounds, every, self.mu, scaled=True),)

    def masked(self, problem: Problem) -> MaskedRounds | None:
        """A clipped vector, with the shares of an adaptive clip; nothing proved of these with users who come back."""
        independent, made = self.gradients == "independent", self.shares(problem.dimension)
        if isinf(self.clip_norm) or (made is not None and self.epochs > 1):
            return None
        unit = self.clip_norm / self.divisor / self.noise_scale
        rows = (("row" if independent else "sums", "clipped", problem.dimension, unit),)
        rounds = ((self.rounds, rows if made is None else made.masked),)
        return MaskedRounds("replace-one", rounds, None if independent else self.factorisation, self._separation)

    def cohorts(self) -> tuple[int, ...]:
        """As many users in every round."""
        return (self.cohort_size,) * self.rounds

    def reads_sums(self) -> bool:
        """Where rows are clipped, and all that come are counted."""
        return self.cohort_size <= self.divisor and not isinf(self.clip_norm)

    def participations(self) -> int:
        """Once an epoch."""
        return self.epochs

    def points_asked(self) -> int:
        """Two of a recursive gradient."""
        return 2 if self.gradients == "recursive" else 1

    def attendance(self, problem: Problem) -> tuple[Attendance, ...]:
        """Beside sums of vectors cut to a fixed length, of as many as count: a reserve replaces whoever is absent."""
        del problem
        if self.adaptive is not None:
            return ()
        noise = self.noise
        # A column of C is at least 1 long, and with one epoch a round may be as loud as the loudest.
        norm = noise.column_norm if isinstance(noise, PrefixNoise) and self.epochs == 1 else 1.0
        each = Attendance(SPARE * norm * self.sensitivity / self.noise_scale, most=self.divisor)
        return (each,) * self.rounds

    def assumptions(self, problem: Problem) -> tuple[Assumption, ...]:
        """What becomes of users who do not answer."""
        del problem
        if self.cohort_size == self.divisor:
            return (Assumption(Kind.ABSENT_IS_ZERO, (self.divisor,)),)
        return (Assumption(Kind.FIRST_ANSWERS_COUNT, (self.divisor, self.cohort_size)),)


@dataclass(frozen=True, slots=True, eq=False)
class OneEpochState:
    """Everything between two rounds."""

    round: int
    x: Vector
    previous: Vector  # x_{t-1}
    y: Vector
    z: Vector
    running: Vector  # weighted sum of the averaged iterates
    sums: PrefixState | None  # of the prefix noise; None when independent
    radius: float  # C_t
    moments: Moments  # of ftrl's optimiser
    presence: Presence = field(default_factory=Presence)  # of those who are asked, as an adaptive clip is told


class OneEpoch:
    """Algorithm object for a plan with OneEpochParameters."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        p = plan.parameters_of(OneEpochParameters)
        self.parameters = p
        self._noise, self._shares = p.noise, p.shares(plan.problem.dimension)

    def init(self) -> OneEpochState:
        """Start at zero."""
        zero = np.zeros(self.plan.problem.dimension)
        sums = self._noise.start(len(zero)) if isinstance(self._noise, PrefixNoise) else None
        p = self.parameters
        return OneEpochState(0, zero, zero, zero, zero, zero, sums, p.clip_norm, p.optimiser.start(len(zero)))

    def request(self, state: OneEpochState, noise: NoiseSource) -> Question | None:
        """One gradient at x_t, or the weighted difference of two."""
        del noise
        p, t = self.parameters, state.round
        if t == p.rounds:
            return None
        first = t % p.batches * p.cohort_size
        cohort = partition(seed=self.plan.seed, users=self.plan.problem.users)[first : first + p.cohort_size]
        scaling = self.plan.problem.user_smoothness
        if p.gradients == "recursive" and t > 0:
            task = AverageGradient(np.stack([state.x, state.previous]), (t + 1.0, -float(t)), scaling)
        else:
            task = AverageGradient(state.x[None, :], (1.0,), scaling)
        reserves = p.cohort_size > p.divisor  # then it matters who is among the first to answer
        return Question(t, cohort, task, reduction=None if reserves else self._reduction(state))

    def update(self, state: OneEpochState, answers: Answers | Sums, noise: NoiseSource) -> Update[OneEpochState]:
        """Release the noised sum, and step."""
        p, project, t = self.parameters, self.plan.problem.domain.project, state.round
        counted = self._counted(state, answers)
        mean, diagnostics = self._mean(state, answers, counted)
        if p.adaptive is not None or not p.optimiser.plain:
            return self._stepped(state, mean, counted, diagnostics, noise)
        weight, sums = t + 1.0, state.sums
        if isinstance(self._noise, GaussianNoise):
            gradients = weight * self._noise.release(mean, noise.stream("release", t))
        else:
            assert sums is not None
            gradients, sums = self._noise.release(sums, mean, noise)
        y = z = x = state.x
        if p.method == "accelerated":
            z = project(state.z - gradients / (2 * p.beta))
            y = project(state.x - gradients / (p.beta * weight))
            momentum = 2 / (t + 3)
            x = (1 - momentum) * y + momentum * z
        elif p.method == "anytime":
            z = project(state.z - gradients / (2 * p.beta))
            momentum = 2 / (t + 3)
            x = (1 - momentum) * state.x + momentum * z
        elif p.method == "plain":
            x = project(state.x - gradients / (p.beta * weight))
        else:
            x = project(-gradients / p.beta)
        running = state.running + x / p.suffix if p.rounds - t <= p.suffix else state.running
        moved = OneEpochState(t + 1, x, state.x, y, z, running, sums, state.radius, state.moments, state.presence)
        return Update(moved, (p.entry(),), {}, diagnostics)

    def _reduction(self, state: OneEpochState) -> ClippedSum | None:
        """All that a round reads of the answers that count; None without a clip."""
        return None if isinf(state.radius) else ClippedSum(state.radius, self.parameters.divisor)

    def _counted(self, state: OneEpochState, answers: Answers | Sums) -> Sums | None:
        """Sums of the answers that count; None without a clip."""
        if isinstance(answers, Sums):
            return answers
        reduction, counted = self._reduction(state), first_answered(answers.answered, self.parameters.divisor)
        return None if reduction is None else reduction.of(answers.values, counted)

    def _mean(
        self, state: OneEpochState, answers: Answers | Sums, sums: Sums | None
    ) -> tuple[Vector | NoisySums, dict[str, float]]:
        """The mean of the answers that count, or their sum with noise; diagnostics."""
        p, reduction = self.parameters, self._reduction(state)
        if sums is not None and reduction is not None:
            answered = sums.answered
            mean = sums if isinstance(sums, NoisySums) else reduction.mean(sums)
            return mean, {"answered": answered, "clipped_fraction": sums.clipped / max(1, answered)}
        assert isinstance(answers, Answers)
        counted = first_answered(answers.answered, p.divisor)
        plain, _ = clipped_mean(answers.values, counted, p.clip_norm, p.divisor)
        return plain, {"answered": int(np.sum(counted)), "clipped_fraction": 0.0}

    def _stepped(
        self,
        state: OneEpochState,
        mean: Vector | NoisySums,
        counted: Sums | None,
        diagnostics: dict[str, float],
        noise: NoiseSource,
    ) -> Update[OneEpochState]:
        """Release the noised sum, and step along what this round added to it: ftrl with an optimiser of its own."""
        p, t, radius, presence, before = self.parameters, state.round, state.radius, state.presence, state.sums
        assert before is not None
        if self._shares is None or p.adaptive is None:
            assert isinstance(self._noise, PrefixNoise)
            _, sums = self._noise.release(before, mean, noise)
            gradient = self._noise.added(before, sums, mean)
            entry, public = p.entry(), {}
        else:
            assert counted is not None
            told, sums = self._shares.release(before, counted, noise)
            gradient, entry, public = radius * told.mean, self._shares.entry().scaled(radius), {"radius": radius}
            loud = self._shares.shares(t).scale
            radius, presence = p.adaptive.following(radius, told, loud, presence, p.clip_norm)
        wanted, moments = p.optimiser.step(state.x, gradient, state.moments, step_size=1 / p.beta, t=t)
        x = self.plan.problem.domain.project(wanted)
        running = state.running + x / p.suffix if p.rounds - t <= p.suffix else state.running
        moved = OneEpochState(t + 1, x, state.x, x, x, running, sums, radius, moments, presence)
        return Update(moved, (entry,), public, diagnostics)

    def counting(self, state: OneEpochState) -> tuple[ClippedSum | None, int]:
        """What a round reads where nobody sees an answer, and of how many, the first in slot order."""
        return self._reduction(state), self.parameters.divisor

    def noise_label(self, round_: int) -> tuple[str | int, ...]:
        """The stream of a round's noise."""
        return "release" if self.parameters.gradients == "independent" else "prefix", round_

    def model(self, state: OneEpochState) -> Vector:
        """y_T with acceleration, else the suffix average; before the end the current point. All of it is released."""
        if self.parameters.method == "accelerated":
            return state.y
        return state.running if state.round == self.parameters.rounds else state.x

    def iterate(self, state: OneEpochState) -> Vector:
        """As `model`: every point is a function of releases."""
        return self.model(state)
