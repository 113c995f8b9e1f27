"""What every row of a column that nobody declared holds: a number, a date, true or false, text, or nothing.

    >>> import pyarrow as pa
    >>> table = pa.table({"age": ["50", "2024-05-01", "true", "old", "n/a", ""]})
    >>> [KINDS[each] for each in kinds(table, "age")]
    ['number', 'date', 'boolean', 'text', 'missing', 'missing']

A function of each value alone, and private: it is for a release with noise (docs/privacy/bought-declarations.md).
"""

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from quoron_client.data import cells, columns
from quoron_privacy.counts.marks import KINDS

_DATE = re.compile(r"\d{4}[-/]\d{1,2}[-/]\d{1,2}([ T].*)?|\d{1,2}[-/.]\d{1,2}[-/.]\d{4}([ T].*)?", re.ASCII)
_NOTHING = frozenset({"na", "n/a", "nan", "null", "none", "nil", "?", "-", ".", "unknown", "missing"})
_NUMBER, _DAY, _FLAG, _TEXT, _MISSING = map(KINDS.index, ("number", "date", "boolean", "text", "missing"))


def kinds(table: pa.Table, name: str) -> NDArray[np.int8]:
    """The place among `KINDS` of each row's kind, shape (N,). DataError for a column that cannot be read."""
    type_ = columns.column(table, name).type
    if pa.types.is_boolean(type_):
        return np.where(np.isnan(columns.numbers(table, name)), _MISSING, _FLAG).astype(np.int8)
    if not (pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_null(type_)):
        return np.where(np.isnan(columns.numbers(table, name)), _MISSING, _NUMBER).astype(np.int8)
    coded = columns.texts(table, name).dictionary_encode()
    each = np.array([*map(_kind, coded.dictionary.to_pylist()), _MISSING], np.int8)
    return each[pc.fill_null(coded.indices, -1).to_numpy(zero_copy_only=False)]


def codes(table: pa.Table, name: str) -> tuple[NDArray[np.float64], list[str]]:
    """Place of every row's text among the column's texts in their order, NaN for none, and the texts."""
    coded = columns.texts(table, name).dictionary_encode()
    found = coded.dictionary.to_pylist()
    order = sorted(range(len(found)), key=found.__getitem__)
    ranks = np.full(len(found) + 1, np.nan)
    ranks[order] = np.arange(len(order))
    nothing = np.array([*(text.strip().lower() in _NOTHING for text in found), True])
    ranks[nothing] = np.nan
    return ranks[pc.fill_null(coded.indices, -1).to_numpy(zero_copy_only=False)], [found[each] for each in order]


def _kind(text: str) -> int:
    if text.strip().lower() in ("true", "false"):
        return _FLAG
    if not np.isnan(cells.parsed(text)):
        return _NUMBER
    if text.strip().lower() in _NOTHING:
        return _MISSING
    return _DAY if _DATE.fullmatch(text.strip()) else _TEXT
