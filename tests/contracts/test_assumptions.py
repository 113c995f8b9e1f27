"""What a promise rests on is data: it follows from the parameters, rules read it, and nobody reads a sentence."""

import ast
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quoron
import quoron_server
from contracts.scenes import PRIVACY, PROBLEM, PROBLEMS, SMALL, make_plan
from contracts.test_min_cohort import MIN_COHORT
from quoron_privacy.errors import ConfigError, VerificationError
from quoron_privacy.noise.streams import SeededNoise
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.registered import derived
from quoron_server.parameters import OPEN, Assumption, Kind, merged
from quoron_server.plan import Privacy, RunPlan
from quoron_server.specification import require_open_cohorts
from quoron_server.wording import TEXTS, assumption_text, sentence

EVERY = list({**dict.fromkeys(ALGORITHMS), **SMALL})
SECRET = {  # algorithms that may sample, whatever their options; each has a plan here that does
    "dp-sgd-wor",
    "dp-sgd-poisson",
    "mean-sgd",
    "recentred-sgd",
    "accelerated-erm",
}
every_plan = pytest.mark.parametrize("name", EVERY)
LONG = ("filtered-sgd", "accelerated-erm")  # to plan for a minimum cohort; "median-sgd" and "outlier-gd" test alike
alone_and_with_a_min_cohort = pytest.mark.parametrize(
    ("name", "privacy"),
    [
        pytest.param(
            name,
            privacy,
            id=f"{name}-{title}",
            marks=[pytest.mark.slow] if name in LONG and privacy is MIN_COHORT else [],
        )
        for title, privacy in (("alone", PRIVACY), ("min_cohort", MIN_COHORT))
        for name in EVERY
    ],
)


