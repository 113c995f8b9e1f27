"""The answers of a client, for its one user or for all persons of a silo: at most one answer to each question.

    worker = Worker.of(owner, record)     # owner.user_column names the column of users; None: one user's file

After an error here the coordinator receives a status alone, and the owner's log the rest. In a run with public
participation it does not receive even the status: the answer is the zero row.

A silo's persons are numbered in the client state, permanently: at first in the order of their names, and later persons
by the next free number, up to the declared number. A number counts as absent without a person, or if its person has
left, has no budget left or is not in the file. A client of one user has one person, number 0.

The client state keeps the answers to the questions of a round: the rows of the persons that have answered, or the sums
or the masked answer that was sent in place of rows.

A restarted coordinator may ask other persons in the same round, where it samples with coins. A person that has answered
repeats the answer, and answers no other task; other persons answer for the first time. For sums, the same question has
the same answer, and persons in an earlier sum are left out of other sums: the difference of two sums, with and without
a person, would be that person's row.
"""

import logging
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from quoron_client.compute.draws import user_keys
from quoron_client.compute.work import answer, local_report
from quoron_client.data.encoding import Encoding
from quoron_client.data.items import ItemBatch, Items
from quoron_client.federation import own_table
from quoron_client.federation.client_state import ONE_USER, ClientState, Kept, Persons
from quoron_client.federation.config import PUBLIC_PARTICIPATION, TWO_SERVERS, Owner
from quoron_client.federation.own_table import OwnItems
from quoron_client.federation.terms import Terms, agreement, announced_digest, refusal
from quoron_client.protocol import wire
from quoron_client.protocol.domains import Bounds
from quoron_client.protocol.questions import (
    FAR,
    Answers,
    LocalReport,
    LocalSGD,
    MomentAndGradient,
    SecondMoment,
    Status,
    Task,
)
from quoron_client.protocol.smoothing import Convolution
from quoron_client.protocol.wire import (
    BESIDE,
    MAX_MESSAGE,
    MAX_NAME,
    MAX_RUNS,
    MAX_VECTORS,
    Long,
    answer_to_wire,
    body_digest,
    check_own,
    persons_of,
    question_from_wire,
    question_name,
    reduction_from_wire,
    rows_to_wire,
    sums_to_wire,
)
from quoron_client.randomisers import LocalRandomness, SeededRandomness, SystemRandomness
from quoron_privacy.arrays import Mask
from quoron_privacy.errors import ConfigError, DataError, IdentityError, WireError
from quoron_privacy.release import Reduction
from quoron_protos.v1 import federation_pb2 as federation

if TYPE_CHECKING:
    from quoron_client.protocol.masked import Masking, Pinned


_LOG = logging.getLogger("quoron.client")
NO_SECOND_SERVER_KEY = (
    "Expected the second server's key, to take part in a run of two servers, got none. Have it from the second "
    "server's operator (--second-server-key), and connect with a certificate."
)


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A client's part in one run: the terms, the items of its users, and the number of its first user in the run."""

    terms: Terms
    digest: bytes  # of what was announced
    batch: ItemBatch | None  # None: not read yet, in a run with public participation
    user: int
    places: Persons = field(default_factory=lambda: ONE_USER)  # where the items of each person are in the batch
    masking: "Masking | None" = None  # with two servers


