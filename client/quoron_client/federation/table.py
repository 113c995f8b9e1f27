"""One user's own table as items, by a run's public rules.

What is wrong with the file or its columns is an error, told to the owner: of a CSV file the header alone says so, of a
Parquet file its schema. What is wrong with the rows is not: the coordinator would learn it. Such a user's items become
one that is not finite, which is rejected, or in the local model counts as a gradient of zero, like anybody's.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from quoron_client import columns
from quoron_client.enforcement import bounded
from quoron_client.federation.terms import Terms
from quoron_client.items import ItemBatch
from quoron_client.losses import Loss
from quoron_client.losses._base import Classification
from quoron_protos.errors import DataError


@dataclass(frozen=True, slots=True, eq=False)
class OwnItems:
    """A user's items within the public bounds, and what the owner should know of them and nobody else."""

    batch: ItemBatch
    problem: str | None  # None: every value is usable


def read_own_table(path: Path) -> pa.Table:
    """The table in a CSV or Parquet file. Raises DataError, which names the file."""
    try:
        return columns.read(path)
    except DataError as error:
        raise DataError(f"Data file {str(path)!r}: {error}") from None


def own_items(path: Path, terms: Terms) -> OwnItems:
    """The items of the user whose rows are in `path`, encoded as a population's table would be.

    Raises DataError for a file that is not there, lacks a column, or has one stored as another type.
    """
    try:
        types = _types(path, terms)
    except DataError as error:
        raise DataError(f"Data file {str(path)!r}: {error}") from None
    loss, rules = terms.make_loss(), terms.columns
    width = sum(len(feature.names) for feature in rules.features) + rules.intercept
    if width != terms.dimension:
        raise DataError(f"Expected columns that become {terms.dimension} features, as announced, got {width}.")
    try:
        table = columns.read(path, types=types)
        encoded = columns.encode(table, rules.features, intercept=rules.intercept)
        blocks = len(rules.features) + rules.intercept
        rows = columns.scaled(encoded, blocks, loss.feature_norm, unit_rows=rules.unit_rows)
        labels = _labels(table, rules.label, loss)
    except Exception as error:
        # Whatever it is, consent must not depend on it; other libraries' words may quote a value.
        rows, labels = np.full((1, width), np.nan, np.float32), np.zeros(1)
        said = error if isinstance(error, DataError) else f"Expected rows that can be used, got {type(error).__name__}."
        problem: str | None = f"Data file {str(path)!r}: {said}"
    else:
        problem = None
    batch = ItemBatch(np.ascontiguousarray(rows), labels, np.array([0, len(rows)]))
    return OwnItems(bounded(batch, loss), problem)


def _labels(table: pa.Table, expression: str | None, loss: Loss) -> columns.Vector:
    if expression is None:
        return np.zeros(table.num_rows)
    return columns.label(table, expression, binary=isinstance(loss, Classification))


def _types(path: Path, terms: Terms) -> dict[str, pa.DataType]:
    """Types of the columns that the terms name. Raises DataError unless the file has them, with fitting stored types.

    A CSV file stores none, and the values of one user alone would suggest others, such as numbers for codes.
    """
    rules, header, kinds = terms.columns, columns.header(path), {str: pa.string(), int: pa.int64()}
    types = {name: kinds[type(values[0])] if values else pa.string() for name, values in rules.categorical.items()}
    numbers = (
        [*rules.numeric] if rules.label is None else [*rules.numeric, columns.label_column(header, rules.label)[0]]
    )
    types |= dict.fromkeys(numbers, pa.float64())
    for name in types:
        columns.column(header, name)
    if path.suffix == ".csv":
        header = pa.schema(list(types.items())).empty_table()
    columns.check(header, rules.features, rules.label)
    return types
