"""The protocol's state without a transport, in one event loop: connected clients, open questions, answers.

    session = sessions.open(run, announcement, members)  # members: user of each slot
    answers = await sessions.ask(session, question, shape=(d,), seconds=30)

A client sends a handshake, receives announcements of its runs, consents, and is then asked the open questions; after
reconnecting it is asked again. A client's number is that of its user, a silo's that of its first user; when a silo is
absent all its users are. A verdict depends on which clients were asked what and have answered, never on values.
"""

import asyncio
import logging
import math
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from quoron_server.service.client_stream import Backlog, ClientStream
from quoron_server.silos import by_client, homes
from quoron_server.traffic import GRPC, fits, free_disk, room_for, spill_folder

if TYPE_CHECKING:
    from quoron_client.protocol import masked
else:
    masked = OnFirstUse("quoron_client.protocol.masked")  # of two servers alone

_AT_ONCE = 1 << 20  # bytes of questions that are made before received messages are handled
_READY = 256 << 20  # bytes of questions that are made before the first is sent
_EVERYBODY = -1  # in place of a client: all clients of one user, where they are asked the same
Rows = NDArray[np.intp]

_SLOW_SHARE = 0.25  # of a round's time, for clients that do not read while others wait to be asked
_BATCH = 32  # questions that are sent before received messages are handled
_LOOK, _SOON = 1.0, 0.02  # seconds between two polls for connected clients; with early ends
_log = logging.getLogger("quoron")


@dataclass(frozen=True, slots=True)
class Sealed:
    """The part of a masked answer that the second server reads."""

    question: bytes  # digest, 32 bytes
    text: bytes  # the sealed seed of its mask