@dataclass(slots=True)
class Worker:
    """Consents to runs and answers questions, by the owner's settings and the client state."""

    owner: Owner
    record: ClientState
    people: int = 1  # number of persons it answers for
    parts: dict[str, Part] = field(default_factory=dict)  # oldest first; as many as fit into their memory
    items: Callable[[Path, Terms], OwnItems] | None = None  # of a simulation, possibly synthetic
    pinned: "Pinned | None" = None  # the trusted second server
    _lock: threading.Lock = field(default_factory=threading.Lock)  # of the parts

    @classmethod
    def of(cls, owner: Owner, record: ClientState) -> Self:
        """Return a worker, and register all persons of a silo's file in the client state.

        Raises DataError for a file that cannot be read, seems to be of several people where one user is declared, or
        has more persons than the silo declared; a client that is enrolled already logs it instead. Raises ConfigError
        where the file may not be read yet, and the owner does not declare whose it is.
        """
        timely = [model for model in (PUBLIC_PARTICIPATION, TWO_SERVERS) if model in owner.accept_trust_models]
        if timely:
            _check_declared(owner, timely[0])
            return cls(owner, record, owner.people or 1)
        known, column, dialect = record.people, owner.user_column, owner.dialect
        names, people = list[str](), owner.people or known or 1
        try:
            if column is None:
                own_table.check_one_user(owner.data, one_user=owner.one_user, dialect=dialect)
            else:
                names = own_table.names_in(owner.data, column, dialect)
                people = owner.people or known or len(names)
                _check_people(owner, names, people)
        except DataError as error:
            if (column is not None and not known) or not record.welcomed:
                raise
            # The coordinator samples members from connected clients: whether this one connects may not depend on data.
            _LOG.warning("%s This client is enrolled already, so it connects nevertheless.", error)
        else:
            if column is not None:
                record.register(names, people)
        return cls(owner, record, people)

    @property
    def is_silo(self) -> bool:
        """Whether a column of its file names the user of each row."""
        return self.owner.user_column is not None

    def consider(self, message: federation.Announcement, user: int) -> federation.Consent:
        """Return whether this client takes part in a run. Raises LedgerError only."""
        run, digest = message.run, announced_digest(message)
        if (known := self.parts.get(run)) is not None and known.digest == digest:
            return federation.Consent(run=run, takes_part=True)
        objection = self._join(message, digest, user)
        if objection is None:
            _LOG.info("Takes part in run %r.", run)
            if (part := self.parts.get(run)) is not None:
                _LOG.info("Run %r: %s", run, _promise(part.terms, self.owner.user))
        else:
            _LOG.warning("Takes no part in run %r: %s", run[:MAX_NAME], objection)
        return federation.Consent(run=run[:MAX_NAME], takes_part=objection is None)

    def _join(self, message: federation.Announcement, digest: bytes, user: int) -> str | None:
        """Make the user's part in a run; return why it takes no part, or None."""
        try:
            terms = Terms.read(message.run, message.description)
            objection = refusal(self.owner, terms)
            if objection is not None:
                return objection
            if terms.masked and self.pinned is None:
                raise WireError(NO_SECOND_SERVER_KEY)
            agreed = self.pinned.agree(message, terms) if terms.masked and self.pinned is not None else None
            items = None if terms.timely else self._read(terms)
        except (WireError, DataError, IdentityError) as error:
            return str(error)
        except Exception:
            # An announcement may not end a client that takes part in other runs.
            _LOG.exception("The items of run %r could not be made.", message.run)
            return "an unexpected error"
        objection = self.record.agree(agreement(terms, digest))
        if objection is None:
            part = Part(terms, digest, None, user, masking=agreed)
            if items is not None:
                bare = terms.model_copy(update={"columns": Encoding(())})  # a vocabulary can be long
                part = self._with(replace(part, terms=bare), items)
            self._take(part)
        return objection

    @property
    def _most(self) -> int:
        """Numbers in the items of all parts, beyond which the oldest parts are dropped."""
        return own_table.MAX_NUMBERS_OF_ALL if self.is_silo else own_table.MOST_NUMBERS

    def _read(self, terms: Terms) -> OwnItems:
        """Read the items of a run. Raises DataError, and exceptions of libraries."""
        data, dialect, column = self.owner.data, self.owner.dialect, self.owner.user_column
        if self.items is not None:
            return self.items(data, terms)
        return own_table.own_items(data, terms, dialect, user=column, people=self.people)

    def _with(self, part: Part, items: OwnItems) -> Part:
        """Return the part with these items; log their problems for the owner."""
        if items.problem is not None:
            _LOG.error("The items cannot be used in run %r. %s", part.terms.run, items.problem)
        if items.notice is not None:
            _LOG.warning("Rows are left out in run %r. %s", part.terms.run, items.notice)
        return replace(part, batch=items.batch, places=self._places(items) if self.is_silo else ONE_USER)

    def _places(self, items: OwnItems) -> Persons:
        """Return the place of each person in the batch: the last, empty one for persons that are not in the file."""
        seats = self.record.register(items.names, self.people)
        seats[seats >= self.people] = -1  # of an earlier, larger file, before the silo declared its number of users
        if beyond := int(np.count_nonzero(seats < 0)):
            _LOG.warning(
                "Data file %r: %d persons are left out, who have left or are more than the %d this silo answers for.",
                *(str(self.owner.data), beyond, self.people),
            )
        places = np.full(self.people, items.batch.users - 1, np.int64)
        places[seats[seats >= 0]] = np.flatnonzero(seats >= 0)
        return places

    def _take(self, part: Part, *, known: Part | None = None) -> None:
        """Store a part, in place of the `known` one, unless that was dropped meanwhile.

        The oldest are dropped until their runs are announced again, at the next connection. In a run with public
        participation only the items are, until they are needed.
        """
        with self._lock:
            if self.parts.pop(part.terms.run, None) is None and known is not None:
                return
            self.parts[part.terms.run] = part
            while len(self.parts) > MAX_RUNS:
                self.parts.pop(next(iter(self.parts)))
            sizes = {run: part.batch.features.size for run, part in self.parts.items() if part.batch is not None}
            numbers, most = sum(sizes.values()), self._most
            for run in list(sizes)[:-1]:
                if numbers <= most:
                    break
                numbers -= sizes[run]
                if self.parts[run].terms.timely:
                    self.parts[run] = replace(self.parts[run], batch=None)
                else:
                    self.parts.pop(run)

    def prepare(self, run: str) -> Part | None:
        """Return the part in a run with its items, which are read now with public participation; None if unknown.

        Items that cannot be read count as none. Never raises.
        """
        part = self.parts.get(run)
        if part is None or part.batch is not None:
            return part
        try:
            items = self._read(part.terms)
        except Exception as error:
            problem = str(error) if isinstance(error, DataError) else "an unexpected error"
            _LOG.debug("The items of run %r could not be made.", run, exc_info=True)
            items = OwnItems(_no_items(part.terms.features), problem, None)
        made = self._with(part, items)
        self._take(made, known=part)
        return made

    def attends(self, run: str) -> float | None:
        """Return seconds of a round, if this client takes part in a run of this name with public participation."""
        part = self.parts.get(run)
        return part.terms.seconds if part is not None and part.terms.timely else None

    def wanted(self, head: Long) -> int | None:
        """Return how many bytes the task of a question may have; None if the question is refused.

        By the announced terms, so that a coordinator cannot make this client hold more than it agreed to.
        """
        part = self.parts.get(head.run)
        if part is None:
            return None
        dimension = part.terms.dimension
        if part.masking is not None:
            rows = 8 * dimension**2  # of a row that is multiplied by a matrix
        else:  # the public transform of sums
            rows = 8 * (dimension + 2) ** 2 if part.terms.silo_sums and self.people > 1 else 0
        return min(self.people * (8 * MAX_VECTORS * dimension + 1) + rows + BESIDE, MAX_MESSAGE)

    def reply(self, message: federation.Question, *, ready: bool = True) -> bytes | None:
        """Return the answer to a question, as bytes; None if the question has no valid name. Raises LedgerError.

        Unless `ready`, nothing is computed: the answer is a kept one, or zeros. A question has at most one answer: one
        that is computed later is never sent.
        """
        try:
            name = question_name(message)
        except WireError as error:
            _LOG.warning("%s", error)
            return None
        made = self._answer(name, message, ready)
        return self._no_answer(message, made) if isinstance(made, str) else made

    def at_once(self, message: federation.Question) -> bytes | None:
        """Return the answer as `reply` does, but none in runs with public times of answers, not even a kept one, nor in
        runs without consent: a question may come before it."""
        part = self.parts.get(message.run)
        if part is None or part.terms.timely:
            return self._no_answer(message, "it was asked before the client had consented")
        return self.reply(message)

    def _no_answer(self, message: federation.Question, why: str) -> bytes | None:
        _LOG.warning("No answer in round %d of run %r: %s", message.round, message.run[:MAX_NAME], why)
        with suppress(WireError):  # of a question without a valid name
            return None if message.HasField("row") else _silence(*question_name(message))
        return None

    def _answer(self, name: tuple[str, int, bytes], message: federation.Question, ready: bool) -> bytes | str:
        """Make and keep an answer; return it, or why there is none."""
        part = self.prepare(name[0]) if ready else self.parts.get(name[0])
        if part is None:
            return "the client takes no part"
        masking = part.masking
        if message.HasField("row") != (masking is not None):
            return "answers are masked in runs of two servers, and in no others"
        if masking is not None and masking.expires <= time.time():
            return "the second server's consent is over, and its keys are destroyed"
        try:
            task = question_from_wire(message)[3]
            asked = ONE_USER if self.people == 1 else persons_of(message.persons, people=self.people)
            check_own(task, len(asked))
            sums = reduction_from_wire(message.sums) if message.HasField("sums") else None
            objection = task_objection(part.terms, name[1], task) or _sums_objection(part.terms, task, sums)
            if objection is not None:
                return objection
            rows = None if masking is None else masking.rows(name[1], message)
        except WireError as error:
            return str(error)
        whole: Callable[[Answers], bytes] | None = None
        if masking is not None and rows is not None:
            whole = partial(_masked, partial(masking.answer, name, body_digest(message), rows))
        elif sums is not None and self.people > 1:
            whole = partial(_sums, name, sums)
        query = _Query(name, part, task, asked, ready, whole)
        if self.is_silo and part.terms.public and not self.record.people:  # the persons are not known yet
            zeros = Answers(_no_answers(part, task, len(asked)).values, np.full(len(asked), Status.ANSWERED, np.uint8))
            return query.rows_of(zeros) if whole is None else whole(zeros)
        return self._kept_or_made(query)

    def _kept_or_made(self, query: "_Query") -> bytes | str:
        """Return the kept answer to the question, or make and keep one of the persons that have not answered in this
        round; or why there is none. A person that has answered the same task repeats its row, and is in no other sum.
        """
        record, asked, name = self.record, query.asked, query.name
        kept = record.kept(*name[:2])
        before = next((stored for stored in kept if stored.digest == name[2]), None)
        if before is not None and before.answer is not None and query.whole is not None:
            return before.answer
        if any((stored.tasks is None) != (query.whole is not None) for stored in kept):
            return "the round was already answered, in another form"
        found, same = _no_answers(query.part, query.task, len(asked)), np.zeros(len(asked), np.bool_)
        # A client of one user repeats its answer to the same question only; a silo may be asked for other persons.
        for stored in kept if self.is_silo else filter(None, [before]):
            self._repeat(query, stored, found, same)
        new = np.zeros(len(asked), np.bool_)
        if before is None:
            new = record.may_answer(*name[:2], asked, **query.rules)[0]
        rows = np.flatnonzero(new)
        if not len(rows) and not same.any():  # the answer of a silo is as long if all persons are absent
            why = record.may_answer(*name[:2], asked[:0] if self.is_silo else asked, **query.rules)[1]
            if why is not None:
                return why
        if query.whole is None and not len(rows):
            return query.rows_of(found)
        made, tasks = self._made(query, rows), None
        if query.whole is None:
            found.values[rows], found.status[rows] = made.values, made.status
            sent, tasks = query.rows_of(made, kept=True), _digests(query.task.part(rows)).tobytes()
        else:
            sent = query.whole(made)
        now = record.keep(*name, sent, asked[rows], **query.rules, tasks=tasks) if len(rows) else sent
        if now is None:
            return "another process of this client was faster"
        if now is not sent:  # another answer was kept meanwhile, and is sent
            return self._kept_or_made(query)
        return query.rows_of(found) if query.whole is None else sent

    def _repeat(self, query: "_Query", kept: Kept, found: Answers, same: Mask) -> None:
        """Write the kept rows of those persons whose task is the same into `found`, and that they are in `same`."""
        if kept.answer is None or kept.tasks is None:
            return
        message, shape = federation.Answer.FromString(kept.answer), query.task.answer_shape(query.part.terms.dimension)
        rows = wire.rows_from_wire(message, shape, len(kept.persons))
        _, here, there = np.intersect1d(query.asked, kept.persons, assume_unique=True, return_indices=True)
        old = np.broadcast_to(np.frombuffer(kept.tasks, _DIGEST), len(kept.persons))[there]
        alike = old == np.broadcast_to(_digests(query.task), len(query.asked))[here]
        here, there = here[alike], there[alike]
        if rows is not None:
            found.values[here], found.status[here], same[here] = rows.values[there], rows.status[there], True

    def _made(self, query: "_Query", rows: NDArray[np.intp]) -> Answers:
        """Return the rows of the persons at `rows`, MISSING where none can be computed. In a run of local reports a
        person whose report cannot be computed reports as one without items."""
        part, task, asked = query.part, query.task.part(rows), query.asked[rows]
        if part.batch is None or not query.ready:
            return _no_answers(part, task, len(asked))
        places, users = part.places[asked], part.user + asked
        items = part.batch.of(places) if _draws(task) else part.batch.seen(places)
        try:
            found = self._answers(part, task, items, query.name[1], users)
        except Exception:
            # The coordinator must not learn the error, which may depend on the data.
            _LOG.exception("The answer could not be computed.")
            if not isinstance(task, LocalReport):
                return _no_answers(part, task, len(asked))
            try:
                found = self._answers(part, task, _no_items(part.terms.features, len(asked)), query.name[1], users)
            except Exception:  # then the question is at fault, for every user alike
                return _no_answers(part, task, len(asked))
        # A person whose rows are all unusable is rejected, as a client of one user would be.
        unusable = (found.status == Status.MISSING) & (places < part.batch.users - 1)
        status = np.where(unusable, Status.REJECTED, found.status).astype(np.uint8)
        return Answers.checked(found.values, status, largest=_largest(part.terms, task), own=True)

    def _answers(self, part: Part, task: Task, items: Items, round_number: int, users: NDArray[np.int64]) -> Answers:
        """Return the answers of users with these numbers, shape (k,), and items."""
        loss, seed = part.terms.make_loss(), self._seed(part.terms)
        task = task.directed(secrets.randbits(64) if seed is None else seed)  # directions unknown to the coordinator
        if isinstance(task, LocalReport):
            own: LocalRandomness = SystemRandomness() if seed is None else SeededRandomness(seed)
            return local_report(loss, items, task, own, round=round_number, users=users)
        return answer(loss, items, task, keys=user_keys(round_number, users))

    def _seed(self, terms: Terms) -> int | None:
        return self.owner.simulation_seed if terms.simulation else None

    def forget(self, run: str, *, begun: bool = True) -> bool:
        """End a run and erase its answers. Return whether it was known and open. Raises LedgerError."""
        with self._lock:
            self.parts.pop(run, None)
        return self.record.end(run, begun=begun)


