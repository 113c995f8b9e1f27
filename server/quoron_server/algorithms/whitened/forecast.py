"""What `whitened-tracking` leaves of the start's excess risk, by n, d and ε alone; it ranks plans, never sets noise.

A bound that holds in nine of ten problems, from tables (docs/privacy/whitened-tracking.md, "Forecast"): it is no
theorem. It is about a share of what there is to learn, which nobody knows before; a risk is that share of a guess.
"""

from quoron_server.problem import Problem

LEAST_RESOLUTION = 10.0  # ν = nμ_g / √d below which nothing is learnt
HALF, POWER = 20.0, 1.5
LOGISTIC_START = 0.1  # excess risk of the start, in nats
SLOPE_START = 0.05  # else, times s₀ and the largest label


def remaining(resolution: float) -> float:
    """The share of the start's excess risk that is left in nine of ten problems, at most."""
    return min(1.0, (HALF / resolution) ** POWER)


def starting_risk(problem: Problem) -> float:
    """What the start's excess risk is taken to be."""
    if problem.beliefs.sigmoid:
        return LOGISTIC_START
    return SLOPE_START * problem.start / (problem.feature_norm or 1.0) * (problem.beliefs.label_bound or 1.0)
