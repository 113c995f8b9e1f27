"""Declarations for a configuration, released from a table where nobody knows them: each for a stated ε.

    >>> import pandas as pd
    >>> wards = ["CBCACB"[row // 3 % 6] for row in range(9000)]
    >>> visits = pd.DataFrame({"who": [row // 3 for row in range(9000)], "ward": wards})
    >>> found = find_bounds(visits, user="who", epsilon=2.0, seed=1, items=True, categorical=["ward"])
    >>> print(found.toml().replace(found.statement, "(2, 1e-06)-differential privacy ..."))
    # (2, 1e-06)-differential privacy ...
    # Categories with fewer than 36 users' votes may be missing.
    [population]
    kind = "table"
    user = "who"
    items_per_user = 3 # epsilon = 1
    <BLANKLINE>
    [population.columns.categorical]
    ward = ["C", "B", "A"] # epsilon = 1, delta = 1e-06
    <BLANKLINE>

Rows are read as training reads them, one value at a time, and none of them raises: what is no number is no vote for a
range, what is missing or empty is no category, and a row without a user is nobody's. ε is shared equally by all that is
asked for, and charged before anything is told.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from quoron import results, toml_text
from quoron.arguments import DELTA, entry_point, shortened
from quoron.data.columns import integers
from quoron.releases.once import Planned, release_once, slots_of
from quoron.simulation import wildcards
from quoron.training import column_bounds
from quoron.training.column_bounds import Want
from quoron_client.data import columns, tables
from quoron_client.data.features import DateNumber
from quoron_client.data.formats import Dialect
from quoron_client.data.users import Reading, group, most_rows, only_first
from quoron_privacy.accounts import gdp
from quoron_privacy.counts.data_quality import looked_at
from quoron_privacy.counts.private_bounds import Bought, edge
from quoron_privacy.counts.user_histograms import (
    MOST_BELOW,
    HiddenBins,
    RankChoice,
    items_choice,
    release_categories,
    release_items_per_user,
)
from quoron_privacy.counts.user_histograms import verify as verify_bins
from quoron_privacy.errors import CONTROL, ConfigError, DataError, Infeasible
from quoron_privacy.noise.streams import NoiseSource, RandomStream
from quoron_privacy.release import Release
from quoron_server.wording import ReleaseGuarantee

VARIATION = 2.0**-60  # ranks are drawn exactly; the ledger wants a bound above zero
KINDS = ("numeric", "dates", "categorical")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the configuration, and what it cost."""

    kind: str  # numeric, dates, categorical or items
    name: str  # of the column, or items_per_user
    value: Any  # None: nothing that could be declared
    epsilon: float
    delta: float
    mu: float | None
    problem: str = ""
    entries: tuple[Release, ...] = ()  # of the mechanisms; none where nothing was chosen

    def line(self) -> str:
        """The line in TOML; a comment where there is no value."""
        cost = f"epsilon = {self.epsilon:g}" + (f", delta = {self.delta:g}" if self.delta else "")
        if self.value is None:
            return f"# {_key(self.name)}: {self.problem} ({cost})"
        return f"{toml_text.dumps({'x': {self.name: self.value}}).partition(chr(10))[2]} # {cost}"


@dataclass(frozen=True, slots=True, repr=False)
class PrivateBounds(results.Release):
    """Everything released, and what it cost together for replacing one user."""

    path: str | None
    user: str
    users: int
    declared: tuple[Line, ...]
    epsilon: float
    delta: float
    mu: float | None  # all of it is μ-GDP; None: no such bound
    votes: int | None  # with which a category is shown with chance 0.99; None: none was asked for
    statement: str
    dialect: Dialect = field(default_factory=Dialect)  # of the table's text, as declared

    def rows(self) -> list[tuple[str, str]]:
        """Return the kind and TOML of each line."""
        return [(line.kind, line.line()) for line in self.declared]

    def records(self) -> list[dict[str, Any]]:
        """Return one mapping a line."""
        return [{name: value for name, value in asdict(line).items() if name != "entries"} for line in self.declared]

    def toml(self) -> str:
        """Sections for a configuration file, each line with its cost."""
        head = [f"# {self.statement}"]
        head += [f"# Categories with fewer than {self.votes:,} users' votes may be missing."] if self.votes else []
        table = {"kind": "table", "path": self.path, "user": self.user}
        items = [each.line() for each in self.declared if each.kind == "items"]
        if dialect := self.dialect.declared():
            items.append(f"columns.csv = {toml_text.literal(dialect)}")
        parts = ["\n".join([*head, toml_text.dumps({"population": table}), *items])]
        for kind in KINDS:
            lines = [each.line() for each in self.declared if each.kind == kind]
            if lines:
                parts.append("\n".join([f"[population.columns.{kind}]", *lines]))
        return "\n\n".join(parts)


