"""Private bounds of a table's columns: the releases one after the other, each chosen by those before.

    released, entries = release(estimates, wants, source, owners, users, noise)

What is released is JSON-compatible, and all that anybody reads afterwards. The mechanism, and the proof that its
releases may be chosen so: quoron_privacy.counts.private_bounds, docs/privacy/private-bounds.md.

What every row of an undeclared column holds, `row_kinds`: a number, a date, true or false, text, or nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from quoron import toml_text
from quoron.data.user_rows import first_rows, most_rows
from quoron_client.data import columns
from quoron_client.data.encoding import AnyLabel
from quoron_client.data.features import DateNumber
from quoron_client.data.tables import Opened
from quoron_privacy.counts.data_quality import looked_at
from quoron_privacy.counts.private_bounds import (
    KINDS,
    MARKS,
    EstimatedBounds,
    Windows,
    marks,
    name_counts,
    ranges,
    share_for,
)
from quoron_privacy.errors import CONTROL, DataError, Infeasible
from quoron_privacy.noise.streams import NoiseSource
from quoron_privacy.release import Adjacency, Release
from quoron_server.plan import LEAST_EPSILON

Integers = NDArray[np.int64]
What = Literal["number", "year", "date", "category", "any", "label", "rate", "items"]
CENTURIES = 1900.0, 2100.0  # within which years are distinguished
Released = dict[str, Any]  # by column: its kind, the votes of each kind, its range, its names


@dataclass(frozen=True, slots=True)
class Want:
    """A fact to estimate: the range of a number, the values of a category, any of these; a label, or rows a user.

    Of a label that is declared it is the `rate` of its two classes, which `label` tells apart.
    """

    column: str
    what: What
    label: AnyLabel | None = None

    @property
    def may_be_number(self) -> bool:
        """Whether numbers are looked at."""
        return self.what not in ("category", "rate")

    @property
    def may_be_text(self) -> bool:
        """Whether names are."""
        return self.what in ("category", "any", "label", "rate")

    @property
    def is_label(self) -> bool:
        """Whether it is of the label."""
        return self.what in ("label", "rate")


@dataclass(frozen=True, slots=True)
class Bounds:
    """What was released of a column, as a table's section declares it."""

    kind: str  # a key of its columns: numeric, dates or categorical; or items, of the section itself
    name: str  # of the column, or items_per_user
    value: Any  # None: nothing that could be declared
    problem: str = ""

    def text(self) -> str:
        """For people: the value as TOML has it, or why there is none."""
        if self.value is None:
            return f"{self.name}: {self.problem}"
        return f"{self.name} = {toml_text.literal(self.value)}"


def planned(
    wants: Sequence[Want], users: int, epsilon: float, delta: float, adjacency: Adjacency, share: float | None = None
) -> EstimatedBounds:
    """Calibrate the private bounds of these columns for a share of a promise; None: for as large a one as they need.

    Infeasible where that tells nothing, or leaves nothing for what comes after.
    """
    sizes: dict[str, Any] = {
        "columns": sum(want.may_be_number for want in wants),
        "names": sum(want.may_be_text for want in wants),
        "epsilon": epsilon,
        "delta": delta,
        "adjacency": adjacency,
    }
    part = share_for(users=users, **sizes) if share is None else share
    found = EstimatedBounds.calibrate(users=looked_at(users), share=part, **sizes)
    if share is None and found.rest_epsilon < LEAST_EPSILON:
        condition = f"epsilon={epsilon:g} leaves nothing beside them"
        raise Infeasible("private bounds", condition, "a larger epsilon")
    return found


