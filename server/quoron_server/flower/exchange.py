"""Messages to nodes over Flower's Grid, and their replies: pushed, pulled and matched here, without a Strategy.

    for index, reply in heard(grid, letters, group="spring/3", seconds=60): ...
    replies = exchange(grid, [Letter(node, "hello", record)], group="spring/3", seconds=60)

A reply belongs to the message that it names, if it comes from the node that was sent it. What a node's own Flower makes
of an error is told as that; what the SuperLink does is no reply, nor is what comes too late, and nothing that another
node sends ends the wait. While the SuperLink is away the clock stands.
"""

import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import NamedTuple, TypeVar

import httpx
from flwr.app import Error, Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.serverapp import Grid
from flwr.superlink.grid import InMemoryGrid

from quoron_client.protocol.flower_records import VERSION, Values, record
from quoron_privacy.errors import RunError
from quoron_server.flower.pulls import Pulls

PATIENCE = 600.0  # seconds that a SuperLink may be away
_AT_ONCE = 8  # messages in one push
_SHORTEST, _LONGEST = 0.01, 0.5  # seconds between two looks for replies
_EACH = 0.003  # and for each that is pulled on its own: at most as often as a SuperNode looks for messages
_THREADS = 8  # pulls at a time, of those that do not hang
_HANGS = 2.0  # seconds after which they do, if none of them has ended
_AWAY = 1.0  # seconds for a word of the SuperLink, more of which are no fault of a node
_LATEST = 10.0  # seconds that a look may go on after the end
_log = logging.getLogger("quoron")
T = TypeVar("T")
Told = Callable[[int, int], object]  # how many have answered, of how many


class SuperLinkAway(RunError):
    """The SuperLink cannot be reached. What has been asked and answered is on the ledger; the run can go on later."""


def untold(answered: int, asked: int) -> None:
    """Nobody waits to be told."""


@dataclass(frozen=True, slots=True)
class Letter:
    """What one node is sent."""

    node: int
    action: str
    values: Values


class _Sent(NamedTuple):
    letter: int
    node: int


def exchange(
    grid: Grid, letters: Iterable[Letter], *, group: str, seconds: float, pulls: Pulls | None = None
) -> dict[int, RecordDict]:
    """Replies by index of the letter, once all are there or `seconds` are over. Raises SuperLinkAway."""
    replies = heard(grid, letters, group=group, seconds=seconds, pulls=pulls)
    return {index: reply for index, reply in replies if isinstance(reply, RecordDict)}


def heard(
    grid: Grid,
    letters: Iterable[Letter],
    *,
    group: str,
    seconds: float,
    pulls: Pulls | None = None,
    clock: "Clock | None" = None,
) -> Iterator[tuple[int, RecordDict | Error]]:
    """Index of a letter and its reply, or its node's error, as they come, until `seconds` after the last was sent.

    Raises SuperLinkAway. It ends before when all are there. `clock` then says what is left.
    Letters are taken a few at a time, and nothing of them is kept. `pulls` remembers whose replies held up an earlier
    exchange.
    """
    clock = Clock() if clock is None else clock
    waiting = _pushed(grid, letters, group, seconds, clock)
    clock.start(seconds)
    alone = None if isinstance(grid, InMemoryGrid) else pulls or Pulls()
    pause = _SHORTEST
    while waiting:
        last, quiet = clock.over, True
        for found, unreadable in _looked(grid, waiting, clock, alone):
            waiting.pop(unreadable or "", None)
            for reply in found:
                quiet, metadata = False, reply.metadata
                sent = waiting.get(metadata.reply_to_message_id)
                if sent is None or metadata.src_node_id not in (sent.node, SUPERLINK_NODE_ID):
                    continue  # nobody ends another node's turn
                del waiting[metadata.reply_to_message_id]
                if metadata.src_node_id == sent.node:
                    yield sent.letter, reply.content if reply.has_content() else reply.error
        if last:
            break
        pause = min(2 * pause, _LONGEST) if quiet else _SHORTEST
        time.sleep(min(max(pause, _EACH * len(waiting) if alone else 0.0), clock.left) if waiting else 0.0)


def nodes(grid: Grid) -> dict[int, bytes]:
    """Public key of every node that is there, by number. Raises SuperLinkAway."""
    return {each.node_id: bytes(each.public_key) for each in Clock().reached(grid.get_nodes)}


