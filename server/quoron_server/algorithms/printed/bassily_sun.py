"""Bassily & Sun (2023), Algorithms 4 and 5 exactly as printed: `constants="paper"` of `mean-sgd` and `local-model`.

Both clip users' average gradients around a crude mean (Algorithm 1): one that the exponential mechanism chooses
(Algorithm 6), or one that noisy bits vote for (Algorithms 2 and 3). Sizes, steps and noise are those of the printed
lines; a constant inside O(·), Θ(·) or Ω(·) is an option with the default 1.

Source: Bassily & Sun (2023), *User-level private stochastic convex optimization with optimal rates*. Every line beside
the code, and what differs in the repaired versions: docs/papers/bassily_sun.md.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from quoron_client.protocol.questions import Answers, AverageGradient, Question, RangeReport, VectorReport
from quoron_client.protocol.smoothing import moreau
from quoron_privacy import local
from quoron_privacy.accounts import gdp, sensitivity_recount
from quoron_privacy.accounts.pair import DominatingPair
from quoron_privacy.arrays import Integers
from quoron_privacy.errors import Infeasible
from quoron_privacy.gaussian import GaussianNoise, mean_sensitivity
from quoron_privacy.means.clipping import ClippedSum
from quoron_privacy.means.private_range import PrivateRange
from quoron_privacy.means.rotation import padded
from quoron_privacy.noise.streams import GRID_BITS, NoiseSource, SeededNoise, total_variation
from quoron_privacy.release import Release
from quoron_privacy.schedule import Schedule
from quoron_server.algorithm import OfPlan, Update, Vector
from quoron_server.algorithms import noisy, search
from quoron_server.algorithms.centring import public_signs
from quoron_server.algorithms.descent import Descent, Estimate, State
from quoron_server.algorithms.slots import partition
from quoron_server.algorithms.spec import Calibrated, Printed
from quoron_server.parameters import Assumption, Kind, Parameters, PrintedParameters
from quoron_server.plan import MAX_ROUNDS, Privacy
from quoron_server.problem import Problem
from quoron_server.schedule import RoundRelease, Rounds, gradients

LARGEST_BINS = 1 << 16  # of a range
UNCOUNTED = "Our accountant finds no ε below 1,000 for these scales."


@dataclass(frozen=True, slots=True)
class Concentration:
    """How far users' average gradients are taken to lie from one point: Lemma 5.1, Theorem 4.3 and Lemma 4.2."""

    failure: float  # γ′, of a round: what is left of γ in each of T rounds, halved
    spread: float  # τ
    radius: float  # C
    bins: int  # of Algorithms 2 and 6 on [-L, L]

    @classmethod
    def of(cls, problem: Problem, users: int, rounds: int, failure: float) -> "Concentration":
        """Of `users` in each of `rounds`, all but with chance `failure` (γ)."""
        n, d, length = problem.users, problem.dimension, padded(problem.dimension)
        # Proof of Lemma 5.1: τ = L √(2 log(8eTn/γ)/m), γ′ = γ/2T
        own = failure / (2 * rounds)
        spread = problem.lipschitz * math.sqrt(2 * math.log(8 * math.e * rounds * n / failure) / problem.items_per_user)
        # Theorem 4.3, ii: C = τ √log(dn/γ)
        radius = spread * math.sqrt(max(math.log(d * n / own), 0.0))
        # Proof of Lemma 4.2: τ′ = 10 τ √(log(4kd/γ)/d); Algorithm 2, line 1 and 6, line 1: L/τ′ bins of width 2τ′
        rotated = 10 * spread * math.sqrt(max(math.log(4 * users * length / own), 0.0) / length)
        return cls(own, spread, radius, max(1, math.ceil(problem.lipschitz / rotated)))


# Algorithm 4: the central model


