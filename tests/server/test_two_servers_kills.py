"""Kills of coordinator and helper at their writes: the bits of a run that nobody disturbed, and no second list.

Clients send the same bytes for the same question, as their records make them.
"""

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from quoron_client.protocol.questions import Answers, Question, Status
from quoron_privacy.errors import LedgerUnavailable
from quoron_privacy.noise.streams import SecureNoise
from quoron_privacy.two_servers.noise import Entry, next_chain
from quoron_protos.v1 import helper_pb2 as pb
from quoron_server.plan import RunPlan
from quoron_server.runs import Run
from quoron_server.second_server import runs
from quoron_server.second_server.keys import Keys
from quoron_server.second_server.runs import HelpedRuns, HelpedRunStore, UnknownRun
from quoron_server.service import second_server_client
from quoron_server.service.second_server_client import (
    SCHEMA,
    SUMS,
    SecondServerClient,
    ServerAway,
    ServerDisagrees,
    TwoServersEngine,
)
from quoron_server.service.sessions import Sealed
from quoron_server.specification import RunSpecification
from quoron_server.storage.database import Database
from server.helper_scene import LEADER, PLANNED, SIGNING, Leader, key_of, opened, plan_of, real, request

USERS, KILLS = 20, 20


@pytest.fixture(autouse=True)
def planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan takes a second, and is the same after every kill."""
    monkeypatch.setattr(runs, "planned", PLANNED)


class Killed(BaseException):
    """Of a process, without warning."""


@dataclass
class Moments:
    """Twenty kills of whoever uses a database, before or after what it writes, after so many transactions or more."""

    first: int
    database: Database | None = None
    left: int = 0
    kills: int = 0

    def __post_init__(self) -> None:
        self.left = self.first

    def due(self) -> bool:
        """Whether this transaction is the one."""
        self.left -= 1
        if self.left > 0 or self.kills >= KILLS:
            return False
        self.kills += 1
        self.left = self.first + self.kills % 5
        return True

    @contextlib.contextmanager
    def armed(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        writing, depth = Database.writing, [0]

        @contextlib.contextmanager
        def counted(database: Database) -> Iterator[Any]:
            mine = database is self.database and not depth[0]
            depth[0] += 1
            try:
                with writing(database) as connection:
                    yield connection
                    dies = mine and self.due()
                    if dies and self.kills % 2:
                        raise Killed  # it is not durable
            finally:
                depth[0] -= 1
            if dies:
                raise Killed

        with monkeypatch.context() as patched:
            patched.setattr(Database, "writing", counted)
            yield


@dataclass
class Clients:
    """Users who send what they sent before, and some of them only the first time that they are asked."""

    run: RunSpecification
    leader: Leader
    sent: dict[tuple[int, int], tuple[Entry, np.ndarray]] = field(default_factory=dict)
    broken: frozenset[int] = frozenset()

    def of(self, user: int, round_: int, length: int) -> tuple[Entry, np.ndarray]:
        if (user, round_) not in self.sent:
            row = np.random.default_rng([user, round_]).integers(-(1 << 20), 1 << 20, length)
            entry, values = self.leader.masked(user, round_, row)
            if user in self.broken:
                entry = entry._replace(sealed=bytes(len(entry.sealed)))
            self.sent[user, round_] = entry, values
        return self.sent[user, round_]


@dataclass
class Inner:
    """Brings questions to clients who are all here but those who are `away`."""

    clients: Clients
    session: Any
    away: set[int] = field(default_factory=set)
    stopped: bool = False

    def collect(self, question: Question, shape: tuple[int, ...], row: Any = None) -> Answers:
        del row
        values = np.zeros((len(question.cohort), *shape))
        status = np.full(len(question.cohort), Status.MISSING, np.uint8)
        self.session.sealed = {}
        for slot, user in enumerate(question.cohort.tolist()):
            if user in self.away:
                continue
            entry, words = self.clients.of(user, question.round, shape[0])
            values.view(np.uint64)[slot] = words
            status[slot] = Status.ANSWERED
            self.session.sealed[slot] = Sealed(entry.question_digest, entry.sealed)
        return Answers(values, status)


class Linked(SecondServerClient):
    """The helper in this process; dead after a kill until it is there again."""

    def __init__(self, database: Database, second: "Second") -> None:
        self._database, self.second = database, second
        self.link = SimpleNamespace(address="helper")  # type: ignore[assignment]
        database.ensure(SCHEMA)

    def _consent(self, specification: RunSpecification, plan: RunPlan) -> pb.HelperConsent:
        del plan
        return self.second.do(lambda helped: helped.open(request(specification), LEADER))

    def sum(self, head: pb.HelperList, entries: Sequence[Entry]) -> pb.Reply:
        return self.second.do(lambda helped: helped.sum(head, entries, LEADER))

    def recall(self, run: str, round_: int) -> pb.Reply | None:
        try:
            return self.second.do(lambda helped: helped.recall(run, round_, LEADER))
        except UnknownRun:
            return None

    def fingerprints(self, users: Sequence[int]) -> dict[int, bytes]:
        return {user: key_of(user) for user in users}


@dataclass
class Second:
    """A helper that comes back from its store after every kill."""

    place: Path
    moments: Moments | None = None
    helped: HelpedRuns | None = None
    database: Database | None = None

    def do(self, work: Any) -> Any:
        if self.helped is None:
            self.database = Database(f"sqlite:///{self.place}/helper.sqlite")
            if self.moments is not None:
                self.moments.database = self.database
        try:
            if self.helped is None:
                self.helped = HelpedRuns(HelpedRunStore(self.database), Keys(self.place / "keys"), SIGNING, threads=1)
            return work(self.helped)
        except Killed:
            self.end()
            raise ServerAway("the helper was killed") from None

    def end(self) -> None:
        if self.database is not None:
            self.database.close()
        self.helped = self.database = None


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunSpecification, RunPlan, Leader, Clients]:
    """A run that both servers have begun, and what its clients will send."""
    place = tmp_path_factory.mktemp("begun")
    specification = real("dp-ftrl")
    plan = plan_of(specification)
    with opened(place) as helped:
        leader = Leader(specification, helped)
    with Database(f"sqlite:///{place}/coordinator.sqlite") as database:
        run_of(specification, plan).begin(database).close()
    return place, specification, plan, leader, Clients(specification, leader)


def run_of(specification: RunSpecification, plan: RunPlan) -> Run:
    return Run(name=specification.run, plan=plan, digest="d")


def carried_out(
    place: Path, begun: Any, *, first: Moments | None = None, second: Moments | None = None, inner: Inner | None = None
) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """The model and the rows of the helper's lists, through every kill of either."""
    _, specification, plan, _, clients = begun
    members = np.arange(USERS, dtype=np.int64)
    inner = inner or Inner(clients, SimpleNamespace(members=members, sealed={}))
    other = Second(place, second)
    while True:
        database = Database(f"sqlite:///{place}/coordinator.sqlite")
        if first is not None:
            first.database = database
        try:
            link = Linked(database, other)
            run = run_of(specification, plan)
            ledger = run.begun(database)
            assert ledger is not None
            engine = TwoServersEngine(inner, link, specification, plan)  # type: ignore[arg-type]
            model = run.carry_out(ledger, engine, [engine])
            break
        except (Killed, LedgerUnavailable):
            database.close()
    if first is not None:
        first.database = None
    rows = database.rows(f"SELECT * FROM {SUMS.name}")
    database.close()
    other.end()
    return model, rows