@dataclass(frozen=True, slots=True, eq=False)
class Cohort:
    """The clients that are asked, by their first users' numbers, each with its rows in the order of its users.

    asked = Cohort.of(question, members, silos)     # silos: number of users of each, by its first user
    asked.rows[7]                                   # rows of the cohort that the client of user 7 answers
    """

    question: Question
    rows: dict[int, Rows]
    persons: dict[int, bytes]  # of each silo: bits of its users who are asked
    sums: pb.Reduction | None = None  # that silos send in place of rows
    row: pb.Reduction | None = None  # the row that clients make of answers, with two servers
    made: dict[int, wire.Body] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        question: Question,
        members: NDArray[np.int64],
        silos: Mapping[int, int],
        *,
        sums: bool = False,
        row: pb.Reduction | None = None,
    ) -> "Cohort":
        """Make the cohort of a question. `members` has the user of each slot; with `sums` silos send sums if asked."""
        users = members[question.cohort]
        rows, persons = by_client(users, silos), {}
        for client in rows.keys() & silos.keys():
            persons[client] = wire.bits_of(users[rows[client]] - client, people=silos[client])
        return cls(question, rows, persons, wire.reduction_to_wire(question.reduction) if sums else None, row)

    @property
    def apart(self) -> Rows | None:
        """Rows, in order, of the clients that send rows where silos send sums; None where all send rows."""
        if self.sums is None:
            return None
        rows = [self.rows[client] for client in self.rows.keys() - self.persons.keys()]
        return np.sort(np.concatenate([np.zeros(0, np.intp), *rows]))

    def sum_length(self, shape: tuple[int, ...]) -> int:
        """Return how many numbers a silo's sum of rows of that shape has; 0 where all send rows."""
        if self.sums is None or self.question.reduction is None:
            return 0
        return len(self.question.reduction.of(np.zeros((0, *shape)), np.zeros(0, np.bool_)).total)

    @property
    def shared(self) -> bool:
        """Whether all clients of one user are asked the same question."""
        return self.question.task.own is None

    def batches(self, order: Sequence[int]) -> list[Sequence[int]]:
        """Split clients, in this order, into batches whose questions fit into memory together."""
        most = len(order) if self.shared and not self.persons else max(1, _READY // self._size(order))
        return [order[start : start + most] for start in range(0, len(order), most)] if order else [order]

    async def make(self, clients: Sequence[int]) -> None:
        """Make the questions to these clients, connected or not, in place of those made before. Large ones are made in
        a thread, so that messages are received meanwhile."""
        alone = self.shared and not self.persons
        if self._size(clients) * (1 if alone else len(clients)) <= _AT_ONCE:
            made = self._made(clients)
        else:
            made = await asyncio.to_thread(self._made, clients)
        self.made.clear()
        self.made.update(made)

    def body(self, client: int) -> wire.Body:
        """Return the question to a client, made now unless it was made before."""
        there = self.made.get(client if client in self.persons or not self.shared else _EVERYBODY)
        return self._body(client) if there is None else there

    @property
    def parted(self) -> bool:
        """Whether a question that was made is sent in chunks."""
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
        """Return nearly the bytes of the longest question to these clients; public, and above zero."""
        task = self.question.task
        one = 8 * task.numbers_down + 1
        most = max((len(self.rows[client]) for client in clients), default=1)
        return one * (1 if self.shared else most) + max(map(len, self.persons.values()), default=0)


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
    timeout: float  # seconds for clients that do not read their questions
    left: int  # clients that have not answered or declined
    complete: asyncio.Event
    passed: asyncio.Event  # all clients that were connected have been asked
    length: int = 0  # numbers in a sum
    sums: dict[int, Sums] = field(default_factory=dict)  # of each silo that has sent one in place of rows
    apart: NDArray[np.intp] | None = None  # rows of the cohort that have one in `values`; None: all
    sealed: dict[int, Sealed] = field(default_factory=dict)  # with two servers, by row of the cohort
    down: int = 0  # bytes of questions that were sent, as messages of gRPC
    up: int = 0  # bytes of answers that were accepted


@dataclass(slots=True)
class _Asked:
    """The last question of a client."""

    round: int
    digest: bytes
    done: bool = False  # answered or declined
    connection: ClientStream | None = None  # on which it was asked
    body: bytes = b""  # digest of the question


@dataclass(slots=True, eq=False)
class RunSession:
    """One run and its members."""

    run: str
    announcement: pb.ServerMessage
    members: NDArray[np.int64]  # user of each slot
    silos: Mapping[int, int] = field(default_factory=dict)  # number of users of each client that has several
    sums: bool = False  # silos send sums where the question has them
    open: _Open | None = None
    present: set[int] = field(default_factory=set)  # connected and taking part
    absent: set[int] = field(default_factory=set)  # connected and declining
    agreed: set[int] = field(default_factory=set)  # that have agreed to take part, and may have disconnected since
    asked: dict[int, _Asked] = field(default_factory=dict)
    persons: Counter[int] = field(init=False)  # members of each client
    summed: tuple[Sums, ...] = ()  # that silos sent in place of rows in the last round
    sealed: dict[int, Sealed] = field(default_factory=dict)  # of the last round of two servers, by row of the cohort
    moved: tuple[int, int] = (0, 0)  # bytes of questions and of answers in the last round
    last_asked: int = -1  # round
    stopped: bool = False  # no round opens any more
    longest: int = 0  # numbers in an answer to any of its questions so far; a late client still sends one
    gathered: float = -math.inf  # loop time before which no client is asked
    due: float = -math.inf  # loop time before which nothing of the last round may be published, nor the next one open

    def __post_init__(self) -> None:
        self.persons = Counter(homes(self.members, self.silos).tolist())

    @property
    def users(self) -> Set[int]:
        """The clients, by the numbers of their first users."""
        return self.persons.keys()

    @property
    def everybody(self) -> bool:
        """Whether every client is connected and has consented or declined."""
        return self.users <= self.present | self.absent

    def count(self, clients: Iterable[int]) -> int:
        """Return how many members these clients have."""
        return sum(self.persons[client] for client in clients)


def poll_seconds(seconds: float, *, early_ends: bool) -> float:
    """Return seconds between two polls for connected clients: an exact time may reveal how long a file is."""
    return _SOON if early_ends else min(_LOOK, rounds.PAUSE * seconds)


class Sessions:
    """The open runs and the connected clients."""

    def __init__(self, *, spill: Path | None = None) -> None:
        """Keep answers that are too long for memory in the folder `spill`."""
        self.backlog = Backlog()
        self._spill = spill_folder() if spill is None else spill
        self.runs: dict[str, RunSession] = {}
        self.late = 0  # rounds that opened late, which is public
        self._here: dict[int, ClientStream] = {}

    @property
    def free_disk(self) -> int:
        """Free bytes of disk for answers that are too long for memory."""
        return free_disk(self._spill)

    @property
    def connected(self) -> int:
        """Number of connected clients."""
        return len(self._here)

    def here(self, session: RunSession | None = None) -> list[int]:
        """Return the connected users, of one run's members or all, whether or not they are asked or answer."""
        there = list(self._here)  # a copy: the roster calls this from another thread, while clients come and go
        return [user for user in there if session is None or user in session.users]

    def standing(self, run: str) -> dict[str, int]:
        """Return the number of members and of connected ones of an open run; an empty dict for other runs."""
        session = self.runs.get(run)
        if session is None:
            return {}
        return {"connected": session.count(self.here(session)), "members": len(session.members)}

    def disconnect(self, users: Iterable[int], why: str) -> None:
        """End the streams of these users; they may reconnect."""
        for user in users:
            if (connection := self._here.get(user)) is not None:
                self.leave(connection)
                connection.end(why, StatusCode.UNAVAILABLE)

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
        """Open the session of a run and announce it to its connected members. They are asked from loop time `gathered`
        on, or once all of them are connected.

        `silos` has the number of users of clients with several, by the first user; with `sums` they send sums where a
        question has them. With two servers a client gets the `spec` of the plan, and the second server's `consent`.
        """
        announcement = pb.ServerMessage(
            run=pb.Announcement(run=run, description=description, spec=spec, consent=consent)
        )
        session = self.runs[run] = RunSession(run, announcement, members, silos or {}, sums, gathered=gathered)
        for user in session.users & self._here.keys():
            self._here[user].send(announcement)
        return session

    def close(self, run: str, how: str) -> None:
        """Announce the stored end of a run to its connected members, and to the others when they connect."""
        session = self.runs.pop(run, None)
        if session is not None:
            ended = pb.ServerMessage(ended=pb.Ended(run=run, how=how))
            for user in session.users & self._here.keys():
                self._here[user].send(ended)

    def enter(self, connection: ClientStream) -> None:
        """Add a client after its handshake. Ends an earlier connection of the same user."""
        user = connection.user
        before = self._here.get(user)
        if before is not None:
            self.leave(before)
            before.end("The same client has connected elsewhere.")
        self._here[user] = connection
        connection.send(pb.ServerMessage(welcome=pb.Welcome(user=user)))
        for session in self.runs.values():
            if user in session.users:
                connection.send(session.announcement)

    def leave(self, connection: ClientStream) -> None:
        """Remove a client whose stream is over; its user keeps every slot and may reconnect."""
        user = connection.user
        if self._here.get(user) is connection:
            del self._here[user]
            for session in self.runs.values():
                session.present.discard(user)
                session.absent.discard(user)

    async def consent(self, connection: ClientStream, message: pb.Consent) -> None:
        """Note that a client takes part in a run from now on, or does not. Waits for space to ask it."""
        session, user = self.runs.get(message.run), connection.user
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
            await self.backlog.wait_for_space(current.timeout)
        if session.open is current:  # a later round has asked the clients who are present
            self._put(session, current, user)

    def longest_answer(self, user: int) -> int:
        """Return the most numbers that a client was asked for at once, in the open runs."""
        there = (session for session in self.runs.values() if user in session.users)
        return max((session.longest * session.persons[user] for session in there), default=0)

    def expects(self, user: int, message: pb.Answer | pb.MaskedAnswer) -> int | None:
        """Return how many bytes the values of an announced answer may have; None for one that is not awaited."""
        found = self._awaited(user, message)
        if not isinstance(found, tuple):
            return None
        rows = len(found[0].cohort.rows[user])
        return rows * (8 * math.prod(found[0].shape) + 1) + 8 * found[0].length + wire.BESIDE

    def answer(self, user: int, message: pb.Answer | pb.MaskedAnswer, size: int = 0) -> pb.Verdict:
        """Accept an answer of `size` bytes if it is to the question that is open for this user; return the verdict.

        Masked answers, which neither server can read, are kept as they are. Wrong types count as no answer.
        """
        found = self._awaited(user, message)
        if not isinstance(found, tuple):
            return found
        current, asked = found
        taken = self._take_masked if isinstance(message, pb.MaskedAnswer) else self._take
        taken(current, asked, user, message)
        current.up += GRPC + size
        self._mark_done(current, asked)
        return pb.VERDICT_TAKEN

    def _take(self, current: _Open, _: _Asked, user: int, message: Any) -> None:
        """Store an answer: one of a wrong type or length as rejected. A silo's sums are private and not checked."""
        cohort, rows = current.cohort, current.cohort.rows[user]
        if cohort.row is not None:
            return  # no server may see an answer of this run
        if cohort.sums is not None and user in cohort.persons and current.question.reduction is not None:
            sums = wire.sums_from_wire(message, current.length, len(rows), current.question.reduction)
            if sums is not None:
                current.sums[user] = sums
            return
        places = rows if current.apart is None else np.searchsorted(current.apart, rows)
        read = wire.rows_from_wire(message, current.shape, len(rows))
        if read is None:
            current.status[places] = Status.REJECTED
        else:
            current.values[places], current.status[places] = read.values, read.status

    def _take_masked(self, current: _Open, asked: _Asked, user: int, message: Any) -> None:
        """Store a masked answer, which no server can read, and the part for the second server."""
        row = int(current.cohort.rows[user][0])
        made = masked.answer_from_wire(message, math.prod(current.shape))
        if current.cohort.row is not None and made is not None and user not in current.cohort.persons:
            question = masked.question_digest(message.run, message.round, asked.digest, asked.body)
            current.values.view(np.uint64)[row], current.sealed[row] = made[0], Sealed(question, made[1])
            current.status[row] = Status.ANSWERED

    def _awaited(self, user: int, message: pb.Answer | pb.MaskedAnswer) -> "tuple[_Open, _Asked] | pb.Verdict":
        """Return the open round and the question of an answer, by its names alone; otherwise the verdict."""
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
        if asked.done:
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
        row: pb.Reduction | None = None,
    ) -> Answers:
        """Return rows in cohort order once the round is over; users without answers are MISSING. Where silos send sums
        there are rows of the other clients alone.

        With two servers clients mask their answers as a `row` of the spec, which no server can read, and
        `RunSession.sealed` has the parts for the second server.

        With `early_ends` a round ends once all clients have answered or declined, and opens right after the one before;
        otherwise its times do not depend on who answered (`round_clock`).
        """
        loop = asyncio.get_running_loop()
        while (left := session.gathered - loop.time()) > 0:
            if session.everybody:
                session.gathered = loop.time()
            else:
                await asyncio.sleep(min(left, poll_seconds(seconds, early_ends=early_ends)))
        cohort = Cohort.of(question, session.members, session.silos, sums=session.sums, row=row)
        apart = cohort.apart
        place = len(question.cohort if apart is None else apart), shape, self._spill
        values = room_for(*place) if fits(*place[:2]) else await asyncio.to_thread(room_for, *place)
        opened = loop.time() if early_ends else await self._until_due(session, seconds)
        session.longest = max(session.longest, math.prod(shape))
        order = self._in_secret_order(list(cohort.rows))
        batches = cohort.batches(order)
        await cohort.make(batches[0])
        session.last_asked = question.round  # before `stopped` is read, so that stopping the run finds it
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
            timeout=_SLOW_SHARE * seconds,
            left=len(order),
            complete=asyncio.Event(),
            passed=asyncio.Event(),
            length=cohort.sum_length(shape),
            apart=apart,
        )
        # A round that is asked again, after a failed write, is answered again, by others too if sampling is new.
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
            session.due = -math.inf if early_ends else opened + (1 + rounds.PAUSE) * seconds
            current.passed.set()
            if cohort.parted:
                for connection in [
                    asked.connection for user in order if (asked := session.asked.get(user)) and asked.connection
                ]:
                    connection.over(session.run)
        return Answers(current.values, current.status)

    async def _until_due(self, session: RunSession, seconds: float) -> float:
        """Wait until the round may open; return that time."""
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
        """Shuffle users in every round, so that times of questions do not reveal users. Slow clients come last."""
        drawn = np.frombuffer(secrets.token_bytes(8 * len(users)), np.uint64)  # two are alike once in 2^64 pairs
        return sorted((users[place] for place in np.argsort(drawn)), key=self.backlog.slow.__contains__)

    async def _put_all(self, session: RunSession, current: _Open, users: Sequence[int]) -> None:
        for start in range(0, len(users), _BATCH):
            for user in users[start : start + _BATCH]:
                await self.backlog.wait_for_space(current.timeout)
                self._put(session, current, user)
            await asyncio.sleep(0)

    def _put(self, session: RunSession, current: _Open, user: int) -> None:
        """Send a connected user the open question, unless it has it or has answered; a declining user is done."""
        asked, here = session.asked.get(user), self._here.get(user)
        if asked is not None and asked.round != current.question.round:
            asked = None
        if asked is not None and asked.done:
            return
        if user in session.absent:
            self._mark_done(current, self._ask(session, current, user)[2])
        elif user in session.present and here is not None and (asked is None or asked.connection is not here):
            if asked is not None and self.backlog.slow.get(user, -math.inf) >= current.opened:
                return  # it did not read this round's question
            message, body, asked = self._ask(session, current, user)
            asked.connection = here
            size = here.send(message, body)
            current.down += GRPC + size if size else 0

    def _ask(self, session: RunSession, current: _Open, user: int) -> tuple[pb.ServerMessage, wire.Body, _Asked]:
        """Return the open question to a user as head and body, and remember that it was asked."""
        question = current.question
        seconds = max(1, math.ceil(current.closes - current.clock()))
        body = current.cohort.body(user)
        head = wire.question_head(body, run=session.run, round=question.round, user=user, seconds=seconds)
        asked = session.asked[user] = _Asked(question.round, head.digest, body=body.digest)
        return pb.ServerMessage(question=head), body, asked

    def _mark_done(self, current: _Open, asked: _Asked) -> None:
        asked.done = True
        current.left -= 1
        if not current.left:
            current.complete.set()