@dataclass(frozen=True, slots=True, eq=False)
class _Query:
    """A question of an agreed run, as it came, and how its answer is written."""

    name: tuple[str, int, bytes]
    part: Part
    task: Task
    asked: Persons  # (k,)
    ready: bool  # whether there is time to compute
    whole: Callable[[Answers], bytes] | None  # makes the answer that is sent in place of rows

    @property
    def rules(self) -> dict[str, Any]:
        """The arguments of `ClientState.may_answer` and `ClientState.keep`."""
        return {"spends": self.task.spends, "may": None if self.part.masking is None else self.part.masking.spec.admits}

    def rows_of(self, found: Answers, *, kept: bool = False) -> bytes:
        """Return an answer of rows, as bytes: to be sent, or to be kept."""
        if self.part.terms.timely and not kept:  # problems with items may not be visible
            found = Answers(found.values, np.full_like(found.status, Status.ANSWERED))
        return bytes(rows_to_wire(*self.name, found).SerializeToString())


def _sums(name: tuple[str, int, bytes], sums: Reduction, found: Answers) -> bytes:
    """Return an answer of sums, as bytes."""
    return bytes(sums_to_wire(*name, sums.of(found.values, found.answered)).SerializeToString())


def _masked(make: Callable[[NDArray[np.float64] | None], bytes], found: Answers) -> bytes:
    """Return a masked answer, as bytes. Without an answer the masked row is zero, not the row of a zero vector, which
    has a centre and a norm."""
    return make(found.values[0] if found.answered[0] else None)


