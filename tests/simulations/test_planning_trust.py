"""A coordinator that is not trusted with answers gets none, whoever chooses the algorithm."""

import pytest

import quoron
from quoron import config as configs
from quoron_privacy.errors import Infeasible
from quoron_server.algorithms import ALGORITHMS
from small_run import TOML

pytestmark = pytest.mark.usefixtures("planned_once")

UNTRUSTED = ("privacy.trust_model=two-servers",)
LOCAL = {name for name, info in ALGORITHMS.items() if {"local", "two-servers"} & {*info.trust_models}}


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
