"""Dates, hashed texts and listed columns through every door: the same items, and coefficients in people's words."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from quoron import config as configs
from quoron.declare import declare
from quoron.sections import Privacy
from quoron.simulation.patterns import with_columns
from quoron.simulation.scene import encoding_of, loss_of
from quoron.table_columns import read
from quoron_client.data.encoding import Encoding
from quoron_privacy.errors import ConfigError, DataError

USERS = 400
COLUMNS: dict[str, Any] = {
    "user": "who",
    "label": "sick",
    "numeric": ["age", "x*"],
    "ranges": {"age": (0, 100), "*": (0, 1)},
    "hashed": {"code": 8},
    "dates": {
        "admitted": {"parts": ["weekday", "hour"], "year": (2020, 2025), "days": ("2020-01-01", "2025-12-31")},
        "born": ["month"],
    },
    "exclude": ["x_id*"],
}
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


class TestAConfiguration:
    @pytest.mark.parametrize(
        ("old", "new", "message"),
        [
            (
                'ranges = { age = [0, 100], "*" = [0, 1] }',
                "",
                r"the range or the values of every column that is a feature, got none of age, x",
            ),
            ("age = [0, 100],", "age = [100, 0],", "low < high for numeric column 'age'"),
            ("code = 8", "code = 1", r"population\.hashed\.code >= 2"),
            ('["weekday", "hour"]', '["weekday", "minute"]', r"population\.dates\.admitted\.parts.* 'hour'"),
            ("year = [2020, 2025]", "year = [2025, 2020]", "range low < high of the year of date 'admitted'"),
            ('dates.born = ["month"]', "dates.born = { parts = ['month'], zone = 'Mars' }", "a time zone such as"),
            ('"x_id*"', '"q*"', r"columns that 'q\*' excludes, got none in the table"),
        ],
    )
    def test_that_cannot_be_meant_is_refused_with_its_key(self, old: str, new: str, message: str, place: Path) -> None:
        frame().iloc[:0].to_csv(place / "v.csv", index=False)
        text = TOML.format(path="v.csv")
        assert old in text
        with pytest.raises(ConfigError, match=message):
            rules(with_columns(configs.parse(text.replace(old, new)), place)).check_meant("who")


class TestWhatNobodyDeclared:
    def test_of_dates_is_released_as_the_years_between_which_they_lie(self, place: Path) -> None:
        found = declare(
            frame(),
            user="who",
            privacy=Privacy(40.0, 1e-6, simulation_seed=3),
            numeric=["age"],
            dates=["admi*", "born"],
        )
        lines = {each.name: each for each in found.declared}
        assert [each.kind for each in found.declared] == ["numeric", "dates", "dates"]
        low, high = lines["admitted"].value["year"]
        assert 2010 <= low <= 2020 < 2025 <= high <= 2035
        assert "[population.dates]" in found.toml()
        section = configs.parse(found.toml().replace("[population]", '[population]\nlabel = "sick"\npath = "v.csv"', 1))
        assert rules(section).names[1:3] == ("admitted month=January", "admitted month=February")
        with pytest.raises(DataError, match="Expected column 'size' to hold dates, times or text, got type list"):
            declare(
                pa.table({"who": ["a"], "size": pa.array([[1]])}),
                user="who",
                privacy=Privacy(8.0, 1e-6),
                dates=["size"],
            )


class TestTheCommandLine:
    @pytest.mark.parametrize(
        ("word", "typed", "value"),
        [
            ("ranges", ["0:1"], (0.0, 1.0)),
            ("ranges", ["age=0:100,x*=-1:1"], {"age": (0.0, 100.0), "x*": (-1.0, 1.0)}),
            ("hashed", ["code=64,drug=256", "note=8"], {"code": 64, "drug": 256, "note": 8}),
            ("dates", ["a=month,hour", "b=day"], {"a": {"parts": ["month", "hour"]}, "b": {"parts": ["day"]}}),
            (
                "dates",
                ['a=weekday,year:2007:2016,days:2007-01-01:2016-12-31,"format:%d.%m.%Y, %H:%M",zone:+01:00'],
                {"a": {"parts": ["weekday"], "year": [2007, 2016], "days": ["2007-01-01", "2016-12-31"],
                       "format": "%d.%m.%Y, %H:%M", "zone": "+01:00"}},
            ),
            ("exclude", ["id*,x_*", "name"], ["id*", "x_*", "name"]),
        ],
    )  # fmt: skip
    def test_says_the_same(self, word: str, typed: list[str], value: Any) -> None:
        assert read(word, typed) == value

    @pytest.mark.parametrize(
        ("word", "typed"), [("hashed", "code"), ("hashed", "code=x"), ("dates", "a=year:x:y"), ("ranges", "1")]
    )
    def test_is_refused_with_its_option(self, word: str, typed: str) -> None:
        with pytest.raises(ConfigError, match=f"Expected --{word} .*, got --{word} '{typed}'"):
            read(word, [typed])
