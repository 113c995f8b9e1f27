"""Predicted course of chains of local SGD: how far chains end apart, and the excess risk of their noisy means.

    >>> averaging(1.0, 4, 4)  # without curvature the average of x_1 .. x_4 keeps the start; (1 + 4 + 9 + 16) / 16
    (1.0, 1.875)

A phase runs C chains of N users with m items each from one start: T = N m steps of size η on single items, of which the
iterates of the last `averaged` users are averaged. Two models, as in `prediction`:

* isotropic curvature known: bias and variance of a chain's average are exact for a quadratic; C chains average out.
  What no average removes: a chain that wanders feels the curvature change, and settles off the optimum (`_bend`).
* unknown: ‖x_0 - x*‖²/(2ηT) + ηL²/2 a phase, the distance after the first being the noise's.

How far two chains lie apart follows Theorem 7 of docs/privacy/outlier-iterates.md. Utility only: nothing here bears on
privacy.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from quoron_server.problem import Problem


@dataclass(frozen=True, slots=True)
class Stage:
    """One phase before its lengths are known."""

    users: int  # N: users of a chain, one after another
    averaged: int  # the last so many users' iterates are averaged
    step_size: float  # η
    noise_multiplier: float  # σ/τ
    chains: float  # honest chains that are counted on
    lost: float = 0.0  # share of chains that a hostile user may steer
    reach: float = 1.0  # κ: in units of τ, how far off such a chain may lie without being removed


@dataclass(frozen=True, slots=True)
class Course:
    """What a sequence of stages is predicted to do."""

    risk: float  # when outliers are removed
    worst: float  # when hostile chains stay as far off as they can without being removed; plans are ranked by it
    radii: tuple[float, ...]  # τ of every stage


BEND = 0.5  # the share of its size by which curvature changes over a unit of prediction: a third for logistic at norm 3


def averaging(factor: float, steps: int, suffix: int) -> tuple[float, float]:
    """Bias Σ_t w_t a^t and variance Σ_s (Σ_{t≥s} w_t a^(t-s))² of the mean of the last `suffix` of x_1 .. x_T.

    A step is x ↦ a x + noise of unit variance, 0 <= a <= 1. Closed forms of `prediction`'s sums: T may be millions.
    """
    gap = 1 - factor
    before = steps - suffix
    if gap * steps < 1e-4:  # too little contraction for the closed forms' differences, and for anybody to notice
        return 1.0, before + (suffix + 1) * (2 * suffix + 1) / (6 * suffix)
    if factor <= 0:
        return 0.0, 1 / suffix
    log = math.log(factor)

    def geometric(power: int, terms: int) -> float:  # 1 + b + … + b^(terms - 1), b = a^power
        return math.expm1(power * log * terms) / math.expm1(power * log)

    tail = geometric(1, suffix) / suffix  # weight of a step's noise that reaches the whole suffix
    bias = tail * math.exp(log * (before + 1))
    within = (suffix - 2 * factor * geometric(1, suffix) + factor**2 * geometric(2, suffix)) / (gap * suffix) ** 2
    return bias, within + tail**2 * factor**2 * (geometric(2, before) if before else 0.0)


def apart(steps: int, suffix: int) -> float:
    """√2 times the mean of √t over the averaged steps: two chains' root mean square distance in units of ηV."""
    first = steps - suffix + 1
    return math.sqrt(2) * (2 / 3) * (math.pow(steps + 1, 1.5) - math.pow(first, 1.5)) / suffix


def item_deviation(problem: Problem, squared_distance: float) -> float:
    """V at this squared distance from the optimum, with differences between users counted as if between items."""
    variance = problem.deviation**2
    if problem.typical_curvature is not None and problem.smoothness is not None:
        # E‖H_i e‖² <= β h ‖e‖²: items differ by their Hessians, too
        start = problem.lipschitz if problem.start_gradient is None else problem.start_gradient
        far = variance + problem.typical_curvature * problem.smoothness * squared_distance
        variance = min(far, max(variance, start**2))
    return math.sqrt(variance + problem.items_per_user * problem.heterogeneity**2)


