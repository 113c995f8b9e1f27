"""One way in for tables: whatever holds rows is a stream of Arrow tables, which can be read again from its beginning.

    held = opened("visits.csv.gz", Dialect(separator=";", decimal=","))
    for batch in held.batches(["patient", "age"]): ...

| a column of                                          | is read                                                |
| ---------------------------------------------------- | ------------------------------------------------------ |
| a CSV file                                           | as text                                                |
| integers, floats, booleans, Decimals, text in Arrow  | as stored                                              |
| one such type in pandas, nullable and Arrow's too    | as stored                                              |
| `object` in pandas                                   | each value as text, by itself                          |
| `category` in pandas                                 | each category, as a column of the categories would be  |
| any other type                                       | not: DataError by its type                             |

So a column's type follows from what is public: the format, the schema, the dtype. `formats` says what names of files
mean and how their text is written, `files` what is done with folders and URLs of Parquet. A missing or repeated
column is an error: a table's columns are public. A value is not: `columns` says what it is.
"""

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from quoron_client.data import columns, files, text_files
from quoron_client.data.columns import NO_ROWS, check_name, large
from quoron_client.data.files import ROWS, Files, check_names
from quoron_client.data.formats import DECIMAL, Dialect, format_of, is_folder
from quoron_client.data.text_files import TextFile
from quoron_privacy.errors import DataError

Empty = Callable[[list[str], list[int]], pa.Table]  # of columns, by their names and places
Batches = Callable[[list[str], list[int], int], Iterator[pa.Table]]  # (names, places, most rows at a time)


@dataclass(frozen=True, slots=True, eq=False)
class Opened:
    """A table that can be read from its beginning, as often as one likes; nothing of its rows has been read."""

    names: tuple[str, ...]  # of its columns, in its order
    schema: Mapping[str, pa.DataType]  # the types that it declares, by column: none of text files and pandas frames
    rows: int | None  # None where nothing but its rows says so
    held: bool  # whether all of it is in memory already
    _empty: Empty = field(repr=False)
    _read: Batches = field(repr=False)
    path: str | None = None  # where it is, of a file, a folder or a URL
    dialect: Dialect | None = None  # as declared

    def empty(self, names: Collection[str] | None = None) -> pa.Table:
        """These columns, or all, with their types as they are read and without rows. DataError for a missing one."""
        return self._with_decimal(_without_views(self._empty(*self._checked(names))))

    def batches(self, names: Collection[str] | None = None, *, rows: int = ROWS) -> Iterator[pa.Table]:
        """Return all rows from the first on, in order, at most `rows` at a time: these columns, each once, or all.

        DataError for a missing or repeated column, at once; for a malformed file and one that has changed since it was
        opened when it is met. A file is read within a memory that does not grow with it.
        """
        return self._cut(*self._checked(names), rows)

    def _cut(self, wanted: list[str], places: list[int], rows: int) -> Iterator[pa.Table]:
        for table in self._read(wanted, places, rows):
            whole = self._with_decimal(_without_views(table))
            for first in range(0, whole.num_rows, rows):
                yield whole if whole.num_rows <= rows else whole.slice(first, rows)

    def _checked(self, names: Collection[str] | None) -> tuple[list[str], list[int]]:
        """(names, places) of columns: each once, or all, by their places."""
        if names is None:
            return list(self.names), list(range(len(self.names)))
        wanted = list(dict.fromkeys(names))
        many, places = Counter(self.names), {name: place for place, name in enumerate(self.names)}
        for name in wanted:
            if many[name] != 1:
                check_name(name, self.names, wanted)
        return wanted, [places[name] for name in wanted]

    def _with_decimal(self, table: pa.Table) -> pa.Table:
        if self.dialect is None or self.dialect.decimal == ".":
            return table
        return table.replace_schema_metadata({**(table.schema.metadata or {}), DECIMAL: self.dialect.decimal})


