"""Windows: where nearly all of what was counted lies, read off noisy counts, and the cells of the next, closer look.

    >>> from quoron_privacy.counts.marks import PLACES
    >>> counts = np.zeros((1, PLACES))
    >>> counts[0, ZERO + 26] = 100.0  # from 1,024 to 4,096
    >>> first = of_places(counts, np.array([100.0]), error=5.0)
    >>> first.low.item(), first.high.item(), first.held.item()
    (1024.0, 4096.0, 100.0)
    >>> cells(np.array([2007.0, 2016.0, 1e9]), first.low.item(), first.high.item(), 64).tolist()
    [20, 20, -1]

Everything here is a function of released numbers, or of one user's own.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.counts.marks import MAGNITUDES, ZERO, edge

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

HELD = 0.95  # of what was counted lies in a window
NOISE, CLOSE = 3.0, 0.6  # standard errors that places, and cells, have to hold above what noise alone does
_EDGES = np.array([edge(magnitude) for magnitude in range(MAGNITUDES + 1)])


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """An interval for each column, shapes (K,)."""

    low: Floats
    high: Floats
    held: Floats  # what was counted in it, with its noise
    bins: Integers  # of how many counts that is the sum

    def where(self, columns: Any) -> "Windows":
        """Those of some columns."""
        return Windows(self.low[columns], self.high[columns], self.held[columns], self.bins[columns])

    def but(self, columns: Any, other: "Windows") -> "Windows":
        """The same, with others for some columns."""
        low, high, held, bins = self.low.copy(), self.high.copy(), self.held.copy(), self.bins.copy()
        low[columns], high[columns], held[columns], bins[columns] = other.low, other.high, other.held, other.bins
        return Windows(low, high, held, bins)


def of_places(counts: Floats, masses: Floats, error: float) -> Windows:
    """The neighbouring places that are worth most (`_worth`) of noisy counts (K, PLACES), of `masses` (K,) in all.

    Places are of one sign, with or without zero, or as far on both sides of it; then zero is counted, too.
    """
    zero = counts[:, ZERO]
    sides = np.stack([counts[:, ZERO + 1 :], counts[:, :ZERO][:, ::-1]])  # (2, K, magnitudes): above, below
    sums = np.concatenate([np.zeros((2, len(counts), 1)), np.cumsum(sides, axis=2)], axis=2)
    return _most_worth([_best_of(size, sums, zero) for size in range(1, MAGNITUDES + 1)], HELD * masses, NOISE * error)


def _most_worth(found: list[Windows], most: Floats, each: float) -> Windows:
    """Of windows of several sizes that which holds most, up to `most` (K,), less what noise alone may hold."""
    worth = [np.minimum(window.held, most) - each * np.sqrt(window.bins) for window in found]
    best = np.argmax(worth, axis=0), np.arange(len(most))
    low, high, held, bins = (
        np.stack([getattr(window, name) for window in found])[best] for name in ("low", "high", "held", "bins")
    )
    return Windows(low, high, held, bins)


def _best_of(size: int, sums: Floats, zero: Floats) -> Windows:
    """Of the windows of `size` places that which holds most."""
    columns = len(zero)
    made: list[tuple[Floats, Floats, Floats]] = []  # held, low, high of one candidate a column
    if size == 1:
        made.append((zero, np.full(columns, -_EDGES[0]), np.full(columns, _EDGES[0])))
    each = np.arange(columns)

    def best(held: Floats, length: int) -> tuple[Floats, Integers]:
        last = np.argmax(held, axis=1)
        return held[each, last], last + length

    for sign, side in zip((1, -1), sums, strict=True):  # of one sign, without zero
        held, last = best(side[:, size:] - side[:, :-size], size)
        ends = sign * _EDGES[last - size], sign * _EDGES[last]
        made.append((held, *(ends if sign > 0 else ends[::-1])))
    if 1 <= (length := size - 1) <= MAGNITUDES:  # and with zero
        for sign, side in zip((1, -1), sums, strict=True):
            held, last = best(side[:, length:] - side[:, :-length], length)
            ends = np.zeros(columns), sign * _EDGES[last]
            made.append((held + zero, *(ends if sign > 0 else ends[::-1])))
    if size % 2 and 1 <= (length := size // 2) <= MAGNITUDES:  # both
        both = sums[0] + sums[1]
        held, last = best(both[:, length:] - both[:, :-length], length)
        made.append((held + zero, -_EDGES[last], _EDGES[last]))
    held, low, high = (np.stack(each) for each in zip(*made, strict=True))
    most = np.argmax(held, axis=0), each
    return Windows(low[most], high[most], held[most], np.full(columns, size))


def ranges(found: Windows) -> tuple[Floats, Floats]:
    """(low, high), (K,), to declare: half a cell of the last look more on either side, to a hundredth of the width.

    Not beyond zero, where that is an end of the window or all of it is on one side.
    """
    half = (found.high - found.low) / found.bins / 2
    low, high = found.low - half, found.high + half
    ends = np.where(found.low >= 0, np.maximum(low, 0), low), np.where(found.high <= 0, np.minimum(high, 0), high)
    places_ = [2 - math.floor(math.log10(width)) for width in (ends[1] - ends[0]).tolist()]
    low, high = (
        np.array([round(end, some) for end, some in zip(each.tolist(), places_, strict=True)]) for each in ends
    )
    return low, high


def cells(numbers: Floats, low: float, high: float, many: int) -> Integers:
    """The cell of each number among `many` of equal width from low to high; -1 outside and for NaN."""
    with np.errstate(invalid="ignore"):
        inside = (numbers >= low) & (numbers <= high)
    place = np.floor((np.where(inside, numbers, low) - low) / (high - low) * many).astype(np.int64)
    found: Integers = np.where(inside, np.minimum(place, many - 1), -1)
    return found


def of_cells(counts: Floats, around: Windows, error: float) -> Windows:
    """The neighbouring cells that are worth most of noisy counts (K, cells), of what `around` held."""
    columns, many = counts.shape
    sums = np.concatenate([np.zeros((columns, 1)), np.cumsum(counts, axis=1)], axis=1)
    each, width, found = np.arange(columns), (around.high - around.low) / many, []
    for size in range(1, many + 1):
        inside = sums[:, size:] - sums[:, :-size]
        start = np.argmax(inside, axis=1)
        low = around.low + start * width
        found.append(Windows(low, low + size * width, inside[each, start], np.full(columns, size)))
    return _most_worth(found, HELD * around.held, CLOSE * error)
