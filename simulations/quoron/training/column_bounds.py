"""Private bounds of a table's columns: the releases one after the other, each chosen by those before.

    released, entries = release(estimates, facts, source, owners, users, noise)

What is released is JSON-compatible, and all that anybody reads afterwards. The mechanism, and the proof that its
releases may be chosen so: quoron_privacy.histograms.private_bounds, docs/privacy/private-bounds.md.

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
from quoron.data.user_rows import first_rows, max_rows
from quoron_client.data import columns
from quoron_client.data.encoding import AnyLabel
from quoron_client.data.features import DateNumber
from quoron_client.data.tables import Opened
from quoron_privacy.errors import CONTROL, DataError, Infeasible
from quoron_privacy.histograms.data_quality import looked_at
from quoron_privacy.histograms.private_bounds import (
    KINDS,
    MARKS,
    EstimatedBounds,
    Windows,
    marks,
    name_counts,
    ranges,
    share_for,
)
from quoron_privacy.noise.streams import NoiseSource
from quoron_privacy.release import Adjacency, Release
from quoron_server.plan import MIN_EPSILON

Integers = NDArray[np.int64]
What = Literal["number", "year", "date", "category", "any", "label", "rate", "items"]
CENTURIES = 1900.0, 2100.0  # within which years are distinguished
Released = dict[str, Any]  # by column: its kind, the votes of each kind, its range, its names


@dataclass(frozen=True, slots=True)
class Fact:
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
    facts: Sequence[Fact], users: int, epsilon: float, delta: float, adjacency: Adjacency, share: float | None = None
) -> EstimatedBounds:
    """Calibrate the private bounds of these columns for a share of a promise; None: for as large a one as they need.

    Infeasible where that tells nothing, or leaves nothing for what comes after.
    """
    sizes: dict[str, Any] = {
        "columns": sum(fact.may_be_number for fact in facts),
        "names": sum(fact.may_be_text for fact in facts),
        "epsilon": epsilon,
        "delta": delta,
        "adjacency": adjacency,
    }
    part = share_for(users=users, **sizes) if share is None else share
    calibrated = EstimatedBounds.calibrate(users=looked_at(users), share=part, **sizes)
    if share is None and calibrated.rest_epsilon < MIN_EPSILON:
        condition = f"epsilon={epsilon:g} leaves nothing beside them"
        raise Infeasible("private bounds", condition, "a larger epsilon")
    return calibrated


def release(
    estimates: EstimatedBounds,
    facts: Sequence[Fact],
    source: Opened,
    owners: Integers,
    users: int,
    noise: NoiseSource,
    among: Integers | None = None,
) -> tuple[Released, tuple[Release, ...]]:
    """What the releases say, by column, and their ledger entries; row i is of user owners[i] < users, `among` (k,).

    Where there are more users than are looked at, these are drawn in secret, and no row of another is kept. Of a user
    the first `max_rows` count. Under zero-out a user without a row counts nowhere.
    """
    stream = noise.stream("bought", "users")
    known = np.arange(users) if among is None else among
    chosen = known if len(known) <= estimates.users else known[stream.subset(len(known), estimates.users)]
    if estimates.adjacency == "zero-out":
        chosen = chosen[np.isin(chosen, owners)]
    seats = np.full(users, -1, np.int64)
    seats[chosen] = np.arange(len(chosen))
    names = list(dict.fromkeys(fact.column for fact in facts if fact.what != "items"))
    counted = first_rows(owners, max_rows(1, max(1, len(names)), weighted=False)) & (seats[owners] >= 0)
    table = _rows(source, names, counted) if names else pa.table({})
    sample = _Sample(estimates, table, seats[owners[counted]], len(chosen), noise)
    results: Released = {fact.column: {} for fact in facts}
    entries = {entry.mechanism: entry for entry, _ in estimates.releases()}
    made = sample.numbers([fact for fact in facts if fact.may_be_number], results) if estimates.columns else []
    made += sample.names([fact for fact in facts if fact.may_be_text], results)
    return results, tuple(entries[f"bounds-{name}"] for name in made)


def typical_items(released: Mapping[str, Any]) -> int:
    """Return what a user typically holds: the middle of where nearly all users' numbers of rows lie."""
    low, high = released.get("range", (1.0, 1.0))
    return max(1, round(sqrt(max(low, 1.0) * max(high, 1.0))))


def spelt(fact: Fact, released: Released) -> bool:
    """Return whether it is a label of words, by the first release: its classes are names, however many."""
    return fact.is_label and released[fact.column].get("kind", "text") == "text"


def _rows(source: Opened, names: Sequence[str], counted: NDArray[np.bool_]) -> pa.Table:
    """Return the rows that are kept, of all in order. DataError where the table has others than when it was opened."""
    parts, first = [source.empty(names)], 0
    for batch in source.batches(names):
        own = counted[first : first + batch.num_rows]
        first += batch.num_rows
        parts.append(batch if own.all() and len(own) == batch.num_rows else batch.filter(pa.array(own)))
    if first != len(counted):
        raise DataError("Expected the table as it was when it was opened, got one of more rows, or fewer.")
    return pa.concat_tables(parts)


