"""Every preset is valid, says what it shows, and has a plan."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from quoron import sources
from quoron.local import programs
from quoron.planning.plans import Planned, choose
from quoron.presets import Preset, preset, presets
from quoron.simulation.scene import setup
from quoron_privacy.errors import ConfigError
from quoron_server.algorithms import ALGORITHMS

pytestmark = pytest.mark.usefixtures("planned_once")


@pytest.mark.parametrize("each", presets(), ids=lambda each: each.name)
def test_a_preset_says_what_it_shows_and_can_be_planned(each: Preset) -> None:
    assert each.text.startswith("# ")
    assert 40 < len(each.summary) < 140
    planned = planned_alone(each.name)
    assert planned.plan.cost.rounds >= 1
    assert planned.plan.guarantee.exposure != "none"


def test_the_quickstart_gets_the_recommended_method_at_epsilon_1() -> None:
    plan = planned_alone("quickstart").plan
    assert (plan.algorithm, plan.guarantee.epsilon, plan.guarantee.proved) == ("tracking-srgd", 1.0, True)


@pytest.mark.parametrize(("name", "users", "features"), [("storms", 524, 11), ("scorecard", 5_939, 7)])
def test_tables_that_ship_are_named_by_their_preset_from_anywhere(name: str, users: int, features: int) -> None:
    config, _ = sources.resolve(name)
    population = setup(config, Path("/nowhere")).population
    assert (population.users, population.dimension) == (users, features)
    assert population.test_metrics(population.optimum) != population.test_metrics(np.zeros(features))


def test_a_table_that_does_not_ship_is_named_with_those_that_do() -> None:
    config, _ = sources.resolve("storms", ["population.path='package:winds.parquet'"])
    with pytest.raises(ConfigError, match=r"package:scorecard\.parquet, package:storms\.parquet, got 'package:winds"):
        setup(config, Path.cwd())


def test_the_flights_say_plainly_why_the_filter_is_infeasible() -> None:
    planned = planned_alone("flights")
    reason = next(each.reason for each in planned.candidates if each.algorithm == "filtered-sgd")
    assert reason.startswith("Infeasible: filtered-sgd: n=3,230 users")
    assert "needs n >= " in reason


@pytest.mark.parametrize(
    ("name", "users", "most"),
    [("few-rounds", 100_000, 64), ("few-rounds-boundary", 100_000, 64), ("flights-one-epoch", 3_230, 64)],
)
def test_one_epoch_presets_ask_everybody_at_most_once_in_few_rounds(name: str, users: int, most: int) -> None:
    config, _ = sources.resolve(name)
    alone = {"accelerated-srgd": ALGORITHMS["accelerated-srgd"]}  # nothing else to compare with
    planned = choose(config, setup(config, Path.cwd()).problem, compare=True, algorithms=alone)
    assert planned.plan.problem.users == users
    assert planned.plan.cost.messages <= users
    assert planned.plan.cost.rounds <= most
    assert (planned.plan.guarantee.exposure, planned.plan.guarantee.proved) == ("broadcast", True)
    assert planned.curve is not None
    assert planned.curve.enough <= planned.plan.cost.rounds


@pytest.mark.parametrize("name", ["one-pass", "one-pass-heterogeneous", "flights-one-pass"])
def test_one_pass_presets_get_the_recommended_method_and_ask_nobody_twice(name: str) -> None:
    plan = planned_alone(name).plan
    assert plan.algorithm == "tracking-srgd"
    assert plan.cost.messages <= plan.problem.users
    assert (plan.guarantee.exposure, plan.guarantee.proved) == ("broadcast", True)


def test_users_with_many_items_are_worth_a_centre_that_tracks() -> None:
    plan = planned_alone("central-recentred-sgd").plan
    assert (plan.algorithm, plan.parameters.estimator) == ("recentred-sgd", "tracking")
    assert (plan.guarantee.exposure, plan.guarantee.proved) == ("broadcast", True)


def test_who_trusts_nobody_gets_one_private_report_of_each_user() -> None:
    planned = planned_alone("local-model")
    assert planned.plan.algorithm == "local-model"
    assert planned.plan.cost.messages <= planned.plan.problem.users
    assert (planned.plan.guarantee.exposure, planned.plan.guarantee.proved) == ("local", True)
    assert planned.choice is not None
    assert planned.choice.startswith("local-model: the coordinator is not trusted with answers")


def test_who_does_not_choose_gets_a_reason_on_every_kind_of_preset() -> None:
    assert planned_alone("flights-one-pass").choice is None
    for choice, first in (
        (planned_alone("one-pass").choice, "tracking-srgd: asks every user at most once"),
        (planned_alone("outliers", "algorithm.name=auto").choice, "outlier-gd: 0.02 % of users are declared "),
    ):
        assert choice is not None
        assert choice.startswith(first)


@pytest.mark.parametrize(("users", "most", "learns"), [(5, 0.2, False), (20, 0.021, True), (200, 0.0003, True)])
def test_a_small_federation_has_a_plan_for_every_number_of_clients_that_says_what_it_learns(
    users: int, most: float, learns: bool
) -> None:
    """As docs/local.md tells, twice within what the clients of `quoron local start` allow."""
    config, _ = sources.resolve("small-federation", [f"population.users={users}"])
    scene = setup(config, Path.cwd())
    plan = choose(config, scene.problem).plan
    assert plan.predicted_excess_risk == pytest.approx(most, rel=0.15)
    start = scene.population.excess_risk(np.zeros(2))
    assert start == pytest.approx(0.057, rel=0.01)
    assert (plan.predicted_excess_risk < start) is learns
    assert (2 * plan.guarantee.epsilon, 2 * plan.guarantee.delta) <= (programs.EPSILON, programs.DELTA)
    assert plan.cost.messages == 8 * users


@cache
def planned_alone(name: str, *settings: str) -> Planned:
    """A preset's plan, without the rounds curve."""
    config, _ = sources.resolve(name, settings)
    return choose(config, setup(config, Path.cwd()).problem)


@pytest.mark.parametrize(("name", "inside"), [("few-rounds", True), ("few-rounds-boundary", False)])
def test_the_best_model_is_inside_or_on_the_boundary_as_the_preset_says(name: str, inside: bool) -> None:
    config, _ = sources.resolve(name)
    scene = setup(config, Path.cwd())
    norm = float(np.linalg.norm(scene.population.optimum))
    assert (norm < 0.9 * scene.problem.radius) is inside
    assert inside or norm == pytest.approx(scene.problem.radius, rel=1e-6)


def test_an_unknown_preset_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(
        ConfigError, match=r"Expected a preset \(.*few-rounds, .*quickstart, .*\) or a \.toml file, got 'quick'"
    ):
        preset("quick")
