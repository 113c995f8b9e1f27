"""Columns of a table that are declared by a pattern, `x*`: looked up in its header once, before anything is planned.

What a plan, a charge, a federation's run and a model's file stand on are the columns that were found, in the order of
the header. No value is looked at, and rows are not read: names of columns are public.
"""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from quoron import toml_text
from quoron.config import ALL, Config, TableSection, bought_of
from quoron.paths import PACKAGED, dataset, table_file
from quoron.wildcards import WILD, left_out, resolved
from quoron_client.data import features
from quoron_client.data.formats import Dialect
from quoron_privacy.errors import ConfigError

KINDS = ("numeric", "categorical", "hashed", "dates")  # of the table's section, whose keys may be patterns
NAMED, NAME = 3, 24  # columns that are named of those that nobody spoke of, and letters of each


def with_columns(config: Config, base: Path, frame: Any = None) -> Config:
    """The same configuration with columns in place of patterns; a relative path is relative to `base`.

    Raises ConfigError as `resolved`, and for Parquet with a dialect of text; DataError for a table without a
    header that can be read. One that has neither patterns nor columns to exclude is left as it is, so what a run
    folder keeps is read as it was.
    """
    table = config.population
    if not isinstance(table, TableSection):
        return config
    if frame is None and table.dialect != Dialect():
        _check_written(table, base)
    entries = {kind: getattr(table.columns, kind) for kind in KINDS}
    declared = [name for some in entries.values() for name in some]
    if not table.columns.exclude and not any(WILD in name for name in declared):
        return config
    header = _header(table, base, frame)
    found = iter(resolved(declared, header, roles=roles(table), without=table.columns.exclude))
    changes: dict[str, Any] = {
        kind: {name: meant for given, meant in some.items() for name in _spanned(given, next(found))}
        for kind, some in entries.items()
    }
    columns = table.columns.model_copy(update=changes)
    return config.model_copy(update={"population": table.model_copy(update={"columns": columns})})


def _check_written(table: TableSection, base: Path) -> None:
    if dataset(table.path, base) is not None:
        raise ConfigError(
            f"Expected no population.columns.csv of the Parquet files {table.path!r}, which are no text, got "
            f"{toml_text.literal(table.dialect.declared())}. Leave it out."
        )


def _spanned(given: str, names: tuple[str, ...]) -> list[str]:
    return features.spanned(names) if WILD in given else list(names)


def roles(table: TableSection) -> set[str]:
    """The columns that say whose a row is, what is predicted and what a row counts."""
    weight, label = table.columns.weight, table.label
    others = {table.user} if weight is None else {table.user, weight.column}
    return others if label is None else {*others, label.read().column}


def unread(table: TableSection, names: Sequence[str]) -> tuple[str, ...]:
    """A line that says which of a table's columns nobody spoke of, where there are any, from the section as given.

    None of a table that ships with quoron, nor where all of which nothing is said is bought, nor of a header without
    any column that has a role, which may be somebody's row, nor of JSON lines, whose keys are values of rows.
    """
    bought = bought_of(table)
    if roles(table).isdisjoint(names) or table.path.startswith(PACKAGED) or ALL in bought:
        return ()
    spoken = {name for kind in KINDS for name in getattr(table.columns, kind)} | {*bought, *table.columns.exclude}
    said = roles(table) | left_out((), names, sorted(spoken))
    left = [textwrap.shorten(name, NAME, placeholder="...") for name in dict.fromkeys(names) if name not in said]
    if not left:
        return ()
    more = f" and {len(left) - NAMED:,} more" if len(left) > NAMED else ""
    return (
        f"Not read, as nothing is said of them: {', '.join(left[:NAMED])}{more}. Declare them, estimate what they are "
        "(--set 'population.columns.estimate=*=any'), or exclude them.",
    )


def unread_of(config: Config, base: Path, frame: Any = None) -> tuple[str, ...]:
    """The same of a configuration's table, of which the header is read."""
    table = config.population
    if not isinstance(table, TableSection):
        return ()
    from quoron_client.data import tables  # it brings pyarrow

    return unread(table, tables.opened(table_file(table.path, base) if frame is None else frame, table.dialect).names)


def _header(table: TableSection, base: Path, frame: Any) -> list[str]:
    from quoron_client.data import tables

    return tables.names(table_file(table.path, base) if frame is None else frame, table.dialect)
