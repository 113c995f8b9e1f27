"""Where the users of a round of `tracking-srgd` are expected: centre and radius, from released values and constants.

    warm-up                c = g + χ H dx      C = min(C_0, q + lag),    q = κ √(s² (1 + 1/B) + e)
    main round j >= 1      c = g + j χ H dx    C = min(3 C_0, q + lag),  from j = 2 with s² + ¼ j² φ₂ R² dxᵀ H dx / m

dx is the step just made, H the private curvature model, g the last gradient estimate and e about its variance,
s the private spread of users' averages, lag = τ ‖H dx‖ (times j) how wrong χ may be. Nothing here sees un-noised data,
so nothing here can cost privacy (docs/privacy/tracking-srgd.md, theorem T1); the values only decide the utility.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.prefix.factorisation import sqrt_coefficients
from quoron_server.algorithms.tracking.metric import Metric

Vector = NDArray[np.float64]

CENTRE_SHARE = 0.7  # χ: how much of H dx the gradient is taken to change
LAG_SHARE = 0.5  # τ
MAIN_FACTOR = 3.0  # a main round's largest radius over C_0: its rows are differences weighted by the round
SMALLEST = 1e-6  # a radius is at least this share of C_0


@dataclass(frozen=True, slots=True, eq=False)
class Aim:
    """One round's centre and radii, all public."""

    centre: Vector  # c, (d,), without ridge
    radius: float  # C: rows are clipped to it, and noise is scaled by it
    inner: float  # q: what the cells are measured against
    lag: float


@dataclass(frozen=True, slots=True, eq=False)
class Progress:
    """What is public between two rounds."""

    moved: Vector  # dx, (d,)
    gradient: Vector  # g: the last estimate, without ridge, (d,)
    error: float  # e
    spread: float  # s


def first_aim(dimension: int, first_radius: float) -> Aim:
    """Before anything is known: around zero, as far as public constants allow."""
    return Aim(np.zeros(dimension), first_radius, first_radius, 0.0)


def aim(
    known: Progress,
    metric: Metric,
    *,
    weight: int,
    divisor: int,
    items: int,
    item_smoothness: float,
    first_radius: float,
    margin: float,
    main: bool,
) -> Aim:
    """The aim of a round whose rows are gradients (weight 1) or differences weighted by j = `weight` >= 2."""
    ahead = metric.apply(known.moved)
    change = 0.25 * weight**2 * item_smoothness * metric.length(known.moved) ** 2 / items if weight > 1 else 0.0
    spread = known.spread**2 + change
    inner = margin * float(np.sqrt(spread * (1 + 1 / divisor) + known.error))
    lag = weight * LAG_SHARE * float(np.linalg.norm(ahead))
    largest = first_radius * (MAIN_FACTOR if main else 1.0)
    radius = inner + lag
    radius = largest if not np.isfinite(radius) else min(largest, max(radius, SMALLEST * first_radius))
    return Aim(known.gradient + weight * CENTRE_SHARE * ahead, radius, inner if np.isfinite(inner) else largest, lag)


def prefix_variance(radii: Vector, seed_scale: float, dimension: int) -> float:
    """E ‖noise‖² of the last sum when round i's row noise was scaled by radii[i]: d σ² Σ_k (Σ_i C_i a_{i-k})².

    `a` is the first column of the inverse square root; other factorisations are near enough for a radius.
    """
    rounds = len(radii)
    inverse = sqrt_coefficients(rounds)[1]
    left = [float(radii[k:] @ inverse[: rounds - k]) for k in range(rounds)]
    return dimension * seed_scale**2 * float(np.sum(np.square(left)))
