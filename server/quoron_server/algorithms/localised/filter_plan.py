"""Choosing the numbers of filtered SGD: the distance between ordinary users, cohort size, phases, steps.

Everything here bears on utility alone; the guarantee is what `filtered_sgd.verify` certifies for the result.
"""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtri

from quoron_client.protocol.domains import Box
from quoron_privacy.errors import Infeasible, VerificationError
from quoron_privacy.noise.streams import total_variation
from quoron_privacy.robust.filter import outlier_filter as theorem
from quoron_privacy.robust.filter.concentration import LARGEST_COHORT, Norm, score_error
from quoron_privacy.robust.filter.paper_constants import paper_constants
from quoron_privacy.robust.filter.thresholds import LaplaceThreshold
from quoron_server.algorithms.averaged_sgd import excess_risk
from quoron_server.algorithms.forecast import trivial_risk
from quoron_server.algorithms.localised.filtering import FilteringParameters
from quoron_server.algorithms.localised.geometry import FAILURE, Geometry, against_mean, coordinatewise
from quoron_server.algorithms.localised.plan import (
    Schedule,
    SizedOptions,
    as_phases,
    best_schedule,
    cohorts,
    cost,
    printed_schedule,
    require_conditions,
    require_contraction,
    require_smooth,
)
from quoron_server.algorithms.search import round_grid
from quoron_server.plan import Guarantee, Plan, Privacy
from quoron_server.problem import Problem

Vector = NDArray[np.float64]

GRID_ERROR = 3e-4  # at least one step of the score grid for λ up to 300; more for small ε, where λ is larger
SMALLEST_EPSILON = 0.1  # the accountant's tables grow as 1/ε²
FEWEST_ROUNDS = 10  # with fewer steps SGD gets nowhere, so a plan would be pointless
RATIOS = (1.2, 1.35, 2.0, 4.0, 12.0)  # multiples of the smallest feasible cohort at which noise is calibrated
EDGES = (0.02, 0.2, 0.6, 1.0, 1.4, 2.0)  # step · smoothness at which the smallest feasible cohort is searched


@dataclass(frozen=True, slots=True)
class FilterOptions(SizedOptions):
    """Planning options."""

    distance: float | None = None  # typical distance of users' average gradients, from public knowledge
    norm: Norm | None = None  # that distances are measured in; linf needs a box and diagonally dominant Hessians


F = TypeVar("F")


@dataclass(frozen=True, slots=True)
class Choice(Generic[F]):
    """What the search found."""

    risk: float | None
    schedule: Schedule
    filter: F
    geometry: Geometry


def geometries(name: str, problem: Problem, options: FilterOptions) -> list[Geometry]:
    """The norms that are asked for, or all whose conditions hold. Raises Infeasible for `linf` where they do not."""
    found = []
    if options.norm != "linf":
        found.append(Geometry("l2", problem.beta or 0.0, options.distance or user_distance(problem), 1.0))
    if options.norm == "linf":
        found.append(coordinatewise(name, problem, options.distance))
    elif options.norm is None and options.distance is None:  # a distance that is given is one of ℓ2
        with suppress(Infeasible):
            found.append(coordinatewise(name, problem))
    return found


def user_distance(problem: Problem) -> float:
    """d such that ordinary users score at least B · exp(-τd): public knowledge, utility only.

    κ_i/B ≥ exp(-τ √(r_i² + v)), r_i user i's distance from the mean and v the mean square (Jensen). With known
    curvature r_i is taken to be that of a d-dimensional Gaussian, for all but about three of the n users; otherwise
    McDiarmid's inequality bounds it for every user at once, at several times the length.
    """
    spread, users = (
        math.hypot(_path_deviation(problem) / math.sqrt(problem.items_per_user), problem.beliefs.heterogeneity),
        problem.users,
    )
    if problem.beliefs.curvature == "isotropic":
        farthest = spread * math.sqrt(chdtri(problem.dimension, min(0.5, 3 / users)) / problem.dimension)
    else:
        items = math.sqrt(2 * math.log(3 * users / FAILURE) / problem.items_per_user)
        farthest = spread + problem.lipschitz * items
    return math.hypot(farthest, spread)


