"""How hard a search tries, as people say it, and the law of the number of trials that this means."""

import math
from dataclasses import dataclass

from quoron.evaluating.split import held_users
from quoron_privacy.errors import positive
from quoron_privacy.selection.trials import Trials

TWICE = 2.0  # trials a candidate in the mean, unless told
HELD_OUT = 0.1, 0.3  # share of users that score, unless told: at least, and at most, where they are few
USELESS = 0.02  # deviation of a score from which it tells few settings apart


@dataclass(frozen=True, slots=True)
class Effort:
    """How many trials a search carries out in the mean, and whether the clock may tell how many there were."""

    trials: float | None = None  # in the mean; None: twice as many as candidates
    most: int | None = None  # trials; None: five times the mean, three times where `padded`
    padded: bool = False  # always carry out `most` trials, of which those beyond the secret number count for nothing
    evaluate: float | None = None  # share of users that are held out, and score; None: by how many there are

    def of(self, candidates: int) -> Trials:
        """The law for so many candidates. ConfigError for numbers that make none."""
        mean = max(2.0, TWICE * candidates) if self.trials is None else self.trials
        positive(trials=mean)
        most = math.ceil(3 * mean) if self.most is None and self.padded else self.most
        return Trials.negative_binomial(mean, most=most)

    def held(self, users: int, mu: float) -> int:
        """How many of so many users score, where a score may cost `mu`: so that its noise is small, if it can be."""
        share = self.evaluate
        if share is None:
            share = min(max(1 / (mu * USELESS * users), HELD_OUT[0]), HELD_OUT[1])
        return held_users(users, share)