def _pushed(grid: Grid, letters: Iterable[Letter], group: str, seconds: float, clock: "Clock") -> dict[str, _Sent]:
    """What the SuperLink has taken, by message."""
    rest, taken = enumerate(letters), dict[str, _Sent]()
    while some := [(_Sent(index, each.node), _message(each, group, seconds)) for index, each in islice(rest, _AT_ONCE)]:
        known = {each for each in clock.reached(partial(grid.push_messages, [sent for _, sent in some])) if each}
        # A grid may leave out nodes that it does not know: what it returns need not be in step with what it was given.
        named = [(message.metadata.message_id, sent) for sent, message in some]
        taken |= {message_id: sent for message_id, sent in named if message_id in known}
    return taken


def _looked(
    grid: Grid, waiting: Mapping[str, _Sent], clock: "Clock", pulls: Pulls | None
) -> Iterator[tuple[list[Message], str | None]]:
    """Replies that are there, or a message whose reply Flower itself cannot read.

    In Flower's simulation all at once: there the nodes are ours, in one process, and nothing is left to wait for.
    """
    if pulls is None:
        yield clock.reached(partial(grid.pull_messages, list(waiting))), None
        return
    due = deque((message_id, sent.node) for message_id, sent in waiting.items())
    running: set[str] = set()
    while clock.late <= _LATEST:
        while due and len(running) < _THREADS:
            message_id, node = due.popleft()
            if not pulls.busy(node):
                running.add(message_id)
                pulls.start(grid, message_id, node)
        pulled = pulls.next(min(_HANGS, clock.left or _HANGS) if running else 0.0)
        if pulled is not None:
            running.discard(pulled.message_id)
            if not isinstance(pulled.error, Exception | None):
                raise pulled.error
            if isinstance(pulled.error, httpx.HTTPError | OSError):
                clock.reached(grid.get_nodes)
            elif pulled.error is not None:
                _log.warning("a reply cannot be read: %s", type(pulled.error).__name__)
                yield [], pulled.message_id
            else:
                yield pulled.replies, None
        elif not running or clock.over:
            return
        elif not clock.stood_for(grid.get_nodes):  # it is there: so it is the nodes who keep us waiting
            running.clear()


def _message(letter: Letter, group: str, seconds: float) -> Message:
    # A SuperLink does not check that a reply comes from the node whose key signed the request, but that it names the
    # message: so the name, a digest of all that is in it, must be one that no other node can guess.
    values: Values = {"version": VERSION, "nonce": secrets.token_bytes(16), **letter.values}
    # The SuperLink's time goes on while it is away, and answers to what has expired are deleted: our clock says what
    # is late.
    ttl = seconds + PATIENCE
    return Message(record(**values), letter.node, f"query.{letter.action}", group_id=group, ttl=ttl)


class Clock:
    """Time left, in which what is spent waiting for a SuperLink that is away does not count."""

    def __init__(self) -> None:
        self.ends = time.monotonic()
        self._stood = 0.0  # seconds

    def start(self, seconds: float) -> None:
        """So much time from now."""
        self.ends = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds to the end, 0 after it."""
        return max(0.0, self.ends - time.monotonic())

    @property
    def late(self) -> float:
        """Seconds since the end, 0 before it."""
        return max(0.0, time.monotonic() - self.ends)

    @property
    def over(self) -> bool:
        """Whether the end has come."""
        return self.left == 0.0

    def stood_for(self, call: Callable[[], Iterable[object]]) -> bool:
        """Whether the SuperLink was away when it was called; back when it is there."""
        before = self._stood
        self.reached(call)
        return self._stood > before

    def reached(self, call: Callable[[], Iterable[T]]) -> list[T]:
        """What the SuperLink returns, asked again for as long as it is away, by us or by a Grid that does so itself."""
        began, pause = time.monotonic(), 0.2
        while True:
            try:
                found = list(call())
            except (httpx.HTTPError, OSError) as error:
                self._require_patience(time.monotonic() - began, f": {error}")
                _log.warning("the SuperLink is away: %s", type(error).__name__)
                time.sleep(pause)
                pause = min(2 * pause, 5.0)
            else:
                took = time.monotonic() - began
                if took > _AWAY or pause > 0.2:
                    self._require_patience(took, "")
                    self.ends += took
                    self._stood += took
                return found

    def _require_patience(self, away: float, why: str) -> None:
        """What was asked expires PATIENCE after the end of its time."""
        if self._stood + away > PATIENCE:
            raise SuperLinkAway(f"Cannot reach the SuperLink for {self._stood + away:.0f} seconds{why}.") from None
