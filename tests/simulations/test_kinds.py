"""Dates, hashed texts and listed columns through every door: the same items, and coefficients in people's words."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import quoron
from quoron import config as configs
from quoron.datasets.population import from_dataset
from quoron.declare import declare
from quoron.populations import DateNumber, DatePart, Hashed, Numeric, from_table
from quoron.sections import Privacy
from quoron.simulation.patterns import with_columns
from quoron.simulation.scene import encoding_of, loss_of
from quoron.table_columns import read
from quoron.training.table import hold
from quoron_client.data import fused
from quoron_client.data.declared import check_types
from quoron_client.data.encoding import Encoding
from quoron_client.losses import Logistic
from quoron_privacy.errors import ConfigError, DataError
from said import said

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
    def test_means_the_features_of_its_words(self, place: Path) -> None:
        frame().to_csv(place / "v.csv", index=False)
        given = config("v.csv", place)
        assert rules(given).features == (
            *(Numeric("age", 0, 100), Numeric("x1", 0, 1), Numeric("x2", 0, 1), Hashed("code", 8)),
            *(
                DatePart("admitted", "weekday"),
                DatePart("admitted", "hour"),
                DateNumber("admitted", "year", 2020, 2025),
            ),
            *(DateNumber("admitted", "days", 0, 2191, "2020-01-01"), DatePart("born", "month")),
        )
        assert configs.parse(given.as_toml()) == given
        assert with_columns(given, place) == given

    @pytest.mark.parametrize(
        ("old", "new", "message"),
        [
            (
                'ranges = { age = [0, 100], "*" = [0, 1] }',
                "",
                r"the range or the values of every column that is a feature, got none of age, x",
            ),
            ("age = [0, 100],", "age = [0, 100], size = [0, 1],", "ranges of columns that are numeric, got 'size'"),
            ("age = [0, 100],", "age = [100, 0],", "low < high for numeric column 'age'"),
            ("age = [0, 100],", "age = [0],", r"population\.numeric\.age to have 2 entries"),
            ('numeric = ["age", "x*"]', "", r"ranges of columns that are numeric, got 'age'"),
            ("code = 8", "code = 1", r"population\.hashed\.code >= 2"),
            ("code = 8", "code = 8, age = 9", "every feature once, got 'age' twice"),
            ('["weekday", "hour"]', '["weekday", "minute"]', r"population\.dates\.admitted\.parts.* 'hour'"),
            ('["weekday", "hour"]', '["hour", "hour"]', r"population\.dates\.admitted to have parts, each once"),
            ('born = ["month"]', "born = []", r"population\.dates\.born to have parts, each once, or year, or days"),
            ("year = [2020, 2025]", "year = [2025, 2020]", "range low < high of the year of date 'admitted'"),
            ("days = [2020-01-01, 2025-12-31]", "days = ['2020', '2025']", "a day such as '2007-01-31'"),
            ('dates.born = ["month"]', "dates.born = { parts = ['month'], zone = 'Mars' }", "a time zone such as"),
            ('"x_id*"', '"q*"', r"columns that 'q\*' excludes, got none in the table"),
            ('"x_id*"', '"age"', "exclude that nobody declares, got 'age'"),
        ],
    )
    def test_that_cannot_be_meant_is_refused_with_its_key(self, old: str, new: str, message: str, place: Path) -> None:
        frame().iloc[:0].to_csv(place / "v.csv", index=False)
        text = TOML.format(path="v.csv")
        assert old in text
        with pytest.raises(ConfigError, match=message):
            rules(with_columns(configs.parse(text.replace(old, new)), place)).check_meant("who")


@pytest.mark.parametrize("kind", [pa.bool_(), pa.string(), pa.int8()])
def test_true_and_false_are_numbers_categories_and_classes_of_any_type(kind: pa.DataType, place: Path) -> None:
    given = configs.parse("""
        [population]
        kind = "table"
        path = "v.csv"
        user = "who"
        label = "sick"
        classes = [false, true]
        numeric = { a = [0, 1] }
        categorical = { b = [true, false], c = ["yes"] }
    """)
    found = rules(given)
    assert Encoding.from_json(found.as_json()) == found
    flags = pa.array([True, False, None]).cast(kind)
    table = pa.table({"a": flags, "b": flags, "c": ["yes", "no", None], "sick": flags})
    check_types(found, dict(zip(table.column_names, table.schema.types, strict=True)))
    encoded = fused.encoded(found, table)
    assert encoded.labels.tolist() == [1, -1, 0]
    assert np.sign(encoded.features).tolist() == [[1, 1, 0, 1, 1], [-1, 0, 1, 0, 1], [0] * 5]


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

    def test_of_simulations_and_of_populations(self, place: Path) -> None:
        done = quoron.simulate(frame(), **said(**COLUMNS, epsilon=8.0, delta=1e-5, algorithm="one-pass-dp-sgd"))
        assert isinstance(done.config.population, configs.TableSection)
        assert done.config.population.exclude == ()
        crowd = from_table(
            frame(), user="who", label="sick", features=(DatePart("admitted", "hour"), Hashed("code", 4))
        )
        assert crowd.dimension == 24 + 4 + 1


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
