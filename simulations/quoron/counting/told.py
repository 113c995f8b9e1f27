"""What was released, for whoever asked: every figure with its standard error and its interval."""

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quoron.counting import calendar
from quoron.counting.questions import CELLS, Question
from quoron.counting.weighing import Facts
from quoron.results import Axes, Release, axes
from quoron_privacy.counts import spread
from quoron_privacy.counts.spread import Estimate, Spread
from quoron_privacy.errors import ConfigError, printable


@dataclass(frozen=True, slots=True)
class Row:
    """One released figure, its standard error, and where it lies with 95 %: noise and sampling of users.

    A quantile that may lie beyond a range that was bought has an infinite end. Of dates a value and its ends are days
    since 1970-01-01, and the error is in days.
    """

    question: str
    group: str | None  # None: everybody
    cell: str  # of a histogram its bin, of quantiles the level; else empty
    value: float
    error: float
    low: float
    high: float
    dated: bool = False  # a date

    def text(self) -> str:
        """For people, on one line whatever a group is called."""
        named = printable(" ".join(filter(None, (self.group, self.cell))).replace("\n", "\\n"))
        value, low, high = (self.shown(each, "{:.6g}".format) for each in (self.value, self.low, self.high))
        return f"{named or 'all'}: {value}  (95 %: {low} to {high})"

    def shown(self, value: float, number: Callable[[float], str]) -> str:
        """The value or an end of it, a date as one."""
        return calendar.day(value) if self.dated else number(value)


@dataclass(frozen=True, slots=True, repr=False)
class Statistics(Release):
    """Everything that was released, for one price."""

    figures: tuple[Row, ...]
    users: int
    epsilon: float
    delta: float
    statement: str  # the promise, in a sentence
    remarks: tuple[str, ...]  # what was bought, and for what share of the promise

    def rows(self) -> list[tuple[str, str]]:
        """Return the question and answer of each figure."""
        return [(row.question, row.text()) for row in self.figures]

    def records(self) -> list[dict[str, Any]]:
        """Return one mapping a figure, dates in ISO 8601; None for an end that is infinite."""
        return [_plain(row) for row in self.figures]

    def plot(self, question: str | Question | None = None, *, ax: Axes | None = None) -> Axes:
        """Return matplotlib Axes with the figures of a question, by default the first histogram, and 95 % intervals."""
        asked = [*(row.question for row in self.figures), "count"]
        rows = self.of(question or next((words for words in asked if words.startswith("histogram")), asked[0]))
        names = [" ".join(filter(None, (row.group, row.cell))) or "all" for row in rows]
        found = axes(ax, title=rows[0].question)
        reach = [[row.value - row.low for row in rows], [row.high - row.value for row in rows]]
        found.bar(names, [row.value for row in rows], yerr=np.maximum(reach, 0.0))
        found.tick_params("x", rotation=90)
        return found

    def of(self, question: str | Question) -> tuple[Row, ...]:
        """The figures of one question. ConfigError for one that was not asked."""
        words = (question if isinstance(question, Question) else Question.read(question)).words
        found = tuple(row for row in self.figures if row.question == words)
        if not found:
            raise ConfigError(f"Expected a question that was asked and has groups, got {words!r}.")
        return found

    def as_json(self) -> dict[str, Any]:
        """Plain numbers and strings, dates in ISO 8601; None for an end that is infinite."""
        return {"rows": self.records()} | {name: value for name, value in asdict(self).items() if name != "figures"}

    def text(self) -> str:
        """For people: each question and its figures."""
        lines = []
        for words in dict.fromkeys(row.question for row in self.figures):
            lines += [words, *(f"  {row.text()}" for row in self.figures if row.question == words), ""]
        return "\n".join([*lines, *self.remarks, self.statement])


def _plain(row: Row) -> dict[str, Any]:
    said, shown = asdict(row), calendar.day if row.dated else float
    del said["dated"]
    ends = {"value": row.value, "low": row.low, "high": row.high}
    return said | {name: None if math.isinf(value) else shown(value) for name, value in ends.items()}


def rows_of(part: Spread, question: Question, facts: Facts, released: NDArray[np.float64], users: int) -> Iterable[Row]:
    """The figures of a question, of what was released of each group's cells, (groups, k)."""
    low, high = facts.ranges[question.of] if question.of is not None else (0.0, 1.0)
    for group, own in zip(facts.groups(question), released, strict=True):
        name = None if group is None else str(group)
        for cell, found in _estimates(part, question, own, users, (low, high), dates=question.of in facts.dates):
            if question.what == "quantiles" and question.of in facts.bought:
                found = _open(found, low, high)
            dated = question.of in facts.dates and question.what in ("quantiles", "mean")
            yield Row(question.words, name, cell, found.value, found.error, found.low, found.high, dated)


def _open(found: Estimate, low: float, high: float) -> Estimate:
    """Of a quantile that may lie in the first or the last cell of a range beyond which there are more numbers."""
    cell = 1.5 * (high - low) / CELLS
    ends = -math.inf if found.low < low + cell else found.low, math.inf if found.high > high - cell else found.high
    return Estimate(found.value, found.error, *ends)


def _estimates(
    part: Spread, question: Question, own: NDArray[np.float64], users: int, ends: tuple[float, float], *, dates: bool
) -> Iterable[tuple[str, Estimate]]:
    low, width = ends[0], ends[1] - ends[0]
    if question.what == "mean":
        return [("", spread.mean_of(own, scale=part.scale).in_units(low + width / 2, width / 2))]
    if question.what == "quantiles":
        return [(f"{each:g}", spread.quantile_of(own, each, part).in_units(low, width)) for each in question.at]
    counts = [spread.count_of(each, users=users, scale=part.scale).in_units(0.0, part.most) for each in own.tolist()]
    if not isinstance(question.bins, int):
        return zip(calendar.names(question.bins, *ends), counts, strict=True)
    edges = [low + width * place / part.cells for place in range(part.cells + 1)]
    named = [calendar.day(each) if dates else f"{each:g}" for each in edges]
    bins = [f"{one} to {other}" for one, other in pairwise(named)]
    return zip(bins if question.what == "histogram" else [""], counts, strict=True)
