"""The loops of `lottery`, and of `laplace_test` and compositions beside it. They propose; `verify_one_shot` decides."""

import math

import numpy as np
from numba import njit

_GRID = 2.0**53  # chances are whole multiples of 2⁻⁵³: a coin of exactly that chance can be tossed


@njit(cache=True)
def delta_gauss(epsilon, mu):  # type: ignore[no-untyped-def]
    """Plain double evaluation of the Gaussian profile; no slack."""
    if epsilon < 0:
        return -math.expm1(epsilon) + math.exp(epsilon) * delta_gauss(-epsilon, mu)
    near, far = (epsilon / mu - mu / 2) / math.sqrt(2.0), (epsilon / mu + mu / 2) / math.sqrt(2.0)
    if near > 26.0:
        return 0.0
    second = 0.5 * math.exp(epsilon) * math.erfc(far) if far < 26.0 else 0.0
    return max(0.5 * math.erfc(near) - second, 0.0)


@njit(cache=True)
def profile(epsilon, mus, chances):  # type: ignore[no-untyped-def]
    """Profile of the mixture of shifts."""
    total = 0.0
    for index in range(len(mus)):
        total += chances[index] * delta_gauss(epsilon, mus[index])
    return total


@njit(cache=True)
def ladder(epsilon, delta, first, mus, chances, most, goal):  # type: ignore[no-untyped-def]
    """Chances π_0 = first, π_1, … each the largest that outlier-mean#o3 admits after the last; at most `most` + 1.

    Ends early once `goal` is reached. Both conditions hold from the old chance up to some largest new one, so
    bisection finds it.
    """
    table = np.empty(most + 1)
    # Chances on a grid, rounded down: what is planned is what is drawn, and verified, to the bit.
    table[0] = math.floor(first * _GRID) / _GRID
    for rung in range(most):
        old = table[rung]
        if old >= goal:
            return table[: rung + 1]
        low, high = 0.0, min(-math.log(old), epsilon + 50.0)
        for _ in range(48):
            step = 0.5 * (low + high)
            new = min(old * math.exp(step), 1.0)
            # Both orders of the worlds: the higher chance first, then the lower one, whose silence is more likely.
            good = new * profile(epsilon - step, mus, chances) <= delta
            if good:
                lost = max((1 - old) - math.exp(epsilon) * (1 - new), 0.0)
                good = lost <= delta and lost + old * profile(epsilon + step, mus, chances) <= delta
            if good:
                low = step
            else:
                high = step
        table[rung + 1] = max(math.floor(min(old * math.exp(low), 1.0) * _GRID) / _GRID, old)
        # The ladder no longer climbs: longer would not be higher.
        if table[rung + 1] <= old * (1 + 1e-12):
            return table[: rung + 1]
    return table


@njit(cache=True)
def step_profile(epsilons, table, steps, mus, chances, found):  # type: ignore[no-untyped-def]
    """Fills `found` with f at each ε >= 0: the largest divergence over all pairs of neighbouring rungs, rounded up.

    `steps` are the logarithms of the ratios of neighbouring chances. The maximum is exact: rungs are skipped, alone or
    in blocks, only where a bound shows that they cannot matter.
    """
    last = len(table) - 1
    width = max(1, int(math.sqrt(last + 1.0)))
    for place in range(len(epsilons)):
        epsilon = epsilons[place]
        growth = math.exp(epsilon)
        # The lower chance first: once its silence counts for nothing, equal chances are worse. The divergence at ε
        # itself bounds that of every rung; the rung of the largest bound is looked at before the others.
        alike = _upper(epsilon, mus, chances)
        best = max(table[0], table[last] * alike)
        first, most = -1, best
        for rung in range(last):
            silent = (1 - table[rung]) - growth * (1 - table[rung + 1])
            if silent > -1e-15:
                bound = max(silent, 0.0) + 1e-15 + table[rung] * alike
                if bound > most:
                    first, most = rung, bound
        if first >= 0:
            best = max(best, most + table[first] * (_upper(epsilon + steps[first], mus, chances) - alike))
            for rung in range(last):
                silent = (1 - table[rung]) - growth * (1 - table[rung + 1])
                value = max(silent, 0.0) + 1e-15
                if silent > -1e-15 and value + table[rung] * alike > best:
                    best = max(best, value + table[rung] * _upper(epsilon + steps[rung], mus, chances))
        # The higher chance first: one rung of every block shows where the largest may be.
        for rung in range(width // 2, last, width):
            best = max(best, table[rung + 1] * _upper(epsilon - steps[rung], mus, chances))
        for start in range(0, last, width):
            end, widest = min(start + width, last), 0.0
            if table[end] <= best:
                continue
            for rung in range(start, end):
                widest = max(widest, steps[rung])
            largest = _upper(epsilon - widest, mus, chances)
            for rung in range(start, end):
                if table[rung + 1] * largest > best:
                    best = max(best, table[rung + 1] * _upper(epsilon - steps[rung], mus, chances))
        found[place] = min(best * (1 + 1e-11), 1.0)


@njit(cache=True)
def _upper(epsilon, mus, chances):  # type: ignore[no-untyped-def]
    """`profile`, with more than the rounding of its two terms added."""
    total = 0.0
    for index in range(len(mus)):
        near = (abs(epsilon) / mus[index] - mus[index] / 2) / math.sqrt(2.0)
        slack = 1e-12 * math.erfc(min(near, 26.0)) + 1e-300
        total += chances[index] * (delta_gauss(epsilon, mus[index]) + slack)
    return total


@njit(cache=True)
def laplace_worst(epsilon, each, mus, chances, cells):  # type: ignore[no-untyped-def]
    """sup over v of p(v)·H(ε − ln(p(v)/p(v + each))), p the upper tail of a standard Laplace; rounded up.

    p falls and the ratio rises in v, so a cell is bounded by the first at its left and the second at its right end.
    Above 0 the ratio is e^each and the left end is the worst; below −each − 45 nothing changes any more.
    """
    ends = np.linspace(-each - 45.0, 0.0, 4 * cells + 1)
    near = np.linspace(-each - 8.0, 0.0, cells + 1)
    ends = np.concatenate((ends[ends < near[0]], near))
    worst = _upper(epsilon, mus, chances)
    for place in range(len(ends) - 1):
        left, right = ends[place], ends[place + 1]
        ratio = _laplace_tail(right) / _laplace_tail(right + each)
        worst = max(worst, _laplace_tail(left) * _upper(epsilon - math.log(ratio) - 1e-13, mus, chances))
    top = 0.5 * _upper(epsilon - each, mus, chances)
    return max(worst, top) * (1 + 1e-12)


@njit(cache=True)
def _laplace_tail(v):  # type: ignore[no-untyped-def]
    """P(Laplace(1) >= v)."""
    return 0.5 * math.exp(-v) if v > 0 else 1 - 0.5 * math.exp(v)
