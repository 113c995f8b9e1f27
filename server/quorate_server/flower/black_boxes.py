"""Nodes with functions of their own: which of them holds whom, what it is sent, and what it may answer.

there = Attendance(grid, "private", identities="keys", users=5)
fleet = BlackBoxes(there, "spring", members, registry.user, start)
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from flwr.app import RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from quorate_client import wire
from quorate_client.flower.records import values_of
from quorate_client.questions import Answers, AverageGradient, Question
from quorate_protos.errors import RunError, WireError
from quorate_server.flower.engine import Part
from quorate_server.flower.exchange import Letter, exchange, nodes
from quorate_server.flower.users import identity, read_answer

Identities = Literal["keys", "partitions"]
_log = logging.getLogger("quorate")


class Attendance:
    """The names of the nodes that are there: a node counts once it has said hello, in our version."""

    def __init__(self, grid: Grid, action: str, *, identities: Identities, users: int) -> None:
        """A name is made of the node's key; in a simulation of its partition, from 0 to `users` - 1."""
        self.grid, self.action = grid, action
        self._identities, self._users = identities, users
        self._told: dict[int, tuple[int, str] | None] = {}  # partition and name of each node that has answered

    def homes(self) -> dict[str, int]:
        """Node of each name, of those that have said hello and are there now."""
        found: dict[str, int] = {}
        for node in sorted(nodes(self.grid)):
            told = self._told.get(node)
            if told is not None:
                found.setdefault(told[1], node)
        return found

    def greet(self, seconds: float) -> None:
        """Wait for a hello of every node that has not said one, for so long."""
        fresh = {node: key for node, key in sorted(nodes(self.grid).items()) if node not in self._told}
        letters = [Letter(node, self.action, {}) for node in fresh]
        replies = exchange(self.grid, letters, group="hello", seconds=seconds)
        for node, reply in ((letters[index].node, reply) for index, reply in replies.items()):
            self._told[node] = self._read(node, fresh[node], reply)

    def in_order(self, names: Sequence[str]) -> list[str]:
        """By partition first, so that the users of a simulation have the same numbers every time."""
        places = {told[1]: told[0] for told in self._told.values() if told is not None}
        return sorted(names, key=lambda name: (places[name], name))

    def _read(self, node: int, key: bytes, reply: RecordDict) -> tuple[int, str] | None:
        try:
            values = values_of(reply)
        except WireError:
            values = {"refused": "its reply is not one of quorate"}
        if "refused" in values:
            _log.warning("node %d takes no part: %s", node, str(values["refused"])[:100])
            return None
        told = values.get("partition")
        place = told if isinstance(told, int) else -1
        if self._identities == "keys":
            return place, identity(key)
        return (place, f"partition:{place}") if 0 <= place < self._users else None


@dataclass(frozen=True, slots=True, eq=False)
class BlackBoxes:
    """The members of a run, each a node with a function of its own; points count from `start`."""

    there: Attendance
    run: str
    members: NDArray[np.int64]  # user of each slot
    user: Callable[[str], int | None]  # of a name, if it is enrolled
    start: NDArray[np.float64]  # (d,)

    def homes(self, seconds: float) -> dict[int, int]:
        """Node of each member who is there; only if some are not, nodes that nobody knows get so long to say hello."""
        found = self._homes(self.there.homes())
        if len(found) < len(self.members):
            self.there.greet(seconds)
            found = self._homes(self.there.homes())
        return found

    def _homes(self, names: Mapping[str, int]) -> dict[int, int]:
        wanted = set(self.members.tolist())
        there = {self.user(name): node for name, node in names.items()}
        return {user: node for user, node in there.items() if user is not None and user in wanted}

    def parts(self, question: Question, seconds: int) -> Sequence[Part]:
        """One message for each asked user who is there."""
        task = question.task
        if not isinstance(task, AverageGradient):
            raise RunError(f"Expected questions for average gradients, got {type(task).__name__}.")
        moved = replace(question, task=replace(task, points=task.points + self.start))
        homes, parts = self.homes(seconds), []
        for row, user in enumerate(self.members[question.cohort].tolist()):
            if user in homes:
                asked = wire.question_to_wire(moved, row, run=self.run, user=user, seconds=seconds)
                letter = Letter(homes[user], self.there.action, {"question": asked.SerializeToString()})
                parts.append(Part(np.array([row]), letter))
        return parts

    def read(self, reply: RecordDict, part: Part, shape: tuple[int, ...]) -> Answers:
        """The answer to this very question; who refuses is MISSING, anything else REJECTED."""
        return read_answer(reply, part, shape)
