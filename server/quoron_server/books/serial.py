"""States as bytes: frozen dataclasses of arrays and plain values, written as a protobuf record, never pickled.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Counter:
    ...     round: int
    >>> decode(Counter(0), encode(Counter(round=3)))
    Counter(round=3)

A state may hold other states, such as that of a mechanism: the field `x` of `inner` is stored as `inner.x`, and `inner`
as the name of its class. The encoding is deterministic, so equal states are equal bytes.
"""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import numpy as np

from quoron_privacy.errors import LedgerError, OtherVersion
from quoron_protos.v1 import values_pb2 as wire

T = TypeVar("T")
_DTYPES = {"bool", "uint8", "int64", "uint64", "float32", "float64"}


def encode(state: Any) -> bytes:
    """A frozen dataclass instance as bytes; its fields are arrays, plain values, None or such instances."""
    record = wire.Record(type=type(state).__name__)
    for name, value in _flat(state):
        record.fields[name].CopyFrom(_value(name, type(value).__name__ if is_dataclass(value) else value))
    return bytes(record.SerializeToString(deterministic=True))


def decode(like: T, data: bytes) -> T:
    """The instance that `encode` wrote; OtherVersion if these bytes are none of the class of `like`.

    `like` is any state of the same run, the initial one for example: it says which classes the states in it have.
    """
    kind = type(like).__name__
    try:
        record = wire.Record.FromString(data)
    except Exception as error:
        raise OtherVersion(f"Expected a stored {kind}, got {len(data)} unreadable bytes.") from error
    names = {name for name, _ in _flat(like)}
    if record.type != kind or set(record.fields) != names:
        raise OtherVersion(f"Expected a stored {kind} with fields {sorted(names)}, got {record.type!r}.")
    return _built(like, {name: _python(value) for name, value in record.fields.items()}, "")


def _flat(state: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Fields by their whole names; what holds fields comes before them."""
    for item in fields(state):
        name, held = f"{prefix}{item.name}", getattr(state, item.name)
        yield name, held
        if is_dataclass(held):
            yield from _flat(held, f"{name}.")


def _built(like: T, stored: dict[str, Any], prefix: str) -> T:
    found = {}
    for item in fields(like):  # type: ignore[arg-type]
        name, held = f"{prefix}{item.name}", getattr(like, item.name)
        if is_dataclass(held) and stored[name] != type(held).__name__:
            raise OtherVersion(f"Expected a stored {type(held).__name__} in field {name}, got {stored[name]!r}.")
        found[item.name] = _built(held, stored, f"{name}.") if is_dataclass(held) else stored[name]
    return type(like)(**found)


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
