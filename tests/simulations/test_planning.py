"""What a person gets who names no algorithm: on pretended registries, on tables, in federations, in presets."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import quoron
from contracts.scenes import make_plan as scene_plan
from cover import by_default
from problems import changed, small
from quoron import config as configs
from quoron.cli.showing import plan_rows
from quoron.federation.submission import promised, specify
from quoron.planning.choosing import Candidate, automatic, risk_words
from quoron.planning.plans import Plan, choose
from quoron.presets import presets
from quoron.reports.summary import Summary
from quoron.simulation import run as runs
from quoron.simulation import sources
from quoron.simulation.problem import setup
from quoron_privacy.errors import ConfigError, Infeasible, QuoronError
from quoron_server.algorithms import ALGORITHMS, RegisteredAlgorithm
from quoron_server.algorithms.references import ours
from quoron_server.algorithms.spec import Calibrated, Factor, Guarantees, Policy
from quoron_server.parameters import Parameters
from quoron_server.plan import PolicyInputs, RunPlan
from quoron_server.problem import Problem
from quoron_server.schedule import Rounds, gradients
from quoron_server.silos import Silos, in_silos
from quoron_server.specification import make_plan
from quoron_server.wording import plan_json
from small_run import TOML
from summaries import EXAMPLE


@dataclass(frozen=True, slots=True)
class Options:
    rounds: int | None = None


@dataclass(frozen=True, slots=True)
class Numbers(Parameters):
    rounds: int
    times: int  # that a user is asked

    def stretches(self, problem: Problem) -> tuple[Rounds, ...]:
        later = Rounds(self.rounds - 1, 1, gradients(problem))
        return Rounds(1, self.times * problem.users - later.count, later.task, often=self.times), later


def pretended(
    name: str,
    risk: float | None,
    *,
    rounds: int = 10,
    users: int = 0,
    trust_model: str = "central-broadcast",
    passes: str = "one",
    removes_outliers: bool = False,
    factor: float | None = 1.0,
) -> RegisteredAlgorithm:
    """An algorithm that predicts `risk` from `users` users on, and asks many passes five times a round."""

    def plan(problem: Problem, privacy: Any, options: Options) -> Calibrated:
        if problem.users < users:
            raise Infeasible.too_few(name, f"n={problem.users:,} users are too few", users, also=" for half of them")
        many = 5 if passes == "many" else 1
        numbers = Numbers(options.rounds or rounds, many)
        return Calibrated(numbers, risk)

    return RegisteredAlgorithm(
        name=name,
        summary="",
        origin=ours(),
        guarantees=Guarantees("docs/privacy/gaussian.md", trust_models=(trust_model,)),  # type: ignore[arg-type]
        options=Options,
        parameters=Numbers,
        planner=plan,
        verifier=lambda _: None,
        maker=lambda _: None,  # type: ignore[arg-type, return-value]
        factor=Factor(factor, factor),
        policy=Policy(many_passes=passes == "many", removes_outliers=removes_outliers),
    )


def registry(*infos: RegisteredAlgorithm) -> Mapping[str, RegisteredAlgorithm]:
    return {info.name: info for info in infos}


def chosen(*infos: RegisteredAlgorithm, **facts: Any) -> Plan:
    return choose(configs.from_tree({}), small(**facts), algorithms=registry(*infos))


def best_local(trust: bool, *infos: RegisteredAlgorithm) -> tuple[RunPlan, str]:
    """The rule itself, with every algorithm planned."""
    config = configs.from_tree({})
    candidates = tuple(Candidate(info.name, choose(config, small(), algorithms=registry(info)).plan) for info in infos)
    return automatic(candidates, registry(*infos), small(), trusted=trust, allowed=PolicyInputs())


RECOMMENDED = pretended("tracking-srgd", 1.3e-6)
MANY = pretended("many", 1e-6, rounds=724, passes="many")
FILTER = pretended("filter", 5e-6, trust_model="central-release", removes_outliers=True)
PLAIN = pretended("plain", 4e-6)


@pytest.mark.parametrize(("risk", "expected"), [(2e-6, "tracking-srgd"), (2.001e-6, "many")])
def test_asking_once_may_cost_twice_the_risk_of_many_passes_and_no_more(risk: float, expected: str) -> None:
    assert chosen(pretended("tracking-srgd", risk), MANY).plan.algorithm == expected


def test_of_many_declared_outliers_everybody_is_asked_once_whatever_others_predict() -> None:
    planned = chosen(pretended("tracking-srgd", 9e-6), MANY, FILTER, hostile_share=0.051)
    assert planned.plan.algorithm == "tracking-srgd"
    assert "5.1 % of users are declared outliers, who may bias it" in str(planned.choice)
    assert planned.remarks[0].startswith("Of 5.1 % hostile users the forecast knows nothing, and nothing here is good")
    assert not chosen(RECOMMENDED, MANY, FILTER, hostile_share=0.05).remarks
    assert not chosen(FILTER, hostile_share=0.2, alike=True).remarks


WORSE_FILTER = pretended("worse-filter", 9e-6, trust_model="central-release", removes_outliers=True)


def test_outliers_among_users_who_are_alike_get_the_best_feasible_filter_unless_it_is_ten_times_worse() -> None:
    planned = chosen(RECOMMENDED, MANY, WORSE_FILTER, FILTER, hostile_share=0.01, alike=True)
    assert planned.plan.algorithm == "filter"
    assert planned.choice is not None
    assert planned.choice.startswith("filter: 1 % of users are declared outliers, and it removes outliers; asks ")
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
    pretended("hard-filter", 5e-6, users=9_000, removes_outliers=True),
)


def test_many_declared_outliers_warn_whatever_is_chosen_in_the_end() -> None:
    planned = chosen(MANY, PLAIN, *FILTERS, hostile_share=0.1)
    assert planned.plan.algorithm == "many"
    assert "who may bias it: no algorithm that removes outliers is feasible (hard-filter needs n >= 9,000)" in str(
        planned.choice
    )


def test_an_untrusted_coordinator_without_an_algorithm_for_it_is_refused_with_the_key() -> None:
    with pytest.raises(
        Infeasible, match=r"asks for two-servers or local, and no algorithm here has either; needs .*trust_model"
    ):
        best_local(False, RECOMMENDED, FILTER)


REAL = dict.fromkeys(("feature_norm", "link_curvature"), 1.0) | {"label_bound": 1.0, "start_gradient": 1.0}
FEW = ("whitened-tracking", "one-round-least-squares", "tracking-srgd", "recentred-sgd")


def settled(users: int, *settings: str, hostile_share: float = 0.0, **constants: Any) -> Plan:
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


def on_a_table(users: int, dimension: int = 8, *settings: str, federated: bool = False, **constants: Any) -> Plan:
    """What `auto` takes where one machine holds all rows, or of users who have machines of their own."""
    config = configs.from_tree(configs.overlay({}, (*TABLE, "population.columns.numeric={x = [0, 1]}", *settings)))
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
    "problem.participation=0.3": "whitened-tracking",
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
items_per_user = 3
path = "people.csv"
user = "who"
label = "ill > 0"
columns.numeric = { age = [0, 100], dose = [0, 5] }

[problem]
participation = 0.5

[privacy]
epsilon = 1.0

[budget]
answers_per_user = 6
"""


