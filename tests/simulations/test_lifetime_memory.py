"""A lifetime ledger is verified once a process, and again whenever somebody else has written its file."""

import os

import pytest

from quoron.training import lifetime
from quoron_privacy.errors import LedgerError
from quoron_server.books import lifetime_ledger
from quoron_server.books.database import Database

PROMISE = {"epsilon": 0.5, "delta": 1e-6}


@pytest.fixture
def counted(monkeypatch):
    """Rows that were read, opening by opening."""
    read, stored = [], lifetime_ledger._stored

    def counting(connection, *, since):
        rows = stored(connection, since=since)
        read.append(len(rows))
        return rows

    monkeypatch.setattr(lifetime_ledger, "_stored", counting)
    return read


def charge(path, run):
    with lifetime.opened(path) as ledger:
        ledger.charge(run, "everyone", **PROMISE)


def test_what_was_verified_is_not_read_again_by_the_same_process(tmp_path, counted):
    path = tmp_path / "l.sqlite"
    for number in range(5):
        charge(path, f"run {number}")
    assert counted == [0, 1, 1, 1, 1]
    with lifetime.opened(tmp_path / "." / "l.sqlite") as ledger:
        assert ledger.spent("everyone").epsilon == 2.5


def test_whatever_somebody_wrote_is_verified_from_the_first_row(tmp_path, counted):
    path = tmp_path / "l.sqlite"
    for number in range(3):
        charge(path, f"run {number}")
    with Database(f"sqlite:///{path}") as database, database.writing() as connection:
        connection.exec_driver_sql("UPDATE population SET payload = replace(payload, '0.5', '0.1') WHERE sequence = 0")
    for _ in range(2):
        with pytest.raises(LedgerError, match="row 0 "):
            charge(path, "another")
    assert counted[3:] == [3, 3]


def test_a_file_that_was_put_back_is_verified_from_the_first_row(tmp_path, counted):
    path = tmp_path / "l.sqlite"
    charge(path, "first")
    tally = tmp_path / "l.sqlite-acknowledged"
    kept, counted_before = path.read_bytes(), tally.read_bytes()
    charge(path, "second")
    replaced = tmp_path / "copy"
    replaced.write_bytes(kept)
    os.replace(replaced, path)
    tally.write_bytes(counted_before)
    del counted[:]
    charge(path, "third")
    assert counted == [1]
    with lifetime.opened(path) as ledger:
        assert [each.run for each in ledger.charges("everyone")] == ["first", "third"]
