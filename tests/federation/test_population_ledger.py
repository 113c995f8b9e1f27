"""Nothing on the chain can be changed, removed or moved unseen, and no run passes a group's limit."""

import asyncio
import json
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress

import pytest

from federation.crowd import carried_out, coordinator
from operators import before, reaching
from quoron.cli.app import app
from quoron_privacy.errors import (
    BudgetExceeded,
    ConfigError,
    IdentityError,
    LedgerError,
    LedgerUnavailable,
    RunError,
)
from quoron_server.service import tokens
from quoron_server.storage import lifetime_ledger
from quoron_server.storage.database import Database
from quoron_server.storage.lifetime_ledger import PopulationLedger
from quoron_server.storage.store import row_hash, verify_export, verify_rows

PROMISE = {"epsilon": 0.5, "delta": 1e-6}


@pytest.fixture
def database(database_url):
    with Database(database_url) as opened:
        yield opened


@pytest.fixture
def ledger(database):
    return PopulationLedger(database)


def filled(ledger: PopulationLedger) -> PopulationLedger:
    ledger.limit("everyone", epsilon=4.0, delta=1e-5)
    for run, gaussian in (("spring", {}), ("summer", {"mu": 0.1, "variation": 1e-13}), ("autumn", {})):
        ledger.charge(run, "everyone", **PROMISE, **gaussian, statement=f"what {run} guarantees; ü, 'quotes'")
        ledger.release(run, {"what": "model", "sha256": "00"})
        ledger.end(run, "complete")
    return ledger


def alter(database: Database, statement: str) -> None:
    with database.writing() as connection:
        connection.execute(statement)


ATTACKS = {
    "a number in a payload": (
        1,
        "UPDATE population SET payload = replace(payload, '\"epsilon\":0.5', '\"epsilon\":0.1') WHERE sequence = 1",
    ),
    "what a Gaussian run's samplers lack": (
        4,
        "UPDATE population SET payload = replace(payload, ':1e-13', ':1e-14') WHERE sequence = 4",
    ),
    "a payload that says the same in other words": (
        4,
        "UPDATE population SET payload = replace(payload, ':', ': ') WHERE sequence = 4",
    ),
    "a payload that is no JSON": (4, "UPDATE population SET payload = 'x' WHERE sequence = 4"),
    "a payload that is not a number": (4, "UPDATE population SET payload = 'NaN' WHERE sequence = 4"),
    "a time": (3, "UPDATE population SET time = '1970' WHERE sequence = 3"),
    "a kind": (3, "UPDATE population SET kind = 'release' WHERE sequence = 3"),
    "a hash": (5, "UPDATE population SET hash = '0' WHERE sequence = 5"),
    "a row removed": (4, "DELETE FROM population WHERE sequence = 4"),
    "the first row removed": (0, "DELETE FROM population WHERE sequence = 0"),
    "the first row removed and the others renumbered": (
        0,
        "DELETE FROM population WHERE sequence = 0;UPDATE population SET sequence = sequence - 100;"
        "UPDATE population SET sequence = sequence + 99",
    ),
    "two rows swapped": (
        2,
        "UPDATE population SET sequence = -1 WHERE sequence = 2;UPDATE population SET sequence = 2 WHERE sequence = 5;"
        "UPDATE population SET sequence = 5 WHERE sequence = -1",
    ),
    "a row copied to the end": (
        10,
        "INSERT INTO population SELECT 10, time, kind, payload, hash FROM population WHERE sequence = 4",
    ),
}


def on_sqlite_and(attack: str) -> pytest.MarkDecorator:
    """All attacks on SQLite, and one on PostgreSQL: what is read of either is judged by the same lines."""
    each = [*(("sqlite", name) for name in ATTACKS), ("postgresql", attack)]
    return pytest.mark.parametrize(("database_url", "attack"), each, indirect=["database_url"])


