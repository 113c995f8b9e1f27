"""One user's own table as items, by a run's public rules.

What is wrong with the file or its columns is an error, told to the owner. What is wrong with the values is not: the
coordinator would learn it. Such a user's items become one that is not finite, which is rejected, or in the local model
counts as a gradient of zero, like anybody's.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from quorate_client import columns
from quorate_client.enforcement import bounded
from quorate_client.federation.terms import Terms
from quorate_client.items import ItemBatch
from quorate_client.losses import Loss
from quorate_client.losses._base import Classification
from quorate_protos.errors import DataError


@dataclass(frozen=True, slots=True, eq=False)
class OwnItems:
    """A user's items within the public bounds, and what the owner should know of them and nobody else."""

    batch: ItemBatch
    problem: str | None  # None: every value is usable


def read_own_table(path: Path, terms: Terms | None = None) -> pa.Table:
    """The table in a CSV or Parquet file, with columns that fit `terms`. Raises DataError, which names the file."""
    try:
        if terms is None:
            return columns.read(path)
        table = columns.read(path, types=_declared(terms))
        columns.check(table, terms.columns.features, terms.columns.label)
    except DataError as error:
        raise DataError(f"Data file {str(path)!r}: {error}") from None
    return table


def own_items(path: Path, terms: Terms) -> OwnItems:
    """The items of the user whose rows are in `path`, encoded as a population's table would be.

    Raises DataError for a file that cannot be read, lacks a column, or has one of another type.
    """
    table = read_own_table(path, terms)
    loss, rules = terms.make_loss(), terms.columns
    width = sum(len(feature.names) for feature in rules.features) + rules.intercept
    if width != terms.dimension:
        raise DataError(f"Expected columns that become {terms.dimension} features, as announced, got {width}.")
    try:
        encoded = columns.encode(table, rules.features, intercept=rules.intercept)
        blocks = len(rules.features) + rules.intercept
        rows = columns.scaled(encoded, blocks, loss.feature_norm, unit_rows=rules.unit_rows)
        labels = _labels(table, rules.label, loss)
    except DataError as error:
        rows, labels = np.full((1, width), np.nan, np.float32), np.zeros(1)
        problem: str | None = f"Data file {str(path)!r}: {error}"
    else:
        problem = None
    batch = ItemBatch(np.ascontiguousarray(rows), labels, np.array([0, len(rows)]))
    return OwnItems(bounded(batch, loss), problem)


def _labels(table: pa.Table, expression: str | None, loss: Loss) -> columns.Vector:
    if expression is None:
        return np.zeros(table.num_rows)
    return columns.label(table, expression, binary=isinstance(loss, Classification))


def _declared(terms: Terms) -> dict[str, pa.DataType]:
    """Types of categorical columns: those of one user's rows alone would suggest others, such as numbers for codes."""
    kinds = {str: pa.string(), int: pa.int64()}
    return {name: kinds[type(values[0])] for name, values in terms.columns.categorical.items() if values}
