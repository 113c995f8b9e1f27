"""`quoron ledger` on both kinds of database: what it prints is what the chain holds."""

import asyncio
import json
import sqlite3
from contextlib import closing

import pytest

from federation.crowd import carried_out, coordinator
from quoron.cli.ledger import app
from quoron_privacy.errors import (
    ConfigError,
    IdentityError,
    LedgerError,
    LedgerUnavailable,
    RunError,
)
from quoron_server.books.database import Database
from quoron_server.books.lifetime_ledger import PopulationLedger
from quoron_server.service import tokens


def invoke(*arguments: str) -> None:
    app(args=list(arguments), prog_name="ledger", standalone_mode=False)


@pytest.fixture
def filled(database_url):
    with Database(database_url) as database:
        ledger = PopulationLedger(database)
        ledger.charge("spring [1]", "everyone", epsilon=0.5, delta=1e-6)
        ledger.charge("summer", "phones", epsilon=0.25, delta=1e-6, mu=0.05, variation=1e-13)
    return database_url


SAMPLED = ("--epsilon", "0.5", "--delta", "1e-7", "--mu", "0.1", "--lost", "1e-9", "--variation", "1e-15")


def test_another_tools_runs_on_secret_samples_count_by_their_mu_but_for_t(filled, capsys):
    everyone = ("--database", filled, "--group", "everyone")
    invoke("limit", "--database", filled, "--epsilon", "4", "--delta", "1e-5", "--gaussian-share", "0.8")
    invoke("fits", *everyone, *SAMPLED)
    invoke("charge", "opacus", *everyone, *SAMPLED)
    said = " ".join(capsys.readouterr().out.split())
    assert "but for t = 2.5e-07" in said
    assert "opacus charged with ε = 0.5, δ = 1e-07 (replace-one); μ = 0.1 but for t = 1e-09 up to 1e-15" in said
    invoke("show", "--database", filled, "--json")
    printed = json.loads(capsys.readouterr().out)["everyone"]
    assert (printed["counted"]["mu"], printed["counted"]["lost"]) == (pytest.approx(0.1), 1e-9)
    assert printed["fits"]["lost"] == pytest.approx(2.5e-7 - 1e-9)
    invoke("show", "--database", filled, "--group", "everyone")
    assert "t = 1e-09 of 2.5e-07" in " ".join(capsys.readouterr().out.split())
    for wrong, said in (
        (("--lost", "1e-9"), "Expected mu with lost"),
        ((*SAMPLED, "--lost", "0.7"), r"lost in \[0, 0.5\)"),
    ):
        for command in ("fits", "charge"):
            with pytest.raises(ConfigError, match=said):
                invoke(command, *(("other",) if command == "charge" else ()), *everyone, "--epsilon", "0.5", *wrong)
    with pytest.raises(ConfigError, match="variation > 0"):
        invoke("charge", "other", *everyone, "--epsilon", "0.5", "--mu", "0.1", "--lost", "1e-9")


def test_a_last_row_that_was_deleted_with_another_program_is_refused_wherever_the_ledger_is_used(tmp_path, capsys):
    """Also when whoever did it lowered the file's own count again, or did it before the ledger was first read anew."""
    path = tmp_path / "l.sqlite"
    charge = ("--epsilon", "0.5", "--create", "--database", f"sqlite:///{path}")
    for run in ("spring", "summer"):
        invoke("charge", run, *charge)
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
                invoke(*use, "--database", f"sqlite:///{path}")
    path.write_bytes(kept)
    capsys.readouterr()
    invoke("verify", "--database", f"sqlite:///{path}")
    head = capsys.readouterr().out.strip()
    count, beside = (tmp_path / "l.sqlite-acknowledged").read_text().split()
    assert beside == head
    (tmp_path / "l.sqlite-acknowledged").write_text(f"{count}\n")  # as versions of before wrote it
    invoke("verify", "--database", f"sqlite:///{path}")
    assert (tmp_path / "l.sqlite-acknowledged").read_text().split()[1] == head


def test_a_limit_makes_no_database_by_mistake(tmp_path, capsys):
    url = f"sqlite:///{tmp_path}/other.sqlite"
    numbers = ("--epsilon", "1", "--delta", "1e-5")
    with pytest.raises(LedgerError, match=r"found none.*--create"):
        invoke("limit", "--database", url, *numbers)
    assert not list(tmp_path.iterdir())
    invoke("limit", "--database", url, *numbers, "--create")
    invoke("limit", "--database", url, *numbers)
    invoke("show", "--database", url, "--json")
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
            where = ("--coordinator", running.control, "--insecure")
            await asyncio.to_thread(work, where, ("--database", url), running)

    carried_out(scene())
    return url


