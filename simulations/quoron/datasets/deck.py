"""The items of a run on this machine's disk, in the order in which rounds ask for their users.

    deck = Deck.dealt(rows, numbers, order)
    deck.items(users)

Rounds ask users in a random order, and in a file that is sorted by user a random cohort is everywhere. So every row is
read from its file once, made an item, and dealt into one of some hundred buckets, each of the users of a stretch of the
order; a round then reads the buckets of its own cohort, and a pass over all users reads every item once. One bucket is
read ahead. Memory is that of a few buckets, whatever the number of users.

The file has no name: it is gone with the process, however that ends. It takes about four bytes a feature of every row,
in QUORON_SCRATCH, else /var/tmp, else where temporary files go.
"""

import os
import tempfile
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quoron.datasets._packing import HEAD, deal, pick_up, tally
from quoron.datasets.rows import Rows
from quoron_client.data.items import ItemBatch
from quoron_privacy.errors import RunError

BUCKET = 24 << 20  # bytes on disk, about
HELD = 160 << 20  # bytes of buckets that stay in memory
SCRATCH = "QUORON_SCRATCH"

Users = NDArray[np.int64]


def scratch_folder() -> Path:
    """Where decks are kept."""
    given = os.environ.get(SCRATCH)
    if given:
        return Path(given)
    return Path("/var/tmp") if os.access("/var/tmp", os.W_OK) else Path(tempfile.gettempdir())


