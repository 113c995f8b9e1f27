"""A restored database is another one: what was open has ended, its charges stay, and nothing is released again."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from federation.crowd import Honest, complete, coordinator, crowd, specification
from quoron.federation.control import Control
from quoron_client.protocol.questions import AverageGradient, Question
from quoron_privacy.errors import LedgerError, QuoronError
from quoron_server.federation import RunStore
from quoron_server.service import tokens
from quoron_server.specification import planned
from quoron_server.storage import backup
from quoron_server.storage.backup import accept, back_up, read, restore
from quoron_server.storage.database import Database
from quoron_server.storage.ledger import Ledger
from quoron_server.storage.lifetime_ledger import PopulationLedger
from quoron_server.storage.registry import Registry
from quoron_server.storage.store import verify_rows


def filled(url: str, limit: float = 9.0) -> None:
    """A store with a complete run, one that runs and one that waits."""
    with Database(url) as database:
        store = RunStore(database)
        for name in ("ada", "ben"):
            store.registry.enrol(name)
        store.population.limit("everyone", epsilon=limit, delta=1e-3)
        for run in ("done", "open"):
            store.registry.add_run(run, "{}")
            store.registry.fix_members(run, 2)
            store.population.charge(run, "everyone", epsilon=1.0, delta=1e-6, mu=0.2, variation=1e-12)
            ledger = Ledger.begin(database, run, plan="p", config_digest="c", noise_key=b"the secret key")
            store.registry.set_state(run, "running")
            ledger.commit(-1, b"the secret state", (), {})
            if run == "done":
                ledger.finish(np.ones(2))
                store.end(run, "complete")
        store.registry.retire([1])
        store.registry.add_run("later", "{}")
        store.registry.note_agreed("open", [0, 1], epsilon=1.0, delta=1e-6)


def backed_up(url: str, out: Path) -> str:
    with Database(url, create=False, sole=False) as database:
        return back_up(database, out)


@pytest.fixture
def url(database_url: str) -> str:
    """SQLite, and PostgreSQL where there is a server."""
    filled(database_url)
    return database_url


def other(tmp_path: Path, name: str = "other") -> str:
    return f"sqlite:///{tmp_path}/{name}.sqlite"


def test_no_secret_is_in_a_backup(url: str, tmp_path: Path) -> None:
    backed_up(url, tmp_path / "b")
    for word in (b"dGhlIHNlY3JldCBrZXk", b"dGhlIHNlY3JldCBzdGF0"):  # base64
        assert word not in (tmp_path / "b").read_bytes()


def test_a_backup_that_has_changed_is_refused(tmp_path: Path) -> None:
    filled(other(tmp_path, "books"))
    backed_up(other(tmp_path, "books"), tmp_path / "b")
    content = (tmp_path / "b").read_bytes()
    for at in range(0, len(content), 61):
        changed = bytearray(content)
        changed[at] ^= 4
        (tmp_path / "c").write_bytes(changed)
        with pytest.raises(LedgerError, match="Expected a whole database backup"):
            restore(tmp_path / "c", other(tmp_path))
    for cut in (0, 1, len(content) // 2, len(content) - 2):
        (tmp_path / "c").write_bytes(content[:cut])
        with pytest.raises(LedgerError, match="Expected a whole database backup"):
            restore(tmp_path / "c", other(tmp_path))


def test_nothing_is_written_over(tmp_path: Path) -> None:
    filled(other(tmp_path, "books"))
    backed_up(other(tmp_path, "books"), tmp_path / "b")
    with pytest.raises(LedgerError, match="found one"):
        backed_up(other(tmp_path, "books"), tmp_path / "b")
    with pytest.raises(LedgerError, match="found one, or its count"):
        restore(tmp_path / "b", other(tmp_path, "books"))


def test_the_run_of_a_run_folder_ends_where_its_ledger_is_an_older_copy(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with Ledger.create(path, plan="p", config_digest="c", noise_key=b"the secret key") as ledger:
        ledger.commit(-1, b"state", (), {})
    (tmp_path / "ledger.sqlite-acknowledged").unlink()
    for _ in "ab":  # being refused does not make it any better
        with pytest.raises(LedgerError, match="found none: the file was copied"):
            Ledger.open(path)
    assert accept(path).ended == ("run",)
    with Ledger.open(path) as ledger:
        assert ledger.resume_point() is None
        with pytest.raises(LedgerError, match="has ended and its noise key is erased"):
            _ = ledger.noise_key
        with pytest.raises(LedgerError, match="there or the run has ended"):
            ledger.commit(0, b"state", (), {})
    assert b"the secret key" not in path.read_bytes()
    assert {each.name for each in tmp_path.iterdir()} == {path.name, f"{path.name}-acknowledged"}


async def test_a_running_coordinator_copies_its_file_beside_it_for_operators_only(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as running:
        auditor = tokens.add(tmp_path / "tokens.json", name="eve", role="auditor")
        operator = tokens.add(tmp_path / "tokens.json", name="ada", role="operator")
        await running.scheduler.enrol("ada", "everyone")

        def asked(token: str) -> tuple[str, str]:
            with Control(running.control, token, insecure=True) as control:
                return control.backup()

        with pytest.raises(QuoronError, match="role operator"):
            await asyncio.to_thread(asked, auditor)
        name, digest = await asyncio.to_thread(asked, operator)
        assert digest.encode() in (tmp_path / name).read_bytes()
        restore(tmp_path / name, other(tmp_path))  # while the other one goes on
        with Database(other(tmp_path), create=False) as database:
            assert Registry(database).users_count() == 1


def whole_run(store: RunStore, number: int) -> None:
    """From its submission to its first round: each line of it is a transaction of its own."""
    run = f"run {number}"
    store.registry.add_run(run, "{}")
    store.registry.fix_members(run, 2)
    store.population.charge(run, "everyone", epsilon=1.0, delta=1e-6)
    ledger = Ledger.begin(store.database, run, plan="p", config_digest="c", noise_key=b"k")
    store.registry.set_state(run, "running")
    ledger.commit(-1, b"state", (), {})
    ledger.spend(Question(0, np.arange(2), AverageGradient(np.zeros((1, 2)), (1.0,))), users=2, gradient_evaluations=4)
    ledger.commit(0, b"state", (), {"round": 0})


def begun(url: str) -> RunStore:
    store = RunStore(Database(url))
    for name in ("ada", "ben"):
        store.registry.enrol(name)
    whole_run(store, 0)
    return store


def charged(rows: list[dict]) -> list[str]:
    return [json.loads(row["payload"])["run"] for row in sorted(rows, key=lambda row: row["sequence"])]


def torn(path: Path) -> list[str]:
    """What of a backup cannot have been there at one instant: each line of `whole_run` comes after those before it."""
    rows = read(path).rows
    known, charges = {row["run"] for row in rows["runs"]}, set(charged(rows["population"]))
    begun = {row["run"] for row in rows["run_ledgers"]}
    spent, running = {row["run"] for row in rows["spent"]}, {r["run"] for r in rows["runs"] if r["state"] == "running"}
    last: dict[str, int] = {}
    for row in rows["commits"]:
        last[row["run"]] = max(last.get(row["run"], -1), row["round"])
    chain = [row | {"payload": json.loads(row["payload"])} for row in rows["population"]]
    verify_rows(chain)
    order = [last.keys(), running, begun, charges, known]
    wrong = [str(later - earlier) for later, earlier in pairwise(order) if later - earlier]
    return wrong + [run for run, round_ in last.items() if round_ >= 0 and run not in spent]


def test_every_charge_of_before_it_began_is_in_it_and_a_prefix_of_all(database_url: str, tmp_path: Path) -> None:
    """A thread that charges as fast as it can; of PostgreSQL the backup has a connection of its own."""
    store, written, stop = begun(database_url), ["run 0"], threading.Event()

    def write() -> None:
        for number in range(1, 2000):
            if stop.is_set():
                return
            whole_run(store, number)
            written.append(f"run {number}")

    writer = threading.Thread(target=write)
    with store.database:
        beside = store.database if store.database.path else Database(database_url, create=False, sole=False)
        writer.start()
        try:
            before = []
            for number in range(6):
                before.append(list(written))
                back_up(beside, tmp_path / str(number))
        finally:
            stop.set()
            writer.join()
            beside.close()
    for number, acknowledged in enumerate(before):
        assert torn(tmp_path / str(number)) == []
        held = charged(read(tmp_path / str(number)).rows["population"])
        assert held[: len(acknowledged)] == acknowledged
        assert held == [f"run {each}" for each in range(len(held))]
    restore(tmp_path / "5", f"sqlite:///{tmp_path}/other.sqlite")
    with Database(f"sqlite:///{tmp_path}/other.sqlite", create=False) as database:
        assert {row.state for row in Registry(database).runs()} == {"cancelled"}


@contextmanager
def at_each_statement(database: Database, act) -> Iterator[None]:
    """Call `act` before each statement of this database, in the midst of its transactions."""
    at_work = False

    original, connection = database._connection.execute, database._connection

    def execute(*statement):
        nonlocal at_work
        if not at_work:
            at_work = True
            try:
                act()
            finally:
                at_work = False
        return original(*statement)

    connection.execute = execute
    try:
        yield
    finally:
        del connection.execute


@pytest.mark.parametrize("isolated", [True, False])
def test_runs_that_begin_between_any_two_of_its_statements_tear_nothing(
    postgres: str, tmp_path: Path, isolated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a coordinator that owns the database. The broken twin reads each table as it is by then."""
    store, numbers = begun(postgres), iter(range(1, 999))
    with store.database, Database(postgres, create=False, sole=False) as beside:
        if not isolated:
            monkeypatch.setattr(backup, "_ONE_INSTANT", "SELECT 1")
        with at_each_statement(beside, lambda: whole_run(store, next(numbers))):
            back_up(beside, tmp_path / "b")
        assert next(numbers) > 9
        assert bool(torn(tmp_path / "b")) is not isolated
        rows = store.population.rows()
    if isolated:
        held = charged(read(tmp_path / "b").rows["population"])
        assert held == [row["payload"]["run"] for row in rows][: len(held)]
        assert len(held) <= 4 < len(rows)  # what began after its first statement is not in it


