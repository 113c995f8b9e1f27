"""How a clip norm follows the users: by the noisy shares that a mean of clipped rows tells for nothing.

    >>> import numpy as np
    >>> clip = AdaptiveClip(0.5, "replace-one")
    >>> told = MeanAndCounts(np.zeros(1), 0.9, 1.0, 1.0, 0)  # rows a tenth as long as the clip norm
    >>> clip.following(1.0, told, 0.05, Presence(), 1.0)[0]
    0.35

Statement and proof: docs/privacy/adaptive-clip.md.
"""

from dataclasses import dataclass
from math import exp, isfinite

from quoron_privacy.means.norm_counts import MeanAndCounts, Presence, weights_of
from quoron_privacy.release import Adjacency

REACH = 2.0**20  # a clip norm stays within this factor of the first one, both ways
QUANTILES = 0.4, 0.95
LEAST_FACTOR, MOST_FACTOR = 0.35, 2.0  # of one round, where users are far
GAIN = 0.15  # of the logarithm in one round, where they are near


@dataclass(frozen=True, slots=True)
class AdaptiveClip:
    """How the clip norm follows the users.

    With a = min(1, ‖v‖ / C) of a row, its soft share h = min(1, √((1 - a)(1 + 3a))) is 1 up to a = ⅔ and 0 where it is
    clipped: C goes to where the mean of h over those who answer is `quantile`.
    """

    quantile: float  # γ
    adjacency: Adjacency  # of the rows

    def deviation(self, scale: float) -> float:
        """Of the mean of h, for noise `scale` of a weighted share."""
        return scale / weights_of(self.adjacency, soft=True)[2]

    def following(
        self, radius: float, told: MeanAndCounts, scale: float, presence: Presence, first: float
    ) -> tuple[float, Presence]:
        """The next round's clip norm, from what a round with clip norm `radius` told; and the share of users there.

        `scale` is the noise of a weighted share. By Markov's inequality a share γ of the users is within E a / (1 - γ)
        of C: where that says that C is far too large, it shrinks so far. Where hardly anybody is within, it doubles.
        Else it moves geometrically. All of it is a function of what was released; non-finite gives the largest norm.
        """
        weights = weights_of(self.adjacency, soft=True)
        length, near = scale / weights[1], scale / weights[2]
        if weights[3]:
            presence = presence.seen(told.presence, scale / weights[3])
        there = presence.share if weights[3] else 1.0
        beyond, within = told.beyond / there, told.within / there
        if not all(isfinite(each) for each in (radius, beyond, within)):
            return first * REACH, presence
        far = (1 - beyond + length) / (1 - self.quantile)
        if far < exp(-GAIN):
            factor = max(far, LEAST_FACTOR)
        elif within < 0.4 * self.quantile - 1.25 * near:
            factor = MOST_FACTOR
        else:
            over = (within - self.quantile) / (1 - self.quantile)
            factor = exp(-GAIN * min(max(over, -1.0), 1.0))
        return min(max(radius * factor, first / REACH), first * REACH), presence
