"""One node, one user: runs over nodes that are known by their keys, with everything but Flower's processes."""

import logging
import sqlite3
import tracemalloc
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from flwr.proto.node_pb2 import NodeInfo

from federation.crowd import DIMENSION, SEED, write_items
from flower.federation import SMALL, expected, small, without
from flower.grids import (
    SECRET,
    FakeGrid,
    Rows,
    computing,
    error_reply,
    from_node,
    in_reply_to,
    spread,
    with_values,
)
from quoron_client.federation.record import Record
from quoron_client.flower import app as apps
from quoron_client.protocol.gradients import AverageGradient
from quoron_client.protocol.questions import Question, Status
from quoron_client.protocol.wire import answer_to_wire
from quoron_privacy.errors import ConfigError, RunError
from quoron_protos.v1 import federation_pb2 as pb
from quoron_server.books.database import Database
from quoron_server.books.registry import Registry
from quoron_server.flower import exchange
from quoron_server.flower.serving import serve
from quoron_server.flower.users import Users, identity
from quoron_server.specification import RunSpecification

USERS = 5


class Killed(BaseException):
    """The ServerApp's process ends here."""


@dataclass
class People(FakeGrid):
    """A node for each user, with its own data and record; node numbers are in no order, and keys name their users.

    `other` nodes hold another version of quoron; `dies_at` ends the process when so many questions have been answered.
    """

    other: frozenset[int] = frozenset()
    dies_at: int | None = None
    come: dict[int, int] = field(default_factory=dict)  # users who come only at that call of the grid

    def get_nodes(self) -> Iterable[NodeInfo]:
        self._call()
        there = [node for node in self.configs if self.come.get(self._user(node), 0) < self._calls]
        return [NodeInfo(node_id=node, public_key=self.keys[node]) for node in there]

    def _user(self, node: int) -> int:
        return int(self.configs[node]["partition-id"])

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        for message in messages:
            if self._user(message.metadata.dst_node_id) in self.other:
                message.content["quoron"]["version"] = "another"  # what a node of another version sees
        return super().push_messages(messages)

    def _reply(self, message: Message) -> Message:
        answered = [each for each in self.asked if "question" in each.content["quoron"]]
        if self.dies_at is not None and len(answered) > self.dies_at:
            raise Killed
        return super()._reply(message)


def people(folder: Path, users: int = USERS, *, seed: int = 3, **more: Any) -> People:
    """The same users each time, behind nodes whose numbers `seed` decides."""
    (folder / "items").mkdir(exist_ok=True, parents=True)
    paths = write_items(folder / "items", users)
    numbers = 100 + np.random.default_rng(seed).permutation(users)
    configs = {
        int(node): {
            "partition-id": user,
            "num-partitions": users,
            "data": str(paths[user]),
            "record": str(folder / f"record-{user}.sqlite"),
            "lifetime-epsilon": "inf",
            "lifetime-delta": 1.0,
            "accept": "none,model,broadcast,local",
            "simulation-seed": str(SEED),
        }
        for user, node in enumerate(numbers.tolist())
    }
    keys = {node: f"key {config['partition-id']}".encode() for node, config in configs.items()}
    return People(apps.app, configs, keys=keys, **more)


def served(grid: FakeGrid, wanted: RunSpecification, folder: Path, *, waiting: float = 60.0) -> np.ndarray:
    database = f"sqlite:///{folder}/books.sqlite"
    return serve(grid, wanted.as_text(), database, waiting=waiting, allow_simulation=True).model


pytestmark = pytest.mark.usefixtures("time")  # nobody sleeps


def questions(folder: Path, user: int) -> list[tuple[str, int, bytes]]:
    with sqlite3.connect(folder / f"record-{user}.sqlite") as record:
        return record.execute("SELECT run, round, digest FROM answers").fetchall()


QUICK = ("dp-sgd-wor", "phased-sgd")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in SMALL]
)
def test_same_seed_gives_the_bits_of_the_inline_engine(name: str, tmp_path: Path) -> None:
    wanted = small(name, "trial", USERS)
    np.testing.assert_array_equal(served(people(tmp_path), wanted, tmp_path), expected(wanted, tmp_path / "inline"))


def test_a_user_is_known_by_its_key_whatever_the_number_of_its_node(tmp_path: Path) -> None:
    for run, seed in (("first", 3), ("second", 4)):
        wanted = small("srgd", run, USERS)
        model = served(people(tmp_path, seed=seed), wanted, tmp_path)
        np.testing.assert_array_equal(model, expected(wanted, tmp_path / run))
    with Database(f"sqlite:///{tmp_path}/books.sqlite") as database:
        registry = Registry(database)
        assert [registry.user(identity(f"key {user}".encode())) for user in range(USERS)] == list(range(USERS))
        assert registry.users_count() == USERS


