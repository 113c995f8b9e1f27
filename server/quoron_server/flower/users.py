"""A federation's users: one node, one user, by the node's key; or a silo, a user for each of its persons.

    fleet = Users(grid, announcement, members, registry.user, silos=registry.roster.silos())
    fleet = Shards.found(grid, run="spring", seconds=600)  # a simulated population, spread over nodes

A SuperNode signs the time of each of its requests with its private key, and the SuperLink answers only to the node that
has the public one; node number and key are what a Grid lists. With `--enable-supernode-auth` it takes only keys that
the operator has registered, each once and for ever: one key, one node, one user, and a second process with the same key
is the same user. Without, a node makes itself a new key at every start, and one person may be as many users as it
likes; so the ServerApp asks for authentication outside simulations. A node that is registered with another SuperLink,
and has another number there, is the same user as long as it has the key.
"""

import hashlib
import logging
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import numpy as np
from flwr.app import RecordDict
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
from quoron_client.protocol.questions import Answers, Question, Status
from quoron_client.protocol.wire import task_name
from quoron_privacy.errors import RunError, WireError
from quoron_protos.v1 import federation_pb2 as pb
from quoron_server.flower.engine import Asked, Part
from quoron_server.flower.exchange import Hellos, Letter, Told, nodes, untold
from quoron_server.storage.drawing import by_client, homes

_HELLO_SECONDS = 120.0
_TRIES = 3  # hellos to a node
_PAUSE = 0.2  # seconds between two looks for nodes

_log = logging.getLogger("quoron")
NOBODY = np.zeros(0, np.int64)  # rows of a message that asks for none


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
        ends, greeted = time.monotonic() + seconds, _Greeted(Hellos(grid, told=told))
        while (complete := greeted.complete(partitions)) is None:
            left = ends - time.monotonic()
            if left < 0 or greeted.hopeless:
                wanted = "every partition" if partitions is None else f"{partitions} partitions"
                raise RunError(
                    f"Expected nodes of {wanted} within {seconds:g} seconds, got {len(greeted.places)} that answer and "
                    f"{len(greeted.tries) - len(greeted.places)} that do not. Start the missing SuperNodes, each with "
                    "this version of quoron, a partition-id, and one num-partitions for all."
                    f"{greeted.hellos.said()}"
                )
            greeted.ask(grid, min(_HELLO_SECONDS, max(1.0, left)))
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


@dataclass(slots=True)
class _Greeted:
    """What nodes said when they were asked where they are."""

    hellos: Hellos
    places: dict[int, tuple[int, int]] = field(default_factory=dict)  # partition and number of partitions of a node
    tries: dict[int, int] = field(default_factory=dict)  # how often each was asked

    @property
    def hopeless(self) -> bool:
        """Whether all that are there fail whenever they are asked."""
        return bool(self.tries) and not self.places and min(self.tries.values()) >= _TRIES

    def ask(self, grid: Grid, seconds: float) -> None:
        """Say hello to every node that has not answered one."""
        fresh = sorted(node for node in nodes(grid) if node not in self.places and self.tries.get(node, 0) < _TRIES)
        for node in fresh:
            self.tries[node] = self.tries.get(node, 0) + 1
        for node, values in sorted(self.hellos.say(fresh, seconds).items()):
            place = _place(values)
            if place is not None:
                self.places[node] = place
        if any(node not in self.places for node in fresh) or not fresh:
            time.sleep(_PAUSE)

    def complete(self, partitions: int | None) -> tuple[int, ...] | None:
        """The node of each partition, once there is one for each."""
        counts = {of for _, of in self.places.values()}
        if len(counts) > 1:
            raise RunError(
                "Expected nodes that agree on num-partitions in their --node-config, got "
                f"{' and '.join(map(str, sorted(counts)))}."
            )
        if not counts or partitions not in (None, *counts):
            return None
        homes = {place: node for node, (place, _) in sorted(self.places.items(), reverse=True)}
        return tuple(homes[each] for each in sorted(homes)) if len(homes) == min(counts) else None


def _place(values: Values) -> tuple[int, int] | None:
    """Partition of a node, and how many there are, if it says so."""
    place, of = values.get("partition"), values.get("partitions")
    return (place, of) if isinstance(place, int) and isinstance(of, int) and 0 <= place < of else None


