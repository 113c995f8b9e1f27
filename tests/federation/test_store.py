"""One certificate is one user; a run has one specification and one set of members, decided once."""

import sqlite3
from urllib.parse import urlsplit

import numpy as np
import pytest

from quoron_client.protocol.questions import AverageGradient, Question
from quoron_privacy.errors import ConfigError, LedgerError, LedgerUnavailable
from quoron_privacy.release import Release
from quoron_server.storage import database as databases
from quoron_server.storage.database import Database
from quoron_server.storage.ledger import Ledger, digest
from quoron_server.storage.registry import Registry


def test_a_user_never_changes_its_group(registry):
    registry.enrol("ada", "clinics")
    with pytest.raises(LedgerError, match="'clinics', got group 'phones'"):
        registry.enrol("ada", "phones")
    registry.enrol("ben", "phones")
    assert (registry.users_count(), *(sum(registry.standing(each).values()) for each in ("phones", "none"))) == (
        2,
        1,
        0,
    )


def test_states_are_kept_and_others_refused(registry):
    registry.add_run("summer", "{}")
    registry.set_state("summer", "failed", "no users")
    assert (registry.run("summer").state, registry.run("summer").error) == ("failed", "no users")
    registry.set_state("summer", "running")
    assert registry.run("summer").error is None
    with pytest.raises(LedgerError, match="Expected a state"):
        registry.set_state("summer", "asleep")
    with pytest.raises(LedgerError, match="run='winter'"):
        registry.set_state("winter", "running")


def test_members_are_active_users_of_their_group_and_never_change(registry):
    for number in range(6):
        registry.enrol(f"user {number}", "odd" if number % 2 else "even")
    np.testing.assert_array_equal(registry.members("summer"), np.zeros(0, dtype=np.int64))
    with pytest.raises(LedgerError, match=r"Expected 4 active users in population 'odd', got 3 \(0 away, 0 retired\)"):
        registry.fix_members("summer", 4, "odd")
    assert len(registry.members("summer")) == 0
    fixed = registry.fix_members("summer", 2, "odd")
    assert fixed.dtype == np.int64
    assert set(fixed.tolist()) < {1, 3, 5}
    np.testing.assert_array_equal(registry.fix_members("all", 3, "odd"), [1, 3, 5])
    registry.enrol("late", "odd")
    np.testing.assert_array_equal(registry.fix_members("summer", 2, "odd"), fixed)
    np.testing.assert_array_equal(registry.members("summer"), fixed)
    with pytest.raises(LedgerError, match="2 members that run 'summer' began with, got n=3"):
        registry.fix_members("summer", 3, "odd")
    with pytest.raises(ConfigError, match="n"):
        registry.fix_members("winter", 0)


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(databases, "OWNED", "100ms")


def place(url):
    """The file of a SQLite database; the name of one in PostgreSQL."""
    return url.removeprefix("sqlite:///") if url.startswith("sqlite") else urlsplit(url).path[1:]


def enddatabases(server, url):
    name = place(url)
    server.sql(f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '{name}'")


def insert(name):
    return f"INSERT INTO users VALUES (0, '{name}', 'everyone', 'now', '', '', 'active', '', 0, 1)"


def write(database, *statements):
    with database.writing() as connection:
        for statement in statements:
            connection.execute(statement)


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:///a?mode=ro",
        "mysql://u:hush@h/d",
        "hush",
        "",
        "postgresql://u:hush@h:port/d",
    ],
)
def test_a_url_of_another_kind_is_refused_without_repeating_a_password(url):
    with pytest.raises(ConfigError, match="Expected a database") as refused:
        Database(url)
    assert "hush" not in str(refused.value)


def test_a_second_owner_is_refused_and_accepted_when_the_first_is_gone(database_url):
    with Database(database_url), pytest.raises(LedgerUnavailable, match=r"Another process|another coordinator"):
        Database(database_url)
    Database(database_url).close()


def test_whoever_comes_late_to_one_that_was_closed_does_not_own_it_again(database_url):
    """A thread of a coordinator that has ended connected anew, and held the file against the next one."""
    database = Database(database_url)
    database.close()
    with pytest.raises(LedgerError, match="which has been closed"):
        write(database, "DELETE FROM users")
    Database(database_url).close()