def task_objection(terms: Terms, number: int, task: Task) -> str | None:
    """Return why a question is not one of the announced run, or None; by public terms alone, so it costs nothing."""
    if terms.trust_model == "local" and not isinstance(task, LocalReport):
        return "a run of trust model local asked for an answer that is not private by itself"
    if number >= terms.rounds:
        return f"expected one of the {terms.rounds} announced rounds"
    expected = terms.features if isinstance(task, SecondMoment) else terms.dimension
    if task.model_size != expected:
        return f"expected {expected} dimensions, as announced, got {task.model_size}"
    if isinstance(task, MomentAndGradient) and task.dimension != terms.features:
        return f"expected {terms.features} features, as announced, got {task.dimension}"
    if isinstance(task, LocalSGD) and task.domain != terms.make_domain():
        return f"expected the announced domain {terms.make_domain()}, got {task.domain}"
    return None


def _no_items(features: int, users: int = 1) -> ItemBatch:
    """Return users without items."""
    return ItemBatch(np.zeros((0, features), np.float32), np.zeros(0), np.zeros(users + 1, np.int64))


def _promise(terms: Terms, user: str) -> str:
    """Return the announced guarantee of a run, for the owner's log."""
    if terms.trust_model == "none":
        return "No privacy is guaranteed."
    return (
        f"({terms.epsilon:g}, {terms.delta:g})-differential privacy for all rows of one {user} at once, adjacency "
        f"{terms.adjacency}, trust model {terms.trust_model}."
    )


