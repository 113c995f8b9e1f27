"""The engine of a Flower run: each round's messages over a Grid, through a fleet that knows which node holds whom.

    fleet = Users(lambda: by_key(grid), announcement, members, registry.user, silos=registry.silos())
    fleet = Shards.found(grid, run="spring", seconds=600)  # a simulated population, spread over nodes
    engine = FlowerEngine(grid, fleet, run="spring", problem=problem, seconds=600)
    answers = engine.ask(question)

One node is one user, by the node's key; or a silo, a user for each of its persons. A SuperNode signs the time of each
of its requests with its private key, and the SuperLink answers only to the node that has the public one; node number
and key are what a Grid lists. With `--enable-supernode-auth` it takes only keys that the operator has registered, each
once and for ever: one key, one node, one user, and a second process with the same key is the same user. Without, a node
makes itself a new key at every start, and one person may be as many users as it likes; so the ServerApp asks for
authentication outside simulations. A node that is registered with another SuperLink, and has another number there, is
the same user as long as it has the key.
"""

import hashlib
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import inf
from typing import NamedTuple, Protocol

import numpy as np
from flwr.app import Error, RecordDict
from flwr.serverapp import Grid
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from quoron_client.protocol import wire
from quoron_client.protocol.flower_records import (
    ANNOUNCED,
    Values,
    answers_from_record,
    bytes_of,
    question_values,
    values_of,
)
from quoron_client.protocol.questions import FAR, Answers, AverageGradient, Question, Status, Task
from quoron_client.protocol.wire import task_name
from quoron_privacy.errors import RunError, WireError
from quoron_protos.v1 import federation_pb2 as pb
from quoron_server.flower.exchange import Clock, Hellos, Letter, Pulls, Told, heard, nodes, untold
from quoron_server.problem import Problem
from quoron_server.rounds import PAUSE, opening
from quoron_server.silos import by_client, homes
from quoron_server.traffic import room_for, spill_folder

_HELLO_SECONDS = 120.0
_TRIES = 3  # hellos to a node
_PAUSE = 0.2  # seconds between two looks for nodes
NOBODY = np.zeros(0, np.int64)  # rows of a message that asks for none
_AGAIN = 2  # times at most that a question is sent again which the SuperLink has lost
_log = logging.getLogger("quoron")


class NodeFailed(RunError):
    """A node that computes the answers of simulated users did not send them. The round can be asked again."""


class Asked(NamedTuple):
    """What the answer to a question to one user must name."""

    user: int
    run: str
    round: int
    digest: bytes


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """The rows of a cohort that one node answers for: all that is kept of what it was sent."""

    rows: NDArray[np.int64]
    asked: Asked | None = None


class Fleet(Protocol):
    """Which node holds whom, and how to read its replies."""

    def parts(self, question: Question, seconds: int) -> Iterable[tuple[Part, Letter]]:
        """What to ask, made when its turn comes; a row that is in no part is MISSING."""

    def read(self, reply: RecordDict, part: Part, shape: tuple[int, ...]) -> Answers | None:
        """The rows of a part, zeros with a status where there is no answer; None if it is no reply. Never raises."""


@dataclass(slots=True, eq=False)
class FlowerEngine:
    """Asks the nodes of a Grid. Raises SuperLinkAway, and NodeFailed if it is `demanding`; nothing else.

    Where a node stands for users, its failure is theirs and they are MISSING. Where it only computes what simulated
    users answer, its failure says nothing about them: a `demanding` engine does not let it into the result.
    """

    grid: Grid
    fleet: Fleet
    run: str
    problem: Problem
    seconds: float
    early_ends: bool = False
    demanding: bool = False
    watched: bool = False  # the log has how many users have answered: where data are made up, for it follows from them
    told: Told = untold  # of nodes that have answered: where data are made up
    pulls: Pulls = field(default_factory=Pulls)
    last_asked: int = -1
    _due: float = -inf  # before which the next round does not open

    def ask(self, question: Question) -> Answers:
        """One row an asked user, in cohort order; who is not heard of in time is MISSING."""
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
            letters, told_of = self._letters(question, due, parts), lost if again else None
            for index, reply in heard(
                self.grid, letters, group=group, seconds=self.seconds, pulls=self.pulls, clock=clock, lost=told_of
            ):
                # Why there is no answer may be a function of the data: an error is shown to nobody.
                answers = None if isinstance(reply, Error) else self.fleet.read(reply, parts[index], shape)
                if answers is not None:
                    values[parts[index].rows], status[parts[index].rows] = answers.values, answers.status
                    answered += 1
                    self.told(answered, asked or len(parts))
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
                _log.warning("round %d: nobody has answered; the logs of the ClientApps say why", number)
        return found

    def _letters(self, question: Question, due: NDArray[np.bool_], parts: list[Part]) -> Iterator[Letter]:
        """Whatever asks for rows that are `due`, and its part."""
        for part, letter in self.fleet.parts(question, max(1, round(self.seconds))):
            if due[part.rows].all():
                parts.append(part)
                yield letter


