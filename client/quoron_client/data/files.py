"""Parquet files in a folder or an object store, read row group by row group.

    files = Files.found("s3://bucket/visits")
    for batch in files.batches(files.parts[0], ["patient", "age"]): ...

All `.parquet` files below a folder are read, but for names that begin with "." or "_". The keys of hive partitions
(`year=2024/`) are columns of text, whatever their values look like: a type that followed from all of them would let one
user's value change everybody's column. Rows are in the order of the files' paths.

| what is wrong                                   | DataError names                               |
| ----------------------------------------------- | --------------------------------------------- |
| nothing there, no Parquet file                  | the folder or URL                             |
| truncated, no Parquet at all                    | the file                                      |
| pages that cannot be read                       | file and row group                            |
| a column that is missing, or of another type    | file and column                               |
| another size or time of change than it had      | file                                          |
| a store that refuses, or a URL with a password  | the URL, and what the store says; not the URL |

No message holds a value: of a partition's folder it says the key, and which of all files it is by their paths.
"""

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

import numpy as np
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from quoron_client.data import columns as cells
from quoron_privacy.errors import DataError

ROWS = 1 << 16  # of a batch
_NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, slots=True)
class FoundFile:
    """One file, as it was when it was found."""

    path: str  # in its file system
    name: str  # below the folder; private, where its steps have values of a partition
    size: int  # bytes
    modified: int  # nanoseconds since 1970; 0 where a store does not say
    keys: tuple[tuple[str, str | None], ...] = ()  # its hive partition's
    number: int = 1  # in the order of the paths

    @property
    def shown(self) -> str:
        """Its name for messages, without values."""
        return f"{without_values(self.name)} (file {self.number})" if self.keys else self.name


@dataclass(frozen=True, slots=True)
class Piece:
    """Some neighbouring row groups of one file, which are read together."""

    number: int
    part: int  # which file
    first: int  # row group
    sizes: tuple[int, ...]  # rows of its row groups
    skipped: int = 0  # rows of the whole piece before these

    @property
    def groups(self) -> range:
        """Its row groups."""
        return range(self.first, self.first + len(self.sizes))

    @property
    def rows(self) -> int:
        """Of all of them."""
        return sum(self.sizes)

    def between(self, first: int, last: int) -> "Piece":
        """Return the row groups that have rows `first` to `last` of it."""
        ends = np.cumsum(self.sizes)
        low, high = (int(row) for row in np.searchsorted(ends, [first, last - 1], side="right"))
        before = sum(self.sizes[:low])
        return replace(self, first=self.first + low, sizes=self.sizes[low : high + 1], skipped=self.skipped + before)


