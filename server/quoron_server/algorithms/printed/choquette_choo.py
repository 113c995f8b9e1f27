"""Accelerated-DP-SRGD exactly as printed, with the binary tree: `constants="paper"` of `accelerated-srgd`.

With η_t = t + 1 (η_{-1} = 0), τ_t = η_t/(η_0 + ... + η_t) = 2/(t + 2), x_0 = z_0 = 0 and T disjoint batches of B:

    Δ_t      = (1/B) Σ_{d in batch t} (η_t ∇f(x_t, d) - η_{t-1} ∇f(x_{t-1}, d))
    ∇_t      = (Δ_0 + ... + Δ_t)/η_t
    z_{t+1}  = Proj(z_t - (η_t/β) ∇_t + b_t)
    y_{t+1}  = Proj(x_t - (1/β) ∇_t + (1/η_t) b_t)
    x_{t+1}  = (1 - τ_{t+1}) y_{t+1} + τ_{t+1} z_{t+1};                              model: y_T

b_t is the noise that the binary tree of Lemma 8 has in its t-th prefix sum, σ for each node. Nothing is clipped. Sizes:
equation (19) with Corollary 9 (`realizable`), or Theorem 14. One user's average loss takes the place of f(·, d).

Source: Choquette-Choo, Ganesh & Thakurta, *Near-optimal rates for O(1)-smooth DP-SCO with a single epoch and large
batches*, Algorithm 1. Every line beside the code, and what differs in the repaired version:
docs/papers/choquette_choo.md.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from quoron_client.protocol.questions import Answers, AverageGradient, Question
from quoron_privacy.accounts import gdp
from quoron_privacy.accounts.pair import DominatingPair
from quoron_privacy.errors import Infeasible
from quoron_privacy.gaussian import mean_sensitivity
from quoron_privacy.means.clipping import clipped_mean
from quoron_privacy.noise.streams import NoiseSource, total_variation
from quoron_privacy.prefix.noise import PrefixNoise, PrefixState
from quoron_privacy.release import Release
from quoron_server.algorithm import OfPlan, Update, Vector
from quoron_server.algorithms.slots import partition
from quoron_server.algorithms.spec import Calibrated, Printed
from quoron_server.parameters import Assumption, Kind, PrintedParameters
from quoron_server.plan import MAX_ROUNDS, Privacy, RunPlan
from quoron_server.problem import Problem
from quoron_server.schedule import RoundRelease, Rounds, gradients

NAME, THEOREM = "accelerated-srgd", "docs/privacy/srgd.md#sp1"
LOUD = 0.01  # of δ, for noise so loud that an answer could be longer than srgd#sp1 takes it to be


@dataclass(frozen=True, slots=True)
class PrintedSRGDOptions:
    """What the paper leaves open of Algorithm 1."""

    realizable: bool = False  # equation (19), for a minimiser inside the domain, in place of Theorem 14
    smoothness_ratio: float | None = None  # c_M of Theorem 14, "some constant" with M <= c_M L/R; None: max(1, MR/L)
    batch_size: int | None = None  # B <= √n of Theorem 14; None: its last display
    polylog: float = 1.0  # polylog(n/B, 1/δ) of that B


@dataclass(frozen=True, slots=True)
class PrintedSRGD(PrintedParameters):
    """Public numbers of one run of Algorithm 1."""

    rounds: int  # T
    batch_size: int  # B
    beta: float  # β
    longest: float  # what the paper's lemmas bound every ‖Δ_t(d)‖ by; nothing is cut to it
    node_scale: float  # σ, a coordinate of b_t for each node of the tree

    @property
    def noise(self) -> PrefixNoise:
        """Of Δ_0 + ... + Δ_t = η_t ∇_t: -β b_t."""
        moved = mean_sensitivity(self.longest, self.batch_size, "zero-out")
        return PrefixNoise(self.rounds, moved, self.node_scale * self.beta, "tree")

    def entry(self) -> Release:
        """Return the ledger entry of one round."""
        noise = self.noise
        return Release("prefix-sum", {"scale": noise.scale, "sensitivity": noise.sensitivity})

    def stretches(self, problem: Problem) -> tuple[Rounds, ...]:
        """Return the noised sum of all differences so far, in every round: of gradients at x_t and x_{t-1}."""
        first = Rounds(1, self.batch_size, gradients(problem), (RoundRelease(self.noise, self.entry()),))
        return first, replace(first, count=self.rounds - 1, task=gradients(problem, 2))

    def assumptions(self, problem: Problem) -> tuple[Assumption, ...]:
        """True gradients, as nothing is clipped; who does not answer adds zero."""
        return Assumption(Kind.TRUE_GRADIENTS), Assumption(Kind.ABSENT_IS_ZERO, (self.batch_size,))


@dataclass(frozen=True, slots=True, eq=False)
class SRGDState:
    """Everything between two steps."""

    round: int  # t
    x: Vector
    previous: Vector  # x_{t-1}
    y: Vector
    z: Vector
    sums: PrefixState  # of the tree


class AcceleratedDPSRGD(OfPlan[PrintedSRGD]):
    """Algorithm 1, line by line."""

    kind = PrintedSRGD

    def __init__(self, plan: RunPlan) -> None:
        super().__init__(plan)
        self._noise, self._project = self.parameters.noise, plan.problem.domain.project

    def init(self) -> SRGDState:
        """x_0, z_0 ← 0."""
        zero = np.zeros(self.plan.problem.dimension)
        return SRGDState(0, zero, zero, zero, zero, self._noise.start(len(zero)))

    def request(self, state: SRGDState, noise: NoiseSource) -> Question | None:
        """Each user's η_t ∇f(x_t, d) - η_{t-1} ∇f(x_{t-1}, d), over batch t."""
        t, size = state.round, self.parameters.batch_size
        if t == self.parameters.rounds:
            return None
        batch = partition(seed=self.plan.seed, users=self.plan.problem.users)[t * size : (t + 1) * size]
        if t == 0:
            return Question(t, batch, AverageGradient(state.x[None, :], (1.0,)))
        return Question(t, batch, AverageGradient(np.stack([state.x, state.previous]), (t + 1.0, -float(t))))

    def update(self, state: SRGDState, answers: Answers, noise: NoiseSource) -> Update[SRGDState]:
        """The five lines of the loop. The second and the noise of the next two are one release: η_t ∇_t - β b_t."""
        t, eta, tau, beta = state.round, state.round + 1.0, 2 / (state.round + 3), self.parameters.beta
        delta, _ = clipped_mean(answers.values, answers.answered, math.inf, self.parameters.batch_size)
        gradient_sum, sums = self._noise.release(state.sums, delta, noise)
        z = self._project(state.z - gradient_sum / beta)
        y = self._project(state.x - gradient_sum / (beta * eta))
        x = (1 - tau) * y + tau * z
        after = SRGDState(t + 1, x, state.x, y, z, sums)
        return Update(after, (self.parameters.entry(),), {}, {"answered": int(np.sum(answers.answered))})

    def model(self, state: SRGDState) -> Vector:
        """y_T; before the end y_t."""
        return state.y