def release(
    estimates: EstimatedBounds,
    wants: Sequence[Want],
    source: Opened,
    owners: Integers,
    users: int,
    noise: NoiseSource,
    among: Integers | None = None,
) -> tuple[Released, tuple[Release, ...]]:
    """What the releases say, by column, and their ledger entries; row i is of user owners[i] < users, `among` (k,).

    Where there are more users than are looked at, these are drawn in secret, and no row of another is kept. Of a user
    the first `most_rows` count. Under zero-out a user without a row counts nowhere.
    """
    stream = noise.stream("bought", "users")
    known = np.arange(users) if among is None else among
    chosen = known if len(known) <= estimates.users else known[stream.subset(len(known), estimates.users)]
    if estimates.adjacency == "zero-out":
        chosen = chosen[np.isin(chosen, owners)]
    seats = np.full(users, -1, np.int64)
    seats[chosen] = np.arange(len(chosen))
    names = list(dict.fromkeys(want.column for want in wants if want.what != "items"))
    counted = first_rows(owners, most_rows(1, max(1, len(names)), weighted=False)) & (seats[owners] >= 0)
    table = _rows(source, names, counted) if names else pa.table({})
    crowd = _Crowd(estimates, table, seats[owners[counted]], len(chosen), noise)
    found: Released = {want.column: {} for want in wants}
    entries = {entry.mechanism: entry for entry, _ in estimates.releases()}
    made = crowd.numbers([want for want in wants if want.may_be_number], found) if estimates.columns else []
    made += crowd.names([want for want in wants if want.may_be_text], found)
    return found, tuple(entries[f"bounds-{name}"] for name in made)


def typical_items(found: Mapping[str, Any]) -> int:
    """Return what a user typically holds: the middle of where nearly all users' numbers of rows lie."""
    low, high = found.get("range", (1.0, 1.0))
    return max(1, round(sqrt(max(low, 1.0) * max(high, 1.0))))


def spelt(want: Want, found: Released) -> bool:
    """Return whether it is a label of words, by the first release: its classes are names, however many."""
    return want.is_label and found[want.column].get("kind", "text") == "text"


def _rows(source: Opened, names: Sequence[str], kept: NDArray[np.bool_]) -> pa.Table:
    """Return the rows that are kept, of all in order. DataError where the table has others than when it was opened."""
    parts, first = [source.empty(names)], 0
    for batch in source.batches(names):
        own = kept[first : first + batch.num_rows]
        first += batch.num_rows
        parts.append(batch if own.all() and len(own) == batch.num_rows else batch.filter(pa.array(own)))
    if first != len(kept):
        raise DataError("Expected the table as it was when it was opened, got one of more rows, or fewer.")
    return pa.concat_tables(parts)


@dataclass(frozen=True, slots=True, eq=False)
class _Crowd:
    """The users that are looked at, row i being that of the user at seat[i]."""

    estimates: EstimatedBounds
    table: pa.Table
    seat: Integers
    many: int
    noise: NoiseSource

    def numbers(self, wants: Sequence[Want], found: Released) -> list[str]:
        """Kinds of these columns, and ranges of those that are numbers; the names of the releases."""
        estimates, made = self.estimates, ["places"]
        numbers = np.empty((self.many, len(wants), MARKS))
        kinds = np.empty((self.many, len(wants), MARKS), np.int8)
        for place, want in enumerate(wants):
            numbers[:, place], kinds[:, place] = self._marks(want)
        shapes = estimates.shapes(
            estimates.release_places(estimates.place_counts(numbers, kinds), self._stream("places"))
        )
        for want, kind, votes, told in zip(
            wants, shapes.kinds, shapes.counts.tolist(), shapes.told.tolist(), strict=True
        ):
            found[want.column] |= {"kind": kind, "votes": votes, "told": told}
        for want in wants:
            if want.what == "date" or (want.what == "any" and is_day(columns.kind(self.table, want.column))):
                found[want.column]["kind"] = "date"
            elif want.what in ("number", "year", "items"):
                found[want.column]["kind"] = "number"
        known = [found[want.column]["kind"] for want in wants]
        at = np.flatnonzero([kind in ("number", "date") for kind in known])
        if not len(at):
            return made
        days = np.flatnonzero([kind == "date" for kind in known])
        low, high = (np.full(len(days), year) for year in CENTURIES)
        years = Windows(low, high, shapes.counts[days, KINDS.index("date")], np.ones(len(days), np.int64))
        around = shapes.windows.but(days, years).where(at)
        near, closer = estimates.release_near(numbers[:, at], around, self.noise)
        made += ["cells", *["closer"] * closer]
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
        label = next((place for place, want in enumerate(named) if spelt(want, found)), None)
        released = self.estimates.release_names(counts, self._stream("names"), label=label)
        for want, names in zip(named, released, strict=True):
            found[want.column]["names"] = [[str(name), votes] for name, votes in names.items()]
        return ["names"]

    def _stream(self, what: str) -> Any:
        return self.noise.stream("bought", what)

    def _marks(self, want: Want) -> tuple[NDArray[np.float64], NDArray[np.int8]]:
        if want.what == "items":
            rows = np.bincount(self.seat, minlength=self.many).astype(np.float64)
            return marks(rows, np.arange(self.many), self.many)
        if want.what == "year":
            return marks(DateNumber(want.column, "year", 0, 1).read(self.table), self.seat, self.many)
        if want.what == "number":
            return marks(columns.numbers(self.table, want.column), self.seat, self.many)
        values, kinds = row_kinds(self.table, want.column)
        return marks(values, self.seat, self.many, kinds)

    def _names(self, want: Want) -> dict[str | int, int]:
        if want.label is None:
            codes, names = text_codes(self.table, want.column)
        else:
            signs = want.label.of(self.table)
            codes, names = np.where(np.isnan(signs), np.nan, signs > 0), ["0", "1"]
        own, _ = marks(codes, self.seat, self.many)
        return name_counts(np.where(np.isnan(own), -1, own).astype(np.int64), names)