def asked(plan: RunPlan, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Whom a run asks first, and for which of their items, with this noise."""
    info = ALGORITHMS[plan.algorithm]
    algorithm = info.maker(plan.without("min_cohort"))
    question = algorithm.request(algorithm.init(), SeededNoise(seed))
    assert question is not None
    return question.cohort, np.asarray(getattr(question.task, "places", ()))


@cache
def draws_secretly(name: str, privacy: Privacy) -> bool:
    """Whether noise decides who is asked, or for what: nobody may learn it, if the promise counts on it."""
    plan = make_plan(name, None, privacy)
    (users, places), (others, elsewhere) = asked(plan, 1), asked(plan, 2)
    return not (np.array_equal(users, others) and np.array_equal(places, elsewhere))


@alone_and_with_a_min_cohort
def test_whoever_is_asked_by_noise_rests_on_secret_cohorts_and_nobody_else(name: str, privacy: Privacy) -> None:
    plan = make_plan(name, None, privacy)
    assert plan.guarantee.rests_on(Kind.SECRET_COHORTS) == draws_secretly(name, privacy)
    assert plan.algorithm in SECRET or not plan.guarantee.rests_on(Kind.SECRET_COHORTS)


@alone_and_with_a_min_cohort
def test_early_ends_are_refused_to_whoever_rests_on_secret_cohorts(name: str, privacy: Privacy) -> None:
    plan = make_plan(name, None, privacy)
    if not draws_secretly(name, privacy):
        require_open_cohorts(plan)
        return
    with pytest.raises(ConfigError, match=f"early_ends=false for {plan.algorithm}"):
        require_open_cohorts(plan)


def test_every_algorithm_that_samples_has_a_plan_that_is_refused() -> None:
    assert {name.partition("/")[0] for name in EVERY if draws_secretly(name, PRIVACY)} == SECRET


BOTH = [
    (name, adjacency)
    for name, info in ALGORITHMS.items()
    if len(info.guarantees.adjacency) > 1
    for adjacency in info.guarantees.adjacency
]


@pytest.mark.parametrize(("name", "adjacency"), BOTH)
def test_the_other_adjacency_rests_on_the_same(name: str, adjacency: Any) -> None:
    info = ALGORITHMS[name.partition("/")[0]]
    options = info.options(**SMALL.get(name, {}))
    plan = info.plan(PROBLEMS.get(name, PROBLEM), replace(PRIVACY, adjacency=adjacency), options, "calibrated", 7)
    assert plan.guarantee.adjacency == adjacency
    assert plan.guarantee.assumptions == make_plan(name).guarantee.assumptions


RULES = {  # what each rule answers, as it follows from the parameters and the promise alone
    Kind.SECRET_COHORTS: lambda name, plan: draws_secretly(name, PRIVACY),
    Kind.FORGETFUL_CLIENTS: lambda name, plan: draws_secretly(name, PRIVACY) and not plan.parameters.poisson_sampling,
    Kind.DOMINANT_HESSIANS: lambda name, plan: plan.algorithm == "median-sgd",
}
MOVED = {"filtered-sgd", "median-sgd", "phased-sgd", "group-phased-sgd"}


@every_plan
@pytest.mark.parametrize("kind", RULES)
def test_every_rule_answers_what_follows_from_the_parameters(name: str, kind: Kind) -> None:
    plan = make_plan(name)
    assert plan.guarantee.rests_on(kind) == RULES[kind](name, plan)
    assert plan.guarantee.rests_on(kind) == (kind in {each.kind for each in plan.parameters.assumptions(plan.problem)})


@alone_and_with_a_min_cohort
def test_attendance_may_not_be_moved_where_an_absence_changes_more_than_its_own_row(
    name: str, privacy: Privacy
) -> None:
    """Where steps contract, or a minimum cohort counts those who answer while they see iterates without noise."""
    plan = make_plan(name, None, privacy)
    counted = plan.guarantee.min_cohort is not None and plan.guarantee.trust_model == "central-release"
    contracts = plan.algorithm in MOVED
    assert plan.guarantee.rests_on(Kind.UNMOVED_PARTICIPATION) == (contracts or counted)


@alone_and_with_a_min_cohort
def test_a_promise_that_forgets_what_it_rests_on_is_refused(name: str, privacy: Privacy) -> None:
    plan = make_plan(name, None, privacy)
    for assumption in derived(plan):
        others = tuple(other for other in plan.guarantee.assumptions if other != assumption)
        assert len(others) == len(plan.guarantee.assumptions) - 1
        with pytest.raises(VerificationError, match="rests on this, too") as refused:
            ALGORITHMS[plan.algorithm].verify(replace(plan, guarantee=replace(plan.guarantee, assumptions=others)))
        assert assumption_text(assumption) in str(refused.value)


@every_plan
def test_people_are_told_all_that_a_promise_rests_on(name: str) -> None:
    promise = make_plan(name).guarantee
    for kind, words in TEXTS.items():
        if "{" not in words:
            assert (words in sentence(promise)) == promise.rests_on(kind)
    assert all(assumption_text(each) in sentence(promise) for each in promise.assumptions)
    assert promise.assumptions == merged(promise.assumptions), "in the order of their kinds, each once"
    assert not make_plan(name).as_curated().guarantee.assumptions, "on one machine everything is as it should be"


def test_assumptions_are_put_together_in_the_order_of_their_kinds_each_once() -> None:
    early, secret = Assumption(Kind.EARLY_ENDS), Assumption(Kind.SECRET_COHORTS)
    one, other = (Assumption(Kind.DECLARED_PARTICIPATION, (share,)) for share in (0.5, 0.9))
    assert merged((secret, other), (early, secret), (one,)) == (other, one, early, secret)


@pytest.mark.parametrize("of", [(), (1, 2), ("ada", "bob", "eve")])
def test_an_assumption_says_all_that_its_text_asks_for(of: tuple[str | float, ...]) -> None:
    with pytest.raises(ConfigError, match="declared-participation"):
        Assumption(Kind.DECLARED_PARTICIPATION, of)
    with pytest.raises(ConfigError, match="early-ends"):
        Assumption(Kind.EARLY_ENDS, (*of, 1))


@pytest.mark.parametrize("name", ["dp-sgd-wor", "dp-sgd-poisson", "mean-sgd", "recentred-sgd"])
def test_where_everybody_is_asked_for_everything_nothing_is_secret(name: str) -> None:
    info = ALGORITHMS[name]
    plan = info.plan(PROBLEM, PRIVACY, info.options(rounds=5, rate=1.0), "calibrated", 7)
    assert plan.guarantee.assumptions == ()
    require_open_cohorts(plan)


def test_no_rule_looks_for_a_sentence_among_the_assumptions() -> None:
    """`X in guarantee.assumptions` is asked by `verify` alone, of assumptions; texts are made and never compared."""
    found = []
    for package in (quoron, quoron_server):
        for path in Path(package.__path__[0]).rglob("*.py"):
            text = path.read_text()
            if not any(part in text for part in ("assumptions", "sentence(", "TEXTS")):
                continue
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Compare):
                    words = [ast.unparse(each) for each in (node.left, *node.comparators)]
                    if any(part in each for each in words for part in ("assumptions", "sentence(", "TEXTS")):
                        found.append((path.name, ast.unparse(node)))
    assert set(found) <= {("registered.py", "fact not in guarantee.assumptions")}


def test_every_kind_has_a_text_and_says_how_much_that_leaves_open() -> None:
    assert {kind: text.count("{") for kind, text in TEXTS.items()} == {kind: OPEN.get(kind, 0) for kind in Kind}


def test_nothing_that_a_plan_is_made_of_knows_the_registry() -> None:
    """What `plan.py` imports, at its top or anywhere in it, and what that imports: no algorithm, and no circle."""
    seen: set[str] = set()
    waiting = ["quoron_server.plan"]
    while waiting:
        name = waiting.pop()
        spec = find_spec(name) if name not in seen else None
        if spec is None or spec.origin is None:
            continue
        seen.add(name)
        for node in ast.walk(ast.parse(Path(spec.origin).read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("quoron_"):
                waiting.append(node.module)
    assert {"quoron_server.plan", "quoron_server.parameters"} <= seen
    assert not any(name.startswith("quoron_server.algorithm") for name in seen)
