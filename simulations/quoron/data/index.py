"""Who is where: the users of a folder of Parquet files numbered once, in the order of their names, as of a table.

    index = opened("visits/", "patient")          # made where there is none of these files as they are
    index.users
    ranks, lengths = index.runs(index.pieces[0])  # rows 0 .. lengths[0] - 1 are of user ranks[0], and so on

Rows have to be sorted by user over all files, or every user's rows have to be in one file, in any order within it (a
bucket of a hash), of every hive partition in one. A user in two files of one partition that are not sorted is refused,
with both files' names: such a folder is two tables, or has been written twice. In which partitions a user has rows is a
matter of its values, and no error.

The index is made in one pass over the user column, piece by piece of a few million rows, in memory for one piece and a
name of each user. It keeps no name. It holds how many rows each user has, so its files are private.

A promise to every user stands on it: that no user's rows count as several users'. So nothing of it is believed as it
lies there:

| what could be wrong                            | what stands against it                                              |
| ---------------------------------------------- | ------------------------------------------------------------------- |
| somebody else wrote it                         | it lies in the user's own cache, never with the data (`_folder`)    |
| a byte of it has changed                       | BLAKE2b of every file of it, checked whenever one is read           |
| it is of other files, or of files since changed | names, sizes and times of change: then it is made again            |
| the user column has changed nevertheless       | a digest of it, row group by row group, checked by every reader of  |
|                                                | rows (`Rows`), so before anything that depends on them is released  |

The digests have no key: an attacker who can write in the user's own place could as well change the program.

An account that may write an index decides whose the rows of a table are, and so what one user can move. Several people
often write a folder of data. So an index lies in a folder of the user who reads it (mode 0700, files 0600). Every
folder from there up to the root belongs to that user or to the system, and nobody else can write it. No symbolic link
is followed to a file of an index, neither for reading nor for writing.

The digest of a user column is of the runs (a name, and how many rows in a row it has), whatever the batches in which
they come. It is BLAKE2b: other users with the same digest cannot be found.

Rows become items in the order of the files (`Rows`), whatever they are for.
"""

import errno
import hashlib
import json
import os
import stat
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from platformdirs import user_cache_path

from quoron.data.user_rows import before
from quoron_client.data import columns
from quoron_client.data.encoding import Encoding
from quoron_client.data.files import Files, Piece
from quoron_client.data.users import Numbering
from quoron_client.durable import OWN, PRIVATE, locked, make_folder, replace_whole
from quoron_privacy.errors import DataError, RunError


def column(table: pa.Table, user: str) -> pa.Array:
    """Return the user column, (rows,), with 64-bit offsets, as 32 bits are too few for long names of many rows."""
    values = columns.users(table, user)
    if pa.types.is_string(values.type) or pa.types.is_string_view(values.type):
        return values.cast(pa.large_string())
    return values.cast(pa.large_binary()) if pa.types.is_binary(values.type) else values


def runs(values: pa.Array) -> tuple[pa.Array, NDArray[np.int64]]:
    """Names of neighbouring rows of one user (R,), and how many there are of each (R,)."""
    changes = pc.not_equal(values[1:], values[:-1]).to_numpy(zero_copy_only=False)
    starts = np.concatenate([[0], np.flatnonzero(changes) + 1])
    return values.take(pa.array(starts)), np.diff(starts, append=len(values))


