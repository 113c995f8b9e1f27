"""Who is asked in a round, client by client: one question to each, for all of its persons who are in the cohort.

asked = Cohort.of(question, members, silos)     # silos: persons of each, by the number of its first
asked.rows[7]                                   # rows of the cohort that the client of user 7 answers
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from quoron_client.protocol import wire
from quoron_client.protocol.questions import Answers, Question, Task
from quoron_privacy.kernels.on_first_use import OnFirstUse
from quoron_privacy.release import Sums
from quoron_protos.v1 import federation_pb2 as pb
from quoron_server.books.drawing import by_client

if TYPE_CHECKING:
    from quoron_client.protocol import masked, silo
else:
    masked = OnFirstUse("quoron_client.protocol.masked")  # of two servers alone
    silo = OnFirstUse("quoron_client.protocol.silo")  # where one client answers for several users

_AT_ONCE = 1 << 20  # bytes of questions that are made between two looks at what has come in
_READY = 256 << 20  # bytes of them that are made before the first of them leaves
_EVERYBODY = -1  # in the place of a client: all who are one user, where these are asked the same
Rows = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Sealed:
    """What came with a masked answer, for the helper."""

    question: bytes  # digest, 32 bytes
    text: bytes  # the sealed seed of its mask


def read_masked(
    message: pb.MaskedAnswer, length: int, digest: bytes, task: bytes
) -> tuple[NDArray[np.uint64], Sealed] | None:
    """Words of a masked answer to a question, and what goes to the helper; None for what is no such answer."""
    made, question = masked.answer_from_wire(message, length), (message.run, message.round, digest, task)
    return None if made is None else (made[0], Sealed(masked.question_digest(*question), made[1]))


@dataclass(frozen=True, slots=True, eq=False)
class Cohort:
    """The clients who are asked, by their first users' numbers, each with its rows in the order of its persons."""

    question: Question
    rows: dict[int, Rows]
    persons: dict[int, bytes]  # of each silo, as it is told whom it is asked for
    sums: pb.Reduction | None = None  # what silos answer with in place of rows
    row: pb.Row | None = None  # what clients make of answers, with two servers
    made: dict[int, wire.Body] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        question: Question,
        members: NDArray[np.int64],
        silos: Mapping[int, int],
        *,
        sums: bool = False,
        row: pb.Row | None = None,
    ) -> "Cohort":
        """`members` is the user of each slot; with `sums` silos answer with those of the question, if it has any."""
        users = members[question.cohort]
        rows, persons = by_client(users, silos), {}
        for client in rows.keys() & silos.keys():
            persons[client] = silo.bits_of(users[rows[client]] - client, people=silos[client])
        return cls(question, rows, persons, silo.reduction_to_wire(question.reduction) if sums else None, row)

    @property
    def apart(self) -> Rows | None:
        """Rows, in order, of the clients who send them, where silos send sums; None where everybody does."""
        if self.sums is None:
            return None
        rows = [self.rows[client] for client in self.rows.keys() - self.persons.keys()]
        return np.sort(np.concatenate([np.zeros(0, np.intp), *rows]))

    @property
    def shared(self) -> bool:
        """Whether clients of one user are asked the same."""
        return self.question.task.own is None

    def batches(self, order: Sequence[int]) -> list[Sequence[int]]:
        """Clients in this order, whose questions are made together: as many as memory is meant for, whoever that is."""
        most = len(order) if self.shared and not self.persons else max(1, _READY // self._size(order))
        return [order[start : start + most] for start in range(0, len(order), most)] if order else [order]

    async def make(self, clients: Sequence[int]) -> None:
        """Make the questions to these, whether they are there or not, in place of those made before; what takes long in
        a thread, so that others are heard meanwhile."""
        alone = self.shared and not self.persons
        if self._size(clients) * (1 if alone else len(clients)) <= _AT_ONCE:
            made = self._made(clients)
        else:
            made = await asyncio.to_thread(self._made, clients)
        self.made.clear()
        self.made.update(made)

    def body(self, client: int) -> wire.Body:
        """What a client is asked; made now, unless it was."""
        there = self.made.get(client if client in self.persons or not self.shared else _EVERYBODY)
        return self._body(client) if there is None else there

    def read(self, message: pb.Answer, client: int, shape: tuple[int, ...], length: int) -> Answers | Sums | None:
        """What a silo has sent: its persons' rows, or sums of so many numbers; None for what cannot be sums of them."""
        asked, reduction = len(self.rows[client]), self.question.reduction
        if self.sums is None or reduction is None:
            return silo.rows_from_wire(message, shape, asked)
        return silo.sums_from_wire(message, length, asked, reduction)

    @property
    def parted(self) -> bool:
        """Whether a question that was made goes in parts."""
        return any(body.follows is not None for body in self.made.values())

    def _made(self, clients: Sequence[int]) -> dict[int, wire.Body]:
        apart = [client for client in clients if client in self.persons or not self.shared]
        made = {client: self._body(client) for client in apart}
        if len(apart) < len(clients) or not clients:
            made[_EVERYBODY] = wire.Body.of(self.question.task.part(slice(0, 1)), row=self.row)
        return made

    def _body(self, client: int) -> wire.Body:
        persons = self.persons.get(client)
        task: Task = self.question.task.part(self.rows[client])
        return wire.Body.of(task, row=self.row) if persons is None else wire.Body.of(task, persons, self.sums)

    def _size(self, clients: Sequence[int]) -> int:
        """Bytes of the longest question to one of them, as good as all of it; public, and never none."""
        task = self.question.task
        one = 8 * task.numbers_down(task.model_size) + 1
        most = max((len(self.rows[client]) for client in clients), default=1)
        return one * (1 if self.shared else most) + max(map(len, self.persons.values()), default=0)


def summed(question: Question, shape: tuple[int, ...]) -> int:
    """Numbers in a sum of rows of that shape."""
    if question.reduction is None:
        return 0
    return len(question.reduction.of(np.zeros((0, *shape)), np.zeros(0, np.bool_)).total)
