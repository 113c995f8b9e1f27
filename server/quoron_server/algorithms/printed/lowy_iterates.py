"""Phased SGD with outlier-iterate removal exactly as printed: Lowy, Liu & Asi (2024), Algorithm 1.

    >>> from quoron_client.protocol.domains import L2Ball
    >>> from quoron_server.plan import Privacy
    >>> problem = Problem(1_000_000, 100, 10, L2Ball(1.0), lipschitz=1.0, smoothness=0.25)
    >>> chosen = planner(problem, Privacy(1.0, 1e-6), PrintedIterateOptions())
    >>> chosen.parameters.cohort_size, len(chosen.parameters.phases)
    (3624, 19)

Every printed number stands below with its line; what is ours instead, and why, is docs/papers/lowy.md. The privacy that
our accountant finds is that of outlier-mean#o5 with the random inclusion of #o2 (docs/privacy/outlier-mean.md): C is
even, and the printed ramp ends at B = 2C/3, below the core that the printed threshold leaves. Algorithm 3 has phases
of the same sizes (`lowy_erm`).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from quoron_privacy.accounts import sensitivity_recount
from quoron_privacy.errors import Infeasible
from quoron_privacy.noise.streams import NoiseSource
from quoron_privacy.robust.laplace_gate import LaplaceGate, LaplaceOneShot, certified_epsilon
from quoron_privacy.robust.outlier_mean import LARGEST_COHORT, random_inclusion, recounted_slack, score_step
from quoron_privacy.robust.smooth_test import verify_scale
from quoron_server.algorithm import Vector
from quoron_server.algorithms import search
from quoron_server.algorithms.chains import ChainPhase, ChainRounds, ChainSGD, ChainState
from quoron_server.algorithms.spec import Calibrated, Printed
from quoron_server.parameters import PrintedParameters
from quoron_server.plan import Privacy, TrustModel
from quoron_server.problem import Problem

NAME = "outlier-iterates"
THEOREM = "docs/privacy/outlier-iterates.md#oi1"


def phases_of(users: int) -> int:
    """l = ⌊log₂ n⌋."""
    return users.bit_length() - 1


def phase_users(users: int, shrink: float, phase: int) -> int:
    """n_i = (1 − 2⁻ᵠ) n / 2^{iq} of phase i, from 1, rounded down; `shrink` is q."""
    return math.floor(phase_share(shrink, phase) * users)


def phase_share(shrink: float, phase: int) -> float:
    """n_i / n."""
    return float((1 - 0.5**shrink) * 0.5 ** (phase * shrink))


def diameter(problem: Problem) -> float:
    """R of Assumption 1.1: ‖x − x'‖ <= R for all x, x' of the domain, which is symmetric about 0."""
    return 2 * problem.radius


def usual_conditions(problem: Problem, epsilon: float, *, smooth: bool) -> Iterator[tuple[bool, str]]:
    """Yield what the paper assumes throughout: Assumptions 1.1 and 1.2, Theorems 2.1 and 3.1."""
    yield problem.convex, "Assumption 1.1 fails: the losses are not convex."
    yield not smooth or problem.smoothness is not None, "Assumption 1.2 fails: the losses are not smooth."
    yield epsilon <= 10, f"Theorems 2.1 and 3.1 are about epsilon <= 10, and epsilon = {epsilon:g}."


@dataclass(frozen=True, slots=True)
class PrintedIterateOptions:
    """What Theorem B.1 leaves open."""

    shrink: float = search.within(1e-12, 2.0, 0.1)  # q: "some small q > 0"
    power: float | None = search.within(1e-12, 5.0)  # J, m <= n^J, "some large J > 0"; None: max(1, log m / log n)


@dataclass(frozen=True, slots=True)
class PrintedIterateParameters(PrintedParameters, ChainRounds):
    """Public numbers of one run of Algorithm 1."""

    cohort_size: int  # C
    phases: tuple[ChainPhase, ...]


def planner(problem: Problem, privacy: Privacy, options: PrintedIterateOptions) -> Calibrated:
    """Return every number of lines 2 to 22. Raises Infeasible where a phase has fewer users than chains."""
    n, m, d = problem.users, problem.items_per_user, problem.dimension
    epsilon, delta = privacy.epsilon, privacy.delta
    # C = 100 log(20 n m e^ε / δ) / ε (line 2), rounded up to a multiple of six: C/2 and 2C/3 are whole chains.
    chains = 6 * math.ceil(100 * (math.log(20 * n * m / delta) + epsilon) / epsilon / 6)
    lipschitz, last = problem.lipschitz, phases_of(n)  # L, l
    fewest = phase_users(n, options.shrink, last)
    if chains > LARGEST_COHORT:
        raise Infeasible(NAME, f"line 2 has {chains:,} chains, and tests take {LARGEST_COHORT:,}", "a larger epsilon")
    if fewest < chains:
        enough = math.ceil(chains / phase_share(options.shrink, last))
        condition = f"n={n:,} leave the last of {last} phases {fewest:,} users for {chains:,} chains"
        raise Infeasible.too_few(NAME, condition, enough)
    power = options.power or max(1.0, math.log(m) / math.log(n))  # J
    p = power + 1.5
    eta = diameter(problem) / (lipschitz * math.sqrt(d * m * n * epsilon))  # Theorem B.1
    phases = []
    for i in range(1, last + 1):
        users = phase_users(n, options.shrink, i) // chains  # line 4: N_i = n_i / C
        steps, step_size = users * m, eta / 2 ** (p * i)  # T_i = N_i m, η_i
        radius = 1000 * step_size * lipschitz * math.sqrt(steps) * math.log(n * d * m)  # τ_i
        noise = 100 * radius * math.log(n / delta) ** 2 / (epsilon * chains)  # line 22: σ_i
        phases.append((users, step_size, radius, noise))
    release = _release(chains, epsilon, delta, [noise / radius for _, _, radius, noise in phases], d)
    parameters = PrintedIterateParameters(
        epsilon=epsilon,
        delta=delta,
        filled_in=(
            "log is the natural logarithm",
            f"q = {options.shrink:g}",
            f"J = {power:g}",
            "C rounded up to a multiple of six, n_i and N_i rounded down",
            "an average iterate is the mean of the points after each step",
            "x_0 = 0",
            "x_i = x_{i-1} + noise where no iterate is left",
        ),
        void=(),
        cohort_size=chains,
        phases=tuple(
            ChainPhase(users, users, step_size, radius, noise, release) for users, step_size, radius, noise in phases
        ),
    )
    single = all(phase.users == 1 for phase in parameters.phases)
    trust_model: TrustModel = "central-broadcast" if single else "central-release"
    judged = parameters.judged(_conditions(parameters, problem, options))
    return Calibrated(judged, None, theorem=THEOREM, trust_model=trust_model)


def epsilon_of(parameters: PrintedIterateParameters, problem: Problem, delta: float) -> float:
    """ε of outlier-mean#o5 for the phase that costs most, as they share no user. VerificationError for other noise."""
    for phase in parameters.phases:
        verify_scale(phase.release, phase.release_scale, phase.radius, problem.dimension)
    lacking = search.lacks(gaussians=problem.dimension, laplaces=1)
    releases = {phase.release for phase in parameters.phases}
    return max(certified_epsilon(release, delta, lacking) for release in releases)


