"""Files of text: CSV, whose rows are cells of text, so that no user's bytes are in another's row.

The bytes of a file of text, here or in a store, as UTF-8: unpacked, and decoded where they are something else.

What cannot be read has a sign in its place, in its own cell: no byte of a broken letter is a separator or a line end.
A file is read as it was when it was found: another size or time of change is an error, at its beginning and at its end.

The rows of a CSV file, all cells as text: no cell of one user moves the borders of another's rows.

| in the file                                   | what happens                                                       |
| --------------------------------------------- | ------------------------------------------------------------------ |
| a cell in quotes                              | whatever it holds, `,` and line ends too; a quote in it is doubled |
| a cell without quotes                         | ends at the next comma or line end                                 |
| the line end                                  | the header's: LF or CRLF alike, or CR alone                        |
| CR alone, outside quotes, where LF ends lines | a character that cannot be read (pandas writes them so)            |
| a row with another number of cells            | that row is skipped, and no other                                  |
| an empty line                                 | no row                                                             |
| a BOM, bytes that are no UTF-8                | left out; a value of its cell with a sign for each                 |
| a quote within a cell without quotes          | DataError for the whole file: it is malformed                      |
| something between a closing quote and a comma | the same                                                           |
| a quote that is never closed                  | the same                                                           |
| a row of more than 256 MiB                    | the same, at 512 MiB at the latest: it may be an unclosed quote    |

Dialect: RFC 4180, which lets no quote into a cell without quotes. So a row ends at the line ends after an even number
of quotes and nowhere else, which is found here; each piece of whole rows is then read by pyarrow. A file is checked to
its end before any of its rows is returned. docs/tables.md says what a malformed file means for the guarantee.
"""

import codecs
import csv
import gzip
import re
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
from numpy.typing import NDArray

from quoron_client.data import columns, files
from quoron_client.data.formats import Dialect, check_text, name_of
from quoron_privacy.errors import DataError

Read = Callable[[int], bytes]  # about so many bytes, b"" at the end


@dataclass(frozen=True, slots=True)
class TextFile:
    """A file of text, as it was when it was found."""

    source: str
    state: tuple[int, int]  # as `files.state` says
    zipped: bool

    @property
    def name(self) -> str:
        """For people."""
        return name_of(self.source)

    def check(self) -> None:
        """Raise DataError if it has changed since it was found."""
        if files.state(self.source) != self.state:
            raise DataError(f"Expected {self.name!r} as it was when it was opened, but it has changed. Begin again.")

    @contextmanager
    def reading(self, dialect: Dialect) -> Iterator[Read]:
        """What reads it from its beginning. DataError where it has changed."""
        self.check()
        system, path = files.reached(self.source)
        try:
            with system.open_input_stream(path, compression=None) as stored:
                stream: Any = gzip.GzipFile(fileobj=stored) if self.zipped else stored
                first = stream.read(2)
                encoding = dialect.of_bytes(first, self.name)
                yield _decoded(_with_first(first, stream.read), encoding)
        except MemoryError:
            raise
        except (pa.ArrowException, OSError, EOFError, zlib.error) as error:
            self.check()  # a file that has changed is the first thing to say
            raise files.unreadable(self.name, error) from None


def _with_first(first: bytes, read: Read) -> Read:
    left = [first]

    def again(size: int) -> bytes:
        more = read(size)
        return left.pop() + more if left else more

    return again


def _decoded(read: Read, encoding: str) -> Read:
    if encoding == "utf-8":
        return read
    decoder = codecs.getincrementaldecoder(encoding)(errors="replace")

    def decoded(size: int) -> bytes:
        while True:
            data = read(size)
            found = decoder.decode(data, final=not data).encode()
            if found or not data:
                return found

    return decoded


LONGEST = 1 << 28  # bytes of a row; as many again may be read before its end is missed
_PIECE = 1 << 20  # bytes that are read at a time
_BOM, _QUOTE, _LF, _CR, _UNREADABLE = b"\xef\xbb\xbf", b'"', 10, 13, 0xFF


def csv_names(file: TextFile, dialect: Dialect) -> list[str]:
    """Return names of the columns, from the file's first row. DataError for a file without any."""
    with file.reading(dialect) as read:
        return _Pieces.of(read, file.name, dialect).names


