"""A table's columns, value by value: each is read as the table below says, whatever else the column holds.

>>> table = pa.table({"age": ["50", " 7e1 ", "old", ""], "ward": [1.0, None, 2.0, 2.5]})
>>> numbers(table, "age").tolist()
[50.0, 70.0, nan, nan]
>>> texts(table, "ward").to_pylist()
['1', None, '2', '2.5']

A missing or repeated column, and one that holds neither numbers nor text, is an error: a table's columns are public.
A value is not.

What one value of a table is as text and as a number: a function of that value alone, not of its column.

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

import difflib
import math
import re
from collections.abc import Collection, Iterable, Sequence
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from quoron_client.data.formats import DECIMAL
from quoron_privacy.arrays import Vector
from quoron_privacy.errors import DataError
from quoron_privacy.kernels.threads import in_pieces

_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)
_COMMA = re.compile(r"[-+]?((\d+|\d{1,3}(\.\d{3})+)(,\d*)?|,\d+)([eE][-+]?\d+)?", re.ASCII)
UNREAD = "\uf780", "\uf7ff"  # the first and the last sign of a byte that is no UTF-8
_TRUE, _FALSE = frozenset({"true", "True", "TRUE"}), frozenset({"false", "False", "FALSE"})
_DIGITS = 400  # a Decimal of more is beyond float64, and can have more digits than memory
_FEW = 64  # texts
_PERHAPS = r"^[-+.,eE\d]+$|^(?i:true|false)$|[^\x00-\x7f]"  # all that says a number
_BLANKS = " \t\n\v\f\r\x1c\x1d\x1e\x1f"
_EXPONENT = r"(?:[eE][-+]?\d{1,2})?$"
_PLAIN = {  # neither beyond float64 nor below its normal numbers
    ".": rf"^[-+]?(?:\d{{1,99}}(?:\.\d{{0,99}})?|\.\d{{1,99}}){_EXPONENT}",
    ",": rf"^[-+]?(?:(?:\d{{1,99}}|\d{{1,3}}(?:\.\d{{3}}){{1,30}})(?:,\d{{0,99}})?|,\d{{1,99}}){_EXPONENT}",
}
_PIECE = 1 << 17  # texts that a thread reads at a time
_WIDTH = 8  # a text takes as long as so many numbers that are read


def text(value: object) -> str | None:
    """Return one value of any type as text, None where it is missing; never raises for what a value does."""
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


def text_array(values: Iterable[object]) -> pa.Array:
    """Return values of any types as text, (N,) large strings, null where they are missing."""
    return pa.array([text(value) for value in values], pa.large_string())


def number(value: object) -> float:
    """Return one value of any type as a number: NaN where it is no finite one."""
    found = text(value)
    return math.nan if found is None else parsed(found)


def parsed(text: str, decimal: str = ".") -> float:
    """Return the number that a text says, with a decimal point or comma: NaN where it is no finite one."""
    text = text.strip()
    if text in _TRUE or text in _FALSE:
        return float(text in _TRUE)
    if decimal == ",":
        text = text.replace(".", "").replace(",", ".") if _COMMA.fullmatch(text) else ""
    value = float(text) if _NUMBER.fullmatch(text) else math.nan
    return value if math.isfinite(value) else math.nan


def parsed_texts(values: pa.Array, decimal: str) -> NDArray[np.float64]:
    """Return what large texts (N,) say, (N,): NaN for null and for what is no finite number. No value raises."""
    if pa.types.is_dictionary(values.type):
        numbers = np.append(parsed_texts(values.dictionary, decimal), np.nan)
        return np.asarray(numbers[codes(values)], np.float64)
    found = np.empty(len(values))
    in_pieces(partial(_parse, values, decimal, found), len(values), _WIDTH, _PIECE)
    return found


def _parse(values: pa.Array, decimal: str, found: Vector, first: int, last: int) -> None:
    """Write the numbers of some texts: Arrow's, of those that are plainly written, else `parsed` of different ones."""
    texts, left = values.slice(first, last - first), np.empty(0, np.int64)
    texts = pc.if_else(pc.equal(texts, ""), None, texts)
    numbers = cast(texts, pa.float64()) if decimal == "." else None
    if numbers is None:
        trimmed = pc.ascii_trim(texts, _BLANKS)
        plain = pc.match_substring_regex(trimmed, _PLAIN[decimal])
        left = np.flatnonzero(pc.fill_null(pc.invert(plain), False).to_numpy(zero_copy_only=False))
        perhaps = pc.match_substring_regex(trimmed.take(pa.array(left)), _PERHAPS)
        left = left[perhaps.to_numpy(zero_copy_only=False)]
        trimmed = pc.ascii_ltrim(pc.if_else(plain, trimmed, None), "+")
        if decimal == ",":
            trimmed = pc.replace_substring(pc.replace_substring(trimmed, ".", ""), ",", ".")
        numbers = trimmed.cast(pa.float64())
    piece = np.asarray(numbers.to_numpy(zero_copy_only=False), np.float64)
    piece = np.where(np.isfinite(piece), piece, np.nan)
    if len(left):
        rest = texts.take(pa.array(left)).cast(pa.large_binary()).dictionary_encode()  # it may be no UTF-8
        others = [parsed(text.decode(errors="replace"), decimal) for text in rest.dictionary.to_pylist()]
        piece[left] = np.array(others)[codes(rest)]
    found[first:last] = piece