@entry_point
def find_bounds(
    source: Any,
    user: str,
    *,
    epsilon: float,
    delta: float = DELTA,
    allow_large_delta: bool = False,
    items: bool = False,
    numeric: Sequence[str] = (),
    dates: Sequence[str] = (),
    categorical: Sequence[str] = (),
    most_votes: int = 1,
    most_below: float = MOST_BELOW,
    population: str | None = None,
    ledger: str | Path | None = None,
    seed: int | None = None,
) -> PrivateBounds:
    """Estimate bounds of a table privately: a file, a DataFrame, or what `quoron.read_table` returns.

    Args:
        source: the table; of a file, only the columns that are named are read.
        user: column that says whose item a row is. How many users there are is public.
        epsilon: the cost of all of it together, shared equally.
        delta: that of all ranges and categories together, 1e-6 unless given; without any, nothing is spent of it.
        allow_large_delta: accept a `delta` above 1/n.
        items: release a number of items per user that at least a share 1 - `most_below` of the users hold.
        numeric: columns whose range is released, also as a pattern `x*` or a span `x[0:9]`: of all at once, where
            most of the numbers are.
        dates: columns of dates, as they are stored or in ISO 8601, of which the first and the last year are released,
            with the ranges; patterns and spans, too.
        categorical: columns whose categories are released, also the classes of a label.
        most_votes: categories of one column that a user votes for.
        population, ledger: whose privacy budget is charged, in which file.
        seed: SIMULATED: of all noise, which comes again and protects nobody; charged to a given ledger only.

    Raises:
        ConfigError: nothing asked for, a column asked for twice or that of the user, a parameter out of range.
        DataError: no such file or column, a column of neither numbers nor text, no users.
        Infeasible: too few users for an ε, told before anything is released, with what would do.
        BudgetExceeded: the population's limit leaves no room; nothing is released.
    """
    for kind, listed in (("numeric", numeric), ("dates", dates), ("categorical", categorical)):
        if not (
            isinstance(listed, Sequence)
            and not isinstance(listed, str)
            and all(isinstance(each, str) for each in listed)
        ):
            raise ConfigError(f"Expected {kind} as a list of columns, got {kind}={shortened(listed)}.")
    numeric, dates, categorical = found = _named(source, user, numeric, dates, categorical)
    names = [name for some in found for name in some]
    parts = len(names) + items
    if not parts or len(set(names)) < len(names):
        raise ConfigError(f"Expected items, columns that are numeric, dates or categorical, each once, got {names}.")
    if user in names:
        raise ConfigError(f"Expected columns other than the user's own {user!r}, got it too: it tells who is there.")
    # Together never more than ε, whatever the division rounds to.
    each, ranged = math.nextafter(epsilon / parts, 0.0), [*numeric, *dates]
    each_delta = delta / max(len(categorical) + bool(ranged), 1)
    bins = HiddenBins.calibrate(most=most_votes, epsilon=each, delta=each_delta) if categorical else None
    table, owners, users = read(source, user, names, dates)
    spent_delta = delta if ranged or categorical else 0.0
    slots_of(users, None, spent_delta, allow_large_delta=allow_large_delta)
    ranges = _ranges_plan(users, len(ranged), each, each_delta, parts) if ranged else None
    choice = _items_choice(users, each, parts, most_below) if items else None
    mu = None if categorical else gdp.compose(*(fact.mu for fact in (ranges, choice) if fact is not None))
    variation = VARIATION if ranges is None else ranges.variation

    def verify() -> None:
        if bins is not None:
            verify_bins(bins, each, each_delta)
        if ranges is not None:
            spent = math.nextafter(len(ranged) * each, 0.0), each_delta
            ranges.verify(*spent, users=users, adjacency="replace-one", own=(0.0, 0.0))

    def draw(noise: NoiseSource) -> tuple[list[Line], dict[str, Any]]:
        declared: list[Line] = []
        if ranges is not None:
            wants = [*(Want(name, "number") for name in numeric), *(Want(name, "year") for name in dates)]
            found, entries = column_bounds.release(ranges, wants, tables.opened(table), owners, users, noise)
            declared = [_range(want, found[want.column], ranges, each, each_delta, len(ranged)) for want in wants]
            declared[0] = replace(declared[0], entries=entries)  # of all of them together
        for name in categorical:
            words = [None if word and CONTROL.search(word) else word for word in columns.texts(table, name).to_pylist()]
            declared.append(_categories(name, words, owners, each, each_delta, most_votes, _stream(noise, name)))
        if items:
            held, stream = np.bincount(owners, minlength=users), _stream(noise)
            fact = release_items_per_user(held, epsilon=each, stream=stream, most_below=most_below)
            declared.append(Line("items", "items_per_user", fact.value, each, 0.0, fact.mu, entries=fact.entries))
        kept = [{"line": line.name, "releases": [asdict(entry) for entry in line.entries]} for line in declared]
        return declared, {"declared": kept}

    proofs = {"docs/privacy/bought-declarations.md": bool(ranged), "docs/privacy/votes.md": bool(categorical) or items}
    theorems = " and ".join(page for page, needed in proofs.items() if needed)
    promise = ReleaseGuarantee.central(epsilon, spent_delta, "bounds", theorems)
    planned = Planned(draw, verify, mu, 0.0 if mu is None else variation)
    declared, statement = release_once("declare", promise, planned, seed=seed, population=population, ledger=ledger)
    opened, shown = tables.opened(source), bins.kept_from(0.99) if bins else None
    dialect = opened.dialect or Dialect()
    return PrivateBounds(opened.path, user, users, tuple(declared), epsilon, spent_delta, mu, shown, statement, dialect)


