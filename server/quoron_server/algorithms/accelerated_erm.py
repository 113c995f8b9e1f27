"""Accelerated phased ERM: multi-stage AC-SA on disjoint users, outlier gradients removed, one noisy release a step.

    for phase i:                                       (fresh users D_i, fixed by a public permutation; c = x_{i-1})
        AC-SA on (1/n_i) Σ_{u in D_i} F_u(x) + (λ_i/2) ‖x - c‖², with at every step
            q_u = ∇F_u(md)    for K_i users of D_i: a secret uniform subset, or all of them
            S   = #{(u, v) : ‖q_u - q_v‖ <= τ};   a private test of S decides whether the step is released
            g   = r + (mean of q_u - r, outliers weighing nothing) + N(0, σ_i² I);     r = the last released gradient
            step with g + λ_i (md - c)
        x_i = the last stage's aggregate point

A step whose test fails is skipped: nothing moves, and the stage has one step less; later steps go on. Users are asked
as planned in any case: nothing visible but the releases depends on data. Everything sent out is a function of releases:
trust model `central-broadcast`.

Source: Lowy, Liu & Asi (2024), Algorithms 2 and 3, section 4; where this differs from the paper, and
why, and the proof: docs/privacy/accelerated-erm.md.

Plans of `accelerated-erm`: candidates by predicted excess risk, exact calibration, the independent re-check.

On a quadratic of one curvature everything is linear: the error of the model is the start's, the noise of every step and
the sampling error of every phase, times the responses of `acsa`. Where the curvature is unknown, the stage bound of
AC-SA, the stability of regularised minimisers and the distance between phases are added up: an upper bound, usually far
above what is measured. Predictions rank plans and never set noise. Phases share no user, so each may spend all of (ε,
δ).

Source: docs/privacy/accelerated-erm.md#e1 and accelerated-erm.md#e2.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import chdtri

from quoron_client.protocol.questions import Answers, AverageGradient, Question
from quoron_client.protocol.smoothing import Convolution
from quoron_privacy.accounts.gdp import mu_for
from quoron_privacy.arrays import Integers
from quoron_privacy.errors import Infeasible, VerificationError
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.noise.streams import NoiseSource
from quoron_privacy.robust import subsampled_test
from quoron_privacy.robust.outlier_mean import LARGEST_COHORT, RADII, ramp_floor, weighted_shifts
from quoron_privacy.robust.smooth_test import core_for, release_scale, verify_scale
from quoron_privacy.robust.subsampled_test import SubsampledTest, sampling_rate
from quoron_server.algorithm import InPhases, Update, Vector
from quoron_server.algorithms import acsa, search, spec
from quoron_server.algorithms.acsa import Shape
from quoron_server.algorithms.averaged_sgd import ranking_mu
from quoron_server.algorithms.descent import Estimate
from quoron_server.algorithms.printed import lowy_erm
from quoron_server.algorithms.references import LOWY_2024, repaired
from quoron_server.algorithms.search import Candidate, PlanInputs, Planner, geometric_phases, round_grid
from quoron_server.algorithms.slots import partition
from quoron_server.algorithms.spec import AlgorithmSpec, Calibrated, Factor, Guarantees, NoBlackBoxes, Policy
from quoron_server.parameters import Assumption, Kind, Parameters
from quoron_server.plan import Privacy, RunPlan
from quoron_server.problem import Problem
from quoron_server.schedule import RoundRelease, Rounds, gradients


@dataclass(frozen=True, slots=True)
class AcceleratedERMOptions:
    """Planning options; None lets the plan choose by predicted excess risk."""

    rounds: int | None = None  # all of them, exactly
    phases: int | None = None
    stages: int | None = None  # of each phase
    cohort: int | None = search.within(4, 1e9)  # K; at most a phase's users
    regularisation: float | None = None  # λ_1
    radius: float | None = None  # τ, from public knowledge
    smoothing: float | None = None  # r, for losses whose slope jumps


class ReleasedGradients:
    """What public numbers say of gradients that are released: tested and without outliers."""

    __slots__ = ()
    cohort_size: int  # K
    radius: float  # τ
    accounting: SubsampledTest  # the mechanism with its account
    noise_scale: float  # σ per coordinate, rounding included
    if TYPE_CHECKING:

        @property
        def users(self) -> int:
            """Whom cohorts are drawn from."""

        @property
        def rounds(self) -> int:
            """How many gradients."""

    @property
    def noise(self) -> GaussianNoise:
        """Of a released step."""
        return GaussianNoise(self.radius * self.accounting.mean.sensitivity, self.noise_scale)

    def asked(self, task: AverageGradient) -> Rounds:
        """A decision in every round, and the noisy step where it passes: it may withhold a count, too."""
        test = self.accounting.test
        step = RoundRelease(self.accounting, self.noise.entry(), tested=True)
        return Rounds(self.rounds, self.cohort_size, task, (RoundRelease(test, test.entry()), step), often=self.rounds)


@dataclass(frozen=True, slots=True)
class Phase(ReleasedGradients):
    """One phase's public numbers."""

    first: int  # its users hold the slots first .. first + users - 1
    users: int  # n_i
    cohort_size: int  # K_i
    stages: tuple[int, ...]  # N_1 .. N_S
    regularisation: float  # λ_i
    strength: float  # μ of the steps: λ_i and what is known of the loss's curvature
    smoothness: float  # Ls
    radius: float  # τ
    accounting: SubsampledTest
    noise_scale: float  # σ_i per coordinate, rounding included

    @property
    def rounds(self) -> int:
        """T_i."""
        return sum(self.stages)

    @property
    def drawn(self) -> bool:
        """Whether cohorts are secret uniform subsets; else they are all of the users."""
        return self.cohort_size < self.users

    @property
    def shape(self) -> Shape:
        """What a step knows of the objective."""
        return Shape(self.strength, self.smoothness)


