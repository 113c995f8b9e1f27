"""What a phase of the outlier filter costs at each μ of its release: the game, averaged over the hidden cutoff.

`looked_up` is what `calibrate` searches with, by tables of the game and the first account. `recounted` is what `verify`
asks: the same by `recounted_values` and by the law that is drawn; it shares neither with it.

Source: docs/privacy/outlier-filter.md#f1.
"""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.accounts import gdp, mixtures
from quoron_privacy.robust.filter.charging import game_values, recounted_values
from quoron_privacy.robust.filter.cutoff import HiddenCutoff, cutoff_law

Vector = NDArray[np.float64]

_MUS_PER_FOLD = 30  # μ is rounded up to a grid of this many points for each factor e
# Well beyond what (ε, δ) allows: a shift met with probability 1e-5 may cost 1e-2 of its own.
_BELOW, _ABOVE = 2.5, 2.0


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
    """The same on a grid that is larger by 1e-10, by a route of its own."""
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
    """μ for which the second account has δ at ε, nearly: where the grid lies, and no bound."""
    low, high = 0.0, mixtures.FARTHEST
    while high - low > 1e-13 * high:
        middle = (low + high) / 2
        private = mixtures.gaussian(middle, np.array([epsilon]))[1][0] <= delta
        low, high = (middle, high) if private else (low, middle)
    return low
