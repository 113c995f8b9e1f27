"""Books put back from a copy are others: nothing that was open goes on by itself, and each more copy is charged."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa

from federation.crowd import Honest, complete, coordinator, crowd, specification
from operators import reaching
from quoron.cli.app import invoke
from quoron.federation.control import Address, Control
from quoron_client.protocol.questions import AverageGradient, Question
from quoron_privacy.errors import BudgetExceeded, ConfigError, LedgerError, OtherVersion, QuoronError
from quoron_server.books import backup
from quoron_server.books.backup import accept, back_up, continue_held, read, restore
from quoron_server.books.database import Database
from quoron_server.books.ledger import Ledger
from quoron_server.books.lifetime_ledger import PopulationLedger
from quoron_server.books.registry import SERVICE, Registry
from quoron_server.books.store import verify_rows
from quoron_server.federation import Books
from quoron_server.service import tokens
from quoron_server.specification import make_plan, planned


def filled(url: str, limit: float = 9.0) -> None:
    """Books with a complete run, one that runs and one that waits."""
    with Database(url) as database:
        books = Books(database)
        for name in ("ada", "ben"):
            books.registry.enrol(name)
        books.population.limit("everyone", epsilon=limit, delta=1e-3)
        for run in ("done", "open"):
            books.registry.add_run(run, "{}")
            books.registry.fix_members(run, 2)
            books.population.charge(run, "everyone", epsilon=1.0, delta=1e-6, mu=0.2, variation=1e-12)
            ledger = Ledger.begin(database, run, plan="p", config_digest="c", noise_key=b"the secret key")
            books.registry.set_state(run, "running")
            ledger.commit(-1, b"the secret state", (), {})
            if run == "done":
                ledger.finish(np.ones(2))
                books.end(run, "complete")
        books.registry.add_run("later", "{}")
        books.registry.note_agreed("open", [0, 1], epsilon=1.0, delta=1e-6)


def backed_up(url: str, out: Path, *, with_secrets: bool = True) -> str:
    with Database(url, create=False, sole=False) as database:
        return back_up(database, out, with_secrets=with_secrets)


@pytest.fixture
def url(database_url: str) -> str:
    """SQLite, and PostgreSQL where there is a server."""
    filled(database_url)
    return database_url


def other(tmp_path: Path, name: str = "other") -> str:
    return f"sqlite:///{tmp_path}/{name}.sqlite"


def test_no_secret_leaves_the_books_unasked(url: str, tmp_path: Path) -> None:
    backed_up(url, tmp_path / "b", with_secrets=False)
    backed_up(url, tmp_path / "c", with_secrets=True)
    words = [b"dGhlIHNlY3JldCBrZXk", b"dGhlIHNlY3JldCBzdGF0"]  # base64
    assert [[word in (tmp_path / name).read_bytes() for word in words] for name in "bc"] == [[False] * 2, [True] * 2]


def test_a_backup_that_has_changed_is_refused(tmp_path: Path) -> None:
    filled(other(tmp_path, "books"))
    backed_up(other(tmp_path, "books"), tmp_path / "b")
    content = (tmp_path / "b").read_bytes()
    for at in range(0, len(content), 61):
        changed = bytearray(content)
        changed[at] ^= 4
        (tmp_path / "c").write_bytes(changed)
        with pytest.raises(LedgerError, match="Expected a whole backup"):
            restore(tmp_path / "c", other(tmp_path))
    for cut in (0, 1, len(content) // 2, len(content) - 2):
        (tmp_path / "c").write_bytes(content[:cut])
        with pytest.raises(LedgerError, match="Expected a whole backup"):
            restore(tmp_path / "c", other(tmp_path))


def test_nothing_is_written_over(tmp_path: Path) -> None:
    filled(other(tmp_path, "books"))
    backed_up(other(tmp_path, "books"), tmp_path / "b")
    with pytest.raises(LedgerError, match="found one"):
        backed_up(other(tmp_path, "books"), tmp_path / "b")
    with pytest.raises(LedgerError, match="found some, or their count"):
        restore(tmp_path / "b", other(tmp_path, "books"))


def test_the_ledger_of_a_run_folder_goes_on_from_a_copy_only_if_that_is_said(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with Ledger.create(path, plan="p", config_digest="c", noise_key=b"k") as ledger:
        ledger.commit(-1, b"state", (), {})
    (tmp_path / "ledger.sqlite-acknowledged").unlink()
    for _ in "ab":  # being refused does not make it any better
        with pytest.raises(LedgerError, match="found none: the file was copied"):
            Ledger.open(path)
        with pytest.raises(LedgerError, match="Say --continue"):
            accept(path)
    assert accept(path, continue_open=True).continued == ("run",)
    with Ledger.open(path) as ledger:
        assert ledger.resume_point() == (-1, b"state")
    assert {each.name for each in tmp_path.iterdir()} == {path.name, f"{path.name}-acknowledged"}


async def test_a_running_coordinator_copies_its_file_beside_it_for_operators_only(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as running:
        auditor = tokens.add(tmp_path / "tokens.json", name="eve", role="auditor")
        operator = tokens.add(tmp_path / "tokens.json", name="ada", role="operator")
        await running.manager.enrol("ada", "everyone")

        def asked(token: str) -> tuple[str, str]:
            with Control(Address(running.control, token, insecure=True)) as control:
                return control.backup()

        with pytest.raises(QuoronError, match="role operator"):
            await asyncio.to_thread(asked, auditor)
        name, digest = await asyncio.to_thread(asked, operator)
        assert digest.encode() in (tmp_path / name).read_bytes()
        restore(tmp_path / name, other(tmp_path))  # while the other one goes on
        with Database(other(tmp_path), create=False) as database:
            assert Registry(database).users_count() == 1


def whole_run(books: Books, number: int) -> None:
    """From its submission to its first round: each line of it is a transaction of its own."""
    run = f"run {number}"
    books.registry.add_run(run, "{}")
    books.registry.fix_members(run, 2)
    books.population.charge(run, "everyone", epsilon=1.0, delta=1e-6)
    ledger = Ledger.begin(books.database, run, plan="p", config_digest="c", noise_key=b"k")
    books.registry.set_state(run, "running")
    ledger.commit(-1, b"state", (), {})
    ledger.spend(Question(0, np.arange(2), AverageGradient(np.zeros((1, 2)), (1.0,))), users=2, gradient_evaluations=4)
    ledger.commit(0, b"state", (), {"round": 0})


def begun(url: str) -> Books:
    books = Books(Database(url))
    for name in ("ada", "ben"):
        books.registry.enrol(name)
    whole_run(books, 0)
    return books


def charged(rows: list[dict]) -> list[str]:
    return [json.loads(row["payload"])["run"] for row in sorted(rows, key=lambda row: row["sequence"])]


def torn(path: Path) -> list[str]:
    """What of a backup cannot have been there at one instant: each line of `whole_run` comes after those before it."""
    rows = read(path).rows
    known, charges = {row["run"] for row in rows["runs"]}, set(charged(rows["population"]))
    begun, secret = (
        {row["run"] for row in rows["run_ledgers"]},
        {row["run"]: row["round"] for row in rows["unreleased"]},
    )
    spent, running = {row["run"] for row in rows["spent"]}, {r["run"] for r in rows["runs"] if r["state"] == "running"}
    last: dict[str, int] = {}
    for row in rows["commits"]:
        last[row["run"]] = max(last.get(row["run"], -1), row["round"])
    chain = [row | {"payload": json.loads(row["payload"])} for row in rows["population"]]
    verify_rows(chain)
    order = [last.keys(), running, begun, charges, known]
    wrong = [str(later - earlier) for later, earlier in pairwise(order) if later - earlier]
    wrong += [run for run, round_ in last.items() if secret.get(run) != round_]
    return wrong + [run for run, round_ in last.items() if round_ >= 0 and run not in spent]


@contextmanager
def at_each_statement(database: Database, act) -> Iterator[None]:
    """Call `act` before each statement of this database, in the midst of its transactions."""
    at_work = False

    def before(connection, cursor, statement, *_) -> None:
        nonlocal at_work
        if not at_work and connection.engine is database._engine:
            at_work = True
            try:
                act()
            finally:
                at_work = False

    sa.event.listen(sa.engine.Engine, "before_cursor_execute", before)
    try:
        yield
    finally:
        sa.event.remove(sa.engine.Engine, "before_cursor_execute", before)


@pytest.mark.parametrize("isolated", [True, False])
def test_runs_that_begin_between_any_two_of_its_statements_tear_nothing(
    postgres: str, tmp_path: Path, isolated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a coordinator that owns the database. The broken twin reads each table as it is by then."""
    books, numbers = begun(postgres), iter(range(1, 999))
    with books.database, Database(postgres, create=False, sole=False) as beside:
        if not isolated:
            monkeypatch.setattr(backup, "_ONE_INSTANT", "SELECT 1")
        with at_each_statement(beside, lambda: whole_run(books, next(numbers))):
            back_up(beside, tmp_path / "b", with_secrets=True)
        assert next(numbers) > 9
        assert bool(torn(tmp_path / "b")) is not isolated
        rows = books.population.rows()
    if isolated:
        held = charged(read(tmp_path / "b").rows["population"])
        assert held == [row["payload"]["run"] for row in rows][: len(held)]
        assert len(held) <= 3 < len(rows)  # what began after its first statement is not in it


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
        pytest.raises(OtherVersion, match="`quoron runs RUN --continue`"),
    ):
        Books(database).registry.run("trial").require(SERVICE)
    command = [*reaching(database=other(tmp_path, "one")), "runs", "trial", "--continue"]
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


