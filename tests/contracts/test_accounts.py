"""Noise is found by one account and accepted by another: a mistake in the first does not pass the second."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from contracts.scenes import PROBLEM, PROBLEMS, SMALL
from contracts.test_gaussian_promises import GAUSSIAN
from privacy import first_account
from quoron_privacy.accounts import composition, gdp, subsampling
from quoron_privacy.errors import VerificationError
from quoron_server.algorithms import ALGORITHMS
from quoron_server.plan import Privacy, RunPlan

PRIVACY = Privacy(1.01, 1.01e-6)  # nobody else's: what planners remember of mistakes is asked for here alone
GENEROUS = Privacy(7.9, 1.01e-3)
FORTY = {"rounds": 40, "rate": 0.1}
PLANS: dict[str, dict[str, Any]] = {
    "dp-sgd-wor": FORTY,
    "dp-sgd-poisson": FORTY,
    "dp-sgd-poisson/replaced": FORTY,
    "recentred-sgd": FORTY,
}
FIRST: tuple[tuple[ModuleType, str], ...] = (
    (subsampling, "wor_round_mu"),
    (subsampling, "poisson_round_mu"),
)


def plan_of(name: str) -> RunPlan:
    algorithm, _, replaced = name.partition("/")
    info, privacy = ALGORITHMS[algorithm], replace(PRIVACY, adjacency="replace-one") if replaced else PRIVACY
    return info.plan(PROBLEM, privacy, info.options(**PLANS[name]), "calibrated", 7)


def forget() -> None:
    gdp.mu_for.cache_clear()
    for module, name in FIRST:
        getattr(module, name).cache_clear()


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    forget()
    yield
    forget()


def bent(was: Callable[..., Any], change: Callable[..., tuple[Any, ...]]) -> Callable[..., Any]:
    """A function whose arguments are changed first; it remembers nothing."""

    def wrong(*given: Any, **named: Any) -> Any:
        return was(*change(*given), **named)

    wrong.cache_clear = lambda: None  # type: ignore[attr-defined]
    return wrong


def one_sided(was: Callable[..., Any]) -> Callable[..., Any]:
    """Negative losses are forgotten: they may be anything, and are all the least one."""

    def wrong(*given: Any) -> Any:
        law = was(*given)
        kept = law.places >= 0
        places = np.append(law.places[0], law.places[kept])
        chances = np.append(1 - np.exp(law.logs[kept]).sum() - law.lost, np.exp(law.logs[kept]))
        return replace(law, places=places, logs=np.log(np.maximum(chances, 1e-300)))

    return wrong


def without_tail(was: Callable[..., Any]) -> Callable[..., Any]:
    """Losses above a twentieth of the lattice never happen."""

    def wrong(*given: Any) -> Any:
        law = was(*given)
        kept = law.places < law.places[-1] / 20
        return replace(law, places=law.places[kept], logs=law.logs[kept], lost=0.0)

    return wrong


def only_adding(was: Callable[..., Any]) -> Callable[..., Any]:
    """Of the two orders of a Poisson pair only the milder one."""
    del was

    def wrong(rate: float, rounds: int, mu: float, adjacency: str, epsilon: float, *, least: float) -> float:
        present, absent = (partial(each, rate, mu) for each in (subsampling.wor_profile, subsampling.absent_profile))
        return composition.delta(absent, present, rounds, epsilon, least=least)

    return wrong


def twice(was: Callable[..., Any]) -> Callable[..., Any]:
    """Noise is looked for that costs twice δ."""
    return lambda cost, guess, delta: was(cost, guess, 2 * delta)


COHORT = {
    "a third of the rate in the profile": (
        subsampling, "wor_profile", lambda was: lambda rate, mu, epsilon: was(rate / 3, mu, epsilon)
    ),
    "nine tenths of μ": (subsampling, "_wor", lambda was: bent(was, lambda q, t, mu, e: (q, t, 0.9 * mu, e))),
    "one round fewer": (subsampling, "_wor", lambda was: bent(was, lambda q, t, mu, e: (q, t - 1, mu, e))),
    "twice δ": (composition, "largest", twice),
    "losses rounded down on a coarse lattice": (
        subsampling, "wor_profile", lambda was: lambda rate, mu, epsilon: was(rate, mu, epsilon + 0.01)
    ),
    "no tail": (composition, "_law", without_tail),
    "one side of the profile": (composition, "_law", one_sided),
    "all of δ and more for the distribution": (composition, "SAFETY", lambda was: 1.1 * was),
    "half of the Gaussian's δ": (gdp, "delta_for", lambda was: lambda mu, epsilon: 0.5 * was(mu, epsilon)),
    "a search that stops too late": (composition, "largest", lambda was: lambda *given: 1.1 * was(*given)),
}  # fmt: skip
COINS = {
    "a third of the rate": (subsampling, "_poisson", lambda was: bent(was, lambda q, *others: (q / 3, *others))),
    "nine tenths of μ": (subsampling, "_poisson", lambda was: bent(was, lambda q, t, m, *o: (q, t, 0.9 * m, *o))),
    "one round fewer": (subsampling, "_poisson", lambda was: bent(was, lambda q, t, *others: (q, t - 1, *others))),
    "twice δ": (composition, "largest", twice),
}
ONE_ORDER = (subsampling, "_poisson", only_adding)
REPLACED = COINS | {
    "the pair of absences": (
        subsampling, "_poisson", lambda was: bent(was, lambda q, t, m, a, e: (q, t, m, "zero-out", e))
    ),
    "half of a cohort's μ": (  # as if users were replaced in every round's cohort, by μ, and hence moved it by μ/2
        subsampling, "replaced_profile", lambda was: lambda rate, mu, epsilon: was(rate, mu / 2, epsilon)
    ),
    "one side of the profile": (composition, "_law", one_sided),
    "no tail": (composition, "_law", without_tail),
}  # fmt: skip
MISTAKES = (
    [pytest.param("dp-sgd-wor", *COHORT[name], id=f"dp-sgd-wor, {name}") for name in COHORT]
    + [pytest.param("dp-sgd-poisson", *COINS[name], id=f"dp-sgd-poisson, {name}") for name in COINS]
    + [pytest.param("dp-sgd-poisson", *ONE_ORDER, id="dp-sgd-poisson, one order of the pair")]
    + [pytest.param("recentred-sgd", *REPLACED["the pair of absences"], id="recentred-sgd, the pair of absences")]
    + [pytest.param("dp-sgd-poisson/replaced", *REPLACED[name], id=f"replaced, {name}") for name in REPLACED]
)


@pytest.mark.parametrize(("name", "module", "function", "wrong"), MISTAKES)
def test_noise_that_a_mistake_in_the_first_account_found_is_refused_by_the_second(
    name: str, module: ModuleType, function: str, wrong: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(module, function, wrong(getattr(module, function)))
        with np.errstate(all="ignore"):
            plan = plan_of(name)
            with pytest.raises(VerificationError, match="the plan spends"):
                ALGORITHMS[plan.algorithm].verify(plan)
    forget()


@pytest.mark.parametrize("name", PLANS)
def test_honest_noise_is_accepted_without_a_look_at_the_first_account(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(name)

    def missing(*given: Any) -> Any:
        raise AssertionError("the second account asked the first")

    missing.cache_clear = lambda: None  # type: ignore[attr-defined]
    with monkeypatch.context() as patched:
        for module, function in FIRST:
            patched.setattr(module, function, missing)
        ALGORITHMS[plan.algorithm].verify(plan)


@pytest.mark.parametrize("name", GAUSSIAN)
def test_noise_for_half_of_a_gaussians_delta_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole runs that are μ-GDP: found by `gdp`, accepted by `DominatingPair`."""
    was = gdp.delta_for
    info = ALGORITHMS[name]
    with monkeypatch.context() as patched:
        patched.setattr(gdp, "delta_for", lambda mu, epsilon: 0.5 * was(mu, epsilon))
        gdp.mu_for.cache_clear()
        plan = info.plan(PROBLEMS.get(name, PROBLEM), GENEROUS, info.options(**SMALL.get(name, {})), "calibrated", 7)
        gdp.mu_for.cache_clear()
        with pytest.raises(VerificationError, match="the plan spends"):
            info.verify(plan)


