"""Algorithms of one epoch: accelerated SRGD and its relatives, and DP-FTRL, on the clipped means of disjoint cohorts.

A public order of the users is cut into disjoint cohorts of B. The users of cohort t are asked for their gradient at
x_t, or for its weighted difference from the one at x_{t-1}; the server clips every answer to norm C. Let η_t = t + 1
(η_{-1} = 0), τ_t = 2/(t + 2) the momentum, x_0 = z_0 = 0 and N noise that is correlated over rounds:

    Δ_t      = (1/B) Σ_{u in cohort t} clip_C(η_t ∇F_u(x_t) - η_{t-1} ∇F_u(x_{t-1}))
    Ŝ_t      = Δ_0 + ... + Δ_t + N_0 + ... + N_t

Ŝ_t stands for η_t ∇F(x_t): its noise grows like log t where the gradient grows like t.

Source: Choquette-Choo, Ganesh & Thakurta, Algorithm 1; every difference, and why: docs/papers/choquette_choo.md. As
printed: printed.choquette_choo. Privacy: docs/privacy/srgd.md#s1. Utility: docs/privacy/srgd.md#u2.

Plans of the one-epoch family: rounds, step and clip by predicted excess risk, and the re-check of the guarantee.

On a quadratic with one curvature h all these methods are linear, so the error of the model is a sum of responses
(`Response`): to the start point, to sampling noise and to privacy noise. The sampling error of a round stays in every
later sum; correlated noise enters by the rows of its factor. Where the curvature is unknown the proved bounds rank
plans instead (docs/privacy/srgd.md#u2): upper bounds, often far above what is measured. Predictions never set noise.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from typing import Any, Literal, TypeVar, cast

import numpy as np

from quoron_client.protocol.questions import Answers
from quoron_privacy.accounts import sensitivity_recount
from quoron_privacy.accounts.gdp import mu_for
from quoron_privacy.accounts.pair import DominatingPair
from quoron_privacy.arrays import Integers, Matrix
from quoron_privacy.errors import ConfigError, Infeasible, VerificationError
from quoron_privacy.gaussian import GaussianNoise, mean_sensitivity
from quoron_privacy.kernels.prebuilt import njit
from quoron_privacy.means.clipping import ClippedSum
from quoron_privacy.noise.streams import NoiseSource, total_variation
from quoron_privacy.prefix import noise as played
from quoron_privacy.prefix.noise import FACTORISATIONS, PrefixNoise, PrefixState, factorise, sqrt_coefficients
from quoron_privacy.release import Adjacency, NoisySums, Release, Sums
from quoron_server.algorithm import MAX_STATE, Vector
from quoron_server.algorithms import search
from quoron_server.algorithms.averaged_sgd import step_grid, suffix_grid
from quoron_server.algorithms.descent import Descent, Estimate, State, clipped
from quoron_server.algorithms.noisy import require_clip
from quoron_server.algorithms.optimisers import SGD, Moments, Optimiser, OptimiserOptions
from quoron_server.algorithms.printed import choquette_choo
from quoron_server.algorithms.references import (
    CHOQUETTE_CHOO_2023,
    CHOQUETTE_CHOO_2025,
    KAIROUZ_2021,
    ZHANG_ONLINE_2022,
    ours,
    repaired,
    theirs,
)
from quoron_server.algorithms.search import Candidate, PlanInputs, Planner, round_grid
from quoron_server.algorithms.spec import AlgorithmSpec, Calibrated, Factor, Guarantees
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

    def entry(self) -> Release:
        """Return the ledger entry of one round."""
        name = "gaussian" if self.gradients == "independent" else "prefix-sum"
        return Release(name, {"scale": self.noise_scale, "sensitivity": self.sensitivity})

    def stretches(self, problem: Problem) -> tuple[Rounds, ...]:
        """Return a noisy mean, or the noised sum of all so far, in every round."""
        noise, independent = self.noise, self.gradients == "independent"
        # A column of C is at least 1 long, and with one epoch a round may be as loud as the loudest.
        norm = noise.column_norm if isinstance(noise, PrefixNoise) and self.epochs == 1 else 1.0
        unit = self.clip_norm / self.cohort_size / self.noise_scale
        blocks = clipped_row(problem.dimension, unit, "row" if independent else "sums")
        first = Rounds(
            1,
            self.cohort_size,
            gradients(problem),
            (RoundRelease(noise, self.entry(), self.mu),),
            often=self.epochs,
            leaks=count_beside(noise, norm),
            summed=True,
            rows=MaskedRows("replace-one", blocks, None if independent else self.factorisation, self._separation),
        )
        points = 2 if self.gradients == "recursive" else 1
        return first, replace(first, count=self.rounds - 1, task=gradients(problem, points))

    def assumptions(self, problem: Problem) -> tuple[Assumption, ...]:
        """Return what becomes of users who do not answer."""
        return (Assumption(Kind.ABSENT_IS_ZERO, (self.cohort_size,)),)


@dataclass(frozen=True, slots=True, eq=False)
class Iterates(State):
    """Everything between two rounds. All points are functions of what was released; the iterate is x_t."""

    previous: Vector  # x_{t-1}
    y: Vector
    z: Vector
    sums: PrefixState | None  # of the prefix noise; None where noise is independent


It = TypeVar("It", bound=Iterates)


def recursive(t: int) -> tuple[float, ...]:
    """η_t and -η_{t-1}, the weights of a recursive gradient: η_t = t + 1 and η_{-1} = 0."""
    return (t + 1.0, -float(t)) if t else (1.0,)


class OneEpoch(Descent[OneEpochParameters, It]):
    """An algorithm of this family but for its steps, for a plan with OneEpochParameters."""

    kind = OneEpochParameters

    def __init__(self, plan: RunPlan) -> None:
        super().__init__(plan)
        self.noise, self.project = self.parameters.noise, plan.problem.domain.project

    def init(self) -> It:
        """Start at zero."""
        zero = np.zeros(self.plan.problem.dimension)
        sums = self.noise.start(len(zero)) if isinstance(self.noise, PrefixNoise) else None
        return cast(It, Iterates(0, zero, zero, zero, zero, zero, sums))

    def points(self, state: It) -> tuple[Matrix, tuple[float, ...]]:
        """Δ_t(u): a gradient at x_t, or η_t ∇F_u(x_t) - η_{t-1} ∇F_u(x_{t-1})."""
        weights = recursive(state.round) if self.parameters.gradients == "recursive" else (1.0,)
        return np.stack([state.iterate, state.previous][: len(weights)]), weights

    def reduction(self, state: It) -> ClippedSum:
        """Return the sum of clipped gradients."""
        return ClippedSum(self.parameters.clip_norm, self.parameters.cohort_size)

    def estimate(self, state: It, answers: Answers | Sums, noise: NoiseSource) -> Estimate:
        """Release Ŝ_t, the noised sum of the means (1/B) Σ clip_C(Δ_t(u)) so far, or η_t times a noisy mean."""
        mean, seen = clipped(answers, self.reduction(state))
        gradient, kept = self.released(state, mean, noise)
        return Estimate(gradient, (self.parameters.entry(),), {}, seen, {"sums": kept})

    def released(self, state: It, mean: Vector | NoisySums, noise: NoiseSource) -> tuple[Vector, PrefixState | None]:
        """Return what is stepped along, and the state of the prefix noise."""
        if isinstance(self.noise, GaussianNoise):
            return (state.round + 1.0) * self.noise.release(mean, noise.stream("release", state.round)), None
        assert state.sums is not None
        return self.noise.release(state.sums, mean, noise)

    def moved(self, state: It, x: Vector, y: Vector, z: Vector) -> It:
        """Return the state with the next points."""
        return replace(state, iterate=x, previous=state.iterate, y=y, z=z)

    def noise_label(self, round_: int) -> tuple[str | int, ...]:
        """Return the stream of a round's noise."""
        return "release" if self.parameters.gradients == "independent" else "prefix", round_