@dataclass(frozen=True, slots=True)
class CentralOptions:
    """What the paper leaves open of Algorithm 4."""

    rounds_factor: float = 1.0  # of c_{n,δ} = Θ(log n log(1/δ)), line 2
    noise_factor: float = search.within(1e-300, 1e9, 1.0)  # of σ = O(τ √(log(dn/γ) log(1/δ₀)) / (kε₀)), Theorem 4.1
    range_share: float = 0.5  # of ε₀ for the crude mean: ½ is what Theorem 4.3 prints for the local model


@dataclass(frozen=True, slots=True)
class PrintedMeanSGD(PrintedParameters, Parameters):
    """Public numbers of one run of Algorithm 4."""

    rounds: int  # T
    cohort_size: int  # B
    step_size: float  # η
    round_epsilon: float  # ε₀
    round_delta: float  # δ₀
    radius: float  # C
    noise_scale: float  # σ, a coordinate of the mean
    range_epsilon: float  # ε₁, of a coordinate's choice
    bins: int  # l; of one bin the middle is 0 without a choice
    half_width: float  # L

    @property
    def suffix(self) -> int:
        """Of iterates averaged: all."""
        return self.rounds

    @property
    def noise(self) -> GaussianNoise:
        """Of the truncated mean."""
        return GaussianNoise(mean_sensitivity(self.radius, self.cohort_size), self.noise_scale)

    @property
    def crude(self) -> PrivateRange | None:
        """Algorithm 6 in every rotated coordinate."""
        return PrivateRange(self.range_epsilon, self.bins, self.half_width) if self.bins > 1 else None

    def round_mu(self, dimension: int) -> float:
        """GDP of a round given its cohort and the past, by its scales (docs/privacy/mean-sgd.md#ms1)."""
        mean = sensitivity_recount.mu(
            sensitivity_recount.rows(self.radius, self.cohort_size, "replace-one"), self.noise_scale, dimension
        )
        if self.crude is None:
            return mean
        return sensitivity_recount.behind_choices(mean, dimension, self.range_epsilon)

    def stretches(self, problem: Problem) -> tuple[Rounds, ...]:
        """Return a mean in every round, behind a crude mean."""
        noise, crude, mu = self.noise, self.crude, self.round_mu(problem.dimension)
        made: tuple[RoundRelease, ...] = (RoundRelease(noise, noise.entry(), mu),)
        if crude is not None:
            made = (RoundRelease(crude, crude.entry(problem.dimension), mu), *made)
        return (Rounds(self.rounds, self.cohort_size, gradients(problem), made, often=self.rounds),)

    def assumptions(self, problem: Problem) -> tuple[Assumption, ...]:
        """Secret cohorts, unless they are everybody."""
        return noisy.assumptions_of("without-replacement", problem.users, self.cohort_size)


