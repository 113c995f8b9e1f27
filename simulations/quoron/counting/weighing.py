"""From the rows of a table to everybody's weights, by group and cell."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from quoron.arguments import shortened
from quoron.counting import calendar
from quoron.counting.questions import Question
from quoron_client.data import columns
from quoron_client.data.features import DateNumber
from quoron_privacy.counts.spread import Spread, thirds
from quoron_privacy.errors import ConfigError, DataError
from quoron_privacy.release import Adjacency

Integers = NDArray[np.int64]
ITEMS = "value"  # the column of users' own arrays


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of columns: declared, or bought."""

    ranges: Mapping[str, tuple[float, float]]
    words: Mapping[str, Sequence[str | int]]
    bought: frozenset[str] = frozenset()  # columns whose range was bought: some numbers lie beyond it
    dates: frozenset[str] = frozenset()  # columns of dates, which are days since 1970-01-01

    def groups(self, question: Question) -> Sequence[str | int | None]:
        """Of a question; of a column in which enough users have none there is none."""
        return (None,) if question.by is None else self.words[question.by]

    def cells(self, question: Question) -> int:
        """Of each group; where no range is known yet as of any."""
        return question.cells(self.ranges.get(question.of or "", (0.0, 1.0)))

    def spread(self, question: Question, mu: float, asked: "Asked", groups: int | None = None) -> Spread | None:
        """What answers it, of so many groups, or of those that there are; None where there is none, or no number."""
        many = len(self.groups(question)) if groups is None else groups
        if not many or (groups is None and question.of is not None and question.of not in self.ranges):
            return None
        return Spread.for_mu(
            users=asked.users,
            groups=many,
            cells=self.cells(question),
            mu=mu,
            running=question.what == "quantiles",
            most=asked.items,
            adjacency=asked.adjacency,
        )


@dataclass(frozen=True, slots=True)
class Asked:
    """What all questions share."""

    users: int  # that there are; under zero-out the most that there may be
    items: int  # K, that weigh as much as one user
    adjacency: Adjacency


def declared(
    numeric: Mapping[str, Any], categorical: Mapping[str, Any], dates: Mapping[str, Any] | Sequence[str]
) -> Facts:
    """What whoever asks says of columns. ConfigError for what cannot be meant."""
    dates = dates if isinstance(dates, Mapping) else dict.fromkeys([dates] if isinstance(dates, str) else dates)
    if not (isinstance(numeric, Mapping) and isinstance(categorical, Mapping)):
        raise ConfigError("Expected numeric and categorical as mappings of columns, got something else.")
    if twice := set(numeric) & set(dates):
        raise ConfigError(f"Expected each column as numbers or as dates, got {sorted(twice)[0]!r} as both.")
    ranges, words = {name: calendar.range_of(name, ends) for name, ends in dates.items() if ends is not None}, {}
    for name, ends in numeric.items():
        try:
            low, high = map(float, ends)
        except (TypeError, ValueError):
            low, high = 0.0, 0.0
        if not (low < high and low > -1e100 and high < 1e100):
            raise ConfigError(f"Expected numeric[{name!r}] as (low, high), got {shortened(ends)}.")
        ranges[name] = (low, high)
    for name, values in categorical.items():
        kinds = {type(each) for each in values} if isinstance(values, list | tuple) else set()
        if not (kinds <= {str, int} and values and len(set(map(str, values))) == len(values)):
            raise ConfigError(f"Expected categorical[{name!r}] as a list of words, each once, got {shortened(values)}.")
        words[name] = tuple(values) if len(kinds) == 1 else tuple(map(str, values))
    return Facts(ranges, words, dates=frozenset(dates))


def of_arrays(source: Any, user: str) -> tuple[Any, str]:
    """A table of users' own arrays, with the name of its user column; anything else as it is. Raises DataError."""
    if not isinstance(source, list | tuple | np.ndarray):
        return source, user
    try:
        own = [np.atleast_1d(np.asarray(each)).ravel() for each in source]
        values = np.concatenate(own) if own else np.zeros(0)
    except (TypeError, ValueError) as error:
        raise DataError("Expected an array of items of each user, got something else.") from error
    if not own or values.dtype.kind not in "biufU":
        raise DataError(f"Expected users with arrays of numbers or words, got {len(own)} of type {values.dtype}.")
    width = len(str(len(own)))
    names = pa.array([f"{place:0{width}}" for place in range(len(own))], pa.large_string())
    owners = pa.array(np.repeat(np.arange(len(own)), [len(each) for each in own]).astype(np.int32))
    return pa.table({"user": pa.DictionaryArray.from_arrays(owners, names), ITEMS: pa.array(values)}), "user"


def days(table: pa.Table, name: str) -> NDArray[np.float64]:
    """Days since 1970-01-01 of each row, (N,): NaN where a value is no date. Raises DataError for another type."""
    return DateNumber(name, "days", 0, 1, since="1970-01-01").read(table)


def held(part: Spread, question: Question, facts: Facts, table: pa.Table, owners: Integers) -> NDArray[np.float64]:
    """Everybody's weights, by cell: private."""
    groups, cells = np.zeros(len(owners), np.int64), np.zeros(len(owners), np.int64)
    if question.by is not None:
        groups = columns.places(table, question.by, facts.words[question.by])
    counted, place = groups >= 0, np.zeros(len(owners))
    if question.of is not None:
        low, high = facts.ranges[question.of]
        values = days(table, question.of) if question.of in facts.dates else columns.numbers(table, question.of)
        counted &= ~np.isnan(values)
        place = (np.clip(values, low, high) - low) / (high - low)  # in [0, 1]
        cells = np.minimum((np.where(np.isnan(place), 0.0, place) * part.cells).astype(np.int64), part.cells - 1)
        if question.what == "histogram" and not isinstance(question.bins, int):
            cells = calendar.places(question.bins, low, high, values)
    own, group = owners[counted], groups[counted]
    weights = part.weights(own)
    if question.what != "mean":
        return part.held(own, group * part.cells + cells[counted], weights)
    # A user's items of one group count by their mean.
    key, which, many = np.unique(own * part.groups + group, return_inverse=True, return_counts=True)
    mean = np.bincount(which, place[counted], len(key)) / many
    whole = np.zeros(len(key), np.int64)
    np.add.at(whole, which, weights)
    three = thirds(whole, np.clip(2 * mean - 1, -1.0, 1.0))
    return part.held(
        np.repeat(key // part.groups, 3),
        np.repeat(key % part.groups * 3, 3) + np.tile(np.arange(3), len(key)),
        three.ravel(),
    )
