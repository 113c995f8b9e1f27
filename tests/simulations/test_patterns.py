"""A pattern of columns is the columns of the header at every door, and the header is all that is looked at."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import quoron
from quoron import config as configs
from quoron.declare import declare
from quoron.operate.submission import declared, specify
from quoron.sections import Privacy
from quoron.simulation.patterns import with_columns
from quoron.simulation.scene import encoding_of, loss_of
from quoron.sources import described
from quoron.training import run as training
from quoron_client.data.features import Numeric
from quoron_privacy.errors import ConfigError, DataError
from said import said

USERS, WIDE = 400, 150
NAMES = tuple(f"x{each}" for each in range(WIDE))
QUICK: dict[str, Any] = {"epsilon": 8.0, "delta": 1e-5, "algorithm": "dp-sgd-wor", "items_per_user": 2}
SETTINGS = ("algorithm.options.rounds=3", "train.health=0")


def frame() -> pd.DataFrame:
    """Two rows a user; x_sick is the label, age a column of another range."""
    draw = np.random.Generator(np.random.Philox(9))
    users = np.repeat(np.arange(USERS), 2)
    values = draw.uniform(size=(2 * USERS, WIDE))
    age = draw.uniform(0, 90, 2 * USERS)
    return pd.DataFrame(
        {"who": users, **dict(zip(NAMES, values.T, strict=True)), "age": age, "x_sick": values[:, 0] > 0.5}
    )


def toml(path: str, numeric: str = '"x*" = [0, 1], age = [0, 100]', more: str = "", label: str = '"x_sick"') -> str:
    return f"""
        [population]
        kind = "table"
        path = "{path}"
        user = "who"
        label = {label}
        numeric = {{ {numeric} }}
        {more}
        [problem]
        items_per_user = 2
        [privacy]
        epsilon = 8.0
        delta = 1e-5
        [algorithm]
        name = "dp-sgd-wor"
        options = {{ rounds = 3 }}
        [train]
        health = 0
    """


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QUORON_LEDGER", str(tmp_path / "ledger.sqlite"))
    return tmp_path


@pytest.mark.parametrize("kind", ["csv", "parquet", "folder"])
def test_columns_are_those_of_the_header_and_no_row_is_read(kind: str, place: Path) -> None:
    path = place / ("x.csv" if kind == "csv" else "x.parquet" if kind == "parquet" else "part/x.parquet")
    path.parent.mkdir(exist_ok=True)
    if kind == "csv":
        path.write_text(",".join(frame().columns) + "\n" + '"a quote that nobody closes')
    else:
        frame().iloc[:1].to_parquet(path)
    given = configs.parse(toml(str(path.parent if kind == "folder" else path)))
    found = with_columns(given, place).population
    assert isinstance(found, configs.TableSection)
    assert found.numeric == {f"x[0:{WIDE}]": (0.0, 1.0), "age": (0.0, 100.0)}
    assert with_columns(configs.parse(with_columns(given, place).as_toml()), place).population == found


def test_of_a_table_that_is_not_there_is_refused(place: Path) -> None:
    with pytest.raises(DataError, match="Expected a table at"):
        with_columns(configs.parse(toml("nowhere.csv")), place)


def test_training_stands_on_the_columns_that_were_found(place: Path) -> None:
    """The same plan as by name; what its folder says has no pattern, so that nothing is looked up again."""
    columns: dict[str, Any] = {"user": "who", "label": "x_sick"}
    found = {"x*": (0, 1), "age": (0, 100)}
    trained = quoron.train(frame(), **said(**QUICK, **columns, numeric=found, settings=SETTINGS, out=place / "a"))
    assert trained.model.encoding.names == (*NAMES, "age", "intercept")
    assert "x*" not in (place / "a" / "config.toml").read_text()
    named = {**dict.fromkeys(NAMES, (0, 1)), "age": (0, 100)}
    again = quoron.plan(frame(), **said(**QUICK, **columns, numeric=named, settings=SETTINGS))
    assert trained.model.encoding.features == (*(Numeric(name, 0, 1) for name in NAMES), Numeric("age", 0, 100))
    other = quoron.plan(frame(), **said(**QUICK, **columns, numeric={"*": (0, 1)}, settings=SETTINGS))
    assert other.plan == again.plan


def test_a_run_on_a_file_goes_on_where_the_header_has_another_column_since(place: Path) -> None:
    frame().to_csv(place / "x.csv", index=False)
    prepared = training.prepare(configs.parse(toml("x.csv")), place, name="run")
    frame().assign(x_new=0.5).to_csv(place / "x.csv", index=False)
    again = training.prepare(prepared.config, place, name="run")
    assert prepared.scene.held.encoding == again.scene.held.encoding
    assert (
        len(training.prepare(configs.parse(toml("x.csv")), place, name="run").scene.held.encoding.features) == WIDE + 2
    )


def test_simulations_and_their_folders_too(place: Path) -> None:
    done = quoron.simulate(
        frame(),
        **said(**QUICK, user="who", label="x_sick", numeric={"x*": (0, 1)}, settings=SETTINGS, out=place / "run"),
    )
    assert isinstance(done.config.population, configs.TableSection)
    assert [*done.config.population.numeric] == [f"x[0:{WIDE}]"]
    assert quoron.resume(place / "run").directory == done.directory  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("numeric", "message"),
    [
        ('"x*" = [0, 1], "*7" = [0, 2]', r"every column to be declared once, got 'x7' as 'x\*' and as '\*7'"),
        ('"y*" = [0, 1]', r"columns that 'y\*' stands for, got none among the 153 of the table"),
        ('"who*" = [0, 1]', "got none among"),
    ],
)
def test_what_could_be_meant_otherwise_is_refused_before_the_charge(numeric: str, message: str, place: Path) -> None:
    frame().to_csv(place / "x.csv", index=False)
    (place / "x.toml").write_text(toml("x.csv", numeric))
    with pytest.raises(ConfigError, match=message):
        quoron.train(place / "x.toml")
    assert not (place / "ledger.sqlite").exists()


def test_one_of_numbers_and_one_of_categories_have_no_column_in_common(place: Path) -> None:
    frame().to_csv(place / "x.csv", index=False)
    given = configs.parse(toml("x.csv", '"x*" = [0, 1]', 'categorical = { "*9" = "0:5" }'))
    with pytest.raises(ConfigError, match=r"got 'x9' as 'x\*' and as '\*9'"):
        with_columns(given, place)


def test_a_federation_is_told_the_columns(place: Path) -> None:
    frame().iloc[:0].to_csv(place / "x.csv", index=False)
    config = configs.located(configs.parse(toml("x.csv")), place)
    given, _ = specify(config, run="r", users=2000, seconds=60)
    assert given.columns.names == (*NAMES, "age", "intercept")
    assert f"x[0:{WIDE}]" in given.as_text()
    assert "x*" not in given.as_text()
    assert declared(config, 2000).features == WIDE + 2


def test_a_federation_without_a_header_is_refused_with_the_fix(place: Path) -> None:
    config = configs.located(configs.parse(toml("nowhere.csv")), place)
    with pytest.raises(ConfigError, match=r"or as a span .* for a federation.*found no such file. Write"):
        specify(config, run="r", users=2000, seconds=60)


def test_declarations_are_asked_for_by_patterns_and_spans(place: Path) -> None:
    found = declare(
        frame(),
        user="who",
        privacy=Privacy(epsilon=14.0, simulation_seed=1),
        numeric=["x1[48:50]", "*ge"],
    )
    assert [each.name for each in found.declared] == ["x148", "x149", "age"]
    with pytest.raises(ConfigError, match=r"got 'x148' as '\*8' and as 'x14\*'"):
        declare(frame(), user="who", privacy=Privacy(epsilon=8.0, simulation_seed=1), numeric=["*8", "x14*"])


def test_categories_that_count_up_are_one_text_at_every_door(place: Path) -> None:
    """A list of 50,000 would be 300,000 characters of the 2²⁰ that a run may be told in."""
    text = toml("x.csv", "age = [0, 100]", 'categorical = { code = "0:50000", ward = "-1:2" }')
    config = configs.parse(text)
    assert 'code = "0:50000"' in config.as_toml()
    assert configs.parse(config.as_toml()) == config
    rules = encoding_of(config.population, loss_of(config.loss))  # type: ignore[arg-type]
    assert len(json.dumps(rules.as_json())) < 500
    assert rules.dimension == 50_000 + 3 + 2
    told = [
        described("people.csv", {"user": "who", "label": "x_sick", "categorical": {"code": values}}, (), {})[
            0
        ].population
        for values in ("0:200", range(200), list(range(200)))
    ]
    assert len({str(encoding_of(each, loss_of(config.loss)).as_json()) for each in told}) == 1


@pytest.mark.parametrize("values", ["5:5", "0:1048577", "north"])
def test_categories_that_do_not_count_up_are_refused_with_their_key(values: str) -> None:
    with pytest.raises(
        ConfigError, match=r"population\.categorical\.code to be a list, or from 1 to 1,048,576 integers"
    ):
        configs.parse(toml("x.csv", "age = [0, 100]", f'categorical = {{ code = "{values}" }}'))


def test_classes_that_count_up_are_one_text_too() -> None:
    text = toml("x.csv", more='classes = "0:10"', label='"digit"')
    config = configs.parse(text)
    assert (config.loss.name, config.loss.classes) == ("softmax", 10)
    assert configs.parse(config.as_toml()) == config


def test_a_plan_of_json_lines_names_no_key_of_a_row(tmp_path: Path) -> None:
    lines = [f'{{"who": {user}, "age": {user % 100}, "dose": 1.0, "ill": {user % 2}}}' for user in range(2000)]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    planned = quoron.plan(tmp_path / "rows.jsonl", user="who", label="ill", numeric={"age": (0, 100)})
    assert "dose" not in " ".join(planned.remarks)
