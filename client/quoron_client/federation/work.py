"""What a client answers: to each question one answer, made once, or none at all.

Nothing that goes wrong here is told to the coordinator but a status; the owner's log has the rest. Of a run that tells
who answers not even that: whatever goes wrong with items, or takes too long, is the zero row, as an answer.
"""

import logging
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from quoron_client.compute.draws import user_keys
from quoron_client.compute.work import answer, local_report
from quoron_client.data.encoding import Encoding
from quoron_client.data.items import ItemBatch, Items
from quoron_client.federation.config import Owner
from quoron_client.federation.own_table import MOST_NUMBERS, OwnItems, own_items
from quoron_client.federation.record import Record
from quoron_client.federation.terms import Terms, agreement, announced_digest, is_timely, read_terms, refusal
from quoron_client.protocol.parts import BESIDE, Long
from quoron_client.protocol.questions import Answers, Status, Task
from quoron_client.protocol.tasks import LocalReport, LocalSGD, MomentAndGradient, SecondMoment
from quoron_client.protocol.wire import (
    MAX_MESSAGE,
    MAX_NAME,
    MOST_RUNS,
    MOST_VECTORS,
    answer_to_wire,
    body_digest,
    check_own,
    question_from_wire,
    question_name,
)
from quoron_client.randomisers import LocalRandomness, SeededRandomness, SystemRandomness
from quoron_privacy.errors import DataError, IdentityError, WireError
from quoron_protos.v1 import federation_pb2 as federation

if TYPE_CHECKING:
    from quoron_client.federation.masking import Masking, Pinned

_LOG = logging.getLogger("quoron.client")
NO_HELPER_KEY = (
    "Expected the second server's key, to take part in a run of two servers, got none. Have it from the second "
    "server's operator (--second-server-key), and connect with a certificate."
)
Found = tuple[NDArray[np.float64], Status]  # of one user


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A user's part in one run: the terms, the items, and the number that the run knows the user by."""

    terms: Terms
    batch: ItemBatch | None  # None: not read yet, of a run of which nothing but values may depend on them
    user: int
    masking: "Masking | None" = None  # with two servers


