"""Questions to a plan: how many users or which ε would do, what ε buys, and what a risk means in accuracy."""

import json
import math
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from problems import changed, small
from quoron import config as configs
from quoron.cli.app import invoke
from quoron.doors.asking import accuracy_of, risk_of
from quoron.planning.plans import choose
from quoron.planning.questions import enough, least
from quoron.simulation.scene import setup
from quoron_privacy.errors import ConfigError
from quoron_server.algorithms.forecast import start_risk
from small_run import TOML

pytestmark = pytest.mark.usefixtures("planned_once")

NAMED = configs.parse(TOML, "small", ["algorithm.options={}"])  # one algorithm, so that a plan takes a moment
SCENE = setup(NAMED, Path())
TARGET = 0.02 * start_risk(SCENE.problem)


@pytest.fixture(scope="module")
def found():
    return enough(NAMED, SCENE.problem, TARGET)


def predicted(users: int, epsilon: float) -> float:
    config = configs.parse(TOML, "small", ["algorithm.options={}", f"privacy.epsilon={epsilon!r}"])
    risk = choose(config, replace(SCENE.problem, users=users)).plan.predicted_excess_risk
    assert risk is not None
    return risk


def test_so_many_users_would_do_and_a_tenth_fewer_would_not(found) -> None:
    assert predicted(found.users, NAMED.privacy.epsilon) <= TARGET
    assert predicted(round(0.9 * found.users), NAMED.privacy.epsilon) > TARGET
    assert found.users_algorithm == "one-pass-dp-sgd"


def test_where_nothing_would_do_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quoron.planning.questions.MOST_USERS", 10 * SCENE.problem.users)
    nothing = enough(NAMED, SCENE.problem, 1e-15)
    assert (nothing.users, nothing.epsilon) == (None, None)
    for wrong in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ConfigError, match="risk > 0"):
            enough(NAMED, SCENE.problem, wrong)


@given(st.floats(1.0, 1e6), st.floats(1.0, 1e6))
def test_the_search_finds_any_threshold_to_two_digits(threshold: float, start: float) -> None:
    plan = object()
    asked = []

    def holds(number: float) -> object | None:
        asked.append(number)
        return plan if number >= threshold else None

    number, at = least(holds, start, 1.0, 1e6)  # type: ignore[arg-type, misc]
    assert at is plan
    assert threshold <= number <= max(1.0, 1.15 * threshold)
    assert min(asked) >= 1.0
    assert max(asked) <= 1e6
    assert len(asked) < 30


def test_of_a_method_for_which_nothing_is_predicted_no_risk_is_asked() -> None:
    rough = changed(small(2_000), link_curvature=None, feature_norm=1.0, start_gradient=1.0, smoothness=None)  # a hinge
    with pytest.raises(ConfigError, match="Expected a method whose risk is predicted, got whitened-tracking"):
        enough(configs.from_tree({}), rough, 0.1)


def test_the_accuracy_of_a_risk_falls_from_the_best_models_to_worse_than_the_starts() -> None:
    best = accuracy_of(SCENE.population, 0.0)
    start = SCENE.population.excess_risk(np.zeros(3))
    accuracies = [accuracy_of(SCENE.population, share * start) for share in (0.01, 0.1, 0.5, 1.0)]
    assert best > accuracies[0] > accuracies[1] > accuracies[2] > accuracies[3]
    wanted = (best + accuracies[2]) / 2
    risk = risk_of(SCENE.population, wanted)
    assert accuracy_of(SCENE.population, risk) >= wanted > accuracy_of(SCENE.population, 1.1 * risk)
    for wrong in (1.0, 0.0, -0.1):
        with pytest.raises(ConfigError, match="which the best model without privacy has here"):
            risk_of(SCENE.population, wrong)


def test_the_command_line_answers_people_and_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("quoron.planning.plans.LARGEST_ROUNDS", 4)
    (tmp_path / "small.toml").write_text(TOML.replace("options = { rounds = 8 }", ""))
    monkeypatch.chdir(tmp_path)
    words = ["plan", "small.toml", "--for-risk", "2%", "--epsilons", "--plot", "epsilon.svg"]
    assert invoke([*words, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["algorithm"] == "one-pass-dp-sgd"
    assert [point["epsilon"] for point in printed["epsilon_curve"]] == [0.5, 1.0, 2.0, 4.0, 8.0]
    assert all(0.5 < point["accuracy"] < 1 for point in printed["epsilon_curve"])
    assert invoke(words) == 0
    text = capsys.readouterr().out
    assert f"with this ε, {printed['enough']['users']:,} users would do (one-pass-dp-sgd);" in text
    assert f"with these users, ε = {printed['enough']['epsilon']:g} would do" in text
    assert "What ε buys:" in text
    assert ElementTree.fromstring((tmp_path / "epsilon.svg").read_bytes()).tag.endswith("svg")


def test_what_would_do_is_told_although_the_plan_itself_is_infeasible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few = TOML.replace("2_000", "20").replace("options = { rounds = 8 }", "").replace("one-pass-dp-sgd", "filtered-sgd")
    (tmp_path / "few.toml").write_text(few)
    monkeypatch.chdir(tmp_path)
    assert invoke(["plan", "few.toml", "--for-risk", "5%"]) == 2
    printed = capsys.readouterr()
    assert "users would do (filtered-sgd, by a guess that nobody has measured)" in printed.out
    assert "error: Infeasible" in printed.err
    assert invoke(["plan", "few.toml", "--for-risk", "5%", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["infeasible"].startswith("Infeasible")
