"""The inline engine: a cohort of simulated users answers in this process, chunk by chunk.

    engine = InlineEngine(population)
    answers = engine.ask(question)

What a user answers depends on that user and the question alone, so the chunk size changes no bit.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from quorate.populations._base import Corruption, Population, Users
from quorate_client.enforcement import bounded
from quorate_client.questions import Answers, LocalSGD, Matrix, Question, Status, Task
from quorate_client.work import answer

_FAR = 1e6  # answers beyond this many times the largest honest coordinate are rejected
_SENT = {Corruption.HUGE: 1e300, Corruption.NAN: np.nan, Corruption.INF: np.inf, Corruption.ZERO: 0.0}


class InlineEngine:
    """Answers questions for a `Population`, in memory bounded by `chunk_bytes` of items at a time.

    | what a user does                  | row of the answer                                   |
    | --------------------------------- | --------------------------------------------------- |
    | honest, or shifted                | its answer, ANSWERED                                |
    | sends 1e300, NaN or infinity      | zero, REJECTED                                      |
    | sends zeros                       | zero, ANSWERED                                      |
    | never answers, or has no items    | zero, MISSING                                       |
    | holds a non-finite item           | zero, REJECTED                                      |

    Nothing a user holds or sends raises. `item_gradients` counts the gradients computed, for simulation only.
    """

    def __init__(self, population: Population, *, chunk_bytes: int = 64 << 20) -> None:
        self.population = population
        self.item_gradients = 0
        row_bytes = 4 * population.dimension + 8
        self._chunk = max(1, chunk_bytes // (row_bytes * population.items_per_user))
        loss, domain, dimension = population.loss, population.domain, population.dimension
        self._gradient = loss.lipschitz(domain, dimension)
        # A running sum of iterates grows with the items; the bound is public, so their nominal number enters.
        self._iterates = domain.norm_bound(dimension) * population.items_per_user

    def ask(self, question: Question) -> Answers:
        """Answers of the question's cohort, in slot order."""
        cohort, task = question.cohort, question.task
        values, status = _silence(len(cohort), self.population.dimension, task)
        for start in range(0, len(cohort), self._chunk):
            slots = slice(start, start + self._chunk)
            values[slots], status[slots] = self._chunk_answers(cohort[slots], _part(task, slots))
        honest = self._iterates if isinstance(task, LocalSGD) else self._gradient
        return Answers.checked(values, status, largest=_FAR * honest)

    def _chunk_answers(self, users: Users, task: Task) -> tuple[Matrix, NDArray[np.uint8]]:
        faults = self.population.corruption(users)
        values, status = _silence(len(users), self.population.dimension, task)
        computing = np.flatnonzero(faults <= Corruption.SHIFTED)
        if len(computing):
            batch = bounded(self.population.items(users[computing]), self.population.loss)
            self.item_gradients += len(batch.labels) * task.gradients_per_user
            computed = answer(self.population.loss, batch, _part(task, computing))
            values[computing], status[computing] = computed.values, computed.status
        status[faults == Corruption.MISSING] = Status.MISSING
        for fault, sent in _SENT.items():
            values[faults == fault] = sent
        return values, status


def _silence(users: int, dimension: int, task: Task) -> tuple[Matrix, NDArray[np.uint8]]:
    """Rows of zeros of the task's shape, and a status ANSWERED for each."""
    shape = (users, 2, dimension) if isinstance(task, LocalSGD) else (users, dimension)
    return np.zeros(shape), np.full(users, Status.ANSWERED, np.uint8)


def _part(task: Task, slots: slice | NDArray[np.int64]) -> Task:
    """The task of some slots of a cohort: each user of `LocalSGD` has its own start."""
    return replace(task, starts=task.starts[slots]) if isinstance(task, LocalSGD) else task
