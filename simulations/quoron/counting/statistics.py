"""First statistics of a table or of users' own arrays: counts, histograms, quantiles and means, all for one price.

    >>> import numpy as np, pandas as pd
    >>> wards = ["CBCACB"[row // 3 % 6] for row in range(9000)]
    >>> visits = pd.DataFrame({"who": [row // 3 for row in range(9000)], "ward": wards, "cost": np.arange(9000) % 100})
    >>> asked = ["count by ward", "mean of cost"]
    >>> found = statistics(visits, asked, user="who", epsilon=2.0, numeric={"cost": (0, 100)}, seed=1)
    >>> [(row.group, round(row.value), round(row.low), round(row.high)) for row in found.of("count by ward")]
    [('C', 1496, 1442, 1550), ('B', 994, 943, 1046), ('A', 497, 457, 539)]

What is asked is a text, the same in Python and in a shell, and several of them share one
promise. A user weighs one, whatever it holds, and one who is in several groups is shared among them; with
`items_per_user=K` each of its items weighs one, up to K. Ranges and categories that nobody declares are bought out of
the same promise. Statement, proof and intervals: docs/privacy/statistics.md.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from quoron.arguments import DELTA, entry_point
from quoron.counting import calendar
from quoron.counting.questions import Question, asked_of
from quoron.counting.told import Row, Statistics, rows_of
from quoron.counting.weighing import Asked, Facts, Integers, declared, held, of_arrays
from quoron.private_bounds import read
from quoron.release import Planned, check_declared_users, release_once, slots_of, verify_gaussian
from quoron.training import votes
from quoron.training.votes import Want
from quoron_client.data import columns, tables
from quoron_client.data.row_kinds import is_day
from quoron_privacy.accounts import gdp
from quoron_privacy.counts import private_bounds, spread
from quoron_privacy.counts.private_bounds import KINDS, NUMBER, Bought
from quoron_privacy.counts.spread import Spread
from quoron_privacy.errors import ConfigError, Infeasible, count
from quoron_privacy.noise.streams import NoiseSource, total_variation
from quoron_privacy.release import Adjacency, Release
from quoron_server.plan import Privacy
from quoron_server.wording import BOUGHT_THEOREM, ReleaseGuarantee

_SAMPLES = 2**40  # that a call may draw: far more than any does
_DATE = KINDS.index("date")


@entry_point
def statistics(
    source: Any,
    questions: str | Question | Sequence[str | Question],
    user: str = "user",
    *,
    epsilon: float,
    delta: float = DELTA,
    adjacency: Adjacency = "replace-one",
    allow_large_delta: bool = False,
    numeric: Mapping[str, tuple[float, float]] = {},  # read only
    categorical: Mapping[str, Sequence[str | int]] = {},
    dates: Mapping[str, Any] | Sequence[str] = (),
    items_per_user: int | None = None,
    users: int | None = None,
    seed: int | None = None,
    population: str | None = None,
    ledger: str | Path | None = None,
) -> Statistics:
    """Counts, histograms, quantiles and means, private for every user as a whole, with one price for all of them.

    Args:
        source: a table with one item a row (a file, a DataFrame, whatever `quoron.read_table` gives), or a list with an
            array of each user's own items, which are then the column `value`.
        questions: one, or several that share the price: `count by ward`, `histogram of age in 10 bins`, `quantiles of
            cost at 0.1, 0.9 by ward`, `median of cost`, `mean of cost by ward`, of dates `histogram of admitted in
            months`; or `Question`s.
        user: column that says whose item a row is; of a table alone. How many users there are is public.
        epsilon, delta, adjacency, allow_large_delta: the guarantee, as of `train`.
        numeric: public range of a column. Items beyond it count as at its end. Without, the range is bought, out of
            the same promise.
        categorical: public values of a column of groups; without, they are bought. Items of others do not count.
        dates: columns of dates, as they are stored or in ISO 8601, each with its public first and last day, or None: it
            is bought. A column of a type that holds dates alone need not be named.
        items_per_user: what weighs one: None, a user, whatever it holds; K, each of its items, but all of them K.
        users: under zero-out the most users that the table may hold: whether somebody is in it is private then, and a
            plain `count` is of users.
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
    asked = asked_of(questions)
    items = 1 if items_per_user is None else items_per_user
    count(items_per_user=items)
    check_declared_users(adjacency, users)
    if items == 1 and users is None and any(each.what == "count" and each.by is None for each in asked):
        raise ConfigError(
            "Expected groups for a count of users, got 'count': how many there are is public. Say 'count by COLUMN', "
            "or items_per_user, which counts items."
        )
    privacy = Privacy(epsilon, delta)
    source, user = of_arrays(source, user)
    facts = declared(numeric, categorical, dates)
    numbers = dict.fromkeys(each.of for each in asked if each.of)
    names = list(dict.fromkeys(name for each in asked for name in (each.of, each.by) if name))
    if user in names:
        raise ConfigError(f"Expected columns other than the user's own {user!r}, got it too: it tells who is there.")
    source = tables.opened(source)
    typed = {name for name in numbers if is_day(columns.kind(source.empty([name]), name))}
    facts = replace(facts, dates=facts.dates | typed)
    table, owners, found = read(source, user, names, facts.dates, empty=users is not None)
    slots = slots_of(found, users, delta, allow_large_delta=allow_large_delta)
    shared = Asked(slots, items, adjacency)
    _check_kinds(asked, facts)
    wants = [Want(each, "date" if each in facts.dates else "number") for each in numbers if each not in facts.ranges]
    wants += [Want(each, "category") for each in dict.fromkeys(q.by for q in asked if q.by) if each not in facts.words]
    if len({want.column for want in wants}) < len(wants):
        raise ConfigError("Expected a column of numbers or of groups, got one that is asked as both. Declare it.")
    paid = votes.planned(wants, slots, privacy, adjacency) if wants else None
    left = (epsilon, delta) if paid is None else (paid.rest_epsilon, paid.rest_delta)
    mu = gdp.mu_for(*left, gaussians=_SAMPLES) * (1 - 1e-9)
    _check_users(asked, facts, shared, mu)
    variation = total_variation(gaussians=_SAMPLES)
    charged = (mu, variation) if paid is None else paid.charged
    theorem = "docs/privacy/statistics.md#st1"
    if paid is not None:
        theorem += f", and {BOUGHT_THEOREM} for bounds that are estimated privately, which cost {paid.share:.2g} of μ²"
    promise = ReleaseGuarantee.central(epsilon, delta, "figures", theorem, adjacency)

    def verify() -> None:
        if paid is None:
            verify_gaussian("statistics", mu, variation, epsilon, delta)
        else:
            paid.verify(epsilon, delta, users=shared.users, adjacency=adjacency, own=(mu, variation))

    def draw(noise: NoiseSource) -> tuple[tuple[tuple[Row, ...], tuple[str, ...]], dict[str, Any]]:
        known, remarks = facts, tuple[str, ...]()
        entries: tuple[Release, ...] = ()
        if paid is not None:
            bought_, entries = votes.release(paid, wants, tables.opened(table), owners, shared.users, noise)
            known, remarks = _found(facts, bought_, paid)
        parts = _parts(asked, known, shared, mu)
        spread.verify([part for _, part in parts], *left)
        rows = _released(parts, known, table, owners, shared.users, noise)
        kept = [asdict(entry) for entry in (*entries, *(part.entry() for _, part in parts))]
        return (rows, remarks), {"statistics": kept}

    planned = Planned(draw, verify, *charged)
    (rows, remarks), statement = release_once(
        "statistics", promise, planned, seed=seed, population=population, ledger=ledger
    )
    return Statistics(rows, shared.users, epsilon, delta, statement, remarks)


