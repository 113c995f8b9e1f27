"""What a silo answers: a row for each asked person, as a client of that person's own would say it, or their sums.

    worker = SiloWorker.of(owner, record)     # owner.user_column says whose each row of the file is

Persons are numbered in the record, for ever: in the order of their names at first, and whoever comes later by the next
free number, up to as many as the silo has declared. A number without a person, or whose person has left, has no room
left or is not in the file, is as somebody who is away; where who answers is told, that is the zero row like anybody's.

What a silo has said in one round, as its record keeps it: the row of each person who has answered, made once, or the
sums that it has sent in place of rows.

    kept = KeptRows.of(task, persons, answers)
    again = KeptRows.read(kept.as_bytes())

A coordinator that comes back may ask other persons in the same round, where it has drawn them by coins: whoever has
answered says the same again, and nothing to another task; whoever has not is asked for the first time. Of sums the
same question has the same answer, and to another one those are silent who are in a sum already: of two sums, with and
without a person, the difference would be its row.
"""

import logging
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Self

import numpy as np
from numpy.typing import NDArray

from quoron_client.federation import own_people
from quoron_client.federation.config import PUBLIC_PARTICIPATION, Owner
from quoron_client.federation.own_people import OwnPeople
from quoron_client.federation.own_table import OwnItems
from quoron_client.federation.persons import Mask, Persons, at, mask
from quoron_client.federation.record import Record
from quoron_client.federation.record_file import welcomed
from quoron_client.federation.terms import Terms
from quoron_client.federation.work import Part, Worker, misfit_of
from quoron_client.protocol import wire
from quoron_client.protocol.domains import Bounds
from quoron_client.protocol.parts import BESIDE, Long
from quoron_client.protocol.questions import FAR, Answers, Status, Task
from quoron_client.protocol.silo import (
    persons_of,
    reduction_from_wire,
    rows_to_wire,
    sums_to_wire,
)
from quoron_client.protocol.smoothing import Convolution
from quoron_client.protocol.tasks import LocalReport
from quoron_client.protocol.wire import MAX_MESSAGE, MOST_VECTORS, answer_to_wire, check_own, question_from_wire
from quoron_privacy.errors import ConfigError, DataError, WireError
from quoron_privacy.release import Reduction
from quoron_protos.v1 import federation_pb2 as federation

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


_LOG = logging.getLogger("quoron.client")


@dataclass(frozen=True, slots=True, eq=False)
class SiloPart(Part):
    """A silo's part in one run; `user` is its first person's number."""

    places: Persons = field(kw_only=True)  # where each person's items are in the batch; the last are nobody's