def _path_deviation(problem: Problem) -> float:
    """Item gradients' standard deviation anywhere between start and optimum: users differ by their Hessians, too."""
    start = problem.start
    if problem.beliefs.typical_curvature is None or problem.smoothness is None:
        return problem.deviation
    far = problem.beliefs.typical_curvature * problem.smoothness * problem.radius**2
    return min(math.sqrt(problem.deviation**2 + far), max(problem.deviation, start))


def most_score_error(cohort_size: int, dimension: int, epsilon: float) -> float:
    """The |computed κ - κ| that plans account for: arithmetic and the grid of the comparison."""
    return score_error(cohort_size, dimension) + GRID_ERROR * max(1.0, 1 / epsilon**2)


def sampler_slack(problem: Problem) -> float:
    """Total variation between the noise drawn and the ideal laws, over all rounds and the release.

    Of the hidden cutoff it is its centre · 2⁻⁹⁵ (`HiddenCutoff`), and a centre is smaller than a cohort.
    """
    return total_variation(gaussians=problem.dimension, laplaces=problem.users) + problem.users * 2.0**-95


def release_scale(filter_: Any, step: float, distance: float, dimension: int) -> float:
    """σ of one phase's release: the theorem's, with room for the release's grid and the iterates' rounding."""
    return float(filter_.noise_scale(step, distance)) * (1 + 1e-6 * math.sqrt(dimension))


def assembled(
    name: str,
    proof: str,
    parameters: Callable[..., Any],
    choice: Choice[Any],
    problem: Problem,
    privacy: Privacy,
    seed: int,
    *,
    proved: bool = True,
) -> Plan:
    """The plan of a choice; `proof` is the page of its theorem, `parameters` the class of a run's public numbers."""
    schedule, filter_, geometry = choice.schedule, choice.filter, choice.geometry
    return Plan(
        algorithm=name,
        problem=problem,
        guarantee=Guarantee(privacy.epsilon, privacy.delta, "replace-one", "model", (), proof, proved=proved),
        cost=cost(problem, schedule),
        parameters=parameters(
            cohort_size=schedule.cohort_size,
            phases=as_phases(schedule, filter_.sensitivity(1.0, geometry.length)),
            temperature=filter_.temperature(geometry.distance),
            distance=geometry.distance,
            norm=geometry.norm,
            filter=filter_,
        ),
        predicted_excess_risk=choice.risk,
        seed=seed,
    )


def check_phases(plan: Plan) -> None:
    """What outlier-filter#f1 and soft-filter#sf1 both need of the phases; VerificationError names what fails."""
    p = plan.parameters_of(FilteringParameters)
    require_smooth(plan.algorithm, plan.problem)
    require_contraction(plan)
    dimension, geometry = plan.problem.dimension, Geometry("l2", plan.problem.beta or 0.0, p.distance, 1.0)
    if p.norm == "linf":
        try:
            geometry = coordinatewise(plan.algorithm, plan.problem, p.distance)
        except Infeasible as error:
            raise VerificationError(f"Expected a problem for norm=linf, got one that is not: {error}") from error
    conditions = {
        "norm = l2 or linf": p.norm == geometry.norm,
        "filter.cohort_size = cohort_size": p.filter.cohort_size == p.cohort_size,
        "temperature = theta / distance": math.isclose(p.temperature, p.filter.theta / p.distance, rel_tol=1e-12),
        "eta_beta >= step_size * smoothness": all(f.step_size * geometry.beta <= p.filter.eta_beta for f in p.phases),
        "release_scale = noise_scale of the theorem": all(
            f.release_scale >= release_scale(p.filter, f.step_size, geometry.length, dimension) for f in p.phases
        ),
    }
    require_conditions(plan.algorithm, conditions)


