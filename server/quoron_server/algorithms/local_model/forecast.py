"""Predicted excess risk of accelerated steps with fresh users, from public facts; it ranks plans and never sets noise.

On a quadratic of one curvature the steps are linear, so the error of the model is a sum of responses: to the start
point and to the error of every gradient estimate. Where the curvature is unknown the proved bound ranks plans instead:
docs/privacy/local-model.md#r6.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.kernels.on_first_use import OnFirstUse
from quoron_server.problem import Problem

Vector = NDArray[np.float64]

loops = OnFirstUse("quoron_server.algorithms.local_model.forecast_loops")


def accelerated_risk(problem: Problem, steps: int, beta: float, smoothness: float, variances: Vector) -> float:
    """Predicted excess risk, exact for a quadratic of one curvature, else local-model#r6; variances of ĝ_t (T,)."""
    if (curvature := problem.beliefs.isotropic) is not None:
        bias, _, _ = response(steps, beta, problem.beliefs.least_curvature or curvature)
        _, weights, _ = response(steps, beta, curvature)
        slow = (problem.beliefs.least_curvature or curvature) * (bias * problem.radius) ** 2
        return float(slow + curvature * np.sum(weights**2 * variances)) / 2
    t = np.arange(1, steps + 1)
    local_noise = float(np.sum(t**2 * variances)) / (4 * (beta - smoothness))
    return (beta * problem.radius**2 + local_noise) / (steps * (steps + 1) / 2)


@lru_cache(maxsize=8192)
def response(steps: int, beta: float, curvature: float) -> tuple[float, Vector, Vector]:
    """Of accelerated steps on a quadratic: a_T per unit of start distance, per unit of error of each ĝ_t, and y_t."""
    weights, path = np.empty(steps), np.empty(steps)
    return float(loops.response(beta, curvature, weights, path)), weights, path