def _named(source: Any, user: str, *declared: Sequence[str]) -> list[list[str]]:
    """The columns that names, patterns and spans of each kind stand for."""
    entries = [each for some in declared for each in some]
    header = tables.names(source) if any(wildcards.WILD in each for each in entries) else []
    meant = iter(wildcards.meant(entries, header, roles={user}))
    return [[name for _ in some for name in next(meant)] for some in declared]


def read(
    source: Any, user: str, names: Sequence[str], dates: Collection[str] = (), *, empty: bool = False
) -> tuple[pa.Table, NDArray[np.int64], int]:
    """(first rows of users, whose each is, number of users); DataError for what is wrong with file or columns.

    Of a user as many count as of one item that is declared: `most_rows`. Nobody may be there where it may be `empty`.
    """
    most = most_rows(1, len(names), weighted=False)
    table = tables.read(source, [*dict.fromkeys([user, *names])], Reading(most, user), empty=empty)
    for name in names:
        if name in dates:
            DateNumber(name, "year", 0, 1).check(table)
        else:
            columns.check(table, name)
    table = table.filter(columns.texts(table, user).is_valid())
    users, owners = group(table, user, without_rows=True)
    if not (users or empty):
        raise DataError(f"Expected a user in some row of column {user!r}, got none.")
    return *only_first(table, owners, most), users


def _ranges_plan(users: int, many: int, each: float, delta: float, parts: int) -> Bought:
    """All ranges at once, for `many` times ε of one line; Infeasible for too few users, with what would do."""
    epsilon = math.nextafter(many * each, 0.0)
    plan = Bought.calibrate(users=looked_at(users), columns=many, names=0, epsilon=epsilon, delta=delta, share=1.0)
    if plan.users < plan.needs:
        shared = f", and epsilon is shared by {parts}" if parts > 1 else ""
        ranges = "the range of a column" if many == 1 else f"the ranges of {many} columns"
        condition = f"{users:,} users do not tell {ranges} from noise at epsilon={epsilon:g}"
        raise Infeasible("ranges", condition, f"{plan.needs:,} users, or a larger epsilon{shared}")
    return plan


def _range(want: Want, found: Mapping[str, Any], plan: Bought, epsilon: float, delta: float, many: int) -> Line:
    """The line of one of so many columns whose ranges are released together."""
    low, high = found["range"]
    kind = "dates" if want.what == "year" else "numeric"
    value: Any = [low, high]
    problem = ""
    if not found["told"]:
        value, problem = None, f"too few users have {'dates' if kind == 'dates' else 'numbers'} here"
    elif max(-low, high) <= edge(1):
        value, problem = None, "zero for nearly everybody"
    elif kind == "dates":
        first = math.floor(low)
        value = {"parts": ["month", "weekday"], "year": [first, max(math.ceil(high), first + 1)]}
    return Line(kind, want.column, value, epsilon, delta / many, plan.mu / math.sqrt(many), problem)


def _categories(
    name: str,
    words: Sequence[object],
    owners: NDArray[np.int64],
    epsilon: float,
    delta: float,
    most_votes: int,
    stream: RandomStream,
) -> Line:
    fact = release_categories(words, owners, epsilon=epsilon, delta=delta, stream=stream, most_votes=most_votes)
    if not fact.value:  # an empty list would be read as: whatever is in the data
        return Line(
            "categorical", name, None, epsilon, delta, None, "no category has enough users' votes", fact.entries
        )
    return Line("categorical", name, integers([*map(str, fact.value)]), epsilon, delta, None, entries=fact.entries)


def _items_choice(users: int, epsilon: float, parts: int, most_below: float) -> RankChoice:
    try:
        return items_choice(users, epsilon=epsilon, most_below=most_below)
    except Infeasible as error:
        shared = f" for it alone, and epsilon is shared by {parts}" if parts > 1 else ""
        raise Infeasible("items per user", error.condition, error.needs + shared) from None


def _stream(noise: NoiseSource, *names: str) -> RandomStream:
    return noise.stream("declare", *names)


def _key(name: str) -> str:
    """A column's name on one line."""
    return toml_text.dumps({"x": {name: 0}}).partition("\n")[2].removesuffix(" = 0")
