"""A table's rows as items of its users, while it is read: nothing of a row stays but its item and its marks.

    gathering = Gathering(rules, "patient", most=762_600)
    for batch in tables.opened("visits.csv").batches((*rules.columns, "patient")):
        gathering.add(batch)
    gathered = gathering.end()
    items = gathered.items(gathered.users)

Rows are made items (`fused`) in the order of the table, in memory that grows where it lies, and in the end put user by
user where they are: there is never a second copy. Of one user only the first `most` rows stay, and a little more for a
while.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from quoron_client.data import fused, fused_loops
from quoron_client.data.columns import NO_ROWS
from quoron_client.data.encoding import Encoding
from quoron_client.data.fused import Block
from quoron_client.data.items import ItemBatch
from quoron_client.data.users import Codes, Numbering
from quoron_privacy.errors import DataError
from quoron_privacy.kernels.threads import all_threads, at_once

_GROWTH = 1.125  # of memory, which is the most that is taken in vain
_STRETCH = 1 << 21  # bytes of rows that are put in order at a time, about: a processor's cache


class Gathering:
    """Rows that are added batch by batch, of a table of so many `rows`, where that is known.

    Before they take more memory `ask` is told how many bytes they will take, and how many of these are new. It may
    raise.
    """

    def __init__(
        self,
        rules: Encoding,
        user: str,
        most: int = sys.maxsize,
        *,
        rows: int | None = None,
        ask: Callable[[int, int], object] | None = None,
    ) -> None:
        self._rules, self._most, self._ask, self._all = rules, most, ask, rows or sys.maxsize
        self._block, self._rows = Block.of(rules, 0), 0
        self._numbering, self._seen = Numbering(user), np.zeros(0, np.int64)
        self._owners: list[Codes] = []

    def add(self, table: pa.Table) -> None:
        """The rows that follow, with the columns of the rules, which `rules.check` found good, and the user's."""
        first, last = self._rows, self._rows + table.num_rows
        self._make_room(last)
        fused.encode(self._rules, table, self._block.part(first, last))
        self._numbering.add(table)
        self._rows = last
        if self._numbering.is_full:
            self._count()

    @property
    def names(self) -> list[str]:
        """Of the users, in their order."""
        return self._numbering.names()

    @property
    def people(self) -> bytes:
        """A digest of these."""
        return self._numbering.digest

    def end(self) -> "Gathered":
        """All of it. DataError for a table without rows, and for a row without a user."""
        if self._numbering.waiting:
            self._count()
        users, ranks = self._numbering.ranks(without_rows=True)
        if not self._owners:
            raise DataError(NO_ROWS)
        pa.default_memory_pool().release_unused()  # what batches were in
        owners = np.concatenate([ranks[each] for each in self._owners])
        self._owners.clear()
        self._block.marks.resize((len(owners), self._block.marks.shape[1]), refcheck=False)
        return Gathered(users, owners, self._block.marks, self._block)

    def _make_room(self, rows: int) -> None:
        have = len(self._block.labels)
        if rows > have:
            wanted = max(rows, min(int(_GROWTH * have), self._all))
            if self._ask is not None:
                self._ask(wanted * self._block.width, (wanted - have) * self._block.width)
            self._block.resize(wanted)

    def _count(self) -> None:
        """Number the users of rows that wait, and leave out those of whom has enough."""
        codes = self._numbering.numbers()
        first, kept = self._rows - len(codes), np.empty(len(codes), np.bool_)
        self._seen = np.append(self._seen, np.zeros(len(self._numbering) - len(self._seen), np.int64))
        if not fused_loops.first_of(codes, self._seen, self._most, kept):
            for array in self._block.part(first, self._rows).arrays:
                if len(array):
                    fused_loops.squeeze(kept, array)
            codes = codes[kept]
            self._rows = first + len(codes)
        self._owners.append(codes)


@dataclass(frozen=True, slots=True, eq=False)
class Gathered:
    """Rows that count, in the order of the table."""

    users: int  # whose names are in the table, with rows or without
    owners: Codes  # (N,) whose each row is
    marks: NDArray[np.uint8]  # (N, B), as `fused` says
    _block: Block  # of N rows or more

    def items(self, users: int, *, zero_rows: bool = True) -> ItemBatch:
        """Of so many users, in the memory that the rows are in: call it once.

        A user without a row that can be used has one item of zeros, whose gradient is zero but for the ridge; without
        `zero_rows` it has no item, and is one who does not answer.
        """
        rows, block = len(self.owners), self._block
        held = np.bincount(self.owners[self.marks[:, 0] & 1 == 0], minlength=users)
        offsets = np.append(0, np.cumsum(np.maximum(held, 1) if zero_rows else held))
        last = int(offsets[-1])
        whole = max(rows, last)
        if whole > len(block.labels):
            block.resize(whole, marks=False)
        for array in block.item:
            array[rows:whole] = 0
        to = np.empty(whole, np.int32 if whole < 2**31 else np.int64)
        if not fused_loops.settle(self.owners, self.marks, offsets, held, zero_rows, to):
            _put_in_order(to, block)
        block.resize(last, marks=False)
        return ItemBatch(block.features, block.labels, offsets, block.weights if block.weighted else None)


def _put_in_order(to: NDArray[Any], block: Block) -> None:
    """Row i to place to[i], for all of them, in place."""
    bits = max(0, (_STRETCH // block.width).bit_length() - 1)
    firsts = np.append(np.arange(0, len(to), 1 << bits), len(to))
    if len(firsts) > 2:
        fused_loops.deal(to, bits, firsts, firsts[:-1].copy(), *block.item)
    permute = (partial(fused_loops.permute, first, last, to, *block.item) for first, last in pairwise(firsts.tolist()))
    at_once(permute, all_threads())
