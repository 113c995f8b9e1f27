"""The loops of `smooth_test`, of `laplace_gate` and of compositions. They propose; `verify_one_shot` decides."""

import math

import numpy as np

from quoron_privacy.kernels.prebuilt import njit

_GRID = 2.0**53  # chances are whole multiples of 2⁻⁵³: a coin of exactly that chance can be tossed


@njit(cache=True)
def delta_gauss(epsilon, mu):  # type: ignore[no-untyped-def]
    """Plain double evaluation of the Gaussian profile, no slack; and erfc of its nearer end, 0 beyond 26."""
    size, found, tail = abs(epsilon), 0.0, 0.0
    near, far = (size / mu - mu / 2) / math.sqrt(2.0), (size / mu + mu / 2) / math.sqrt(2.0)
    if near <= 26.0:
        tail = math.erfc(near)
        found = max(0.5 * tail - (0.5 * math.exp(size) * math.erfc(far) if far < 26.0 else 0.0), 0.0)
    return found if epsilon >= 0 else -math.expm1(epsilon) + math.exp(epsilon) * found, tail


@njit(cache=True)
def profile(epsilon, mu):  # type: ignore[no-untyped-def]
    """The same with more than the rounding of its two terms."""
    value, tail = delta_gauss(epsilon, mu)
    return value + (1e-12 * tail + 1e-300)


@njit(cache=True)
def ladder(epsilon, delta, first, mus, goal):  # type: ignore[no-untyped-def]
    """Chances π_0 = first, π_1, … each the largest that outlier-mean#o3 admits after the last, one for each of `mus`.

    Number r is of pairs whose larger score stands on level r; that of 0 is never read. Ends early at `goal`.
    """
    most = len(mus) - 1
    table = np.empty(most + 1)
    # Chances on a grid, rounded down: what is planned is what is drawn, and verified, to the bit.
    table[0] = math.floor(first * _GRID) / _GRID
    for level in range(most):
        old = table[level]
        if old >= goal:
            return table[: level + 1]
        step = _largest_step(epsilon, delta, old, mus[level + 1])
        table[level + 1] = max(math.floor(min(old * math.exp(step), 1.0) * _GRID) / _GRID, old)
        # The ladder no longer climbs: above, where shifts are smaller, it would; a longer one starts elsewhere.
        if table[level + 1] <= old * (1 + 1e-12):
            return table[: level + 1]
    return table


@njit(cache=True)
def _largest_step(epsilon, delta, old, mu):  # type: ignore[no-untyped-def]
    """ln of the largest ratio of a new chance to the old one. Both conditions hold up to it and fail beyond.

    By false position on the logarithm of the worse of both, with the Illinois rule; ends on the side where they hold.
    """
    low, high = 0.0, min(-math.log(old), epsilon + 50.0)
    at_low, at_high = _excess(epsilon, delta, old, low, mu), _excess(epsilon, delta, old, high, mu)
    if at_high <= 0 or at_low > 0:
        return high if at_high <= 0 else 0.0
    last = 0
    for turn in range(80):
        share = at_low / (at_low - at_high)
        middle = low + (high - low) * (share if turn % 4 < 3 and 0 < share < 1 else 0.5)
        here = _excess(epsilon, delta, old, middle, mu)
        if here > 0:
            high, at_high, at_low = middle, here, at_low * (0.5 if last == 1 else 1.0)
            last = 1
        else:
            low, at_low, at_high = middle, here, at_high * (0.5 if last == -1 else 1.0)
            last = -1
            if here > -1e-9:
                break
        if high - low <= 1e-13 * high:
            break
    return low


@njit(cache=True)
def _excess(epsilon, delta, old, step, mu):  # type: ignore[no-untyped-def]
    """ln of the worse order's divergence over δ: the higher chance first, or the lower one with more silence."""
    new = min(old * math.exp(step), 1.0)
    worst = new * delta_gauss(epsilon - step, mu)[0]
    silent = max((1 - old) - math.exp(epsilon) * (1 - new), 0.0)
    if silent > 0:  # else it is below the first
        worst = max(worst, silent + old * delta_gauss(epsilon + step, mu)[0])
    return math.log(max(worst, 1e-300) / delta)


