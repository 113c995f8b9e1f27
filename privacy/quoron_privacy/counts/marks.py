"""Marks: a user's rows of one column as eight of them, and where on a scale that nobody declared they lie.

    >>> numbers, kinds = marks(np.array([3.0, 1.0, 2.0, np.nan]), np.array([0, 0, 0, 1]), users=3)
    >>> numbers[0].tolist()
    [1.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 3.0]
    >>> [KINDS[kind] for kind in kinds[:, 0]]
    ['number', 'missing', 'missing']
    >>> [places(np.array(each)).item() - ZERO for each in (-1.0, 0.0, 1e-9, 1.0, 3.9, 4.0, 1e300)]
    [-21, 0, 6, 21, 21, 22, 52]

A user has the same number of marks whatever it holds: they are its own rows, sorted, at evenly spaced places. So a
count of marks is a whole number, one user adds at most `MARKS` to a column's, and what it adds depends on nobody else.
Statement and proofs: docs/privacy/bought-declarations.md.

Windows: where nearly all of what was counted lies, read off noisy counts, and the cells of the next, closer look.

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

from quoron_privacy.errors import ConfigError, count

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

Kinds = NDArray[np.int8]

MARKS = 8  # Q
KINDS = ("number", "date", "boolean", "text", "missing")
NUMBER, MISSING = 0, len(KINDS) - 1
LEAST_POWER, MAGNITUDES = -21, 52  # of four: from 4⁻²⁰ to 4³², smaller numbers are zero and larger ones in the last bin
ZERO = MAGNITUDES  # place of zero: before it the negative numbers, the largest first
PLACES = 2 * MAGNITUDES + 1


def marks(values: Floats, owners: Integers, users: int, kinds: Kinds | None = None) -> tuple[Floats, Kinds]:
    """(numbers, kinds), each (users, MARKS), of one column's rows: values (N,) of users owners (N,), and kinds (N,).

    Without `kinds` a finite value is a number and any other is missing; a row of kind `number` whose value is not
    finite is missing, too. Of a user with r rows mark i is row ⌊(2i + 1) r / 2 MARKS⌋ of them, by kind, then by value.
    Whoever has no rows is missing. A number whose kind says otherwise is kept: a date's, for example.
    """
    values, owners = np.asarray(values, np.float64), np.asarray(owners)
    count(users=users + 1)  # of those who are drawn there may be none, which tells of nobody
    if values.ndim != 1 or values.shape != owners.shape or owners.dtype.kind not in "iu":
        raise ConfigError(
            f"Expected values and whole owners of one shape (N,), got {values.shape}, {owners.dtype} {owners.shape}."
        )
    if len(owners) and (owners.min() < 0 or owners.max() >= users):
        raise ConfigError(f"Expected owners in 0 to {users - 1}, got others.")
    finite = np.isfinite(values)
    given = np.zeros(len(values), np.int8) if kinds is None else np.asarray(kinds, np.int8)
    own = np.where((given < 0) | (given > MISSING) | ((given == NUMBER) & ~finite), MISSING, given).astype(np.int8)
    held = np.where(finite, values, np.nan) + 0.0  # one zero
    order = _sorted(owners.astype(np.int64) * len(KINDS) + own, held)
    rows = np.bincount(owners, minlength=users)
    first = np.cumsum(rows) - rows
    place = (2 * np.arange(MARKS) + 1) * rows[:, None] // (2 * MARKS)
    numbers, found = np.full((users, MARKS), np.nan), np.full((users, MARKS), MISSING, np.int8)
    there = rows > 0
    taken = order[first[there, None] + place[there]]
    numbers[there], found[there] = held[taken], own[taken]
    return numbers, found


def _sorted(groups: Integers, held: Floats) -> Integers:
    """The order by group, and in each by what is held, NaN last; of equals in any order."""
    by_value = np.argsort(held)
    rank = np.empty(len(held), np.int64)
    rank[by_value] = np.arange(len(held))
    keys = groups * len(held) + rank
    keys.sort()
    order: Integers = by_value[keys % max(len(held), 1)]
    return order


def places(numbers: Floats) -> Integers:
    """The place of each number on the public scale of powers of four, 0 to PLACES - 1; NaN is at zero."""
    with np.errstate(all="ignore"):
        _, exponent = np.frexp(np.abs(numbers))
    power = (exponent.astype(np.int64) - 1) // 2  # 4^power <= |number| < 4^(power + 1)
    magnitude = np.where(np.isinf(numbers), MAGNITUDES, np.clip(power - LEAST_POWER, 0, MAGNITUDES))
    magnitude = np.where((numbers == 0) | np.isnan(numbers), 0, magnitude)
    found: Integers = ZERO + np.where(numbers < 0, -magnitude, magnitude)
    return found


def edge(magnitude: int) -> float:
    """The upper end of numbers of such a magnitude, 1 to MAGNITUDES; 0 is below which numbers are zero."""
    return 4.0 ** (magnitude + LEAST_POWER + 1)


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
