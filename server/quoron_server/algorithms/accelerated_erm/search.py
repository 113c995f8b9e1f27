"""Candidates of `accelerated-erm` and their predicted excess risk; ranks plans and never sets noise.

On a quadratic of one curvature everything is linear: the error of the model is the start's, each step's noise and each
phase's sampling error, times the responses of `acsa` (`_isotropic`). Where the curvature is unknown, the stage bound of
AC-SA, the stability of regularised minimisers and the distance between phases are added up (`_bounded`;
docs/privacy/accelerated-erm.md#e2): an upper bound, usually far above what is measured.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtri

from quoron_client.protocol.smoothing import Convolution
from quoron_privacy.accounts.gdp import mu_for
from quoron_privacy.gaussian import mean_sensitivity
from quoron_privacy.robust.combinations import Sampling
from quoron_privacy.robust.outlier_mean import LARGEST_COHORT
from quoron_privacy.robust.subsampled_lottery import sampling_rate
from quoron_server.algorithms import acsa
from quoron_server.algorithms.accelerated_erm.noise import lottery_noise, threshold_noise
from quoron_server.algorithms.accelerated_erm.parameters import AcceleratedERMOptions, participations
from quoron_server.algorithms.averaged_sgd import default_clip, ranking_mu, replaced_ranking_mu
from quoron_server.algorithms.search import halves, round_grid
from quoron_server.plan import Privacy
from quoron_server.problem import Problem

Vector = NDArray[np.float64]
Integers = NDArray[np.int64]
Lengths = NDArray[np.int64]

RATES = (1.0, 0.3, 0.1, 0.03)  # cohorts, as shares of a phase's users
LARGEST_ROUNDS = 512
PHASES = (1, 2, 3)
SHAPES = ((1, 1.0), (2, 1.0), (2, 2.0), (3, 1.0), (3, 2.0), (4, 1.0), (6, 1.0))  # stages, and how they grow
PULLS = (1e-4, 0.01, 0.3)  # λ_1 over the curvature, where that is known
RULES = (0.25, 0.5, 1.0, 2.0, 4.0)  # λ_1 over the rule's, where it is not
CAUTION = (1.0, 3.0)  # Ls over its least admissible value
LOCALISED = 16.0  # λ_{i+1} / λ_i
MOST_STEPS = 6  # of the strongly convex schedule
FARTHER = 1.3  # least c of the rule for τ
BEYOND = 1e-4  # share of pairs of users that may lie beyond τ at the optimum
UNLIKE = 0.25  # of the gradient's bound: how users of a table differ however many items they have
STRAY = 0.005  # share of pairs that the tests forgive in addition, for points where users differ more
STEEPER = 1.25  # curvature away from the optimum, over that at it
MISSED = 1e-3  # chance that any pair lies beyond a guaranteed τ

# How cohorts are drawn that are not everybody.
DRAWN: dict[str, Sampling] = {"secret": "without-replacement", "public": "public-schedule", "coins": "poisson"}


@dataclass(frozen=True, slots=True)
class Step:
    """How candidates of a family differ: in stages and step sizes."""

    stages: int  # of each phase
    growth: float  # how they grow
    caution: float  # Ls over its least admissible value
    strength: float  # what steps count on beside λ


@dataclass(frozen=True, slots=True)
class Draft:
    """A phase of a family, before its noise."""

    users: int
    cohort: int
    rounds: int  # T_i
    pull: float  # λ


@dataclass(frozen=True, slots=True)
class Family:
    """Candidates with the same users, cohort, rounds and λ in every phase, one for each of K steps."""

    drafts: tuple[Draft, ...]
    steps: tuple[Step, ...]
    beta: float

    def at(self, place: int) -> Iterator[tuple[Draft, tuple[int, ...], acsa.Shape]]:
        """One candidate, phase by phase: its draft, N_1 .. N_S, and what its steps know."""
        step = self.steps[place]
        for draft in self.drafts:
            strengths, smoothnesses = shapes(draft.pull, self.steps, self.beta)
            stages = acsa.stage_lengths(draft.rounds, step.stages, step.growth)
            yield draft, stages, acsa.Shape(float(strengths[place]), float(smoothnesses[place]))


def lengths(rounds: int, steps: tuple[Step, ...]) -> Lengths:
    """N_1 .. N_S of a phase of so many rounds for each step; zeros behind the last; shape (K, S)."""
    every = [acsa.stage_lengths(rounds, step.stages, step.growth) for step in steps]
    most = max(map(len, every))
    return np.array([stages + (0,) * (most - len(stages)) for stages in every])


def shapes(pull: float, steps: tuple[Step, ...], beta: float) -> tuple[Vector, Vector]:
    """(strengths, smoothnesses) of a phase for each step, shapes (K,)."""
    strengths, cautions = np.array([step.strength for step in steps]), np.array([step.caution for step in steps])
    return pull + strengths, np.maximum(cautions * beta, strengths) + pull


def forgiven(problem: Problem, cohort: int, share: float) -> int:
    """By how much the average count may miss K: `share` of it, and declared hostile users with all their pairs."""
    hostile = problem.beliefs.hostile_share * cohort
    return math.ceil(share * cohort + 2 * (hostile + 4 * math.sqrt(hostile)))


@dataclass(frozen=True, slots=True)
class Scene:
    """One planning task."""

    problem: Problem
    privacy: Privacy
    options: AcceleratedERMOptions
    smoothing: float | None  # r

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
    def strong_convexity(self) -> float | None:
        """μ_s; None without the schedule of remark 3.6."""
        return (self.options.strong_convexity or self.problem.ridge) if self.options.strongly_convex else None

    def sampling(self, phase: Draft) -> Sampling:
        """How the phase's cohorts are drawn."""
        if phase.cohort == phase.users:
            return "everybody"
        return DRAWN[self.options.schedule]

    def radius(self, rounds: int) -> float:
        """τ: a public length within which nearly all pairs of honest users' gradients lie; without a test, the clip."""
        problem, wanted = self.problem, self.options.radius
        if wanted == "guaranteed":
            if problem.beliefs.heterogeneity > 0:
                return 2 * problem.lipschitz
            tail = math.log(2 * problem.users * rounds / MISSED)
            return 4 * problem.lipschitz * min(0.5, math.sqrt(2 * tail / problem.items_per_user))
        if wanted is not None:
            return float(wanted)
        if self.options.test == "clip":
            return default_clip(problem)
        near, far = problem.user_deviation, problem.widest_deviation
        spread = far if far > FARTHER * near else near  # c allows for less
        if problem.beliefs.gradient_deviation is None and problem.beliefs.isotropic is None:
            spread = math.hypot(spread, UNLIKE * problem.lipschitz)
        return min(2 * problem.lipschitz, _width(problem.dimension) * math.sqrt(2) * spread)

    def forgiven(self, cohort: int) -> int:
        """`forgiven` of pairs beyond τ."""
        return forgiven(self.problem, cohort, STRAY)

    def noise(self, drafts: Sequence[Draft]) -> Vector:
        """σ/τ of each phase, estimated; infinite where the tests leave nothing."""
        o, target = self.options, (self.privacy.epsilon, self.privacy.delta)
        cohorts = np.array([draft.cohort for draft in drafts])
        lost = np.array([self.forgiven(draft.cohort) for draft in drafts])
        samplings = [self.sampling(draft) for draft in drafts]
        often = [
            participations(draft.rounds, draft.users, draft.cohort, sampling)
            for draft, sampling in zip(drafts, samplings, strict=True)
        ]
        if o.test == "above-threshold":
            rounds = np.array([draft.rounds for draft in drafts])
            return threshold_noise(*target, cohorts, rounds, np.array(often), o.kappa, lost)
        rates = [
            {
                "without-replacement": sampling_rate(draft.users, draft.cohort),
                "poisson": draft.cohort / draft.users,
            }.get(sampling, 1.0)
            for draft, sampling in zip(drafts, samplings, strict=True)
        ]
        if o.test == "clip":
            total = mu_for(*target)
            # Where everybody is asked they are none, and twice their μ is as good a guess.
            coins = o.schedule == "coins"
            each = [
                2 * replaced_ranking_mu(rate, draft.rounds, total) if coins else ranking_mu(rate, draft.rounds, total)
                for rate, draft in zip(rates, drafts, strict=True)
            ]
            return np.array([mean_sensitivity(1.0, draft.cohort) / mu for draft, mu in zip(drafts, each, strict=True)])
        return lottery_noise(*target, cohorts, rates, often, o.kappa, o.aggregate, lost)


