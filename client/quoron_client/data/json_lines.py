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
| bytes that are no UTF-8, half a letter   | a value of its cell with a sign in their place                            |
| a line of more than 256 MiB              | DataError for the whole file                                              |

A line ends at LF alone: JSON has none within a text. There is no header, and keys of rows are values: columns are those
that are declared, and one that no row has is missing in all.
"""

import json
from collections.abc import Collection, Iterator
from typing import Any

import pyarrow as pa

from quoron_client.data import cells
from quoron_client.data.dialect import Dialect
from quoron_client.data.text_file import TextFile
from quoron_privacy.errors import DataError

LONGEST = 1 << 28  # bytes of a line
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
            if lines.strip():
                yield _table(lines, list(wanted))
            if not more:
                break
        file.check()


def keys(file: TextFile, dialect: Dialect) -> list[str]:
    """The keys of the first rows: values of theirs, and no columns of the table."""
    with file.reading(dialect) as read:
        rows = filter(None, map(_row, read(_PIECE).removeprefix(_BOM).split(b"\n")))
        return list(dict.fromkeys(key for row in rows for key in row))


def _table(lines: bytes, wanted: list[str]) -> pa.Table:
    found = [row for row in map(_row, lines.split(b"\n")) if row is not None]
    return pa.table({name: pa.array([row.get(name) for row in found], pa.large_string()) for name in wanted})


def _row(line: bytes) -> dict[str, str | None] | None:
    """What a line says, key by key, as text; None where it is no object."""
    try:
        said = json.loads(line.decode(errors="replace"), parse_int=_whole)
    except Exception:  # no JSON, or nested more deeply than can be read
        return None
    return {key: _said(value) for key, value in said.items()} if isinstance(said, dict) else None


def _said(value: Any) -> str | None:
    if isinstance(value, _Whole):
        return str(value)
    return None if isinstance(value, dict | list) else cells.text(value)


class _Whole(str):
    """Digits of a whole number, of which there may be more than an integer is read from."""

    __slots__ = ()


def _whole(digits: str) -> _Whole:
    return _Whole("0" if digits == "-0" else digits)