class AcceleratedSRGD(OneEpoch[Iterates]):
    """Algorithm object for a plan of method `accelerated`.

    Nesterov's steps along private sums of recursive gradients:

        z_{t+1}  = Proj(z_t - Ŝ_t/(2β))
        y_{t+1}  = Proj(x_t - Ŝ_t/(β η_t))
        x_{t+1}  = (1 - τ_{t+1}) y_{t+1} + τ_{t+1} z_{t+1};                              model: y_T

    Three repairs. Answers are clipped, since no bound on their length holds for every dataset. The z-step is halved, as
    the potential of the proof needs. Noise comes from a Toeplitz factorisation (`blt`), quieter than the binary tree.

    On `independent` gradients, Choquette-Choo, Ganesh & Thakurta, section 5.5, the steps are along
    Ŝ_t = η_t ((1/B) Σ_u clip_C(∇F_u(x_t)) + Gaussian noise).
    """

    def step(self, state: Iterates, gradient: Vector, phase: OneEpochParameters) -> Iterates:
        """Step twice along Ŝ_t: short from x_t, long from z_t; x is the average of both."""
        eta, tau = state.round + 1.0, 2 / (state.round + 3)
        z = self.project(state.z - gradient / (2 * phase.beta))
        y = self.project(state.iterate - gradient / (phase.beta * eta))
        return self.moved(state, (1 - tau) * y + tau * z, y, z)

    def model(self, state: Iterates) -> Vector:
        """y_T; before the end y_t."""
        return state.y


