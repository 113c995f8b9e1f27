"""What T Gaussian rounds are worth whose cohorts are everybody, or drawn in secret: for parameters of such runs."""

import math
from typing import Literal

from quoron_privacy.accounts.pair import Pair
from quoron_privacy.accounts.subsampling import poisson_round_mu
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.noise.streams import total_variation
from quoron_privacy.release import Adjacency
from quoron_server.parameters import Assumption, Kind

# Users join by coins of their own in the last two: against users who are left out, and who are replaced.
Sampling = Literal["disjoint", "without-replacement", "poisson", "poisson-replaced"]
COINS: tuple[Sampling, ...] = ("poisson", "poisson-replaced")
SECRET = (Assumption(Kind.SECRET_COHORTS),)  # of users asked by coins of their own
SECRET_AND_FORGOTTEN = (*SECRET, Assumption(Kind.FORGETFUL_CLIENTS))  # of uniform cohorts of a fixed size


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


def room_for_counts(
    sampling: Sampling, rate: float, rounds: int, mu: float, epsilon: float, delta: float, drawn: int
) -> float:
    """μ of a count within (ε, δ) in each of T rounds by coins that are μ-GDP without, by the first account; else 0."""
    left = delta - (1 + math.exp(epsilon)) * total_variation(gaussians=rounds * drawn)
    if sampling not in COINS or left <= 0:
        return 0.0
    whole = poisson_round_mu(rate, rounds, epsilon, left, "zero-out" if sampling == "poisson" else "replace-one")
    return math.sqrt(max((whole * (1 - 1e-7)) ** 2 - mu**2, 0.0))


def with_count(noise: GaussianNoise, round_mu: float, mu: float) -> tuple[float, float]:
    """(noise, GDP) of a round that is worth as much as one with this noise and a μ-GDP count of its cohort."""
    return noise.sensitivity / math.hypot(noise.sensitivity / noise.scale, mu), math.hypot(round_mu, mu) * (1 + 1e-8)


def assumptions_of(sampling: Sampling, users: int, cohort: int) -> tuple[Assumption, ...]:
    """Secret cohorts, unless they are everybody; and that clients forget, where draws tie them."""
    if cohort == users:
        return ()
    return SECRET_AND_FORGOTTEN if sampling == "without-replacement" else SECRET


def answer_mu(sampling: Sampling, mu: float) -> float:
    """GDP of a round whose cohort is known: of a user who is replaced by coins, from its row to none and on."""
    return 2 * mu if sampling == "poisson-replaced" else mu
