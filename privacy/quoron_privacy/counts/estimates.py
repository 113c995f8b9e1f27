"""From released weights of cells to values, each with its standard error and an interval for noise and sampling.

    >>> count_of(480.0, users=1000, scale=5.0)
    Estimate(value=480.0, error=16.57105910918189, low=447.65996937742443, high=512.4931009619977)

Every interval is for those whom the users are a sample of. What is released is Gaussian around what the users hold;
what they hold is normal around that in the limit of many users, with a variance that is bounded (counts, quantiles) or
released (means). Everything here is a function of released and public numbers. Statement and proofs:
docs/privacy/statistics.md#st2.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.counts.spread import Spread

Floats = NDArray[np.float64]
SURE = 1.959963984540054  # z: 95 % of a normal law lie within ± z deviations


@dataclass(frozen=True, slots=True)
class Estimate:
    """A released value and where what it stands for lies, with 95 %: noise and sampling of users."""

    value: float
    error: float  # standard error
    low: float
    high: float

    def in_units(self, middle: float, unit: float) -> "Estimate":
        """The same of middle + unit · value, for a unit above zero."""
        return Estimate(
            middle + unit * self.value, unit * self.error, middle + unit * self.low, middle + unit * self.high
        )


def count_of(weight: float, *, users: int, scale: float) -> Estimate:
    """Of a cell's noisy weight: how many of so many users (of a weight of one each) it has."""
    value, z = min(max(weight, 0.0), float(users)), SURE**2
    half, square = (2 * value + z) / 2, 1 + z / users
    root = math.sqrt(max(0.0, half**2 - square * (value**2 - z * scale**2)))
    low, high = max(0.0, (half - root) / square), min(float(users), (half + root) / square)
    return Estimate(value, math.sqrt(scale**2 + value * (1 - value / users)), low, high)


def mean_of(thirds: Floats, *, scale: float) -> Estimate:
    """The mean of values in [-1, 1] of which `spread.thirds` are released with noise, (3,): Fieller's interval."""
    total, sum_, z = float(thirds.sum()), float(thirds[2] - thirds[0]), SURE
    value = min(1.0, max(-1.0, sum_ / total)) if total > 0 else 0.0
    away = np.array([(1 + value) ** 2, value**2 - 1, (1 - value) ** 2])  # of the sum of squared distances from it
    variance = float(away @ thirds)
    surely = max(0.0, variance + z * scale * float(np.linalg.norm(away)))
    square = total**2 - 3 * (z * scale) ** 2
    if total <= 0 or square <= 0:  # nobody knows whether anybody is there
        return Estimate(value, 1.0, -1.0, 1.0)
    half, rest = total * sum_, sum_**2 - z**2 * (2 * scale**2 + surely)
    root = math.sqrt(max(0.0, half**2 - square * rest))
    low, high = max(-1.0, (half - root) / square), min(1.0, (half + root) / square)
    error = math.sqrt(scale**2 * (2 + 3 * value**2) + max(0.0, variance)) / total
    return Estimate(value, min(1.0, error), min(low, value), max(high, value))


def quantile_of(sums: Floats, share: float, spread: Spread) -> Estimate:
    """Of the noisy running sums of k cells (k,): below which place in [0, 1] a `share` of the weight is.

    Its interval is the cells that a test of each edge does not exclude; its value is read off the nearest running sums
    that never fall.
    """
    cells, total = len(sums), float(sums[-1])
    against = spread.against(share)
    most = max(0.0, total + SURE * float(spread.against(0.0)[-1]))  # of the group's weight
    # Before the first cell the running sum is zero without noise.
    noise = np.concatenate([[share * float(spread.against(0.0)[-1])], against])
    off = SURE * np.sqrt(noise**2 + share * (1 - share) * most)
    ahead = np.concatenate([[0.0], sums]) - share * total
    inside = np.flatnonzero((ahead[:-1] <= off[:-1]) & (ahead[1:] >= -off[1:]))
    low, high = (inside[0] / cells, (inside[-1] + 1) / cells) if total > 0 and len(inside) else (0.0, 1.0)
    rising = np.concatenate([[0.0], sums])
    rising = (np.maximum.accumulate(rising) + np.minimum.accumulate(rising[::-1])[::-1]) / 2
    after = int(np.argmax(rising >= share * total)) if total > 0 else cells // 2
    if after and total > 0:
        step = rising[after] - rising[after - 1]
        place = (after - 1 + ((share * total - rising[after - 1]) / step if step > 0 else 1.0)) / cells
    else:
        place = after / cells
    return Estimate(place, (high - low) / (2 * SURE), min(low, place), max(high, place))


def needed(what: str, *, groups: int, cells: int, unit: float, share: float = 0.5) -> int:
    """Users from which on a group with its equal part is told from noise: by 95 % of it, of `unit` weights.

    Of counts a cell from zero; of means half of the range; of quantiles a `share` from either end.
    """
    if what == "mean":
        return math.ceil(2 * math.sqrt(2) * SURE * unit * groups)
    if what == "quantiles":
        return math.ceil(SURE * unit * groups / min(share, 1 - share))
    return math.ceil(SURE * unit * groups * cells)
