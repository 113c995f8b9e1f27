"""Every preset is valid, says what it shows, and has a plan."""

from functools import cache
from pathlib import Path

import pytest

from quoron import sources
from quoron.planning.plans import Planned, choose
from quoron.presets import Preset, presets
from quoron.simulation.scene import setup
from quoron_privacy.errors import ConfigError

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


def test_a_table_that_does_not_ship_is_named_with_those_that_do() -> None:
    config, _ = sources.resolve("storms", ["population.path='package:winds.parquet'"])
    with pytest.raises(ConfigError, match=r"package:scorecard\.parquet, package:storms\.parquet, got 'package:winds"):
        setup(config, Path.cwd())


def test_who_trusts_nobody_gets_one_private_report_of_each_user() -> None:
    planned = planned_alone("local-model")
    assert planned.plan.algorithm == "local-model"
    assert planned.plan.cost.messages <= planned.plan.problem.users
    assert (planned.plan.guarantee.exposure, planned.plan.guarantee.proved) == ("local", True)
    assert planned.choice is not None
    assert planned.choice.startswith("local-model: the coordinator is not trusted with answers")


@cache
def planned_alone(name: str, *settings: str) -> Planned:
    """A preset's plan, without the rounds curve."""
    config, _ = sources.resolve(name, settings)
    return choose(config, setup(config, Path.cwd()).problem)
