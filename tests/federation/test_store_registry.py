"""One certificate is one user; a run has one specification and one set of members, decided once."""

import numpy as np
import pytest

from quoron_privacy.errors import ConfigError, LedgerError
from quoron_server.storage.database import Database
from quoron_server.storage.registry import Registry


@pytest.fixture
def registry(database_url):
    with Database(database_url) as database:
        yield Registry(database)


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
