"""First statistics of a table: counts, histograms, quantiles and means, all for one price.

    >>> import numpy as np, pandas as pd
    >>> wards = ["CBCACB"[row // 3 % 6] for row in range(9000)]
    >>> visits = pd.DataFrame({"who": [row // 3 for row in range(9000)], "ward": wards, "cost": np.arange(9000) % 100})
    >>> asked = ["count by ward", "mean of cost"]
    >>> found = statistics(visits, asked, user="who", epsilon=2.0, numeric={"cost": (0, 100)}, seed=1)
    >>> [(row.group, round(row.value), round(row.low), round(row.high)) for row in found.of("count by ward")]
    [('C', 1496, 1442, 1550), ('B', 994, 943, 1046), ('A', 497, 457, 539)]

What is asked is a text, the same in Python and in a shell, and several of them share one
promise. A user weighs one, whatever it holds, and one who is in several groups is shared among them; with
`items_per_user=K` each of its items weighs one, up to K. Ranges and categories that nobody declares are estimated
within the same guarantee. Statement, proof and intervals: docs/privacy/statistics.md#st1.

>>> Question.read("median of cost by ward")
Question(what='quantiles', of='cost', by='ward', bins=10, at=(0.5,))
"""

import datetime as dt
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any, Literal, Unpack, cast, get_args

import numpy as np
import pyarrow as pa

from quoron import results
from quoron.arguments import DELTA, ReleaseArguments, entry_point, shortened
from quoron.releases.bounds import read
from quoron.releases.once import release_once, slots_of, verify_gaussian
from quoron.results import Axes, axes
from quoron.training import column_bounds
from quoron.training.column_bounds import Fact, is_day
from quoron_client.data import columns, tables
from quoron_client.data.features import DateNumber
from quoron_privacy.accounts import gdp
from quoron_privacy.accounts.pair import DominatingPair
from quoron_privacy.arrays import Floats, Integers
from quoron_privacy.errors import ConfigError, Infeasible, count, printable
from quoron_privacy.histograms import private_bounds
from quoron_privacy.histograms import weighted_histogram as weighted
from quoron_privacy.histograms.private_bounds import KINDS, NUMBER, EstimatedBounds
from quoron_privacy.histograms.weighted_histogram import Estimate, WeightedHistogram, thirds
from quoron_privacy.noise.streams import NoiseSource, total_variation
from quoron_privacy.release import Adjacency, Release
from quoron_server.plan import Privacy
from quoron_server.wording import ESTIMATES_THEOREM, ReleaseGuarantee

_EPOCH = dt.date(1970, 1, 1).toordinal()


def range_of(column: str, ends: Any) -> tuple[float, float]:
    """Of a first and a last day, as texts or dates. ConfigError for others."""
    try:
        first, last = (end if isinstance(end, dt.date) else dt.date.fromisoformat(end) for end in ends)
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
    """Return the days of these years, the last one's with them."""
    first, last = (min(max(math.floor(year), dt.MINYEAR), dt.MAXYEAR) for year in (low, high))
    return float(dt.date(first, 1, 1).toordinal() - _EPOCH), float(dt.date(last, 12, 31).toordinal() - _EPOCH)


def day(number: float) -> str:
    """Return a date in ISO 8601; of no end the sign of infinity."""
    return f"{number}" if math.isinf(number) else dt.date.fromordinal(math.floor(number) + _EPOCH).isoformat()


What = Literal["count", "histogram", "quantiles", "mean"]
CELLS = 1 << 10  # of a range, whose running sums tell quantiles
QUARTILES = 0.25, 0.5, 0.75
_GRAMMAR = re.compile(
    r"(?P<what>count|histogram|quantiles|median|mean)(?: of (?P<of>.+?))?"
    r"(?: in (?P<bins>\d+) bins)?"
    r"(?: at (?P<at>[\d., ]+))?(?: by (?P<by>.+))?"
)


