"""A shipped table as files of one's own: what a person would bring."""

import io
from pathlib import Path

from quoron import config as configs
from quoron.config import TableSection
from quoron.paths import PACKAGED, table_file
from quoron.presets import preset, presets
from quoron.run_folder import write
from quoron_client.data import tables
from quoron_privacy.errors import ConfigError


def write_example(name: str, folder: Path) -> tuple[Path, Path]:
    """NAME.csv and NAME.toml in `folder`; ConfigError for a preset without a shipped table, or files that are there.

    Makes the folder if there is none.
    """
    import pyarrow.csv

    source = _shipped(preset(name).text)
    if source is None:
        known = ", ".join(each.name for each in presets() if _shipped(each.text))
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
    pyarrow.csv.write_csv(tables.read(table_file(source.path, folder)), rows)
    write(table, rows.getvalue(), advice="Choose another folder with --out.")
    text = preset(name).text.replace(f'"{source.path}"', f'"{table.name}"')
    write(description, text.encode(), advice="Choose another folder with --out.")
    return table, description


def _shipped(text: str) -> TableSection | None:
    """The shipped table of a preset."""
    population = configs.parse(text).population
    return population if isinstance(population, TableSection) and population.path.startswith(PACKAGED) else None
