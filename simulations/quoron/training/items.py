"""Items by user as arrays: from a table, arrays or tensors, or a Dataset in the manner of torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quoron.training.black_box import Training
from quoron_privacy.errors import DataError

Array = NDArray[Any]
Data = Any  # a DataFrame, a Dataset of Hugging Face, an array or tensor, a tuple of them, or a torch Dataset


class ModuleTraining(Training, total=False):
    """The arguments of every function that trains on items: whose each is, and of a table which columns it has."""

    user: str | Sequence[Any] | NDArray[Any] | None  # a column of a table, or whose each item is
    offsets: Sequence[int] | NDArray[np.int64] | None  # where items are sorted by user: user u has those from u's on
    features: Sequence[str] | None  # columns of a table
    label: str | None  # column of a table


@dataclass(frozen=True, slots=True, eq=False)
class Items:
    """Items of n users, in the order of users; who has none is a user all the same."""

    parts: tuple[Array, ...]  # each (N, ...): what an item consists of, such as an image and its label
    offsets: NDArray[np.int64]  # (n + 1,): user u has items offsets[u] to offsets[u + 1]

    @property
    def users(self) -> int:
        """n."""
        return len(self.offsets) - 1

    @property
    def counts(self) -> NDArray[np.int64]:
        """m_u of each user, shape (n,). Private."""
        return np.diff(self.offsets)

    @property
    def at_least_one(self) -> tuple[Array, ...]:
        """The parts, of an item that is nobody's where there is none: users without items look somewhere too."""
        return self.parts if len(self.parts[0]) else self.blank(1)

    def blank(self, *shape: int) -> tuple[Array, ...]:
        """As many items that are nobody's: zeros of the items' shape and type."""
        return tuple(np.zeros((*shape, *part.shape[1:]), part.dtype) for part in self.parts)


def items_of(
    data: Data,
    *,
    user: str | Sequence[Any] | NDArray[Any] | None = None,
    offsets: Sequence[int] | NDArray[np.int64] | None = None,
    features: Sequence[str] | None = None,
    label: str | None = None,
    **_: Any,
) -> Items:
    """Items of `data`; `user` is a column of a table, or whose each item is, `offsets` says it for sorted arrays.

    DataError for what does not fit together, and for an item without a user.
    """
    if (user is None) == (offsets is None):
        raise DataError("Expected either user or offsets, which say whose each item is; got both or neither.")
    if (columns := _columns(data)) is not None:
        if not isinstance(user, str) or features is None:
            raise DataError("Expected user, a column, and features, columns, with a table.")
        wanted = [user, *features, *([] if label is None else [label])]
        if missing := [name for name in wanted if name not in columns]:
            raise DataError(f"Expected the columns {', '.join(missing)} in the table, found none of these names.")
        table = _read(data, wanted)
        parts = _features([table[name] for name in features])
        parts += [] if label is None else [_numbers(table[label])]
        owners: Any = table[user]
    else:
        if features is not None or label is not None or isinstance(user, str):
            raise DataError("Expected columns (user, features, label) with a table only.")
        parts, owners = _parts(data), None if user is None else np.asarray(user)
    sizes = {len(part) for part in parts}
    if len(sizes) != 1:
        raise DataError(f"Expected arrays of one length, one entry an item, got lengths {sorted(sizes)}.")
    (size,) = sizes
    if owners is None:
        return Items(tuple(parts), _checked_offsets(np.asarray(offsets), size))
    if owners.shape != (size,):
        raise DataError(f"Expected user to name one user for each of {size} items, got shape {owners.shape}.")
    if any(one is None or one != one for one in owners.tolist()):
        raise DataError("Expected a user for every item, got items without one. Leave them out.")
    names, codes = np.unique(owners, return_inverse=True)
    order = np.argsort(codes, kind="stable")
    ends = np.concatenate([[0], np.cumsum(np.bincount(codes, minlength=len(names)))]).astype(np.int64)
    return Items(tuple(part[order] for part in parts), ends)


def _columns(data: Data) -> list[str] | None:
    """Names of a table's columns: of a DataFrame, or a Dataset of Hugging Face; None for what is no table."""
    if hasattr(data, "columns"):
        return [str(name) for name in data.columns]
    return list(data.column_names) if hasattr(data, "column_names") and hasattr(data, "with_format") else None


def _read(data: Data, names: list[str]) -> dict[str, Array]:
    """Columns of a table as arrays, (N,) or, where entries are arrays of one shape, (N, ...)."""
    found = data if hasattr(data, "columns") else data.select_columns(names).with_format("numpy")[:]
    return {name: _dense(name, np.asarray(found[name])) for name in names}


def _dense(name: str, column: Array) -> Array:
    if column.dtype != object or not len(column) or np.ndim(column[0]) == 0:
        return column
    try:
        return np.stack(list(column))
    except ValueError as error:
        raise DataError(f"Expected entries of one shape in the column {name}, got several. Pad them.") from error


def _features(columns: list[Array]) -> list[Array]:
    """Columns of numbers are one array (N, p) of float32; each column of arrays is one of its own, of its own type."""
    if all(column.ndim == 1 and column.dtype != object for column in columns):
        try:
            return [np.column_stack([column.astype(np.float32) for column in columns])]
        except ValueError:  # whose words quote a value
            raise DataError("Expected features of numbers, got a column with some that are none. Encode it.") from None
    return [_numbers(column) for column in columns]


def _parts(data: Data) -> list[Array]:
    arrays = isinstance(data, tuple | list | str | Mapping) or hasattr(data, "dtype")
    if not arrays and hasattr(data, "__getitem__") and hasattr(data, "__len__"):  # a Dataset
        rows = [data[index] for index in range(len(data))]
        if not rows:
            raise DataError("Expected a Dataset with items, got an empty one.")
        rows = [row if isinstance(row, tuple | list) else (row,) for row in rows]
        return [_numbers(np.stack([_array(row[place]) for row in rows])) for place in range(len(rows[0]))]
    given = data if isinstance(data, tuple | list) else (data,)
    if not given:
        raise DataError("Expected at least one array of items, got none.")
    return [_numbers(part) for part in given]


def _array(part: Any) -> Array:
    """Of an array, or of a tensor anywhere."""
    return np.asarray(part.numpy(force=True) if hasattr(part, "detach") else part)


def _numbers(part: Any) -> Array:
    try:
        found = _array(part).copy()  # which nobody else writes
    except (TypeError, ValueError) as error:
        raise DataError(f"Expected numbers, got {type(part).__name__} that numpy cannot hold.") from error
    if found.dtype.kind not in "biuf":
        raise DataError(f"Expected numbers, got entries of type {found.dtype}. Encode and pad them.")
    if found.ndim == 0:
        raise DataError("Expected one entry an item, got a single number.")
    return found.astype(np.float32) if found.dtype == np.float64 else found


def _checked_offsets(offsets: Array, size: int) -> NDArray[np.int64]:
    good = offsets.ndim == 1 and len(offsets) >= 2 and np.issubdtype(offsets.dtype, np.integer)
    if not good or offsets[0] != 0 or offsets[-1] != size or (np.diff(offsets) < 0).any():
        raise DataError(f"Expected offsets that ascend from 0 to the {size} items, one more than users.")
    return offsets.astype(np.int64)
