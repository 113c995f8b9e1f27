"""Reading a table, and its columns value by value: what a column's type is never depends on one user's values.

>>> table = pa.table({"age": ["50", " 7e1 ", "old", ""], "ward": [1.0, None, 2.0, 2.5]})
>>> numbers(table, "age").tolist()
[50.0, 70.0, nan, nan]
>>> texts(table, "ward").to_pylist()
['1', None, '2', '2.5']

A missing or repeated column, and one that holds neither numbers nor text, is an error: a table's columns are public.
A value is not.
"""

import csv
import math
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from quoron_privacy.errors import DataError

Vector = NDArray[np.float64]

_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)
_TRUE, _FALSE = frozenset({"true", "True", "TRUE"}), frozenset({"false", "False", "FALSE"})
_EXACT = 2.0**53  # whole float64 below it are integers without doubt


def read(source: Any, names: Collection[str] | None = None) -> pa.Table:
    """A CSV or Parquet path, a pyarrow Table or a DataFrame (pandas, polars) as a table with rows; raises DataError.

    With `names` only these columns, which must be there. Those of a CSV file are read as text.
    """
    if isinstance(source, str | Path):
        table = _read_file(Path(source), names)
    elif isinstance(source, pa.Table):
        table = source if names is None else _selected(source, names)
    elif hasattr(source, "columns") and hasattr(source, "iloc"):
        table = _from_pandas(source, names)
    elif hasattr(source, "__arrow_c_stream__"):
        table = pa.table(source) if names is None else _selected(pa.table(source), names)
    else:
        raise DataError(f"Expected a path, a DataFrame or a pyarrow Table, got {type(source).__name__}.")
    if table.num_rows == 0:
        raise DataError("Expected a table with rows, got an empty one.")
    return table


def header(path: Path) -> pa.Table:
    """A CSV or Parquet file's columns without its rows: those of a CSV file are text. Raises DataError."""
    _check_path(path)
    try:
        if path.suffix == ".parquet":
            return pyarrow.parquet.read_schema(path).empty_table()
        with path.open(encoding="utf-8-sig", errors="replace") as lines:
            names = next(csv.reader(line for line in lines if line.strip("\r\n")), [])
    except (pa.ArrowException, OSError, csv.Error) as error:
        raise _unreadable(path, error) from None
    if not names:
        raise DataError(f"Expected {path.name!r} to begin with the names of its columns, got nothing.")
    return pa.schema([(name, pa.string()) for name in names]).empty_table()


def column(table: pa.Table, name: str) -> pa.Array:
    """One column without dictionary encoding; DataError lists the columns where it is missing.

    Text that is no UTF-8 has a sign in place of what cannot be read: one user's bytes are no error of a table.
    """
    _check_name(name, table.column_names)
    values = table.column(name).combine_chunks()
    values = values.dictionary_decode() if pa.types.is_dictionary(values.type) else values
    return _readable(values) if _family(values.type) == "text" else values


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
    if _family(values.type) == "text":
        return _by_value(values, _parsed)
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
        values = values.cast(pa.large_string())
        return pc.if_else(pc.equal(values, ""), pa.scalar(None, pa.large_string()), values)
    if pa.types.is_floating(values.type) or pa.types.is_decimal(values.type):
        found = np.asarray(values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), np.float64)
        return pa.array([_text(value) for value in found.tolist()], pa.large_string())
    return values.cast(pa.large_string())


def places(table: pa.Table, name: str, vocabulary: tuple[str | int, ...]) -> NDArray[np.int64]:
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


def _readable(text: pa.Array) -> pa.Array:
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        found = text.cast(pa.large_string()).cast(pa.large_binary()).to_pylist()
        return pa.array([None if each is None else each.decode(errors="replace") for each in found], pa.large_string())
    return text


