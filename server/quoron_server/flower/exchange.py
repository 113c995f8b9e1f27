"""Send messages to nodes over Flower's Grid and match their replies, without a Strategy.

    for index, reply in stream_replies(grid, messages, group="spring/3", seconds=60): ...
    replies = exchange(grid, [Outbound(node, "hello", record)], group="spring/3", seconds=60)

A reply counts if it names a message that its node was sent. An error of the node's own Flower counts as a reply; errors
of the SuperLink, late messages and messages of other nodes do not. The clock stops while the SuperLink is unreachable.
"""

import logging
import queue
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import NamedTuple, TypeVar

import httpx
from flwr.app import Error, Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.serverapp import Grid
from flwr.superlink.grid import InMemoryGrid

from quoron_client.protocol.flower_records import HELLO, VERSION, Values, record, refusal, values_of
from quoron_privacy.errors import RunError, WireError

AWAY_SECONDS = 600.0  # for which a SuperLink may be unreachable
_AT_ONCE = 8  # messages in one push
_SHORTEST, _LONGEST = 0.01, 0.5  # seconds between two polls for replies
_EACH = 0.003  # and for each that is pulled on its own: at most as often as a SuperNode polls for messages
_THREADS = 8  # pulls at a time, of those that do not hang
_HANGS = 2.0  # seconds after which they do, if none of them has ended
_AWAY = 1.0  # seconds of a call to the SuperLink, beyond which the delay is not a node's
_LATEST = 10.0  # seconds for which a poll may go on after the deadline
_log = logging.getLogger("quoron")
T = TypeVar("T")

QUIET = 15.0  # seconds without a reply, after which no usable one is expected any more
_FIX = (
    "Install quoron where it runs, give it the action that the server asks for, with `answer_with` in it, and name "
    "mods with the functions that need them, as in @app.train(mods=[...]), not in ClientApp(mods=[...])"
)


class Pulled(NamedTuple):
    """The result of pulling the reply to one message."""

    message_id: str
    node: int
    replies: list[Message]
    error: BaseException | None = None


@dataclass(slots=True, eq=False)
class Pulls:
    """Pull replies on daemon threads, at most one for each node, so that one node cannot delay the others.

    Flower's Grid over HTTP claims all requested replies, then reads one after the other. It waits minutes, even hours,
    for chunks that a node has announced and does not send, and raises for a reply that it cannot read. Either would
    lose the answers of the other nodes in the same call.
    """

    _busy: set[int] = field(default_factory=set)
    _done: queue.SimpleQueue[Pulled] = field(default_factory=queue.SimpleQueue)

    def busy(self, node: int) -> bool:
        """Return whether the last pull from this node is still running."""
        return node in self._busy

    def start(self, grid: Grid, message_id: str, node: int) -> None:
        """Start to pull the reply to a message that was sent to this node."""
        self._busy.add(node)
        arguments, name = (grid, message_id, node), f"pull from node {node}"
        threading.Thread(target=self._pull, args=arguments, name=name, daemon=True).start()

    def next(self, seconds: float) -> Pulled | None:
        """Return a finished pull, possibly of an earlier exchange; None after `seconds` without one."""
        try:
            pulled = self._done.get(timeout=seconds)
        except queue.Empty:
            return None
        self._busy.discard(pulled.node)
        return pulled

    def _pull(self, grid: Grid, message_id: str, node: int) -> None:
        try:
            pulled = Pulled(message_id, node, list(grid.pull_messages([message_id])))
        except BaseException as error:  # re-raised in the waiting thread: Flower stops a run with a BaseException
            pulled = Pulled(message_id, node, [], error)
        self._done.put(pulled)


class SuperLinkAway(RunError):
    """The SuperLink cannot be reached. Finished rounds are on the ledger; the run can be resumed."""


class Outbound(NamedTuple):
    """A message to one node."""

    node: int
    action: str
    values: Values


class _Sent(NamedTuple):
    place: int
    node: int


def exchange(grid: Grid, messages: Iterable[Outbound], *, group: str, seconds: float) -> dict[int, RecordDict]:
    """Return replies by the index of their message, once all have come or `seconds` are over. Raises SuperLinkAway."""
    replies = stream_replies(grid, messages, group=group, seconds=seconds)
    return {index: reply for index, reply in replies if isinstance(reply, RecordDict)}


