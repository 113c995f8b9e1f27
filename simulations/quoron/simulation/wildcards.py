"""Columns of a table that are declared by a pattern, `x*`: looked up in its header once, before anything is planned.

What a plan, a charge, a federation's run and a model's file stand on are the columns that were found, in the order of
the header. No value is looked at, and rows are not read: names of columns are public.

    >>> resolved(["x*", "age"], ["who", "x1", "age", "x2"], roles={"who"})
    [('x1', 'x2'), ('age',)]

Those that are named themselves are left out, and `*` is all the others.
"""

import re
import textwrap
from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quoron import toml_text
from quoron.config import ALL, Config, TableSection, estimated_columns
from quoron.paths import PACKAGED, dataset, table_file
from quoron_client.data.features import MAX_COLUMNS, is_span, named, spanned
from quoron_client.data.formats import Dialect
from quoron_privacy.errors import ConfigError

if TYPE_CHECKING:
    from quoron_client.data.tables import Opened

WILD = "*"  # any characters, also none
KINDS = ("numeric", "categorical", "hashed", "dates")  # of the table's section, whose keys may be patterns
NAMED, NAME = 3, 24  # columns that are named of those that nobody spoke of, and letters of each


def with_columns(config: Config, base: Path, frame: Any = None) -> Config:
    """Return the same configuration with columns in place of patterns; a relative path is relative to `base`.

    Raises ConfigError as `resolved`, and for Parquet with a dialect of text; DataError for a table without a
    header that can be read. One that has neither patterns nor columns to exclude is left as it is, so what a run
    folder keeps is read as it was.
    """
    table = config.population
    if not isinstance(table, TableSection):
        return config
    if frame is None and table.dialect != Dialect() and dataset(table.path, base) is not None:
        raise ConfigError(
            f"Expected no population.columns.csv of the Parquet files {table.path!r}, which are no text, got "
            f"{toml_text.literal(table.dialect.declared())}. Leave it out."
        )
    entries = {kind: getattr(table.columns, kind) for kind in KINDS}
    declared = [name for some in entries.values() for name in some]
    if not table.columns.exclude and not any(WILD in name for name in declared):
        return config
    from quoron_client.data import tables

    header = tables.names(source_of(table, base, frame))
    found = iter(resolved(declared, header, roles=roles(table), without=table.columns.exclude))
    changes: dict[str, Any] = {
        kind: {
            name: meant
            for given, meant in some.items()
            for name in (spanned(next(found)) if WILD in given else next(found))
        }
        for kind, some in entries.items()
    }
    return config.but(population={"columns": table.columns.model_copy(update=changes)})


def roles(table: TableSection) -> set[str]:
    """Return the columns that say whose a row is, what is predicted and what a row counts."""
    weight, label = table.columns.weight, table.label
    others = {table.user} if weight is None else {table.user, weight.column}
    return others if label is None else {*others, label.read().column}


def unread(table: TableSection, names: Sequence[str]) -> tuple[str, ...]:
    """Return a line that names the columns of a table that its section, as given, does not mention.

    There is no line for a table that ships with quoron, where all other columns are estimated, or for a header without
    any column that has a role, as it may be a user's row.
    """
    estimates = estimated_columns(table)
    if roles(table).isdisjoint(names) or table.path.startswith(PACKAGED) or ALL in estimates:
        return ()
    spoken = {name for kind in KINDS for name in getattr(table.columns, kind)} | {*estimates, *table.columns.exclude}
    said = roles(table) | left_out((), names, sorted(spoken))
    left = [textwrap.shorten(name, NAME, placeholder="...") for name in dict.fromkeys(names) if name not in said]
    if not left:
        return ()
    more = f" and {len(left) - NAMED:,} more" if len(left) > NAMED else ""
    return (
        f"Not read, as nothing is said of them: {', '.join(left[:NAMED])}{more}. Declare them, estimate what they are "
        "(--set 'population.columns.estimate.\"*\"=any'), or exclude them.",
    )


def source_of(table: TableSection, base: Path, frame: Any = None) -> "Opened":
    """Return what is read of a table, in batches and as often as is needed: a file, a folder, a URL or a frame."""
    from quoron_client.data import tables  # it brings pyarrow

    return tables.opened(table_file(table.path, base) if frame is None else frame, table.dialect)