async def test_a_coordinator_lets_held_runs_go_on_for_operators_and_carries_them_out(tmp_path: Path) -> None:
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
    async with coordinator(tmp_path, database=other(tmp_path, "restored")) as running:
        auditor = tokens.add(tmp_path / "tokens.json", name="eve", role="auditor")
        operator = tokens.add(tmp_path / "tokens.json", name="ada", role="operator")

        def said(token: str, run: str) -> str:
            with Control(Address(running.control, token, insecure=True)) as control:
                return str(control.continue_restored(run)["state"])

        values = {row["run"]: row["error"] for row in await running.manager.records.runs()}
        assert all("--continue" in str(error) for error in values.values())
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
    with Database(other(tmp_path, "restored"), create=False) as database:
        charges = PopulationLedger(database).charges("everyone")
    assert [each.run.split(" ")[0] for each in charges].count("trial") == 2
    assert [each.run.split(" ")[0] for each in charges].count("second") == 2
    assert {each.epsilon for each in charges} == {charge}


def test_everything_is_put_back_whatever_the_database(url: str, tmp_path: Path) -> None:
    digest = backed_up(url, tmp_path / "b")
    assert json.loads((tmp_path / "b").read_text().splitlines()[-1]) == {"sha256": digest}
    assert (tmp_path / "b").stat().st_mode & 0o777 == 0o600
    restored = restore(tmp_path / "b", other(tmp_path))
    assert restored.held == ("open", "later")
    with Database(url, create=False) as before, Database(other(tmp_path), create=False) as after:
        assert before.incarnation != after.incarnation == restored.incarnation
        assert PopulationLedger(before).verify() == PopulationLedger(after).verify()
        np.testing.assert_array_equal(Ledger.within(after, "done").model, np.ones(2))
        assert Ledger.within(after, "open").resume_point() == (-1, b"the secret state")
        assert Registry(after).agreed(1, 9) == [("open", 1.0, 1e-6)]
        assert [each.state for each in Registry(after).runs()] == [each.state for each in Registry(before).runs()]