@pytest.mark.parametrize("dies_at", range(6))
def test_a_killed_serverapp_goes_on_with_the_same_questions_to_the_same_bits(dies_at: int, tmp_path: Path) -> None:
    wanted = small("dp-sgd-wor", "trial", USERS)
    with pytest.raises(Killed):
        served(people(tmp_path, dies_at=dies_at), wanted, tmp_path)
    again = people(tmp_path, seed=5)
    np.testing.assert_array_equal(served(again, wanted, tmp_path), expected(wanted, tmp_path / "inline"))
    for user in range(USERS):
        asked = questions(tmp_path, user)
        assert len({round_number for _, round_number, _ in asked}) == len(asked)
    assert {message.metadata.message_type for message in again.asked[-USERS:]} == {"query.ended"}


Fault = Callable[[Message, Message], Iterable[Message]]


def _answer(reply: Message, **changes: Any) -> Message:
    """The same answer with something else in it."""
    answer = pb.Answer.FromString(reply.content["quoron"]["answer"])
    for key, value in changes.items():
        setattr(answer, key, value)
    return with_values(reply, answer=answer.SerializeToString())


def _long(reply: Message) -> Message:
    message = pb.Answer.FromString(reply.content["quoron"]["answer"])
    longer = answer_to_wire(message.run, message.round, message.digest, np.ones(DIMENSION + 1), Status(0))
    return with_values(reply, answer=longer.SerializeToString())


def _wild(reply: Message, number: float) -> Message:
    message = pb.Answer.FromString(reply.content["quoron"]["answer"])
    wild = answer_to_wire(message.run, message.round, message.digest, np.full(DIMENSION, number), Status(0))
    return with_values(reply, answer=wild.SerializeToString())


FAULTS: dict[str, Fault] = {
    "silent": lambda message, reply: [],
    "error": lambda message, reply: [error_reply(message)],
    "declined": lambda message, reply: [with_values(reply, answer=None, declined=True)],
    "refused": lambda message, reply: [with_values(reply, answer=None, refused=SECRET)],
    "nothing": lambda message, reply: [with_values(reply, answer=None)],
    "noise": lambda message, reply: [with_values(reply, answer=b"\xff" * 40)],
    "text": lambda message, reply: [with_values(reply, answer="text")],
    "digest": lambda message, reply: [_answer(reply, digest=b"another question")],
    "run": lambda message, reply: [_answer(reply, run="another")],
    "round": lambda message, reply: [_answer(reply, round=17)],
    "status": lambda message, reply: [_answer(reply, status=99)],
    "shape": lambda message, reply: [_long(reply)],
    "NaN": lambda message, reply: [_wild(reply, np.nan)],
    "infinite": lambda message, reply: [_wild(reply, -np.inf)],
    "huge": lambda message, reply: [_wild(reply, 1e300)],
    "other node": lambda message, reply: [from_node(reply, 17)],
    "other message": lambda message, reply: [in_reply_to(reply, "another message")],
}


