"""Noise is found by one account and accepted by another: a mistake in the first does not pass the second."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from dp_accounting.pld import pld_pmf

from contracts.scenes import PROBLEM, PROBLEMS, SMALL
from contracts.test_gaussian_promises import GAUSSIAN
from quoron_privacy.accounts import gdp, item_sampling, subsampling
from quoron_privacy.errors import VerificationError
from quoron_server.algorithms import ALGORITHMS
from quoron_server.plan import Plan, Privacy

PRIVACY = Privacy(1.01, 1.01e-6)  # nobody else's: what planners remember of mistakes is asked for here alone
GENEROUS = Privacy(7.9, 1.01e-3)
DOTS = "create_pmf_pessimistic_connect_dots_fixed_gap"
FORTY = {"rounds": 40, "rate": 0.1}
PLANS: dict[str, dict[str, Any]] = {
    "dp-sgd-wor": FORTY,
    "dp-sgd-poisson": FORTY,
    "mean-sgd": FORTY,
    "accelerated-erm": SMALL["accelerated-erm/clip"],
    "group-dp-sgd": FORTY,
    "group-dp-sgd-zero-out": FORTY,
}
FIRST: tuple[tuple[ModuleType, str], ...] = (
    (subsampling, "wor_epsilon"),
    (subsampling, "wor_round_mu"),
    (subsampling, "poisson_epsilon"),
    (subsampling, "poisson_round_mu"),
    (item_sampling, "epsilon"),
    (item_sampling, "multiplier"),
)


def plan_of(name: str) -> Plan:
    info = ALGORITHMS[name]
    return info.plan(PROBLEM, PRIVACY, info.options(**PLANS[name]), "calibrated", 7)


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


def losses_of(found: Any) -> dict[int, float]:
    """Mass by place on the lattice."""
    dense = found.to_dense_pmf()
    return {dense._lower_loss + place: float(mass) for place, mass in enumerate(dense._probs)}


def one_sided(was: Callable[..., Any]) -> Callable[..., Any]:
    """Negative losses are forgotten: they may be anything, and are all the least one."""

    def wrong(gap: float, lowest: int, highest: int, deltas: Any) -> Any:
        found = losses_of(was(gap, lowest, highest, deltas))
        kept = {place: mass for place, mass in found.items() if place >= 0}
        return pld_pmf.SparsePLDPmf({**kept, lowest: 1 - sum(kept.values())}, gap, 0.0, True)

    return wrong


def without_tail(was: Callable[..., Any]) -> Callable[..., Any]:
    """Losses above a twentieth of the lattice never happen."""

    def wrong(gap: float, lowest: int, highest: int, deltas: Any) -> Any:
        found = losses_of(was(gap, lowest, highest, deltas))
        return pld_pmf.SparsePLDPmf({k: v for k, v in found.items() if k < highest / 20}, gap, 0.0, True)

    return wrong


def only_adding(was: Callable[..., Any]) -> Callable[..., Any]:
    """Of the two orders of a Poisson pair only the milder one."""
    del was
    return lambda composed, delta: max(0.0, float(composed._pmf_add.get_epsilon_for_delta(0.97 * delta)))


COHORT = {
    "a third of the rate in the profile": (
        subsampling, "wor_profile", lambda was: lambda rate, mu, epsilon: was(rate / 3, mu, epsilon)
    ),
    "nine tenths of μ": (subsampling, "wor_epsilon", lambda was: bent(was, lambda q, t, mu, d: (q, t, 0.9 * mu, d))),
    "one round fewer": (subsampling, "wor_epsilon", lambda was: bent(was, lambda q, t, mu, d: (q, t - 1, mu, d))),
    "twice δ": (subsampling, "wor_epsilon", lambda was: bent(was, lambda q, t, mu, d: (q, t, mu, 2 * d))),
    "losses rounded down on a coarse lattice": (
        subsampling, "wor_profile", lambda was: lambda rate, mu, epsilon: was(rate, mu, epsilon + 0.01)
    ),
    "no tail": (pld_pmf, DOTS, without_tail),
    "one side of the profile": (pld_pmf, DOTS, one_sided),
    "all of δ and more for the distribution": (
        subsampling, "_epsilon", lambda was: lambda composed, delta: was(composed, 1.1 * delta)
    ),
    "half of the Gaussian's δ": (gdp, "delta_for", lambda was: lambda mu, epsilon: 0.5 * was(mu, epsilon)),
    "a search that stops too late": (
        subsampling, "_largest_mu", lambda was: lambda *given: 1.1 * was(*given)
    ),
}  # fmt: skip
COINS = {
    "a third of the rate": (subsampling, "_poisson", lambda was: bent(was, lambda q, t, mu, d: (q / 3, t, mu, d))),
    "nine tenths of μ": (subsampling, "poisson_epsilon", lambda was: bent(was, lambda q, t, m, d: (q, t, 0.9 * m, d))),
    "one round fewer": (subsampling, "poisson_epsilon", lambda was: bent(was, lambda q, t, m, d: (q, t - 1, m, d))),
    "twice δ": (subsampling, "poisson_epsilon", lambda was: bent(was, lambda q, t, m, d: (q, t, m, 2 * d))),
    "one order of the pair": (subsampling, "_epsilon", only_adding),
}
ITEMS = {
    "a third of the rate in the profile": (
        item_sampling, "profile", lambda was: bent(was, lambda q, *others: (q / 3, *others))
    ),
    "nine tenths of the shift": (
        item_sampling, "epsilon", lambda was: bent(was, lambda q, m, t, z, d, a: (q, m, t, z / 0.9, d, a))
    ),
    "one round fewer": (item_sampling, "_one_way", lambda was: bent(was, lambda q, m, t, *o: (q, m, t - 1, *o))),
    "one item fewer": (item_sampling, "_shifts", lambda was: bent(was, lambda q, m: (q, m - 1))),
    "twice δ": (item_sampling, "_one_way", lambda was: bent(was, lambda q, m, t, z, d, *o: (q, m, t, z, 2 * d, *o))),
    "losses rounded down on a coarse lattice": (
        item_sampling, "profile",
        lambda was: lambda q, m, z, a, epsilons, **way: was(q, m, z, a, epsilons + 0.01, **way),
    ),
}  # fmt: skip
MISTAKES = (
    [pytest.param("dp-sgd-wor", *COHORT[name], id=f"dp-sgd-wor, {name}") for name in COHORT]
    + [pytest.param("dp-sgd-poisson", *COINS[name], id=f"dp-sgd-poisson, {name}") for name in COINS]
    + [
        pytest.param(each, *ITEMS[name], id=f"{each}, {name}")
        for each in ("group-dp-sgd", "group-dp-sgd-zero-out")
        for name in ITEMS
    ]
    + [
        pytest.param(each, *COHORT["a third of the rate in the profile"], id=f"{each}, a third of the rate")
        for each in ("mean-sgd", "accelerated-erm")
    ]
    + [
        pytest.param(
            "group-dp-sgd",
            item_sampling,
            "_one_way",
            lambda was: bent(was, lambda q, m, t, z, d, a, way: (q, m, t, z, d, "zero-out", way)),
            id="group-dp-sgd, absences in place of replacements",
        )
    ]
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
                ALGORITHMS[name].verify(plan)
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
        ALGORITHMS[name].verify(plan)


@pytest.mark.parametrize("name", GAUSSIAN)
def test_noise_for_half_of_a_gaussians_delta_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole runs that are μ-GDP: found by `gdp`, accepted by `recount_once.gaussian`."""
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
    assert subsampling.wor_epsilon(p.cohort_size / (PROBLEM.users - 1), p.rounds, p.round_mu, 1e-6) > 2.5


@pytest.mark.parametrize("name", ["dp-sgd-wor", "dp-sgd-poisson"])
def test_a_share_of_the_noise_less_is_refused(name: str) -> None:
    plan = plan_of(name)
    p = plan.parameters
    louder = replace(plan, parameters=replace(p, round_mu=1.01 * p.round_mu, noise_scale=p.noise_scale / 1.01))
    with pytest.raises(VerificationError, match="the plan spends"):
        ALGORITHMS[name].verify(louder)
    assert math.isfinite(p.round_mu)