@dataclass(frozen=True, slots=True)
class Shards:
    """The node of each partition of a simulated population: user u lives on the node of partition u mod N.

    For made-up data only: a node here answers for many users, and says itself which partition of how many it is.
    """

    run: str
    nodes: tuple[int, ...]

    @classmethod
    def found(
        cls, grid: Grid, *, run: str, seconds: float, partitions: int | None = None, told: Told = untold
    ) -> "Shards":
        """Wait until a node of every partition has said hello; of as many as the nodes themselves say, or `partitions`.

        RunError if some has not within `seconds`, or nodes disagree on how many there are. `told` hears of each.
        """
        ends, hellos = time.monotonic() + seconds, Hellos(grid, told=told)
        places: dict[int, tuple[int, int]] = {}  # partition and number of partitions of each node that has answered
        tries: dict[int, int] = {}  # how often each was asked
        while (complete := _complete(places, partitions)) is None:
            left = ends - time.monotonic()
            hopeless = bool(tries) and not places and min(tries.values()) >= _TRIES  # all fail whenever they are asked
            if left < 0 or hopeless:
                wanted = "every partition" if partitions is None else f"{partitions} partitions"
                raise RunError(
                    f"Expected nodes of {wanted} within {seconds:g} seconds, got {len(places)} that answer and "
                    f"{len(tries) - len(places)} that do not. Start the missing SuperNodes, each with this version of "
                    f"quoron, a partition-id, and one num-partitions for all.{hellos.said()}"
                )
            fresh = sorted(node for node in nodes(grid) if node not in places and tries.get(node, 0) < _TRIES)
            for node in fresh:
                tries[node] = tries.get(node, 0) + 1
            for node, values in sorted(hellos.say(fresh, min(_HELLO_SECONDS, max(1.0, left))).items()):
                place, of = values.get("partition"), values.get("partitions")
                if isinstance(place, int) and isinstance(of, int) and 0 <= place < of:
                    places[node] = place, of
            if any(node not in places for node in fresh) or not fresh:
                time.sleep(_PAUSE)
        return cls(run, complete)

    def parts(self, question: Question, seconds: int) -> Iterator[tuple[Part, Letter]]:
        """One message for each node that holds somebody of the cohort."""
        homes = question.cohort % len(self.nodes)
        order = np.argsort(homes, kind="stable")
        ends = np.searchsorted(homes[order], np.arange(len(self.nodes) + 1))
        action, rows = task_name(question.task), np.split(order, ends[1:-1])
        holding = [(node, own) for node, own in zip(self.nodes, rows, strict=True) if len(own)]
        values = question_values(question, [own for _, own in holding], run=self.run, seconds=seconds)
        for (node, own), each in zip(holding, values, strict=True):
            yield Part(own), Letter(node, action, each)

    def read(self, reply: RecordDict, part: Part, shape: tuple[int, ...]) -> Answers | None:
        """The rows of a node; None if it refuses, or sends anything else."""
        return answers_from_record(reply, len(part.rows), shape)


def _complete(places: Mapping[int, tuple[int, int]], partitions: int | None) -> tuple[int, ...] | None:
    """The node of each partition, once there is one for each."""
    counts = {of for _, of in places.values()}
    if len(counts) > 1:
        raise RunError(
            "Expected nodes that agree on num-partitions in their --node-config, got "
            f"{' and '.join(map(str, sorted(counts)))}."
        )
    if not counts or partitions not in (None, *counts):
        return None
    homes = {place: node for node, (place, _) in sorted(places.items(), reverse=True)}
    return tuple(homes[place] for place in sorted(homes)) if len(homes) == min(counts) else None


