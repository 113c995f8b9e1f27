"""Where the users of a round of `tracking-srgd` are expected: centre and radius, from released values and constants.

    warm-up                c = g + χ H dx      C = min(C_0, κ √(s² (1 + 1/B) + e) + lag)
    main round j >= 1      c = g + j χ H dx    the same with 3 C_0, from j = 2 with s² + ¼ j² p dxᵀ H dx / m
    after a round          s² from the mean length of rows less e, κ from the share of them beyond ⅔ C

dx is the step just made, H the private curvature model, g the last gradient estimate and e about its variance,
s the private spread of users' averages, κ how far they reach, lag = τ ‖dx‖_H (times j) how wrong χ may be, p the number
of features. Lengths of gradients are those of the dual norm √(gᵀ H⁻¹ g). Nothing here
sees un-noised data, so nothing here can cost privacy (docs/privacy/tracking-srgd.md#t1); the values only
decide the utility.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.means.norm_counts import MeanAndCounts
from quoron_privacy.prefix.factorisations import sqrt_coefficients
from quoron_server.algorithms.tracking.metric import Metric

Vector = NDArray[np.float64]

CENTRE_SHARE = 0.7  # χ: how much of H dx the gradient is taken to change
LAG_SHARE = 0.5  # τ
MAIN_FACTOR = 3.0  # a main round's largest radius over C_0: its rows are differences weighted by the round
CROWDED = 0.93  # a mean length over the radius from which most users are beyond it
SPREAD_GAIN = 0.7  # of what the last round says of s
MARGIN_GAIN = 0.5  # how fast κ moves, at most, as a logarithm
MARGINS = 1.0, 6.0  # κ is between them
SMALLEST = 1e-6  # a radius is at least this share of C_0


@dataclass(frozen=True, slots=True, eq=False)
class Aim:
    """One round's centre and radii, all public."""

    centre: Vector  # c, (d,), without ridge
    radius: float  # C: rows are clipped to it, and noise is scaled by it
    known: float  # mean square distance of users that is not their spread: the centre's error, and what a step changes


@dataclass(frozen=True, slots=True, eq=False)
class Progress:
    """What is public between two rounds."""

    moved: Vector  # dx, (d,)
    gradient: Vector  # g: the last estimate, without ridge, (d,)
    error: float  # e
    spread: float  # s


def first_aim(dimension: int, first_radius: float) -> Aim:
    """Before anything is known: around zero, as far as public constants allow."""
    return Aim(np.zeros(dimension), first_radius, 0.0)


def aim(
    known: Progress,
    metric: Metric,
    *,
    weight: int,
    divisor: int,
    items: int,
    features: int,
    first_radius: float,
    margin: float,
    main: bool,
) -> Aim:
    """The aim of a round whose rows are gradients (weight 1) or differences weighted by j = `weight` >= 2."""
    ahead, far = metric.apply(known.moved), metric.length(known.moved)
    change = 0.25 * weight**2 * features * far**2 / items if weight > 1 else 0.0
    spread = known.spread**2 + change
    expected = margin * float(np.sqrt(spread * (1 + 1 / divisor) + known.error))
    lag = weight * LAG_SHARE * far
    largest = first_radius * (MAIN_FACTOR if main else 1.0)
    radius = expected + lag
    radius = largest if not np.isfinite(radius) else min(largest, max(radius, SMALLEST * first_radius))
    return Aim(known.gradient + weight * CENTRE_SHARE * ahead, radius, change + known.error)


def learnt(
    spread: float,
    margin: float,
    released: MeanAndCounts,
    *,
    radius: float,
    known: float,
    present: float,
    deviation: float,
    target: float,
    largest: float,
) -> tuple[float, float]:
    """(s, κ) after a round, from what its release told of users' distances from the centre, shares of the divisor.

    The mean length over the radius says how far users were; less what is `known` of that it is their spread. κ moves
    until a share `target` of those `present` is beyond ⅔ of the radius. s is in [SMALLEST · largest, largest].
    """
    reached, beyond = 1 - released.beyond / present, 1 - released.within / present
    distance = radius * max(reached, 0.1) if reached < CROWDED else 1.5 * radius
    own = max(distance**2 - known, 0.2 * distance**2)
    spread = spread ** (1 - SPREAD_GAIN) * float(np.sqrt(own)) ** SPREAD_GAIN
    surprise = min(max((beyond - target) / max(target, deviation), -1.0), 1.0)
    margin = margin * float(np.exp(MARGIN_GAIN * surprise))
    return min(max(spread, SMALLEST * largest), largest), min(max(margin, MARGINS[0]), MARGINS[1])


def prefix_variance(radii: Vector, seed_scale: float, dimension: int) -> float:
    """E ‖noise‖² of the last sum when round i's row noise was scaled by radii[i]: d σ² Σ_k (Σ_i C_i a_{i-k})².

    `a` is the first column of the inverse square root; other factorisations are near enough for a radius.
    """
    rounds = len(radii)
    inverse = sqrt_coefficients(rounds)[1]
    left = [float(radii[k:] @ inverse[: rounds - k]) for k in range(rounds)]
    return dimension * seed_scale**2 * float(np.sum(np.square(left)))
