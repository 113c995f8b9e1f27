"""The parameters are an algorithm's face: what they say of a plan is what the plan and its registration say."""

from dataclasses import fields, replace
from typing import Any, get_type_hints

import pytest

from contracts.scenes import PRIVACY, SMALL, make_plan
from contracts.test_min_cohort import MIN_COHORT
from quoron_privacy.errors import VerificationError
from quoron_privacy.histograms.data_quality import DataQuality
from quoron_privacy.histograms.held_out import HeldMeans, HeldOut
from quoron_privacy.histograms.min_cohort import MinCohort
from quoron_privacy.histograms.private_bounds import EstimatedBounds
from quoron_privacy.two_servers.specification import Servers
from quoron_server.algorithms import ALGORITHMS
from quoron_server.plan import Guarantee, Privacy, RunPlan
from quoron_server.schedule import PlannedRelease

EVERY = list({**dict.fromkeys(ALGORITHMS), **SMALL})
every_plan = pytest.mark.parametrize("name", EVERY)
min_cohorts = pytest.mark.parametrize("privacy", [PRIVACY, MIN_COHORT], ids=["alone", "min_cohort"])


@min_cohorts
@every_plan
def test_rounds_and_messages_are_those_of_the_cohorts(name: str, privacy: Privacy) -> None:
    plan = make_plan(name, None, privacy)
    cohorts = plan.schedule.cohorts
    assert (len(cohorts), sum(cohorts)) == (plan.cost.rounds, plan.cost.messages)
    assert 1 <= plan.schedule.participations <= plan.cost.rounds
    assert plan.schedule.participations == 1 or ALGORITHMS[plan.algorithm].policy.many_passes or "ftrl" in name


@every_plan
def test_a_plan_for_other_rounds_than_its_cohorts_is_refused(name: str) -> None:
    plan = make_plan(name)
    wrong = replace(plan, cost=replace(plan.cost, rounds=plan.cost.rounds + 1))
    with pytest.raises(VerificationError):
        ALGORITHMS[plan.algorithm].verify(wrong)


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_another_algorithms_parameters_are_refused(name: str) -> None:
    info, plan = ALGORITHMS[name], make_plan(name)
    assert type(plan.parameters) is info.parameters
    other = make_plan("phased-sgd" if name != "phased-sgd" else "filtered-sgd").parameters
    said = f"Expected {info.parameters.__name__} in a plan of {name}, got {type(other).__name__}"
    for use in (info.verify, info.make):
        with pytest.raises(VerificationError, match=said):
            use(replace(plan, parameters=other))


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_who_names_what_a_run_costs_may_promise_a_mu_and_nobody_else(name: str) -> None:
    info, plan = ALGORITHMS[name], make_plan(name)
    found = info.guarantees.pairs(plan.parameters, plan.problem, plan.guarantee.adjacency)
    assert info.may_be_gaussian or found == ()
    assert info.trust_model != "none" or not info.may_be_gaussian
    assert info.may_be_gaussian or info.gaussian(plan) is None


@pytest.mark.parametrize("kind", [RunPlan, PlannedRelease, Guarantee])
def test_what_a_plan_holds_has_a_type(kind: type) -> None:
    named = {each.__name__: each for each in (EstimatedBounds, HeldMeans, HeldOut, MinCohort, Servers, DataQuality)}
    hints = get_type_hints(kind, localns=named)
    assert not [each.name for each in fields(kind) if hints[each.name] is Any]
