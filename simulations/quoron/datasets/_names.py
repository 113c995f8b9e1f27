"""Users of neighbouring rows, run by run, and a digest by which a row group's user column is known again.

    whose = Names()
    for batch in row_group: whose.add(batch)
    whose.digest() == indexed      # the same users, with as many rows in the same order

The digest is of the runs (a name, and how many rows in a row it has), whatever the batches in which they come. It is
BLAKE2b: nobody finds other users with the same one.
"""

import hashlib
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from quoron_client.data import columns


def column(table: pa.Table, user: str) -> pa.Array:
    """The user column, (rows,): names whose bytes no array of 32-bit offsets could hold together are told apart too."""
    values = columns.users(table, user)
    text = pa.types.is_string(values.type) or pa.types.is_string_view(values.type)
    return values.cast(pa.large_string()) if text else values


def runs(values: pa.Array) -> tuple[pa.Array, NDArray[np.int64]]:
    """Names of neighbouring rows of one user (R,), and how many there are of each (R,)."""
    changes = pc.not_equal(values[1:], values[:-1]).to_numpy(zero_copy_only=False)
    starts = np.concatenate([[0], np.flatnonzero(changes) + 1])
    return values.take(pa.array(starts)), np.diff(starts, append=len(values))


class Names:
    """The digest of the user column of one row group, batch by batch."""

    def __init__(self) -> None:
        self._bytes, self._shape = (hashlib.blake2b(digest_size=32) for _ in range(2))
        self._last: pa.Array | None = None  # the run that may go on
        self._rows = 0  # of it
        self._nobody = False

    def add(self, values: pa.Array) -> None:
        """The next rows."""
        if values.null_count:
            self._nobody = True
        if self._nobody or not len(values):
            return
        found, counts = runs(values)
        if self._last is not None and self._last[0] == found[0]:
            counts[0] += self._rows
        else:
            self._end()
        self._tell(found[:-1], counts[:-1])
        self._last, self._rows = found[-1:], int(counts[-1])

    def digest(self) -> str:
        """Hexadecimal digits; "" where a row has no user."""
        self._end()
        self._last = None
        if self._nobody:
            return ""
        return hashlib.blake2b(self._bytes.digest() + self._shape.digest(), digest_size=32).hexdigest()

    def _end(self) -> None:
        if self._last is not None:
            self._tell(self._last, np.array([self._rows]))

    def _tell(self, found: pa.Array, counts: NDArray[np.int64]) -> None:
        encoded, lengths = _bytes(found)
        self._bytes.update(encoded)
        self._shape.update(np.stack([counts, lengths], axis=1).astype("<i8").tobytes())


def _bytes(names: pa.Array) -> tuple[Any, NDArray[np.int64]]:
    """What names hold, one after the other, and how many bytes each has (R,)."""
    kind = names.type
    if not len(names):
        return b"", np.empty(0, np.int64)
    if pa.types.is_boolean(kind):
        names, kind = names.cast(pa.uint8()), pa.uint8()
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary(kind):
        offset = np.int32 if pa.types.is_binary(kind) else np.int64
        _, ends, data = names.buffers()
        at = np.frombuffer(ends, offset)[names.offset : names.offset + len(names) + 1].astype(np.int64)
        return (b"" if data is None else memoryview(data)[at[0] : at[-1]]), np.diff(at)
    if pa.types.is_primitive(kind) or pa.types.is_fixed_size_binary(kind) or pa.types.is_decimal(kind):
        width = kind.bit_width // 8
        first, last = names.offset * width, (names.offset + len(names)) * width
        return memoryview(names.buffers()[1])[first:last], np.full(len(names), width)
    each = [repr(name).encode() for name in names.to_pylist()]
    return b"".join(each), np.array([len(name) for name in each])
