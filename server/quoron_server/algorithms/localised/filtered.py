"""Localised SGD with a noisy-threshold outlier filter, planned: Ghazi, Kumar, Liu & Manurangsi, Algorithms 1 and 2.

In every round user i of the cohort is kept when κ_i + Lap(λ) > F, κ_i its concentration score; the step uses the mean
of the kept. A phase halts, and releases nothing new, when the users filtered in it reach a hidden random cutoff.
Otherwise a public average of its iterates is released with Gaussian noise whose scale rests on the concentration of
user averages (1/√m), not on the worst gradient. Gradients are not clipped: contraction needs true gradients of convex
smooth losses. The numbers that a plan chooses bear on utility alone.

Repaired with docs/privacy/outlier-filter.md#f1: integer cutoff apart from λ, halting that does not show when, projected
releases, explicit constants. As printed: `printed.ghazi.Filter`.
"""

import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from scipy.special import chdtri

from quoron_client.protocol.questions import Answers
from quoron_privacy.arrays import Vector
from quoron_privacy.errors import Infeasible, Needs
from quoron_privacy.noise.streams import NoiseSource, total_variation
from quoron_privacy.robust.filter import concentration
from quoron_privacy.robust.filter import outlier_filter as theorem
from quoron_privacy.robust.filter.concentration import LARGEST_COHORT, score_error, score_summary
from quoron_privacy.robust.filter.outlier_filter import FilterParameters
from quoron_privacy.robust.filter.thresholds import HiddenCutoff, LaplaceThreshold
from quoron_server.algorithms import search
from quoron_server.algorithms.averaged_sgd import item_deviation
from quoron_server.algorithms.descent import Estimate
from quoron_server.algorithms.localised.phased import (
    FAILURE,
    LocalisedParameters,
    LocalisedSGD,
    LocalisedState,
    Phase,
    Schedule,
    SizedOptions,
    behind_filter,
    best_schedule,
    cohorts,
    release_scale,
    require_of_phases,
)
from quoron_server.algorithms.printed import ghazi
from quoron_server.algorithms.references import GHAZI_2026, repaired
from quoron_server.algorithms.search import Candidate, PlanInputs, Planner, round_grid
from quoron_server.algorithms.spec import (
    ITERATES,
    UNMEASURED,
    AlgorithmSpec,
    Calibrated,
    Guarantees,
    Policy,
    trivial_risk,
)
from quoron_server.plan import RunPlan
from quoron_server.problem import Problem

FEWEST_ROUNDS = 10  # with fewer steps SGD gets nowhere, so a plan would be pointless
RATIOS = (1.2, 1.35, 2.0, 4.0, 12.0, 40.0)  # multiples of the smallest feasible cohort at which noise is calibrated
STEEP_RATIOS = (1.2, 1.4, 2.0)  # and at which what curvature adds to it is
FREE_RATIO = 4.0  # from here on curvature is taken to add nothing
EDGES = (0.02, 0.2, 0.6, 1.0, 1.4, 2.0)  # step · smoothness at which the smallest feasible cohort is searched


NAME = "filtered-sgd"
GRID_ERROR = 3e-4  # at least one step of the score grid for λ up to 300; more for small ε, where λ is larger
SMALLEST_EPSILON = 0.1  # the accountant's tables grow as 1/ε²


@dataclass(frozen=True, slots=True)
class FilteredParameters(LocalisedParameters):
    """Public numbers of one run."""

    temperature: float  # τ, an inverse length
    distance: float  # d: how far apart ordinary users' average gradients are taken to lie
    filter: FilterParameters

    def mechanism(self, phase: Phase) -> object:
        """Return the filter, which every phase has."""
        return self.filter


@dataclass(frozen=True, slots=True)
class FilterOptions(SizedOptions):
    """Planning options."""

    distance: float | None = None  # typical distance of users' average gradients, from public knowledge


