"""The ledger of a run folder that was restored from a copy: the run ends, its charge stays, and a new one begins."""

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
from quoron_server.storage.ledger import Ledger


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


@pytest.mark.parametrize("work", [train, rows])
def test_it_ends_and_its_charge_stays(work, account, tmp_path, monkeypatch, capsys) -> None:
    interrupted(work, tmp_path / "run", monkeypatch)
    assert invoke(["admin", "restore", str(tmp_path / "run" / "ledger.sqlite")]) == 0
    assert "run: ended" in capsys.readouterr().out
    for _ in "ab":
        with pytest.raises(LedgerError, match="has ended and its noise key is erased"):
            work(tmp_path / "run")
    (first,) = charges(account)
    work(tmp_path / "new")
    assert [each.promise for each in charges(account)] == [first.promise] * 2