@dataclass(slots=True)
class Worker:
    """Decides about runs and answers questions, by the owner's decisions and record. Its parts may be forgotten."""

    owner: Owner
    record: Record
    parts: dict[str, Part] = field(default_factory=dict)  # from the oldest; as many as memory is meant for
    announced: dict[str, bytes] = field(default_factory=dict)  # digest of the terms that a part was made for
    items: Callable[[Path, Terms], OwnItems] | None = None  # a simulation's, which may be made up
    people: int = 1  # for how many it answers
    pinned: "Pinned | None" = None  # whose word on plans of two servers is taken
    _lock: threading.Lock = field(default_factory=threading.Lock)  # of the parts

    def consider(self, message: federation.Announcement, user: int) -> federation.Consent:
        """Whether this client takes part in a run. Raises LedgerError only."""
        run, digest = message.run, announced_digest(message)
        if self.announced.get(run) == digest:
            return federation.Consent(run=run, takes_part=True)
        objection = self._join(message, digest, user)
        if objection is None:
            self.announced[run] = digest
            _LOG.info("Takes part in run %r.", run)
            if (part := self.parts.get(run)) is not None:
                _LOG.info("Run %r: %s", run, _promise(part.terms, self.owner.user))
        else:
            _LOG.warning("Takes no part in run %r: %s", run[:MAX_NAME], objection)
        return federation.Consent(run=run[:MAX_NAME], takes_part=objection is None)

    def _join(self, message: federation.Announcement, digest: bytes, user: int) -> str | None:
        """Make the user's part in a run, or say why not."""
        try:
            terms = read_terms(message.run, message.description)
            objection = refusal(self.owner, terms)
            if objection is not None:
                return objection
            if terms.masked and self.pinned is None:
                raise WireError(NO_HELPER_KEY)
            agreed = self.pinned.agree(message, terms) if terms.masked and self.pinned is not None else None
            items = None if terms.timely else self._read(terms)
        except (WireError, DataError, IdentityError) as error:
            return str(error)
        except Exception:
            # A run is announced from outside: none may end a client that works for others.
            _LOG.exception("The items of run %r could not be made.", message.run)
            return "an error that was not foreseen"
        objection = self.record.agree(agreement(terms, digest))
        if objection is None:
            part = Part(terms, None, user if terms.slot is None else terms.slot, masking=agreed)
            if items is not None:
                bare = terms.model_copy(update={"columns": Encoding(())})  # a vocabulary can be long
                part = self._with(replace(part, terms=bare), items)
            self._take(part)
        return objection

    @property
    def _most(self) -> int:
        """Numbers in the items of all parts, beyond which the oldest are forgotten."""
        return MOST_NUMBERS

    def _read(self, terms: Terms) -> OwnItems:
        """The items of a run, as they are now. Raises DataError, and whatever a library does."""
        data = self.owner.data
        return own_items(data, terms, self.owner.dialect) if self.items is None else self.items(data, terms)

    def _with(self, part: Part, items: OwnItems) -> Part:
        """The part with these; the owner's log hears what is wrong with them."""
        if items.problem is not None:
            _LOG.error("The items cannot be used in run %r. %s", part.terms.run, items.problem)
        if items.notice is not None:
            _LOG.warning("Rows are left out in run %r. %s", part.terms.run, items.notice)
        return replace(part, batch=items.batch)

    def _take(self, part: Part, *, known: Part | None = None) -> None:
        """The latest part, in place of the `known` one if there is any: nothing of a run that was forgotten meanwhile.

        The oldest are forgotten until their runs are announced again, at the next connection. Of a run whose
        participation is public only the items are, until they are needed: how many there are shows nowhere.
        """
        with self._lock:
            if self.parts.pop(part.terms.run, None) is None and known is not None:
                return
            self.parts[part.terms.run] = part
            while len(self.parts) > MOST_RUNS:
                oldest = next(iter(self.parts))
                self.parts.pop(oldest)
                self.announced.pop(oldest, None)
            sizes = {run: each.batch.features.size for run, each in self.parts.items() if each.batch is not None}
            numbers = sum(sizes.values())
            for run in list(sizes)[:-1]:
                if numbers <= self._most:
                    break
                numbers -= sizes[run]
                if self.parts[run].terms.timely:
                    self.parts[run] = replace(self.parts[run], batch=None)
                else:
                    self.parts.pop(run)
                    self.announced.pop(run, None)

    def prepare(self, run: str) -> Part | None:
        """The part in a run with its items: where participation is public they are read now, unless they are there.
        None
        if it is not known.

        Whatever is wrong with them, they are then none. Never raises.
        """
        part = self.parts.get(run)
        if part is None or part.batch is not None:
            return part
        try:
            items = self._read(part.terms)
        except Exception as error:
            said = str(error) if isinstance(error, DataError) else "an error that was not foreseen"
            _LOG.debug("The items of run %r could not be made.", run, exc_info=True)
            items = OwnItems(_nothing(part.terms.features), said, None)
        made = self._with(part, items)
        self._take(made, known=part)
        return made

    def attends(self, run: str) -> float | None:
        """Seconds of a round of a run that tells who answers, if this client takes part in it; else None."""
        part = self.parts.get(run)
        return part.terms.seconds if part is not None and part.terms.timely else None

    def zero_row(self, message: federation.Question) -> bytes | None:
        """In place of an answer that is not ready when it has to be sent: zeros, or what was kept by now.

        As `reply`, and like it at most one answer a question: what is ready later is never sent. Raises LedgerError.
        """
        return self.reply(message, ready=False)

    def wanted(self, head: Long) -> int | None:
        """How many bytes may follow a question of which all but its task is there; None: none of them is wanted.

        As the run was announced, so that a coordinator cannot make this client hold more than was agreed to.
        """
        part = self.parts.get(head.run)
        if part is None:
            return None
        shape = part.terms.dimension**2 if part.masking is not None else 0  # of a row, by a matrix
        most = 8 * MOST_VECTORS * part.terms.dimension + 8 * shape
        return min(most + BESIDE, MAX_MESSAGE)

    def reply(self, message: federation.Question, *, ready: bool = True) -> bytes | None:
        """The answer to a question, as bytes; None where the question has no name to answer to. Raises LedgerError.

        Zeros unless there is time to be `ready` with another.
        """
        try:
            name = question_name(message)
        except WireError as error:
            _LOG.warning("%s", error)
            return None
        before = self._recalled(name)
        if before is not None:
            return before
        made = self._answer(name, message, ready)
        return self._none(message, made) if isinstance(made, str) else made

    def at_once(self, message: federation.Question) -> bytes | None:
        """As `reply`, of an answer that leaves when it is made: in a run whose answers have their time none, not even
        one that was kept by now; nor in one that was not agreed to yet, as a question may come before the consent."""
        promise = self.record.promise(message.run)
        if promise is None or is_timely(promise):
            return self._none(message, "it was asked before the client had consented")
        return self.reply(message)

    def _none(self, message: federation.Question, why: str) -> bytes | None:
        _LOG.warning("No answer in round %d of run %r: %s", message.round, message.run[:MAX_NAME], why)
        with suppress(WireError):  # of a question without a name
            return None if message.HasField("row") else _silence(*question_name(message))
        return None

    def _recalled(self, name: tuple[str, int, bytes]) -> bytes | None:
        """The answer that was made to this very question before."""
        return self.record.recall(*name)

    def _answer(self, name: tuple[str, int, bytes], message: federation.Question, ready: bool) -> bytes | str:
        """A new answer, kept in the record, or why there is none."""
        part = self.parts.get(name[0])
        if part is None:
            return "the client takes no part"
        try:
            task = question_from_wire(message)[3]
            check_own(task, 1)
        except WireError as error:
            return str(error)
        misfit = misfit_of(part.terms, name[1], task)
        if misfit is not None:
            return misfit
        masking, spends = part.masking, task.spends
        if message.HasField("row") != (masking is not None):
            return "answers are masked in runs of two servers, and in no others"
        if masking is not None and masking.expires <= time.time():
            return "the second server's consent is over, and its keys are destroyed"
        may = None if masking is None else masking.may
        objection = self.record.objection(*name[:2], spends=spends, may=may)
        if objection is not None:
            return objection
        try:
            rows = None if masking is None else masking.rows(name[1], message)
        except WireError as error:
            return str(error)
        found = self._compute(part, task, name[1]) if ready else None
        if masking is None or rows is None:
            sent = answer_to_wire(*name, *(found or _zeros(part, task))).SerializeToString()
        else:  # of a vector of zeros the row would not be zero, by a centre and by what it says of norms
            sent = masking.answer(name, body_digest(message), rows, _usable(found))
        kept = self.record.keep(*name, sent, spends=spends, may=may)
        return kept or "another process of this client was faster"

    def _compute(self, part: Part, task: Task, round_number: int) -> Found | None:
        """One user's values and status, None where nothing can be said: a local report shows nothing that items do."""
        try:
            made = self.prepare(part.terms.run) if part.batch is None else part
            if made is not None and made.batch is not None:
                values, status = self._found(part, task, made.batch, round_number)
                return (values, status) if _usable((values, status)) is not None or not part.terms.timely else None
        except Exception:
            # Whatever it is, the coordinator must not learn it: it may be a function of the data.
            _LOG.exception("The answer could not be computed.")
        if isinstance(task, LocalReport):  # its status may not depend on the items: report as a user without any would
            with suppress(Exception):  # then the question is at fault, for every user alike
                return self._found(part, task, _nothing(part.terms.features), round_number)
        return None

    def _found(self, part: Part, task: Task, batch: ItemBatch, round_number: int) -> Found:
        found = self._answers(part, task, batch, round_number, np.array([part.user], np.int64))
        return found.values[0], Status(int(found.status[0]))

    def _answers(self, part: Part, task: Task, items: Items, round_number: int, users: NDArray[np.int64]) -> Answers:
        """Of users by their numbers (k,), whose items these are."""
        loss, seed = part.terms.make_loss(), self._seed(part.terms)
        task = task.directed(secrets.randbits(64) if seed is None else seed)  # the coordinator does not know them
        if isinstance(task, LocalReport):
            own: LocalRandomness = SystemRandomness() if seed is None else SeededRandomness(seed)
            return local_report(loss, items, task, own, round=round_number, users=users)
        return answer(loss, items, task, keys=user_keys(round_number, users))

    def _seed(self, terms: Terms) -> int | None:
        return self.owner.simulation_seed if terms.simulation else None

    def forget(self, run: str, *, begun: bool = True) -> bool:
        """A run has ended: nothing of it is asked any more. Whether it was known and open. Raises LedgerError."""
        with self._lock:
            self.parts.pop(run, None)
            self.announced.pop(run, None)
        return self.record.end(run, begun=begun)


