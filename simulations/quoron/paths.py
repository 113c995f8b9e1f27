"""What the path of a configured table is: a file, one that ships with quoron, a folder, or a URL."""

from importlib.resources import files
from pathlib import Path

from quoron_client.data.formats import is_folder, is_url
from quoron_privacy.errors import ConfigError

__all__ = ["PACKAGED", "dataset", "is_url", "table_file"]

PACKAGED = "package:"  # a table's path that begins so is a file that ships with quoron


def dataset(table: str, folder: Path) -> str | None:
    """The folder or the URL of Parquet files, which are read by an index; None for one file."""
    whole = table_file(table, folder)
    return str(whole) if is_folder(whole) else None


def table_file(table: str, folder: Path) -> Path | str:
    """What is opened: a URL, a file relative to `folder` or one shipped with quoron. ConfigError for no such one."""
    if is_url(table):
        return table
    if not table.startswith(PACKAGED):
        return folder / table
    shipped = {entry.name: Path(str(entry)) for entry in files("quoron").joinpath("data").iterdir()}
    name = table.removeprefix(PACKAGED)
    if not name.endswith(".parquet") or name not in shipped:
        tables = ", ".join(PACKAGED + each for each in sorted(shipped) if each.endswith(".parquet"))
        raise ConfigError(f"Expected population.path to be a file or one of {tables}, got {table!r}.")
    return shipped[name]
