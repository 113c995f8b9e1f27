"""Private bounds: kinds, ranges and names of columns that nobody declared, estimated within a run's own guarantee.

    >>> plan = EstimatedBounds.calibrate(users=1000, columns=11, names=1, epsilon=2.0, delta=1e-6, share=0.3)
    >>> errors = plan.errors(columns=11, names=1)
    >>> round(errors.places), round(errors.cells), round(plan.threshold(1)), round(plan.rest_epsilon, 2)
    (34, 34, 87, 1.65)

Every user has `MARKS` marks a column (`marks`), whatever it holds, so a count of marks is a whole number and one user
adds at most `MARKS` to it. The class `EstimatedBounds` releases such counts; `Windows` are read off them.

Statement, proof, what it needs and why not ranks: docs/privacy/private-bounds.md.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from quoron_privacy.accounts import gdp, sensitivity_recount
from quoron_privacy.accounts.pair import DominatingPair
from quoron_privacy.arrays import Floats, Integers
from quoron_privacy.errors import ConfigError, Infeasible, count, probability, require
from quoron_privacy.gaussian import GaussianNoise, acute_sensitivity
from quoron_privacy.histograms.data_quality import looked_at
from quoron_privacy.noise.streams import GRID_BITS, NoiseSource, RandomStream, total_variation
from quoron_privacy.release import Adjacency, Release

Kinds = NDArray[np.int8]
Name = str | int

MARKS = 8  # Q
KINDS = ("number", "date", "boolean", "text", "missing")
NUMBER, MISSING = 0, len(KINDS) - 1
LEAST_POWER, MAGNITUDES = -21, 52  # of four: from 4⁻²⁰ to 4³², smaller numbers are zero and larger ones in the last bin
ZERO = MAGNITUDES  # place of zero: before it the negative numbers, the largest first
PLACES = 2 * MAGNITUDES + 1

HELD = 0.95  # of what was counted lies in a window
NOISE, CLOSE = 3.0, 0.6  # standard errors that places, and cells, have to hold above what noise alone does

CELLS, CLOSER = 32, 64
MOST, LEAST = 0.5, 0.01  # of μ², where nothing else is said
ERROR, WORST = 0.035, 0.055  # standard error of a place in shares of users: what is paid for up to MOST, and refused
SEEN, UNSEEN = 0.1, 0.3  # threshold of a name in shares of users: the same
HOLDERS = 4.5  # standard errors of a window: with fewer votes of numbers nothing is stated of a column
TAIL = 1e-3  # of δ, for names that one user alone holds
_REST = 2**40  # samples that all else may draw, beside what is estimated: far more than any plan's
_BINS = PLACES + len(KINDS) - 1
_SPLIT = (0.4, 0.4, 0.2)  # of μ², without names: places, cells, closer
_NAMES, _MOST_NAMES = 0.2, 0.4  # of μ², names of one column and of many
_RELEASES = ("places", "cells", "closer", "names")


def marks(values: Floats, owners: Integers, users: int, kinds: Kinds | None = None) -> tuple[Floats, Kinds]:
    """Return (numbers, kinds), each (users, MARKS), of a column's `values` (N,), with `owners` (N,) and `kinds` (N,).

    Without `kinds` a finite value is a number and any other is missing; a row of kind `number` whose value is not
    finite is missing, too. Of a user with r rows mark i is row ⌊(2i + 1) r / 2 MARKS⌋ of them, by kind, then by value.
    A user without rows is missing. A number whose kind says otherwise is kept: a date's, for example.

        >>> numbers, kinds = marks(np.array([3.0, 1.0, 2.0, np.nan]), np.array([0, 0, 0, 1]), users=3)
        >>> numbers[0].tolist(), [KINDS[kind] for kind in kinds[:, 0]]
        ([1.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 3.0], ['number', 'missing', 'missing'])
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
    """Return the order by group, and in each by what is held, NaN last; of equals in any order."""
    by_value = np.argsort(held)
    rank = np.empty(len(held), np.int64)
    rank[by_value] = np.arange(len(held))
    keys = groups * len(held) + rank
    keys.sort()
    order: Integers = by_value[keys % max(len(held), 1)]
    return order


