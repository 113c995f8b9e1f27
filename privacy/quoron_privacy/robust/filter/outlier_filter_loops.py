"""Compiled loops of the outlier filter's calibration: a search over its parameters, and the fixed points of the game.

The search only proposes: `outlier_filter.verify` refuses a wrong proposal, so nothing in it bears on privacy.
"""

import math

from quoron_privacy.kernels.prebuilt import njit

_DEPTHS = 40  # bins of the own user's noise, on the scale of λ


@njit(cache=True)
def propose(  # type: ignore[no-untyped-def]
    size, eta_beta, users, score_error, log_own, log_others, budget, frontier, thresholds
):
    """Best of frontier points × thresholds: (point, F, λ, w1, w2, θ, s, Ξ), point −1 when none is feasible.

    `frontier`: per point e0 and c_mid, the grid of ln μ, and per point ln δ_A, ln δ_B on that grid.
    `thresholds` are fractions of `size`; `budget` is what the average over the own user's noise may cost.
    """
    each, centres, log_mus, same, shifted = frontier
    best = (-1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, math.inf)
    log_budget, logs = math.log(budget), (log_own, log_others)
    for point in range(len(each)):
        others = size - 2 * centres[point] + 1
        # A point whose decisions alone cost more than the budget, or whose cutoff may eat half the cohort, is out.
        if 2 * others <= size or max(same[point, 0], shifted[point, 0]) > log_budget:
            continue
        for fraction in thresholds:
            threshold = fraction * size
            # From here everything of the proposal but s is fixed, and δ falls as s grows: bisection.
            scale, own, other = _tails(threshold, size, others, eta_beta, score_error, logs, each[point])
            if scale < 0:
                continue
            # Ordinary users score so far above the threshold that bad luck filters about c_mid / 10 in a phase.
            unlucky = max(math.log(5.0 * users / centres[point]), 0.0)
            height = (threshold + scale * unlucky + score_error) / size
            if height >= 1:
                continue
            theta = -math.log(height)
            weight = size / (theta * (others + 1))
            top, k1, k2 = threshold - score_error, threshold - own - score_error, threshold - other - score_error
            # Below `low` even the smallest shift is beyond the grid of μ, above `high` even the largest before it.
            low = _shift(top, k2, size, others)[2] / math.exp(log_mus[-1])
            high = _shift(k1, k2, size, others)[2] / math.exp(log_mus[0])
            # Even the least s that is left cannot beat the best proposal so far.
            if low * weight >= best[7]:
                continue
            for _ in range(26):
                middle = math.sqrt(low * high)
                curves = log_mus, same[point], shifted[point]
                cost = _average(middle, top, own, scale, k2, size, others, curves)
                if cost <= budget:
                    high = middle
                else:
                    low = middle
                if low * weight >= best[7]:
                    break
            if high * weight < best[7]:
                best = (point, threshold, scale, own, other, theta, high, high * weight)
    return best


@njit(cache=True)
def _tails(threshold, size, others, eta_beta, score_error, logs, each):  # type: ignore[no-untyped-def]
    """Fixed point of sensitivity → noise scale → tails → shift → sensitivity; scale −1 when a hypothesis fails."""
    # The noise follows the sensitivity, its tails move the levels, and these the sensitivity: from below, until it no
    # longer grows. All three are returned a little larger than they are.
    sensitivity = 1.0
    for _ in range(60):
        scale = (sensitivity + 2 * score_error) / each
        own, other = scale * logs[0], scale * logs[1] + 1 + 2 * score_error
        k1, k2 = threshold - own - score_error, threshold - other - score_error
        if 2 * (k1 - 1) <= size - 1 or k1 + k2 <= size:
            return -1.0, 0.0, 0.0
        rho = _shift(k1, k2, size, others)[2]
        moved = max(1.0, -(size - 1) * math.expm1(-eta_beta * rho / (others + 1))) * (1 + 1e-7)
        if moved <= sensitivity * (1 + 1e-9):
            return scale * (1 + 1e-7), own * (1 + 1e-7), other * (1 + 1e-7)
        sensitivity = moved
    return -1.0, 0.0, 0.0


@njit(cache=True)
def _shift(k1, k2, size, others):  # type: ignore[no-untyped-def]
    """(ρ_A, ρ_B, the larger that applies) at own level k1."""
    both = -math.log(2 * (k1 - 1) / (size - 1) - 1)
    reach = -math.log((k1 + k2) / size - 1)
    chord = reach if reach < 1e-9 else reach / -math.expm1(-reach)
    one = max(0.0, min(reach, chord * (size - k1) / others))
    return both, one, max(both, one)


