"""The means of `norm_counts` over many rounds: those of vectors with noise that is correlated over the rounds.

Statement and proof: docs/privacy/free-presence.md#p4.
"""

from dataclasses import dataclass

import numpy as np

from quoron_privacy.errors import count
from quoron_privacy.gaussian import GaussianNoise, mean_sensitivity
from quoron_privacy.means.norm_counts import WEIGHTS, MeanAndCounts, NormCountSum, released_from, weighted_row
from quoron_privacy.noise.streams import NoiseSource
from quoron_privacy.prefix.noise import DEFAULT, PrefixNoise, PrefixState
from quoron_privacy.release import Adjacency, Release, Sums


@dataclass(frozen=True, slots=True)
class PrefixNormCounts:
    """The rows of `NormCountMean` over T rounds of other users each: c with correlated noise, shares with their own.

    Noise of the sums Σ_j mean of c is that of `prefix`; that of a round's shares is N(0, (s / κ)²), s the scale and κ
    the column norm of `prefix`. A radius multiplies what is released.

    Formal guarantee: for a user of one round all rounds together are `effective_mu`-GDP with exact noise
    (free-presence#p4), for every answer of every user. A round draws d + 3 Gaussian samples.

    | input                               | what happens                                     |
    | ----------------------------------- | ------------------------------------------------ |
    | ‖v‖ above C                         | scaled down to it, a = 1                         |
    | v not finite, absent user           | the zero row, presence too; the divisor stays    |
    | a release after the last round      | RunError: the column norm counts the rounds      |
    """

    dimension: int  # d
    users: int  # n of a round, the divisor
    adjacency: Adjacency
    scale: float  # s, of the seed noise of a weighted row
    rounds: int  # T
    factorisation: str = DEFAULT

    def __post_init__(self) -> None:
        count(dimension=self.dimension, users=self.users)
        _ = self.prefix, self._gaussian

    @classmethod
    def for_mu(
        cls,
        *,
        dimension: int,
        users: int,
        mu: float,
        rounds: int,
        factorisation: str = DEFAULT,
        adjacency: Adjacency = "replace-one",
    ) -> "PrefixNormCounts":
        """The least noise for μ-GDP rounds; Infeasible if rounding to the grid alone costs μ."""
        made = PrefixNoise.for_mu(
            rounds=rounds,
            sensitivity=mean_sensitivity(1.0, users, adjacency),
            mu=mu,
            dimension=dimension + 3,
            factorisation=factorisation,
        )
        return cls(dimension, users, adjacency, made.scale, rounds, factorisation)

    @property
    def effective_mu(self) -> float:
        """μ of all rounds."""
        return self.prefix.effective_mu(self.dimension + 3)

    @property
    def presence_deviation(self) -> float:
        """Of the share of users who answer."""
        return self._gaussian.scale / WEIGHTS[self.adjacency][3]

    @property
    def prefix(self) -> PrefixNoise:
        """The noise of the weighted sums."""
        sensitivity = mean_sensitivity(1.0, self.users, self.adjacency)
        return PrefixNoise(self.rounds, sensitivity, self.scale, self.factorisation)

    @property
    def seed_scale(self) -> float:
        """Seed noise of a coordinate of the mean of c."""
        return self.scale / WEIGHTS[self.adjacency][0]

    def start(self) -> PrefixState:
        """The state before the first round."""
        return self.prefix.start(self.dimension)

    def reduction(self, radius: float) -> NormCountSum:
        """All that a round reads of users' vectors."""
        return NormCountSum(radius, self.users)

    def release(self, state: PrefixState, sums: Sums, noise: NoiseSource) -> tuple[MeanAndCounts, PrefixState]:
        """What a round adds to the sum, and its shares, from the sums that `reduction` makes; and the next state."""
        row, made = weighted_row(sums, self.users, self.adjacency), self.prefix
        _, after = made.release(state, row[:-3], noise)
        added = (after.total - state.total).astype(np.float64) * made.step
        shares = self._gaussian.release(row[-3:], noise.stream("shares", state.round))
        return released_from(np.concatenate([added, shares]), self.adjacency, sums.clipped), after

    def entry(self) -> Release:
        """The ledger entry of all rounds, for a radius of 1."""
        made = self.prefix
        parameters = {"sensitivity": made.sensitivity, "scale": made.scale, "divisor": self.users}
        return Release(f"prefix-norm-counts-{self.factorisation}", parameters | {"rounds": self.rounds})

    @property
    def _gaussian(self) -> GaussianNoise:
        made = self.prefix
        return GaussianNoise(made.sensitivity, made.scale / made.column_norm)