def cast(texts: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """Texts as Arrow reads them; None where it cannot read one: that takes long of each, so a few are tried first."""
    try:
        texts.slice(0, _FEW).cast(kind)
        return texts.cast(kind)
    except pa.ArrowInvalid:
        return None


def codes(values: pa.DictionaryArray) -> NDArray[np.int64]:
    """Return each value's place in its dictionary, (N,): -1 where there is none, whatever type places are stored as."""
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


NO_ROWS = (
    "Expected a table with rows, got an empty one, or one in which no row has as many cells as the first, which names "
    "the columns. Write it so."
)
MANY, LONG = 20, 60  # columns, and letters of a name, in an error


def column(table: pa.Table, name: str) -> pa.Array:
    """Return one column without dictionary encoding; DataError lists the columns where it is missing.

    Text is large: a column may have more of it than 2 GiB. What is no UTF-8 in it has a sign in place of what cannot be
    read: one user's bytes are no error of a table.
    """
    chunks = table.column(_place(table, name))
    if _family(chunks.type) == "text":
        return _readable(chunks)
    if not pa.types.is_dictionary(chunks.type):
        return chunks.combine_chunks()
    # Each by itself: what words several dictionaries have together decides whether Arrow can make one of them.
    parts = [chunk.dictionary_decode() for chunk in chunks.chunks]
    return pa.chunked_array(parts, chunks.type.value_type).combine_chunks()


def users(table: pa.Table, name: str) -> pa.Array:
    """Return the column of users, as `column` does, of types that can be counted and ordered. DataError for others.

    0.0 and -0.0 are one user: equal numbers are.
    """
    values = column(table, name)
    if isinstance(values.type, pa.BaseExtensionType):  # such as a UUID, whose bytes are whose it is
        values = values.storage
    if any(fit(values.type) for fit in _UNORDERED):
        raise DataError(f"Expected column {name!r} to say whose a row is, as numbers or text, got type {values.type}.")
    if pa.types.is_decimal(values.type) and values.type.bit_width < 128:
        return values.cast(pa.decimal128(values.type.precision, values.type.scale))
    if not pa.types.is_floating(values.type):
        return values
    values = values.cast(pa.float32()) if pa.types.is_float16(values.type) else values
    return pc.add(values, pa.scalar(0, values.type))


def check(table: pa.Table, name: str) -> None:
    """Raise DataError unless the table has the column once, of numbers or of text; reads no value."""
    if _family(table.schema.field(_place(table, name)).type) is None:
        kind = table.column(name).type
        raise DataError(f"Expected column {name!r} to hold numbers or text, got type {kind}. {_fix(kind)}")


def somebodys(values: pa.Array) -> pa.Array:
    """Return which rows of a user column are somebody's: not those that are null, an empty text or no number."""
    here = pc.is_valid(values)
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):  # empty: so are a CSV file's fields
        here = pc.and_(here, pc.fill_null(pc.not_equal(values, ""), False))
    elif pa.types.is_floating(values.type):
        here = pc.and_(here, pc.invert(pc.fill_null(pc.is_nan(values), True)))
    return here


