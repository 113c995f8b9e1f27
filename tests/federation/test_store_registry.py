"""One certificate is one user; a run has one specification and one set of members, decided once."""

import numpy as np
import pytest
import sqlalchemy as sa

from quoron_privacy.errors import ConfigError, LedgerError, OtherVersion
from quoron_server.books import registry as module
from quoron_server.books.database import Database
from quoron_server.books.registry import FRONTS, Registry


@pytest.fixture
def registry(database_url):
    with Database(database_url) as database:
        yield Registry(database)


def test_a_certificate_is_one_user_for_ever(registry, database_url):
    assert [registry.enrol(name) for name in ("ada", "ben", "ada")] == [0, 1, 0]
    assert (registry.user("ben"), registry.user("cem"), registry.users_count()) == (1, None, 2)


def test_a_user_never_changes_its_group(registry):
    registry.enrol("ada", "clinics")
    with pytest.raises(LedgerError, match="'clinics', got group 'phones'"):
        registry.enrol("ada", "phones")
    registry.enrol("ben", "phones")
    assert (registry.users_count(), registry.users_count("phones"), registry.users_count("none")) == (2, 1, 0)


def test_a_run_goes_on_only_by_the_front_that_it_was_submitted_through(registry):
    for front in FRONTS:
        assert registry.add_run(front, "{}", front)
        assert not registry.add_run(front, "{}", front)
        assert registry.run(front).front == front
        for other in set(FRONTS) - {front}:
            with pytest.raises(OtherVersion, match=f"Expected run {front} to go on by"):
                registry.add_run(front, "{}", other)
            with pytest.raises(OtherVersion):
                registry.run(front).require(other)
        registry.run(front).require(front)
    registry.add_run("summer", "{}")
    assert registry.run("summer").front == "service"


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
    with pytest.raises(LedgerError, match=r"Expected 4 active users in group 'odd', got 3 \(0 away, 0 retired\)"):
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


def test_tables_of_an_earlier_version_get_what_they_lack(registry, database_url):
    database = registry._database
    registry.add_run("summer", "{}", "flower")
    with database.writing() as connection:
        module._by_user.drop(connection)
        connection.execute(sa.text("ALTER TABLE runs DROP COLUMN front"))
    for _ in range(2):
        assert Registry(database).run("summer").front == "service"
    with database.writing() as connection:
        assert [each["name"] for each in sa.inspect(connection).get_indexes("slots")] == ["slots_by_user"]