class Names:
    """The digest of the user column of one row group, batch by batch."""

    def __init__(self) -> None:
        self._bytes, self._shape = (hashlib.blake2b(digest_size=32) for _ in range(2))
        self._last: pa.Array | None = None  # the run that may go on
        self._rows = 0  # of it
        self._nobody = False

    def add(self, values: pa.Array) -> None:
        """The next rows."""
        if values.null_count:
            self._nobody = True
        if self._nobody or not len(values):
            return
        found, counts = runs(values)
        if self._last is not None and self._last[0] == found[0]:
            counts[0] += self._rows
        else:
            self._end()
        self._tell(found[:-1], counts[:-1])
        self._last, self._rows = found[-1:], int(counts[-1])

    def digest(self) -> str:
        """Hexadecimal digits; "" where a row has no user."""
        self._end()
        self._last = None
        if self._nobody:
            return ""
        return hashlib.blake2b(self._bytes.digest() + self._shape.digest(), digest_size=32).hexdigest()

    def _end(self) -> None:
        if self._last is not None:
            self._tell(self._last, np.array([self._rows]))

    def _tell(self, found: pa.Array, counts: NDArray[np.int64]) -> None:
        encoded, lengths = _bytes(found)
        self._bytes.update(encoded)
        self._shape.update(np.stack([counts, lengths], axis=1).astype("<i8").tobytes())


def _bytes(names: pa.Array) -> tuple[Any, NDArray[np.int64]]:
    """Return what names hold, one after the other, and how many bytes each has (R,)."""
    kind = names.type
    if not len(names):
        return b"", np.empty(0, np.int64)
    if pa.types.is_boolean(kind):
        names, kind = names.cast(pa.uint8()), pa.uint8()
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        _, ends, data = names.buffers()
        at = np.frombuffer(ends, np.int64)[names.offset : names.offset + len(names) + 1]
        return (b"" if data is None else memoryview(data)[at[0] : at[-1]]), np.diff(at)
    if pa.types.is_primitive(kind) or pa.types.is_fixed_size_binary(kind) or pa.types.is_decimal(kind):
        width = kind.bit_width // 8
        first, last = names.offset * width, (names.offset + len(names)) * width
        return memoryview(names.buffers()[1])[first:last], np.full(len(names), width)
    each = [repr(name).encode() for name in names.to_pylist()]
    return b"".join(each), np.array([len(name) for name in each])


_OTHERS, _WRITE = 0o077, 0o022
_READING = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_ELSEWHERE = "Put that right, or set XDG_CACHE_HOME to a folder of your own."


def place(*steps: str) -> Path:
    """A folder of quoron's in the user's cache; `steps` are made, private. RunError where others could write there."""
    top = user_cache_path("quoron")
    folder = top.joinpath(*steps)
    try:
        make_folder(folder, mode=OWN)
    except OSError as error:
        raise RunError(f"Cannot make a folder for the index at {folder}: {error.strerror}. {_ELSEWHERE}") from None
    for lowest in (Path(os.path.abspath(top)), top.resolve()):
        for above in (lowest, *lowest.parents):
            _check(above, private=False)
    for number in range(len(steps)):
        _check(top.joinpath(*steps[: number + 1]), private=True)
    return folder


def _check(folder: Path, *, private: bool) -> None:
    """Raise RunError for a folder through which others could change an index."""
    found, own = folder.lstat(), os.geteuid()
    trusted = {own} if private else {own, 0, Path("/").stat().st_uid}
    mode = stat.S_IMODE(found.st_mode)
    if stat.S_ISLNK(found.st_mode):
        wrong = "is a symbolic link" if private or found.st_uid not in trusted else None
    elif not stat.S_ISDIR(found.st_mode):
        wrong = "is no folder"
    elif found.st_uid not in trusted:
        wrong = f"belongs to user {found.st_uid}"
    elif private and mode & _OTHERS:
        wrong = f"is open to others (mode {mode:04o})"
    elif mode & _WRITE and not mode & stat.S_ISVTX:
        wrong = f"can be written by others (mode {mode:04o})"
    else:
        wrong = None
    if wrong is not None:
        raise RunError(f"Expected a place for the index that nobody else writes, but {folder} {wrong}. {_ELSEWHERE}")


def write(path: Path, data: bytes) -> None:
    """A file that is whole or not there. RunError where there is no room."""
    try:
        replace_whole(path, data, mode=PRIVATE)
    except OSError as error:
        raise RunError(
            f"Cannot write the index {path}: {error.strerror}. Make room, and give the command again."
        ) from None


