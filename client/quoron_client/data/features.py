"""What a column becomes: the public range of a number, the public vocabulary of a category, a public hash."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from hashlib import blake2b
from itertools import chain, groupby, pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict

from quoron_client.data import spans
from quoron_client.data.dates import DateNumber, DatePart
from quoron_client.data.kind import Codes, Kind, Misfit, columns
from quoron_privacy.errors import ConfigError
from quoron_privacy.kernels.on_first_use import OnFirstUse

if TYPE_CHECKING:  # a coordinator has rules, but no table
    import pyarrow as pa

    from quoron_client.data import hashed_loops
else:
    hashed_loops = OnFirstUse("quoron_client.data.hashed_loops")  # compiled


@dataclass(frozen=True, slots=True)
class Numeric(Kind):
    """[low, high] to [-1, 1], values outside held at the ends; with `edges`, one 0/1 column per interval instead."""

    column: str
    low: float
    high: float
    edges: tuple[float, ...] = ()  # inner borders; a value on a border belongs to the interval above

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    def __post_init__(self) -> None:
        if not (np.isfinite(self.low) and np.isfinite(self.high) and self.low < self.high):
            raise ConfigError(
                f"Expected a public range low < high for numeric feature {self.column!r}, "
                f"got [{self.low}, {self.high}]."
            )
        if not np.isfinite(self.high - self.low):
            raise ConfigError(f"Expected a smaller range for feature {self.column!r}, got [{self.low}, {self.high}].")
        if list(self.edges) != sorted(set(self.edges)) or not np.all(np.isfinite(self.edges)):
            raise ConfigError(f"Expected finite, increasing edges for feature {self.column!r}, got {self.edges}.")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns it becomes."""
        if not self.edges:
            return (self.column,)
        borders = ["-inf", *(f"{edge:g}" for edge in self.edges), "inf"]
        return tuple(f"{self.column} in [{a}, {b})" for a, b in pairwise(borders))

    @property
    def width(self) -> int:
        """How many columns it becomes."""
        return 1 + len(self.edges)

    @property
    def is_number(self) -> bool:
        """Unless there are edges."""
        return not self.edges

    @property
    def is_stored(self) -> bool:
        """As `is_number`."""
        return not self.edges

    @property
    def middle(self) -> int | None:
        """With edges, the interval of the middle of its range."""
        return int(np.digitize(0.5 * self.low + 0.5 * self.high, self.edges)) if self.edges else None

    @property
    def misfit(self) -> Misfit:
        """What it is, what a value is that does not fit, in words, and the fix."""
        outside = "no number" if self.edges else f"outside [{self.low:g}, {self.high:g}], or no number"
        fix = (
            "Declare its range in the column's own units; numbers are written with a decimal point, unless a comma is "
            "declared, and dates are declared as dates."
        )
        return "number", outside, fix

    def read(self, table: "pa.Table") -> NDArray[Any]:
        """Numbers of all rows, shape (N,), NaN where a value is none; with edges their intervals, -1 for none."""
        values = columns.numbers(table, self.column)
        return np.where(np.isnan(values), -1, np.digitize(values, self.edges)) if self.edges else values


@dataclass(frozen=True, slots=True)
class Categorical(Kind):
    """One 0/1 column for each declared category; other values, and nulls, are all zeros.

    Text categories are compared as text, integer ones as integers. A hundred integers or more that count up are a
    range, told as `0:50000`. `"from-data"` takes the values found, for simulation only: in a deployment the vocabulary
    itself would leak.
    """

    column: str
    categories: spans.Vocabulary | Literal["from-data"]

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    def __post_init__(self) -> None:
        if self.categories != "from-data":
            check_vocabulary(f"categorical feature {self.column!r}", self.categories)
            object.__setattr__(self, "categories", spans.counting(self.categories) or tuple(self.categories))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns it becomes."""
        return tuple(f"{self.column}={category}" for category in self.categories)

    @property
    def width(self) -> int:
        """How many columns it becomes."""
        return len(self.categories)

    @property
    def is_open(self) -> bool:
        """Whether its public values are still to be found in the data. For simulation only."""
        return self.categories == "from-data"

    @property
    def implied(self) -> int:
        """All of a range's."""
        return self.width if isinstance(self.categories, range) else 0

    @property
    def misfit(self) -> Misfit:
        """What it is, what a value is that does not fit, in words, and the fix."""
        fix = "List its values, or have them released with `quoron bounds`; texts are compared letter by letter."
        return "category", "in none of the declared categories, or missing", fix

    def read(self, table: "pa.Table") -> Codes:
        """Place of each value among the categories, shape (N,); -1 for one that is in none."""
        if self.categories == "from-data":
            raise ConfigError(f"Expected declared values of {self.column!r}, got 'from-data'. List them.")
        return columns.places(table, self.column, self.categories)