@dataclass(frozen=True, slots=True, eq=False)
class _Layout:
    """Which places of the order are in which bucket, and where its rows begin in the file."""

    starts: NDArray[np.int64]  # (K + 1,), places
    regions: NDArray[np.int64]  # (K + 1,), rows; a bucket's region has room for all rows of its users
    width: int  # words of a row

    @classmethod
    def of(cls, held: NDArray[np.int64], width: int) -> "_Layout":
        """For users with so many rows each, in order."""
        ends = np.cumsum(held)
        rows = max(1, BUCKET // (4 * width))
        whole = int(ends[-1]) if len(ends) else 0
        cuts = np.searchsorted(ends, np.arange(rows, whole, rows), side="left") + 1
        starts = np.unique(np.concatenate([[0], np.minimum(cuts, len(held)), [len(held)]])).astype(np.int64)
        return cls(starts, np.concatenate([[0], ends])[starts].astype(np.int64), width)


class Deck:
    """Items of some users, numbered as `numbers` says, by place in an order. Made by `dealt`."""

    def __init__(self, layout: _Layout, place: NDArray[np.int32], numbers: Users | None, rows: Rows) -> None:
        self._layout, self._place, self._numbers = layout, place, numbers
        self._features, self._weighted = rows.encoding.dimension, rows.encoding.weight is not None
        self._zero_rows = rows.zero_rows
        self._filled = np.zeros(len(layout.starts) - 1, np.int64)
        self._file = _unnamed()
        weakref.finalize(self, self._file.close)
        self._lock = threading.Lock()
        self._held: OrderedDict[int, Future[ItemBatch]] = OrderedDict()
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="quoron-deck")

    @classmethod
    def dealt(cls, rows: Rows, numbers: Users | None, order: Users) -> "Deck":
        """Read all rows of the users in `order` (a permutation of some of them) once, and deal them out.

        `numbers` is the users' numbers in the index, None where they are the same. DataError as reading the files says;
        RunError where there is no room on disk.
        """
        known = order if numbers is None else numbers[order]
        held = np.append(rows.index.held(), np.zeros(rows.users - rows.index.users, np.int64))
        place = np.full(rows.users, -1, np.int32)
        place[known] = np.arange(len(order), dtype=np.int32)
        width = HEAD + 2 * (rows.encoding.weight is not None) + rows.encoding.dimension
        deck = cls(_Layout.of(held[known], width), place, numbers, rows)
        deck._deal(rows)
        return deck

    def items(self, users: Users) -> ItemBatch:
        """The items of `users` (k,), in that order. Neighbours in the order of reading cost the least."""
        places = self.places(users)
        buckets = self._bucket(places)
        if len(buckets) == 0:
            return self._empty()
        if buckets.min() == buckets.max():
            return _some(self._read(int(buckets[0])), places - self._layout.starts[buckets[0]])
        order = np.argsort(buckets, kind="stable")
        parts = []
        for own in np.split(order, np.flatnonzero(np.diff(buckets[order])) + 1):
            bucket = int(buckets[own[0]])
            parts.append(_some(self._read(bucket), places[own] - self._layout.starts[bucket]))
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return _some(_joined(parts), back)

    def places(self, users: Users) -> NDArray[np.int64]:
        """Where each of `users` (k,) is in the order of reading."""
        known = np.asarray(users, np.int64) if self._numbers is None else self._numbers[users]
        return self._place[known].astype(np.int64)

    def pieces(self, users: Users) -> Iterator[NDArray[np.int64]]:
        """Indices into `users` (k,) that are read together, in the order of reading."""
        places = self.places(users)
        order = np.argsort(places, kind="stable")
        cuts = np.searchsorted(places[order], self._layout.starts[1:-1])
        yield from (own for own in np.split(order, cuts) if len(own))

    def _bucket(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.searchsorted(self._layout.starts, places, side="right") - 1

    def _deal(self, rows: Rows) -> None:
        layout = self._layout
        bucket_of = np.repeat(np.arange(len(self._filled), dtype=np.int32), np.diff(layout.starts))
        ends = np.empty(len(self._filled), np.int64)
        out = np.empty((0, layout.width), np.float32)
        nothing = np.empty(0)
        for owners, encoded in rows.encoded(wanted=self._place >= 0):
            if len(owners) > len(out):
                out = np.empty((len(owners), layout.width), np.float32)
            weights = nothing if encoded.weights is None else encoded.weights
            places = self._place[owners]
            deal(encoded.features, encoded.labels, weights, encoded.kept, places, bucket_of, layout.width, out, ends)
            begin = 0
            for bucket in np.flatnonzero(np.diff(ends, prepend=0)):
                dealt = out[begin : ends[bucket]]
                self._write(dealt, layout.regions[bucket] + self._filled[bucket])
                self._filled[bucket] += len(dealt)
                begin = int(ends[bucket])

    def _write(self, words: NDArray[np.float32], row: int) -> None:
        data, at = _bytes(words), int(row) * 4 * self._layout.width
        try:
            while len(data):
                done = os.pwrite(self._file.fileno(), data, at)
                data, at = data[done:], at + done
        except OSError as error:
            raise RunError(
                f"Cannot keep the items of this run in {scratch_folder()}: {error.strerror}. Make room, or set "
                f"{SCRATCH} to a folder on a disk with some."
            ) from None

    def _read(self, bucket: int) -> ItemBatch:
        with self._lock:
            wanted = self._ask(bucket)
            if bucket + 1 < len(self._filled):
                self._ask(bucket + 1)  # read ahead
            room = HELD
            for old in reversed([*self._held]):  # the latest stay
                room -= 8 * self._layout.width * int(self._filled[old])
                if room < 0 and old not in (bucket, bucket + 1):
                    del self._held[old]
        return wanted.result()

    def _ask(self, bucket: int) -> "Future[ItemBatch]":
        if bucket not in self._held:
            self._held[bucket] = self._reader.submit(self._picked_up, bucket)
        self._held.move_to_end(bucket)
        return self._held[bucket]

    def _picked_up(self, bucket: int) -> ItemBatch:
        layout = self._layout
        first, last = layout.starts[bucket : bucket + 2]
        words = np.empty((int(self._filled[bucket]), layout.width), np.float32)
        data, at = _bytes(words), int(layout.regions[bucket]) * 4 * layout.width
        while len(data):
            done = os.preadv(self._file.fileno(), [data], at)
            if done == 0:
                raise RunError(
                    f"Expected the items of this run in {scratch_folder()}, but the file has become shorter."
                )
            data, at = data[done:], at + done
        counts = np.zeros(int(last - first), np.int64)
        tally(words, first, counts)
        if self._zero_rows:
            counts = np.maximum(counts, 1)
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        complete = len(words) == offsets[-1]
        make: Any = np.empty if complete else np.zeros
        features, labels = make((offsets[-1], self._features), np.float32), make(offsets[-1])
        weights = make(offsets[-1]) if self._weighted else None
        pick_up(words, first, offsets[:-1].copy(), features, labels, np.empty(0) if weights is None else weights)
        return ItemBatch(features, labels, offsets, weights)

    def _empty(self) -> ItemBatch:
        weights = np.empty(0) if self._weighted else None
        return ItemBatch(np.empty((0, self._features), np.float32), np.empty(0), np.zeros(1, np.int64), weights)


def _some(batch: ItemBatch, users: NDArray[np.int64]) -> ItemBatch:
    """The items of some users; nothing is copied where they are neighbours."""
    first, last = int(users[0]), int(users[-1]) + 1
    if last - first != len(users) or np.any(np.diff(users) != 1):
        return batch.of(users)
    if first == 0 and last == batch.users:
        return batch
    begin, end = batch.offsets[first], batch.offsets[last]
    weights = None if batch.weights is None else batch.weights[begin:end]
    offsets = batch.offsets[first : last + 1] - begin
    return ItemBatch(batch.features[begin:end], batch.labels[begin:end], offsets, weights)


def _bytes(words: Any) -> memoryview:
    return memoryview(words).cast("B")


def _joined(parts: list[ItemBatch]) -> ItemBatch:
    counts = np.concatenate([np.diff(part.offsets) for part in parts])
    weights = None if parts[0].weights is None else np.concatenate([part.item_weights for part in parts])
    features: Any = np.concatenate([part.features for part in parts])
    labels = np.concatenate([part.labels for part in parts])
    return ItemBatch(features, labels, np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), weights)


def _unnamed() -> Any:
    folder = scratch_folder()
    try:
        return tempfile.TemporaryFile(prefix="quoron-", dir=folder)
    except OSError as error:
        raise RunError(
            f"Cannot keep the items of a run in {folder}: {error.strerror}. Set {SCRATCH} to a folder on a disk with "
            "room."
        ) from None
