"""Ghazi, Kumar, Liu & Manurangsi, "Nearly Linear-Time User-Level DP-SCO with Optimal Rates", exactly as printed.

    for phase s = 1 .. S:                                   Algorithm 1 (ℓ2) and Algorithm 5 (ℓ∞): `Localisation`
        n_s = n/2^s fresh users, η_s = η / log^s m
        x̄_s = one pass of SGD over them from x_{s-1}        Algorithm 2: `Filter`; Algorithms 6 to 8: `Medians`
        x_s = x̄_s + N(0, σ_s² I)

For comparison, in simulations. Nothing is projected that the paper does not project, no constant is improved, and a
halt ends the run. log is the natural logarithm. The recommended, repaired algorithms are `localised.filtered` and
`localised.median`; every line and every difference: docs/papers/ghazi.md.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import numpy as np
from scipy.special import expit

from quoron_client.protocol.domains import Box
from quoron_client.protocol.questions import Answers, AverageGradient, Question
from quoron_privacy.accounts import gdp, pld_lattice
from quoron_privacy.errors import Infeasible, Needs
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.noise.streams import GRID_BITS, NoiseSource, total_variation
from quoron_privacy.release import Release
from quoron_privacy.robust.coordinate_median import MedianParameters, debiased_mean, median_trim
from quoron_privacy.robust.filter import concentration
from quoron_privacy.robust.filter.concentration import LARGEST_COHORT, cohort_scores, score_error, score_summary, usable
from quoron_privacy.robust.filter.thresholds import LaplaceThreshold
from quoron_server.algorithm import InPhases, Update, Vector
from quoron_server.algorithms import search
from quoron_server.algorithms.averaged_sgd import PhaseModel, excess_risks
from quoron_server.algorithms.slots import partition
from quoron_server.algorithms.spec import Calibrated, Printed
from quoron_server.parameters import CONTRACTION, DOMINANT, ContractingPhases, PrintedParameters
from quoron_server.plan import Privacy
from quoron_server.problem import Problem

FILTERED, MEDIAN = "filtered-sgd", "median-sgd"
LARGEST_EPSILON = 60.0  # beyond, what our accountant finds is as good as no guarantee
Constant = float | Literal["proof"]

FILLED_IN = (
    "log is the natural logarithm",
    "B is rounded up, T_s = |D_s|/B down, and phases with T_s = 0 are left out",
    "σ_s has √m ε below, as Section 3.3.2 and Lemma 38 square it; its line may be read as √(mε)",
)


@dataclass(frozen=True, slots=True)
class PrintedPhase:
    """One phase of Algorithm 1 or 5."""

    rounds: int  # T_s
    step_size: float  # η_s
    release_scale: float  # σ_s, per coordinate
    shift: float  # b of Lemma 10, or that of Lemmas 32 and 33: how far, by the paper, one user moves x̄_s in ℓ2

    @property
    def noise(self) -> GaussianNoise:
        """ζ_s."""
        return GaussianNoise(self.shift, self.release_scale)

    def entry(self, index: int) -> Release:
        """Return the ledger entry of the phase's release."""
        return Release("phase", {"phase": index, "scale": self.release_scale})


@dataclass(frozen=True, slots=True)
class PhasesAsPrinted(PrintedParameters, ContractingPhases):
    """What both algorithms have in common."""

    cohort_size: int  # B
    temperature: float  # τ
    phases: tuple[PrintedPhase, ...]


@dataclass(frozen=True, slots=True)
class FilterAsPrinted(PhasesAsPrinted):
    """The numbers of Algorithms 1 and 2."""

    cutoff: float  # c
    cutoff_scale: float  # of ĉ = c + Lap(4/ε)
    laplace_scale: float  # 2σ at ĉ = 1: it is this times √ĉ
    threshold: float  # F


@dataclass(frozen=True, slots=True)
class MediansAsPrinted(PhasesAsPrinted):
    """The numbers of Algorithms 5 to 8."""

    rests_on = (*CONTRACTION, DOMINANT)  # Lemma 27 needs diagonally dominant Hessians
    trim: int  # what the robust statistic leaves out on either side
    clip_bound: float  # G: Assumption 21 bounds every coordinate of a gradient by it
    threshold: float  # v
    threshold_scale: float  # of Δ̂ = v - Lap(2/ε'), AboveThreshold with ε' = ε/2
    query_scale: float  # of ν_t ~ Lap(4/ε')


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """Everything between two rounds."""

    round: int
    released: Vector  # x_{s-1}
    iterate: Vector  # x_{t-1} of the phase
    total: Vector  # x_1 + ... + x_{t-1} of the phase
    count: int  # users filtered in the phase, or its failed tests
    halted: bool


