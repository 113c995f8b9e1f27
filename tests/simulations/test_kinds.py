"""Dates, hashed texts and listed columns through every door: the same items, and coefficients in people's words."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from quoron import config as configs
from quoron.datasets.population import from_dataset
from quoron.simulation.patterns import with_columns
from quoron.simulation.scene import encoding_of, loss_of
from quoron.training.table import hold
from quoron_client.data.encoding import Encoding
from quoron_client.losses import Logistic

USERS = 400
TOML = """
    [population]
    kind = "table"
    path = "{path}"
    user = "who"
    label = "sick"
    numeric = ["age", "x*"]
    ranges = {{ age = [0, 100], "*" = [0, 1] }}
    hashed = {{ code = 8 }}
    dates.admitted = {{ parts = ["weekday", "hour"], year = [2020, 2025], days = [2020-01-01, 2025-12-31] }}
    dates.born = ["month"]
    exclude = ["x_id*"]
    [problem]
    items_per_user = 2
    [privacy]
    epsilon = 8.0
    delta = 1e-5
    [algorithm]
    name = "one-pass-dp-sgd"
    [train]
    health = 0
"""


def frame() -> pd.DataFrame:
    """Two rows a user, some of them without a code or a day."""
    draw = np.random.Generator(np.random.Philox(4))
    rows = 2 * USERS
    admitted = pd.Timestamp("2020-01-01") + pd.to_timedelta(draw.integers(0, 6 * 365 * 86_400, rows), unit="s")
    found = pd.DataFrame({
        "who": [f"u{row // 2:03}" for row in range(rows)],
        "age": draw.uniform(0, 90, rows).round(2),
        "x1": draw.uniform(size=rows),
        "x2": draw.uniform(size=rows),
        "x_id": np.arange(rows),
        "code": draw.choice(["E11.9", "I10", "J45", "Z00.0"], rows),
        "admitted": admitted,
        "born": (pd.Timestamp("1950-01-01") + pd.to_timedelta(draw.integers(0, 20_000, rows), unit="D")).date,
        "sick": admitted.hour >= 12,
    })  # fmt: skip
    found.loc[::7, "code"] = None
    return found


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QUORON_LEDGER", str(tmp_path / "ledger.sqlite"))
    return tmp_path


def config(path: str, place: Path) -> configs.Config:
    return with_columns(configs.parse(TOML.format(path=path)), place)


def rules(given: configs.Config) -> Encoding:
    assert isinstance(given.population, configs.TableSection)
    return encoding_of(given.population, loss_of(given.loss))


class TestEveryDoor:
    def test_has_the_same_items(self, place: Path) -> None:
        """Of a file of text, of one of types, of a folder, a DataFrame and Arrow: bit for bit."""
        table = frame()
        table.to_csv(place / "v.csv", index=False)
        table.to_parquet(place / "v.parquet")
        (place / "folder").mkdir()
        table.iloc[:300].to_parquet(place / "folder" / "a.parquet")
        table.iloc[300:].to_parquet(place / "folder" / "b.parquet")
        found = {}
        for path in ("v.csv", "v.parquet"):
            found[path] = hold(config(path, place), place).items()
        given = config("v.csv", place)
        for name, other in (
            ("frame", table),
            ("object", table.astype({"admitted": object})),
            ("arrow", pa.table(table)),
        ):
            found[name] = hold(given, place, other).items()
        more: dict[str, Any] = {"user": "who", "loss": Logistic(), "test_fraction": 0.0, "items_per_user": 2}
        found["folder"] = from_dataset(place / "folder", rules(given), **more).items(np.arange(USERS))
        expected = found["v.parquet"]
        assert expected.features.shape[1] == 3 + 8 + 7 + 24 + 2 + 12 + 1
        for name, items in found.items():
            assert np.array_equal(np.asarray(items.features), np.asarray(expected.features)), name
            assert np.array_equal(np.asarray(items.labels), np.asarray(expected.labels)), name