@dataclass(frozen=True, slots=True)
class Question:
    """One thing that is asked of a table; as a text `mean of cost by ward`, `quantiles of cost at 0.1, 0.9`, ..."""

    what: What
    of: str | None = None  # the column of numbers; none for a count
    by: str | None = None  # the column of groups; None: everybody
    bins: int = 10  # of a histogram, of equal width
    at: tuple[float, ...] = QUARTILES  # of quantiles

    def __post_init__(self) -> None:
        count(bins=self.bins)
        if self.what not in get_args(What) or (self.of is None) != (self.what == "count"):
            raise ConfigError(
                f"Expected a count, or a histogram, quantiles or a mean of a column, got {self.words!r}. Say "
                "'count by COLUMN' or 'mean of COLUMN'."
            )
        if self.bins > weighted.MOST_CELLS or not (self.at and all(0 < level < 1 for level in self.at)):
            raise ConfigError(
                f"Expected up to {weighted.MOST_CELLS} bins and quantiles between 0 and 1, got {self.words!r}."
            )
        if self.by is not None and self.by == self.of:
            raise ConfigError(f"Expected another column for the groups than {self.of!r}, got the same one twice.")

    @classmethod
    def read(cls, text: str) -> "Question":
        """Of its words. ConfigError for others."""
        parts = _GRAMMAR.fullmatch(" ".join(text.split()))
        if parts is None:
            raise ConfigError(
                f"Expected a question such as 'count by ward', 'histogram of age in 10 bins', 'quantiles of cost at "
                f"0.1, 0.9', 'median of cost by ward' or 'mean of cost', got {text!r}."
            )
        fields: dict[str, Any] = {name: parts[name] for name in ("of", "by") if parts[name]}
        if parts["bins"]:
            fields["bins"] = int(parts["bins"])
        try:
            levels = tuple(float(level) for level in parts["at"].split(",")) if parts["at"] else QUARTILES
        except ValueError:
            raise ConfigError(f"Expected quantiles as numbers between 0 and 1, got at {parts['at']!r}.") from None
        if parts["what"] == "median":
            return cls("quantiles", at=(0.5,), **fields)
        return cls(cast(What, parts["what"]), at=levels, **fields)

    @property
    def words(self) -> str:
        """As a text, by which its answer is found."""
        bins = f" in {self.bins} bins" if self.what == "histogram" else ""
        levels = f" at {', '.join(f'{level:g}' for level in self.at)}" if self.what == "quantiles" else ""
        return f"{self.what}{f' of {self.of}' if self.of else ''}{bins}{levels}{f' by {self.by}' if self.by else ''}"

    @property
    def cells(self) -> int:
        """Of each group."""
        return {"count": 1, "histogram": self.bins, "quantiles": CELLS, "mean": 3}[self.what]


def questions_of(questions: Any) -> list[Question]:
    """Each question once. ConfigError for what is none."""
    listed = [questions] if isinstance(questions, str) else questions
    if not (isinstance(listed, Sequence) and listed and all(isinstance(text, str) for text in listed)):
        raise ConfigError(f"Expected questions such as 'count by ward', got {shortened(questions)}.")
    parsed = [Question.read(text) for text in listed]
    if len({question.words for question in parsed}) < len(parsed):
        raise ConfigError("Expected each question once, got one twice.")
    return parsed


@dataclass(frozen=True, slots=True)
class Schema:
    """What is known of columns, declared or estimated, and of the users."""

    ranges: Mapping[str, tuple[float, float]]
    words: Mapping[str, Sequence[str | int]]
    estimates: frozenset[str] = frozenset()  # columns whose range was estimated: some numbers lie beyond it
    dates: frozenset[str] = frozenset()  # columns of dates, which are days since 1970-01-01
    users: int = 0  # that there are; under zero-out the most that there may be
    items: int = 1  # K, that weigh as much as one user
    adjacency: Adjacency = "replace-one"

    def groups(self, question: Question) -> Sequence[str | int | None]:
        """Of a question; of a column in which enough users have none there is none."""
        return (None,) if question.by is None else self.words[question.by]

    def spread(self, question: Question, mu: float, groups: int | None = None) -> WeightedHistogram | None:
        """What answers it, of so many groups, or of those that there are; None where there is none, or no number."""
        n_groups = len(self.groups(question)) if groups is None else groups
        if not n_groups or (groups is None and question.of is not None and question.of not in self.ranges):
            return None
        return WeightedHistogram.for_mu(
            users=self.users,
            groups=n_groups,
            cells=question.cells,
            mu=mu,
            running=question.what == "quantiles",
            most=self.items,
            adjacency=self.adjacency,
        )