class SRGD(OneEpoch[Iterates]):
    """Algorithm object for a plan of method `plain`.

    x_{t+1} = Proj(x_t - Ŝ_t/(β η_t)); model: mean of the last iterates. Source: Choquette-Choo, Ganesh & Thakurta,
    section 4.3.
    """

    def step(self, state: Iterates, gradient: Vector, phase: OneEpochParameters) -> Iterates:
        """Step along Ŝ_t."""
        x = self.project(state.iterate - gradient / (phase.beta * (state.round + 1.0)))
        return self.moved(state, x, x, x)


class OnlineToBatch(OneEpoch[Iterates]):
    """Algorithm object for a plan of method `anytime`.

    z_{t+1} = Proj(z_t - Ŝ_t/(2β)), x_{t+1} = (1 - τ_{t+1}) x_t + τ_{t+1} z_{t+1}; model: x_T. Source: Zhang, Tran &
    Cutkosky (2022).
    """

    def step(self, state: Iterates, gradient: Vector, phase: OneEpochParameters) -> Iterates:
        """Average the online learner's next point into x."""
        tau, z = 2 / (state.round + 3), self.project(state.z - gradient / (2 * phase.beta))
        x = (1 - tau) * state.iterate + tau * z
        return self.moved(state, x, x, z)


@dataclass(frozen=True, slots=True, eq=False)
class FTRLState(Iterates):
    """Everything between two rounds; y and z are x."""

    moments: Moments  # of the optimiser


class DPFTRL(OneEpoch[FTRLState]):
    """Algorithm object for a plan of method `ftrl`.

    Follow the regularised leader on noised prefix sums; one epoch, or several in the same order.

        Δ_t(u) = ∇F_u(x_t),  clipped to C;   Ŝ_t = noised sum of the cohorts' means
        x_{t+1} = Proj(-Ŝ_t/β); with another optimiser steps along Ŝ_t - Ŝ_{t-1}
        model: mean of the last iterates

    Source: Kairouz et al. (2021); Choquette-Choo et al. (2023), Algorithm 1, for several epochs. Proof:
    docs/privacy/prefix-noise.md#c3.
    """

    def init(self) -> FTRLState:
        """Start at zero."""
        start = super().init()
        own = {item.name: getattr(start, item.name) for item in fields(Iterates)}
        return FTRLState(**own, moments=self.parameters.optimiser.start(len(start.iterate)))

    def released(
        self, state: FTRLState, mean: Vector | NoisySums, noise: NoiseSource
    ) -> tuple[Vector, PrefixState | None]:
        """Return the noised sum, or for another optimiser what this round added to it."""
        total, sums = super().released(state, mean, noise)
        if self.parameters.optimiser.plain:
            return total, sums
        assert isinstance(self.noise, PrefixNoise)
        assert state.sums is not None
        assert sums is not None
        return self.noise.added(state.sums, sums, mean), sums

    def step(self, state: FTRLState, gradient: Vector, phase: OneEpochParameters) -> FTRLState:
        """Step along the noised sum, or as the optimiser does."""
        wanted, moments, t = -gradient / phase.beta, state.moments, state.round
        if not phase.optimiser.plain:
            wanted, moments = phase.optimiser.step(
                state.iterate, gradient, moments, 1 / phase.beta, t=t, rounds=phase.rounds
            )
        x = self.project(wanted)
        return self.moved(replace(state, moments=moments), x, x, x)


METHODS = {"accelerated": 0, "plain": 1, "ftrl": 2, "anytime": 3}

THEOREM = "docs/privacy/srgd.md"
_BESIDE = 80  # bytes of a state for each column, beside what is kept of earlier noise, at most
LARGEST_ROUNDS = 1024
LARGEST_CLIP = 6.0  # of the Lipschitz constant: the paper's lemma 10, recursive gradients, smoothness ~ L/R

HALVED = "half the step of z, and every answer is clipped"


@dataclass(frozen=True, slots=True, eq=False)
class Response:
    """Linear responses of the final models of C candidates, per unit of start distance and of perturbations of Ŝ_t."""

    bias: Vector  # (model - x*) / (x_0 - x*), shape (C,)
    sums: Vector  # d model / d Ŝ_t, shape (C, T)
    path: Vector  # (x_t - x*) / (x_0 - x*), shape (C, T)


def response(method: str, rounds: int, inverse_steps: Vector, curvature: float, suffixes: Integers) -> Response:
    """Follow the recursion of `srgd` forwards for the bias and backwards for the perturbations.

    `inverse_steps` and `suffixes` are those of the candidates, shape (C,).
    """
    count = len(inverse_steps)
    bias, sums, path = np.empty(count), np.empty((count, rounds)), np.empty((count, rounds))
    _response(METHODS[method], inverse_steps, curvature, suffixes, bias, sums, path)
    return Response(bias, sums, path)


