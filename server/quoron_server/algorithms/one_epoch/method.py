"""Algorithms of one epoch: accelerated SRGD and its relatives, and DP-FTRL, on the clipped means of disjoint cohorts.

A public order of the users is cut into disjoint cohorts of B. The users of cohort t are asked for their gradient at
x_t, or for its weighted difference from the one at x_{t-1}; the server clips every answer to norm C. Let η_t = t + 1
(η_{-1} = 0), τ_t = 2/(t + 2) the momentum, x_0 = z_0 = 0 and N noise that is correlated over rounds:

    Δ_t      = (1/B) Σ_{u in cohort t} clip_C(η_t ∇F_u(x_t) - η_{t-1} ∇F_u(x_{t-1}))
    Ŝ_t      = Δ_0 + ... + Δ_t + N_0 + ... + N_t

Ŝ_t stands for η_t ∇F(x_t): its noise grows like log t where the gradient grows like t.

Source: Choquette-Choo, Ganesh & Thakurta, Algorithm 1; every difference, and why: docs/papers/choquette_choo.md. As
printed: printed.choquette_choo. Privacy: docs/privacy/srgd.md#s1. Utility: docs/privacy/srgd.md#u2.
"""

from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypeVar

import numpy as np

from quoron_client.protocol.questions import Answers, AverageGradient, Question
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.means.clipping import ClippedSum
from quoron_privacy.means.free_presence import PrefixNormCounts, Presence
from quoron_privacy.noise.streams import NoiseSource
from quoron_privacy.prefix.noise import PrefixNoise, PrefixState
from quoron_privacy.release import NoisySums, Release, Sums
from quoron_server.algorithm import OfPlan, Update, Vector
from quoron_server.algorithms.noisy.method import AdaptiveClip
from quoron_server.algorithms.optimisers import SGD, Moments, Optimiser
from quoron_server.algorithms.slots import partition
from quoron_server.parameters import Assumption, Kind, Parameters
from quoron_server.plan import RunPlan
from quoron_server.problem import Problem
from quoron_server.schedule import MaskedRows, RoundRelease, Rounds, clipped_row, count_beside, gradients

Gradients = Literal["recursive", "independent", "ftrl"]
Method = Literal["accelerated", "plain", "ftrl", "anytime"]


@dataclass(frozen=True, slots=True)
class OneEpochParameters(Parameters):
    """Public numbers of one run."""

    gradients: Gradients
    method: Method
    rounds: int  # T
    cohort_size: int  # B
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
        """Return all rounds' sums with the shares that an adaptive clip follows; None where it is fixed."""
        if self.adaptive is None:
            return None
        own = self.rounds, self.factorisation, self.epochs, self._separation
        return PrefixNormCounts(dimension, self.cohort_size, self.adaptive.adjacency, self.noise_scale, *own, soft=True)

    def entry(self) -> Release:
        """Return the ledger entry of one round."""
        name = "gaussian" if self.gradients == "independent" else "prefix-sum"
        return Release(name, {"scale": self.noise_scale, "sensitivity": self.sensitivity})

    def stretches(self, problem: Problem) -> tuple[Rounds, ...]:
        """Return a noisy mean, or the noised sum of all so far, in every round; with it the shares of an adaptive clip.

        Nothing is proved for two servers of shares with users who come back.
        """
        noise, independent, made = self.noise, self.gradients == "independent", self.shares(problem.dimension)
        # A column of C is at least 1 long, and with one epoch a round may be as loud as the loudest.
        norm = noise.column_norm if isinstance(noise, PrefixNoise) and self.epochs == 1 else 1.0
        unit = self.clip_norm / self.cohort_size / self.noise_scale
        blocks = clipped_row(problem.dimension, unit, "row" if independent else "sums") if made is None else made.masked
        rows = MaskedRows("replace-one", blocks, None if independent else self.factorisation, self._separation)
        release = RoundRelease(noise, self.entry(), self.mu)
        first = Rounds(
            1,
            self.cohort_size,
            gradients(problem),
            (release if made is None else RoundRelease(made, made.entry(), self.mu, scaled=True),),
            often=self.epochs,
            leaks=count_beside(noise if made is None else None, norm),
            summed=True,
            rows=rows if made is None or self.epochs == 1 else None,
        )
        points = 2 if self.gradients == "recursive" else 1
        return first, replace(first, count=self.rounds - 1, task=gradients(problem, points))

    def assumptions(self, problem: Problem) -> tuple[Assumption, ...]:
        """Return what becomes of users who do not answer."""
        return (Assumption(Kind.ABSENT_IS_ZERO, (self.cohort_size,)),)