@pytest.mark.parametrize("stored", [1, 4, 7])
def test_another_format_is_named_and_left_alone(database_url, stored):
    with Database(database_url) as database, database.writing() as connection:
        connection.execute(f"UPDATE meta SET format = {stored}")
    for create in (True, False):
        with pytest.raises(LedgerError, match=f"format 6 in .*, got {stored}. Use the version that wrote it"):
            Database(database_url, create=create)


def test_somebody_elses_tables_are_not_touched(database_url, postgres_server):
    if database_url.startswith("sqlite"):
        with sqlite3.connect(place(database_url)) as connection:
            connection.execute("CREATE TABLE theirs (number INTEGER)")
        connection.close()
        with pytest.raises(LedgerError, match="not a quoron ledger"):
            Database(database_url)
    else:  # ours are in a schema of their own
        name = place(database_url)
        postgres_server.sql("CREATE TABLE users (theirs INTEGER)", name)
        with Database(database_url) as database:
            assert Registry(database).enrol("ada") == 0
        assert postgres_server.sql("SELECT count(*) FROM public.users", name) == "0\n"


def test_what_fails_in_the_middle_leaves_nothing(database_url):
    with Database(database_url) as database:
        registry = Registry(database)
        for last, error in (("no statement", LedgerError), (insert("hush"), LedgerError), (None, TypeError)):
            with pytest.raises(error):
                write(database, insert("ada"), last)
            assert registry.users_count() == 0
        assert registry.enrol("ada") == 0


def test_an_owner_cut_off_goes_on_only_if_nobody_else_has_owned_the_database(postgres, postgres_server):
    with Database(postgres) as first:
        registry = Registry(first)
        enddatabases(postgres_server, postgres)
        with pytest.raises(LedgerUnavailable):
            registry.enrol("ada")
        with Database(postgres) as second:  # takes over while the first has no connection
            Registry(second).enrol("ben")
            with pytest.raises(LedgerUnavailable, match="another coordinator owns it"):
                registry.enrol("ada")
        for _ in range(2):
            with pytest.raises(LedgerError, match="Another coordinator has owned") as refused:
                registry.enrol("ada")
            assert not isinstance(refused.value, LedgerUnavailable)
    with Database(postgres) as third:
        assert Registry(third).user("ada") is None


def test_commits_wait_for_the_disk_whatever_the_database_says(postgres, postgres_server):
    name = place(postgres)
    for setting, kept in (("off", "on"), ("local", "on"), ("remote_apply", "remote_apply")):
        postgres_server.sql(f"ALTER DATABASE {name} SET synchronous_commit = {setting}")
        with Database(postgres) as database:
            assert database.rows("SHOW synchronous_commit") == [{"synchronous_commit": kept}]


def test_a_server_that_does_not_flush_is_refused(postgres, postgres_server):
    def switch(value: str) -> None:
        postgres_server.sql(f"ALTER SYSTEM SET fsync = {value}")
        postgres_server.sql("SELECT pg_reload_conf()")
        while postgres_server.sql("SHOW fsync").strip() != value:
            pass

    switch("off")
    try:
        with pytest.raises(LedgerError, match="Expected a PostgreSQL server with fsync = on, got off"):
            Database(postgres)
    finally:
        switch("on")
    Database(postgres).close()


@pytest.mark.parametrize(("setting", "value"), [("journal_mode", "wal"), ("synchronous", 2), ("secure_delete", 1)])
def test_a_file_is_written_ahead_flushed_and_erased_for_good(tmp_path, setting, value):
    with Database(f"sqlite:///{tmp_path}/store.sqlite") as database:
        assert database.rows(f"PRAGMA {setting}") == [{setting: value}]


@pytest.fixture
def database(database_url):
    with Database(database_url) as opened:
        yield opened


def begin(database: Database, name: str, key: bytes = b"11") -> Ledger:
    return Ledger.begin(database, name, plan="{}", config_digest="c", noise_key=key)


def question(round_: int, point: float = 0.5) -> Question:
    return Question(round_, np.array([3, 1]), AverageGradient(np.full((1, 2), point), (1.0,)))


