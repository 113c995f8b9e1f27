"""What a person gets who names no algorithm, on small registries of algorithms that only pretend."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

import quoron
from problems import changed, problem_of
from quoron import config as configs
from quoron.operate.submission import specify
from quoron.planning.choosing import Candidate, automatic
from quoron.planning.plans import Planned, choose
from quoron_client.protocol.domains import L2Ball
from quoron_privacy.errors import BudgetExceeded, ConfigError, Infeasible
from quoron_server.algorithms import ALGORITHMS, Registered
from quoron_server.algorithms.allowance import Allowance
from quoron_server.algorithms.forecast import Factor
from quoron_server.algorithms.info import Choosing, Chosen, Promises
from quoron_server.budget import used
from quoron_server.parameters import Kind, Parameters, PlannedRelease
from quoron_server.plan import Cost, Plan
from quoron_server.problem import Problem
from quoron_server.specification import make_plan

pytestmark = pytest.mark.usefixtures("planned_once")

TRIVIAL = 3.0  # Lipschitz constant times radius: what not training costs at most


@dataclass(frozen=True, slots=True)
class Options:
    rounds: int | None = None


@dataclass(frozen=True, slots=True)
class Numbers(Parameters):
    rounds: int
    times: int  # that a user is asked

    def releases(self, dimension: int) -> tuple[PlannedRelease, ...]:
        del dimension
        return ()

    def cohorts(self) -> tuple[int, ...]:
        return (1,) * self.rounds

    def participations(self) -> int:
        return self.times


def problem(users: int = 1_000, hostile_share: float = 0.0, alike: bool = False) -> Problem:
    return problem_of(
        users=users,
        items_per_user=5,
        dimension=2,
        domain=L2Ball(TRIVIAL),
        lipschitz=1.0,
        smoothness=0.25,
        hostile_share=hostile_share,
        **({"curvature": "isotropic", "typical_curvature": 0.1} if alike else {}),
    )


def pretended(
    name: str,
    risk: float | None,
    *,
    rounds: int = 10,
    users: int = 0,
    exposure: str = "broadcast",
    passes: str = "one",
    removes_outliers: bool = False,
    factor: float | None = 1.0,
) -> Registered:
    """An algorithm that predicts `risk` from `users` users on, and asks many passes five times a round."""

    def plan(problem: Problem, privacy: Any, options: Options) -> Chosen:
        if problem.users < users:
            raise Infeasible.too_few(name, f"n={problem.users:,} users are too few", users, also=" for half of them")
        many = 5 if passes == "many" else 1
        numbers = Numbers(options.rounds or rounds, many)
        return Chosen(numbers, risk, replace(Cost.of(problem, numbers), messages=many * problem.users))

    return Registered(
        name=name,
        summary="",
        paper="",
        promises=Promises((exposure,), ("replace-one",), "docs/privacy/gaussian.md"),  # type: ignore[arg-type]
        options=Options,
        parameters=Numbers,
        planner=plan,
        verifier=lambda _: None,
        maker=lambda _: None,  # type: ignore[arg-type, return-value]
        factor=Factor(factor, factor),
        choosing=Choosing(many_passes=passes == "many", removes_outliers=removes_outliers),
    )


def registry(*infos: Registered) -> Mapping[str, Registered]:
    return {info.name: info for info in infos}


def chosen(*infos: Registered, settings: tuple[str, ...] = (), **facts: Any) -> Planned:
    config = configs.from_tree(configs.overlay({}, settings))
    return choose(config, problem(**facts), algorithms=registry(*infos))


def best_local(trust: bool, *infos: Registered) -> tuple[Plan, str]:
    """The rule itself, with every algorithm planned."""
    config = configs.from_tree({})
    candidates = tuple(
        Candidate(info.name, choose(config, problem(), algorithms=registry(info)).plan) for info in infos
    )
    return automatic(candidates, registry(*infos), problem(), trust_server=trust, allowed=Allowance())


def test_what_is_told_are_bounds_and_what_is_compared_are_guesses() -> None:
    own = pretended("tracking-srgd", 1.3e-6, factor=30.0)
    planned = chosen(own, MANY)  # 1.3 times the least guess, 39 times the least bound
    assert planned.plan.algorithm == "tracking-srgd"
    assert planned.plan.predicted_excess_risk == pytest.approx(39e-6)
    assert planned.choice is not None
    assert "at most 3.9e-05 in nine of ten problems" in planned.choice
    assert planned.plan.guessed_excess_risk == pytest.approx(1.3e-6)


def test_what_nobody_measured_is_chosen_by_its_guess_and_told_as_one() -> None:
    planned = chosen(pretended("tracking-srgd", 1.3e-6, factor=None), MANY)
    assert planned.plan.algorithm == "tracking-srgd"
    assert planned.choice is not None
    assert "predicts an excess risk of 1.3e-06 by a guess that nobody has measured, 1.3 times the best guess" in (
        planned.choice
    )
    report = {each["algorithm"]: each for each in planned.as_json()["considered"]}["tracking-srgd"]
    assert (report["predicted_excess_risk"], report["guessed_excess_risk"]) == (None, 1.3e-6)


RECOMMENDED = pretended("tracking-srgd", 1.3e-6)
MANY = pretended("many", 1e-6, rounds=724, passes="many")
FILTER = pretended("filter", 5e-6, exposure="model", removes_outliers=True)
PLAIN = pretended("plain", 4e-6)


def test_the_recommended_method_is_chosen_and_says_what_it_asks_shows_and_predicts() -> None:
    planned = chosen(RECOMMENDED, MANY, FILTER, PLAIN)
    assert planned.plan.algorithm == "tracking-srgd"
    assert planned.choice == (
        "tracking-srgd: asks every user at most once, keeps every broadcast private, and predicts an excess risk of "
        "at most 1.3e-06 in nine of ten problems, 1.3 times the best considered (many, 724 rounds)."
    )
    assert planned.as_json()["choice"] == planned.choice


@pytest.mark.parametrize(("risk", "expected"), [(2e-6, "tracking-srgd"), (2.001e-6, "many")])
def test_asking_once_may_cost_twice_the_risk_of_many_passes_and_no_more(risk: float, expected: str) -> None:
    assert chosen(pretended("tracking-srgd", risk), MANY).plan.algorithm == expected


def test_a_better_method_of_one_pass_does_not_displace_the_recommended_one_but_is_told() -> None:
    planned = chosen(RECOMMENDED, pretended("plain", 1e-7))
    assert planned.plan.algorithm == "tracking-srgd"
    assert planned.choice is not None
    assert planned.choice.endswith("13 times the best considered (plain, 10 rounds).")


def test_many_passes_are_chosen_where_one_predicts_far_more_and_the_sentence_has_both_figures() -> None:
    planned = chosen(pretended("tracking-srgd", 4e-6), MANY, PLAIN)
    assert planned.plan.algorithm == "many"
    assert planned.choice == (
        "many: one pass cannot do as well here: by its model tracking-srgd leaves an excess risk of 4e-06, 4.0 times "
        "this one's, and up to 2 times would do; asks every user about 5 times, keeps every broadcast private, and "
        "predicts an excess risk of at most 1e-06 in nine of ten problems, the least considered."
    )


def test_many_passes_are_chosen_for_few_users_with_the_number_that_one_pass_needs() -> None:
    planned = chosen(pretended("tracking-srgd", 1e-7, users=20_000), MANY, PLAIN)
    assert planned.plan.algorithm == "many"
    assert planned.choice is not None
    assert planned.choice.startswith("many: n=1,000 is small: one pass of tracking-srgd needs n >= 20,000; asks every")


def test_without_either_the_least_predicted_risk_is_chosen_and_the_sentence_says_why_not_the_recommended() -> None:
    planned = chosen(pretended("tracking-srgd", TRIVIAL), FILTER, PLAIN)
    assert planned.plan.algorithm == "plain"
    assert planned.choice is not None
    assert "tracking-srgd is not feasible here (an excess risk of 3 is predicted, no better" in planned.choice
    assert "the least considered." in planned.choice


def test_what_is_not_predicted_is_chosen_last() -> None:
    assert chosen(pretended("tracking-srgd", None), PLAIN).plan.algorithm == "plain"
    alone = chosen(pretended("tracking-srgd", None))
    assert alone.choice is not None
    assert alone.choice.endswith("predicts nothing.")


def test_few_declared_outliers_change_the_sentence_and_nothing_else() -> None:
    planned = chosen(RECOMMENDED, MANY, FILTER, hostile_share=0.05)
    assert planned.plan.algorithm == chosen(RECOMMENDED, MANY, FILTER).plan.algorithm == "tracking-srgd"
    assert planned.choice is not None
    assert planned.choice.startswith("tracking-srgd: 5 % of users are declared outliers, who may bias it")


def test_of_many_declared_outliers_everybody_is_asked_once_whatever_others_predict() -> None:
    planned = chosen(pretended("tracking-srgd", 9e-6), MANY, FILTER, hostile_share=0.051)
    assert planned.plan.algorithm == "tracking-srgd"
    assert "5.1 % of users are declared outliers, who may bias it" in str(planned.choice)


WORSE_FILTER = pretended("worse-filter", 9e-6, exposure="model", removes_outliers=True)


def test_outliers_among_users_who_are_alike_get_the_best_feasible_filter_unless_it_is_ten_times_worse() -> None:
    planned = chosen(RECOMMENDED, MANY, WORSE_FILTER, FILTER, hostile_share=0.01, alike=True)
    assert planned.plan.algorithm == "filter"
    assert planned.choice is not None
    assert planned.choice.startswith("filter: 1 % of users are declared outliers, and it removes outliers; asks ")
    assert "5.0 times the best considered (many, 724 rounds)" in planned.choice
    better = pretended("tracking-srgd", 4e-7)
    planned = chosen(better, WORSE_FILTER, FILTER, hostile_share=0.01, alike=True)
    assert planned.plan.algorithm == "tracking-srgd"
    assert "what removes them would leave more" in str(planned.choice)


def test_many_declared_outliers_get_the_best_feasible_filter_where_nobody_can_be_asked_once() -> None:
    late = pretended("tracking-srgd", 1e-6, users=2_000)
    assert chosen(late, MANY, WORSE_FILTER, FILTER, hostile_share=0.1).plan.algorithm == "filter"
    assert chosen(late, MANY, WORSE_FILTER, FILTER, hostile_share=0.05).plan.algorithm == "many"


FILTERS = (
    pretended("filter", 5e-6, users=30_000, removes_outliers=True),
    pretended("soft-filter", 5e-6, users=9_000, removes_outliers=True),
)


def test_many_declared_outliers_warn_whatever_is_chosen_in_the_end() -> None:
    planned = chosen(MANY, PLAIN, *FILTERS, hostile_share=0.1)
    assert planned.plan.algorithm == "many"
    assert "who may bias it: no algorithm that removes outliers is feasible (soft-filter needs n >= 9,000)" in str(
        planned.choice
    )


def test_how_many_users_would_do_is_never_read_from_words_about_something_else() -> None:
    def too_quiet(problem: Problem, privacy: Any, options: Options) -> Chosen:
        raise Infeasible("filter", "too few answer", "3,224 users in every round or quorum_epsilon >= 16.1")

    refused = replace(pretended("filter", 1.0, removes_outliers=True), planner=too_quiet)
    planned = chosen(MANY, refused, hostile_share=0.1)
    assert "no algorithm that removes outliers is feasible;" in str(planned.choice)


def test_an_untrusted_coordinator_gets_exposure_local_whatever_the_others_predict() -> None:
    local = pretended("own-noise", 1e-3, exposure="local")
    plan, why = best_local(False, RECOMMENDED, MANY, pretended("other", 2e-3, exposure="local"), local)
    assert plan.algorithm == "own-noise"
    assert why == (
        "own-noise: the coordinator is not trusted with answers, which leaves exposure local; asks every user at most "
        "once, keeps every answer private, and predicts an excess risk of at most 0.001 in nine of ten problems, "
        "the least considered."
    )
    assert best_local(True, RECOMMENDED, MANY, local)[0].algorithm == "tracking-srgd"


def test_an_untrusted_coordinator_without_an_algorithm_for_it_is_refused_with_the_key() -> None:
    with pytest.raises(Infeasible, match=r"asks for exposure local, and no algorithm here has it; needs .*=true"):
        best_local(False, RECOMMENDED, FILTER)


def test_nothing_feasible_tells_every_reason() -> None:
    with pytest.raises(Infeasible, match=r"every algorithm: .*filter: n=1,000 .*no better than not training"):
        chosen(pretended("filter", 1e-6, users=2_000), pretended("plain", TRIVIAL))


def test_every_candidate_is_planned_for_the_rounds_of_the_budget() -> None:
    planned = chosen(RECOMMENDED, MANY, FILTER, settings=("budget.rounds=6",))
    assert {each.plan.cost.rounds for each in planned.candidates if each.plan} == {6}
    assert planned.choice is not None
    assert "(many, 6 rounds)" in planned.choice


def test_an_adjacency_that_is_not_promised_rules_an_algorithm_out() -> None:
    with pytest.raises(Infeasible, match=r"tracking-srgd: promised is replace-one, and privacy\.adjacency='zero-out'"):
        chosen(RECOMMENDED, settings=("privacy.adjacency=zero-out",))


def test_all_considered_are_listed_with_their_figure_or_their_reason() -> None:
    planned = chosen(RECOMMENDED, MANY, pretended("filter", 1e-6, users=2_000), PLAIN)
    listed = {each["algorithm"]: each for each in planned.as_json()["considered"]}
    assert set(listed) == {"tracking-srgd", "many", "filter", "plain"}
    for each in listed.values():
        assert (each["predicted_excess_risk"] is None) != (each["infeasible"] is None)


def test_a_named_algorithm_is_taken_without_a_sentence() -> None:
    planned = chosen(RECOMMENDED, PLAIN, settings=("algorithm.name=plain",))
    assert (planned.plan.algorithm, planned.choice) == ("plain", None)
    with pytest.raises(ConfigError, match=r"Expected no algorithm\.options with algorithm\.name='auto'"):
        chosen(RECOMMENDED, settings=("algorithm.options.rounds=3",))


def test_a_loss_without_curvature_still_has_plans() -> None:
    family = ["population.family=linear", "population.signal_norm=0.5", "problem.user_smoothness=item"]
    planned = quoron.plan(settings=[*family, "population.users=2000"])
    reasons = {each.algorithm: each.reason for each in planned.candidates}
    assert "no curvature" in reasons["tracking-srgd"]
    assert planned.plan.algorithm != "tracking-srgd"


REAL = dict.fromkeys(("feature_norm", "link_curvature"), 1.0) | {"label_bound": 1.0, "start_gradient": 1.0}
FEW = ("whitened-tracking", "one-round-least-squares", "tracking-srgd", "mean-sgd")


def settled(users: int, *settings: str, hostile_share: float = 0.0, **constants: Any) -> Planned:
    """What `auto` takes of methods that are not pretended."""
    config = configs.from_tree(configs.overlay({}, settings))
    known = changed(problem(users, hostile_share), **{**REAL, **constants})
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


def test_both_adjacencies_are_planned_as_they_are_wished_for() -> None:
    for adjacency in ("replace-one", "zero-out"):
        plan = settled(2_000, f"privacy.adjacency={adjacency}").plan
        assert (plan.algorithm, plan.guarantee.adjacency) == ("whitened-tracking", adjacency)


def test_too_few_users_are_declined_with_the_number_that_would_do_unless_an_algorithm_is_named() -> None:
    with pytest.raises(Infeasible, match=r"n=60 users .* needs n >= [\d,]+, or [\d.]+ times this epsilon; or name"):
        settled(60)
    assert settled(60, "algorithm.name=mean-sgd").plan.algorithm == "mean-sgd"


def test_few_declared_outliers_leave_few_users_their_method_and_it_says_what_being_ready_costs() -> None:
    for share, said in ((0.01, "it clips as usual"), (0.03, "robust=false")):
        wary = settled(2_000, hostile_share=share)
        assert wary.plan.algorithm == "whitened-tracking"
        assert "may bias it" in str(wary.choice)
        (remark,) = wary.remarks
        assert said in remark
    assert settled(2_000).remarks == ()


TABLE = ("population.kind=table", "population.path=-", "population.user=-", "population.label='- > 0'")
MORE = (300, 1_000, 3_000, 9_999, 10_001, 20_000, 100_000, 1_000_000)  # users


def on_a_table(users: int, dimension: int = 8, *settings: str, federated: bool = False, **constants: Any) -> Planned:
    """What `auto` takes where one machine holds all rows, or of users who have machines of their own."""
    config = configs.from_tree(configs.overlay({}, (*TABLE, "population.numeric={x = [0, 1]}", *settings)))
    known = changed(problem(users), **{**REAL, "dimension": dimension, **constants})
    algorithms = {name: ALGORITHMS[name] for name in FEW if name != "mean-sgd"}  # that takes half a second to plan
    return choose(config, known, algorithms=algorithms, federated=federated)


@pytest.mark.parametrize("users", [9_999, 10_001, 20_000, 100_000, 1_000_000])
def test_few_or_many_users_of_one_table_are_all_asked_in_every_round(users: int) -> None:
    assert on_a_table(users).plan.algorithm == "whitened-tracking"


@pytest.mark.parametrize("dimension", [98, 99, 100, 101, 290, 301, 1_000])
def test_few_or_many_columns_of_one_table_take_the_same_method(dimension: int) -> None:
    for users in (9_999, 20_000):
        assert on_a_table(users, dimension).plan.algorithm == "whitened-tracking"


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
    assert "everybody may be asked 13 times (budget.answers_per_user says otherwise)" in str(planned.choice)


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


@pytest.mark.parametrize(("budget", "rounds"), [("rounds=7", 7), ("answers_per_user=6", 6), ("rounds=100", 13)])
def test_as_many_rounds_are_taken_as_the_budget_allows(budget: str, rounds: int) -> None:
    plan = on_a_table(20_000, 8, f"budget.{budget}", federated=True).plan
    assert (plan.algorithm, plan.cost.rounds) == ("whitened-tracking", rounds)


def test_fewer_bytes_or_gradients_take_fewer_rounds() -> None:
    usual = on_a_table(20_000).plan
    for name, total in used(usual).items():
        if name in ("gradient_evaluations", "answers_per_user", "bytes_per_user"):
            plan = on_a_table(20_000, 8, f"budget.{name}={int(0.6 * total)}", federated=True).plan
            assert (plan.algorithm, 4 <= plan.cost.rounds <= 8) == ("whitened-tracking", True)
            assert used(plan)[name] <= int(0.6 * total)


@pytest.mark.parametrize("federated", [False, True])
def test_a_budget_that_forbids_the_method_says_what_would_do_and_what_that_costs_in_risk(federated: bool) -> None:
    settings = ("budget.answers_per_user=1", "budget.bytes_per_user=500")
    planned = on_a_table(20_000, 8, *settings, federated=federated)
    dearer = on_a_table(20_000).plan
    assert planned.plan.algorithm == "tracking-srgd"
    needed = f"with budget.answers_per_user=13 and budget.bytes_per_user={used(dearer)['bytes_per_user']}"
    leaves = f"an excess risk of at most {dearer.predicted_excess_risk:.2g} in nine of ten problems"
    assert f"; {needed} whitened-tracking would be taken and leave {leaves}." in str(planned.choice)
    enough = [f"budget.{name}={used(dearer)[name]}" for name in ("answers_per_user", "bytes_per_user")]
    assert on_a_table(20_000, 8, *enough, federated=federated).plan == dearer


def test_nobody_is_told_of_few_rounds_who_declared_none() -> None:
    for said in ("budget.answers_per_user=2", "problem.attendance=0.1"):
        assert "three rounds or fewer" not in str(quoron.plan("flights", settings=[said]).choice)
    few = quoron.plan("scorecard", settings=["budget.rounds=3"])
    assert "three rounds or fewer are allowed" in str(few.choice)


def test_nothing_within_the_budget_is_refused_with_the_budget() -> None:
    with pytest.raises(BudgetExceeded, match=r"bytes_per_user <= 8 \(budget\.bytes_per_user\)"):
        on_a_table(20_000, 8, "budget.bytes_per_user=8")


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


def test_where_nothing_is_feasible_each_reason_stands_once() -> None:
    names = ("dp-sgd-wor", "mean-sgd", "tracking-srgd")
    refused = tuple(Candidate(name, None, f"{name}: promised is replace-one.") for name in names)
    with pytest.raises(Infeasible, match=", ".join(names)) as found:
        automatic(refused, ALGORITHMS, problem(300), allowed=Allowance())
    assert str(found.value).count("promised is replace-one") == 1


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
    with pytest.raises(Infeasible, match=r"n=600 users .* needs n >= [\d,]+(, or [\d.]+ times this epsilon)?; or name"):
        on_a_table(600, dimension)


def test_more_columns_than_the_method_takes_are_said_with_how_many_it_would() -> None:
    config = configs.from_tree(configs.overlay({}, (*TABLE, "population.numeric={x = [0, 1]}")))
    known = changed(problem(100_000), **{**REAL, "dimension": 1_001})
    algorithms = {name: ALGORITHMS[name] for name in ("whitened-tracking", "dp-sgd-wor")}
    planned = choose(config, known, algorithms=algorithms)
    assert planned.plan.algorithm == "dp-sgd-wor"
    reason = r"1001 features make 501,501 numbers of a second moment; needs d <= 1000"
    assert f"; whitened-tracking is not feasible here ({reason})." in str(planned.choice)


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

[budget]
answers_per_user = 6
"""


def test_a_coordinator_makes_the_plan_of_fewer_rounds_and_fewer_users_that_was_submitted() -> None:
    wanted, plan = specify(configs.parse(SUBMITTED), run="trial", users=9_000, seconds=60.0)
    assert (plan.algorithm, plan.cost.rounds) == ("whitened-tracking", 6)
    assert wanted.options["attendance"] == 0.5
    assert make_plan(wanted) == plan
