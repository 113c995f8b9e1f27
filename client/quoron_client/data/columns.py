"""Reading a table, and its columns value by value: a value is what `cells` says of it, whatever others hold.

>>> table = pa.table({"age": ["50", " 7e1 ", "old", ""], "ward": [1.0, None, 2.0, 2.5]})
>>> numbers(table, "age").tolist()
[50.0, 70.0, nan, nan]
>>> texts(table, "ward").to_pylist()
['1', None, '2', '2.5']

| a column of                                          | is read                                                |
| ---------------------------------------------------- | ------------------------------------------------------ |
| a CSV file                                           | as text                                                |
| integers, floats, booleans, Decimals, text in Arrow  | as stored                                              |
| one such type in pandas, nullable and Arrow's too    | as stored                                              |
| `object` in pandas                                   | each value as text, by itself                          |
| `category` in pandas                                 | each category, as a column of the categories would be  |
| any other type                                       | not: DataError by its type                             |

A missing or repeated column, and one that holds neither numbers nor text, is an error: a table's columns are public.
A value is not.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
import pyarrow.parquet
from numpy.typing import NDArray

from quoron_client.data import cells, csv_file
from quoron_client.data.first_rows import Reading
from quoron_privacy.errors import DataError

Vector = NDArray[np.float64]
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


def column(table: pa.Table, name: str) -> pa.Array:
    """One column without dictionary encoding; DataError lists the columns where it is missing.

    Text is large: a column may have more of it than 2 GiB. What is no UTF-8 in it has a sign in place of what cannot be
    read: one user's bytes are no error of a table.
    """
    places = table.schema.get_all_field_indices(name)
    if len(places) != 1:
        _check_name(name, table.column_names)
    chunks = table.column(places[0])
    if _family(chunks.type) == "text":
        return _readable(chunks)
    values = chunks.combine_chunks()
    return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values


def check(table: pa.Table, name: str) -> None:
    """Raises DataError unless the table has the column once, of numbers or of text; looks at no value."""
    if _family(column(table, name).type) is None:
        kind = table.column(name).type
        raise DataError(f"Expected column {name!r} to hold numbers or text, got type {kind}. Convert it.")


def unnamed(values: pa.Array) -> int:
    """How many rows of a user column are nobody's: null, an empty text or no number."""
    count = int(values.null_count)
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        count += pc.sum(pc.equal(values, "")).as_py() or 0  # what a CSV file makes of an empty field
    elif pa.types.is_floating(values.type):
        count += pc.sum(pc.is_nan(values)).as_py() or 0
    return count


def numbers(table: pa.Table, name: str) -> Vector:
    """A column as float64, shape (N,): NaN where a value is no finite number. True and false are 1 and 0.

    Text is parsed value by value, as decimal numbers or true and false. Raises DataError as `check` does.
    """
    check(table, name)
    values = column(table, name)
    if _family(values.type) == "text" or pa.types.is_decimal(values.type):
        return _parsed(texts(table, name))
    cast = values.cast(pa.float64(), safe=False)
    if pa.types.is_integer(values.type) and not values.null_count:
        return stored(cast).copy()
    found = np.asarray(cast.to_numpy(zero_copy_only=False), np.float64) if cast.null_count else stored(cast)
    return np.where(np.isfinite(found), found, np.nan)


def stored(values: pa.Array) -> NDArray[Any]:
    """Integers or float32 or float64 without nulls where they are, shape (N,), not to be written.

    What `to_numpy` gives, without pandas, which that imports.
    """
    kind = np.dtype(values.type.to_pandas_dtype())
    whole: NDArray[Any] = np.frombuffer(values.buffers()[1] or b"", kind)
    return whole[values.offset : values.offset + len(values)]


