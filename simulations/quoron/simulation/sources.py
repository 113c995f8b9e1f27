"""What a function is given, as a configuration: a preset, a TOML file, a table's file or a DataFrame."""

import functools
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quoron import config as configs
from quoron import toml_text
from quoron.arguments import Setting, layers_of, one_value, overlay, plain, sections, shortened
from quoron.config import Config, TableSection
from quoron.data.columns import written_out
from quoron.paths import PACKAGED, table_file
from quoron.presets import preset, presets
from quoron.run_folder import FRAME, write
from quoron.simulation import wildcards
from quoron.simulation.problem import encoding_of, loss_of, with_columns
from quoron.simulation.wildcards import KINDS, roles
from quoron_client.data.formats import SAID, format_of, is_table
from quoron_privacy.errors import ConfigError, DataError

if TYPE_CHECKING:  # planning needs no table
    import pyarrow as pa


Frame = Any  # a pandas or polars DataFrame, or a pyarrow Table
Source = str | Path | Config | Frame
Settings = Sequence[Setting] | Mapping[str, Any]
STAND = {"privacy": ("epsilon", "delta"), "train": ("population",)}  # of a file, where noise is secret


def described(
    source: Source,
    user: str | None,
    label: str | Mapping[str, Any] | None,
    arguments: Mapping[str, Any],
    *,
    secret: bool = False,
) -> tuple[Config, str, Frame]:
    """Return the configuration, a name and the DataFrame, if any, of a source and what else a function is given.

    A simulation may be of a source with other settings. Where noise is `secret` they may not change the ε and the δ of
    a file or whom it charges, only those of a preset. ConfigError for two values of one thing.
    """
    named, columns = sections(arguments), {"user": user, "label": label, "columns": arguments.get("columns") or None}
    settings = arguments.get("settings", ())
    tree, name, base, frame = _found(source, columns)
    layers = (*((settings,) if isinstance(settings, Mapping) else settings), named)
    if any(value is not None for value in columns.values()):
        one_value(("arguments, options", tree), *layers_of(layers))
    elif secret and not (isinstance(source, str) and _is_preset(source)):
        where = "the Config" if isinstance(source, Config) else str(source)
        given = {name: tree[name] for name in STAND if isinstance(tree.get(name), Mapping)}
        stands = {name: {key: given[name][key] for key in STAND[name] if key in given[name]} for name in given}
        one_value((where, stands), *layers_of(layers))
    config = configs.from_tree(overlay(tree, layers))
    if base is None:
        return wildcards.with_columns(config, Path.cwd(), frame), name, frame
    return configs.located(config, base), name, frame


def resolve(source: str | Path, settings: Settings = (), *, secret: bool = False) -> tuple[Config, str]:
    """The configuration of a preset's name or a TOML file's path, and a name for its runs; `secret` as `described`."""
    config, name, _ = described(source, None, None, {"settings": settings}, secret=secret)
    return config, name


def _found(source: Source, columns: Mapping[str, Any]) -> tuple[Mapping[str, Any], str, Path | None, Frame]:
    """Sections, a name for runs, where relative paths begin, and a DataFrame, if any."""
    if not isinstance(source, str | Path | Config):
        if not (hasattr(source, "columns") or hasattr(source, "__arrow_c_stream__")):
            plain = source is None or isinstance(source, int | float)  # values of rows are somebody's
            told = shortened(source) if plain else f"a {type(source).__name__}"
            fix = " Write pandas.DataFrame(rows)." if isinstance(source, Iterable) else ""
            raise DataError(
                f"Expected a DataFrame, the path of a table or of a .toml file, or a preset's name, got {told}.{fix}"
            )
        _check_index(source, columns)
        return _of_table(columns), "table", None, source
    path, text = Path("run") if isinstance(source, Config) else Path(source), str(source)
    given = [name for name, value in columns.items() if value is not None]
    configured = isinstance(source, Config) or path.suffix == ".toml" or _is_preset(text)
    if not isinstance(source, Config) and is_table(text) and (given or not configured):
        return _of_table(columns, text), path.stem or "table", Path.cwd(), None
    if given and configured:
        what = "a configuration" if isinstance(source, Config) else f"{text!r}, which has sections of its own"
        raise ConfigError(
            f"Expected {', '.join(given)} with a DataFrame or the path of a table, got {what}. Say it there, or in "
            f"settings: population.{given[0]}."
        )
    if given:
        if path.is_file():
            format_of(text)  # which says how the names of tables end
        raise DataError(
            f"Expected a table to be at {text!r} ({SAID}, or a folder), found none. Give a DataFrame or "
            "the path of a file."
        )
    if isinstance(source, Config):
        unset = {name: set(keys) - getattr(source, name).model_fields_set for name, keys in STAND.items()}
        tree = source.model_dump(mode="json", exclude_none=True, exclude=unset)  # defaults, which nobody gave
        return tree, path.stem, Path.cwd(), None
    if path.suffix == ".toml":
        return configs.read(path), path.stem, path.parent, None
    chosen = preset(str(source))
    return toml_text.parse(chosen.text, f"preset {chosen.name}"), chosen.name, Path.cwd(), None


