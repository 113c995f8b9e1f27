"""What a silo has said in one round, as its record keeps it: the row of each person who has answered, made once.

    kept = KeptRows.of(task, persons, answers)
    again = KeptRows.read(kept.as_bytes())

A coordinator that comes back may ask other persons in the same round, where it has drawn them by coins: whoever has
answered says the same again, and nothing to another task; whoever has not is asked for the first time.
"""

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from quoron_client.federation.persons import Mask, Persons
from quoron_client.protocol import wire
from quoron_client.protocol.questions import Answers, Task
from quoron_protos.v1 import values_pb2

_DIGEST = 16  # bytes
_KIND = "quoron silo's rows 1"


@dataclass(frozen=True, slots=True, eq=False)
class KeptRows:
    """Of some persons, each once."""

    tasks: NDArray[np.int64]  # (k, 2), digests of what each was asked
    persons: Persons  # (k,)
    answers: Answers  # of them

    @classmethod
    def of(cls, task: Task, persons: Persons, answers: Answers) -> "KeptRows":
        """Answers to a task, which has something for each of them where it has something of each one's own."""
        return cls(_digests(task, len(persons)), persons, answers)

    def places(self, task: Task, asked: Persons) -> tuple[NDArray[np.intp], Mask]:
        """Where the row of each asked person is (k,), -1 for who has said nothing, and which were asked this very
        task."""
        order = np.argsort(self.persons)
        found = np.searchsorted(self.persons, asked, sorter=order)
        place = order[np.minimum(found, len(order) - 1)] if len(order) else np.full(len(asked), -1)
        here = place >= 0
        here[here] = self.persons[place[here]] == asked[here]
        same = here.copy()
        same[here] = (self.tasks[place[here]] == _digests(task, len(asked))[here]).all(axis=1)
        return np.where(here, place, -1), same

    def and_also(self, other: "KeptRows") -> "KeptRows":
        """With the rows of others."""
        values = np.concatenate([self.answers.values, other.answers.values])
        status = np.concatenate([self.answers.status, other.answers.status])
        tasks, persons = np.concatenate([self.tasks, other.tasks]), np.concatenate([self.persons, other.persons])
        return KeptRows(tasks, persons, Answers(values, status))

    def as_bytes(self) -> bytes:
        """For the record."""
        arrays = {"tasks": self.tasks, "persons": self.persons, "values": self.answers.values}
        fields = {name: values_pb2.Value(array=wire.array_to_wire(array)) for name, array in arrays.items()}
        fields["status"] = values_pb2.Value(text=self.answers.status.tobytes().hex())
        return bytes(values_pb2.Record(type=_KIND, fields=fields).SerializeToString(deterministic=True))

    @classmethod
    def read(cls, stored: bytes) -> "KeptRows":
        """What `as_bytes` wrote."""
        fields = values_pb2.Record.FromString(stored).fields
        most = wire.MAX_NUMBERS
        tasks = wire.array_from_wire(fields["tasks"].array, dtype="int64", max_numbers=most)
        persons = wire.array_from_wire(fields["persons"].array, dtype="int64", max_numbers=most)
        values = wire.array_from_wire(fields["values"].array, dtype="float64", max_numbers=most)
        status = np.frombuffer(bytes.fromhex(fields["status"].text), np.uint8)
        return cls(tasks, persons, Answers(values, status))


def _digests(task: Task, asked: int) -> NDArray[np.int64]:
    """Of all that each was asked, (k, 2)."""
    common = wire.Body.of(task if task.own is None else task.part(slice(0))).digest
    if task.own is None:
        one = np.frombuffer(blake2b(common, digest_size=_DIGEST).digest(), "<i8").astype(np.int64)
        return np.tile(one, (asked, 1))
    rows = np.ascontiguousarray(getattr(task, task.own))
    of_each = (blake2b(common + row.tobytes(), digest_size=_DIGEST).digest() for row in rows)
    return np.frombuffer(b"".join(of_each), "<i8").astype(np.int64).reshape(asked, 2)
