"""The store alone, without a service around it: the same bits, charges and endings, and who may go on with a run."""

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from federation.crowd import SEED, inline_model, people, specification
from quoron.engine.inline import InlineEngine
from quoron_privacy.errors import BudgetExceeded, LedgerError, OtherVersion
from quoron_server import runs as module
from quoron_server.federation import RunStore
from quoron_server.specification import make_plan
from quoron_server.storage.database import Database
from quoron_server.storage.ledger import Ledger
from quoron_server.storage.lifetime_ledger import PopulationLedger
from quoron_server.storage.registry import Registry, State

NAME, USERS = "one-pass-dp-sgd", 20
SPECIFICATION = specification(NAME)
PLAN = make_plan(SPECIFICATION)


def has_secrets(store: RunStore) -> bool:
    try:
        return bool(Ledger.within(store.database, "trial").noise_key)
    except LedgerError:
        return False


@pytest.fixture
def store(tmp_path: Path):
    with Database(f"sqlite:///{tmp_path}/store.sqlite") as database:
        store = RunStore(database)
        for user in range(USERS):
            store.registry.enrol(f"user-{user}")
        store.registry.add_run("trial", SPECIFICATION.as_text())
        yield store


def test_a_run_on_the_store_has_the_bits_of_a_run_folder_and_ends_charged_and_without_secrets(
    store: RunStore, tmp_path: Path
) -> None:
    engine = InlineEngine(people(USERS), seed=SEED)
    store._run(SPECIFICATION, PLAN).check()
    for _ in range(2):
        np.testing.assert_array_equal(store.begin(SPECIFICATION, PLAN), np.arange(USERS))
    assert has_secrets(store)
    model = store.carry_out(SPECIFICATION, PLAN, engine)
    for how in ("failed", "complete"):  # what is released is complete
        assert store.end("trial", how, "an error") == "complete"
    np.testing.assert_array_equal(model, inline_model(SPECIFICATION, tmp_path))
    np.testing.assert_array_equal(store.carry_out(SPECIFICATION, PLAN, engine), model)
    assert [row["kind"] for row in store.population.rows()] == ["charge", "release", "end"]
    assert store.registry.run("trial").error is None
    assert not has_secrets(store)


def test_a_cancelled_run_is_charged_and_has_no_secret(store: RunStore) -> None:
    store.begin(SPECIFICATION, PLAN)
    assert [store.cancel("trial"), store.cancel("trial"), store.cancel("unknown")] == ["cancelled", "cancelled", None]
    assert [row["kind"] for row in store.population.rows()] == ["charge", "cancel", "end"]
    assert not has_secrets(store)


def test_a_limit_without_room_is_seen_by_check_and_by_begin_which_then_charges_nothing(store: RunStore) -> None:
    store.population.limit("everyone", epsilon=1.0, delta=0.1)
    for method in (lambda *run: store._run(*run).check(), store.begin):
        with pytest.raises(BudgetExceeded):
            method(SPECIFICATION, PLAN)
    assert [row["kind"] for row in store.population.rows()] == ["limit"]
    assert not Ledger.begun(store.database, "trial")


class Died(Exception):
    pass


def dying(*arguments: object, **named: object) -> None:
    raise Died


def test_fewer_members_than_the_run_began_with_are_another_version(store: RunStore) -> None:
    store.registry.fix_members("trial", USERS - 1)
    with pytest.raises(OtherVersion, match="19 members"):
        store.begin(SPECIFICATION, PLAN)


@pytest.mark.parametrize("before_the_ledger", [True, False])
def test_another_charge_than_the_one_that_stands_leaves_the_run_to_the_version_that_charged(
    before_the_ledger: bool, store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        if before_the_ledger:
            patch.setattr(Ledger, "begin", dying)
        with pytest.raises(Died) if before_the_ledger else nullcontext():
            store.begin(SPECIFICATION, PLAN)
    original = module.charge_of
    with monkeypatch.context() as patch:
        patch.setattr(module, "charge_of", lambda *given: original(*given) | {"epsilon": 14.0})
        with pytest.raises(OtherVersion):
            store.begin(SPECIFICATION, PLAN)
    store.begin(SPECIFICATION, PLAN)
    model = store.carry_out(SPECIFICATION, PLAN, InlineEngine(people(USERS), seed=SEED))
    np.testing.assert_array_equal(model, inline_model(SPECIFICATION, tmp_path))


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(("owner", "name"), [(Registry, "set_state"), (Ledger, "abandon"), (PopulationLedger, "end")])
@pytest.mark.parametrize("how", ["failed", "cancelled"])
def test_an_end_that_was_interrupted_is_brought_to_its_end_at_the_next_start_or_is_none(
    how: State, owner: type, name: str, after: bool, store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.begin(SPECIFICATION, PLAN)
    original = getattr(owner, name)

    def dying_there(*arguments: object) -> None:
        if after:
            original(*arguments)
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, dying_there)
        with pytest.raises(Died):
            store.end("trial", how, "a reason")
    for _ in range(2):
        again = RunStore(store.database)
        again.settle()
        ended = (name, after) != ("set_state", False)
        assert again.registry.run("trial").state == (how if ended else "running")
        assert again.registry.run("trial").error == ("a reason" if ended else None)
        assert has_secrets(again) != ended
        assert [row["kind"] for row in again.population.rows()] == (["charge", "end"] if ended else ["charge"])
    assert again.end("trial", "cancelled") == (how if ended else "cancelled")
    assert [row["kind"] for row in again.population.rows()] == ["charge", "end"]


def test_a_chain_that_does_not_hold_together_keeps_no_secret_of_a_run_that_has_ended(store: RunStore) -> None:
    store.begin(SPECIFICATION, PLAN)
    store.registry.set_state("trial", "failed", "a reason")  # and then the process died
    with store.database.writing() as connection:
        connection.execute("UPDATE population SET hash = 'changed'")
    for _ in range(2):
        with pytest.raises(LedgerError, match="not what was written"):
            RunStore(store.database).settle()
    assert not has_secrets(store)
    assert store.registry.run("trial").error == "a reason"


def test_a_chain_that_does_not_hold_together_keeps_the_secrets_of_an_open_run(store: RunStore) -> None:
    store.begin(SPECIFICATION, PLAN)
    with store.database.writing() as connection:
        connection.execute("UPDATE population SET hash = 'changed'")
    with pytest.raises(LedgerError):
        store.settle()
    assert has_secrets(store)
