"""What a person gets who names no algorithm, of the methods that there are: on tables, in federations, in budgets."""

from typing import Any

import pytest

from problems import changed, small
from quoron import config as configs
from quoron.operate.submission import specify
from quoron.planning.plans import Planned, choose
from quoron_privacy.errors import Infeasible
from quoron_server.algorithms import ALGORITHMS
from quoron_server.specification import make_plan

pytestmark = pytest.mark.usefixtures("planned_once")

REAL = dict.fromkeys(("feature_norm", "link_curvature"), 1.0) | {"label_bound": 1.0, "start_gradient": 1.0}
FEW = ("whitened-tracking", "one-round-least-squares", "tracking-srgd", "recentred-sgd")


def settled(users: int, *settings: str, hostile_share: float = 0.0, **constants: Any) -> Planned:
    """What `auto` takes of methods that are not pretended."""
    config = configs.from_tree(configs.overlay({}, settings))
    known = changed(small(users, hostile_share), **{**REAL, **constants})
    return choose(config, known, algorithms={name: ALGORITHMS[name] for name in FEW})


def test_few_declared_outliers_leave_few_users_their_method_and_it_says_what_being_ready_costs() -> None:
    for share, said in ((0.01, "it clips as usual"), (0.03, "robust=false")):
        wary = settled(2_000, hostile_share=share)
        assert wary.plan.algorithm == "whitened-tracking"
        assert "may bias it" in str(wary.choice)
        _, remark = wary.remarks
        assert said in remark
    (of_columns,) = settled(2_000).remarks
    assert "of their ranges" in of_columns


TABLE = ("population.kind=table", "population.path=-", "population.user=-", "population.label='- > 0'")
MORE = (300, 1_000, 3_000, 9_999, 10_001, 20_000, 100_000, 1_000_000)  # users


def on_a_table(users: int, dimension: int = 8, *settings: str, federated: bool = False, **constants: Any) -> Planned:
    """What `auto` takes where one machine holds all rows, or of users who have machines of their own."""
    config = configs.from_tree(configs.overlay({}, (*TABLE, "population.numeric={x = [0, 1]}", *settings)))
    known = changed(small(users), **{**REAL, "dimension": dimension, **constants})
    algorithms = {name: ALGORITHMS[name] for name in FEW if name != "recentred-sgd"}  # that takes half a second to plan
    return choose(config, known, algorithms=algorithms, federated=federated)


def test_with_more_users_or_more_epsilon_or_fewer_columns_less_is_predicted_of_a_few_columns_table_or_many() -> None:
    by_users = [on_a_table(users).plan.predicted_excess_risk for users in MORE]
    asked = [on_a_table(3_000, 8, f"privacy.epsilon={each}") for each in (0.25, 1, 4, 8)]
    by_epsilon = [each.plan.predicted_excess_risk for each in asked]
    by_columns = [on_a_table(20_000, each).plan.predicted_excess_risk for each in (290, 101, 98, 30, 8, 2)]
    for risks in (by_users, by_epsilon, by_columns):
        assert risks == sorted(risks, reverse=True)


BUDGETS = {
    "": "whitened-tracking",
    "budget.rounds=3": "one-round-least-squares",
    "budget.answers_per_user=1": "",
    "budget.bytes_per_user=600": "",
    "problem.attendance=0.3": "whitened-tracking",
}


@pytest.mark.parametrize("budget", BUDGETS)
def test_more_users_never_take_a_method_that_predicts_more(budget: str) -> None:
    sizes = [each for each in MORE if each >= 20_000] if not BUDGETS[budget] else MORE[1:]
    planned = [on_a_table(users, 8, *filter(None, [budget]), federated=True) for users in sizes]
    risks = [each.plan.predicted_excess_risk for each in planned]
    assert risks == sorted(risks, reverse=True)
    taken = {each.plan.algorithm for each in planned}
    assert taken == {BUDGETS[budget]} if BUDGETS[budget] else taken.isdisjoint({"whitened-tracking"})


@pytest.mark.parametrize("dimension", [290, 2_000, 1_000_000])
def test_too_few_users_for_their_columns_are_declined_before_the_charge_however_many_columns(dimension: int) -> None:
    way = r"(n >= [\d,]+(, or [\d.]+ times this epsilon)?|other settings \(no n up to [\d,]+ was found to do\))"
    with pytest.raises(Infeasible, match=rf"n=600 users .* needs {way}; or name"):
        on_a_table(600, dimension)


SUBMITTED = """
[population]
kind = "table"
path = "people.csv"
user = "who"
label = "ill > 0"
numeric = { age = [0, 100], dose = [0, 5] }

[problem]
items_per_user = 3
attendance = 0.5

[privacy]
epsilon = 1.0

[budget]
answers_per_user = 6
"""


def test_a_coordinator_makes_the_plan_of_fewer_rounds_and_fewer_users_that_was_submitted() -> None:
    wanted, plan = specify(configs.parse(SUBMITTED), run="trial", users=9_000, seconds=60.0)
    assert (plan.algorithm, plan.cost.rounds) == ("whitened-tracking", 6)
    assert wanted.options["attendance"] == 0.5
    assert make_plan(wanted) == plan
    for most in (5, 100):
        config = configs.parse(SUBMITTED + f"max_rounds = {most}\n")
        wanted, plan = specify(config, run="trial", users=9_000, seconds=60.0)
        assert plan.cost.rounds == min(most, 6)
        assert make_plan(wanted) == plan