def _check_kinds(asked: Sequence[Question], facts: Facts) -> None:
    """ConfigError for months of what is no date, or of a range that nobody knows; and for more of them than cells."""
    for each in asked:
        if isinstance(each.bins, int) or each.what != "histogram":
            continue
        if each.of not in facts.dates or each.of not in facts.ranges:
            raise ConfigError(
                f"Expected dates={{{each.of!r}: (first day, last day)}} for {each.words!r}, got none: which "
                f"{each.bins} there are is public. Say them, or ask for bins."
            )
        if facts.cells(each) > spread.MOST_CELLS:
            raise ConfigError(f"Expected up to {spread.MOST_CELLS} {each.bins}, got {facts.cells(each):,}. Say fewer.")


def _parts(asked: Sequence[Question], facts: Facts, shared: Asked, mu: float) -> list[tuple[Question, Spread]]:
    """What answers each question, all for μ; a column in which nobody found a group has no answer."""
    each = mu / math.sqrt(len(asked)) * (1 - 1e-12)
    found = [(question, facts.spread(question, each, shared)) for question in asked]
    return [(question, part) for question, part in found if part is not None]


def _released(
    parts: Sequence[tuple[Question, Spread]],
    facts: Facts,
    table: pa.Table,
    owners: Integers,
    users: int,
    noise: NoiseSource,
) -> tuple[Row, ...]:
    rows: list[Row] = []
    for place, (question, part) in enumerate(parts):
        private = held(part, question, facts, table, owners)
        released = part.release(private, noise.stream("statistics", place))
        rows += rows_of(part, question, facts, released, users)
    return tuple(rows)


