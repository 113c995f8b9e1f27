"""JSON lines: a line is a row, whatever it holds, so nobody's bytes are in another's row.

| in the file                              | what happens                                                              |
| ---------------------------------------- | ------------------------------------------------------------------------- |
| a line with an object                    | a row: what it says of the columns that are asked for                     |
| a key that is not there, null            | missing                                                                   |
| a number, true, false                    | as a value of that type (`cells`): 1.0 and 1 are one category             |
| an object or a list as a value           | missing                                                                   |
| a key twice                              | the last counts                                                           |
| a line that is no object, or no JSON     | no row, as one of another number of cells in a CSV file; and no other     |
| an empty line                            | no row                                                                    |
| bytes that are no UTF-8, half a letter   | a value of its cell with a sign for each                                  |
| a line of more than 2^22 values          | no row: they would take fifty times its memory                            |
| a line of more than 256 MiB              | DataError for the whole file                                              |

A line ends at LF alone: JSON has none within a text. There is no header, and keys of rows are values: columns are those
that are declared, and one that no row has is missing in all.
"""

import json
import re
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from quoron_client.data import cells
from quoron_client.data.formats import Dialect
from quoron_client.data.text_file import TextFile
from quoron_privacy.errors import DataError

LONGEST = 1 << 28  # bytes of a line
MOST = 1 << 22  # values in a line, keys too
_PIECE = 1 << 20  # bytes that are read at a time
_BOM = b"\xef\xbb\xbf"


def batches(file: TextFile, dialect: Dialect, wanted: Collection[str]) -> Iterator[pa.Table]:
    """These columns as large text: some rows at a time."""
    with file.reading(dialect) as read:
        left, first = b"", True
        while True:
            more = read(max(_PIECE, len(left)))
            whole = left + more
            end = whole.rfind(b"\n") + 1 if more else len(whole)
            lines, left = whole[:end], whole[end:]
            if first:
                lines, first = lines.removeprefix(_BOM), not end
            if len(left) > LONGEST:
                raise DataError(f"Expected {file.name!r} to be JSON lines, got a line of more than 256 MiB.")
            start = 0
            while start < len(lines):  # beside a long line there may be as many bytes of short ones
                stop = lines.find(b"\n", start + _PIECE) + 1 or len(lines)
                if (some := lines[start:stop]).strip():
                    yield table(some, list(wanted))
                start = stop
            if not more:
                break
        file.check()


def keys(file: TextFile, dialect: Dialect) -> list[str]:
    """The keys of the first rows: values of theirs, and no columns of the table."""
    with file.reading(dialect) as read:
        rows = filter(None, map(_row, read(_PIECE).removeprefix(_BOM).split(b"\n")))
        return list(dict.fromkeys(key for row in rows for key in row))


def table(lines: bytes, wanted: list[str]) -> pa.Table:
    """What whole lines say of these columns, as large text: a row for each that is an object."""
    rows = [row for row in map(_row, lines.split(b"\n")) if row is not None]
    return pa.table({name: _column([row.get(name) for row in rows]) for name in wanted})


def _row(line: bytes) -> dict[str, Any] | None:
    """What a line says, key by key, numbers being text; None where it is no object."""
    if len(line) > MOST and _values(line) > MOST:
        return None
    try:
        said = _DECODER.decode(cells.readable(line).decode())
    except MemoryError:  # nothing is wrong with the line
        raise
    except Exception:  # no JSON, or nested more deeply than can be read
        return None
    return said if isinstance(said, dict) else None


def _values(line: bytes) -> int:
    """How many values a line has at most: signs before values, outside of texts."""
    signs = np.frombuffer(line.replace(rb"\\", b"").replace(rb"\"", b""), np.uint8)
    between = np.zeros(256, np.bool_)
    between[[*b",:[{"]] = True
    outside = np.cumsum(signs == ord('"'), dtype=np.uint8) & 1 == 0
    return int(np.count_nonzero(between[signs] & outside))


def _column(values: list[Any]) -> pa.Array:
    try:
        return pa.array(values, pa.large_string())
    except (pa.ArrowException, UnicodeEncodeError, TypeError):  # some are neither text nor numbers, or half a letter
        return cells.texts(None if isinstance(each, dict | list) else each for each in values)


def _whole(digits: str) -> str:
    """An integer of JSON as text: there may be more digits than an integer is read from."""
    return "0" if digits == "-0" else digits


def _fraction(digits: str) -> str | None:
    """Any other number of JSON as text, as of its float64."""
    return digits if _SHORTEST.fullmatch(digits) else cells.text(float(digits))


# A number of 15 digits or fewer that `repr` would write so, too.
_SHORTEST = re.compile(r"-?(?!0\.0000)(0|[1-9]\d{0,8})\.\d{0,5}[1-9]", re.ASCII)
_DECODER = json.JSONDecoder(parse_int=_whole, parse_float=_fraction)
