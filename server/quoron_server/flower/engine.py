"""The engine of a Flower run: sends each round's questions over a Grid, through a fleet that maps users to nodes.

    fleet = Users(lambda: by_key(grid), announcement, members, registry.user, silos=registry.silos())
    fleet = Shards.found(grid, 50, run="spring", seconds=600)  # a simulated population, spread over nodes
    engine = FlowerEngine(grid, fleet, run="spring", problem=problem, seconds=600)
    answers = engine.ask(question)

A node, identified by its key, is one user, or a silo of several. A SuperNode signs the time of each request with its
private key, and the SuperLink answers only the node with the public key; a Grid lists node ids and keys. With
`--enable-supernode-auth` the SuperLink accepts only keys that the operator has registered: one key is one node and one
user, also for a second process with that key, and also at another SuperLink under another node id. Without it, a node
makes a new key at every start, and one person could be many users; so the ServerApp requires authentication outside
simulations.
"""

import hashlib
import logging
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import inf
from typing import NamedTuple

import numpy as np
from flwr.app import Error, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from quoron_client.protocol import wire
from quoron_client.protocol.flower_records import (
    ANNOUNCED,
    Values,
    answer_of,
    question_values,
    values_of,
)
from quoron_client.protocol.questions import FAR, Answers, AverageGradient, Question, Status, Task
from quoron_client.protocol.wire import task_name
from quoron_privacy.errors import RunError, WireError
from quoron_protos.v1 import federation_pb2 as pb
from quoron_server.flower.exchange import (
    Clock,
    Outbound,
    Pulls,
    nodes,
    stream_replies,
)
from quoron_server.problem import Problem
from quoron_server.rounds import PAUSE, opening
from quoron_server.silos import by_client, homes
from quoron_server.traffic import room_for, spill_folder

_PAUSE = 0.2  # seconds between two polls for nodes
NO_ROWS = np.zeros(0, np.int64)  # of a message that asks for no rows
_AGAIN = 2  # times that a question lost by the SuperLink is sent again, at most
_log = logging.getLogger("quoron")


class NodeFailed(RunError):
    """A node that computes the answers of simulated users did not send them. The round can be asked again."""


class Asked(NamedTuple):
    """What an answer must name: the question that it answers."""

    user: int
    run: str
    round: int
    digest: bytes


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """The rows of a cohort that one node answers for, shape (rows,), and the question that it was sent."""

    rows: NDArray[np.int64]
    asked: Asked | None = None


@dataclass(slots=True, eq=False)
class FlowerEngine:
    """Asks the nodes of a Grid. Raises SuperLinkAway, and NodeFailed if it is `demanding`; nothing else.

    Where nodes are users, those of a failed node are MISSING. Where nodes only compute the answers of simulated users,
    a failure must not change the result: a `demanding` engine raises.
    """

    grid: Grid
    fleet: "Shards | Users"
    run: str
    problem: Problem
    seconds: float
    early_ends: bool = False
    demanding: bool = False
    watched: bool = False  # log how many users have answered, which depends on their data: for synthetic data alone
    pulls: Pulls = field(default_factory=Pulls)
    last_asked: int = -1
    _due: float = -inf  # before which the next round does not open

    def ask(self, question: Question) -> Answers:
        """Return a row for each asked user, in cohort order; users without an answer in time are MISSING."""
        opens = opening(self._due, now := time.monotonic(), self.seconds)
        if opens > self._due > -inf:
            _log.warning("a round's own work took longer than %g s: give rounds more seconds", PAUSE * self.seconds)
        time.sleep(max(0.0, opens - now))
        self.last_asked = question.round
        shape = question.task.answer_shape(self.problem.dimension)
        users = len(question.cohort)
        values, status = room_for(users, shape, spill_folder()), np.full(users, Status.MISSING, np.uint8)
        due, clock, answered, asked = np.ones(users, np.bool_), Clock(), 0, 0
        group = f"{self.run}/{question.round}"
        for again in range(_AGAIN, -1, -1):
            parts, lost = list[Part](), set[int]()
            messages, given_up = self._messages(question, due, parts), lost if again else None
            for index, reply in stream_replies(
                self.grid, messages, group=group, seconds=self.seconds, pulls=self.pulls, clock=clock, lost=given_up
            ):
                # Why there is no answer may depend on the data, so errors are not logged.
                answers = None if isinstance(reply, Error) else self.fleet.read(reply, parts[index], shape)
                if answers is not None:
                    values[parts[index].rows], status[parts[index].rows] = answers.values, answers.status
                    answered += 1
            asked = asked or len(parts)
            due[:] = False
            for index in lost:  # a client that has answered gives the same answer again
                due[parts[index].rows] = True
            if not due.any() or clock.over:
                break
        if not self.early_ends:
            time.sleep(clock.left)
            self._due = clock.ends + PAUSE * self.seconds
        if self.demanding and answered < asked:
            raise NodeFailed(f"Expected answers of {asked} nodes in round {question.round}, got {answered}.")
        found = Answers.checked(values, status, largest=FAR * question.task.honest(self.problem.bounds), own=True)
        if self.watched:
            number, there = question.round + 1, int(np.count_nonzero(found.answered))
            _log.info("round %d: %d of %d users who were asked have answered", number, there, users)
            if users and not there:
                _log.warning("round %d: no user has answered; the logs of the ClientApps say why", number)
        return found

    def _messages(self, question: Question, due: NDArray[np.bool_], parts: list[Part]) -> Iterator[Outbound]:
        """Yield the messages that ask for rows that are `due`, and append their parts to `parts`."""
        for part, message in self.fleet.parts(question, max(1, round(self.seconds))):
            if due[part.rows].all():
                parts.append(part)
                yield message