def read(path: Path) -> bytes:
    """A file of the index. OSError if there is none; DataError for a link, or one that is not the user's own alone."""
    with _opened(path) as handle, open(handle, "rb", closefd=False) as stream:
        return stream.read()


def fingerprint(data: bytes) -> str:
    """BLAKE2b of 32 bytes, as hexadecimal digits."""
    return hashlib.blake2b(data, digest_size=32).hexdigest()


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    try:
        handle = os.open(path, _READING)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise DataError(f"Expected {path} to be a file of yours alone, got a symbolic link. Delete it.") from None
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & _OTHERS:
            raise DataError(f"Expected {path} to be a file of yours alone (mode 0600), got another. Delete it.")
        yield handle
    finally:
        os.close(handle)


PIECE = 1 << 22  # rows
VERSION = 7
DONE = "index"
DIGITS = 64  # of the digest that an index begins with, which is of all that follows
Ranks = NDArray[np.int64]


def make(files: Files, user: str, folder: Path) -> None:
    """Write the index of files into a folder that only the caller has. DataError for rows without a user, and for a
    user in two files that are not sorted.

    Until all users are known, users are numbered in the order in which they were met. A sorted source has no others.
    """
    for path in [folder / DONE, *folder.glob("piece-*")]:
        path.unlink(missing_ok=True)
    numbering, climbs, last = Numbering(user), True, None
    parts: list[IndexedPiece] = []
    for piece in _cut(files):
        names, lengths, whose = _runs(files, user, piece)
        climbs = climbs and bool(pc.greater(names[1:], names[:-1]).to_numpy(zero_copy_only=False).all())
        climbs = climbs and (last is None or last <= names[0].as_py())
        last, data = names[-1].as_py(), lengths.astype("<i4").tobytes()
        write(folder / name_of(piece.number, "lengths"), data)
        parts.append(IndexedPiece(piece, len(lengths), whose, fingerprint(data)))
        numbering.add(pa.table({user: names}))
        if numbering.is_full:
            parts = _numbered(numbering, parts, folder)
    parts = _numbered(numbering, parts, folder)
    users, ranks = numbering.ranks(without_rows=True)
    if not climbs:
        parts = _ranked(files, user, parts, ranks, folder)
    contents = {"version": VERSION, "user": user, "users": users, "sorted": climbs, "digest": files.digest}
    data = json.dumps(contents | {"parts": [asdict(part) for part in parts]}).encode()
    write(folder / DONE, fingerprint(data).encode() + data)
    for part in parts:
        (folder / name_of(part.piece.number, "codes")).unlink()


def name_of(piece: int, what: str) -> str:
    """Return the file of a piece."""
    return f"piece-{piece:06}.{what}"


def _cut(files: Files) -> tuple[Piece, ...]:
    """Neighbouring row groups together, up to a piece's rows."""
    pieces: list[Piece] = []
    for number, part in enumerate(files.parts):
        first = rows = 0
        sizes = files.rows(part)
        for group, size in enumerate(sizes):
            if rows and rows + size > PIECE:
                pieces.append(Piece(len(pieces), number, first, sizes[first:group]))
                first, rows = group, 0
            rows += size
        if rows:
            pieces.append(Piece(len(pieces), number, first, sizes[first:]))
    if not pieces:
        raise DataError(f"Expected rows in {files.source!r}, got empty files.")
    return tuple(pieces)


@dataclass(frozen=True, slots=True)
class IndexedPiece:
    """A piece, and what its files have to be."""

    piece: Piece
    runs: int
    whose: tuple[str, ...]  # digest of the user column of each row group (`Names`)
    lengths: str  # digests of files
    first: int = -1  # the number of its first user
    ranks: str = ""  # none where the rows are sorted, as numbers then climb


