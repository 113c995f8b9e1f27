"""Messages to nodes over Flower's Grid, replies and handshakes: pushed, pulled and matched here, without a Strategy.

    for index, reply in heard(grid, letters, group="spring/3", seconds=60): ...
    replies = exchange(grid, [Letter(node, "hello", record)], group="spring/3", seconds=60)

A reply belongs to the message that it names, if it comes from the node that was sent it. An error that a node's own
Flower made is passed on as such; one of the SuperLink's is no reply, nor is a late message, and nothing that another
node sends ends the wait. While the SuperLink is away the clock stands.
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
from types import MappingProxyType
from typing import NamedTuple, TypeVar

import httpx
from flwr.app import Error, Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.serverapp import Grid
from flwr.superlink.grid import InMemoryGrid

from quoron_client.protocol.flower_records import HELLO, VERSION, Values, record, refusal, values_of
from quoron_privacy.errors import RunError, WireError

Told = Callable[[int, int], object]  # how many have answered, of how many

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

QUIET = 15.0  # seconds without a reply, after which those that cannot be used are all that there is
# Flower's own mods that refuse what is not of its strategies, by the first word of their reason. Nothing else of a
# reason is read, let alone shown: a ClientApp's own code can write what it likes into it.
MODS = MappingProxyType(
    {
        "LocalDpMod": "to clip and noise the arrays of a Strategy",
        "fixedclipping_mod": "to clip for DifferentialPrivacyClientSideFixedClipping",
        "adaptiveclipping_mod": "to clip for DifferentialPrivacyClientSideAdaptiveClipping",
    }
)
_FIX = (
    "Take it out of ClientApp(mods=[...]), or name mods with the functions that need them, as in "
    "@app.train(mods=[...]): quoron clips and noises by itself"
)
_CODES = MappingProxyType(
    {
        ErrorCode.LOAD_CLIENT_APP_EXCEPTION: "its ClientApp cannot be loaded. Install quoron, and all that the app "
        "imports, where it runs; its own log has the error",
        ErrorCode.CLIENT_APP_RAISED_EXCEPTION: "its ClientApp raised an exception. Give it the action that the server "
        "asks for, with `answer_with` in it, and no mod that needs other messages; its own log has the error",
        ErrorCode.INVALID_FAB: "it does not trust this app: Flower could not verify it",
    }
)


class Pulled(NamedTuple):
    """What came of one message's pull."""

    message_id: str
    node: int
    replies: list[Message]
    error: BaseException | None = None


@dataclass(slots=True, eq=False)
class Pulls:
    """At most one thread a node, whose pull goes on until Flower gives up; none of them keeps a process from ending.

    Flower's Grid over HTTP claims all replies that it is asked for, then reads one after the other. It waits minutes,
    even hours, for parts that a node has announced and does not send, and what it cannot read is an exception. Either
    would cost the other nodes of the same call their answers.
    """

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
        except BaseException as error:  # for the waiting thread: a stopped run is no mere Exception of Flower
            pulled = Pulled(message_id, node, [], error)
        self._done.put(pulled)


class SuperLinkAway(RunError):
    """The SuperLink cannot be reached. What has been asked and answered is on the ledger; the run can go on later."""


def untold(answered: int, asked: int) -> None:
    """Report to nobody."""


class Letter(NamedTuple):
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
    lost: set[int] | None = None,
) -> Iterator[tuple[int, RecordDict | Error]]:
    """Index of a letter and its reply, or its node's error, as they come, until `seconds` after the last was sent.

    Raises SuperLinkAway. It ends before when all are there. `clock` then says what is left; one that has started goes
    on. Letters are taken a few at a time, and nothing of them is kept. `pulls` remembers whose replies held up an
    earlier exchange. `lost` gets the index of every letter that the SuperLink has given up. With it the exchange also
    ends when the SuperLink has been away: letters and replies that it was handing out when it ended never arrive.
    """
    clock = Clock() if clock is None else clock
    waiting = _pushed(grid, letters, group, seconds, clock)
    clock.start(seconds)
    alone = None if isinstance(grid, InMemoryGrid) else pulls or Pulls()
    pause, stood = _SHORTEST, clock.stood
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
                elif lost is not None:
                    lost.add(sent.letter)
        away = lost is not None and alone is not None and clock.stood > stood
        if lost is not None and away:
            lost.update(sent.letter for sent in waiting.values())
        if last or away:
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
        else:
            before = clock.stood
            clock.reached(grid.get_nodes)
            if clock.stood == before:  # it is there: so it is the nodes who keep us waiting
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
        self.stood = 0.0  # seconds for which the SuperLink was away
        self._started = False

    def start(self, seconds: float) -> None:
        """So much time from now, unless it has started."""
        if not self._started:
            self.ends, self._started = time.monotonic() + seconds, True

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
                    self.stood += took
                return found

    def _require_patience(self, away: float, why: str) -> None:
        """What was asked expires PATIENCE after the end of its time."""
        if self.stood + away > PATIENCE:
            raise SuperLinkAway(f"Cannot reach the SuperLink for {self.stood + away:.0f} seconds{why}.") from None


