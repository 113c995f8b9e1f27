"""Rows as items, in one pass: a value is read once, where Arrow has it, and written once, scaled, as part of its item.

What does not fit is marked with it, a few bits a row (`fused`). Loops of the same statement put rows user by user.
"""

from typing import Any

import numpy as np
from numba import carray, literal_unroll, types  # type: ignore[attr-defined]
from numba.extending import intrinsic

from quoron_privacy.kernels.shipped import njit

_LONG, _NUMBERS = 256, 1 << 16  # rows of a tile, and numbers: it stays in a processor's cache
_APART = 16  # numbers between columns of a tile: a power of two apart, they would drive each other out of the cache
# How Arrow stores numbers, by what `numbers` is told.
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
def numbers(
    stored: Any, ends: Any, places: Any, drop: bool, scale: float, features: Any, marks: Any, counts: Any
) -> None:
    """Columns of numbers, each brought from its [low, high] to [-1, 1] in float32, and then times `scale`.

    `stored` (k, 4) are the address of each column's values, how they are stored, the address of their validity and the
    first one's place; `ends` (k, 2) low and high; `places` (k, 2) its column of `features` (N, p) and its bit of
    `marks` (N, B). `counts` (k, 2) become values that are missing, and others outside the range.
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
                    counts[j, 1] += 1
                    continue
                counts[j, 0] += 1
                tile[j, i] = middle
                if drop:
                    marks[start + i, 0] |= np.uint8(1)
        for i in range(many):
            for j in range(columns):
                features[start + i, places[j, 0]] = tile[j, i]


@njit(cache=True, nogil=True, error_model="numpy")
def one_hot(
    codes: Any, first: int, width: int, bit: int, middle: int, drop: bool, one: float, features: Any, marks: Any
) -> int:
    """A column of codes: of `width` columns from `first` on one is `one`. Returns how many have none, which are marked.

    Where `middle` is a code, not -1, a row without one has that code, or with `drop` cannot be used.
    """
    without = 0
    for i in range(len(codes)):
        code = codes[i]
        for j in range(first, first + width):
            features[i, j] = 0.0
        if code < 0:
            without += 1
            marks[i, bit >> 3] |= np.uint8(1 << (bit & 7))
            if middle >= 0 and drop:
                marks[i, 0] |= np.uint8(1)
            code = middle
        if code >= 0:
            features[i, first + code] = np.float32(one)
    return without


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
    """Which rows are among the first `most` of their user, of whom seen[u] were met before; whether all are."""
    everything = True
    for i in range(len(owners)):
        seen[owners[i]] += 1
        kept[i] = seen[owners[i]] <= most
        everything = everything and kept[i]
    return everything


@njit(cache=True, nogil=True, error_model="numpy")
def squeeze(kept: Any, rows: Any) -> int:
    """The kept rows of (N, ...), one after the other from the first on; how many they are."""
    at = 0
    for i in range(len(kept)):
        if kept[i]:
            if at < i:
                rows[at] = rows[i]
            at += 1
    return at


@njit(cache=True, nogil=True, error_model="numpy")
def settle(owners: Any, marks: Any, offsets: Any, held: Any, zero_rows: bool, to: Any) -> bool:
    """Where each row goes so that usable ones lie user by user, `to` (M,); whether all are there already.

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
    """Adds up marks of the rows of users u with place[u] >= 0: rows, usable ones, unfit by column, usable by label."""
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
