"""Private bounds of a table for its configuration: ranges, categories and items per user, all for one stated ε.

    >>> import pandas as pd
    >>> wards = ["CBCACB"[row // 3 % 6] for row in range(9000)]
    >>> visits = pd.DataFrame({"who": [row // 3 for row in range(9000)], "ward": wards})
    >>> found = find_bounds(visits, user="who", epsilon=2.0, seed=1, items=True, categorical=["ward"])
    >>> print(found.toml().replace(found.statement, "(2, 1e-06)-differential privacy ..."))
    # (2, 1e-06)-differential privacy ...
    # Categories of fewer than 65 users may be missing.
    [population]
    kind = "table"
    user = "who"
    items_per_user = 3
    <BLANKLINE>
    [population.columns]
    categorical = { ward = ["C", "B", "A"] }

The mechanism is that of a run on undeclared columns (`quoron.training.column_bounds`), with all of ε. No value of a row
raises: what is no number has no place in a range, what is missing or empty is no category, and a row without a user is
nobody's. Statement and proof: docs/privacy/private-bounds.md.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Unpack

import pyarrow as pa

from quoron import results, toml_text
from quoron.arguments import DELTA, ReleaseArguments, entry_point
from quoron.data.columns import integers
from quoron.data.user_rows import FIRST, first_rows, first_rows_of_users, group, max_rows
from quoron.releases.once import release_once, slots_of
from quoron.simulation import wildcards
from quoron.training import column_bounds
from quoron.training.column_bounds import Bounds, Fact
from quoron_client.data import columns, tables
from quoron_client.data.features import DateNumber
from quoron_client.data.formats import Dialect
from quoron_privacy.accounts.pair import DominatingPair
from quoron_privacy.errors import CONTROL, ConfigError, DataError, Infeasible
from quoron_privacy.histograms.private_bounds import edge
from quoron_privacy.noise.streams import NoiseSource
from quoron_server.wording import ReleaseGuarantee

KINDS = ("numeric", "dates", "categorical")
ITEMS = "\0items per user"  # no column's name
CLEAR = 2.33  # standard errors above the threshold: with so many users a category is shown with chance 0.99


@dataclass(frozen=True, slots=True, repr=False)
class PrivateBounds(results.Release):
    """Everything released, and what it cost together for replacing one user."""

    path: str | None
    user: str
    users: int
    declared: tuple[Bounds, ...]
    epsilon: float
    delta: float
    mu: float  # all of it is μ-GDP
    shown_from: int | None  # users whose category is shown with chance 0.99; None: none was asked for
    statement: str
    dialect: Dialect = field(default_factory=Dialect)  # of the table's text, as declared

    def rows(self) -> list[tuple[str, str]]:
        """Return the kind and text of each line."""
        return [(line.kind, line.text()) for line in self.declared]

    def records(self) -> list[dict[str, Any]]:
        """Return one mapping a line."""
        return [asdict(line) for line in self.declared]

    def toml(self) -> str:
        """Return sections for a configuration file, as declared.toml of a run has them."""
        head = [self.statement]
        head += [f"Categories of fewer than {self.shown_from:,} users may be missing."] if self.shown_from else []
        head += [line.text() for line in self.declared if line.value is None]
        tree: dict[str, dict[str, Any]] = {kind: {} for kind in ("items", *KINDS)}
        for line in self.declared:
            tree[line.kind] |= {} if line.value is None else {line.name: line.value}
        table = {"kind": "table", "path": self.path, "user": self.user, **tree.pop("items")}
        columns = {key: value for key, value in {**tree, "csv": self.dialect.declared()}.items() if value}
        text = toml_text.dumps({"population": table | ({"columns": columns} if columns else {})})
        return "\n".join([*map(toml_text.comment, head), text])


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
    **charged: Unpack[ReleaseArguments],
) -> PrivateBounds:
    """Estimate bounds of a table privately: a file, a DataFrame, or what `quoron.read_table` returns.

    Args:
        source: the table; of a file, only the columns that are named are read.
        user: column that says whose item a row is. How many users there are is public.
        epsilon, delta: the cost of all of it together; 1e-6 unless given.
        allow_large_delta: accept a `delta` above 1/n.
        items: estimate how many items a user typically holds.
        numeric: columns whose range is estimated, also as a pattern `x*` or a span `x[0:9]`: where most of the numbers
            are.
        dates: columns of dates, as they are stored or in ISO 8601, of which the first and the last year are estimated;
            patterns and spans, too.
        categorical: columns whose categories are estimated, also the classes of a label.
        population, ledger: whose privacy budget is charged, in which file.
        seed: SIMULATED: of all noise, which comes again and protects nobody; charged to a given ledger only.

    Raises:
        ConfigError: nothing asked for, a column asked for twice or that of the user, a parameter out of range.
        DataError: no such file or column, a column of neither numbers nor text, no users.
        Infeasible: too few users for ε, told before anything is released, with what would do.
        BudgetExceeded: the population's limit leaves no room; nothing is released.
    """
    numeric, dates, categorical = named = _named(source, user, numeric, dates, categorical)
    names = [name for some in named for name in some]
    if not (names or items):
        raise ConfigError("Expected numeric, dates or categorical columns, or items=True, got nothing to estimate.")
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"Expected numeric, dates and categorical apart, got {twice[0]!r} twice. Leave one out.")
    facts = [*(Fact(name, "number") for name in numeric), *(Fact(name, "year") for name in dates)]
    facts += [*(Fact(name, "category") for name in categorical), *([Fact(ITEMS, "items")] if items else [])]
    table, owners, users = read(source, user, names, dates)
    slots_of(users, None, delta, allow_large_delta=allow_large_delta)
    paid = column_bounds.planned(facts, users, epsilon, delta, "replace-one", share=1.0)
    if paid.users < paid.needs:
        condition = f"{users:,} users do not tell {len(facts):,} of them from noise at epsilon={epsilon:g}"
        raise Infeasible("bounds", condition, f"{paid.needs:,} users, a larger epsilon or fewer columns")

    def draw(noise: NoiseSource) -> tuple[tuple[Bounds, ...], dict[str, Any]]:
        bounds, entries = column_bounds.release(paid, facts, tables.opened(table), owners, users, noise)
        declared = tuple(_line(fact, bounds[fact.column]) for fact in facts)
        return declared, {"declared": {"lines": names, "releases": [asdict(entry) for entry in entries]}}

    def verify() -> None:
        paid.verify(epsilon, delta, users=users, adjacency="replace-one", own=DominatingPair())

    promise = ReleaseGuarantee.central(epsilon, delta, "bounds", "docs/privacy/private-bounds.md")
    declared, statement = release_once(
        "declare", promise, draw, verify, mu=paid.mu, variation=paid.variation, **charged
    )
    opened, many = tables.opened(source), len(categorical)
    error = paid.errors(columns=0, names=many).names
    shown = math.ceil(paid.threshold(many) + CLEAR * error) if many else None
    dialect = opened.dialect or Dialect()
    return PrivateBounds(opened.path, user, users, declared, epsilon, delta, paid.mu, shown, statement, dialect)


def _named(source: Any, user: str, *declared: Sequence[str]) -> list[list[str]]:
    """Return the columns that names, patterns and spans of each kind stand for."""
    entries = [entry for some in declared for entry in some]
    header = tables.names(source) if any(wildcards.WILD in entry for entry in entries) else []
    meant = iter(wildcards.meant(entries, header, roles={user}))
    return [[name for _ in some for name in next(meant)] for some in declared]


def read(
    source: Any, user: str, names: Sequence[str], dates: Collection[str] = (), *, empty: bool = False
) -> tuple[pa.Table, column_bounds.Integers, int]:
    """(first rows of users, whose each is, number of users); DataError for what is wrong with file or columns.

    Of a user as many count as of one item that is declared: `max_rows`. There may be no user where it may be `empty`.
    ConfigError for the user's own column among `names`.
    """
    if user in names:
        raise ConfigError(f"Expected columns other than the user's own {user!r}, got it too: it tells who is there.")
    most = max_rows(1, len(names), weighted=False)
    keep, many = partial(first_rows_of_users, user=user, most=most), max(FIRST, most)
    table = tables.read(source, [*dict.fromkeys([user, *names])], empty=empty, keep=keep, most=many)
    for name in names:
        if name in dates:
            DateNumber(name, "year", 0, 1).check(table)
        else:
            columns.check(table, name)
    table = table.filter(columns.texts(table, user).is_valid())
    users, owners = group(table, user, without_rows=True)
    if not (users or empty):
        raise DataError(f"Expected a user in some row of column {user!r}, got none.")
    counted = first_rows(owners, most)
    return (table, owners, users) if counted.all() else (table.filter(pa.array(counted)), owners[counted], users)


def _line(fact: Fact, released: Mapping[str, Any]) -> Bounds:
    """Return the line of what was released of one column, or of items per user."""
    if fact.what == "category":
        words = [word for word, _ in released["names"] if not CONTROL.search(word)]
        # An empty list would be read as: whatever is in the data.
        return Bounds("categorical", fact.column, integers(words) if words else None, "no category has enough users")
    low, high = released["range"]
    if fact.what == "items":
        value = column_bounds.typical_items(released) if released["told"] else None
        return Bounds("items", "items_per_user", value, "too few users")
    kind, things = ("dates", "dates") if fact.what == "year" else ("numeric", "numbers")
    if not released["told"]:
        return Bounds(kind, fact.column, None, f"too few users have {things} here")
    if max(-low, high) <= edge(1):
        return Bounds(kind, fact.column, None, "zero for nearly everybody")
    if kind == "numeric":
        return Bounds(kind, fact.column, [low, high])
    first = math.floor(low)
    years = [first, max(math.ceil(high), first + 1)]
    return Bounds(kind, fact.column, {"parts": ["month", "weekday"], "year": years})
