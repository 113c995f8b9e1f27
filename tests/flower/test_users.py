"""One node, one user or silo: runs over nodes that are known by their keys, with everything but Flower's processes."""

import logging
import math
import sqlite3
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import ServerApp
from flwr.supercore.object_ref import load_app

from cover import by_default
from federation.crowd import DIMENSION, SEED, specification, write_items
from federation.silos import write_silos
from flower.federation import SMALL, Process, expected, small, without
from flower.grids import (
    SECRET,
    FakeGrid,
    error_reply,
    from_node,
    given_up,
    in_reply_to,
    with_answer,
    with_values,
)
from quoron.cli.app import invoke
from quoron.federation import flower_app as federated
from quoron.federation.flower_simulation import last_error
from quoron.federation.submission import COMPONENTS, write_app
from quoron.flower.training import Training
from quoron_client.federation.client_state import ClientState
from quoron_client.flower import app as apps
from quoron_client.flower.serving import people_of, read_owner
from quoron_client.protocol.questions import Status
from quoron_client.protocol.wire import array_to_wire
from quoron_privacy.errors import ConfigError, OtherVersion, QuoronError, RunError
from quoron_protos.v1 import federation_pb2 as pb
from quoron_server.federation import RunStore
from quoron_server.flower import exchange, serving
from quoron_server.flower.engine import Users, identity
from quoron_server.flower.serving import serve
from quoron_server.plan import Privacy
from quoron_server.specification import RunSpecification
from quoron_server.storage.database import Database
from quoron_server.storage.ledger import Ledger
from quoron_server.storage.lifetime_ledger import PopulationLedger
from quoron_server.storage.registry import Registry

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
            "state": str(folder / f"record-{user}.sqlite"),
            "limit": "inf,1",
            "accept": "none,central-release,central-broadcast,local",
            "simulation-seed": str(SEED),
        }
        for user, node in enumerate(numbers.tolist())
    }
    keys = {node: f"key {config['partition-id']}".encode() for node, config in configs.items()}
    return People(apps.app, configs, keys=keys, **more)


def served(grid: FakeGrid, wanted: RunSpecification, folder: Path, *, waiting: float = 60.0) -> np.ndarray:
    database = f"sqlite:///{folder}/store.sqlite"
    return serve(grid, wanted.as_text(), database, waiting=waiting, allow_simulation=True).model


pytestmark = pytest.mark.usefixtures("time")  # nobody sleeps


def questions(folder: Path, user: int) -> list[tuple[str, int, bytes]]:
    with sqlite3.connect(folder / f"record-{user}.sqlite") as record:
        return record.execute("SELECT run, round, digest FROM answers").fetchall()


@pytest.mark.parametrize("name", by_default(SMALL, ["phased-sgd"]))
def test_same_seed_gives_the_bits_of_the_inline_engine(name: str, tmp_path: Path) -> None:
    wanted = small(name, "trial", USERS)
    np.testing.assert_array_equal(served(people(tmp_path), wanted, tmp_path), expected(wanted, tmp_path / "inline"))


@pytest.mark.parametrize("dies_at", by_default(range(6), (0, 3)))
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


def _numbers(reply: Message, numbers: np.ndarray) -> Message:
    return with_answer(reply, values=array_to_wire(numbers))


FAULTS: dict[str, Fault] = {
    "silent": lambda message, reply: [],
    "error": lambda message, reply: [error_reply(message)],
    "declined": lambda message, reply: [with_values(reply, answer=None, declined=True)],
    "refused": lambda message, reply: [with_values(reply, answer=None, refused=SECRET)],
    "nothing": lambda message, reply: [with_values(reply, answer=None)],
    "noise": lambda message, reply: [with_values(reply, answer=b"\xff" * 40)],
    "text": lambda message, reply: [with_values(reply, answer="text")],
    "digest": lambda message, reply: [with_answer(reply, digest=b"another question")],
    "run": lambda message, reply: [with_answer(reply, run="another")],
    "round": lambda message, reply: [with_answer(reply, round=17)],
    "status": lambda message, reply: [with_answer(reply, status=99)],
    "shape": lambda message, reply: [_numbers(reply, np.ones(DIMENSION + 1))],
    "NaN": lambda message, reply: [_numbers(reply, np.full(DIMENSION, np.nan))],
    "infinite": lambda message, reply: [_numbers(reply, np.full(DIMENSION, -np.inf))],
    "huge": lambda message, reply: [_numbers(reply, np.full(DIMENSION, 1e300))],
    "other node": lambda message, reply: [from_node(reply, 17)],
    "other message": lambda message, reply: [in_reply_to(reply, "another message")],
}