def _runs(files: Files, user: str, piece: Piece) -> tuple[pa.Array, NDArray[np.int32], tuple[str, ...]]:
    """Names of neighbouring rows of one user, and how many; and each row group's digest."""
    part = files.parts[piece.part]
    names: list[pa.Array] = []
    lengths: list[NDArray[np.int64]] = []
    whose = {group: Names() for group in piece.groups}
    for group, table in files.batches(part, [user], piece.groups):
        values = column(table, user)
        columns.check_users(values, user)
        whose[group].add(values)
        found, counts = runs(values)
        if names and names[-1][-1] == found[0]:
            lengths[-1][-1] += counts[0]
            found, counts = found[1:], counts[1:]
        if len(found):
            names.append(found)
            lengths.append(counts)
    digests = tuple(each.digest() for each in whose.values())
    return pa.concat_arrays(names), np.concatenate(lengths).astype(np.int32), digests


def _numbered(numbering: Numbering, parts: Sequence[IndexedPiece], folder: Path) -> list[IndexedPiece]:
    """Write whose the runs that wait are, by the order in which users were met, piece by piece; return the pieces."""
    codes, at, found = numbering.numbers(), 0, []
    for part in parts:
        if part.first < 0:
            own, at = codes[at : at + part.runs], at + part.runs
            write(folder / name_of(part.piece.number, "codes"), own.astype("<i4").tobytes())
            part = replace(part, first=int(own[0]))
        found.append(part)
    return found


def _ranked(
    files: Files, user: str, parts: Sequence[IndexedPiece], ranks: NDArray[np.int32], folder: Path
) -> list[IndexedPiece]:
    """Write whose runs are by the order of users' names, and return the pieces; `ranks` (users,) of those met before.

    DataError for a user in two files of one partition: in which partitions a user is, is a matter of its values.
    """
    numbers: dict[Any, int] = {}
    partition = np.array([numbers.setdefault(part.keys, len(numbers)) for part in files.parts])
    latest = np.full(len(ranks), -1, np.int32)  # the file of each user's last rows
    found = []
    for part in sorted(parts, key=lambda each: partition[each.piece.part]):
        file = part.piece.part
        own = ranks[np.frombuffer(read(folder / name_of(part.piece.number, "codes")), "<i4")]
        before = latest[own]
        apart = before[(before >= 0) & (before != file) & (partition[before] == partition[file])]
        if len(apart):
            one, other = files.parts[apart[0]].shown, files.parts[file].shown
            raise DataError(
                f"Expected all rows of a user of column {user!r} in one file, or all files sorted by it, got a user in "
                f"{one!r} and in {other!r}. Sort the rows by {user!r} over all files, in the order of their names, or "
                f"write them in buckets by a hash of {user!r}."
            )
        latest[own] = file
        data = own.astype("<i8").tobytes()
        write(folder / name_of(part.piece.number, "ranks"), data)
        found.append(replace(part, first=int(own[0]), ranks=fingerprint(data)))
    return sorted(found, key=lambda each: each.piece.number)