Stepped = tuple[State, dict[str, Any]]  # and diagnostics
Numbers = TypeVar("Numbers", bound=PhasesAsPrinted)


class Localisation(InPhases[Numbers]):
    """Algorithm 1 as `Filter` (Algorithm 2), Algorithm 5 as `Medians` (Algorithms 6 to 8)."""

    @abstractmethod
    def step(self, state: State, answers: Answers, noise: NoiseSource, s: int, step_size: float) -> Stepped:
        """Carry out step t of phase s; the state after it, and diagnostics."""

    @abstractmethod
    def result(self, state: State, rounds: int) -> Vector:
        """Return x̄."""

    def init(self) -> State:
        """x_0 = 0."""
        zero = np.zeros(self.plan.problem.dimension)
        return State(0, zero, zero, zero, 0, False)

    def request(self, state: State, noise: NoiseSource) -> Question | None:
        """q_t(Z) = (1/m) Σ_{z in Z} ∇f(x_{t-1}; z) of the next B unused users."""
        if state.halted or state.round == self._ends[-1]:
            return None
        problem, first = self.plan.problem, state.round * self.parameters.cohort_size
        users = partition(seed=self.plan.seed, users=problem.users)[first : first + self.parameters.cohort_size]
        return Question(state.round, users, AverageGradient(state.iterate[None, :], (1.0,), problem.user_smoothness))

    def update(self, state: State, answers: Answers, noise: NoiseSource) -> Update[State]:
        """One step of the phase; after its last one, x_s = x̄_s + ζ_s."""
        s = self.phase_index(state.round)
        phase, public = self.parameters.phases[s], {"phase": s}
        after, diagnostics = self.step(state, answers, noise, s, phase.step_size)
        if after.halted:
            return Update(replace(after, iterate=state.released), (), public | {"halted": True}, diagnostics)
        if after.round < self._ends[s]:
            return Update(after, (), public, diagnostics)
        x = phase.noise.release(self.result(after, phase.rounds), noise.stream("release", s))
        ended = State(after.round, x, x, np.zeros_like(x), 0, False)
        return Update(ended, (phase.entry(s),), public | {"halted": False}, diagnostics)

    def model(self, state: State) -> Vector:
        """x_S; after a halt, the last x_s."""
        return state.released

    def iterate(self, state: State) -> Vector:
        """x_{t-1}."""
        return state.iterate


class Filter(Localisation[FilterAsPrinted]):
    """Algorithm 2: SGD whose users are filtered by their noisy concentration scores."""

    kind = FilterAsPrinted

    def step(self, state: State, answers: Answers, noise: NoiseSource, s: int, step_size: float) -> Stepped:
        """Filter out every user with κ + ν ≤ F (lines 5 to 16), halt (17, 18) or step along the others' mean."""
        p = self.parameters
        around = LaplaceThreshold(p.cutoff_scale, p.cutoff)
        cutoff = float(around.limits(1, noise.stream("cutoff", s))[0]) * around.grid  # ĉ = c + Lap(4/ε)
        if cutoff <= 0:  # √ĉ is not defined, and count ≥ ĉ at the first user
            return replace(state, round=state.round + 1, halted=True), {}
        test = LaplaceThreshold(p.laplace_scale * math.sqrt(cutoff), p.threshold)  # Lap(2σ)
        limits = test.limits(len(answers.status), noise.stream("filter", state.round))
        decided = concentration.decide(answers.values, answers.answered, p.temperature, limits, step=test.grid)
        filtered = len(decided.kept) - int(decided.kept.sum())
        seen = {"filtered": filtered, "undecided": decided.undecided, "threshold": p.threshold}
        after = replace(state, round=state.round + 1, count=state.count + filtered)
        if after.count >= cutoff or not decided.kept.any():  # which only grows, or shrinks, within a batch
            return replace(after, halted=True), seen | score_summary(decided.score_bounds)
        gradient = concentration.filtered_mean(answers.values, decided.kept)
        x = self.plan.problem.domain.project(state.iterate - step_size * gradient)
        return replace(after, iterate=x, total=state.total + x), seen | score_summary(decided.score_bounds)

    def result(self, state: State, rounds: int) -> Vector:
        """x̄ = (1/T) Σ_t x_t."""
        return state.total / rounds