EACH_BRANCH = ("silent", "error", "declined", "refused", "noise", "digest", "shape", "NaN", "other node")


@pytest.fixture(scope="module")
def without_two(tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    """The model if user 2 never answers."""
    return without(small("dp-sgd-wor", "trial", USERS), tmp_path_factory.mktemp("inline"), user=2)


@pytest.mark.parametrize("fault", by_default(FAULTS, EACH_BRANCH))
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


@pytest.mark.parametrize("how", ["it says so", "it was away", "three times"])
def test_what_the_superlink_has_lost_is_asked_again_to_the_same_bits(
    how: str, without_two: np.ndarray, tmp_path: Path
) -> None:
    """As one does that ends when it has taken a message for delivery, and is started again."""
    wanted, lost = small("dp-sgd-wor", "trial", USERS), Counter[tuple[int, bytes]]()

    def loses(message: Message, reply: Message) -> Iterable[Message]:
        if not _asks(message) or grid.configs[message.metadata.dst_node_id]["partition-id"] != 2:
            return [reply]
        asked = pb.Question.FromString(message.content["quoron"]["question"])
        lost[asked.round, asked.digest] += 1
        if lost[asked.round, asked.digest] > (3 if how == "three times" else 1):
            return [reply]
        if how != "it was away":
            return [given_up(message)]
        grid.away |= frozenset(range(grid._calls, grid._calls + 8))
        return []

    grid = people(tmp_path, fault=loses)
    model = served(grid, wanted, tmp_path)
    right = without_two if how == "three times" else expected(wanted, tmp_path / "inline")
    np.testing.assert_array_equal(model, right)
    assert lost
    assert set(lost.values()) == {3 if how == "three times" else 2}
    assert len({number for number, _ in lost}) == len(lost) == len(questions(tmp_path, 2))


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


def test_a_superlink_that_stays_away_leaves_the_run_as_it_is(tmp_path: Path) -> None:
    wanted = small("dp-sgd-wor", "trial", USERS)
    with pytest.raises(exchange.SuperLinkAway):
        served(people(tmp_path, away=frozenset(range(7, 2000))), wanted, tmp_path)
    np.testing.assert_array_equal(served(people(tmp_path), wanted, tmp_path), expected(wanted, tmp_path / "inline"))


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
    assert set(heard) == set(there), "all of them, anyone who is drawn"


SIZES = (3, 1, 2)
PERSONS = sum(SIZES)


def hospitals(folder: Path, sizes: tuple[int, ...] = SIZES, **more: Any) -> FakeGrid:
    """A node for each silo, whose numbers are in no order; that of one person is a node of one user."""
    (folder / "items").mkdir(exist_ok=True, parents=True)
    paths, configs, keys = write_silos(folder / "items", sizes), {}, {}
    for number, (path, size) in enumerate(zip(paths, sizes, strict=True)):
        node = 100 + 7 * (number + 2) % 11
        silo = {"user": "who", "users": size} if size > 1 else {}
        configs[node] = {
            "partition-id": number,
            "num-partitions": len(sizes),
            "data": str(path),
            "state": str(folder / f"record-{number}.sqlite"),
            "limit": "inf,1",
            "accept": "none,central-release,central-broadcast,local",
            "simulation-seed": str(SEED),
            **silo,
        }
        keys[node] = f"key {number}".encode()
    return FakeGrid(apps.app, configs, keys=keys, **more)


def wanted(name: str = "one-pass-dp-sgd", run: str = "trial") -> Any:
    return small(name, run, PERSONS, silos=SIZES)


def served_silos(grid: FakeGrid, spec: Any, folder: Path, *, max_users: int = 5) -> np.ndarray:
    where = f"sqlite:///{folder}/store.sqlite"
    given = {"waiting": 60.0, "allow_simulation": True, "max_users": max_users}
    return serve(grid, spec.as_text(), where, **given).model


QUICK_SILOS = ("dp-sgd-poisson", "phased-sgd")


@pytest.mark.parametrize(
    "name",
    [
        *QUICK_SILOS,
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("one-pass-dp-sgd", "srgd", "dp-ftrl")),
    ],
)
def test_the_same_persons_give_the_same_bits_with_one_message_a_round_and_node(name: str, tmp_path: Path) -> None:
    spec, grid = wanted(name), hospitals(tmp_path)
    np.testing.assert_array_equal(served_silos(grid, spec, tmp_path), expected(spec, tmp_path / "inline"))
    asked = [
        (message.metadata.dst_node_id, pb.Question.FromString(message.content["quoron"]["question"]).round)
        for message in grid.asked
        if "question" in message.content["quoron"]
    ]
    assert len(asked) == len(set(asked))
    with Database(f"sqlite:///{tmp_path}/store.sqlite") as database:
        assert Registry(database).silos() == {0: 3, 4: 2}


