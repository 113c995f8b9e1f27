"""Predicted course of chains of local SGD: how far chains end apart, and the excess risk of their noisy means.

    >>> bias, variance = averaging(1.0, 4, np.array([1, 4]))  # without curvature any average keeps the start
    >>> bias.tolist(), variance.tolist()  # the last iterate has four units of noise, the mean (1 + 4 + 9 + 16) / 16
    ([1.0, 1.0], [4.0, 1.875])

A phase runs C chains of N users with m items each from one start: T = N m steps of size η on single items, of which the
iterates of the last `averaged` users are averaged. Two models, as in `prediction`:

* isotropic curvature known: bias and variance of a chain's average are exact for a quadratic; C chains average out.
  What no average removes: a chain that wanders feels the curvature change, and settles off the optimum (`_bend`).
* unknown: ‖x_0 - x*‖²/(2ηT) + ηL²/2 a phase, the distance after the first being the noise's.

How far two chains lie apart follows docs/privacy/outlier-iterates.md#o7. Utility only: nothing here bears on
privacy.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from quoron_server.algorithms.averaged_sgd import released_excess
from quoron_server.problem import Problem

Number = float | NDArray[np.float64]  # one, or one for each of many candidates: arrays that broadcast


@dataclass(frozen=True, slots=True)
class Stage:
    """One phase before its radius is known: numbers, or arrays with one for each candidate."""

    users: Number  # N: users of a chain, one after another
    averaged: Number  # the last so many users' iterates are averaged
    step_size: Number  # η
    noise_multiplier: Number  # σ/τ
    chains: Number  # honest chains that are counted on
    lost: Number = 0.0  # share of chains that a hostile user may steer
    reach: float = 1.0  # κ: in units of τ, how far off such a chain may lie without being removed


@dataclass(frozen=True, slots=True)
class Course:
    """What a sequence of stages is predicted to do."""

    risk: Number  # when outliers are removed
    worst: Number  # when hostile chains stay as far off as they can without being removed; plans are ranked by it
    radii: tuple[Number, ...]  # τ of every stage


Radius = Callable[[Stage, Number], Number]  # τ from a stage and the deviation of items there

BEND = 0.5  # the share of its size by which curvature changes over a unit of prediction: a third for logistic at norm 3


def averaging(factor: Number, steps: Number, suffix: Number) -> tuple[Number, Number]:
    """Bias Σ_t w_t a^t and variance Σ_s (Σ_{t≥s} w_t a^(t-s))² of the mean of the last `suffix` of x_1 .. x_T.

    A step is x ↦ a x + noise of unit variance, 0 <= a <= 1. Closed forms of `prediction`'s sums: T may be millions.
    """
    gap, before = 1 - np.asarray(factor, np.float64), steps - suffix
    slow = gap * steps < 1e-4  # too little contraction for the closed forms' differences, and for anybody to notice
    closed = ~slow & (gap < 1)
    a = np.where(closed, factor, 0.5)
    log = np.log(a)
    tail = _geometric(log, suffix) / suffix  # weight of a step's noise that reaches the whole suffix
    within = suffix - 2 * a * _geometric(log, suffix) + a**2 * _geometric(2 * log, suffix)
    variance = within / ((1 - a) * suffix) ** 2 + tail**2 * a**2 * _geometric(2 * log, before)
    bias = tail * np.exp(log * (before + 1))
    return (
        np.where(closed, bias, np.where(slow, 1.0, 0.0)),
        np.where(closed, variance, np.where(slow, _still(steps, suffix), 1 / suffix)),
    )


def _geometric(log: Number, terms: Number) -> Number:
    """1 + b + … + b^(terms - 1) for b = e^log < 1."""
    ratio: Number = np.expm1(log * terms) / np.expm1(log)
    return ratio


def _still(steps: Number, suffix: Number) -> Number:
    """Variance of `averaging` without contraction."""
    return steps - suffix + (suffix + 1) * (2 * suffix + 1) / (6 * suffix)


def apart(steps: Number, suffix: Number) -> Number:
    """√2 times the mean of √t over the averaged steps: two chains' root mean square distance in units of ηV."""
    first = steps - suffix + 1
    return math.sqrt(2) * (2 / 3) * ((steps + 1) ** 1.5 - first**1.5) / suffix