def check_users(values: pa.Array, name: str) -> None:
    """Raise DataError for a row of a user column that is nobody's, without how many are: that is private."""
    if somebodys(values).false_count:
        raise DataError(
            f"Expected a user in every row of column {name!r}, got some that are null or empty. Leave these rows out, "
            "or say whose they are."
        )


def numbers(table: pa.Table, name: str) -> Vector:
    """Return a column as float64, shape (N,): NaN where a value is no finite number. True and false are 1 and 0.

    Text is parsed value by value, as decimal numbers, with the comma of the table's dialect, or true and false. Raises
    DataError as `check` does.
    """
    check(table, name)
    chunks = table.column(_place(table, name))
    if _family(chunks.type) == "text":
        decimal = (table.schema.metadata or {}).get(DECIMAL, b".").decode()
        parts = [parsed_texts(large(chunk), decimal) for chunk in chunks.chunks]
        return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0), *parts])
    values = column(table, name)
    if pa.types.is_decimal(values.type):
        return parsed_texts(texts(table, name), ".")
    cast = values.cast(pa.float64(), safe=False)
    if pa.types.is_integer(values.type) and not values.null_count:
        return stored(cast).copy()
    found = np.asarray(cast.to_numpy(zero_copy_only=False), np.float64) if cast.null_count else stored(cast)
    return np.where(np.isfinite(found), found, np.nan)


def stored(values: pa.Array) -> NDArray[Any]:
    """Return integers or float32 or float64 without nulls where they are, shape (N,), not to be written.

    What `to_numpy` gives, without pandas, which that imports.
    """
    kind = np.dtype(values.type.to_pandas_dtype())
    whole: NDArray[Any] = np.frombuffer(values.buffers()[1] or b"", kind)
    return whole[values.offset : values.offset + len(values)]


def texts(table: pa.Table, name: str) -> pa.Array:
    """Return a column as text, shape (N,): null where a value is missing or empty; whole numbers have no decimal point.

    Raises DataError as `check` does.
    """
    check(table, name)
    values = column(table, name)
    if _family(values.type) == "text":
        return pc.if_else(pc.equal(values, ""), pa.scalar(None, pa.large_string()), values)
    if pa.types.is_decimal(values.type):
        return text_array(values.to_pylist())
    if not pa.types.is_floating(values.type):
        return values.cast(pa.large_string())
    coded = values.cast(pa.float64(), safe=False).dictionary_encode()
    return text_array(coded.dictionary.to_pylist()).take(coded.indices)


def letters(values: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the bytes of large text, and where each of N values begins and the last ends (N + 1,); not to be written.

    A null's place among them means nothing.
    """
    _, ends, data = values.buffers()
    whole = np.frombuffer(ends or bytes(8), np.int64)[values.offset :][: len(values) + 1]
    return np.frombuffer(data or b"", np.uint8), whole


def kind(table: pa.Table, name: str) -> pa.DataType:
    """Return the type of a column's values, as `column` gives them."""
    check_name(name, table.column_names)
    found = table.schema.field(name).type
    return found.value_type if pa.types.is_dictionary(found) else found


def is_plain(kind: pa.DataType) -> bool:
    """Return whether values of a type are numbers or text."""
    return _family(kind) is not None


def is_text(kind: pa.DataType) -> bool:
    """Return whether values of a type are text, or the bytes of some."""
    return _family(kind) == "text"


def missing(values: pa.Array) -> NDArray[np.bool_]:
    """Return which values (N,) are null."""
    return np.asarray(values.is_null().to_numpy(zero_copy_only=False))


def places(table: pa.Table, name: str, vocabulary: Sequence[str | int]) -> NDArray[np.int64]:
    """Return every value's place in the vocabulary, -1 for others, shape (N,). Raises DataError as `check` does."""
    if isinstance(vocabulary[0], str):
        values, known = texts(table, name), pa.array(vocabulary, pa.large_string())
    else:
        found = numbers(table, name) + 0.0  # which makes 0.0 of -0.0
        values, known = pa.array(found), pa.array([float(value) for value in vocabulary], pa.float64())
    which = pc.fill_null(pc.index_in(values, value_set=known, skip_nulls=True), -1)
    return np.asarray(which.to_numpy(zero_copy_only=False), np.int64)


def _family(kind: pa.DataType) -> str | None:
    """Return what a column's values can be read as; one of nulls only has no type of its own."""
    if pa.types.is_dictionary(kind):
        return _family(kind.value_type)
    if any(fit(kind) for fit in _TEXT):
        return "text"
    fits = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_null, pa.types.is_decimal)
    return "numbers" if any(fit(kind) for fit in fits) else None


