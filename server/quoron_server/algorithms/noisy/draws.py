"""What rounds of Gaussian sums on drawn cohorts cost, by how these are drawn: for planners.

Statements and proofs: docs/privacy/subsampling.md.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from quoron_privacy.accounts import subsampling
from quoron_privacy.noise.streams import total_variation
from quoron_privacy.release import Adjacency
from quoron_server.algorithms.averaged_sgd import ranking_mu, replaced_ranking_mu
from quoron_server.algorithms.noisy.sampled import COINS, Sampling


@dataclass(frozen=True, slots=True)
class Draws:
    """One way of drawing; a round's μ is about a row that `moved`: replaced in its cohort, or left out."""

    adjacency: Adjacency  # that is promised
    moved: Adjacency
    ranking_mu: Callable[[float, int, float], float]  # about the μ of a round, to rank candidates by
    round_mu: Callable[[float, int, float, float], float]  # the largest for (rate, rounds, ε, δ)
    known: int  # users of whom somebody knows that they were not drawn, which tells something of the others

    def rate(self, cohort: int, users: int) -> float:
        """The chance that a user is in a round's cohort, for whoever is curious."""
        return min(1.0, cohort / (users - self.known)) if cohort < users else 1.0


DRAWS: Mapping[Sampling, Draws] = {
    "without-replacement": Draws("replace-one", "replace-one", ranking_mu, subsampling.wor_round_mu, known=1),
    "poisson": Draws("zero-out", "zero-out", ranking_mu, subsampling.poisson_round_mu, known=0),
    "poisson-replaced": Draws(
        "replace-one",
        "zero-out",
        replaced_ranking_mu,
        partial(subsampling.poisson_round_mu, adjacency="replace-one"),
        known=0,
    ),
}


def room_for_counts(
    sampling: Sampling, rate: float, rounds: int, mu: float, epsilon: float, delta: float, drawn: int
) -> float:
    """μ of a count within (ε, δ) in each of T rounds by coins that are μ-GDP without, by the first account; else 0."""
    left = delta - (1 + math.exp(epsilon)) * total_variation(gaussians=rounds * drawn)
    if sampling not in COINS or left <= 0:
        return 0.0
    whole = DRAWS[sampling].round_mu(rate, rounds, epsilon, left)
    return math.sqrt(max((whole * (1 - 1e-7)) ** 2 - mu**2, 0.0))