class NobodyUnderstands(RunError):
    """No node's ClientApp takes our messages. Once it does, the same run can begin, or go on."""


@dataclass(slots=True, eq=False)
class Hellos:
    """The nodes' answers to handshakes.

        hellos = Hellos(grid, "private")
        for node, values in hellos.say([5, 9], seconds=120).items(): ...

    Every node is sent 16 random bytes, and sends them back with its version and its place, before any question about
    data. A mod of a ClientApp sees every message, handshakes too: one that expects other records, or changes those of a
    reply, breaks both. Our clients read no data for a handshake, so its failures are reported by name, and may end a
    run before its first question. Failures of questions do neither: that an answer is missing may be a function of the
    data.
    """

    grid: Grid
    action: str = HELLO
    told: Told = untold
    reasons: dict[int, str] = field(default_factory=dict)  # why a node takes no part, the latest
    _pulls: Pulls = field(default_factory=Pulls)
    _understood: bool = False
    _silence: Clock | None = None  # since the last reply, while none could be used

    def say(self, nodes: Sequence[int], seconds: float) -> dict[int, Values]:
        """Values of each node that takes part. Raises NobodyUnderstands, SuperLinkAway.

        It waits at most `seconds`, or QUIET after the last of replies of which none can be used.
        """
        nonces = [secrets.token_bytes(16) for _ in nodes]
        letters = [Letter(node, self.action, {"nonce": nonce}) for node, nonce in zip(nodes, nonces, strict=True)]
        clock, whole, found = Clock(), 0.0, dict[int, Values]()
        for index, reply in heard(self.grid, letters, group="hello", seconds=seconds, pulls=self._pulls, clock=clock):
            node, read, whole = nodes[index], _read(reply, nonces[index]), max(whole, clock.ends)
            if isinstance(read, str):
                self._tell(node, read)
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
                    self._tell(node, why)
            self.told(len(found), len(nodes))
        self.require_somebody()
        return found

    def require_somebody(self, *, late: bool = False) -> None:
        """NobodyUnderstands if no reply could ever be used, and the last is QUIET seconds old, or it is `late`."""
        if not self._understood and self._silence is not None and (late or self._silence.over):
            raise NobodyUnderstands(
                f"Expected a ClientApp that takes part, got none from {len(self.reasons)} nodes.{self.said()} Nothing "
                "was asked, and nothing is lost: mend the app, and start the same run again."
            )

    def said(self) -> str:
        """Why nodes take no part, in a sentence; empty if none has said so."""
        if not self.reasons:
            return ""
        node, why = next(iter(self.reasons.items()))
        same = sum(each == why for each in self.reasons.values())
        return f" Node {node}{f' and {same - 1} more' if same > 1 else ''}: {why}."

    def _tell(self, node: int, why: str) -> None:
        first = next((each for each, known in self.reasons.items() if known == why), node)
        self.reasons[node] = why
        _log.warning("node %d takes no part: %s", node, why if first == node else f"as node {first}")


def _read(reply: RecordDict | Error, nonce: bytes) -> Values | str:
    """What a node says, or why that cannot be used."""
    if isinstance(reply, Error):
        return _fault(reply)
    try:
        values = values_of(reply)
    except WireError:
        return f"its reply is not one of quoron: a mod of its ClientApp has replaced the record. {_FIX}"
    if refusal(values) is None and values.get("nonce") != nonce:
        return f"its reply is not what quoron made there: a mod of its ClientApp changes records. {_FIX}"
    return values


def _fault(error: Error) -> str:
    """Fixed words for an error of Flower's."""
    if error.code == ErrorCode.MOD_FAILED_PRECONDITION:
        name = str(error.reason).partition(" ")[0]
        if name in MODS:
            return f"{name}, a mod of its ClientApp, is there {MODS[name]}, and refuses all other messages. {_FIX}"
        return f"a mod of its ClientApp refuses messages that are not those of a Strategy. {_FIX}"
    return _CODES.get(
        error.code, f"its ClientApp has ended without an answer (Flower's code {error.code}). See its log"
    )
