"""Arithmetic of subsampled-lottery#o4: the profile of one release, and δ of T of them, by two independent routes.

Everywhere `table` has shape (R + 1,), `mus` and `chances` (R + 1, M): row r is the mixture of shifts of two cohorts the
larger score of which stands on rung r. Row 0 bears on nothing, as rung 0 is charged with all of its chance.

Statement, proof and what is rounded where: docs/privacy/subsampled-lottery.md.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.kernels.on_first_use import OnFirstUse
from quoron_privacy.robust.lottery import pair_divergence

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

loops = OnFirstUse("quoron_privacy.robust.lottery_loops")


def composed_delta(
    table: Vector, mus: Matrix, chances: Matrix, rate: float, releases: int, typical: float, points: int, epsilon: float
) -> float:
    """δ at ε of the T-fold composition, connecting the dots of the convex profile from above."""
    mass, never, gap = _once(table, mus, chances, rate, typical, points, epsilon)
    visible, edge = _by_transform(mass, never, gap, releases, epsilon)
    return visible + _unseen(mass, never, gap, releases, epsilon, edge)


def lattice(
    table: Vector, mus: Matrix, chances: Matrix, rate: float, typical: float, points: int, epsilon: float
) -> tuple[float, float]:
    """(largest loss tabulated, gap): beyond it the profile is π_0 up to a thousandth, or everything counts as lost.

    Losses far above ε are lost either way, so nothing beyond ε + 4 is worth telling apart.
    """
    limit = table[0] * 1.001
    low, high = 0.0, math.log1p(math.expm1(epsilon + 4) / rate)
    for _ in range(14):
        middle = (low + high) / 2
        inside = _step_profile(np.array([middle]), table, mus, chances)[0] <= limit
        low, high = (low, middle) if inside else (middle, high)
    reach = math.log1p(rate * math.expm1(high))
    return reach, min(max(typical / points, reach / 40_000), reach / (2 * points + 4))


def rough_delta(
    table: Vector, mus: Matrix, chances: Matrix, rate: float, releases: int, typical: float, points: int, epsilon: float
) -> float:
    """`composed_delta` without what wraps around and what rounding loses, for searches."""
    mass, never, gap = _once(table, mus, chances, rate, typical, points, epsilon)
    return _by_transform(mass, never, gap, releases, epsilon)[0]


def second_route(
    table: Vector, mus: Matrix, chances: Matrix, rate: float, releases: int, epsilon: float, reach: float, gap: float
) -> float:
    """The same δ another way: all pairs, none skipped, on the caller's own lattice, composed by dp-accounting."""
    from dp_accounting.pld import pld_pmf  # it brings much of scipy

    top = math.ceil(reach / gap) + 1
    sizes = np.arange(top + 1) * gap
    worst = [table[0]] * len(sizes)
    for place, value in enumerate(np.log1p(np.expm1(sizes) / rate)):
        for p, q in ((table[1:], table[1:]), (table[1:], table[:-1]), (table[:-1], table[1:])):
            found = pair_divergence(float(value), p, q, mus[1:], chances[1:])
            worst[place] = max(worst[place], found.max(initial=0.0))
    upper = rate * np.array(worst) * (1 + 1e-9)
    # The family of pairs is closed under swapping, so the profile below ε = 0 is the mirror of the one above.
    lower = (-np.expm1(-sizes) + np.exp(-sizes) * upper)[:0:-1]
    both = np.minimum.accumulate(np.minimum(np.concatenate([lower, upper]), 1.0))
    once: Any = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(gap, -top, top, both)
    composed = once.to_dense_pmf().self_compose(releases, 1e-10 * float(both[-1]) + 1e-13)
    return float(composed.get_delta_for_epsilon(epsilon))