def plan_central(problem: Problem, privacy: Privacy, options: CentralOptions) -> Calibrated:
    """Line 2 of Algorithm 4 and the mean of Theorem 4.1; Infeasible where a cohort or T is larger than can be."""
    n, m, d, length = problem.users, problem.items_per_user, problem.dimension, padded(problem.dimension)
    epsilon, delta, lipschitz = privacy.epsilon, privacy.delta, problem.lipschitz
    c = options.rounds_factor * math.log(n) * math.log(1 / delta)  # c_{n,δ}
    rounds = max(1, math.floor(min((n * epsilon / c) ** 2 / d, 1e15))) if c else 1  # T = n²ε²/(c²d)
    step = (
        problem.radius / lipschitz * (d * math.sqrt(m) / (n**1.5 * epsilon**2) + c * math.sqrt(m * d) / (n * epsilon))
    )
    share = epsilon / ((math.e - 1) * math.sqrt(2 * rounds * math.log(2 / delta)))
    cohort = max(1, math.floor(n * share))  # B = nε/((e - 1)√(2T log(2/δ)))
    if cohort > n:
        raise Infeasible("mean-sgd", f"line 2 of Algorithm 4 draws {cohort:,} of {n:,} users", "a smaller epsilon")
    if rounds > MAX_ROUNDS:
        condition = f"line 2 of Algorithm 4 takes {rounds:,} rounds, and plans have at most {MAX_ROUNDS:,}"
        raise Infeasible("mean-sgd", condition, "fewer users, a smaller epsilon or a larger rounds_factor")
    own_epsilon, own_delta = 1.0, n * delta / (2 * rounds * cohort)  # ε₀, δ₀
    near = Concentration.of(problem, cohort, rounds, 1 / math.sqrt(m * n))  # Lemma 5.1: γ = 1/√(mn)
    log = math.log(1 / own_delta)
    numbers = PrintedMeanSGD(
        epsilon=epsilon,
        delta=delta,
        filled_in=(
            f"c_{{n,δ}} = {options.rounds_factor:g} ln n ln(1/δ) for Θ(log n log(1/δ))",
            f"σ = {options.noise_factor:g} C √ln(1/δ₀)/(Bε₀) for O(·) in Theorem 4.1, with C = τ √ln(dn/γ′) of Theorem "
            "4.3, drawn once, which has the law of a mean of B draws of √B σ",
            f"each of d₂ = {length} choices of the crude mean spends {options.range_share:g} ε₀/√(2 d₂ ln(1/δ₀))",
            "the bins of Algorithm 6 have the width 2τ′ of the proof of Lemma 4.2, on [-L, L], their number rounded up",
            "T and B are rounded down, at least 1; vectors are padded to d₂, a power of two; the clip is around μ̃",
        ),
        void=(),
        rounds=rounds,
        cohort_size=cohort,
        step_size=step,
        round_epsilon=own_epsilon,
        round_delta=own_delta,
        radius=near.radius,
        noise_scale=options.noise_factor * near.radius * math.sqrt(log) / (cohort * own_epsilon),
        range_epsilon=min(max(options.range_share * own_epsilon / math.sqrt(2 * length * log), 1e-9), 1000.0),
        bins=min(near.bins, LARGEST_BINS),
        half_width=lipschitz,
    )
    return Calibrated(numbers.judged(_central_conditions(numbers, problem, near, c)), None)


