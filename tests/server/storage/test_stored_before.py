"""A ledger that was written before goes on: the file of one's own, as SQLAlchemy made it."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from quoron.training import lifetime
from quoron_privacy.errors import BudgetExceeded, LedgerError, OtherVersion
from quoron_server.storage.database import Database
from quoron_server.storage.lifetime_ledger import PopulationLedger

HASHES = (
    "698c998e5c82c4690a0a468ed53a79d3d055a47aec96c032f0d8de2008207897",
    "def5fa6be34c0c05f73086f88c179d662d8d7b2344b1d1f1f4dc2840f0f50b31",
    "131061135c3c449e93819a7dbd65600c3ed4a7abee003591b46de3e3bf4bfdcf",
)
WRITTEN = f"""
PRAGMA journal_mode=WAL;
CREATE TABLE meta (
\tformat INTEGER NOT NULL,
\towner TEXT,
\tincarnation TEXT,
\tacknowledged INTEGER DEFAULT '0' NOT NULL
);
INSERT INTO meta VALUES(6, NULL, '25e0bacc08e0e400', 4);
CREATE TABLE population (
\tsequence INTEGER NOT NULL,
\ttime TEXT NOT NULL,
\tkind TEXT NOT NULL,
\tpayload TEXT NOT NULL,
\thash TEXT NOT NULL,
\tPRIMARY KEY (sequence)
);
INSERT INTO population VALUES(0, 'then', 'limit',
  '{{"delta":1e-05,"epsilon":4.0,"gaussian_share":0.0,"group":"everyone","software":"quoron 0.1.0"}}', '{HASHES[0]}');
INSERT INTO population VALUES(1, 'then', 'charge',
  '{{"adjacency":"replace-one","delta":1e-06,"epsilon":1.0,"group":"everyone","mu":null,"near":[],"run":"summer",' ||
  '"software":"quoron 0.1.0","statement":"s","variation":0.0}}', '{HASHES[1]}');
INSERT INTO population VALUES(2, 'then', 'end', '{{"run":"summer","state":"complete"}}', '{HASHES[2]}');
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    place = tmp_path / "ledger.sqlite"
    with closing(sqlite3.connect(place)) as raw:
        raw.executescript(WRITTEN)
    (tmp_path / "ledger.sqlite-acknowledged").write_text(f"{4:020d} {HASHES[2]}\n")
    return place


def test_is_verified_charged_and_read_by_a_coordinator_as_before(path: Path) -> None:
    with lifetime.opened(path, create=False) as ledger:
        assert ledger.verify() == HASHES[2]
        assert ledger.charge("summer", "everyone", epsilon=1.0, delta=1e-6, statement="s").epsilon == 1.0
        with pytest.raises(OtherVersion):
            ledger.charge("summer", "everyone", epsilon=2.0, delta=1e-6)
        with pytest.raises(BudgetExceeded):
            ledger.charge("winter", "everyone", epsilon=3.5, delta=1e-6)
        ledger.charge("autumn", "everyone", epsilon=2.0, delta=1e-6)
    with Database(f"sqlite:///{path}", create=False) as database:
        rows = PopulationLedger(database).rows()
    assert [row["hash"] for row in rows[:3]] == list(HASHES)
    assert [row["payload"].get("run") for row in rows] == [None, "summer", "summer", "autumn"]
    assert path.with_name("ledger.sqlite-acknowledged").read_text() == f"{5:020d} {rows[-1]['hash']}\n"
    with lifetime.opened(path, create=False) as ledger:
        assert ledger.rows() == rows


def test_a_new_file_has_the_same_tables(path: Path, tmp_path: Path) -> None:
    def tables(of: Path) -> list[str]:
        with closing(sqlite3.connect(of)) as raw:
            return sorted("".join(sql.split()) for (sql,) in raw.execute("SELECT sql FROM sqlite_master"))

    with lifetime.opened(tmp_path / "new.sqlite") as ledger:
        ledger.limit("everyone", epsilon=4.0, delta=1e-5)
    assert tables(tmp_path / "new.sqlite") == tables(path)


@pytest.mark.parametrize("sequence", [-1, 1, 3])
def test_what_was_changed_in_it_is_found(path: Path, sequence: int) -> None:
    payload = json.dumps({"run": "none", "state": "complete"})
    with closing(sqlite3.connect(path)) as raw, raw:
        raw.execute("REPLACE INTO population VALUES(?, 'then', 'end', ?, ?)", (sequence, payload, HASHES[0]))
    with pytest.raises(LedgerError, match="Population ledger"), lifetime.opened(path, create=False) as ledger:
        ledger.verify()
