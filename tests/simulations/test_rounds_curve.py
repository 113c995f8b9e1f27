"""Rounds as the budget: exactly T of them for every algorithm, the curve's two marks, and its pictures."""

import json
import math
import xml.etree.ElementTree as ElementTree
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import quoron
from quoron import sources
from quoron.cli.app import invoke
from quoron.planning.plans import Planned, RoundsCurve, choose, rounds_curve
from quoron.reports import curve as curve_plot
from quoron.sections import Keep, Method
from quoron.simulation import run as runs
from quoron.simulation.scene import setup
from quoron.sklearn import PrivateLogisticRegression
from quoron_privacy.errors import BudgetExceeded, ConfigError, Infeasible
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.search import within_rounds
from quoron_server.plan import Cost

pytestmark = pytest.mark.usefixtures("planned_once")

MANY = ["population.users=400_000", "population.items_per_user=20", "population.dimension=3", "privacy.epsilon=2.0"]
TINY = """
[population]
users = 600
items_per_user = 4
dimension = 3
signal_norm = 1.0

[domain]
radius = 2.0

[problem]
user_smoothness = "isotropic"

[privacy]
epsilon = 8.0
delta = 1e-5

[algorithm]
name = "one-pass-dp-sgd"
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    (tmp_path / "tiny.toml").write_text(TINY)
    return tmp_path


def planned(*settings: str, compare: bool = False) -> Planned:
    """The plan of tiny.toml with these settings; `compare` gives its curve too. No other algorithm is planned."""
    config, _ = sources.resolve("tiny.toml", settings)
    alone = {config.algorithm.name: ALGORITHMS[config.algorithm.name]}
    return choose(config, setup(config, Path.cwd()).problem, compare=compare, algorithms=alone)


def taking_rounds() -> list[str]:
    return [name for name, info in ALGORITHMS.items() if "rounds" in {item.name for item in fields(info.options)}]


def test_every_algorithm_can_be_given_its_rounds() -> None:
    assert taking_rounds() == list(ALGORITHMS)


@pytest.mark.parametrize("rounds", [10, pytest.param(30, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [name for name in taking_rounds() if name != "one-round-least-squares"])
def test_a_budget_of_rounds_is_planned_exactly_and_verified(name: str, rounds: int) -> None:
    chosen = [*MANY[1:], "population.users=399_999", f"budget.rounds={rounds}", f"algorithm.name={name}"]
    if ALGORITHMS[name].promises.adjacency == ("zero-out",):
        chosen.append("privacy.adjacency=zero-out")
    if name == "median-sgd":
        chosen += ["domain.kind=box", "loss.ridge=0.3"]
    config, _ = sources.resolve("quickstart", chosen)
    prepared = runs.prepare(config, Path.cwd())
    plan = prepared.planned.plan
    assert plan.cost.rounds == rounds
    if plan.guarantee.exposure != "none":
        ALGORITHMS[name].verify(plan)


def test_a_few_users_fill_exactly_the_rounds_asked_for() -> None:
    # 600 users in cohorts of 600 // 70 = 8 would fill 75 rounds.
    for name in ("phased-sgd", "one-pass-dp-sgd"):
        assert planned(f"algorithm.name={name}", "budget.rounds=70").plan.cost.rounds == 70


@pytest.mark.parametrize("name", ["one-pass-dp-sgd", "phased-sgd", "accelerated-srgd"])
def test_a_budget_of_rounds_runs_exactly_that_many(name: str) -> None:
    run = quoron.simulate("tiny.toml", method=Method(name), keep=Keep("run"), settings=["budget.rounds=9"])
    assert run.summary.rounds == 9
    assert run.config.budget.rounds == 9


def test_rounds_given_as_an_option_and_in_the_budget_are_one_number() -> None:
    assert planned("budget.rounds=5", "algorithm.options={ rounds = 5 }").plan.cost.rounds == 5
    with pytest.raises(ConfigError, match=r"budget\.rounds=9 and algorithm\.options\.rounds=5"):
        planned("budget.rounds=9", "algorithm.options={ rounds = 5 }")


def test_automatic_choice_keeps_the_budget_of_rounds() -> None:
    chosen = quoron.plan("tiny.toml", settings=["budget.rounds=6", "algorithm.name=auto"])
    assert chosen.plan.cost.rounds == 6
    assert {each.plan.cost.rounds for each in chosen.candidates if each.plan} == {6}


def test_infeasible_rounds_say_so_and_what_would_do() -> None:
    with pytest.raises(
        Infeasible, match=r"filtered-sgd: n=300,000 users fill 500 cohorts of 600, .*at most \d+ rounds"
    ):
        quoron.plan("quickstart", method=Method("filtered-sgd"), settings=["budget.rounds=500"])
    with pytest.raises(Infeasible, match=r"cannot fill 700 cohorts of 1; needs n >= 700, or fewer rounds"):
        quoron.plan("tiny.toml", method=Method("phased-sgd"), settings=["budget.rounds=700"])
    with pytest.raises(Infeasible, match="cannot fill 700 cohorts"):
        quoron.plan("tiny.toml", settings=["budget.rounds=700"])


def test_a_cohort_and_rounds_that_need_more_users_than_there_are_are_refused() -> None:
    chosen = ["algorithm.options={ rounds = 61, cohort_size = 10 }"]
    with pytest.raises(Infeasible, match=r"n=600 users cannot fill 61 cohorts of 10; needs n >= 610, or fewer rounds"):
        quoron.plan("tiny.toml", method=Method("phased-sgd"), settings=["algorithm.name=phased-sgd", *chosen])


def test_printed_constants_that_fix_the_rounds_refuse_another_number() -> None:
    chosen = ["algorithm.name=accelerated-srgd", "algorithm.constants=paper", "budget.rounds=9"]
    with pytest.raises(Infeasible, match=r"its paper constants ask for \d+ rounds, not 9; needs budget\.rounds=\d+"):
        quoron.plan("tiny.toml", settings=chosen)


@pytest.mark.parametrize("rounds", [0, -3, 10**9])
def test_senseless_rounds_are_refused(rounds: int) -> None:
    with pytest.raises(ConfigError, match=rf"Expected algorithm\.options\.rounds in \[1, 1,000,000\], got {rounds:,}"):
        quoron.plan("tiny.toml", settings=[f"algorithm.options={{ rounds = {rounds} }}"])


def test_a_huge_budget_of_rounds_is_refused_not_tried() -> None:
    with pytest.raises(ConfigError, match="Expected algorithm"):
        quoron.plan("tiny.toml", method=Method("dp-sgd-wor"), settings=["budget.rounds=1_000_000_000"])


positive = st.floats(1e-9, 1e3, allow_nan=False)


@given(risks=st.dictionaries(st.integers(1, 2_000), positive, min_size=1, max_size=12))
@settings(derandomize=True, deadline=None, max_examples=100)
def test_the_best_is_the_least_and_enough_the_fewest_within_5_percent(risks: dict[int, float]) -> None:
    curve = RoundsCurve(tuple(sorted(risks.items())))
    assert risks[curve.best] == min(risks.values())
    assert risks[curve.enough] <= 1.05 * min(risks.values())
    assert all(risk > 1.05 * min(risks.values()) for rounds, risk in risks.items() if rounds < curve.enough)


@pytest.mark.parametrize("name", ["one-pass-dp-sgd", "accelerated-srgd", "phased-sgd"])
def test_the_curve_holds_the_plan_and_what_each_number_of_rounds_would_predict(name: str) -> None:
    chosen = planned(f"algorithm.name={name}", compare=True)
    curve = chosen.curve
    assert curve is not None
    points = dict(curve.points)
    assert points[chosen.plan.cost.rounds] == chosen.plan.predicted_excess_risk
    assert list(points) == sorted(points)
    for rounds in (4, 16):
        again = planned(f"algorithm.name={name}", f"budget.rounds={rounds}").plan
        assert points[rounds] == again.predicted_excess_risk


def test_infeasible_rounds_are_left_out_of_the_curve() -> None:
    config, _ = sources.resolve("quickstart", ["algorithm.name=filtered-sgd", *MANY])
    curve = rounds_curve(ALGORITHMS["filtered-sgd"], config, setup(config, Path()).problem, {})
    assert curve is not None
    assert max(rounds for rounds, _ in curve.points) < 1024


def test_printed_constants_have_no_curve() -> None:
    assert planned("algorithm.name=accelerated-srgd", "algorithm.constants=paper", compare=True).curve is None


def test_the_plan_as_json_is_one_object_with_the_curve(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["plan", "tiny.toml", "--json"]) == 0
    curve = json.loads(capsys.readouterr().out)["rounds_curve"]
    assert set(curve) == {"points", "best", "smallest_within_5_percent"}
    assert {curve["best"], curve["smallest_within_5_percent"]} <= {point["rounds"] for point in curve["points"]}


def test_people_see_the_curve_with_the_plan_marked(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["plan", "tiny.toml"]) == 0
    printed = capsys.readouterr().out
    rounds = planned().plan.cost.rounds
    (line,) = [line for line in printed.splitlines() if "chosen" in line and "█" in line]
    assert line.split()[0] == str(rounds)
    assert "fewest within 5 %" in printed
    assert "least" in printed


def test_a_bar_grows_with_the_logarithm() -> None:
    assert [len(curve_plot.bar(value, 1e-6, 1e-2, 9)) for value in (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)] == [1, 3, 5, 7, 9]
    assert curve_plot.bar(1e-3, 1e-3, 1e-3) == "█"


def test_the_picture_is_svg_is_written_whole_and_repeats(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["plan", "tiny.toml", "--plot", "curve.svg", "--json"]) == 0
    json.loads(capsys.readouterr().out)
    drawn = (place / "curve.svg").read_bytes()
    assert ElementTree.fromstring(drawn).tag.endswith("svg")
    assert {path.name for path in place.iterdir()} == {"tiny.toml", "curve.svg"}
    assert invoke(["plan", "tiny.toml", "--plot", "again.svg"]) == 0
    assert (place / "again.svg").read_bytes() == drawn


def test_a_picture_that_cannot_be_finished_leaves_the_old_one(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    (place / "curve.svg").write_text("old")
    monkeypatch.setattr("quoron.run_folder.os.fsync", full)
    assert invoke(["plan", "tiny.toml", "--plot", "curve.svg"]) == 1
    printed = capsys.readouterr().err
    assert "Cannot write curve.svg: No space left on device" in printed
    assert "resume" not in printed
    assert (place / "curve.svg").read_text() == "old"
    assert {path.name for path in place.iterdir()} == {"tiny.toml", "curve.svg"}


@pytest.mark.parametrize("target", ["curve.png", "nowhere/curve.svg"])
def test_a_wrong_place_for_the_picture_is_refused_before_planning(
    target: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["plan", "tiny.toml", "--plot", target]) == 2
    assert f"got {target}" in capsys.readouterr().err
    assert {path.name for path in place.iterdir()} == {"tiny.toml"}


def test_a_picture_of_several_algorithms_has_one_line_for_each() -> None:
    both = {name: planned(f"algorithm.name={name}", compare=True) for name in ("one-pass-dp-sgd", "srgd")}
    curves = {name: each.curve for name, each in both.items() if each.curve}
    chosen = {name: each.plan.cost.rounds for name, each in both.items()}
    drawn = curve_plot.rounds_svg(curves, chosen=chosen)
    assert drawn.count(b"<polyline") == len(curves) == 2
    assert all(f">{name}<".encode() in drawn for name in curves)


@given(
    risks=st.lists(st.one_of(st.none(), positive), min_size=1, max_size=40), limits=st.tuples(*[st.integers(1, 50)] * 2)
)
@settings(derandomize=True, deadline=None, max_examples=200)
def test_a_larger_limit_on_rounds_never_leaves_more_and_what_is_infeasible_names_the_fewest_that_do(
    risks: list[float | None], limits: tuple[int, int]
) -> None:
    def exactly(rounds: int) -> Any:  # None: so many are infeasible
        if risks[rounds - 1] is None:
            raise Infeasible("made-up", "so many", "others")
        return SimpleNamespace(
            algorithm="made-up", cost=Cost(rounds, 1, 1, 1, 1), guessed_excess_risk=risks[rounds - 1]
        )

    usual = SimpleNamespace(
        algorithm="made-up", cost=Cost(len(risks), 1, 1, 1, 1), guessed_excess_risk=risks[-1] or 1e-12
    )
    found = []
    for most in sorted(limits):
        try:
            plan = within_rounds(most, usual, exactly)
        except Infeasible as error:
            fewest = int(error.needs.split(">= ")[1])
            assert fewest == next((place for place, risk in enumerate(risks, 1) if risk), len(risks)) > most
            assert within_rounds(fewest, usual, exactly).cost.rounds == fewest
        else:
            assert plan.cost.rounds <= most
            found.append(plan.guessed_excess_risk)
    assert found == sorted(found, reverse=True)


@pytest.mark.parametrize("name", [name for name in taking_rounds() if not ALGORITHMS[name].choosing.named_only])
def test_every_algorithm_keeps_a_limit_on_rounds_and_more_rounds_never_leave_more(name: str) -> None:
    chosen = [*MANY, f"algorithm.name={name}"]
    if ALGORITHMS[name].promises.adjacency == ("zero-out",):
        chosen.append("privacy.adjacency=zero-out")
    if name == "median-sgd":
        chosen += ["domain.kind=box", "loss.ridge=0.3"]
    last = math.inf
    for most in (2, 3, 4, 11):
        config, _ = sources.resolve("quickstart", [*chosen, f"budget.max_rounds={most}"])
        try:
            plan = runs.prepare(config, Path.cwd()).planned.plan
        except Infeasible as error:
            fewest = int(error.needs.removeprefix("budget.max_rounds >= "))
            assert fewest > most
            assert last == math.inf
            assert planned_rounds(chosen, fewest) == fewest
        else:
            assert plan.cost.rounds <= most
            assert (plan.guessed_excess_risk or 0.0) <= last
            last = plan.guessed_excess_risk or math.inf


def planned_rounds(chosen: list[str], most: int) -> int:
    config, _ = sources.resolve("quickstart", [*chosen, f"budget.max_rounds={most}"])
    return runs.prepare(config, Path.cwd()).planned.plan.cost.rounds


def test_automatic_choice_keeps_a_limit_on_rounds_and_more_rounds_never_leave_more() -> None:
    bounds = []
    for most in (2, 4, 6, 13, 24):
        chosen = quoron.plan("quickstart", settings=[*MANY, f"budget.max_rounds={most}"])
        assert chosen.plan.cost.rounds <= most
        assert all(each.plan.cost.rounds <= most for each in chosen.candidates if each.plan)
        bounds.append(chosen.plan.predicted_excess_risk)
    assert bounds == sorted(bounds, reverse=True)


def test_a_limit_on_rounds_beside_exactly_so_many_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"Expected budget.rounds \(exactly so many\) or budget.max_rounds \(at most\)"
    ):
        planned("budget.rounds=9", "budget.max_rounds=24")
    with pytest.raises(BudgetExceeded, match=r"Expected max_rounds <= 4 \(budget.max_rounds\), got 5"):
        planned("budget.max_rounds=4", "algorithm.options={ rounds = 5 }")


def test_a_limit_on_rounds_is_kept_by_a_run_and_by_an_estimator() -> None:
    run = quoron.simulate("tiny.toml", keep=Keep("run"), settings=["budget.max_rounds=5"])
    assert run.summary.rounds <= 5
    draw = np.random.default_rng(3)
    rows = draw.uniform(size=(4000, 2))
    model = PrivateLogisticRegression(
        max_rounds=5, epsilon=8.0, bounds=(0, 1), classes=[0, 1], ledger="ledger.sqlite", unit="row"
    )
    assert model.fit(rows, (rows[:, 0] > 0.5).astype(int)).n_rounds_ <= 5
