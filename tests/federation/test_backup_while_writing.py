"""A backup that is taken while charges are written holds what was there at one instant, and nothing by halves."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa

from quoron_client.protocol.gradients import AverageGradient
from quoron_client.protocol.questions import Question
from quoron_server.books.backup import back_up, read
from quoron_server.books.chain import verify_rows
from quoron_server.books.database import Database
from quoron_server.books.ledger import Ledger
from quoron_server.runs import Books


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
        monkeypatch.setattr(beside, "sqlite", not isolated)
        with at_each_statement(beside, lambda: whole_run(books, next(numbers))):
            back_up(beside, tmp_path / "b", with_secrets=True)
        assert next(numbers) > 9
        assert bool(torn(tmp_path / "b")) is not isolated
        rows = books.population.rows()
    if isolated:
        held = charged(read(tmp_path / "b").rows["population"])
        assert held == [row["payload"]["run"] for row in rows][: len(held)]
        assert len(held) <= 3 < len(rows)  # what began after its first statement is not in it
