"""What a column becomes: the public range of a number, the public vocabulary of a category, a public hash.

The interface of every feature: code that reads a table calls it, and never checks which kind a feature is.

Each value is read alone, by `read(table)`, in one of two ways:

| `is_number` | `read` gives                                            | becomes                            |
| ----------- | ------------------------------------------------------- | ---------------------------------- |
| true        | numbers, (N,) float64, NaN where there is none          | one column, [low, high] to [-1, 1] |
| false       | codes, (N,) int64 below `width`, -1 where there is none | `width` columns of which one is 1  |

A row without a number cannot be used, or has the middle; one without a code is all zeros.

Columns that are declared alike as one entry: `x[0:100000]` is x0, x1, ..., x99999, and `x[000:100]` x000 to x099.

    >>> named("pixel[08:11]")
    ('pixel08', 'pixel09', 'pixel10')
    >>> spanned(named("x[0:150]"))
    ['x[0:150]']

What stands in brackets are the first number and the one after the last, as Python slices are. Numbers have as many
digits as the first, if that begins with 0. So the columns of a run over 10⁵ columns are one line: in a configuration,
in messages and in a model's file.

Dates and times, by their parts: which month, weekday, day or hour, or how many years or days as a number.

    >>> import pyarrow as pa
    >>> admitted = pa.table({"admitted": ["2024-02-29", "2024-03-01T13:30+01:00", "29.2.2024"]})
    >>> DatePart("admitted", "weekday").read(admitted).tolist()
    [3, 4, -1]
    >>> DateNumber("admitted", "days", 0, 366, since="2024-01-01").read(admitted).tolist()
    [59.0, 60.0, nan]

| a value                            | its day and time                                                        |
| ---------------------------------- | ----------------------------------------------------------------------- |
| a date                             | that day at 0:00                                                        |
| a timestamp without a time zone    | as it stands                                                            |
| a timestamp with one               | as a clock in its zone shows it                                         |
| a time                             | that time of no day: it has an hour, and nothing else                   |
| text, and whole numbers as text    | ISO 8601 or the declared format, as a clock at its offset shows it      |
| numbers, with `format="unix"`     | seconds since 1970-01-01T00:00Z, as a clock in UTC shows it             |
| anything else                      | missing                                                                 |

The calendar is the Gregorian one without beginning or end. 24:00 is 0:00 of the next day. What a value says depends on
nothing but itself, the declaration and the type of its column.

Features of a model that bends: polynomials of the numeric columns of a row, and products of two columns.

    >>> Terms.of((Numeric("age", 0, 100), Categorical("ward", ("A", "B"))), curves=2, pairs=1).names
    ('age', 'age^2', 'ward=A', 'ward=B', 'age*ward=A', 'age*ward=B')

A number is brought from its declared range to v in [-1, 1]. `age^k` is the Legendre polynomial P_k(v), at most 1 in
absolute value. P_1 is v itself, so a linear model is a special case. Polynomials of different degrees are orthogonal
where values spread evenly over the range. With `pairs` = c two columns are multiplied: degrees k and l of
numbers where k l <= c, a category's 0/1 counting as degree 1, so simple shapes come first (a hyperbolic cross). All of
it is a public function of one row and of the declaration: what a user's row can change is bounded as before.

Source of the polynomials: the recurrence (k + 1) P_{k+1} = (2k + 1) v P_k - k P_{k-1} of Bonnet.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import date
from functools import lru_cache
from hashlib import blake2b
from itertools import chain, combinations, groupby, islice
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict

from quoron_client.data.date_formats import WORDS, form, unix
from quoron_privacy.arrays import Vector
from quoron_privacy.errors import ConfigError
from quoron_privacy.kernels.on_first_use import OnFirstUse

if TYPE_CHECKING:  # a coordinator has rules, but no table
    import pyarrow as pa

    from quoron_client.data import columns as columns
    from quoron_client.data import dates
else:
    columns = OnFirstUse("quoron_client.data.columns")  # it brings pyarrow
    dates = OnFirstUse("quoron_client.data.dates")  # it brings pyarrow

Codes = NDArray[np.int64]
Misfit = tuple[Literal["number", "category"], str, str]  # what it is, what does not fit in words, and the fix


class Declared:
    """What a configuration and a model's file say in so many words: an unknown key is refused."""

    __slots__ = ()
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