@dataclass(frozen=True, slots=True, eq=False)
class _Sample:
    """The users that are read; row i is of the user at seat[i]."""

    estimates: EstimatedBounds
    table: pa.Table
    seat: Integers
    users: int
    noise: NoiseSource

    def numbers(self, facts: Sequence[Fact], results: Released) -> list[str]:
        """Kinds of these columns, and ranges of those that are numbers; the names of the releases."""
        estimates, releases = self.estimates, ["places"]
        numbers = np.empty((self.users, len(facts), MARKS))
        kinds = np.empty((self.users, len(facts), MARKS), np.int8)
        for place, fact in enumerate(facts):
            numbers[:, place], kinds[:, place] = self._marks(fact)
        shapes = estimates.shapes(
            estimates.release_places(estimates.place_counts(numbers, kinds), self._stream("places"))
        )
        for fact, kind, votes, enough in zip(
            facts, shapes.kinds, shapes.counts.tolist(), shapes.told.tolist(), strict=True
        ):
            results[fact.column] |= {"kind": kind, "votes": votes, "told": enough}
        for fact in facts:
            if fact.what == "date" or (fact.what == "any" and is_day(columns.kind(self.table, fact.column))):
                results[fact.column]["kind"] = "date"
            elif fact.what in ("number", "year", "items"):
                results[fact.column]["kind"] = "number"
        known = [results[fact.column]["kind"] for fact in facts]
        at = np.flatnonzero([kind in ("number", "date") for kind in known])
        if not len(at):
            return releases
        days = np.flatnonzero([kind == "date" for kind in known])
        low, high = (np.full(len(days), year) for year in CENTURIES)
        years = Windows(low, high, shapes.counts[days, KINDS.index("date")], np.ones(len(days), np.int64))
        around = shapes.windows.but(days, years).where(at)
        near, closer = estimates.release_near(numbers[:, at], around, self.noise)
        releases += ["cells", *["closer"] * closer]
        low, high = ranges(near)
        for place, *ends, held in zip(at.tolist(), low.tolist(), high.tolist(), near.held.tolist(), strict=True):
            results[facts[place].column] |= {"range": ends, "held": held}
        return releases

    def names(self, facts: Sequence[Fact], results: Released) -> list[str]:
        """Names of those columns of these that are text, and of a label; the names of the releases."""
        kinds = {fact.column: results[fact.column].get("kind", "text") for fact in facts}
        named = [fact for fact in facts if fact.what == "label" or kinds[fact.column] == "text"]
        if not named:
            return []
        counts = [self._names(fact) for fact in named]
        label = next((place for place, fact in enumerate(named) if spelt(fact, results)), None)
        released = self.estimates.release_names(counts, self._stream("names"), label=label)
        for fact, names in zip(named, released, strict=True):
            results[fact.column]["names"] = [[str(name), votes] for name, votes in names.items()]
        return ["names"]

    def _stream(self, what: str) -> Any:
        return self.noise.stream("bought", what)

    def _marks(self, fact: Fact) -> tuple[NDArray[np.float64], NDArray[np.int8]]:
        if fact.what == "items":
            rows = np.bincount(self.seat, minlength=self.users).astype(np.float64)
            return marks(rows, np.arange(self.users), self.users)
        if fact.what == "year":
            return marks(DateNumber(fact.column, "year", 0, 1).read(self.table), self.seat, self.users)
        if fact.what == "number":
            return marks(columns.numbers(self.table, fact.column), self.seat, self.users)
        values, kinds = row_kinds(self.table, fact.column)
        return marks(values, self.seat, self.users, kinds)

    def _names(self, fact: Fact) -> dict[str | int, int]:
        if fact.label is None:
            codes, names = text_codes(self.table, fact.column)
        else:
            signs = fact.label.of(self.table)
            codes, names = np.where(np.isnan(signs), np.nan, signs > 0), ["0", "1"]
        own, _ = marks(codes, self.seat, self.users)
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
    coded_kinds = np.array([*words, _MISSING], np.int8)[columns.codes(coded)]
    kinds = np.where((coded_kinds == _TEXT) & ~np.isnan(values), _NUMBER, coded_kinds)
    kinds = np.where((coded_kinds == _TEXT) & np.isnan(values) & ~np.isnan(years), _DAY, kinds).astype(np.int8)
    return np.where(kinds == _DAY, years, values), kinds


def is_day(kind: pa.DataType) -> bool:
    """Return whether all that such a column holds is dates."""
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def text_codes(table: pa.Table, name: str) -> tuple[NDArray[np.float64], list[str]]:
    """Return the place of every row's text among the column's texts in their order, NaN for none, and the texts."""
    coded = columns.texts(table, name).dictionary_encode()
    texts = coded.dictionary.to_pylist()
    order = sorted(range(len(texts)), key=texts.__getitem__)
    ranks = np.full(len(texts) + 1, np.nan)
    ranks[order] = np.arange(len(order))
    # A text that a model's file may not hold is no name, either.
    missing = np.array([*(text.strip().lower() in _NOTHING or bool(CONTROL.search(text)) for text in texts), True])
    ranks[missing] = np.nan
    return ranks[columns.codes(coded)], [texts[place] for place in order]


def _of_word(text: str) -> int:
    word = text.strip().lower()
    return _FLAG if word in ("true", "false") else _MISSING if word in _NOTHING else _TEXT


def _years(table: pa.Table, name: str) -> NDArray[np.float64]:
    return DateNumber(name, "year", 1900, 2100).read(table)
