"""The protocol's state without a transport: who is connected, what is asked, who has answered. In one event loop.

    session = sessions.open(run, announcement, members)  # members: user of each slot
    answers = await sessions.ask(session, question, shape=(d,), seconds=30)

A client says hello, hears of its runs, consents, and is then asked what is open for it; who reconnects is asked the
open question again. A client is known by the number of its user; a silo, which answers for several, by that of its
first one, and its absence is that of all of them. A verdict depends on who was asked what, and on who has answered;
never on what an answer holds.
"""

import asyncio
import logging
import math
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from grpc import StatusCode
from numpy.typing import NDArray

from quoron_client.protocol import wire
from quoron_client.protocol.questions import Answers, Matrix, Question, Status, Task
from quoron_privacy.kernels.on_first_use import OnFirstUse
from quoron_privacy.release import Sums
from quoron_protos.v1 import federation_pb2 as pb
from quoron_protos.v1.helper_pb2 import HelperConsent
from quoron_server import rounds
from quoron_server.service.conversation import Backlog
from quoron_server.silos import by_client, homes
from quoron_server.traffic import GRPC, fits, free_disk, room_for, spill_folder

if TYPE_CHECKING:
    from quoron_client.protocol import masked
else:
    masked = OnFirstUse("quoron_client.protocol.masked")  # of two servers alone

_AT_ONCE = 1 << 20  # bytes of questions that are made between two looks at what has come in
_READY = 256 << 20  # bytes of them that are made before the first of them leaves
_EVERYBODY = -1  # in the place of a client: all who are one user, where these are asked the same
Rows = NDArray[np.intp]

_PATIENCE = 0.25  # of a round's time, with those who do not read while others wait to be asked
_BATCH = 32  # questions between two looks at what has come in
_LOOK, _SOON = 1.0, 0.02  # seconds between two looks at who is there; with early ends
_log = logging.getLogger("quoron")


@dataclass(frozen=True, slots=True)
class Sealed:
    """What came with a masked answer, for the second server."""

    question: bytes  # digest, 32 bytes
    text: bytes  # the sealed seed of its mask


@dataclass(frozen=True, slots=True, eq=False)
class Cohort:
    """The clients who are asked, by their first users' numbers, each with its rows in the order of its persons.

    asked = Cohort.of(question, members, silos)     # silos: persons of each, by the number of its first
    asked.rows[7]                                   # rows of the cohort that the client of user 7 answers
    """

    question: Question
    rows: dict[int, Rows]
    persons: dict[int, bytes]  # of each silo: bits of its persons who are asked
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
            persons[client] = wire.bits_of(users[rows[client]] - client, people=silos[client])
        return cls(question, rows, persons, wire.reduction_to_wire(question.reduction) if sums else None, row)

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
        """Split clients, in this order, into batches whose questions are made together, as large as memory allows."""
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
        one = 8 * task.numbers_down + 1
        most = max((len(self.rows[client]) for client in clients), default=1)
        return one * (1 if self.shared else most) + max(map(len, self.persons.values()), default=0)


def summed(question: Question, shape: tuple[int, ...]) -> int:
    """Numbers in a sum of rows of that shape."""
    if question.reduction is None:
        return 0
    return len(question.reduction.of(np.zeros((0, *shape)), np.zeros(0, np.bool_)).total)


class Connection(Protocol):
    """One connected client."""

    user: int

    def send(self, message: pb.ServerMessage, body: wire.Body | None = None) -> int:
        """Queue a message, a question with its body: its bytes, 0 if it will not be sent; never blocks nor raises."""

    def over(self, run: str) -> None:
        """The round of a run is over: what is still to be said of a question in parts is not said."""

    def end(self, why: str, code: StatusCode = StatusCode.ABORTED) -> None:
        """End the stream. After ABORTED a client stays away, after UNAVAILABLE it comes back."""


