"""What `quoron train` prints fits one screen, the rest stands behind `--details`; all doors count the same users."""

import io
import json
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


@pytest.mark.parametrize(("many", "width"), [(2, 80), (30, 100)])
def test_a_dry_run_and_the_end_of_a_run_fit_one_screen(
    place: Path, monkeypatch: pytest.MonkeyPatch, many: int, width: int
) -> None:
    words = ["train", "people.csv", *WORDS, *columns(many), "--quiet"]
    before, after = (screen([*words, *more], monkeypatch, width) for more in (["--dry-run"], []))
    for lines in (before, after):
        assert len(lines) <= 24
        assert not re.search(r"\d\.\d{12}", "\n".join(lines))
    said = " ".join(" ".join(before).split())
    for needed in ("Promise: (2, 1e-06)-differential privacy", "pays for training", "rounds", "predicted excess risk"):
        assert needed in said
    assert "Dry run: nothing is charged" in said
    assert "Label 'ill' is read as true/false, 0/1 or -1/1: else declare it, or buy it." in said
    assert "Next: the same without --dry-run" in said
    assert "model.json" in "".join(after)


def test_it_says_what_a_budget_costs_and_where_nothing_is_predicted(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["train", "people.csv", *WORDS, *columns(2), "--dry-run", "--set"]
    for said, told in [
        ("budget.answers_per_user=2", "with budget.answers_per_user=13 whitened-tracking would be taken and leave"),
        ("budget.rounds=1", "one-round-least-squares, 1 round:"),
        ("loss.name=hinge", "not measured; without training at most 1"),
    ]:
        lines = screen([*words, said], monkeypatch, 80)
        assert len(lines) <= 24
        assert told in " ".join(" ".join(lines).split())


def test_details_and_json_say_everything(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "people.csv", *WORDS, *columns(2), "--dry-run"]
    said = " ".join(" ".join(screen([*words, "--details"], monkeypatch, 100)).split())
    for needed in ("Infeasible here:", "gradient scales", "docs/privacy/"):
        assert needed in said
    assert not re.search(r"\d\.\d{12}", said)
    assert "more than the start's" in said
    assert not re.search(r"e\+\d", said)  # 10¹² of a risk below ln 2 is no number that anybody can use
    assert invoke([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {"statement", "considered", "parameters", "problem", "choice"} <= set(told)
    assert told["problem"]["users"] == USERS


SAID: dict[str, Any] = {
    "user": "who",
    "label": "ill",
    "numeric": {"x0": (0, 100)},
    "privacy": Privacy(2.0, 1e-6, health=0),
    "method": Method("one-pass-dp-sgd", {"rounds": 4}),
}


@pytest.mark.parametrize("source", ["people.csv", "folder", "frame"])
def test_columns_that_nobody_spoke_of_are_named_by_every_door(place: Path, source: str) -> None:
    table: Any = pd.read_parquet(place / "people.parquet") if source == "frame" else source
    said = SAID

    def told(**more: Any) -> list[list[str]]:
        every = said | more
        found = [quoron.plan(table, **every).remarks, quoron.plan_training(table, **every).remarks]
        return [[each for each in some if each.startswith("Not read")] for some in found]

    line = "Not read, as nothing is said of them: x1, x2, x3 and 26 more. Declare them, buy what they are"
    for (one,) in told():
        assert one.startswith(line)
    for (one,) in told(exclude=["x1*", "x2"]):
        assert one.startswith("Not read, as nothing is said of them: x3, x4, x5 and 14 more.")
    assert told(exclude=["x1*", "x2*", "x3", "x4", "x5", "x6", "x7", "x8", "x9"]) == [[], []]
    assert told(numeric={"x*": (0, 100)}) == [[], []]
    trained = quoron.train(table, **said, keep=Keep("trained"))
    assert any(each.startswith(line) for each in trained.summary.warnings)


@pytest.mark.parametrize("source", ["people.csv", "people.parquet", "folder", "frame"])
def test_every_door_counts_the_same_users(place: Path, source: str) -> None:
    table: Any = pd.read_parquet(place / "people.parquet") if source == "frame" else source
    said = SAID
    simulated = quoron.simulate(table, **said | {"privacy": Privacy(2.0, 1e-6)}, keep=Keep("simulated")).summary
    counted = {
        "plan": quoron.plan(table, **said).plan.problem.users,
        "plan_training": quoron.plan_training(table, **said).plan.problem.users,
        "train": quoron.train(table, **said, keep=Keep("trained")).summary.users,
        "simulate, with those held out": simulated.users_asked + simulated.users_held_out,
    }
    assert counted == dict.fromkeys(counted, USERS)
    assert simulated.users_held_out == USERS // 5
    assert f"{USERS // 5:,} more are held out" in dict(simulated.rows())["users asked"]


def test_what_would_do_is_asked_of_everybody(place: Path) -> None:
    said: dict[str, Any] = {
        "user": "who",
        "label": "ill",
        "numeric": {"x0": (0, 100)},
        "method": Method("recentred-sgd"),
    }
    curve = quoron.ask("people.csv", epsilons=True, epsilon=2.0, **said).curve
    assert curve is not None
    here = next(point for point in curve if point.epsilon == 2.0)
    assert here.risk == pytest.approx(
        quoron.plan("people.csv", epsilon=2.0, **said).plan.predicted_excess_risk, rel=1e-9
    )


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


def test_columns_lost_to_decimal_commas_and_a_worthless_model_are_said_first(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    people = pd.read_csv("people.csv")[["who", "x0", "x1", "x2", "x3", "x4", "x5", "x6", "ill"]]
    for name in ("x1", "x2", "x3", "x4"):
        people[name] = people[name].map(lambda value: f"{value:.2f}".replace(".", ","))
    people.to_csv("commas.csv", index=False)
    said = ["--numeric", "x0=0:100,x1=0:100,x2=0:100,x3=0:100,x4=0:100,x5=0:100", "--out", "run", "--quiet"]
    lines = screen(["train", "commas.csv", *WORDS, *said], monkeypatch, 80)
    text = " ".join(" ".join(lines).split())
    summary = json.loads(Path("run/summary.json").read_text())
    assert summary["doubts"] == summary["warnings"][: len(summary["doubts"])]
    assert any("have no row that can be used" in each for each in summary["doubts"])
    for doubt in summary["doubts"]:
        assert doubt in text
    assert text.index("Warning: Not read, as nothing is said of them: x6") > text.index(summary["doubts"][-1])


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