def csv_batches(file: TextFile, dialect: Dialect, called: list[str], places: Collection[int]) -> Iterator[pa.Table]:
    """Yield the columns at these places, so called, as large text, in pieces. DataError for a malformed file."""
    with file.reading(dialect) as read, ThreadPoolExecutor(pa.cpu_count()) as pool:
        pieces = _Pieces.of(read, file.name, dialect)
        waiting: deque[tuple[int, Future[pa.Table]]] = deque()
        for piece in pieces:
            waiting.append((len(piece), pool.submit(pieces.parsed, piece, [str(place) for place in places])))
            while len(waiting) > min(pa.cpu_count(), 1 + LONGEST // sum(size for size, _ in waiting)):
                yield waiting.popleft()[1].result().rename_columns(called)
        file.check()
        while waiting:
            yield waiting.popleft()[1].result().rename_columns(called)


@dataclass(slots=True)
class _Pieces:
    """What follows the header, in pieces of whole rows."""

    names: list[str]  # of the columns
    _read: Read
    _called: str
    _dialect: Dialect
    _line: int  # the byte that ends a row
    _left: bytes  # read, but not yet given out

    @classmethod
    def of(cls, read: Read, called: str, dialect: Dialect) -> "_Pieces":
        """Return the file from its beginning, with its header read."""
        head = b""
        while True:
            more = read(max(_PIECE, len(head)))
            head = (head + more).removeprefix(_BOM).lstrip(b"\r\n")
            end = _first_line_end(head, quoted=dialect.quoting == "double")
            if end is not None and (end + 2 < len(head) or not more):
                break
            if not more:
                if (dialect.encoding or "").startswith("utf-16"):  # of other bytes the first row may be all rows
                    raise DataError(
                        f"Expected {called!r} to be {dialect.encoding}, as declared, got a first row that does not "
                        "end. Declare the encoding that it has, or none."
                    )
                end = len(head)
                break
            if len(head) > LONGEST:
                raise _malformed(called, "a first row that does not end")
        line = _CR if re.match(rb"\r(?!\r?\n)", head[end : end + 3]) else _LF
        try:
            check_text(head[:end], called)
            first, dialect = dialect.of_header(head[:end], called)
            found = next(_cells([first], dialect), [])
        except csv.Error:
            raise _malformed(called, "a first row that is not quoted so") from None
        if not found:
            raise DataError(
                f"Expected {called!r} to begin with the names of its columns, got nothing. Write them above its rows."
            )
        return cls(found, read, called, dialect, line, head[end:])

    @property
    def _quoted(self) -> bool:
        return self._dialect.quoting == "double"

    def __iter__(self) -> Iterator[bytes]:
        while True:
            more = self._read(max(_PIECE, len(self._left)))
            whole = self._left + more
            if not more and whole and whole[-1] != self._line:
                whole += bytes([self._line])
            piece, self._left = self._cut(whole)
            yield from self._parts(piece)
            if not more:
                break
            if len(self._left) > LONGEST:
                raise _malformed(self._called, "a row of more than 256 MiB, or a quote that is never closed")
        if self._left:
            raise _malformed(self._called, "a quote that is never closed")

    def parsed(self, rows: bytes, wanted: list[str]) -> pa.Table:
        """Whole rows as a table; its columns are called by their places. DataError where they are malformed."""
        rows = _readable(self._checked(rows))
        if rows.startswith(_BOM):  # of a cell: pyarrow would leave it out here, and nowhere else
            rows = b"\n" + rows
        return pyarrow.csv.read_csv(
            pa.BufferReader(rows),
            pyarrow.csv.ReadOptions(
                use_threads=False,
                block_size=len(rows) + 1,
                column_names=[str(place) for place in range(len(self.names))],
            ),
            pyarrow.csv.ParseOptions(
                delimiter=self._dialect.separator,
                quote_char='"' if self._quoted else False,
                newlines_in_values=self._quoted,
                invalid_row_handler=lambda row: "skip",
            ),
            pyarrow.csv.ConvertOptions(
                check_utf8=False, include_columns=wanted, column_types=dict.fromkeys(wanted, pa.large_string())
            ),
        )

    def _checked(self, rows: bytes) -> bytes:
        """Return the rows without line ends that are none. DataError for quotes where none can be."""
        values, quotes = np.frombuffer(rows, np.uint8), np.empty(0, np.int64)
        if self._quoted and _QUOTE in rows:
            next_to = str(self._dialect.separator).encode()
            # Every other one opens a cell or is the second of two; the others close one or are the first of two.
            quotes = np.flatnonzero(values == _QUOTE[0])
            opening, closing = quotes[::2], quotes[1::2]
            if not _among(values[opening[opening > 0] - 1], next_to + _QUOTE, self._line):
                raise _malformed(self._called, "a quote within a cell without quotes")
            if not _among(values[closing + 1], next_to + b'"\r', self._line):
                raise _malformed(self._called, "something between a closing quote and the next comma")
        other = _odd_line_ends(rows, self._line)
        other = other[np.searchsorted(quotes, other) % 2 == 0]
        if not len(other):
            return rows
        if np.any(values[other[other > 0] - 1] == _QUOTE[0]):
            raise _malformed(self._called, "something between a closing quote and the next comma")
        mended = values.copy()
        mended[other] = _UNREADABLE
        return mended.tobytes()

    def _parts(self, rows: bytes) -> Iterator[bytes]:
        """Whole rows, some at a time: beside a long one there may be as many bytes of short ones."""
        if len(rows) <= 2 * _PIECE:
            yield from [rows] if rows.strip(b"\r\n") else []
            return
        values, first = np.frombuffer(rows, np.uint8), 0
        ends = values == self._line
        if self._quoted:
            ends &= np.cumsum(values == _QUOTE[0], dtype=np.uint8) & 1 == 0
        while first < len(rows):
            near = np.flatnonzero(ends[first : first + _PIECE])
            last = first + int(near[-1] if len(near) else _PIECE + ends[first + _PIECE :].argmax()) + 1
            if (part := rows[first:last]).strip(b"\r\n"):
                yield part
            first = last

    def _cut(self, whole: bytes) -> tuple[bytes, bytes]:
        """(whole rows, what follows them) of bytes that begin with a row."""
        end = whole.rfind(self._line, 0) + 1
        odd = self._quoted and whole.count(_QUOTE, 0, end) % 2
        while odd:  # from a line end in quotes to the last one before them
            earlier = whole.rfind(self._line, 0, whole.rfind(_QUOTE, 0, end)) + 1
            odd = (odd + whole.count(_QUOTE, earlier, end)) % 2
            end = earlier
        return whole[:end], whole[end:]


def _cells(lines: list[str], dialect: Dialect) -> Iterator[list[str]]:
    if dialect.quoting == "double":
        return csv.reader(lines, delimiter=str(dialect.separator), strict=True)
    return (line.rstrip("\r\n").split(dialect.separator) for line in lines)


def _first_line_end(text: bytes, *, quoted: bool) -> int | None:
    """Return where the first row ends."""
    quotes = counted_to = 0
    for match in re.finditer(rb"[\r\n]", text):
        quotes += text.count(_QUOTE, counted_to, match.start())
        counted_to = match.start()
        if quotes % 2 == 0 or not quoted:
            return counted_to
    return None


def _odd_line_ends(rows: bytes, line: int) -> NDArray[np.int64]:
    """Return where there is a CR that is of no line end, or an LF where CR ends lines; in quotes, too."""
    if line == _CR:
        return np.flatnonzero(np.frombuffer(rows, np.uint8) == _LF)
    if b"\r" not in rows or rows.count(b"\r") == rows.count(b"\r\n"):
        return np.empty(0, np.int64)
    values = np.frombuffer(rows + b"\n\n", np.uint8)
    found = np.flatnonzero(values[:-2] == _CR)
    next_two = values[found + 1], values[found + 2]
    # Two CR before an LF are what a program for Windows makes of CRLF by writing it as text.
    odd: NDArray[np.int64] = found[(next_two[0] != _LF) & ~((next_two[0] == _CR) & (next_two[1] == _LF))]
    return odd


def _readable(rows: bytes) -> bytes:
    """UTF-8: pyarrow skips no row of another length that it cannot show, and no byte of a broken letter ends a cell."""
    if rows.isascii():
        return rows
    try:
        rows.decode()
    except UnicodeDecodeError:
        return columns.readable(rows)
    return rows


def _among(values: NDArray[np.uint8], allowed: bytes, line: int) -> bool:
    known = np.zeros(256, np.bool_)
    known[[*allowed, line]] = True
    return bool(known[values].all())


def _malformed(called: str, fault: str) -> DataError:
    return DataError(
        f"Expected {called!r} to be a correctly quoted CSV file, got {fault}. Write it again with a CSV writer, which "
        "puts cells with commas, quotes or line ends in quotes."
    )