@dataclass(slots=True, eq=False)
class _Open:
    """The open round of a run."""

    question: Question
    cohort: Cohort
    shape: tuple[int, ...]  # of one answer
    values: Matrix
    status: NDArray[np.uint8]
    clock: Callable[[], float]  # loop time
    opened: float  # by it
    closes: float
    patience: float  # seconds with those who do not read what they are asked
    left: int  # clients not heard of
    complete: asyncio.Event
    passed: asyncio.Event  # everybody who was here has been asked
    length: int = 0  # numbers in a sum
    sums: dict[int, Sums] = field(default_factory=dict)  # of each silo that has sent one in place of rows
    apart: NDArray[np.intp] | None = None  # rows of the cohort that have one in `values`; None: all
    sealed: dict[int, Sealed] = field(default_factory=dict)  # with two servers, by row of the cohort
    down: int = 0  # bytes of questions that were said, as messages of gRPC
    up: int = 0  # bytes of answers that were taken


@dataclass(slots=True)
class _Asked:
    """The last question of a client."""

    round: int
    digest: bytes
    heard: bool = False
    connection: Connection | None = None  # in which it was asked
    body: bytes = b""  # digest of what was asked


@dataclass(slots=True, eq=False)
class RunSession:
    """One run and its members."""

    run: str
    announcement: pb.ServerMessage
    members: NDArray[np.int64]  # user of each slot
    silos: Mapping[int, int] = field(default_factory=dict)  # persons of each client that has several
    sums: bool = False  # silos answer with sums where the question has any
    secret_cohorts: bool = False  # the guarantee rests on nobody's learning who is asked
    open: _Open | None = None
    present: set[int] = field(default_factory=set)  # connected and taking part
    absent: set[int] = field(default_factory=set)  # connected and declining
    agreed: set[int] = field(default_factory=set)  # have said that they take part, and may have left since
    asked: dict[int, _Asked] = field(default_factory=dict)
    persons: Counter[int] = field(default_factory=Counter)  # members of each client
    users: Set[int] = frozenset()  # the clients, by the numbers of their first users
    summed: tuple[Sums, ...] = ()  # what silos have sent in place of rows, in the last round
    sealed: dict[int, Sealed] = field(default_factory=dict)  # of the last round of two servers, by row of the cohort
    moved: tuple[int, int] = (0, 0)  # bytes of questions and of answers in the last round
    last_asked: int = -1  # round
    stopped: bool = False  # no round opens any more
    longest: int = 0  # numbers in an answer to any of its questions so far; who is late still sends one
    gathered: float = -math.inf  # loop time before which nobody is asked
    due: float = -math.inf  # loop time before which nothing of the last round may be published, nor the next one open

    def __post_init__(self) -> None:
        self.persons = Counter(homes(self.members, self.silos).tolist())
        self.users = self.persons.keys()

    @property
    def everybody(self) -> bool:
        """Whether every client is connected and has said whether it takes part."""
        return self.users <= self.present | self.absent

    def count(self, clients: Iterable[int]) -> int:
        """How many members these have."""
        return sum(self.persons[each] for each in clients)


def look(seconds: float, *, early_ends: bool) -> float:
    """Seconds between two looks at who is there: when each comes may tell how long its file is."""
    return _SOON if early_ends else min(_LOOK, rounds.PAUSE * seconds)


