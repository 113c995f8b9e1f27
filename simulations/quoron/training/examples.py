"""A shipped table as files of one's own, as a user of quoron would bring."""

import functools
import io
from pathlib import Path

from quoron import config as configs
from quoron.config import TableSection
from quoron.paths import PACKAGED, table_file
from quoron.presets import preset, presets
from quoron.run_folder import write
from quoron.simulation.wildcards import KINDS, roles
from quoron_client.data import tables
from quoron_privacy.errors import ConfigError


def write_example(name: str, folder: Path) -> tuple[Path, Path]:
    """NAME.csv and NAME.toml in `folder`; ConfigError for a preset without a shipped table, or files that are there.

    Rows with an empty cell in a column that is described, or a number outside its range, are left out, so that the
    description fits. Makes the folder if there is none.
    """
    import pyarrow.compute as pc
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
    """The shipped table of a preset."""
    population = configs.parse(text).population
    return population if isinstance(population, TableSection) and population.path.startswith(PACKAGED) else None
