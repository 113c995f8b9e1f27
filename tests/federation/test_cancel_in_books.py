"""`quoron cancel RUN --database URL`: the end of a run that nobody carries out, as of a stopped ServerApp."""

from pathlib import Path

import pytest

from federation.crowd import specification
from quoron.cli.app import invoke
from quoron_server.books import connections as _connections
from quoron_server.books.database import Database
from quoron_server.books.ledger import Ledger
from quoron_server.books.lifetime_ledger import PopulationLedger
from quoron_server.runs import Books
from quoron_server.specification import make_plan


def test_a_run_that_nobody_carries_out_is_cancelled_in_its_books_unless_a_process_has_them_open(
    database_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_connections, "PATIENCE", "50ms")  # for a process that owns the books
    monkeypatch.setattr(_connections, "_SQLITE", ("busy_timeout=50", *_connections._SQLITE))
    wanted = specification("one-pass-dp-sgd")
    with Database(database_url) as database:
        books = Books(database)
        for user in range(wanted.problem.users):
            books.registry.enrol(f"supernode:{user}")
        books.registry.add_run("trial", wanted.as_text(), "flower")
        books.begin(wanted, make_plan(wanted))
        assert invoke(["cancel", "trial", "--database", database_url]) == 1
        assert "--coordinator" in capsys.readouterr().err
        assert books.registry.run("trial").state == "running"
    for _ in range(2):
        assert invoke(["cancel", "trial", "--database", database_url]) == 0
        assert capsys.readouterr().out == "trial: cancelled\n"
    assert invoke(["cancel", "unknown", "--database", database_url]) == 2
    assert "got 'unknown'" in capsys.readouterr().err
    with Database(database_url) as database:
        assert Ledger.unreleased(database) == set()
        assert [row["kind"] for row in PopulationLedger(database).rows()] == ["charge", "cancel", "end"]


def test_cancelling_in_books_that_are_not_there_makes_none(tmp_path: Path) -> None:
    assert invoke(["cancel", "trial", "--database", f"sqlite:///{tmp_path}/none.sqlite"]) == 1
    assert not list(tmp_path.iterdir())
