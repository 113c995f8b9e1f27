"""Columns of a table that are declared by a pattern, `x*`: looked up in its header once, before anything is planned.

What a plan, a charge, a federation's run and a model's file stand on are the columns that were found, in the order of
the header. No value is looked at, and rows are not read: names of columns are public.
"""

from pathlib import Path
from typing import Any

from quoron.config import Config, TableSection
from quoron.paths import dataset, table_file
from quoron_client.data import spans
from quoron_client.data.labels import read_label


def with_columns(config: Config, base: Path, frame: Any = None) -> Config:
    """The same configuration with columns in place of patterns; a relative path is relative to `base`.

    Raises ConfigError as `spans.resolved`, DataError for a table without a header that can be read. One that has
    patterns no longer is left as it is, so what a run folder keeps is read as it was.
    """
    table = config.population
    if not isinstance(table, TableSection) or not any(
        spans.WILD in name for name in (*table.numeric, *table.categorical)
    ):
        return config
    found = iter(spans.resolved([*table.numeric, *table.categorical], _header(table, base, frame), roles=_roles(table)))
    changes = {
        kind: {name: meant for given, meant in entries.items() for name in _spanned(given, next(found))}
        for kind, entries in (("numeric", table.numeric), ("categorical", table.categorical))
    }
    return config.model_copy(update={"population": table.model_copy(update=changes)})


def _spanned(given: str, names: tuple[str, ...]) -> list[str]:
    return spans.spanned(names) if spans.WILD in given else list(names)


def _roles(table: TableSection) -> set[str]:
    """The columns that say whose a row is, what is predicted and what a row counts."""
    others = {table.user} if table.weight is None else {table.user, table.weight.column}
    if table.label is None:
        return others
    classes = tuple(table.classes)
    return {
        *others,
        read_label(table.label, positive=table.positive, classes=classes, label_range=table.label_range).column,
    }


def _header(table: TableSection, base: Path, frame: Any) -> list[str]:
    from quoron_client.data import tables  # it brings pyarrow

    if frame is not None:
        return tables.names(frame)
    source = dataset(table.path, base)
    if source is None:
        return tables.names(table_file(table.path, base))
    from quoron_client.data.files import Files

    return list(Files.found(source).schema.names)
