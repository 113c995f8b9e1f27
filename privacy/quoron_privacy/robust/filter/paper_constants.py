"""The constants as printed in Ghazi et al., Algorithms 1 and 2. They carry no proof; for comparison only.

Why not: with them the event E₂ of the paper's Lemma 10 fails (hundreds of expected violators in a cohort), σ depends on
the random cutoff, and the constants of the shift are left open. See docs/privacy/outlier-filter.md, "The paper's line".
"""

import math
from dataclasses import dataclass

from quoron_privacy.errors import count, positive, probability


@dataclass(frozen=True, slots=True)
class PaperConstants:
    """Algorithm 2 as printed, natural logarithms; `release_noise` fills an O(·) by the paper's own proof."""

    cohort_size: int  # B = 300 log²(nm/δ) / ε^1.5, from E₂ and κ ≥ 3B/5
    cutoff: float  # c = 10 log(nm/δ) / ε; the run adds Lap(4/ε)
    cutoff_scale: float  # 4/ε
    laplace_scale: float  # 2σ, σ = 4 √(32 ĉ log(1/δ)) / ε, at ĉ = c
    threshold: float  # F = 3B/4
    temperature: float  # τ = √m / (20 G log(nmd))
    release_noise: float  # σ_s/η: distance 104/τ, half the cohort kept, classical Gaussian at (ε/2, δ/2)
    proved: bool = False


def paper_constants(
    epsilon: float, delta: float, users: int, items: int, dimension: int, lipschitz: float
) -> PaperConstants:
    """The printed constants for n `users` of m `items`; unproved, and formally meant for ε ≤ 1 only."""
    positive(epsilon=epsilon, lipschitz=lipschitz)
    probability(delta=delta)
    count(users=users, items=items, dimension=dimension)
    log = math.log(users * items / delta)
    cohort = math.ceil(300 * log**2 / epsilon**1.5)
    cutoff = 10 * log / epsilon
    temperature = math.sqrt(items) / (20 * lipschitz * math.log(users * items * max(dimension, 2)))
    gaussian = math.sqrt(2 * math.log(1.25 / (delta / 2))) / (epsilon / 2)
    return PaperConstants(
        cohort_size=cohort,
        cutoff=cutoff,
        cutoff_scale=4 / epsilon,
        laplace_scale=8 * math.sqrt(32 * cutoff * math.log(1 / delta)) / epsilon,
        threshold=0.75 * cohort,
        temperature=temperature,
        release_noise=104 / temperature / (cohort / 2) * gaussian,
    )
