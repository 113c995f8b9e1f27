"""The items of a run in the order in which rounds ask for their users: in memory, or on this machine's disk.

    deck = Deck.dealt(rows, numbers, order, loss)
    deck.seen(users)

Rounds ask users in a random order, and in a file that is sorted by user a random cohort is everywhere. So every row is
read from its file once, made an item, and dealt into one of some hundred buckets, each of the users of a stretch of the
order; a round then reads the buckets of its own cohort, and a pass over all users reads every item once. The next are
read ahead. Within a bucket rows stay in the order of their files, and are used where they lie.

Where all items fit into `memory()` bytes there is one bucket, which stays there. Else they are dealt some STAGE bytes
at a time, and written bucket by bucket to a file in QUORON_SCRATCH, else /var/tmp, else where temporary files go, past
the system's cache if the disk allows. That file has no name: it is gone with the process, however that ends. It takes
about four bytes a feature of every row. What is read back is compared with what was written, by seals that stay in
memory.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quoron.datasets._columns import Columns, Scaling
from quoron.datasets._dealing import deal, gather, lay_out, settle, sort_runs
from quoron.datasets._scratch import Lent, Scratch, Stack, aligned, unlike_written
from quoron.datasets._seal import Seal
from quoron.datasets.rows import Rows, Stretch
from quoron_client.compute.enforcement import bounded
from quoron_client.data.items import ItemBatch, ItemView
from quoron_client.losses import Loss
from quoron_privacy.errors import ConfigError
from quoron_privacy.kernels.threads import all_threads, at_once

BUCKET = 32 << 20  # bytes, about
AHEAD = 2  # buckets that are read before they are wanted, at once: a disk is never without a question
HELD = 32 << 20  # bytes of buckets that were read and stay in memory, besides
SEGMENT = 1 << 20  # bytes of a bucket that are written at a time, about
STAGE = 32 << 20, 96 << 20  # bytes in which items are dealt before they are written, at least and at most; twice
STEP = 1024  # rows: on disk buckets begin at a multiple, so that disks read and write them without the system's cache
BLOCK = 8192  # rows that a thread makes items at a time, about
MEMORY = "QUORON_MEMORY"
_USUAL = 256 << 20  # bytes

Users = NDArray[np.int64]


def memory() -> int:
    """Bytes of items that a process keeps in memory before it takes to the disk."""
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
    """What was dealt at a time, on disk: bucket by bucket its features, labels, weights and runs."""

    starts: NDArray[np.int64]  # (K + 1,), rows
    runs: NDArray[np.int64]  # (K + 1,), runs
    at: NDArray[np.int64]  # (K + 1,), bytes
    seals: tuple[bytes, ...]  # (K,), of what each bucket got


@dataclass(frozen=True, slots=True, eq=False)
class _Bucket:
    """Users of a stretch of the order, by place in it."""

    made: ItemView  # as items of a table in memory are
    bounded: ItemView  # the same within the bounds of the loss; features that obey them already are not copied


class Deck:
    """Items of some users, numbered as `numbers` says, within the bounds of a loss. Made by `dealt`."""

    def __init__(self, rows: Rows, numbers: Users | None, order: Users, loss: Loss) -> None:
        known = order if numbers is None else numbers[order]
        self._loss, self._zero_rows, self._numbers = loss, rows.zero_rows, numbers
        self._features, self._weighted = rows.encoding.dimension, rows.encoding.weight is not None
        self._place = np.full(rows.users, -1, np.int32)
        self._place[known] = np.arange(len(order), dtype=np.int32)
        self._pieces = rows.pieces(self._place >= 0)
        held = rows.held(self._pieces)
        if rows.users > rows.index.users:
            held = np.append(held, np.zeros(rows.users - rows.index.users, held.dtype))
        longest, ends = int(held.max(initial=0)), np.append(0, np.cumsum(held[known], dtype=np.int64))
        width = 4 * self._features + 8 * (1 + self._weighted)
        whole = int(ends[-1])
        fits = whole * width <= memory() and whole < 2**31
        self._starts = _starts(ends, whole if fits else max(1, BUCKET // width))
        self._sizes = width * np.diff(ends[self._starts])  # bytes of each bucket
        stage = min(max(SEGMENT * (len(self._starts) - 1), STAGE[0]), STAGE[1])
        self._room = whole if len(self._starts) <= 2 else max(longest, stage // width)
        self._written: list[_Written] = []
        self._rows = np.empty(0, np.int64)  # of each bucket on disk
        self._scratch: Scratch | None = None
        self._seal = Seal()
        self._within = False  # whether no row is longer than the loss allows, and that is all it asks
        self._lock = threading.Lock()
        self._held: OrderedDict[int, Future[_Bucket]] = OrderedDict()
        self._memory = Lent()
        self._reader = ThreadPoolExecutor(AHEAD, thread_name_prefix="quoron-deck")

    @classmethod
    def dealt(cls, rows: Rows, numbers: Users | None, order: Users, loss: Loss) -> "Deck":
        """Read all rows of the users in `order` (a permutation of some of them) once, and deal them out.

        `numbers` is the users' numbers in the index, None where they are the same. DataError as reading the files says;
        RunError where there is no room on disk; ConfigError for memory that is no number.
        """
        deck = cls(rows, numbers, order, loss)
        deck._deal(rows)
        return deck

    def items(self, users: Users) -> ItemBatch:
        """The items of `users` (k,) in that order, as rules make them. Neighbours in the order of reading are cheap."""
        return self._copied(users, lambda bucket: bucket.made)

    def of(self, users: Users) -> ItemBatch:
        """The same within the bounds of the loss."""
        return self._copied(users, lambda bucket: bucket.bounded)

    def seen(self, users: Users) -> ItemView:
        """The same where they lie, if they are read together; else a copy."""
        places = self.places(users)
        buckets = self._bucket(places)
        if len(buckets) and buckets.min() == buckets.max():
            return self._read(int(buckets[0])).bounded.seen(places - self._starts[buckets[0]])
        return self.of(users).seen(np.arange(len(users)))

    def _copied(self, users: Users, which: Callable[["_Bucket"], ItemView]) -> ItemBatch:
        places = self.places(users)
        buckets = self._bucket(places)
        order = np.argsort(buckets, kind="stable")
        parts = []
        for own in np.split(order, np.flatnonzero(np.diff(buckets[order])) + 1) if len(order) else []:
            bucket = int(buckets[own[0]])
            parts.append(which(self._read(bucket)).of(places[own] - self._starts[bucket]))
        if len(parts) == 1:
            return parts[0]
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return _joined(parts, self._features, weighted=self._weighted).of(back)

    def places(self, users: Users) -> Users:
        """Where each of `users` (k,) is in the order of reading."""
        known = np.asarray(users, np.int64) if self._numbers is None else self._numbers[users]
        return self._place[known].astype(np.int64)

    def pieces(self, users: Users) -> Iterator[Users]:
        """Indices into `users` (k,) that are read together, in the order of reading."""
        if len(self._starts) <= 2:
            yield np.arange(len(users))
            return
        places = self.places(users)
        order = np.arange(len(users)) if np.all(places[1:] > places[:-1]) else np.argsort(places, kind="stable")
        cuts = np.searchsorted(places[order], self._starts[1:-1])
        yield from (own for own in np.split(order, cuts) if len(own))

    def _bucket(self, places: Users) -> Users:
        return np.searchsorted(self._starts, places, side="right") - 1

    def _deal(self, rows: Rows) -> None:
        buckets = len(self._starts) - 1
        bucket_of = np.repeat(np.arange(buckets, dtype=np.int32), np.diff(self._starts))
        step = 1 if buckets == 1 else STEP
        room = self._room + 1 + (step - 1) * buckets  # the last row is nobody's
        stacks = [Stack.of(room, self._features, weighted=self._weighted) for _ in range(1 if buckets == 1 else 2)]
        dealer, told = _Dealer(Scaling.of(rows.encoding), rows), np.empty((0, 3), np.int32)
        writing: list[Future[None]] = []
        with (
            closing(rows.stretches(self._pieces, self._place, self._room)) as stretches,
            ThreadPoolExecutor(1, thread_name_prefix="quoron-writer") as writer,
        ):
            for number, stretch in enumerate(stretches):
                if number >= 2:
                    writing[number - 2].result()
                stack = stacks[number % len(stacks)]
                base = np.zeros(len(stretch.places), np.int64)
                starts, runs = np.empty((2, buckets + 1), np.int64)
                settle(stretch.places, stretch.lengths, bucket_of, step, starts, runs, base)
                kept = dealer.deal(stretch, base, stack)
                told = aligned((int(runs[-1]), 3), np.int32)
                ready = (stretch.places, stretch.lengths, base, kept, bucket_of, starts, runs, *stack.arrays, told)
                writing.append(writer.submit(self._put_away, stack, starts, runs, told, ready))
            for each in writing:
                each.result()
        self._within = dealer.within and not self._loss.narrow
        self._rows = sum((np.diff(each.starts) for each in self._written), np.zeros(buckets, np.int64))
        if buckets == 1:
            self._held[0] = Future()
            self._held[0].set_result(self._picked_up(0, stacks[0], told))

    def _put_away(self, stack: Stack, starts: Users, runs: Users, told: NDArray[np.int32], ready: Any) -> None:
        """What was dealt, to the disk if there are several buckets; the next is dealt meanwhile."""
        sort_runs(*ready)
        if len(self._starts) <= 2:
            return
        if self._scratch is None:
            self._scratch = Scratch()
        before = self._written[-1].at[-1] if self._written else 0
        views = []
        for bucket in range(len(starts) - 1):
            own = stack.part(*map(int, starts[bucket : bucket + 2]))
            views.append([*own.arrays, told[runs[bucket] : runs[bucket + 1]]])
        at = before + stack.width * starts + told.strides[0] * runs
        written = _Written(starts, runs, at, tuple(map(self._seal.of, views)))
        self._scratch.write(chain(*views), int(before))
        self._written.append(written)

    def _read(self, bucket: int) -> _Bucket:
        with self._lock:
            needed = range(bucket, min(bucket + 1 + AHEAD, len(self._starts) - 1))
            wanted, *_ = [self._ask(each) for each in needed]
            room = HELD
            for old in reversed([each for each in self._held if each not in needed]):  # the latest stay
                room -= int(self._sizes[old])
                if room < 0:
                    del self._held[old]
        return wanted.result()

    def _ask(self, bucket: int) -> "Future[_Bucket]":
        if bucket not in self._held:
            self._held[bucket] = self._reader.submit(self._read_back, bucket)
        self._held.move_to_end(bucket)
        return self._held[bucket]

    def _read_back(self, bucket: int) -> _Bucket:
        own_rows, most = int(self._rows[bucket]), 2 * int(np.median(self._rows))  # more has who fills one alone
        room = Stack.size(most + 1, self._features, weighted=self._weighted)
        memory = self._memory.lend(room) if own_rows <= most else None
        stack = Stack.of(own_rows + 1, self._features, weighted=self._weighted, memory=memory)
        told, at = [], 0
        assert self._scratch is not None
        for each in self._written:
            rows = int(each.starts[bucket + 1] - each.starts[bucket])
            own = stack.part(at, at + rows)
            runs = aligned((int(np.diff(each.runs[bucket : bucket + 2])[0]), 3), np.int32)
            self._scratch.read([*own.arrays, runs], int(each.at[bucket]))
            if self._seal.of([*own.arrays, runs]) != each.seals[bucket]:
                raise unlike_written()
            runs[:, 1] += at
            told.append(runs)
            at += rows
        return self._picked_up(bucket, stack, np.concatenate(told))

    def _picked_up(self, bucket: int, stack: Stack, runs: NDArray[np.int32]) -> _Bucket:
        """The users of a bucket where their rows lie; rows are copied only if some user's are apart."""
        first, last = self._starts[bucket : bucket + 2]
        begins, ends = np.empty((2, int(last - first)), np.int64)
        whole = len(stack.labels) - 1
        for array in stack.arrays:
            array[whole:] = 0.0  # the item of those who have none
        if not gather(runs, int(first), begins, ends):
            held = ends - begins
            at, rows = np.cumsum(held) - held, np.empty(int(held.sum()) + 1, np.int64)
            lay_out(runs, int(first), at.copy(), rows)
            rows[-1] = whole
            stack = Stack(*(array[rows] if len(array) else array for array in stack.arrays))
            begins, ends, whole = at, at + held, len(rows) - 1
        if self._zero_rows:
            without = ends == begins
            begins[without], ends[without] = whole, whole + 1
        weights = stack.weights if self._weighted else None
        items = ItemBatch(stack.features, stack.labels, np.array([0, len(stack.labels)]), weights)
        within = self._bounded(items)
        return _Bucket((within if self._loss.narrow else items).where(begins, ends), within.where(begins, ends))

    def _bounded(self, items: ItemBatch) -> ItemBatch:
        """`bounded`, but for reading rows again that were measured when they were dealt."""
        labels = items.labels
        for first in range(0, len(labels) if self._within else 0, BLOCK):
            own = items.labels[first : first + BLOCK]
            within = self._loss.bound_labels(own)
            if np.array_equal(own, within):
                continue
            labels = labels.copy() if labels is items.labels else labels
            labels[first : first + BLOCK] = within
        if not self._within or np.isnan(labels).any():
            return bounded(items, self._loss)
        return replace(items, labels=labels)