@dataclass(frozen=True, slots=True)
class AcceleratedERMParameters(Parameters):
    """Public numbers of one run."""

    phases: tuple[Phase, ...]
    smoothing: float | None  # r

    def stretches(self, problem: Problem) -> Iterator[Rounds]:
        """Return tested steps on the users of each phase."""
        task = gradients(problem, smoothing=None if self.smoothing is None else Convolution(self.smoothing, 0))
        return (phase.asked(task) for phase in self.phases)

    def assumptions(self, problem: Problem) -> tuple[Assumption, ...]:
        """Secret cohorts, unless everybody is asked."""
        drawn = any(phase.drawn for phase in self.phases)
        secret = (Kind.SECRET_COHORTS, Kind.FORGETFUL_CLIENTS) if drawn else ()
        return tuple(map(Assumption, (Kind.ABSENT_IS_OUTLIER, *secret)))


def released_gradient(
    p: ReleasedGradients, answers: Answers, reference: Vector, noise: NoiseSource, round_: int
) -> Estimate:
    """Return the gradient of one round, where its test passes."""
    mean_of, test, answered = p.accounting.mean, p.accounting.test, int(np.sum(answers.answered))
    seen = mean_of.observe(answers.values, answers.answered, radius=p.radius, reference=reference)
    diagnostics = {
        "answered": answered,
        "concentration": seen.score / len(seen.weights) ** 2,
        "removed": answered - int(np.count_nonzero(seen.weights)),
    }
    if not test.decide(seen.score, noise.stream("test", round_)):
        return Estimate(None, (test.entry(),), diagnostics=diagnostics)
    shift = mean_of.aggregate(answers.values, seen.weights, radius=p.radius, reference=reference)
    gradient = reference + p.noise.release(shift, noise.stream("release", round_))
    return Estimate(gradient, (test.entry(), p.noise.entry()), diagnostics=diagnostics)


@dataclass(frozen=True, slots=True, eq=False)
class AcceleratedERMState:
    """Everything between two rounds; all of it a function of releases."""

    round: int
    centre: Vector  # c: where the phase began
    x: Vector
    ag: Vector
    steps: int  # released steps of the stage
    gradient: Vector  # the last released one


