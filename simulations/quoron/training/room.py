"""Room for the items of a table in memory: made sure of before a run is charged, filled afterwards, a block at a time.

    with memory_for("the rows of this table", f"{UNCHARGED} {ELSEWHERE}"):
        owners = ...
    room = Room.made(rows=len(owners), users=n, features=p, weighted=False)   # RunError where there is not enough
    room.fill(encoding, table, owners, zero_rows=True)

Rows are encoded where they lie in the table and written where their user's items will be, so that beside the table and
its items a run takes about BLOCK numbers more. What comes is what `Encoding.encode` and `Encoded.batch` make of all
rows at once, to the bit: a row's numbers depend on that row alone.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from quoron.processors import free_memory
from quoron.simulation import again
from quoron_client.data.encoding import Encoding, Owners
from quoron_client.data.items import ItemBatch
from quoron_client.protocol.whitened import MomentAndGradient
from quoron_privacy.errors import RunError
from quoron_privacy.noise.sources import SeededNoise
from quoron_server.algorithms import ALGORITHMS
from quoron_server.plan import Plan
from quoron_server.serial import size

BLOCK = 1 << 22  # numbers that are encoded at a time; a table of fewer needs no room of its own
_BESIDE = 64  # bytes a row, of what else is made of all rows: norms, labels within bounds
UNCHARGED = "Nothing is charged now."
ONCE = "The run is charged, and will not be again: give the same command where there is more, and it goes on."
ELSEWHERE = (
    "Train on a machine with more, or write the table as Parquet and name its folder, or the file by a URL "
    "(file:///...): then it is read piece by piece, and its items lie on disk."
)
_CODED = 6  # times what is kept between two rounds, where it is written down
FEWER = "Choose an algorithm that reads sums alone, such as one-pass-dp-sgd, fewer features or a machine with more."
LESS = (
    "Choose fewer features or a machine with more; dp-ftrl with several epochs keeps less with a smaller "
    "algorithm.options.noise_memory."
)


@contextmanager
def memory_for(what: str, then: str) -> Iterator[None]:
    """Say by name where memory ends: what it was for, and what to do then."""
    try:
        yield
    except MemoryError as error:
        raise RunError(f"Expected memory for {what}, got too little: {error or 'no more is given'}. {then}") from None


def make_sure_of_answers(plan: Plan, *, in_memory: bool) -> None:
    """RunError unless there is memory for the plan's largest round: its answers, and what is kept between rounds.

    What is made of answers was at most 3.9 times as much, over all methods; most take twice. Of questions with a
    reduction, which all of a plan's have or none, no answers are kept; second moments of too many users, whose items
    are `in_memory`, are looked at again, a block at a time. What is kept is there before and after a round, and on its
    way into the books. It depends on the plan, on where items lie, and on this machine.
    """
    algorithm = ALGORITHMS[plan.algorithm].make(plan)
    state = algorithm.init()
    question = algorithm.request(state, SeededNoise(0))  # whom it asks is looked at by nobody
    answers, kept = 0, _CODED * size(state)
    if question is not None and question.reduction is None:
        users, numbers = max(plan.parameters.cohorts()), plan.parameters.answer_length(plan.problem)
        answers = 4 * 8 * users * numbers
        if in_memory and isinstance(question.task, MomentAndGradient) and 8 * users * numbers > again.HELD:
            answers = 4 * (again.BLOCK + 8 * users * plan.problem.dimension)  # gradients are what other rounds ask for
    what = f"the answers of a round ({answers:,} bytes) and what is kept between two ({kept:,} bytes)"
    with memory_for(what, f"{UNCHARGED} {FEWER if answers >= kept else LESS}"):
        if answers + kept > (left := _available()):
            raise MemoryError(f"{left:,} are left")


@dataclass(frozen=True, slots=True, eq=False)
class Room:
    """Zeros for an item of every row, and one of every user."""

    features: NDArray[np.float32]  # (N + n, p)
    labels: NDArray[np.float64]  # (N + n,)
    weights: NDArray[np.float64] | None  # (N + n,)
    users: int  # n

    @classmethod
    def made(cls, *, rows: int, users: int, features: int, weighted: bool, begun: bool = False) -> "Room":
        """The room, which is then this process's, and as much again was there a moment ago. RunError if it is not.

        A run that has `begun` was let in: whether as much is there again is not asked.
        """
        most = rows + users
        needed = most * (2 * (4 * features + 8 * (1 + weighted)) + _BESIDE)
        then = ONCE if begun else f"{UNCHARGED} {ELSEWHERE}"
        with memory_for(f"the items of this table ({needed:,} bytes)", then):
            if not begun and needed > (left := _available()):
                raise MemoryError(f"{left:,} are left")
            made = cls(
                np.full((most, features), 0.0, np.float32),  # np.zeros would take pages when they are written
                np.full(most, 0.0),
                np.full(most, 0.0) if weighted else None,
                users,
            )
            if not begun:
                np.full(needed - most * (4 * features + 8 * (1 + weighted)), 0, np.uint8)
        return made

    def fill(self, encoding: Encoding, table: pa.Table, owners: Owners, *, zero_rows: bool) -> ItemBatch:
        """The items of all users, row i of the table being that of user owners[i] (N,), in this room."""
        rows, step = len(owners), max(1, BLOCK // max(1, encoding.dimension))
        at, kept = np.empty(rows, np.int64), np.empty(rows, np.bool_)
        at[np.argsort(owners, kind="stable")] = np.arange(rows)
        for first in range(0, rows, step):
            own = at[first : first + step]
            some = encoding.encode(table.slice(first, step))
            self.features[own], self.labels[own], kept[own] = some.features, some.labels, some.kept
            if self.weights is not None:
                self.weights[own] = some.weights
        held = np.zeros(self.users, np.int64)
        for first in range(0, rows, step):
            part = owners[first : first + step][kept[at[first : first + step]]]
            held += np.bincount(part, minlength=self.users)
        counts = np.maximum(held, 1) if zero_rows else held
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        if not kept.all() or not held.all():
            there = np.flatnonzero(kept)
            del at, kept
            self._moved(lambda first, last: (there[first:last], slice(first, last)), range(0, len(there), step), step)
            places = np.repeat(offsets[:-1] - (np.cumsum(held) - held), held) + np.arange(len(there))
            backwards = reversed(range(0, len(there), step))
            whole = len(there)
            self._moved(lambda first, last: (slice(first, min(last, whole)), places[first:last]), backwards, step)
            for array in self._arrays:
                array[offsets[:-1][held < counts]] = 0.0
        end = int(offsets[-1])
        weights = None if self.weights is None else self.weights[:end]
        return ItemBatch(self.features[:end], self.labels[:end], offsets, weights)

    def _moved(self, way: Callable[[int, int], tuple[Any, Any]], firsts: Any, step: int) -> None:
        """Rows from where they are to where they go, a block at a time in an order in which none is overwritten."""
        for first in firsts:
            source, target = way(first, first + step)
            if isinstance(target, slice):
                target = slice(target.start, target.start + len(source))
            for array in self._arrays:
                array[target] = array[source].copy()

    @property
    def _arrays(self) -> list[NDArray[Any]]:
        return [self.features, self.labels, *([] if self.weights is None else [self.weights])]


def _available() -> int:
    return free_memory(swap=True)