def misfit_of(terms: Terms, number: int, task: Task) -> str | None:
    """Why a question is not one of the announced run, or None; by public terms only, so nothing is charged for it."""
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


def _nothing(features: int) -> ItemBatch:
    """One user without items."""
    return ItemBatch(np.zeros((0, features), np.float32), np.zeros(0), np.zeros(2, np.int64))


def _usable(found: Found | None) -> NDArray[np.float64] | None:
    """The values of an answer that is one."""
    return found[0] if found and found[1] == Status.ANSWERED and bool(np.isfinite(found[0]).all()) else None


def _zeros(part: Part, task: Task) -> Found:
    """What is sent where no answer could be computed: where that may not show, an answer like any other."""
    status = Status.ANSWERED if part.terms.timely else Status.MISSING
    return np.zeros(task.answer_shape(part.terms.dimension)), status


def _promise(terms: Terms, user: str) -> str:
    """What a run says that it promises, for the owner's eyes."""
    if terms.trust_model == "none":
        return "No privacy is promised."
    return (
        f"({terms.epsilon:g}, {terms.delta:g})-differential privacy for all rows of one {user} at once, adjacency "
        f"{terms.adjacency}, trust model {terms.trust_model}."
    )


def _silence(run: str, round: int, digest: bytes) -> bytes:
    return bytes(answer_to_wire(run, round, digest, np.zeros(0), Status.MISSING).SerializeToString())