class Sessions:
    """Every run that is open, and every connected client."""

    def __init__(self, backlog: Backlog | None = None, *, spill: Path | None = None) -> None:
        """Answers of a round that are too long for memory are kept in the folder `spill`."""
        self.backlog = Backlog() if backlog is None else backlog
        self._spill = spill_folder() if spill is None else spill
        self.runs: dict[str, RunSession] = {}
        self.late = 0  # rounds that opened late, which everybody sees
        self.misfits: Counter[int] = Counter()  # answers of another type or length than was asked for, by user
        self._here: dict[int, Connection] = {}

    @property
    def free_disk(self) -> int:
        """Bytes for answers that are too long for memory."""
        return free_disk(self._spill)

    @property
    def connected(self) -> int:
        """Clients in conversation."""
        return len(self._here)

    def here(self, session: RunSession | None = None) -> list[int]:
        """Users in conversation, of one run's members or all: whether they are asked or answer is another matter."""
        there = list(self._here)  # at once: the roster asks in a thread of its own, while others come and go
        return [user for user in there if session is None or user in session.users]

    def standing(self, run: str) -> dict[str, int]:
        """How many members a run that goes on has, and how many are in conversation; nothing of any other."""
        session = self.runs.get(run)
        if session is None:
            return {}
        return {"connected": session.count(self.here(session)), "members": len(session.members)}

    def hang_up(self, users: Iterable[int], why: str) -> None:
        """End what conversations these have; they may come back."""
        for user in users:
            if (conversation := self._here.get(user)) is not None:
                self.leave(conversation)
                conversation.end(why, StatusCode.UNAVAILABLE)

    def open(
        self,
        run: str,
        description: str,
        members: NDArray[np.int64],
        *,
        silos: Mapping[int, int] | None = None,
        sums: bool = False,
        gathered: float = -math.inf,
        spec: str = "",
        consent: HelperConsent | None = None,
    ) -> RunSession:
        """Open the session of a run and announce it to its members who are here. They are asked from loop time
        `gathered` on, or once all of them are here.

        `silos` says of clients that answer for several members how many users they have, by the first; with `sums` they
        answer with the sums of a question that has any. With two servers a client gets the `spec` of the plan, and the
        second server's `consent` to it.
        """
        told = pb.Announcement(run=run, description=description, spec=spec, consent=consent)
        announcement = pb.ServerMessage(run=told)
        session = self.runs[run] = RunSession(run, announcement, members, silos or {}, sums, gathered=gathered)
        for user in session.users & self._here.keys():
            self._here[user].send(announcement)
        return session

    def close(self, run: str, how: str) -> None:
        """Announce the stored end of a run to its members who are here, and to the others when they enter."""
        session = self.runs.pop(run, None)
        if session is not None:
            ended = pb.ServerMessage(ended=pb.Ended(run=run, how=how))
            for user in session.users & self._here.keys():
                self._here[user].send(ended)

    def enter(self, conversation: Connection) -> None:
        """A client has said hello. An earlier conversation of the same user ends."""
        user = conversation.user
        before = self._here.get(user)
        if before is not None:
            self.leave(before)
            before.end("The same client has connected elsewhere.")
        self._here[user] = conversation
        conversation.send(pb.ServerMessage(welcome=pb.Welcome(user=user)))
        for session in self.runs.values():
            if user in session.users:
                conversation.send(session.announcement)

    def leave(self, conversation: Connection) -> None:
        """A conversation is over; its user keeps every slot and may come back."""
        user = conversation.user
        if self._here.get(user) is conversation:
            del self._here[user]
            for session in self.runs.values():
                session.present.discard(user)
                session.absent.discard(user)

    def dismiss(self) -> None:
        """End every conversation: the coordinator is leaving."""
        for conversation in list(self._here.values()):
            self.leave(conversation)
            conversation.end("The coordinator is leaving. Come back later.", StatusCode.UNAVAILABLE)

    async def consent(self, conversation: Connection, message: pb.Consent) -> None:
        """A client takes part in a run from now on, or does not. Returns once there was space to ask it."""
        session, user = self.runs.get(message.run), conversation.user
        if session is None or user not in session.users:
            return
        gained, lost = (session.present, session.absent) if message.takes_part else (session.absent, session.present)
        gained.add(user)
        if message.takes_part:
            session.agreed.add(user)
        lost.discard(user)
        current = session.open
        if current is None or user not in current.cohort.rows:
            return
        if message.takes_part and user in self.backlog.slow:
            await current.passed.wait()
        if message.takes_part and session.open is current:
            await self.backlog.wait_for_space(current.patience)
        if session.open is current:  # a later round has asked the clients who are present
            self._put(session, current, user)

    def longest_answer(self, user: int) -> int:
        """The most numbers that a client was asked for at once, in the runs that go on."""
        there = (session for session in self.runs.values() if user in session.users)
        return max((session.longest * session.persons[user] for session in there), default=0)

    def expects(self, user: int, message: pb.Answer | pb.MaskedAnswer) -> int | None:
        """How many bytes may follow an answer of which all else is there; None for one that nobody waits for."""
        found = self._awaited(user, message)
        if not isinstance(found, tuple):
            return None
        rows = len(found[0].cohort.rows[user])
        return rows * (8 * math.prod(found[0].shape) + 1) + 8 * found[0].length + wire.BESIDE

    def answer(self, user: int, message: pb.Answer | pb.MaskedAnswer, size: int = 0) -> pb.Verdict:
        """Take an answer, which came in `size` bytes, if it is one to the question that is open for this user.

        One that neither of two servers can read is kept as it is; what is no such answer counts as none.
        """
        found = self._awaited(user, message)
        if not isinstance(found, tuple):
            return found
        current, asked = found
        taken = self._take_masked if isinstance(message, pb.MaskedAnswer) else self._take
        if not taken(current, asked, user, message):
            self._misfit(user, message.run)
        current.up += GRPC + size
        self._heard(current, asked)
        return pb.VERDICT_TAKEN

    def _take(self, current: _Open, _: _Asked, user: int, message: Any) -> bool:
        """Whether its type and length are those that were asked for; a silo's sums tell too much to be looked at."""
        cohort, rows = current.cohort, current.cohort.rows[user]
        if cohort.row is not None:
            return True  # nobody may see an answer of this run
        if cohort.sums is not None and user in cohort.persons and current.question.reduction is not None:
            sums = wire.sums_from_wire(message, current.length, len(rows), current.question.reduction)
            if sums is not None:
                current.sums[user] = sums
            return True
        places = rows if current.apart is None else np.searchsorted(current.apart, rows)
        read = wire.rows_from_wire(message, current.shape, len(rows))
        current.values[places], current.status[places] = read.values, read.status
        return bool(np.count_nonzero(read.answered)) or wire.fits(message, current.shape, len(rows))

    def _take_masked(self, current: _Open, asked: _Asked, user: int, message: Any) -> bool:
        """The same of words that no server can read, with what goes to the second server."""
        row = int(current.cohort.rows[user][0])
        made = masked.answer_from_wire(message, math.prod(current.shape))
        if current.cohort.row is not None and made is not None and user not in current.cohort.persons:
            question = masked.question_digest(message.run, message.round, asked.digest, asked.body)
            current.values.view(np.uint64)[row], current.sealed[row] = made[0], Sealed(question, made[1])
            current.status[row] = Status.ANSWERED
        return made is not None

    def _misfit(self, user: int, run: str) -> None:
        """Count an answer of another type or length, unless that would tell who is in a secret cohort."""
        if not self.runs[run].secret_cohorts:
            self.misfits[user] += 1

    def _awaited(self, user: int, message: pb.Answer | pb.MaskedAnswer) -> "tuple[_Open, _Asked] | pb.Verdict":
        """What an answer is to, by its name alone; the verdict on it where that is nothing that is open."""
        session = self.runs.get(message.run)
        if session is None or user not in session.users:
            return pb.VERDICT_NOT_ASKED
        current = session.open
        asked = session.asked.get(user)
        if (
            current is not None
            and user in current.cohort.rows
            and message.round == current.question.round
            and (asked is None or asked.round != current.question.round)
        ):
            asked = self._ask(session, current, user)[2]  # a client remembers what a restarted coordinator will ask
        if asked is None or message.round != asked.round or message.digest != asked.digest:
            return pb.VERDICT_NOT_ASKED
        if asked.heard:
            return pb.VERDICT_DUPLICATE
        if current is None or message.round != current.question.round:
            return pb.VERDICT_LATE
        return current, asked

    async def ask(
        self,
        session: RunSession,
        question: Question,
        *,
        shape: tuple[int, ...],
        seconds: float,
        early_ends: bool = False,
        row: pb.Row | None = None,
    ) -> Answers:
        """Rows in cohort order, once the time is over; who was not heard of is MISSING. Where silos answer with sums
        there are rows of the other clients alone.

        With two servers clients make a `row` of the spec of their answers: what comes are words, which no server can
        read, and `RunSession.sealed` has what is for the second server.

        With `early_ends` no later than when everybody was heard of, and at once after the round before; otherwise at
        times that do not depend on who answered (`round_clock`).
        """
        loop = asyncio.get_running_loop()
        while (left := session.gathered - loop.time()) > 0:
            if session.everybody:
                session.gathered = loop.time()
            else:
                await asyncio.sleep(min(left, look(seconds, early_ends=early_ends)))
        cohort = Cohort.of(question, session.members, session.silos, sums=session.sums, row=row)
        apart = cohort.apart
        place = len(question.cohort if apart is None else apart), shape, self._spill
        values = room_for(*place) if fits(*place[:2]) else await asyncio.to_thread(room_for, *place)
        opened = loop.time() if early_ends else await self._until_due(session, seconds)
        session.longest = max(session.longest, math.prod(shape))
        order = self._in_secret_order(list(cohort.rows))
        batches = cohort.batches(order)
        await cohort.make(batches[0])
        session.last_asked = question.round  # before `stopped` is read: who stops the run then finds it
        if session.stopped:
            raise asyncio.CancelledError
        current = session.open = _Open(
            question=question,
            cohort=cohort,
            shape=shape,
            values=values,
            status=np.full(len(values), Status.MISSING, np.uint8),
            clock=loop.time,
            opened=opened,
            closes=opened + seconds,
            patience=_PATIENCE * seconds,
            left=len(order),
            complete=asyncio.Event(),
            passed=asyncio.Event(),
            length=summed(question, shape) if cohort.sums is not None else 0,
            apart=apart,
        )
        # A round that is asked again, after a write that failed, is answered again, by others too if coins are new.
        for user in [user for user, asked in session.asked.items() if asked.round == question.round]:
            del session.asked[user]
        try:
            async with asyncio.timeout_at(current.closes):
                await self._put_all(session, current, batches[0])
                for some in batches[1:]:
                    await cohort.make(some)
                    await self._put_all(session, current, some)
                current.passed.set()
                if current.left or not early_ends:
                    await (current.complete if early_ends else asyncio.Event()).wait()
        except TimeoutError:
            pass
        finally:
            session.open, session.moved = None, (current.down, current.up)
            session.summed, session.sealed = tuple(current.sums.values()), current.sealed
            session.due = -math.inf if early_ends else rounds.due_at(opened, seconds)
            current.passed.set()
            if cohort.parted:
                for connection in [
                    asked.connection for user in order if (asked := session.asked.get(user)) and asked.connection
                ]:
                    connection.over(session.run)
        return Answers(current.values, current.status)

    async def _until_due(self, session: RunSession, seconds: float) -> float:
        """When the round opens, once it is that time."""
        loop = asyncio.get_running_loop()
        opens = rounds.opening(session.due, loop.time(), seconds)
        while (left := opens - loop.time()) > 0:
            await asyncio.sleep(left)
        if opens > session.due > -math.inf:
            self.late += 1
            _log.warning(
                "run %s: a round's own work took longer than %g s, which shows in when the next one opens. Give rounds "
                "more seconds.",
                session.run,
                rounds.PAUSE * seconds,
            )
        return opens

    def _in_secret_order(self, users: Sequence[int]) -> list[int]:
        """Anew in each round: when a question leaves says nothing of whose it is. Who did not read comes last."""
        drawn = np.frombuffer(secrets.token_bytes(8 * len(users)), np.uint64)  # two are alike once in 2^64 pairs
        return sorted((users[place] for place in np.argsort(drawn)), key=self.backlog.slow.__contains__)

    async def _put_all(self, session: RunSession, current: _Open, users: Sequence[int]) -> None:
        for start in range(0, len(users), _BATCH):
            for user in users[start : start + _BATCH]:
                await self.backlog.wait_for_space(current.patience)
                self._put(session, current, user)
            await asyncio.sleep(0)

    def _put(self, session: RunSession, current: _Open, user: int) -> None:
        """Send a user the open question, unless it has it, was heard of or is not here; who declines is heard of."""
        asked, here = session.asked.get(user), self._here.get(user)
        if asked is not None and asked.round != current.question.round:
            asked = None
        if asked is not None and asked.heard:
            return
        if user in session.absent:
            self._heard(current, self._ask(session, current, user)[2])
        elif user in session.present and here is not None and (asked is None or asked.connection is not here):
            if asked is not None and self.backlog.slow.get(user, -math.inf) >= current.opened:
                return  # it has left this round's question unread
            message, body, asked = self._ask(session, current, user)
            asked.connection = here
            size = here.send(message, body)
            current.down += GRPC + size if size else 0

    def _ask(self, session: RunSession, current: _Open, user: int) -> tuple[pb.ServerMessage, wire.Body, _Asked]:
        """The open question to a user: what stands before its task, the task, and a note of it."""
        question = current.question
        seconds = max(1, math.ceil(current.closes - current.clock()))
        body = current.cohort.body(user)
        head = wire.question_head(body, run=session.run, round=question.round, user=user, seconds=seconds)
        asked = session.asked[user] = _Asked(question.round, head.digest, body=body.digest)
        return pb.ServerMessage(question=head), body, asked

    def _heard(self, current: _Open, asked: _Asked) -> None:
        asked.heard = True
        current.left -= 1
        if not current.left:
            current.complete.set()