@njit(cache=True)
def _response(method, betas, h, suffixes, bias, sums, path):  # type: ignore[no-untyped-def]
    """Fills `bias` (C,), `sums` and `path` (C, T)."""
    rounds = path.shape[1]
    for c in range(len(betas)):
        beta, suffix = betas[c], suffixes[c]
        x = z = 1.0
        total = 0.0
        # Forwards: where the noiseless path goes from distance 1, which is the bias.
        for t in range(rounds):
            path[c, t] = x
            if method == 0:
                z -= (t + 1) * h * x / (2 * beta)
                total = x - h * x / beta  # y, the model if this is the last round
                x = (1 - 2 / (t + 3)) * total + 2 / (t + 3) * z
            elif method == 3:
                z -= (t + 1) * h * x / (2 * beta)
                total = x = (1 - 2 / (t + 3)) * x + 2 / (t + 3) * z
            else:  # without projections ftrl takes the same steps as plain SGD
                x -= h * x / beta
                total += x / suffix if rounds - t <= suffix else 0.0
        # Then backwards: how much of a unit added to Ŝ_t alone is in the model, the a_t of srgd#u6.
        bias[c] = total
        if method == 0:
            sums[c, rounds - 1] = -1 / (beta * rounds)
            to_x, to_z = 1 - h / beta, 0.0
            for t in range(rounds - 2, -1, -1):
                momentum = 2 / (t + 3)
                through_z = to_z + to_x * momentum
                through_y = to_x * (1 - momentum)
                sums[c, t] = -through_y / (beta * (t + 1)) - through_z / (2 * beta)
                to_x = through_y * (1 - h / beta) - through_z * (t + 1) * h / (2 * beta)
                to_z = through_z
        elif method == 3:
            to_x, to_z = 1.0, 0.0  # how much x_T holds of a unit added to x_{t+1}, to z_{t+1}
            for t in range(rounds - 1, -1, -1):
                momentum = 2 / (t + 3)
                to_z += to_x * momentum
                sums[c, t] = -to_z / (2 * beta)
                to_x = to_x * (1 - momentum) + (t + 1) * h * sums[c, t]
        else:
            decay, reach = 1 - h / beta, 0.0  # reach: how much the model holds of a unit added to x_{t+1}
            for t in range(rounds - 1, -1, -1):
                later = reach
                reach = (1 / suffix if rounds - t <= suffix else 0.0) + decay * later
                sums[c, t] = -reach / (beta * (t + 1)) if method == 1 else -(reach - later) / beta


def drift(problem: Problem, gradients: str, moved: Response, curvature: float) -> Vector:
    """Predicted ‖E Δ_t‖ in each round, shape (C, T): curvature times how far its points lie from the optimum."""
    path = np.abs(moved.path)
    if gradients == "recursive":
        weighted = np.arange(1, path.shape[1] + 1) * moved.path
        path = np.abs(np.diff(weighted, prepend=0.0))
    return curvature * problem.radius * path


def isotropic_risk(
    problem: Problem,
    gradients: str,
    method: str,
    inverse_steps: Vector,
    suffixes: Integers,
    cohort: int,
    clips: Vector,
    kernel: Vector,
) -> Vector:
    """Predicted excess risk of each candidate, shape (C,).

    One seed draw adds, per coordinate, clip · kernel[k] to the sum k rounds later; `kernel` has shape (T,).
    """
    curvature = problem.beliefs.typical_curvature or 0.0
    slowest = problem.beliefs.least_curvature or curvature
    rounds = len(kernel)
    moved = response(method, rounds, inverse_steps, curvature, suffixes)
    lag = moved if slowest == curvature else response(method, rounds, inverse_steps, slowest, suffixes)
    # Users differ by their gradients at the optimum and, away from it, by their Hessians.
    far = drift(problem, gradients, moved, curvature) / max(curvature, 1e-300)
    steep = problem.smoothness or 0.0
    each = problem.user_deviation**2 + curvature * steep / problem.items_per_user * far**2
    if gradients == "independent":
        weights = moved.sums * np.arange(1, rounds + 1)
        noise = problem.dimension * (clips[:, None] * kernel[0]) ** 2
        error = np.sum(weights**2 * (each / cohort + noise), axis=1)
    else:
        backwards = moved.sums[:, ::-1]
        lasting = np.cumsum(backwards, axis=1)[:, ::-1]
        seeds = _convolution(backwards, kernel)  # Σ_{t ≥ j} response_t · kernel_{t-j}, j backwards
        error = np.sum(lasting**2 * each, axis=1) / cohort
        error += problem.dimension * clips**2 * np.sum(seeds**2, axis=1)
    risk: Vector = (slowest * (lag.bias * problem.radius) ** 2 + curvature * error) / 2
    return risk


