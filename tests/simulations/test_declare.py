"""`quoron declare`: what is released of a table, what it is charged, and that no row's value raises."""

import math
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from quoron.cli.app import invoke
from quoron.declare import declare
from quoron.sections import Keep, Privacy
from quoron_privacy.accounts import gdp
from quoron_privacy.errors import ConfigError, Infeasible
from quoron_privacy.noise.sources import SecureNoise
from quoron_server.books.database import Database
from quoron_server.books.lifetime_ledger import PopulationLedger
from said import said

pytestmark = pytest.mark.usefixtures("own_ledger")
USERS = 3000
ASKED = {"user": "who", "epsilon": 8.0, "delta": 1e-6, "simulation_seed": 3}
ALL = {"items": True, "numeric": ["delay", "height"], "categorical": ["ward", "code"]}


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


def rows_of(path: Path) -> Path:
    """The same, and a row without a user."""
    frame().to_csv(path, index=False)
    with path.open("a") as file:
        file.write(",1,2,nobody,0,x\n")
    return path


def check(declared: dict) -> None:
    assert declared["problem"] == {"items_per_user": 4}
    numeric, categorical = declared["population"]["numeric"], declared["population"]["categorical"]
    assert -140 <= numeric["delay"][0] < -60
    assert 140 < numeric["delay"][1] < 260
    assert 1.2 < numeric["height"][0] < 1.6
    assert 2.0 < numeric["height"][1] <= 2.4
    assert categorical["ward"] == ["North", 'the "old" one', "Böblingen"] or len(categorical["ward"]) == 3
    assert sorted(categorical["code"]) == [0, 1, 2]


def test_columns_that_cannot_be_told_are_comments_with_their_cost() -> None:
    table = frame().assign(nothing="?", zero=0)
    declaration = declare(table, **said(numeric=["nothing", "zero"], categorical=["secret"], **ASKED))
    declared = declaration.toml()
    assert "# nothing: too few users have numbers here (epsilon = 2.66667, delta = 2.5e-07)" in declared
    assert "# zero: zero for nearly everybody" in declared
    assert "# secret: no category has enough users' votes (epsilon = 2.66667, delta = 5e-07)" in declared
    assert set(tomllib.loads(declared)["population"]) == {"kind", "user", "numeric", "categorical"}
    assert tomllib.loads(declared)["population"]["categorical"] == {}


def test_too_few_users_are_told_before_anything_is_charged_or_released(tmp_path: Path) -> None:
    with pytest.raises(Infeasible, match=r"ranges: 3,000 users .* of a column .*, and epsilon is shared by 2"):
        declare(
            frame(),
            numeric=["delay"],
            items=True,
            privacy=Privacy(0.05),
            keep=Keep(ledger=str(tmp_path / "none.sqlite")),
            user="who",
        )
    with pytest.raises(Infeasible, match=r"items per user: 3,000 users"):
        declare(frame(), items=True, user="who", privacy=Privacy(0.01))


def test_what_a_declaration_of_ranges_costs_is_its_whole_promise_and_no_more(own_ledger: Path) -> None:
    declared = declare(frame(), user="who", privacy=Privacy(2.0), numeric=["delay", "height"])
    with Database(f"sqlite:///{own_ledger}") as opened:
        (charge,) = PopulationLedger(opened).charges("everyone")
    assert (charge.epsilon, charge.delta, charge.mu) == (2.0, 1e-6, declared.mu)
    assert sum(each.mu**2 for each in declared.declared) == pytest.approx(declared.mu**2)
    assert sum(each.epsilon for each in declared.declared) <= 2.0
    assert gdp.delta_for(declared.mu, 2.0) + (1 + math.exp(2.0)) * charge.variation <= 1e-6


def test_no_noise_is_drawn_twice_whatever_columns_are_called(own_ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is looked at was drawn with the words of the noise of a column of that name."""
    drawn, plain = [], SecureNoise.stream

    def noting(source: SecureNoise, *labels: str | int) -> object:
        drawn.append((source.fingerprint(), *labels))
        return plain(source, *labels)

    monkeypatch.setattr(SecureNoise, "stream", noting)
    rows = np.arange(3000)
    names = ["users", "bought", "places", "cells", "closer", "declare", "items"]
    table = pd.DataFrame({"who": rows, "age": rows % 70, **dict.fromkeys(names, rows % 2)})
    declare(table, user="who", privacy=Privacy(20.0), items=True, numeric=["age"], categorical=names)
    assert len(drawn) == len(set(drawn)) >= len(names) + 4


def test_the_command_prints_a_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = rows_of(tmp_path / "visits.csv")
    options = ["--epsilon", "8", "--numeric", "delay,height", "--categorical", "ward", "--categorical", "code"]
    assert invoke(["declare", str(path), "--user", "who", "--items", *options]) == 0
    printed = capsys.readouterr().out
    check(tomllib.loads(printed))
    assert "# Released with (8, 1e-06)-differential privacy for replacing one of 3,000 users." in printed
    assert "# epsilon = 1.6, delta = 3.33333e-07" in printed  # of each categorical column, and of all ranges
    assert tomllib.loads(printed)["population"]["path"] == str(path)
    assert invoke(["declare", str(path), "--user", "whom", "--items", "--epsilon", "1"]) == 2
    assert "Expected column 'whom'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "value", ["\ud800", b"", "nan", True, np.int64(3), np.float32(2.5), 2.0**70, "-", "0x1"], ids=ascii
)
def test_no_other_value_raises_either(value: object) -> None:
    accepted(value)


def accepted(value: object) -> None:
    table = pd.DataFrame({"who": [*range(200), 1, 2], "odd": [*["a"] * 200, value, value]}, dtype=object)
    declared = declare(table, user="who", privacy=Privacy(32.0, simulation_seed=1), numeric=["odd"])
    assert declared.declared[0].value is None
    declared = declare(table, user="who", privacy=Privacy(8.0, simulation_seed=1), items=True, categorical=["odd"])
    assert declared.declared[0].value == ["a"]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({}, "Expected items, columns that are numeric, dates or categorical"),
        ({"numeric": ["delay"], "categorical": ["delay"]}, "each once"),
        ({"items": True, "epsilon": 0.0}, "Expected epsilon in"),
    ],
)
def test_bad_requests_are_refused_by_name(asked: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        declare(frame(), **said(**{"user": "who", "epsilon": 8.0} | asked))