class Kind(Declared, ABC):
    """What is true of most; a kind of its own says what differs, and how it is read."""

    __slots__ = ()
    column: str  # the table's, that it is made of
    low: float  # of a number only: the public least
    high: float  # and largest

    @property
    def title(self) -> str:
        """What people call it: the column, with the part of it where there are several."""
        return self.column

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns it becomes."""
        return (self.title,)

    @property
    def width(self) -> int:
        """How many columns it becomes."""
        return len(self.names)

    @property
    def is_number(self) -> bool:
        """Whether `read` gives numbers; else codes."""
        return False

    @property
    @abstractmethod
    def misfit(self) -> Misfit:
        """What it is, what a value is that does not fit, in words, and the fix."""

    def check(self, table: "pa.Table") -> None:
        """Raise DataError unless the table has the column once, of a type that can be read; reads no value."""
        columns.check(table, self.column)

    @abstractmethod
    def read(self, table: "pa.Table") -> NDArray[Any]:
        """Return numbers or codes of all rows, shape (N,), as `is_number` says. Raises DataError as `check` does."""


MAX_COLUMNS = 1 << 20  # columns of one encoding: their names take some 100 MB, and an announcement may name a span
MAX_INTEGER = 2**53  # integer categories below it are what they are as float64 too
MIN_SPAN = 100  # columns in a row that are written as a span
_SPAN = re.compile(r"(.*)\[(\d{1,9}):(\d{1,9})\]", re.ASCII | re.DOTALL)
_NUMBERED = re.compile(r"(.*?)(\d{1,9})", re.ASCII | re.DOTALL)


def is_span(name: str) -> bool:
    """Return whether a name stands for columns that count up."""
    return _SPAN.fullmatch(name) is not None


def span_size(column: str) -> int | None:
    """Return how many columns a declared name stands for; None for a plain name. ConfigError for none, or too many."""
    found = _SPAN.fullmatch(column)
    if found is None:
        return None
    many = int(found[3]) - int(found[2])
    if not 0 < many <= MAX_COLUMNS:
        raise ConfigError(
            f"Expected from 1 to {MAX_COLUMNS:,} columns as {column!r}, got {max(0, many):,}. Write [first:end]."
        )
    return many


def named(column: str) -> tuple[str, ...]:
    """Return the columns that a declared name stands for. ConfigError as `size`."""
    found, many = _SPAN.fullmatch(column), span_size(column)
    if found is None or many is None:
        return (column,)
    prefix, first = found[1], found[2]
    return tuple(prefix + _digits(int(first) + place, first) for place in range(many))


def spanned(names: Sequence[str]) -> list[str]:
    """Return the shortest list of declared names for these, in this order: spans where 100 or more follow."""
    written: list[str] = []
    for prefix, first, some in _runs(names):
        short = len(some) >= MIN_SPAN and first is not None
        written += [f"{prefix}[{first}:{int(str(first)) + len(some)}]"] if short else some
    return written


def _runs(names: Sequence[str]) -> Iterator[tuple[str, str | None, list[str]]]:
    """Names that count up, together: what they begin with, the digits of the first, and the names."""
    prefix, first, some = "", None, list[str]()
    for name in names:
        if first is not None and name == prefix + _digits(int(first) + len(some), first):
            some.append(name)
            continue
        if some:
            yield prefix, first, some
        found = _NUMBERED.fullmatch(name)
        good = found is not None and _digits(int(found[2]), found[2]) == found[2]
        prefix, first = (found[1], found[2]) if found is not None and good else ("", None)
        some = [name]
    if some:
        yield prefix, first, some


def _digits(number: int, like: str) -> str:
    return f"{number:0{len(like)}}" if like.startswith("0") and len(like) > 1 else str(number)


Part = Literal["month", "weekday", "day", "hour"]
_YEARS = 9999  # of a range, to either side of the year 0


class _Dated(Kind):
    """What is made of dates and times."""

    __slots__ = ()
    part: str

    def check(self, table: "pa.Table") -> None:
        """Raise DataError unless the table has the column once, of a type that says this part; reads no value."""
        dates.check(table, self.column, self.part)


@dataclass(frozen=True, slots=True)
class DatePart(_Dated):
    """One 0/1 column for each month, weekday, day of the month or hour of the day; a value without is all zeros."""

    column: str
    part: Part
    format: str = "iso"  # how text says it: "iso", a format such as "%d.%m.%Y %H:%M", or "unix", "unix-ms", ...

    def __post_init__(self) -> None:
        if self.part not in WORDS:
            raise ConfigError(f"Expected {', '.join(WORDS)} of date {self.column!r}, got {self.part!r}.")
        _check(self.column, self.format, self.part)

    @property
    def title(self) -> str:
        """The column and the part."""
        return f"{self.column} {self.part}"

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns it becomes."""
        return tuple(f"{self.column} {self.part}={word}" for word in WORDS[self.part])

    @property
    def misfit(self) -> Misfit:
        """What it is, what a value is that does not fit, in words, and the fix."""
        return "category", f"no {'time' if self.part == 'hour' else 'date'}, or missing", _fix(self.format)

    def read(self, table: "pa.Table") -> Codes:
        """Return the part of each value, shape (N,), from 0; -1 for none. Raises DataError as `check` does."""
        self.check(table)
        return dates.of(table, self.column, self.format).part(self.part)