def places(numbers: Floats) -> Integers:
    """Return the place of each number on the public scale of powers of four, 0 to PLACES - 1; NaN is at zero.

    >>> [places(np.array(number)).item() - ZERO for number in (-1.0, 0.0, 1e-9, 1.0, 3.9, 4.0, 1e300)]
    [-21, 0, 6, 21, 21, 22, 52]
    """
    with np.errstate(all="ignore"):
        _, exponent = np.frexp(np.abs(numbers))
    power = (exponent.astype(np.int64) - 1) // 2  # 4^power <= |number| < 4^(power + 1)
    magnitude = np.where(np.isinf(numbers), MAGNITUDES, np.clip(power - LEAST_POWER, 0, MAGNITUDES))
    magnitude = np.where((numbers == 0) | np.isnan(numbers), 0, magnitude)
    found: Integers = ZERO + np.where(numbers < 0, -magnitude, magnitude)
    return found


def edge(magnitude: int) -> float:
    """Return the upper end of numbers of such a magnitude, 1 to MAGNITUDES; 0 is below which numbers are zero."""
    return 4.0 ** (magnitude + LEAST_POWER + 1)


_EDGES = np.array([edge(magnitude) for magnitude in range(MAGNITUDES + 1)])


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """An interval for each column, shapes (K,)."""

    low: Floats
    high: Floats
    held: Floats  # what was counted in it, with its noise
    bins: Integers  # of how many counts that is the sum

    def where(self, columns: Any) -> "Windows":
        """Return the windows of some columns."""
        return Windows(self.low[columns], self.high[columns], self.held[columns], self.bins[columns])

    def but(self, columns: Any, other: "Windows") -> "Windows":
        """Return the same, with others for some columns."""
        low, high, held, bins = self.low.copy(), self.high.copy(), self.held.copy(), self.bins.copy()
        low[columns], high[columns], held[columns], bins[columns] = other.low, other.high, other.held, other.bins
        return Windows(low, high, held, bins)


def of_places(counts: Floats, masses: Floats, error: float) -> Windows:
    """Return the neighbouring places worth most (`_worth`) of noisy counts (K, PLACES), of `masses` (K,) in all.

    Places are of one sign, with or without zero, or as far on both sides of it; then zero is counted, too.

        >>> counts = np.zeros((1, PLACES))
        >>> counts[0, ZERO + 26] = 100.0  # from 1,024 to 4,096
        >>> first = of_places(counts, np.array([100.0]), error=5.0)
        >>> first.low.item(), first.high.item(), first.held.item()
        (1024.0, 4096.0, 100.0)
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
    held, low, high = (np.stack(parts) for parts in zip(*made, strict=True))
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
        np.array([round(end, some) for end, some in zip(side.tolist(), places_, strict=True)]) for side in ends
    )
    return low, high


def cells(numbers: Floats, low: float, high: float, many: int) -> Integers:
    """Return the cell of each number among `many` of equal width from low to high; -1 outside and for NaN.

    >>> cells(np.array([2007.0, 2016.0, 1e9]), 1024.0, 4096.0, 64).tolist()
    [20, 20, -1]
    """
    with np.errstate(invalid="ignore"):
        inside = (numbers >= low) & (numbers <= high)
    place = np.floor((np.where(inside, numbers, low) - low) / (high - low) * many).astype(np.int64)
    found: Integers = np.where(inside, np.minimum(place, many - 1), -1)
    return found


def of_cells(counts: Floats, around: Windows, error: float) -> Windows:
    """Return the neighbouring cells that are worth most of noisy counts (K, cells), of what `around` held."""
    columns, many = counts.shape
    sums = np.concatenate([np.zeros((columns, 1)), np.cumsum(counts, axis=1)], axis=1)
    each, width, found = np.arange(columns), (around.high - around.low) / many, []
    for size in range(1, many + 1):
        inside = sums[:, size:] - sums[:, :-size]
        start = np.argmax(inside, axis=1)
        low = around.low + start * width
        found.append(Windows(low, low + size * width, inside[each, start], np.full(columns, size)))
    return _most_worth(found, HELD * around.held, CLOSE * error)


@dataclass(frozen=True, slots=True)
class Errors:
    """Standard deviations of what is released, in users' whole votes; infinite for what is not estimated."""

    places: float
    cells: float
    closer: float  # of one column alone; of k columns √k times that
    names: float