def _check_users(asked: Sequence[Question], facts: Facts, shared: Asked, mu: float) -> None:
    """Infeasible where noise alone hides what is asked; of groups that nobody knows yet as if there was one."""
    each = mu / math.sqrt(len(asked))
    for question in asked:
        many = len(facts.groups(question)) if question.by is None or question.by in facts.words else 1
        part, cells = facts.spread(question, each, shared, many), facts.cells(question)
        assert part is not None
        unit = float(part.against(0.0)[-1]) if part.running else part.scale
        shares = question.at if part.running else (0.5,)
        least = max(spread.needed(question.what, groups=many, cells=cells, unit=unit, share=share) for share in shares)
        if shared.users < least:
            beside = "" if len(asked) == 1 else f", fewer than {len(asked)} questions"
            fewer = "" if many * cells == 1 else ", fewer groups or bins"
            raise Infeasible(
                "statistics",
                f"{shared.users:,} users do not tell {question.words!r} from noise at mu={each:.3g}",
                f"{least:,} users, a larger epsilon{fewer}{beside}",
            )


def _found(facts: Facts, found: Mapping[str, Any], paid: Bought) -> tuple[Facts, tuple[str, ...]]:
    """With what was bought, and what is said of it.

    A range is where most numbers are: for figures of all of them it is made twice as wide, not beyond zero where that
    is on one side of it.
    """
    ranges, words, said = dict(facts.ranges), dict(facts.words), []
    least = private_bounds.HOLDERS * paid.errors(columns=paid.columns, names=1).places if paid.columns else 0.0
    for name, told in found.items():
        if "range" not in told:
            words[name] = tuple(str(word) for word, _ in told.get("names", ()))
            few = f" that {paid.threshold(paid.names):,.0f} users' votes are for"
            said.append(f"{len(words[name]) or 'no'} values of {name}{few}, and items of others do not count")
        elif told["votes"][_DATE if name in facts.dates else NUMBER] < least:
            few = f"fewer than {least:,.0f} users have a number as far as noise tells"
            said.append(f"nothing of {name}, where {few} (how numbers are written says decimal)")
        else:
            low, high = told["range"]
            half = (high - low) / 2
            ends = low - half if low < 0 else max(0.0, low - half), high + half if high > 0 else min(0.0, high + half)
            shown = f"{ends[0]:g}", f"{ends[1]:g}"
            if name in facts.dates:
                ends = calendar.of_years(low - half, high + half)
                shown = calendar.day(ends[0]), calendar.day(ends[1])
            ranges[name] = ends
            said.append(f"{name} from {shown[0]} to {shown[1]}, and items beyond count as at its end")
    share = f"{100 * paid.share:.2g} % of μ²"
    return Facts(ranges, words, frozenset(ranges) - frozenset(facts.ranges), facts.dates), (
        f"Bought, for {share}: {'; '.join(said)}.",
    )