@pytest.fixture(scope="module")
def without_two(tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    """The model if user 2 never answers."""
    return without(small("dp-sgd-wor", "trial", USERS), tmp_path_factory.mktemp("inline"), user=2)


@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_a_node_does_wrong_is_a_user_without_an_answer(
    fault: str, without_two: np.ndarray, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = small("dp-sgd-wor", "trial", USERS)

    def wrong(message: Message, reply: Message) -> Iterable[Message]:
        asks, user = "question" in message.content["quoron"], grid.configs[message.metadata.dst_node_id]
        return FAULTS[fault](message, reply) if asks and user["partition-id"] == 2 else [reply]

    grid = people(tmp_path, fault=wrong)
    with caplog.at_level(logging.DEBUG):
        model = served(grid, wanted, tmp_path)
    np.testing.assert_array_equal(model, without_two)
    assert SECRET not in caplog.text
    said = [each.getMessage() for each in caplog.records]
    named = [at for at, text in enumerate(said) if "user 2 takes no part in run trial" in text]
    assert len(named) == (fault == "declined")
    assert not any("round" in text for text in said[named[0] :]) if named else any("round" in text for text in said)


def _asks(message: Message) -> bool:
    return "question" in message.content["quoron"]


def test_nothing_begins_before_all_users_are_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    wanted = small("dp-sgd-wor", "trial", USERS)
    grid = people(tmp_path, come={3: 6, 4: 9})
    with caplog.at_level(logging.INFO, "quoron"):
        model = served(grid, wanted, tmp_path)
    np.testing.assert_array_equal(model, expected(wanted, tmp_path / "inline"))
    assert "waiting for users: 3 of 5, with 3 nodes connected" in caplog.text
    assert "waiting for users: 4 of 5, with 4 nodes connected" in caplog.text
    first = next(index for index, message in enumerate(grid.asked) if _asks(message))
    assert len({message.metadata.dst_node_id for message in grid.asked[:first]}) == USERS


def test_too_few_users_in_time_fail_the_run_before_anything_is_charged(tmp_path: Path) -> None:
    grid = people(tmp_path, users=4)
    with pytest.raises(RunError, match="Expected 5 users in group everyone within 60 seconds, got 4"):
        served(grid, small("srgd", "trial", USERS), tmp_path)
    assert not any(map(_asks, grid.asked))
    wanted = small("srgd", "trial", USERS)  # it can still go on
    np.testing.assert_array_equal(served(people(tmp_path), wanted, tmp_path), expected(wanted, tmp_path / "inline"))


def test_two_nodes_with_one_key_are_one_user(tmp_path: Path) -> None:
    grid = people(tmp_path)
    grid.keys = {node: b"key 0" if key == b"key 1" else key for node, key in grid.keys.items()}
    with pytest.raises(RunError, match="got 4"):
        served(grid, small("srgd", "trial", USERS), tmp_path)


def test_a_member_who_comes_back_in_the_middle_is_asked_again(tmp_path: Path) -> None:
    """Its number is another one afterwards."""
    wanted = small("recentred-sgd", "trial", USERS)
    grid = people(tmp_path)
    gone = next(node for node in grid.configs if grid._user(node) == 0)

    def moves(message: Message, reply: Message) -> Iterable[Message]:
        if _asks(message) and gone in grid.configs:
            grid.configs = {node + 1000 if node == gone else node: each for node, each in grid.configs.items()}
            grid.keys = {node + 1000 if node == gone else node: each for node, each in grid.keys.items()}
        return [reply]

    grid.fault = moves
    served(grid, wanted, tmp_path)
    with Record.open(tmp_path / "record-0.sqlite", epsilon=1.0, delta=1.0) as kept:
        assert kept.spent[0] > 0
    assert any(message.metadata.dst_node_id == gone + 1000 and _asks(message) for message in grid.asked)


def test_the_superlink_may_be_away_at_any_moment(tmp_path: Path) -> None:
    wanted = small("dp-sgd-wor", "trial", USERS)
    grid = people(tmp_path, away=frozenset(range(0, 60, 3)))
    np.testing.assert_array_equal(served(grid, wanted, tmp_path), expected(wanted, tmp_path / "inline"))


def test_a_superlink_that_stays_away_leaves_the_run_as_it_is(tmp_path: Path) -> None:
    wanted = small("dp-sgd-wor", "trial", USERS)
    with pytest.raises(exchange.SuperLinkAway):
        served(people(tmp_path, away=frozenset(range(7, 2000))), wanted, tmp_path)
    np.testing.assert_array_equal(served(people(tmp_path), wanted, tmp_path), expected(wanted, tmp_path / "inline"))


def test_a_run_that_is_no_simulation_needs_a_promise_and_a_simulation_leave(tmp_path: Path) -> None:
    database, grid = f"sqlite:///{tmp_path}/books.sqlite", people(tmp_path)
    with pytest.raises(ConfigError, match="simulation=false"):
        serve(grid, small("srgd", "trial", USERS).as_text(), database, waiting=1.0)
    real = {"simulation": False, "simulation_seed": None}
    with pytest.raises(ConfigError, match="proved promise"):
        serve(grid, small("sgd", "trial", USERS, **real).as_text(), database, waiting=1.0)
    assert not grid.asked


def test_a_question_is_written_when_its_turn_comes_and_only_its_name_is_kept() -> None:
    """Questions of large models would fill the memory."""
    grid = FakeGrid(computing(Rows()), spread(40))
    grid.keys = {node: bytes([place]) for place, node in enumerate(sorted(grid.configs))}
    names = {identity(key): key[0] for key in grid.keys.values()}
    fleet = Users(grid, pb.Announcement(run="trial"), np.arange(40), names.get, agreed=set(range(40)))
    point = np.zeros((1, 10_000))
    tracemalloc.start()
    parts = [part for part, _ in fleet.parts(Question(3, np.arange(40), AverageGradient(point, (1.0,))), 60)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * point.nbytes
    order = [part.asked.user for part in parts if part.asked]
    assert sorted(order) == list(range(40)) != order  # secret: that of its rows with chance 1/40!


def test_whoever_comes_late_hears_of_the_run_before_it_is_asked_whoever_is_drawn(tmp_path: Path) -> None:
    """Else who is charged for a run, and so absent from later ones, would follow from who was drawn."""
    grid = people(tmp_path)
    there, nodes = dict(grid.configs), Users.homes
    late = max(there)

    def homes(self: Users) -> dict[int, int]:
        found = nodes(self)
        drawn = [message for message in grid.asked if "question" in message.content["quoron"]]
        return found if drawn else {user: node for user, node in found.items() if node != late}

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Users, "homes", homes)
        served(grid, small("dp-sgd-poisson", "trial", USERS), tmp_path)
    heard = {node: [] for node in there} | {}
    for message in grid.asked:
        if "announcement" in (said := message.content["quoron"]):
            heard[message.metadata.dst_node_id].append("question" in said)
    assert all(said[0] is False and said.count(False) == 1 for said in heard.values() if said)
    assert heard[late] == [False, *heard[late][1:]]
    assert set(heard) == set(there), "all of them, whoever is drawn"