def test_what_was_open_is_held_by_name_until_it_is_cancelled(url: str, tmp_path: Path) -> None:
    backed_up(url, tmp_path / "b", with_secrets=False)
    restore(tmp_path / "b", other(tmp_path))
    with Database(other(tmp_path), create=False) as database:
        books = Books(database)
        for run in ("open", "later"):
            with pytest.raises(OtherVersion, match=f"Expected run {run} as it was left, but these books were restored"):
                books.registry.run(run).require(SERVICE)
            with pytest.raises(OtherVersion, match="restored"):
                books.registry.add_run(run, "{}")
            assert books.cancel(run) == "cancelled"
        books.registry.run("done").require(SERVICE)
        assert books.registry.add_run("new", "{}")


def test_what_goes_on_is_charged_as_one_more_copy_each_time(url: str, tmp_path: Path) -> None:
    backed_up(url, tmp_path / "b")
    first = restore(tmp_path / "b", other(tmp_path, "one"), continue_open=True)
    assert (first.held, first.continued) == (("later",), ("open",))
    backed_up(other(tmp_path, "one"), tmp_path / "c")
    restore(tmp_path / "c", other(tmp_path, "two"), continue_open=True)
    with Database(other(tmp_path, "two"), create=False) as database:
        books = Books(database)
        books.registry.run("open").require(SERVICE)
        charges = [each for each in books.population.charges("everyone") if each.run.startswith("open")]
        assert [each.mu for each in charges] == [0.2] * 3  # of a Gaussian run √3 μ together
        books.settle()
    restore(tmp_path / "c", other(tmp_path, "held"))
    with Database(other(tmp_path, "held"), create=False) as database:
        assert len(PopulationLedger(database).charges("everyone")) == 3


def test_a_copy_without_room_or_secrets_does_not_go_on_and_leaves_nothing(tmp_path: Path) -> None:
    filled(other(tmp_path, "tight"), limit=2.5)
    backed_up(other(tmp_path, "tight"), tmp_path / "b")
    backed_up(other(tmp_path, "tight"), tmp_path / "without", with_secrets=False)
    before = set(tmp_path.iterdir())
    with pytest.raises(BudgetExceeded):
        restore(tmp_path / "b", other(tmp_path), continue_open=True)
    with pytest.raises(LedgerError, match="Expected the secrets of run open"):
        restore(tmp_path / "without", other(tmp_path), continue_open=True)
    assert set(tmp_path.iterdir()) == before