@dataclass(frozen=True)
class Files:
    """All files of a source. `parts` are in the order of their paths."""

    source: str
    parts: tuple[FoundFile, ...]
    schema: pa.Schema = field(repr=False, compare=False)  # of the first file, and the partitions' keys

    @classmethod
    def found(cls, source: str | Path) -> "Files":
        """Return what there is now. DataError for nothing, a first file that is no Parquet, and a password in a URL."""
        system, root = reached(str(source))
        with _reached(str(source)):
            infos = _listed(system, root)
        if not infos:
            raise DataError(
                f"Expected Parquet files in {str(source)!r}, found none. Name one file of another format, "
                "or write all as Parquet."
            )
        start = len(root.rstrip("/")) + 1 if infos[0].path != root else len(root) - len(infos[0].base_name)
        parts = tuple(_part(info, start, number) for number, info in enumerate(infos, 1))
        own = [field for field in _opened(system, parts[0]).schema_arrow if field.name not in dict(parts[0].keys)]
        for part in parts[1:]:  # a file whose cells are all missing says nothing of a column's type
            if not (untyped := [field.name for field in own if pa.types.is_null(field.type)]):
                break
            theirs = {field.name: field for field in _opened(system, part).schema_arrow if field.name in untyped}
            own = [theirs.get(field.name, field) for field in own]
        keys = dict.fromkeys(name for part in parts for name, _ in part.keys)
        return cls(str(source), parts, pa.schema([*own, *(pa.field(name, pa.string()) for name in keys)]))

    def __getstate__(self) -> dict[str, Any]:
        """Without the file system, which is reached again."""
        return {name: value for name, value in vars(self).items() if name != "system"}

    @cached_property
    def system(self) -> pa.fs.FileSystem:
        """Where the files are."""
        return _system(self.source)[0]

    @property
    def digest(self) -> str:
        """Of names, sizes and times of change: another after any file has changed."""
        listing = [
            [part.name, part.size, part.modified, [list(map(str, key)) for key in part.keys]] for part in self.parts
        ]
        return hashlib.sha256(json.dumps(listing).encode()).hexdigest()

    def check(self, columns: Sequence[str]) -> None:
        """Raise DataError unless the first file has each of these columns once."""
        for name in columns:
            cells.check_name(name, self.schema.names, self.schema.names)

    def opened(self, part: FoundFile) -> pq.ParquetFile:
        """Return a file's footer. DataError if it has changed since it was found, or is no Parquet."""
        with _reached(part.shown):
            info = self.system.get_file_info(part.path)
        if info.type == pa.fs.FileType.NotFound:
            raise DataError(f"Expected {part.shown!r} in {self.source!r}, but it has disappeared. {_AGAIN}")
        if (info.size, info.mtime_ns or 0) != (part.size, part.modified):
            raise DataError(f"Expected {part.shown!r} in {self.source!r} as it was, but it has changed. {_AGAIN}")
        return _opened(self.system, part)

    def check_all(self, columns: Sequence[str]) -> None:
        """Raise DataError unless every file has each of these columns in one type, or null: schemas are public."""
        for name in columns:
            if name in self._otherwise:
                raise DataError(self._otherwise[name])

    @cached_property
    def _otherwise(self) -> dict[str, str]:
        """Columns that some file has otherwise than the first, with what to say."""
        found: dict[str, str] = {}
        for part in self.parts[1:]:
            found = {**self._differing(self.opened(part).schema_arrow, part, self.schema.names), **found}
        return found

    def rows(self, part: FoundFile) -> tuple[int, ...]:
        """Return rows of each row group."""
        footer = self.opened(part).metadata
        return tuple(footer.row_group(group).num_rows for group in range(footer.num_row_groups))

    def batches(
        self, part: FoundFile, columns: Sequence[str], groups: Sequence[int] | None = None, *, rows: int = ROWS
    ) -> Iterator[tuple[int, pa.Table]]:
        """(row group, rows of it), in order, with these columns, and at most `rows` at a time."""
        stored = self.opened(part)
        keys = dict(part.keys)
        inside = [name for name in columns if name not in keys]
        for why in self._differing(stored.schema_arrow, part, inside).values():
            raise DataError(why)
        for group in range(stored.metadata.num_row_groups) if groups is None else groups:
            if not inside:  # nothing to read but how many rows there are
                count = stored.metadata.row_group(group).num_rows
                yield from ((group, self._with_keys(pa.table({}), size, keys, columns)) for size in _cut(count, rows))
                continue
            try:
                for batch in stored.iter_batches(rows, [group], inside, use_threads=pa.cpu_count() > 2):
                    table = pa.Table.from_batches([batch])
                    yield group, self._with_keys(table, table.num_rows, keys, columns)
            except MemoryError:  # Arrow's is an ArrowException, and nothing is wrong with the file
                raise
            except (pa.ArrowException, OSError) as error:
                self.opened(part)  # a file that has changed is the first thing to say
                raise DataError(
                    f"Expected {part.shown!r} to be readable, but its row group {group} is not "
                    f"({type(error).__name__}). Write the file again."
                ) from None

    def _with_keys(self, table: pa.Table, rows: int, keys: dict[str, Any], columns: Sequence[str]) -> pa.Table:
        held = {name: table.column(name) for name in table.column_names}
        for name in columns:
            if name in keys:
                held[name] = pa.repeat(pa.scalar(keys[name], pa.string()), rows)
            elif pa.types.is_null(held[name].type):
                held[name] = pa.nulls(rows, self.schema.field(name).type)
        return pa.table({name: held[name] for name in dict.fromkeys(columns)})

    def _differing(self, theirs: pa.Schema, part: FoundFile, columns: Sequence[str]) -> dict[str, str]:
        """Return those of these columns that a file has otherwise than the first, with what to say."""
        first, said, keys = self.parts[0].shown, {}, dict(part.keys)
        for name in dict.fromkeys(column for column in columns if column not in keys):
            many, wanted = theirs.names.count(name), self.schema.field(self.schema.names.index(name)).type
            if many != 1:
                said[name] = (
                    f"Expected one column {name!r} in {part.shown!r}, as in {first!r}, got {many}. Write all files "
                    "with the same columns."
                )
            elif theirs.field(name).type not in (wanted, pa.null()):
                said[name] = (
                    f"Expected column {name!r} of {part.shown!r} to be {wanted}, as in {first!r}, got "
                    f"{theirs.field(name).type}. Write all files with one type."
                )
        return said


_AGAIN = "Put it back as it was, or begin a new run."


def _cut(count: int, most: int) -> Iterator[int]:
    """Sizes of at most `most` that add up."""
    yield from (min(most, count - start) for start in range(0, count, most))


def _opened(system: pa.fs.FileSystem, part: FoundFile) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(system.open_input_file(part.path), page_checksum_verification=True)
    except UnicodeDecodeError:
        raise misnamed(part.shown) from None
    except MemoryError:
        raise
    except PermissionError as error:
        raise unreadable(part.shown, error) from None
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"Expected {part.shown!r} to be a whole Parquet file, got one that cannot be opened "
            f"({type(error).__name__}). Write it again."
        ) from None