@dataclass(frozen=True, slots=True)
class _Inputs(PlanInputs[FilterOptions]):
    """What a plan is made from."""

    def calibrate(self, cohort: int, eta_beta: float) -> theorem.FilterParameters:
        """Return the filter of cohorts of this size at steps up to this one; Infeasible."""
        problem, epsilon, delta = self.problem, self.privacy.epsilon, self.privacy.delta
        error = score_error(cohort, problem.dimension) + GRID_ERROR * max(1.0, 1 / epsilon**2)
        slack = sampler_slack(problem)
        return theorem.calibrate(epsilon, delta, cohort, eta_beta, problem.users, score_error=error, delta_slack=slack)

    @property
    def distance(self) -> float:
        """d."""
        return self.options.distance or user_distance(self.problem)

    def smallest(self, eta_beta: float) -> int:
        """Return the least cohort that has a filter at such steps."""
        return theorem.smallest_cohort(self.privacy.epsilon, self.privacy.delta, eta_beta)


def user_distance(problem: Problem) -> float:
    """d such that ordinary users score at least B · exp(-τd): public knowledge, utility only.

    κ_i/B ≥ exp(-τ √(r_i² + v)), r_i user i's distance from the mean and v the mean square (Jensen). With known
    curvature r_i is taken to be that of a d-dimensional Gaussian, for all but about three of the n users; otherwise
    McDiarmid's inequality bounds it for every user at once, at several times the length.
    """
    users = problem.users
    spread = float(item_deviation(problem, problem.radius**2)) / math.sqrt(problem.items_per_user)
    if problem.beliefs.curvature == "isotropic":
        farthest = spread * math.sqrt(chdtri(problem.dimension, min(0.5, 3 / users)) / problem.dimension)
    else:
        items = math.sqrt(2 * math.log(3 * users / FAILURE) / problem.items_per_user)
        farthest = spread + problem.lipschitz * items
    return min(math.hypot(farthest, spread), 2 * problem.lipschitz)  # no two are farther apart


def sampler_slack(problem: Problem) -> float:
    """Total variation between the noise drawn and the ideal laws, over all rounds and the release.

    Of the hidden cutoff it is its centre · 2⁻⁹⁵ (`HiddenCutoff`), and a centre is smaller than a cohort.
    """
    return total_variation(gaussians=problem.dimension, laplaces=problem.users) + problem.users * 2.0**-95


def _edge_curve(smallest: Callable[[float], int]) -> Callable[[Vector], Vector]:
    """Smallest feasible cohort against step · smoothness, log-log interpolated from a few searches."""
    logs = np.log(EDGES), np.log([smallest(product) for product in EDGES])
    return lambda products: np.exp(np.interp(np.log(np.maximum(products, EDGES[0])), *logs))


def _noise_curve(
    smallest: Callable[[float], int],
    calibrate: Callable[[int, float], FilterParameters],
    dimension: int,
    longest: float,
) -> Callable[[Vector, Vector], Vector]:
    """Noise factor Ξ of cohort sizes and of their ratios to the smallest feasible one at their step, interpolated.

    Ξ without curvature, of the size alone, times what curvature adds, of the ratio alone: it is calibrated for few, at
    the `longest` step · smoothness.
    """

    def curve(product: float, tried: Iterable[float]) -> tuple[Vector, Vector]:
        """(sizes, logarithms of Ξ) at multiples of the smallest size that is feasible at this step · smoothness."""
        edge, known = smallest(max(product, EDGES[0])), []
        for ratio in tried:
            size = math.ceil(edge * ratio)
            with suppress(Infeasible):  # close to the edge, long phases would filter too many ordinary users
                noise = release_scale(calibrate(size, product), 1.0, 1.0, dimension) * size
                known.append((size, math.log(noise)))
        sizes, logs = np.array(known, np.float64).reshape(-1, 2).T
        return sizes, logs

    sizes, logs = curve(0.0, RATIOS)
    edge = smallest(EDGES[0])

    def level(tried: Vector) -> Vector:
        if not len(sizes):
            return np.full_like(tried, np.inf)
        return np.where(tried >= sizes[0], np.interp(_beyond(tried / edge), _beyond(sizes / edge), logs), np.inf)

    if not longest:
        return lambda tried, _: np.exp(level(tried))
    steep, own = curve(longest, STEEP_RATIOS)
    ratios, added = np.append(steep / smallest(longest), FREE_RATIO), np.append(own - level(steep), 0.0)
    return lambda tried, near: np.where(
        near >= ratios[0], np.exp(level(tried) + np.interp(_beyond(near), _beyond(ratios), added)), np.inf
    )