def test_a_coordinator_makes_the_plan_of_fewer_rounds_and_fewer_users_that_was_submitted() -> None:
    wanted, plan = specify(configs.parse(SUBMITTED), run="trial", users=9_000, seconds=60.0)
    assert (plan.algorithm, plan.cost.rounds) == ("whitened-tracking", 6)
    assert wanted.options["participation"] == 0.5
    assert make_plan(wanted) == plan
    for most in (5, 100):
        config = configs.parse(SUBMITTED + f"max_rounds = {most}\n")
        wanted, plan = specify(config, run="trial", users=9_000, seconds=60.0)
        assert plan.cost.rounds == min(most, 6)
        assert make_plan(wanted) == plan


FEDERATED = """
population = { kind = "table", path = "nobody-reads-this.parquet", user = "who", label = "sick", items_per_user = 50, columns.numeric = { x = [-1.0, 1.0] } }
privacy = { epsilon = 1.0, two_servers.epsilon = 4.0, trust_model = "two-servers", delta = 1e-6, min_cohort = 0.5 }
algorithm = { name = "recentred-sgd" }
"""  # noqa: E501


def test_a_coordinator_makes_the_plan_of_two_servers_that_was_submitted_and_flower_is_refused() -> None:
    config = configs.parse(FEDERATED)
    specified = specify(config, run="summer", users=20_000, seconds=60.0)[0]
    assert specified.trust_model == "two-servers"
    plan = make_plan(specified)
    assert plan.guarantee.trust_model == "two-servers"
    assert 1.0 < plan.guarantee.epsilon < 4.0
    assert plan.guarantee.min_cohort is not None
    assert plan.guarantee.min_cohort.epsilon == 0
    with pytest.raises(ConfigError, match="no trust model two-servers through Flower"):
        specify(config, run="summer", users=20_000, seconds=60.0, whole=True)


