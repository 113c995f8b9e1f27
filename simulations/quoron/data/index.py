"""Who is where: the users of a folder of Parquet files, numbered in the order of their names as of a table.

    index = opened("visits/", "patient")          # one pass over the user column
    index.users
    ranks, lengths = index.runs(index.pieces[0])  # rows 0 .. lengths[0] - 1 are of user ranks[0], and so on

Rows have to be sorted by user over all files, or every user's rows have to be in one file, in any order within it (a
bucket of a hash), of every hive partition in one. A user in two files of one partition that are not sorted is refused,
with both files' names: such a folder is two tables, or has been written twice. In which partitions a user has rows is a
matter of its values, and no error.

The index is in memory, in four bytes for each run of neighbouring rows of one user, and in eight where rows are not
sorted. It keeps no name. A promise to every user stands on it: that no user's rows count as several users'. So it is
made again whenever a run begins or goes on, and a file of another size or time of change is refused when it is read.

Rows become items in the order of the files (`Rows`), whatever they are for.
"""

import hashlib
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from quoron.data.user_rows import before
from quoron_client.data import columns
from quoron_client.data.encoding import Encoding
from quoron_client.data.files import Files, Piece
from quoron_client.data.users import Numbering
from quoron_privacy.errors import DataError


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


PIECE = 1 << 22  # rows
Ranks = NDArray[np.int64]


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


def _runs(files: Files, user: str, piece: Piece) -> tuple[pa.Array, NDArray[np.int32]]:
    """Names of neighbouring rows of one user, and how many."""
    names: list[pa.Array] = []
    lengths: list[NDArray[np.int64]] = []
    for _, table in files.batches(files.parts[piece.part], [user], piece.groups):
        values = column(table, user)
        columns.check_users(values, user)
        found, counts = runs(values)
        if names and names[-1][-1] == found[0]:
            lengths[-1][-1] += counts[0]
            found, counts = found[1:], counts[1:]
        if len(found):
            names.append(found)
            lengths.append(counts)
    return pa.concat_arrays(names), np.concatenate(lengths).astype(np.int32)


def _check_files(files: Files, user: str, pieces: Sequence[Piece], ranks: Sequence[NDArray[np.int32]]) -> None:
    """DataError for a user in two files of one partition: in which partitions a user is, is a matter of its values."""
    numbers: dict[Any, int] = {}
    partition = np.array([numbers.setdefault(part.keys, len(numbers)) for part in files.parts])
    latest = np.full(max(int(own.max()) for own in ranks) + 1, -1, np.int32)  # the file of each user's last rows
    for piece, own in sorted(zip(pieces, ranks, strict=True), key=lambda pair: partition[pair[0].part]):
        file, before = piece.part, latest[own]
        apart = before[(before >= 0) & (before != file) & (partition[before] == partition[file])]
        if len(apart):
            one, other = files.parts[apart[0]].shown, files.parts[file].shown
            raise DataError(
                f"Expected all rows of a user of column {user!r} in one file, or all files sorted by it, got a user in "
                f"{one!r} and in {other!r}. Sort the rows by {user!r} over all files, in the order of their names, or "
                f"write them in buckets by a hash of {user!r}."
            )
        latest[own] = file