@dataclass(frozen=True, slots=True)
class DateNumber(_Dated):
    """The year of a date, or the days since a declared one, [low, high] to [-1, 1]; others are held at the ends."""

    column: str
    part: Literal["year", "days"]
    low: float
    high: float
    since: str = ""  # the day that days are counted from, "2007-01-01"
    format: str = "iso"  # as of a `DatePart`
    is_number: ClassVar[bool] = True

    def __post_init__(self) -> None:
        most = _YEARS if self.part == "year" else 366 * _YEARS
        if self.part not in ("year", "days") or not -most <= self.low < self.high <= most:
            raise ConfigError(
                f"Expected a public range low < high of the {self.part} of date {self.column!r}, got "
                f"[{self.low}, {self.high}]."
            )
        if self.part == "days":
            day_number(self.column, self.since)
        elif self.since:
            raise ConfigError(f"Expected no first day for years of date {self.column!r}, got {self.since!r}.")
        _check(self.column, self.format, self.part)

    @property
    def title(self) -> str:
        """The column, and what is counted."""
        return f"{self.column} year" if self.part == "year" else f"{self.column} days since {self.since}"

    @property
    def misfit(self) -> Misfit:
        """What it is, what a value is that does not fit, in words, and the fix."""
        return "number", f"outside [{self.low:g}, {self.high:g}], or no date", _fix(self.format)

    def read(self, table: "pa.Table") -> Vector:
        """Return years, or whole days since the declared one, of all rows, shape (N,); NaN where a value is no date."""
        self.check(table)
        found = dates.of(table, self.column, self.format)
        return found.years() if self.part == "year" else found.days_since(day_number(self.column, self.since))


def day_number(column: str, day: str) -> int:
    """Return days from 1970-01-01 to a declared day. ConfigError for another text."""
    try:
        return date.fromisoformat(day).toordinal() - date(1970, 1, 1).toordinal()
    except (TypeError, ValueError):
        raise ConfigError(f"Expected a day such as '2007-01-31' for date {column!r}, got {day!r}.") from None


def _check(column: str, written: str, part: str) -> None:
    """Raise ConfigError for a format that cannot be meant, or that does not say the part."""
    if written == "iso" or unix(written) is not None:
        return
    signs = {sign[1:] for sign in form(written)}
    if part != "hour" and not signs & {"Y", "y"}:
        needed = "a year, %Y or %y"
    elif part == "hour" and not signs & {"H", "I"}:
        needed = "an hour, %H or %I"
    elif part not in ("hour", "year") and not signs & {"m", "b", "B", "j"}:
        needed = "a month, %m, %b or %B"
    elif part in ("weekday", "day", "days") and not signs & {"d", "j"}:
        needed = "a day, %d or %j"
    elif "I" in signs and "p" not in signs:
        needed = "%p beside %I"
    else:
        return
    raise ConfigError(f"Expected a format with {needed}, for the {part} of date {column!r}, got {written!r}.")


def _fix(written: str) -> str:
    said = "ISO 8601, such as 2024-01-31T13:30" if written == "iso" else repr(written)
    return f"Declare the format of its text, which is read as {said}."


@dataclass(frozen=True, slots=True)
class Numeric(Kind):
    """[low, high] to [-1, 1], values outside held at the ends."""

    column: str
    low: float
    high: float
    is_number: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not (np.isfinite(self.low) and np.isfinite(self.high) and self.low < self.high):
            raise ConfigError(
                f"Expected a public range low < high for numeric column {self.column!r}, got [{self.low:g}, "
                f"{self.high:g}]. Declare the least value first."
            )
        if not np.isfinite(self.high - self.low):
            raise ConfigError(f"Expected a smaller range for feature {self.column!r}, got [{self.low}, {self.high}].")

    @property
    def misfit(self) -> Misfit:
        """What it is, what a value is that does not fit, in words, and the fix."""
        outside = f"outside [{self.low:g}, {self.high:g}], or no number"
        fix = (
            "Declare its range in the column's own units; numbers are written with a decimal point, unless a comma is "
            "declared, and dates are declared as dates."
        )
        return "number", outside, fix

    def read(self, table: "pa.Table") -> NDArray[Any]:
        """Return all rows' numbers, shape (N,), NaN where a value is none."""
        return columns.numbers(table, self.column)