class _Dealer:
    """Deals the rows of files into stacks, stretch by stretch, on all threads."""

    def __init__(self, scaling: Scaling, rows: Rows) -> None:
        self._scaling, self._rules = scaling, rows.encoding
        self.within = True  # no row so far is longer than the loss allows

    def deal(self, stretch: Stretch, base: Users, stack: Stack) -> NDArray[np.int32]:
        """The rows of a stretch, to where their runs begin; how many rows of each run are kept (R,)."""
        kept = np.zeros(len(stretch.places), np.int32)
        ends, begun = np.cumsum(stretch.lengths, dtype=np.int64), 0
        for table in stretch.tables:
            columns = Columns.of(self._rules, table)
            values = columns.addresses()
            # Pieces begin where a run does, so that no two have rows of one run.
            end = begun + table.num_rows
            cuts = ends[np.searchsorted(ends, np.arange(begun + BLOCK, end, BLOCK))]
            borders = np.unique([begun, *cuts[cuts < end], end]).tolist()
            works = [
                partial(self._piece, columns, values, begun, first, last, ends, stretch, base, kept, stack)
                for first, last in pairwise(borders)
            ]
            at_once(works, all_threads())
            begun = end
        return kept

    def _piece(
        self,
        columns: Columns,
        values: tuple[Users, NDArray[Any]],
        begun: int,
        first: int,
        last: int,
        ends: Users,
        stretch: Stretch,
        base: Users,
        kept: NDArray[np.int32],
        stack: Stack,
    ) -> None:
        """Rows `first` to `last` of a stretch, in columns whose first is row `begun` of it."""
        run, scaling = int(np.searchsorted(ends, first, side="right")), self._scaling
        within = deal(
            *values,
            first - begun,
            last - begun,
            scaling.low,
            scaling.high,
            scaling.scale,
            scaling.drop,
            scaling.constant,
            self._rules.feature_norm,
            columns.labels,
            columns.weights,
            columns.kept,
            run,
            first - int(ends[run] - stretch.lengths[run]),
            stretch.places,
            stretch.lengths,
            base,
            kept,
            *stack.arrays,
        )
        if not within:
            self.within = False


def _starts(ends: Users, rows: int) -> Users:
    """Places (K + 1,) at which buckets of about so many rows begin; ends[i] rows (n + 1,) come before place i."""
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
