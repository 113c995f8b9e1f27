"""Questions to a plan: how many users, which ε or how many rounds would do."""

import json
import math
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import quoron
from cover import by_default
from problems import changed, small
from quoron import config as configs
from quoron.cli.app import invoke
from quoron.planning.plans import RoundsCurve, choose, required_size, smallest
from quoron.simulation import run as runs
from quoron.simulation import sources
from quoron.simulation.problem import setup
from quoron_privacy.errors import BudgetExceeded, ConfigError, Infeasible
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.search import within_rounds
from quoron_server.algorithms.spec import start_risk
from quoron_server.plan import Cost
from small_run import TOML

NAMED = configs.parse(TOML, "small", ["algorithm.options={}"])  # one algorithm, so that a plan takes a moment
SCENE = setup(NAMED, Path())
TARGET = 0.02 * start_risk(SCENE.problem)


@pytest.fixture(scope="module")
def found():
    return required_size(NAMED, SCENE.problem, TARGET)


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
    monkeypatch.setattr("quoron.planning.plans.MAX_USERS", 10 * SCENE.problem.users)
    nothing = required_size(NAMED, SCENE.problem, 1e-15)
    assert (nothing.users, nothing.epsilon) == (None, None)
    for wrong in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ConfigError, match="risk > 0"):
            required_size(NAMED, SCENE.problem, wrong)


@given(st.floats(1.0, 1e6), st.floats(1.0, 1e6))
def test_the_search_finds_any_threshold_to_two_digits(threshold: float, start: float) -> None:
    plan = object()
    asked = []

    def holds(number: float) -> object | None:
        asked.append(number)
        return plan if number >= threshold else None

    number, at = smallest(holds, start, 1.0, 1e6)  # type: ignore[arg-type, misc]
    assert at is plan
    assert threshold <= number <= max(1.0, 1.15 * threshold)
    assert min(asked) >= 1.0
    assert max(asked) <= 1e6
    assert len(asked) < 30


def test_of_a_method_for_which_nothing_is_predicted_no_risk_is_asked() -> None:
    rough = changed(small(2_000), link_curvature=None, feature_norm=1.0, start_gradient=1.0, smoothness=None)  # a hinge
    with pytest.raises(ConfigError, match="Expected a method whose risk is predicted, got whitened-tracking"):
        required_size(configs.from_tree({}), rough, 0.1)


def test_the_command_line_answers_people_and_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("quoron.planning.plans.LARGEST_ROUNDS", 4)
    (tmp_path / "small.toml").write_text(TOML.replace("options = { rounds = 8 }", ""))
    monkeypatch.chdir(tmp_path)
    words = ["plan", "small.toml", "--for-risk", "2%"]
    assert invoke([*words, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["algorithm"] == "one-pass-dp-sgd"
    assert printed["enough"]["users_algorithm"] == "one-pass-dp-sgd"


MANY = ["population.users=400_000", "population.items_per_user=20", "population.dimension=3", "privacy.epsilon=2.0"]
positive = st.floats(1e-9, 1e3, allow_nan=False)


@given(risks=st.dictionaries(st.integers(1, 2_000), positive, min_size=1, max_size=12))
@settings(derandomize=True, deadline=None, max_examples=100)
def test_the_best_is_the_least_and_enough_the_fewest_within_5_percent(risks: dict[int, float]) -> None:
    curve = RoundsCurve(tuple(sorted(risks.items())))
    assert risks[curve.best] == min(risks.values())
    assert risks[curve.nearly_best] <= 1.05 * min(risks.values())
    assert all(risk > 1.05 * min(risks.values()) for rounds, risk in risks.items() if rounds < curve.nearly_best)


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


@pytest.mark.slow
def test_automatic_choice_keeps_a_limit_on_rounds_and_more_rounds_never_leave_more() -> None:
    bounds = []
    for most in (2, 4, 6, 13, 24):
        chosen = quoron.plan("quickstart", settings=[*MANY, f"budget.max_rounds={most}"])
        assert chosen.plan.cost.rounds <= most
        assert all(each.plan.cost.rounds <= most for each in chosen.candidates if each.plan)
        bounds.append(chosen.plan.predicted_excess_risk)
    assert bounds == sorted(bounds, reverse=True)


@pytest.mark.parametrize(
    ("settings", "error", "said"),
    [
        (["budget.rounds=8", "budget.max_rounds=24"], ConfigError, r"rounds \(exactly so many\) or .* \(at most\)"),
        (["budget.max_rounds=4"], BudgetExceeded, r"Expected max_rounds <= 4 \(budget.max_rounds\), got 8"),
    ],
)
def test_a_limit_on_rounds_beside_exactly_so_many_is_refused(settings: list[str], error: Any, said: str) -> None:
    with pytest.raises(error, match=said):
        quoron.plan(configs.parse(TOML, settings=settings))


def taking_rounds() -> list[str]:
    return [name for name, info in ALGORITHMS.items() if "rounds" in {item.name for item in fields(info.options)}]


@pytest.mark.parametrize(
    "name", by_default(taking_rounds(), sorted({*taking_rounds()} - {"accelerated-erm", "outlier-gd"}))
)
def test_every_algorithm_keeps_a_limit_on_rounds_and_more_rounds_never_leave_more(name: str) -> None:
    chosen = [*MANY, f"algorithm.name={name}"]
    if ALGORITHMS[name].guarantees.adjacency == ("zero-out",):
        chosen.append("privacy.adjacency=zero-out")
    if name == "median-sgd":
        chosen += ["domain.kind=box", "loss.ridge=0.3"]
    last = math.inf
    for most in (2, 4, 7):
        config, _ = sources.resolve("quickstart", [*chosen, f"budget.max_rounds={most}"])
        try:
            plan = runs.prepare(config, Path.cwd(), alternatives=False).planned.plan
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
    return runs.prepare(config, Path.cwd(), alternatives=False).planned.plan.cost.rounds