@dataclass(frozen=True, slots=True, eq=False)
class Iterates:
    """Everything between two rounds. All points are functions of what was released."""

    round: int
    x: Vector
    previous: Vector  # x_{t-1}
    y: Vector
    z: Vector
    running: Vector  # weighted sum of the averaged iterates
    sums: PrefixState | None  # of the prefix noise; None where noise is independent


S = TypeVar("S", bound=Iterates)


def recursive(t: int) -> tuple[float, ...]:
    """η_t and -η_{t-1}, the weights of a recursive gradient: η_t = t + 1 and η_{-1} = 0."""
    return (t + 1.0, -float(t)) if t else (1.0,)


class OneEpoch(OfPlan[OneEpochParameters]):
    """An algorithm of this family but for its steps, for a plan with OneEpochParameters."""

    kind = OneEpochParameters

    def __init__(self, plan: RunPlan) -> None:
        super().__init__(plan)
        self.noise, self.project = self.parameters.noise, plan.problem.domain.project

    def init(self) -> Iterates:
        """Start at zero."""
        zero = np.zeros(self.plan.problem.dimension)
        sums = self.noise.start(len(zero)) if isinstance(self.noise, PrefixNoise) else None
        return Iterates(0, zero, zero, zero, zero, zero, sums)

    def request(self, state: Iterates, noise: NoiseSource) -> Question | None:
        """Δ_t(u): each user's gradient at x_t, or η_t ∇F_u(x_t) - η_{t-1} ∇F_u(x_{t-1}). None after the last round."""
        p, problem, t = self.parameters, self.plan.problem, state.round
        if t == p.rounds:
            return None
        weights = recursive(t) if p.gradients == "recursive" else (1.0,)
        points = np.stack([state.x, state.previous][: len(weights)])
        first = t % p.batches * p.cohort_size
        cohort = partition(seed=self.plan.seed, users=problem.users)[first : first + p.cohort_size]
        asked = AverageGradient(points, weights, problem.user_smoothness)
        return Question(t, cohort, asked, reduction=self.reduction(state))

    def reduction(self, state: Any) -> ClippedSum:
        """Return all that a round reads of the answers."""
        return ClippedSum(self.parameters.clip_norm, self.parameters.cohort_size)

    def mean(self, state: Iterates, answers: Answers | Sums) -> tuple[Vector | NoisySums, Sums, dict[str, float]]:
        """(1/B) Σ clip_C(Δ_t(u)), or the sum with noise; what was read; diagnostics."""
        reduction, sums = self.reduction(state), answers
        if not isinstance(sums, Sums):
            sums = reduction.of(sums.values, sums.answered)
        mean = sums if isinstance(sums, NoisySums) else reduction.mean(sums)
        return mean, sums, {"answered": sums.answered, "clipped_fraction": sums.clipped / max(1, sums.answered)}

    def prefix_sum(
        self, state: Iterates, answers: Answers | Sums, noise: NoiseSource
    ) -> tuple[Vector, PrefixState, dict[str, float]]:
        """Ŝ_t, the noised sum of the means of all rounds so far; diagnostics."""
        mean, _, diagnostics = self.mean(state, answers)
        assert isinstance(self.noise, PrefixNoise)
        assert state.sums is not None
        return *self.noise.release(state.sums, mean, noise), diagnostics

    def moved(
        self, state: S, x: Vector, y: Vector, z: Vector, sums: PrefixState | None, diagnostics: dict[str, float]
    ) -> Update[S]:
        """Return the state of the next round, and the ledger's entry of this one."""
        p, t = self.parameters, state.round
        running = state.running + x / p.suffix if p.rounds - t <= p.suffix else state.running
        after = replace(state, round=t + 1, x=x, previous=state.x, y=y, z=z, running=running, sums=sums)
        return Update(after, (p.entry(),), {}, diagnostics)

    def model(self, state: Iterates) -> Vector:
        """Return the mean of the last `suffix` iterates; before the end the current one."""
        return state.running if state.round == self.parameters.rounds else state.x

    def noise_label(self, round_: int) -> tuple[str | int, ...]:
        """Return the stream of a round's noise."""
        return "release" if self.parameters.gradients == "independent" else "prefix", round_