@dataclass(frozen=True, slots=True)
class Shards:
    """The nodes of a simulation, each of which answers for any user that it is asked about: user u is asked of the node
    at u mod N.
    """

    run: str
    nodes: tuple[int, ...]

    @classmethod
    def found(cls, grid: Grid, number: int, *, run: str, seconds: float) -> "Shards":
        """Wait until so many nodes are connected. RunError if one is missing after `seconds`."""
        ends = time.monotonic() + seconds
        while len(found := nodes(grid)) < number:
            if time.monotonic() > ends:
                raise RunError(f"Expected {number} nodes within {seconds:g} seconds, got {len(found)}.")
            time.sleep(_PAUSE)
        return cls(run, tuple(sorted(found)))

    def parts(self, question: Question, seconds: int) -> Iterator[tuple[Part, Outbound]]:
        """Yield a message for each node that has users in the cohort."""
        homes = question.cohort % len(self.nodes)
        order = np.argsort(homes, kind="stable")
        ends = np.searchsorted(homes[order], np.arange(len(self.nodes) + 1))
        action, rows = task_name(question.task), np.split(order, ends[1:-1])
        holding = [(node, own) for node, own in zip(self.nodes, rows, strict=True) if len(own)]
        values = question_values(question, [own for _, own in holding], run=self.run, seconds=seconds)
        for (node, own), value in zip(holding, values, strict=True):
            yield Part(own), Outbound(node, action, value)

    def read(self, reply: RecordDict, part: Part, shape: tuple[int, ...]) -> Answers | None:
        """Return the rows of a node; None if it refuses, or sends anything else."""
        try:
            return wire.rows_from_wire(answer_of(values_of(reply)), shape, len(part.rows))
        except WireError:
            return None


