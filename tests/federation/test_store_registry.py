"""One certificate is one user; a run has one specification and one set of members, decided once."""

import pytest
import sqlalchemy as sa

from quoron_privacy.errors import LedgerError
from quoron_server.books import registry as module
from quoron_server.books.database import Database
from quoron_server.books.registry import Registry


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