class AcceleratedERM(InPhases[AcceleratedERMParameters]):
    """Algorithm object for a plan with AcceleratedERMParameters."""

    kind = AcceleratedERMParameters

    def init(self) -> AcceleratedERMState:
        """Start at zero."""
        zero = np.zeros(self.plan.problem.dimension)
        return AcceleratedERMState(0, zero, zero, zero, 0, zero)

    def request(self, state: AcceleratedERMState, noise: NoiseSource) -> Question | None:
        """Average gradients of this round's cohort at md."""
        if state.round == self._ends[-1]:
            return None
        problem, r = self.plan.problem, self.parameters.smoothing
        phase = self.parameters.phases[self.phase_index(state.round)]
        smoothing = None if r is None else Convolution(r, self.plan.seed)
        task = AverageGradient(
            self._middle(state, phase)[None, :], (1.0,), problem.user_smoothness, smoothing=smoothing
        )
        cohort = partition(seed=self.plan.seed, users=problem.users)[phase.first : phase.first + phase.users]
        if phase.drawn:  # membership is secret: it is what amplification rests on
            cohort = cohort[noise.stream("cohort", state.round).subset(phase.users, phase.cohort_size)]
        return Question(state.round, cohort, task, planned=phase.cohort_size, drawn=phase.drawn)

    def update(self, state: AcceleratedERMState, answers: Answers, noise: NoiseSource) -> Update[AcceleratedERMState]:
        """One tested, noisy step of AC-SA."""
        index = self.phase_index(state.round)
        phase = self.parameters.phases[index]
        ends = self._ends[index] - phase.rounds + np.cumsum(phase.stages)  # of the phase's stages
        step = released_gradient(phase, answers, state.gradient, noise, state.round)
        after = replace(state, round=state.round + 1)
        if step.gradient is not None:
            after = self._step(after, step.gradient, phase)
        if after.round in ends:
            after = replace(after, x=after.ag, steps=0)
        if after.round == self._ends[index]:  # the next phase has new users and a new centre
            after = replace(after, centre=after.ag)
        stage = int(np.searchsorted(ends, state.round, side="right"))
        public = {"phase": index, "stage": stage, "released": step.gradient is not None}
        return Update(after, step.releases, public, step.diagnostics)

    def model(self, state: AcceleratedERMState) -> Vector:
        """Return the aggregate point; at the end that of the last phase."""
        return state.ag

    def _middle(self, state: AcceleratedERMState, phase: Phase) -> Vector:
        return acsa.middle(state.x, state.ag, state.steps + 1, phase.shape)

    def _step(self, state: AcceleratedERMState, gradient: Vector, phase: Phase) -> AcceleratedERMState:
        md, t = self._middle(state, phase), state.steps + 1
        whole = gradient + phase.regularisation * (md - state.centre)
        x, ag = acsa.step(state.x, state.ag, md, whole, t, phase.shape, self.plan.problem.domain)
        return replace(state, x=x, ag=ag, steps=t, gradient=gradient)


RATES = (1.0, 0.3, 0.1, 0.03)  # cohorts, as shares of a phase's users
LARGEST_ROUNDS = 512
PHASES = (1, 2, 3)
SHAPES = ((1, 1.0), (2, 1.0), (2, 2.0), (3, 1.0), (3, 2.0), (4, 1.0), (6, 1.0))  # stages, and how they grow
PULLS = (1e-4, 0.01, 0.3)  # λ_1 over the curvature, where that is known
RULES = (0.25, 0.5, 1.0, 2.0, 4.0)  # λ_1 over the rule's, where it is not
CAUTION = (1.0, 3.0)  # Ls over its least admissible value
LOCALISED = 16.0  # λ_{i+1} / λ_i
FARTHER = 1.3  # least c of the rule for τ
OUTLIER_FRACTION = 1e-4  # share of pairs of users that may lie beyond τ at the optimum
UNLIKE = 0.25  # of the gradient's bound: how users of a table differ however many items they have
SLACK = 0.005  # share of pairs that the tests forgive in addition, for points where users differ more
STEEPER = 1.25  # curvature away from the optimum, over that at it
LADDERS = ((11.0, 1.3), (14.0, 1.1), (25.0, 1.0))  # rungs over γ√T/μ, and the noise over that of their middle's shift

NAME = "accelerated-erm"
THEOREM = "docs/privacy/accelerated-erm.md#e1"
TRIED = 8  # candidates that are calibrated, at most


@dataclass(frozen=True, slots=True)
class Step:
    """How candidates of a grid differ: in stages and step sizes."""

    stages: int  # of each phase
    growth: float  # how they grow
    caution: float  # Ls over its least admissible value
    strength: float  # what steps count on beside λ


@dataclass(frozen=True, slots=True)
class PhaseSizes:
    """A phase of a grid, before its noise."""

    users: int
    cohort: int
    rounds: int  # T_i
    pull: float  # λ