class Medians(Localisation[MediansAsPrinted]):
    """Algorithm 6: SGD on means held near medians (Algorithm 7), returned if every test passes (Algorithms 3 and 8)."""

    kind = MediansAsPrinted

    def step(self, state: State, answers: Answers, noise: NoiseSource, s: int, step_size: float) -> Stepped:
        """Step along Algorithm 7's estimate, and test the batch's concentration."""
        p, present = self.parameters, usable(answers.values, answers.answered)
        rows = np.clip(np.where(present[:, None], answers.values, 0.0), -p.clip_bound, p.clip_bound)
        gradient = debiased_mean(rows, p.trim, 1 / p.temperature)  # Algorithm 7 with ς = 1/τ
        x = self.plan.problem.domain.project(state.iterate - step_size * gradient)
        scores = cohort_scores(rows, present, p.temperature, norm="linf")
        score = math.fsum(scores) / p.cohort_size  # (15)
        passed = self.above_threshold(score, noise, s, state.round)
        after = replace(state, round=state.round + 1, iterate=x, total=state.total + x)
        seen = {"score": score, "threshold": p.threshold, "passed": passed} | score_summary(scores)
        return replace(after, count=state.count + (not passed)), seen

    def above_threshold(self, score: float, noise: NoiseSource, s: int, round_: int) -> bool:
        """Algorithm 3: a_t = ⊤ unless s_t + ν_t < Δ̂ = v - Lap(2/ε'), one Δ̂ for the phase."""
        test = LaplaceThreshold(self.parameters.query_scale, self.parameters.threshold)
        shared = noise.stream("threshold", s).laplace_steps(self.parameters.threshold_scale / test.grid, 1)
        limit = test.limits(1, noise.stream("query", round_)) - shared
        return bool((concentration.grid(np.array([score]), test.grid) > limit)[0])

    def result(self, state: State, rounds: int) -> Vector:
        """x̄ = (1/T) Σ_t x_t if a_t = ⊤ for all t, else the phase's initial point."""
        return state.total / rounds if state.count == 0 else state.released


@dataclass(frozen=True, slots=True)
class FilterOpen:
    """What Algorithms 1 and 2 leave open."""

    release_constant: Constant = 1.0  # in σ_s = O(·); "proof": what Lemmas 3 and 10 ask for by their own constants
    cohort_size: int | None = search.within(2, LARGEST_COHORT)  # B; None: as printed


@dataclass(frozen=True, slots=True)
class MediansOpen:
    """What Algorithms 5 to 8 leave open."""

    release_constant: Constant = 1.0  # in σ_s = O(·); "proof": what Lemmas 32, 33 and 36 ask for
    temperature_constant: float = 1.0  # in τ = O(G log(nmd) / √m)
    temperature: Literal["printed", "reciprocal"] = "printed"  # τ as printed is a length, and used as an inverse length
    cohort_size: int | None = search.within(2, LARGEST_COHORT)  # B; None: as printed


def _filter_cohort(problem: Problem, epsilon: float, delta: float) -> int:
    """B = 300 log²(mn/δ) / ε^1.5."""
    return math.ceil(300 * math.log(problem.items_per_user * problem.users / delta) ** 2 / math.pow(epsilon, 1.5))


def _medians_cohort(problem: Problem, epsilon: float, delta: float) -> int:
    """B = 100 log(mnd/δ) / ε."""
    items = problem.items_per_user * problem.users * problem.dimension
    return math.ceil(100 * math.log(items / delta) / epsilon)


