"""A run's ledger in a shared database keeps every promise of a run folder's file, and runs keep out of each other."""

import numpy as np
import pytest
import sqlalchemy as sa

from quoron_client.protocol.gradients import AverageGradient
from quoron_client.protocol.questions import Question
from quoron_privacy.errors import LedgerError
from quoron_server.books.database import Database
from quoron_server.books.fingerprint import digest
from quoron_server.books.ledger import Ledger


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
        assert database.all(sa.text("SELECT * FROM unreleased")) == []
        assert database.all(sa.text("SELECT question FROM spent")) == [(None,)]
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
