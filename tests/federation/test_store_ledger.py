"""A run's ledger in a shared database keeps every promise of a run folder's file, and runs keep out of each other."""

import numpy as np
import pytest

from quoron_client.protocol.questions import AverageGradient, Question
from quoron_privacy.errors import LedgerError
from quoron_privacy.release import Release
from quoron_server.storage.database import Database
from quoron_server.storage.ledger import Ledger


@pytest.fixture
def database(database_url):
    with Database(database_url) as opened:
        yield opened


def begin(database: Database, name: str, key: bytes = b"11") -> Ledger:
    return Ledger.begin(database, name, plan="{}", config_digest="c", noise_key=key)


def question(round_: int, point: float = 0.5) -> Question:
    return Question(round_, np.array([3, 1]), AverageGradient(np.full((1, 2), point), (1.0,)))


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


def test_a_complete_run_leaves_no_secret_in_any_row(database):
    ledger = begin(database, "run", b"first key")
    ledger.commit(-1, b"memory", (), {})
    ledger.spend(question(0), users=2, gradient_evaluations=40)
    ledger.finish(np.ones(2))
    assert database.rows("SELECT * FROM unreleased") == []
    assert database.rows("SELECT question FROM spent") == [{"question": None}]