@dataclass(frozen=True, slots=True, eq=False)
class Users:
    """The members of a run, wherever they are now."""

    grid: Grid
    announcement: pb.Announcement
    members: NDArray[np.int64]  # user of each slot
    user: Callable[[str], int | None]  # of an identity, if it is enrolled
    declined: set[int] = field(default_factory=set)
    agreed: set[int] = field(default_factory=set)  # users who got the announcement and take part: others are not asked
    silos: Mapping[int, int] = field(default_factory=dict)  # how many persons each has, by the number of its first

    def homes(self) -> dict[int, int]:
        """Node of each member who is there; of a silo that has some, by the number of its first person."""
        wanted = set(homes(self.members, self.silos).tolist())
        there = {self.user(identity(key)): node for node, key in sorted(nodes(self.grid).items())}
        return {user: node for user, node in there.items() if user in wanted and user is not None}

    def announced(self) -> Iterator[tuple[Part, Letter]]:
        """The run, to every member who is there and has not heard of it."""
        return announced(self.homes(), self.announcement, self.agreed, self.declined, ANNOUNCED)

    def parts(self, question: Question, seconds: int) -> Iterator[tuple[Part, Letter]]:
        """Yield one message for each asked user who is there and has agreed, in a secret order that is new in each
        round. Users who have come since get the announcement of the run, whether they are asked or not."""
        there, announcement, run = self.homes(), self.announcement.SerializeToString(), self.announcement.run
        yield from announced(there, self.announcement, self.agreed, self.declined, ANNOUNCED)
        users, task = self.members[question.cohort], question.task
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
                yield Part(rows, asked_of(asked, user)), Letter(there[user], task_name(question.task), values)

    def here(self) -> int:
        """How many members are there."""
        return int(np.isin(homes(self.members, self.silos), list(self.homes())).sum())

    def read(self, reply: RecordDict, part: Part, shape: tuple[int, ...]) -> Answers:
        """The answer to this very question; who declines or refuses is MISSING, anything else REJECTED."""
        note(reply, part, self.agreed, self.declined)
        return read_answer(reply, part, shape)


def asked_of(question: pb.Question, user: int) -> Asked:
    """What this user's answer must name."""
    return Asked(user, question.run, question.round, question.digest)


def announced(
    homes: Mapping[int, int], announcement: pb.Announcement, agreed: set[int], declined: set[int], action: str
) -> Iterator[tuple[Part, Letter]]:
    """A run to everybody who is there and has not answered to its announcement: no rows are asked for."""
    data = announcement.SerializeToString()
    for user in sorted(set(homes) - agreed - declined):
        told = Asked(user, announcement.run, -1, b"")
        yield Part(NOBODY, told), Letter(homes[user], action, {"announcement": data, "user": user})


def read_answer(reply: RecordDict, part: Part, shape: tuple[int, ...]) -> Answers:
    """The rows that answer the question of a part; who declines or refuses is MISSING, anything else REJECTED."""
    asked = len(part.rows)
    if not asked:
        return Answers(np.zeros((0, *shape)), np.zeros(0, np.uint8))
    nobody = np.zeros((asked, *shape))
    try:
        values = values_of(reply)
        if "declined" in values or "refused" in values:
            return Answers(nobody, np.full(asked, Status.MISSING, np.uint8))
        answer = pb.Answer.FromString(bytes_of(values, "answer"))
    except (WireError, DecodeError):
        return Answers(nobody, np.full(asked, Status.REJECTED, np.uint8))
    if part.asked is None or (answer.run, answer.round, answer.digest) != part.asked[1:]:
        return Answers(nobody, np.full(asked, Status.REJECTED, np.uint8))
    return wire.rows_from_wire(answer, shape, asked)


def note(reply: RecordDict, part: Part, agreed: set[int], declined: set[int]) -> None:
    """Note a user who takes part, and one who declines: it is the owner's decision, and no function of the data."""
    with suppress(WireError):
        values = values_of(reply)
        if part.asked is not None and "declined" in values:
            declined.add(part.asked.user)
            agreed.discard(part.asked.user)
        elif part.asked is not None and values.get("agreed") is True:
            agreed.add(part.asked.user)


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