@dataclass(frozen=True, eq=False)
class Index:
    """The users of files, numbered."""

    files: Files
    user: str  # column
    users: int
    sorted: bool  # by user over all files
    pieces: tuple[Piece, ...]  # all of its files
    firsts: tuple[int, ...]  # the number of each piece's first user
    digest: str  # of all that it says: of another index another; private
    _lengths: tuple[NDArray[np.int32], ...] = field(repr=False)  # of each piece's runs
    _ranks: tuple[NDArray[np.int32], ...] = field(repr=False)  # whose they are; () where sorted, as numbers then climb

    def __getstate__(self) -> dict[str, Any]:
        """Without what can be made again."""
        return {name: value for name, value in vars(self).items() if name != "order"}

    @property
    def rows(self) -> int:
        """Of all files."""
        return sum(piece.rows for piece in self.pieces)

    def runs(self, piece: Piece) -> tuple[Ranks, NDArray[np.int32]]:
        """Return whose the rows of a piece are: numbers of users, and how many rows in a row each has there."""
        number, lengths = piece.number, self._lengths[piece.number]
        ranks = self.firsts[number] + np.arange(len(lengths)) if self.sorted else self._ranks[number].astype(np.int64)
        if piece.rows == self.pieces[number].rows:
            return ranks, lengths
        ends = np.cumsum(lengths, dtype=np.int64)
        among = np.clip([ends - lengths, ends], piece.skipped, piece.skipped + piece.rows)
        left = (among[1] - among[0]).astype(np.int32)
        return ranks[left > 0], left[left > 0]

    def part_with(self, piece: Piece, wanted: NDArray[np.bool_]) -> Piece | None:
        """The row groups from the first to the last with rows of a `wanted` user (users,); None if there is none."""
        if self.sorted:  # over all files, so it has every user between
            first = self.firsts[piece.number]
            own = wanted[first : first + len(self._lengths[piece.number])]
            if not own.any():
                return None
            if own[0] and own[-1]:
                return piece
        ranks, lengths = self.runs(piece)
        found, ends = np.flatnonzero(wanted[ranks]), np.cumsum(lengths, dtype=np.int64)
        if not len(found):
            return None
        return piece.between(int(ends[found[0]] - lengths[found[0]]), int(ends[found[-1]]))

    def row_counts(self, pieces: Sequence[Piece] | None = None) -> NDArray[np.int32]:
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
    """Index a source. DataError for rows without a user, and for a user in two files that are not sorted.

    Until all users are known, users are numbered in the order in which they were met. A sorted source has no others.
    """
    files = Files.found(source)
    files.check([user])
    pieces, numbering, climbs, last = _cut(files), Numbering(user), True, None
    lengths: list[NDArray[np.int32]] = []
    codes: list[NDArray[np.int32]] = []
    for piece in pieces:
        names, counts = _runs(files, user, piece)
        climbs = climbs and bool(pc.greater(names[1:], names[:-1]).to_numpy(zero_copy_only=False).all())
        climbs = climbs and (last is None or last <= names[0].as_py())
        last = names[-1].as_py()
        lengths.append(counts)
        numbering.add(pa.table({user: names}))
        if numbering.is_full:
            codes.append(numbering.numbers())
    codes.append(numbering.numbers())
    users, ranks = numbering.ranks(without_rows=True)
    ends = np.cumsum([0, *map(len, lengths)]).tolist()
    whose = ranks[np.concatenate(codes)]
    parts = tuple(whose[first:last] for first, last in pairwise(ends))
    if not climbs:
        _check_files(files, user, pieces, parts)
    digest = hashlib.blake2b(f"{files.digest} {user} {users} {climbs}".encode(), digest_size=32)
    for own in (*lengths, whose):
        digest.update(own.data)
    firsts, kept = tuple(int(own[0]) for own in parts), () if climbs else parts
    return Index(files, user, users, climbs, pieces, firsts, digest.hexdigest(), tuple(lengths), kept)


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
        with closing(self._read(pieces)) as source:
            tables = _Cut(source)
            for ranks, lengths, counts in self._runs(pieces):
                owners, at = np.repeat(np.where(counts & wanted[ranks], ranks, -1), lengths), 0
                for table in tables.take(len(owners)):
                    yield owners[at : at + table.num_rows], table
                    at += table.num_rows

    def spans(self, pieces: list[Piece], place: NDArray[np.int32], most: int) -> Generator["RowSpan"]:
        """The rows of pieces in the order of the files, a span at a time, of at most `most` of users with a place.

        `place` (users,) is -1 for one who is not wanted; a run longer than `most` is a span of its own.
        """
        with closing(self._read(pieces)) as source:
            tables = _Cut(source)
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
        long = np.zeros(0, np.bool_) if self.most is None else self.index.row_counts(pieces) > self.most
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

    def row_counts(self, pieces: list[Piece]) -> Ranks:
        """Return rows of every user in these pieces that count, (users,). Private."""
        counts = self.index.row_counts(pieces).astype(np.int64)
        return counts if self.most is None else np.minimum(counts, self.most)

    def pieces(self, wanted: NDArray[np.bool_]) -> list[Piece]:
        """Return the row groups with `wanted` users (users,), and those between."""
        parts = (self.index.part_with(piece, wanted) for piece in self.index.pieces)
        return [part for part in parts if part is not None]

    def _read(self, pieces: list[Piece]) -> Generator[pa.Table]:
        def read() -> Iterator[pa.Table]:
            files = self.index.files
            for piece in pieces:
                rows = 0
                for _, table in files.batches(files.parts[piece.part], self.encoding.columns, piece.groups):
                    rows += table.num_rows
                    if rows > piece.rows:
                        break
                    yield table
                if rows != piece.rows:
                    raise DataError(f"Expected {files.source!r} as it was indexed. Begin a new run.")

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
        places, lengths = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
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
        ready: deque[Future[Any]] = deque(maker.submit(next, source, end) for _ in range(AHEAD))
        while (thing := ready.popleft().result()) is not end:
            ready.append(maker.submit(next, source, end))
            yield thing
    finally:
        maker.shutdown(cancel_futures=True)