def _release(chains: int, epsilon: float, delta: float, noises: list[float], dimension: int) -> LaplaceOneShot:
    """Test, ramp and noise of every phase, with the largest core k for which outlier-mean#o5 may speak of them.

    Line 10: Lap(20/ε). Line 11: 4C/5. Line 15: no chain with C/2 within 2τ, all with 2C/3, a coin in between. With so
    many users that a phase fills C chains, k > 2C/3 for every δ that can be asked for (docs/papers/lowy.md).
    """
    ramp_high, scale, threshold = 2 * chains // 3, 20 / epsilon, 4 * chains / 5
    room = scale * math.log(1 / (2 * delta * (1 - 1e-6))) * (1 + 1e-12)  # a chance of at most δ below the core
    core = math.floor(threshold - score_step(chains) / chains - room)
    mean = random_inclusion(chains, core, ramp_high)
    slack, least = recounted_slack(mean, dimension), 2 * mean.kappa / chains
    multiplier = min(
        shift / sensitivity_recount.mu(shift * (1 + slack), noise, dimension)
        for noise in noises
        for shift in (least, *mean.shifts)
    )
    return LaplaceOneShot(mean, LaplaceGate(chains, mean.core, scale, threshold), multiplier * (1 - 1e-12))


def _conditions(
    p: PrintedIterateParameters, problem: Problem, options: PrintedIterateOptions
) -> Iterator[tuple[bool, str]]:
    """Yield whether a condition of Theorem B.1, or of a step of its proof, holds, and the sentence if not."""
    n, m, d, q = problem.users, problem.items_per_user, problem.dimension, options.shrink
    power, beta = math.inf if options.power is None else options.power, problem.smoothness or 0.0
    have, need = n ** (1 - q), 100 / (1 - 0.5**q) * math.log(n / p.delta) / p.epsilon
    largest = problem.lipschitz / diameter(problem) * math.sqrt(d * m * n * p.epsilon)
    missed = 2 * math.exp(-2 * p.cohort_size / 15 * p.epsilon / 20)  # P(|Lap(20/ε)| >= 2C/15), of both worlds
    claimed = p.delta / (10 * math.exp(p.epsilon))
    yield from usual_conditions(problem, p.epsilon, smooth=True)
    yield m <= n**power, f"Theorem B.1 needs m <= n^J, and m = {m:,} > n^{power:g}."
    yield have >= need, f"Theorem B.1 needs n^(1-q) >= {need:,.0f}, and n^(1-q) = {have:,.0f}."
    yield beta <= largest, f"Theorem B.1 needs beta <= {largest:.3g}, and beta = {beta:.3g}."
    yield (
        missed <= claimed,
        f"The proof of Theorem B.1 takes P(E_i, E'_i) >= 1 - {claimed:.2g}, and it is 1 - {missed:.2g}.",
    )


