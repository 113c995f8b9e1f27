"""What follows from the rounds that parameters declare is what families say of their plans by hand."""

from dataclasses import replace
from math import prod

import pytest

from contracts.scenes import PRIVACY, PROBLEM, PROBLEMS, SMALL, TWO_SERVERS, make_plan
from contracts.test_min_cohort import MIN_COHORT
from quoron_privacy.errors import ConfigError, Infeasible
from quoron_server.algorithms import ALGORITHMS
from quoron_server.plan import Privacy, RunPlan

EVERY = list({**dict.fromkeys(ALGORITHMS), **SMALL, **TWO_SERVERS})
PRINTED = [name for name, info in ALGORITHMS.items() if info.printed is not None]


def compared(plan: RunPlan) -> None:
    p, problem = plan.parameters, plan.problem
    rounds = p.schedule(problem)
    assert rounds.cohorts == p.cohorts()
    assert rounds.participations == p.participations()
    assert rounds.attendance == p.attendance(problem)
    assert rounds.reads_sums == p.reads_sums()
    assert rounds.answer_length(problem.dimension) == p.answer_length(problem)
    if plan.algorithm != "tracking-srgd":  # which said 1, and asks at 2
        assert max(1, rounds.gradients_asked) == p.points_asked()
    if plan.algorithm in ("recentred-sgd", "mean-sgd", "outlier-gd"):  # others did not say it, as nobody asks them
        assert rounds.smooths_loss == p.smooths_loss()
    if (by_hand := p.asks(problem)) is not None:
        assert type(rounds.usual_task) is type(by_hand)
    made, masked = p.masked(problem), rounds.masked
    assert (made is None) == (masked is None)
    if made is not None and masked is not None:
        blocks = tuple(each.rows.blocks for each in rounds.stretches for _ in range(each.count))
        assert blocks == tuple(rows for count, rows in made.rounds for _ in range(count))
        assert {(e.rows.adjacency, e.rows.factorisation, e.rows.separation) for e in rounds.stretches} == {
            (made.adjacency, made.factorisation, made.separation)
        }
        assert rounds.sheet() == p.sheet(problem)
    hand = p.releases(problem.dimension)
    assert len(rounds.releases) == len(hand)
    for derived, other in zip(rounds.releases, hand, strict=True):
        assert replace(derived, rounds=list(derived.rounds)) == replace(other, rounds=list(other.rounds))
    items, d = problem.items_per_user, problem.dimension
    cost = plan.cost
    assert (cost.rounds, cost.messages) == (len(rounds.cohorts), sum(rounds.cohorts))
    assert cost.gradient_evaluations == rounds.total(lambda task: task.planned_gradients(items))
    assert cost.bytes_down == 8 * rounds.total(lambda task: task.numbers_down(d))
    assert cost.bytes_up == 8 * rounds.total(lambda task: prod(task.answer_shape(d)))


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("privacy", [PRIVACY, MIN_COHORT, replace(PRIVACY, adjacency="zero-out")])
def test_calibrated(name: str, privacy: Privacy) -> None:
    try:
        plan = make_plan(name, None, privacy)
    except (ConfigError, Infeasible):
        pytest.skip("no such plan")
    compared(plan)


@pytest.mark.parametrize("users", [300, 2_400, 1_200, 100_000])
@pytest.mark.parametrize("rough", [False, True])
@pytest.mark.parametrize("name", PRINTED)
def test_printed(name: str, users: int, rough: bool) -> None:
    problem = replace(PROBLEMS.get(name, PROBLEM), users=users, **({"smoothness": None} if rough else {}))
    try:
        plan = ALGORITHMS[name].plan(problem, Privacy(8.0, 1e-3), None, "paper", 7)
    except (ConfigError, Infeasible):
        pytest.skip("no such plan")
    compared(plan)


@pytest.mark.parametrize("name", EVERY)
def test_rough_or_of_another_size(name: str) -> None:
    problem = PROBLEMS.get(name, PROBLEM)
    for other in (replace(problem, smoothness=None), replace(problem, dimension=9), replace(problem, ridge=0.01)):
        try:
            plan = make_plan(name, other)
        except (ConfigError, Infeasible):
            continue
        compared(plan)
