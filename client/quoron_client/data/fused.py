"""Rows as items, in one pass over a table on all threads: what `Encoding` says, done.

    items = encoded(rules, table)

    block = Block.of(rules, table.num_rows)
    encode(rules, table, block)

With a row's item come its marks, some bits that say what `Encoding` passes over in silence:

| bit              | set where                                                                      |
| ---------------- | ------------------------------------------------------------------------------ |
| 0                | the row cannot be used                                                         |
| 1 + j            | the value of column j of `declared_columns` does not fit its declaration               |
| from 1 + K on    | a number in as many bits as it takes: the place of its label, plus one; 0: none |

A value is read once, where Arrow has it, and written once, scaled, as part of its item. A piece of rows is made by one
thread, and a row's item and marks are functions of that row alone: the same bits for any pieces and threads.

A table's rows as items of its users, while it is read: nothing of a row stays but its item and its marks.

    gathering = Gathering(rules, "patient", most=762_600)
    for batch in tables.opened("visits.csv").batches((*rules.columns, "patient")):
        gathering.add(batch)
    gathered = gathering.end()
    items = gathered.items(gathered.users)

Rows are made items (`fused`) in the order of the table, in memory that grows where it lies, and in the end put user by
user where they are: there is never a second copy. Of one user only the first `most` rows stay, and a little more for a
while.

What encoding passes over in silence: values that do not fit their declaration, column by column and user by user.

    tally = RowCounts(rules, users)
    tally.add(owners, block.marks)          # of rows that `fused.encode` has read
    tally.fitting(everybody=True)

A function of each row alone, and private: it is for a release with noise (docs/privacy/data-quality.md).
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numba import carray, literal_unroll, types  # type: ignore[attr-defined]
from numba.extending import intrinsic
from numpy.typing import NDArray

from quoron_client.data import columns
from quoron_client.data.columns import NO_ROWS
from quoron_client.data.encoding import Classes, Comparison, Encoding, Owners, Positive, Range, Signs
from quoron_client.data.features import Numeric
from quoron_client.data.items import ItemBatch
from quoron_client.data.users import Codes, Numbering
from quoron_privacy.errors import DataError
from quoron_privacy.kernels.prebuilt import njit
from quoron_privacy.kernels.threads import all_threads, at_once

_LONG, _NUMBERS = 256, 1 << 16  # rows of a tile, and numbers: it stays in a processor's cache
_APART = 16  # numbers between columns of a tile: a power of two apart, they would drive each other out of the cache
# How Arrow stores numbers; `numbers` takes the index.
STORED = ("float", "double", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool")
_LIKE = tuple(np.empty(0, {"float": "float32"}.get(kind, kind)) for kind in STORED[:-1])


def _at(context: Any, address: Any, like: Any) -> Any:
    def generate(target: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.inttoptr(values[0], target.get_value_type(signature.return_type))

    return types.CPointer(like.dtype)(types.int64, like), generate  # type: ignore[no-untyped-call]


_column: Any = intrinsic(_at)  # _column(address, like): numbers of the type of `like`, where they are


@njit(cache=True, nogil=True, error_model="numpy")
def _bit(bits: Any, place: int) -> bool:
    found: bool = (bits[place >> 3] >> np.uint8(place & 7)) & 1 == 1
    return found


@njit(cache=True, nogil=True, error_model="numpy")
def _cast(address: int, like: Any, first: int, out: Any) -> None:
    values = carray(_column(address, like), first + len(out))[first:]
    for i in range(len(out)):
        out[i] = np.float64(values[i])


@njit(cache=True, nogil=True, error_model="numpy")
def _read(address: int, kind: int, valid: int, first: int, out: Any) -> None:
    """Values from `first` on as float64, NaN where there is none; `valid` is where their bits are, 0 if all are."""
    place = 0
    for like in literal_unroll(_LIKE):
        if place == kind:
            _cast(address, like, first, out)
        place += 1  # noqa: SIM113 - enumerate is not unrolled
    if kind == len(_LIKE):
        bits = carray(_column(address, np.empty(0, np.uint8)), (first + len(out)) // 8 + 1)
        for i in range(len(out)):
            out[i] = 1.0 if _bit(bits, first + i) else 0.0
    if valid != 0:
        bits = carray(_column(valid, np.empty(0, np.uint8)), (first + len(out)) // 8 + 1)
        for i in range(len(out)):
            if not _bit(bits, first + i):
                out[i] = np.nan


@njit(cache=True, nogil=True, error_model="numpy")
def _scale(value: float, low: float, high: float, scale: float) -> Any:
    held = min(max((2.0 * value - low - high) / (high - low), -1.0), 1.0)
    return np.float32(np.float64(np.float32(held)) * scale)


@njit(cache=True, nogil=True, error_model="numpy")
def numbers(stored: Any, ends: Any, places: Any, drop: bool, scale: float, features: Any, marks: Any) -> None:
    """Write columns of numbers, each brought from its [low, high] to [-1, 1] in float32, and then times `scale`.

    Row j of `stored` (k, 4) has the address of a column's values, how they are stored, the address of their validity
    and the first one's place; `ends` (k, 2) low and high. Row j of `places` (k, 2) has its column of `features` (N, p)
    and its bit of `marks` (N, B).
    """
    rows, columns = len(features), len(stored)
    long = min(_LONG, max(8, _NUMBERS // max(1, columns)))
    tile, values = np.empty((columns, long + _APART), np.float32), np.empty(long)
    # Columns come one after the other and rows go out one after the other: a tile turns one into the other, in cache.
    for start in range(0, rows, long):
        many = min(long, rows - start)
        for j in range(columns):
            low, high, unfit = ends[j, 0], ends[j, 1], 0
            _read(stored[j, 0], stored[j, 1], stored[j, 2], stored[j, 3] + start, values[:many])
            for i in range(many):
                unfit += not ((values[i] >= low) & (values[i] <= high))
                tile[j, i] = _scale(values[i], low, high, scale)
            if unfit == 0:
                continue
            byte, bit = places[j, 1] >> 3, np.uint8(1 << (places[j, 1] & 7))
            middle = _scale(0.5 * low + 0.5 * high, low, high, scale)
            for i in range(many):
                if values[i] >= low and values[i] <= high:
                    continue
                marks[start + i, byte] |= bit
                if np.isfinite(values[i]):
                    continue
                tile[j, i] = middle
                if drop:
                    marks[start + i, 0] |= np.uint8(1)
        for i in range(many):
            for j in range(columns):
                features[start + i, places[j, 0]] = tile[j, i]


@njit(cache=True, nogil=True, error_model="numpy")
def one_hot(codes: Any, first: int, width: int, bit: int, one: float, features: Any, marks: Any) -> None:
    """Write a column of codes: of `width` from `first` on one is `one`. Mark the rows that have none."""
    for i in range(len(codes)):
        code = codes[i]
        for j in range(first, first + width):
            features[i, j] = 0.0
        if code < 0:
            marks[i, bit >> 3] |= np.uint8(1 << (bit & 7))
        else:
            features[i, first + code] = np.float32(one)


@njit(cache=True, nogil=True, error_model="numpy")
def expand(base: Any, places: Any, scale: float, features: Any) -> None:
    """Write the terms of rows (N, p) of numbers in [-1, 1] and of 0/1 into the first m columns, times `scale`."""
    columns, degrees = base.shape[1], 1
    for term in range(len(places)):
        degrees = max(degrees, places[term, 1], places[term, 3])
    powers = np.empty((columns, degrees + 1))
    for i in range(len(base)):
        for j in range(columns):
            value = min(max(np.float64(base[i, j]), -1.0), 1.0)
            powers[j, 0], powers[j, 1] = 1.0, value
            for k in range(1, degrees):
                powers[j, k + 1] = ((2 * k + 1) * value * powers[j, k] - k * powers[j, k - 1]) / (k + 1)
        for term in range(len(places)):
            made = powers[places[term, 0], places[term, 1]]
            if places[term, 2] >= 0:
                made *= powers[places[term, 2], places[term, 3]]
            features[i, term] = np.float32(made * scale)


@njit(cache=True, nogil=True, error_model="numpy")
def mark(chosen: Any, bit: int, marks: Any) -> None:
    """Set one bit of the chosen rows (N,)."""
    for i in range(len(chosen)):
        if chosen[i]:
            marks[i, bit >> 3] |= np.uint8(1 << (bit & 7))


@njit(cache=True, nogil=True, error_model="numpy")
def clear(features: Any, labels: Any, weights: Any, marks: Any) -> None:
    """Rows that cannot be used are zero throughout."""
    for i in range(len(marks)):
        if marks[i, 0] & 1:
            features[i] = 0.0
            labels[i] = 0.0
            if len(weights):
                weights[i] = 0.0


@njit(cache=True, nogil=True, error_model="numpy")
def first_of(owners: Any, seen: Any, most: int, kept: Any) -> bool:
    """Return which rows are among the first `most` of their user, of whom seen[u] were met before; whether all are."""
    everything = True
    for i in range(len(owners)):
        seen[owners[i]] += 1
        kept[i] = seen[owners[i]] <= most
        everything = everything and kept[i]
    return everything


@njit(cache=True, nogil=True, error_model="numpy")
def squeeze(kept: Any, rows: Any) -> int:
    """Move the kept rows of (N, ...) to the front, one after the other; return how many they are."""
    at = 0
    for i in range(len(kept)):
        if kept[i]:
            if at < i:
                rows[at] = rows[i]
            at += 1
    return at


@njit(cache=True, nogil=True, error_model="numpy")
def settle(owners: Any, marks: Any, offsets: Any, held: Any, zero_rows: bool, to: Any) -> bool:
    """Return where each row goes so that usable ones lie user by user, `to` (M,); whether all are there already.

    `offsets` (n + 1,) and `held` (n,), usable rows of each user, are filled in. A user without any has one row that is
    zero, with `zero_rows`, as all are that cannot be used and those beyond the table's: these go where room is left.
    """
    held[:] = 0
    for i in range(len(owners)):
        held[owners[i]] += 1 - (marks[i, 0] & 1)
    offsets[0] = 0
    for u in range(len(held)):
        offsets[u + 1] = offsets[u] + (max(held[u], 1) if zero_rows else held[u])
    at = offsets[:-1].copy()
    user, last, there = 0, offsets[-1], True
    for i in range(len(to)):
        if i < len(owners) and marks[i, 0] & 1 == 0:
            to[i] = at[owners[i]]
            at[owners[i]] += 1
        else:
            while zero_rows and user < len(held) and held[user] > 0:
                user += 1
            if zero_rows and user < len(held):
                to[i] = offsets[user]
                user += 1
            else:
                to[i] = last
                last += 1
        there = there and to[i] == i
    return there


@njit(cache=True, nogil=True, error_model="numpy")
def advances(to: Any) -> bool:
    """Return whether rows that go to the front, or stay, keep their order."""
    last = -1
    for i in range(len(to)):
        if to[i] <= i:
            if to[i] < last:
                return False
            last = to[i]
    return True


@njit(cache=True, nogil=True, error_model="numpy")
def advance(to: Any, rows: Any) -> None:
    """Rows of (N, ...) that go to the front, in place and in their order; others are lost."""
    for i in range(len(to)):
        if to[i] < i:
            rows[to[i]] = rows[i]


@njit(cache=True, nogil=True, error_model="numpy")
def deal(to: Any, bits: int, firsts: Any, nexts: Any, features: Any, labels: Any, weights: Any) -> None:
    """Rows to the stretch of 2^bits places that each goes to, in place: a stretch fills up from its first place on."""
    row = np.empty(features.shape[1], np.float32)
    for stretch in range(len(firsts) - 1):
        while nexts[stretch] < firsts[stretch + 1]:
            i = nexts[stretch]
            goes = to[i] >> bits
            if goes == stretch:
                nexts[stretch] += 1
                continue
            _swap(i, nexts[goes], row, to, features, labels, weights)
            nexts[goes] += 1


@njit(cache=True, nogil=True, error_model="numpy")
def permute(first: int, last: int, to: Any, features: Any, labels: Any, weights: Any) -> None:
    """Row i of these to place to[i], which is among them, in place."""
    row = np.empty(features.shape[1], np.float32)
    for i in range(first, last):
        while to[i] != i:
            _swap(i, to[i], row, to, features, labels, weights)


@njit(cache=True, nogil=True, error_model="numpy")
def _swap(i: int, j: int, row: Any, to: Any, features: Any, labels: Any, weights: Any) -> None:
    for k in range(len(row)):
        row[k] = features[j, k]
    for k in range(len(row)):
        features[j, k] = features[i, k]
    for k in range(len(row)):
        features[i, k] = row[k]
    labels[i], labels[j] = labels[j], labels[i]
    if len(weights):
        weights[i], weights[j] = weights[j], weights[i]
    to[i], to[j] = to[j], to[i]


@njit(cache=True, nogil=True, error_model="numpy")
def tally(owners: Any, place: Any, marks: Any, columns: int, rows: Any, usable: Any, unfit: Any, labelled: Any) -> None:
    """Add up marks of the rows of users u with place[u] >= 0: rows, usable ones, unfit by column, usable by label."""
    for i in range(len(owners)):
        user = place[owners[i]]
        if user < 0:
            continue
        rows[user] += 1
        good = marks[i, 0] & 1 == 0
        usable[user] += good
        for byte in range(marks.shape[1]):
            left, bit = marks[i, byte], 8 * byte
            while left:
                if left & 1 and 0 < bit <= columns:
                    unfit[user, bit - 1] += 1
                left >>= np.uint8(1)
                bit += 1
        if good and labelled.shape[1]:
            label, bit, one = 0, columns + 1, 1
            while bit < 8 * marks.shape[1]:
                label += one * _bit(marks[i], bit)
                bit, one = bit + 1, 2 * one
            if label > 0:
                labelled[user, label - 1] += 1


Marks = NDArray[np.uint8]
Kind = Literal["number", "category", "label", "weight"]
Shares = NDArray[np.float64]
Fitting = tuple[Shares, Shares, Shares]  # of users: 1 without a usable row (u,), labels (u, L), unfit columns (u, K)


@dataclass(frozen=True, slots=True)
class Column:
    """A column that was declared, and what of it does not fit."""

    name: str
    kind: Kind
    misfit: str  # such a value, in words
    fix: str

    def remark(self, share: str) -> str:
        """Return that so many rows do not fit, and the fix."""
        return f"column {self.name!r} is {self.misfit} in {share}: {self.fix[0].lower()}{self.fix[1:]}"


def declared_columns(rules: Encoding) -> tuple[Column, ...]:
    """Return all columns with a declaration, in the order of their marks: features, the label, the weight."""
    found = [Column(feature.title, *feature.misfit) for feature in rules.features]
    if rules.label is not None:
        found.append(Column(rules.label.column, "label", *_label(rules.label)))
    if rules.weight is not None:
        most = f"outside [0, {rules.weight.most:g}], or no number"
        found.append(Column(rules.weight.column, "weight", most, "Declare the most that a weight can be."))
    return tuple(found)


def declared_labels(rules: Encoding) -> tuple[str, ...]:
    """Return the labels that are counted, in words: the classes, or the two ends of a range of numbers."""
    label = rules.label
    if label is None:
        return ()
    name = repr(label.column)
    if isinstance(label, Range):
        return f"{name} below {label.low:g}", f"{name} above {label.high:g}"
    if isinstance(label, Classes):
        return tuple(f"{name} = {value!r}" for value in label.values)
    if isinstance(label, Comparison):
        positive = f"{name} {label.operator} {label.number:g}"
        return f"not {positive}", positive
    if isinstance(label, Positive):
        return f"{name} other than {label.value!r}", f"{name} = {label.value!r}"
    return f"{name} negative", f"{name} positive"


def held_at_end(label: str) -> str:
    """Return that labels are held at an end of their range, one of `declared_labels`, and the fix."""
    return (
        f"the labels are {label}, the end of their range, and held there: the model cannot learn them. Declare a wider "
        "range."
    )


class RowCounts:
    """Sums over the rows of some users, a block at a time, and what share of their rows they are."""

    def __init__(self, rules: Encoding, users: int) -> None:
        self.rows, self.usable = np.zeros(users, np.int64), np.zeros(users, np.int64)
        self.labelled = np.zeros((users, len(declared_labels(rules))), np.int32)  # usable rows by their label
        self.unfit = np.zeros((users, len(declared_columns(rules))), np.int32)  # rows by column

    def add(self, owners: Owners | NDArray[np.int32], marks: Marks, place: Owners | None = None) -> None:
        """Row i, with marks[i] (`fused`), is of user owners[i], or of place[owners[i]] where that is not -1."""
        own = np.arange(len(self.rows)) if place is None else place
        tally(owners, own, marks, self.unfit.shape[1], self.rows, self.usable, self.unfit, self.labelled)

    def fitting(self, *, everybody: bool) -> Fitting:
        """Of each user: 1 where no row can be used (u,), shares of labels (u, L), of rows with an unfit value (u, K).

        Without `everybody` a user without a row is nobody, and left out.
        """
        there = slice(None) if everybody else self.rows > 0
        none = (self.usable[there] == 0).astype(np.float64)
        labels = self.labelled[there] / np.maximum(self.usable[there], 1)[:, None]
        return none, labels, self.unfit[there] / np.maximum(self.rows[there], 1)[:, None]


def _label(label: Classes | Comparison | Positive | Range | Signs) -> tuple[str, str]:
    """Return what a row without a label holds there, and the fix."""
    if isinstance(label, Signs):
        return "no true/false, 0/1 or -1/+1", (
            "Declare what it means: positive = value, classes = [values], range = [low, high], or a comparison "
            "such as 'delay > 15'."
        )
    if isinstance(label, Classes):
        return "none of the declared classes, or missing", "Declare all classes; texts are compared letter by letter."
    if isinstance(label, Positive):
        return "missing", "If it is missing, all is well."
    return "no number", "Numbers are written with a decimal point, unless a comma is declared."


def label_places(
    label: Classes | Comparison | Positive | Range | Signs, raw: Shares, table: "pa.Table"
) -> NDArray[np.int64]:
    """Return the place of each row's label `raw` (N,) among `declared_labels`, -1 for none."""
    if isinstance(label, Range):
        values = columns.numbers(table, label.column)
        return np.select([values < label.low, values > label.high], [0, 1], -1)
    signs = not isinstance(label, Classes) or len(label.values) == 2
    whole = np.where(np.isnan(raw), -1.0, raw)
    found = np.where(whole > 0, 1, 0) if signs else whole.astype(np.int64)
    return np.where(np.isnan(raw), -1, found)


