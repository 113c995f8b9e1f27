"""What `quoron train` prints fits one screen, the rest stands behind `--details`; all doors count the same users."""

import io
import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import quoron
from quoron import Keep, Method, Privacy
from quoron.cli import one_screen, showing
from quoron.cli.app import invoke
from quoron.errors import ConfigError
from quoron.reports.terminal import Terminal
from quoron.sklearn import DoubtfulModel, PrivateLogisticRegression
from quoron.training import lifetime

USERS = 600
WORDS = ["--user", "who", "--label", "ill", "--epsilon", "2", "--items-per-user", "2"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QUORON_LEDGER", str(tmp_path / "ledger.sqlite"))
    random = np.random.default_rng(5)
    who = np.repeat(np.arange(USERS), 3)
    values = {f"x{each}": random.uniform(0, 100, len(who)) for each in range(30)}
    people = pd.DataFrame({"who": who, **values, "ill": random.random(len(who)) < values["x0"] / 100})
    people.to_csv(tmp_path / "people.csv", index=False)
    people.to_parquet(tmp_path / "people.parquet")
    (tmp_path / "folder").mkdir()
    people.to_parquet(tmp_path / "folder" / "people.parquet")
    return tmp_path


def columns(many: int) -> list[str]:
    return ["--numeric", ",".join(f"x{each}=0:100" for each in range(many))]


def screen(words: list[str], monkeypatch: pytest.MonkeyPatch, width: int) -> list[str]:
    """Lines that a terminal of so many columns shows."""
    shown = io.StringIO()
    monkeypatch.setattr(showing, "console", lambda: Terminal(width=width, force_terminal=True, file=shown))
    assert invoke(words) == 0
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.getvalue())
    return [each[at : at + width] for each in plain.splitlines() for at in range(0, max(len(each), 1), width)]


SAID: dict[str, Any] = {
    "user": "who",
    "label": "ill",
    "numeric": {"x0": (0, 100)},
    "privacy": Privacy(2.0, 1e-6, health=0),
    "method": Method("one-pass-dp-sgd", {"rounds": 4}),
}


def test_doubts_come_first_and_are_never_cut_and_no_warning_is_hidden(place: Path) -> None:
    trained = quoron.train("people.csv", **SAID, keep=Keep("trained"))
    doubts = tuple(f"doubt {each}: {'it may be worthless ' * 20}" for each in range(9))
    lesser = tuple(f"lesser remark {each}: {'of no weight ' * 20}" for each in range(9))
    summary = replace(trained.summary, warnings=(*doubts, *lesser), doubts=doubts)
    shown = one_screen.warnings(summary, 80)
    assert shown[:9] == [f"Warning: {each}" for each in doubts]
    for each, line in zip(lesser, shown[9:18], strict=True):
        assert line.startswith(f"Warning: {each[:20]}")
        assert len(line) <= 80
    assert shown[18:] == ["What ends in ... is whole in report.html."]


def test_a_plan_no_better_than_not_training_says_so_first_and_before_the_charge(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = pd.read_csv("people.csv").iloc[:1320]  # of 440 users
    table.to_csv("few.csv", index=False)
    said: dict[str, Any] = {"user": "who", "label": "ill", "numeric": {"x*": (0, 100)}, "epsilon": 1.0}
    sentence = "No better than not training, as far as the bound says: with 440 users for 31 coefficients at ε = 1 "
    for planned in (quoron.plan("few.csv", **said), quoron.plan_training("few.csv", **said)):
        (doubt,) = planned.doubts
        assert doubt.startswith(sentence)
        assert planned.as_json()["remarks"][0] == doubt
    assert quoron.plan("few.csv", **said | {"epsilon": 8.0, "numeric": {"x0": (0, 100)}}).doubts == ()
    words = ["few.csv", "--user", "who", "--label", "ill", "--epsilon", "1", "--numeric", "x*=0:100"]
    dry = ["train", *words, "--dry-run"]
    searched = ["tune", "people.csv", *dry[2:], "--vary", "loss.ridge=[0, 0.1]"]
    for command in (["simulate", *words], dry, searched):
        assert " ".join(screen(command, monkeypatch, 80)).startswith("Warning: No better than not training, as far as")
    with warnings.catch_warnings():
        warnings.simplefilter("error", DoubtfulModel)
        with pytest.raises(DoubtfulModel, match=re.escape(sentence)):
            quoron.train("few.csv", **said, keep=Keep("stopped"))
        with pytest.raises(DoubtfulModel, match="No better than not training"):
            quoron.tune("people.csv", **said, vary={"loss.ridge": [0, 0.1]}, keep=Keep("searched"))
        rows, ill, who = table.filter(like="x"), table["ill"], table["who"]
        with pytest.raises(DoubtfulModel, match=re.escape(sentence)):
            PrivateLogisticRegression(epsilon=1.0, bounds=(0, 100), classes=[False, True]).fit(rows, ill, groups=who)
    with lifetime.opened(Path("ledger.sqlite")) as kept:
        assert list(kept.charges("everyone")) == []
    capsys.readouterr()
    assert invoke(["train", *words, "--quiet"]) == 0
    assert f"Warning: {sentence}" in capsys.readouterr().err


def test_columns_named_as_identifiers_are_features_only_where_they_are_declared(place: Path) -> None:
    people = pd.read_csv("people.csv")[["who", "x0", "ill"]]
    for name in ("id", "visit_id", "patientID", "case id", "covid", "paid"):
        people[name] = 1.0 * np.arange(len(people))
    people.to_parquet("ids.parquet")
    said: dict[str, Any] = {"user": "who", "label": "ill", "epsilon": 6.0}

    def left_out(**more: Any) -> list[str]:
        remarks = quoron.plan_training("ids.parquet", **said, **more).remarks
        return [each.split("'")[1] for each in remarks if "its name is an identifier's. To use it declare it" in each]

    assert left_out() == ["id", "visit_id", "patientID", "case id"]
    assert left_out(numeric={"visit_id": (0, 1800)}, buy={"id": "any", "*": "any"}) == ["patientID", "case id"]
    people[["who", "visit_id", "ill"]].to_parquet("only.parquet")
    with pytest.raises(ConfigError, match=r"Expected features, got none. Column 'visit_id' is left out"):
        quoron.train("only.parquet", **said)
