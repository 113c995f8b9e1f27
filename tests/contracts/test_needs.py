"""What a promise rests on is data: rules read it, `verify` derives it again, and no rule reads a sentence."""

import ast
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quoron
import quoron_server
from contracts.scenes import PRIVACY, PROBLEM, PROBLEMS, SMALL, make_plan
from contracts.test_quorum import WISH
from quoron_privacy.errors import ConfigError, VerificationError
from quoron_privacy.noise.sources import SeededNoise
from quoron_server.algorithms import ALGORITHMS
from quoron_server.plan import NEEDS, Plan, Privacy
from quoron_server.specification import require_open_cohorts

EVERY = list({**dict.fromkeys(ALGORITHMS), **SMALL})
SECRET = {  # algorithms that may sample, whatever their options; each has a plan here that does
    "dp-sgd-wor",
    "dp-sgd-poisson",
    "mean-sgd",
    "accelerated-erm",
    "group-dp-sgd",
    "group-dp-sgd-zero-out",
}
every_plan = pytest.mark.parametrize("name", EVERY)
quorums = pytest.mark.parametrize("wish", [PRIVACY, WISH], ids=["alone", "quorum"])


def asked(plan: Plan, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Whom a run asks first, and for which of their items, with this noise."""
    info = ALGORITHMS[plan.algorithm]
    algorithm = info.maker(plan.without_quorum())
    question = algorithm.request(algorithm.init(), SeededNoise(seed))
    assert question is not None
    return question.cohort, np.asarray(getattr(question.task, "places", ()))


@cache
def draws_secretly(name: str, wish: Privacy) -> bool:
    """Whether noise decides who is asked, or for what: nobody may learn it, if the promise counts on it."""
    plan = make_plan(name, None, wish)
    (users, places), (others, elsewhere) = asked(plan, 1), asked(plan, 2)
    return not (np.array_equal(users, others) and np.array_equal(places, elsewhere))


@quorums
@every_plan
def test_whoever_is_asked_by_noise_rests_on_secret_cohorts_and_nobody_else(name: str, wish: Privacy) -> None:
    plan = make_plan(name, None, wish)
    assert ("secret-cohorts" in plan.guarantee.needs) == draws_secretly(name, wish)
    assert plan.algorithm in SECRET or "secret-cohorts" not in plan.guarantee.needs


@quorums
@every_plan
def test_early_ends_are_refused_to_whoever_rests_on_secret_cohorts(name: str, wish: Privacy) -> None:
    plan = make_plan(name, None, wish)
    if not draws_secretly(name, wish):
        require_open_cohorts(plan)
        return
    with pytest.raises(ConfigError, match=f"early_ends=false for {plan.algorithm}"):
        require_open_cohorts(plan)


def test_every_algorithm_that_samples_has_a_plan_that_is_refused() -> None:
    assert {name.partition("/")[0] for name in EVERY if draws_secretly(name, PRIVACY)} == SECRET


BOTH = [
    (name, adjacency) for name, info in ALGORITHMS.items() if len(info.adjacency) > 1 for adjacency in info.adjacency
]


@pytest.mark.parametrize(("name", "adjacency"), BOTH)
def test_the_other_adjacency_rests_on_the_same(name: str, adjacency: Any) -> None:
    info = ALGORITHMS[name]
    named = {"adjacency": adjacency} if info.either_adjacency else {}
    options = info.options(**SMALL.get(name, {}), **named)
    plan = info.plan(PROBLEMS.get(name, PROBLEM), replace(PRIVACY, adjacency=adjacency), options, "calibrated", 7)
    assert plan.guarantee.adjacency == adjacency
    assert plan.guarantee.needs == make_plan(name).guarantee.needs


@quorums
@every_plan
def test_a_promise_that_forgets_what_it_rests_on_is_refused(name: str, wish: Privacy) -> None:
    plan = make_plan(name, None, wish)
    for need in plan.guarantee.needs:
        others = tuple(other for other in plan.guarantee.needs if other != need)
        with pytest.raises(VerificationError, match=f"rests on .*{need}"):
            ALGORITHMS[plan.algorithm].verify(replace(plan, guarantee=replace(plan.guarantee, needs=others)))


@every_plan
def test_people_are_told_all_that_a_promise_rests_on(name: str) -> None:
    promise = make_plan(name).guarantee
    for need, words in NEEDS.items():
        assert (words in promise.sentence()) == (need in promise.needs)
    assert not promise.by_curator().needs, "on one machine everything is as it should be"


@pytest.mark.parametrize("name", ["dp-sgd-wor", "dp-sgd-poisson", "mean-sgd", "group-dp-sgd", "group-dp-sgd-zero-out"])
def test_where_everybody_is_asked_for_everything_nothing_is_secret(name: str) -> None:
    info = ALGORITHMS[name]
    plan = info.plan(PROBLEM, PRIVACY, info.options(rounds=5, rate=1.0), "calibrated", 7)
    assert plan.guarantee.needs == ()
    require_open_cohorts(plan)


def test_no_rule_looks_for_a_sentence_among_the_assumptions() -> None:
    """`X in promise.assumptions` decides by words; the one exception compares a problem's own field with itself."""
    found = []
    for package in (quoron, quoron_server):
        for path in Path(package.__path__[0]).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Compare) and any(isinstance(op, ast.In | ast.NotIn) for op in node.ops):
                    words = [ast.unparse(each) for each in node.comparators]
                    if any("assumptions" in each or "sentence()" in each for each in words):
                        found.append((path.name, ast.unparse(node.left)))
    assert set(found) <= {("info.py", "vouched")}