@njit(cache=True)
def _average(s, level, own, scale, k2, size, others, curves):  # type: ignore[no-untyped-def]
    """E[1{ν ≤ w1} max(δ_A, δ_B)] with interpolated curves and middles of bins: a guess, not a bound."""
    log_mus, same, shifted = curves
    # Bins of the own user's Laplace noise: where it lifts the user, half of the time, it counts as none; else it sinks
    # the user by `depth` times the noise's scale.
    deepest = own / scale
    total = 0.0
    for bin_ in range(_DEPTHS + 1):
        left, right = deepest * (bin_ - 1) / _DEPTHS, deepest * bin_ / _DEPTHS
        weight = 0.5 if bin_ == 0 else 0.5 * (math.exp(-left) - math.exp(-right))
        depth = 0.0 if bin_ == 0 else (left + right) / 2
        both, one, _ = _shift(level - depth * scale, k2, size, others)
        alike = _log_delta(math.log(both / s + 1e-300), log_mus, same)
        total += weight * math.exp(max(alike, _log_delta(math.log(one / s + 1e-300), log_mus, shifted)))
    return total


@njit(cache=True)
def _log_delta(log_mu, log_mus, logs):  # type: ignore[no-untyped-def]
    """Linear interpolation on a uniform grid; the first value below it, ln 1 above."""
    place = (log_mu - log_mus[0]) / (log_mus[1] - log_mus[0])
    if place <= 0:
        return logs[0]
    index = int(place)
    if index >= len(logs) - 1:
        return logs[-1] if place <= len(logs) - 1 + 1e-9 else 0.0
    return logs[index] + (place - index) * (logs[index + 1] - logs[index])


@njit(cache=True)
def solve(current, hit_up, hit_down, values, rare, likely, picks, sweeps):  # type: ignore[no-untyped-def]
    """Fill `values` with the least fixed points, level by level, from below; return the largest residual.

    Row i + 1 of `current` is lattice point i, at first h; row 0 stands for everything below, the last row for
    everything above. Plain loops over arrays of the caller's: slices take seconds to compile.
    """
    points, columns = current.shape[0] - 2, current.shape[1]
    worst = 0.0
    for level in range(len(values)):
        # What a hit is worth does not change while a level is solved. The level below is a valid start.
        for i in range(1, points + 1):
            for c in range(columns):
                hit_up[i, c] = likely * current[i + 1, c]
                hit_down[i, c] = rare * current[i - 1, c]
        # Until the next hit a strategy moves one way along the lattice, or to and fro between two neighbours for ever.
        # The worth of to and fro solves two linear equations; what leads there takes one sweep each way.
        for c in range(columns):
            current[1, c] = max(current[1, c], hit_up[1, c] / likely)  # the point below the lowest is itself
        for i in range(2, points + 1):
            for c in range(columns):
                current[i, c] = max(current[i, c], (hit_up[i, c] + rare * hit_down[i - 1, c]) / (1 - rare * likely))
        rise = 1.0
        for _ in range(sweeps):
            # A test for the odds reaches only upwards for V_r and a test against them only downwards.
            for i in range(1, points + 1):
                for c in range(columns):
                    current[i, c] = max(current[i, c], hit_up[i, c] + rare * current[i - 1, c])
            for i in range(points, 0, -1):
                for c in range(columns):
                    current[i, c] = max(current[i, c], hit_down[i, c] + likely * current[i + 1, c])
            for c in range(columns):
                current[0, c] = current[1, c]
                hit_up[0, c] = 0.0  # a row that nothing else uses: the rise by column, as columns go four at a time
            for i in range(1, points + 1):
                for c in range(columns):
                    up = hit_up[i, c] + rare * current[i - 1, c] - current[i, c]
                    down = hit_down[i, c] + likely * current[i + 1, c] - current[i, c]
                    hit_up[0, c] = max(hit_up[0, c], up, down)
            rise = 0.0
            for c in range(columns):
                rise = max(rise, hit_up[0, c])
            if rise <= 1e-17:
                break
        worst = max(worst, rise)
        for k in range(len(picks)):
            for c in range(columns):
                values[level, k, c] = current[picks[k] + 1, c]
    return worst