@pytest.mark.parametrize(("key", "value"), [("run", "Summer"), ("seconds", 1e9), ("waiting", float("nan"))])
def test_what_no_coordinator_takes_is_refused_by_name_before_it_is_sent(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"got {key}={value!r}: "):
        specify(configs.parse(FEDERATED), **{"run": "summer", "users": 20_000, "seconds": 60.0} | {key: value})


def test_silos_of_several_persons_are_refused_with_two_servers() -> None:
    plan = make_plan(specify(configs.parse(FEDERATED), run="summer", users=20_000, seconds=60.0)[0])
    with pytest.raises(ConfigError, match="masks the row of one user"):
        in_silos(plan, Silos.declared(100, 20_000))


def sentences(name: str) -> list[str]:
    """What each door says of a plan's risk."""
    plan = scene_plan(name)
    candidate = Candidate(name, plan)
    summary = replace(
        Summary(**EXAMPLE),
        predicted_excess_risk=plan.predicted_excess_risk,
        guessed_excess_risk=plan.guessed_excess_risk,
    )
    _, choice = automatic([candidate], ALGORITHMS, plan.problem, allowed=PolicyInputs())
    rows = dict(plan_rows(Plan(plan, (candidate,))))
    return [
        choice,
        promised(plan).splitlines()[0],
        rows.get("predicted excess risk", ""),
        dict(summary.rows())["excess risk"],
    ]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_no_door_shows_a_guess_as_a_bound(name: str) -> None:
    plan = scene_plan(name)
    said = sentences(name)
    if plan.predicted_excess_risk is not None:
        assert all("at most" in each for each in said)
        assert not any("guess" in each for each in said)
        return
    assert not any("nine of ten" in each or "predicted at most" in each for each in said)
    assert plan_json(plan)["predicted_excess_risk"] is None
    assert Candidate(plan.algorithm, plan).predicted is None
    if plan.guessed_excess_risk is not None:
        assert all("guess" in each for each in said)
        assert risk_words(None, plan.guessed_excess_risk).startswith("guess: ")


@pytest.mark.parametrize("name", by_default([each.name for each in presets()], ["quickstart"]))
def test_a_preset_says_what_it_shows_and_can_be_planned(name: str) -> None:
    each = next(each for each in presets() if each.name == name)
    assert each.text.startswith("# ")
    assert 40 < len(each.summary) < 140
    planned = planned_alone(each.name)
    assert planned.plan.cost.rounds >= 1
    assert planned.plan.guarantee.trust_model != "none"


def test_the_quickstart_gets_the_recommended_method_at_epsilon_1() -> None:
    plan = planned_alone("quickstart").plan
    assert (plan.algorithm, plan.guarantee.epsilon, plan.guarantee.proved) == ("tracking-srgd", 1.0, True)


