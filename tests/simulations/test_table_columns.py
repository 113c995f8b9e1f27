"""The words, patterns and kinds of columns: one list at every door and command, and what is said of a wrong one."""

import inspect
import json
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

import quoron
from quoron import config as configs
from quoron import toml_text
from quoron.arguments import plain
from quoron.cli.app import app, invoke
from quoron.config import ColumnsSection, LabelSection, Simulated, TableSection
from quoron.data import columns as table_columns
from quoron.data.columns import TYPED, Label, read
from quoron.federation.submission import specify
from quoron.releases.bounds import find_bounds
from quoron.simulation import wildcards
from quoron.simulation.problem import encoding_of, loss_of
from quoron.simulation.sources import described
from quoron.simulation.wildcards import with_columns
from quoron_client.data.encoding import Encoding
from quoron_privacy.errors import ConfigError, DataError
from quoron_server.serial import dumps

DOORS = ("train", "simulate", "compare", "plan")  # in Python, and commands


def test_every_word_is_a_key_of_the_configuration_and_every_key_of_a_table_a_word() -> None:
    shared = {
        *Simulated.model_fields,
        "kind",
        "path",
        "users",
        "model",
        "test_fraction",
    }  # of simulations, or the source itself
    assert {"user", "label", "columns"} == set(TableSection.model_fields) - shared
    assert set(LabelSection.model_fields) == set(Label.__annotations__)
    assert set(ColumnsSection.model_fields) == set(quoron.Columns.__annotations__)


@pytest.mark.parametrize("name", DOORS)
def test_a_door_takes_columns_as_one_argument(name: str) -> None:
    shown = inspect.signature(getattr(quoron, name)).parameters
    assert shown["columns"].kind is inspect.Parameter.KEYWORD_ONLY
    assert all(shown[word].default is None for word in ("user", "label", "columns"))
    assert not {*quoron.Columns.__annotations__} & {*shown}
    assert not any(each.kind is inspect.Parameter.VAR_KEYWORD for each in shown.values())
    assert [*shown][:3] == ["source", "user", "label"]


