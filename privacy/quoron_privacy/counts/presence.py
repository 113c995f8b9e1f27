"""What all releases so far say of the share of users who answer.

    >>> Presence().seen(0.65, 0.1).seen(0.75, 0.1).share
    0.7

Source: docs/privacy/free-presence.md, "What the mean of presence says".
"""

from dataclasses import dataclass
from math import sqrt

LEAST_SHARE = 0.2  # of users who answer, that an estimate of it goes down to


@dataclass(frozen=True, slots=True)
class Presence:
    """What all releases so far say of the share of users who answer; a function of releases."""

    weighted: float = 0.0  # Σ value / deviation²
    precision: float = 0.0  # Σ 1 / deviation²

    def seen(self, value: float, deviation: float) -> "Presence":
        """With one more noisy share."""
        return Presence(self.weighted + value / deviation**2, self.precision + 1 / deviation**2)

    @property
    def mean(self) -> float:
        """At least LEAST_SHARE; above 1 where more answer than the divisor counts on."""
        return max(self.weighted / self.precision, LEAST_SHARE)

    @property
    def share(self) -> float:
        """1 where that is within two deviations of the mean, else the mean, at least LEAST_SHARE."""
        return 1.0 if self.mean > 1 - 2 / sqrt(self.precision) else self.mean