@dataclass(frozen=True, slots=True)
class Categorical(Kind):
    """One 0/1 column for each declared category; other values, and nulls, are all zeros.

    Text categories are compared as text, integer ones as integers.
    """

    column: str
    categories: tuple[str | int | bool, ...]

    def __post_init__(self) -> None:
        check_vocabulary(f"categorical feature {self.column!r}", self.categories)
        object.__setattr__(self, "categories", tuple(self.categories))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns it becomes."""
        return tuple(f"{self.column}={category}" for category in self.categories)

    @property
    def width(self) -> int:
        """How many columns it becomes."""
        return len(self.categories)

    @property
    def misfit(self) -> Misfit:
        """What it is, what a value is that does not fit, in words, and the fix."""
        fix = "List its values, or have them released with `quoron bounds`; texts are compared letter by letter."
        return "category", "in none of the declared categories, or missing", fix

    def read(self, table: "pa.Table") -> Codes:
        """Return the place of each value among the categories, shape (N,); -1 for one that is in none."""
        return columns.places(table, self.column, self.categories)


@dataclass(frozen=True, slots=True)
class Hashed(Kind):
    """One 0/1 column for each bucket that a value's hash may fall into; a missing value is all zeros.

    >>> import pyarrow as pa
    >>> Hashed("code", 64).read(pa.table({"code": ["E11.9", "I10", None, "E11.9"]})).tolist()
    [50, 30, -1, 50]

    The bucket of a value is BLAKE2b of its text in UTF-8, 8 bytes read as a little-endian number, modulo the number of
    buckets. The key, 16 bytes of BLAKE2b of the column's name, is public. Each column has collisions of its own, and a
    user who picks values that collide changes its own rows alone. Which bucket a value has depends on nothing else: not
    on the machine, the file or what others hold.

    Source: RFC 7693.
    """

    column: str
    buckets: int

    def __post_init__(self) -> None:
        whole: Any = self.buckets
        if type(whole) is not int or not 2 <= whole <= MAX_COLUMNS:
            raise ConfigError(
                f"Expected from 2 to {MAX_COLUMNS:,} buckets for column {self.column!r}, got {whole!r}. Some four "
                "times the values that matter keep most of them apart."
            )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns it becomes."""
        return tuple(f"{self.column} in bucket {place} of {self.buckets}" for place in range(self.buckets))

    @property
    def width(self) -> int:
        """How many columns it becomes."""
        return self.buckets

    @property
    def misfit(self) -> Misfit:
        """What it is, what a value is that does not fit, in words, and the fix."""
        return "category", "missing", "If it is missing, all is well."

    def read(self, table: "pa.Table") -> Codes:
        """Return the bucket of each value's text, shape (N,); -1 if missing. Raises DataError as `check` does."""
        values = columns.texts(table, self.column)
        key = blake2b(self.column.encode(errors="replace"), digest_size=16).digest()
        coded = values.dictionary_encode()
        different = coded.dictionary.cast("large_binary")
        parts = (different.slice(first, 2**16).to_pylist() for first in range(0, len(different), 2**16))
        digests = (blake2b(text, key=key, digest_size=8).digest() for text in chain.from_iterable(parts))
        found = (int.from_bytes(digest, "little") % self.buckets for digest in digests)
        return np.append(np.fromiter(found, np.int64, len(different)), -1)[columns.codes(coded)]


Feature = Numeric | Categorical | Hashed | DatePart | DateNumber
_NAMES = {kind: tuple(item.name for item in fields(kind)) for kind in get_args(Feature)}


def apart(features: Iterable[Feature]) -> tuple[Feature, ...]:
    """Return features of one column each. ConfigError for spans of none or of too many, of columns or of categories."""
    given = tuple(features)
    sizes = [span_size(feature.column) for feature in given]
    # Columns that declarations do not list one by one: a few bytes may stand for many.
    values = sum(one.width * (size or 1) for one, size in zip(given, sizes, strict=True) if isinstance(one, Hashed))
    if values > MAX_COLUMNS:
        raise ConfigError(
            f"Expected at most {MAX_COLUMNS:,} columns that declarations imply, got {values:,}. Declare fewer."
        )
    if all(size is None for size in sizes):
        return given
    many = sum(size or 1 for size in sizes)
    if many > MAX_COLUMNS:
        raise ConfigError(f"Expected at most {MAX_COLUMNS:,} columns as features, got {many:,}. Declare fewer.")
    return tuple(_like(feature, column) for feature in given for column in named(feature.column))


