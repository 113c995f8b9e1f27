"""What a person gets who names no algorithm, of the methods that there are: on tables, in federations, in budgets."""

from typing import Any

import pytest

from problems import changed, small
from quoron import config as configs
from quoron.planning.plans import Plan, choose
from quoron_server.algorithms import ALGORITHMS

pytestmark = pytest.mark.usefixtures("planned_once")

REAL = dict.fromkeys(("feature_norm", "link_curvature"), 1.0) | {"label_bound": 1.0, "start_gradient": 1.0}
FEW = ("whitened-tracking", "one-round-least-squares", "tracking-srgd", "recentred-sgd")


def settled(users: int, *settings: str, hostile_share: float = 0.0, **constants: Any) -> Plan:
    """What `auto` takes of methods that are not pretended."""
    config = configs.from_tree(configs.overlay({}, settings))
    known = changed(small(users, hostile_share), **{**REAL, **constants})
    return choose(config, known, algorithms={name: ALGORITHMS[name] for name in FEW})


def test_few_users_are_taken_by_the_method_for_few_whatever_the_others_predict() -> None:
    planned = settled(2_000)
    assert planned.plan.algorithm == "whitened-tracking"
    assert "everybody may be asked 13 times" in str(planned.choice)
    assert settled(10_001).plan.algorithm == "whitened-tracking"


TABLE = ("population.kind=table", "population.path=-", "population.user=-", "population.label='- > 0'")


def on_a_table(users: int, dimension: int = 8, *settings: str, federated: bool = False, **constants: Any) -> Plan:
    """What `auto` takes where one machine holds all rows, or of users who have machines of their own."""
    config = configs.from_tree(configs.overlay({}, (*TABLE, "population.columns.numeric={x = [0, 1]}", *settings)))
    known = changed(small(users), **{**REAL, "dimension": dimension, **constants})
    algorithms = {name: ALGORITHMS[name] for name in FEW if name != "recentred-sgd"}  # that takes half a second to plan
    return choose(config, known, algorithms=algorithms, federated=federated)


@pytest.mark.parametrize("users", [9_999, 10_001, 20_000, 100_000, 1_000_000])
def test_few_or_many_users_of_one_table_are_all_asked_in_every_round(users: int) -> None:
    assert on_a_table(users).plan.algorithm == "whitened-tracking"
