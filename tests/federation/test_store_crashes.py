"""Killed at every write, in the middle of writes, and with the connection or the server gone: whole or absent."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from federation import store_scenario as scenario
from quoron_privacy.errors import LedgerError, LedgerUnavailable
from quoron_server.storage.database import Database
from quoron_server.storage.ledger import Ledger
from quoron_server.storage.lifetime_ledger import PopulationLedger
from quoron_server.storage.registry import Registry

TESTS = Path(__file__).parent.parent
ENVIRONMENT = os.environ | {"PYTHONPATH": str(TESTS), "OPENBLAS_NUM_THREADS": "1"}
PROGRAM = [sys.executable, "-m", "federation.store_scenario"]


@pytest.mark.parametrize(
    "database_url",
    [pytest.param("sqlite", marks=pytest.mark.programs), pytest.param("postgresql", marks=pytest.mark.slow)],
    indirect=True,
)
def test_killed_at_every_write_and_commit_the_rest_is_carried_on_to_the_same_rows(database_url):
    done = subprocess.run(
        [*PROGRAM, "main", database_url], env=ENVIRONMENT, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert printed["wrong"] == [], done.stderr
    assert printed["points"] > 40
    assert {"draws", "population", "runs", "slots", "spent", "unreleased", "users"} <= set(printed["tables"])


@pytest.mark.programs
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_the_sweep_finds_a_ledger_whose_commit_is_torn_in_two(database_url):
    done = subprocess.run(
        [*PROGRAM, "torn", database_url], env=ENVIRONMENT, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    ((_, status, _),) = json.loads(done.stdout)["wrong"]
    assert status == -signal.SIGKILL


@pytest.mark.programs
def test_killed_in_the_middle_of_a_write_keeps_what_was_acknowledged_and_no_part_of_the_rest(database_url):
    command = [*PROGRAM, "commit_for_ever", database_url]
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE) as writer:
        for _ in range(7):
            last = int(writer.stdout.readline())
        writer.kill()  # it is busy with the next commits
        printed = writer.stdout.read().split()
    last = int(printed[-1]) if printed else last
    with Database(database_url) as database, Ledger.within(database, "run") as ledger:
        round_, state = ledger.resume_point()
        assert round_ in (last, last + 1)  # the last one may have been made durable but not yet told
        assert state == bytes([round_ % 251]) * 300_000
        assert [event["round"] for event in ledger.events()] == list(range(round_ + 1))
        ledger.commit(round_ + 1, b"next", (), {})


@pytest.mark.slow
def test_a_connection_ended_at_any_write_is_an_error_that_another_try_survives(postgres):
    """pg_terminate_backend at every point of the scenario; every statement after it fails, and the next try goes on."""
    scenario.carry_out(postgres)
    whole = scenario.stored(postgres)
    failures = 0
    with psycopg.connect(postgres, autocommit=True) as connection:

        def end() -> None:
            nonlocal happened
            happened = True
            connection.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                "WHERE application_name = 'quoron' AND datname = current_database()"
            )

        for number in range(1, 1000):
            for table in set(whole) - {"meta"}:
                connection.execute(f"DELETE FROM quoron.{table}")
            happened = False
            scenario.at_point(number, end)
            try:
                failures += _tries(postgres) - 1
            finally:
                Database._execute, Database._begun = scenario.EXECUTE, scenario.BEGUN
            if not happened:
                break
            assert scenario.stored(postgres) == whole, number
    assert number > 35
    assert failures == number - 2  # every point but the one after the last write


def _tries(url: str) -> int:
    """How often the work had to be begun until it was done."""
    for tried in range(1, 4):
        try:
            scenario.carry_out(url)
            return tried
        except LedgerUnavailable:
            continue
    pytest.fail("never carried on")


def test_what_was_acknowledged_survives_a_crash_of_the_server(postgres, postgres_server):
    with Database(postgres) as database:
        registry, population = Registry(database), PopulationLedger(database)
        ledger = Ledger.begin(database, "run", plan="p", config_digest="c", noise_key=b"k")
        ledger.commit(-1, b"state", (), {})
        registry.enrol("ada")
        population.charge("run", "everyone", epsilon=0.5, delta=1e-6)
        head = population.verify()
        postgres_server.crash()
        try:
            for _ in range(2):  # the connection is lost, then there is no server
                with pytest.raises(LedgerUnavailable):
                    registry.enrol("ben")
        finally:
            postgres_server.start()
        assert ledger.resume_point() == (-1, b"state")
        assert population.verify() == head
        assert registry.enrol("ben") == 1


@pytest.fixture(scope="module")
def begun_and_killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three users, a charge and a run's beginning, acknowledged; then the process is gone, its journal not folded."""
    folder = tmp_path_factory.mktemp("killed")
    command = [*PROGRAM, "begin_and_die", f"sqlite:///{folder / 'store.sqlite'}"]
    assert subprocess.run(command, env=ENVIRONMENT, timeout=600).returncode == -signal.SIGKILL
    return folder


@pytest.fixture
def killed(begun_and_killed: Path, tmp_path: Path) -> Path:
    """A copy of that database, with its journal."""
    return Path(shutil.copytree(begun_and_killed, tmp_path / "killed")) / "store.sqlite"


@pytest.mark.parametrize("share", [0.02, 0.3, 0.7, 0.98])
def test_a_flipped_byte_in_the_journal_undoes_nothing_without_a_word(share: float, killed: Path) -> None:
    """SQLite itself reads the journal up to the flipped page and finds everything in order."""
    journal = bytearray(killed.with_name("store.sqlite-wal").read_bytes())
    journal[int(share * len(journal))] ^= 1
    killed.with_name("store.sqlite-wal").write_bytes(journal)
    with pytest.raises(
        LedgerError, match=r"Expected \d+ acknowledged transactions in .*, got \d+|found something else"
    ):
        Database(f"sqlite:///{killed}")


def test_a_copy_of_the_file_alone_is_refused_whatever_its_journal_held(killed: Path, tmp_path: Path) -> None:
    """A backup of the one `.sqlite` lacks what only the journal had; nothing in it says so."""
    alone = tmp_path / "alone.sqlite"
    shutil.copy(killed, alone)
    with pytest.raises(LedgerError, match=r"alone\.sqlite-acknowledged, found none|is not a quoron ledger"):
        Database(f"sqlite:///{alone}")
    shutil.copy(killed, alone)
    with pytest.raises(LedgerError, match=r"alone\.sqlite-acknowledged, found none|is not a quoron ledger"):
        Database(f"sqlite:///{alone}", create=False)


def test_a_database_restored_from_before_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    with Database(f"sqlite:///{path}") as database:
        Registry(database).enrol("ada")
    backup = path.read_bytes()
    with Database(f"sqlite:///{path}") as database:
        Registry(database).enrol("bob")
    path.write_bytes(backup)
    with pytest.raises(LedgerError, match="or it was restored from a backup"):
        Database(f"sqlite:///{path}")


def test_a_database_that_is_gone_is_not_begun_anew_without_a_word(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    with Database(f"sqlite:///{path}") as database:
        Registry(database).enrol("ada")
    path.unlink()
    with pytest.raises(LedgerError, match=r"got 0: .*go on with another database"):
        Database(f"sqlite:///{path}")