def opened(source: Any, dialect: Dialect | None = None) -> Opened:
    """A file, a folder, a URL, a pyarrow Table or RecordBatchReader or a DataFrame (pandas, polars), before its rows.

    What is opened already is left as it is.

    The dialect is what is declared of the text of files. Raises DataError for what is no table, and for a header that
    does not say how the file is written.
    """
    dialect = dialect or Dialect()
    if isinstance(source, Opened):
        return source
    if not isinstance(source, str | Path):
        dialect.check_unwritten(type(source).__name__)
    if isinstance(source, str | Path):
        found = _of_folder(source, dialect) if is_folder(source) else _of_file(str(source), dialect)
    elif isinstance(source, pa.Table):
        found = _of_table(source)
    elif hasattr(source, "columns") and hasattr(source, "iloc"):  # of pandas: rows are found by their places
        found = _of_pandas(source)
    elif isinstance(source, pa.RecordBatch):
        found = _of_table(pa.Table.from_batches([source]))
    elif hasattr(source, "__arrow_c_stream__"):
        found = _of_table(_from_stream(source))
    else:
        fix = " Collect it first." if hasattr(source, "collect") else ""
        raise DataError(f"Expected a path, a DataFrame or a pyarrow Table, got {type(source).__name__}.{fix}")
    path = str(source) if isinstance(source, str | Path) else None
    return replace(found, path=path, dialect=dialect)


