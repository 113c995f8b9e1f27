"""Accelerated phased ERM with outlier-gradient removal exactly as printed: Lowy, Liu & Asi (2024), Algorithms 2 and 3.

    >>> from quoron_client.protocol.domains import L2Ball
    >>> from quoron_server.plan import Privacy
    >>> problem = Problem(1_000_000, 100, 10, L2Ball(1.0), lipschitz=1.0, smoothness=0.25)
    >>> first = planner(problem, Privacy(1.0, 1e-9), PrintedERMOptions()).parameters.phases[0]
    >>> first.users, first.draws, first.rounds
    (62482, 15626592, 544)

Losses whose slope jumps are smoothed by convolution, with the numbers of Theorem D.3 and its proof.

No theorem covers these numbers: users are drawn with replacement, so that one of them may be in a batch any number of
times, and the printed proof amplifies by sampling given that tests have passed (docs/papers/lowy.md). With K_i draws
from n_i < K_i users, which is what is printed, nearly everybody is asked in every step.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from quoron_client.protocol.questions import Answers, AverageGradient, Question
from quoron_client.protocol.smoothing import Convolution
from quoron_privacy.arrays import Integers, Matrix
from quoron_privacy.errors import Infeasible, count, positive
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.noise.streams import NoiseSource, RandomStream
from quoron_privacy.release import Release
from quoron_privacy.robust.outlier_mean import in_score_units, score_scale
from quoron_server.algorithm import InPhases, Update, Vector
from quoron_server.algorithms import acsa, search
from quoron_server.algorithms.printed.lowy_iterates import (
    diameter,
    phase_share,
    phase_users,
    phases_of,
    usual_conditions,
)
from quoron_server.algorithms.slots import partition
from quoron_server.algorithms.spec import Calibrated, Printed
from quoron_server.parameters import Assumption, Kind, Parameters, PrintedParameters
from quoron_server.plan import MAX_ROUNDS, Privacy
from quoron_server.problem import Problem
from quoron_server.schedule import RoundRelease, Rounds, gradients

NAME = "accelerated-erm"
THEOREM = "docs/privacy/subsampled-lottery.md#printed"
BLOCK = 2**22  # draws, or numbers of differences of gradients, at a time


@dataclass(frozen=True, slots=True)
class PrintedERMOptions:
    """What Algorithms 2 and 3 and Theorems C.3 and D.3 leave open."""

    shrink: float = search.within(1e-12, 2.0, 0.1)  # q > 0
    growth: float | None = search.within(1e-12, 10.0)  # p; None: the least of Theorem C.3, 3q + 2.5 + log_n √m
    radius_factor: float = search.within(1e-12, 1e6, 1.0)  # c in τ = c L log(ndm) / √m, printed O(.)
    rounds_factor: float = search.within(1e-12, 1e6, 1.0)  # c in T_i = c (1 + √(β/λ_i)) log(ndm), printed Θ̃(.)


@dataclass(frozen=True, slots=True)
class AboveThreshold:
    """Pass iff S/C + Laplace(score_scale) >= threshold + Laplace(threshold_scale), S the score: lines 4 to 7."""

    cohort_size: int  # C
    threshold: float  # θ, of the average count S / C
    threshold_scale: float
    score_scale: float

    def __post_init__(self) -> None:
        count(cohort_size=self.cohort_size)
        positive(threshold=self.threshold, threshold_scale=self.threshold_scale, score_scale=self.score_scale)
        for scale in (self.threshold_scale, self.score_scale):
            score_scale(scale, self.cohort_size)

    def draw_limit(self, stream: RandomStream) -> int:
        """Return the noisy threshold, to be kept secret."""
        noise = int(stream.laplace_steps(score_scale(self.threshold_scale, self.cohort_size), 1)[0])
        return in_score_units(self.threshold, self.cohort_size) + 1 + noise

    def decide(self, score: int, limit: int, stream: RandomStream) -> bool:
        """Return whether a cohort of score S passes a noisy threshold."""
        noise = stream.laplace_steps(score_scale(self.score_scale, self.cohort_size), 1)
        return score + int(noise[0]) >= limit

    def entry(self) -> Release:
        """Return the ledger entry of one decision, whichever way it went."""
        scales = {"threshold_scale": self.threshold_scale, "score_scale": self.score_scale}
        return Release("above-threshold", {"cohort_size": self.cohort_size, "threshold": self.threshold, **scales})


@dataclass(frozen=True, slots=True)
class PrintedPhase:
    """One phase's public numbers."""

    first: int  # its users hold the slots first .. first + users - 1
    users: int  # n_i
    draws: int  # K_i, with replacement
    rounds: int  # T_i
    regularisation: float  # λ_i
    smoothness: float  # β + λ_i
    test: AboveThreshold  # of scores, which count pairs within 2τ
    noise: GaussianNoise  # σ_i

    @property
    def shape(self) -> acsa.Shape:
        """What a step knows of the objective."""
        return acsa.Shape(self.regularisation, self.smoothness)