def distance(problem: Problem, stage: Stage, deviation: float) -> float:
    """Root mean square distance of two honest chains' averages, an upper bound up to the model of the curvature."""
    steps, suffix = stage.users * problem.items_per_user, stage.averaged * problem.items_per_user
    length = stage.step_size * deviation * apart(steps, suffix)
    curvature = least_curvature(problem)
    if curvature is None:
        return length
    damped = averaging(max(0.0, 1 - stage.step_size * curvature), steps, suffix)[1]
    return length * math.sqrt(damped / averaging(1.0, steps, suffix)[1])


def least_curvature(problem: Problem) -> float | None:
    """The smallest eigenvalue of the expected Hessian where it is publicly known."""
    if problem.curvature != "isotropic":
        return None
    return problem.typical_curvature if problem.least_curvature is None else problem.least_curvature


def course(problem: Problem, stages: Sequence[Stage], radius: Callable[[Stage, float], float]) -> Course:
    """Risk and radii, phase by phase; `radius` gives τ from a stage and the deviation of items there."""
    return (_isotropic if problem.curvature == "isotropic" else _worst_case)(problem, stages, radius)


def _isotropic(problem: Problem, stages: Sequence[Stage], radius: Callable[[Stage, float], float]) -> Course:
    typical, slowest = problem.typical_curvature or 0.0, least_curvature(problem) or 0.0
    remaining, spread, bent, steered = problem.radius, 0.0, 0.0, 0.0
    radii = []
    for stage in stages:
        steps, suffix = stage.users * problem.items_per_user, stage.averaged * problem.items_per_user
        deviation = item_deviation(problem, remaining**2 + spread + bent**2)
        radii.append(radius(stage, deviation))
        decay, _ = averaging(max(0.0, 1 - stage.step_size * slowest), steps, suffix)
        bias, variance = averaging(max(0.0, 1 - stage.step_size * typical), steps, suffix)
        remaining *= decay
        bent = bias * bent + (1 - bias) * _bend(problem, stage.step_size * deviation, stage.step_size * typical, steps)
        steered = bias * steered + stage.lost * stage.reach * radii[-1]
        spread = bias**2 * spread + variance * (stage.step_size * deviation) ** 2 / stage.chains
        spread += problem.dimension * (stage.noise_multiplier * radii[-1]) ** 2
    risk = (slowest * remaining**2 + typical * (spread + bent**2)) / 2
    worst = (slowest * remaining**2 + typical * (spread + (bent + steered) ** 2)) / 2
    return Course(risk, worst, tuple(radii))


def _bend(problem: Problem, noise: float, contraction: float, steps: int) -> float:
    """Where chains settle off the optimum: ½ H⁻¹ ∇³F[v/d I], v their own mean square wandering after `steps`."""
    wandering = noise**2 * averaging(max(0.0, 1 - contraction), steps, 1)[1]
    feature_norm = 1.0 if problem.feature_norm is None else problem.feature_norm
    return BEND * feature_norm * wandering / (2 * math.sqrt(problem.dimension))


def _worst_case(problem: Problem, stages: Sequence[Stage], radius: Callable[[Stage, float], float]) -> Course:
    squared_distance, total, steered = problem.radius**2, 0.0, 0.0
    radii = []
    for stage in stages:
        radii.append(radius(stage, item_deviation(problem, 0.0)))
        steps = stage.averaged * problem.items_per_user
        total += squared_distance / (2 * stage.step_size * steps) + stage.step_size * problem.lipschitz**2 / 2
        squared_distance = problem.dimension * (stage.noise_multiplier * radii[-1]) ** 2
        steered += stage.lost * stage.reach * radii[-1]
    rough = problem.lipschitz * math.sqrt(squared_distance)
    last = rough if problem.smoothness is None else min(rough, problem.smoothness * squared_distance / 2)
    return Course(total + last, total + last + problem.lipschitz * steered, tuple(radii))
