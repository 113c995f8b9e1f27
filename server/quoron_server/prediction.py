"""Predicted excess risk of noisy averaged SGD, from public facts only; it ranks plans and never sets noise.

Two models, chosen by what is publicly known of the curvature:

* `isotropic`: near the optimum F is a quadratic with about one curvature h in every direction. Then the error of a
  public combination of the iterates is exact: a bias that decays as (1 - ηh)^t, with the least curvature for h to be
  careful, a variance from each step's noise, and the release noise. A phase starts where the one before it ended.
* `unknown`: the standard bound for convex β-smooth F and the uniform average, ‖x_0 - x*‖²/(2ηT) + ηV/2 a phase
  (Bubeck 2015, Theorem 6.3; Feldman, Koren & Talwar 2020, Lemma 4.3 for the localisation), plus βdσ²/2 for the last
  release. An upper bound, so usually far above what is measured.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from quoron_server.problem import Problem


@dataclass(frozen=True, slots=True)
class PhaseModel:
    """What a phase of SGD does to the error."""

    rounds: int  # T
    step_size: float  # η
    suffix: int  # the last `suffix` iterates are averaged uniformly, 1 <= suffix <= T
    step_variance: float  # total variance of one step's gradient estimate, E‖g - ∇F‖²
    release_scale: float = 0.0  # σ per coordinate, added to the average at the end


def excess_risk(problem: Problem, phases: Sequence[PhaseModel]) -> float:
    """Predicted E F(x) - F* after `phases`, in the units of the loss."""
    if problem.curvature == "isotropic" and problem.typical_curvature is not None:
        return _isotropic(problem, problem.typical_curvature, phases)
    return _worst_case(problem, phases)


def trivial_risk(problem: Problem) -> float:
    """Bound on the excess risk of the start point: what a plan has to beat to be worth running."""
    start = problem.lipschitz if problem.start_gradient is None else problem.start_gradient
    bound = start * problem.radius  # by convexity
    if problem.curvature == "isotropic" and problem.typical_curvature is not None:
        return min(bound, problem.typical_curvature * problem.radius**2 / 2)
    return bound


def statistical_floor(problem: Problem) -> float:
    """Excess risk that finitely many users leave to any method, approximately, when curvature is known; else 0."""
    if problem.typical_curvature is None:
        return 0.0
    return problem.user_deviation**2 / (2 * problem.users * problem.typical_curvature)


def _isotropic(problem: Problem, curvature: float, phases: Sequence[PhaseModel]) -> float:
    slowest = curvature if problem.least_curvature is None else problem.least_curvature
    remaining, spread = problem.radius, 0.0  # distance along the slowest direction; mean square of all noise so far
    for phase in phases:
        decay, _ = _averaging(1 - phase.step_size * slowest, phase.rounds, phase.suffix)
        bias, variance = _averaging(1 - phase.step_size * curvature, phase.rounds, phase.suffix)
        remaining *= decay
        spread = (
            bias**2 * spread
            + variance * phase.step_size**2 * phase.step_variance
            + problem.dimension * phase.release_scale**2
        )
    return (slowest * remaining**2 + curvature * spread) / 2


@lru_cache(maxsize=65536)
def _averaging(factor: float, rounds: int, suffix: int) -> tuple[float, float]:
    """Bias factor Σ_t w_t a^t and variance factor Σ_s (Σ_{t≥s} w_t a^(t-s))² of a suffix average of x_1 .. x_T."""
    powers = factor ** np.arange(rounds + 1)
    tails = np.cumsum(powers[:suffix]) / suffix  # weight of a step's noise that reaches j+1 averaged iterates
    first = rounds - suffix + 1  # steps up to here reach the whole suffix, decayed
    before = tails[-1] ** 2 * float(np.sum(powers[:first] ** 2))
    return float(np.sum(powers[first:]) / suffix), before + float(np.sum(tails[:-1] ** 2))


def _worst_case(problem: Problem, phases: Sequence[PhaseModel]) -> float:
    squared_distance, total = problem.radius**2, 0.0
    for phase in phases:
        optimisation = squared_distance / (2 * phase.step_size * phase.rounds)
        rough_steps = 0.0 if problem.beta is not None else problem.lipschitz**2
        total += optimisation + phase.step_size * (phase.step_variance + rough_steps) / 2
        squared_distance = problem.dimension * phase.release_scale**2
    smoothness = problem.beta if problem.beta is not None else 0.0
    rough = problem.lipschitz * math.sqrt(squared_distance)
    smooth = smoothness * squared_distance / 2
    return total + (min(rough, smooth) if problem.beta is not None else rough)