def plan(problem: Problem, privacy: Privacy, options: PrintedSRGDOptions) -> Calibrated:
    """Sizes and noise of equation (19) and Corollary 9, or of Theorem 14. Infeasible where T steps cannot be taken."""
    sizes = _realizable(problem, privacy) if options.realizable else _theorem_14(problem, privacy, options)
    logs = math.log2(sizes.rounds) * math.log(2.5 / privacy.delta)
    numbers = PrintedSRGD(
        privacy.epsilon,
        privacy.delta,
        filled_in=(
            sizes.filled_in,
            "log T in σ is the binary one, of levels of the tree of Lemma 8",
            "T and B are rounded to integers with TB <= n, and R is the radius of the domain",
        ),
        void=(),
        rounds=sizes.rounds,
        batch_size=sizes.batch,
        beta=sizes.beta,
        longest=sizes.longest,
        node_scale=sizes.louder * sizes.longest * math.sqrt(logs) / (privacy.epsilon * sizes.batch * sizes.beta),
    )
    return Calibrated(numbers.judged(_conditions(numbers, problem, options)), None, THEOREM, adjacency="replace-one")


@dataclass(frozen=True, slots=True)
class _Sizes:
    """T, B, β and C, by how much more than C √(log T ln(2.5/δ))/(εBβ) the noise is, and what was filled in."""

    rounds: int
    batch: int
    beta: float
    longest: float
    louder: float
    filled_in: str


