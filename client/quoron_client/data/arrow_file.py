"""Arrow's own format: a Feather file, or a file or a stream of Arrow batches; compressed or not."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from quoron_client.data import files
from quoron_client.data.formats import name_of
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
        try:
            with _batches(self.source, stored) as (reader, many):
                for batch in reader if many is None else map(reader.get_batch, range(many)):
                    _check_places(batch)
                    yield pa.Table.from_batches([batch]).select([stored.index(each) for each in places])
        except DataError:
            self._check()  # a file that has changed is the first thing to say
            raise
        self._check()

    def _check(self) -> None:
        if files.state(self.source) != self.state:
            name = name_of(self.source)
            raise DataError(f"Expected {name!r} as it was when it was opened, but it has changed. Begin again.")


def _check_places(batch: pa.RecordBatch) -> None:
    """ArrowInvalid where a text begins or ends outside its buffer, or a code is of no word: Arrow trusts the file.

    Whether a text is UTF-8 is its own row's matter.
    """
    batch.validate()
    for each in batch.columns:
        coded = isinstance(each, pa.DictionaryArray)
        for part in (each.indices, each.dictionary) if coded else (each,):
            _bytes_of(part).validate(full=True)
        if coded:
            pa.DictionaryArray.from_arrays(each.indices, pa.nulls(len(each.dictionary)), safe=True)


def _bytes_of(values: pa.Array) -> pa.Array:
    """Text as the bytes that it is, without a copy."""
    if pa.types.is_string(values.type):
        return values.view(pa.binary())
    if pa.types.is_large_string(values.type):
        return values.view(pa.large_binary())
    return values.view(pa.binary_view()) if pa.types.is_string_view(values.type) else values


@contextmanager
def _batches(source: str, places: list[int] | None = None) -> Iterator[tuple[Any, int | None]]:
    """(reader, how many batches it has by number; None for a stream)."""
    system, path = files.reached(source)
    name = name_of(source)
    try:
        options = pa.ipc.IpcReadOptions(included_fields=places)
        with system.open_input_file(path) as stored:
            if stored.read(len(_MAGIC)) == _MAGIC:
                stored.seek(0)
                reader = pa.ipc.open_file(stored, options=options)
                files.check_names(reader.schema, name)
                yield reader, reader.num_record_batches
            else:
                stored.seek(0)
                reader = pa.ipc.open_stream(stored, options=options)
                files.check_names(reader.schema, name)
                yield reader, None
    except MemoryError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise files.unreadable(name, error) from None