@dataclass(frozen=True, slots=True, eq=False)
class Users:
    """The members of a run, wherever they are now. Where each node has a function of its own, points count from
    `start`, and everything that it is sent is of one `action`."""

    names: Callable[[], Mapping[str, int]]  # node of each identity that is there
    announcement: pb.Announcement
    members: NDArray[np.int64]  # user of each slot
    user: Callable[[str], int | None]  # of an identity, if it is enrolled
    declined: set[int] = field(default_factory=set)
    agreed: set[int] = field(default_factory=set)  # users who got the announcement and take part: others are not asked
    silos: Mapping[int, int] = field(default_factory=dict)  # how many persons each has, by the number of its first
    action: str | None = None  # None: that of the task
    start: NDArray[np.float64] | None = None  # (d,)

    def homes(self) -> dict[int, int]:
        """Node of each member who is there; of a silo that has some, by the number of its first person."""
        wanted = set(homes(self.members, self.silos).tolist())
        there = {self.user(name): node for name, node in self.names().items()}
        return {user: node for user, node in there.items() if user in wanted and user is not None}

    def announced(self, there: Mapping[int, int] | None = None) -> Iterator[tuple[Part, Letter]]:
        """The run, to every member who is `there` and has not answered to its announcement: no rows are asked for."""
        there, data = self.homes() if there is None else there, self.announcement.SerializeToString()
        for user in sorted(set(there) - self.agreed - self.declined):
            values: Values = {"announcement": data, "user": user}
            part = Part(NOBODY, Asked(user, self.announcement.run, -1, b""))
            yield part, Letter(there[user], self.action or ANNOUNCED, values)

    def parts(self, question: Question, seconds: int) -> Iterator[tuple[Part, Letter]]:
        """Yield one message for each asked user who is there and has agreed, in a secret order that is new in each
        round. Users who have come since get the announcement of the run, whether they are asked or not."""
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
                yield part, Letter(there[user], self.action or task_name(task), values)

    def here(self) -> int:
        """How many members are there."""
        return int(np.isin(homes(self.members, self.silos), list(self.homes())).sum())

    def read(self, reply: RecordDict, part: Part, shape: tuple[int, ...]) -> Answers:
        """The rows that answer this very question; who declines or refuses is MISSING, anything else REJECTED.

        Notes a user who takes part, and one who declines: it is the owner's decision, and no function of the data.
        """
        asked, nobody = len(part.rows), np.zeros((len(part.rows), *shape))
        try:
            values = values_of(reply)
            if part.asked is not None and "declined" in values:
                self.declined.add(part.asked.user)
                self.agreed.discard(part.asked.user)
            elif part.asked is not None and values.get("agreed") is True:
                self.agreed.add(part.asked.user)
            if not asked or "declined" in values or "refused" in values:
                return Answers(nobody, np.full(asked, Status.MISSING, np.uint8))
            answer = pb.Answer.FromString(bytes_of(values, "answer"))
        except (WireError, DecodeError):
            return Answers(nobody, np.full(asked, Status.REJECTED, np.uint8))
        if part.asked is None or (answer.run, answer.round, answer.digest) != part.asked[1:]:
            return Answers(nobody, np.full(asked, Status.REJECTED, np.uint8))
        return wire.rows_from_wire(answer, shape, asked)

    def _task(self, question: Question) -> Task:
        if self.start is None:
            return question.task
        if not isinstance(question.task, AverageGradient):
            raise RunError(f"Expected questions for average gradients, got {type(question.task).__name__}.")
        return replace(question.task, points=question.task.points + self.start)


@contextmanager
def declined_are_told(run: str) -> Iterator[set[int]]:
    """Users who are noted, named once a run is over: in its middle that would show when a secret cohort had them."""
    declined: set[int] = set()
    try:
        yield declined
    finally:
        for user in sorted(declined):
            _log.warning("user %s takes no part in run %s, by its owner's decision", user, run)


def identity(key: bytes) -> str:
    """How the registry knows the node with this public key."""
    return f"supernode:{hashlib.sha256(key).hexdigest()}"


def by_key(grid: Grid) -> dict[str, int]:
    """The node of each identity that is there. Raises SuperLinkAway."""
    return {identity(key): node for node, key in sorted(nodes(grid).items())}
