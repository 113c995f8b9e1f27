"""What a person gets who names no algorithm, on small registries of algorithms that only pretend."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from problems import small
from quoron import config as configs
from quoron.planning.choosing import Candidate, automatic
from quoron.planning.plans import Planned, choose
from quoron_privacy.errors import Infeasible
from quoron_server.algorithms import Registered
from quoron_server.algorithms.allowance import Allowance
from quoron_server.algorithms.forecast import Factor
from quoron_server.algorithms.info import Choosing, Chosen, Promises
from quoron_server.algorithms.references import ours
from quoron_server.parameters import Parameters, PlannedRelease
from quoron_server.plan import Cost, Plan
from quoron_server.problem import Problem

pytestmark = pytest.mark.usefixtures("planned_once")


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
        origin=ours(),
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
    return choose(config, small(**facts), algorithms=registry(*infos))


def best_local(trust: bool, *infos: Registered) -> tuple[Plan, str]:
    """The rule itself, with every algorithm planned."""
    config = configs.from_tree({})
    candidates = tuple(Candidate(info.name, choose(config, small(), algorithms=registry(info)).plan) for info in infos)
    return automatic(candidates, registry(*infos), small(), trust_server=trust, allowed=Allowance())


RECOMMENDED = pretended("tracking-srgd", 1.3e-6)
MANY = pretended("many", 1e-6, rounds=724, passes="many")
FILTER = pretended("filter", 5e-6, exposure="model", removes_outliers=True)
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


def test_an_untrusted_coordinator_without_an_algorithm_for_it_is_refused_with_the_key() -> None:
    with pytest.raises(
        Infeasible, match=r"asks for exposure two-servers or local, and no algorithm here has either; needs .*=true"
    ):
        best_local(False, RECOMMENDED, FILTER)
