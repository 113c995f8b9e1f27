"""Columns of a table as bounded numbers, by public rules only: declared ranges and vocabularies, never data statistics.

>>> features = (Numeric("age", 0, 100), Categorical("ward", ("A", "B")))
>>> encode(pa.table({"age": [50, 100], "ward": ["B", "?"]}), features, intercept=True).tolist()
[[0.0, 0.0, 1.0, 1.0], [1.0, 0.0, 0.0, 1.0]]
"""

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from quoron_protos.errors import ConfigError, DataError

Vector = NDArray[np.float64]

_COMPARISON = re.compile(r"\s*(?P<column>.+?)\s*(?P<operator>>=|<=|==|!=|>|<)\s*(?P<number>[-+.\w]+)\s*")
_OPERATORS = {
    ">": np.greater,
    ">=": np.greater_equal,
    "<": np.less,
    "<=": np.less_equal,
    "==": np.equal,
    "!=": np.not_equal,
}


@dataclass(frozen=True, slots=True)
class Numeric:
    """[low, high] to [-1, 1], values outside held at the ends; with `edges`, one 0/1 column per interval instead."""

    column: str
    low: float
    high: float
    edges: tuple[float, ...] = ()  # inner borders; a value on a border belongs to the interval above

    def __post_init__(self) -> None:
        if not (np.isfinite(self.low) and np.isfinite(self.high) and self.low < self.high):
            raise ConfigError(
                f"Expected a public range low < high for numeric feature {self.column!r}, "
                f"got [{self.low}, {self.high}]."
            )
        if list(self.edges) != sorted(set(self.edges)):
            raise ConfigError(f"Expected increasing edges for feature {self.column!r}, got {self.edges}.")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns it becomes."""
        if not self.edges:
            return (self.column,)
        borders = ["-inf", *(f"{edge:g}" for edge in self.edges), "inf"]
        return tuple(f"{self.column} in [{a}, {b})" for a, b in pairwise(borders))


@dataclass(frozen=True, slots=True)
class Categorical:
    """One 0/1 column for each declared category; other values, and nulls, are all zeros.

    `"from-data"` takes the values found, for simulation only: in a deployment the vocabulary itself would leak.
    """

    column: str
    categories: tuple[str | int, ...] | Literal["from-data"]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns it becomes."""
        return tuple(f"{self.column}={category}" for category in self.categories)


Feature = Numeric | Categorical


def read(source: Any, *, types: Mapping[str, pa.DataType] | None = None) -> pa.Table:
    """A CSV or Parquet path, a pyarrow Table or a pandas DataFrame as a table with rows; raises DataError.

    With `types` only these columns of a CSV file are read, and cast: the values do not suggest their types.
    """
    if isinstance(source, pa.Table):
        table = source
    elif isinstance(source, str | Path):
        table = _read_file(Path(source), types or {})
    elif hasattr(source, "columns") and hasattr(source, "iloc"):
        table = _from_pandas(source)
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
    return pa.schema([(name, pa.string()) for name in names]).empty_table()


def column(table: pa.Table, name: str) -> pa.Array:
    """One column without dictionary encoding; DataError lists the columns where it is missing."""
    if name not in table.column_names:
        raise DataError(f"Expected column {name!r} in the table, got columns {', '.join(table.column_names)}.")
    if table.column_names.count(name) > 1:
        raise DataError(
            f"Expected one column {name!r} in the table, got {table.column_names.count(name)}. Rename them."
        )
    values = table.column(name).combine_chunks()
    return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values


def numbers(table: pa.Table, name: str, role: str) -> Vector:
    """A numeric or boolean column as finite float64, shape (N,); DataError names the column and how many are not."""
    values = _numeric(table, name, role)
    found = np.asarray(values.cast(pa.float64()).to_numpy(zero_copy_only=False), np.float64)
    bad = int(np.count_nonzero(~np.isfinite(found)))
    if bad:
        raise DataError(
            f"Expected finite values in {role} column {name!r}, got {bad} null, NaN or infinite; drop or fill them."
        )
    return found


def check(table: pa.Table, features: tuple[Feature, ...], label: str | None) -> None:
    """Raises DataError unless the table has every column, with a fitting type; looks at no value."""
    for feature in features:
        if isinstance(feature, Numeric):
            _numeric(table, feature.column, "feature")
        else:
            _vocabulary(column(table, feature.column), feature)
    if label is not None:
        _numeric(table, label_column(table, label)[0], "label")


def resolve(table: pa.Table, features: tuple[Feature, ...]) -> tuple[Feature, ...]:
    """The same features with every `from-data` vocabulary replaced by the values found, sorted."""
    return tuple(
        Categorical(f.column, tuple(sorted(pc.unique(column(table, f.column)).drop_null().to_pylist())))
        if isinstance(f, Categorical) and f.categories == "from-data"
        else f
        for f in features
    )


def encode(table: pa.Table, features: tuple[Feature, ...], *, intercept: bool) -> NDArray[np.float32]:
    """Feature columns side by side, a column of ones last where `intercept`; shape (N, d), float32."""
    blocks = [_encode_one(table, feature) for feature in features]
    if intercept:
        blocks.append(np.ones((table.num_rows, 1), np.float32))
    if not blocks:
        raise ConfigError("Expected at least one feature or an intercept, got none.")
    return np.ascontiguousarray(np.hstack(blocks))


