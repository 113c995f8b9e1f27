"""Rounds as the budget: exactly T of them for every algorithm, the curve's two marks, and its pictures."""

import math
from dataclasses import fields
from pathlib import Path

import pytest

from cover import by_default
from quoron.planning.plans import Plan, choose
from quoron.simulation import run as runs
from quoron.simulation import sources
from quoron.simulation.problem import setup
from quoron_privacy.errors import Infeasible
from quoron_server.algorithms import ALGORITHMS

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


def planned(*settings: str, compare: bool = False) -> Plan:
    """The plan of tiny.toml with these settings; `compare` gives its curve too. No other algorithm is planned."""
    config, _ = sources.resolve("tiny.toml", settings)
    alone = {config.algorithm.name: ALGORITHMS[config.algorithm.name]}
    return choose(config, setup(config, Path.cwd()).problem, compare=compare, algorithms=alone)


def taking_rounds() -> list[str]:
    return [name for name, info in ALGORITHMS.items() if "rounds" in {item.name for item in fields(info.options)}]


def budgeted() -> tuple[list[str], list[str]]:
    """Those with a number of rounds, and those that do not take long."""
    names = [name for name in taking_rounds() if name != "one-round-least-squares"]
    return names, [name for name in names if name not in ("median-sgd", "outlier-gd")]


@pytest.mark.parametrize("rounds", [10, pytest.param(30, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", by_default(*budgeted()))
def test_a_budget_of_rounds_is_planned_exactly_and_verified(name: str, rounds: int) -> None:
    chosen = [*MANY[1:], "population.users=399_999", f"budget.rounds={rounds}", f"algorithm.name={name}"]
    if ALGORITHMS[name].guarantees.adjacency == ("zero-out",):
        chosen.append("privacy.adjacency=zero-out")
    if name == "median-sgd":
        chosen += ["domain.kind=box", "loss.ridge=0.3"]
    config, _ = sources.resolve("quickstart", chosen)
    prepared = runs.prepare(config, Path.cwd(), alternatives=False)
    plan = prepared.planned.plan
    assert plan.cost.rounds == rounds
    if plan.guarantee.trust_model != "none":
        ALGORITHMS[name].verify(plan)


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
