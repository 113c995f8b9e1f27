"""A table's rows on their way to items: one column a feature, as it is stored, not yet scaled.

`quoron.datasets._placing` makes of them what `Encoding.encode` makes of the rows, to the same bits.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from quoron_client.data import columns
from quoron_client.data.encoding import Encoding, Feature

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Rows of a table, column by column. What is scaled is held between -1 and 1 before it is."""

    values: tuple[NDArray[Any], ...]  # (N,) each, of the features but the intercept; all of float32, or of float64
    labels: Vector  # (N,)
    weights: Vector  # (N,), or empty where all count alike
    kept: NDArray[np.bool_]  # (N,), as far as labels, weights and what is no plain number say

    @classmethod
    def of(cls, rules: Encoding, table: pa.Table) -> "Columns":
        """DataError as `Encoding.check` does, and never for a value."""
        if rules.unit_rows:  # a row's length is that of all its numbers: it is scaled as a whole, and here already
            whole = rules.encode(table)
            weights = np.empty(0) if whole.weights is None else whole.weights
            return cls(_alike(whole.features.T), whole.labels, weights, whole.kept)
        others = tuple(each for each in rules.features if not each.is_number)
        if others:
            rest = replace(rules, features=others, intercept=False).encode(table)
            found, targets = rest.features != 0, (rest.labels, rest.weights, rest.kept)
        else:
            found, targets = np.empty((table.num_rows, 0), np.bool_), rules.encode_targets(table)
        (labels, counts, kept), taken = targets, 0
        values: list[NDArray[Any]] = []
        for feature in rules.features:
            if feature.is_number:
                values.append(_numbers(table, feature))
                continue
            values.extend(found[:, taken : taken + feature.width].T)
            taken += feature.width
        return cls(_alike(values), labels, np.empty(0) if counts is None else counts, kept)

    def addresses(self) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """Where the values of each feature are, (p,), and an empty array of their type; for as long as these live."""
        like = self.values[0][:0] if self.values else np.empty(0, np.float32)
        return np.array([each.__array_interface__["data"][0] for each in self.values], np.int64), like


@dataclass(frozen=True, slots=True, eq=False)
class Scaling:
    """What columns are scaled by, and a row without a number is told from others by."""

    low: Vector  # (p,); of what is 0 or 1, -1
    high: Vector  # (p,); and 1
    scale: float  # what all are then multiplied by; 0: they are items already
    drop: bool  # whether a row without a number is left out; else it has the middle
    constant: float  # the intercept

    @classmethod
    def of(cls, rules: Encoding) -> "Scaling":
        """Of public rules."""
        if rules.unit_rows:
            ones = np.ones(rules.dimension)
            return cls(-ones, ones, 0.0, False, 0.0)
        ends: list[tuple[float, float]] = []
        for each in rules.features:
            ends += [(float(each.low), float(each.high))] if each.is_number else [(-1.0, 1.0)] * each.width
        low, high = np.array(ends, np.float64).reshape(-1, 2).T
        return cls(
            low.copy(), high.copy(), rules.scale, rules.missing == "drop", rules.scale if rules.intercept else 0.0
        )


def _alike(values: Iterable[NDArray[Any]]) -> tuple[NDArray[Any], ...]:
    """In float32 if all are as exact there, else in float64; one that is so already is not copied."""
    held = tuple(values)
    kind = np.float32 if all(each.dtype in (np.float32, np.bool_) for each in held) else np.float64
    return tuple(np.ascontiguousarray(each, kind) for each in held)


def _numbers(table: pa.Table, feature: Feature) -> NDArray[Any]:
    """Its numbers: as the column is stored where it has nothing missing, else as the feature reads it."""
    column = table.column(feature.column)
    if feature.is_stored and column.null_count == 0 and any(of(column.type) for of in _NUMBERS):
        return columns.stored(column.chunk(0) if column.num_chunks == 1 else column.combine_chunks())
    return feature.values(table)


_NUMBERS = (pa.types.is_float32, pa.types.is_float64, pa.types.is_integer)