def declared(
    numeric: Mapping[str, Any], categorical: Mapping[str, Any], dates: Mapping[str, Any] | Sequence[str]
) -> Schema:
    """Return the caller's declarations of columns. ConfigError for impossible ones."""
    dates = dates if isinstance(dates, Mapping) else dict.fromkeys(dates)
    if twice := set(numeric) & set(dates):
        raise ConfigError(f"Expected each column as numbers or as dates, got {sorted(twice)[0]!r} as both.")
    ranges, words = {name: range_of(name, ends) for name, ends in dates.items() if ends is not None}, {}
    for name, ends in numeric.items():
        try:
            low, high = map(float, ends)
        except (TypeError, ValueError):
            low, high = 0.0, 0.0
        if not (low < high and low > -1e100 and high < 1e100):
            raise ConfigError(f"Expected numeric[{name!r}] as (low, high), got {shortened(ends)}.")
        ranges[name] = (low, high)
    for name, values in categorical.items():
        kinds = {type(value) for value in values} if isinstance(values, list | tuple) else set()
        if not (kinds <= {str, int} and values and len(set(map(str, values))) == len(values)):
            raise ConfigError(f"Expected categorical[{name!r}] as a list of words, each once, got {shortened(values)}.")
        words[name] = tuple(values) if len(kinds) == 1 else tuple(map(str, values))
    return Schema(ranges, words, dates=frozenset(dates))


def days(table: pa.Table, name: str) -> Floats:
    """Days since 1970-01-01 of each row, (N,): NaN where a value is no date. Raises DataError for another type."""
    return DateNumber(name, "days", 0, 1, since="1970-01-01").read(table)