def _central_conditions(
    p: PrintedMeanSGD, problem: Problem, near: Concentration, c: float
) -> Iterable[tuple[bool, str]]:
    """Return whether a condition holds, and the sentence that is to be said where it does not."""
    n, m, d, epsilon = problem.users, problem.items_per_user, problem.dimension, p.epsilon
    largest = d / (4 * n**2.5 * math.sqrt(m) * epsilon**2)
    most = max(math.sqrt(d), n * epsilon**2 / math.sqrt(d))
    smooth = 2 * problem.lipschitz / problem.radius
    smooth *= min(n**1.5 * epsilon**2 / (d * math.sqrt(m)), n * epsilon / (c * math.sqrt(m * d)) if c else math.inf)
    enough = math.sqrt(d * math.log(1 / p.round_delta))
    enough *= math.log(max(d * problem.lipschitz * n / (near.spread * near.failure), 1.0)) / p.round_epsilon
    own = epsilon / math.sqrt(2 * p.rounds * math.log(2 / p.delta))
    whole = epsilon + p.rounds * own * math.expm1(own)
    beta = problem.beta
    yield 0 < epsilon < 1, f"Theorem 3.1 asks for ε in (0, 1), and ε = {epsilon:g}."
    yield p.delta < largest, f"Theorem 3.1 asks for δ < d/(4n^(5/2)√m ε²) = {largest:.2g}, and δ = {p.delta:g}."
    yield n > math.sqrt(d) / epsilon, f"Theorem 3.1 asks for n > √d/ε = {math.sqrt(d) / epsilon:.3g}, and n = {n:,}."
    yield m < most, f"Theorem 3.1 asks for m < max(√d, nε²/√d) = {most:.3g}, and m = {m:,}."
    yield (
        beta is not None and beta <= smooth,
        f"Equation (2) asks for β <= (2L/R) min(n^(3/2)ε²/(d√m), nε/(c√(md))) = {smooth:.3g}, and "
        + ("the loss is not smooth." if beta is None else f"β = {beta:.3g}."),
    )
    yield (
        beta is not None and p.step_size * beta <= 2,
        f"The generalisation bound asks for η <= 2/β, and η = {p.step_size:.3g}.",
    )
    yield (
        n * epsilon**2 <= c * c * d,
        "Line 2 prints η as a sum where the proof needs the smaller of the two terms: its bound L²Tη/(nm) is then at "
        f"least RLε/(c√(dm)) = {problem.radius * problem.lipschitz * epsilon / ((c or 1) * math.sqrt(d * m)):.2g}.",
    )
    yield (
        p.cohort_size >= enough,
        f"Theorem 4.1 asks for k = Ω(√(d log(1/δ₀)) log(dLn/(τγ))/ε₀), {enough:,.0f} with the constant 1, and k = B = "
        f"{p.cohort_size:,}.",
    )
    yield near.bins > 1, "The bins are wider than all gradients (τ′ >= L): the crude mean is 0 without a choice."
    yield (
        near.radius < problem.lipschitz,
        f"The clip C = {near.radius:.3g} is no shorter than L = {problem.lipschitz:.3g}: nothing is gained by it.",
    )
    yield False, "Theorems 2.5 and 4.1 ask for ε₀ < 1, and line 2 prints ε₀ = 1."
    yield (
        False,
        f"The proof of privacy leaves out the second term of Theorem 2.4, with which its rounds add up to {whole:.4g}.",
    )
    yield math.isfinite(central_epsilon(p, problem, p.delta)), UNCOUNTED


def central_epsilon(p: PrintedMeanSGD, problem: Problem, delta: float) -> float:
    """By docs/privacy/mean-sgd.md#ms1: T rounds on secret uniform cohorts, each of a range and a mean, replace-one."""
    mu, d = p.round_mu(problem.dimension), problem.dimension
    return _sampled_epsilon(problem.users, p.cohort_size, p.rounds, mu, d, delta) if mu < math.inf else math.inf


@lru_cache(maxsize=64)
def _sampled_epsilon(users: int, cohort: int, rounds: int, mu: float, dimension: int, delta: float) -> float:
    drawn = Schedule(users, cohort, rounds, "without-replacement", "replace-one").pair(mu)
    return drawn.with_variation(total_variation(gaussians=rounds * dimension)).epsilon(delta)


class UserLevelNoisySGD(Descent[PrintedMeanSGD, State]):
    """Algorithm 4, User-level private noisy SGD: lines 1, 2, 7, 8 and 9 are `Descent`, which averages all iterates."""

    kind = PrintedMeanSGD

    def cohort(self, round_: int, noise: NoiseSource) -> tuple[Integers, bool]:
        """Return line 3: a random subset of B users without replacement."""
        size, users = self.parameters.cohort_size, self.plan.problem.users
        return noise.stream("cohort", round_).subset(users, size), size < users

    def question(self, state: State, noise: NoiseSource) -> Question:
        """Return lines 4 and 5: their average gradients at θ_t."""
        cohort, drawn = self.cohort(state.round, noise)
        task = AverageGradient(state.iterate[None, :], (1.0,))
        return Question(state.round, cohort, task, self.parameters.cohort_size, drawn=drawn)

    def estimate(self, state: State, answers: Answers, noise: NoiseSource) -> Estimate:
        """Return line 6: the noisy mean of Theorem 4.1."""
        p, t, centre = self.parameters, state.round, np.zeros(len(state.iterate))
        entries: tuple[Release, ...] = ()
        if (crude := p.crude) is not None:  # Algorithm 1, line 1: Algorithm 6 in each rotated coordinate
            signs = public_signs(self.plan.seed, t, len(centre))
            centre = crude.release(answers.values, answers.answered, signs, noise.stream("range", t))
            entries = (crude.entry(len(centre)),)
        truncated = ClippedSum(p.radius, p.cohort_size, centre)  # Algorithm 1, line 2
        mean = truncated.mean(truncated.of(answers.values, answers.answered))
        gradient = centre + p.noise.release(mean, noise.stream("release", t))
        return Estimate(gradient, (*entries, p.noise.entry()))