_NOTHING = frozenset({"na", "n/a", "nan", "null", "none", "nil", "?", "-", ".", "unknown", "missing"})
_NUMBER, _DAY, _FLAG, _TEXT, _MISSING = map(KINDS.index, ("number", "date", "boolean", "text", "missing"))


def row_kinds(table: pa.Table, name: str) -> tuple[NDArray[np.float64], NDArray[np.int8]]:
    """Return each row's number, of a date its year, NaN for none, and its kind, a place among `KINDS`; both (N,).

    Raises DataError for a column that cannot be read. A function of each value alone, and private.

        >>> table = pa.table({"age": ["50", "2024-05-01", "true", "old", "n/a", ""]})
        >>> [KINDS[each] for each in row_kinds(table, "age")[1]]
        ['number', 'date', 'boolean', 'text', 'missing', 'missing']
    """
    type_ = columns.kind(table, name)
    if is_day(type_):
        years = _years(table, name)
        return years, np.where(np.isnan(years), _MISSING, _DAY).astype(np.int8)
    values = columns.numbers(table, name)
    if pa.types.is_boolean(type_):
        return values, np.where(np.isnan(values), _MISSING, _FLAG).astype(np.int8)
    if not (columns.is_text(type_) or pa.types.is_null(type_)):
        return values, np.where(np.isnan(values), _MISSING, _NUMBER).astype(np.int8)
    years, coded = _years(table, name), columns.texts(table, name).dictionary_encode()
    words = [_of_word(text) for text in coded.dictionary.to_pylist()]
    found = np.array([*words, _MISSING], np.int8)[columns.codes(coded)]
    kinds = np.where((found == _TEXT) & ~np.isnan(values), _NUMBER, found)
    kinds = np.where((found == _TEXT) & np.isnan(values) & ~np.isnan(years), _DAY, kinds).astype(np.int8)
    return np.where(kinds == _DAY, years, values), kinds


def is_day(kind: pa.DataType) -> bool:
    """Return whether all that such a column holds is dates."""
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def text_codes(table: pa.Table, name: str) -> tuple[NDArray[np.float64], list[str]]:
    """Return the place of every row's text among the column's texts in their order, NaN for none, and the texts."""
    coded = columns.texts(table, name).dictionary_encode()
    found = coded.dictionary.to_pylist()
    order = sorted(range(len(found)), key=found.__getitem__)
    ranks = np.full(len(found) + 1, np.nan)
    ranks[order] = np.arange(len(order))
    # A text that a model's file may not hold is no name, either.
    nothing = np.array([*(text.strip().lower() in _NOTHING or bool(CONTROL.search(text)) for text in found), True])
    ranks[nothing] = np.nan
    return ranks[columns.codes(coded)], [found[place] for place in order]


def _of_word(text: str) -> int:
    word = text.strip().lower()
    return _FLAG if word in ("true", "false") else _MISSING if word in _NOTHING else _TEXT


def _years(table: pa.Table, name: str) -> NDArray[np.float64]:
    return DateNumber(name, "year", 1900, 2100).read(table)