@dataclass(frozen=True, slots=True)
class CandidateGrid:
    """Candidates with the same users, cohort, rounds and λ in every phase, one for each of K steps."""

    phases: tuple[PhaseSizes, ...]
    steps: tuple[Step, ...]
    beta: float

    def at(self, place: int) -> Iterator[tuple[PhaseSizes, tuple[int, ...], acsa.Shape]]:
        """One candidate, phase by phase: its sizes, N_1 .. N_S, and what its steps know."""
        step = self.steps[place]
        for phase in self.phases:
            strengths, smoothnesses = shapes(phase.pull, self.steps, self.beta)
            stages = acsa.stage_lengths(phase.rounds, step.stages, step.growth)
            yield phase, stages, acsa.Shape(float(strengths[place]), float(smoothnesses[place]))


def lengths(rounds: int, steps: tuple[Step, ...]) -> acsa.Lengths:
    """N_1 .. N_S of a phase of so many rounds for each step; zeros behind the last; shape (K, S)."""
    every = [acsa.stage_lengths(rounds, step.stages, step.growth) for step in steps]
    most = max(map(len, every))
    return np.array([stages + (0,) * (most - len(stages)) for stages in every])


def shapes(pull: float, steps: tuple[Step, ...], beta: float) -> tuple[Vector, Vector]:
    """(strengths, smoothnesses) of a phase for each step, shapes (K,)."""
    strengths, cautions = np.array([step.strength for step in steps]), np.array([step.caution for step in steps])
    return pull + strengths, np.maximum(cautions * beta, strengths) + pull


def count_slack(problem: Problem, cohort: int, share: float) -> int:
    """By how much the average count may miss K: `share` of it, and declared adversarial users with all their pairs."""
    hostile = problem.beliefs.hostile_share * cohort
    return math.ceil(share * cohort + 2 * (hostile + 4 * math.sqrt(hostile)))


@dataclass(frozen=True, slots=True)
class Inputs(PlanInputs[AcceleratedERMOptions]):
    """What a plan is made from."""

    smoothing: float | None = None  # r

    @property
    def beta(self) -> float:
        """Smoothness of the users' averages, smoothed if they have to be."""
        if self.smoothing is None:
            return self.problem.beta or 0.0
        stand_in, p = Convolution(self.smoothing, 0), self.problem
        return stand_in.smoothness(lipschitz=p.lipschitz, dimension=p.dimension) + p.ridge

    @property
    def bias(self) -> float:
        """What smoothing can cost."""
        if self.smoothing is None:
            return 0.0
        return Convolution(self.smoothing, 0).bias(lipschitz=self.problem.lipschitz, dimension=self.problem.dimension)

    @property
    def curvature(self) -> float | None:
        """Of the expected loss, where it is known."""
        known = self.problem.beliefs.curvature == "isotropic" and self.smoothing is None
        return self.problem.beliefs.typical_curvature if known else None

    @property
    def strengths(self) -> tuple[float, ...]:
        """What the steps may count on beside λ: the ridge, and the least curvature where it is known."""
        known, least = self.problem.ridge, self.problem.beliefs.least_curvature or 0.0
        return (known, least) if self.curvature is not None and least > known else (known,)

    @property
    def radius(self) -> float:
        """τ: a public length within which nearly all pairs of honest users' gradients lie."""
        problem = self.problem
        if self.options.radius is not None:
            return self.options.radius
        near, far = problem.user_deviation, problem.widest_deviation
        spread = far if far > FARTHER * near else near  # c allows for less
        if problem.beliefs.gradient_deviation is None and problem.beliefs.isotropic is None:
            spread = math.hypot(spread, UNLIKE * problem.lipschitz)
        # Pairs concentrate at √2 deviations in high dimension; below that τ has to reach their tail.
        d = problem.dimension
        width = max(FARTHER, math.sqrt(float(chdtri(d, 1 - (1 - OUTLIER_FRACTION))) / d))
        return min(2 * problem.lipschitz, width * math.sqrt(2) * spread)

    def count_slack(self, cohort: int) -> int:
        """`count_slack` of pairs beyond τ."""
        return count_slack(self.problem, cohort, SLACK)

    def noise(self, phases: Sequence[PhaseSizes]) -> Vector:
        """σ/τ of each phase, estimated; infinite where the tests leave nothing."""
        cohorts = np.array([phase.cohort for phase in phases])
        lost = np.array([self.count_slack(phase.cohort) for phase in phases])
        rates = [sampling_rate(phase.users, phase.cohort) if phase.cohort < phase.users else 1.0 for phase in phases]
        rounds = [phase.rounds for phase in phases]
        return smooth_test_noise(self.privacy.epsilon, self.privacy.delta, cohorts, rates, rounds, lost)


