"""The two norms that localised SGD may measure users' answers in, and what a theorem needs of problem and plan in each.

ℓ2: any closed convex domain, convex β-smooth losses. ℓ∞: a box, and losses whose Hessians are diagonally dominant, with
row sums of at most β∞. Every step of the theorems uses the triangle inequality, a bound on how far users' gradients
move, and steps and projections that bring no two points farther apart; all hold in both (docs/privacy/linf-filter.md).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from quoron_privacy.accounts import gdp
from quoron_privacy.errors import Infeasible, VerificationError
from quoron_privacy.robust.filter.concentration import Norm, recounted_error
from quoron_server.algorithms import checks
from quoron_server.algorithms.averaged_sgd import excess_risk
from quoron_server.algorithms.info import Chosen
from quoron_server.algorithms.localised.filtering import Filter
from quoron_server.algorithms.localised.method import LocalisedParameters, in_phases
from quoron_server.algorithms.localised.plan import (
    Schedule,
    as_phases,
    require_conditions,
    require_contraction,
)
from quoron_server.plan import RunPlan
from quoron_server.problem import Problem

FAILURE = 1e-2  # probability that a proved distance leaves out some ordinary user


@dataclass(frozen=True, slots=True)
class Geometry:
    """A norm, and a problem's public numbers in it."""

    norm: Norm
    beta: float  # of every user's average gradient, as a map of this norm into itself
    distance: float  # d: ordinary users' average gradients lie so far apart, in this norm; utility only
    stretch: float  # the largest ℓ2 length of a vector of length 1

    @property
    def length(self) -> float:
        """The ℓ2 length that noise is scaled to."""
        return self.distance * self.stretch


def coordinatewise(name: str, problem: Problem, distance: float | None = None) -> Geometry:
    """ℓ∞, with the distance that is given or proved. Raises Infeasible where its conditions are not certain."""
    checks.require_box(name, problem)
    beta = problem.coordinate_beta
    assert beta is not None
    return Geometry("linf", beta, distance or coordinate_distance(problem), math.sqrt(problem.dimension))


def coordinate_distance(problem: Problem) -> float:
    """d∞ such that all ordinary users lie within it of one another, but for a chance of FAILURE: utility only.

    Hoeffding's inequality for every coordinate of every user: |q_j - E q_j| <= G∞ √(2 ln(2dn/FAILURE)/m).
    """
    likely = math.log(2 * problem.dimension * problem.users / FAILURE)
    items = problem.coordinate_bound * math.sqrt(2 * likely / problem.items_per_user)
    return 2 * min(items + problem.beliefs.heterogeneity, problem.coordinate_bound)


def against_mean(plan: RunPlan) -> tuple[str, ...]:
    """The first release's noise beside that of a plain mean of the same cohorts and steps, and where they would meet.

    The plain mean's shift is 2Gη/B (phased-sgd); the other's is in proportion to 1/√m while users are alike.
    """
    p, promise, items = in_phases(plan), plan.guarantee, plan.problem.items_per_user
    mean = 2 * plan.problem.lipschitz / p.cohort_size / gdp.mu_for(promise.epsilon, promise.delta)
    times = p.phases[0].release_scale / (p.phases[0].step_size * mean)
    said = f"The release has {times:.3g} times the noise of a plain mean of as large cohorts (phased-sgd)"
    return (
        f"{said}; the two meet at about m = {max(1.0, items * times**2):.2g} items a user, and m = {items:,} here.",
    )


def release_scale(filter_: Filter, step: float, length: float, dimension: int) -> float:
    """σ of one phase's release: the theorem's, with room for the release's grid and the iterates' rounding."""
    return filter_.noise_scale(step, length) * (1 + 1e-6 * math.sqrt(dimension))


def behind_filter(
    kind: Callable[..., LocalisedParameters],
    problem: Problem,
    schedule: Schedule,
    filter_: Filter,
    geometry: Geometry,
    **own: Any,
) -> Chosen:
    """A schedule with the filter's noise, as `kind` of parameters, `own` ones too."""
    length = geometry.length
    schedule = schedule.scaled(lambda step: release_scale(filter_, step, length, problem.dimension))
    numbers = kind(
        cohort_size=schedule.cohort_size,
        phases=as_phases(schedule, filter_.sensitivity(1.0, length)),
        temperature=filter_.temperature(geometry.distance),
        distance=geometry.distance,
        **own,
    )
    return Chosen(numbers, excess_risk(problem, schedule.phases))


def require_of_phases(
    plan: RunPlan,
    filter_: Filter,
    norm: str,
    distance: float,
    temperature: float,
    weight: float,
    rounding: float = 0.0,
) -> None:
    """What the theorems about filters and tests need of the phases behind them; VerificationError names what fails.

    `distance` and `temperature` are the plan's, in its `norm`. σ is that of s where an estimate's total weight is
    `weight` at least, or 1 where the theorem has none; `rounding` is what a score is off beside the arithmetic of κ.
    """
    checks.require_smooth(plan.algorithm, plan.problem)
    require_contraction(plan)
    p, dimension, geometry = in_phases(plan), plan.problem.dimension, _measured_in(plan, norm, distance)
    error = recounted_error(p.cohort_size, dimension) + rounding
    length = distance * math.sqrt(dimension) if norm == "linf" else distance  # in ℓ2
    scale = filter_.noise_multiplier * length / (filter_.theta * weight)  # of a step of 1, and room for two grids
    scale += scale * 0.999e-6 * math.sqrt(dimension)
    conditions = {
        "norm = l2 or linf": norm == geometry.norm,
        "the filter's cohort_size = cohort_size": filter_.cohort_size == p.cohort_size,
        "temperature = theta / distance": math.isclose(temperature, filter_.theta / distance, rel_tol=1e-12),
        "eta_beta >= step_size * smoothness": all(f.step_size * geometry.beta <= filter_.eta_beta for f in p.phases),
        f"score_error >= {error}, that of rounding": filter_.score_error >= error,
        "release_scale = noise_scale of the theorem": all(f.release_scale >= f.step_size * scale for f in p.phases),
    }
    require_conditions(plan.algorithm, conditions)


def _measured_in(plan: RunPlan, norm: str, distance: float) -> Geometry:
    if norm == "l2":
        return Geometry("l2", plan.problem.beta or 0.0, distance, 1.0)
    try:
        return coordinatewise(plan.algorithm, plan.problem, distance)
    except Infeasible as error:
        raise VerificationError(f"Expected a problem for norm=linf, got one that is not: {error}") from error