@dataclass(slots=True)
class SiloWorker(Worker):
    """As `Worker`, for a file of several persons."""

    @classmethod
    def of(cls, owner: Owner, record: Record) -> Self:
        """With everybody in the file in the record. DataError, for the owner, for a file that cannot be read or holds
        more persons than were declared; of who is enrolled already it is told in the log alone. ConfigError where the
        file may not be looked at, as who answers may be told, and it is not said how many persons are in it."""
        public = PUBLIC_PARTICIPATION in owner.accept_trust_models
        if public and owner.people is None:
            raise ConfigError(
                f"Expected --set users=N with --accept {PUBLIC_PARTICIPATION}, got none: a silo that counted "
                "the persons in its file before it comes up would tell of the file by when it does."
            )
        known = record.people
        if public:
            return cls(owner, record, people=owner.people or 1)
        try:
            names = own_people.names_in(owner.data, str(owner.user_column), owner.dialect)
            people = owner.people or known or len(names)
            _check(owner, names, people)
        except DataError as error:
            if not known or not welcomed(owner.record):
                raise
            # The coordinator draws members from those who connect: whether this one does may not be a function of data.
            _LOG.warning("%s This silo is enrolled already, so it connects all the same.", error)
            return cls(owner, record, people=owner.people or known)
        record.register(names, people)
        return cls(owner, record, people=people)

    @property
    def _most(self) -> int:
        return own_people.MOST_NUMBERS

    def _read(self, terms: Terms) -> OwnItems:
        column, dialect = str(self.owner.user_column), self.owner.dialect
        return own_people.own_people(self.owner.data, terms, column, people=self.people, dialect=dialect)

    def _with(self, part: Part, items: OwnItems) -> Part:
        """Items of each person where its number says; of a file that could not be read nobody's."""
        names = items.names if isinstance(items, OwnPeople) else ()
        made = Worker._with(self, part, items)
        seats = self.record.register(names, self.people)
        seats[seats >= self.people] = -1  # of a file that was larger before the silo said how many it answers for
        if beyond := int(np.count_nonzero(seats < 0)):
            _LOG.warning(
                "Data file %r: %d persons are left out, who have left or are more than the %d this silo answers for.",
                *(str(self.owner.data), beyond, self.people),
            )
        places = np.full(self.people, items.batch.users - 1, np.int64)
        places[seats[seats >= 0]] = np.flatnonzero(seats >= 0)
        return SiloPart(made.terms, made.batch, made.user, places=places)

    def wanted(self, head: Long) -> int | None:
        """See `Worker`: something for each person, and the public transform that sums are made by."""
        part = self.parts.get(head.run)
        if part is None:
            return None
        dimension = part.terms.dimension
        sums = 8 * (dimension + 2) ** 2 if part.terms.silo_sums else 0
        return min(self.people * (8 * MOST_VECTORS * dimension + 1) + sums + BESIDE, MAX_MESSAGE)

    def _answer(self, name: tuple[str, int, bytes], message: federation.Question, ready: bool) -> bytes | str:
        """A new answer, kept in the record, or why there is none."""
        part = self.prepare(name[0]) if ready else self.parts.get(name[0])
        if part is None:
            return "the client takes no part"
        try:
            task = question_from_wire(message)[3]
            asked = np.zeros(1, np.int64) if self.people == 1 else persons_of(message.persons, people=self.people)
            check_own(task, len(asked))
            sums = reduction_from_wire(message.sums) if message.HasField("sums") else None
        except WireError as error:
            return str(error)
        if sums is not None and not part.terms.silo_sums:
            return "it asks for sums, and the run was not announced as one that does"
        misfit = misfit_of(part.terms, name[1], task) or _misfit_sums(part, task, sums)
        if misfit is not None:
            return misfit
        if part.terms.public and not self.record.people:  # who they are is not known yet: zeros say nothing of anybody
            return self._said(name, part, _nobody(part, task, len(asked)), sums)
        if sums is not None and self.people > 1:
            return self._summed(name, part, task, asked, sums, ready)
        found = self._each(name, part, task, asked, ready)
        return found if isinstance(found, str) else self._said(name, part, found, None)

    def _each(self, name: tuple[str, int, bytes], part: Part, task: Task, asked: Persons, ready: bool) -> Answers | str:
        """Rows of the asked, made now and kept, or kept before: nobody says two things in one round. Without time to be
        `ready` nothing is computed, and what was not kept by now is zeros."""
        stored, record, spends = self.record.kept(*name[:2]), self.record, task.spends
        kept = None if stored is None else KeptRows.read(stored)
        if kept is None and stored is not None:
            return "sums were sent in this round"
        found = _nobody(part, task, len(asked))
        new = np.ones(len(asked), np.bool_)
        if kept is not None:
            places, same = kept.places(task, asked)
            found.values[same] = kept.answers.values[places[same]]
            found.status[same] = kept.answers.status[places[same]]
            new = places < 0
        new[new] = record.may_answer(*name[:2], asked[new], spends=spends, further=kept is not None)
        rows = np.flatnonzero(new)
        if len(rows):
            some = task.part(rows)
            made = self._rows(part, some, name[1], asked[rows]) if ready else _nobody(part, some, len(rows))
            if len(rows) == len(asked):
                found = made
            else:
                found.values[rows], found.status[rows] = made.values, made.status
            told = KeptRows.of(some, asked[rows], made)
            sent = (told if kept is None else kept.and_also(told)).as_bytes()
            before = record.keep(*name, sent, asked[rows], spends=spends, further=kept is not None)
            if before is None:
                return "another process of this client was faster"
            if before is not sent:  # what was kept meanwhile is what is said
                return self._each(name, part, task, asked, ready)
        elif kept is None and (why := record.objection(*name[:2], asked[:0])) is not None:
            return why  # that none of those who were asked is there shows as of each of them, in as many bytes
        return found

    def _summed(
        self, name: tuple[str, int, bytes], part: Part, task: Task, asked: Persons, sums: Reduction, ready: bool
    ) -> bytes | str:
        """The sums of the asked persons who are in none that was sent in this round; to the same question the same."""
        stored, record, spends = self.record.kept(*name[:2]), self.record, task.spends
        kept = KeptSums() if stored is None else KeptSums.read(stored)
        if kept is None:
            return "rows were sent in this round"
        if (before := kept.said.get(name[2])) is not None:
            return before
        new, further = ~at(kept.persons, asked), stored is not None
        new[new] = record.may_answer(*name[:2], asked[new], spends=spends, further=further)
        rows = np.flatnonzero(new)
        some = task.part(rows)
        made = self._rows(part, some, name[1], asked[rows]) if ready else _nobody(part, some, len(rows))
        answer = bytes(sums_to_wire(*name, sums.of(made.values, made.answered)).SerializeToString())
        if len(rows):
            sent = kept.and_also(name[2], answer, asked[rows]).as_bytes()
            before = record.keep(*name, sent, asked[rows], spends=spends, further=further)
            if before is None:
                return "another process of this client was faster"
            if before is not sent:  # what was kept meanwhile is what is said
                return self._summed(name, part, task, asked, sums, ready)
        elif not further and (why := record.objection(*name[:2], asked[:0])) is not None:
            return why
        return answer

    def _recalled(self, name: tuple[str, int, bytes]) -> bytes | None:
        """Nothing: what was said before is kept person by person."""
        return None

    def _said(self, name: tuple[str, int, bytes], part: Part, found: Answers, sums: Reduction | None) -> bytes:
        if part.terms.public:
            found = Answers(found.values, np.full_like(found.status, Status.ANSWERED))
        if self.people == 1:
            said = answer_to_wire(*name, found.values[0], Status(int(found.status[0])))
        elif sums is None:
            said = rows_to_wire(*name, found)
        else:
            said = sums_to_wire(*name, sums.of(found.values, found.answered))
        return bytes(said.SerializeToString())

    def _rows(self, part: Part, task: Task, number: int, asked: Persons) -> Answers:
        """Of persons who may answer, as a client of its own would say it."""
        if not isinstance(part, SiloPart) or part.batch is None:
            return _nobody(part, task, len(asked))
        places = part.places[asked]
        items = part.batch.of(places) if _draws(task) else part.batch.seen(places)
        try:
            found = self._answers(part, task, items, number, part.user + asked)
        except Exception:
            # Whatever it is, the coordinator must not learn it: it may be a function of the data.
            _LOG.exception("The answer could not be computed.")
            if not isinstance(task, LocalReport):
                return _nobody(part, task, len(asked))
            nothing = part.batch.of(np.full(len(asked), part.batch.users - 1))  # as users without any would report
            try:
                found = self._answers(part, task, nothing, number, part.user + asked)
            except Exception:  # then the question is at fault, for every user alike
                return _nobody(part, task, len(asked))
        # Who is in the file without a row that can be used is rejected, as by a client of its own.
        unusable = (found.status == Status.MISSING) & (places < part.batch.users - 1)
        status = np.where(unusable, Status.REJECTED, found.status).astype(np.uint8)
        return Answers.checked(found.values, status, largest=_largest(part.terms, task), own=True)