def test_columns_are_a_plain_mapping_and_a_section_of_toml(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(ROWS)
    text = 'csv = { separator = ";" }\nnumeric = { age = [0, 90], dose = [0, 5] }\n'
    text += "hashed = { code = 64 }"
    numeric = {"age": (0, 90), "dose": (0, 5)}
    given = [
        quoron.Columns(csv={"separator": ";"}, numeric=numeric, hashed={"code": 64}),
        {"csv": {"separator": ";"}, "numeric": numeric, "hashed": {"code": 64}},
        tomllib.loads(text),
    ]
    found = [described(tmp_path / "a.csv", "who", "ill", {"columns": columns})[0] for columns in given]
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("name", DOORS)
def test_a_command_has_an_option_for_every_word_that_is_one(name: str) -> None:
    command = typer.main.get_command(app)
    assert isinstance(command, click.Group)
    options = {option for each in command.commands[name].params for option in each.opts}
    assert {f"--{option}" for option in TYPED} | {"--user", "--label", "--set"} < options
    assert not {f"--{key}" for key in quoron.Columns.__annotations__.keys() - TYPED.keys()} & options


ROWS = "who;age;dose;code;id;w;ill\n" + "".join(
    f"{row // 4};{row % 90};0,5;c{row % 30};{row};1;{row % 2}\n" for row in range(4_000)
)
BESIDE: dict[str, Any] = {  # every key that is no option
    "columns.dates": {"came": {"parts": ["month", "weekday"]}},
    "label.column": "ill",
    "label.positive": 1,
    "label.range": (0, 1),
    "columns.hashed": {"code": 64},
    "columns.exclude": ["id", "w*"],
    "columns.estimate": {"code": "category"},
    "label.classes": [0, 1],
    "columns.weight": {"column": "w", "most": 2},
    "columns.csv": {"separator": ";"},
    "columns.missing": "midpoint",
    "columns.intercept": False,
    "columns.normalize": True,
    "columns.curves": 4,
    "columns.pairs": 2,
}


def test_what_is_no_option_is_set_beside_a_plain_table_in_toml(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(ROWS)
    keys = {f"columns.{key}" for key in quoron.Columns.__annotations__.keys() - TYPED.keys()}
    assert set(BESIDE) == keys | {f"label.{key}" for key in Label.__annotations__}
    given: dict[str, Any] = {"numeric": {"age": (0, 9), "dose": (0, 9)}, "csv": {"separator": ";"}}
    for word, value in BESIDE.items():
        table, _, key = word.rpartition(".")
        label = {"column": "ill", key: value} if table == "label" else "ill"
        columns = given | {key: value} if table == "columns" else given
        meant = described(tmp_path / "a.csv", "who", label, {"columns": columns})[0]
        asked = {"columns": given, "settings": [f"population.{word}={toml_text.literal(plain(value, word))}"]}
        assert described(tmp_path / "a.csv", "who", "ill", asked)[0] == meant
    nested = [
        *(f"population.columns.numeric.{each}=[0, 9]" for each in ("age", "dose")),
        "population.columns.hashed.code=64",
    ]
    found = described(tmp_path / "a.csv", "who", "ill", {"columns": given, "settings": nested})[0].population
    assert isinstance(found, TableSection)
    assert (found.columns.hashed, found.columns.numeric) == ({"code": 64}, {"age": (0, 9), "dose": (0, 9)})


def test_a_command_takes_everything_of_a_table_by_options_and_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text(ROWS)
    words = ["--user", "who", "--label", "ill", "--numeric", "age=0:90,dose=0:5", "--epsilon", "8"]
    words += [
        "--set",
        "population.columns.csv.separator=;",
        "--set",
        "population.columns.csv.decimal=,",
        "--set",
        "population.columns.hashed.code=64",
    ]
    words += ["--set", "population.items_per_user=4", "--set", "privacy.allow_large_delta=true"]
    columns = {
        "numeric": {"age": (0, 90), "dose": (0, 5)},
        "hashed": {"code": 64},
        "csv": {"decimal": ",", "separator": ";"},
    }
    more: dict[str, Any] = {"items_per_user": 4, "settings": ["privacy.allow_large_delta=true"]}
    planned = quoron.plan("a.csv", "who", "ill", epsilon=8.0, columns=columns, **more)
    assert invoke(["plan", "a.csv", *words, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["problem"] == json.loads(dumps(planned.as_json()))["problem"]
    for wrong, message in (
        ("columns.csv.seperator=;", "did you mean population.columns.csv.separator?"),
        ("columns.csv.decimal=x", "decimal"),
    ):
        assert invoke(["plan", "a.csv", *words[:8], "--set", f"population.{wrong}"]) == 2
        assert message in " ".join(capsys.readouterr().err.split())


if TYPE_CHECKING:  # a type checker knows the words: it reports an ignore that it does not need
    quoron.train("a.csv", user="who", label="ill", columns={"numeric": {"age": (0, 100)}}, epsilon=2.0)
    quoron.train("a.csv", user="who", categorial=["ward"])  # type: ignore[call-overload]
    quoron.train("a.csv", user="who", categorical=["ward"])  # type: ignore[call-overload]
    quoron.train("a.csv", user="who", columns=quoron.Columns(categorical=["ward"]))
    quoron.train("a.csv", user="who", columns=quoron.Columns(categorial=["ward"]))  # type: ignore[typeddict-unknown-key]
    quoron.train("a.csv", user=3)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("word", "typed", "value"),
    [
        ("numeric", ["age=0:100", "dose=-1.5:1e3"], {"age": (0, 100), "dose": (-1.5, 1000)}),
        ("numeric", ["age=0:100,x*=-1:1"], {"age": (0, 100), "x*": (-1, 1)}),
        ("numeric", ["age=0:100,dose"], {"age": (0, 100), "dose": None}),
        ("categorical", ["ward=1,2", "zip=01,2"], {"ward": [1, 2], "zip": ["01", "2"]}),
        ("categorical", ["ward,clinic"], {"ward": None, "clinic": None}),
        ("categorical", ['drug="a,b",c', "ward"], {"drug": ["a,b", "c"], "ward": None}),
    ],
)
def test_what_is_typed_is_read_as_it_is_meant(word: str, typed: list[str], value: Any) -> None:
    assert table_columns.read(word, typed) == value


class TestAPattern:
    HEADER = ("who", "x1", "age", "x2", "xx", "late", "x_sick")

    @pytest.mark.parametrize(
        ("declared", "message"),
        [
            (["z*"], r"columns that 'z\*' stands for, got none among the 7 of the table. Letters"),
            (["x*", "*1"], r"declared once, got 'x1' as 'x\*' and as '\*1'. Write patterns"),
            (["x*[0:2]"], r"got 'x\*\[0:2\]': both in one"),
        ],
    )
    def test_that_is_empty_or_can_be_meant_in_two_ways_is_refused(self, declared: list[str], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            wildcards.resolved(declared, self.HEADER, roles={"who"})

    def test_leaves_out_what_is_excluded(self) -> None:
        def found(*without: str) -> list[tuple[str, ...]]:
            return wildcards.resolved(["x*", "age"], [*self.HEADER, "x[0:9]"], roles={"who"}, without=without)

        assert found("x_*", "xx", "x[0:9]", "x1*") == [("x2",), ("age",)]
        with pytest.raises(ConfigError, match="excludes, got none in the table"):
            found("z*")
        with pytest.raises(ConfigError, match="exclude that nobody declares, got 'age'"):
            found("age")

    def test_gives_the_range_of_a_name_then_of_a_pattern_then_of_all_others_and_no_two(self, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text("who,age,x1,x2,dose,ill\n")

        def found(*patterns: str) -> Any:
            ranges = {each: (0, place) for place, each in enumerate(patterns, 1)}
            config = described(tmp_path / "a.csv", "who", "ill", {"columns": {"numeric": ranges}})[0]
            return with_columns(config, tmp_path).population.columns.numeric

        assert found("x1", "x*", "*") == {"x1": (0, 1), "x2": (0, 2), "age": (0, 3), "dose": (0, 3)}
        with pytest.raises(ConfigError, match=r"every column to be declared once, got 'x1' as 'x\*' and as '\*1'"):
            found("x*", "*1")

    def test_is_a_column_whose_own_name_it_is_if_it_is_no_other(self) -> None:
        assert wildcards.resolved(["age*sex"], ["age", "sex", "age*sex"], roles=()) == [("age*sex",)]
        with pytest.raises(ConfigError, match=r"got column 'age\*sex', which could be meant in two ways. Rename it"):
            wildcards.resolved(["age*sex"], ["age*sex", "agexsex"], roles=())
        with pytest.raises(ConfigError, match=r"got column 'x\[0:9\]', which could"):
            wildcards.resolved(["x*"], ["x[0:9]", "x1"], roles=())

    @given(st.text("ab?[]!\n*", max_size=8), st.text("ab?[]!\n", max_size=8))
    def test_fits_what_a_regular_expression_says(self, pattern: str, name: str) -> None:
        pattern += "*"
        wanted = ".*".join(map(re.escape, pattern.split("*")))
        assert bool(wildcards._fitting(pattern, [name])) == (re.fullmatch(wanted, name, re.DOTALL) is not None)

    def test_of_many_stars_takes_no_time(self) -> None:
        """Backtracking would take longer than the universe has been there."""
        assert not wildcards._fitting("a*" * 2000 + "b", ["a" * 5000])


USERS = 400
TOML = """
    [population]
    kind = "table"
    items_per_user = 2
    path = "{path}"
    user = "who"
    label = "sick"
    [population.columns]
    numeric = {{ age = [0, 100], "x*" = [0, 1] }}
    hashed = {{ code = 8 }}
    dates.admitted = {{ parts = ["weekday", "hour"], year = [2020, 2025], days = [2020-01-01, 2025-12-31] }}
    dates.born = ["month"]
    exclude = ["x_id*"]
    [privacy]
    epsilon = 8.0
    delta = 1e-5
    [algorithm]
    name = "one-pass-dp-sgd"
    [train]
    data_quality = 0
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
    return encoding_of(given.population, loss_of(given))


class TestAConfiguration:
    @pytest.mark.parametrize(
        ("old", "new", "message"),
        [
            (
                'numeric = { age = [0, 100], "x*" = [0, 1] }',
                'numeric = ["age", "x*"]',
                r"the range or the values of every column that is a feature, got none of age, x",
            ),
            ("code = 8", "code = 1", r"population\.columns\.hashed\.code >= 2"),
            ('["weekday", "hour"]', '["weekday", "minute"]', r"population\.columns\.dates\.admitted\.parts.* 'hour'"),
            ("year = [2020, 2025]", "year = [2025, 2020]", "range low < high of the year of date 'admitted'"),
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
        found = find_bounds(
            frame(), user="who", epsilon=40.0, delta=1e-6, seed=3, numeric=["age"], dates=["admi*", "born"]
        )
        lines = {each.name: each for each in found.declared}
        assert [each.kind for each in found.declared] == ["numeric", "dates", "dates"]
        low, high = lines["admitted"].value["year"]
        assert 2010 <= low <= 2020 < 2025 <= high <= 2035
        assert "\ndates = { admitted = " in found.toml()
        section = configs.parse(found.toml().replace("[population]", '[population]\nlabel = "sick"\npath = "v.csv"', 1))
        assert rules(section).names[1:3] == ("admitted month=January", "admitted month=February")
        with pytest.raises(DataError, match="Expected column 'size' to hold dates, times or text, got type list"):
            find_bounds(
                pa.table({"who": ["a"], "size": pa.array([[1]])}), user="who", epsilon=8.0, delta=1e-6, dates=["size"]
            )


def test_what_cannot_be_read_is_refused_with_its_option() -> None:
    with pytest.raises(ConfigError, match=r"Expected --numeric .*, got --numeric 'a=1'"):
        read("numeric", ["a=1"])


WIDE = 150


def toml(path: str, numeric: str = '"x*" = [0, 1], age = [0, 100]', more: str = "") -> str:
    return f"""
        [population]
        kind = "table"
        items_per_user = 2
        path = "{path}"
        user = "who"
        label = "sick"
        columns.numeric = {{ {numeric} }}
        {more}
        [privacy]
        epsilon = 8.0
        delta = 1e-5
        [algorithm]
        name = "dp-sgd-wor"
    """


@pytest.mark.parametrize("kind", ["csv", "parquet", "folder"])
def test_columns_are_those_of_the_header_and_no_row_is_read(kind: str, place: Path) -> None:
    path = place / ("x.csv" if kind == "csv" else "x.parquet" if kind == "parquet" else "part/x.parquet")
    path.parent.mkdir(exist_ok=True)
    names = ["who", *(f"x{each}" for each in range(WIDE)), "age", "sick"]
    if kind == "csv":
        path.write_text(",".join(names) + "\n" + '"a quote that nobody closes')
    else:
        pd.DataFrame({name: [0.0] for name in names}).to_parquet(path)
    given = configs.parse(toml(str(path.parent if kind == "folder" else path)))
    found = with_columns(given, place).population
    assert isinstance(found, configs.TableSection)
    assert found.columns.numeric == {f"x[0:{WIDE}]": (0.0, 1.0), "age": (0.0, 100.0)}
    assert with_columns(configs.parse(with_columns(given, place).as_toml()), place).population == found


def test_a_federation_without_a_header_is_refused_with_the_fix(place: Path) -> None:
    config = configs.located(configs.parse(toml("nowhere.csv")), place)
    with pytest.raises(ConfigError, match=r"or as a span .* for a federation.*found no such file. Write"):
        specify(config, run="r", users=2000, seconds=60)
