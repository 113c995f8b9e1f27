"""A coordinator that is not trusted with answers gets none, whoever chooses the algorithm."""

import pytest

import quoron
from quoron import config as configs
from quoron_privacy.errors import ConfigError, Infeasible
from quoron_server.algorithms import ALGORITHMS
from small_run import TOML

pytestmark = pytest.mark.usefixtures("planned_once")

UNTRUSTED = ("privacy.trust_server=false",)
LOCAL = {name for name, info in ALGORITHMS.items() if info.exposure == "local"}


def test_an_untrusted_coordinator_is_never_given_answers_by_an_automatic_choice() -> None:
    config = configs.parse(TOML, settings=["algorithm.name=auto", *UNTRUSTED])
    if not LOCAL:
        with pytest.raises(Infeasible, match="asks for exposure local, and no algorithm here has it"):
            quoron.plan(config)
        return
    planned = quoron.plan(config)
    assert {each.algorithm for each in planned.candidates if each.plan} <= LOCAL
    assert planned.choice is not None
    assert "the coordinator is not trusted with answers" in planned.choice


def test_naming_an_algorithm_that_shows_answers_to_an_untrusted_coordinator_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"exposure local with privacy\.trust_server=false, got .*'one-pass-dp-sgd'"):
        quoron.plan(configs.parse(TOML, settings=UNTRUSTED))


def test_the_coordinator_is_trusted_unless_the_configuration_says_otherwise() -> None:
    assert configs.parse(TOML).privacy.trust_server


@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
def test_an_algorithm_with_plans_for_either_adjacency_promises_the_one_that_is_wished_for(adjacency: str) -> None:
    wished = [
        "algorithm.name=winsorised-erm", "algorithm.options={}", "privacy.epsilon=8.0", "privacy.delta=1e-3",
        "population.users=2400", f"privacy.adjacency={adjacency}",
    ]  # fmt: skip
    assert quoron.plan(configs.parse(TOML, settings=wished)).plan.guarantee.adjacency == adjacency