_UNORDERED = (pa.types.is_nested, pa.types.is_interval, pa.types.is_run_end_encoded)
_TEXT = (
    *(pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
    *(pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary),
)


def _fix(kind: pa.DataType) -> str:
    """Return what to do about a column whose type is neither numbers nor text."""
    if pa.types.is_dictionary(kind):
        return _fix(kind.value_type)
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind) or pa.types.is_time(kind):
        return (
            "A date or a time is a feature by its parts: dates = { column = ['month', 'weekday'] }. For anything else "
            "convert it to text."
        )
    if pa.types.is_duration(kind) or pa.types.is_interval(kind):
        return "Convert it to a number of one unit, such as days."
    if pa.types.is_nested(kind):
        return "Make a column of each of its elements that matter."
    return "Convert it."


def large(text: pa.Array) -> pa.Array:
    """As text of which a column may have more than 2 GiB; bytes are taken for UTF-8, which nobody has looked at."""
    if pa.types.is_dictionary(text.type):
        return pa.DictionaryArray.from_arrays(text.indices, large(text.dictionary))
    if any(fit(text.type) for fit in _TEXT[3:]):
        return text.cast(pa.large_binary()).view(pa.large_string())
    return text.cast(pa.large_string())


def _readable(values: pa.ChunkedArray) -> pa.Array:
    """Text of any kind as large text that is UTF-8."""
    parts = [large(chunk) for chunk in values.chunks]
    text = pa.chunked_array(parts, None if parts else pa.large_string()).cast(pa.large_string()).combine_chunks()
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        return text_array(text.cast(pa.large_binary()).to_pylist())
    return text


def _place(table: pa.Table, name: str) -> int:
    places = table.schema.get_all_field_indices(name)
    if len(places) != 1:
        check_name(name, table.column_names)
    return int(places[0])


def check_name(name: str, names: Sequence[str], wanted: Collection[str] = ()) -> None:
    """Raise DataError unless a table with these `names` of columns has this one, once.

    The first row of a file without a header is somebody's, so names are shown only where one that is `wanted` is there.
    """
    repeats = [*names].count(name)
    if repeats > 1:
        raise DataError(f"Expected one column {name!r} in the table, got {repeats}. Rename them.")
    if repeats == 1:
        return
    alike = [other for other in names if other.strip().casefold() == name.strip().casefold()]
    if {*wanted}.isdisjoint(names):
        case = f" One differs from {name!r} in upper and lower case or spaces alone." if alike else ""
        raise DataError(
            f"Expected column {name!r} in the table, got none of the wanted columns in its header, which may be "
            "somebody's row and is not shown. Write the names of the columns above the rows: they are compared letter "
            f"by letter, spaces too.{case}"
        )
    near = alike or difflib.get_close_matches(name, names, 1)
    mend = "The table's first row has to name its columns; a name that is said has to be one of them."
    if near:
        mend = f"Did you mean {near[0]!r}? Names are compared letter by letter, spaces too."
    raise DataError(f"Expected column {name!r} in the table, got {_names(list(names))}. {mend}")


def _names(names: list[str]) -> str:
    """Return a table's columns for an error; a first row with numbers is a user's row, and is not shown."""
    if any(not math.isnan(number(name)) for name in names):
        return "columns whose names are numbers"
    first = [(name.splitlines() or [""])[0] for name in names[:MANY]]  # in quotes that never close there may be rows
    shown = [line if line.isprintable() and len(line) <= LONG else repr(line[:LONG]) for line in first]
    more = f" and {len(names) - MANY:,} more" if len(names) > MANY else ""
    return f"columns {', '.join(shown)}{more}"
