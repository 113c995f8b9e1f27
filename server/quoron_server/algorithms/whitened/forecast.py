"""What `whitened-tracking` leaves of the start's excess risk, by n, d and ε alone; it ranks plans, never sets noise.

A bound that holds in nine of ten problems, from tables (docs/privacy/whitened-tracking.md, "Forecast"): it is no
theorem. It is about a share of what there is to learn; the risk is that share of the most that there can be.
"""

import math

from quoron_server.problem import Problem

LEAST_RESOLUTION = 10.0  # ν = nμ_g / √d below which nothing is learnt
USELESS, POWER = 25.0, 1.5  # ν up to which nothing may be learnt; how fast less is left above it


def remaining(resolution: float) -> float:
    """The share of the start's excess risk that is left in nine of ten problems, at most."""
    return min(1.0, math.pow(USELESS / resolution, POWER))


def starting_risk(problem: Problem) -> float:
    """The most that the start's excess risk can be: ln 2 of a logistic loss, else s₀ times half the largest label."""
    if problem.beliefs.sigmoid:
        return math.log(2)
    return 0.5 * problem.start / (problem.feature_norm or 1.0) * (problem.beliefs.label_bound or 1.0)
