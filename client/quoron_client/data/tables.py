"""Reading a table through any door: a file, Arrow, a frame of pandas or of polars.

| a column of                                          | is read                                                |
| ---------------------------------------------------- | ------------------------------------------------------ |
| a CSV file                                           | as text                                                |
| integers, floats, booleans, Decimals, text in Arrow  | as stored                                              |
| one such type in pandas, nullable and Arrow's too    | as stored                                              |
| `object` in pandas                                   | each value as text, by itself                          |
| `category` in pandas                                 | each category, as a column of the categories would be  |
| any other type                                       | not: DataError by its type                             |

A missing or repeated column, and one that holds neither numbers nor text, is an error: a table's columns are public.
A value is not: `columns` says what it is.
"""

from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet

from quoron_client.data import cells, csv_file
from quoron_client.data.columns import check_name, large
from quoron_client.data.first_rows import Reading
from quoron_privacy.errors import DataError

_AT_ONCE = 1 << 20  # rows of a file that are read at once


def read(source: Any, names: Collection[str] | None = None, reading: Reading | None = None) -> pa.Table:
    """A CSV or Parquet path, a pyarrow Table or a DataFrame (pandas, polars) as a table with rows; raises DataError.

    With `names` only these columns, which must be there. With `reading` rows of a file that do not count are left out
    while it is read.
    """
    if isinstance(source, str | Path):
        table = _read_file(Path(source), names, reading)
    elif isinstance(source, pa.Table):
        table = source if names is None else _selected(source, names)
    elif hasattr(source, "columns") and hasattr(source, "iloc"):
        table = _from_pandas(source, names)
    elif hasattr(source, "__arrow_c_stream__"):
        found = _from_stream(source)
        table = found if names is None else _selected(found, names)
    else:
        raise DataError(f"Expected a path, a DataFrame or a pyarrow Table, got {type(source).__name__}.")
    if table.num_rows == 0:
        raise DataError("Expected a table with rows, got an empty one.")
    return _without_views(table)


def header(path: Path) -> pa.Table:
    """A CSV or Parquet file's columns without its rows: those of a CSV file are text. Raises DataError."""
    _check_path(path)
    try:
        if path.suffix == ".parquet":
            return pyarrow.parquet.read_schema(path).empty_table()
        return pa.schema([(name, pa.large_string()) for name in csv_file.names(path)]).empty_table()
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, error) from None


def names(source: Any) -> list[str]:
    """The columns' names of whatever `read` reads, in the table's order, without its rows. Raises DataError."""
    if isinstance(source, str | Path):
        return list(header(Path(source)).column_names)
    if isinstance(source, pa.Table):
        return list(source.column_names)
    if hasattr(source, "columns"):
        return [str(name) for name in source.columns]
    return list(read(source).column_names)


def _without_views(table: pa.Table) -> pa.Table:
    """With large text for views of text, as polars has: Arrow cannot yet sort or filter them."""
    for place, field in enumerate(table.schema):
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
            parts = [large(each) for each in table.column(place).chunks]
            table = table.set_column(place, field.name, pa.chunked_array(parts))
    return table


def _check_names(wanted: Collection[str], names: Collection[str]) -> None:
    many = Counter(names)
    for name in wanted:
        if many[name] != 1:
            check_name(name, names)


def _selected(table: pa.Table, names: Collection[str]) -> pa.Table:
    _check_names(names, table.column_names)
    return table.select(list(dict.fromkeys(names)))


def _check_path(path: Path) -> None:
    if not path.is_file():
        raise DataError(f"Expected a table at {str(path)!r}, found no such file.")
    if path.suffix not in (".csv", ".parquet"):
        raise DataError(f"Expected a .csv or .parquet table, got {path.name!r}.")


def _unreadable(path: Path, error: Exception) -> DataError:
    # The reader's own words may quote a row, and messages never hold a user's data.
    return DataError(f"Expected {path.name!r} to be a readable {path.suffix} table, got {type(error).__name__}.")


def _read_file(path: Path, names: Collection[str] | None, reading: Reading | None) -> pa.Table:
    known = header(path).column_names
    wanted = None if names is None and path.suffix == ".csv" else list(dict.fromkeys(known if names is None else names))
    _check_names(wanted or (), known)
    try:
        if path.suffix == ".csv":
            return csv_file.read(path, wanted, reading)
        if reading is None or pyarrow.parquet.read_metadata(path).num_rows <= _AT_ONCE:
            return pyarrow.parquet.read_table(path, columns=wanted)
        for batch in pyarrow.dataset.dataset(path, format="parquet").scanner(columns=wanted).to_batches():
            reading.add(pa.Table.from_batches([batch]))
        return reading.table()
    except MemoryError:  # Arrow's is an ArrowException, and nothing is wrong with the file
        raise
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, error) from None


def _from_stream(source: Any) -> pa.Table:
    try:
        return pa.table(source)
    except Exception as error:  # of another library; its words may quote a value
        kind = type(source).__name__
        raise DataError(
            f"Expected a DataFrame of columns that Arrow has, got {kind}: {type(error).__name__}."
        ) from None


def _from_pandas(frame: Any, names: Collection[str] | None) -> pa.Table:
    known = [str(name) for name in frame.columns]
    wanted = known if names is None else list(dict.fromkeys(names))
    _check_names(wanted, known)
    places = {name: place for place, name in enumerate(known)}
    return pa.table({name: _one_column(name, frame.iloc[:, places[name]]) for name in wanted})


def _one_column(name: str, series: Any) -> pa.Array:
    """By the column's dtype alone, which says how its values are read, and never by a value."""
    if series.dtype == "category":
        categories = _one_column(name, series.cat.categories.to_series())
        codes = series.cat.codes.to_numpy()
        return pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes < 0), categories)
    kind = pa.large_string() if series.dtype == object else None
    try:
        return pa.array(series, kind, from_pandas=True)
    except Exception as error:  # what a value of another type, or half a character, does
        if series.dtype.kind in "Oc":
            return cells.texts(series.tolist())
        said = type(error).__name__
        raise DataError(
            f"Expected column {name!r} to hold numbers or text, got type {series.dtype} ({said}). Convert it."
        ) from None