PIECE = 1 << 20  # numbers that a thread makes at a time, at most, about
LEAST = 1 << 10  # rows


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Rows as items, side by side in memory. A row that cannot be used is zero throughout, but for its marks."""

    features: NDArray[np.float32]  # (N, p), norms at most the feature norm
    labels: NDArray[np.float64]  # (N,)
    weights: NDArray[np.float64]  # (N,) in [0, 1], or empty where all count alike
    marks: Marks  # (N, B): see `RowCounts`
    weighted: bool

    @classmethod
    def of(cls, rules: Encoding, rows: int) -> "Block":
        """Room for so many, not yet written."""
        weighted = rules.weighted
        bits = 1 + _declared(rules) + len(declared_labels(rules)).bit_length()
        features, marks = np.empty((rows, rules.dimension), np.float32), np.empty((rows, (bits + 7) // 8), np.uint8)
        return cls(features, np.empty(rows), np.empty(rows * weighted), marks, weighted)

    @property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        """What there is of a row."""
        return self.features, self.labels, self.weights, self.marks

    @property
    def item(self) -> tuple[NDArray[Any], ...]:
        """All of it but its marks."""
        return self.arrays[:-1]

    @property
    def width(self) -> int:
        """Bytes of a row."""
        return int(4 * self.features.shape[1] + 8 * (1 + self.weighted) + self.marks.shape[1])

    @property
    def kept(self) -> NDArray[np.bool_]:
        """Rows that can be used, (N,)."""
        found: NDArray[np.bool_] = self.marks[:, 0] & 1 == 0
        return found

    def unfit(self, column: int) -> NDArray[np.bool_]:
        """Return which rows (N,) do not fit in a column, by its place among `declared_columns`."""
        found: NDArray[np.bool_] = self.marks[:, 1 + column >> 3] >> (1 + column & 7) & 1 == 1
        return found

    def batch(self, users: int, owners: NDArray[np.integer[Any]], order: NDArray[np.int64] | None = None) -> ItemBatch:
        """Return the items of `users` users, row i being that of user owners[i] (N,); of all of them in an `order`.

        As `Gathered.items`, in the memory that the rows are in: call it once.
        """
        place = np.arange(users, dtype=np.int32)
        if order is not None:
            place[order] = place.copy()
        return Gathered(users, place[owners], self).items(users)

    def part(self, first: int, last: int) -> "Block":
        """Return some neighbouring rows."""
        some = slice(first, last)
        return Block(self.features[some], self.labels[some], self.weights[some], self.marks[some], self.weighted)

    def resize(self, rows: int, *, marks: bool = True) -> None:
        """Room for so many rows, where it is if the system can: new ones are zeros. Nobody may have a part of it."""
        for array in self.arrays if marks else self.item:
            if array is not self.weights or self.weighted:
                array.resize((rows, *array.shape[1:]), refcheck=False)


def encoded(rules: Encoding, table: pa.Table) -> Block:
    """Return all rows of a table as items. Raises DataError as `rules.check` does, and never for a value."""
    rules.check(table)
    block = Block.of(rules, table.num_rows)
    encode(rules, table, block)
    return block


def encode(rules: Encoding, table: pa.Table, block: Block) -> None:
    """Encode all rows of a table, which `rules.check` found good, into a block of as many."""
    shape = _Shape.of(rules)
    pieces = all_threads() * max(1, -(-rules.dimension * table.num_rows // (all_threads() * PIECE)))
    size = max(LEAST, -(-table.num_rows // pieces))
    works, first = [], 0
    for batch in table.to_batches(max_chunksize=size):
        part = block.part(first, first + batch.num_rows)
        works.append(partial(shape.encode, pa.Table.from_batches([batch]), part))
        first += batch.num_rows
    at_once(works, all_threads())


@dataclass(frozen=True, slots=True, eq=False)
class _Shape:
    """What is known of all rows beforehand."""

    rules: Encoding
    numbers: tuple[int, ...]  # places of features that are numbers
    others: tuple[tuple[int, int], ...]  # places of those that are not, and their first column
    ends: NDArray[np.float64]  # (k, 2) of each number
    places: NDArray[np.int64]  # (k, 2) its column and its bit
    scale: float

    @classmethod
    def of(cls, rules: Encoding) -> "_Shape":
        features = rules.features
        firsts = list(accumulate((feature.width for feature in features), initial=0))
        numbers = tuple(place for place, feature in enumerate(features) if feature.is_number)
        others = tuple((place, firsts[place]) for place, feature in enumerate(features) if not feature.is_number)
        ends = np.array([(features[place].low, features[place].high) for place in numbers], np.float64)
        places = np.array([(firsts[place], 1 + place) for place in numbers], np.int64)
        scale = 1.0 if rules.normalize else rules.scale
        return cls(rules, numbers, others, ends.reshape(-1, 2), places.reshape(-1, 2), scale)

    def encode(self, table: pa.Table, block: Block) -> None:
        """A piece of rows, of one chunk a column."""
        rules, drop = self.rules, self.rules.missing == "drop"
        made, labels, weights, marks = block.arrays
        # of polynomials: columns between -1 and 1 first
        features, scale = (
            (np.empty((len(made), rules.base_width), np.float32), 1.0) if rules.bends else (made, self.scale)
        )
        marks[:] = 0
        with np.errstate(all="ignore"):  # a value may be too large for any step, and is then held at an end
            if self.numbers:
                read = [_stored(rules.features[place], table) for place in self.numbers]
                stored = np.array([row for row, _ in read], np.int64)
                numbers(stored, self.ends, self.places, drop, scale, features, marks)
                del read  # which kept what is at these addresses
            for place, first in self.others:
                feature = rules.features[place]
                one_hot(feature.read(table), first, feature.width, 1 + place, scale, features, marks)
            if rules.bends:
                expand(features, rules.terms.places, self.scale, made)
            if rules.intercept:
                made[:, -1] = self.scale
            self._labels(table, labels, marks)
            if rules.weighted:
                self._weights(table, weights, marks)
        if rules.normalize:
            made[:] = rules.in_unit_rows(made)
        clear(made, labels, weights, marks)

    def _labels(self, table: pa.Table, labels: Any, marks: Any) -> None:
        rules, label = self.rules, self.rules.label
        if label is None:
            labels[:] = 0.0
            return
        labels[:] = label.of(table)
        bit, missing = 1 + len(rules.features), np.isnan(labels)
        mark(missing, 0, marks)
        mark(missing, bit, marks)
        places = label_places(label, labels, table)
        first = 1 + _declared(rules)
        for power in range(len(declared_labels(rules)).bit_length()):
            mark(places + 1 >> power & 1 == 1, first + power, marks)

    def _weights(self, table: pa.Table, weights: Any, marks: Any) -> None:
        weight, bit = self.rules.weight, _declared(self.rules)
        assert weight is not None
        values = columns.numbers(table, weight.column)
        missing, above = ~(values >= 0), values > weight.most
        mark(missing, 0, marks)
        mark(missing | above, bit, marks)
        weights[:] = np.minimum(values / weight.most, 1.0)


def _stored(feature: Any, table: pa.Table) -> tuple[tuple[int, int, int, int], Any]:
    """Return where and how the numbers of a feature are (see `numbers`), and what keeps them there."""
    if isinstance(feature, Numeric):
        (values,) = table.column(feature.column).chunks
        if (kind := str(values.type)) in STORED and all(values.buffers()[not values.null_count :]):
            valid, data = values.buffers()
            bits = valid.address if values.null_count else 0
            return (data.address, STORED.index(kind), bits, values.offset), values
    numbers = np.ascontiguousarray(feature.read(table), np.float64)
    return (numbers.__array_interface__["data"][0], 1, 0, 0), numbers


def _declared(rules: Encoding) -> int:
    """K."""
    return len(rules.features) + (rules.label is not None) + (rules.weight is not None)


_GROWTH = 1.125  # of memory, which is the most that is taken in vain
_FEW = 0.3  # of all rows, which may be copied
_STRETCH = 1 << 21  # bytes of rows that are put in order at a time, about: a processor's cache


class Gathering:
    """Rows that are added batch by batch, of a table of so many `rows`, where that is known.

    Before they take more memory, `ask` is called with the bytes that they will take, and how many of these are new. It
    may raise.
    """

    def __init__(
        self,
        rules: Encoding,
        user: str,
        most: int = sys.maxsize,
        *,
        rows: int | None = None,
        ask: Callable[[int, int], object] | None = None,
    ) -> None:
        self._rules, self._most, self._ask, self._all = rules, most, ask, rows or sys.maxsize
        self._block, self._rows = Block.of(rules, 0), 0
        self._numbering, self._seen = Numbering(user), np.zeros(0, np.int64)
        self._owners: list[Codes] = []

    def add(self, table: pa.Table) -> None:
        """The rows that follow, with the columns of the rules, which `rules.check` found good, and the user's."""
        first, last = self._rows, self._rows + table.num_rows
        self._make_room(last)
        encode(self._rules, table, self._block.part(first, last))
        self._numbering.add(table)
        self._rows = last
        if self._numbering.is_full:
            self._count()

    @property
    def names(self) -> list[str]:
        """Of the users, in their order."""
        return self._numbering.names()

    @property
    def people(self) -> bytes:
        """A digest of these."""
        return self._numbering.digest

    def end(self) -> "Gathered":
        """Return all rows. Raises DataError for a table without rows, and for a row without a user."""
        if self._numbering.waiting:
            self._count()
        users, ranks = self._numbering.ranks(without_rows=True)
        if not self._owners:
            raise DataError(NO_ROWS)
        pa.default_memory_pool().release_unused()  # what batches were in
        owners = np.concatenate([ranks[numbers] for numbers in self._owners])
        self._owners.clear()
        self._block.marks.resize((len(owners), self._block.marks.shape[1]), refcheck=False)
        return Gathered(users, owners, self._block)

    def _make_room(self, rows: int) -> None:
        have = len(self._block.labels)
        if rows > have:
            wanted = max(rows, min(int(_GROWTH * have), self._all))
            if self._ask is not None:
                self._ask(wanted * self._block.width, (wanted - have) * self._block.width)
            self._block.resize(wanted)

    def _count(self) -> None:
        """Number the users of rows that wait, and leave out those of whom has enough."""
        codes = self._numbering.numbers()
        first, kept = self._rows - len(codes), np.empty(len(codes), np.bool_)
        self._seen = np.append(self._seen, np.zeros(len(self._numbering) - len(self._seen), np.int64))
        if not first_of(codes, self._seen, self._most, kept):
            for array in self._block.part(first, self._rows).arrays:
                if len(array):
                    squeeze(kept, array)
            codes = codes[kept]
            self._rows = first + len(codes)
        self._owners.append(codes)


