"""What a column of a table becomes: the public range of a number, the public vocabulary of a category."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import chain, groupby, pairwise
from typing import ClassVar, Literal

import numpy as np
from pydantic import ConfigDict

from quoron_client.data import spans
from quoron_privacy.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Numeric:
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


@dataclass(frozen=True, slots=True)
class Categorical:
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


Feature = Numeric | Categorical
_NAMES = {kind: tuple(each.name for each in fields(kind)) for kind in (Numeric, Categorical)}


def apart(features: Iterable[Feature]) -> tuple[Feature, ...]:
    """Features of one column each. ConfigError for spans of none or of too many, of columns or of categories."""
    given = tuple(features)
    sizes = [spans.size(each.column) for each in given]
    ranges = [isinstance(each, Categorical) and isinstance(each.categories, range) for each in given]
    values = sum(each.width * (size or 1) for each, size, some in zip(given, sizes, ranges, strict=True) if some)
    if values > spans.MOST:
        raise ConfigError(f"Expected at most {spans.MOST:,} categories as ranges, got {values:,}. Declare fewer.")
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