def _sized(
    name: str,
    problem: Problem,
    privacy: Privacy,
    given: int | None,
    printed: Callable[[Problem, float, float], int],
    power: float,
) -> int:
    """B as printed or given. Infeasible where it, or log m, leaves no phase with a batch."""
    if problem.items_per_user == 1:
        raise Infeasible(name, "eta_s = eta / log^s m is not defined at m=1", "items_per_user >= 2")
    size = given or printed(problem, privacy.epsilon, privacy.delta)
    if size > LARGEST_COHORT:
        enough = replace(problem, users=max(problem.users, 2 * LARGEST_COHORT))  # for two of the largest batches
        least = 1.001 * (printed(enough, 1.0, privacy.delta) / LARGEST_COHORT) ** power
        needs = Needs(f"epsilon >= {least:.4g}", epsilon=float(f"{least:.4g}"))
        raise Infeasible(name, f"the printed cohort_size={size:,} exceeds {LARGEST_COHORT:,}, the most here", needs)
    if problem.users < 2 * size:
        users = 2 * size
        while given is None and users < 2 * (
            more := printed(replace(problem, users=users), privacy.epsilon, privacy.delta)
        ):
            users = 2 * more
        what = f"the {'printed ' if given is None else ''}cohort_size={size:,}"
        raise Infeasible.too_few(name, f"{what} exceeds n/2={problem.users // 2:,}", users)
    return size


def _schedule(problem: Problem, size: int, step: float, scale: float, shift: float) -> tuple[PrintedPhase, ...]:
    """Algorithm 1: n_s = n/2^s, η_s = η/log^s m, S = ⌈log(n/B)⌉; `scale` is σ_s/η_s, `shift` b/η_s."""
    found = []
    for s in range(1, math.ceil(math.log(problem.users / size)) + 1):
        rounds, eta = problem.users // (2**s * size), step / math.log(problem.items_per_user) ** s
        if rounds >= 1:
            found.append(PrintedPhase(rounds, eta, scale * eta, shift * eta))
    return tuple(found)


def plan_filter(problem: Problem, privacy: Privacy, options: FilterOpen) -> Calibrated:
    """Algorithms 1 and 2 with section 3's numbers. Raises Infeasible where no phase has a batch of B users."""
    search.require_smooth(FILTERED, problem)
    epsilon, delta = privacy.epsilon, privacy.delta
    n, m, d, lipschitz = problem.users, problem.items_per_user, problem.dimension, problem.lipschitz
    size = _sized(FILTERED, problem, privacy, options.cohort_size, _filter_cohort, 2 / 3)
    log, log_d, log_delta = math.log(n * m / delta), math.log(n * m * d), math.log(1 / delta)
    temperature = math.sqrt(m) / (20 * lipschitz * log_d)
    step = min(1 / math.sqrt(n), epsilon / math.sqrt(d * log_delta * log_d))
    step *= problem.radius / lipschitz * size * math.sqrt(m)
    shift = 208 / (size * temperature)  # Lemma 10: within 100/τ + 4/τ of every survivor, at least B/2 of them
    printed = lipschitz * math.sqrt(log_delta * log_d) / (size * math.sqrt(m) * epsilon)
    proof = _lemma_3(shift, epsilon / 2, delta / 2)
    constant = proof / printed if options.release_constant == "proof" else options.release_constant
    filled = (
        *FILLED_IN,
        *_chosen(options, constant, "Lemmas 3 and 10"),
        "a halt ends the run and leaves the last x_s",
        "users who do not answer count as filtered",
    )
    cutoff = 10 * log / epsilon
    numbers = FilterAsPrinted(
        epsilon=epsilon,
        delta=delta,
        filled_in=filled,
        void=(),
        cohort_size=size,
        temperature=temperature,
        phases=_schedule(problem, size, step, constant * printed, shift),
        cutoff=cutoff,
        cutoff_scale=4 / epsilon,
        laplace_scale=8 * math.sqrt(32 * log_delta) / epsilon,
        threshold=3 * size / 4,
    )
    steep = max(phase.step_size for phase in numbers.phases) * (problem.beta or 0.0)
    bound = 20 * log**2 / epsilon**1.5
    beyond = size * math.exp(-bound / (numbers.laplace_scale * math.sqrt(cutoff)))
    conditions = (
        _as_printed(options.cohort_size, _filter_cohort(problem, epsilon, delta)),
        (epsilon < 1, f"Section 3 assumes epsilon < 1, and epsilon = {epsilon:g}."),
        (n >= 300 * log**3 / epsilon**1.5, _few(300 * log**3 / epsilon**1.5, n, "Section 3", "log³(mn/δ)")),
        (steep <= 2, f"Lemma 12 needs ηβ ≤ 2 for steps to contract, and ηβ = {steep:,.4g}."),
        (208 * steep <= 1, f"Lemma 11 needs βCη ≤ 1, C = 208 by Lemma 10, and βCη = {208 * steep:,.4g}."),
        (
            cutoff + 4 / epsilon * math.log(12 / delta) <= size / 2,
            f"Lemma 10 takes ĉ to be at most B/2 but for a chance of δ/24, and B/2 = {size / 2:,g}, c = {cutoff:,.4g}.",
        ),
        (
            beyond <= delta / 24,
            f"Lemma 10 takes all noise of a batch to be at most {bound:,.4g} but for a chance of δ/24, "
            f"and {beyond:,.3g} of its {size:,} users are expected above that.",
        ),
        _enough(constant * printed, proof, "Lemmas 3 and 10"),
        (math.log(m) > 2, f"Section 3.3.2 sums powers of 2/log m, and log m = {math.log(m):.3g} ≤ 2."),
        (
            False,
            "No theorem covers a Laplace scale 2σ that depends on the secret ĉ, nor a halt whose time is seen, and the "
            "proof does not account for the replaced user's own decision in count: our accountant finds no ε.",
        ),
    )
    return Calibrated(numbers.judged(conditions), _risk(problem, numbers, steep))