CENTRAL = Printed(
    options=CentralOptions,
    parameters=PrintedMeanSGD,
    planner=plan_central,
    maker=UserLevelNoisySGD,
    epsilon=central_epsilon,
)


# Algorithm 5: the local model


@dataclass(frozen=True, slots=True)
class RangeReports:
    """What each client adds to a range report, as the coordinator knows it."""

    epsilon: float  # ε₁
    bins: int

    def entry(self) -> Release:
        """Return the ledger entry of one interaction's reports."""
        return Release("range-reports", {"epsilon": self.epsilon, "bins": self.bins})


@dataclass(frozen=True, slots=True)
class VectorReports:
    """What each client adds to a vector report for a radius of 1, as the coordinator knows it."""

    epsilon: float
    delta: float
    scale: float  # σ per coordinate, as clients compute it

    def entry(self) -> Release:
        """Return the ledger entry of one interaction's reports."""
        return Release(
            "vector-reports", {"epsilon": self.epsilon, "delta": self.delta, "radius": 1.0, "scale": self.scale}
        )


def vector_scale(epsilon: float, delta: float, dimension: int) -> float:
    """σ of a vector report for a radius of 1."""
    kept = delta * (1 - 1e-9)  # clients keep as much for their own arithmetic
    mu = gdp.mu_for(epsilon, kept, gaussians=dimension)
    return GaussianNoise.for_mu(sensitivity=2.0, mu=mu, dimension=dimension).scale


@dataclass(frozen=True, slots=True)
class LocalOptions:
    """What the paper leaves open of Algorithm 5."""

    step_factor: float = 1.0  # of ν √(T(T+1)(T+2)/12)/R in 1/η_t: Lemma 6.1 says only that there are steps


@dataclass(frozen=True, slots=True)
class PrintedLocalModel(PrintedParameters):
    """Public numbers of one run of Algorithm 5."""

    steps: int  # T
    users_a_step: int  # n₀, who send both reports
    inverse_step: float  # β̂: η_t = (t + 1)/(2β̂)
    radius: float  # C
    noise_scale: float  # σ, a coordinate of a report
    vector_epsilon: float  # with which a client computes that σ by itself
    vector_delta: float
    range_epsilon: float  # ε/2
    bins: int  # t; of one bin the middle is 0 without a report
    half_width: float  # L
    smoothing: float  # 1/β_m of the Moreau envelope; 0 without

    @property
    def interactions(self) -> int:
        """Adaptive interactions of a step: range reports, then vector reports of the same users."""
        return 2 if self.bins > 1 else 1

    def seeks(self, round_: int) -> bool:
        """Return whether an interaction asks for range reports."""
        return self.bins > 1 and round_ % 2 == 0

    @property
    def range_reports(self) -> RangeReports:
        """Of an interaction that seeks a crude mean."""
        return RangeReports(self.range_epsilon, self.bins)

    @property
    def vector_reports(self) -> VectorReports:
        """Of an interaction that steps, for a radius of 1."""
        return VectorReports(self.vector_epsilon, self.vector_delta, self.noise_scale / self.radius)

    def stretches(self, problem: Problem) -> tuple[Rounds, ...]:
        """Return the reports of every interaction, each of them private; both of a step are of the same users."""
        gradient, zero = gradients(problem, smoothing=moreau(self.smoothing)), np.zeros(problem.dimension)
        report = VectorReport(gradient, self.vector_epsilon, self.vector_delta, self.radius, zero)
        sent, sought = self.vector_reports, self.range_reports
        made = RoundRelease(sent, sent.entry().scaled(self.radius))
        if self.interactions == 1:
            return (Rounds(self.steps, self.users_a_step, report, (made,)),)
        bits = RangeReport(gradient, self.range_epsilon, self.bins, self.half_width, zero, np.zeros(1, np.int64))
        look = Rounds(1, self.users_a_step, bits, (RoundRelease(sought, sought.entry()),))
        return (look, Rounds(1, self.users_a_step, report, (made,), fresh=False)) * self.steps

    def assumptions(self, problem: Problem) -> tuple[Assumption, ...]:
        """Each user sends two reports, and who sends them reveals nothing."""
        reports = Kind.TWO_REPORTS if self.interactions == 2 else Kind.ONE_REPORT
        return Assumption(reports), Assumption(Kind.CARELESS_PARTICIPATION)


