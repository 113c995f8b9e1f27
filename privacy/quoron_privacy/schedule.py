"""Who takes part in which rounds, and what that makes of a round's privacy.

    >>> schedule = Schedule.of(10_000, 100, 1000, "without-replacement", "replace-one")
    >>> round(schedule.round_mu(1.0, 1e-6), 2), schedule.pair(0.5).delta(1.0, 1e-6) < 1e-6
    (0.57, True)

`round_mu` is the first account's, for those who look for noise, and `pair` the second's, for those who verify.
Statement and proof: docs/privacy/subsampling.md.
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.accounts import gdp, subsampling
from quoron_privacy.accounts.pair import DominatingPair
from quoron_privacy.errors import ConfigError, count
from quoron_privacy.gaussian import check_adjacency
from quoron_privacy.noise.streams import NoiseSource
from quoron_privacy.release import Adjacency

Users = NDArray[np.int64]
Sampling = Literal["everybody", "without-replacement", "poisson", "public-schedule"]


@dataclass(frozen=True, slots=True)
class Schedule:
    """Who takes part when: `rounds` rounds of a cohort of `cohort` of `users`.

    | sampling            | a round's cohort                                    | adjacency                |
    | ------------------- | --------------------------------------------------- | ------------------------ |
    | everybody           | all users                                           | either                   |
    | without-replacement | a secret uniform subset of this size                | replace-one              |
    | poisson             | each user by a secret coin; this size is expected   | either                   |
    | public-schedule     | the next batch of a fixed order, again and again    | either                   |

    Users beyond the last whole batch of a public schedule take no part.
    """

    users: int
    cohort: int
    rounds: int
    sampling: Sampling
    adjacency: Adjacency

    @classmethod
    def of(
        cls, users: int, cohort: int | None, rounds: int, sampling: Sampling | None, adjacency: Adjacency
    ) -> "Schedule":
        """Return the checked schedule; without a sampling everybody, or a secret subset where a cohort is smaller."""
        count(users=users, rounds=rounds)
        size = users if cohort is None else cohort
        if not 1 <= size <= users:
            raise ConfigError(f"Expected cohort in 1..users={users:,}, got cohort={size:,}.")
        chosen = sampling or ("everybody" if size == users else "without-replacement")
        if chosen not in get_args(Sampling):
            raise ConfigError(f"Expected sampling in {', '.join(get_args(Sampling))}, got sampling={sampling!r}.")
        if (chosen == "everybody") != (size == users):
            raise ConfigError(f"Expected cohort=users with everybody and only there, got {size:,} with {chosen}.")
        check_adjacency(adjacency)
        if chosen == "without-replacement" and adjacency != "replace-one":
            raise ConfigError("Expected adjacency='replace-one' with sampling='without-replacement', got 'zero-out'.")
        return cls(users, size, rounds, chosen, adjacency)

    @property
    def secret(self) -> bool:
        """Whether the guarantee rests on the secrecy of who is in a cohort."""
        return self.sampling in ("without-replacement", "poisson")

    @property
    def separation(self) -> int:
        """After how many rounds a user may come back."""
        return self.users // self.cohort if self.sampling == "public-schedule" else 1

    @property
    def participations(self) -> int:
        """Rounds of any one user, at most."""
        return -(-self.rounds // self.separation)

    @property
    def rate(self) -> float:
        """Chance of a user to be in a round, given that one other user who is not knows of it."""
        known = 0 if self.sampling == "poisson" else 1  # users of whom somebody knows that they are not in it
        return self.cohort / (self.users - known) if self.cohort < self.users else 1.0

    @property
    def moved(self) -> Adjacency:
        """Of which adjacency a round's μ is: by coins that of a user who is left out, whichever is guaranteed."""
        return "zero-out" if self.sampling == "poisson" else self.adjacency

    def round_mu(self, epsilon: float, delta: float) -> float:
        """Return the largest μ of a round with which all rounds are (ε, δ)-DP."""
        if self.sampling == "poisson":
            return subsampling.poisson_round_mu(self.rate, self.rounds, epsilon, delta, self.adjacency)
        if self.secret:
            return subsampling.wor_round_mu(self.rate, self.rounds, epsilon, delta)
        return gdp.mu_for(epsilon, delta) / math.sqrt(self.participations)

    def pair(self, mu: float) -> DominatingPair:
        """Return the privacy loss of all rounds, each μ-GDP given its cohort; by the second account, chances too."""
        if not self.secret:
            return DominatingPair.gaussian(math.sqrt(self.participations) * mu * (1 + 1e-15))
        if self.sampling == "without-replacement":  # a curious client that is not in a cohort knows it
            others = max(self.users - 1, self.cohort)
            return DominatingPair.sampled(self.cohort / others, mu, self.rounds, "replace-one")
        if self.adjacency == "replace-one":  # there in both worlds, and moved apart
            return DominatingPair.coins(self.cohort / self.users, mu, self.rounds)
        return DominatingPair.sampled(self.cohort / self.users, mu, self.rounds, "zero-out")

    def members(self, round_: int, noise: NoiseSource) -> Users:
        """Return the users of a round, (k,)."""
        if self.sampling == "everybody" or self.cohort == self.users:
            return np.arange(self.users)
        if self.sampling == "public-schedule":
            first = round_ % self.separation * self.cohort
            return np.arange(first, first + self.cohort)
        stream = noise.stream("cohort", round_)
        if self.sampling == "poisson":
            return stream.poisson_subset(self.users, self.rate)
        return stream.subset(self.users, self.cohort)