def texts(table: pa.Table, name: str) -> pa.Array:
    """A column as text, shape (N,): null where a value is missing or empty; whole numbers have no decimal point.

    Raises DataError as `check` does.
    """
    check(table, name)
    values = column(table, name)
    if _family(values.type) == "text":
        return pc.if_else(pc.equal(values, ""), pa.scalar(None, pa.large_string()), values)
    if pa.types.is_decimal(values.type):
        return cells.texts(values.to_pylist())
    if not pa.types.is_floating(values.type):
        return values.cast(pa.large_string())
    coded = values.cast(pa.float64(), safe=False).dictionary_encode()
    return cells.texts(coded.dictionary.to_pylist()).take(coded.indices)


def places(table: pa.Table, name: str, vocabulary: Sequence[str | int]) -> NDArray[np.int64]:
    """Place of every value in the vocabulary, -1 where it is in none, shape (N,). Raises DataError as `check` does."""
    if isinstance(vocabulary[0], str):
        values, known = texts(table, name), pa.array(vocabulary, pa.large_string())
    else:
        values, known = pa.array(numbers(table, name)), pa.array([float(value) for value in vocabulary], pa.float64())
    found = pc.fill_null(pc.index_in(values, value_set=known, skip_nulls=True), -1)
    return np.asarray(found.to_numpy(zero_copy_only=False), np.int64)


def kinds(table: pa.Table, name: str, chosen: NDArray[np.bool_]) -> int:
    """How many different values the chosen rows (N,) of a column have, missing ones being one. For simulation only."""
    values = texts(table, name).filter(pa.array(chosen))
    return int(pc.count_distinct(values, mode="all").as_py())


def vocabulary(table: pa.Table, name: str) -> tuple[str | int, ...]:
    """The values found in a column, sorted: integers of a whole column of them, else texts. For simulation only."""
    check(table, name)
    values = column(table, name)
    if pa.types.is_integer(values.type):
        return tuple(sorted(pc.unique(values).drop_null().to_pylist()))
    return tuple(sorted(pc.unique(texts(table, name)).drop_null().to_pylist()))


def _family(kind: pa.DataType) -> str | None:
    """What a column's values can be read as; one of nulls only has no type of its own."""
    if pa.types.is_dictionary(kind):
        return _family(kind.value_type)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return "text"
    fits = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_null, pa.types.is_decimal)
    return "numbers" if any(fit(kind) for fit in fits) else None


def _without_views(table: pa.Table) -> pa.Table:
    """With large text for views of text, as polars has: Arrow cannot yet sort or filter them."""
    for place, field in enumerate(table.schema):
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        if pa.types.is_string_view(kind):
            parts = [_large(each) for each in table.column(place).chunks]
            table = table.set_column(place, field.name, pa.chunked_array(parts))
    return table


def _large(text: pa.Array) -> pa.Array:
    if not pa.types.is_dictionary(text.type):
        return text.cast(pa.large_string())
    return pa.DictionaryArray.from_arrays(text.indices, text.dictionary.cast(pa.large_string()))


def _readable(values: pa.ChunkedArray) -> pa.Array:
    """Text of any kind as large text that is UTF-8."""
    parts = [_large(each) for each in values.chunks]
    large = pa.chunked_array(parts, None if parts else pa.large_string()).cast(pa.large_string()).combine_chunks()
    try:
        large.validate(full=True)
    except pa.ArrowInvalid:
        return cells.texts(large.cast(pa.large_binary()).to_pylist())
    return large


def _parsed(found: pa.Array) -> Vector:
    """The number that every text says, each different one being read once; NaN for null."""
    coded = found.dictionary_encode()
    said = np.array([*map(cells.parsed, coded.dictionary.to_pylist()), np.nan], np.float64)
    return np.asarray(said[pc.fill_null(coded.indices, -1).to_numpy(zero_copy_only=False)], np.float64)


def _check_names(wanted: Collection[str], names: Collection[str]) -> None:
    many = Counter(names)
    for name in wanted:
        if many[name] != 1:
            _check_name(name, names)


def _check_name(name: str, names: Collection[str]) -> None:
    if name not in names:
        raise DataError(f"Expected column {name!r} in the table, got columns {', '.join(names)}.")
    repeats = [*names].count(name)
    if repeats > 1:
        raise DataError(f"Expected one column {name!r} in the table, got {repeats}. Rename them.")


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
