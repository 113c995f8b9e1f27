"""The rows of a folder as items, in the order of the files: what is dealt out once, whatever it is for."""

import threading
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from queue import Queue
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from quoron.datasets._encoding import encoded
from quoron.datasets.index import Index, Piece
from quoron_client.data import columns
from quoron_client.data.encoding import Categorical, Encoded, Encoding
from quoron_privacy.errors import DataError

T = TypeVar("T")
Owners = NDArray[np.int64]
AHEAD = 2  # batches that are decoded before they are wanted


@dataclass(frozen=True, eq=False)
class Rows:
    """An indexed folder with the rules by which its rows become items."""

    index: Index
    encoding: Encoding
    users: int  # of the index, or more: slots without rows
    zero_rows: bool = True  # whether a user without a row that can be used has an item of zeros, or none

    @classmethod
    def of(cls, index: Index, encoding: Encoding) -> "Rows":
        """DataError for columns that are missing, or of neither numbers nor text."""
        index.files.check(encoding.columns)
        encoding.check(index.files.schema.empty_table())
        return cls(index, encoding, index.users)

    @property
    def digest(self) -> str:
        """Of the files as they are; another after any of them has changed."""
        return self.index.files.digest

    def storage(self, numbers: Owners) -> Owners:
        """Position of each of some users (k,) among them, in the order of the files; slots without rows come last."""
        place = np.arange(self.users)
        place[self.index.order] = np.arange(self.index.users)
        found = np.empty(len(numbers), np.int64)
        found[np.argsort(place[numbers], kind="stable")] = np.arange(len(numbers))
        return found

    def resolved(self) -> "Rows":
        """With every `from-data` vocabulary replaced by the values found. For simulation only."""
        open_ = [f.column for f in self.encoding.features if isinstance(f, Categorical) and f.categories == "from-data"]
        if not open_:
            return self
        found: dict[str, list[Any]] = {name: [] for name in open_}
        for table in self._tables(self.index.pieces, open_):
            for name in open_:
                found[name] = [pc.unique(pa.concat_arrays([*found[name], columns.column(table, name)]))]
        longest = max(len(values[0]) for values in found.values())
        padded = {name: pa.concat_arrays([v[0], pa.nulls(longest - len(v[0]), v[0].type)]) for name, v in found.items()}
        return replace(self, encoding=self.encoding.resolved(pa.table(padded)))

    def encoded(self, wanted: NDArray[np.bool_] | None = None) -> Iterator[tuple[Owners, Encoded]]:
        """Whose each row is, and the rows as items, in the order of the files; only pieces with a `wanted` user."""
        for owners, table in self.tables(wanted):
            yield owners, encoded(self.encoding, table)

    def tables(
        self, wanted: NDArray[np.bool_] | None = None, extra: tuple[str, ...] = ()
    ) -> Iterator[tuple[Owners, pa.Table]]:
        """The same rows before they are items, with the columns that items are made of, and `extra` ones."""
        pieces = (
            self.index.pieces if wanted is None else [each for each in self.index.pieces if self._has(each, wanted)]
        )
        names = tuple(dict.fromkeys((*self.encoding.columns, *extra)))
        owners, piece, at = np.empty(0, np.int64), -1, 0
        for number, table in self._numbered(pieces, names):
            if number != piece:
                owners, piece, at = self.index.owners(self.index.pieces[number]), number, 0
            own = owners[at : at + table.num_rows]
            if len(own) != table.num_rows:
                raise DataError(f"Expected {self.index.files.source!r} as it was indexed. Run `quoron index` again.")
            at += table.num_rows
            yield own, table

    def _has(self, piece: Piece, wanted: NDArray[np.bool_]) -> bool:
        ranks, _ = self.index.runs(piece)
        return bool(wanted[ranks].any())

    def _tables(self, pieces: Any, names: Any) -> Iterator[pa.Table]:
        yield from (table for _, table in self._numbered(pieces, names))

    def _numbered(self, pieces: Any, names: Any) -> Iterator[tuple[int, pa.Table]]:
        def read() -> Iterator[tuple[int, pa.Table]]:
            files = self.index.files
            for piece in pieces:
                for _, table in files.batches(files.parts[piece.part], names, piece.groups):
                    yield piece.number, table

        with closing(ahead(read())) as tables:
            yield from tables


def ahead(source: Iterator[T]) -> Generator[T]:
    """The same things, made by another thread a few steps before they are wanted; its error comes where it arose."""
    made: Queue[tuple[bool, Any]] = Queue(AHEAD)
    stopped = threading.Event()

    def work() -> None:
        try:
            for each in source:
                made.put((True, each))
                if stopped.is_set():
                    return
            made.put((False, None))
        except BaseException as error:
            made.put((False, error))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        while True:
            more, each = made.get()
            if not more:
                if each is not None:
                    raise each
                return
            yield each
    finally:
        stopped.set()
        while thread.is_alive():  # it may wait for room
            while not made.empty():
                made.get()
            thread.join(0.01)
