"""What the path of a configured table is: a file, one that ships with quoron, a folder, or a URL."""

from importlib.resources import files
from pathlib import Path

from quoron_privacy.errors import ConfigError

PACKAGED = "package:"  # a table's path that begins so is a file that ships with quoron
TABLES = (".csv", ".parquet")  # how names of files end that are a table's


def is_url(path: str) -> bool:
    """Whether it says how to reach a store."""
    return "://" in path


def is_table(path: str) -> bool:
    """Whether it names a table, by its end, as a URL, or because a folder is there."""
    return path.endswith(TABLES) or is_url(path) or (path != "" and Path(path).is_dir())


def dataset(table: str, folder: Path) -> str | None:
    """The folder or the URL that is read piece by piece; None for one file, which is read whole."""
    if is_url(table):
        return table
    whole = folder / table
    return str(whole) if not table.startswith(PACKAGED) and whole.is_dir() else None


def table_file(table: str, folder: Path) -> Path:
    """The file: relative to `folder`, or shipped with quoron. ConfigError for one that does not ship."""
    if not table.startswith(PACKAGED):
        return folder / table
    shipped = {entry.name: Path(str(entry)) for entry in files("quoron").joinpath("data").iterdir()}
    name = table.removeprefix(PACKAGED)
    if not name.endswith(".parquet") or name not in shipped:
        tables = ", ".join(PACKAGED + each for each in sorted(shipped) if each.endswith(".parquet"))
        raise ConfigError(f"Expected population.path to be a file or one of {tables}, got {table!r}.")
    return shipped[name]