@dataclass(frozen=True, slots=True, eq=False)
class Users:
    """The members of a run, on the nodes where they are now.

    With `start`, questions are about its sum with their points; with `action`, all messages have that action.
    """

    names: Callable[[], Mapping[str, int]]  # node of each connected identity
    announcement: pb.Announcement
    members: NDArray[np.int64]  # user of each slot
    user: Callable[[str], int | None]  # of an identity, if it is enrolled
    declined: set[int] = field(default_factory=set)
    agreed: set[int] = field(default_factory=set)  # users who agreed to the announcement: others are not asked
    silos: Mapping[int, int] = field(default_factory=dict)  # number of users of a silo, by its first user
    action: str | None = None  # None: that of the task
    start: NDArray[np.float64] | None = None  # (d,)

    def homes(self) -> dict[int, int]:
        """Return the node of each connected member, by user; of a silo with members, by its first user."""
        wanted = set(homes(self.members, self.silos).tolist())
        there = {self.user(name): node for name, node in self.names().items()}
        return {user: node for user, node in there.items() if user in wanted and user is not None}

    def announced(self, there: Mapping[int, int] | None = None) -> Iterator[tuple[Part, Outbound]]:
        """Yield the run's announcement for every connected member that has not answered it; it asks for no rows."""
        there, data = self.homes() if there is None else there, self.announcement.SerializeToString()
        for user in sorted(set(there) - self.agreed - self.declined):
            values: Values = {"announcement": data, "user": user}
            part = Part(NO_ROWS, Asked(user, self.announcement.run, -1, b""))
            yield part, Outbound(there[user], self.action or ANNOUNCED, values)

    def parts(self, question: Question, seconds: int) -> Iterator[tuple[Part, Outbound]]:
        """Yield a message for each asked, connected user who has agreed, in a secret order that changes every round.

        Users who have connected since get the run's announcement, whether they are asked or not.
        """
        there, announcement, run = self.homes(), self.announcement.SerializeToString(), self.announcement.run
        task, users = self._task(question), self.members[question.cohort]
        yield from self.announced(there)
        shared = wire.Body.of(task) if task.own is None else None
        asked_of_each = by_client(users, self.silos)
        for user in secrets.SystemRandom().sample(sorted(asked_of_each), len(asked_of_each)):
            if user in there and user in self.agreed:
                rows = asked_of_each[user]
                if user in self.silos:
                    persons = wire.bits_of(users[rows] - user, people=self.silos[user])
                    body = wire.Body.of(task.part(rows), persons)
                else:
                    body = shared or wire.Body.of(task.part(rows))
                asked = wire.question_head(body, run=run, round=question.round, user=user, seconds=seconds)
                asked.MergeFromString(body.data)
                values: Values = {"announcement": announcement, "user": user, "question": asked.SerializeToString()}
                part = Part(rows, Asked(user, run, question.round, asked.digest))
                yield part, Outbound(there[user], self.action or task_name(task), values)

    def here(self) -> int:
        """Return how many members are connected."""
        return int(np.isin(homes(self.members, self.silos), list(self.homes())).sum())

    def read(self, reply: RecordDict, part: Part, shape: tuple[int, ...]) -> Answers:
        """Return the rows that answer this question; users who decline or refuse are MISSING, other replies REJECTED.

        Remembers users who agree or decline: that is their owner's decision and does not depend on data.
        """
        asked, zeros = len(part.rows), np.zeros((len(part.rows), *shape))
        rejected = Answers(zeros, np.full(asked, Status.REJECTED, np.uint8))
        try:
            values = values_of(reply)
            if part.asked is not None and "declined" in values:
                self.declined.add(part.asked.user)
                self.agreed.discard(part.asked.user)
            elif part.asked is not None and values.get("agreed") is True:
                self.agreed.add(part.asked.user)
            if not asked or "declined" in values or "refused" in values:
                return Answers(zeros, np.full(asked, Status.MISSING, np.uint8))
            answer = answer_of(values)
        except WireError:
            return rejected
        if part.asked is None or (answer.run, answer.round, answer.digest) != part.asked[1:]:
            return rejected
        return wire.rows_from_wire(answer, shape, asked) or rejected

    def _task(self, question: Question) -> Task:
        if self.start is None:
            return question.task
        if not isinstance(question.task, AverageGradient):
            raise RunError(f"Expected questions for average gradients, got {type(question.task).__name__}.")
        return replace(question.task, points=question.task.points + self.start)


@contextmanager
def declined_named_at_end(run: str) -> Iterator[set[int]]:
    """Collect users who decline, and log them when the run is over: earlier it would show when they were sampled."""
    declined: set[int] = set()
    try:
        yield declined
    finally:
        for user in sorted(declined):
            _log.warning("user %s takes no part in run %s, by its owner's decision", user, run)


def identity(key: bytes) -> str:
    """Return the registry's name of the node with this public key."""
    return f"supernode:{hashlib.sha256(key).hexdigest()}"


def by_key(grid: Grid) -> dict[str, int]:
    """Return the node of each connected identity. Raises SuperLinkAway."""
    return {identity(key): node for node, key in sorted(nodes(grid).items())}