def stream_replies(
    grid: Grid,
    messages: Iterable[Outbound],
    *,
    group: str,
    seconds: float,
    pulls: Pulls | None = None,
    clock: "Clock | None" = None,
    lost: set[int] | None = None,
) -> Iterator[tuple[int, RecordDict | Error]]:
    """Yield the index of a message and its reply, or its node's error, as they arrive.

    Ends when all replies are there, or `seconds` after the last message was sent. Raises SuperLinkAway.

    Args:
        grid: Flower's connection to the SuperLink.
        messages: taken a few at a time; none is kept.
        group: Flower's group id of all messages.
        seconds: until the deadline.
        pulls: running pulls of earlier exchanges, whose nodes are not pulled from again.
        clock: shows the time that is left; a clock that has started goes on.
        lost: receives the index of every message that the SuperLink has given up. With it the exchange also ends when
            the SuperLink was unreachable: messages and replies in transit at that time never arrive.
    """
    clock = Clock() if clock is None else clock
    waiting = _push(grid, messages, group, seconds, clock)
    clock.start(seconds)
    alone = None if isinstance(grid, InMemoryGrid) else pulls or Pulls()
    pause, stood = _SHORTEST, clock.stood
    while waiting:
        last, quiet = clock.over, True
        for found, unreadable in _poll(grid, waiting, clock, alone):
            waiting.pop(unreadable or "", None)
            for reply in found:
                quiet, metadata = False, reply.metadata
                sent = waiting.get(metadata.reply_to_message_id)
                if sent is None or metadata.src_node_id not in (sent.node, SUPERLINK_NODE_ID):
                    continue  # another node cannot answer in its place
                del waiting[metadata.reply_to_message_id]
                if metadata.src_node_id == sent.node:
                    yield sent.place, reply.content if reply.has_content() else reply.error
                elif lost is not None:
                    lost.add(sent.place)
        away = lost is not None and alone is not None and clock.stood > stood
        if lost is not None and away:
            lost.update(sent.place for sent in waiting.values())
        if last or away:
            break
        pause = min(2 * pause, _LONGEST) if quiet else _SHORTEST
        time.sleep(min(max(pause, _EACH * len(waiting) if alone else 0.0), clock.left) if waiting else 0.0)


def nodes(grid: Grid) -> dict[int, bytes]:
    """Return the public key of every connected node, by node id. Raises SuperLinkAway."""
    return {node.node_id: bytes(node.public_key) for node in Clock().reached(grid.get_nodes)}


def _push(grid: Grid, messages: Iterable[Outbound], group: str, seconds: float, clock: "Clock") -> dict[str, _Sent]:
    """Send messages; return those that the SuperLink accepted, by message id."""
    rest, taken = enumerate(messages), dict[str, _Sent]()
    while some := [(_Sent(index, item.node), _message(item, group, seconds)) for index, item in islice(rest, _AT_ONCE)]:
        known = {id_ for id_ in clock.reached(partial(grid.push_messages, [sent for _, sent in some])) if id_}
        # A grid may leave out nodes that it does not know: what it returns need not be in step with what it was given.
        named = [(message.metadata.message_id, sent) for sent, message in some]
        taken |= {message_id: sent for message_id, sent in named if message_id in known}
    return taken


def _poll(
    grid: Grid, waiting: Mapping[str, _Sent], clock: "Clock", pulls: Pulls | None
) -> Iterator[tuple[list[Message], str | None]]:
    """Yield replies that have arrived, or the id of a message whose reply Flower cannot read.

    In Flower's simulation one call fetches all: its nodes run in this process.
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
        else:
            before = clock.stood
            clock.reached(grid.get_nodes)
            if clock.stood == before:  # the SuperLink is reachable, so the nodes are slow
                running.clear()


def _message(outbound: Outbound, group: str, seconds: float) -> Message:
    # A SuperLink does not check that a reply comes from the node whose key signed the request, only that it names the
    # message. So the message's id, a digest of its content, must be one that no other node can guess.
    values: Values = {"version": VERSION, "nonce": secrets.token_bytes(16), **outbound.values}
    # The SuperLink's own time goes on while it is unreachable, and it deletes replies to expired messages. So messages
    # expire later than our clock's deadline.
    ttl = seconds + AWAY_SECONDS
    return Message(record(**values), outbound.node, f"query.{outbound.action}", group_id=group, ttl=ttl)


class Clock:
    """A deadline that moves by the time for which the SuperLink is unreachable."""

    def __init__(self) -> None:
        self.ends = time.monotonic()
        self.stood = 0.0  # seconds for which the SuperLink was unreachable
        self._started = False

    def start(self, seconds: float) -> None:
        """Set the deadline `seconds` from now, unless the clock has started."""
        if not self._started:
            self.ends, self._started = time.monotonic() + seconds, True

    @property
    def left(self) -> float:
        """Seconds until the deadline, 0 after it."""
        return max(0.0, self.ends - time.monotonic())

    @property
    def late(self) -> float:
        """Seconds since the deadline, 0 before it."""
        return max(0.0, time.monotonic() - self.ends)

    @property
    def over(self) -> bool:
        """Whether the deadline has passed."""
        return self.left == 0.0

    def reached(self, call: Callable[[], Iterable[T]]) -> list[T]:
        """Return what a call to the SuperLink returns, repeated, by us or the Grid, while it is unreachable."""
        began, pause = time.monotonic(), 0.2
        while True:
            try:
                found = list(call())
            except (httpx.HTTPError, OSError) as error:
                self._require_within_timeout(time.monotonic() - began, f": {error}")
                _log.warning("the SuperLink cannot be reached: %s", type(error).__name__)
                time.sleep(pause)
                pause = min(2 * pause, 5.0)
            else:
                took = time.monotonic() - began
                if took > _AWAY or pause > 0.2:
                    self._require_within_timeout(took, "")
                    self.ends += took
                    self.stood += took
                return found

    def _require_within_timeout(self, away: float, why: str) -> None:
        """Raise SuperLinkAway beyond AWAY_SECONDS, when messages expire."""
        if self.stood + away > AWAY_SECONDS:
            raise SuperLinkAway(f"Cannot reach the SuperLink for {self.stood + away:.0f} seconds{why}.") from None


class NoNodeUnderstands(RunError):
    """No node's ClientApp accepts our messages. Once one does, the same run can begin, or be resumed."""