def _once(
    table: Vector, mus: Matrix, chances: Matrix, rate: float, typical: float, points: int, epsilon: float
) -> tuple[Vector, float, float]:
    """(masses, mass at infinity, gap) of one release, no pair of neighbouring rungs of which is worse."""
    reach, gap = lattice(table, mus, chances, rate, typical, points, epsilon)
    inner = np.log1p(np.expm1(np.arange(math.ceil(reach / gap) + 1) * gap) / rate)
    upper = rate * _step_profile(inner, table, mus, chances) * (1 + 1e-14)
    return *_masses(np.minimum.accumulate(np.minimum(upper, 1.0)), gap), gap


def _step_profile(epsilons: Vector, table: Vector, mus: Matrix, chances: Matrix) -> Vector:
    """f at each ε >= 0: the largest divergence over all pairs of neighbouring rungs, rounded up."""
    found = np.empty(len(epsilons))
    loops.step_profile(epsilons, table, np.log(table[1:] / table[:-1]), mus, chances, found)
    return found


def _masses(upper: Vector, gap: float) -> tuple[Vector, float]:
    """(masses at losses −top·gap, …, top·gap; mass at infinity) of the pair whose profile joins `upper` and its mirror.

    E(α) = Σ P_i (1 − α/α_i)_+ has a kink of size P_i/α_i at α_i. The slope before α = 1 follows from symmetry, and so
    do the masses below 0.
    """
    ratios = np.exp(np.arange(len(upper)) * gap)
    slopes = np.diff(upper, append=upper[-1]) / np.append(np.diff(ratios), 1.0)
    before = np.append(upper[0] - slopes[0] - 1, slopes[:-1])
    heavy = np.maximum(ratios * (slopes - before), 0.0)
    return np.concatenate([(heavy / ratios)[:0:-1], heavy]), float(upper[-1])


def _by_transform(mass: Vector, never: float, gap: float, releases: int, epsilon: float) -> tuple[float, float]:
    """(δ at ε of the composition but for what wraps around, upper end of the window), by one Fourier transform."""
    places = np.arange(len(mass)) - len(mass) // 2
    losses = places * gap
    mean, spread = releases * float(mass @ losses), math.sqrt(releases * float(mass @ losses**2))
    half = max(abs(mean) + 10 * spread + epsilon, float(losses[-1]))
    window = 1 << math.ceil(math.log2(2 * half / gap + 2))
    wrapped = np.zeros(window)
    wrapped[places % window] = mass
    total = np.fft.irfft(_power(np.fft.rfft(wrapped), releases), window)
    loss = np.arange(math.floor(epsilon / gap) + 1, window // 2) * gap
    visible = float(total[window // 2 - len(loss) : window // 2] @ -np.expm1(epsilon - loss))
    return visible - math.expm1(releases * math.log1p(-never)), window // 2 * gap


def _unseen(mass: Vector, never: float, gap: float, releases: int, epsilon: float, edge: float) -> float:
    """At most what ends above the window, whose upper end is `edge`, and what rounding lost.

    What ends above comes back at the window's lower end. Chernoff bounds it; mass lost to rounding counts in full.
    """
    losses = (np.arange(len(mass)) - len(mass) // 2) * gap
    tilts = np.geomspace(0.1, 100.0, 40) / max(edge, losses[-1])
    logs = [math.log(float(np.exp(tilt * (losses - losses[-1])) @ mass)) + tilt * losses[-1] for tilt in tilts]
    wrapped = math.exp(min(0.0, float(np.min(releases * np.array(logs) - tilts * edge))))
    return wrapped + releases * max(1 - never - float(mass.sum()), 0.0)


def _power(values: NDArray[np.complex128], exponent: int) -> NDArray[np.complex128]:
    """Each value to a positive integer power, by squaring: ten times as fast as numpy's power of complex numbers."""
    squared = values.copy()
    found = values if exponent % 2 else np.ones_like(values)
    while exponent := exponent // 2:
        squared *= squared
        if exponent % 2:
            found = found * squared
    return found