def plan_local(problem: Problem, privacy: Privacy, options: LocalOptions) -> Calibrated:
    """Line 2 of Algorithm 5 and the reports of Theorem 4.3; Infeasible where clients cannot be asked for its noise."""
    n, m, d, length = problem.users, problem.items_per_user, problem.dimension, padded(problem.dimension)
    epsilon, delta, lipschitz, far = privacy.epsilon, privacy.delta, problem.lipschitz, problem.radius
    steps = min(max(1, math.floor(n * epsilon**2 / d)), n)  # T = nε²/d
    users = n // steps  # n₀ = ⌊n/T⌋
    if 2 * steps > MAX_ROUNDS:
        condition = f"line 2 of Algorithm 5 takes {steps:,} steps, and plans have at most {MAX_ROUNDS:,} rounds"
        raise Infeasible("local-model", condition, "fewer users or a smaller epsilon")
    near = Concentration.of(problem, users, steps, math.sqrt(d / (m * n * epsilon**2)))  # proof of Theorem 3.2: γ
    scale = near.radius * math.sqrt(8 * math.log(1.25 / delta)) / epsilon  # Theorem 4.3, iii
    # Section 6, smoothness: where the slope jumps, the Moreau envelope with β_m = (L/R) √(mnε²/d)
    beta = problem.smoothness
    smoothing = far / lipschitz * math.sqrt(d / (m * n * epsilon**2)) if beta is None else 0.0
    beta = 1 / smoothing if beta is None else beta
    error = math.sqrt((lipschitz**2 + d * scale**2) / users)  # ν² <= L²/n₀ + dσ², σ² of the mean
    asked = _asked(near.radius, scale, delta, d)
    numbers = PrintedLocalModel(
        epsilon=epsilon,
        delta=delta,
        filled_in=(
            "γ_t = (t + 2)/2 and η_t = (t + 1)/(2β̂), β̂ = β + "
            f"{options.step_factor:g} ν √(T(T + 1)(T + 2)/12)/R, for the settings whose existence Lemma 6.1 states",
            "τ and γ′ = γ/2T as in the proof of Lemma 5.1, with γ = √(d/(mnε²))",
            f"T is rounded down, between 1 and n, the number of bins up; vectors are padded to d₂ = {length}",
        ),
        void=(),
        steps=steps,
        users_a_step=users,
        inverse_step=beta + options.step_factor * error * math.sqrt(steps * (steps + 1) * (steps + 2) / 12) / far,
        radius=near.radius,
        noise_scale=near.radius * vector_scale(asked, delta, d),
        vector_epsilon=asked,
        vector_delta=delta,
        range_epsilon=epsilon / 2,  # Theorem 4.3, i
        bins=min(near.bins, LARGEST_BINS),
        half_width=lipschitz,
        smoothing=smoothing,
    )
    return Calibrated(numbers.judged(_local_conditions(numbers, problem, near)), None)


