"""What `Encoding.encode` makes of rows, but for its counts: a numeric column in one compiled pass, to the same bits."""

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from numba import njit
from numpy.typing import NDArray

from quoron_client.data import columns
from quoron_client.data.encoding import Encoded, Encoding, Numeric


def encoded(rules: Encoding, table: pa.Table) -> Encoded:
    """The rows of a table as items. `counts` are those of labels, weights and categories alone."""
    if rules.unit_rows:
        return rules.encode(table)
    plain = [isinstance(each, Numeric) and not each.edges for each in rules.features]
    others = tuple(each for each, fast in zip(rules.features, plain, strict=True) if not fast)
    rest = replace(rules, features=others, intercept=not others).encode(table)
    found, kept, count = rest.features != 0, rest.kept, table.num_rows
    features = np.empty((count, rules.dimension), np.float32)
    one = np.float32(rules.scale)
    at = taken = 0
    for feature, fast in zip(rules.features, plain, strict=True):
        if fast and isinstance(feature, Numeric):
            ends = (float(feature.low), float(feature.high))
            scale_column(
                _numbers(table, feature.column), *ends, rules.scale, rules.missing == "drop", features, at, kept
            )
            at += 1
            continue
        width = 1 + len(feature.edges) if isinstance(feature, Numeric) else len(feature.names)
        features[:, at : at + width] = np.where(found[:, taken : taken + width], one, np.float32(0))
        at, taken = at + width, taken + width
    if rules.intercept:
        features[:, at] = one
    left_out = np.flatnonzero(~kept)
    features[left_out] = 0.0
    rest.labels[left_out] = 0.0
    if rest.weights is not None:
        rest.weights[left_out] = 0.0
    return Encoded(features, rest.labels, rest.weights, kept, rest.counts)


def _numbers(table: pa.Table, name: str) -> NDArray[Any]:
    """A column as numbers: as it is stored where it has nothing missing, else as `columns.numbers` reads it."""
    kind = table.schema.field(name).type
    if (pa.types.is_integer(kind) or pa.types.is_float32(kind) or pa.types.is_float64(kind)) and (
        table.column(name).null_count == 0
    ):
        values: NDArray[Any] = table.column(name).combine_chunks().to_numpy(zero_copy_only=False)
        return values
    return columns.numbers(table, name)


@njit(cache=True, nogil=True)
def scale_column(
    values: Any, low: float, high: float, scale: float, drop: bool, features: Any, at: int, kept: Any
) -> None:
    """One numeric column, from [low, high] to [-1, 1] in float32 and then times `scale`, into column `at`."""
    middle = 0.5 * low + 0.5 * high
    for i in range(len(values)):
        value: Any = np.float64(values[i])
        if not np.isfinite(value):
            value = middle
            if drop:
                kept[i] = False
        scaled: Any = (2.0 * value - low - high) / (high - low)
        if scaled > 1.0:
            scaled = 1.0
        elif scaled < -1.0:
            scaled = -1.0
        features[i, at] = np.float32(np.float64(np.float32(scaled)) * scale)