@njit(cache=True)
def step_profile(epsilons, table, steps, mus, found):  # type: ignore[no-untyped-def]
    """Fill `found` with f at each ε >= 0: the largest divergence over all pairs of neighbouring levels, rounded up.

    `steps` are the logarithms of the ratios of neighbouring chances; number r of `mus` is for pairs whose larger score
    stands on level r. Chances climb and shifts fall with r, so a range of levels is halved only where its last chance,
    at its first shift and the widest step from there on, may be above the largest value so far. Equal chances π_r are
    below the pair of π_{r-1} and π_r.
    """
    last = len(table) - 1
    widest = steps.copy()
    for level in range(last - 2, -1, -1):
        widest[level] = max(widest[level], widest[level + 1])
    top = last  # the row of the largest value at the last place, near which that of the next one is
    ends, width = np.empty((64, 2), np.int64), max(1, int(math.sqrt(last + 1.0)))
    for place in range(len(epsilons)):
        epsilon = epsilons[place]
        growth = math.exp(epsilon)
        best, waiting = table[0], 0
        if last > 0:
            ends[0, 0], ends[0, 1], waiting = 0, last, 1
            best = max(best, table[top] * profile(epsilon - steps[top - 1], mus[top]))
        # The higher chance first.
        while waiting:
            waiting -= 1
            start, end = ends[waiting]
            if table[end] <= best:
                continue
            bound = table[end] * profile(epsilon - widest[start], mus[start + 1])
            if bound <= best:
                continue
            if end - start > 1:
                middle = (start + end) // 2
                ends[waiting, 0], ends[waiting, 1] = start, middle
                ends[waiting + 1, 0], ends[waiting + 1, 1] = middle, end
                waiting += 2
                continue
            value = table[end] * profile(epsilon - steps[start], mus[end])
            if value > best:
                best, top = value, end
        # The lower chance first: once its silence counts for nothing, equal chances are worse.
        alike, until = 1.0, 0  # the divergence at ε itself of a row that is no higher bounds that of levels up to here
        for level in range(last):
            silent = (1 - table[level]) - growth * (1 - table[level + 1])
            value, row = max(silent, 0.0) + 1e-15, level + 1
            if silent > -1e-15 and value + table[level] > best:
                if level >= until:
                    alike, until = profile(epsilon, mus[row]), level + width
                if value + table[level] * alike > best:
                    best = max(best, value + table[level] * profile(epsilon + steps[level], mus[row]))
        found[place] = min(best * (1 + 1e-11), 1.0)


@njit(cache=True)
def laplace_worst(epsilon, each, mus, chances, cells):  # type: ignore[no-untyped-def]
    """sup over v of p(v)·H(ε − ln(p(v)/p(v + each))), p the upper tail of a standard Laplace; rounded up.

    p falls and the ratio rises in v, so a cell is bounded by the first at its left and the second at its right end.
    Above 0 the ratio is e^each and the left end is the worst; below −each − 45 nothing changes any more.
    """
    ends = np.linspace(-each - 45.0, 0.0, 4 * cells + 1)
    near = np.linspace(-each - 8.0, 0.0, cells + 1)
    ends = np.concatenate((ends[ends < near[0]], near))
    worst = _mixture(epsilon, mus, chances)
    for place in range(len(ends) - 1):
        left, right = ends[place], ends[place + 1]
        ratio = _laplace_tail(right) / _laplace_tail(right + each)
        worst = max(worst, _laplace_tail(left) * _mixture(epsilon - math.log(ratio) - 1e-13, mus, chances))
    top = 0.5 * _mixture(epsilon - each, mus, chances)
    return max(worst, top) * (1 + 1e-12)


@njit(cache=True)
def _mixture(epsilon, mus, chances):  # type: ignore[no-untyped-def]
    """Profile of a mixture of shifts."""
    total = 0.0
    for index in range(len(mus)):
        total += chances[index] * profile(epsilon, mus[index])
    return total


@njit(cache=True)
def _laplace_tail(v):  # type: ignore[no-untyped-def]
    """P(Laplace(1) >= v)."""
    return 0.5 * math.exp(-v) if v > 0 else 1 - 0.5 * math.exp(v)