def plan_medians(problem: Problem, privacy: Privacy, options: MediansOpen) -> Calibrated:
    """Algorithms 5 to 8 with Appendix C's numbers. Raises Infeasible off a box, and where no phase has a batch."""
    search.require_smooth(MEDIAN, problem)
    search.require_box(MEDIAN, problem)
    assert isinstance(problem.domain, Box)
    epsilon, delta = privacy.epsilon, privacy.delta
    n, m, d, bound = problem.users, problem.items_per_user, problem.dimension, problem.coordinate_bound
    size = _sized(MEDIAN, problem, privacy, options.cohort_size, _medians_cohort, 1.0)
    log_d, log_delta = math.log(n * m * d), math.log(1 / delta)
    length = options.temperature_constant * bound * log_d / math.sqrt(m)  # printed as τ
    temperature = length if options.temperature == "printed" else 1 / length
    step = min(size * math.sqrt(m) / math.sqrt(n), math.sqrt(m) * epsilon / math.sqrt(d * log_delta * log_d))
    step *= problem.domain.half_width / bound
    shift = 6 * math.sqrt(d) / temperature  # Lemmas 32 and 33 with ρ = ς = 1/τ
    printed = bound * math.sqrt(d * (epsilon + log_delta) * log_d) / (math.sqrt(m) * epsilon)
    proof = _lemma_3(shift, epsilon / 2, delta / (2 * math.exp(epsilon)))
    constant = proof / printed if options.release_constant == "proof" else options.release_constant
    rounds = n // (2 * size)  # T, of the first phase
    filled = (
        *FILLED_IN,
        *_chosen(options, constant, "Lemmas 32, 33 and 36"),
        f"{options.temperature_constant:g} in τ = O(·)",
        "the robust statistic of Algorithm 7 is the coordinatewise median, and its Y is that statistic",
        "T in v is that of the first phase",
        "users who do not answer count as zero in estimates and as isolated in scores",
        *(("τ is the reciprocal of what is printed",) if options.temperature == "reciprocal" else ()),
    )
    numbers = MediansAsPrinted(
        epsilon=epsilon,
        delta=delta,
        filled_in=filled,
        void=(),
        cohort_size=size,
        temperature=temperature,
        phases=_schedule(problem, size, step, constant * printed, shift),
        trim=median_trim(size),
        clip_bound=bound * (1 + 1e-6),  # room for rounding: nothing that Assumption 21 allows is touched
        threshold=0.9 * size + 2 * math.log(rounds / delta) / epsilon,
        threshold_scale=4 / epsilon,
        query_scale=8 / epsilon,
    )
    beta = problem.coordinate_beta or 0.0
    steep = max(phase.step_size for phase in numbers.phases) * beta
    gentle = math.sqrt(n) * epsilon / (math.sqrt(m) * math.log(n * m * d / delta))
    gentle += math.sqrt(d * log_delta * log_d) / (math.sqrt(m) * epsilon)
    gentle *= bound / problem.domain.half_width
    few = math.log(n * d / delta) ** 2 / epsilon
    found = medians_epsilon(numbers, problem, delta)
    why = "steps do not contract" if steep > 2 else f"what it finds is above {LARGEST_EPSILON:g}"
    conditions = (
        _as_printed(options.cohort_size, _medians_cohort(problem, epsilon, delta)),
        (n >= few, _few(few, n, "Appendix C.2", "log²(nd/δ)")),
        (size >= 100 * math.log(rounds / delta) / epsilon, f"Lemma 34 needs B ≥ 100 log(T/δ)/ε, and B = {size:,}."),
        (epsilon <= 2, f"Proposition 16 is used at ε/2 and needs it to be at most 1: ε/2 = {epsilon / 2:g}."),
        (False, "Lemma 34 is about fewer than B/3 good users, and Lemma 36 uses it where fewer than 2B/3 are."),
        (beta <= gentle, f"Appendix C.2 assumes β ≤ {gentle:,.4g}, and β = {beta:,.4g}."),
        (steep <= 2, f"Lemma 27 needs ηβ ≤ 2 for steps to contract, and ηβ = {steep:,.4g}."),
        (6 * steep * size <= 1, f"Lemma 35 needs 6βηB ≤ 1 for its queries, and 6βηB = {6 * steep * size:,.4g}."),
        _enough(constant * printed, proof, "Lemmas 32, 33 and 36"),
        (
            options.temperature == "reciprocal",
            "τ is printed as a length, G log(nmd)/√m, and Algorithms 7 and 8 use it as an inverse length.",
        ),
        (math.log(m) > 2, f"Lemma 38 sums powers of 2/log m, and log m = {math.log(m):.3g} ≤ 2."),
        (
            False,
            "Lemma 36 takes a score to move by 1 where (17) says 2; as only the conjunction of the tests is released, "
            "they cost what docs/privacy/median-sgd.md#md2 says.",
        ),
        (math.isfinite(found), f"Our accountant (docs/privacy/median-sgd.md#md2) finds no ε: {why}."),
    )
    return Calibrated(
        numbers.judged(conditions), _risk(problem, numbers, steep), theorem="docs/privacy/median-sgd.md#md2"
    )