@lru_cache(maxsize=64)
def _width(dimension: int) -> float:
    """c: pairs concentrate at √2 deviations in high dimension; below that τ has to reach their tail."""
    return max(FARTHER, math.sqrt(float(chdtri(dimension, 1 - (1 - BEYOND))) / dimension))


# -- candidates --------------------------------------------------------------------------------------------------------


def smoothings(problem: Problem, privacy: Privacy, options: AcceleratedERMOptions) -> Sequence[float | None]:
    """The radius r of the rule, or larger ones, up to the domain's; None for smooth losses."""
    if problem.smoothness is not None:
        return [None]
    if options.smoothing is not None:
        return [options.smoothing]
    rule = problem.radius * math.sqrt(problem.dimension / problem.items_per_user)
    rule /= privacy.epsilon * problem.users
    largest = max(0, math.ceil(math.log(problem.radius / rule, 4)))
    return [rule * 4.0**k for k in range(max(1, largest))][-8:]


def families(scene: Scene, *, few: bool = False) -> Iterator[Family]:
    """Everything that is tried; `few` for a rough look."""
    o, strong = scene.options, scene.strong_convexity is not None
    totals = [o.rounds] if o.rounds else round_grid(LARGEST_ROUNDS, smallest=4)[:: 3 if few else 1]
    steps = range(1, MOST_STEPS + 1) if strong else (1,)
    for repeats in steps:
        for inner in [o.phases] if o.phases else ((1,) if few or strong else PHASES[: 2 if scene.curvature else 3]):
            sizes = halves(scene.problem.users // repeats, inner) * repeats
            for cohorts in _cohorts(scene, sizes):
                for total in totals:
                    if total < len(sizes):
                        continue
                    for pulls in _pulls(scene, sizes, cohorts, total, repeats):
                        family = _family(scene, sizes, cohorts, pulls, total, few)
                        if family.steps:
                            yield family


def _cohorts(scene: Scene, sizes: list[int]) -> Iterator[list[int]]:
    """Cohort sizes; the same kind of sampling in every phase."""
    o = scene.options
    free = o.cohort is None and (o.test != "above-threshold" or o.schedule == "public")
    for rate in RATES if free else (1.0,):
        cohorts = [min(size, o.cohort or round(rate * size)) for size in sizes]
        alike = len({cohort == size for cohort, size in zip(cohorts, sizes, strict=True)}) == 1
        if alike and min(cohorts) >= 4 and (max(cohorts) <= LARGEST_COHORT or o.test == "clip"):
            yield cohorts


def _pulls(scene: Scene, sizes: list[int], cohorts: list[int], total: int, repeats: int) -> Iterator[list[float]]:
    """Lists of λ_i."""
    o, inner = scene.options, len(sizes) // repeats
    localised = [LOCALISED**k for k in range(inner)]
    if scene.strong_convexity is not None:
        slope = _slope(scene, sizes, cohorts, total)
        if steps_needed(scene.problem, slope) <= repeats:
            radii = schedule(scene.problem, scene.strong_convexity, slope, repeats)
            yield [(o.regularisation or slope / radius) * factor for radius in radii for factor in localised]
    elif o.regularisation is not None:
        yield [o.regularisation * factor for factor in localised]
    elif scene.curvature is not None:
        yield from ([share * scene.curvature * factor for factor in localised] for share in PULLS)
    else:
        rule = _slope(scene, sizes, cohorts, total) / scene.problem.radius
        yield from ([share * rule * factor for factor in localised] for share in RULES)


def _slope(scene: Scene, sizes: list[int], cohorts: list[int], total: int) -> float:
    """a, about: λ = a / r balances λ r²/2 with the rest, and a phase from distance r ends with excess risk a r."""
    rounds = max(1, total // len(sizes))
    sigma = float(scene.noise([Draft(sizes[0], cohorts[0], rounds, 1.0)])[0]) * scene.radius(total)
    sigma = min(sigma, 1e6 * scene.problem.lipschitz)
    rest = 2 * scene.problem.user_deviation**2 / sizes[0] + scene.problem.dimension * sigma**2 / rounds
    return math.sqrt(2 * rest)


def steps_needed(problem: Problem, slope: float) -> int:
    """K + 1 with K = ⌈log₂ log₂(1/ρ)⌉ and a = Lρ, at most MOST_STEPS."""
    share = min(slope / problem.lipschitz, 0.25)
    return min(1 + math.ceil(math.log2(math.log2(1 / share))), MOST_STEPS)


def schedule(problem: Problem, strong_convexity: float, slope: float, steps: int) -> list[float]:
    """r_0, r_1, .. of remark 3.6: r_0 = min(R, 2L/μ_s), r_k = √(2 a r_{k-1} / μ_s)."""
    radii = [min(problem.radius, 2 * problem.lipschitz / strong_convexity)]
    for _ in range(steps - 1):
        radii.append(min(radii[-1], math.sqrt(2 * slope * radii[-1] / strong_convexity)))
    return radii


def _family(scene: Scene, sizes: list[int], cohorts: list[int], pulls: list[float], total: int, few: bool) -> Family:
    """All stages and step sizes for given users, cohorts, λ and rounds."""
    ridge = scene.problem.ridge
    spent = _split(total, [math.sqrt(1 + scene.beta / (pull + ridge)) for pull in pulls])
    steps = tuple(step for step in _steps(scene.strengths, scene.options.stages, few) if step.stages <= min(spent))
    return Family(tuple(map(Draft, sizes, cohorts, spent, pulls)), steps, scene.beta)


@lru_cache(maxsize=64)
def _steps(strengths: tuple[float, ...], stages: int | None, few: bool) -> tuple[Step, ...]:
    """All that a family may have."""
    kinds = [(stages, 1.0), (stages, 2.0)] if stages else SHAPES[:1] if few else SHAPES
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


def predicted(scene: Scene, family: Family, sigmas: Sequence[float]) -> Vector:
    """Predicted excess risk of each candidate with these noises of the phases, that of smoothing included; (K,)."""
    if not all(math.isfinite(sigma) for sigma in sigmas):
        return np.full(len(family.steps), np.inf)
    if scene.curvature is not None:
        return _isotropic(scene.problem, scene.curvature, family, sigmas)
    return _bounded(scene, family, sigmas) + scene.bias


def estimated(scene: Scene, tried: Sequence[Family]) -> list[Vector]:
    """`predicted` with estimated noise."""
    noisy = {(draft.users, draft.cohort, draft.rounds): draft for family in tried for draft in family.drafts}
    noise = dict(zip(noisy, scene.noise(list(noisy.values())).tolist(), strict=True)) if noisy else {}
    risks = []
    for family in tried:
        radius = scene.radius(sum(draft.rounds for draft in family.drafts))
        sigmas = [noise[draft.users, draft.cohort, draft.rounds] * radius for draft in family.drafts]
        risks.append(predicted(scene, family, sigmas))
    return risks


def step_variance(problem: Problem, phase: Draft, sigma: float) -> float:
    """E‖g - ∇F_i‖² of one step: privacy noise, and the cohort against the phase's users."""
    unseen = (phase.users - phase.cohort) / max(phase.users - 1, 1)
    return problem.dimension * sigma**2 + unseen * problem.user_deviation**2 / phase.cohort


def _isotropic(problem: Problem, curvature: float, family: Family, sigmas: Sequence[float]) -> Vector:
    remaining, spread = np.array(problem.radius), np.array(0.0)  # distance in the worst direction; all else, squared
    between = problem.beliefs.least_curvature or curvature, STEEPER * curvature
    for phase, sigma in zip(family.drafts, sigmas, strict=True):
        moved = _responses(phase.rounds, phase.pull, family.steps, family.beta, curvature, between)
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


def _bounded(scene: Scene, family: Family, sigmas: Sequence[float]) -> Vector:
    problem, strong = scene.problem, scene.strong_convexity
    steep, none = problem.lipschitz, np.zeros(len(family.steps))
    square, total, gap, pull = none + problem.radius**2, none, none, 1.0
    inner = scene.options.phases or (1 if strong is not None else len(family.drafts))
    for index, (phase, sigma) in enumerate(zip(family.drafts, sigmas, strict=True)):
        if index % inner == 0:  # a new step of the strongly convex schedule starts at an expected squared distance
            if index:
                square = np.minimum(square, 2 * (total + steep * np.sqrt(2 * gap / pull)) / (strong or 1.0))
            total, away = none, square
        else:
            away = 2 * gap / pull
        pull = phase.pull + problem.ridge
        total = total + phase.pull * away / 2 + 2 * problem.user_deviation**2 / (pull * phase.users)
        reach = problem.radius if index == 0 else 2 * problem.radius
        gap = _gap(phase, family, steep, away, reach, step_variance(problem, phase, sigma))
    # From the objective's minimiser to the model: by their distance, or by the objective's gap on a sample of users.
    sampled = phase.pull * away / 2 + 4 * problem.radius * problem.user_deviation / math.sqrt(phase.users)
    bounds: Vector = total + np.minimum(steep * np.sqrt(2 * gap / pull), gap + sampled)
    return bounds


def _gap(phase: Draft, family: Family, steep: float, away: Vector, reach: float, variance: float) -> Vector:
    """Expected gap of a phase's objective after its stages, shape (K,); the domain ends `reach` from its start."""
    strengths, smoothnesses = shapes(phase.pull, family.steps, family.beta)
    gap = steep * np.minimum(steep / (2 * strengths), reach)
    distance = np.minimum(steep / strengths, reach) ** 2
    for stage in lengths(phase.rounds, family.steps).T:
        bound = acsa.stage_bound(np.maximum(stage, 1), distance, variance, strengths, smoothnesses)
        gap = np.where((stage > 0) & (gap > 0), np.minimum(gap, bound), gap)
        distance = 2 * gap / strengths
    return np.asarray(gap)
