"""Users of a simulation in silos: each silo is asked once a round, and answers for its persons by rows or by one sum.

    engine = InSilos(engine_for(population), Silos.declared(3, population.users, sums=True))
    answers = engine.ask(question)

What a person answers depends on that person and the question alone, and sums are exact, so the bits are those of the
engine by itself. Silos may be away, or lie as much as their number of persons lets them (docs/privacy/silos.md#si3).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from quoron.simulation.pieces import Indices, Told, part_of, together
from quoron_client.protocol.questions import ANSWERED, MISSING, Answers, Question, summed
from quoron_privacy.errors import ConfigError
from quoron_privacy.means.silo_sums import CELLS, longest, objection
from quoron_privacy.release import Reduction, Sums
from quoron_server.rounds import Engine
from quoron_server.silos import Silos

FAR_OUT = 10.0  # times its persons' longest row is the row that a silo which lies sends for each of them


class Sized(Protocol):
    """Of whom a model has so many numbers."""

    @property
    def dimension(self) -> int:
        """d."""


@dataclass(slots=True, eq=False)
class InSilos:
    """An engine whose users come in silos; those of `away` and `hostile` are numbered from 1.

    | a silo                        | what counts for its persons                                             |
    | ----------------------------- | ----------------------------------------------------------------------- |
    | honest, by rows               | their rows, or the sum that the coordinator makes of these              |
    | honest, by one sum            | the sum that it makes of them: the same integers                        |
    | away                          | MISSING, all of them                                                    |
    | hostile, by rows              | for each the same long row, against the sum of all of them              |
    | hostile, by one sum           | the longest sum that passes, against theirs                             |
    | sends a sum that cannot be    | MISSING, all of them                                                    |
    """

    engine: Engine
    silos: Silos
    people: Sized
    away: tuple[int, ...] = ()
    hostile: tuple[int, ...] = ()
    _moved: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, given in (("silos_away", self.away), ("silos_hostile", self.hostile)):
            if given and not 1 <= min(given) <= max(given) <= len(self.silos.sizes):
                raise ConfigError(f"Expected {name} from 1 to {len(self.silos.sizes)}, got {name}={list(given)}.")

    def ask(self, question: Question) -> Told:
        """Sums of the question's reduction, if it has one; else answers of its cohort, in slot order."""
        asked = [*self._asked(question)]
        self._count(question, asked)
        if not asked or (question.reduction is None and not (self.away or self.hostile)):
            return self.engine.ask(question)
        parts = ((own, self._one(silo, part_of(question, own))) for silo, own in asked)
        return together(question, parts, self.people.dimension)

    def measured(self) -> Mapping[str, float]:
        """What the last round moved, a message being of a silo."""
        return self._moved

    def _asked(self, question: Question) -> Iterator[tuple[int, Indices]]:
        """Silos with persons in the cohort, from 1, and the slots of these."""
        members = self.silos.of(question.cohort)
        order = np.argsort(members, kind="stable")
        found, starts = np.unique(members[order], return_index=True)
        for silo, own in zip(found.tolist(), np.split(order, starts[1:]), strict=False):
            yield silo + 1, own

    def _one(self, silo: int, question: Question) -> Told:
        """What counts of one silo."""
        nobody = self._nobody(question)
        if silo in self.away:
            return nobody
        reduction = question.reduction
        if reduction is None or not self.silos.sums:
            rows = self.engine.ask(replace(question, reduction=None))
            assert isinstance(rows, Answers)
            return against(rows) if silo in self.hostile else rows
        sums = summed(self.engine.ask(question), reduction)
        persons = len(question.cohort)
        if silo in self.hostile:
            sums = heaviest(sums, reduction, persons)
        wrong = objection(sums, reduction, persons=persons, length=len(sums.total))
        return sums if wrong is None else nobody

    def _nobody(self, question: Question) -> Answers:
        shape = len(question.cohort), *question.task.answer_shape(self.people.dimension)
        return Answers(np.broadcast_to(0.0, shape), np.full(shape[0], MISSING))

    def _count(self, question: Question, asked: list[tuple[int, Indices]]) -> None:
        """One question and one answer of each silo that is asked; numbers of eight bytes."""
        task, d, reduction = question.task, self.people.dimension, question.reduction
        row = prod(task.answer_shape(d))
        up = len(question.cohort) * row
        if self.silos.sums and reduction is not None:
            nobody = reduction.of(np.zeros((0, row)), np.zeros(0, np.bool_))
            up = len(asked) * (len(nobody.total) + CELLS + 2)
        self._moved = {
            "silo_messages": float(len(asked)),
            "silo_bytes_down": 8.0 * len(asked) * task.numbers_down(d),
            "silo_bytes_up": 8.0 * up,
        }


def against(rows: Answers) -> Answers:
    """For every person one row, long and against the sum of all of them."""
    flat = rows.values.reshape(len(rows.values), -1)
    pull = -flat.sum(axis=0)
    norm, longest_row = float(np.linalg.norm(pull)), float(np.linalg.norm(flat, axis=1).max(initial=0.0))
    one = pull / norm * (FAR_OUT * longest_row) if norm else pull
    return Answers(np.broadcast_to(one, flat.shape).reshape(rows.values.shape), np.full(len(flat), ANSWERED))


def heaviest(honest: Sums, reduction: Reduction, persons: int) -> Sums:
    """The longest sum of so many persons against an honest one; of matrices, which stay positive, along with it."""
    row = longest(reduction)
    own = honest.total.astype(np.float64)
    weights, sign = np.ones(len(own)), -1.0
    if row.dimension:
        across, down = np.triu_indices(row.dimension)
        weights, sign = np.where(across == down, 1.0, 2.0), 1.0
    length = float(np.sqrt(np.sum(weights * own**2)))
    if row.of_trace:
        length = float(own[weights == 1.0].sum())
    total: NDArray[np.int64] = np.zeros(len(own), np.int64)
    if length:
        total = (sign * own * (persons * row.norm * (1 - 2.0**-40) / length)).astype(np.int64)
    cells = np.zeros(CELLS, np.int64)
    if row.counts_here:
        cells[2 if row.tells_norms else 0] = persons
    return Sums(total, cells, persons if row.tells_norms else 0, persons)
