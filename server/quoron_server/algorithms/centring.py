"""Where the gradients of a round are expected: around the last release, within a radius that follows from constants.

    C_{t+1} = min(C_0, κ √(s² + v_t) + M ‖x_{t+1} - x_t‖)

s is how far users' averages lie from their mean (root mean square), v_t the variance of the last release, M the
smoothness, x_t the points of the questions. All of it is public or released, so nothing of it costs privacy; a wrong s
or M costs accuracy. Source: Bassily & Sun (2023) centre by a crude mean of every round; the last release is free.
"""

import math
from functools import lru_cache

from scipy.special import chdtri

from quoron_privacy.kernels.on_first_use import OnFirstUse
from quoron_privacy.means.rotation import Signs, random_signs
from quoron_privacy.noise.streams import SeededNoise

loops = OnFirstUse("quoron_server.algorithms.centring_loops")

QUANTILE = 0.98  # of a χ² over its mean: how far κ reaches


@lru_cache(maxsize=64)
def margin(dimension: int) -> float:
    """κ: a high quantile of a user's distance over its root mean square, for users spread in ten directions."""
    degrees = min(dimension, 10)
    return math.sqrt(float(chdtri(degrees, 1 - QUANTILE)) / degrees)


@lru_cache(maxsize=4)
def public_signs(seed: int, step: int, dimension: int) -> Signs:
    """Return the rotation's signs of one step, shape (d,): public randomness, a stream of its own. Read-only."""
    signs = random_signs(dimension, SeededNoise(seed).stream("public signs", step))
    signs.setflags(write=False)
    return signs


def next_radius(spread: float, variance: float, drift: float, margin: float, first: float) -> float:
    """Return the radius of the next round; `drift` is M ‖x_{t+1} - x_t‖."""
    return float(loops.next_radius(spread, variance, drift, margin, first))
