"""Runs held in restored books go on only when that is said, later too, and every copy of them is charged."""

import asyncio
from pathlib import Path

import pytest

from federation.crowd import Honest, carried_out, complete, coordinator, crowd, specification
from federation.test_backup import backed_up, filled, other
from quoron.cli.app import invoke
from quoron.operate.control import Address, Control
from quoron_privacy.errors import BudgetExceeded, ConfigError, LedgerError, OtherVersion, QuoronError
from quoron_server.books.database import Database
from quoron_server.books.ledger import Ledger
from quoron_server.books.lifetime_ledger import PopulationLedger
from quoron_server.books.registry import SERVICE
from quoron_server.books.restoring import continue_held, restore
from quoron_server.runs import Books
from quoron_server.service import tokens
from quoron_server.specification import make_plan, planned

PROMISE = {"group": "everyone", "epsilon": 1.0, "delta": 1e-6, "mu": 0.2, "variation": 1e-12}
pytestmark = pytest.mark.usefixtures("planned_once", "verified_once")
KINDS = ("sqlite", "postgresql")


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where books are restored to."""
    return other(tmp_path) if request.param == "sqlite" else request.getfixturevalue("postgres_server").new_database()


def rows(url: str) -> dict[str, list]:
    """All that there is, but whose it is."""
    with Database(url, create=False) as database, database.writing() as connection:
        names = ("users", "runs", "slots", "agreed", "population", "run_ledgers", "unreleased", "spent", "commits")
        found = {name: connection.exec_driver_sql(f"SELECT * FROM {name}").mappings().all() for name in names}
    kept = {name: [dict(row) | {"held": 0} for row in each] for name, each in found.items()}
    return {name: sorted(str(sorted(row.items())) for row in each) for name, each in kept.items()}


def charges(url: str) -> list[str]:
    with Database(url, create=False) as database:
        return [each.run for each in PopulationLedger(database).charges("everyone")]


@pytest.mark.parametrize("place", KINDS, indirect=True)
def test_every_row_comes_back_from_either_database_into_either(database_url: str, place: str, tmp_path: Path) -> None:
    filled(database_url)
    backed_up(database_url, tmp_path / "b")
    restored = restore(tmp_path / "b", place)
    assert restored.held == ("open", "later")
    assert rows(place) == rows(database_url)
    with Database(database_url, create=False) as before, Database(place, create=False) as after:
        assert after.incarnations == (*before.incarnations, restored.incarnation)
    backed_up(place, tmp_path / "c")  # and from there on
    restore(tmp_path / "c", other(tmp_path, "third"))
    assert rows(other(tmp_path, "third")) == rows(place)
    with pytest.raises(LedgerError, match="Restore beside them"):
        restore(tmp_path / "b", place)


@pytest.mark.parametrize("place", KINDS, indirect=True)
def test_what_is_refused_leaves_nothing_behind_and_the_place_free(place: str, tmp_path: Path) -> None:
    filled(other(tmp_path, "tight"), limit=2.5)
    for name, secrets in (("b", True), ("without", False)):
        backed_up(other(tmp_path, "tight"), tmp_path / name, with_secrets=secrets)
    with pytest.raises(BudgetExceeded):
        restore(tmp_path / "b", place, continue_open=True)
    with pytest.raises(LedgerError, match="Expected the secrets of run open"):
        restore(tmp_path / "without", place, continue_open=True)
    assert restore(tmp_path / "b", place).held == ("open", "later")
    assert charges(place) == ["done", "open"]


@pytest.mark.parametrize("place", KINDS, indirect=True)
def test_a_hold_is_lifted_later_for_the_same_charge(place: str, tmp_path: Path) -> None:
    filled(other(tmp_path, "books"))
    backed_up(other(tmp_path, "books"), tmp_path / "b")
    word = restore(tmp_path / "b", place).incarnation
    with Database(place, create=False) as database:
        books = Books(database)
        assert continue_held(database, "open") == 1
        books.registry.run("open").require(SERVICE)
        assert books.population.charged(f"open (copy {word})").promise == books.population.charged("open").promise
        assert Ledger.within(database, "open").resume_point() == (-1, b"the secret state")
        for run, each in (("open", "running, not held"), ("done", "complete, not held"), ("none", "none of that name")):
            with pytest.raises(ConfigError, match=f"is held .*, got '{run}': {each}"):
                continue_held(database, run)
        assert continue_held(database, "later", PROMISE) == 1
        books.registry.run("later").require(SERVICE)
        books.settle()
    assert charges(place) == ["done", "open", f"open (copy {word})", f"later (copy {word})"]


def test_a_run_is_charged_for_each_time_that_it_was_put_back_and_may_have_gone_on(tmp_path: Path) -> None:
    """Books restored from a copy of restored books: those between may have let it go on after the copy was made."""
    filled(other(tmp_path, "books"))
    backed_up(other(tmp_path, "books"), tmp_path / "b")
    restore(tmp_path / "b", other(tmp_path, "one"))
    backed_up(other(tmp_path, "one"), tmp_path / "c")
    with Database(other(tmp_path, "one"), create=False) as database:
        continue_held(database, "open")  # which the copy does not know
    word = restore(tmp_path / "c", other(tmp_path, "two"), continue_open=True).incarnation
    assert charges(other(tmp_path, "two")) == ["done", "open", f"open (copy {word})", f"open (copy {word}, 2)"]


def test_restorations_that_were_lost_are_copies_too(tmp_path: Path) -> None:
    filled(other(tmp_path, "books"))
    backed_up(other(tmp_path, "books"), tmp_path / "b")
    lost = [restore(tmp_path / "b", other(tmp_path, name)).incarnation for name in ("one", "two")]
    restored = restore(tmp_path / "b", other(tmp_path, "three"), lost=[*lost, lost[0]])
    with Database(other(tmp_path, "three"), create=False) as database:
        assert database.incarnations[1:] == (*lost, restored.incarnation)
        assert continue_held(database, "open") == 3
    for word in ("", "x" * 16, "0" * 15):
        with pytest.raises(ConfigError, match="16 digits of an incarnation"):
            restore(tmp_path / "b", other(tmp_path, "four"), lost=[word])


def test_without_room_or_secrets_a_run_stays_held_and_uncharged(tmp_path: Path) -> None:
    filled(other(tmp_path, "books"), limit=3.5)
    for name, secrets in (("b", True), ("without", False)):
        backed_up(other(tmp_path, "books"), tmp_path / name, with_secrets=secrets)
    restore(tmp_path / "without", other(tmp_path, "one"))
    with Database(other(tmp_path, "one"), create=False) as database:
        with pytest.raises(LedgerError, match="Expected the secrets of run open"):
            continue_held(database, "open")
        with pytest.raises(BudgetExceeded, match="'later'"):  # its lost copy would fit, but then it could not begin
            continue_held(database, "later", PROMISE)
        assert [row.held for row in Books(database).registry.runs()] == [0, 1, 1]
        assert Books(database).cancel("later") == "cancelled"
    assert charges(other(tmp_path, "one")) == ["done", "open"]


def test_a_waiting_run_is_charged_by_its_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = specification("one-pass-dp-sgd", simulation=False, simulation_seed=None)
    with Database(other(tmp_path, "books")) as database:
        Books(database).registry.add_run("trial", wanted.as_text())
    backed_up(other(tmp_path, "books"), tmp_path / "b")
    word = restore(tmp_path / "b", other(tmp_path, "one"), continue_open=True).incarnation
    with (
        Database(other(tmp_path, "one"), create=False) as database,
        pytest.raises(OtherVersion, match="`quoron continue-restored`"),
    ):
        Books(database).registry.run("trial").require(SERVICE)
    command = ["continue-restored", "trial", "--database", other(tmp_path, "one")]
    assert invoke(command) == 0
    assert "trial: goes on, charged for 1 more copy" in capsys.readouterr().out
    assert invoke(command) == 2
    with Database(other(tmp_path, "one"), create=False) as database:
        books = Books(database)
        for number in range(wanted.problem.users):
            books.registry.enrol(str(number))
        books.begin(*planned(wanted.as_text()))
        charges = books.population.charges("everyone")
        assert [each.run for each in charges] == [f"trial (copy {word})", "trial"]
        assert charges[0].promise == charges[1].promise
        assert books.continue_held("nobody", planned) is None


def test_a_coordinator_lets_held_runs_go_on_for_operators_and_carries_them_out(tmp_path: Path) -> None:
    """One that had begun and one that waited, both of a coordinator that was killed and whose books were put back."""
    first, second = (specification("one-pass-dp-sgd", name) for name in ("trial", "second"))
    users, charge = first.problem.users, make_plan(first).guarantee.epsilon
    url = other(tmp_path, "books")
    with Database(url) as database:
        books = Books(database)
        for number in range(users):
            books.registry.enrol(f"name:client-{number}")
        for each in (first, second):
            books.registry.add_run(each.run, each.as_text())
        books.begin(*planned(first.as_text()))
    backed_up(url, tmp_path / "b")
    restore(tmp_path / "b", other(tmp_path, "restored"))

    async def scene() -> None:
        async with coordinator(tmp_path, database=other(tmp_path, "restored")) as running:
            auditor = tokens.add(tmp_path / "tokens.json", name="eve", role="auditor")
            operator = tokens.add(tmp_path / "tokens.json", name="ada", role="operator")

            def said(token: str, run: str) -> str:
                with Control(Address(running.control, token, insecure=True)) as control:
                    return str(control.continue_restored(run)["state"])

            values = {row["run"]: row["error"] for row in await running.manager.records.runs()}
            assert all("continue-restored" in str(error) for error in values.values())
            with pytest.raises(QuoronError, match="role operator"):
                await asyncio.to_thread(said, auditor, "trial")
            with pytest.raises(ConfigError, match="Expected the name of a run"):
                await asyncio.to_thread(said, operator, "none")
            async with crowd(running.listen, users) as peers:
                assert not running.sessions.runs  # being here begins nothing
                work = [asyncio.create_task(peer.work(Honest.of(users), runs=2)) for peer in peers]
                for run in ("trial", "second"):
                    await asyncio.to_thread(said, operator, run)
                for run in ("trial", "second"):
                    await complete(running, run)
                with pytest.raises(ConfigError, match="'trial': complete, not held"):
                    await asyncio.to_thread(said, operator, "trial")
                await asyncio.gather(*work)

    carried_out(scene())
    with Database(other(tmp_path, "restored"), create=False) as database:
        charges = PopulationLedger(database).charges("everyone")
    assert [each.run.split(" ")[0] for each in charges].count("trial") == 2
    assert [each.run.split(" ")[0] for each in charges].count("second") == 2
    assert {each.epsilon for each in charges} == {charge}