def _is_preset(name: str) -> bool:
    return name in {preset.name for preset in presets()}


def _check_index(frame: Frame, columns: Mapping[str, Any]) -> None:
    """Raise DataError where what has to be a column is in a frame's index, which is not read."""
    levels = getattr(getattr(frame, "index", None), "names", None) or ()
    for role in ("user", "label"):
        name = columns.get(role)
        name = name.get("column") if isinstance(name, Mapping) else name
        if isinstance(name, str) and name in levels and name not in frame.columns:
            raise DataError(
                f"Expected {role} {name!r} as a column, got it in the DataFrame's index. Pass frame.reset_index()."
            )


def _of_table(columns: Mapping[str, Any], path: str = FRAME) -> dict[str, Any]:
    """Return the section of a table whose columns are described so. ConfigError without a user or a label."""
    given = {name: value for name, value in columns.items() if value is not None}
    if "user" not in given or "label" not in given:
        user, label = columns.get("user"), columns.get("label")
        raise ConfigError(
            f"Expected user and label with a table, the columns that say whose a row is and what is predicted, got "
            f"user={user!r} and label={label!r}."
        )
    said = written_out({"population": plain(given, "columns")})["population"]
    kind = TableSection.model_fields["kind"].default
    return {"population": {**said, "kind": kind, "path": path}}


def needed(frame: Frame | None, config: Config) -> "tuple[pa.Table | None, Config]":
    """Return the columns of a DataFrame, if any, that a configuration names, and it without those that it excludes.

    ConfigError where their types do not fit it.
    """
    if frame is None:
        return None, config
    from quoron.data.declared_types import check_types  # they bring pyarrow
    from quoron_client.data import tables

    config = with_columns(config, Path.cwd(), frame)
    section = config.population
    if not isinstance(section, TableSection):
        raise ConfigError(f"Expected population.kind='table' with a DataFrame, got {section.kind!r}.")
    encoding, columns = encoding_of(section, loss_of(config)), section.columns.model_copy(update={"exclude": ()})
    opened_table = tables.opened(frame, section.dialect)
    table = tables.read(opened_table, (*encoding.columns, section.user))
    check_types(encoding, opened_table.schema)
    return table, config.but(population={"columns": columns})


def write_example(name: str, folder: Path) -> tuple[Path, Path]:
    """NAME.csv and NAME.toml in `folder`; ConfigError for a preset without a shipped table, or files that are there.

    Rows with an empty cell in a column that is described, or a number outside its range, are left out, so that the
    description fits. Makes the folder if there is none.
    """
    import pyarrow.compute as pc
    import pyarrow.csv

    from quoron_client.data import tables

    source = _shipped(preset(name).text)
    if source is None:
        known = ", ".join(preset.name for preset in presets() if _shipped(preset.text))
        raise ConfigError(f"Expected a preset over a table that ships with quoron ({known}), got {name!r}.")
    table, description = folder / f"{name}.csv", folder / f"{name}.toml"
    for path in (table, description):
        if path.exists():
            raise ConfigError(f"Expected no file {path}, found one. Choose another folder with --out.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"Expected a folder at {folder}, cannot make it: {error.strerror}. Choose another with --out."
        ) from None
    rows = io.BytesIO()
    shipped = tables.read(table_file(source.path, folder))
    read = {name for kind in KINDS for name in getattr(source.columns, kind)} | roles(source)
    fits = shipped.select([name for name in shipped.column_names if name in read])
    checks = [pc.is_valid(column) for column in fits.columns]
    for column, (low, high) in source.columns.numeric.items():
        checks += [pc.greater_equal(fits[column], low), pc.less_equal(fits[column], high)]
    pyarrow.csv.write_csv(shipped.filter(functools.reduce(pc.and_, checks)), rows)
    write(table, rows.getvalue(), advice="Choose another folder with --out.")
    text = preset(name).text.replace(f'"{source.path}"', f'"{table.name}"')
    write(description, text.encode(), advice="Choose another folder with --out.")
    return table, description


def _shipped(text: str) -> TableSection | None:
    """Return the shipped table of a preset."""
    population = configs.parse(text).population
    return population if isinstance(population, TableSection) and population.path.startswith(PACKAGED) else None