def test_a_run_begins_once_and_only_then_has_a_ledger(database):
    assert not Ledger.begun(database, "run")
    with pytest.raises(LedgerError, match="found none"):
        Ledger.within(database, "run")
    begin(database, "run")
    assert Ledger.begun(database, "run")
    with pytest.raises(LedgerError, match="found one"):
        begin(database, "run", b"other noise")
    assert Ledger.within(database, "run").noise_key == b"11"


def test_a_round_is_committed_once_and_a_model_released_once(database):
    ledger = begin(database, "run")
    ledger.commit(-1, b"start", (), {})
    ledger.commit(0, b"next", (), {"a": 1})
    for round_ in (-1, 0):
        with pytest.raises(LedgerError, match="or the run has ended"):
            ledger.commit(round_, b"other", (), {"a": 2})
    assert ledger.resume_point() == (0, b"next")
    assert ledger.events() == [{"a": 1}]
    ledger.finish(np.ones(2))
    with pytest.raises(LedgerError, match="it releases no more"):
        ledger.finish(np.zeros(2))
    with pytest.raises(LedgerError, match="or the run has ended"):
        ledger.commit(1, b"after the end", (), {})
    np.testing.assert_array_equal(ledger.model, np.ones(2))


def test_a_complete_run_leaves_no_secret_in_a_shared_file_and_keeps_the_others(tmp_path):
    with Database(f"sqlite:///{tmp_path}/store.sqlite") as database:
        one, other = begin(database, "one", b"first key"), begin(database, "other", b"second key")
        for ledger in (one, other):
            ledger.commit(-1, b"memory of " + ledger.run.encode(), (), {})
            ledger.spend(question(0, 0.1 * len(ledger.run)), users=2, gradient_evaluations=40)
        one.finish(np.ones(2))
        held = b"".join(each.read_bytes() for each in tmp_path.iterdir())
    for erased in (b"first key", b"memory of one", digest(question(0, 0.1 * 3)).encode()):
        assert erased not in held
    for kept in (b"second key", b"memory of other", digest(question(0, 0.1 * 5)).encode()):
        assert kept in held


def test_an_abandoned_run_keeps_what_it_spent_and_no_secret_and_never_goes_on(database):
    ledger = begin(database, "run", b"first key")
    ledger.commit(-1, b"memory", (), {})
    ledger.spend(question(0), users=2, gradient_evaluations=40)
    for _ in range(2):
        ledger.abandon()
        assert Ledger.begun(database, "run")
        assert (ledger.finished, ledger.resume_point(), ledger.spent()["users"]) == (False, None, 2)
        assert database.rows("SELECT * FROM unreleased") == []
        assert database.rows("SELECT question FROM spent") == [{"question": None}]
    for step in (
        lambda: ledger.noise_key,
        lambda: ledger.model,
        lambda: ledger.spend(question(0), users=2, gradient_evaluations=40),
        lambda: ledger.spend(question(1), users=2, gradient_evaluations=40),
        lambda: ledger.commit(0, b"next", (), {}),
        lambda: ledger.finish(np.ones(2)),
        lambda: begin(database, "run"),
    ):
        with pytest.raises(LedgerError):
            step()
    assert ledger.spent()["rounds"] == 1


def test_runs_do_not_see_each_other(database):
    one, other = begin(database, "one"), begin(database, "other")
    for ledger, point in ((one, 0.5), (other, 0.6)):
        ledger.commit(-1, ledger.run.encode(), (), {})
        ledger.spend(question(0, point), users=2, gradient_evaluations=40)
    one.commit(0, b"next", (Release("gaussian", {"scale": 0.5}),), {"asked": 2})
    one.finish(np.ones(2))
    assert (one.finished, other.finished) == (True, False)
    assert other.resume_point() == (-1, b"other")
    assert (other.releases(), other.events(), other.noise_key) == ([], [], b"11")
    other.spend(question(0, 0.6), users=2, gradient_evaluations=40)
    with pytest.raises(LedgerError, match="another question"):
        other.spend(question(0, 0.5), users=2, gradient_evaluations=40)
    one.close()
    assert other.spent()["rounds"] == 1