@dataclass(frozen=True, slots=True, eq=False)
class Gathered:
    """Rows that count, in the order of the table."""

    users: int  # whose names are in the table, with rows or without
    owners: Codes  # (N,) whose each row is
    block: Block  # of N rows or more, with marks of N

    def items(self, users: int, *, zero_rows: bool = True) -> ItemBatch:
        """Of so many users, in the memory that the rows are in: call it once.

        A user without a row that can be used has one item of zeros, whose gradient is zero but for the ridge; without
        `zero_rows` it has no item, and is one who does not answer.
        """
        rows, block = len(self.owners), self.block
        held = np.bincount(self.owners[block.kept], minlength=users)
        offsets = np.append(0, np.cumsum(np.maximum(held, 1) if zero_rows else held))
        last = int(offsets[-1])
        whole = max(rows, last)
        if whole > len(block.labels):
            block.resize(whole, marks=False)
        for array in block.item:
            array[rows:whole] = 0
        to = np.empty(whole, np.int32 if whole < 2**31 else np.int64)
        if not settle(self.owners, block.marks, offsets, held, zero_rows, to):
            put_in_order(to, block)
        block.resize(last, marks=False)
        return ItemBatch(block.features, block.labels, offsets, block.weights if block.weighted else None)


def put_in_order(to: NDArray[Any], block: Block) -> None:
    """Row i to place to[i], for all of them, in place."""
    late = np.flatnonzero(to > np.arange(len(to), dtype=to.dtype))
    if len(late) <= _FEW * len(to) and advances(to):  # a table in the order of its users, of whom some are held out
        for array in block.item:
            if len(array):
                apart = array[late]
                advance(to, array)
                array[to[late]] = apart
        return
    bits = max(0, (_STRETCH // block.width).bit_length() - 1)
    firsts = np.append(np.arange(0, len(to), 1 << bits), len(to))
    if len(firsts) > 2:
        deal(to, bits, firsts, firsts[:-1].copy(), *block.item)
    works = (partial(permute, first, last, to, *block.item) for first, last in pairwise(firsts.tolist()))
    at_once(works, all_threads())