def _lemma_3(shift: float, epsilon: float, delta: float) -> float:
    """σ of the classical Gaussian mechanism (Proposition 16) for this shift."""
    return shift * math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def _chosen(options: FilterOpen | MediansOpen, constant: float, lemmas: str) -> tuple[str, ...]:
    source = f" (what {lemmas} ask for)" if options.release_constant == "proof" else ""
    return (f"{constant:.4g}{source} in σ_s = O(·)",)


def _as_printed(given: int | None, printed: int) -> tuple[bool, str]:
    return given is None, f"cohort_size = {given or 0:,} is an option's: the paper prints B = {printed:,}."


def _few(least: float, users: int, where: str, what: str) -> str:
    return f"{where} assumes n ≥ {math.ceil(least):,}, from {what}, and n = {users:,}."


def _enough(scale: float, proof: float, lemmas: str) -> tuple[bool, str]:
    holds = scale >= proof * (1 - 1e-12)
    return holds, f"σ_s is {proof / scale:,.4g} times smaller than {lemmas} ask for by their own constants."


def _risk(problem: Problem, numbers: PhasesAsPrinted, steep: float) -> float | None:
    """Our model's forecast of a run without a halt; None where steps do not contract."""
    variance = problem.user_deviation**2 / numbers.cohort_size
    phases = [PhaseModel(p.rounds, p.step_size, p.rounds, variance, p.release_scale) for p in numbers.phases]
    return risk if steep <= 2 and math.isfinite(risk := float(excess_risks(problem, phases))) else None


