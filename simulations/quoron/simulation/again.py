"""Answers too many to be held: blocks of rows that are computed whenever somebody looks at them.

What a user answers depends on that user and the question alone, so a block has the same bits every time, and nothing
but time tells it from rows in memory. Only second moments are that long: d (d + 1) / 2 numbers of every user; the
gradients beside them are as long as what other rounds ask for, and held. Blocks are of slots: items on disk are read in
the order of slots, too, where everybody is asked in every round.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quoron_client.protocol.questions import Answers, Matrix, Question
from quoron_client.protocol.tasks import MomentAndGradient

HELD = 1 << 28  # bytes of answers that are held as a whole
BLOCK = 1 << 24  # bytes that are computed at a time


@dataclass(slots=True, eq=False)
class RowsAgain:
    """Rows (k, p) of the answers to a question; the block looked at last is kept. Threads may look at the same time."""

    ask: Callable[[Question], Answers]
    question: Question
    shape: tuple[int, int]
    beside: Matrix  # (k, d), the last numbers of each row
    _first: int = -1  # of the block that is kept
    _block: Matrix = field(default_factory=lambda: np.zeros((0, 0)))
    _lock: Any = field(default_factory=threading.Lock)

    def __len__(self) -> int:
        return self.shape[0]

    def reshape(self, *shape: int) -> "RowsAgain":
        """The same: a row is a line of numbers as it is."""
        assert shape in (self.shape, (self.shape,))
        return self

    def __getitem__(self, rows: slice | tuple[slice, slice]) -> Matrix:
        if isinstance(rows, tuple):  # of some columns those that are held
            rows, columns = rows
            assert columns == slice(self.shape[1] - self.beside.shape[1], None)
            return self.beside[rows]
        first, last, step = rows.indices(len(self))
        assert step == 1
        if first >= last:
            return np.zeros((0, self.shape[1]))
        with self._lock:
            starts = range(first - first % self.rows, last, self.rows)
            found = [self._of(at)[max(first - at, 0) : last - at] for at in starts]
        return found[0] if len(found) == 1 else np.concatenate(found)

    @property
    def rows(self) -> int:
        """Of a block."""
        return max(1, BLOCK // (8 * self.shape[1]))

    def _of(self, at: int) -> Matrix:
        """The block that begins there."""
        if at != self._first:
            self._block = np.zeros((0, 0))  # one at a time is held
            self._block, self._first = self.answers_at(at).values, at
        return self._block

    def answers_at(self, at: int) -> Answers:
        """Answers of the users of a block."""
        own = slice(at, at + self.rows)
        return self.ask(replace(self.question, cohort=self.question.cohort[own], task=self.question.task.part(own)))


def looked_at_again(ask: Callable[[Question], Answers], question: Question, dimension: int) -> Answers | None:
    """The answers as `RowsAgain`, where they are second moments of too many users to be held; else None."""
    users, numbers = len(question.cohort), prod(question.task.answer_shape(dimension))
    if not isinstance(question.task, MomentAndGradient) or question.reduction is not None:
        return None
    if 8 * users * numbers <= HELD:
        return None
    held = question.task.model_size
    rows = RowsAgain(ask, question, (users, numbers), np.empty((users, held)))
    status: NDArray[np.uint8] = np.empty(users, np.uint8)
    for at in range(0, users, rows.rows):
        own, answers = slice(at, at + rows.rows), rows.answers_at(at)
        rows.beside[own], status[own] = answers.values[:, -held:], answers.status
    return Answers(rows, status)  # type: ignore[arg-type]