class PrintedIterates(ChainSGD[PrintedIterateParameters]):
    """Algorithm 1, line by line: lines 3 to 9 and 23 are those of `ChainSGD`, 10 to 22 are here."""

    kind = PrintedIterateParameters
    halts = True  # line 19

    def released(
        self, state: ChainState, phase: ChainPhase, noise: NoiseSource, index: int
    ) -> tuple[bool, Vector, dict[str, float]]:
        """Lines 10 to 22; nothing is projected."""
        mean, test, averages, at = phase.release.mean, phase.release.test, state.averages, state.released
        seen = mean.observe(averages, state.whole, radius=phase.radius, reference=at)  # line 10, and 14's h_ij
        passed = test.decide(seen.score, noise.stream("test", index))  # line 11
        if passed:
            chosen = mean.include(seen.weights, noise.stream("inclusion", index))  # lines 12 to 16: S_i
            shift = mean.aggregate(averages, chosen, radius=phase.radius, reference=at)  # line 21
            after = at + phase.noise.release(shift, noise.stream("release", index))  # line 22
        else:
            chosen, after = np.zeros_like(seen.weights), np.zeros_like(at)  # line 19: halt, output 0
        private = {"removed_chains": int(np.sum(chosen == 0)), "score": seen.score / mean.cohort_size**2}
        return passed, after, private


PRINTED = Printed(
    options=PrintedIterateOptions,
    parameters=PrintedIterateParameters,
    planner=planner,
    maker=PrintedIterates,
    epsilon=epsilon_of,
)