def _convolution(rows: Vector, kernel: Vector) -> Vector:
    """Return the first T terms of each row's convolution with `kernel`; shapes (C, T) and (T,)."""
    rounds = len(kernel)
    length = 1 << (2 * rounds - 1).bit_length()  # so that nothing wraps around
    product = np.fft.rfft(rows, length) * np.fft.rfft(kernel, length)
    return np.fft.irfft(product, length)[:, :rounds]


def bounded_risk(
    problem: Problem, gradients: str, method: str, inverse_step: float, clip: float, cohort: int, stds: Vector
) -> float:
    """Upper bounds: srgd#u2 (recursive), #u3 (independent), #u4 (plain), #u5 (ftrl), #u7 (anytime).

    `stds[t]` is the noise per coordinate of Ŝ_t, or of the mean when gradients are independent; shape (T,). A β at or
    below the smoothness M has no bound: it gets that of β - M = M/1000, so that it ranks last.
    """
    radius, rounds = problem.radius, len(stds)
    t = np.arange(rounds)
    noise = math.sqrt(problem.dimension) * stds
    if problem.beta is None:  # ftrl only: srgd#u5 for losses that are not smooth
        moved = clip**2 * (rounds + 1) / 2 + clip * float(np.sum(noise))
        return (inverse_step * radius**2 / 2 + moved / inverse_step) / rounds
    gap = max(inverse_step - problem.beta, 1e-3 * problem.beta)
    if gradients == "recursive":  # an item's Δ within the clip, users' expectations spread as their gradients are
        spread = min(clip, math.hypot(clip / math.sqrt(problem.items_per_user), problem.beliefs.heterogeneity))
    else:
        spread = problem.user_deviation
    if method == "ftrl":
        earlier = float(np.sum(noise[:-1] ** 2))  # noise of the last sum meets no later step
        local = (rounds * spread**2 / cohort + earlier) / (2 * gap)
        return (inverse_step * radius**2 / 2 + local + radius * float(noise[-1])) / rounds
    if gradients == "independent":
        variance = spread**2 / cohort + float(noise[0] ** 2)
        return 2 * inverse_step * radius**2 / (rounds * (rounds + 1)) + variance * (rounds + 2) / (6 * gap)
    # the error of Ŝ_t/η_t: cohorts' sampling errors add up to a martingale, whose last members reach later points
    square = spread**2 / (cohort * (t + 1)) + noise**2 / (t + 1) ** 2
    linear = spread / np.sqrt(cohort * (t + 1)) + noise / (t + 1)
    if method == "anytime":
        lengths = (t + 1) * (problem.lipschitz + linear)
        moved = (float(np.sum(lengths**2)) + ((rounds + 1) * problem.lipschitz) ** 2) / (4 * inverse_step)
        wrong = radius * float(np.sum((t + 1) * linear))
        return (inverse_step * radius**2 + moved + wrong) / ((rounds + 1) * (rounds + 2) / 2)
    if method == "plain":
        return inverse_step * radius**2 / (2 * rounds) + float(np.mean(square / (2 * gap) + radius * linear))
    local = float(np.sum((t + 1) * (t + 2) / 2 * square)) / (2 * gap)
    return (inverse_step * radius**2 + local + radius * float(np.sum((t + 1) * linear))) / (rounds * (rounds + 1) / 2)


@dataclass(frozen=True, slots=True)
class OneEpochOptions:
    """Planning options; None lets the plan choose by predicted excess risk."""

    rounds: int | None = None
    inverse_step: float | None = None  # β
    clip_norm: float | None = None  # from public knowledge, never tuned on protected data
    factorisation: str | None = "blt"  # of the prefix sums


@dataclass(frozen=True, slots=True)
class FTRLOptions(OptimiserOptions, OneEpochOptions):
    """Planning options of `dp-ftrl`; None lets the plan choose by predicted excess risk."""

    epochs: int = 1  # k: how often a user is asked, at most
    factorisation: str | None = None  # None: blt; for several epochs banded, where its noise fits into `noise_memory`
    noise_memory: int = search.within(0, 1e9, 2**24)  # bytes of earlier noise, written every round; several epochs


