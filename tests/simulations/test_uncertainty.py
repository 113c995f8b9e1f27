"""Intervals of coefficients: in the columns' own units, kept with the model, shown, or refused by name."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import quoron
from quoron.cli.app import invoke
from quoron.model import Model

USERS = 6000
ONE = quoron.Method("one-round-least-squares")


@pytest.fixture(autouse=True)
def own_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The usual place of a lifetime ledger, for this test alone."""
    monkeypatch.setenv("QUORON_LEDGER", str(tmp_path / "data" / "usual.sqlite"))


def frame(seed: int = 1) -> pd.DataFrame:
    """Cost is 100 + 2 age + 30 in the south, and noise."""
    rng = np.random.default_rng(seed)
    age, ward = rng.uniform(20, 80, USERS), rng.choice(["north", "south"], USERS)
    cost = 100 + 2 * age + 30 * (ward == "south") + rng.uniform(-40, 40, USERS)
    return pd.DataFrame({"who": np.arange(USERS), "age": age, "ward": ward, "cost": cost, "ill": cost > 200})


def trained(tmp_path: Path, **words):
    known = {"numeric": {"age": (20, 80)}, "categorical": {"ward": ["north", "south"]}, "label_range": (50, 400)}
    asked = {"user": "who", "label": "cost", "epsilon": 8.0, "method": ONE, "keep": quoron.Keep(tmp_path / "run")}
    return quoron.train(frame(), **known | asked | words)


def test_intervals_are_in_the_columns_own_units_and_hold_what_is_true(tmp_path):
    model = trained(tmp_path, intercept=False).model
    (low, high), north, south, intercept = model.uncertainty
    assert low < 2 < high
    assert high - low < 2
    assert 0 < south[0] < south[1]
    assert south[1] - north[0] > 0
    assert intercept[0] < intercept[1]
    assert len(model.table()) == 4
    assert model.no_interval is None


def test_values_of_a_category_beside_a_constant_are_not_determined_and_all_else_is(tmp_path):
    model = trained(tmp_path).model
    age, *others = model.uncertainty
    assert age[0] < 2 < age[1]
    assert others == [None, None, None]
    assert Model.load(tmp_path / "run" / "model.json").uncertainty == model.uncertainty


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ({"method": None}, "no interval: whitened-tracking clips"),
        ({"method": quoron.Method("tracking-srgd")}, "no interval: tracking-srgd releases no second moment"),
        ({"label": "ill", "label_range": None}, "not the best model of a logistic loss"),
        ({"unit_rows": True}, "divided by their own length"),
    ],
)
def test_whatever_nothing_is_proved_of_is_refused_by_name(words, why, tmp_path):
    model = trained(tmp_path, **words).model
    assert model.uncertainty is None
    assert why in model.no_interval


def test_the_command_shows_them_where_details_are_asked_for(tmp_path, capsys):
    path = tmp_path / "visits.csv"
    frame().to_csv(path, index=False)
    words = f"train {path} --user who --label cost --epsilon 8 --numeric age=20:80 --label-range 50:400 --no-intercept"
    given = [*words.split(), "--categorical", "ward=north,south", "--set", "algorithm.name=one-round-least-squares"]
    assert invoke([*given, "--out", str(tmp_path / "one"), "--details", "--quiet"]) == 0
    said = capsys.readouterr().out
    assert "95 %: noise and sampling" in said
    assert " to " in said
    other = [*given[:-2], "--set", "algorithm.name=whitened-tracking", "--out", str(tmp_path / "two"), "--quiet"]
    assert invoke([*other, "--details"]) == 0
    assert "no interval: whitened-tracking" in " ".join(capsys.readouterr().out.split())