def _beyond(ratios: Vector) -> Vector:
    """Return where interpolation is good: noise has its pole about at the edge."""
    return np.log(np.maximum(ratios, 1.0) - 0.95)


def _missing(inputs: _Inputs) -> Infeasible:
    problem, options, beta = inputs.problem, inputs.options, inputs.problem.beta or 0.0
    edge = inputs.smallest(min(options.step_size * beta if options.step_size else EDGES[0], 2.0) if beta else 0.0)
    if options.cohort_size and options.cohort_size < edge:
        return Infeasible(
            NAME, f"cohort_size={options.cohort_size:,} is too small for the test", f"cohort_size >= {edge:,}"
        )
    least = math.ceil(RATIOS[0] * edge)
    if options.rounds:
        size, fewer, enough = problem.users // options.rounds, problem.users // least, options.rounds * least
        return Infeasible(
            NAME,
            f"n={problem.users:,} users fill {options.rounds:,} cohorts of {size:,}, and the test needs {least:,}",
            Needs(f"at most {fewer:,} rounds, or n >= {enough:,}", enough, rounds=fewer),
        )
    return Infeasible.too_few(
        NAME,
        f"n={problem.users:,} users fill {problem.users // least} cohorts of {least:,}, the least that the test needs",
        FEWEST_ROUNDS * least,
    )


class OutlierFilter(LocalisedSGD[FilteredParameters]):
    """The rule of Algorithm 2: noisy threshold on the concentration score, mean of the kept, hidden cutoff."""

    kind = FilteredParameters

    def __init__(self, plan: RunPlan) -> None:
        super().__init__(plan)
        numbers = self.parameters.filter
        self.cutoff = HiddenCutoff(numbers.cutoff_centre, numbers.cutoff_decay)
        self.test = LaplaceThreshold(numbers.laplace_scale, numbers.threshold)

    def estimate(self, state: LocalisedState, answers: Answers, noise: NoiseSource) -> Estimate:
        """Return the mean of the kept users; a user without an answer is isolated and counts as filtered."""
        limits = self.test.limits(len(answers.status), noise.stream("filter", state.round))
        tau, step = self.parameters.temperature, self.test.grid
        decided = concentration.decide(answers.values, answers.answered, tau, limits, step=step)
        filtered = len(decided.kept) - int(decided.kept.sum())
        diagnostics = {"filtered": filtered, "undecided": decided.undecided, "threshold": self.test.threshold}
        diagnostics |= score_summary(decided.score_bounds)
        gradient, tally = concentration.filtered_mean(answers.values, decided.kept), state.tally + filtered
        return Estimate(gradient, diagnostics=diagnostics, remembered={"tally": tally})

    def passes(self, tally: float, noise: NoiseSource, phase: int) -> bool:
        """Return whether fewer users were filtered than the phase's hidden cutoff."""
        return tally < self.cutoff.draw(noise.stream("cutoff", phase))


def _check(inputs: _Inputs) -> None:
    """Raise Infeasible for losses that are not convex and smooth, and where the accountant has no table or no δ."""
    search.require_smooth(NAME, inputs.problem)
    epsilon = inputs.privacy.epsilon
    if epsilon < SMALLEST_EPSILON:
        enough = Needs(f"epsilon >= {SMALLEST_EPSILON:g}", epsilon=SMALLEST_EPSILON)
        raise Infeasible(NAME, f"epsilon={epsilon:g} is too small to tabulate", enough)
    if (1 + math.exp(epsilon)) * sampler_slack(inputs.problem) >= inputs.privacy.delta:
        needs = "a smaller epsilon, fewer users or a larger delta"
        users = inputs.problem.users
        raise Infeasible(NAME, f"the noise of n={users:,} decisions is not exact enough for delta", needs)


