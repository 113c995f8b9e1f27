"""What an algorithm promises of a whole run in μ: enough for its (ε, δ), no more than needed, and re-checked."""

import math
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest

from contracts.scenes import PRIVACY, PROBLEM, make_plan
from quoron_privacy.accounts.gdp import delta_for
from quoron_privacy.accounts.pair import DominatingPair
from quoron_privacy.errors import VerificationError
from quoron_server.algorithms import ALGORITHMS
from quoron_server.plan import RunPlan

GAUSSIAN = (
    "tracking-srgd",
    "whitened-tracking",
    "one-round-least-squares",
    "phased-sgd",
    "group-phased-sgd",
    "winsorised-erm",
    "one-pass-dp-sgd",
    "accelerated-srgd",
    "accelerated-sgd",
    "srgd",
    "online-to-batch",
    "dp-ftrl",
)
EVERYBODY = ("dp-sgd-poisson", "dp-sgd-wor", "recentred-sgd")
OTHERS = tuple(name for name in ALGORITHMS if name not in GAUSSIAN)


def everybody(name: str, **options: Any) -> RunPlan:
    """A plan that asks all users in each of five rounds."""
    info = ALGORITHMS[name]
    return info.plan(PROBLEM, PRIVACY, info.options(rounds=5, rate=1.0, **options), "calibrated", 7)


def plans() -> list[Any]:
    whole = [pytest.param(lambda name=name: make_plan(name), id=name) for name in GAUSSIAN]
    whole += [pytest.param(lambda name=name: everybody(name), id=f"{name}/everybody") for name in EVERYBODY]
    ranged = pytest.param(lambda: everybody("mean-sgd"), id="mean-sgd/everybody")
    return [*whole, ranged]


def promise_of(plan: RunPlan) -> DominatingPair | None:
    return ALGORITHMS[plan.algorithm].gaussian(plan)


@pytest.mark.parametrize("plan_of", plans())
def test_mu_and_the_samplers_are_worth_the_promised_epsilon_and_delta_and_nearly_no_less(plan_of: Any) -> None:
    plan = plan_of()
    promise, (epsilon, delta) = promise_of(plan), (plan.guarantee.epsilon, plan.guarantee.delta)
    assert promise is not None
    spent = delta_for(promise.mu, epsilon) + (1 + math.exp(epsilon)) * promise.variation
    assert 0.999 * delta <= spent <= delta
    assert 0 < promise.variation < 1e-12


@pytest.mark.parametrize("name", OTHERS)
def test_where_only_epsilon_and_delta_are_proved_there_is_no_mu(name: str) -> None:
    assert promise_of(make_plan(name)) is None


def test_what_is_not_proved_has_no_mu() -> None:
    info = ALGORITHMS["accelerated-srgd"]
    plan = info.plan(PROBLEM, PRIVACY, None, "paper", 7)
    assert not plan.guarantee.proved
    assert promise_of(plan) is None


def shrunk(value: Any, names: tuple[str, ...]) -> Any:
    """`value` with the numbers of these names made a thousandth smaller, wherever they are."""
    if isinstance(value, tuple):
        return tuple(shrunk(each, names) for each in value)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    changed = {
        item.name: 0.999 * held if item.name in names else shrunk(held, names)
        for item in fields(value)
        if not isinstance(held := getattr(value, item.name), str)
    }
    return replace(value, **changed)


@pytest.mark.parametrize(
    "names",
    [("mu", "round_mu"), ("noise_scale", "release_scale", "pilot_scale", "length_scale", "moment_scale", "scale")],
)
@pytest.mark.parametrize("plan_of", plans())
def test_a_plan_that_claims_a_smaller_mu_than_its_noise_gives_is_refused(plan_of: Any, names: tuple[str, ...]) -> None:
    plan = plan_of()
    wrong = replace(plan, parameters=shrunk(plan.parameters, names))
    assert wrong != plan
    info = ALGORITHMS[plan.algorithm]
    for use in (info.verify, info.gaussian, info.make):
        with pytest.raises(VerificationError):
            use(wrong)


@pytest.mark.parametrize("name", EVERYBODY)
def test_a_sampled_plan_that_claims_to_ask_everybody_is_no_plan_of_that_noise(name: str) -> None:
    plan = make_plan(name)
    assert plan.parameters.cohort_size < PROBLEM.users
    p, share = plan.parameters, plan.parameters.cohort_size / PROBLEM.users
    # as private a round as before, which nothing amplifies any more
    same = {each: getattr(p, each) * share for each in ("sensitivity", "noise_scale") if hasattr(p, each)}
    wrong = replace(plan, parameters=replace(p, cohort_size=PROBLEM.users, **same))
    with pytest.raises(VerificationError):
        promise_of(wrong)
