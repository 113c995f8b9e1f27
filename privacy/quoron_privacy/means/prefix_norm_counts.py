"""The means of `norm_counts` over many rounds: those of vectors with noise that is correlated over the rounds.

    >>> made = PrefixNormCounts.for_mu(dimension=3, users=50, mu=1.0, rounds=40, participations=4, separation=10)
    >>> round(made.scale, 3), round(made.typical, 3)  # seed noise of the means, noise of a share
    (0.124, 0.08)

Statement and proof: docs/privacy/free-presence.md#p4, and #p5 where users come back.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import inf, sqrt

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.errors import ConfigError, count
from quoron_privacy.gaussian import GaussianNoise, mean_sensitivity
from quoron_privacy.means.norm_counts import (
    SHARES,
    MeanAndCounts,
    NormCountSum,
    released_from,
    row_kind,
    weighted_row,
    weights_of,
)
from quoron_privacy.noise.streams import NoiseSource
from quoron_privacy.prefix.factorisations import factorise
from quoron_privacy.prefix.noise import DEFAULT, PrefixNoise, PrefixState
from quoron_privacy.release import Adjacency, MaskedBlock, NoisySums, Release, Sums

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PrefixNormCounts:
    """The rows of `NormCountMean` over T rounds: c with correlated noise, shares with independent noise.

    Noise of the sums Σ_j mean of c is that of `prefix`; that of the shares of round t is N(0, (s q_t / κ)²), s the
    scale, κ the column norm of `prefix` and q_t `louder`: 1 where users are in one round, else what their other rounds
    leave. A radius multiplies what is released.

    Formal guarantee: for a user of one round, or of all rounds t ≡ r modulo `separation` for one r, all rounds together
    are `effective_mu`-GDP with exact noise (free-presence#p4, #p5), for every answer of every user. A round draws d + 3
    Gaussian samples.

    | input                               | what happens                                     |
    | ----------------------------------- | ------------------------------------------------ |
    | ‖v‖ above C                         | scaled down to it, a = 1                         |
    | v not finite, absent user           | the zero row, presence too; the divisor stays    |
    | a release after the last round      | RunError: the column norm counts the rounds      |
    | more than k rounds of a user        | ConfigError: T > k b                             |
    """

    dimension: int  # d
    users: int  # n of a round, the divisor
    adjacency: Adjacency
    scale: float  # s, of the seed noise of a weighted row
    rounds: int  # T
    factorisation: str = DEFAULT
    participations: int = 1  # k: rounds of one user, at most
    separation: int = 1  # b: their exact distance, where k > 1
    soft: bool = False  # whether the row has h

    def __post_init__(self) -> None:
        count(dimension=self.dimension, users=self.users)
        _ = self.prefix
        if self.participations > 1 and self.participations * self.separation < self.rounds:
            raise ConfigError(
                f"Expected rounds <= participations * separation = {self.participations * self.separation}, "
                f"got rounds={self.rounds}."
            )

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
        participations: int = 1,
        separation: int = 1,
        soft: bool = False,
    ) -> "PrefixNormCounts":
        """The least noise for μ-GDP rounds; Infeasible if rounding to the grid alone costs μ."""
        made = PrefixNoise.for_mu(
            rounds=rounds,
            sensitivity=mean_sensitivity(1.0, users, adjacency),
            mu=mu,
            dimension=dimension + 3,
            factorisation=factorisation,
            participations=participations,
            separation=separation,
        )
        return cls(dimension, users, adjacency, made.scale, rounds, factorisation, participations, separation, soft)

    @property
    def effective_mu(self) -> float:
        """μ of all rounds."""
        return self.prefix.effective_mu(self.dimension + 3)

    @property
    def presence_deviation(self) -> float:
        """Of the share of users who answer, typically; inf where it is not told."""
        weight = weights_of(self.adjacency, self.soft)[3]
        return self.typical / weight if weight else inf

    @property
    def typical(self) -> float:
        """Noise of a weighted share: one over the root mean square precision of k rounds of one user."""
        return self.scale * sqrt(self.participations) / self.prefix.column_norm

    @property
    def prefix(self) -> PrefixNoise:
        """The noise of the weighted sums."""
        sensitivity = mean_sensitivity(1.0, self.users, self.adjacency)
        own = self.participations, self.separation
        return PrefixNoise(self.rounds, sensitivity, self.scale, self.factorisation, *own)

    @property
    def seed_scale(self) -> float:
        """Seed noise of a coordinate of the mean of c."""
        return self.scale / weights_of(self.adjacency, self.soft)[0]

    def start(self) -> PrefixState:
        """The state before the first round."""
        return self.prefix.start(self.dimension)

    @property
    def masked(self) -> tuple[MaskedBlock, ...]:
        """Of a user of one round: c, and its shares beside it."""
        kind, own = row_kind(self.soft), 1 / self.users
        shares = ("shares", kind, SHARES, own / self.shares(0).scale)
        return ("sums", kind, self.dimension, own / self.scale), shares

    def reduction(self, radius: float) -> NormCountSum:
        """All that a round reads of users' vectors."""
        return NormCountSum(radius, self.users)

    def release(self, state: PrefixState, sums: Sums, noise: NoiseSource) -> tuple[MeanAndCounts, PrefixState]:
        """What a round adds to the sum, and its shares, from the sums that `reduction` makes; and the next state."""
        weights, made = weights_of(self.adjacency, self.soft), self.prefix
        row = sums if isinstance(sums, NoisySums) else weighted_row(sums, self.users, weights, self.soft)
        _, after = made.release(state, row[:-3], noise)
        added = made.added(state, after, row[:-3])
        shares = self.shares(state.round).release(row[-3:], noise.stream("shares", state.round))
        return released_from(np.concatenate([added, shares]), weights, sums.clipped), after

    def shares(self, round_: int) -> GaussianNoise:
        """Of the weighted shares of a round."""
        made = self.prefix
        return GaussianNoise(made.sensitivity, made.scale * float(self._louder[round_]) / made.column_norm)

    def entry(self) -> Release:
        """The ledger entry of all rounds, for a radius of 1."""
        made = self.prefix
        parameters = {"sensitivity": made.sensitivity, "scale": made.scale, "divisor": self.users}
        if self.participations > 1:
            parameters |= {"participations": self.participations, "separation": self.separation}
        return Release(f"prefix-norm-counts-{self.factorisation}", parameters | {"rounds": self.rounds})

    @property
    def _louder(self) -> Vector:
        if self.participations == 1:
            return np.ones(self.rounds)
        return louder(self.factorisation, self.rounds, self.separation)


@lru_cache(maxsize=32)
def louder(factorisation: str, rounds: int, separation: int) -> Vector:
    """q_t = √(Σ_S R_j / R_t), S the rounds t, t ± b, ..., and R_t = Σ_{j in S} ⟨C[:, t], C[:, j]⟩; shape (rounds,).

    How much louder shares of round t are where a user is in all of S than where it may be in any one round: Σ_S q_t⁻²
    is 1. ConfigError where C is no Toeplitz matrix.
    """
    c = factorise(factorisation, rounds, separation).coefficients
    if c is None:
        raise ConfigError(f"Expected a Toeplitz factorisation for several participations, got {factorisation!r}.")
    reach = np.zeros(rounds)
    for lag in range(0, rounds, separation):
        common = np.cumsum(c[: rounds - lag] * c[lag:])[::-1]  # ⟨C[:, i], C[:, i + lag]⟩ for every i
        reach[: rounds - lag] += common
        if lag:
            reach[lag:] += common
    classes = np.arange(rounds) % separation
    together = np.bincount(classes, weights=reach)[classes]
    made: Vector = np.sqrt(together / reach)
    made.setflags(write=False)
    return made
