"""What a silo has said in one round, as its record keeps it: the row of each person who has answered, made once, or the
sums that it has sent in place of rows.

    kept = KeptRows.of(task, persons, answers)
    again = KeptRows.read(kept.as_bytes())

A coordinator that comes back may ask other persons in the same round, where it has drawn them by coins: whoever has
answered says the same again, and nothing to another task; whoever has not is asked for the first time. Of sums the
same question has the same answer, and to another one those are silent who are in a sum already: of two sums, with and
without a person, the difference would be its row.
"""

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Self

import numpy as np
from numpy.typing import NDArray

from quoron_client.federation.persons import Mask, Persons, mask
from quoron_client.protocol import wire
from quoron_client.protocol.questions import Answers, Task

_DIGEST = 16  # bytes
_ROWS, _SUMS = b"quoron admin silo's rows 2", b"quoron admin silo's sums 1"


@dataclass(frozen=True, slots=True, eq=False)
class KeptRows:
    """Of some persons, each once."""

    tasks: NDArray[np.int64]  # (k, 2), digests of what each was asked; (1, 2) where all were asked the same
    persons: Persons  # (k,)
    answers: Answers  # of them

    @classmethod
    def of(cls, task: Task, persons: Persons, answers: Answers) -> Self:
        """Answers to a task, which has something for each of them where it has something of each one's own."""
        return cls(_digests(task), persons, answers)

    def places(self, task: Task, asked: Persons) -> tuple[NDArray[np.intp], Mask]:
        """Where the row of each asked person is (k,), -1 for who has said nothing, and which were asked this very
        task."""
        order = np.argsort(self.persons)
        found = np.searchsorted(self.persons, asked, sorter=order)
        place = order[np.minimum(found, len(order) - 1)] if len(order) else np.full(len(asked), -1)
        here = place >= 0
        here[here] = self.persons[place[here]] == asked[here]
        same = here.copy()
        same[here] = (self._tasks[place[here]] == _each(_digests(task), len(asked))[here]).all(axis=1)
        return np.where(here, place, -1), same

    def and_also(self, other: Self) -> Self:
        """With the rows of others."""
        values = np.concatenate([self.answers.values, other.answers.values])
        status = np.concatenate([self.answers.status, other.answers.status])
        tasks, persons = np.concatenate([self._tasks, other._tasks]), np.concatenate([self.persons, other.persons])
        return type(self)(tasks, persons, Answers(values, status))

    @property
    def _tasks(self) -> NDArray[np.int64]:
        return _each(self.tasks, len(self.persons))

    def as_bytes(self) -> bytes:
        """For the record."""
        shape, status = np.array(self.answers.values.shape), np.ascontiguousarray(self.answers.status, np.uint8)
        numbers = (np.ascontiguousarray(each, "<i8").data for each in (self.tasks, self.persons, shape))
        return _joined((_ROWS, *numbers, status.data, np.ascontiguousarray(self.answers.values, "<f8").data))

    @classmethod
    def read(cls, stored: bytes) -> Self | None:
        """What `as_bytes` wrote; None of something else."""
        kind, *kept = _split(stored)
        if kind != _ROWS:
            return None
        tasks, persons, shape = (np.frombuffer(each, "<i8").astype(np.int64) for each in kept[:3])
        values = np.frombuffer(kept[4], "<f8").astype(np.float64, copy=False).reshape(shape)
        return cls(tasks.reshape(-1, 2), persons, Answers(values, np.frombuffer(kept[3], np.uint8)))


@dataclass(frozen=True, slots=True, eq=False)
class KeptSums:
    """Of the persons who are in some sum that was sent in a round, each in one."""

    said: Mapping[bytes, bytes] = field(default_factory=dict)  # answers, by the digests of their questions
    persons: Mask = field(default_factory=lambda: np.zeros(0, np.bool_))  # a bit each, up to the last

    def and_also(self, digest: bytes, answer: bytes, persons: Persons) -> Self:
        """With the sums of others."""
        everybody = mask(np.append(np.flatnonzero(self.persons), persons))
        return type(self)({**self.said, digest: answer}, everybody)

    def as_bytes(self) -> bytes:
        """For the record."""
        return _joined((_SUMS, self.persons.data, *(part for each in self.said.items() for part in each)))

    @classmethod
    def read(cls, stored: bytes) -> Self | None:
        """What `as_bytes` wrote; None of something else."""
        kind, persons, *said = _split(stored)
        if kind != _SUMS:
            return None
        return cls(dict(zip(said[::2], said[1::2], strict=True)), np.frombuffer(persons, np.bool_))


def _joined(parts: Iterable[bytes | memoryview]) -> bytes:
    """Each with its length before it."""
    flat = [each if isinstance(each, bytes) else each.cast("B") if each.nbytes else b"" for each in parts]
    return b"".join(piece for each in flat for piece in (struct.pack("<Q", len(each)), each))


def _split(stored: bytes) -> list[bytes]:
    """What `_joined` was given."""
    found, place = [], 0
    while place < len(stored):
        (size,) = struct.unpack_from("<Q", stored, place)
        found.append(stored[place + 8 : place + 8 + size])
        place += 8 + size
    return found


def _each(tasks: NDArray[np.int64], persons: int) -> NDArray[np.int64]:
    """(k, 2)."""
    return np.broadcast_to(tasks, (persons, 2))


def _digests(task: Task) -> NDArray[np.int64]:
    """Of all that each was asked, (k, 2); of all of them (1, 2) where that is the same."""
    common = wire.Body.of(task if task.own is None else task.part(slice(0))).digest
    rows = [b""] if task.own is None else [row.tobytes() for row in np.ascontiguousarray(getattr(task, task.own))]
    of_each = (blake2b(common + row, digest_size=_DIGEST).digest() for row in rows)
    return np.frombuffer(b"".join(of_each), "<i8").astype(np.int64).reshape(-1, 2)