@dataclass(frozen=True, eq=False)
class Index:
    """The users of files, numbered."""

    files: Files
    user: str  # column
    users: int
    sorted: bool  # by user over all files
    parts: tuple[IndexedPiece, ...] = field(repr=False)
    digest: str  # of all that it says: of another index another
    folder: Path = field(repr=False)

    def __getstate__(self) -> dict[str, Any]:
        """Without what can be read again."""
        return {name: value for name, value in vars(self).items() if name not in ("order", "_here")}

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """All of its files."""
        return tuple(part.piece for part in self.parts)

    @property
    def rows(self) -> int:
        """Of all files."""
        return sum(piece.rows for piece in self.pieces)

    def runs(self, piece: Piece) -> tuple[Ranks, NDArray[np.int32]]:
        """Return whose the rows of a piece are: numbers of users, and how many rows in a row each has there."""
        number, whole = piece.number, self.parts[piece.number]
        lengths: NDArray[np.int32] = np.frombuffer(self._checked(number, "lengths", whole.lengths), "<i4")
        if self.sorted:
            ranks = np.arange(whole.first, whole.first + len(lengths))
        else:
            ranks = np.frombuffer(self._checked(number, "ranks", whole.ranks), "<i8")
        if piece.rows == whole.piece.rows:
            return ranks, lengths
        ends = np.cumsum(lengths, dtype=np.int64)
        among = np.clip([ends - lengths, ends], piece.skipped, piece.skipped + piece.rows)
        left = (among[1] - among[0]).astype(np.int32)
        return ranks[left > 0], left[left > 0]

    def part_with(self, piece: Piece, wanted: NDArray[np.bool_]) -> Piece | None:
        """The row groups from the first to the last with rows of a `wanted` user (users,); None if there is none."""
        if self.sorted:  # over all files, so it has every user between
            part = self.parts[piece.number]
            own = wanted[part.first : part.first + part.runs]
            if not own.any():
                return None
            if own[0] and own[-1]:
                return piece
        ranks, lengths = self.runs(piece)
        found, ends = np.flatnonzero(wanted[ranks]), np.cumsum(lengths, dtype=np.int64)
        if not len(found):
            return None
        return piece.between(int(ends[found[0]] - lengths[found[0]]), int(ends[found[-1]]))

    def _checked(self, piece: int, what: str, digest: str) -> bytes:
        path = self._here / name_of(piece, what)
        try:
            data = read(path)
        except OSError as error:
            raise self._damaged(path, type(error).__name__) from None
        if fingerprint(data) != digest:
            raise self._damaged(path, "another")
        return data

    def _damaged(self, path: Path, got: str) -> DataError:
        return DataError(
            f"Expected the index of {self.files.source!r} in {path} as it was written, got {got}. Delete the folder "
            f"{path.parent}, and it is made again."
        )

    @cached_property
    def _here(self) -> Path:
        """Its folder; on another machine, which has none, one with the same index, made there."""
        if (self.folder / DONE).is_file():
            return self.folder
        own = opened(self.files.source, self.user)
        if own.digest != self.digest:
            raise DataError(
                f"Expected {self.files.source!r} to be the same on every machine, but one finds other users or times "
                "of change there than that which began the run."
            )
        return own.folder

    def held(self, pieces: Sequence[Piece] | None = None) -> NDArray[np.int32]:
        """Return rows of every user in these pieces, or in all, (users,). Private."""
        counts = np.zeros(self.users, np.int32)
        for piece in self.pieces if pieces is None else pieces:
            ranks, lengths = self.runs(piece)
            np.add.at(counts, ranks, lengths)
        return counts

    @cached_property
    def order(self) -> Ranks:
        """All users in the order in which the files first have them, (users,): neighbours there are read together."""
        if self.sorted:
            return np.arange(self.users)
        first, row = np.full(self.users, -1, np.int64), 0
        for piece in self.pieces:
            ranks, _ = self.runs(piece)
            fresh = first[ranks] < 0
            first[ranks[fresh][::-1]] = row + np.flatnonzero(fresh)[::-1]  # of several runs the first stays
            row += len(ranks)
        return np.argsort(first, kind="stable")


def opened(source: str | Path, user: str) -> Index:
    """Return the index of a source as it is now: made if there is none, or one of other files, or a damaged one."""
    files = Files.found(source)
    files.check([user])
    named = json.dumps([files.source if files.local is None else str(files.local), user])
    folder = place("indices", sha256(named.encode()).hexdigest()[:32])
    with locked(folder):
        if (found := _read(files, user, folder)) is None:
            make(files, user, folder)
            found = _read(files, user, folder)
    assert found is not None
    return found


def _read(files: Files, user: str, folder: Path) -> Index | None:
    """Return the index of these files in a folder; None where there is no whole one."""
    try:
        kept = read(folder / DONE)
    except OSError:
        return None
    digest, data = kept[:DIGITS].decode(errors="replace"), kept[DIGITS:]
    if fingerprint(data) != digest:
        return None
    stored = json.loads(data)
    if (stored["version"], stored["user"], stored["digest"]) != (VERSION, user, files.digest):
        return None
    parts = []
    for part in stored["parts"]:
        piece = Piece(**part["piece"] | {"sizes": tuple(part["piece"]["sizes"])})
        parts.append(IndexedPiece(**part | {"piece": piece, "whose": tuple(part["whose"])}))
    return Index(files, user, stored["users"], stored["sorted"], tuple(parts), digest, folder)


