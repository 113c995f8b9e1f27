"""Messages to nodes over Flower's Grid, and their replies: pushed, pulled and matched here, without a Strategy.

    replies = exchange(grid, [Letter(node, "hello", record)], group="spring/3", seconds=60)

A reply belongs to the message that it names, if it comes from the node that was sent it. An error is no reply, nor is
what comes too late, and nothing that another node sends ends the wait. While the SuperLink is away the clock stands.
"""

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import httpx
from flwr.app import Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.serverapp import Grid

from quorate_client.flower.records import VERSION, Values, record
from quorate_protos.errors import RunError

PATIENCE = 600.0  # seconds that a SuperLink may be away
_AT_ONCE = 32  # messages in one push
_SHORTEST, _LONGEST = 0.01, 0.5  # seconds between two looks for replies
_log = logging.getLogger("quorate")
T = TypeVar("T")


class SuperLinkAway(RunError):
    """The SuperLink cannot be reached. What has been asked and answered is on the ledger; the run can go on later."""


@dataclass(frozen=True, slots=True)
class Letter:
    """What one node is sent."""

    node: int
    action: str
    values: Values


def exchange(grid: Grid, letters: Sequence[Letter], *, group: str, seconds: float) -> dict[int, RecordDict]:
    """Replies by index of the letter, once all are there or `seconds` are over. Raises SuperLinkAway."""
    clock = _Clock(seconds)
    waiting: dict[str, int] = {}  # letter of each message that has no reply
    for start in range(0, len(letters), _AT_ONCE):
        some = range(start, min(start + _AT_ONCE, len(letters)))
        messages = [_message(letters[index], group, seconds) for index in some]
        taken = {each for each in clock.reached(partial(grid.push_messages, messages)) if each}
        # A grid may leave out nodes that it does not know: what it returns need not be in step with what it was given.
        for index, message in zip(some, messages, strict=True):
            if message.metadata.message_id in taken:
                waiting[message.metadata.message_id] = index
    replies: dict[int, RecordDict] = {}
    pause = _SHORTEST
    while waiting:
        found, unreadable = _pulled(grid, list(waiting), clock)
        for message_id in unreadable:
            waiting.pop(message_id)
        for reply in found:
            index = waiting.get(reply.metadata.reply_to_message_id, -1)
            if index < 0 or reply.metadata.src_node_id not in (letters[index].node, SUPERLINK_NODE_ID):
                continue  # nobody ends another node's turn
            del waiting[reply.metadata.reply_to_message_id]
            if reply.has_content() and reply.metadata.src_node_id == letters[index].node:
                replies[index] = reply.content
        if clock.over:
            break
        pause = _SHORTEST if found else min(2 * pause, _LONGEST)
        time.sleep(min(pause, clock.left) if waiting else 0.0)
    return replies


def nodes(grid: Grid) -> dict[int, bytes]:
    """Public key of every node that is there, by number. Raises SuperLinkAway."""
    return {each.node_id: bytes(each.public_key) for each in _Clock(0.0).reached(grid.get_nodes)}


def _pulled(grid: Grid, waiting: list[str], clock: "_Clock") -> tuple[list[Message], list[str]]:
    """Replies that are there, and the messages whose reply Flower itself cannot read: no node can stop a round."""
    try:
        return clock.reached(partial(grid.pull_messages, waiting)), []
    except SuperLinkAway:
        raise
    except Exception as error:
        if len(waiting) == 1:
            _log.warning("a reply cannot be read: %s", type(error).__name__)
            return [], waiting
    one_by_one = [_pulled(grid, [each], clock) for each in waiting]
    return [reply for found, _ in one_by_one for reply in found], [each for _, bad in one_by_one for each in bad]


def _message(letter: Letter, group: str, seconds: float) -> Message:
    # A SuperLink does not check that a reply comes from the node whose key signed the request, but that it names the
    # message: so the name, a digest of all that is in it, must be one that no other node can guess.
    values: Values = {"version": VERSION, "nonce": secrets.token_bytes(16), **letter.values}
    return Message(record(**values), letter.node, f"query.{letter.action}", group_id=group, ttl=seconds)


class _Clock:
    """Time left, in which what is spent waiting for a SuperLink that is away does not count."""

    def __init__(self, seconds: float) -> None:
        self._ends = time.monotonic() + seconds

    @property
    def left(self) -> float:
        return max(0.0, self._ends - time.monotonic())

    @property
    def over(self) -> bool:
        return self.left == 0.0

    def reached(self, call: Callable[[], Iterable[T]]) -> list[T]:
        """What the SuperLink returns, asked again for as long as it is away."""
        began, pause = time.monotonic(), 0.2
        while True:
            try:
                found = list(call())
            except (httpx.HTTPError, OSError) as error:
                away = time.monotonic() - began
                if away > PATIENCE:
                    raise SuperLinkAway(f"Cannot reach the SuperLink for {away:.0f} seconds: {error}.") from None
                _log.warning("the SuperLink is away: %s", type(error).__name__)
                time.sleep(pause)
                pause = min(2 * pause, 5.0)
            else:
                if pause > 0.2:
                    self._ends += time.monotonic() - began
                return found