def copied(begun: Any, to: Path) -> Path:
    shutil.copytree(begun[0], to)
    return to


@pytest.fixture(scope="module")
def undisturbed(begun: Any, tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    model, rows = carried_out(copied(begun, tmp_path_factory.mktemp("calm") / "all"), begun)
    assert len(rows) == 6
    return model


@pytest.mark.parametrize("whose", ["coordinator", "helper"])
def test_twenty_kills_at_its_writes_change_no_bit_and_no_list(
    whose: str, begun: Any, undisturbed: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, moments = copied(begun, tmp_path / "all"), Moments(9 if whose == "coordinator" else 1)
    with moments.armed(monkeypatch):
        model, rows = carried_out(place, begun, **{"first" if whose == "coordinator" else "second": moments})
    assert moments.kills == KILLS
    np.testing.assert_array_equal(model, undisturbed)
    with Database(f"sqlite:///{place}/helper.sqlite") as database:
        lists = HelpedRunStore(database).lists("trial")
    assert [each.round for each in lists] == list(range(6))
    assert [each.chain for each in lists] == [row["chain"] for row in sorted(rows, key=lambda row: row["round"])]


def test_after_a_rounds_commit_the_store_holds_neither_its_sum_nor_an_answer(begun: Any, tmp_path: Path) -> None:
    """Twin 25."""
    place = copied(begun, tmp_path / "all")
    _, rows = carried_out(place, begun)
    assert all(row["total"] is row["used"] is row["answered"] is None for row in rows)
    held = b"".join(path.read_bytes() for path in place.glob("coordinator.sqlite*"))
    clients = begun[4]
    assert not any(words.astype("<u8").tobytes()[:16] in held for _, words in clients.sent.values())
    for row in rows:
        there = [key for key in clients.sent if key[1] == row["round"]]
        total = np.sum([clients.sent[key][1] for key in there], axis=0, dtype=np.uint64)
        assert total.astype("<u8").tobytes() not in held


def test_a_kill_between_a_commit_and_its_forgetting_leaves_nothing_to_the_next_round(
    begun: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, killed, found = copied(begun, tmp_path / "all"), [], []
    forgets, summed = TwoServersEngine.round_finished, Linked.sum

    def dies(self: TwoServersEngine, event: Any) -> None:
        if event.round == 2 and not killed:
            killed.append(event)
            raise Killed
        forgets(self, event)

    def looked_at(self: Linked, head: pb.HelperList, entries: Sequence[Entry]) -> pb.Reply:
        if killed and not found:
            held = self.held("trial", 2)
            assert held is not None
            found.append(held["total"])
        return summed(self, head, entries)

    monkeypatch.setattr(TwoServersEngine, "round_finished", dies)
    monkeypatch.setattr(Linked, "sum", looked_at)
    carried_out(place, begun)
    assert killed
    assert found == [None]


def test_a_list_that_the_helper_has_answered_is_what_the_round_is_whoever_is_here_later(
    begun: Any, undisturbed: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before anything of the round was kept, with another user away when it is asked again."""
    place = copied(begun, tmp_path / "all")
    clients = begun[4]
    inner = Inner(clients, SimpleNamespace(members=np.arange(USERS, dtype=np.int64), sealed={}))
    summed, collected = Linked.sum, Inner.collect
    asked: list[int] = []

    def forgotten(self: Linked, head: pb.HelperList, entries: Sequence[Entry]) -> pb.Reply:
        summed(self, head, entries)
        monkeypatch.setattr(Linked, "sum", summed)
        self._database.rows(f"DELETE FROM {SUMS.name}")
        inner.away = {0}
        raise Killed

    def comes_back(self: Inner, question: Question, shape: tuple[int, ...], row: Any = None) -> Answers:
        found = collected(self, question, shape, row)
        asked.append(question.round)
        if len(asked) > 2:
            self.away = set()
        return found

    monkeypatch.setattr(Linked, "sum", forgotten)
    monkeypatch.setattr(Inner, "collect", comes_back)
    model, _ = carried_out(place, begun, inner=inner)
    np.testing.assert_array_equal(model, undisturbed)


def test_who_is_left_out_is_in_no_sum_and_labels_the_coordinators_noise(begun: Any, tmp_path: Path) -> None:
    """Twin 12's sibling: a helper that leaves a user out once, and not after the coordinator's store was put back,
    would get the difference of two sums under one noise."""
    _, specification, plan, _, clients = begun
    first = int(_first_question(run_of(specification, plan)).cohort[0])
    some = replace(clients, sent={}, broken=frozenset({first}))
    chains = []
    for who in (some, clients):
        place = copied(begun, tmp_path / f"{len(chains)}")
        with Database(f"sqlite:///{place}/coordinator.sqlite") as database:
            inner = Inner(who, SimpleNamespace(members=np.arange(USERS, dtype=np.int64), sealed={}))
            second = Second(place)
            engine = TwoServersEngine(inner, Linked(database, second), specification, plan)  # type: ignore[arg-type]
            run = run_of(specification, plan)
            question = _first_question(run)
            sums = engine.ask(question)
            cohort = question.cohort.tolist()
            assert sums.answered == len([user for user in cohort if user not in who.broken])
            assert (first in who.broken) == (sums.answered < len(cohort)), "it was left out, and nobody else"
            chains.append(sums.chain)
            entries = sorted(who.of(user, 0, len(sums.total))[0] for user in cohort if user not in who.broken)
            assert sums.chain == next_chain(bytes(32), 0, entries), "of those who are in the sum, and of no others"
            second.end()
    assert chains[0] != chains[1]


def _first_question(run: Run) -> Question:
    made = run._made
    question = made.request(made.init(), SecureNoise.fresh())
    assert question is not None
    return question


@pytest.mark.parametrize("named", [None, key_of(USERS + 7), b"short", key_of(1) * 2])
def test_a_helper_that_answers_for_another_list_or_names_users_who_were_not_asked_is_not_waited_for(
    named: bytes | None, begun: Any, tmp_path: Path
) -> None:
    """It would be asked for them for ever; None: of those who were asked."""
    _, specification, plan, _, clients = begun
    place = copied(begun, tmp_path / "all")
    with Database(f"sqlite:///{place}/coordinator.sqlite") as database:
        inner = Inner(clients, SimpleNamespace(members=np.arange(USERS, dtype=np.int64), sealed={}))
        second = Second(place)

        class Lying(Linked):
            def sum(self, head: pb.HelperList, entries: Sequence[Entry]) -> pb.Reply:
                reply = super().sum(head, entries)
                asked = b"".join(each.fingerprint for each in entries)
                reply.chain, reply.fingerprints = bytes(32), asked if named is None else named
                return reply

        engine = TwoServersEngine(inner, Lying(database, second), specification, plan)  # type: ignore[arg-type]
        with pytest.raises(ServerDisagrees, match="does not follow" if named is None else None):
            engine.ask(_first_question(run_of(specification, plan)))
        second.end()


def test_of_a_helper_that_is_away_every_ended_run_is_forgotten_and_one_asks(tmp_path: Path) -> None:
    class Away(Linked):
        tries = 0

        def _close(self, request: pb.CloseRun) -> None:
            Away.tries += 1
            raise ServerAway("not there")

    with Database(f"sqlite:///{tmp_path}/coordinator.sqlite") as database:
        link = Away(database, Second(tmp_path))
        for run in ("a", "b", "c"):
            link.hold(run, 0, bytes(32), bytes(32), np.ones(2, np.uint64), 1)
            with database.transaction() as execute:
                second_server_client._helped.insert(execute, {"run": run, "plan_digest": b"", "consent": b""})
        link.close_ended(SimpleNamespace(run=lambda _: None))  # type: ignore[arg-type]
        assert Away.tries == 1
        assert all(row["total"] is None for row in database.rows(f"SELECT * FROM {SUMS.name}"))