def remarks(plan: Plan) -> tuple[str, ...]:
    """On a box, with its choice of norms: the noise beside a plain mean's, and the other norm's."""
    p = plan.parameters_of(FilteringParameters)
    if not (plan.guarantee.proved and isinstance(plan.problem.domain, Box)):
        return ()
    said = (against_mean(plan),)
    both = geometries(plan.algorithm, plan.problem, FilterOptions())
    if len(both) == 1:
        return said
    here, there = both[:: -1 if p.norm == "linf" else 1]
    if not math.isclose(p.distance, here.distance, rel_tol=1e-9):
        return said
    times = f"{there.length / here.length:.3g} times the noise"
    return (*said, f"Distances are measured in {p.norm}: in {there.norm} the same filter would have {times}.")


def search(
    name: str,
    problem: Problem,
    options: FilterOptions,
    smallest: Callable[[float], int],
    calibrate: Callable[[int, float], F],
) -> Choice[F]:
    """The schedule with the least predicted risk, and the filter calibrated for it.

    `smallest(eta_beta)` is the least feasible cohort, `calibrate(cohort, eta_beta)` the filter. Candidates are ranked
    by curves that are calibrated at a few points and interpolated; the winner is calibrated exactly. Infeasible if no
    cohort is large enough.
    """
    allowed = geometries(name, problem, options)
    edge_for = _edge_curve(smallest)
    noise = _noise_curve(smallest, calibrate, problem.dimension)

    grid = round_grid(4096, smallest=FEWEST_ROUNDS)
    tried = cohorts(name, problem, options, grid, most=LARGEST_COHORT)  # as far as scores can be added up exactly
    best: tuple[float, Schedule, Geometry] | None = None
    for geometry in allowed:

        def scale(sizes: Vector, first_steps: Vector, geometry: Geometry = geometry) -> Vector:
            steep = first_steps * geometry.beta
            ratios = sizes / edge_for(steep)
            return np.where((ratios >= 1) & (steep <= 2), geometry.length * noise(ratios) / sizes, np.inf)

        found = best_schedule(problem, tried, scale, rounds=options.rounds, step_size=options.step_size)
        if found is not None and math.isfinite(found[0]) and (best is None or found[0] < best[0]):
            best = (*found, geometry)
    if best is None:
        beta = allowed[0].beta
        gentlest = min(options.step_size * beta if options.step_size else EDGES[0], 2.0) if beta else 0.0
        raise _infeasible(name, problem, options, smallest(gentlest))
    _, schedule, geometry = best
    filter_ = calibrate(schedule.cohort_size, min(2.0, schedule.largest_step * geometry.beta * (1 + 1e-12)))
    schedule = schedule.scaled(lambda step: release_scale(filter_, step, geometry.length, problem.dimension))
    risk = excess_risk(problem, schedule.phases)
    if risk >= trivial_risk(problem):
        start = 20 * math.ceil(1.5 * smallest(1.0))
        raise Infeasible(
            name,
            f"with n={problem.users:,} the predicted excess risk {risk:.2g} is no better than not training",
            f"more users (n >= {start:,} is a sensible start)",
            users=start,
        )
    return Choice(risk, schedule, filter_, geometry)


def _edge_curve(smallest: Callable[[float], int]) -> Callable[[Vector], Vector]:
    """Smallest feasible cohort against step · smoothness, log-log interpolated from a few searches."""
    logs = np.log(EDGES), np.log([smallest(product) for product in EDGES])
    return lambda products: np.exp(np.interp(np.log(np.maximum(products, EDGES[0])), *logs))


def _noise_curve(
    smallest: Callable[[float], int], calibrate: Callable[[int, float], Any], dimension: int
) -> Callable[[Vector], Vector]:
    """Noise factor Ξ against cohort size over its smallest feasible value, log-log interpolated."""
    edge = smallest(1.0)
    known: dict[float, float] = {}
    for ratio in RATIOS:
        size = math.ceil(edge * ratio)
        with suppress(Infeasible):  # close to the edge, long phases would filter too many ordinary users
            known[ratio] = release_scale(calibrate(size, 1.0), 1.0, 1.0, dimension) * size
    if not known:
        return lambda ratios: np.full_like(ratios, np.inf)
    logs = np.log(list(known)), np.log(list(known.values()))
    return lambda ratios: np.where(ratios >= min(known), np.exp(np.interp(np.log(ratios), *logs)), np.inf)


