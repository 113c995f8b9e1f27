"""The users of a folder of Parquet files as a population, with the same bits as of the same rows in a table in memory.

    crowd = from_dataset("visits/", encoding, user="patient", loss=Logistic(), items_per_user=20, seed=0)

Who is held out, how users are numbered, and what each of them answers are as in `quoron.data.table`. Figures of
a simulation (the optimum, excess risk, figures on held-out users, remarks) read all rows into memory, once.

Items lie in the order in which rounds ask for their users (`ItemStore`): in memory, or on this machine's disk.

Rounds ask users in a random order, and in a file that is sorted by user a random cohort is everywhere. So every row is
read from its file once, made an item, and put into one of some hundred chunks, each of the users of a stretch of the
order. A round then reads the chunks of its own cohort, and a pass over all users reads every item once. The next are
read ahead. Within a chunk rows stay in the order of their files, and are used where they lie.

Where all items fit into `memory()` bytes there is one chunk, which stays there. Else they are placed some STAGE bytes
at a time, and written chunk by chunk to a file in QUORON_SCRATCH, else /var/tmp, else where temporary files go. That
file has no name: it is gone with the process, however that ends. It takes about four bytes a feature of every row. What
is read back is compared with what was written, by checksums that stay in memory.

Rows come in runs, a run being neighbouring rows of one user. Where a run begins among the placed rows is settled by the
index and the order alone, before any value is read. A row that is left out makes its run shorter.
"""

import hashlib
import os
import tempfile
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from quoron.data.index import Rows, RowSpan, opened
from quoron.data.table import DOMAIN, TablePopulation, population_of, trained
from quoron.data.users import (
    ALL_HONEST,
    Declared,
    Outliers,
    TabularUsers,
    Users,
    flipped,
)
from quoron_client.compute.enforcement import bounded
from quoron_client.data.encoding import Encoding
from quoron_client.data.fused import Block, encode
from quoron_client.data.items import ItemBatch, Items, ItemView
from quoron_client.losses import Loss
from quoron_client.protocol.domains import Domain
from quoron_privacy.errors import ConfigError, RunError
from quoron_privacy.kernels.prebuilt import njit
from quoron_privacy.kernels.threads import all_threads, at_once
from quoron_server.traffic import SCRATCH
from quoron_server.traffic import spill_folder as folder

WORDS = 1024  # of four bytes, that are summed for a checksum


def room_for(rows: int, dimension: int, *, weighted: bool) -> Block:
    """Room for so many items and no marks: rows of zeros, until others lie there."""
    features, marks = np.zeros((rows, dimension), np.float32), np.empty((rows, 0), np.uint8)
    return Block(features, np.zeros(rows), np.zeros(rows * weighted), marks, weighted)


class Scratch:
    """A file in `folder()` that is gone when it is closed, or with the process. RunError where there is no room."""

    def __init__(self) -> None:
        try:
            self._file: Any = tempfile.TemporaryFile(prefix="quoron-", dir=folder(), buffering=0)  # noqa: SIM115
        except OSError as error:
            raise RunError(
                f"Cannot keep the items of a run in {folder()}: {error.strerror}. Set {SCRATCH} to a folder on a disk "
                "with room."
            ) from None
        self.close = weakref.finalize(self, self._file.close)

    def write(self, arrays: Iterable[NDArray[Any]], at: int) -> None:
        """Arrays one after the other from a place on."""
        try:
            self._all(os.pwritev, arrays, at)
        except OSError as error:
            raise RunError(
                f"Cannot keep the items of this run in {folder()}: {error.strerror}. Make room, or set {SCRATCH} to a "
                "folder on a disk with some."
            ) from None

    def read(self, arrays: Iterable[NDArray[Any]], at: int) -> None:
        """What is there, into arrays one after the other."""
        try:
            self._all(os.preadv, arrays, at)
        except OSError as error:
            raise RunError(
                f"Cannot read the items of this run back from {folder()}: {error.strerror}. Set {SCRATCH} to a folder "
                "on another disk, and resume the run."
            ) from None

    def _all(self, call: Any, arrays: Iterable[NDArray[Any]], at: int) -> None:
        for array in arrays:
            left = array.reshape(-1).view(np.uint8).data
            while left:
                done = call(self._file.fileno(), [left], at)
                if done == 0:
                    raise RunError(f"Expected the items of this run in {folder()}, but the file has become shorter.")
                at, left = at + done, left[done:]