@dataclass(frozen=True, slots=True)
class PrintedERMParameters(PrintedParameters, Parameters):
    """Public numbers of one run of Algorithm 3."""

    rests_on = Assumption(Kind.ABSENT_IS_OUTLIER), Assumption(Kind.SECRET_COHORTS)
    radius: float  # τ
    smoothing: float | None  # r
    phases: tuple[PrintedPhase, ...]

    def stretches(self, problem: Problem) -> Iterator[Rounds]:
        """Yield a decision in every step, up to the first miss, and the noisy gradient where it passes.

        Of different users of K_i draws, at most.
        """
        for phase in self.phases:
            made = tuple(RoundRelease(by, by.entry(), tested=True) for by in (phase.test, phase.noise))
            asked = min(phase.draws, phase.users)
            yield Rounds(phase.rounds, asked, gradients(problem), made, often=phase.rounds)


def planner(problem: Problem, privacy: Privacy, options: PrintedERMOptions) -> Calibrated:
    """Return every number of Algorithm 3, and of Theorem D.3 where the loss is not smooth. Raises Infeasible."""
    n, m, d = problem.users, problem.items_per_user, problem.dimension
    epsilon, delta = privacy.epsilon, privacy.delta
    lipschitz, width, q, last = problem.lipschitz, diameter(problem), options.shrink, phases_of(n)  # L, R, q, l
    if phase_users(n, q, last) < 1:
        enough = math.ceil(1 / phase_share(q, last))
        raise Infeasible.too_few(NAME, f"n={n:,} leave the last of {last} phases nobody", enough)
    p = options.growth or 3 * q + 2.5 + math.log(math.sqrt(m)) / math.log(n)  # Theorem C.3
    log, odds = math.log(n * d * m), math.log(1 / delta)
    tau = options.radius_factor * lipschitz * log / math.sqrt(m)  # Algorithm 3, line 2
    if problem.smoothness is None:  # Theorem D.3 and its proof
        smoothing = math.sqrt(d) / (epsilon * n * math.sqrt(m)) * width  # r
        beta, strength = lipschitz * math.sqrt(d) / smoothing, 1 / math.sqrt(m * n)  # β, λ
    else:
        smoothing, beta = None, problem.smoothness
        strength = lipschitz / width * (1 / math.sqrt(n * m) + math.sqrt(d) / (epsilon * n * math.sqrt(m)))
    sizes = [(phase_users(n, q, i), strength * 2 ** (p * i)) for i in range(1, last + 1)]  # line 4: n_i, λ_i
    lengths = [math.ceil(options.rounds_factor * (1 + math.sqrt(beta / pull)) * log) for _, pull in sizes]  # T_i
    if (rounds := sum(lengths)) > MAX_ROUNDS:
        raise Infeasible(
            NAME, f"the printed T_i are {rounds:,} steps, and plans have {MAX_ROUNDS:,}", "fewer users or items"
        )
    phases: list[PrintedPhase] = []
    for (users, pull), steps in zip(sizes, lengths, strict=True):
        if smoothing is None:
            size = 500 * (math.log(users**2 * m**2 / delta) + epsilon)
            size *= 1 / epsilon + users * epsilon / math.sqrt(steps * odds)
        else:
            size = users * epsilon / math.sqrt(steps) + (math.log(n * m * d / delta) + epsilon) / epsilon
        draws = math.ceil(size)  # K_i
        noise = 1000 * tau * math.sqrt(steps) * (math.log(n * d / delta) + epsilon) / (epsilon * users)  # σ_i
        moved = tau * (math.log(n * m / delta) + epsilon) / draws  # what (8) says that one user moves
        phases.append(
            PrintedPhase(
                first=sum(phase.users for phase in phases),
                users=users,
                draws=draws,
                rounds=steps,
                regularisation=pull,
                smoothness=beta + pull,
                test=AboveThreshold(draws, 4 * draws / 5, 8 / epsilon, 16 / epsilon),  # Algorithm 2, lines 4 and 6
                noise=GaussianNoise(moved, noise),  # line 14
            )
        )
    parameters = PrintedERMParameters(
        epsilon=epsilon,
        delta=delta,
        filled_in=(
            "log is the natural logarithm",
            f"q = {options.shrink:g}",
            f"p = {p:.4g}",
            f"τ = {options.radius_factor:g} L log(ndm)/√m",
            f"T_i = {options.rounds_factor:g} (1 + √(β/λ_i)) log(ndm), rounded up",
            "one stage of AC-SA in a phase",
            "α = 2/(t+1) and γ = 4(β + λ_i)/(t(t+1)) in step t of AC-SA",
            "x_i is the aggregate point of AC-SA",
            "K_i rounded up, n_i rounded down",
            "x_0 = 0",
            "a gradient of 0 where no user is left",
            "a halt ends the run with 0",
            *(() if smoothing is None else ("one draw of y for each item and step stands for ∇f_r",)),
        ),
        void=(),
        radius=tau,
        smoothing=smoothing,
        phases=tuple(phases),
    )
    return Calibrated(parameters.judged(_conditions(parameters, problem, options, p)), None, theorem=THEOREM)


