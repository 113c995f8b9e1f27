"""What every row of a column that nobody declared holds: a number, a date, true or false, text, or nothing.

    >>> import pyarrow as pa
    >>> table = pa.table({"age": ["50", "2024-05-01", "true", "old", "n/a", ""]})
    >>> [KINDS[each] for each in kinds(table, "age")]
    ['number', 'date', 'boolean', 'text', 'missing', 'missing']

A function of each value alone, and private: it is for a release with noise (docs/privacy/private-bounds.md).
"""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from quoron_client.data import columns
from quoron_client.data.features import DateNumber
from quoron_privacy.counts.private_bounds import KINDS
from quoron_privacy.errors import CONTROL

_NOTHING = frozenset({"na", "n/a", "nan", "null", "none", "nil", "?", "-", ".", "unknown", "missing"})
_NUMBER, _DAY, _FLAG, _TEXT, _MISSING = map(KINDS.index, ("number", "date", "boolean", "text", "missing"))


def kinds(table: pa.Table, name: str) -> NDArray[np.int8]:
    """Return the place among `KINDS` of each row's kind, shape (N,). DataError for a column that cannot be read."""
    return read(table, name)[1]


def read(table: pa.Table, name: str) -> tuple[NDArray[np.float64], NDArray[np.int8]]:
    """Return each row's number, of a date its year, NaN for none, and its kind; both (N,). Raises DataError."""
    type_ = columns.kind(table, name)
    if is_day(type_):
        years = _years(table, name)
        return years, np.where(np.isnan(years), _MISSING, _DAY).astype(np.int8)
    values = columns.numbers(table, name)
    if pa.types.is_boolean(type_):
        return values, np.where(np.isnan(values), _MISSING, _FLAG).astype(np.int8)
    if not (columns.is_text(type_) or pa.types.is_null(type_)):
        return values, np.where(np.isnan(values), _MISSING, _NUMBER).astype(np.int8)
    years, coded = _years(table, name), columns.texts(table, name).dictionary_encode()
    words = [_of_word(text) for text in coded.dictionary.to_pylist()]
    found = np.array([*words, _MISSING], np.int8)[columns.codes(coded)]
    kinds = np.where((found == _TEXT) & ~np.isnan(values), _NUMBER, found)
    kinds = np.where((found == _TEXT) & np.isnan(values) & ~np.isnan(years), _DAY, kinds).astype(np.int8)
    return np.where(kinds == _DAY, years, values), kinds


def is_day(kind: pa.DataType) -> bool:
    """Return whether all that such a column holds is dates."""
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def codes(table: pa.Table, name: str) -> tuple[NDArray[np.float64], list[str]]:
    """Return the place of every row's text among the column's texts in their order, NaN for none, and the texts."""
    coded = columns.texts(table, name).dictionary_encode()
    found = coded.dictionary.to_pylist()
    order = sorted(range(len(found)), key=found.__getitem__)
    ranks = np.full(len(found) + 1, np.nan)
    ranks[order] = np.arange(len(order))
    # A text that a model's file may not hold is no name, either.
    nothing = np.array([*(text.strip().lower() in _NOTHING or bool(CONTROL.search(text)) for text in found), True])
    ranks[nothing] = np.nan
    return ranks[columns.codes(coded)], [found[each] for each in order]


def _of_word(text: str) -> int:
    word = text.strip().lower()
    return _FLAG if word in ("true", "false") else _MISSING if word in _NOTHING else _TEXT


def _years(table: pa.Table, name: str) -> NDArray[np.float64]:
    return DateNumber(name, "year", 1900, 2100).read(table)
