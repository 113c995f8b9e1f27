"""What Algorithms 1 and 3 of Lowy, Liu & Asi (2024) share: phases of ever fewer users.

    >>> [phase_users(1000, 0.5, phase) for phase in (1, 2, 3)]
    [207, 146, 103]

Source: "Faster Algorithms for User-Level Private Stochastic Convex Optimization", Algorithm 1, lines 2 and 4, and
Algorithm 3, lines 2 and 4. Logarithms are natural, but for the number of phases.
"""

import math

from quoron_server.problem import Problem


def phases_of(users: int) -> int:
    """l = ⌊log₂ n⌋."""
    return users.bit_length() - 1


def phase_users(users: int, shrink: float, phase: int) -> int:
    """n_i = (1 − 2⁻ᵠ) n / 2^{iq} of phase i, from 1, rounded down; `shrink` is q."""
    return math.floor(phase_share(shrink, phase) * users)


def phase_share(shrink: float, phase: int) -> float:
    """n_i / n."""
    return float((1 - 0.5**shrink) * 0.5 ** (phase * shrink))


def diameter(problem: Problem) -> float:
    """R of Assumption 1.1: ‖x − x'‖ <= R for all x, x' of the domain, which is symmetric about 0."""
    return 2 * problem.radius


def usual_void(problem: Problem, epsilon: float, *, smooth: bool) -> tuple[str, ...]:
    """What the paper assumes throughout (Assumptions 1.1 and 1.2, Theorems 2.1 and 3.1) and this problem is not."""
    found = []
    if not problem.convex:
        found.append("Assumption 1.1 fails: the losses are not convex.")
    if smooth and problem.smoothness is None:
        found.append("Assumption 1.2 fails: the losses are not smooth.")
    if epsilon > 10:
        found.append(f"Theorems 2.1 and 3.1 are about epsilon <= 10, and epsilon = {epsilon:g}.")
    return tuple(found)