pytestmark = pytest.mark.usefixtures("planned_once", "verified_once")
KINDS = ("sqlite", "postgresql")


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a database is restored to."""
    return other(tmp_path) if request.param == "sqlite" else request.getfixturevalue("postgres_server").new_database()


def rows(url: str) -> dict[str, list]:
    """All that there is, but whose it is, and how runs stand."""
    with Database(url, create=False) as database, database.writing():
        names = ("users", "runs", "slots", "draws", "agreed", "population", "run_ledgers", "spent", "commits")
        found = {name: database.rows(f"SELECT * FROM {name}") for name in names}
    kept = {name: [dict(row) | {"state": "", "error": ""} for row in each] for name, each in found.items()}
    return {name: sorted(str(sorted(row.items())) for row in each) for name, each in kept.items()}


@pytest.mark.parametrize("place", KINDS, indirect=True)
def test_every_row_comes_back_from_either_database_into_either(database_url: str, place: str, tmp_path: Path) -> None:
    filled(database_url)
    digest = backed_up(database_url, tmp_path / "b")
    assert json.loads((tmp_path / "b").read_text().splitlines()[-1]) == {"sha256": digest}
    assert (tmp_path / "b").stat().st_mode & 0o777 == 0o600
    restored = restore(tmp_path / "b", place)
    assert restored.ended == ("open", "later")
    assert rows(place) == rows(database_url)
    with Database(database_url, create=False) as before, Database(place, create=False) as after:
        assert after.incarnations == (*before.incarnations, restored.incarnation)
        assert PopulationLedger(before).verify() == PopulationLedger(after).verify()
        np.testing.assert_array_equal(Ledger.within(after, "done").model, np.ones(2))
        assert Registry(after).agreed(1, 9) == [("open", 1.0, 1e-6)]
    backed_up(place, tmp_path / "c")  # and from there on
    assert restore(tmp_path / "c", other(tmp_path, "third")).ended == ()
    assert rows(other(tmp_path, "third")) == rows(place)
    with pytest.raises(LedgerError, match="Restore to another"):
        restore(tmp_path / "b", place)


def taken(url: str, tmp_path: Path) -> str:
    """The database as a backup restores it."""
    backed_up(url, tmp_path / "b")
    assert restore(tmp_path / "b", other(tmp_path)).ended == ("open", "later")
    return other(tmp_path)


def in_its_place(url: str, tmp_path: Path) -> str:
    """A SQLite file that lost its count, secrets of its runs and all."""
    path = tmp_path / "other.sqlite"
    filled(other(tmp_path))
    path.with_name(path.name + "-acknowledged").unlink()
    assert accept(path).ended == ("open", "later")
    assert b"the secret" not in path.read_bytes()
    return other(tmp_path)


@pytest.mark.parametrize("how", [taken, in_its_place])
def test_what_was_open_has_ended_and_its_charge_stays(how, url: str, tmp_path: Path) -> None:
    """No secret, no question and no release of it is left, nor is its name; the charge stands in full."""
    with Database(how(url, tmp_path), create=False) as database:
        store = RunStore(database)
        before = store.population.account("everyone")
        for _ in "ab":  # at every start
            store.settle()
            for run in ("open", "later"):
                row = store.registry.run(run)
                assert (row.state, row.error) == ("cancelled", backup.ENDED)
                assert not store.registry.add_run(run, "{}")
                assert store.cancel(run) == "cancelled"
            assert Ledger.unreleased(database) == set()
        assert [each.run for each in store.population.charges("everyone")] == ["done", "open"]
        assert store.population.account("everyone") == before
        ledger = Ledger.within(database, "open")
        asked = Question(0, np.arange(2), AverageGradient(np.zeros((1, 2)), (1.0,)))
        for release in (
            lambda: ledger.noise_key,
            lambda: ledger.spend(asked, users=2, gradient_evaluations=4),
            lambda: ledger.commit(0, b"state", (), {}),
            lambda: ledger.finish(np.ones(2)),
        ):
            with pytest.raises(LedgerError, match="has ended"):
                release()
        assert store.registry.run("done").state == "complete"
        assert store.registry.add_run("new", "{}")


def test_a_run_whose_model_was_released_before_its_state_was_written_is_complete(tmp_path: Path) -> None:
    filled(other(tmp_path, "books"))
    with Database(other(tmp_path, "books"), create=False) as database:
        Ledger.within(database, "open").finish(np.ones(2))
    backed_up(other(tmp_path, "books"), tmp_path / "b")
    assert restore(tmp_path / "b", other(tmp_path)).ended == ("later",)
    with Database(other(tmp_path), create=False) as database:
        store = RunStore(database)
        store.settle()
        assert store.registry.run("open").state == "complete"
        np.testing.assert_array_equal(Ledger.within(database, "open").model, np.ones(2))


async def test_a_coordinator_of_a_restored_database_asks_nobody_of_a_run_that_has_ended(tmp_path: Path) -> None:
    """One that had begun and one that waited, both of a coordinator that was killed; operators read why."""
    first, second = (specification("one-pass-dp-sgd", name) for name in ("trial", "second"))
    users, url = first.problem.users, other(tmp_path, "books")
    with Database(url) as database:
        store = RunStore(database)
        for number in range(users):
            store.registry.enrol(f"name:client-{number}")
        for each in (first, second):
            store.registry.add_run(each.run, each.as_text())
        store.begin(*planned(first.as_text()))
    backed_up(url, tmp_path / "b")
    restore(tmp_path / "b", other(tmp_path, "restored"))
    third = specification("one-pass-dp-sgd", "third")
    async with coordinator(tmp_path, database=other(tmp_path, "restored")) as running:
        found = {row["run"]: (row["state"], row["error"]) for row in await running.scheduler.records.runs()}
        assert found == dict.fromkeys(("trial", "second"), ("cancelled", backup.ENDED))
        async with crowd(running.listen, users) as peers:
            assert not running.sessions.runs
            work = [asyncio.create_task(peer.work(Honest.of(users), runs=2)) for peer in peers]
            await running.scheduler.submit(third.as_text())
            await complete(running, "third")
            await asyncio.gather(*work)
    with Database(other(tmp_path, "restored"), create=False) as database:
        assert [each.run for each in PopulationLedger(database).charges("everyone")] == ["trial", "third"]