@dataclass(frozen=True, slots=True)
class Cost:
    """What one release costs, and how sure it is: known beforehand, as it depends on public numbers alone."""

    what: str  # in words
    share: float  # of the whole promise's μ²
    error: float  # standard deviation, in users' votes
    least: float | None = None  # votes from which on a value is shown


@dataclass(frozen=True, slots=True, eq=False)
class Shapes:
    """What the first release says of K columns."""

    counts: Floats  # (K, len(KINDS)): users' votes for each kind, a number's as far as its window holds them
    windows: Windows  # of the numbers
    told: NDArray[np.bool_]  # (K,): whether enough users have numbers there; else the window is noise

    @property
    def kinds(self) -> tuple[str, ...]:
        """Of each column that which has most votes, missing ones aside."""
        return tuple(KINDS[kind] for kind in np.argmax(self.counts[:, :-1], axis=1))


@dataclass(frozen=True, slots=True)
class EstimatedBounds:
    """The four releases, and what they leave of a whole promise to whatever else is released.

    Formal guarantee: `mu`-GDP with exact noise, up to a total variation of `variation`, for whatever users hold
    (private-bounds#bd1).

    | input                                         | what happens                                               |
    | --------------------------------------------- | ---------------------------------------------------------- |
    | a user with a million rows, inf, nan or 1e308 | has as many marks as any other                             |
    | a name that a single user holds               | shown with a chance of at most `tail`, over all its names  |
    | a slot that holds nobody (zero-out)           | leave it out of the counts                                 |
    | fewer columns than planned                    | less noise for each                                        |

    The releases have Gaussian noise, each chosen in view of those before:

    * kinds of marks, and the powers of four at which they lie;
    * cells of what that leaves, once more where one or two cells hold nearly all;
    * names with enough marks.

    Counts are whole numbers: those of parts of the users add, in any order.

        >>> from quoron_privacy.noise.streams import SeededNoise
        >>> noise, owners = SeededNoise(1), np.arange(1000)
        >>> year, ill = 2007.0 + owners % 10, (owners % 3 == 0).astype(float)
        >>> rows = [marks(column, owners, 1000) for column in (year, ill)]
        >>> numbers, kinds = (np.stack(part, axis=1) for part in zip(*rows, strict=True))  # (users, columns, MARKS)
        >>> plan = EstimatedBounds.calibrate(users=1000, columns=2, names=1, epsilon=2.0, delta=1e-6, share=0.1)
        >>> counts = plan.release_places(plan.place_counts(numbers, kinds), noise.stream("bought", "places"))
        >>> shapes = plan.shapes(counts)
        >>> low, high = ranges(plan.release_near(numbers, shapes.windows, noise)[0])
        >>> shapes.kinds
        ('number', 'number')
        >>> bool(1998 < low[0] < 2008 and 2015 < high[0] < 2025)
        True
        >>> counts = name_counts(numbers[:, 1].astype(int), ["no", "yes"])  # codes in the order of the names
        >>> sorted(plan.release_names([counts], noise.stream("names"))[0])
        ['no', 'yes']
    """

    users: int  # m, who is looked at, and the divisor
    columns: int  # K, of the first release, at most: what may be a number; 0: none
    names: int  # of the last: what may be text, at most; 0: none
    adjacency: Adjacency
    scales: tuple[float, ...]  # of a coordinate of the mean of vectors of norm one, of `_RELEASES`; 0: not estimated
    tail: float  # t: the chance that a name of one user alone is shown
    share: float = 0.0  # s, of the whole promise's μ²
    rest_epsilon: float = 0.0  # what is left to all else
    rest_delta: float = 0.0

    def __post_init__(self) -> None:
        count(users=self.users)
        for name, value in (("columns", self.columns), ("names", self.names)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ConfigError(f"Expected {name} to be an integer >= 0, got {name}={value!r}.")
        if not self.columns + self.names:
            raise ConfigError("Expected columns or names to estimate, got none.")
        if [scale > 0 for scale in self.scales] != [*[self.columns > 0] * 3, self.names > 0]:
            raise ConfigError(f"Expected a scale for each of {_RELEASES} that is estimated, got {self.scales}.")
        probability(tail=self.tail)

    @classmethod
    def calibrate(
        cls,
        *,
        users: int,
        columns: int,
        names: int,
        epsilon: float,
        delta: float,
        share: float,
        adjacency: Adjacency = "replace-one",
    ) -> "EstimatedBounds":
        """Return the least noise for a share of μ(ε, δ)², and what promise that leaves; `share` from 1e-6 to 1.

        At share = 1 nothing is left (`rest_epsilon` = 0). Infeasible where samplers or the grid take it all.
        """
        if not 1e-6 <= share <= 1:
            raise ConfigError(f"Expected a share of μ² in [1e-6, 1], got share={share}.")
        tail = TAIL * delta / (1 + math.exp(min(epsilon, 700.0)))
        spent = (1 + math.exp(min(epsilon, 700.0))) * _variation(users, columns, names, tail) + TAIL * delta
        if spent >= delta:
            raise Infeasible("declarations", f"delta={delta:g} is below the resolution of the noise", "a larger delta")
        whole = gdp.mu_for(epsilon, delta - spent) * (1 - 1e-9)  # verified by other arithmetic
        sensitivity = acute_sensitivity(users, adjacency)
        named = (min(_MOST_NAMES, _NAMES * math.sqrt(names)) if columns else 1.0) if names else 0.0
        parts = (*((1 - named) * part if columns else 0.0 for part in _SPLIT), named)  # of μ², of each release
        scales = tuple(
            GaussianNoise.for_mu(sensitivity=sensitivity, mu=whole * math.sqrt(share * part), dimension=size).scale
            if part
            else 0.0
            for part, size in zip(parts, _dimensions(columns, names), strict=True)
        )
        left = whole * math.sqrt(1 - share) * (1 - 1e-9)
        return cls(
            users, columns, names, adjacency, scales, tail, share, gdp.epsilon_for(left, delta) if left else 0.0, delta
        )

    @property
    def mu(self) -> float:
        """μ of all of it together."""
        return gdp.compose(*(mu for _, mu in self.releases()))

    @property
    def charged(self) -> tuple[float, float]:
        """(μ, total variation) of all of it and of whatever keeps (`rest_epsilon`, `rest_delta`), before either."""
        whole = gdp.compose(self.mu, gdp.mu_for(self.rest_epsilon, self.rest_delta) if self.rest_epsilon else 0.0)
        rest = min(self.tail / 2, total_variation(gaussians=_REST))  # where ε is huge the first is less
        return whole * (1 + 1e-12), self.variation * (1 + 1e-9) + rest

    @property
    def variation(self) -> float:
        """How far it is from that, in total variation: by its samplers, and by names of one user alone."""
        return _variation(self.users, self.columns, self.names, self.tail)

    @property
    def pair(self) -> DominatingPair:
        """What all of it costs, by its scales alone: at each release two vectors of norm one at right angles."""
        far = sensitivity_recount.acute(1.0, self.users, self.adjacency)
        sizes = _dimensions(self.columns, self.names)
        each = (
            sensitivity_recount.mu(far, scale, size) for scale, size in zip(self.scales, sizes, strict=True) if scale
        )
        return DominatingPair.gaussian(sensitivity_recount.together(*each), self.variation)

    def errors(self, *, columns: int, names: int) -> Errors:
        """Return standard deviations of what is released where so many columns have numbers, and so many are named."""
        places_, cells_, closer, named = (scale * self.users if scale else math.inf for scale in self.scales)
        width = math.sqrt(columns)
        return Errors(math.sqrt(self.columns) * places_, width * cells_, closer, math.sqrt(names) * named)

    def threshold(self, columns: int, weight: float | None = None) -> float:
        """T: votes from which on a name is shown, where so many columns are named; of a column of such a weight."""
        beyond = -float(ndtri(self.tail / (columns * MARKS))) + 2.0 ** (1 - GRID_BITS)
        return 1 + self.scales[3] * self.users / (weight or columns**-0.5) * beyond * (1 + 1e-9)

    @property
    def needs(self) -> int:
        """The fewest users of whom errors are WORST and UNSEEN at most: in votes they are the same for any number."""
        error = math.sqrt(self.columns) * self.users * self.scales[0]
        return math.ceil(max(error / WORST, (self.threshold(min(self.names, 2)) if self.names else 0.0) / UNSEEN))

    def place_counts(self, numbers: Floats, kinds: NDArray[np.int8]) -> Integers:
        """Return marks of each place and each other kind, (K, bins), of some users' marks (k, K, MARKS) of all columns.

        Sums of parts of the users add.
        """
        self._check(numbers, self.columns)
        counts = np.zeros((self.columns, _BINS), np.int64)
        for column in range(self.columns):
            own, kind = numbers[:, column].ravel(), kinds[:, column].ravel()
            which = np.where(kind == NUMBER, places(own), PLACES - 1 + kind)
            counts[column] = np.bincount(which, minlength=_BINS)
        return counts

    def release_places(self, counts: Integers, stream: RandomStream) -> Floats:
        """Return the noisy votes (K, bins) of everybody's marks: once a run."""
        return self._release(0, counts, stream)

    def shapes(self, released: Floats) -> Shapes:
        """Return what the votes say, with at most `users` votes for each column."""
        others = released[:, PLACES:]
        numbers = self.users - others.sum(axis=1)
        error = math.sqrt(len(released)) * self.scales[0] * self.users
        windows = of_places(released[:, :PLACES], np.clip(numbers, 0, self.users), error)
        told = windows.held >= HOLDERS * error * np.sqrt(windows.bins)
        return Shapes(np.column_stack([windows.held, others]), windows, told)

    def cell_counts(self, numbers: Floats, around: Windows, many: int = CELLS) -> Integers:
        """Return marks of each cell of a window, (K', many), of some users' marks (k, K', MARKS); parts add."""
        self._check(numbers, len(around.low))
        counts = np.zeros((len(around.low), many), np.int64)
        for column, (low, high) in enumerate(zip(around.low.tolist(), around.high.tolist(), strict=True)):
            which = cells(numbers[:, column].ravel(), low, high, many)
            counts[column] = np.bincount(which[which >= 0], minlength=many)
        return counts

    def release_near(self, numbers: Floats, around: Windows, noise: NoiseSource) -> tuple[Windows, bool]:
        """Return where all marks (m, K, MARKS) lie in these windows, by the second release, and if there is a third.

        The third is a closer look at columns of which one or two cells hold nearly all: these cells, and the next on
        either side. Once a run.
        """
        near = self._within(1, numbers, around, CELLS, noise.stream("bought", "cells"))
        which = np.flatnonzero(near.bins <= 2)
        if len(which):
            window = near.where(which)
            cell = (window.high - window.low) / window.bins
            window = replace(window, low=window.low - cell, high=window.high + cell)
            closer = self._within(2, numbers[:, which], window, CLOSER, noise.stream("bought", "closer"))
            near = near.but(which, closer)
        return near, bool(len(which))

    def release_names(
        self, counts: Sequence[Mapping[Name, int]], stream: RandomStream, *, label: int | None = None
    ) -> list[dict[Name, float]]:
        """Of each column the names with enough votes, the most frequent first, each with its noisy votes.

        `counts` are marks of each name, a mapping a column: whole numbers, of parts of the users added. The column
        `label` has as little noise as if it were one of two, however many the others are.
        """
        if not 0 < len(counts) <= self.names:
            raise ConfigError(f"Expected names of 1 to {self.names} columns, got {len(counts)}.")
        own = weights(len(counts), label)
        held: list[tuple[int, Name]] = []
        for column, some in enumerate(counts):
            held += [(column, name) for name in sorted(some, key=lambda name: (isinstance(name, str), name))]
        unit = np.array([own[column] for column, _ in held]) / (MARKS * self.users)
        mean = np.array([counts[column][name] for column, name in held], np.float64) * unit
        votes = self._gaussian(self.scales[3]).release(mean, stream) / unit / MARKS
        shown: list[dict[Name, float]] = [{} for _ in counts]
        least = [self.threshold(len(counts), weight) for weight in own]
        for place in np.argsort(-votes, kind="stable").tolist():
            column, name = held[place]
            if votes[place] >= least[column]:
                shown[column][name] = float(votes[place])
        return shown

    def verify(self, epsilon: float, delta: float, *, users: int, adjacency: str, own: DominatingPair) -> None:
        """private-bounds#bd1 at its own numbers, `own` the pair of the rest; VerificationError else.

        By the second account, with sensitivities and the tail written out: nothing that calibrated is asked.
        """
        spent = self.pair
        both = spent.and_(own)
        lone = 0.0
        for columns in {1, self.names} if self.names else ():
            for weight in weights(columns, 0):
                far = (self.threshold(columns, weight) - 1) * weight / self.users / self.scales[3] - 2.0 ** (
                    1 - GRID_BITS
                )
                lone = max(lone, columns * MARKS * math.erfc(far / math.sqrt(2)) / 2)
        require(
            "private bounds",
            (f"a divisor of {looked_at(users)} users", self.users == looked_at(users), self.users),
            (f"adjacency {adjacency}", self.adjacency == adjacency, self.adjacency),
            ("a share of μ² in (0, 1]", 0 < self.share <= 1, self.share),
            ("no more than its share", spent.mu**2 <= self.share * both.mu**2 * (1 + 1e-4), (spent.mu / both.mu) ** 2),
            ("names of one user alone hidden", lone <= self.tail * (1 + 1e-9), lone),
            (f"delta <= {delta} with private bounds", both.delta(epsilon, delta) <= delta, both.mu),
        )

    def releases(self) -> tuple[tuple[Release, float], ...]:
        """Return the ledger entries of all releases, each with its μ."""
        made = []
        for name, scale, size in zip(_RELEASES, self.scales, _dimensions(self.columns, self.names), strict=True):
            if scale:
                noise = self._gaussian(scale)
                made.append((noise.entry(f"bounds-{name}", users=float(self.users)), noise.effective_mu(size)))
        return tuple(made)

    def costs(self) -> tuple[Cost, ...]:
        """Of each release, with the error where it has most: where all columns are numbers, or all are words."""
        error, plural = self.errors(columns=self.columns, names=self.names), "s" * (self.columns != 1)
        words = f"values of {self.names:,} at most that {'is' if self.names == 1 else 'are'} words"
        told = {
            "bounds-places": (
                f"the kind of {self.columns:,} column{plural}, and about where its numbers lie",
                error.places,
            ),
            "bounds-cells": ("a range of each that is a number", error.cells),
            "bounds-closer": ("a closer look at one whose numbers lie close together", error.closer),
            "bounds-names": (words, error.names),
        }
        least = {"bounds-names": self.threshold(self.names)} if self.names else {}
        return tuple(
            Cost(what, self.share * (mu / self.mu) ** 2, deviation, least.get(entry.mechanism))
            for entry, mu in self.releases()
            for what, deviation in (told[entry.mechanism],)
        )

    def _within(self, each: int, numbers: Floats, around: Windows, many: int, stream: RandomStream) -> Windows:
        """Return where marks lie in these windows, by one release of how many each of so many cells has."""
        released = self._release(each, self.cell_counts(numbers, around, many), stream)
        return of_cells(released, around, math.sqrt(len(released)) * self.scales[each] * self.users)

    def _release(self, each: int, counts: Integers, stream: RandomStream) -> Floats:
        if not 0 < len(counts) <= self.columns:
            raise ConfigError(f"Expected counts of 1 to {self.columns} columns, got {len(counts)}.")
        return self._noisy(each, counts, len(counts), stream)

    def _noisy(self, each: int, counts: Integers, columns: int, stream: RandomStream) -> Floats:
        """Votes of so many columns: the mean of vectors of norm one at most, back in users."""
        unit = MARKS * math.sqrt(columns) * self.users
        released: Floats = self._gaussian(self.scales[each]).release(counts / unit, stream) * (unit / MARKS)
        return released

    def _gaussian(self, scale: float) -> GaussianNoise:
        return GaussianNoise(acute_sensitivity(self.users, self.adjacency), scale)

    def _check(self, numbers: Floats, columns: int) -> None:
        if numbers.ndim != 3 or numbers.shape[1:] != (columns, MARKS):
            raise ConfigError(f"Expected marks of shape (k, {columns}, {MARKS}), got {numbers.shape}.")


def weights(columns: int, label: int | None = None) -> list[float]:
    """Return the weight of each column's votes: equal, or half of the squares for the label; squares add up to one."""
    if label is None or columns == 1:
        return [columns**-0.5] * columns
    return [0.5**0.5 if column == label else (2 * columns - 2) ** -0.5 for column in range(columns)]


def name_counts(codes: Integers, names: Sequence[Name]) -> dict[Name, int]:
    """Return marks of each name of a column, of some users' marks (k, MARKS) as places in `names`; others are none."""
    held = np.bincount(codes[(codes >= 0) & (codes < len(names))].ravel(), minlength=len(names))
    return {names[code]: int(held[code]) for code in np.flatnonzero(held).tolist()}


def share_for(
    *, users: int, columns: int, names: int, epsilon: float, delta: float, adjacency: Adjacency = "replace-one"
) -> float:
    """s where nothing else is said: as much of μ² as makes errors ERROR and SEEN of the users, from LEAST to MOST.

    A function of public numbers. Infeasible where MOST leaves errors of more than WORST and UNSEEN.
    """
    looked = looked_at(users)
    plan = EstimatedBounds.calibrate(
        users=looked, columns=columns, names=names, epsilon=epsilon, delta=delta, share=MOST, adjacency=adjacency
    )
    if looked < plan.needs:
        reached = f"{plan.needs:,} users, " * (looked_at(plan.needs) == plan.needs)
        raise Infeasible(
            "declarations",
            f"{looked:,} user{'s do' if looked != 1 else ' does'} not tell {columns:,} column{'s' * (columns != 1)} "
            f"from noise at epsilon={epsilon:g}",
            f"{reached}a larger epsilon, fewer columns, or declarations",
        )
    error = plan.errors(columns=columns, names=1).places if columns else 0.0
    full = max(error / ERROR, (plan.threshold(names) if names else 0.0) / SEEN)
    return min(MOST, max(LEAST, MOST * (full / looked) ** 2))  # errors go as 1 / √s


def _dimensions(columns: int, names: int) -> tuple[int, ...]:
    """Coordinates of each release that one user can move, at most."""
    return columns * _BINS, columns * CELLS, columns * CLOSER, 2 * names * MARKS


def _variation(users: int, columns: int, names: int, tail: float) -> float:
    """Of samplers, with a name for each mark of everybody, and of names of one user alone."""
    samples = columns * (_BINS + CELLS + CLOSER) + users * names * MARKS
    return total_variation(gaussians=samples) + (tail if names else 0.0)