def _silence(run: str, round: int, digest: bytes) -> bytes:
    return bytes(answer_to_wire(run, round, digest, np.zeros(0), Status.MISSING).SerializeToString())


_DIGEST = np.dtype("S16")


def _digests(task: Task) -> NDArray[np.bytes_]:
    """Return a digest of each person's task, shape (k,); (1,) where it is the same for all."""
    common = wire.Body.of(task if task.own is None else task.part(slice(0))).digest
    rows = [b""] if task.own is None else [row.tobytes() for row in np.ascontiguousarray(getattr(task, task.own))]
    of_each = (blake2b(common + row, digest_size=_DIGEST.itemsize).digest() for row in rows)
    return np.frombuffer(b"".join(of_each), _DIGEST)


def _sums_objection(terms: Terms, task: Task, sums: Reduction | None) -> str | None:
    """Return why a task's answers have no such sums, by their shape alone; None if they have."""
    if sums is not None and not terms.silo_sums:
        return "it asks for sums, and the run was not announced as one that does"
    try:
        if sums is not None:
            sums.of(np.zeros((0, *task.answer_shape(terms.dimension))), np.zeros(0, np.bool_))
    except ConfigError as error:
        return str(error)
    return None


def _no_answers(part: Part, task: Task, asked: int) -> Answers:
    """Return zeros with status MISSING."""
    values = np.zeros((asked, *task.answer_shape(part.terms.dimension)))
    return Answers(values, np.full(asked, Status.MISSING, np.uint8))


