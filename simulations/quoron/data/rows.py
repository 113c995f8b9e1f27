"""The rows of a folder as items, in the order of the files: what is put in order once, whatever it is for.

Every reader of rows reads the user column with them, and compares it with the index, row group by row group. Rows of
other users than the index says end the operation that reads them.
"""

from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from quoron.data.index import Index, Names, column
from quoron.data.user_rows import before
from quoron_client.data import columns
from quoron_client.data.encoding import Encoding
from quoron_client.data.files import Piece
from quoron_privacy.errors import DataError

Owners = NDArray[np.int64]


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

    def storage(self, numbers: Owners) -> Owners:
        """Position of each of some users (k,) among them, in the order of the files; slots without rows come last."""
        place = np.arange(self.users)
        place[self.index.order] = np.arange(self.index.users)
        found = np.empty(len(numbers), np.int64)
        found[np.argsort(place[numbers], kind="stable")] = np.arange(len(numbers))
        return found

    def resolved(self) -> "Rows":
        """With every `from-data` vocabulary replaced by the values found. For simulation only."""
        open_ = [f.column for f in self.encoding.features if f.is_open]
        if not open_:
            return self
        found: dict[str, list[Any]] = {name: [] for name in open_}
        for _, table in self._numbered(self.index.pieces, open_):
            for name in open_:
                found[name] = [pc.unique(pa.concat_arrays([*found[name], columns.column(table, name)]))]
        longest = max(len(values[0]) for values in found.values())
        padded = {name: pa.concat_arrays([v[0], pa.nulls(longest - len(v[0]), v[0].type)]) for name, v in found.items()}
        return replace(self, encoding=self.encoding.resolved(pa.table(padded)))

    def tables(self, wanted: NDArray[np.bool_]) -> Iterator[tuple[Owners, pa.Table]]:
        """Yield whose each row is, and the rows that count, with the columns that items are made of.

        In the order of the files, and only of row groups with `wanted` users (users,), and those between.
        """
        pieces = self.pieces(wanted)
        first_of = _First(self.index, pieces, self.most)
        owners, counts, last, at = np.empty(0, np.int64), np.empty(0, np.bool_), None, 0
        for piece, table in self._numbered(pieces, self.encoding.columns):
            if piece is not last:
                ranks, lengths, counting = first_of.runs(piece)
                owners, counts, last, at = np.repeat(ranks, lengths), np.repeat(counting, lengths), piece, 0
            own, some = owners[at : at + table.num_rows], counts[at : at + table.num_rows]
            at += table.num_rows
            yield (own, table) if some.all() else (own[some], table.filter(pa.array(some)))

    def spans(self, pieces: list[Piece], place: NDArray[np.int32], most: int) -> Generator["RowSpan"]:
        """The rows of pieces in the order of the files, a span at a time, of at most `most` of users with a place.

        `place` (users,) is -1 for one who is not wanted; a run longer than `most` is a span of its own.
        """
        first_of = _First(self.index, pieces, self.most)
        with closing(self._numbered(pieces, self.encoding.columns)) as numbered:
            tables = _Cut(table for _, table in numbered)
            waiting: list[tuple[NDArray[np.int32], NDArray[np.int32]]] = []
            room = most
            for piece in pieces:
                ranks, lengths, counts = first_of.runs(piece)
                places, first = np.where(counts, place[ranks], np.int32(-1)), 0
                wanted = np.cumsum(np.where(places >= 0, lengths, 0))
                while first < len(lengths):
                    before = int(wanted[first - 1]) if first else 0
                    last = int(np.searchsorted(wanted, before + room, side="right"))
                    if last == first and not waiting:
                        last += 1
                    if last > first:
                        waiting.append((places[first:last], lengths[first:last]))
                        room -= int(wanted[last - 1]) - before
                        first = last
                    if first < len(lengths):  # full
                        yield tables.span(waiting)
                        waiting, room = [], most
            if waiting:
                yield tables.span(waiting)

    def held(self, pieces: list[Piece]) -> Owners:
        """Return rows of every user in these pieces that count, (users,). Private."""
        held = self.index.held(pieces).astype(np.int64)
        return held if self.most is None else np.minimum(held, self.most)

    def pieces(self, wanted: NDArray[np.bool_]) -> list[Piece]:
        """Return the row groups with `wanted` users (users,), and those between."""
        parts = (self.index.part_with(each, wanted) for each in self.index.pieces)
        return [each for each in parts if each is not None]

    def _numbered(self, pieces: Any, names: Any) -> Generator[tuple[Piece, pa.Table]]:
        def read() -> Iterator[tuple[Piece, pa.Table]]:
            index, files = self.index, self.index.files
            both = tuple(dict.fromkeys((*names, index.user)))
            for piece in pieces:
                rows, whose = 0, {group: Names() for group in piece.groups}
                for group, table in files.batches(files.parts[piece.part], both, piece.groups):
                    rows += table.num_rows
                    if rows > piece.rows:
                        break
                    whose[group].add(column(table, index.user))
                    yield piece, table.select(names)
                if rows != piece.rows:
                    raise DataError(f"Expected {files.source!r} as it was indexed. Begin a new run.")
                first = index.pieces[piece.number].first
                for group, found in whose.items():
                    if found.digest() != index.whose[piece.number][group - first]:
                        raise DataError(
                            f"Expected row group {group} of {files.parts[piece.part].shown!r} to have the users that "
                            "it was indexed with, got others, though size and time of the file have not changed. "
                            f"Delete {index.folder}, and begin a new run."
                        )

        with closing(ahead(read())) as tables:
            yield from tables


class _First:
    """Runs of pieces one after the other, and of each whether it counts: those of whom has too many are cut in two."""

    def __init__(self, index: Index, pieces: list[Piece], most: int | None) -> None:
        self._index, self._most = index, most
        self._long = np.zeros(0, np.bool_) if most is None else index.held(pieces) > most
        self._seen = np.zeros(index.users if self._long.any() else 0, np.int64)

    def runs(self, piece: Piece) -> tuple[Owners, NDArray[np.int32], NDArray[np.bool_]]:
        """Return whose each run is, its rows, and whether they are among the first of its user."""
        ranks, lengths = self._index.runs(piece)
        if self._most is None or not len(self._seen) or not self._long[ranks].any():
            return ranks, lengths, np.ones(len(ranks), np.bool_)
        within = lengths.astype(np.int64)
        own = np.flatnonzero(self._long[ranks])
        own = own[np.argsort(ranks[own], kind="stable")]
        many = within[own]
        within[own] = np.clip(self._most - self._seen[ranks[own]] - before(ranks[own], many), 0, many)
        np.add.at(self._seen, ranks[own], many)
        both = np.stack([within, lengths - within], axis=1).astype(np.int32).ravel()
        some = both > 0
        counts = np.tile([True, False], len(ranks))
        return np.repeat(ranks, 2)[some], both[some], counts[some]


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
        return RowSpan(places, lengths, self._next(int(lengths.sum(dtype=np.int64))))

    def _next(self, rows: int) -> Iterator[pa.Table]:
        while rows:
            table = next(self._source) if self._left is None else self._left
            self._left = None
            if table.num_rows > rows:
                table, self._left = table.slice(0, rows), table.slice(rows)
            rows -= table.num_rows
            yield table


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