@dataclass(frozen=True, eq=False)
class Rows:
    """An indexed folder with the rules by which its rows become items."""

    index: Index
    encoding: Encoding
    users: int  # of the index, or more: slots without rows
    zero_rows: bool = True  # whether a user without a row that can be used has an item of zeros, or none
    most: int | None = None  # rows of one user that count, the first in the order of the files; None: all

    @classmethod
    def of(cls, index: Index, encoding: Encoding) -> "Rows":
        """Raise DataError for columns that a file lacks or has of another type, or of neither numbers nor text."""
        index.files.check(encoding.columns)
        index.files.check_all(encoding.columns)
        encoding.check(pa.Table.from_batches([], index.files.schema))
        return cls(index, encoding, index.users)

    def storage(self, numbers: Ranks) -> Ranks:
        """Position of each of some users (k,) among them, in the order of the files; slots without rows come last."""
        place = np.arange(self.users)
        place[self.index.order] = np.arange(self.index.users)
        found = np.empty(len(numbers), np.int64)
        found[np.argsort(place[numbers], kind="stable")] = np.arange(len(numbers))
        return found

    def tables(self, wanted: NDArray[np.bool_]) -> Iterator[tuple[Ranks, pa.Table]]:
        """Yield whose each row is, and the rows, with the columns that items are made of.

        In the order of the files, and only of row groups with `wanted` users (users,), and those between. A row that
        does not count, or is of somebody who is not wanted, is that of user -1.
        """
        pieces = self.pieces(wanted)
        with closing(self._numbered(pieces, self.encoding.columns)) as numbered:
            tables = _Cut(numbered)
            for ranks, lengths, counts in self._runs(pieces):
                owners, at = np.repeat(np.where(counts & wanted[ranks], ranks, -1), lengths), 0
                for table in tables.take(len(owners)):
                    yield owners[at : at + table.num_rows], table
                    at += table.num_rows

    def spans(self, pieces: list[Piece], place: NDArray[np.int32], most: int) -> Generator["RowSpan"]:
        """The rows of pieces in the order of the files, a span at a time, of at most `most` of users with a place.

        `place` (users,) is -1 for one who is not wanted; a run longer than `most` is a span of its own.
        """
        with closing(self._numbered(pieces, self.encoding.columns)) as numbered:
            tables = _Cut(numbered)
            waiting: list[tuple[NDArray[np.int32], NDArray[np.int32]]] = []
            room = most
            for ranks, lengths, counts in self._runs(pieces):
                places = np.where(counts, place[ranks], np.int32(-1))
                while len(lengths):
                    wanted = np.cumsum(np.where(places >= 0, lengths, 0))
                    last = int(np.searchsorted(wanted, room, side="right"))
                    last = last if waiting else max(last, 1)
                    waiting.append((places[:last], lengths[:last]))
                    if last == len(lengths):
                        room -= int(wanted[-1])
                        break
                    yield tables.span(waiting)  # full
                    waiting, room = [], most
                    places, lengths = places[last:], lengths[last:]
            if waiting:
                yield tables.span(waiting)

    def _runs(self, pieces: list[Piece]) -> Iterator[tuple[Ranks, NDArray[np.int32], NDArray[np.bool_]]]:
        """Yield of each piece whose its runs are, their rows, and whether they count, as the first of their user do.

        A run of which only some rows count is two.
        """
        long = np.zeros(0, np.bool_) if self.most is None else self.index.held(pieces) > self.most
        seen = np.zeros(self.index.users if long.any() else 0, np.int64)
        for piece in pieces:
            ranks, lengths = self.index.runs(piece)
            if self.most is None or not len(seen) or not long[ranks].any():
                yield ranks, lengths, np.ones(len(ranks), np.bool_)
                continue
            within = lengths.astype(np.int64)
            own = np.flatnonzero(long[ranks])
            own = own[np.argsort(ranks[own], kind="stable")]
            many = within[own]
            within[own] = np.clip(self.most - seen[ranks[own]] - before(ranks[own], many), 0, many)
            np.add.at(seen, ranks[own], many)
            both = np.stack([within, lengths - within], axis=1).astype(np.int32).ravel()
            some = both > 0
            counts = np.tile([True, False], len(ranks))
            yield np.repeat(ranks, 2)[some], both[some], counts[some]

    def held(self, pieces: list[Piece]) -> Ranks:
        """Return rows of every user in these pieces that count, (users,). Private."""
        held = self.index.held(pieces).astype(np.int64)
        return held if self.most is None else np.minimum(held, self.most)

    def pieces(self, wanted: NDArray[np.bool_]) -> list[Piece]:
        """Return the row groups with `wanted` users (users,), and those between."""
        parts = (self.index.part_with(each, wanted) for each in self.index.pieces)
        return [each for each in parts if each is not None]

    def _numbered(self, pieces: Any, names: Any) -> Generator[pa.Table]:
        def read() -> Iterator[pa.Table]:
            index, files = self.index, self.index.files
            both = tuple(dict.fromkeys((*names, index.user)))
            for piece in pieces:
                rows, whose = 0, {group: Names() for group in piece.groups}
                for group, table in files.batches(files.parts[piece.part], both, piece.groups):
                    rows += table.num_rows
                    if rows > piece.rows:
                        break
                    whose[group].add(column(table, index.user))
                    yield table.select(names)
                if rows != piece.rows:
                    raise DataError(f"Expected {files.source!r} as it was indexed. Begin a new run.")
                whole = index.parts[piece.number]
                for group, found in whose.items():
                    if found.digest() != whole.whose[group - whole.piece.first]:
                        raise DataError(
                            f"Expected row group {group} of {files.parts[piece.part].shown!r} to have the users that "
                            "it was indexed with, got others, though size and time of the file have not changed. "
                            f"Delete {index.folder}, and begin a new run."
                        )

        with closing(ahead(read())) as tables:
            yield from tables