def _asked(radius: float, scale: float, delta: float, dimension: int) -> float:
    """The ε for which a client that computes its noise by itself (docs/privacy/local-model.md#r2) adds this much."""
    mu = 2 * radius * (1 + 1e-9) / scale + 2 * math.sqrt(dimension) * 2.0**-GRID_BITS
    epsilon = gdp.epsilon_for(mu, delta * (1 - 1e-9))
    if not 0 < epsilon <= 15:
        condition = (
            f"the noise of Theorem 4.3 is that of a report at epsilon={epsilon:.3g}, and clients make none beyond 15"
        )
        raise Infeasible("local-model", condition, "a smaller epsilon")
    return epsilon


def _local_conditions(p: PrintedLocalModel, problem: Problem, near: Concentration) -> Iterable[tuple[bool, str]]:
    """Return whether a condition holds, and the sentence that is to be said where it does not."""
    n, m, d, epsilon = problem.users, problem.items_per_user, problem.dimension, p.epsilon
    smooth = problem.lipschitz * epsilon**3 / problem.radius * math.sqrt(n**3 / (m * d**3))
    logarithm = math.log(max(d**1.5 * problem.lipschitz / (near.spread * near.failure), 1.0))
    enough, beta = 4 * d * logarithm / epsilon**2, problem.smoothness
    yield epsilon < 1, f"Theorem 4.3 asks for ε in (0, 1), and ε = {epsilon:g}."
    yield p.delta < min(epsilon, 1 / p.users_a_step), f"Theorems 3.2 and 4.3 ask for δ < ε and δ < 1/k: {p.delta:g}."
    yield m < d / epsilon**2, f"Theorem 3.2 asks for m < d/ε² = {d / epsilon**2:.3g}, and m = {m:,}."
    yield n >= d / epsilon**2, f"Theorem 3.2 asks for n >= d/ε² = {d / epsilon**2:.3g}, and n = {n:,}."
    yield (
        beta is not None or n > m * d / epsilon**2,
        f"Without smoothness Theorem 3.2 asks for n > md/ε² = {m * d / epsilon**2:.3g}, and n = {n:,}.",
    )
    yield (
        beta is None or beta < smooth,
        f"Theorem 3.2 asks for β < (Lε³/R)√(n³/(md³)) = {smooth:.3g}, and β = {beta or 0.0:.3g}.",
    )
    yield (
        p.users_a_step > enough,
        f"Lemma 4.2 and Theorem 4.3 ask for more than 4d log(√d³ L/(τγ))/ε² = {enough:,.0f} users a step, and line 2 "
        f"leaves {p.users_a_step:,}.",
    )
    yield near.bins > 1, "The bins are wider than all gradients (τ′ >= L): the crude mean is 0 without a report."
    yield (
        near.radius < problem.lipschitz,
        f"The clip C = {near.radius:.3g} is no shorter than L = {problem.lipschitz:.3g}: nothing is gained by it.",
    )
    yield p.bins == 1, "Theorem 4.3 spends ε/2 on the range and ε on the vector of the same users, 1.5 ε in all."
    yield (
        False,
        "Line 8 prints a step from θ^md without projection: Lemma 6.1 is about a projected step from θ_t, and nothing "
        "is proved of the printed one, whose model may lie outside of Θ.",
    )
    yield math.isfinite(local_epsilon(p, problem, p.delta)), UNCOUNTED


def local_epsilon(p: PrintedLocalModel, problem: Problem, delta: float) -> float:
    """By docs/privacy/local-model.md, "Two reports": one user's bits and vector, with the noise that clients add."""
    d = problem.dimension
    added = min(p.noise_scale, p.radius * vector_scale(p.vector_epsilon, p.vector_delta, d))
    vector = DominatingPair.gaussian(sensitivity_recount.mu(2 * p.radius, added, d), total_variation(gaussians=d))
    return (vector if p.interactions == 1 else vector.and_(DominatingPair.response(p.range_epsilon))).epsilon(delta)


