"""Where the gradients of a round are expected: around the last release, within a radius that follows from constants.

    C_{t+1} = min(C_0, κ √(s² + v_t) + M ‖x_{t+1} - x_t‖)

s is how far users' averages lie from their mean (root mean square), v_t the variance of the last release, M the
smoothness, x_t the points of the questions. All of it is public or released, so nothing of it costs privacy; a wrong s
or M costs accuracy. Source: Bassily & Sun (2023) centre by a crude mean of every round; the last release is free.
"""

import math
from functools import lru_cache

import numpy as np
from scipy.special import chdtri

from quoron_privacy.arrays import Integers, Vector
from quoron_privacy.kernels.on_first_use import OnFirstUse
from quoron_privacy.means.rotation import Signs, random_signs
from quoron_privacy.noise.streams import SeededNoise
from quoron_server.problem import Problem

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


def sgd_variances(
    problem: Problem,
    *,
    smoothness: float,
    rounds: Integers,
    steps: Vector,
    suffixes: Integers,
    samplings: Vector,
    units: Vector,
    spread: float,
    first: float,
) -> Vector:
    """Predicted variance of a release of tracking SGD, `sampling` and d (unit · radius)², mean of the last `suffix`.

    For W numbers of rounds (with samplings and units), each with K steps and S suffixes: shapes (W,), (W, K) and
    (W, S); returns (W, K, S).
    """
    curvature = problem.beliefs.isotropic
    start = problem.start
    means = np.zeros((*steps.shape, suffixes.shape[1]))
    facts = float(curvature or 0.0), problem.distance, start, smoothness, spread, margin(problem.dimension), first
    loops.sgd_variances(facts, rounds, steps, suffixes, samplings, problem.dimension * units**2, means)
    return means


def agd_variances(
    *,
    path: Vector,
    distance: float,
    smoothness: float,
    inverse_step: float,
    sampling: float,
    noise: float,
    spread: float,
    margin: float,
    first: float,
) -> Vector:
    """Return the same for accelerated steps; `path` (T,) says where points lie, 1 at the start; noise is d unit²."""
    out = np.empty(len(path))
    loops.agd_variances(path, distance, smoothness, inverse_step, sampling, noise, spread, margin, first, out)
    return out
