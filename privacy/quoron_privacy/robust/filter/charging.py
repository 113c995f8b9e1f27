"""What a phase of the outlier filter costs: an adaptive series of tests of which only hits count, and one release.

A test's two outcomes are each within e^±e0 of one another between neighbouring datasets. The series stops at the
`hits`-th hit; unless it stopped, one μ-GDP release is made. Calibration asks `looked_up`: the exact value of an
adversary's game (`game_values`), averaged over the hidden cutoff by the first account. Verification asks `recounted`:
value iteration from above (`recounted_values`), the law that is drawn and the second account. They share nothing.

Source: docs/privacy/outlier-filter.md#f1 and outlier-filter.md#f3.
"""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.accounts import gdp, losses
from quoron_privacy.accounts.gdp import delta_for
from quoron_privacy.arrays import Vector
from quoron_privacy.errors import VerificationError, count, positive
from quoron_privacy.kernels.on_first_use import OnFirstUse
from quoron_privacy.robust.filter.thresholds import HiddenCutoff, cutoff_law

_MUS_PER_FOLD = 30  # μ is rounded up to a grid of this many points for each factor e
# Well beyond what (ε, δ) allows: a shift met with probability 1e-5 may cost 1e-2 of its own.
_BELOW, _ABOVE = 2.5, 2.0

loops = OnFirstUse("quoron_privacy.robust.filter.outlier_filter_loops")

LARGEST_RESIDUAL = 1e-15
_SWEEPS = 400
_AGREED = 1e-11  # of a value, and what a level of the recount may be above its fixed point


def mu_grid(full: float, per_fold: int) -> Vector:
    """From far below to far above what (ε, δ) allows of a plain release, `full`."""
    grid: Vector = full * np.exp(np.linspace(-_BELOW, _ABOVE, round((_BELOW + _ABOVE) * per_fold) + 1))
    return grid


def cutoff_curves(epsilon: float, each: float, centre: int, lattice: int, mus: Vector) -> tuple[Vector, Vector]:
    """δ_A(μ), δ_B(μ) of outlier-filter#f1: the cutoff's law the same in both worlds, or shifted by one between them."""
    law = cutoff_law(centre, each * lattice)
    hits, offsets = 2 * centre - 1, (-lattice, 0, lattice)
    values = game_values(epsilon=epsilon, each=each, hits=hits, offsets=offsets, mus=mus)
    same = law @ values[:, 1]
    # Between e and e + 1 the law falls or rises by e^{ε_c}; the end that the shift uncovers is charged in full.
    rising = np.arange(1, 2 * centre - 1) < centre
    upward = np.where(rising[:, None], values[:-1, 0], values[:-1, 2])
    downward = np.where(rising[:, None], values[:-1, 2], values[:-1, 0])
    shifted = np.maximum(law[-1] + law[:-1] @ upward, law[0] + law[1:] @ downward)
    return same, shifted


def looked_up(
    epsilon: float, delta: float, each: float, centre: int, lattice: int, mus: Vector
) -> tuple[Vector, Vector]:
    """δ_A, δ_B at each μ rounded up to a grid, and 1 beyond it."""
    grid, *tables = _tables(epsilon, gdp.mu_for(epsilon, delta), each, centre, lattice)
    place = np.searchsorted(grid, mus, side="left")
    same, shifted = (np.append(table, 1.0)[place] for table in tables)
    return same, shifted


@lru_cache(maxsize=64)
def _tables(epsilon: float, full: float, each: float, centre: int, lattice: int) -> tuple[Vector, Vector, Vector]:
    return (grid := mu_grid(full, _MUS_PER_FOLD)), *cutoff_curves(epsilon, each, centre, lattice, grid)


def recounted(
    epsilon: float, delta: float, each: float, centre: int, lattice: int, mus: Vector
) -> tuple[Vector, Vector]:
    """Return the same on a grid that is larger by 1e-10, by a route of its own."""
    full, last = _full(epsilon, delta) * (1 + 1e-10), round(_ABOVE * _MUS_PER_FOLD)
    place = np.ceil(_MUS_PER_FOLD * np.log(np.maximum(mus / full, math.exp(-_BELOW))))
    needed, where = np.unique(np.minimum(place, last + 1), return_inverse=True)
    tables = _recounted(epsilon, delta, each, centre, lattice, full, tuple(needed.tolist()))
    same, shifted = (np.where(needed > last, 1.0, table)[where] for table in tables)
    return same, shifted