def _conditions(
    numbers: PrintedERMParameters, problem: Problem, options: PrintedERMOptions, p: float
) -> Iterator[tuple[bool, str]]:
    """Yield whether a condition of Theorems C.1, C.3 and D.3, or a step of a proof, holds, and the sentence if not."""
    n, m, d, q, phases = problem.users, problem.items_per_user, problem.dimension, options.shrink, numbers.phases
    epsilon, delta = numbers.epsilon, numbers.delta
    have = n ** (1 - q)
    need = 100 * (math.log(20 * n * m * d / delta) + epsilon) / (epsilon * (1 - 0.5**q))
    least = 3 * q + 2.5 + math.log(math.sqrt(m)) / math.log(n)
    min_draws = 500 * (math.log(n * m * d / delta) + epsilon) / epsilon
    yield from usual_conditions(problem, epsilon, smooth=False)
    yield have > need, f"Theorem C.1 needs n^(1-q) > {need:,.0f}, and n^(1-q) = {have:,.0f}."
    yield delta < 1 / (m * n), f"Theorem C.3 needs δ < 1/(mn) = {1 / (m * n):.2g}."
    yield p >= least * (1 - 1e-12), f"Theorem C.3 needs p >= {least:.4g}."
    if over := [i for i, phase in enumerate(phases, 1) if phase.draws > phase.users]:
        yield (
            False,
            f"The proof of Theorem C.3 takes K_i <= n_i, and K_i > n_i in {len(over)} of {len(phases)} phases "
            f"(K_{over[0]} = {phases[over[0] - 1].draws:,}, n_{over[0]} = {phases[over[0] - 1].users:,}).",
        )
    if few := [i for i, phase in enumerate(phases, 1) if phase.draws < min_draws]:
        yield (
            False,
            f"The proof of Theorem C.1 takes K_i >= 500 log(nmde^ε/δ)/ε = {min_draws:,.0f}, and K_i is less in "
            f"{len(few)} of {len(phases)} phases (K_{few[0]} = {phases[few[0] - 1].draws:,}), where noise ends runs.",
        )
    short = sum(phase.rounds * phase.draws < phase.users for phase in phases)
    yield not short, f"The proof of Theorem C.3 takes T_i K_i >= n_i, and it is less in {short} phases."
    yield False, "Lemmas A.8, A.9 and C.2 have every user once, and line 3 of Algorithm 2 draws with replacement."
    yield (
        False,
        "The proof of Theorem C.1 amplifies by sampling given that tests passed, where no batch is uniform.",
    )
    yield False, "Lemma A.9 draws the threshold once, and line 4 of Algorithm 2 draws it in every step."
    yield False, "Lemma C.4 is about several stages of AC-SA (Remark C.5), and Algorithm 2 has one."
    yield (
        problem.smoothness is not None,
        "The proof of Theorem D.3 sets λ = 1/√(mn), which Theorem C.3 has in units of L/R.",
    )