class AcceleratedSRGD(OneEpoch):
    """Algorithm object for a plan with OneEpochParameters.

    Nesterov's steps along private sums of recursive gradients:

        z_{t+1}  = Proj(z_t - Ŝ_t/(2β))
        y_{t+1}  = Proj(x_t - Ŝ_t/(β η_t))
        x_{t+1}  = (1 - τ_{t+1}) y_{t+1} + τ_{t+1} z_{t+1};                              model: y_T

    Three repairs. Answers are clipped, since no bound on their length holds for every dataset. The z-step is halved, as
    the potential of the proof needs. Noise comes from a Toeplitz factorisation (`blt`), quieter than the binary tree.
    """

    def update(self, state: Iterates, answers: Answers | Sums, noise: NoiseSource) -> Update[Iterates]:
        """Release Ŝ_t, and step twice along it."""
        gradient_sum, sums, diagnostics = self.prefix_sum(state, answers, noise)
        x, y, z = nesterov(self, state, gradient_sum)
        return self.moved(state, x, y, z, sums, diagnostics)

    def model(self, state: Iterates) -> Vector:
        """y_T; before the end y_t."""
        return state.y


def nesterov(algorithm: OneEpoch, state: Iterates, gradient_sum: Vector) -> tuple[Vector, Vector, Vector]:
    """x_{t+1}, y_{t+1} and z_{t+1}: a short step from x_t, a long one from z_t, and the average of both."""
    eta, tau, beta = state.round + 1.0, 2 / (state.round + 3), algorithm.parameters.beta
    z = algorithm.project(state.z - gradient_sum / (2 * beta))
    y = algorithm.project(state.x - gradient_sum / (beta * eta))
    return (1 - tau) * y + tau * z, y, z


class SRGD(OneEpoch):
    """Algorithm object for a plan of method `plain`.

    x_{t+1} = Proj(x_t - Ŝ_t/(β η_t)); model: mean of the last iterates. Source: Choquette-Choo, Ganesh & Thakurta,
    section 4.3.
    """

    def update(self, state: Iterates, answers: Answers | Sums, noise: NoiseSource) -> Update[Iterates]:
        """Release Ŝ_t, and step along it."""
        gradient_sum, sums, diagnostics = self.prefix_sum(state, answers, noise)
        x = self.project(state.x - gradient_sum / (self.parameters.beta * (state.round + 1.0)))
        return self.moved(state, x, x, x, sums, diagnostics)


class OnlineToBatch(OneEpoch):
    """Algorithm object for a plan of method `anytime`.

    z_{t+1} = Proj(z_t - Ŝ_t/(2β)), x_{t+1} = (1 - τ_{t+1}) x_t + τ_{t+1} z_{t+1}; model: x_T. Source: Zhang, Tran &
    Cutkosky (2022).
    """

    def update(self, state: Iterates, answers: Answers | Sums, noise: NoiseSource) -> Update[Iterates]:
        """Release Ŝ_t, and average the online learner's next point into x."""
        gradient_sum, sums, diagnostics = self.prefix_sum(state, answers, noise)
        tau, z = 2 / (state.round + 3), self.project(state.z - gradient_sum / (2 * self.parameters.beta))
        x = (1 - tau) * state.x + tau * z
        return self.moved(state, x, x, z, sums, diagnostics)


