"""How far users are from where they were expected, privately: four noisy counts, and the spread they teach.

    >>> cells = RadiusCells.for_mu(divisor=1000, mu=0.02)
    >>> round(cells.scale, 4)
    0.0707
    >>> updated_spread(1.0, (0.1, 0.4, 0.95), target=0.95, deviation=0.01, may_shrink=True, least=1e-6, largest=5.0)
    1.0

`clipping.ClippedSum` counts the distances in [0, q/4], (q/4, q/2], (q/2, q], (q, ∞), q the distance expected of
nearly all. A user is in one cell or, when absent, in none. With one threshold alone (Andrew et al. 2021) a spread that
is 4 times too large shrinks by a few per cent a round; the inner cells repair it in two or three.
Statement and proof: docs/privacy/second-moment.md#sm4.
"""

from dataclasses import dataclass
from math import exp, isfinite

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.errors import ConfigError, count, non_negative, positive, probability
from quoron_privacy.gaussian import GaussianNoise, acute_sensitivity
from quoron_privacy.noise.streams import RandomStream
from quoron_privacy.release import Adjacency, Release

CELLS = 4
Fractions = tuple[float, float, float]  # within q/4, q/2 and q


@dataclass(frozen=True, slots=True)
class RadiusCells:
    """N(0, scale²) on each of the four counts over `divisor`.

    Formal guarantee: the release is `effective_mu`-GDP with exact noise (second-moment#sm4). It is not free: beside
    a gradient of μ_g the round is √(μ_g² + μ²)-GDP.

    | input                                | what happens                                            |
    | ------------------------------------ | ------------------------------------------------------- |
    | absent user, non-finite row          | in no cell: counts are never divided by who answered    |
    | a noisy fraction below 0, above 1    | returned as it is; `updated_spread` knows               |
    """

    divisor: int  # planned answers: never a count of those that came
    adjacency: Adjacency
    scale: float  # standard deviation of one cell's fraction

    def __post_init__(self) -> None:
        count(divisor=self.divisor)
        positive(scale=self.scale)
        _ = self._gaussian  # refuses a scale or an adjacency out of range

    @classmethod
    def for_mu(cls, *, divisor: int, mu: float, adjacency: Adjacency = "replace-one") -> "RadiusCells":
        """The least noise for a μ-GDP release; Infeasible if rounding to the grid alone costs μ."""
        sensitivity = acute_sensitivity(1.0, divisor, adjacency)
        return cls(divisor, adjacency, GaussianNoise.for_mu(sensitivity=sensitivity, mu=mu, dimension=CELLS).scale)

    @property
    def sensitivity(self) -> float:
        """ℓ2, one user replaced (two cells change) or left out (one does), rounding included."""
        return acute_sensitivity(1.0, self.divisor, self.adjacency)

    @property
    def effective_mu(self) -> float:
        """μ of the release."""
        return self._gaussian.effective_mu(CELLS)

    def release(self, counts: NDArray[np.int64], stream: RandomStream) -> Fractions:
        """Noisy fractions of `divisor` users within q/4, q/2 and q, from `Sums.cells`."""
        if counts.shape != (CELLS,):
            raise ConfigError(f"Expected counts of shape ({CELLS},), got {counts.shape}.")
        quarter, half, whole, _ = np.cumsum(self._gaussian.release(counts / self.divisor, stream)).tolist()
        return quarter, half, whole

    def entry(self) -> Release:
        """The ledger entry of the release."""
        return Release("radius-cells", {"sensitivity": self.sensitivity, "scale": self.scale, "divisor": self.divisor})

    @property
    def _gaussian(self) -> GaussianNoise:
        return GaussianNoise(self.sensitivity, self.scale)


def updated_spread(
    spread: float,
    fractions: Fractions,
    *,
    target: float,
    deviation: float,
    may_shrink: bool,
    least: float,
    largest: float,
) -> float:
    """The spread for the next round, from released fractions; a post-processing, so it costs no privacy.

    Far too many within q/4 or q/2: the spread shrinks to 0.35 or 0.6 of itself. Hardly anybody within q: it doubles.
    Else it moves geometrically until `target` of the users are within q, faster down than up for the same surprise.
    `deviation` is the noise of one cell. Callers pass `may_shrink` = False while distances show the centre's lag more
    than the users' spread. Anything non-finite gives `largest`; the result is in [least, largest], both public.
    """
    probability(target=target)
    non_negative(deviation=deviation)
    positive(least=least, largest=largest)
    quarter, half, whole = fractions
    if not all(isfinite(value) for value in (spread, quarter, half, whole)):
        return largest
    over = min(max(whole, 0.0), 1.0) - target
    if quarter > target + deviation:
        factor = 0.35
    elif half > target + 1.4 * deviation:
        factor = 0.6
    elif whole < 0.35 - deviation:
        factor = 2.0
    elif over > 0:
        factor = exp(-0.6 * over)
    else:
        factor = min(exp(min(-0.06 * over / (1 - target), 1.0)), 2.0)  # never more than for hardly anybody
    if factor < 1 and not may_shrink:
        factor = 1.0
    return min(max(spread * factor, least), largest)
