"""The bytes of a file of text, here or in a store, as UTF-8: unpacked, and decoded where they are something else.

What cannot be read has a sign in its place, in its own cell: no byte of a broken letter is a separator or a line end.
A file is read as it was when it was found: another size or time of change is an error, at its beginning and at its end.
"""

import codecs
import gzip
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from quoron_client.data import files
from quoron_client.data.formats import Dialect, name_of
from quoron_privacy.errors import DataError

Read = Callable[[int], bytes]  # about so many bytes, b"" at the end


@dataclass(frozen=True, slots=True)
class TextFile:
    """A file, as it was when it was found."""

    source: str
    size: int
    modified: int
    zipped: bool

    @classmethod
    def found(cls, source: str, *, zipped: bool) -> "TextFile":
        """DataError where there is none."""
        return cls(source, *files.state(source), zipped)

    @property
    def name(self) -> str:
        """For people."""
        return name_of(self.source)

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

    def check(self) -> None:
        """DataError if it has changed since it was found."""
        if files.state(self.source) != (self.size, self.modified):
            raise DataError(f"Expected {self.name!r} as it was when it was opened, but it has changed. Begin again.")


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