def resolved(
    declared: Sequence[str], header: Sequence[str], *, roles: Collection[str], without: Sequence[str] = ()
) -> list[tuple[str, ...]]:
    """Return what each declared name means in a table of these columns: itself, or a pattern's columns in order.

    Nothing but names is read. Patterns leave out the columns of the user, the label and the weight, columns that are
    named themselves, and those that match `without`. The pattern `*` takes what no other pattern takes. ConfigError for
    a pattern without a column, and for a column of two patterns. The same for an entry of `without` that is no column,
    or is declared, and for a header in which no column has a role: it may be a user's row.
    """
    if not without and all(WILD not in text for text in declared):
        return [(text,) for text in declared]
    if roles and {*roles}.isdisjoint(header):
        raise ConfigError(
            f"Expected a header with {', '.join(map(repr, sorted(roles)))} to find patterns of columns in, got "
            "another, which may be somebody's row and is not shown. Write the names of the columns above the rows."
        )
    columns = tuple(dict.fromkeys(header))
    excluded = {*roles, *left_out(declared, columns, without)}
    wild = [place for place, text in enumerate(declared) if WILD in text]
    named_so = {name for text in declared if WILD not in text for name in named(text)}
    found: dict[int, tuple[str, ...]] = {}
    entry: dict[str, int] = {}
    for place in sorted(wild, key=lambda at: (declared[at] == WILD, at)):
        last = declared[place] == WILD
        some = _matched(declared[place], columns, excluded)
        found[place] = tuple(name for name in some if name not in named_so and not (last and name in entry))
        for name in found[place]:
            if entry.setdefault(name, place) != place:
                raise ConfigError(
                    f"Expected every column to be declared once, got {name!r} as {declared[entry[name]]!r} and as "
                    f"{declared[place]!r}. Write patterns that have no column in common, or name the column itself."
                )
    if len({declared[at] for at in wild}) < len(wild):
        twice = next(text for text in declared if WILD in text and declared.count(text) > 1)
        raise ConfigError(f"Expected every pattern once, got {twice!r} twice. Leave one out.")
    return [found.get(place, (text,)) for place, text in enumerate(declared)]


def meant(declared: Sequence[str], header: Sequence[str], *, roles: Collection[str]) -> list[tuple[str, ...]]:
    """As `resolved`, and spans as their columns too."""
    found = zip(declared, resolved(declared, header, roles=roles), strict=True)
    return [some if WILD in given else named(given) for given, some in found]


def left_out(declared: Sequence[str], header: Sequence[str], without: Sequence[str]) -> set[str]:
    """Columns that are left out by name or by a pattern. ConfigError for one that is declared, and for no column."""
    names = {*header} if without else set[str]()
    excluded: set[str] = set()
    for entry in without:
        if entry in declared:
            raise ConfigError(f"Expected columns to exclude that nobody declares, got {entry!r}. Leave it out of one.")
        matching = (entry,) if entry in names else named(entry)
        some = _fitting(entry, header) if WILD in entry else [name for name in matching if name in names]
        if not some:
            raise ConfigError(f"Expected columns that {entry!r} excludes, got none in the table. Leave it out.")
        excluded |= {*some}
    return excluded


def _fitting(pattern: str, header: Sequence[str]) -> list[str]:
    """Return the names that are the pattern with some text in place of each `*`, in time that is linear in both."""
    plain = re.sub(r"[\[?]", r"[\g<0>]", pattern)  # which mean more to fnmatch
    return [name for name in header if fnmatchcase(name, plain)]


def _matched(pattern: str, header: Sequence[str], without: Collection[str]) -> tuple[str, ...]:
    if is_span(pattern):
        raise ConfigError(f"Expected a pattern such as 'x*' or a span such as 'x[0:9]', got {pattern!r}: both in one.")
    some = [name for name in _fitting(pattern, header) if name not in without]
    if some == [pattern]:
        return (pattern,)  # a column whose own name it is
    if not some:
        raise ConfigError(
            f"Expected columns that {pattern!r} stands for, got none among the {len(header):,} of the table. "
            "Letters count as they are written; '*' is any of them, also none."
        )
    odd = next((name for name in some if WILD in name or is_span(name)), None)
    if odd is not None:
        raise ConfigError(
            f"Expected names without '*' or a span's brackets for the pattern {pattern!r}, got column {odd!r}, which "
            "could be meant in two ways. Rename it, exclude it, or write a pattern without it."
        )
    if len(some) > MAX_COLUMNS:
        raise ConfigError(f"Expected at most {MAX_COLUMNS:,} columns as {pattern!r}, got {len(some):,}. Declare fewer.")
    return tuple(some)
