"""Public groups of users with a sum each, and the coordinatewise median of their means: one vandal moves no model.

    >>> [round(noise_factor(groups), 2) for groups in (1, 3, 5)]
    [1.0, 2.01, 2.68]
    >>> median(np.array([[1.0, 5.0], [2.0, 4.0], [1e9, -1e9]])).tolist()
    [2.0, 4.0]

A user is in one group, so a release of every group costs what one release does. Statement and proof:
docs/privacy/two-servers.md#ts6.
"""

from functools import cache
from math import comb, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy import integrate, stats

from quoron_privacy.errors import ConfigError, count

Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]


def median(means: Matrix) -> Vector:
    """The middle of every coordinate of released means, (groups, d): of an even number the mean of the middle two."""
    if means.ndim != 2 or not len(means) or not np.isfinite(means).all():
        raise ConfigError(f"Expected finite means, one row a group, got shape {means.shape}.")
    made: Vector = np.median(means, axis=0)
    return made


@cache
def noise_factor(groups: int) -> float:
    """Noise of the median of so many means of equal groups, over that of one mean of all; odd numbers of groups.

    √(∫ x² f(x) dx) · groups, f the density of the middle one of so many standard normal variables.
    """
    count(groups=groups)
    if groups % 2 == 0:
        raise ConfigError(f"Expected an odd number of groups, got groups={groups}.")
    half = groups // 2
    chances = comb(groups, half) * (half + 1)

    def density(x: float) -> float:
        below = float(stats.norm.cdf(x))
        return x * x * chances * (below * (1 - below)) ** half * float(stats.norm.pdf(x))

    variance, _ = integrate.quad(density, -12, 12)
    return groups * sqrt(variance)