@dataclass(frozen=True, slots=True, eq=False)
class RowSpan:
    """Some neighbouring rows: of whom they are, run by run, and the rows themselves, to be read once and in order."""

    places: NDArray[np.int32]  # (R,) of each run's user, -1 for one who is not wanted
    lengths: NDArray[np.int32]  # (R,) rows
    tables: Iterator[pa.Table]


class _Cut:
    """A stream of tables, cut at the ends of spans."""

    def __init__(self, source: Iterator[pa.Table]) -> None:
        self._source = source
        self._left: pa.Table | None = None

    def span(self, parts: list[tuple[NDArray[np.int32], NDArray[np.int32]]]) -> RowSpan:
        """Return the next rows, as many as the runs of the parts have."""
        places, lengths = (np.concatenate(each) for each in zip(*parts, strict=True))
        return RowSpan(places, lengths, self.take(int(lengths.sum(dtype=np.int64))))

    def take(self, rows: int) -> Iterator[pa.Table]:
        """Yield the next so many rows."""
        while rows:
            table = next(self._source) if self._left is None else self._left
            self._left = table.slice(rows) if table.num_rows > rows else None
            some = table.slice(0, rows)
            rows -= some.num_rows
            yield some


T = TypeVar("T")
AHEAD = 2  # steps


def ahead(source: Iterator[T]) -> Generator[T]:
    """Yield the same things, made by another thread a few steps ahead; its error comes where it arose."""
    maker, end = ThreadPoolExecutor(1, thread_name_prefix="quoron-ahead"), object()
    try:
        made: deque[Future[Any]] = deque(maker.submit(next, source, end) for _ in range(AHEAD))
        while (each := made.popleft().result()) is not end:
            made.append(maker.submit(next, source, end))
            yield each
    finally:
        maker.shutdown(cancel_futures=True)