@dataclass(slots=True, eq=False)
class Handshakes:
    """Handshakes with nodes, and why nodes take no part.

        handshakes = Handshakes(grid, "private")
        for node, values in handshakes.greet([5, 9], seconds=120).items(): ...

    A node receives 16 random bytes and returns them with its version and its partition, before any question about data.
    A mod of a ClientApp sees every message: one that expects other records, or changes those of a reply, breaks
    handshakes and questions alike. Clients read no data for a handshake, so its failures are reported by name and may
    end a run before its first question. Failures of questions do neither: a missing answer may depend on the data.
    """

    grid: Grid
    action: str = HELLO
    reasons: dict[int, str] = field(default_factory=dict)  # why a node takes no part, by node id; the latest
    _pulls: Pulls = field(default_factory=Pulls)
    _understood: bool = False
    _silence: Clock | None = None  # since the last reply, while none could be used

    def greet(self, nodes: Sequence[int], seconds: float) -> dict[int, Values]:
        """Return the values of each node that takes part. Raises NoNodeUnderstands, SuperLinkAway.

        Waits at most `seconds`, or QUIET after the last reply while none was usable.
        """
        nonces = [secrets.token_bytes(16) for _ in nodes]
        messages = [Outbound(node, self.action, {"nonce": nonce}) for node, nonce in zip(nodes, nonces, strict=True)]
        clock, whole, found = Clock(), 0.0, dict[int, Values]()
        for index, reply in stream_replies(
            self.grid, messages, group="hello", seconds=seconds, pulls=self._pulls, clock=clock
        ):
            node, read, whole = nodes[index], _read(reply, nonces[index]), max(whole, clock.ends)
            if isinstance(read, str):
                self._note(node, read)
                if not self._understood:
                    self._silence = Clock()
                    self._silence.start(QUIET)
                    clock.ends = min(clock.ends, self._silence.ends)
            else:
                self._understood, clock.ends = True, whole
                if (why := refusal(read)) is None:
                    found[node] = read
                    self.reasons.pop(node, None)
                else:
                    self._note(node, why)
        self.require_node()
        return found

    def require_node(self, *, late: bool = False) -> None:
        """Raise NoNodeUnderstands if no reply was ever usable, and the last is QUIET seconds old, or it is `late`."""
        if not self._understood and self._silence is not None and (late or self._silence.over):
            raise NoNodeUnderstands(
                f"Expected a ClientApp that takes part, got none from {len(self.reasons)} nodes.{self.why()} Nothing "
                "was asked, and nothing is lost: mend the app, and start the same run again."
            )

    def why(self) -> str:
        """Return why nodes take no part, as a sentence; empty without a reason."""
        if not self.reasons:
            return ""
        node, why = next(iter(self.reasons.items()))
        same = sum(reason == why for reason in self.reasons.values())
        return f" Node {node}{f' and {same - 1} more' if same > 1 else ''}: {why}."

    def _note(self, node: int, why: str) -> None:
        first = next((other for other, known in self.reasons.items() if known == why), node)
        self.reasons[node] = why
        _log.warning("node %d takes no part: %s", node, why if first == node else f"as node {first}")


def _read(reply: RecordDict | Error, nonce: bytes) -> Values | str:
    """Return the values of a reply, or why it cannot be used."""
    if isinstance(reply, Error):
        # Nothing of the reason is read: a ClientApp's own code can write what it likes into it.
        return f"its ClientApp has ended without an answer (Flower's code {reply.code}); its own log says why. {_FIX}"
    try:
        values = values_of(reply)
    except WireError:
        return f"its reply is not one of quoron: a mod of its ClientApp has replaced it. {_FIX}"
    if refusal(values) is None and values.get("nonce") != nonce:
        return f"its reply is not what quoron made there: a mod of its ClientApp changes it. {_FIX}"
    return values
