"""What a door is given, as a configuration: a preset, a TOML file, the file of a table, or a described DataFrame."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quoron import config as configs
from quoron import toml_text
from quoron.config import Config, TableSection
from quoron.presets import preset
from quoron.run_folder import FRAME
from quoron.sections import Setting, overlay
from quoron.simulation.patterns import with_columns
from quoron.simulation.scene import encoding_of, loss_of
from quoron_client.data.declared import check_types, types_of
from quoron_client.data.labels import in_words
from quoron_privacy.errors import ConfigError

if TYPE_CHECKING:  # planning needs no table
    import pyarrow as pa

Frame = Any  # a pandas or polars DataFrame, or a pyarrow Table
Source = str | Path | Config | Frame
Settings = Sequence[Setting] | Mapping[str, Any]


def described(
    source: Source, columns: Mapping[str, Any], settings: Settings, said: Mapping[str, Any]
) -> tuple[Config, str, Frame]:
    """Configuration, name and DataFrame, if any, of a source; `columns` describe a table, and only that."""
    tree, name, base, frame = _found(source, columns)
    layers = (*((settings,) if isinstance(settings, Mapping) else settings), said)
    config = configs.from_tree(overlay(tree, layers))
    return config if base is None else configs.located(config, base), name, frame


def resolve(source: str | Path, settings: Settings = ()) -> tuple[Config, str]:
    """The configuration of a preset's name or a TOML file's path, and a name for its runs."""
    config, name, _ = described(source, {}, settings, {})
    return config, name


def _found(source: Source, columns: Mapping[str, Any]) -> tuple[Mapping[str, Any], str, Path | None, Frame]:
    """Sections, a name for runs, where relative paths begin, and a DataFrame, if any."""
    if not isinstance(source, str | Path | Config):
        return _of_table(columns), "table", None, source
    path = Path("run") if isinstance(source, Config) else Path(source)
    if path.suffix in (".csv", ".parquet"):
        return _of_table(columns, str(source)), path.stem, Path.cwd(), None
    if any(given is not None for given in columns.values()):
        raise ConfigError(f"Expected {', '.join(columns)} with a table only, got a configuration.")
    if isinstance(source, Config):
        return source.model_dump(mode="json", exclude_none=True), path.stem, Path.cwd(), None
    if path.suffix == ".toml":
        return configs.read(path), path.stem, path.parent, None
    chosen = preset(str(source))
    return toml_text.parse(chosen.text, f"preset {chosen.name}"), chosen.name, Path.cwd(), None


def _of_table(columns: Mapping[str, Any], path: str = FRAME) -> dict[str, Any]:
    """The section of a table whose columns are described so. ConfigError without a user or a label."""
    given = {name: value for name, value in columns.items() if value is not None}
    if "user" not in given or "label" not in given:
        user, label = columns.get("user"), columns.get("label")
        raise ConfigError(f"Expected user and label with a table, got user={user!r} and label={label!r}.")
    population = {
        **{name: _plain(value) for name, value in given.items()},
        "kind": TableSection.model_fields["kind"].default,
        "path": path,
        "numeric": {column: list(ends) for column, ends in given.get("numeric", {}).items()},
        "categorical": {column: _plain(values) for column, values in _vocabularies(given.get("categorical")).items()},
    }
    return {"population": population}


def needed(frame: Frame | None, config: Config) -> "pa.Table | None":
    """The columns of a DataFrame, if any, that a configuration names. ConfigError where their types do not fit it."""
    if frame is None:
        return None
    from quoron_client.data import tables  # it brings pyarrow

    section = with_columns(config, Path.cwd(), frame).population
    if not isinstance(section, TableSection):
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
    """Sequences as lists, integers that count up as one text, what weighs by class by the classes' names."""
    if isinstance(value, Mapping) and value and not all(isinstance(key, str) for key in value):
        return {in_words(key.item() if hasattr(key, "item") else key): each for key, each in value.items()}
    if isinstance(value, range) and value.step == 1 and value:
        return f"{value.start}:{value.stop}"
    return list(value) if isinstance(value, Iterable) and not isinstance(value, str | Mapping) else value
