"""Arrow's own format: a Feather file, or a file or a stream of Arrow batches; compressed or not."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa

from quoron_client.data import files
from quoron_privacy.errors import DataError

_MAGIC = b"ARROW1"


@dataclass(frozen=True, slots=True)
class ArrowFile:
    """A file, as it was when it was found."""

    source: str
    state: tuple[int, int]
    schema: pa.Schema = field(repr=False)
    rows: int | None  # None where only reading it all says so

    @classmethod
    def found(cls, source: str) -> "ArrowFile":
        """DataError for no file, and for one of another format."""
        state = files.state(source)
        with _batches(source) as (reader, many):
            rows = None if many is None else sum(reader.get_batch(each).num_rows for each in range(many))
            return cls(source, state, reader.schema, rows)

    def batches(self, places: list[int]) -> Iterator[pa.Table]:
        """The columns at these places, a stored batch after another. DataError if the file has changed."""
        self._check()
        stored = sorted(places)
        with _batches(self.source, stored) as (reader, many):
            for batch in reader if many is None else map(reader.get_batch, range(many)):
                batch.validate()
                yield pa.Table.from_batches([batch]).select([stored.index(each) for each in places])
        self._check()

    def _check(self) -> None:
        if files.state(self.source) != self.state:
            name = PurePosixPath(self.source).name
            raise DataError(f"Expected {name!r} as it was when it was opened, but it has changed. Begin again.")


@contextmanager
def _batches(source: str, places: list[int] | None = None) -> Iterator[tuple[Any, int | None]]:
    """(reader, how many batches it has by number; None for a stream)."""
    system, path = files.reached(source)
    name = PurePosixPath(source).name
    try:
        options = pa.ipc.IpcReadOptions(included_fields=places)
        with system.open_input_file(path) as stored:
            if stored.read(len(_MAGIC)) == _MAGIC:
                stored.seek(0)
                reader = pa.ipc.open_file(stored, options=options)
                yield reader, reader.num_record_batches
            else:
                stored.seek(0)
                yield pa.ipc.open_stream(stored, options=options), None
    except MemoryError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise files.unreadable(name, error) from None
