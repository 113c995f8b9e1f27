"""What a table is read from: a file, one that ships with quoron, a folder, or a URL; and how its text is written."""

from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from quoron_client.data.formats import Dialect, is_folder, is_url
from quoron_privacy.errors import ConfigError

if TYPE_CHECKING:
    from quoron_client.data import tables

__all__ = ["PACKAGED", "dataset", "is_url", "read_table", "table_file"]

PACKAGED = "package:"  # a table's path that begins so is a file that ships with quoron


def dataset(table: str, folder: Path) -> str | None:
    """Return the folder or the URL of Parquet files, which are read by an index; None for one file."""
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
        tables = ", ".join(PACKAGED + name for name in sorted(shipped) if name.endswith(".parquet"))
        raise ConfigError(f"Expected population.path to be a file or one of {tables}, got {table!r}.")
    return shipped[name]


def read_table(
    source: Any,
    *,
    separator: str | None = None,
    decimal: Literal[".", ","] = ".",
    encoding: str | None = None,
    quoting: Literal["double", "none"] = "double",
) -> "tables.Opened":
    """Return a table before its rows are read, with how its text is written: for every function that takes one.

        visits = quoron.read_table("visits.csv.gz", separator=";", decimal=",", encoding="latin-1")
        model.predict(visits)

    Args:
        source: a file (.csv, .tsv, these with .gz, .parquet), a folder of Parquet files, a URL of
            either, a DataFrame (pandas, polars), a pyarrow Table, or a RecordBatchReader, which is read whole.
        separator: what separates cells of text; left out, what the header has.
        decimal: "," for numbers such as `3,14` and `1.234,5`.
        encoding: utf-8, utf-16, latin-1 or cp1252; left out, UTF-8, or UTF-16 where the file begins so.
        quoting: "none" where a quote is a letter like others and every line end ends a row.

    Raises:
        ConfigError: for a dialect that none can be.
        DataError: for what is no table, or a header that does not tell how it is written.
    """
    from quoron_client.data import tables  # it brings pyarrow

    return tables.opened(source, Dialect(separator, decimal, encoding, quoting))