def _realizable(problem: Problem, privacy: Privacy) -> _Sizes:
    """Equation (19) and Corollary 9."""
    n, lipschitz, delta = problem.users, problem.lipschitz, privacy.delta

    def c_dp(users: int) -> float:
        logs = math.pow(math.log(users), 1.5) * math.sqrt(math.log(2 * users / delta))
        return 4 * math.sqrt(2) * logs * math.log(2.5 / delta)

    def steps(users: int) -> int:
        return round(c_dp(users) * math.sqrt(math.sqrt(users)))

    rounds, least = steps(n), 2  # the least n with T <= n
    while (more := steps(least)) > least:
        least = more
    if not 0 < rounds <= min(n, MAX_ROUNDS):  # none for a single user, whose logarithm is 0
        condition = f"equation (19) takes T = c_DP n^(1/4) = {rounds:,} steps with n = {n:,} users"
        if least > MAX_ROUNDS:
            raise Infeasible(NAME, condition, f"a delta above {delta:g}, or realizable=false")
        if n >= least:
            raise Infeasible(NAME, condition, f"at most {MAX_ROUNDS:,} steps, as with n = {least:,}")
        raise Infeasible.too_few(NAME, condition, least)
    wide = max(1.0, math.sqrt(problem.dimension) / (privacy.epsilon * math.sqrt(n)))
    beta = c_dp(n) ** 2 * lipschitz * wide / problem.radius
    return _Sizes(rounds, n // rounds, beta, c_dp(n) * lipschitz, 1.0, "log in c_DP is the natural one")


def _theorem_14(problem: Problem, privacy: Privacy, options: PrintedSRGDOptions) -> _Sizes:
    """Theorem 14 and Corollary 13."""
    n, lipschitz, smoothness = problem.users, problem.lipschitz, problem.smoothness or 0.0
    ratio = options.smoothness_ratio or max(1.0, smoothness * problem.radius / lipschitz)
    batch, filled = options.batch_size, f"c_M = {ratio:.4g} with M <= c_M L/R"
    if batch is None:
        other = smoothness * n**1.5 * privacy.epsilon / (math.sqrt(problem.dimension) * options.polylog)
        batch = max(1, math.floor(min(math.sqrt(n), other or math.inf)))
        filled += f"; polylog(n/B, 1/δ) = {options.polylog:g} in B, whose second term needs M > 0"
    if not 2 <= n // batch <= MAX_ROUNDS:
        needs = f"batch_size from {-(-n // MAX_ROUNDS):,} to {n // 2:,}" if n >= 2 else "n >= 2"
        raise Infeasible(NAME, f"B = {batch:,} of n = {n:,} users makes {n // batch:,} steps", needs)
    beta = (16 * ratio + 8) * lipschitz * n**1.5 / (problem.radius * batch**2)
    return _Sizes(n // batch, batch, beta, (8 * ratio + 4) * lipschitz, 2 * math.sqrt(2), filled)


def _conditions(p: PrintedSRGD, problem: Problem, options: PrintedSRGDOptions) -> Iterator[tuple[bool, str]]:
    """Yield whether a condition of the paper's lemmas holds, and the sentence that is to be said where it does not."""
    n, d, radius, lipschitz = problem.users, problem.dimension, problem.radius, problem.lipschitz
    epsilon, delta, c, most = p.epsilon, p.delta, p.longest / lipschitz, (p.epsilon * n) ** 2
    mu, steep = epsilon / math.sqrt(2 * math.log(2.5 / delta)), problem.smoothness or 0.0
    yield problem.smoothness is not None, "The loss is not smooth: no lemma of the paper is about it."
    yield steep <= p.beta, f"Theorem 3 asks for β >= M, and β = {p.beta:.3g}, M = {steep:.3g}."
    yield d <= most, f"Theorems 10 and 14 ask for p <= ε²n² = {most:.3g}, and p = {d:,}."
    if options.realizable:
        worst = c**2 * lipschitz * math.sqrt(d) / (epsilon * p.batch_size * p.beta)
        spread = 2 * c * math.sqrt(6 * math.log(24 * p.rounds / delta))  # with the γ = δ/4 of Theorem 10
        worth = gdp.epsilon_for(p.noise.column_norm * p.longest / p.batch_size / p.noise.scale, delta / 2)
        yield delta <= 1 / n, f"Theorem 10 asks for δ <= 1/n = {1 / n:.2g}, and δ = {delta:g}."
        yield worst <= radius, f"Lemma 6 takes b_max <= R, and b_max = {worst:.3g}, R = {radius:.3g}."
        yield c * steep <= p.beta, f"Lemma 7 takes β >= c_DP M = {c * steep:.3g}, and β = {p.beta:.3g}."
        yield (
            spread <= n**0.25,
            f"Lemma 7 needs 2 c_DP √(6 log(6T/γ)) = {spread:.3g} to be at most n^(1/4) = {n**0.25:.3g}.",
        )
        yield (
            worth <= epsilon,
            f"Corollary 9 prints √(log T) where Lemma 8 asks for √(2(1 + ⌈log T⌉)): were every ‖Δ_t(d)‖ at most the "
            f"C = c_DP L that it assumes, its σ would be worth ε = {worth:.3g} and not {epsilon:g} (zero-out, at δ/2).",
        )
    else:
        most = (p.batch_size * p.beta * mu) ** 2 / (16 * math.log2(p.rounds) ** 3 * math.log(2 * p.rounds / delta))
        yield p.batch_size**2 <= n, f"Theorem 14 asks for B <= √n, and B = {p.batch_size:,}."
        yield p.beta >= 2 * steep * p.rounds, "Lemma 11 asks for β >= 2MT, for which c_M is too small."
        yield d * steep**2 <= most, f"Corollary 13 asks for p M² <= {most:.3g}, and p M² = {d * steep**2:.3g}."
        yield (
            False,
            "Lemma 11 takes two points of the domain to be at most R apart, and they are up to 2R: its bound is then "
            "2(M b_max + 4MR + L), which may be longer than Corollary 12 says.",
        )
    yield (
        gdp.delta_for(mu, epsilon) <= delta / 2,
        f"Lemma 8 takes μ = ε/√(2 ln(2.5/δ)) = {mu:.3g} to give (ε, δ/2), which it does not for so large an ε.",
    )
    yield (
        False,
        "The proof of Lemma 4 steps z by η_t/(2β) where Algorithm 1 prints η_t/β, with which its inequality is false: "
        "no bound on the risk is proved.",
    )
    covered = math.isfinite(epsilon_of(p, problem, delta))
    yield (
        False,
        "No answer is clipped: "
        + (
            "what our accountant finds, for replacing a user where the paper's claim is for zero-out, holds for users "
            "whose losses are L-Lipschitz and M-smooth and who answer truly."
            if covered
            else "an answer may be so long that no theorem of ours covers these numbers."
        ),
    )


def longest_answer(p: PrintedSRGD, problem: Problem, chance: float) -> tuple[float, float]:
    """Return how long ‖Δ_t(u)‖ can be: whatever is released, and but for noise so loud as comes with this `chance`."""
    steep = math.inf if problem.smoothness is None else problem.smoothness
    alone = problem.lipschitz * (1 + p.rounds * 2.0**-50)  # and what floats round of a user's own difference
    always = alone + 2 * (p.rounds - 1) * min(problem.lipschitz, steep * problem.radius)
    shrunk = 1 - steep * (p.rounds - 1) / p.beta
    if not shrunk > 0:
        return always, math.inf
    tail = math.sqrt(problem.dimension) + math.sqrt(2 * math.log(p.rounds / chance))
    loudest = p.noise.max_std * tail * (1 + p.rounds * 2.0**-28)  # ν, and T contributions put on the grid
    return always, (alone + 4 * steep * problem.radius + steep / p.beta * loudest) / shrunk


def epsilon_of(p: PrintedSRGD, problem: Problem, delta: float) -> float:
    """By docs/privacy/srgd.md#sp1, replace-one: the better of its two bounds on the length of an answer."""
    if p.rounds * p.batch_size > problem.users:
        return math.inf
    always, mostly = longest_answer(p, problem, LOUD * delta)
    best, slack = math.inf, 1 + 2.0**-52 * p.batch_size**2  # of a float mean, twice
    for length, left in ((always, delta), (mostly, (1 - LOUD) * delta)):
        moved = mean_sensitivity(length, p.batch_size) * slack if math.isfinite(length) else math.inf
        if moved <= 16 * p.noise.scale:
            mu = replace(p.noise, sensitivity=moved).effective_mu(problem.dimension)
            lack = total_variation(gaussians=p.rounds * problem.dimension)
            best = min(best, DominatingPair.gaussian(mu, lack).epsilon(left))
    return best


SRGD = Printed(
    options=PrintedSRGDOptions,
    parameters=PrintedSRGD,
    planner=plan,
    maker=AcceleratedDPSRGD,
    epsilon=epsilon_of,
)