def _statuses(message: Any) -> tuple[str, list[int]]:
    answer = pb.Answer.FromString(message.content["quoron"]["answer"])
    return answer.run, list(answer.statuses) or [int(answer.status)]


def test_a_silo_that_nobody_let_in_is_nobody(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="Expected 6 users in group everyone within 60 seconds, got 1"):
        served_silos(hospitals(tmp_path), wanted(), tmp_path, max_users=1)


def test_a_run_that_was_not_planned_for_silos_is_refused_before_it_is_charged(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="what is guaranteed of a run with silos assumes more"):
        served_silos(hospitals(tmp_path), small("one-pass-dp-sgd", "trial", PERSONS), tmp_path)
    with Database(f"sqlite:///{tmp_path}/store.sqlite") as database:
        assert PopulationLedger(database).charges("everyone") == []
        assert Registry(database).run("trial").state == "failed"


def test_how_many_a_silo_answers_for_is_declared_and_not_counted() -> None:
    for said in ({"user": "who"}, {"users": 3}, {"user": "who", "users": 0}):
        with pytest.raises(ConfigError, match="Expected user and users together"):
            people_of(said, {})
    assert people_of({}, {"QUORON_USER": "who", "QUORON_USERS": "300"}) == 300
    assert people_of({}, {}) == 1
    owner = read_owner({"data": "x.csv", "state": "r", "user": "who", "users": 4}, {})
    assert (owner.user_column, owner.people) == ("who", 4)


def test_a_file_of_more_persons_than_were_declared_keeps_nobody_else_away(tmp_path: Path) -> None:
    """Whoever is one too many is left out; a silo that refused would show one person's rows in everybody's."""
    grid = hospitals(tmp_path)
    for config in grid.configs.values():
        if config.get("users") == 3:
            config["users"] = 2
    served_silos(grid, small("one-pass-dp-sgd", "trial", PERSONS - 1, silos=(2, 1, 2)), tmp_path)
    statuses = [_statuses(message)[1] for message in grid.received if "answer" in message.content["quoron"]]
    assert all(status == Status.ANSWERED for each in statuses for status in each)


WANTED = specification("one-pass-dp-sgd")
PROBLEM = WANTED.problem
TRAINING = Training(
    run="trial",
    algorithm="one-pass-dp-sgd",
    problem=PROBLEM,
    privacy=Privacy(15.0, 0.1),
    clip_norm=1.0,
    simulation_seed=7,
)


def test_a_run_of_the_coordinator_is_not_trained_on_by_a_serverapp_of_ones_own(tmp_path: Path) -> None:
    with Database(f"sqlite:///{tmp_path}/store.sqlite") as database:
        store = RunStore(database)
        store.registry.add_run("trial", TRAINING.as_text())
        with pytest.raises(OtherVersion, match="`quoron serve`"):
            store.enter(TRAINING, TRAINING.plan(), "flower-app")
        assert store.registry.run("trial").state == "waiting"


