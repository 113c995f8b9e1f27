"""A DataFrame in place of a file: the configuration that its described columns make, and what of it is read."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quoron import config as configs
from quoron.config import Config, Table
from quoron.run_folder import FRAME
from quoron.sections import Setting, overlay
from quoron.simulation.patterns import with_columns
from quoron_privacy.errors import ConfigError

if TYPE_CHECKING:  # planning needs no table
    import pyarrow as pa

Frame = Any  # a pandas or polars DataFrame, or a pyarrow Table


def framed(columns: Mapping[str, Any], settings: Sequence[Setting], path: str = FRAME) -> Config:
    """The configuration of a table whose columns are described so. ConfigError without a user or a label."""
    given = {name: value for name, value in columns.items() if value is not None}
    if "user" not in given or "label" not in given:
        user, label = columns.get("user"), columns.get("label")
        raise ConfigError(f"Expected user and label with a table, got user={user!r} and label={label!r}.")
    population = {
        **{name: _plain(value) for name, value in given.items()},
        "kind": Table.model_fields["kind"].default,
        "path": path,
        "numeric": {column: list(ends) for column, ends in given.get("numeric", {}).items()},
        "categorical": {column: _plain(values) for column, values in _vocabularies(given.get("categorical")).items()},
    }
    return configs.from_tree(overlay({"population": population}, settings))


def needed(frame: Frame | None, config: Config) -> "pa.Table | None":
    """The columns of a DataFrame, if any, that a configuration names. ConfigError where their types do not fit it."""
    if frame is None:
        return None
    from quoron.simulation.scene import encoding_of, loss_of
    from quoron_client.data import tables
    from quoron_client.data.declared import check_types, types_of

    section = with_columns(config, Path.cwd(), frame).population
    if not isinstance(section, Table):
        raise ConfigError(f"Expected population.kind='table' with a DataFrame, got {section.kind!r}.")
    encoding = encoding_of(section, loss_of(config.loss))
    table = tables.read(frame, (*encoding.columns, section.user))
    check_types(encoding, types_of(frame, table.schema))
    return table


def _vocabularies(
    categorical: Mapping[str, Sequence[str | int]] | Sequence[str] | None,
) -> Mapping[str, Sequence[str | int]]:
    """Public values of each categorical column; none for those given by name only."""
    return categorical if isinstance(categorical, Mapping) else dict.fromkeys(categorical or (), ())


def _plain(value: Any) -> Any:
    """Sequences as lists, integers that count up as one text."""
    if isinstance(value, range) and value.step == 1 and value:
        return f"{value.start}:{value.stop}"
    return list(value) if isinstance(value, Iterable) and not isinstance(value, str | Mapping) else value