def test_a_running_coordinator_is_asked_for_its_ledger_and_limited(tmp_path, capsys, monkeypatch):
    operator, auditor = (tokens.add(tmp_path / "tokens.json", name=role, role=role) for role in ("operator", "auditor"))
    numbers, out = ("--epsilon", "0.8", "--delta", "1e-5"), tmp_path / "export.json"

    def work(where, database, running):
        for command in (("verify",), ("limit", *numbers)):  # show and export read as verify does
            with pytest.raises(LedgerUnavailable, match=r"locked.*--coordinator HOST:PORT"):
                invoke(*command, *database)
        monkeypatch.setenv("QUORON_TOKEN", auditor)
        with pytest.raises(IdentityError, match="role operator"):
            invoke("limit", *where, *numbers)
        monkeypatch.setenv("QUORON_TOKEN", operator)
        for wrong, said in (("-1", "epsilon=-1"), ("nan", "epsilon=nan")):
            with pytest.raises(ConfigError, match=said):
                invoke("limit", *where, "--epsilon", wrong, "--delta", "1e-5")
        with pytest.raises(ConfigError, match="group"):
            invoke("limit", *where, *numbers, "--group", "")
        assert capsys.readouterr().out == ""
        invoke("limit", *where, *numbers)
        monkeypatch.setenv("QUORON_TOKEN", auditor)
        invoke("show", *where, "--json")
        invoke("export", *where, "--file", str(out))
        head = json.loads(out.read_text(encoding="utf-8"))["head"]
        invoke("verify", *where, "--head", head)
        limited, shown, verified = capsys.readouterr().out.splitlines()
        assert limited == "everyone: ε = 0.8, δ = 1e-05"
        assert json.loads(shown)["everyone"] == {
            "epsilon": 0.5,
            "delta": 1e-5,
            "runs": 1,
            "mu": 0.0,
            "variation": 0.0,
            "lost": 0.0,
            "limit": "ε = 0.8, δ = 1e-05",
            "counted": {"epsilon": 0.5, "delta": 1e-6, "mu": 0.0, "lost": 0.0},
            "fits": {"epsilon": 0.3, "delta": 9e-6, "mu": 0.0, "lost": 0.0},
        }
        assert verified == head
        with pytest.raises(IdentityError, match="role operator"):
            invoke("charge", "opendp", *where, "--epsilon", "0.1")
        monkeypatch.setenv("QUORON_TOKEN", operator)
        with pytest.raises(RunError, match=r"ε = 0\.3 at most"):
            invoke("charge", "opendp", *where, "--epsilon", "0.4")
        invoke("charge", "opendp", *where, "--epsilon", "0.2", "--note", "counts by ward")
        invoke("fits", *where, "--epsilon", "0.1")
        with pytest.raises(ConfigError, match="--exceeded"):
            invoke("limit", *where, "--epsilon", "0.5", "--delta", "1e-5")
        invoke("limit", *where, "--epsilon", "0.5", "--delta", "1e-5", "--exceeded")
        invoke("charge", "opacus", *where, *SAMPLED, "--spent")
        charged, fitting, _, sampled = capsys.readouterr().out.splitlines()
        assert "; μ = 0.1 but for t = 1e-09 up to 1e-15 in total variation (replace-one)" in sampled
        assert charged == "everyone: opendp charged with ε = 0.2, δ = 0 (replace-one)"
        assert "counted so far: ε = 0.7 of 0.8" in fitting
        invoke("export", *where, "--file", str(out))
        with pytest.raises(LedgerError, match="no row has the hash"):
            invoke("verify", *where, "--head", "f" * 64)

    url = beside(tmp_path, work)
    invoke("export", "--database", url)
    assert capsys.readouterr().out == out.read_text(encoding="utf-8")


def test_what_a_coordinator_says_of_its_chain_is_not_believed(tmp_path, monkeypatch):
    monkeypatch.setenv("QUORON_TOKEN", tokens.add(tmp_path / "tokens.json", name="eve", role="auditor"))

    def work(where, database, running):
        report = json.loads(PopulationLedger(running._database).export())

        async def lied(run):
            return report

        running.manager.records.ledger = lied
        report["rows"][0]["payload"]["epsilon"] = 0.25
        for command in ("show", "verify", "export"):
            with pytest.raises(LedgerError, match="row 0"):
                invoke(command, *where)
        report["rows"] = report["rows"][:0]
        with pytest.raises(LedgerError, match="Rows at the end are gone"):
            invoke("verify", *where)
        del report["head"]
        with pytest.raises(LedgerError, match="something else"):
            invoke("verify", *where)

    beside(tmp_path, work)
