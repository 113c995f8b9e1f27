"""A pattern of columns is the columns of the header at every door, and the header is all that is looked at."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from quoron import config as configs
from quoron.operate.submission import specify
from quoron.simulation.patterns import with_columns
from quoron.simulation.scene import encoding_of, loss_of
from quoron.sources import described
from quoron_privacy.errors import ConfigError

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


def test_a_federation_without_a_header_is_refused_with_the_fix(place: Path) -> None:
    config = configs.located(configs.parse(toml("nowhere.csv")), place)
    with pytest.raises(ConfigError, match=r"or as a span .* for a federation.*found no such file. Write"):
        specify(config, run="r", users=2000, seconds=60)


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
