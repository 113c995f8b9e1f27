"""Messages over a Grid: a reply counts for the message it answers, from the node that was asked, and no other."""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pytest
from flwr.app import Message
from flwr.supercore.run import RunNotRunningException
from flwr.superlink.grid import InMemoryGrid

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
from quoron_client.protocol.flower_records import HELLO, values_of
from quoron_server.flower import exchange as exchanging
from quoron_server.flower.exchange import PATIENCE, Letter, SuperLinkAway, exchange, nodes
from quoron_server.flower.pulls import Pulls

NODES = 40  # more than one push


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    clock = FakeTime()
    monkeypatch.setattr(exchanging, "time", clock)
    return clock


def grid_of(**faults: object) -> FakeGrid:
    return FakeGrid(computing(Rows()), spread(NODES), **faults)


def greet(grid: FakeGrid, seconds: float = 60.0, pulls: Pulls | None = None) -> dict[int, int]:
    """Partition that each letter heard of, by its index."""
    letters = [Letter(node, HELLO, {}) for node in sorted(grid.configs)]
    replies = exchange(grid, letters, group="test", seconds=seconds, pulls=pulls)
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


def of(node: int, does: Callable[[], object]) -> Callable[[Message], object]:
    """What is done when Flower reads a reply of that node."""
    return lambda reply: does() if reply.metadata.src_node_id == node else None


def raises() -> None:
    raise ValueError(SECRET)


def test_a_reply_that_flower_cannot_read_stops_nobody_else(clock: FakeTime, caplog: pytest.LogCaptureFixture) -> None:
    grid = grid_of()
    grid.reading = of(sorted(grid.configs)[3], raises)
    began = clock.now
    assert greet(grid) == {index: place for index, place in right(grid).items() if index != 3}
    assert clock.now - began < 1
    assert SECRET not in caplog.text


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A pull that waits for it hangs, which is noticed soon."""
    monkeypatch.setattr(exchanging, "_HANGS", 0.05)
    event = threading.Event()
    yield event
    event.set()


def test_a_reply_that_never_comes_whole_keeps_its_own_node_waiting_and_no_round(
    clock: FakeTime, held: threading.Event
) -> None:
    grid, pulls, pulled = grid_of(), Pulls(), list[int]()
    bad = set(sorted(grid.configs)[:10])  # more than are pulled at a time

    def hangs(reply: Message) -> None:
        if reply.metadata.src_node_id in bad:
            pulled.append(reply.metadata.src_node_id)
            held.wait()

    grid.reading = hangs
    others = {index: place for index, place in right(grid).items() if index >= 10}
    earlier = set(threading.enumerate())  # another test's may be about to end
    for _ in range(3):
        began = clock.now
        assert greet(grid, pulls=pulls) == others
        assert clock.now - began == pytest.approx(60.0, abs=1.0)
    assert sorted(pulled) == sorted(bad), "a thread a node, however many rounds"
    now = set(threading.enumerate()) - earlier
    threads = [thread for thread in now if thread.name.startswith("pull from node")]
    assert len(threads) == 10
    assert all(thread.daemon for thread in threads), "none of them keeps the process from ending"


def test_a_node_whose_pull_has_ended_takes_part_again(clock: FakeTime, held: threading.Event) -> None:
    grid, pulls = grid_of(), Pulls()
    grid.reading = of(sorted(grid.configs)[0], held.wait)
    assert 0 not in greet(grid, pulls=pulls)
    held.set()
    for thread in threading.enumerate():
        if thread.name.startswith("pull from node"):
            thread.join()
    assert greet(grid, pulls=pulls) == right(grid), "what came too late is not taken for the new answer"


def test_an_answer_to_a_round_that_is_over_never_counts(clock: FakeTime) -> None:
    grid, late = grid_of(), list[Message]()
    slow = sorted(grid.configs)[0]

    def answers(message: Message, reply: Message) -> list[Message]:
        """The slow one sends what it owes from the last round."""
        if message.metadata.dst_node_id != slow:
            return [reply]
        late.append(reply)
        return late[:-1]

    grid.fault = answers
    for _ in range(3):
        assert greet(grid) == {index: place for index, place in right(grid).items() if index > 0}
    assert len(late) == 3


def test_a_run_that_was_stopped_ends_and_its_users_are_not_taken_for_missing(clock: FakeTime) -> None:
    def stopped() -> None:
        raise RunNotRunningException

    grid = grid_of()
    grid.reading = of(sorted(grid.configs)[3], stopped)
    with pytest.raises(RunNotRunningException):
        greet(grid)


@dataclass
class Simulated(FakeGrid, InMemoryGrid):
    """The kind of Grid that Flower's simulation has."""


def test_in_flower_s_simulation_a_look_is_one_call(clock: FakeTime) -> None:
    grid = Simulated(computing(Rows()), spread(NODES))
    assert greet(grid) == right(grid)
    assert grid._calls == NODES / 8 + 1