_Tried = tuple[int, float, int, float]  # rounds, β, iterates averaged and the clip norm


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inputs(PlanInputs[OneEpochOptions]):
    """What a plan of one of the methods is made from."""

    gradients: Gradients
    method: Method

    @property
    def epochs(self) -> int:
        """k."""
        return self.options.epochs if isinstance(self.options, FTRLOptions) else 1

    def batches(self, rounds: int) -> int:
        """Disjoint cohorts."""
        return -(-rounds // self.epochs)

    def cohort_size(self, rounds: int) -> int:
        """B."""
        return self.problem.users // self.batches(rounds)

    def factorisation(self, rounds: int) -> str:
        """The one that is asked for, else the quietest that fits: for several epochs `banded` is quieter than `blt`."""
        options, epochs = self.options, self.epochs
        if options.factorisation is not None or epochs == 1 or not isinstance(options, FTRLOptions):
            return options.factorisation or "blt"
        kept = 8 * factorise("banded", rounds, self.batches(rounds)).slots * self.problem.dimension
        most = MAX_STATE - _BESIDE * self.problem.dimension  # beyond, no store would take the run
        return "banded" if kept <= min(options.noise_memory, most) else "blt"


def _missing(inputs: _Inputs) -> Infeasible:
    fewest = max(4, 1 if inputs.options.rounds is None else inputs.batches(inputs.options.rounds))
    return Infeasible.too_few(inputs.name, f"n={inputs.problem.users:,} users cannot fill the cohorts", fewest)


def _chosen(inputs: _Inputs, found: Candidate[_Tried]) -> Calibrated:
    gradients, options, (rounds, beta, suffix, clip) = inputs.gradients, inputs.options, found.of
    cohort_size = inputs.cohort_size(rounds)
    sensitivity = mean_sensitivity(clip, cohort_size)
    scale, mu = _calibrated(inputs, rounds, sensitivity)
    parameters = OneEpochParameters(
        gradients,
        inputs.method,
        rounds=rounds,
        cohort_size=cohort_size,
        beta=beta,
        suffix=suffix,
        clip_norm=clip,
        sensitivity=sensitivity,
        noise_scale=scale,
        factorisation="-" if gradients == "independent" else inputs.factorisation(rounds),
        mu=mu,
    )
    risk: float | None = found.risk
    if isinstance(options, FTRLOptions):
        optimiser = options.made(options.inverse_step, "inverse_step")
        suffix = options.averaged(suffix, rounds)
        parameters = replace(parameters, epochs=options.epochs, optimiser=optimiser, suffix=suffix)
        if options.epochs > 1 or not optimiser.plain:
            risk = None  # the forecast is of plain steps on fresh users
    return Calibrated(parameters, risk)


def verify(plan: RunPlan) -> None:
    """Disjoint cohorts, the clip's sensitivity, the mechanism's μ, and (ε, δ) from μ; VerificationError otherwise."""
    p = plan.parameters_of(OneEpochParameters)
    if p.epochs < 1 or (p.epochs > 1 and p.gradients != "ftrl"):
        raise VerificationError(f"Expected one epoch of {plan.algorithm}, got {p.epochs}.")
    if p.batches * p.cohort_size > plan.problem.users or p.cohort_size < 1:
        raise VerificationError(f"Expected {p.batches} disjoint cohorts of {p.cohort_size} among {plan.problem.users}.")
    require_clip(p.clip_norm, p.sensitivity, p.cohort_size, None, plan.guarantee.adjacency)


def pairs(p: OneEpochParameters, problem: Problem, adjacency: Adjacency) -> tuple[DominatingPair, ...]:
    """srgd#s1: of the transcript. Sums carry the noise of all rounds, fresh gradients only the own round's."""
    drawn = problem.dimension * (1 if p.gradients == "independent" else p.rounds)
    mu = recounted_mu(p, problem.dimension, adjacency)
    return (DominatingPair.gaussian(mu, total_variation(gaussians=drawn)),)


def moves(p: OneEpochParameters, problem: Problem) -> list[float]:
    """min-cohort#q4: of a round's own term, at least 1 of a column of C.

    In one epoch as loud as the loudest.
    """
    noise = p.noise
    reach = played.mu(noise, p.noise_scale, 0) if isinstance(noise, PrefixNoise) and p.epochs == 1 else 1.0
    return [reach * sensitivity_recount.rows(p.clip_norm, p.cohort_size, "replace-one") / p.noise_scale] * p.rounds


def recounted_mu(p: OneEpochParameters, dimension: int, adjacency: Adjacency) -> float:
    """Return the GDP of the transcript by its scales."""
    once, noise = sensitivity_recount.rows(p.clip_norm, p.cohort_size, adjacency), p.noise
    if isinstance(noise, GaussianNoise):
        return sensitivity_recount.mu(once, p.noise_scale, dimension)
    return played.mu(noise, once, dimension)


def _candidates(inputs: _Inputs) -> Iterator[Candidate[_Tried]]:
    gradients, method, problem, options = inputs.gradients, inputs.method, inputs.problem, inputs.options
    most = min(max(LARGEST_ROUNDS, inputs.epochs), inputs.epochs * (problem.users // 2))
    for rounds in inputs.rounds(round_grid(most, smallest=max(2, inputs.epochs))):
        cohort_size = inputs.cohort_size(rounds)
        if cohort_size < 1:
            continue
        unit = mean_sensitivity(1.0, cohort_size)
        scale, _ = _calibrated(inputs, rounds, unit)
        kernel = scale * _kernel(inputs, rounds)
        louder = float(np.sqrt(np.sum(kernel**2)))  # of the last sum
        betas = [options.inverse_step] if options.inverse_step else _inverse_steps(method, problem, rounds)
        suffixes = _suffixes(method, problem, rounds)
        inverse_steps, averaged = np.repeat(betas, len(suffixes)), np.tile(suffixes, len(betas))
        clips = _clips(inputs, rounds, inverse_steps, averaged)
        if method == "ftrl" and options.inverse_step is None:
            # the noise of the sum alone would throw iterates against the boundary
            calm = math.sqrt(problem.dimension) * clips * louder / inverse_steps <= problem.radius / 4
            inverse_steps, averaged, clips = inverse_steps[calm], averaged[calm], clips[calm]
        if problem.beliefs.curvature == "isotropic":
            risks = isotropic_risk(problem, gradients, method, inverse_steps, averaged, cohort_size, clips, kernel)
        else:
            stds = np.sqrt(np.cumsum(kernel**2)) if gradients != "independent" else kernel
            risks = np.array(
                [
                    bounded_risk(problem, gradients, method, beta, clip, cohort_size, clip * stds)
                    for beta, clip in zip(inverse_steps.tolist(), clips.tolist(), strict=True)
                ]
            )
        for risk, *steps in zip(*(row.tolist() for row in (risks, inverse_steps, averaged, clips)), strict=True):
            yield Candidate(risk, (rounds,), (rounds, *steps))


def _suffixes(method: Method, problem: Problem, rounds: int) -> list[int]:
    """Numbers of iterates to average: all stand for none with acceleration, the last point is anytime's model."""
    if method == "anytime":
        return [1]
    return [rounds] if method == "accelerated" else suffix_grid(problem, rounds)


def _inverse_steps(method: Method, problem: Problem, rounds: int) -> list[float]:
    if method == "accelerated" and problem.beta:
        return [problem.beta * float(factor) for factor in (*np.geomspace(1.001, 4, 24), *np.geomspace(5, 40, 6))]
    if method == "anytime" and problem.beta:  # up to where the lengths of T sums that grow as t cross the domain
        far = 8 * problem.lipschitz * rounds**1.5 / problem.radius
        return [float(beta) for beta in np.geomspace(1.001 * problem.beta, max(40 * problem.beta, far), 30)]
    return [1 / step for step in step_grid(problem, rounds)]


def _clips(inputs: _Inputs, rounds: int, inverse_steps: Vector, suffixes: Integers) -> Vector:
    """At the scale of what ordinary users send along each candidate's predicted path; public facts only."""
    problem, recursive = inputs.problem, inputs.gradients == "recursive"
    if inputs.options.clip_norm:
        return np.full_like(inverse_steps, inputs.options.clip_norm)
    largest = problem.lipschitz * (LARGEST_CLIP if recursive else 1.0)
    if problem.beliefs.curvature != "isotropic" or problem.beliefs.typical_curvature is None:
        return np.full_like(inverse_steps, min(largest, (2.0 if recursive else 1.0) * problem.start))
    moved = response(inputs.method, rounds, inverse_steps, problem.beliefs.typical_curvature, suffixes)
    far = drift(problem, inputs.gradients, moved, problem.beliefs.typical_curvature)
    hessians = (problem.smoothness or 0.0) / (problem.beliefs.typical_curvature * problem.items_per_user)
    sent = np.sqrt(far**2 * (1 + hessians) + problem.user_deviation**2)
    clips: Vector = np.minimum(largest, 1.3 * np.max(sent, axis=1))
    return clips


def _kernel(inputs: _Inputs, rounds: int) -> Vector:
    """What a unit of seed noise adds to later sums, per round of lag; for a single epoch near enough for ranking."""
    factorisation, epochs = inputs.factorisation(rounds), inputs.epochs
    if inputs.gradients == "independent":
        return np.ones(rounds)
    if epochs > 1:  # B is Toeplitz, and nowhere negative
        rows = factorise(factorisation, rounds, inputs.batches(rounds)).row_norms
        return np.sqrt(np.diff(rows**2, prepend=0.0))
    toeplitz, _ = sqrt_coefficients(rounds)
    kernel: Vector = toeplitz * (
        factorise(factorisation, rounds).row_norms.max() / math.sqrt(float(np.sum(toeplitz**2)))
    )
    return kernel


@lru_cache(maxsize=4096)
def _unit_scale(gradients: Gradients, dimension: int, mu: float, rounds: int, factorisation: str, epochs: int) -> float:
    """Seed noise for μ at sensitivity 1."""
    if gradients == "independent":
        return GaussianNoise.for_mu(sensitivity=1.0, mu=mu * (1 - 1e-9), dimension=dimension).scale
    made = PrefixNoise.for_mu(
        rounds=rounds,
        sensitivity=1.0,
        mu=mu,
        dimension=dimension,
        factorisation=factorisation,
        participations=epochs,
        separation=-(-rounds // epochs) if epochs > 1 else 1,
    )
    return made.scale


def _calibrated(inputs: _Inputs, rounds: int, sensitivity: float) -> tuple[float, float]:
    """Seed noise and μ for this sensitivity."""
    gradients, problem, privacy = inputs.gradients, inputs.problem, inputs.privacy
    gaussians = problem.dimension * (1 if gradients == "independent" else rounds)
    left = search.left_of_delta(inputs.name, privacy, gaussians=gaussians)
    rounding = 1e-9 if privacy.epsilon < 0.25 else 0.0  # by which the two accounts of δ differ near ε = 0, and more
    mu = mu_for(privacy.epsilon, left * (1 - rounding))
    unit = _unit_scale(gradients, problem.dimension, mu, rounds, inputs.factorisation(rounds), inputs.epochs)
    return sensitivity * unit, mu


def _check(inputs: _Inputs) -> None:
    name, problem, options = inputs.name, inputs.problem, inputs.options
    if inputs.method != "ftrl" and (not problem.convex or problem.beta is None):
        raise Infeasible(name, "the loss is not smooth", "a smooth loss, such as logistic or huber")
    if problem.users < 4:
        raise _missing(inputs)
    if isinstance(options, FTRLOptions):
        if not 1 <= options.epochs <= (options.rounds or options.epochs):
            raise ConfigError(f"Expected options.epochs from 1 to rounds={options.rounds}, got {options.epochs}.")
        options.made(options.inverse_step, "inverse_step")
    if options.factorisation not in (None, *FACTORISATIONS):
        raise Infeasible(name, f"factorisation={options.factorisation!r} is unknown", "blt, tree or another known one")


def _info(name: str, gradients: Gradients, method: Method, **more: Any) -> AlgorithmSpec:
    inputs = partial(_Inputs, gradients=gradients, method=method)
    return AlgorithmSpec(
        name=name,
        guarantees=Guarantees(THEOREM, pairs, moves=moves, one_server=None),
        options=FTRLOptions if gradients == "ftrl" else OneEpochOptions,
        parameters=OneEpochParameters,
        planner=Planner(name, _candidates, _chosen, _missing, inputs=inputs, check=_check),
        verifier=verify,
        **more,
    )


ACCELERATED_SRGD = _info(
    "accelerated-srgd",
    "recursive",
    "accelerated",
    maker=AcceleratedSRGD,
    factor=Factor(known=5.0, unknown=7.0),
    summary="Accelerated SGD on recursive gradients with correlated noise; one epoch, about √n rounds or fewer",
    origin=repaired(CHOQUETTE_CHOO_2025.at("Algorithm 1"), note=HALVED),
    printed=choquette_choo.SRGD,
)
ACCELERATED_SGD = _info(
    "accelerated-sgd",
    "independent",
    "accelerated",
    maker=AcceleratedSRGD,
    factor=Factor(known=7.0, unknown=11.0),
    summary="Accelerated SGD on fresh gradients, independent noise; one epoch, very few rounds",
    origin=repaired(CHOQUETTE_CHOO_2025.at("section 5.5"), note=HALVED),
)
PLAIN_SRGD = _info(
    "srgd",
    "recursive",
    "plain",
    maker=SRGD,
    factor=Factor(known=6.0, unknown=4.0),
    summary="The same without acceleration",
    origin=repaired(CHOQUETTE_CHOO_2025.at("section 4.3"), note="a sketch there; every answer is clipped"),
)
ONLINE_TO_BATCH = _info(
    "online-to-batch",
    "recursive",
    "anytime",
    maker=OnlineToBatch,
    factor=Factor(known=8.0, unknown=2.0),
    summary="Online descent on recursive gradients at averaged points; one epoch, many rounds",
    origin=ours(ZHANG_ONLINE_2022, note="the model is one point later; their text was not at hand"),
)
DP_FTRL = _info(
    "dp-ftrl",
    "ftrl",
    "ftrl",
    maker=DPFTRL,
    factor=Factor(known=3.0, unknown=7.0),
    summary="Follow the regularised leader on noised prefix sums; one epoch, or several in the same order",
    origin=theirs(
        KAIROUZ_2021.at("Algorithm 1"),
        CHOQUETTE_CHOO_2023,
        note="noise of any factorisation, of which the tree is theirs; several epochs after Choquette-Choo et al.",
    ),
)