def medians_epsilon(parameters: MediansAsPrinted, problem: Problem, delta: float) -> float:
    """ε that median-sgd#md2 finds for every phase at δ, replace-one; infinite where one of its conditions fails."""
    p, size, dimension, beta = parameters, parameters.cohort_size, problem.dimension, problem.coordinate_beta
    if not isinstance(problem.domain, Box) or beta is None:
        return math.inf
    steep = max(phase.step_size for phase in p.phases) * beta
    multiplier = min(phase.release_scale / phase.step_size for phase in p.phases) * p.temperature
    multiplier /= math.sqrt(dimension) * (1 + 1e-6 * math.sqrt(dimension))  # room for the rounding of gradients
    asked = size * sum(phase.rounds for phase in p.phases)
    scales = min(multiplier, p.temperature, p.threshold_scale, p.query_scale)
    if not (0 <= steep <= 2 and scales > 0 and 0 < 2 * p.trim < size and asked <= problem.users):
        return math.inf
    if not p.clip_bound >= problem.coordinate_bound:
        return math.inf
    rounded = [(_rounding(p, phase, problem.domain.half_width), phase) for phase in p.phases]
    extra = max(math.sqrt(dimension) * far / phase.release_scale for far, phase in rounded)
    extra += 2 * math.sqrt(dimension) * 2.0**-GRID_BITS  # of the release
    cores = (size - p.trim + p.trim * np.linspace(0.0, 1.0, 201)[1:-1]) / size
    slack = total_variation(gaussians=dimension, laplaces=1 + max(phase.rounds for phase in p.phases))
    grid = p.query_scale * 2.0**-20
    error = score_error(size, dimension) + size * 2.0**-50
    error += size * p.temperature * beta * max(far for far, _ in rounded)
    found = np.array([_at_core(p, float(core), steep, multiplier, error, grid) for core in cores])
    tests, mus, failures = found.T + np.array([[0.0], [extra], [0.0]])

    def certified(epsilon: float) -> float:
        likely = expit(tests)  # randomised response, then a Gaussian
        release = likely * gdp.delta_for(mus, epsilon - tests) + (1 - likely) * gdp.delta_for(mus, epsilon + tests)
        found = np.maximum(failures, np.where(tests <= epsilon, release, 1.0))
        return float(found.min()) * (1 + 1e-9) + (1 + math.exp(epsilon)) * slack

    return pld_lattice.crossing(certified, delta, most=LARGEST_EPSILON)


def _at_core(
    p: MediansAsPrinted, core: float, steep: float, multiplier: float, error: float, grid: float
) -> tuple[float, float, float]:
    """Return what the test costs, μ of the release and the chance that a batch with a score below core · B passes."""
    phase = MedianParameters(
        cohort_size=p.cohort_size,
        trim=p.trim,
        core=core,
        test_scale=p.threshold_scale,
        threshold=p.threshold,
        eta_beta=steep,
        theta=1.0,
        clip=p.temperature * p.clip_bound,
        room=1.0,
        noise_multiplier=multiplier,
        score_error=error,
    )
    test = (phase.test_sensitivity * (1 + 1e-9) + 2 * grid) / p.threshold_scale
    mu = phase.shift / multiplier * (1 + 1e-12)
    above = p.threshold - phase.floor - 2 * grid  # a
    if above < 0:
        return test, mu, 1.0
    small, large = sorted((p.threshold_scale, p.query_scale))
    if large <= 1.001 * small:  # nearly equal scales: the tail of two of the larger one is heavier, and cancels nothing
        return test, mu, math.exp(-above / large) * (2 + above / large) / 4
    tail = large**2 * math.exp(-above / large) - small**2 * math.exp(-above / small)
    return test, mu, tail / (2 * (large**2 - small**2))


def _rounding(p: MediansAsPrinted, phase: PrintedPhase, half_width: float) -> float:
    """Return how far apart in ℓ∞ float64 can bring two averages of a phase, and two iterates, beyond exact arithmetic.

    A step rounds an iterate by half an ulp of w and the estimate by fewer than 70 of G and one of 1/τ; a sum of T
    iterates by half an ulp of T·w at every addition. Late phases have steps of no more than some millions of ulps.
    """
    estimate = phase.step_size * (70 * p.clip_bound + 1 / p.temperature)
    return (phase.rounds + 1) * 2.0**-52 * (2 * half_width + estimate)


FILTER_AS_PRINTED = Printed(
    options=FilterOpen,
    parameters=FilterAsPrinted,
    planner=plan_filter,
    maker=Filter,
    # No theorem: outlier-filter#f1 needs a Laplace scale that does not depend on the secret cutoff.
)
MEDIANS_AS_PRINTED = Printed(
    options=MediansOpen,
    parameters=MediansAsPrinted,
    planner=plan_medians,
    maker=Medians,
    epsilon=medians_epsilon,
)