class TestChain:
    @on_sqlite_and("two rows swapped")
    def test_whatever_is_changed_removed_or_moved_is_found_and_named(self, ledger, database, attack):
        row, statements = ATTACKS[attack]
        filled(ledger)
        for statement in statements.split(";"):
            alter(database, statement)
        wrong = f"row {row} |expected row {row},"
        ledger = PopulationLedger(database)  # of another process: what one has read itself decides there, see below
        for use in (ledger.verify, ledger.export, lambda: ledger.spent("everyone")):
            with pytest.raises(LedgerError, match=wrong):
                use()
        for write in (
            lambda: ledger.charge("winter", "everyone", **PROMISE),
            lambda: ledger.limit("everyone", epsilon=9.0, delta=1e-5),
            lambda: ledger.end("winter", "complete"),
        ):
            with pytest.raises(LedgerError, match=wrong):
                write()

    @on_sqlite_and("a number in a payload")
    def test_what_is_changed_under_a_running_process_decides_nothing_there(self, ledger, database, attack):
        row, statements = ATTACKS[attack]
        filled(ledger)
        before = ledger.account("everyone")
        for statement in statements.split(";"):
            alter(database, statement)
        wrong = f"row {row} |expected row {row},"
        for use in (ledger.verify, ledger.export):
            with pytest.raises(LedgerError, match=wrong):
                use()
        with suppress(LedgerError):  # if it is behind the rows that it knows, or the last of them
            assert ledger.account("everyone") == before
        with pytest.raises((BudgetExceeded, LedgerError)):
            ledger.charge("winter", "everyone", epsilon=2.51, delta=0.0)

    def test_a_chain_that_was_put_back_under_a_running_process_is_refused_there(self, ledger, database):
        filled(ledger)
        alter(database, "DELETE FROM population WHERE sequence >= 7")
        for use in (lambda: ledger.charge("winter", "everyone", **PROMISE), lambda: ledger.spent("everyone")):
            with pytest.raises(LedgerError, match=r"row 9 is gone, or was written again|rows at its end are gone"):
                use()
        if database.path:
            return  # `test_a_last_row_that_was_deleted_...`
        PopulationLedger(database).charge("winter", "everyone", **PROMISE)  # which nothing inside the database can tell
        with pytest.raises(LedgerError, match="since this process read it"):
            ledger.charge("winter", "everyone", **PROMISE)

    def test_a_transaction_that_fails_leaves_nothing_known(self, ledger, database, monkeypatch):
        filled(ledger)
        monkeypatch.setattr(lifetime_ledger, "canonical", lambda payload: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            ledger.charge("winter", "everyone", **PROMISE)
        monkeypatch.undo()
        assert ledger.charged("winter") is None
        ledger.charge("winter", "everyone", **PROMISE)
        assert ledger.verify() == PopulationLedger(database).verify()

    def test_a_chain_written_anew_with_fitting_hashes_is_found_by_who_kept_a_head(self, ledger):
        head = filled(ledger).verify()
        rows = ledger.rows()
        rows[1]["payload"]["epsilon"] = 0.1
        previous = rows[0]["hash"]
        for row in rows[1:]:
            previous = row["hash"] = row_hash(previous, row)
        assert verify_rows(rows) == previous
        with pytest.raises(LedgerError, match="written again"):
            verify_rows(rows, head)

    def test_an_export_is_verified_without_the_database(self, ledger):
        text = filled(ledger).export()
        head = ledger.verify()
        assert verify_export(text, head) == head
        report = json.loads(text)
        spent = ledger.spent("everyone").epsilon
        assert 1.0 < spent < 1.5
        total = {"epsilon": spent, "delta": 3e-6, "runs": 3, "mu": 0.1, "variation": 1e-13, "lost": 0.0}
        assert report["groups"]["everyone"] == total
        for spoil in (
            lambda export: export["rows"].pop(),
            lambda export: export["rows"].pop(0),
            lambda export: export["rows"][1]["payload"].update(epsilon=0.1),
            lambda export: export.update(head="0" * 64),
        ):
            spoiled = json.loads(text)
            spoil(spoiled)
            with pytest.raises(LedgerError):
                verify_export(json.dumps(spoiled))
        for other in ("", "[]", "{}", '{"rows": 1, "head": ""}', '{"rows": [1], "head": ""}'):
            with pytest.raises(LedgerError, match="Expected an export"):
                verify_export(other)

    def test_rows_missing_at_the_end_are_found_by_who_kept_a_head(self, ledger, database):
        earlier = filled(ledger).verify()
        ledger.charge("winter", "everyone", **PROMISE)
        head = ledger.verify(earlier)
        alter(database, "DELETE FROM population WHERE sequence >= 9")
        if database.path:
            with pytest.raises(LedgerError, match=f"-acknowledged keeps the hash of its last row, {head}"):
                ledger.verify()
            with database.writing():
                database.keep_head("")  # as somebody may who writes there, too
        assert ledger.verify() != head  # nothing inside the database can tell
        for known in (earlier, head):
            with pytest.raises(LedgerError, match="rows at the end are gone or were written again"):
                ledger.verify(known)
        alter(database, "DELETE FROM population")
        with pytest.raises(LedgerError, match=r"no row has the hash|no row of .* has it"):
            ledger.verify(earlier)


class TestCharges:
    def test_a_charge_never_changes(self, ledger):
        filled(ledger)
        for other in ({"epsilon": 0.4}, {"mu": 0.1, "variation": 1e-12}, {"adjacency": "zero-out"}):
            with pytest.raises(LedgerError, match="another guarantee or population"):
                ledger.charge("spring", "everyone", **(PROMISE | other))
        with pytest.raises(LedgerError, match="another guarantee or population"):
            ledger.charge("spring", "phones", **PROMISE)

    def test_a_run_beyond_the_limit_is_refused_and_leaves_no_row(self, ledger):
        ledger.limit("everyone", epsilon=1.0, delta=1e-5)
        ledger.charge("spring", "everyone", **PROMISE)
        head = ledger.charge("summer", "everyone", **PROMISE) and ledger.verify()
        for use in (ledger.check, ledger.charge):
            with pytest.raises(
                BudgetExceeded, match=r"'autumn'.*ε = 0.01.*limit of population 'everyone', ε = 1.*so far: ε = 1"
            ):
                use("autumn", "everyone", epsilon=0.01, delta=0.0)
        assert ledger.verify() == head
        assert ledger.check("summer", "everyone", **PROMISE).run == "summer"  # is charged already
        assert ledger.check("autumn", "phones", **PROMISE).group == "phones"
        ledger.charge("autumn", "phones", epsilon=9.0, delta=1e-3)

    def test_a_limit_below_what_is_counted_is_refused_unless_it_is_meant(self, ledger):
        filled(ledger)
        head = ledger.verify()
        with pytest.raises(ConfigError, match=r"'everyone' above .*ε = 1.4.* count ε = 1.5 of 1.4.*--exceeded"):
            ledger.limit("everyone", epsilon=1.4, delta=1e-5)
        with pytest.raises(ConfigError, match=r"δ = 3e-06 of 2e-06"):
            ledger.limit("everyone", epsilon=4.0, delta=2e-6)
        assert ledger.verify() == head
        ledger.limit("everyone", epsilon=1.5, delta=3e-6)
        ledger.limit("everyone", epsilon=1.4, delta=1e-5, exceeded=True)
        ledger.limit("everyone", epsilon=1.4, delta=1e-5)  # it holds already
        assert not ledger.account("everyone").holds
        assert ledger.account("everyone").left_words() == "nothing"

    @pytest.mark.parametrize(
        "numbers",
        [
            {"epsilon": 0.0, "delta": 0.0},
            {"epsilon": float("nan"), "delta": 0.0},
            {"epsilon": 1.0, "delta": 1.0},
            {"epsilon": 1.0, "delta": 0.0, "mu": 0.0},
        ],
    )
    def test_what_is_no_promise_is_refused(self, ledger, numbers):
        with pytest.raises(ConfigError, match="Expected"):
            ledger.charge("run", "everyone", **numbers)
        assert ledger.rows() == []

    def test_many_at_once_never_pass_the_limit_together(self, ledger):
        ledger.limit("everyone", epsilon=1.0, delta=1e-3)

        def charge(number: int) -> bool:
            try:
                ledger.charge(f"run {number}", "everyone", epsilon=0.1, delta=1e-6)
            except BudgetExceeded:
                return False
            return True

        with ThreadPoolExecutor(4) as pool:
            assert sum(pool.map(charge, range(16))) == 10
        assert ledger.spent("everyone").epsilon == 1.0
        ledger.verify()

    def test_an_operator_beside_the_running_coordinator_and_the_coordinator_take_turns(self, postgres):
        with Database(postgres) as own:
            coordinator = PopulationLedger(own)
            with Database(postgres, create=False, sole=False) as beside, ThreadPoolExecutor(2) as pool:
                operator = PopulationLedger(beside)

                def limit(number: int) -> None:
                    operator.limit("everyone", epsilon=10.0 + number, delta=1e-3)

                def charge(number: int) -> None:
                    coordinator.charge(f"run {number}", "everyone", epsilon=0.1, delta=1e-6)

                list(pool.map(lambda job: job[0](job[1]), [(use, n) for n in range(15) for use in (limit, charge)]))
            assert len(coordinator.rows()) == 30
            coordinator.verify()

    def test_what_another_tool_spends_counts_and_is_no_run_of_ours(self, ledger):
        ledger.limit("everyone", epsilon=2.0, delta=1e-5)
        values = {"epsilon": 1.5, "delta": 1e-6, "elsewhere": True, "statement": "histogram of another library"}
        for _ in range(2):
            ledger.charge("histogram", "everyone", **values)
        assert len(ledger.charges("everyone")) == 1
        for other in ({"elsewhere": False}, {"epsilon": 1.0}):
            with pytest.raises(LedgerError, match="a run of another tool"):
                ledger.charge("histogram", "everyone", **(values | other))
        with pytest.raises(LedgerError, match="a run of another tool"):
            ledger.check("histogram", "everyone", epsilon=1.5, delta=1e-6)
        with pytest.raises(BudgetExceeded):
            ledger.charge("more", "everyone", **values)
        ledger.charge("more", "everyone", **values, spent=True)
        with pytest.raises(BudgetExceeded, match=r"ε = 3 of 2"):
            ledger.charge("ours", "everyone", epsilon=0.1, delta=0.0)
        assert ledger.rows()[1]["payload"]["statement"] == "histogram of another library"
        assert verify_export(ledger.export()) == ledger.verify()


def invoke(*arguments: str) -> None:
    app(args=before(["ledger", *arguments]), prog_name="quoron", standalone_mode=False)


@pytest.fixture
def two_charges(database_url):
    with Database(database_url) as database:
        ledger = PopulationLedger(database)
        ledger.charge("spring [1]", "everyone", epsilon=0.5, delta=1e-6)
        ledger.charge("summer", "phones", epsilon=0.25, delta=1e-6, mu=0.05, variation=1e-13)
    return database_url


def test_what_fits_is_what_a_charge_then_takes(two_charges, capsys):
    everyone = (*reaching(database=two_charges), "--population", "everyone")
    invoke("charge", "--dry-run", *everyone, "--epsilon", "7")
    assert "fits, as there is no limit" in capsys.readouterr().out
    invoke("limit", *everyone, "--epsilon", "0.8", "--delta", "1e-5")
    invoke("charge", "--dry-run", *everyone, "--epsilon", "0.3", "--delta", "9e-6")
    assert "fits; counted so far: ε = 0.5 of 0.8, δ = 1e-06 of 1e-05. What fits" in capsys.readouterr().out
    for numbers, each in (
        (("--epsilon", "0.31"), "ε = 0.3 at most"),
        (("--epsilon", "0.1", "--delta", "9.1e-6"), "Nothing fits with δ = 9.1e-06"),
        (("--epsilon", "0.2", "--adjacency", "zero-out"), "ε = 0.15 at most"),
    ):
        for command in (("charge", "--dry-run", *everyone), ("charge", "other", *everyone)):
            with pytest.raises(BudgetExceeded, match=each):
                invoke(*command, *numbers)
    invoke("charge", "opendp", *everyone, "--epsilon", "0.3", "--delta", "9e-6", "--note", "counts by ward")
    assert "everyone: opendp charged with ε = 0.3, δ = 9e-06 (replace-one)" in capsys.readouterr().out
    invoke("show", *reaching(database=two_charges), "--population", "everyone")
    assert "another tool's" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(BudgetExceeded, match="Nothing fits"):
        invoke("charge", "more", *everyone, "--epsilon", "0.1")
    invoke("charge", "more", *everyone, "--epsilon", "0.1", "--spent")
    with pytest.raises(ConfigError, match="--exceeded"):
        invoke("limit", *everyone, "--epsilon", "0.5", "--delta", "1e-5")
    invoke("limit", *everyone, "--epsilon", "0.5", "--delta", "1e-5", "--exceeded")
    invoke("show", *reaching(database=two_charges), "--json")
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["everyone"]["fits"]["epsilon"] == 0.0


SAMPLED = ("--epsilon", "0.5", "--delta", "1e-7", "--mu", "0.1,1e-15,1e-9")


def test_a_last_row_that_was_deleted_with_another_program_is_refused_wherever_the_ledger_is_used(tmp_path, capsys):
    """Also when whoever did it lowered the file's own count again, or did it before the ledger was first read anew."""
    path = tmp_path / "l.sqlite"
    where, charge = reaching(database=f"sqlite:///{path}"), ("--epsilon", "0.5", "--create")
    for run in ("spring", "summer"):
        invoke("charge", run, *charge, *where)
    kept = path.read_bytes()
    for attack in (
        "DELETE FROM population WHERE sequence = 1",
        "DELETE FROM population WHERE sequence = 1; UPDATE meta SET acknowledged = acknowledged + 1",
        "DELETE FROM population",
    ):
        path.write_bytes(kept)
        with closing(sqlite3.connect(path)) as shell:
            shell.executescript(attack)
        for use in (
            ("verify",),
            ("show",),
            ("limit", "--epsilon", "1", "--delta", "1e-5"),
            ("charge", "summer", *charge),
        ):
            with pytest.raises(LedgerError, match=r"rows at its end are gone.*l\.sqlite-acknowledged keeps the hash"):
                invoke(*use, *where)
    path.write_bytes(kept)
    capsys.readouterr()
    invoke("verify", *where)
    head = capsys.readouterr().out.strip()
    count, beside = (tmp_path / "l.sqlite-acknowledged").read_text().split()
    assert beside == head
    (tmp_path / "l.sqlite-acknowledged").write_text(f"{count}\n")  # as versions of before wrote it
    invoke("verify", *where)
    assert (tmp_path / "l.sqlite-acknowledged").read_text().split()[1] == head


def test_a_limit_makes_no_database_by_mistake(tmp_path, capsys):
    url = f"sqlite:///{tmp_path}/other.sqlite"
    numbers = ("--epsilon", "1", "--delta", "1e-5")
    with pytest.raises(LedgerError, match=r"(?s)found none.*--create"):
        invoke("limit", *reaching(database=url), *numbers)
    assert not list(tmp_path.iterdir())
    invoke("limit", *reaching(database=url), *numbers, "--create")
    invoke("limit", *reaching(database=url), *numbers)
    invoke("show", *reaching(database=url), "--json")
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["everyone"]["limit"] == "ε = 1, δ = 1e-05"


def beside(tmp_path, work):
    """`work` in a thread beside a coordinator on SQLite with two charges, given where it and its database are."""
    url = f"sqlite:///{tmp_path}/coordinator.sqlite"
    with Database(url) as database:
        ledger = PopulationLedger(database)
        ledger.charge("spring", "everyone", epsilon=0.5, delta=1e-6)
        ledger.charge("summer", "phones", epsilon=0.25, delta=1e-6, mu=0.05, variation=1e-13)

    async def scene():
        async with coordinator(tmp_path) as running:
            where = reaching(coordinator=running.control, insecure=True)
            await asyncio.to_thread(work, where, reaching(database=url), running)

    carried_out(scene())
    return url


def test_a_running_coordinator_is_asked_for_its_ledger_and_limited(tmp_path, capsys, monkeypatch):
    operator, auditor = (tokens.add(tmp_path / "tokens.json", name=role, role=role) for role in ("operator", "auditor"))
    numbers, out = ("--epsilon", "0.8", "--delta", "1e-5"), tmp_path / "export.json"

    def work(where, database, running):
        for command in (("verify",), ("limit", *numbers)):  # show reads as verify does
            with pytest.raises(LedgerUnavailable, match=r"locked.*`quoron login HOST:PORT`"):
                invoke(*command, *database)
        monkeypatch.setenv("QUORON_TOKEN", auditor)
        with pytest.raises(IdentityError, match="role operator"):
            invoke("limit", *where, *numbers)
        monkeypatch.setenv("QUORON_TOKEN", operator)
        assert capsys.readouterr().out == ""
        invoke("limit", *where, *numbers)
        monkeypatch.setenv("QUORON_TOKEN", auditor)
        invoke("show", *where, "--json")
        invoke("verify", *where, "--out", str(out))
        head = json.loads(out.read_text(encoding="utf-8"))["head"]
        invoke("verify", *where, "--checkpoint", head)
        _, shown, exported, verified = capsys.readouterr().out.splitlines()
        assert json.loads(shown)["everyone"]["fits"] == {"epsilon": 0.3, "delta": 9e-6, "mu": 0.0, "lost": 0.0}
        assert exported == verified == head
        with pytest.raises(IdentityError, match="role operator"):
            invoke("charge", "opendp", *where, "--epsilon", "0.1")
        monkeypatch.setenv("QUORON_TOKEN", operator)
        with pytest.raises(RunError, match=r"ε = 0\.3 at most"):
            invoke("charge", "opendp", *where, "--epsilon", "0.4")
        invoke("charge", "opendp", *where, "--epsilon", "0.2", "--note", "counts by ward")
        invoke("charge", "--dry-run", *where, "--epsilon", "0.1")
        with pytest.raises(ConfigError, match="--exceeded"):
            invoke("limit", *where, "--epsilon", "0.5", "--delta", "1e-5")
        invoke("limit", *where, "--epsilon", "0.5", "--delta", "1e-5", "--exceeded")
        invoke("charge", "opacus", *where, *SAMPLED, "--spent")
        charged, fitting, _, sampled = capsys.readouterr().out.splitlines()
        assert "; μ = 0.1 but for t = 1e-09 up to 1e-15 in total variation (replace-one)" in sampled
        assert charged == "everyone: opendp charged with ε = 0.2, δ = 0 (replace-one)"
        assert "counted so far: ε = 0.7 of 0.8" in fitting
        invoke("verify", *where, "--out", str(out))
        with pytest.raises(LedgerError, match="no row has the hash"):
            invoke("verify", *where, "--checkpoint", "f" * 64)

    url = beside(tmp_path, work)
    capsys.readouterr()
    invoke("verify", "--out", "-", *reaching(database=url))
    assert capsys.readouterr().out == out.read_text(encoding="utf-8")


def test_what_a_coordinator_says_of_its_chain_is_not_believed(tmp_path, monkeypatch):
    monkeypatch.setenv("QUORON_TOKEN", tokens.add(tmp_path / "tokens.json", name="eve", role="auditor"))

    def work(where, database, running):
        report = json.loads(PopulationLedger(running._database).export())

        async def lied(run):
            return report

        running.scheduler.records.ledger = lied
        report["rows"][0]["payload"]["epsilon"] = 0.25
        for command in ("show", "verify"):
            with pytest.raises(LedgerError, match="row 0"):
                invoke(command, *where)
        report["rows"] = report["rows"][:0]
        with pytest.raises(LedgerError, match="Rows at the end are gone"):
            invoke("verify", *where)
        del report["head"]
        with pytest.raises(LedgerError, match="something else"):
            invoke("verify", *where)

    beside(tmp_path, work)
