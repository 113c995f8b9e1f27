"""The loops of `soft_filter`: proposals of its numbers, which `verify` checks by other arithmetic, and its mean."""

import math

import numpy as np

from quoron_privacy.kernels.shipped import njit
from quoron_privacy.robust.filter.concentration import Matrix, Vector

_PASS = 2.9  # standard deviations: ordinary data pass the test with probability 0.998
_ORDINARY = np.array([0.05, 0.1, 0.2, 0.3])  # of Vmax: softness of all ordinary users together, expected over a phase


@njit(cache=True)
def propose(size, eta_beta, users, score_error, full, margin, floors, thetas, shares):  # type: ignore[no-untyped-def]
    """(Ξ, f1, θ, share, Vmax, L, Δ_V) with the smallest Ξ; Ξ is infinite when none is feasible. A proposal only."""
    best = (math.inf, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    error = score_error / size
    for floor in floors:
        for theta in thetas:
            # How far above the floor an ordinary user scores, a user of the cohort: with nothing left there is no
            # slope.
            gap = math.exp(-theta) - error - floor
            if gap <= 0:
                continue
            for share in shares:
                for part in _ORDINARY:
                    per_unit = 1 + (margin + _PASS) / (full * math.sqrt(share))
                    limit, steepness, growth, shift = _least_limit(
                        size, eta_beta, users, error, floor, gap, per_unit, part, best[0] * theta * full
                    )
                    if limit > 0:
                        factor = shift / (full * math.sqrt(1 - share)) * size / (theta * (size - limit))
                        if factor < best[0]:
                            best = (factor, floor, theta, share, limit, steepness, 1 + growth)
    return best


@njit(cache=True)
def _least_limit(size, eta_beta, users, error, floor, gap, per_unit, part, ceiling):  # type: ignore[no-untyped-def]
    """Fixed point (Vmax, L, I, ρ(1 + I)) with room in Vmax for the test's margins and ordinary users;
    Vmax = 0 when there is none, or none with a shift below `ceiling`."""
    growth, shift = 0.0, 0.0
    for _ in range(100):
        # The test needs room for Δ_V = 1 + I and its noise; ordinary users use up the share `part` of Vmax.
        limit = (1 + growth) * per_unit / (1 - part)
        if 2 * limit >= size or shift > ceiling:
            break
        steepness = math.log(max(users / (part * limit), 2.0)) / gap
        move = max(1 / size, -math.expm1(-eta_beta * shift / (size - limit))) + 2 * error
        room = 2 * floor - 1 - move
        if room <= 0 or steepness * move > 50:
            break
        new_growth = math.expm1(steepness * move) * limit
        new_shift = -math.log(room) * (1 + new_growth)
        if new_growth <= growth * (1 + 1e-7) + 1e-12 and new_shift <= shift * (1 + 1e-7):
            return limit, steepness, growth, shift
        # A little above, so that the climb ends at or above the fixed point, where `verify` agrees.
        growth, shift = new_growth * (1 + 1e-9), new_shift * (1 + 1e-9)
    return 0.0, 0.0, 0.0, 0.0


@njit(cache=True)
def weighted_sum(gradients: Matrix, shares: Vector) -> Vector:
    """Σ shares_i · gradients_i, shape (d,); rows of no share are not read."""
    total = np.zeros(gradients.shape[1])
    for first in range(0, len(gradients), 512):  # blocks: rounding grows with 512 + B/512, not with B
        part = np.zeros(gradients.shape[1])
        for i in range(first, min(first + 512, len(gradients))):
            if shares[i] > 0.0:
                for k in range(gradients.shape[1]):
                    part[k] += shares[i] * gradients[i, k]
        total += part
    return total