def test_a_plan_of_three_times_its_epsilon_is_not_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a third of the rate in the profile plans of a true ε of 3.07 were made, and verified, at 1."""
    info = ALGORITHMS["dp-sgd-wor"]
    was = subsampling.wor_profile
    with monkeypatch.context() as patched:
        patched.setattr(subsampling, "wor_profile", lambda rate, mu, epsilon: was(rate / 3, mu, epsilon))
        plan = info.plan(PROBLEM, PRIVACY, info.options(rounds=40, rate=0.05), "calibrated", 7)
        with pytest.raises(VerificationError, match="Expected delta <= "):
            info.verify(plan)
    forget()
    p = plan.parameters
    assert first_account.wor_epsilon(p.cohort_size / (PROBLEM.users - 1), p.rounds, p.round_mu, 1e-6) > 2.5


@pytest.mark.parametrize("name", ["dp-sgd-wor", "dp-sgd-poisson", "dp-sgd-poisson/replaced"])
def test_a_share_of_the_noise_less_is_refused(name: str) -> None:
    plan = plan_of(name)
    p = plan.parameters
    louder = replace(plan, parameters=replace(p, round_mu=1.01 * p.round_mu, noise_scale=p.noise_scale / 1.01))
    with pytest.raises(VerificationError, match="the plan spends"):
        ALGORITHMS[plan.algorithm].verify(louder)
    assert math.isfinite(p.round_mu)