def weigh(part: WeightedHistogram, question: Question, schema: Schema, table: pa.Table, owners: Integers) -> Floats:
    """Return all users' weights, by cell: private."""
    groups, cells = np.zeros(len(owners), np.int64), np.zeros(len(owners), np.int64)
    if question.by is not None:
        groups = columns.places(table, question.by, schema.words[question.by])
    counted, place = groups >= 0, np.zeros(len(owners))
    if question.of is not None:
        low, high = schema.ranges[question.of]
        values = days(table, question.of) if question.of in schema.dates else columns.numbers(table, question.of)
        counted &= ~np.isnan(values)
        place = (np.clip(values, low, high) - low) / (high - low)  # in [0, 1]
        cells = np.minimum((np.where(np.isnan(place), 0.0, place) * part.cells).astype(np.int64), part.cells - 1)
    own, group = owners[counted], groups[counted]
    weights = part.weights(own)
    if question.what != "mean":
        return part.held(own, group * part.cells + cells[counted], weights)
    # A user's items of one group count by their mean.
    key, which, counts = np.unique(own * part.groups + group, return_inverse=True, return_counts=True)
    mean = np.bincount(which, place[counted], len(key)) / counts
    whole = np.zeros(len(key), np.int64)
    np.add.at(whole, which, weights)
    three = thirds(whole, np.clip(2 * mean - 1, -1.0, 1.0))
    return part.held(
        np.repeat(key // part.groups, 3),
        np.repeat(key % part.groups * 3, 3) + np.tile(np.arange(3), len(key)),
        three.ravel(),
    )


@dataclass(frozen=True, slots=True)
class Row:
    """One released figure, its standard error, and where it lies with 95 %: noise and sampling of users.

    A quantile that may lie beyond a range that was estimated has an infinite end. Of dates a value and its ends are
    days since 1970-01-01, and the error is in days.
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
        value, low, high = (self.format(number, "{:.6g}".format) for number in (self.value, self.low, self.high))
        return f"{named or 'all'}: {value}  (95 %: {low} to {high})"

    def format(self, value: float, number: Callable[[float], str]) -> str:
        """Return the value or an end of it, a date as one."""
        return day(value) if self.dated else number(value)


@dataclass(frozen=True, slots=True, repr=False)
class Statistics(results.Release):
    """Everything that was released, for one price."""

    figures: tuple[Row, ...]
    users: int
    epsilon: float
    delta: float
    statement: str  # the promise, in a sentence
    remarks: tuple[str, ...]  # what was estimated, and for what share of the promise

    def rows(self) -> list[tuple[str, str]]:
        """Return the question and answer of each figure."""
        return [(row.question, row.text()) for row in self.figures]

    def records(self) -> list[dict[str, Any]]:
        """Return one mapping a figure, dates in ISO 8601; None for an end that is infinite."""
        return [_plain(row) for row in self.figures]

    def plot(self, question: str | None = None, *, ax: Axes | None = None) -> Axes:
        """Return matplotlib Axes with the figures of a question, by default the first histogram, and 95 % intervals."""
        known = [*(row.question for row in self.figures), "count"]
        rows = self.of(question or next((words for words in known if words.startswith("histogram")), known[0]))
        names = [" ".join(filter(None, (row.group, row.cell))) or "all" for row in rows]
        axis = axes(ax, title=rows[0].question)
        reach = [[row.value - row.low for row in rows], [row.high - row.value for row in rows]]
        axis.bar(names, [row.value for row in rows], yerr=np.maximum(reach, 0.0))
        axis.tick_params("x", rotation=90)
        return axis

    def of(self, question: str) -> tuple[Row, ...]:
        """Return the figures of one question. ConfigError for one that was not asked."""
        words = Question.read(question).words
        rows = tuple(row for row in self.figures if row.question == words)
        if not rows:
            raise ConfigError(f"Expected a question that was asked and has groups, got {words!r}.")
        return rows

    def as_json(self) -> dict[str, Any]:
        """Plain numbers and strings, dates in ISO 8601; None for an end that is infinite."""
        return {"rows": self.records()} | {name: value for name, value in asdict(self).items() if name != "figures"}


def _plain(row: Row) -> dict[str, Any]:
    plain, number = asdict(row), day if row.dated else float
    del plain["dated"]
    ends = {"value": row.value, "low": row.low, "high": row.high}
    return plain | {name: None if math.isinf(value) else number(value) for name, value in ends.items()}


def rows_of(part: WeightedHistogram, question: Question, schema: Schema, released: Floats) -> Iterable[Row]:
    """Return the figures of a question, of what was released of each group's cells, (groups, k)."""
    low, high = schema.ranges[question.of] if question.of is not None else (0.0, 1.0)
    for group, own in zip(schema.groups(question), released, strict=True):
        name = None if group is None else str(group)
        for cell, line in _estimates(part, question, own, schema.users, (low, high), dates=question.of in schema.dates):
            if question.what == "quantiles" and question.of in schema.estimates:
                line = _open(line, low, high)
            dated = question.of in schema.dates and question.what in ("quantiles", "mean")
            yield Row(question.words, name, cell, line.value, line.error, line.low, line.high, dated)


def _open(level: Estimate, low: float, high: float) -> Estimate:
    """Of a quantile that may lie in the first or the last cell of a range beyond which there are more numbers."""
    cell = 1.5 * (high - low) / CELLS
    ends = -math.inf if level.low < low + cell else level.low, math.inf if level.high > high - cell else level.high
    return Estimate(level.value, level.error, *ends)


def _estimates(
    part: WeightedHistogram, question: Question, own: Floats, users: int, ends: tuple[float, float], *, dates: bool
) -> Iterable[tuple[str, Estimate]]:
    low, width = ends[0], ends[1] - ends[0]
    if question.what == "mean":
        return [("", weighted.mean_of(own, scale=part.scale).in_units(low + width / 2, width / 2))]
    if question.what == "quantiles":
        return [(f"{level:g}", weighted.quantile_of(own, level, part).in_units(low, width)) for level in question.at]
    counts = [weighted.count_of(cell, users=users, scale=part.scale).in_units(0.0, part.most) for cell in own.tolist()]
    edges = [low + width * place / part.cells for place in range(part.cells + 1)]
    named = [day(edge) if dates else f"{edge:g}" for edge in edges]
    bins = [f"{one} to {other}" for one, other in pairwise(named)]
    return zip(bins if question.what == "histogram" else [""], counts, strict=True)


_SAMPLES = 2**40  # that a call may draw: far more than any does
_DATE = KINDS.index("date")


@entry_point
def statistics(
    source: Any,
    questions: str | Sequence[str],
    user: str,
    *,
    epsilon: float,
    delta: float = DELTA,
    zero_out: int | None = None,
    allow_large_delta: bool = False,
    numeric: Mapping[str, tuple[float, float]] = {},  # read only
    categorical: Mapping[str, Sequence[str | int]] = {},
    dates: Mapping[str, Any] | Sequence[str] = (),
    items_per_user: int | None = None,
    **charged: Unpack[ReleaseArguments],
) -> Statistics:
    """Counts, histograms, quantiles and means, private for every user as a whole, with one price for all of them.

    Args:
        source: a table with one item a row: a file, a DataFrame, whatever `quoron.read_table` gives.
        questions: one, or several that share the price: `count by ward`, `histogram of age in 10 bins`, `quantiles of
            cost at 0.1, 0.9 by ward`, `median of cost`, `mean of cost by ward`.
        user: column that says whose item a row is. How many users there are is public.
        epsilon, delta, allow_large_delta: the guarantee, as of `train`.
        zero_out: the most users that the table may hold: adjacency is zero-out, whether somebody is in it is private
            then, and a plain `count` is of users.
        numeric: public range of a column. Items beyond it count as at its end. Without, the range is estimated, out of
            the same promise.
        categorical: public values of a column of groups; without, they are estimated. Items of others do not count.
        dates: columns of dates, as they are stored or in ISO 8601, each with its public first and last day, or None: it
            is estimated. A column of a type that holds dates alone need not be named.
        items_per_user: what weighs one: None, a user, whatever it holds; K, each of its items, but all of them K.
        seed: SIMULATED: of all noise, which comes again and protects nobody; charged to a given ledger only.
        population, ledger: whose privacy budget is charged, in which file.

    Items that are missing, or no numbers where a number is asked for, do not count: a user's weight is on those that
    do. Everything is charged before any value is looked at. Asking again costs again.

    Raises:
        ConfigError: no question that can be meant, a parameter out of range.
        DataError: no such file or column, no users.
        Infeasible: too few users to tell what is asked from noise, before anything is charged, with what would do.
        BudgetExceeded: the population's limit leaves no room; nothing is released.
    """
    listed = questions_of(questions)
    items = 1 if items_per_user is None else items_per_user
    count(items_per_user=items)
    adjacency: Adjacency = "replace-one" if zero_out is None else "zero-out"
    if items == 1 and zero_out is None and any(question.what == "count" and question.by is None for question in listed):
        raise ConfigError(
            "Expected groups for a count of users, got 'count': how many there are is public. Say 'count by COLUMN', "
            "or items_per_user, which counts items."
        )
    privacy = Privacy(epsilon, delta)
    schema = declared(numeric, categorical, dates)
    numbers = dict.fromkeys(question.of for question in listed if question.of)
    names = list(dict.fromkeys(name for question in listed for name in (question.of, question.by) if name))
    source = tables.opened(source)
    typed = {name for name in numbers if is_day(columns.kind(source.empty([name]), name))}
    schema = replace(schema, dates=schema.dates | typed)
    table, owners, n_users = read(source, user, names, schema.dates, empty=zero_out is not None)
    slots = slots_of(n_users, zero_out, delta, allow_large_delta=allow_large_delta)
    schema = replace(schema, users=slots, items=items, adjacency=adjacency)
    facts = [Fact(name, "date" if name in schema.dates else "number") for name in numbers if name not in schema.ranges]
    facts += [Fact(by, "category") for by in dict.fromkeys(q.by for q in listed if q.by) if by not in schema.words]
    if len({fact.column for fact in facts}) < len(facts):
        raise ConfigError("Expected a column of numbers or of groups, got one that is asked as both. Declare it.")
    paid = column_bounds.planned(facts, slots, privacy.epsilon, privacy.delta, adjacency) if facts else None
    rest = (epsilon, delta) if paid is None else (paid.rest_epsilon, paid.rest_delta)
    mu = gdp.mu_for(*rest, gaussians=_SAMPLES) * (1 - 1e-9)
    _check_users(listed, schema, mu)
    variation = total_variation(gaussians=_SAMPLES)
    all_mu, all_variation = (mu, variation) if paid is None else paid.charged
    theorem = "docs/privacy/statistics.md#st1"
    if paid is not None:
        theorem += (
            f", and {ESTIMATES_THEOREM} for bounds that are estimated privately, which cost {paid.share:.2g} of μ²"
        )
    promise = ReleaseGuarantee.central(epsilon, delta, "figures", theorem, adjacency)

    def verify() -> None:
        if paid is None:
            verify_gaussian("statistics", mu, variation, epsilon, delta)
        else:
            paid.verify(epsilon, delta, users=slots, adjacency=adjacency, own=DominatingPair.gaussian(mu, variation))

    def draw(noise: NoiseSource) -> tuple[tuple[tuple[Row, ...], tuple[str, ...]], dict[str, Any]]:
        known, remarks = schema, tuple[str, ...]()
        entries: tuple[Release, ...] = ()
        if paid is not None:
            estimates_, entries = column_bounds.release(paid, facts, tables.opened(table), owners, slots, noise)
            known, remarks = _estimated(schema, estimates_, paid)
        own_mu = mu / math.sqrt(len(listed)) * (1 - 1e-12)
        pairs = [(question, known.spread(question, own_mu)) for question in listed]
        parts = [(question, part) for question, part in pairs if part is not None]  # no released group: no answer
        weighted.verify([part for _, part in parts], *rest)
        rows: list[Row] = []
        for place, (question, part) in enumerate(parts):
            private = weigh(part, question, known, table, owners)
            rows += rows_of(part, question, known, part.release(private, noise.stream("statistics", place)))
        ledger = [asdict(entry) for entry in (*entries, *(part.entry() for _, part in parts))]
        return (tuple(rows), remarks), {"statistics": ledger}

    (rows, remarks), statement = release_once(
        "statistics", promise, draw, verify, mu=all_mu, variation=all_variation, **charged
    )
    return Statistics(rows, slots, epsilon, delta, statement, remarks)


def _check_users(questions: Sequence[Question], schema: Schema, mu: float) -> None:
    """Raise Infeasible where noise alone hides what is asked; unknown groups count as one."""
    own_mu = mu / math.sqrt(len(questions))
    for question in questions:
        groups = len(schema.groups(question)) if question.by is None or question.by in schema.words else 1
        part, cells = schema.spread(question, own_mu, groups), question.cells
        assert part is not None
        unit = float(part.against(0.0)[-1]) if part.running else part.scale
        shares = question.at if part.running else (0.5,)
        needed = max(weighted.needed(question.what, groups=groups, cells=cells, unit=unit, share=at) for at in shares)
        if schema.users < needed:
            fewer_questions = "" if len(questions) == 1 else f", fewer than {len(questions)} questions"
            fewer = "" if groups * cells == 1 else ", fewer groups or bins"
            raise Infeasible(
                "statistics",
                f"{schema.users:,} users do not tell {question.words!r} from noise at mu={own_mu:.3g}",
                f"{needed:,} users, a larger epsilon{fewer}{fewer_questions}",
            )


def _estimated(schema: Schema, released: Mapping[str, Any], paid: EstimatedBounds) -> tuple[Schema, tuple[str, ...]]:
    """With what was estimated, and what is said of it.

    A range is where most numbers are: for figures of all of them it is made twice as wide, not beyond zero where that
    is on one side of it.
    """
    ranges, words, remarks = dict(schema.ranges), dict(schema.words), []
    least = private_bounds.HOLDERS * paid.errors(columns=paid.columns, names=1).places if paid.columns else 0.0
    for name, estimate in released.items():
        if "range" not in estimate:
            words[name] = tuple(str(word) for word, _ in estimate.get("names", ()))
            few = f" that {paid.threshold(paid.names):,.0f} users' votes are for"
            remarks.append(f"{len(words[name]) or 'no'} values of {name}{few}, and items of others do not count")
        elif estimate["votes"][_DATE if name in schema.dates else NUMBER] < least:
            few = f"fewer than {least:,.0f} users have a number as far as noise tells"
            remarks.append(f"nothing of {name}, where {few} (how numbers are written says decimal)")
        else:
            low, high = estimate["range"]
            half = (high - low) / 2
            ends = low - half if low < 0 else max(0.0, low - half), high + half if high > 0 else min(0.0, high + half)
            texts = f"{ends[0]:g}", f"{ends[1]:g}"
            if name in schema.dates:
                ends = of_years(low - half, high + half)
                texts = day(ends[0]), day(ends[1])
            ranges[name] = ends
            remarks.append(f"{name} from {texts[0]} to {texts[1]}, and items beyond count as at its end")
    share = f"{100 * paid.share:.2g} % of μ²"
    known = replace(schema, ranges=ranges, words=words, estimates=frozenset(ranges) - frozenset(schema.ranges))
    return known, (f"Estimated, for {share}: {'; '.join(remarks)}.",)