SUBMITTED = small("dp-sgd-wor", "trial", USERS)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """The ServerApp's handler is for a process of its own."""
    logger = logging.getLogger("quoron")
    before, level = list(logger.handlers), logger.level
    yield
    logger.handlers, logger.level = before, level


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a ServerApp for trials; the folder of its results."""
    monkeypatch.setenv("QUORON_DATABASE", f"sqlite:///{tmp_path}/store.sqlite")
    monkeypatch.setenv("QUORON_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("QUORON_ALLOW_SIMULATION", "1")
    monkeypatch.delenv("QUORON_SUPERNODE_AUTH", raising=False)
    monkeypatch.delenv("QUORON_GROUP", raising=False)
    return tmp_path / "results"


def serve_app(
    folder: Path,
    text: str = SUBMITTED.as_text(),
    *,
    waiting: object = 60.0,
    grid: FakeGrid | None = None,
) -> FakeGrid:
    settings = {"specification": text, "waiting": waiting}
    grid = people(folder) if grid is None else grid
    federated.server_app(grid, Context(1, 1, {}, RecordDict(), settings))
    return grid


@pytest.mark.parametrize("name", ["QUORON_DATABASE", "QUORON_RESULTS", "QUORON_ALLOW_SIMULATION"])
def test_what_the_operator_has_not_said_is_named(
    name: str, environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(name)
    missing = "QUORON_SUPERNODE_AUTH=1" if name == "QUORON_ALLOW_SIMULATION" else name
    with pytest.raises(ConfigError, match=f"Expected {missing} in the"):
        serve_app(tmp_path)
    assert f"Expected {missing}" in caplog.text


@pytest.mark.parametrize("waiting", [math.nan, math.inf, -1.0, 604801.0, "soon", None], ids=str)
def test_no_submitter_makes_a_run_wait_for_ever(waiting: object, environment: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Expected waiting in \[0, 604800\] seconds"):
        serve_app(tmp_path, waiting=waiting)
    with pytest.raises(QuoronError, match="Expected a run specification"):
        serve_app(tmp_path, "[" * 9)


def test_the_operator_decides_whose_lifetime_budget_is_drawn_on(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, nobody = small("srgd", "evil", USERS, group="mine").as_text(), people(tmp_path)
    with pytest.raises(ConfigError, match="Expected a run of group everyone, got group='mine'"):
        serve_app(tmp_path, other, grid=nobody)
    assert not nobody.asked
    assert not (tmp_path / "store.sqlite").exists()
    monkeypatch.setenv("QUORON_GROUP", "mine")
    serve_app(tmp_path, other)
    with Database(f"sqlite:///{tmp_path}/store.sqlite") as database:
        assert sum(Registry(database).standing("mine").values()) == USERS


def test_authentication_alone_allows_no_simulation(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUORON_ALLOW_SIMULATION", "0")
    monkeypatch.setenv("QUORON_SUPERNODE_AUTH", "1")
    with pytest.raises(ConfigError, match="simulation=false"):
        serve_app(tmp_path)


def test_a_run_whose_messages_no_client_takes_is_refused(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quoron_client.protocol.wire.MAX_WHOLE", 4100)
    with pytest.raises(ConfigError, match="Expected messages of at most 4,100 bytes"):
        serve_app(tmp_path)


@pytest.mark.parametrize("dies_at", ["Ledger.abandon", "PopulationLedger.release"])
def test_a_start_ends_what_was_ended_but_not_to_its_last_line(
    dies_at: str, environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails = dies_at == "Ledger.abandon"
    with monkeypatch.context() as dies:
        if fails:
            dies.setattr(serving.RunStore, "carry_out", _raises(RunError("no room")))
        place = "quoron_server.federation.Ledger.abandon" if fails else "quoron_server.runs.PopulationLedger.release"
        dies.setattr(place, _raises(Killed()))
        with pytest.raises(Killed):
            serve_app(tmp_path)
    serve_app(tmp_path, small("srgd", "another", USERS).as_text())
    with Database(f"sqlite:///{tmp_path}/store.sqlite") as database:
        assert not Ledger.unreleased(database)
        ends = [row["payload"]["run"] for row in PopulationLedger(database).rows() if row["kind"] == "end"]
    assert ends == ["trial", "another"]


def _raises(error: BaseException) -> Callable[..., None]:
    def fails(*_: object, **__: object) -> None:
        raise error

    return fails


@pytest.mark.parametrize("how", ["complete", "failed"])
def test_members_hear_of_the_end_of_a_run_again_at_every_start_that_meets_it(
    how: str, environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def farewells(grid: FakeGrid) -> list[object]:
        found = [each for each in grid.asked if each.metadata.message_type == "query.ended"]
        return [each.content["quoron"]["how"] for each in found]

    expects = suppress(RunError) if how == "failed" else nullcontext()
    with monkeypatch.context() as fails, expects:
        if how == "failed":
            fails.setattr(serving.RunStore, "carry_out", _raises(RunError("no room")))
        grid = people(tmp_path)
        serve_app(tmp_path, grid=grid)
    assert farewells(grid) == [how] * USERS
    again = people(tmp_path)
    with expects:
        serve_app(tmp_path, grid=again)
    assert farewells(again) == [how] * USERS
    away = people(tmp_path, away=frozenset(range(9999)))
    with expects:
        serve_app(tmp_path, grid=away)


RAISES = "import sys\nprint('INFO: begins', flush=True)\nopen('/nowhere/at/all')"


def test_whatever_ends_by_an_error_its_last_line_is_passed_on(tmp_path: Path) -> None:
    log = ["ERROR: an earlier one", "Traceback (most recent):", "OSError: no room", "\x1b[91mERROR\x1b[0m: code 200"]
    assert last_error("\n".join(log)) == " Its last error: OSError: no room"
    assert last_error(log[-1]) == " Its last error: ERROR: code 200"
    assert last_error("INFO: no Error here\n") == ""
    (tmp_path / "log").write_text("ValueError: of a program before it\n")
    with (
        Process("python", ["-c", RAISES], home=tmp_path / "home", log=tmp_path / "log") as program,
        pytest.raises(RunError, match=r"python has ended with code 1\..*Its last error: FileNotFoundError: .*all'$"),
    ):
        program.healthy("http://127.0.0.1:1/")
    quiet = Process("python", ["-c", ""], home=tmp_path / "home", log=tmp_path / "log")
    with quiet, pytest.raises(RunError, match=r"ended with code 0\. Its log is .*log\.$"):
        quiet.healthy("http://127.0.0.1:1/")


def test_a_submitted_app_names_components_that_are_there_and_carries_the_specification_whole(tmp_path: Path) -> None:
    write_app(tmp_path / "app", SUBMITTED, waiting=30)
    app = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert app["config"] == {"specification": SUBMITTED.as_text(), "waiting": 30.0}
    assert isinstance(load_app(app["components"]["serverapp"], QuoronError), ServerApp)
    assert isinstance(load_app(COMPONENTS["clientapp"], QuoronError), ClientApp)


def test_a_run_on_flower_is_written_as_an_app_and_needs_no_coordinator(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = str(Path(__file__).parents[2] / "examples" / "federation" / "run.toml")
    app = tmp_path / "app"
    assert invoke(["submit", config, "--run", "trial", "--users", "3", "--app", str(app)]) == 0
    assert f"flwr run {app}" in capsys.readouterr().out
    assert tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["components"] == COMPONENTS


def test_a_user_is_known_by_its_key_whatever_the_number_of_its_node(tmp_path: Path) -> None:
    for run, seed in (("first", 3), ("second", 4)):
        wanted = small("srgd", run, USERS)
        model = served(people(tmp_path, seed=seed), wanted, tmp_path)
        np.testing.assert_array_equal(model, expected(wanted, tmp_path / run))
    with Database(f"sqlite:///{tmp_path}/store.sqlite") as database:
        registry = Registry(database)
        assert [registry.user(identity(f"key {user}".encode())) for user in range(USERS)] == list(range(USERS))
        assert registry.users_count() == USERS


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


def test_a_member_who_comes_back_in_the_middle_is_asked_again(tmp_path: Path) -> None:
    """Its number is another one afterwards."""
    wanted = small("recentred-sgd", "trial", USERS, options={"rounds": 2, "rate": 1.0})
    grid = people(tmp_path)
    gone = next(node for node in grid.configs if grid._user(node) == 0)

    def moves(message: Message, reply: Message) -> Iterable[Message]:
        if _asks(message) and gone in grid.configs:
            grid.configs = {node + 1000 if node == gone else node: each for node, each in grid.configs.items()}
            grid.keys = {node + 1000 if node == gone else node: each for node, each in grid.keys.items()}
        return [reply]

    grid.fault = moves
    served(grid, wanted, tmp_path)
    with ClientState(tmp_path / "record-0.sqlite", epsilon=1.0, delta=1.0) as kept:
        assert kept.spent[0] > 0
    assert any(message.metadata.dst_node_id == gone + 1000 and _asks(message) for message in grid.asked)