_Tried = tuple[Inputs, CandidateGrid, int]  # and which of the grid's steps


# -- noise, about: it ranks plans and sets none ------------------------------------------------------------------------


def smooth_test_noise(
    epsilon: float, delta: float, cohorts: Integers, rates: Sequence[float], often: Sequence[int], forgiven: Integers
) -> Vector:
    """σ/τ of `subsampled_test.calibrate` for each cohort: within a fifth, but for small random cohorts a half."""
    total = mu_for(epsilon, delta)
    steepness = np.array(rates) * np.sqrt(often) / total
    each = np.array([ranking_mu(rate, count, total) for rate, count in zip(rates, often, strict=True)])
    found = np.full(len(cohorts), np.inf)
    for rungs, more in LADDERS:
        ladders = np.maximum(12, np.ceil(rungs * steepness)).astype(np.int64)
        cores = core_for(cohorts, ladders) - forgiven
        halfway = weighted_shifts(cohorts, (cores + cohorts - forgiven) // 2)
        found = np.where(cores > ramp_floor(cohorts), np.minimum(found, more * halfway / each), found)
    return found


# -- candidates --------------------------------------------------------------------------------------------------------


def smoothings(problem: Problem, privacy: Privacy, options: AcceleratedERMOptions) -> Sequence[float | None]:
    """Return the radius r of the rule, or larger ones, up to the domain's; None for smooth losses."""
    if problem.smoothness is not None:
        return [None]
    if options.smoothing is not None:
        return [options.smoothing]
    rule = problem.radius * math.sqrt(problem.dimension / problem.items_per_user)
    rule /= privacy.epsilon * problem.users
    largest = max(0, math.ceil(math.log(problem.radius / rule, 4)))
    return [rule * 4.0**k for k in range(max(1, largest))][-8:]


def grids(inputs: Inputs) -> Iterator[CandidateGrid]:
    """Return everything that is tried."""
    o = inputs.options
    totals = [o.rounds] if o.rounds else round_grid(LARGEST_ROUNDS, smallest=4)
    for phases in [o.phases] if o.phases else PHASES[: 2 if inputs.curvature else 3]:
        sizes = geometric_phases(inputs.problem.users, phases)
        for cohorts in _cohorts(inputs, sizes):
            for total in totals:
                if total < len(sizes):
                    continue
                for pulls in _pulls(inputs, sizes, cohorts, total):
                    grid = _grid(inputs, sizes, cohorts, pulls, total)
                    if grid.steps:
                        yield grid


def _cohorts(inputs: Inputs, sizes: list[int]) -> Iterator[list[int]]:
    """Cohort sizes; the same kind of sampling in every phase."""
    o = inputs.options
    for rate in RATES if o.cohort is None else (1.0,):
        cohorts = [min(size, o.cohort or round(rate * size)) for size in sizes]
        alike = len({cohort == size for cohort, size in zip(cohorts, sizes, strict=True)}) == 1
        if alike and min(cohorts) >= 4 and max(cohorts) <= LARGEST_COHORT:
            yield cohorts


def _pulls(inputs: Inputs, sizes: list[int], cohorts: list[int], total: int) -> Iterator[list[float]]:
    """Lists of λ_i."""
    if inputs.options.regularisation is not None:
        firsts = [inputs.options.regularisation]
    elif inputs.curvature is not None:
        firsts = [share * inputs.curvature for share in PULLS]
    else:
        # λ R²/2 balances the rest: a phase from distance R ends with excess risk λ R².
        rounds = max(1, total // len(sizes))
        sigma = float(inputs.noise([PhaseSizes(sizes[0], cohorts[0], rounds, 1.0)])[0]) * inputs.radius
        sigma = min(sigma, 1e6 * inputs.problem.lipschitz)
        rest = 2 * inputs.problem.user_deviation**2 / sizes[0] + inputs.problem.dimension * sigma**2 / rounds
        rule = math.sqrt(2 * rest) / inputs.problem.radius
        firsts = [share * rule for share in RULES]
    for first in firsts:
        yield [first * LOCALISED**k for k in range(len(sizes))]


def _grid(inputs: Inputs, sizes: list[int], cohorts: list[int], pulls: list[float], total: int) -> CandidateGrid:
    """Return all stages and step sizes for given users, cohorts, λ and rounds."""
    ridge = inputs.problem.ridge
    spent = _split(total, [math.sqrt(1 + inputs.beta / (pull + ridge)) for pull in pulls])
    steps = tuple(step for step in _steps(inputs.strengths, inputs.options.stages) if step.stages <= min(spent))
    return CandidateGrid(tuple(map(PhaseSizes, sizes, cohorts, spent, pulls)), steps, inputs.beta)


@lru_cache(maxsize=64)
def _steps(strengths: tuple[float, ...], stages: int | None) -> tuple[Step, ...]:
    """Return all that a grid may have."""
    kinds = [(stages, 1.0), (stages, 2.0)] if stages else SHAPES
    return tuple(
        Step(number, growth, caution, strength)
        for number, growth in kinds
        for caution, strength in product(CAUTION, strengths)
    )


def _split(total: int, shares: list[float]) -> list[int]:
    """`total` rounds in proportion to `shares`, at least one each."""
    spare, whole = total - len(shares), sum(shares)
    ends = [round(spare * sum(shares[: k + 1]) / whole) for k in range(len(shares))]
    return [1 + end - start for start, end in zip([0, *ends], ends, strict=False)]


# -- risk --------------------------------------------------------------------------------------------------------------


def predicted(inputs: Inputs, grid: CandidateGrid, sigmas: Sequence[float]) -> Vector:
    """Predicted excess risk of each candidate with these noises of the phases, that of smoothing included; (K,)."""
    if not all(math.isfinite(sigma) for sigma in sigmas):
        return np.full(len(grid.steps), np.inf)
    if inputs.curvature is not None:
        return _isotropic(inputs.problem, inputs.curvature, grid, sigmas)
    return _bounded(inputs, grid, sigmas) + inputs.bias


def estimated(inputs: Inputs, tried: Sequence[CandidateGrid]) -> list[Vector]:
    """`predicted` with estimated noise."""
    noisy = {(phase.users, phase.cohort, phase.rounds): phase for grid in tried for phase in grid.phases}
    noise = dict(zip(noisy, inputs.noise(list(noisy.values())).tolist(), strict=True)) if noisy else {}
    risks = []
    for grid in tried:
        sigmas = [noise[phase.users, phase.cohort, phase.rounds] * inputs.radius for phase in grid.phases]
        risks.append(predicted(inputs, grid, sigmas))
    return risks


def step_variance(problem: Problem, phase: PhaseSizes, sigma: float) -> float:
    """E‖g - ∇F_i‖² of one step: privacy noise, and the cohort against the phase's users."""
    unseen = (phase.users - phase.cohort) / max(phase.users - 1, 1)
    return problem.dimension * sigma**2 + unseen * problem.user_deviation**2 / phase.cohort


def _isotropic(problem: Problem, curvature: float, grid: CandidateGrid, sigmas: Sequence[float]) -> Vector:
    remaining, spread = np.array(problem.radius), np.array(0.0)  # distance in the worst direction; all else, squared
    between = problem.beliefs.least_curvature or curvature, STEEPER * curvature
    for phase, sigma in zip(grid.phases, sigmas, strict=True):
        moved = _responses(phase.rounds, phase.pull, grid.steps, grid.beta, curvature, between)
        remaining = remaining * moved.worst_bias
        shared = problem.user_deviation**2 / phase.users  # the phase's users are a sample themselves
        fresh = moved.noise * step_variance(problem, phase, sigma)
        spread = moved.bias**2 * spread + fresh + moved.lasting**2 * shared
    risks: Vector = curvature * (remaining**2 + spread) / 2
    return risks


@lru_cache(maxsize=1024)
def _responses(
    rounds: int, pull: float, steps: tuple[Step, ...], beta: float, curvature: float, between: tuple[float, float]
) -> acsa.Responses:
    return acsa.responses(
        lengths(rounds, steps),
        *shapes(pull, steps, beta),
        regularisation=pull,
        curvature=curvature,
        between=between,
    )


def _bounded(inputs: Inputs, grid: CandidateGrid, sigmas: Sequence[float]) -> Vector:
    problem = inputs.problem
    steep, total, gap, pull = problem.lipschitz, np.zeros(len(grid.steps)), np.zeros(len(grid.steps)), 1.0
    for index, (phase, sigma) in enumerate(zip(grid.phases, sigmas, strict=True)):
        away = 2 * gap / pull if index else np.full(len(grid.steps), problem.radius**2)
        pull = phase.pull + problem.ridge
        total = total + phase.pull * away / 2 + 2 * problem.user_deviation**2 / (pull * phase.users)
        reach = problem.radius if index == 0 else 2 * problem.radius
        gap = _gap(phase, grid, steep, away, reach, step_variance(problem, phase, sigma))
    # From the objective's minimiser to the model: by their distance, or by the objective's gap on a sample of users.
    sampled = phase.pull * away / 2 + 4 * problem.radius * problem.user_deviation / math.sqrt(phase.users)
    bounds: Vector = total + np.minimum(steep * np.sqrt(2 * gap / pull), gap + sampled)
    return bounds


def _gap(phase: PhaseSizes, grid: CandidateGrid, steep: float, away: Vector, reach: float, variance: float) -> Vector:
    """Expected gap of a phase's objective after its stages, shape (K,); the domain ends `reach` from its start."""
    strengths, smoothnesses = shapes(phase.pull, grid.steps, grid.beta)
    gap = steep * np.minimum(steep / (2 * strengths), reach)
    distance = np.minimum(steep / strengths, reach) ** 2
    for stage in lengths(phase.rounds, grid.steps).T:
        bound = acsa.stage_bound(np.maximum(stage, 1), distance, variance, strengths, smoothnesses)
        gap = np.where((stage > 0) & (gap > 0), np.minimum(gap, bound), gap)
        distance = 2 * gap / strengths
    return np.asarray(gap)


def verify(plan: RunPlan) -> None:
    """Disjoint phases, each (ε, δ) by its theorem's second route, noise as accounted for, cost as planned."""
    p = plan.parameters_of(AcceleratedERMParameters)
    last = 0
    for phase in p.phases:
        if not (last <= phase.first and phase.first + phase.users <= plan.problem.users):
            raise VerificationError(f"Expected phases on disjoint users of {plan.problem.users:,}, got {phase}.")
        last = phase.first + phase.users
        search.require_of(
            NAME,
            phase,
            ("stages of positive length", bool(phase.stages) and min(phase.stages) >= 1),
            ("as many rounds as its stages have", phase.rounds == sum(phase.stages)),
            ("2 <= cohort_size <= users", 2 <= phase.cohort_size <= phase.users),
            ("0 < strength <= smoothness", 0 < phase.strength <= phase.smoothness < math.inf),
            ("regularisation >= 0", 0 <= phase.regularisation < math.inf),
            (f"radius in {RADII}", RADII[0] < phase.radius < RADII[1]),
            (
                "smoothing exactly where the loss is not smooth",
                (p.smoothing is None) == (plan.problem.smoothness is not None),
            ),
        )
        verify_privacy(plan, phase)


def verify_privacy(plan: RunPlan, phase: ReleasedGradients) -> None:
    """The account is about these users and rounds, its theorem accepts it, and noise with rounding is within it."""
    accounting, dimension = phase.accounting, plan.problem.dimension
    epsilon = plan.guarantee.epsilon
    delta = search.left(plan, gaussians=phase.rounds * dimension, laplaces=phase.rounds + 1)
    if not delta > 0:
        raise VerificationError(f"Expected a delta above the samplers' error, got {plan.guarantee.delta:g}.")
    cohort = accounting.mean.cohort_size == phase.cohort_size
    if accounting.releases < phase.rounds or accounting.users != phase.users or not cohort:
        expected = f"{phase.rounds} releases from {phase.cohort_size} of {phase.users} users"
        raise VerificationError(f"Expected an account of {expected}: {accounting}.")
    subsampled_test.verify_subsampled(accounting, epsilon, delta)
    verify_scale(accounting, phase.noise_scale, phase.radius, dimension)


def _candidates(inputs: Inputs) -> Iterable[Candidate[_Tried]]:
    """Return the best of each grid by estimated noise, priced by its gradients; of those with the same noise one."""
    problem, privacy, options = inputs.problem, inputs.privacy, inputs.options
    found: dict[object, Candidate[_Tried]] = {}
    for smoothing in smoothings(problem, privacy, options):
        smoothed = replace(inputs, smoothing=smoothing)
        tried = list(grids(smoothed))
        for grid, risks in zip(tried, estimated(smoothed, tried), strict=True):
            gradients = sum(phase.rounds * phase.cohort for phase in grid.phases)
            noise = tuple((phase.users, phase.cohort, phase.rounds) for phase in grid.phases)
            candidate = Candidate(float(risks.min()), (gradients,), (smoothed, grid, int(risks.argmin())))
            if noise not in found or candidate.risk < found[noise].risk:
                found[noise] = candidate
    return found.values()


def _chosen(inputs: Inputs, found: Candidate[_Tried]) -> Calibrated:
    """With exact accounts and noise. Infeasible where a test leaves nothing or declared outliers fail it."""
    smoothed, grid, place = found.of
    radius = smoothed.radius
    phases: list[Phase] = []
    for sizes, stages, shape in grid.at(place):
        forgiven = smoothed.count_slack(sizes.cohort)
        accounting, scale = account(smoothed, sizes.users, sizes.cohort, sizes.rounds, forgiven, radius)
        phase = Phase(
            first=sum(phase.users for phase in phases),
            users=sizes.users,
            cohort_size=sizes.cohort,
            stages=stages,
            regularisation=sizes.pull,
            strength=shape.strength,
            smoothness=shape.smoothness,
            radius=radius,
            accounting=accounting,
            noise_scale=scale,
        )
        phases.append(phase)
    risk = float(predicted(smoothed, grid, [phase.noise_scale for phase in phases])[place])
    return Calibrated(AcceleratedERMParameters(tuple(phases), smoothed.smoothing), risk)


def _worth(problem: Problem) -> float:
    """Of a smooth loss alone: that of a smoothed one is a bound."""
    return math.inf if problem.smoothness is None else spec.known_worth(problem)


def account(
    inputs: PlanInputs[Any], users: int, cohort: int, rounds: int, forgiven: int, radius: float
) -> tuple[SubsampledTest, float]:
    """Return the mechanism of `rounds` gradients of `cohort` of `users` with its exact account, and the noise of τ.

    Its test forgives that the average count misses the cohort by `forgiven`; every shift keeps to its accounted ratio.
    Infeasible where there is none, or declared outliers fail the tests.
    """
    problem, privacy, share = inputs.problem, inputs.privacy, inputs.problem.beliefs.hostile_share
    # The samplers' total variation in one phase; less, however little it is.
    left = search.left_of_delta(inputs.name, privacy, gaussians=rounds * problem.dimension, laplaces=rounds + 1)
    accounting = subsampled_test.calibrate(
        privacy.epsilon,
        math.nextafter(left, -1.0),
        users=users,
        cohort_size=cohort,
        releases=rounds,
        forgiven=forgiven,
    )
    if release_chance(accounting, share) < 0.5:
        raise Infeasible(inputs.name, f"hostile_share={share:g} fails the tests", "more rounds")
    return accounting, release_scale(accounting, radius, problem.dimension)


def release_chance(accounting: SubsampledTest, outliers: float) -> float:
    """Chance that one release passes its test when that share of the cohort is far from everybody else."""
    size = accounting.mean.cohort_size
    near = round((1 - outliers) * size)
    return accounting.test.chance(near * near + size - near)


def _check(inputs: Inputs) -> None:
    if not inputs.problem.convex:
        raise Infeasible(NAME, "the loss is not convex", "a convex loss")


SPEC = AlgorithmSpec(
    name=NAME,
    summary="Several passes, accelerated: phases of AC-SA that test every cohort and leave outlier gradients out",
    origin=repaired(
        LOWY_2024.at("Algorithms 2 and 3"), note="users without replacement; tests are inside what is sampled"
    ),
    guarantees=Guarantees(
        THEOREM,
        one_server="it looks at single answers, to test them: take tracking-srgd or recentred-sgd",
    ),
    options=AcceleratedERMOptions,
    parameters=AcceleratedERMParameters,
    planner=Planner(
        NAME, _candidates, _chosen, "for private gradients", _worth, max_calibrated=TRIED, inputs=Inputs, check=_check
    ),
    verifier=verify,
    maker=AcceleratedERM,
    printed=lowy_erm.PRINTED,
    factor=Factor(known=8.0, unknown=1.5),
    no_black_boxes=NoBlackBoxes("it has no clip; it leaves out answers that are far from the others, of convex losses"),
    policy=Policy(many_passes=True, removes_outliers=True),
)
