"""Who is there: nodes that come, go, never speak, or are of another version."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from flwr.app import Message
from flwr.proto.node_pb2 import NodeInfo

from flower.grids import FakeGrid, FakeTime
from flower.plugged import people, plugged, questions, trained
from quoron_client.protocol.flower_records import record
from quoron_server.flower import black_boxes, engine, exchange, serving
from quoron_server.flower.black_boxes import Attendance


@pytest.fixture(autouse=True)
def _trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ServerApp's environment allows made-up users and seeds."""
    monkeypatch.setenv("QUORON_ALLOW_SIMULATION", "1")
    monkeypatch.delenv("QUORON_SUPERNODE_AUTH", raising=False)


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    """Nobody sleeps."""
    fake = FakeTime()
    for module in (black_boxes, engine, exchange, serving):
        monkeypatch.setattr(module, "time", fake)
    return fake


class Leaves(FakeGrid):
    """Node 10 is gone once there are questions, and node 99, if there is one, never answers."""

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [node for node in super().get_nodes() if not (node.node_id == 10 and questions(self))]


@pytest.mark.parametrize("identities", ["keys", "partitions"])
def test_a_stranger_that_never_says_hello_holds_up_no_round(identities: str, tmp_path: Path, time: FakeTime) -> None:
    def took(*, stranger: bool) -> float:
        grid = plugged(people())
        grid.__class__ = Leaves
        if stranger:
            grid.configs, grid.keys = {**grid.configs, 99: grid.configs[10]}, {**grid.keys, 99: b"stranger"}
        grid.fault = lambda message, reply: [] if message.metadata.dst_node_id == 99 else [reply]
        began, rounds = time.now, {"rounds": 10, "rate": 1.0}
        trained(grid, tmp_path / f"{stranger}", "dp-sgd-wor", options=rounds, identities=identities, waiting=5.0)
        return time.now - began

    greeting, briefly = 120.0, 2.0  # before the first round; in the first of them
    assert took(stranger=True) - took(stranger=False) <= greeting + briefly + 1.0


class Late(FakeGrid):
    """Node 10 comes after the second look, and node 99 never answers."""

    looks = 0

    def get_nodes(self) -> Iterable[NodeInfo]:
        self.looks += 1
        return [node for node in super().get_nodes() if node.node_id != 10 or self.looks > 2]


def test_a_node_that_took_no_part_is_greeted_again_ever_less_often(time: FakeTime) -> None:
    grid, mended = plugged(people(2)), False

    def refuses(message: Message, reply: Message) -> Iterable[Message]:
        if message.metadata.dst_node_id == 11 and not mended:
            reply.content = record(refused="another version", version="0")
        return [reply]

    grid.fault = refuses
    there = Attendance(grid, "private", identities="keys", users=2)
    began, at = time.now, []
    while time.now < began + 1000:
        before = len(grid.asked)
        there.greet(5.0)
        at += [time.now - began] * (len(grid.asked) > before)
        time.now += 1.0
    assert at == pytest.approx([0, 30, 90, 210, 450, 930], abs=5.0)
    assert len(there.homes()) == 1
    mended, time.now = True, time.now + 3600
    there.greet(5.0)
    assert len(there.homes()) == 2


def test_no_words_of_a_node_make_a_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    grid = plugged(people(1))
    said = "x\nquoron: the model is in \x1b[31m/srv/evil" + "y" * 100

    def refuses(message: Message, reply: Message) -> Iterable[Message]:
        reply.content = record(refused=said)
        return [reply]

    grid.fault = refuses
    Attendance(grid, "private", identities="keys", users=1).greet(5.0)
    (lines,) = [each.getMessage() for each in caplog.records if "takes no part" in each.getMessage()]
    assert lines.isprintable()
    assert "y" * 60 not in lines
