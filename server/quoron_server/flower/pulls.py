"""Replies pulled one by one, each on a thread of its own, where a node can hold up or break its pull.

Flower's Grid over HTTP claims all replies that it is asked for, then reads one after the other: it waits minutes, even
hours, for parts that a node has announced and does not send, and what it cannot read is an exception. Either would cost
whoever is pulled in the same call its answer.
"""

import queue
import threading
from dataclasses import dataclass, field

from flwr.app import Message
from flwr.serverapp import Grid


@dataclass(frozen=True, slots=True)
class Pulled:
    """What came of one message's pull."""

    message_id: str
    node: int
    replies: list[Message]
    error: BaseException | None = None


@dataclass(slots=True, eq=False)
class Pulls:
    """At most one thread a node, whose pull goes on until Flower gives up; none of them keeps a process from ending."""

    _busy: set[int] = field(default_factory=set)
    _done: queue.SimpleQueue[Pulled] = field(default_factory=queue.SimpleQueue)

    def busy(self, node: int) -> bool:
        """Whether nothing has come of the last pull of this node."""
        return node in self._busy

    def start(self, grid: Grid, message_id: str, node: int) -> None:
        """Pull the reply to a message that this node was sent."""
        self._busy.add(node)
        arguments, name = (grid, message_id, node), f"pull from node {node}"
        threading.Thread(target=self._pull, args=arguments, name=name, daemon=True).start()

    def next(self, seconds: float) -> Pulled | None:
        """What has come of a pull, of an earlier exchange perhaps; None if nothing does in time."""
        try:
            pulled = self._done.get(timeout=seconds)
        except queue.Empty:
            return None
        self._busy.discard(pulled.node)
        return pulled

    def _pull(self, grid: Grid, message_id: str, node: int) -> None:
        try:
            pulled = Pulled(message_id, node, list(grid.pull_messages([message_id])))
        except BaseException as error:  # told to who waits: where a run was stopped, Flower raises no mere Exception
            pulled = Pulled(message_id, node, [], error)
        self._done.put(pulled)
