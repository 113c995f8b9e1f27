"""What a person gets who names no algorithm, of the methods that there are: on tables, in federations, in budgets."""

from typing import Any

import pytest

import quoron
from problems import changed, small
from quoron import config as configs
from quoron.operate.submission import specify
from quoron.planning.plans import Planned, choose
from quoron_privacy.errors import Infeasible
from quoron_server.algorithms import ALGORITHMS
from quoron_server.budget import used
from quoron_server.parameters import Kind
from quoron_server.specification import make_plan

pytestmark = pytest.mark.usefixtures("planned_once")

REAL = dict.fromkeys(("feature_norm", "link_curvature"), 1.0) | {"label_bound": 1.0, "start_gradient": 1.0}
FEW = ("whitened-tracking", "one-round-least-squares", "tracking-srgd", "recentred-sgd")


def settled(users: int, *settings: str, hostile_share: float = 0.0, **constants: Any) -> Planned:
    """What `auto` takes of methods that are not pretended."""
    config = configs.from_tree(configs.overlay({}, settings))
    known = changed(small(users, hostile_share), **{**REAL, **constants})
    return choose(config, known, algorithms={name: ALGORITHMS[name] for name in FEW})


def test_few_users_are_taken_by_the_method_for_few_whatever_the_others_predict() -> None:
    planned = settled(2_000)
    assert planned.plan.algorithm == "whitened-tracking"
    assert "everybody may be asked 13 times" in str(planned.choice)
    assert settled(10_001).plan.algorithm == "whitened-tracking"


def test_three_rounds_or_fewer_are_least_squares_and_only_those() -> None:
    for rounds in (1, 2, 3):
        planned = settled(2_000, f"budget.rounds={rounds}")
        assert (planned.plan.algorithm, planned.plan.cost.rounds) == ("one-round-least-squares", 1)
        assert "three rounds or fewer are allowed" in str(planned.choice)
    for rounds in (4, 5, 9, 13):
        assert settled(2_000, f"budget.rounds={rounds}").plan.algorithm != "one-round-least-squares"
    assert settled(2_000, "budget.rounds=4").plan.algorithm == "whitened-tracking"


def test_too_few_users_are_declined_with_the_number_that_would_do_unless_an_algorithm_is_named() -> None:
    with pytest.raises(Infeasible, match=r"n=60 users .* needs n >= [\d,]+, or [\d.]+ times this epsilon; or name"):
        settled(60)
    assert settled(60, "algorithm.name=recentred-sgd").plan.algorithm == "recentred-sgd"


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


@pytest.mark.parametrize("users", [9_999, 10_001, 20_000, 100_000, 1_000_000])
def test_few_or_many_users_of_one_table_are_all_asked_in_every_round(users: int) -> None:
    assert on_a_table(users).plan.algorithm == "whitened-tracking"


def test_with_more_users_or_more_epsilon_or_fewer_columns_less_is_predicted_of_a_few_columns_table_or_many() -> None:
    by_users = [on_a_table(users).plan.predicted_excess_risk for users in MORE]
    asked = [on_a_table(3_000, 8, f"privacy.epsilon={each}") for each in (0.25, 1, 4, 8)]
    by_epsilon = [each.plan.predicted_excess_risk for each in asked]
    by_columns = [on_a_table(20_000, each).plan.predicted_excess_risk for each in (290, 101, 98, 30, 8, 2)]
    for risks in (by_users, by_epsilon, by_columns):
        assert risks == sorted(risks, reverse=True)


@pytest.mark.parametrize("users", MORE)
def test_a_federation_of_any_size_that_declares_no_budget_does_as_a_table(users: int) -> None:
    planned = on_a_table(users, federated=True)
    assert planned.plan == on_a_table(users).plan
    assert "everybody may be asked 13 times, as budget.answers_per_user may say otherwise" in str(planned.choice)


