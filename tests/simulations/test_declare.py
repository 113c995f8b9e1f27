"""`quoron bounds`: what is released of a table, what it is charged, and that no row's value raises."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from quoron.releases.bounds import find_bounds
from quoron_privacy.errors import BudgetExceeded
from quoron_server.storage.database import Database
from quoron_server.storage.lifetime_ledger import PopulationLedger

pytestmark = pytest.mark.usefixtures("own_ledger")
USERS = 3000


@pytest.fixture
def own_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The usual place of a lifetime ledger, for this test alone."""
    path = tmp_path / "data" / "usual.sqlite"
    monkeypatch.setenv("QUORON_LEDGER", str(path))
    return path


def frame() -> pd.DataFrame:
    """Four rows a user; a hundredth of the values are no numbers, or odd."""
    rows = np.arange(4 * USERS)
    delay = (rows * 37 % 300 - 100).astype(object)
    delay[::400], delay[1::400], delay[2::400], delay[3::400] = "late", 1e300, None, math.nan
    return pd.DataFrame(
        {
            "who": [f"user {row // 4}" for row in rows],
            "delay": delay,
            "height": 1.5 + rows % 7 / 10,
            "ward": np.where(rows % 5 == 0, "Böblingen", np.where(rows % 5 == 1, 'the "old" one', "North")),
            "code": rows // 4 % 3,
            "secret": [f"text {row}" for row in rows],
        }
    )


class TestLedger:
    @pytest.fixture
    def ledger(self, tmp_path: Path) -> Path:
        path = tmp_path / "people.sqlite"
        with Database(f"sqlite:///{path}") as opened:
            PopulationLedger(opened).limit("patients", epsilon=10.0, delta=1e-5)
        return path

    def charges(self, ledger: Path) -> list:
        with Database(f"sqlite:///{ledger}") as opened:
            return PopulationLedger(opened).charges("patients")

    def test_everything_is_charged_once_and_again_when_released_again(self, ledger: Path) -> None:
        asked = {"items": True, "user": "who", "population": "patients", "ledger": str(ledger)}
        find_bounds(frame(), categorical=["ward"], epsilon=2.0, delta=1e-6, **asked)
        only = find_bounds(frame(), epsilon=3.0, **asked)
        first, second = self.charges(ledger)
        assert (first.epsilon, first.delta) == (2.0, 1e-6)
        assert (second.epsilon, second.delta, second.mu) == (3.0, 1e-6, only.mu)
        assert first.run != second.run

    def test_what_the_limit_leaves_no_room_for_is_not_released(self, ledger: Path) -> None:
        with pytest.raises(BudgetExceeded, match="patients"):
            find_bounds(frame(), items=True, user="who", epsilon=10.5, population="patients", ledger=str(ledger))
        assert self.charges(ledger) == []