def _candidates(inputs: _Inputs) -> list[Candidate[Schedule]]:
    """Return the least risk, by curves that are calibrated at a few points and interpolated."""
    problem, options, beta = inputs.problem, inputs.options, inputs.problem.beta or 0.0
    grid, least = round_grid(4096, smallest=FEWEST_ROUNDS), math.ceil(RATIOS[0] * inputs.smallest(EDGES[0]))
    tried = cohorts(inputs, grid, least=least, most=LARGEST_COHORT)  # as far as scores can be added up exactly
    if not tried:
        return []
    edge_for = _edge_curve(inputs.smallest)
    longest = (2.0 if problem.beliefs.curvature == "isotropic" else 1.0) if beta else 0.0  # of `step_grid`
    noise = _noise_curve(inputs.smallest, inputs.calibrate, problem.dimension, longest)

    def scale(sizes: Vector, first_steps: Vector) -> Vector:
        steep = first_steps * beta
        edges = edge_for(steep)
        near = np.where(edges > edge_for(np.zeros(1)), sizes / edges, np.inf)  # of an edge that curvature moves
        possible = (sizes >= edges) & (steep <= 2)
        return np.where(possible, inputs.distance * noise(sizes, near) / sizes, np.inf)

    found = best_schedule(problem, tried, scale, rounds=options.rounds, step_size=options.step_size)
    return [candidate for candidate in found if math.isfinite(candidate.risk)]


def _chosen(inputs: _Inputs, found: Candidate[Schedule]) -> Calibrated:
    schedule, beta = found.of, inputs.problem.beta or 0.0
    filter_ = inputs.calibrate(schedule.cohort_size, min(2.0, schedule.largest_step * beta * (1 + 1e-12)))
    return behind_filter(FilteredParameters, inputs.problem, schedule, filter_, inputs.distance, filter=filter_)


def verify(plan: RunPlan) -> None:
    """outlier-filter#f1 for every phase at the plan's numbers, independently of how they were found."""
    p, guarantee = plan.parameters_of(FilteredParameters), plan.guarantee
    weight = p.filter.cohort_size - 2 * p.filter.cutoff_centre + 2  # N + 1
    grid = p.filter.laplace_scale * 2.0**-20
    require_of_phases(plan, p.filter, plan.problem.beta or 0.0, p.distance, p.temperature, weight, grid)
    users = plan.problem.users
    slack = search.lacks(gaussians=plan.problem.dimension, laplaces=users) + math.ldexp(users, -95)
    theorem.verify(p.filter, guarantee.epsilon, guarantee.delta, delta_slack=slack)


SPEC = AlgorithmSpec(
    name=NAME,
    summary="Phased SGD with a private concentration test and outlier removal; noise falls as 1/√m",
    origin=repaired(
        GHAZI_2026.at("Algorithms 1 and 2"), note="noise apart from the cutoff, an integer; a halt does not say when"
    ),
    guarantees=Guarantees(
        "docs/privacy/outlier-filter.md",
        trust_models=("central-release",),
        one_server="its filter looks at single answers: take tracking-srgd",
    ),
    options=FilterOptions,
    parameters=FilteredParameters,
    planner=Planner(NAME, _candidates, _chosen, _missing, trivial_risk, near=1.0, inputs=_Inputs, check=_check),
    printed=ghazi.FILTER_AS_PRINTED,
    verifier=verify,
    maker=OutlierFilter,
    factor=UNMEASURED,  # no table has users enough
    no_black_boxes=ITERATES,
    policy=Policy(removes_outliers=True),
)