def _by_value(values: pa.Array, parse: Any) -> Vector:
    """`parse` of every text, done once for each different one; NaN for null."""
    coded = values.cast(pa.large_string()).dictionary_encode()
    parsed = np.array([*map(parse, coded.dictionary.to_pylist()), np.nan], np.float64)
    return np.asarray(parsed[pc.fill_null(coded.indices, -1).to_numpy(zero_copy_only=False)], np.float64)


def number(value: object) -> float:
    """One value of any type, as `numbers` reads it in a column of mixed ones: NaN where it is no finite number."""
    text = _object_text(value)
    return math.nan if text is None else _parsed(text)


def _parsed(text: str) -> float:
    text = text.strip()
    if text in _TRUE or text in _FALSE:
        return float(text in _TRUE)
    value = float(text) if _NUMBER.fullmatch(text) else math.nan
    return value if math.isfinite(value) else math.nan


def _text(value: object) -> str | None:
    """One value as text, None where it is missing; equal numbers have equal texts."""
    if value is None:
        return None
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, float):  # numpy's float64 is one
        if math.isnan(value):
            return None
        return str(int(value)) if value.is_integer() and abs(value) < _EXACT else float.__repr__(value)
    return str(value)


def _check_name(name: str, names: Collection[str]) -> None:
    if name not in names:
        raise DataError(f"Expected column {name!r} in the table, got columns {', '.join(names)}.")
    repeats = [*names].count(name)
    if repeats > 1:
        raise DataError(f"Expected one column {name!r} in the table, got {repeats}. Rename them.")


def _selected(table: pa.Table, names: Collection[str]) -> pa.Table:
    for name in names:
        _check_name(name, table.column_names)
    return table.select(list(dict.fromkeys(names)))


def _check_path(path: Path) -> None:
    if not path.is_file():
        raise DataError(f"Expected a table at {str(path)!r}, found no such file.")
    if path.suffix not in (".csv", ".parquet"):
        raise DataError(f"Expected a .csv or .parquet table, got {path.name!r}.")


def _unreadable(path: Path, error: Exception) -> DataError:
    # The reader's own words may quote a row, and messages never hold a user's data.
    return DataError(f"Expected {path.name!r} to be a readable {path.suffix} table, got {type(error).__name__}.")


def _read_file(path: Path, names: Collection[str] | None) -> pa.Table:
    if path.suffix == ".parquet" or names is not None:
        schema = header(path)
        wanted = schema.column_names if names is None else list(dict.fromkeys(names))
        for name in wanted:
            _check_name(name, schema.column_names)
    _check_path(path)
    try:
        if path.suffix == ".parquet":
            return pyarrow.parquet.read_table(path, columns=wanted)
        if names is None:
            return pyarrow.csv.read_csv(path)
        kinds = dict.fromkeys(wanted, pa.string())
        text = pyarrow.csv.ConvertOptions(include_columns=wanted, column_types=kinds, check_utf8=False)
        return pyarrow.csv.read_csv(path, convert_options=text)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, error) from None


def _from_pandas(frame: Any, names: Collection[str] | None) -> pa.Table:
    """Columns of one type as they are, columns of mixed objects as text."""
    known = [str(name) for name in frame.columns]
    wanted = known if names is None else list(dict.fromkeys(names))
    for name in wanted:
        _check_name(name, known)
    return pa.table({name: _one_column(frame.iloc[:, known.index(name)]) for name in wanted})


def _one_column(series: Any) -> pa.Array:
    try:
        found = pa.array(series, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        found = None
    if series.dtype == object and (found is None or _family(found.type) is None):  # by what some value is
        return pa.array([_object_text(value) for value in series.tolist()], pa.large_string())
    if found is None:
        raise DataError(
            f"Expected column {series.name!r} to hold numbers or text, got type {series.dtype}. Convert it."
        )
    return found


def _object_text(value: object) -> str | None:
    try:
        text = _text(value)
        return None if text is None else text.encode(errors="replace").decode()  # half a character is none
    except Exception:  # no truth value, no text: whatever somebody's object does, it is one unusable value
        return None
