"""What T Gaussian rounds are worth whose cohorts are everybody, or drawn in secret: for those who verify.

By the scales of a run and the second account; nothing here is asked by who finds noise.
"""

import math

from quoron_privacy.accounts.pair import Pair
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.noise.streams import total_variation
from quoron_privacy.release import Adjacency
from quoron_server.algorithms.noisy.sampled import COINS, Sampling


def fixed_size(users: int, cohort: int, rounds: int, mu: float, drawn: int) -> tuple[Pair]:
    """T rounds of secret uniform cohorts, each μ-GDP given its cohort and drawing so many samples; replace-one.

    Given that a curious client is not in a cohort, another user is with chance B/(n - 1).
    """
    rate = cohort / (users - 1) if cohort < users else 1.0
    return (Pair.sampled(min(1.0, rate), mu, rounds, "replace-one").lacking(total_variation(gaussians=rounds * drawn)),)


def pairs(
    sampling: Sampling, adjacency: Adjacency, users: int, cohort: int, rounds: int, mu: float, drawn: int
) -> tuple[Pair]:
    """T rounds whose cohorts are drawn so, each of so many samples; with coins μ is that of a user who is left out."""
    if sampling not in COINS:
        return fixed_size(users, cohort, rounds, mu, drawn)
    lack, rate = total_variation(gaussians=rounds * drawn), cohort / users
    if adjacency == "replace-one":  # one place for one item: there in both worlds, and moved apart
        return (Pair.items(rate, 1, rounds, 1 / mu, adjacency).lacking(lack),)
    return (Pair.sampled(rate, mu, rounds, "zero-out").lacking(lack),)


def with_count(noise: GaussianNoise, round_mu: float, mu: float) -> tuple[float, float]:
    """(noise, GDP) of a round that is worth as much as one with this noise and a μ-GDP count of its cohort."""
    return noise.sensitivity / math.hypot(noise.sensitivity / noise.scale, mu), math.hypot(round_mu, mu) * (1 + 1e-8)
