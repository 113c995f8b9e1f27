"""The ledger of a run folder that was put back from a copy: the run goes on for one more charge, or not at all."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import quoron
from quoron.cli.app import invoke
from quoron.training import lifetime
from quoron_privacy.accounts.lifetime import Charge
from quoron_privacy.errors import LedgerError
from quoron_server.books.ledger import Ledger


@pytest.fixture
def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "own" / "lifetime.sqlite"
    monkeypatch.setenv(lifetime.VARIABLE, str(path))
    return path


def train(out: Path, **more: Any) -> Any:
    draw = np.random.default_rng(3)
    columns = {"age": draw.uniform(0, 100, 600), "ill": draw.uniform(size=600) < 0.5}
    table = pd.DataFrame({"who": np.repeat(np.arange(300), 2), **columns})
    given = {"user": "who", "label": "ill", "columns": {"numeric": {"age": (0, 100)}}, "epsilon": 4.0, "delta": 1e-5}
    given |= {"algorithm": "dp-sgd-wor", "settings": ["algorithm.options.rounds=3"]}
    return quoron.train(table, out=out, **given | more)


def rows(out: Path, **more: Any) -> Any:
    given = {"users": 6, "dimension": 2, "epsilon": 4.0, "delta": 1e-3, "clip_norm": 1.0, "radius": 2.0}
    given |= {"algorithm": "one-pass-dp-sgd", "smoothness": 1.0, "options": {"rounds": 3}}
    return quoron.train_rows(lambda users, point: np.zeros((len(users), 2)), out=out, **given | more)


def interrupted(work: Any, out: Path, monkeypatch: pytest.MonkeyPatch, **more: Any) -> None:
    """In its second round; then its ledger is put back without its count."""
    commit = Ledger.commit

    def breaking(self: Ledger, round_: int, *given: Any) -> None:
        if round_ == 1:
            raise KeyboardInterrupt
        commit(self, round_, *given)

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "commit", breaking)
        with pytest.raises(KeyboardInterrupt):
            work(out, **more)
    (out / "ledger.sqlite-acknowledged").unlink()
    with pytest.raises(LedgerError, match="found none: the file was copied"):
        work(out, **more)


def charges(account: Path) -> list[Charge]:
    with lifetime.opened(account) as ledger:
        return ledger.charges("everyone")


def restored(out: Path, *more: str) -> int:
    return invoke(["admin", "restore", str(out / "ledger.sqlite"), *more])


@pytest.mark.parametrize("work", [train, rows])
def test_goes_on_for_one_more_charge_each_time(work, account, tmp_path, monkeypatch, capsys) -> None:
    interrupted(work, tmp_path / "run", monkeypatch)
    assert restored(tmp_path / "run") == 1
    assert "Say --continue" in " ".join(capsys.readouterr().err.split())
    assert len(charges(account)) == 1
    assert restored(tmp_path / "run", "--continue") == 0
    (tmp_path / "run" / "ledger.sqlite-acknowledged").unlink()
    assert restored(tmp_path / "run", "--continue") == 0
    work(tmp_path / "run")
    first, *others = charges(account)
    assert len(others) == 2
    assert all(each.promise == first.promise and each.run.startswith(f"{first.run} (copy ") for each in others)


@pytest.mark.parametrize("work", [train, rows])
def test_does_not_go_on_without_room_or_the_account_that_it_was_charged_to(
    work, account, tmp_path, monkeypatch, capsys
) -> None:
    interrupted(work, tmp_path / "run", monkeypatch)
    with lifetime.opened(account) as ledger:
        ledger.limit("everyone", epsilon=7.0, delta=0.1)
    assert restored(tmp_path / "run", "--continue") == 1
    with lifetime.opened(account) as ledger:
        ledger.limit("everyone", epsilon=9.0, delta=0.1)
    with lifetime.opened(tmp_path / "another.sqlite") as ledger:
        ledger.limit("everyone", epsilon=9.0, delta=0.1)
    monkeypatch.setenv(lifetime.VARIABLE, str(tmp_path / "another.sqlite"))
    assert restored(tmp_path / "run", "--continue") == 1
    assert "found none: one more copy costs as much" in " ".join(capsys.readouterr().err.split())
    assert len(charges(account)) == 1
    with pytest.raises(LedgerError, match="found none: the file was copied"):
        work(tmp_path / "run")
    monkeypatch.setenv(lifetime.VARIABLE, str(account))
    assert restored(tmp_path / "run", "--continue") == 0
    assert len(charges(account)) == 2


def test_of_a_simulation_costs_nothing(account, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("QUORON_ALLOW_SIMULATION", "1")
    interrupted(rows, tmp_path / "run", monkeypatch, seed=5)
    assert restored(tmp_path / "run", "--continue") == 0
    assert not account.exists()
    rows(tmp_path / "run", seed=5)
