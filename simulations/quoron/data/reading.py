"""Tables that say how their text is written."""

from typing import Any, Literal

from quoron_client.data import tables
from quoron_client.data.formats import Dialect


def read_table(
    source: Any,
    *,
    separator: str | None = None,
    decimal: Literal[".", ","] = ".",
    encoding: str | None = None,
    quoting: Literal["double", "none"] = "double",
) -> tables.Opened:
    """Return a table before its rows are read, with how its text is written: for every function that takes one.

        visits = quoron.read_table("visits.csv.gz", separator=";", decimal=",", encoding="latin-1")
        model.predict(visits)

    Args:
        source: a file (.csv, .tsv, .jsonl, these with .gz, .parquet, .feather), a folder of Parquet files, a URL of
            either, a DataFrame (pandas, polars), a pyarrow Table, or a RecordBatchReader, which is read once.
        separator: what separates cells of text; left out, what the header has.
        decimal: "," for numbers such as `3,14` and `1.234,5`.
        encoding: utf-8, utf-16, latin-1 or cp1252; left out, UTF-8, or UTF-16 where the file begins so.
        quoting: "none" where a quote is a letter like others and every line end ends a row.

    Raises:
        ConfigError: for a dialect that none can be.
        DataError: for what is no table, or a header that does not tell how it is written.
    """
    return tables.opened(source, Dialect(separator, decimal, encoding, quoting))