def scaled(rows: NDArray[np.float32], blocks: int, feature_norm: float, *, unit_rows: bool) -> NDArray[np.float32]:
    """Encoded rows with norm at most `feature_norm`, shape (N, d); `blocks` is the number of features and intercept.

    All are divided by the largest norm a row can have, or with `unit_rows` each by its own.
    """
    largest = np.sqrt(blocks)
    norms = np.linalg.norm(rows.astype(np.float64), axis=1) if unit_rows else np.full(len(rows), largest)
    # A hair below the bound, so that rounding to float32 cannot pass it.
    scale = feature_norm * (1 - 2.0**-22) / np.where(norms > 0, norms, 1.0)
    return (rows * scale[:, None]).astype(np.float32)


def label(table: pa.Table, expression: str, *, binary: bool) -> Vector:
    """Labels from a column, or from a comparison `column op number` (True is +1, False -1); shape (N,), float64.

    Binary column labels must be true/false, 0/1 or -1/+1. Raises DataError otherwise.
    """
    name, compare = label_column(table, expression)
    values = numbers(table, name, "label")
    if compare is not None:
        operator, bound = compare
        return np.where(_OPERATORS[operator](values, bound), 1.0, -1.0)
    if not binary or np.all(np.abs(values) == 1.0):
        return values
    if not np.all((values == 0.0) | (values == 1.0)):
        raise DataError(
            f"Expected label column {expression!r} to hold two classes as 0/1 or -1/+1; "
            f"write a comparison such as '{expression} > 15'."
        )
    return 2.0 * values - 1.0


def label_column(table: pa.Table, expression: str) -> tuple[str, tuple[str, float] | None]:
    """The column that a label comes from, and what it is compared with. Raises DataError."""
    if expression in table.column_names:
        return expression, None
    parts = _COMPARISON.fullmatch(expression)
    if parts is None:
        column(table, expression)  # a lone name that is not there: the error that lists the columns
    try:
        bound = float(parts["number"]) if parts else np.nan
    except ValueError:
        bound = np.nan
    if parts is None or not np.isfinite(bound):
        raise DataError(f"Expected a label such as 'delay > 15' with a finite number, got {expression!r}.")
    return parts["column"], (parts["operator"], bound)


def _check_path(path: Path) -> None:
    if not path.is_file():
        raise DataError(f"Expected a table at {str(path)!r}, found no such file.")
    if path.suffix not in (".csv", ".parquet"):
        raise DataError(f"Expected a .csv or .parquet table, got {path.name!r}.")


def _unreadable(path: Path, error: Exception) -> DataError:
    # The reader's own words may quote a row, and messages never hold a user's data.
    return DataError(f"Expected {path.name!r} to be a readable {path.suffix} table, got {type(error).__name__}.")


def _read_file(path: Path, types: Mapping[str, pa.DataType]) -> pa.Table:
    _check_path(path)
    try:
        if path.suffix == ".parquet":
            return pyarrow.parquet.read_table(path)
        text = pyarrow.csv.ConvertOptions(include_columns=list(types), column_types=dict.fromkeys(types, pa.string()))
        table = pyarrow.csv.read_csv(path, convert_options=text)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, error) from None
    for place, (name, kind) in enumerate(types.items()):
        table = table.set_column(place, name, _cast(table.column(name), name, kind))
    return table


def _cast(text: pa.ChunkedArray, name: str, kind: pa.DataType) -> pa.ChunkedArray:
    """A column of text in another type, by the words for null, true and false of CSV files."""
    if pa.types.is_string(kind):
        return text
    words = pyarrow.csv.ConvertOptions()
    found = pc.utf8_trim_whitespace(text)
    for meant, said in ((None, words.null_values), ("1", words.true_values), ("0", words.false_values)):
        is_meant = pc.is_in(found, value_set=pa.array(said, pa.string()))
        found = pc.if_else(is_meant, pa.scalar(meant, pa.string()), found)
    try:
        return found.cast(kind)
    except pa.ArrowException:
        raise DataError(f"Expected values of type {kind} in column {name!r}, got others.") from None


def _from_pandas(frame: Any) -> pa.Table:
    try:
        return pa.Table.from_pandas(frame, preserve_index=False)
    except pa.ArrowException:
        raise DataError("Expected every column of the DataFrame to hold one type, got a mixed one.") from None


def _encode_one(table: pa.Table, feature: Feature) -> NDArray[np.float32]:
    if isinstance(feature, Numeric):
        values = numbers(table, feature.column, "feature")
        if not feature.edges:
            scaled = (2.0 * values - feature.low - feature.high) / (feature.high - feature.low)
            return np.clip(scaled, -1.0, 1.0).astype(np.float32)[:, None]
        return _one_hot(np.digitize(values, feature.edges), len(feature.edges) + 1)
    values = column(table, feature.column)
    vocabulary = _vocabulary(values, feature)
    found = pc.fill_null(pc.index_in(values, value_set=vocabulary, skip_nulls=True), -1)
    return _one_hot(found.to_numpy(zero_copy_only=False), len(feature.categories))


def _numeric(table: pa.Table, name: str, role: str) -> pa.Array:
    """A column that may be read as numbers, by its type; one of nulls only has no type of its own."""
    values = column(table, name)
    kind = values.type
    fits = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_null)
    if not any(fit(kind) for fit in fits):
        hint = "; declare it categorical" if role == "feature" else ""
        raise DataError(f"Expected {role} column {name!r} to be numeric, got type {kind}{hint}.")
    return values


def _vocabulary(values: pa.Array, feature: Categorical) -> pa.Array:
    try:
        return pa.array(feature.categories, type=values.type)
    except (pa.ArrowException, TypeError) as error:
        raise DataError(
            f"Expected categories of {feature.column!r} in its type {values.type}, got {feature.categories}."
        ) from error


def _one_hot(indices: NDArray[Any], size: int) -> NDArray[np.float32]:
    block = np.zeros((len(indices), size), np.float32)
    known = indices >= 0
    block[np.flatnonzero(known), indices[known]] = 1.0
    return block
