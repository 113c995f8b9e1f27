"""Results print a title and a few lines, as text and as HTML; those that are tables give a DataFrame, some a plot."""

import re
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import quoron
import quoron.releases.bounds as declarations
from contracts.scenes import make_plan
from quoron.model import Model
from quoron.planning.plans import Plan, RoundsCurve
from quoron.results import Printed
from quoron_client.data.encoding import Encoding
from quoron_client.data.features import Numeric
from quoron_privacy.errors import ConfigError
from quoron_server.algorithms import ALGORITHMS

LINES, WIDTH = 10, 120
DRAW = np.random.default_rng(0)
USERS = 1500
ROWS = pd.DataFrame({"who": np.arange(2 * USERS) // 2, "age": DRAW.uniform(0, 90, 2 * USERS)})
ROWS["ill"] = ROWS.age + 10 * DRAW.normal(size=len(ROWS)) > 45
QUICK = ["algorithm.name=one-pass-dp-sgd", "algorithm.options.rounds=3"]
TABLE: dict[str, Any] = {
    "user": "who",
    "label": "ill",
    "columns": {"numeric": {"age": (0, 100)}},
    "epsilon": 8.0,
    "delta": 1e-4,
}


def lines_of(result: object, *words: str) -> list[str]:
    """Its lines, which are few and short, and have these words."""
    printed = repr(result)
    found = printed.split("\n")
    assert 2 < len(found) <= LINES
    assert max(map(len, found)) <= WIDTH
    assert str(result) == printed
    assert not [word for word in words if word not in printed]
    if isinstance(result, Printed):
        assert result._repr_html_().count("<tr>") == len(found) - 1
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("printed")


@pytest.fixture(autouse=True)
def inside(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("QUORON_LEDGER", str(place / "lifetime.sqlite"))


@pytest.fixture(scope="module")
def trained(place: Path) -> Any:
    keep = {"out": place / "trained", "ledger": place / "lifetime.sqlite"}
    return quoron.train(ROWS, **TABLE, holdout=0.3, settings=QUICK, **keep)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_plan_of_every_algorithm_prints_what_it_promises_and_takes(name: str) -> None:
    plan = make_plan(name)
    rounds = f"{plan.cost.rounds:,}, "
    lines_of(plan, name, "ε = ", "δ = ", plan.guarantee.adjacency, plan.guarantee.trust_model, "rounds", rounds, "risk")
    lines_of(Plan(plan, (), remarks=("x" * 1000,) * 50), name, "50: xxx")
    assert "SIMULATED" in repr(plan.simulated())


def refused_without(module: str, call: Callable[[], object], install: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, module, None)
        with pytest.raises(ConfigError, match=re.escape(f"needs {module}. pip install {install}.")):
            call()


def table_of(result: Any, rows: int, *columns: str) -> None:
    found = result.to_pandas()
    assert (len(found), set(columns) - set(found.columns)) == (rows, set())
    refused_without("pandas", result.to_pandas, "pandas")


def plot_of(result: Any) -> None:
    refused_without("matplotlib", result.plot, "'quoron[plot]'")
    if find_spec("matplotlib") is not None:
        drawn = result.plot()
        assert drawn.has_data()
        assert result.plot(ax=drawn) is drawn


def test_html_is_escaped_and_a_plan_is_a_table_a_plot_and_an_event() -> None:
    plan = make_plan("one-pass-dp-sgd")
    planned = Plan(plan, (), RoundsCurve(((1, 0.5), (plan.cost.rounds, 0.25))), remarks=("<b>&",))
    assert "&lt;b&gt;&amp;" in planned._repr_html_()
    table_of(planned, 1, "algorithm", "feasible", "rounds", "predicted_excess_risk", "bytes_per_user", "infeasible")
    plot_of(planned)
    assert planned.dp_event == ALGORITHMS[plan.algorithm].dp_event(plan)
    with pytest.raises(ConfigError, match="a curve of its rounds"):
        Plan(plan, ()).plot()


def test_a_run_prints_its_guarantee_and_how_good_it_is(trained: Any) -> None:
    lines_of(trained, "one-pass-dp-sgd", "ε = 8, δ = 0.0001", "accuracy per user", "differential privacy")
    lines_of(trained.model, "label", "ill", "1: age", "differential privacy")
    lines_of(trained.summary, "ε = 8, δ = 0.0001")
    lines_of(trained.evaluation, "accuracy per user", "differential privacy")
    table_of(trained, 3, "round", "asked")
    table_of(trained.evaluation, len(trained.evaluation.figures), "name", "value", "low", "high")


def test_a_model_of_a_thousand_columns_prints_in_ten_lines(trained: Any) -> None:
    """Their names are somebody's: none moves a cursor."""
    features = tuple(Numeric(f"column {place}\x1b[2J\n", 0, 1) for place in range(1000))
    rules = Encoding(features, trained.model.encoding.label, intercept=True, feature_norm=1.0)
    found = lines_of(Model(np.zeros(1001), rules, trained.model.loss, None), "1,000: column 0", "guarantee")
    assert all(line.isprintable() for line in found)


def test_simulations_and_comparisons_print_what_they_reached() -> None:
    table = {name: value for name, value in TABLE.items() if name != "epsilon"}
    run = quoron.simulate(ROWS, **table, epsilon=8.0, settings=QUICK)
    lines_of(run, "one-pass-dp-sgd", "rounds", "excess risk")
    lines_of(run.summary, "one-pass-dp-sgd", "SIMULATED")
    table_of(run, 3, "round", "simulation.excess_risk")
    plot_of(run)
    told: Any = {"directory": Path("there"), "request": SimpleNamespace(vary=()), "runs": ()}
    risks = [{"excess_risk": None if place else 0.5, "low": 0.25, "high": None} for place in range(40)]
    compared = quoron.Comparison(
        cells=tuple({"algorithm": f"a{place}"} | each for place, each in enumerate(risks)), **told
    )
    lines_of(compared, "40, best first", "a0 ", "0.5", "no result", "33 more")
    table_of(compared, 40, "algorithm", "excess_risk")
    plot_of(compared)


def test_other_releases_print_their_figures() -> None:
    lines_of(quoron.mean(np.ones((9000, 300)), epsilon=2.0, bound=30.0), "300 numbers", "differential privacy")
    asked = ["mean of age", "histogram of age in 40 bins"]
    known = {"user": "who", "numeric": {"age": (0, 100)}}
    found = quoron.statistics(ROWS, asked, **known, epsilon=8.0, delta=1e-4)
    lines_of(found, "1,500 users", "mean of age", "more")
    table_of(found, 41, "question", "group", "value", "low", "high")
    plot_of(found)
    declared = declarations.find_bounds(ROWS, user="who", numeric=["age"], items=True, epsilon=8.0, delta=1e-4)
    lines_of(declared, "1,500 users", "age = ", "(8, ")
    table_of(declared, 2, "kind", "name", "value")
    given: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-4, "items_per_user": 3, "radius": 1.0, "clip_norm": 1.0}
    zeros = lambda users, point: np.zeros((len(users), len(point)))  # noqa: E731
    rows = quoron.train_rows(zeros, users=900, dimension=3, options={"rounds": 2}, **given)
    lines_of(rows, "one-pass-dp-sgd", "900", "differential privacy")


def test_a_search_prints_its_price_and_its_choice() -> None:
    asked: dict[str, Any] = {**TABLE, "vary": {"loss.ridge": [0.0, 0.1]}, "settings": QUICK}
    lines_of(quoron.tune(ROWS, **asked, dry_run=True), "settings", "(8, ")
    lines_of(quoron.tune(ROWS, **asked, n_trials=2.0), "chosen", "differential privacy")