def read(
    source: Any,
    names: Collection[str] | None = None,
    dialect: Dialect | None = None,
    *,
    empty: bool = False,
    keep: Callable[[pa.Table], pa.Table] = lambda table: table,
    most: int = sys.maxsize,
) -> pa.Table:
    """Return all of what `opened` opens as one table with rows, or where it may be `empty` with none; raises DataError.

    With `names` only these columns, which must be there. Once more than `most` rows are in memory `keep` leaves out
    those that do not count, and again whenever there are twice as many as it kept.
    """
    held = opened(source, dialect)
    parts, rows = [held.empty(names)], 0
    for batch in held.batches(names, rows=sys.maxsize if held.held else ROWS):
        parts.append(batch)
        rows += batch.num_rows
        if rows > most:
            parts = [keep(pa.concat_tables(parts))]
            rows = parts[0].num_rows
            most = 2 * max(rows, most // 2)
    table = pa.concat_tables(parts)
    if table.num_rows == 0 and not empty:
        raise DataError(NO_ROWS)
    return table


def names(source: Any, dialect: Dialect | None = None) -> list[str]:
    """Return the columns' names of a table that `opened` takes, in order. Raises DataError."""
    return list(opened(source, dialect).names)


def _of_schema(
    schema: pa.Schema,
    rows: int | None,
    read: Batches,
    *,
    held: bool = False,
    check: Callable[[list[str]], None] = lambda names: None,
) -> Opened:
    """Return a table whose columns have types, once `check` has raised nothing for those that are asked for."""

    def empty(names: list[str], places: list[int]) -> pa.Table:
        check(names)
        return _without_rows(pa.schema([schema.field(place) for place in places], schema.metadata))

    return Opened(tuple(schema.names), types_of(schema), rows, held, empty, read)


def types_of(schema: pa.Schema) -> dict[str, pa.DataType]:
    """Return the types that a schema declares, by column: not of dictionaries' values, nor of nothing but nulls."""
    said = [field for field in schema if not (pa.types.is_dictionary(field.type) or pa.types.is_null(field.type))]
    return {field.name: field.type for field in said}


def _of_text(names: list[str], places: list[int]) -> pa.Table:
    return _without_rows(pa.schema([(name, pa.large_string()) for name in names]))


def _without_rows(schema: pa.Schema) -> pa.Table:
    """`Schema.empty_table`, which imports pandas, does not."""
    return pa.Table.from_batches([], schema)


def _of_file(source: str, dialect: Dialect) -> Opened:
    form = format_of(source)
    if form.kind == "parquet":
        return _of_folder(source, dialect)
    file = TextFile(source, files.state(source), form.zipped)
    read_as = dialect if dialect.separator is not None else replace(dialect, separator=form.separator)
    return Opened(
        tuple(text_files.csv_names(file, read_as)),
        {},
        None,
        False,
        _of_text,
        lambda names, places, _: text_files.csv_batches(file, read_as, names, places),
    )


def _of_folder(source: str | Path, dialect: Dialect) -> Opened:
    dialect.check_unwritten(str(source))
    found = Files.found(source)

    def batches(names: list[str], places: list[int], rows: int) -> Iterator[pa.Table]:
        for part in found.parts:
            for _, table in found.batches(part, names, rows=min(rows, ROWS)):
                yield table

    count = sum(sum(found.rows(part)) for part in found.parts)
    return _of_schema(found.schema, count, batches, check=found.check_all)


def _of_table(table: pa.Table) -> Opened:
    check_names(table.schema, "the table")

    def batches(names: list[str], places: list[int], rows: int) -> Iterator[pa.Table]:
        some = table.select(places)
        for first in range(0, table.num_rows, rows):
            yield some.slice(first, rows)

    return _of_schema(table.schema, table.num_rows, batches, held=True)


def _of_pandas(frame: Any) -> Opened:
    called = tuple(str(name) for name in frame.columns)

    def batches(names: list[str], places: list[int], rows: int) -> Iterator[pa.Table]:
        found = [_PandasColumn(called[place], frame.iloc[:, place]) for place in places]
        for first in range(0, len(frame), rows):
            yield pa.table([column.rows(first, first + rows) for column in found], names)

    def empty(names: list[str], places: list[int]) -> pa.Table:
        return pa.table([_PandasColumn(called[at], frame.iloc[:, at]).rows(0, 0) for at in places], names)

    return Opened(called, {}, len(frame), True, empty, batches)


def _from_stream(source: Any) -> pa.Table:
    """A frame or a stream that Arrow can read, such as polars', whole. DataError for a column that Arrow has not."""
    try:
        return pa.table(source)
    except Exception as error:  # of another library; its words may quote a value
        kind = type(source).__name__
        raise DataError(f"Expected a table of columns that Arrow has, got {kind}: {type(error).__name__}.") from None


class _PandasColumn:
    """A column of a frame, of which rows are read as its dtype says."""

    def __init__(self, name: str, series: Any) -> None:
        # Under places in place of its own index, which may hold anything, and compares it when it is cut.
        series = series.reset_index(drop=True)
        self._name, self._series, self._categories = name, series, None
        if series.dtype == "category":
            values = series.cat.categories
            values = values.to_series(index=range(len(values)))
            self._series = series.cat.codes
            self._categories = _PandasColumn(name, values).rows(0, len(values))

    def rows(self, first: int, last: int) -> pa.Array:
        """Return rows `first` to `last`."""
        series = self._series.iloc[first:last]
        if self._categories is not None:
            codes = series.to_numpy()
            return pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes < 0), self._categories)
        kind = pa.large_string() if series.dtype == object else None
        try:
            return pa.array(series, kind, from_pandas=True)
        except Exception as error:  # what a value of another type, or half a character, does
            if series.dtype.kind in "Oc":
                return columns.text_array(series.tolist())
            said = type(error).__name__
            raise DataError(
                f"Expected column {self._name!r} to hold numbers or text, got type {series.dtype} ({said}). Convert it."
            ) from None


def _without_views(table: pa.Table) -> pa.Table:
    """With large text for views of text, as polars has: Arrow cannot yet sort or filter them."""
    for place, column in enumerate(table.schema):
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
            parts = [large(chunk) for chunk in table.column(place).chunks]
            whole = pa.chunked_array(parts) if parts else pa.chunked_array([large(pa.nulls(0, column.type))])
            table = table.set_column(place, column.name, whole)
    return table