class AcceleratedSGD(OneEpoch):
    """Algorithm object for a plan of method `accelerated` on `independent` gradients.

    The steps of accelerated SRGD along Ŝ_t = η_t ((1/B) Σ_u clip_C(∇F_u(x_t)) + Gaussian noise). Source:
    Choquette-Choo, Ganesh & Thakurta, section 5.5.
    """

    def update(self, state: Iterates, answers: Answers | Sums, noise: NoiseSource) -> Update[Iterates]:
        """Release the mean, and step twice along it."""
        t = state.round
        mean, _, diagnostics = self.mean(state, answers)
        assert isinstance(self.noise, GaussianNoise)
        gradient = self.noise.release(mean, noise.stream("release", t))
        x, y, z = nesterov(self, state, (t + 1.0) * gradient)
        return self.moved(state, x, y, z, None, diagnostics)

    def model(self, state: Iterates) -> Vector:
        """y_T; before the end y_t."""
        return state.y


@dataclass(frozen=True, slots=True, eq=False)
class FTRLState(Iterates):
    """Everything between two rounds; y and z are x."""

    radius: float  # C_t
    moments: Moments  # of the optimiser
    presence: Presence = field(default_factory=Presence)  # of those asked, by releases of an adaptive clip


class DPFTRL(OneEpoch):
    """Algorithm object for a plan of method `ftrl`.

    Follow the regularised leader on noised prefix sums; one epoch, or several in the same order.

        Δ_t(u) = ∇F_u(x_t),  clipped to C;   Ŝ_t = noised sum of the cohorts' means
        x_{t+1} = Proj(-Ŝ_t/β); with another optimiser or an adaptive clip steps along Ŝ_t - Ŝ_{t-1}
        model: mean of the last iterates

    Source: Kairouz et al. (2021); Choquette-Choo et al. (2023), Algorithm 1, for several epochs. Proof:
    docs/privacy/prefix-noise.md#c3; of an adaptive clip: docs/privacy/free-presence.md.
    """

    def __init__(self, plan: RunPlan) -> None:
        super().__init__(plan)
        self._shares = self.parameters.shares(plan.problem.dimension)

    def init(self) -> FTRLState:
        """Start at zero, with the first clip norm."""
        p, start = self.parameters, super().init()
        own = {item.name: getattr(start, item.name) for item in fields(start)}
        return FTRLState(**own, radius=p.clip_norm, moments=p.optimiser.start(len(start.x)))

    def reduction(self, state: Any) -> ClippedSum:
        """At C_t, which an adaptive clip moves."""
        return ClippedSum(state.radius, self.parameters.cohort_size)

    def update(self, state: FTRLState, answers: Answers | Sums, noise: NoiseSource) -> Update[FTRLState]:
        """Release the noised sum, and step along it, or along what this round added to it."""
        p, t = self.parameters, state.round
        mean, counted, diagnostics = self.mean(state, answers)
        assert isinstance(self.noise, PrefixNoise)
        assert state.sums is not None
        entry, public, radius, presence, moments = p.entry(), {}, state.radius, state.presence, state.moments
        if p.adaptive is not None and self._shares is not None:
            told, sums = self._shares.release(state.sums, counted, noise)
            gradient, entry, public = radius * told.mean, self._shares.entry().scaled(radius), {"radius": radius}
            loud = self._shares.shares(t).scale
            radius, presence = p.adaptive.following(radius, told, loud, presence, p.clip_norm)
        else:
            total, sums = self.noise.release(state.sums, mean, noise)
            gradient = self.noise.added(state.sums, sums, mean)
        if p.adaptive is None and p.optimiser.plain:
            x = self.project(-total / p.beta)
        else:
            wanted, moments = p.optimiser.step(state.x, gradient, moments, 1 / p.beta, t=t, rounds=p.rounds)
            x = self.project(wanted)
        own = replace(state, radius=radius, moments=moments, presence=presence)
        return replace(self.moved(own, x, x, x, sums, diagnostics), releases=(entry,), public=public)
