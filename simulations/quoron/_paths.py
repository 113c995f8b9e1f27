"""What the path of a configured table is: a file, one that ships with quoron, a folder, or a URL."""

from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from quoron_privacy.errors import ConfigError

if TYPE_CHECKING:  # it reads paths itself
    from quoron.config import Table

PACKAGED = "package:"  # a table's path that begins so is a file that ships with quoron


def is_url(path: str) -> bool:
    """Whether it says how to reach a store."""
    return "://" in path


def dataset(table: "Table", folder: Path) -> str | None:
    """The folder or the URL of a table that is read piece by piece; None for one file, which is read whole."""
    if is_url(table.path):
        return table.path
    path = folder / table.path
    return str(path) if not table.path.startswith(PACKAGED) and path.is_dir() else None


def table_file(table: "Table", folder: Path) -> Path:
    """The file of a table: relative to `folder`, or shipped with quoron. ConfigError for one that does not ship."""
    if not table.path.startswith(PACKAGED):
        return folder / table.path
    shipped = {entry.name: Path(str(entry)) for entry in files("quoron").joinpath("data").iterdir()}
    name = table.path.removeprefix(PACKAGED)
    if not name.endswith(".parquet") or name not in shipped:
        tables = ", ".join(PACKAGED + each for each in sorted(shipped) if each.endswith(".parquet"))
        raise ConfigError(f"Expected population.path to be a file or one of {tables}, got {table.path!r}.")
    return shipped[name]