BUDGETS = {
    "": "whitened-tracking",
    "budget.rounds=13": "whitened-tracking",
    "budget.rounds=4": "whitened-tracking",
    "budget.rounds=100": "whitened-tracking",
    "budget.rounds=3": "one-round-least-squares",
    "budget.answers_per_user=6": "whitened-tracking",
    "budget.answers_per_user=1": "",
    "budget.bytes_per_user=2_000": "whitened-tracking",
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


@pytest.mark.parametrize("federated", [False, True])
def test_a_budget_that_forbids_the_method_says_what_would_do_and_what_that_costs_in_risk(federated: bool) -> None:
    settings = ("budget.answers_per_user=1", "budget.bytes_per_user=500")
    planned = on_a_table(20_000, 8, *settings, federated=federated)
    dearer = on_a_table(20_000).plan
    assert planned.plan.algorithm == "tracking-srgd"
    needed = f"with budget.answers_per_user=13 and budget.bytes_per_user={used(dearer)['bytes_per_user']}"
    leaves = f"an excess risk of at most {dearer.predicted_excess_risk:.2g} in nine of ten tables like those measured"
    assert f"; {needed} whitened-tracking would be taken and leave {leaves}." in str(planned.choice)
    enough = [f"budget.{name}={used(dearer)[name]}" for name in ("answers_per_user", "bytes_per_user")]
    assert on_a_table(20_000, 8, *enough, federated=federated).plan == dearer


def test_nobody_is_told_of_few_rounds_who_declared_none() -> None:
    for said in ("budget.answers_per_user=2", "problem.attendance=0.1"):
        assert "three rounds or fewer" not in str(quoron.plan("flights", settings=[said]).choice)
    few = quoron.plan("scorecard", settings=["budget.rounds=3"])
    assert "three rounds or fewer are allowed" in str(few.choice)


def test_a_share_of_users_that_few_answer_is_planned_for_declined_or_left_to_another_method() -> None:
    taken = on_a_table(20_000, 8, "problem.attendance=0.3", federated=True).plan
    assert taken.algorithm == "whitened-tracking"
    full, third = (on_a_table(users, 8, federated=True).plan for users in (20_000, 6_000))
    assert full.predicted_excess_risk < taken.predicted_excess_risk
    assert taken.predicted_excess_risk == pytest.approx(third.predicted_excess_risk, rel=0.05)
    few = on_a_table(100_000, 8, "problem.attendance=0.2", federated=True)
    assert few.plan.algorithm == "tracking-srgd"
    assert few.plan.guarantee.rests_on(Kind.DECLARED_ATTENDANCE)
    with pytest.raises(Infeasible, match=r"n=300 users"):
        on_a_table(300, 8, "problem.attendance=0.3", federated=True)


def test_users_of_a_federation_who_are_known_to_be_alike_are_asked_once_where_that_predicts_no_more() -> None:
    for users, items in ((1_000, 5), (100_000, 5), (1_000_000, 50), (10_001, 200)):
        alike = {"curvature": "isotropic", "typical_curvature": 0.1, "items_per_user": items}
        planned, ruled = (on_a_table(users, federated=each, **alike) for each in (True, False))
        assert ruled.plan.algorithm == "whitened-tracking"
        assert planned.plan.predicted_excess_risk <= ruled.plan.predicted_excess_risk
        assert (planned.plan.algorithm == "tracking-srgd") == ("alike in every direction" in str(planned.choice))
    assert planned.plan.algorithm == "tracking-srgd"


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


def test_a_method_for_which_nothing_is_predicted_is_chosen_without_a_figure_beside_others_that_have_one() -> None:
    planned = settled(2_000, link_curvature=None, label_bound=None, smoothness=None)  # a hinge
    assert (planned.plan.algorithm, planned.plan.predicted_excess_risk) == ("whitened-tracking", None)
    assert any(each.predicted is not None for each in planned.candidates)
    assert str(planned.choice).endswith("and predicts nothing.")