def reached(source: str) -> tuple[pa.fs.FileSystem, str]:
    """File system and path in it of a path or a URL. DataError for a store that refuses, or a password in a URL."""
    if re.match(r"[^/]+://[^/]*@", source):  # it would be in every message and in the run's folder
        raise DataError(
            "Expected a URL without credentials, got one with an @. Put them where pyarrow.fs finds them: for S3 "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or ~/.aws/credentials."
        )
    with _reached(source):
        return _system(source)


def state(source: str) -> tuple[int, int]:
    """(bytes, nanoseconds since 1970 of its last change, 0 where a store does not say). DataError for no file."""
    system, path = reached(source)
    with _reached(source):
        info = system.get_file_info(path)
    if info.type != pa.fs.FileType.File:
        piped = "a pipe or a device, which is read once. Write what it gives to a file"
        raise DataError(
            f"Expected a table at {source!r}, found "
            f"{'no such file' if info.type == pa.fs.FileType.NotFound else piped}."
        )
    return info.size, info.mtime_ns or 0


def content(source: str) -> bytes:
    """Return SHA-256 of a file's bytes. DataError as `state` says, and where they cannot be read."""
    state(source)
    system, path = reached(source)
    digest = hashlib.sha256()
    try:
        with system.open_input_stream(path, compression=None) as stored:
            while part := stored.read(1 << 20):
                digest.update(part)
    except OSError as error:
        raise unreadable(source, error) from None
    return digest.digest()


def check_names(names: pa.Schema | Collection[str], where: str) -> None:
    """Raise DataError for names of columns that are no UTF-8: Arrow raises where one is asked for."""
    try:
        "".join(names.names if isinstance(names, pa.Schema) else names).encode()
    except UnicodeError:
        raise misnamed(where) from None


def misnamed(where: str) -> DataError:
    """Of columns whose names are no UTF-8."""
    return DataError(f"Expected the names of columns in {where!r} in UTF-8, got other bytes. Write them so.")


_BROKEN = {  # by the reader's error, whose own name tells people little
    "BadGzipFile": "what is no gzip file",
    "ArrowInvalid": "one that is damaged, cut off or of another format",
    "EOFError": "a gzip file that is cut off",
    "error": "a damaged gzip file",
}


def unreadable(name: str, error: Exception) -> DataError:
    """Of a file. The reader's own words may quote a row, and messages never hold a user's data."""
    if isinstance(error, PermissionError):
        return DataError(f"Expected {name!r} to be a file that this program may read, got permission denied. Allow it.")
    what = _BROKEN.get(type(error).__name__, type(error).__name__)
    return DataError(f"Expected {name!r} to be a readable table, got {what}. Write it again.")


def _system(source: str) -> tuple[pa.fs.FileSystem, str]:
    """File system and path in it."""
    if "://" in source:
        system, root = pa.fs.FileSystem.from_uri(source)
        return system, root
    return pa.fs.LocalFileSystem(), str(Path(source).resolve())


def _listed(system: pa.fs.FileSystem, root: str) -> list[pa.fs.FileInfo]:
    """Return the Parquet files at or below a path, by their paths."""
    top = system.get_file_info(root)
    if top.type == pa.fs.FileType.File:
        return [top]
    below = system.get_file_info(pa.fs.FileSelector(root, recursive=True, allow_not_found=True))
    hidden = len(root.rstrip("/")) + 1
    found = (info for info in below if info.type == pa.fs.FileType.File and info.path.endswith(".parquet"))
    return sorted(
        (info for info in found if not any(step[:1] in "._" for step in info.path[hidden:].split("/"))),
        key=lambda info: info.path,
    )


def _part(info: pa.fs.FileInfo, start: int, number: int) -> FoundFile:
    name = info.path[start:]
    keys = (step.partition("=") for step in name.split("/")[:-1] if "=" in step)
    named = tuple((_decoded(key), None if value == _NULL else _decoded(value)) for key, _, value in keys)
    return FoundFile(info.path, name, info.size, info.mtime_ns or 0, named, number)


def _decoded(step: str) -> str:
    """Return a key or a value of a partition, as it was before it was written into a path."""
    return cells.readable(unquote_to_bytes(step)).decode()


def without_values(name: str) -> str:
    """Return a path, or what is said of it, without the values of hive partitions."""
    return re.sub("=[^/]*", "=...", name)


@contextmanager
def _reached(what: str) -> Iterator[None]:
    """Whatever a file system says becomes one sentence; ours are left as they are."""
    try:
        yield
    except DataError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        said = f"{type(error).__name__}: {without_values(str(error))}"
        raise DataError(
            f"Expected to reach {what!r}, but its file system refuses ({said}). Check the address, and who may read it."
        ) from None