def calibrated(
    name: str, problem: Problem, privacy: Privacy, options: FilterOptions
) -> Choice[theorem.FilterParameters]:
    """Constants from outlier-filter#f1."""
    slack = sampler_slack(problem)
    if privacy.epsilon < SMALLEST_EPSILON:
        raise Infeasible(
            name, f"epsilon={privacy.epsilon:g} is too small to tabulate", f"epsilon >= {SMALLEST_EPSILON}"
        )
    if (1 + math.exp(privacy.epsilon)) * slack >= privacy.delta:
        needs = "a smaller epsilon, fewer users or a larger delta"
        raise Infeasible(name, f"the noise of n={problem.users:,} decisions is not exact enough for delta", needs)

    def calibrate(cohort: int, eta_beta: float) -> theorem.FilterParameters:
        error = most_score_error(cohort, problem.dimension, privacy.epsilon)
        return theorem.calibrate(
            privacy.epsilon,
            privacy.delta,
            cohort,
            eta_beta,
            problem.users,
            score_error=error,
            delta_slack=slack,
        )

    def smallest(eta_beta: float) -> int:
        return theorem.smallest_cohort(privacy.epsilon, privacy.delta, eta_beta)

    return search(name, problem, options, smallest, calibrate)


def paper(name: str, problem: Problem, privacy: Privacy, options: FilterOptions) -> Choice[theorem.FilterParameters]:
    """Constants as printed, for comparison; no proof. Halving phases, the step a quarter in each, plain averages."""
    if options.norm == "linf":
        raise Infeasible(name, "its constants are printed for ℓ2 only", "norm='l2', or median-sgd for those of ℓ∞")
    printed = paper_constants(
        privacy.epsilon,
        privacy.delta,
        problem.users,
        problem.items_per_user,
        problem.dimension,
        problem.lipschitz,
    )
    risk, schedule = printed_schedule(name, problem, options, printed.cohort_size, printed.release_noise)
    size = schedule.cohort_size
    distance = options.distance or user_distance(problem)
    centre = round(printed.cutoff)
    filter_ = theorem.FilterParameters(
        cohort_size=size,
        decision_epsilon=1 / printed.cutoff_scale,
        laplace_scale=printed.laplace_scale,
        threshold=0.75 * size,
        cutoff_centre=centre,
        cutoff_lattice=1,
        own_tail=0.0,
        others_tail=0.0,
        eta_beta=schedule.largest_step * (problem.beta or 0.0),
        theta=printed.temperature * distance,
        noise_multiplier=printed.release_noise * printed.temperature * (size - 2 * centre + 2),
        score_error=score_error(size, problem.dimension) + LaplaceThreshold(printed.laplace_scale, 0.0).grid,
    )
    schedule = schedule.scaled(lambda step: release_scale(filter_, step, distance, problem.dimension))
    geometry = Geometry("l2", problem.beta or 0.0, distance, 1.0)
    return Choice(risk, schedule, filter_, geometry)


def _infeasible(name: str, problem: Problem, options: FilterOptions, edge: int) -> Infeasible:
    if options.cohort_size and options.cohort_size < edge:
        return Infeasible(
            name, f"cohort_size={options.cohort_size:,} is too small for the test", f"cohort_size >= {edge:,}"
        )
    least = math.ceil(RATIOS[0] * edge)
    if options.rounds:
        size = problem.users // options.rounds
        return Infeasible(
            name,
            f"n={problem.users:,} users fill {options.rounds:,} cohorts of {size:,}, and the test needs {least:,}",
            f"at most {problem.users // least:,} rounds, or n >= {options.rounds * least:,}",
            users=options.rounds * least,
        )
    return Infeasible.too_few(
        name,
        f"n={problem.users:,} users fill {problem.users // least} cohorts of {least:,}, the least that the test needs",
        FEWEST_ROUNDS * least,
        also=f" for {FEWEST_ROUNDS} rounds (better {20 * math.ceil(1.5 * edge):,})",
    )