@cache
def planned_alone(name: str, *settings: str) -> Plan:
    """A preset's plan, without the rounds curve."""
    config, _ = sources.resolve(name, settings)
    return choose(config, setup(config, Path.cwd()).problem, alternatives=False)


def test_few_users_are_taken_by_the_method_for_few_whatever_the_others_predict() -> None:
    planned = settled(2_000)
    assert planned.plan.algorithm == "whitened-tracking"
    assert "everybody may be asked 13 times" in str(planned.choice)
    assert settled(10_001).plan.algorithm == "whitened-tracking"


@pytest.mark.parametrize("users", [9_999, 10_001, 20_000, 100_000, 1_000_000])
def test_few_or_many_users_of_one_table_are_all_asked_in_every_round(users: int) -> None:
    assert on_a_table(users).plan.algorithm == "whitened-tracking"


UNTRUSTED = ("privacy.trust_model=two-servers",)
LOCAL = {name for name, info in ALGORITHMS.items() if {"local", "two-servers"} & {*info.trust_models}}


def planned_with(name: str, asked: str, *settings: str) -> Plan:
    """The plan of one algorithm for so many users that most have one; no other is planned beside it."""
    generous = ("privacy.epsilon=8", "population.users=20000", "algorithm.options={}", f"algorithm.name={name}")
    config = configs.parse(TOML, settings=[*generous, f"privacy.trust_model={asked}", *settings])
    return runs.prepare(config, Path.cwd(), alternatives=False).planned


def test_an_untrusted_coordinator_is_never_given_answers_by_an_automatic_choice() -> None:
    config = configs.parse(TOML, settings=["algorithm.name=auto", *UNTRUSTED])
    assert configs.parse(TOML).privacy.trust_model is None  # unless somebody says otherwise
    planned = quoron.plan(config)
    assert {each.algorithm for each in planned.candidates if each.plan} <= LOCAL
    assert {each.plan.guarantee.trust_model for each in planned.candidates if each.plan} <= {"local", "two-servers"}
    assert planned.choice is not None
    assert "the coordinator is not trusted with answers" in planned.choice


@pytest.mark.parametrize("asked", ["central-broadcast", "two-servers", "local"])  # of central-release nothing is asked
@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_no_plan_needs_more_trust_than_is_given(name: str, asked: str) -> None:
    order = ("central-release", "central-broadcast", "two-servers", "local", "none")
    try:
        plan = planned_with(name, asked).plan
    except QuoronError:
        return
    assert order.index(plan.guarantee.trust_model) >= order.index(asked)


def test_an_algorithm_of_two_trust_models_is_planned_in_the_one_that_is_asked_for() -> None:
    """Outlier-iterates shows no iterate without noise only where each chain is one user long."""
    with pytest.raises(ConfigError, match="got one of outlier-iterates of trust model central-release"):
        planned_with("outlier-iterates", "central-broadcast")
    planned = planned_with(
        "outlier-iterates", "central-broadcast", *("algorithm.options.broadcast=true", "budget.rounds=3")
    )
    assert planned.plan.guarantee.trust_model == "central-broadcast"


# Users of 8 items, 4 features, a generous promise: the filter is feasible with few users.
BASE = [
    "population.items_per_user=8",
    "population.dimension=4",
    "domain.radius=4.0",
    "privacy.epsilon=8",
    "privacy.delta=1e-3",
]


def ran(tmp_path, algorithm, *settings):
    return quoron.simulate(algorithm=algorithm, seed=0, out=tmp_path / "run", settings=[*BASE, *settings])


def test_predictions_are_within_a_factor_of_five_of_what_is_measured(tmp_path):
    for algorithm, users in (("filtered-sgd", 64_000), ("one-pass-dp-sgd", 16_000), ("phased-sgd", 16_000)):
        run = ran(tmp_path / algorithm, algorithm, f"population.users={users}")
        found = run.plan.predicted_excess_risk or run.plan.guessed_excess_risk
        assert run.summary.excess_risk / 5 < found < 5 * run.summary.excess_risk
