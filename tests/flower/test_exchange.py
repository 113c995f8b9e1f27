"""Messages over a Grid: a reply counts for the message it answers, from the node that was asked, and no other."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass

import httpx
import pytest
from flwr.app import Message

from flower.grids import (
    SECRET,
    SUPERLINK,
    FakeGrid,
    FakeTime,
    Rows,
    computing,
    error_reply,
    from_node,
    in_reply_to,
    spread,
)
from quorate_client.flower.records import HELLO, values_of
from quorate_server.flower import exchange as exchanging
from quorate_server.flower.exchange import PATIENCE, Letter, SuperLinkAway, exchange, nodes

NODES = 40  # more than one push


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    clock = FakeTime()
    monkeypatch.setattr(exchanging, "time", clock)
    return clock


def grid_of(**faults: object) -> FakeGrid:
    return FakeGrid(computing(Rows()), spread(NODES), **faults)


def greet(grid: FakeGrid, seconds: float = 60.0) -> dict[int, int]:
    """Partition that each letter heard of, by its index."""
    letters = [Letter(node, HELLO, {}) for node in sorted(grid.configs)]
    replies = exchange(grid, letters, group="test", seconds=seconds)
    return {index: values_of(reply)["partition"] for index, reply in replies.items()}


def right(grid: FakeGrid) -> dict[int, int]:
    return {index: grid.configs[node]["partition-id"] for index, node in enumerate(sorted(grid.configs))}


def the_first_three(grid: FakeGrid) -> list[int]:
    return sorted(grid.configs)[:3]


def test_every_reply_belongs_to_its_letter_whatever_the_order(clock: FakeTime) -> None:
    for shuffled in (False, True):
        grid = grid_of(shuffled=shuffled)
        assert greet(grid) == right(grid)


@pytest.mark.parametrize("silently", [True, False])
def test_nodes_that_the_superlink_does_not_know_shift_no_reply(silently: bool, clock: FakeTime) -> None:
    grid = grid_of(silently=silently)
    grid.unknown = frozenset(the_first_three(grid))
    began = clock.now
    assert greet(grid) == {index: place for index, place in right(grid).items() if index >= 3}
    assert clock.now - began < 1, "nobody waits for a message that was not taken"


def test_a_node_that_never_answers_costs_the_time_and_nothing_else(clock: FakeTime) -> None:
    grid = grid_of()
    silent = the_first_three(grid)
    grid.fault = lambda message, reply: [] if message.metadata.dst_node_id in silent else [reply]
    began = clock.now
    assert greet(grid) == {index: place for index, place in right(grid).items() if index >= 3}
    assert clock.now - began == pytest.approx(60.0, abs=1.0)


def test_what_a_node_cannot_do_changes_no_other_reply(clock: FakeTime, caplog: pytest.LogCaptureFixture) -> None:
    honest = right(grid_of())
    liar = min(honest)

    def faults(grid: FakeGrid) -> dict[str, object]:
        node = sorted(grid.configs)[liar]
        other = sorted(grid.configs)[5]

        def only(made: Iterable[Message]) -> object:
            return lambda message, reply: made(message, reply) if message.metadata.dst_node_id == node else [reply]

        return {
            "an error with a secret": only(lambda message, reply: [error_reply(message)]),
            "a reply under another node's name": only(lambda message, reply: [from_node(reply, other)]),
            "a reply of the SuperLink": only(lambda message, reply: [from_node(reply, SUPERLINK)]),
            "a reply to another node's message": only(lambda message, reply: [in_reply_to(reply, "message 5")]),
            "a reply to no message": only(lambda message, reply: [in_reply_to(reply, "nothing")]),
        }

    for name in faults(grid_of()):
        grid = grid_of()
        grid.fault = faults(grid)[name]
        with caplog.at_level(logging.DEBUG):
            heard = greet(grid)
        assert heard == {index: place for index, place in honest.items() if index != liar}, name
    assert SECRET not in caplog.text


def test_two_replies_count_as_one(clock: FakeTime) -> None:
    grid = grid_of(fault=lambda message, reply: [reply, from_node(reply, 7), reply])
    assert greet(grid) == right(grid)


@pytest.mark.parametrize("calls", [{0}, {1, 2}, {2, 3, 4}, set(range(12))])
def test_while_the_superlink_is_away_the_clock_stands(calls: set[int], clock: FakeTime) -> None:
    grid = grid_of(away=frozenset(calls), shuffled=True)
    assert greet(grid, seconds=10.0) == right(grid)


def test_a_superlink_that_stays_away_is_named_after_a_while(clock: FakeTime) -> None:
    began = clock.now
    with pytest.raises(SuperLinkAway, match="Cannot reach the SuperLink for 6"):
        greet(grid_of(away=frozenset(range(10_000))))
    assert clock.now - began >= PATIENCE
    with pytest.raises(SuperLinkAway):
        nodes(grid_of(away=frozenset(range(10_000))))


@dataclass
class Garbled(FakeGrid):
    """A node has sent what Flower itself fails to read, whenever it is pulled."""

    bad: str = "message 3"

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        asked = list(message_ids)
        if self.bad in asked:
            raise ValueError(SECRET)
        return super().pull_messages(asked)


def test_a_reply_that_flower_cannot_read_stops_nobody_else(clock: FakeTime, caplog: pytest.LogCaptureFixture) -> None:
    grid = Garbled(computing(Rows()), spread(NODES))
    assert greet(grid) == {index: place for index, place in right(grid).items() if index != 3}
    assert SECRET not in caplog.text


def test_errors_of_the_connection_are_waited_for_and_never_taken_for_replies(clock: FakeTime) -> None:
    grid = grid_of()
    broken = iter([httpx.ReadTimeout("slow"), OSError("reset"), httpx.ConnectError("refused")])
    pull = grid.pull_messages

    def flaky(message_ids: Iterable[str]) -> Iterable[Message]:
        error = next(broken, None)
        if error is not None:
            raise error
        return pull(message_ids)

    grid.pull_messages = flaky  # type: ignore[method-assign]
    assert greet(grid) == right(grid)