def drawn(stream: RandomStream, users: int, draws: int) -> Integers:
    """Return how often each of `users` comes up in `draws` with replacement, shape (users,)."""
    counts = np.zeros(users, np.int64)
    for start in range(0, draws, BLOCK):
        counts += np.bincount(stream.uniform_below(users, min(BLOCK, draws - start)), minlength=users)
    return counts


def draws_near(rows: Matrix, often: Integers, radius: float) -> Integers:
    """h(Z) of every row: how many draws, of `often` each, lie within `radius` of it; shape (k,)."""
    centre = rows.mean(axis=0) if len(rows) else np.zeros(rows.shape[1])
    if np.sqrt(np.max(np.sum((rows - centre) ** 2, axis=1), initial=0.0)) * (1 + 1e-9) <= radius / 2:
        return np.full(len(rows), often.sum())  # all within the radius of one another
    found, block = np.empty(len(rows), np.int64), max(1, BLOCK // max(1, rows.size))
    for start in range(0, len(rows), block):
        apart = np.sum((rows[start : start + block, None] - rows[None]) ** 2, axis=2)
        found[start : start + block] = (apart <= radius**2) @ often
    return found


def included(near: Integers, often: Integers, size: int, stream: RandomStream) -> Integers:
    """How many draws of each row join S: a coin each of chance 0 below K/2, 1 from 2K/3 on, (h - K/2)/(K/6) between."""
    weights = np.clip(6 * near - 3 * size, 0, size)  # in units of 1/K
    joined = np.where(weights == size, often, 0)
    for row in np.flatnonzero((weights > 0) & (weights < size)):
        joined[row] = np.count_nonzero(stream.uniform_below(size, int(often[row])) < weights[row])
    return joined


@dataclass(frozen=True, slots=True, eq=False)
class PrintedERMState:
    """Everything between two rounds."""

    round: int
    centre: Vector  # x_{i-1}
    x: Vector
    ag: Vector  # 0 once it has halted
    steps: int  # of the phase
    halted: bool


class PrintedERM(InPhases[PrintedERMParameters]):
    """Algorithm 3, with Algorithm 2 for its line 7."""

    kind = PrintedERMParameters

    def init(self) -> PrintedERMState:
        """x_0 = 0."""
        zero = np.zeros(self.plan.problem.dimension)
        return PrintedERMState(0, zero, zero, zero, 0, halted=False)

    def request(self, state: PrintedERMState, noise: NoiseSource) -> Question | None:
        """Lines 3 and 5 of Algorithm 2: the users of K_i draws are asked for their gradients, once each."""
        if state.halted or state.round == self._ends[-1]:
            return None
        phase = self._phase(state)
        r = self.parameters.smoothing
        smoothing = None if r is None else Convolution(r, self.plan.seed)
        order = partition(seed=self.plan.seed, users=self.plan.problem.users)
        cohort = order[phase.first :][: phase.users][self._often(state, noise) > 0]
        task = AverageGradient(self._middle(state)[None, :], (1.0,), smoothing=smoothing)
        return Question(state.round, cohort, task, planned=min(phase.draws, phase.users), drawn=True)

    def update(self, state: PrintedERMState, answers: Answers, noise: NoiseSource) -> Update[PrintedERMState]:
        """Lines 4 to 21 of Algorithm 2, and line 7 of Algorithm 3."""
        index, phase = self.phase_index(state.round), self._phase(state)
        gradient, private = self._gradient(state, answers, noise)
        public = {"phase": index, "released": gradient is not None}
        if gradient is None:
            zero = np.zeros_like(state.ag)
            halted = PrintedERMState(state.round + 1, zero, zero, zero, 0, halted=True)  # line 18: halt, return 0
            return Update(halted, (phase.test.entry(),), public, private)
        middle, step = self._middle(state), state.steps + 1
        whole = gradient + phase.regularisation * (middle - state.centre)  # line 15, and line 6 of Algorithm 3
        x, ag = acsa.step(state.x, state.ag, middle, whole, step, phase.shape, self.plan.problem.domain)
        after = replace(state, round=state.round + 1, x=x, ag=ag, steps=step)
        if after.round == self._ends[index]:
            after = replace(after, x=ag, steps=0, centre=ag)
        return Update(after, (phase.test.entry(), phase.noise.entry()), public, private)

    def _gradient(
        self, state: PrintedERMState, answers: Answers, noise: NoiseSource
    ) -> tuple[Vector | None, dict[str, Any]]:
        """Lines 4 to 14: the noisy mean of the draws that are no outliers, or None; and what is private of it."""
        phase, often = self._phase(state), self._often(state, noise)
        often, rows = often[often > 0], answers.values[answers.answered]
        there = often[answers.answered]  # an absent user's draw is near nobody but itself
        near = draws_near(rows, there, 2 * self.parameters.radius)
        score = int(there @ near) + int(often.sum() - there.sum())  # line 6: K_i s_i^t
        limit = phase.test.draw_limit(noise.stream("limit", state.round))  # line 4
        private = {"answered": len(rows), "concentration": score / phase.draws**2}
        if not phase.test.decide(score, limit, noise.stream("test", state.round)):  # line 7
            return None, private
        joined = included(near, there, phase.draws, noise.stream("include", state.round))  # lines 8 to 12
        private["removed"] = int(np.count_nonzero(joined == 0))
        mean = (joined[:, None] * rows).sum(axis=0) / max(1, int(joined.sum()))  # line 13
        return phase.noise.release(mean, noise.stream("release", state.round)), private  # line 14

    def model(self, state: PrintedERMState) -> Vector:
        """Line 9 of Algorithm 3: x_l. After a halt 0."""
        return state.ag

    def _phase(self, state: PrintedERMState) -> PrintedPhase:
        return self.parameters.phases[self.phase_index(state.round)]

    def _middle(self, state: PrintedERMState) -> Vector:
        return acsa.middle(state.x, state.ag, state.steps + 1, self._phase(state).shape)

    def _often(self, state: PrintedERMState, noise: NoiseSource) -> Integers:
        phase = self._phase(state)
        return drawn(noise.stream("cohort", state.round), phase.users, phase.draws)


PRINTED = Printed(
    options=PrintedERMOptions,
    parameters=PrintedERMParameters,
    planner=planner,
    maker=PrintedERM,
    # No theorem of ours covers users that are drawn with replacement behind a shared threshold.
)
