"""A coordinator that is not trusted with answers gets none, whoever chooses the algorithm."""

from pathlib import Path

import pytest

import quoron
from quoron import config as configs
from quoron.planning.plans import Plan
from quoron.simulation import run as runs
from quoron_privacy.errors import ConfigError, Infeasible, QuoronError
from quoron_server.algorithms import ALGORITHMS
from small_run import TOML

pytestmark = pytest.mark.usefixtures("planned_once")

UNTRUSTED = ("privacy.trust_model=two-servers",)
LOCAL = {name for name, info in ALGORITHMS.items() if {"local", "two-servers"} & {*info.trust_models}}


def planned_alone(name: str, asked: str, *settings: str) -> Plan:
    """The plan of one algorithm for so many users that most have one; no other is planned beside it."""
    generous = ("privacy.epsilon=8", "population.users=20000", "algorithm.options={}", f"algorithm.name={name}")
    config = configs.parse(TOML, settings=[*generous, f"privacy.trust_model={asked}", *settings])
    return runs.prepare(config, Path.cwd(), alternatives=False).planned


def test_an_untrusted_coordinator_is_never_given_answers_by_an_automatic_choice() -> None:
    config = configs.parse(TOML, settings=["algorithm.name=auto", *UNTRUSTED])
    if not LOCAL:
        with pytest.raises(Infeasible, match="asks for two-servers or local, and no algorithm here has either"):
            quoron.plan(config)
        return
    planned = quoron.plan(config)
    assert {each.algorithm for each in planned.candidates if each.plan} <= LOCAL
    assert {each.plan.guarantee.trust_model for each in planned.candidates if each.plan} <= {"local", "two-servers"}
    assert planned.choice is not None
    assert "the coordinator is not trusted with answers" in planned.choice


def test_the_coordinator_is_trusted_unless_the_configuration_says_otherwise() -> None:
    assert configs.parse(TOML).privacy.trust_model is None


@pytest.mark.parametrize("asked", ["central-broadcast", "two-servers", "local"])  # of central-release nothing is asked
@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_no_plan_needs_more_trust_than_is_given(name: str, asked: str) -> None:
    order = ("central-release", "central-broadcast", "two-servers", "local", "none")
    try:
        plan = planned_alone(name, asked).plan
    except QuoronError:
        return
    assert order.index(plan.guarantee.trust_model) >= order.index(asked)


def test_an_algorithm_of_two_trust_models_is_planned_in_the_one_that_is_asked_for() -> None:
    """Outlier-iterates shows no iterate without noise only where each chain is one user long."""
    with pytest.raises(ConfigError, match="got one of outlier-iterates of trust model central-release"):
        planned_alone("outlier-iterates", "central-broadcast")
    planned = planned_alone(
        "outlier-iterates", "central-broadcast", *("algorithm.options.broadcast=true", "budget.rounds=3")
    )
    assert planned.plan.guarantee.trust_model == "central-broadcast"
