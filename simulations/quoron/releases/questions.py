"""What is asked of a table, in words that are the same in Python and in a shell.

>>> Question.read("median of cost by ward")
Question(what='quantiles', of='cost', by='ward', bins=10, at=(0.5,))

Dates as numbers, days since 1970-01-01, and in which month or year of a declared range each is.

>>> first, last = range_of("admitted", ("2023-11-05", "2024-01-31"))
>>> names("months", first, last), places("months", first, last, np.array([19675.0, 19722.0, 19723.0])).tolist()
(['2023-11', '2023-12', '2024-01'], [0, 1, 2])
"""

import datetime as dt
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from quoron.arguments import shortened
from quoron_privacy.counts import spread
from quoron_privacy.errors import ConfigError, count

Calendar = Literal["months", "years"]
_UNITS = {"months": "datetime64[M]", "years": "datetime64[Y]"}
_EPOCH = dt.date(1970, 1, 1).toordinal()


def range_of(column: str, ends: Any) -> tuple[float, float]:
    """Of a first and a last day, as texts or dates. ConfigError for others."""
    try:
        first, last = (each if isinstance(each, dt.date) else dt.date.fromisoformat(each) for each in ends)
        low, high = first.toordinal() - _EPOCH, last.toordinal() - _EPOCH
    except (TypeError, ValueError):
        low, high = 0, 0
    if not low < high:
        raise ConfigError(
            f"Expected dates[{column!r}] as (first day, last day) such as ('2020-01-01', '2024-12-31'), got "
            f"{shortened(ends)}."
        )
    return float(low), float(high)


def of_years(low: float, high: float) -> tuple[float, float]:
    """The days of these years, the last one's with them."""
    first, last = (min(max(math.floor(year), dt.MINYEAR), dt.MAXYEAR) for year in (low, high))
    return float(dt.date(first, 1, 1).toordinal() - _EPOCH), float(dt.date(last, 12, 31).toordinal() - _EPOCH)


def day(number: float) -> str:
    """A date in ISO 8601; of no end the sign of infinity."""
    return f"{number}" if math.isinf(number) else dt.date.fromordinal(math.floor(number) + _EPOCH).isoformat()


def names(unit: Calendar, low: float, high: float) -> list[str]:
    """Of the months or years from one day to another."""
    first, last = _unit(unit, np.array([low, high])).tolist()
    return [str(each) for each in np.arange(first, last + 1).astype(_UNITS[unit])]


def places(unit: Calendar, low: float, high: float, days: NDArray[np.float64]) -> NDArray[np.int64]:
    """Of days (N,) among these names; beyond the range at its end, and of no day at its beginning."""
    held = np.where(np.isnan(days), low, np.clip(days, low, high))
    return _unit(unit, held) - _unit(unit, np.array([low]))


def _unit(unit: Calendar, days: NDArray[np.float64]) -> NDArray[np.int64]:
    whole = np.floor(days).astype(np.int64).view("datetime64[D]").astype(_UNITS[unit])
    return np.asarray(whole.view(np.int64))


What = Literal["count", "histogram", "quantiles", "mean"]
CELLS = 1 << 10  # of a range, whose running sums tell quantiles
QUARTILES = 0.25, 0.5, 0.75
_GRAMMAR = re.compile(
    r"(?P<what>count|histogram|quantiles|median|mean)(?: of (?P<of>.+?))?"
    r"(?: in (?:(?P<bins>\d+) bins|(?P<unit>months|years)))?"
    r"(?: at (?P<at>[\d., ]+))?(?: by (?P<by>.+))?"
)


@dataclass(frozen=True, slots=True)
class Question:
    """One thing that is asked of a table; as a text `mean of cost by ward`, `quantiles of cost at 0.1, 0.9`, ..."""

    what: What
    of: str | None = None  # the column of numbers; none for a count
    by: str | None = None  # the column of groups; None: everybody
    bins: int | Calendar = 10  # of a histogram, of equal width; or the months or years of dates
    at: tuple[float, ...] = QUARTILES  # of quantiles

    def __post_init__(self) -> None:
        if self.bins not in get_args(Calendar):
            count(bins=self.bins)  # type: ignore[arg-type]
        if self.what not in get_args(What) or (self.of is None) != (self.what == "count"):
            raise ConfigError(
                f"Expected a count, or a histogram, quantiles or a mean of a column, got {self.words!r}. Say "
                "'count by COLUMN' or 'mean of COLUMN'."
            )
        if (isinstance(self.bins, int) and self.bins > spread.MOST_CELLS) or not (
            self.at and all(0 < each < 1 for each in self.at)
        ):
            raise ConfigError(
                f"Expected up to {spread.MOST_CELLS} bins and quantiles between 0 and 1, got {self.words!r}."
            )
        if self.by is not None and self.by == self.of:
            raise ConfigError(f"Expected another column for the groups than {self.of!r}, got the same one twice.")

    @classmethod
    def read(cls, text: str) -> "Question":
        """Of its words. ConfigError for others."""
        found = _GRAMMAR.fullmatch(" ".join(text.split()))
        if found is None:
            raise ConfigError(
                f"Expected a question such as 'count by ward', 'histogram of age in 10 bins', 'quantiles of cost at "
                f"0.1, 0.9', 'median of cost by ward', 'histogram of admitted in months' or 'mean of cost', got "
                f"{text!r}."
            )
        said: dict[str, Any] = {name: found[name] for name in ("of", "by") if found[name]}
        if found["bins"] or found["unit"]:
            said["bins"] = found["unit"] or int(found["bins"])
        try:
            levels = tuple(float(each) for each in found["at"].split(",")) if found["at"] else QUARTILES
        except ValueError:
            raise ConfigError(f"Expected quantiles as numbers between 0 and 1, got at {found['at']!r}.") from None
        if found["what"] == "median":
            return cls("quantiles", at=(0.5,), **said)
        return cls(cast(What, found["what"]), at=levels, **said)

    @property
    def words(self) -> str:
        """As a text, by which its answer is found."""
        bins = f" in {self.bins}{' bins' if isinstance(self.bins, int) else ''}" if self.what == "histogram" else ""
        levels = f" at {', '.join(f'{each:g}' for each in self.at)}" if self.what == "quantiles" else ""
        return f"{self.what}{f' of {self.of}' if self.of else ''}{bins}{levels}{f' by {self.by}' if self.by else ''}"

    def cells(self, ends: tuple[float, float]) -> int:
        """Of each group, where the column has this range."""
        if self.what == "histogram":
            return self.bins if isinstance(self.bins, int) else len(names(self.bins, *ends))
        return {"count": 1, "quantiles": CELLS, "mean": 3}[self.what]


def asked_of(questions: Any) -> list[Question]:
    """Each question once. ConfigError for what is none."""
    listed = [questions] if isinstance(questions, str | Question) else questions
    if not (isinstance(listed, Sequence) and listed and all(isinstance(each, str | Question) for each in listed)):
        raise ConfigError(f"Expected questions such as 'count by ward', got {shortened(questions)}.")
    asked = [each if isinstance(each, Question) else Question.read(each) for each in listed]
    if len({each.words for each in asked}) < len(asked):
        raise ConfigError("Expected each question once, got one twice.")
    return asked