def item_deviation(problem: Problem, squared_distance: Number) -> Number:
    """V at this squared distance from the optimum, with differences between users counted as if between items."""
    variance: Number = problem.deviation**2
    if problem.beliefs.typical_curvature is not None and problem.smoothness is not None:
        # E‖H_i e‖² <= β h ‖e‖²: items differ by their Hessians, too
        start = problem.start
        far = variance + problem.beliefs.typical_curvature * problem.smoothness * squared_distance
        variance = np.minimum(far, np.maximum(variance, start**2))
    deviation: Number = np.sqrt(variance + problem.items_per_user * problem.beliefs.heterogeneity**2)
    return deviation


def distance(problem: Problem, stage: Stage, deviation: Number) -> Number:
    """Root mean square distance of two honest chains' averages, an upper bound up to the model of the curvature."""
    steps, suffix = stage.users * problem.items_per_user, stage.averaged * problem.items_per_user
    length = stage.step_size * deviation * apart(steps, suffix)
    curvature = least_curvature(problem)
    if curvature is None:
        return length
    damped = averaging(np.maximum(0.0, 1 - stage.step_size * curvature), steps, suffix)[1]
    shorter: Number = length * np.sqrt(damped / _still(steps, suffix))
    return shorter


def least_curvature(problem: Problem) -> float | None:
    """The smallest eigenvalue of the expected Hessian where it is publicly known."""
    known = problem.beliefs
    return known.isotropic if known.isotropic is None or known.least_curvature is None else known.least_curvature


def course(problem: Problem, stages: Sequence[Stage], radius: Radius) -> Course:
    """Risk and radii, phase by phase, of one candidate or many."""
    return (_isotropic if problem.beliefs.curvature == "isotropic" else _worst_case)(problem, stages, radius)


def _isotropic(problem: Problem, stages: Sequence[Stage], radius: Radius) -> Course:
    typical, slowest = problem.beliefs.typical_curvature or 0.0, least_curvature(problem) or 0.0
    remaining: Number = problem.radius
    spread: Number = 0.0
    bent: Number = 0.0
    steered: Number = 0.0
    radii = []
    for stage in stages:
        steps, suffix = stage.users * problem.items_per_user, stage.averaged * problem.items_per_user
        deviation = item_deviation(problem, remaining**2 + spread + bent**2)
        radii.append(radius(stage, deviation))
        decay, _ = averaging(np.maximum(0.0, 1 - stage.step_size * slowest), steps, suffix)
        bias, variance = averaging(np.maximum(0.0, 1 - stage.step_size * typical), steps, suffix)
        remaining = remaining * decay
        bent = bias * bent + (1 - bias) * _bend(problem, stage.step_size * deviation, stage.step_size * typical, steps)
        steered = bias * steered + stage.lost * stage.reach * radii[-1]
        spread = bias**2 * spread + variance * (stage.step_size * deviation) ** 2 / stage.chains
        spread = spread + problem.dimension * (stage.noise_multiplier * radii[-1]) ** 2
    risk = (slowest * remaining**2 + typical * (spread + bent**2)) / 2
    worst = (slowest * remaining**2 + typical * (spread + (bent + steered) ** 2)) / 2
    return Course(risk, worst, tuple(radii))


def _bend(problem: Problem, noise: Number, contraction: Number, steps: Number) -> Number:
    """Where chains settle off the optimum: ½ H⁻¹ ∇³F[v/d I], v their own mean square wandering after `steps`."""
    wandering = noise**2 * averaging(np.maximum(0.0, 1 - contraction), steps, 1)[1]
    feature_norm = 1.0 if problem.feature_norm is None else problem.feature_norm
    return BEND * feature_norm * wandering / (2 * math.sqrt(problem.dimension))


def _worst_case(problem: Problem, stages: Sequence[Stage], radius: Radius) -> Course:
    squared_distance: Number = problem.radius**2
    total: Number = 0.0
    steered: Number = 0.0
    radii = []
    for stage in stages:
        radii.append(radius(stage, item_deviation(problem, 0.0)))
        steps = stage.averaged * problem.items_per_user
        total = total + squared_distance / (2 * stage.step_size * steps) + stage.step_size * problem.lipschitz**2 / 2
        squared_distance = problem.dimension * (stage.noise_multiplier * radii[-1]) ** 2
        steered = steered + stage.lost * stage.reach * radii[-1]
    items = replace(problem, user_smoothness=None)  # steps are of single items: β is theirs
    last = released_excess(items, stages[-1].noise_multiplier * radii[-1])
    return Course(total + last, total + last + problem.lipschitz * steered, tuple(radii))