def _check_declared(owner: Owner, accepted: str) -> None:
    """Raise ConfigError unless the owner declares whose the file is, which may not be read before the client starts."""
    if owner.user_column is None and not owner.one_user:
        raise ConfigError(
            f"Expected --one-user with --accept {accepted}, got none: a client that reads its file before it connects "
            "would reveal its size. Add it once you know that all rows are one user's (quoron client --check)."
        )
    if owner.user_column is not None and owner.people is None:
        raise ConfigError(
            f"Expected --set users=N with --accept {accepted}, got none: a silo that counted the users in its file "
            "before it connects would reveal its size by the time."
        )


def _check_people(owner: Owner, names: list[str], people: int) -> None:
    """Raise DataError for more persons than were declared, and for none."""
    if not names:
        raise DataError(f"Data file {str(owner.data)!r}: Expected the rows of some users, got none.")
    if len(names) > people:
        raise DataError(
            f"Data file {str(owner.data)!r}: Expected at most {people:,} users in column {owner.user_column!r}, got "
            f"{len(names):,}. The number of a silo is fixed when it is enrolled: leave the others out, or "
            "start another client for them."
        )


def _draws(task: Task) -> bool:
    """Return whether a task needs random points, which are drawn for every row."""
    return isinstance(getattr(getattr(task, "gradient", task), "smoothing", None), Convolution)


def _largest(terms: Terms, task: Task) -> float:
    """Return the length beyond which the coordinator rejects a row."""
    loss, domain = terms.make_loss(), terms.make_domain()
    lipschitz = loss.lipschitz(domain, terms.dimension, getattr(task, "smoothing", None))
    return FAR * task.honest(Bounds(lipschitz, domain.norm_bound(terms.dimension), loss.feature_norm))
