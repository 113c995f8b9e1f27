"""Nodes with functions of their own: which of them holds whom, what it is sent, and what it may answer.

there = Attendance(grid, "private", identities="keys", users=5)
fleet = BlackBoxes(there, announcement, members, registry.user, start)
"""

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from flwr.app import RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from quoron_client.protocol import wire
from quoron_client.protocol.flower_records import Values
from quoron_client.protocol.questions import Answers, AverageGradient, Question
from quoron_privacy.errors import RunError
from quoron_protos.v1 import federation_pb2 as pb
from quoron_server.flower.engine import Part
from quoron_server.flower.exchange import Hellos, Letter, nodes
from quoron_server.flower.users import announced, asked_of, identity, note, read_answer

Identities = Literal["keys", "partitions"]
_BRIEFLY = 2.0  # seconds that a round waits for a hello, now and then
_GREETED_AGAIN = 30.0  # seconds until a node that took no part is due again, and twice as long each time after


class Attendance:
    """The names of the nodes that are there: a node counts once it has said hello, in our version."""

    def __init__(self, grid: Grid, action: str, *, identities: Identities, users: int) -> None:
        """A name is made of the node's key; in a simulation of its partition, from 0 to `users` - 1."""
        self.grid, self.action, self.hellos, self.connected = grid, action, Hellos(grid, action), 0
        self._identities, self._users = identities, users
        self._greetings: dict[int, tuple[int, str]] = {}  # partition and name of each node that said hello
        self._due: dict[int, tuple[float, float]] = {}  # when each other is greeted again, and the pause after that

    def homes(self) -> dict[str, int]:
        """Node of each name, of those that have said hello and are there now; the first that did, if several have."""
        there, found = nodes(self.grid), dict[str, int]()
        for node, (_, name) in self._greetings.items():
            if node in there:
                found.setdefault(name, node)
        return found

    def homes_now(self) -> dict[str, int]:
        """As `homes`, for a round, which no stranger may hold up: a key says who a node is, without a hello."""
        if self._identities == "keys":
            return {identity(key): node for node, key in sorted(nodes(self.grid).items())}
        self.greet(_BRIEFLY)
        return self.homes()

    def greet(self, seconds: float) -> None:
        """Wait for a hello of every node that is due, for so long. Raises NobodyUnderstands."""
        there, now = nodes(self.grid), time.monotonic()
        strangers = [node for node in sorted(there) if node not in self._greetings]
        due = {node: there[node] for node in strangers if self._due.get(node, (now, 0.0))[0] <= now}
        self.connected = len(there)
        said = self.hellos.say(list(due), seconds)
        now = time.monotonic()
        for node, key in due.items():
            name = None
            if node in said:
                partition = said[node].get("partition")
                place = partition if isinstance(partition, int) else -1
                known = f"partition:{place}" if 0 <= place < self._users else None
                name = identity(key) if self._identities == "keys" else known
            if name is not None:
                self._greetings[node] = place, name
            else:
                _, pause = self._due.get(node, (0.0, _GREETED_AGAIN))
                self._due[node] = now + pause, 2 * pause

    def greeted(self, seconds: float) -> dict[str, int]:
        """Return the partition of each name in `homes`, after waiting up to `seconds` for handshakes."""
        self.greet(seconds)
        return {name: self._greetings[node][0] for name, node in self.homes().items()}

    @property
    def people(self) -> Mapping[str, int]:
        """Every node with a function of its own is one user."""
        return {}


@dataclass(frozen=True, slots=True, eq=False)
class BlackBoxes:
    """The members of a run, each a node with a function of its own; points count from `start`."""

    there: Attendance
    announcement: pb.Announcement
    members: NDArray[np.int64]  # user of each slot
    user: Callable[[str], int | None]  # of a name, if it is enrolled
    start: NDArray[np.float64]  # (d,)
    declined: set[int] = field(default_factory=set)
    agreed: set[int] = field(default_factory=set)  # as of `Users`

    def greeted(self, seconds: float) -> int:
        """How many members are there; only if some are not, nodes that are not known get so long to say hello."""
        found = self._homes(self.there.homes())
        if len(found) < len(self.members):
            self.there.greet(seconds)
            found = self._homes(self.there.homes())
        return len(found)

    def present(self) -> list[int]:
        """Nodes of the members who are there now."""
        return list(self._homes(self.there.homes_now()).values())

    def _homes(self, names: Mapping[str, int]) -> dict[int, int]:
        wanted = set(self.members.tolist())
        there = {self.user(name): node for name, node in names.items()}
        return {user: node for user, node in there.items() if user is not None and user in wanted}

    def announced(self) -> Iterator[tuple[Part, Letter]]:
        """As `Users.announced`."""
        homes = self._homes(self.there.homes_now())
        return announced(homes, self.announcement, self.agreed, self.declined, self.there.action)

    def parts(self, question: Question, seconds: int) -> Iterator[tuple[Part, Letter]]:
        """As `Users.parts`."""
        task = question.task
        if not isinstance(task, AverageGradient):
            raise RunError(f"Expected questions for average gradients, got {type(task).__name__}.")
        moved = replace(question, task=replace(task, points=task.points + self.start))
        homes, told = self._homes(self.there.homes_now()), self.announcement.SerializeToString()
        yield from announced(homes, self.announcement, self.agreed, self.declined, self.there.action)
        users = self.members[question.cohort].tolist()
        for row in secrets.SystemRandom().sample(range(len(users)), len(users)):
            user = users[row]
            if user in homes and user in self.agreed:
                asked = wire.question_to_wire(moved, row, run=self.announcement.run, user=user, seconds=seconds)
                values: Values = {"announcement": told, "user": user, "question": asked.SerializeToString()}
                letter = Letter(homes[user], self.there.action, values)
                yield Part(np.array([row]), asked_of(asked, user)), letter

    def read(self, reply: RecordDict, part: Part, shape: tuple[int, ...]) -> Answers:
        """The answer to this very question; who declines or refuses is MISSING, anything else REJECTED."""
        note(reply, part, self.agreed, self.declined)
        return read_answer(reply, part, shape)