def checksum(arrays: Iterable[NDArray[Any]]) -> bytes:
    """Return 16 bytes that say whether arrays come back from a disk as they were written.

    They are a digest of sums of words: several times faster than a digest of all bytes.
    """
    whole = hashlib.blake2b(digest_size=16)
    for array in arrays:
        words = array.reshape(-1).view(np.uint32)
        end = len(words) // WORDS * WORDS
        whole.update(words[:end].view(np.uint64).reshape(-1, WORDS // 2).sum(axis=1))
        whole.update(words[end:].tobytes())
    return whole.digest()


@njit(cache=True, nogil=True, error_model="numpy")
def settle(places: Any, lengths: Any, chunk_of: Any, starts: Any, runs: Any, base: Any) -> None:
    """Where runs (R,) begin if they lie chunk by chunk, in their order within one: `base` (R,).

    `places` are those of their users, -1 for one who is not wanted. Chunk b has room for the rows from starts[b] on,
    and for its runs from runs[b] on (K + 1,).
    """
    starts[:] = 0
    runs[:] = 0
    for r in range(len(places)):
        if places[r] >= 0:
            b = chunk_of[places[r]] + 1
            starts[b] += lengths[r]
            runs[b] += 1
    for b in range(1, len(starts)):  # counts become places
        starts[b] += starts[b - 1]
        runs[b] += runs[b - 1]
    at = starts.copy()
    for r in range(len(places)):
        if places[r] >= 0:
            b = chunk_of[places[r]]
            base[r] = at[b]
            at[b] += lengths[r]


@njit(cache=True, nogil=True, error_model="numpy")
def place_rows(
    features: Any, labels: Any, weights: Any, marks: Any, run: int, done: int, places: Any, lengths: Any, base: Any,
    kept: Any, out_features: Any, out_labels: Any, out_weights: Any,
) -> None:  # fmt: skip
    """Rows that are items to where their runs lie, if they can be used. The first of them is row `done` of run `run`.

    Of a run, kept[run] rows are there already. Ranges of rows that have no run in common may be placed at the same
    time.
    """
    there = np.empty(len(labels), np.int64)
    _settle_rows(marks, run, done, places, lengths, base, kept, there)
    for i in range(len(there)):
        at = there[i]
        if at < 0:
            continue
        out_features[at] = features[i]
        out_labels[at] = labels[i]
        if len(weights):
            out_weights[at] = weights[i]


@njit(cache=True, nogil=True, error_model="numpy")
def _settle_rows(marks: Any, run: int, done: int, places: Any, lengths: Any, base: Any, kept: Any, there: Any) -> None:
    """Where each of some rows belongs, -1 for nowhere, from row `done` of run `run` on."""
    i = 0
    while i < len(there):
        while done == lengths[run]:
            run, done = run + 1, 0
        stop = min(len(there), i + lengths[run] - done)
        done += stop - i
        if places[run] < 0:
            there[i:stop] = -1
        else:
            # Rows that are left out leave no gap: the next one takes their place.
            at = base[run] + kept[run]
            for k in range(i, stop):
                good = marks[k, 0] & 1 == 0
                there[k] = at if good else -1
                at += good
            kept[run] = at - base[run]
        i = stop


@njit(cache=True, nogil=True, error_model="numpy")
def sort_runs(places: Any, base: Any, kept: Any, chunk_of: Any, starts: Any, runs: Any, out: Any) -> None:
    """Runs chunk by chunk: the user's place, where it begins in its chunk, and its rows, `out` (all runs, 3)."""
    at = runs.copy()
    for r in range(len(places)):
        if places[r] >= 0:
            b = chunk_of[places[r]]
            out[at[b], 0] = places[r]
            out[at[b], 1] = base[r] - starts[b]
            out[at[b], 2] = kept[r]
            at[b] += 1


@njit(cache=True, nogil=True, error_model="numpy")
def gather(runs: Any, first: int, begins: Any, ends: Any) -> bool:
    """Return where each user's rows are, of runs (R, 3) as above; `first` is the chunk's first place.

    False if some user's rows are apart: then `ends` - `begins` are still how many there are.
    """
    begins[:] = 0
    ends[:] = 0
    together = True
    for r in range(len(runs)):
        user, begin, rows = runs[r, 0] - first, runs[r, 1], runs[r, 2]
        if rows == 0:
            continue
        if ends[user] == begins[user]:
            begins[user] = begin
            ends[user] = begin
        elif ends[user] != begin:
            together = False
        ends[user] += rows
    return together


@njit(cache=True, nogil=True, error_model="numpy")
def lay_out(runs: Any, first: int, at: Any, rows: Any) -> None:
    """Rows user by user, in the order of their runs: `rows` (N,); `at` (k,) is where each user's begin among them."""
    for r in range(len(runs)):
        user = runs[r, 0] - first
        for i in range(runs[r, 2]):
            rows[at[user]] = runs[r, 1] + i
            at[user] += 1


CHUNK = 32 << 20  # bytes, about
AHEAD = 2  # chunks that are read before they are wanted, at once: a disk is never without a question
HELD = 32 << 20  # bytes of chunks that were read and stay in memory, besides
SEGMENT = 1 << 20  # bytes of a chunk that are written at a time, about
STAGE = 32 << 20, 96 << 20  # bytes in which items are placed before they are written, at least and at most; twice
BLOCK = 8192  # rows that a thread makes items at a time, about
MEMORY = "QUORON_MEMORY"
_USUAL = 256 << 20  # bytes


def memory() -> int:
    """Return bytes of items that a process keeps in memory before it takes to the disk."""
    given = os.environ.get(MEMORY)
    try:
        wanted = _USUAL if not given else int(float(given))
    except (ValueError, OverflowError):
        wanted = 0
    if wanted < 1:
        raise ConfigError(f"Expected {MEMORY} to be a number of bytes such as 4e9, got {given!r}.")
    return wanted


@dataclass(frozen=True, slots=True, eq=False)
class _Written:
    """What was placed at a time, on disk: chunk by chunk its features, labels, weights and runs."""

    starts: NDArray[np.int64]  # (K + 1,), rows
    runs: NDArray[np.int64]  # (K + 1,), runs
    at: NDArray[np.int64]  # (K + 1,), bytes
    checksums: tuple[bytes, ...]  # (K,), of what each chunk got


@dataclass(frozen=True, slots=True, eq=False)
class _Chunk:
    """Users of a stretch of the order, by place in it."""

    made: ItemView  # as items of a table in memory are
    bounded: ItemView  # the same within the bounds of the loss; features that obey them already are not copied


@dataclass(eq=False)
class ItemStore:
    """Items of some users within the bounds of a loss: all rows of those in `order` are read once, into their chunks.

    They are read when it is first asked to be `filled`, for all copies of its population. DataError as reading the
    files says; RunError where there is no room on disk; ConfigError for memory that is no number.
    """

    rows: Rows
    numbers: Users  # of all users, in the index
    order: Users  # in which they are read fastest: a permutation of some users
    loss: Loss

    @property
    def filled(self) -> "ItemStore":
        """The same, after all rows are read."""
        if "_held" not in vars(self):
            self._prepare()
            self._fill()
        return self

    @cached_property
    def longest(self) -> int:
        """Most items of a user; no row is read for it."""
        own = np.zeros(self.rows.users, np.bool_)
        own[self.numbers[self.order]] = True
        counts = self.rows.row_counts(self.rows.pieces(own))
        return int(counts[own[: len(counts)]].max(initial=0))

    def part(self, users: Users) -> "ItemStore":
        """Return a separate store for some of the users, read in the same order."""
        own = np.zeros(int(self.order.max(initial=-1)) + 1, np.bool_)
        own[users] = True
        return replace(self, order=self.order[own[self.order]])

    def __getstate__(self) -> dict[str, Any]:
        """Without what was read, which stays on its machine."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def _prepare(self) -> None:
        rows, known = self.rows, self.numbers[self.order]
        self._features, self._weighted = rows.encoding.dimension, rows.encoding.weighted
        self._place = np.full(rows.users, -1, np.int32)
        self._place[known] = np.arange(len(known), dtype=np.int32)
        self._pieces = rows.pieces(self._place >= 0)
        counts = rows.row_counts(self._pieces)
        if rows.users > rows.index.users:
            counts = np.append(counts, np.zeros(rows.users - rows.index.users, counts.dtype))
        longest, ends = int(counts.max(initial=0)), np.append(0, np.cumsum(counts[known], dtype=np.int64))
        width = 4 * self._features + 8 * (1 + self._weighted)
        whole = int(ends[-1])
        fits = whole * width <= memory() and whole < 2**31
        self._starts = _starts(ends, whole if fits else max(1, CHUNK // width))
        self._sizes = width * np.diff(ends[self._starts])  # bytes of each chunk
        stage = min(max(SEGMENT * (len(self._starts) - 1), STAGE[0]), STAGE[1])
        self._room = whole if len(self._starts) <= 2 else max(longest, stage // width)
        self._written: list[_Written] = []
        self._scratch: Scratch | None = None
        self._lock = threading.Lock()
        self._reader = ThreadPoolExecutor(AHEAD, thread_name_prefix="quoron-store")

    def items(self, users: Users) -> ItemBatch:
        """The items of `users` (k,) in that order, as rules make them. Neighbours in the order of reading are cheap."""
        return self._copied(users, lambda chunk: chunk.made)

    def of(self, users: Users) -> ItemBatch:
        """Return the same within the bounds of the loss."""
        return self._copied(users, lambda chunk: chunk.bounded)

    def seen(self, users: Users) -> Items:
        """Return the same where they lie, if they are read together; else a copy."""
        places = self.places(users)
        chunks = self._chunk(places)
        if len(chunks) and chunks.min() == chunks.max():
            return self._read(int(chunks[0])).bounded.seen(places - self._starts[chunks[0]])
        return self.of(users)

    def _copied(self, users: Users, which: Callable[[_Chunk], ItemView]) -> ItemBatch:
        places = self.places(users)
        chunks = self._chunk(places)
        order = np.argsort(chunks, kind="stable")
        parts = []
        for own in np.split(order, np.flatnonzero(np.diff(chunks[order])) + 1) if len(order) else []:
            chunk = int(chunks[own[0]])
            parts.append(which(self._read(chunk)).of(places[own] - self._starts[chunk]))
        if len(parts) == 1:
            return parts[0]
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return _joined(parts, self._features, weighted=self._weighted).of(back)

    def places(self, users: Users) -> Users:
        """Return where each of `users` (k,) is in the order of reading."""
        return self._place[self.numbers[users]].astype(np.int64)

    def pieces(self, users: Users) -> Iterator[Users]:
        """Indices into `users` (k,) that are read together, in the order of reading."""
        if len(self._starts) <= 2:
            yield np.arange(len(users))
            return
        places = self.places(users)
        order = np.arange(len(users)) if np.all(places[1:] > places[:-1]) else np.argsort(places, kind="stable")
        cuts = np.searchsorted(places[order], self._starts[1:-1])
        yield from (own for own in np.split(order, cuts) if len(own))

    def _chunk(self, places: Users) -> Users:
        return np.searchsorted(self._starts, places, side="right") - 1

    def _fill(self) -> None:
        chunks = len(self._starts) - 1
        chunk_of = np.repeat(np.arange(chunks, dtype=np.int32), np.diff(self._starts))
        room = self._room + 1  # the last row is nobody's
        buffers = [room_for(room, self._features, weighted=self._weighted) for _ in range(1 if chunks == 1 else 2)]
        placer, placed = _Placer(self.rows.encoding), np.empty((0, 3), np.int32)
        writing: list[Future[None]] = []
        with (
            closing(self.rows.spans(self._pieces, self._place, self._room)) as spans,
            ThreadPoolExecutor(1, thread_name_prefix="quoron-writer") as writer,
        ):
            for number, span in enumerate(spans):
                if number >= 2:
                    writing[number - 2].result()
                buffer = buffers[number % len(buffers)]
                base = np.zeros(len(span.places), np.int64)
                starts, runs = np.empty((2, chunks + 1), np.int64)
                settle(span.places, span.lengths, chunk_of, starts, runs, base)
                kept = placer.place(span, base, buffer)
                placed = np.empty((int(runs[-1]), 3), np.int32)
                sort_runs(span.places, base, kept, chunk_of, starts, runs, placed)
                writing.append(writer.submit(self._put_away, buffer, starts, runs, placed))
            for future in writing:
                future.result()
        self._rows = sum((np.diff(run.starts) for run in self._written), np.zeros(chunks, np.int64))  # on disk
        held: OrderedDict[int, Future[_Chunk]] = OrderedDict()
        if chunks == 1:
            held[0] = Future()
            held[0].set_result(self._picked_up(0, buffers[0], placed))
        self._held = held  # last: then it is filled

    def _put_away(self, buffer: Block, starts: Users, runs: Users, placed: NDArray[np.int32]) -> None:
        """What was placed, to the disk if there are several chunks; the next is placed meanwhile."""
        if len(self._starts) <= 2:
            return
        if self._scratch is None:
            self._scratch = Scratch()
        before = self._written[-1].at[-1] if self._written else 0
        views = []
        for chunk in range(len(starts) - 1):
            own = buffer.part(*map(int, starts[chunk : chunk + 2]))
            views.append([*own.item, placed[runs[chunk] : runs[chunk + 1]]])
        at = before + buffer.width * starts + placed.strides[0] * runs
        written = _Written(starts, runs, at, tuple(map(checksum, views)))
        self._scratch.write(chain(*views), int(before))
        self._written.append(written)

    def _read(self, chunk: int) -> _Chunk:
        with self._lock:
            needed = range(chunk, min(chunk + 1 + AHEAD, len(self._starts) - 1))
            wanted, *_ = [self._ask(number) for number in needed]
            room = HELD
            for old in reversed([number for number in self._held if number not in needed]):  # the latest stay
                room -= int(self._sizes[old])
                if room < 0:
                    del self._held[old]
        return wanted.result()

    def _ask(self, chunk: int) -> "Future[_Chunk]":
        if chunk not in self._held:
            self._held[chunk] = self._reader.submit(self._read_back, chunk)
        self._held.move_to_end(chunk)
        return self._held[chunk]

    def _read_back(self, chunk: int) -> _Chunk:
        buffer = room_for(int(self._rows[chunk]) + 1, self._features, weighted=self._weighted)
        placed, at = [], 0
        assert self._scratch is not None
        for part in self._written:
            rows = int(part.starts[chunk + 1] - part.starts[chunk])
            own = buffer.part(at, at + rows)
            runs = np.empty((int(np.diff(part.runs[chunk : chunk + 2])[0]), 3), np.int32)
            self._scratch.read([*own.item, runs], int(part.at[chunk]))
            if checksum([*own.item, runs]) != part.checksums[chunk]:
                raise RunError(
                    f"Expected the items of this run back from {folder()} as they were written, got others: the disk "
                    f"or its memory is not to be trusted. Set {SCRATCH} to a folder on another disk, and resume "
                    "the run."
                )
            runs[:, 1] += at
            placed.append(runs)
            at += rows
        return self._picked_up(chunk, buffer, np.concatenate(placed))

    def _picked_up(self, chunk: int, buffer: Block, runs: NDArray[np.int32]) -> _Chunk:
        """Return the users of a chunk where their rows lie; rows are copied only if some user's are apart."""
        first, last = self._starts[chunk : chunk + 2]
        begins, ends = np.empty((2, int(last - first)), np.int64)
        whole = len(buffer.labels) - 1  # a row of zeros, the item of those who have none
        if not gather(runs, int(first), begins, ends):
            held = ends - begins
            at, rows = np.cumsum(held) - held, np.empty(int(held.sum()) + 1, np.int64)
            lay_out(runs, int(first), at.copy(), rows)
            rows[-1] = whole
            features, labels, moved = (array[rows] if len(array) else array for array in buffer.item)
            buffer = replace(buffer, features=features, labels=labels, weights=moved)
            begins, ends, whole = at, at + held, len(rows) - 1
        if self.rows.zero_rows:
            without = ends == begins
            begins[without], ends[without] = whole, whole + 1
        weights = buffer.weights if self._weighted else None
        items = ItemBatch(buffer.features, buffer.labels, np.array([0, len(buffer.labels)]), weights)
        within = bounded(items, self.loss)
        return _Chunk((within if self.loss.narrow else items).where(begins, ends), within.where(begins, ends))


class _Placer:
    """Puts the rows of files into buffers, span by span, on all threads."""

    def __init__(self, rules: Encoding) -> None:
        self._rules, self._block = rules, Block.of(rules, 0)

    def place(self, span: RowSpan, base: Users, buffer: Block) -> NDArray[np.int32]:
        """Return the rows of a span, to where their runs begin; how many rows of each run are kept (R,)."""
        kept = np.zeros(len(span.places), np.int32)
        ends, begun = np.cumsum(span.lengths, dtype=np.int64), 0
        place: Any = place_rows

        def piece(begun: int, first: int, last: int) -> None:
            """Rows `first` to `last` of the span, the first in the block being row `begun` of it."""
            run, some = int(np.searchsorted(ends, first, side="right")), self._block.part(first - begun, last - begun)
            done = first - int(ends[run] - span.lengths[run])
            place(*some.arrays, run, done, span.places, span.lengths, base, kept, *buffer.item)

        for table in span.tables:
            if len(self._block.labels) < table.num_rows:
                self._block = Block.of(self._rules, table.num_rows)
            encode(self._rules, table, self._block.part(0, table.num_rows))
            # Pieces begin where a run does, so that no two have rows of one run.
            end = begun + table.num_rows
            cuts = ends[np.searchsorted(ends, np.arange(begun + BLOCK, end, BLOCK))]
            borders = np.unique([begun, *cuts[cuts < end], end]).tolist()
            at_once([partial(piece, begun, *part) for part in pairwise(borders)], all_threads())
            begun = end
        return kept


def _starts(ends: Users, rows: int) -> Users:
    """Places (K + 1,) at which chunks of about so many rows begin; ends[i] rows (n + 1,) come before place i."""
    cuts = np.searchsorted(ends, np.arange(rows, ends[-1], max(1, rows)), side="left")
    inner = np.unique(cuts[cuts < len(ends) - 1])
    return np.concatenate([[0], inner, [len(ends) - 1]]).astype(np.int64)


def _joined(parts: list[ItemBatch], features: int, *, weighted: bool) -> ItemBatch:
    none = ItemBatch(np.empty((0, features), np.float32), np.empty(0), np.zeros(1, np.int64))
    counts = np.concatenate([part.counts for part in parts or [none]])
    weights = np.concatenate([part.item_weights for part in parts or [none]]) if weighted else None
    rows: Any = np.concatenate([part.features for part in parts or [none]])
    labels = np.concatenate([part.labels for part in parts or [none]])
    return ItemBatch(rows, labels, np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), weights)


@dataclass(frozen=True, eq=False)
class FileUsers(TabularUsers):
    """Users whose items are on disk, and nothing more: what answers for them."""

    store: ItemStore = field(kw_only=True, repr=False)

    def items(self, users: Users) -> ItemBatch:
        """Return the items of `users` (k,), in that order."""
        return flipped(self.all_items.items(users), self.corruption(users), self.loss)

    @property
    def all_items(self) -> ItemStore:
        """All users' items within the bounds of the loss; read for it when it is first asked for."""
        return self.store.filled

    def pieces(self, users: Users) -> Iterator[NDArray[np.int64]]:
        """Indices into `users` (k,) that are read together, in the order of reading."""
        return self.all_items.pieces(users)

    def storage(self) -> Users:
        """Position (n,) of each user among all, in the order of the files."""
        return self.store.rows.storage(self.store.numbers)

    def part(self, users: Users) -> "FileUsers":
        """Some users, with a store of their own."""
        return FileUsers(**self.public(), store=self.store.part(users), outliers=self.outliers, seed=self.seed)


@dataclass(frozen=True, eq=False)
class DatasetPopulation(FileUsers):
    """The same with what figures of a simulation need; nothing of them is read before somebody is asked."""

    @property
    def encoding(self) -> Encoding:
        """How rows become items."""
        return self.store.rows.encoding

    @property
    def total_users(self) -> int:
        """Number of users of the table, those held out among them."""
        return self.store.rows.users

    def read_in(self, order: Users) -> "DatasetPopulation":
        """Return the same users, read fastest in this order (n,)."""
        return replace(self, store=replace(self.store, order=order))

    @cached_property
    def truth(self) -> TablePopulation:
        """The same users with all rows in memory, to compare a model with."""
        owners, tables = zip(*self.store.rows.tables(np.ones(self.total_users, np.bool_)), strict=True)
        return population_of(
            self,
            pa.concat_tables(tables),
            np.concatenate(owners),
            np.isin(np.arange(self.total_users), self.store.numbers, assume_unique=True),
            encoding=self.encoding,
            outliers=self.outliers,
            seed=self.seed,
        )


def from_dataset(
    source: str | Path,
    encoding: Encoding,
    *,
    user: str,
    loss: Loss,
    domain: Domain = DOMAIN,
    test_fraction: float = 0.2,
    items_per_user: int | None = None,
    outliers: Outliers = ALL_HONEST,
    seed: int = 0,
) -> DatasetPopulation:
    """The users of a folder, or of what a URL names, as a population; arguments and errors are those of `from_table`.

    Users are counted by the source's index (`quoron.data.index`).
    """
    encoding.check_loss(loss)
    index = opened(source, user)
    rows = Rows.of(index, encoding)
    training = trained(index.users, test_fraction, seed)
    chosen = np.flatnonzero(training)
    sizes: dict[str, Any] = {"users": len(chosen), "items_per_user": items_per_user}
    declared = Declared.of_rows(rows.encoding, loss, domain, **sizes)
    return DatasetPopulation(
        **declared.public(),
        store=ItemStore(rows, chosen, np.arange(len(chosen)), loss),
        outliers=outliers,
        seed=seed,
    )
