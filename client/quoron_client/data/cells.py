"""What one value of a table is as text and as a number: a function of that value alone, not of its column.

| value                                             | as text                              | as a number               |
| ------------------------------------------------- | ------------------------------------ | ------------------------- |
| None, NaN of any type, NA, NaT                    | missing                              | missing                   |
| text                                              | itself; missing if empty             | what it says, see below   |
| bytes                                             | the UTF-8 that they are              | as that text              |
| true, false                                       | `true`, `false`                      | 1, 0                      |
| whole number of any type, 1.0 and Decimal too     | its digits, `1`                      | the nearest float64       |
| any other finite number                           | the shortest text of its float64     | its float64               |
| infinite                                          | `inf`, `-inf`                        | missing                   |
| anything else, such as a date                     | what `str` says; missing if it fails | as that text              |

Text says a number if it is a decimal one, such as ` -7e1 `, or true or false; else it says none. Where a decimal comma
is declared, `-3,14` and `1.234,5` are such numbers: points may stand between groups of three digits. What is no text in
UTF-8, such as half a character, has a sign for each byte that cannot be read. So equal numbers of different types are
one category and one user, `1` and `"1"` too, but not `True`.
"""

import math
import re
import sys
from collections.abc import Iterable
from decimal import Decimal
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from quoron_privacy.kernels.on_first_use import OnFirstUse
from quoron_privacy.kernels.threads import in_pieces

_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)
_COMMA = re.compile(r"[-+]?((\d+|\d{1,3}(\.\d{3})+)(,\d*)?|,\d+)([eE][-+]?\d+)?", re.ASCII)
UNREAD = "\uf780", "\uf7ff"  # the first and the last sign of a byte that is no UTF-8
_TRUE, _FALSE = frozenset({"true", "True", "TRUE"}), frozenset({"false", "False", "FALSE"})
_DIGITS = 400  # a Decimal of more is beyond float64, and can have more digits than memory
_FEW = 1 << 11  # texts that are read before a compiler is loaded; once it is, those of a wide table's batches are more
_FEWER = 1 << 5
_PIECE = 1 << 17  # texts that a thread reads at a time
_WIDTH = 8  # a text takes as long as so many numbers that are read
_loops = OnFirstUse("quoron_client.data.number_loops")


def text(value: object) -> str | None:
    """One value of any type as text, None where it is missing; never raises for what a value does."""
    try:
        found = _text(value)
        return None if not found else readable(found.encode(errors="surrogatepass")).decode()
    except Exception:  # no truth value, no text: whatever somebody's object does, it is one unusable value
        return None


def readable(data: bytes) -> bytes:
    """As UTF-8: what is none has a sign for each byte, U+F780 to U+F7FF, so that different names stay different.

    >>> readable(b"M\\xfcller").decode()
    'M\\uf7fcller'
    """
    escaped = data.decode(errors="surrogateescape").encode(errors="surrogatepass")
    return escaped.replace(b"\xed\xb2", b"\xef\x9e").replace(b"\xed\xb3", b"\xef\x9f")


def texts(values: Iterable[object]) -> pa.Array:
    """Values of any types as text, (N,) large strings, null where they are missing."""
    return pa.array([text(value) for value in values], pa.large_string())


def number(value: object) -> float:
    """One value of any type as a number: NaN where it is no finite one."""
    found = text(value)
    return math.nan if found is None else parsed(found)


def parsed(text: str, decimal: str = ".") -> float:
    """The number that a text says, with a decimal point or comma: NaN where it is no finite one."""
    text = text.strip()
    if text in _TRUE or text in _FALSE:
        return float(text in _TRUE)
    if decimal == ",":
        text = text.replace(".", "").replace(",", ".") if _COMMA.fullmatch(text) else ""
    value = float(text) if _NUMBER.fullmatch(text) else math.nan
    return value if math.isfinite(value) else math.nan


def numbers(values: pa.Array, decimal: str) -> NDArray[np.float64]:
    """What large texts (N,) say, (N,): NaN for null and for what is no finite number. No value raises."""
    if pa.types.is_dictionary(values.type):
        each = np.append(numbers(values.dictionary, decimal), np.nan)
        return np.asarray(each[codes(values)], np.float64)
    if len(values) < (_FEWER if "numba" in sys.modules else _FEW):
        return _read(values, decimal)
    _, ends, letters = values.buffers()
    offsets = np.frombuffer(ends, np.int64)[values.offset :][: len(values) + 1]
    data = np.frombuffer(letters or b"\0", np.uint8)
    bits, unsure = np.empty(len(values), np.uint64), np.empty(len(values), np.uint8)
    loop = partial(_loops.numbers, offsets, data, ord(decimal), ord(".") if decimal == "," else -1, bits, unsure)
    in_pieces(loop, len(values), _WIDTH, _PIECE)
    found = bits.view(np.float64)
    if values.null_count:
        missing = values.is_null().to_numpy(zero_copy_only=False)
        found[missing], unsure[missing] = np.nan, 0
    left = np.flatnonzero(unsure)
    if len(left):
        coded = values.take(pa.array(left)).dictionary_encode()
        found[left] = _read(coded.dictionary, decimal)[coded.indices.to_numpy()]
    return found


def codes(values: pa.DictionaryArray) -> NDArray[np.int64]:
    """The place of each value in its dictionary, (N,): -1 where there is none, whatever type places are stored as."""
    places = pc.fill_null(values.indices.cast(pa.int64()), -1)
    return np.asarray(places.to_numpy(zero_copy_only=False), np.int64)


def _text(value: object) -> str | None:
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, float):
        if math.isnan(value):
            return None
        return str(int(value)) if value.is_integer() else float.__repr__(value)
    if value is None:
        return None
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return readable(bytes(value)).decode()
    if isinstance(value, np.floating):
        return _text(float(value))
    if isinstance(value, complex | np.complexfloating) and value.imag == 0:
        return _text(float(value.real))
    if isinstance(value, Decimal) and not value.is_nan():
        whole = value.is_finite() and value.adjusted() < _DIGITS and value == value.to_integral_value()
        return _text(int(value) if whole else float(value))
    if value != value:  # what is missing differs from itself; a library's NA has no truth value, and raises
        return None
    return str(value)


def _read(values: pa.Array, decimal: str) -> NDArray[np.float64]:
    texts = values.cast(pa.large_binary()).to_pylist()
    numbers = [np.nan if text is None else parsed(text.decode(errors="replace"), decimal) for text in texts]
    return np.array(numbers, np.float64)
