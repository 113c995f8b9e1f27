"""Predicted excess risk of accelerated steps with fresh users, from public facts; it ranks plans and never sets noise.

On a quadratic of one curvature the steps are linear, so the error of the model is a sum of responses: to the start
point and to the error of every gradient estimate. Where the curvature is unknown the proved bound ranks plans instead:
docs/privacy/local-model.md#r6.
"""

from functools import lru_cache

import numpy as np
from numba import njit
from numpy.typing import NDArray

from quoron_server.problem import Problem

Vector = NDArray[np.float64]


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
    return float(_response(beta, curvature, weights, path)), weights, path


@njit(cache=True)
def _response(beta, h, weights, path):  # type: ignore[no-untyped-def]
    steps = len(weights)
    x = a = 1.0
    for t in range(steps):
        share, length = 2 / (t + 2), (t + 1) / (2 * beta)
        path[t] = share * x + (1 - share) * a
        x -= length * h * path[t]
        a = share * x + (1 - share) * a
    to_x, to_a = 0.0, 1.0  # derivatives of a_T
    for t in range(steps - 1, -1, -1):
        share, length = 2 / (t + 2), (t + 1) / (2 * beta)
        through = to_x + share * to_a
        weights[t] = -length * through
        to_x = through * (1 - length * h * share)
        to_a = (1 - share) * (to_a - length * h * through)
    return a