@dataclass(frozen=True, slots=True, eq=False)
class LocalSCOState:
    """Everything between two interactions; all of it is public."""

    round: int  # interactions so far
    point: Vector  # θ_t
    aggregate: Vector  # θ_t^ag
    centre: Vector  # μ̃


class UserLevelLocalSCO(OfPlan[PrintedLocalModel]):
    """Algorithm 5, User-level LDP SCO, line by line."""

    kind = PrintedLocalModel

    def init(self) -> LocalSCOState:
        """Return θ_0 = θ_0^ag = 0: line 1."""
        zero = np.zeros(self.plan.problem.dimension)
        return LocalSCOState(0, zero, zero, zero)

    def request(self, state: LocalSCOState, noise: NoiseSource) -> Question | None:
        """Return lines 3 to 6: a fresh batch of n₀ users, and a report of each one's average gradient at θ_t^md."""
        p, problem = self.parameters, self.plan.problem
        if state.round == p.steps * p.interactions:
            return None
        t, smoothing = state.round // p.interactions, moreau(p.smoothing)
        batch = partition(seed=self.plan.seed, users=problem.users)[t * p.users_a_step : (t + 1) * p.users_a_step]
        gradient = AverageGradient(self._middle(state)[None, :], (1.0,), smoothing=smoothing)
        if p.seeks(state.round):  # Algorithm 3, lines 1 to 3
            signs, groups = public_signs(self.plan.seed, t, problem.dimension), self._groups(t)
            task: RangeReport | VectorReport = RangeReport(
                gradient, p.range_epsilon, p.bins, p.half_width, signs, groups
            )
        else:  # Algorithm 1, line 2
            task = VectorReport(gradient, p.vector_epsilon, p.vector_delta, p.radius, state.centre)
        return Question(state.round, batch, task)

    def update(self, state: LocalSCOState, answers: Answers, noise: NoiseSource) -> Update[LocalSCOState]:
        """Return the crude mean of Algorithm 3, or lines 7 to 9."""
        p, t, d = self.parameters, state.round // self.parameters.interactions, len(state.point)
        if p.seeks(state.round):
            counts = local.count_bits(answers.values, answers.answered, self._groups(t), padded(d))
            crude = local.crude_mean(counts, p.half_width, public_signs(self.plan.seed, t, d))
            return Update(replace(state, round=state.round + 1, centre=crude), (p.range_reports.entry(),))
        gradient = local.mean_of_reports(answers.values, answers.answered, state.centre, 1e9 * p.noise_scale)  # line 7
        point = self._middle(state) - (t + 1) / (2 * p.inverse_step) * gradient  # line 8: from θ_t^md, not projected
        share = 2 / (t + 2)  # 1/γ_t
        aggregate = share * point + (1 - share) * state.aggregate  # line 9
        after = LocalSCOState(state.round + 1, point, aggregate, np.zeros(d))
        return Update(after, (p.vector_reports.entry().scaled(p.radius),))

    def model(self, state: LocalSCOState) -> Vector:
        """Return line 11, θ_T^ag."""
        return state.aggregate

    def _middle(self, state: LocalSCOState) -> Vector:
        """Return θ_t^md: line 4."""
        share = 2 / (state.round // self.parameters.interactions + 2)
        middle: Vector = share * state.point + (1 - share) * state.aggregate
        return middle

    def _groups(self, step: int) -> NDArray[np.int64]:
        """Return Algorithm 3, line 2: which rotated coordinate each user of a step reports. Public."""
        stream = SeededNoise(self.plan.seed).stream("public coordinates", step)
        return local.assign_coordinates(self.parameters.users_a_step, self.plan.problem.dimension, stream)


LOCAL = Printed(
    options=LocalOptions,
    parameters=PrintedLocalModel,
    planner=plan_local,
    maker=UserLevelLocalSCO,
    epsilon=local_epsilon,
)