def grouped(features: Sequence[Feature]) -> tuple[Feature, ...]:
    """Return the same features, those that are alike and whose columns count up as one: what `apart` takes apart."""
    found: list[Feature] = []
    for _, some in groupby(features, lambda feature: (type(feature), *_public(feature))):
        alike = list(some)
        found += [_like(alike[0], column) for column in spanned([feature.column for feature in alike])]
    return tuple(found)


def _like(feature: Feature, column: str) -> Feature:
    """Return the same of another column, without checking again what was checked."""
    if column == feature.column:
        return feature
    made = object.__new__(type(feature))
    for name in _NAMES[type(feature)]:
        object.__setattr__(made, name, getattr(feature, name))
    object.__setattr__(made, "column", column)
    return made


def _public(feature: Feature) -> tuple[object, ...]:
    """Return all but the column."""
    return tuple(getattr(feature, name) for name in _NAMES[type(feature)] if name != "column")


def check_vocabulary(what: str, values: Sequence[str | int | bool]) -> None:
    """Raise ConfigError unless there are values, all text or all integers, each once."""
    if not values:
        raise ConfigError(f"Expected the public values of {what}, got none. List them.")
    if len({isinstance(value, str) for value in values}) > 1:
        raise ConfigError(f"Expected the values of {what} to be all text or all integers, got both.")
    if len(set(values)) < len(values):
        raise ConfigError(f"Expected different values of {what}, got one twice.")
    if "" in values:
        raise ConfigError(f"Expected values of {what} with at least a character, got an empty one: it means missing.")
    if any(not isinstance(value, str) and not -MAX_INTEGER < value < MAX_INTEGER for value in values):
        raise ConfigError(f"Expected integers below 2**53 as values of {what}, got a larger one. Write them as text.")


MAX_TERMS = 5000  # a second moment of more is of no use to anybody
MAX_DEGREE = 8
Place = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """The features that columns become, but for the intercept."""

    places: NDArray[np.int64]  # (m, 4): column and degree of either factor; -1 and 0 where there is one alone
    names: tuple[str, ...]  # (m,)
    owners: tuple[tuple[int, ...], ...]  # (m,): the features that each is made of, by their places
    most: int  # what the squares of a row's features add up to, at most

    @classmethod
    @lru_cache(maxsize=16)
    def of(cls, features: tuple[Feature, ...], *, curves: int, pairs: int) -> "Terms":
        """Return the terms of features with numbers up to degree `curves`; ConfigError for more than MAX_TERMS."""
        made = list(islice(_made(features, curves, pairs), MAX_TERMS + 1))  # there may be billions
        if len(made) > MAX_TERMS:
            raise ConfigError(
                f"Expected at most {MAX_TERMS:,} features of curves={curves} and pairs={pairs}, got more. Lower them, "
                "or leave columns out."
            )
        places, names, owners = zip(*made, strict=True) if made else ((), (), ())
        most = len({(of, place[1], place[3]) for place, _, of in made})  # of the values of a category a row has one
        return cls(np.array(places, np.int64).reshape(-1, 4), names, owners, most)


def _made(features: tuple[Feature, ...], curves: int, pairs: int) -> Iterator[tuple[Place, str, tuple[int, ...]]]:
    """Yield place, name and owners of every term."""
    factors, first = [], 0
    for one, feature in enumerate(features):
        factors.append(_factors(feature, first, curves))
        yield from (((a[0], a[1], -1, 0), a[2], (one,)) for a in factors[-1])
        first += feature.width
    for one, other in combinations(range(len(features)), 2) if pairs else ():
        if _multiply(features[one], features[other]):
            both = ((a, b) for a in factors[one] for b in factors[other] if a[1] * b[1] <= pairs)
            yield from (((a[0], a[1], b[0], b[1]), f"{a[2]}*{b[2]}", (one, other)) for a, b in both)


def _factors(feature: Feature, first: int, curves: int) -> list[tuple[int, int, str]]:
    """Return column, degree and name of what a feature is alone."""
    if not feature.is_number:
        return [(first + place, 1, name) for place, name in enumerate(feature.names)]
    name = feature.names[0]
    return [(first, degree, name if degree == 1 else f"{name}^{degree}") for degree in range(1, curves + 1)]


def _multiply(one: Feature, other: Feature) -> bool:
    """Return whether a product of both says more: not of buckets of words, nor of a number and others of its column."""
    hashed = isinstance(one, Hashed) or isinstance(other, Hashed)
    return not hashed and not (one.column == other.column and (one.is_number or other.is_number))
