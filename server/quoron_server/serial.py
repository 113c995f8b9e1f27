"""States as bytes: frozen dataclasses of arrays and plain values, written as a protobuf record, never pickled.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Counter:
    ...     round: int
    >>> decode(Counter(0), encode(Counter(round=3)))
    Counter(round=3)

A state may hold other states, such as that of a mechanism: the field `x` of `inner` is stored as `inner.x`, and `inner`
as the name of its class. The encoding is deterministic, so equal states are equal bytes. What people and other
programs read is JSON, by `dumps`.
"""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import numpy as np

from quoron_privacy.errors import LedgerError, OtherVersion
from quoron_protos.v1 import values_pb2 as wire
from quoron_server.algorithm import names_of

T = TypeVar("T")
_DTYPES = {"b1": "bool", "u1": "uint8", "i8": "int64", "u8": "uint64", "f4": "float32", "f8": "float64"}


def encode(state: Any) -> bytes:
    """Return a frozen dataclass instance as bytes; its fields are arrays, plain values, None or such instances."""
    record = wire.Record(type=type(state).__name__)
    for name, value in _flat(state):
        _write(record.fields[name], name, value if names_of(type(value)) is None else type(value).__name__)
    return bytes(record.SerializeToString(deterministic=True))


def size(state: Any) -> int:
    """Return bytes of the arrays of a state, which are nearly all of `encode`'s."""
    return sum(value.nbytes for _, value in _flat(state) if isinstance(value, np.ndarray))


def decode(like: T, data: bytes) -> T:
    """Return the instance that `encode` wrote; OtherVersion if these bytes are none of the class of `like`.

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
    for own in names_of(type(state)) or ():
        name, held = f"{prefix}{own}", getattr(state, own)
        yield name, held
        if names_of(type(held)) is not None:
            yield from _flat(held, f"{name}.")


def _built(like: T, stored: dict[str, Any], prefix: str) -> T:
    found = {}
    for own in names_of(type(like)) or ():
        name, held = f"{prefix}{own}", getattr(like, own)
        nested = names_of(type(held)) is not None
        if nested and stored[name] != type(held).__name__:
            raise OtherVersion(f"Expected a stored {type(held).__name__} in field {name}, got {stored[name]!r}.")
        found[own] = _built(held, stored, f"{name}.") if nested else stored[name]
    return type(like)(**found)


def _write(stored: wire.Value, name: str, value: Any) -> None:
    if value is None:
        stored.absent = True
    elif isinstance(value, (bool, np.bool_)):
        stored.flag = bool(value)
    elif isinstance(value, (int, np.integer)):
        stored.integer = int(value)
    elif isinstance(value, (float, np.floating)):
        stored.real = float(value)
    elif isinstance(value, str):
        stored.text = value
    elif isinstance(value, np.ndarray) and (code := value.dtype.str[1:]) in _DTYPES:
        array, data = stored.array, np.ascontiguousarray(value, f"<{code}").tobytes()
        # Zeros, which sums are that have not begun, are their shape alone.
        array.dtype, array.data = _DTYPES[code], data if np.frombuffer(data, np.uint8).any() else b""
        array.shape.extend(value.shape)
    else:
        raise LedgerError(f"Expected an array or a plain value in field {name}, got {type(value).__name__}.")


def _python(value: wire.Value) -> Any:
    kind = value.WhichOneof("kind")
    if kind == "absent":
        return None
    if kind != "array":
        return getattr(value, str(kind))
    array = value.array
    if array.dtype not in _DTYPES.values():
        raise OtherVersion(f"Expected a dtype in {sorted(_DTYPES.values())}, got {array.dtype!r}.")
    dtype = np.dtype(array.dtype)
    if not array.data:
        return np.zeros(tuple(array.shape), dtype)
    flat = np.frombuffer(array.data, dtype=dtype.newbyteorder("<")).astype(dtype)
    return flat.reshape(tuple(array.shape))


def dumps(value: Any) -> str:
    """Strict JSON: numpy values as plain ones, non-finite numbers as null."""
    return json.dumps(_plain(value), allow_nan=False, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
