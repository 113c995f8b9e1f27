"""From the rows of a table to what is bought of it: the releases one after the other, each in view of those before.

    released, entries = release(bought, wants, source, owners, users, noise)

What is released is JSON-compatible, and all that anybody reads afterwards. The mechanism, and the proof that its
releases may be chosen so: quoron_privacy.counts.bought, docs/privacy/bought-declarations.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from quoron_client.data import columns
from quoron_client.data.dates import DateNumber
from quoron_client.data.first_rows import first_rows, most_rows
from quoron_client.data.tables import Opened
from quoron_privacy.counts.bought import CLOSER, Bought, name_counts, ranges
from quoron_privacy.counts.marks import KINDS, MARKS, marks
from quoron_privacy.counts.windows import Windows
from quoron_privacy.errors import DataError
from quoron_privacy.noise.streams import NoiseSource
from quoron_privacy.release import Release

Integers = NDArray[np.int64]
What = Literal["number", "date", "category", "any", "label", "items"]
CENTURIES = 1900.0, 2100.0  # within which years are told apart
_NOTHING = frozenset({"na", "n/a", "nan", "null", "none", "nil", "?", "-", ".", "unknown", "missing"})
_NUMBER, _DAY, _FLAG, _TEXT, _MISSING = map(KINDS.index, ("number", "date", "boolean", "text", "missing"))
Released = dict[str, Any]  # by column: its kind, the votes of each kind, its range, its names


@dataclass(frozen=True, slots=True)
class Want:
    """A fact to be bought: the range of a number, the values of a category, any of these; a label, or rows a user."""

    column: str
    what: What

    @property
    def may_be_number(self) -> bool:
        """Whether numbers are looked at."""
        return self.what != "category"

    @property
    def may_be_text(self) -> bool:
        """Whether names are."""
        return self.what in ("category", "any", "label")


def release(
    bought: Bought, wants: Sequence[Want], source: Opened, owners: Integers, users: int, noise: NoiseSource
) -> tuple[Released, tuple[Release, ...]]:
    """What the releases say, by column, and their ledger entries; row i is of user owners[i] < users.

    Where there are more users than are looked at, these are drawn in secret, and no row of another is kept. Of a user
    the first `most_rows` count. Under zero-out whoever has no row is nobody, and counts nowhere.
    """
    stream = noise.stream("bought", "users")
    chosen = np.arange(users) if users <= bought.users else stream.subset(users, bought.users)
    if bought.adjacency == "zero-out":
        chosen = chosen[np.isin(chosen, owners)]
    seats = np.full(users, -1, np.int64)
    seats[chosen] = np.arange(len(chosen))
    names = list(dict.fromkeys(want.column for want in wants if want.what != "items"))
    counted = first_rows(owners, most_rows(1, max(1, len(names)), weighted=False)) & (seats[owners] >= 0)
    table = _rows(source, names, counted) if names else pa.table({})
    crowd = _Crowd(bought, table, seats[owners[counted]], len(chosen), noise)
    found: Released = {want.column: {} for want in wants}
    entries = {each.mechanism: each for each in bought.entries()}
    made = crowd.numbers([want for want in wants if want.may_be_number], found) if bought.columns else []
    made += crowd.names([want for want in wants if want.may_be_text], found)
    return found, tuple(entries[f"bought-{each}"] for each in made)


def _rows(source: Opened, names: Sequence[str], kept: NDArray[np.bool_]) -> pa.Table:
    """The rows that are kept, of all in order. DataError where the table has others than when it was opened."""
    parts, first = [source.empty(names)], 0
    for batch in source.batches(names):
        own = kept[first : first + batch.num_rows]
        first += batch.num_rows
        parts.append(batch if own.all() and len(own) == batch.num_rows else batch.filter(pa.array(own)))
    if first != len(kept):
        raise DataError(f"Expected a table of {len(kept):,} rows, as when it was opened, got {first:,}.")
    return pa.concat_tables(parts)


@dataclass(frozen=True, slots=True, eq=False)
class _Crowd:
    """The users that are looked at, row i being that of the user at seat[i]."""

    bought: Bought
    table: pa.Table
    seat: Integers
    many: int
    noise: NoiseSource

    def numbers(self, wants: Sequence[Want], found: Released) -> list[str]:
        """Kinds of these columns, and ranges of those that are numbers; the names of the releases."""
        bought, made = self.bought, ["places"]
        numbers = np.empty((self.many, len(wants), MARKS))
        kinds = np.empty((self.many, len(wants), MARKS), np.int8)
        for place, want in enumerate(wants):
            numbers[:, place], kinds[:, place] = self._marks(want)
        shapes = bought.shapes(bought.release_places(bought.place_counts(numbers, kinds), self._stream("places")))
        for want, kind, votes in zip(wants, shapes.kinds, shapes.counts.tolist(), strict=True):
            found[want.column] |= {"kind": kind, "votes": votes}
        for want in wants:
            if want.what in ("number", "items", "date"):
                found[want.column]["kind"] = "date" if want.what == "date" else "number"
        known = [found[want.column]["kind"] for want in wants]
        at = np.flatnonzero([kind in ("number", "date") for kind in known])
        if not len(at):
            return made
        days = np.flatnonzero([kind == "date" for kind in known])
        low, high = (np.full(len(days), year) for year in CENTURIES)
        years = Windows(low, high, shapes.counts[days, KINDS.index("date")], np.ones(len(days), np.int64))
        around, made = shapes.windows.but(days, years).where(at), [*made, "cells"]
        cells = bought.release_cells(bought.cell_counts(numbers[:, at], around), self._stream("cells"))
        near = bought.near(cells, around)
        which, window = bought.closer(near)
        if len(which):
            counts, made = bought.cell_counts(numbers[:, at[which]], window, CLOSER), [*made, "closer"]
            near = near.but(which, bought.nearer(bought.release_closer(counts, self._stream("closer")), window))
        low, high = ranges(near)
        for place, *ends, held in zip(at.tolist(), low.tolist(), high.tolist(), near.held.tolist(), strict=True):
            found[wants[place].column] |= {"range": ends, "held": held}
        return made

    def names(self, wants: Sequence[Want], found: Released) -> list[str]:
        """Names of those columns of these that are text, and of a label; the names of the releases."""
        kinds = {want.column: found[want.column].get("kind", "text") for want in wants}
        named = [want for want in wants if want.what == "label" or kinds[want.column] == "text"]
        if not named:
            return []
        counts = [self._names(want) for want in named]
        for want, names in zip(named, self.bought.release_names(counts, self._stream("names")), strict=True):
            found[want.column]["names"] = [[str(name), votes] for name, votes in names.items()]
        return ["names"]

    def _stream(self, what: str) -> Any:
        return self.noise.stream("bought", what)

    def _marks(self, want: Want) -> tuple[NDArray[np.float64], NDArray[np.int8]]:
        if want.what == "items":
            rows = np.bincount(self.seat, minlength=self.many).astype(np.float64)
            return marks(rows, np.arange(self.many), self.many)
        if want.what == "number":
            return marks(columns.numbers(self.table, want.column), self.seat, self.many)
        values, kinds = read_kinds(self.table, want.column)
        return marks(values, self.seat, self.many, kinds)

    def _names(self, want: Want) -> dict[str | int, int]:
        codes, names = read_names(self.table, want.column)
        own, _ = marks(codes, self.seat, self.many)
        return name_counts(np.where(np.isnan(own), -1, own).astype(np.int64), names)


def read_kinds(table: pa.Table, name: str) -> tuple[NDArray[np.float64], NDArray[np.int8]]:
    """What every row says as a number, of a date its year, NaN for none, and its kind's place among `KINDS`; both (N,).

    >>> table = pa.table({"age": ["50", "2024-05-01", "true", "old", "n/a", ""]})
    >>> [KINDS[each] for each in read_kinds(table, "age")[1]]
    ['number', 'date', 'boolean', 'text', 'missing', 'missing']

    A function of each value alone, and private: it is for a release with noise. Raises DataError.
    """
    type_ = columns.kind(table, name)
    if pa.types.is_date(type_) or pa.types.is_timestamp(type_):
        years = _years(table, name)
        return years, np.where(np.isnan(years), _MISSING, _DAY).astype(np.int8)
    values = columns.numbers(table, name)
    if pa.types.is_boolean(type_):
        return values, np.where(np.isnan(values), _MISSING, _FLAG).astype(np.int8)
    if not (_is_text(type_) or pa.types.is_null(type_)):
        return values, np.where(np.isnan(values), _MISSING, _NUMBER).astype(np.int8)
    years, coded = _years(table, name), columns.texts(table, name).dictionary_encode()
    words = [_of_word(text) for text in coded.dictionary.to_pylist()]
    found = np.array([*words, _MISSING], np.int8)[pc.fill_null(coded.indices, -1).to_numpy(zero_copy_only=False)]
    kinds = np.where((found == _TEXT) & ~np.isnan(values), _NUMBER, found)
    kinds = np.where((found == _TEXT) & np.isnan(values) & ~np.isnan(years), _DAY, kinds).astype(np.int8)
    return np.where(kinds == _DAY, years, values), kinds


def read_names(table: pa.Table, name: str) -> tuple[NDArray[np.float64], list[str]]:
    """Place of every row's text among the column's texts in their order, NaN for none, and the texts."""
    coded = columns.texts(table, name).dictionary_encode()
    found = coded.dictionary.to_pylist()
    order = sorted(range(len(found)), key=found.__getitem__)
    ranks = np.full(len(found) + 1, np.nan)
    ranks[order] = np.arange(len(order))
    nothing = np.array([*(text.strip().lower() in _NOTHING for text in found), True])
    ranks[nothing] = np.nan
    return ranks[pc.fill_null(coded.indices, -1).to_numpy(zero_copy_only=False)], [found[each] for each in order]


def _of_word(text: str) -> int:
    word = text.strip().lower()
    return _FLAG if word in ("true", "false") else _MISSING if word in _NOTHING else _TEXT


def _years(table: pa.Table, name: str) -> NDArray[np.float64]:
    return DateNumber(name, "year", 1900, 2100).values(table)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))