@dataclass(frozen=True, slots=True)
class Hashed(Kind):
    """One 0/1 column for each bucket that a value's hash may fall into; a missing value is all zeros.

    >>> import pyarrow as pa
    >>> Hashed("code", 64).read(pa.table({"code": ["E11.9", "I10", None, "E11.9"]})).tolist()
    [51, 57, -1, 51]

    The bucket of a value is SipHash-2-4 of its text in UTF-8 modulo the number of buckets. The key, 16 bytes of BLAKE2b
    of the column's name, is public: two columns fall together in different places, and whoever picks values that do
    moves his own rows alone. Which bucket a value has depends on nothing else: not on the machine, the file or what
    others hold.

    Source: Aumasson & Bernstein (2012), SipHash: a fast short-input PRF.
    """

    column: str
    buckets: int

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    def __post_init__(self) -> None:
        whole: Any = self.buckets
        if type(whole) is not int or not 2 <= whole <= spans.MOST:
            raise ConfigError(
                f"Expected from 2 to {spans.MOST:,} buckets for column {self.column!r}, got {whole!r}. Some four times "
                "the values that matter keep most of them apart."
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
    def implied(self) -> int:
        """All of them."""
        return self.buckets

    @property
    def misfit(self) -> Misfit:
        """What it is, what a value is that does not fit, in words, and the fix."""
        return "category", "missing", "If it is missing, all is well."

    def read(self, table: "pa.Table") -> Codes:
        """The bucket of each value's text, shape (N,); -1 where it is missing. Raises DataError as `check` does."""
        values = columns.texts(table, self.column)
        key = np.frombuffer(blake2b(self.column.encode(errors="replace"), digest_size=16).digest(), "<u8")
        found = np.empty(len(values), np.int64)
        hashed_loops.buckets(*columns.letters(values), int(key[0]), int(key[1]), self.buckets, found)
        found[columns.missing(values)] = -1
        return found


Feature = Numeric | Categorical | Hashed | DatePart | DateNumber
_NAMES = {kind: tuple(each.name for each in fields(kind)) for kind in get_args(Feature)}


def apart(features: Iterable[Feature]) -> tuple[Feature, ...]:
    """Features of one column each. ConfigError for spans of none or of too many, of columns or of categories."""
    given = tuple(features)
    sizes = [spans.size(each.column) for each in given]
    values = sum(each.implied * (size or 1) for each, size in zip(given, sizes, strict=True))
    if values > spans.MOST:
        raise ConfigError(
            f"Expected at most {spans.MOST:,} columns that declarations imply, got {values:,}. Declare fewer."
        )
    if all(size is None for size in sizes):
        return given
    many = sum(size or 1 for size in sizes)
    if many > spans.MOST:
        raise ConfigError(f"Expected at most {spans.MOST:,} columns as features, got {many:,}. Declare fewer.")
    return tuple(chain.from_iterable(map(_one_each, given)))


def together(features: Sequence[Feature]) -> tuple[Feature, ...]:
    """The same features, those that are alike and whose columns count up as one: what `apart` takes apart."""
    found: list[Feature] = []
    for _, some in groupby(features, lambda each: (type(each), *_public(each))):
        alike = list(some)
        found += [_like(alike[0], column) for column in spans.spanned([each.column for each in alike])]
    return tuple(found)


def _one_each(feature: Feature) -> Iterator[Feature]:
    return (_like(feature, column) for column in spans.named(feature.column))


def _like(feature: Feature, column: str) -> Feature:
    """The same of another column, without checking again what was checked."""
    if column == feature.column:
        return feature
    made = object.__new__(type(feature))
    for name in _NAMES[type(feature)]:
        object.__setattr__(made, name, getattr(feature, name))
    object.__setattr__(made, "column", column)
    return made


def _public(feature: Feature) -> tuple[object, ...]:
    """All but the column."""
    return tuple(getattr(feature, name) for name in _NAMES[type(feature)] if name != "column")


def check_vocabulary(what: str, values: Sequence[str | int | bool]) -> None:
    """ConfigError unless there are values, all text or all integers, each once."""
    if not values:
        raise ConfigError(f"Expected the public values of {what}, got none. List them.")
    if isinstance(values, range):
        spans.counted(f"{values.start}:{values.stop}")
        return
    if len({isinstance(value, str) for value in values}) > 1:
        raise ConfigError(f"Expected the values of {what} to be all text or all integers, got both.")
    if len(set(values)) < len(values):
        raise ConfigError(f"Expected different values of {what}, got one twice.")
    if "" in values:
        raise ConfigError(f"Expected values of {what} with at least a character, got an empty one: it means missing.")
    if any(not isinstance(value, str) and not -spans.LARGEST < value < spans.LARGEST for value in values):
        raise ConfigError(f"Expected integers below 2**53 as values of {what}, got a larger one. Write them as text.")