def _misfit_sums(part: Part, task: Task, sums: Reduction | None) -> str | None:
    """Why rows of a task's answers have no such sums: by their shape alone, before anything is computed."""
    try:
        if sums is not None:
            sums.of(np.zeros((0, *task.answer_shape(part.terms.dimension))), np.zeros(0, np.bool_))
    except ConfigError as error:
        return str(error)
    return None


def _nobody(part: Part, task: Task, asked: int) -> Answers:
    """Of whom there is nothing to say."""
    values = np.zeros((asked, *task.answer_shape(part.terms.dimension)))
    return Answers(values, np.full(asked, Status.MISSING, np.uint8))


def _check(owner: Owner, names: list[str], people: int) -> None:
    """DataError for more persons than were declared, and for none."""
    if not names:
        raise DataError(f"Data file {str(owner.data)!r}: Expected the rows of some people, got none.")
    if len(names) > people:
        raise DataError(
            f"Data file {str(owner.data)!r}: Expected at most {people:,} people in column {owner.user_column!r}, got "
            f"{len(names):,}. A silo answers for as many as it was enrolled with, for ever: leave the others out, or "
            "give them a client of their own."
        )


def _draws(task: Task) -> bool:
    """Whether users need random points, which are drawn for every row of what they are given."""
    return isinstance(getattr(getattr(task, "gradient", task), "smoothing", None), Convolution)


def _largest(terms: Terms, task: Task) -> float:
    """Beyond which the coordinator rejects a row."""
    loss, domain = terms.make_loss(), terms.make_domain()
    lipschitz = loss.lipschitz(domain, terms.dimension, getattr(task, "smoothing", None))
    return FAR * task.honest(Bounds(lipschitz, domain.norm_bound(terms.dimension), loss.feature_norm))