@lru_cache(maxsize=64)
def _recounted(
    epsilon: float, delta: float, each: float, centre: int, lattice: int, full: float, places: tuple[float, ...]
) -> tuple[Vector, Vector]:
    mus = full * np.exp(np.array(places) / _MUS_PER_FOLD) * (1 + 1e-12)
    drawn = HiddenCutoff(centre, each * lattice).weights  # whole numbers, as the draw has them
    largest, whole = len(drawn), sum(drawn)
    law = [weight / whole for weight in drawn]
    values = recounted_values(
        epsilon=epsilon, each=each, hits=largest, offsets=(-lattice, 0, lattice), mus=mus, near=delta
    )
    same = sum(chance * values[hits, 1] for hits, chance in enumerate(law))
    worlds = []
    for one, other in ((0, 1), (1, 0)):  # the cutoff is larger by one in the second world, or in the first
        known = np.full(len(mus), law[-1] if one == 0 else law[0])  # by a cutoff that the other world has not
        for hits in range(largest - 1):
            here, there = drawn[hits + one], drawn[hits + other]
            known = known + law[hits + one] * values[hits, 2 if here > there else 0]  # the prior ratio is e^±ε_c
        worlds.append(known)
    return same, np.maximum(*worlds)


@lru_cache(maxsize=256)
def _full(epsilon: float, delta: float) -> float:
    """Return μ for which the second account has δ at ε, nearly: where the grid lies, and no bound."""
    low, high = 0.0, losses.FARTHEST
    while high - low > 1e-13 * high:
        middle = (low + high) / 2
        private = losses.gaussian(middle, np.array([epsilon]))[0] <= delta
        low, high = (middle, high) if private else (low, middle)
    return low


def game_values(
    *, epsilon: float, each: float, hits: int, offsets: tuple[int, ...], mus: NDArray[np.float64]
) -> NDArray[np.float64]:
    """V_r(l; μ) for r = 1, …, hits, at prior log-likelihood ratios l = offset·each; shape (hits, offsets, mus).

    V_r(l) bounds the hockey-stick divergence at ε of everything released, for every adaptive adversary with at most r
    hits, when the likelihood ratio before the first test is e^l. `each` is e0.

    Raises VerificationError when the fixed point is not reached to 1e-15. What remains of the residual is added, so the
    values returned are a supersolution of the recursion and hence an upper bound whatever the iteration did.
    """
    positive(epsilon=epsilon, each=each)
    count(hits=hits)
    # Above the lattice the value is replaced by 1 and below it by its value at the bottom, both upper bounds.
    low = -max(math.ceil(0.2 * epsilon / each), 16) + min(*offsets, 0)
    high = math.ceil(1.4 * epsilon / each) + 16
    lattice = np.arange(low, max(high, *offsets) + 1, dtype=np.float64)
    after = delta_for(mus[None, :], epsilon - lattice[:, None] * each)
    picks = np.array([offset - low for offset in offsets])
    rare, likely = 1 / (1 + math.exp(each)), 1 / (1 + math.exp(-each))
    current = np.concatenate([after[:1], after, np.ones_like(after[:1])])
    values = np.empty((hits, len(offsets), len(mus)))
    residual = loops.solve(
        current, np.empty_like(current), np.empty_like(current), values, rare, likely, picks, _SWEEPS
    )
    if not residual < LARGEST_RESIDUAL:
        raise VerificationError(f"Expected the charging game to converge below 1e-15, got residual={residual}.")
    lift = np.arange(1, hits + 1) * residual * (1 + math.exp(each))
    bounded: NDArray[np.float64] = np.minimum(values + lift[:, None, None], 1.0)
    return bounded


def recounted_values(
    *, epsilon: float, each: float, hits: int, offsets: tuple[int, ...], mus: NDArray[np.float64], near: float
) -> NDArray[np.float64]:
    """Return the same, shape (hits, offsets, mus), by another method; values far below `near` are not resolved.

    1 is a supersolution of every level, and the recursion makes of one another that is nowhere larger: whenever this
    stops it is an upper bound.
    """
    positive(epsilon=epsilon, each=each, near=near)
    count(hits=hits)
    if each > 5:
        raise VerificationError(f"Expected decisions of at most e0 = 5, got {each:g}.")
    lowest = min(*offsets, 0) - max(math.ceil(0.2 * epsilon / each), 16)
    points = np.arange(lowest, max(math.ceil(1.4 * epsilon / each) + 16, *offsets) + 1, dtype=np.float64)
    stop = np.stack([losses.gaussian(float(mu), epsilon - points * each) for mu in mus], axis=1)
    likely = 1 / (1 + math.exp(-each))
    rare, shape = 1 / (1 + math.exp(each)), (len(points) + 2, len(mus))
    before, values = np.ones(shape), np.empty((hits, len(offsets), len(mus)))  # below the lattice, on it, above it
    before[1:-1], before[0] = stop, stop[0]
    for level in range(hits):
        hit_up, hit_down, now = likely * before[2:], rare * before[:-2], np.ones(shape)
        while True:
            found = np.maximum(stop, np.maximum(hit_up + rare * now[:-2], hit_down + likely * now[2:]))
            done = np.all(now[1:-1] - found <= _AGREED * (now[1:-1] + 100 * near / hits))
            now[1:-1] = np.minimum(now[1:-1], found)
            now[0] = now[1]
            if done:
                break
        before = np.minimum(now * (1 + 1e-12), 1.0)  # for rounding: 6 units in the last place over q0, at most
        values[level] = before[np.array(offsets) - lowest + 1]
    return values
