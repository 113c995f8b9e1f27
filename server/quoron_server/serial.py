"""States as bytes: frozen dataclasses of arrays and plain values, written as a protobuf record, never pickled.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Counter:
    ...     round: int
    >>> decode(Counter, encode(Counter(round=3)))
    Counter(round=3)

The encoding is deterministic, so equal states are equal bytes.
"""

from dataclasses import fields
from typing import Any, TypeVar

import numpy as np

from quoron_protos.errors import LedgerError, OtherVersion
from quoron_protos.v1 import values_pb2 as wire

T = TypeVar("T")
_DTYPES = {"bool", "uint8", "int64", "uint64", "float32", "float64"}


def encode(state: Any) -> bytes:
    """A frozen dataclass instance as bytes; its fields are arrays, numbers, strings, booleans or None."""
    record = wire.Record(type=type(state).__name__)
    for item in fields(state):
        record.fields[item.name].CopyFrom(_value(item.name, getattr(state, item.name)))
    return bytes(record.SerializeToString(deterministic=True))


def decode(kind: type[T], data: bytes) -> T:
    """The instance of dataclass `kind` that `encode` wrote; OtherVersion if these bytes are not one."""
    try:
        record = wire.Record.FromString(data)
    except Exception as error:
        raise OtherVersion(f"Expected a stored {kind.__name__}, got {len(data)} unreadable bytes.") from error
    names = {item.name for item in fields(kind)}  # type: ignore[arg-type]
    if record.type != kind.__name__ or set(record.fields) != names:
        raise OtherVersion(f"Expected a stored {kind.__name__} with fields {sorted(names)}, got {record.type!r}.")
    return kind(**{name: _python(value) for name, value in record.fields.items()})


def _value(name: str, value: Any) -> wire.Value:
    if value is None:
        return wire.Value(absent=True)
    if isinstance(value, (bool, np.bool_)):
        return wire.Value(flag=bool(value))
    if isinstance(value, (int, np.integer)):
        return wire.Value(integer=int(value))
    if isinstance(value, (float, np.floating)):
        return wire.Value(real=float(value))
    if isinstance(value, str):
        return wire.Value(text=value)
    if isinstance(value, np.ndarray) and value.dtype.name in _DTYPES:
        little = np.ascontiguousarray(value, dtype=value.dtype.newbyteorder("<"))
        return wire.Value(array=wire.Array(dtype=value.dtype.name, shape=value.shape, data=little.tobytes()))
    raise LedgerError(f"Expected an array or a plain value in field {name}, got {type(value).__name__}.")


def _python(value: wire.Value) -> Any:
    kind = value.WhichOneof("kind")
    if kind == "absent":
        return None
    if kind != "array":
        return getattr(value, str(kind))
    array = value.array
    if array.dtype not in _DTYPES:
        raise OtherVersion(f"Expected a dtype in {sorted(_DTYPES)}, got {array.dtype!r}.")
    dtype = np.dtype(array.dtype)
    flat = np.frombuffer(array.data, dtype=dtype.newbyteorder("<")).astype(dtype)
    return flat.reshape(tuple(array.shape))
