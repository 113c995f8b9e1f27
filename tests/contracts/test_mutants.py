"""Every public function that finds noise, bent so that there is too little: no plan that it made passes `verify`.

Nor does `verify` ask it: whether a plan passes is the same while the function is bent as when it is not.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from contracts.scenes import PRIVACY, PROBLEM, PROBLEMS, SMALL
from quoron_privacy.accounts import gdp, item_sampling, subsampling
from quoron_privacy.counts import quorum
from quoron_privacy.errors import QuoronError, VerificationError
from quoron_privacy.gaussian import GaussianNoise, acute_sensitivity, mean_sensitivity
from quoron_privacy.means.free_presence import LogLength, MomentMean
from quoron_privacy.means.moment import SecondMomentNoise, moment_sensitivity
from quoron_privacy.means.norm_counts import NormCountMean
from quoron_privacy.means.prefix_norm_counts import PrefixNormCounts
from quoron_privacy.means.private_range import bounded_range_mu
from quoron_privacy.prefix.factorisations import Factorisation
from quoron_privacy.prefix.noise import PrefixNoise
from quoron_privacy.robust.filter import charging
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.noisy.draws import DRAWS
from quoron_server.plan import Plan, Privacy

WITH_QUORUM = replace(PRIVACY, quorum=0.5, quorum_epsilon=1.7)


def plan_of(name: str, privacy: Privacy) -> Plan | None:
    """A plan of a scene; None where the bent function leaves none."""
    info = ALGORITHMS[name.partition("/")[0]]
    try:
        with np.errstate(all="ignore"):
            options = info.options(**SMALL.get(name, {}))
            return info.plan(PROBLEMS.get(name, PROBLEM), privacy, options, "calibrated", 7)
    except QuoronError:
        return None


def passes(plan: Plan) -> bool:
    try:
        ALGORITHMS[plan.algorithm].verify(plan)
    except VerificationError:
        return False
    return True


def forget() -> None:
    """Nothing of ours remembers what it found."""
    for name, module in list(sys.modules.items()):
        if name.startswith(("quoron_privacy", "quoron_server")):
            for each in list(vars(module).values()):
                if hasattr(each, "cache_clear"):
                    each.cache_clear()


@contextmanager
def bent(of: Any, wrong: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """A function in every module that has it by name and in `DRAWS`, or (class, name of a method or property)."""
    with pytest.MonkeyPatch.context() as patch:
        forget()
        if isinstance(of, tuple):
            owner, name = of
            was = vars(owner)[name]
            if isinstance(was, classmethod):
                changed: Any = classmethod(wrong(was.__func__))
            elif isinstance(was, property):
                assert was.fget is not None
                changed = property(wrong(was.fget))
            else:
                changed = wrong(was)
            patch.setattr(owner, name, changed)
        else:
            changed = wrong(of)
            changed.cache_clear = lambda: None
            for each in [*sys.modules.values()]:
                if getattr(each, "__name__", "").startswith(("quoron_privacy", "quoron_server")):
                    for name, value in list(vars(each).items()):
                        if value is of:
                            patch.setattr(each, name, changed)
            for kind, draws in list(DRAWS.items()):  # a table of functions
                if draws.round_mu is of:
                    patch.setitem(DRAWS, kind, replace(draws, round_mu=changed))
        yield
    forget()


def times(factor: float) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return lambda was: lambda *given, **named: factor * was(*given, **named)


def quieter(was: Callable[..., Any]) -> Callable[..., Any]:
    def made(*given: Any, **named: Any) -> Any:
        found = was(*given, **named)
        return replace(found, scale=0.9 * found.scale)

    return made


# What finds noise -> (how it is bent, plans that it makes then, each of which must be refused)
PREFIX = ("accelerated-srgd", "dp-ftrl", "dp-ftrl/epochs", "dp-ftrl/adaptive", "tracking-srgd")
MUTANTS: dict[str, tuple[Any, Any, tuple[str, ...]]] = {
    "gdp.delta_for": (
        gdp.delta_for,
        times(0.5),
        ("one-pass-dp-sgd", "local-model", "soft-filtered-sgd/linf", "filtered-sgd/linf"),
    ),
    "charging.game_values": (charging.game_values, times(0.5), ("filtered-sgd/linf",)),
    "gdp.mu_for": (gdp.mu_for, times(1.1), ("tracking-srgd", "whitened-tracking", "winsorised-erm", "phased-sgd")),
    "gdp.compose": (gdp.compose, times(0.9), ("winsorised-erm", "winsorised-erm/zero-out")),
    "subsampling.wor_round_mu": (subsampling.wor_round_mu, times(1.1), ("accelerated-erm/clip", "dp-sgd-wor")),
    "item_sampling.multiplier": (item_sampling.multiplier, times(0.9), ("group-dp-sgd", "group-dp-sgd-zero-out")),
    "GaussianNoise.for_mu": (
        (GaussianNoise, "for_mu"),
        quieter,
        ("mean-sgd/clip", "outlier-iterates", "accelerated-erm/clip", "phased-erm", "dp-sgd-poisson", "local-model"),
    ),
    "GaussianNoise.effective_mu": (
        (GaussianNoise, "effective_mu"), times(0.9), ("phased-sgd", "group-phased-sgd", "phased-erm/agd")
    ),
    "PrefixNoise.for_mu": ((PrefixNoise, "for_mu"), quieter, PREFIX),
    "Factorisation.reach": ((Factorisation, "reach"), times(0.9), PREFIX),
    "mean_sensitivity": (mean_sensitivity, times(0.9), ("mean-sgd/range", "one-pass-dp-sgd", "accelerated-erm/clip")),
    "acute_sensitivity": (acute_sensitivity, times(0.9), ("whitened-tracking",)),
    "moment_sensitivity": (moment_sensitivity, times(0.9), ("tracking-srgd", "one-round-least-squares")),
    "bounded_range_mu": (bounded_range_mu, times(0.9), ("winsorised-erm", "mean-sgd/range")),
    "SecondMomentNoise.for_mu": (
        (SecondMomentNoise, "for_mu"), quieter, ("tracking-srgd", "one-round-least-squares")
    ),
    "LogLength.for_mu": ((LogLength, "for_mu"), quieter, ("whitened-tracking",)),
    "MomentMean.for_mu": ((MomentMean, "for_mu"), quieter, ("whitened-tracking",)),
    "NormCountMean.for_mu": (
        (NormCountMean, "for_mu"),
        quieter,
        ("whitened-tracking", "tracking-srgd/independent", "one-pass-dp-sgd/adaptive"),
    ),
    "PrefixNormCounts.for_mu": ((PrefixNormCounts, "for_mu"), quieter, ("tracking-srgd",)),
}  # fmt: skip


def made_with(mutant: str, name: str) -> tuple[Plan | None, bool]:
    """A plan that the bent function made, if that is any, and whether it passes while that is bent."""
    of, wrong, _ = MUTANTS[mutant]
    with bent(of, wrong):
        plan = plan_of(name, PRIVACY)
        return plan, plan is not None and passes(plan)


@pytest.mark.parametrize(("mutant", "name"), [(mutant, name) for mutant, each in MUTANTS.items() for name in each[2]])
def test_no_plan_of_too_little_noise_passes(mutant: str, name: str) -> None:
    plan, passed = made_with(mutant, name)
    assert plan is not None
    assert not passed
    assert not passes(plan)


def test_a_quorum_that_the_rest_does_not_pay_for_is_refused() -> None:
    with bent(quorum.rest, lambda was: lambda epsilon, delta, spent: (epsilon, delta)):
        plan = plan_of("dp-ftrl", WITH_QUORUM)
        assert plan is not None
        assert not passes(plan)


def test_a_column_norm_of_half_of_what_it_is_is_seen_in_more_rounds_than_can_be_played_from_each() -> None:
    """Where an adaptive clip is told beside the sums of 2,100 rounds and three epochs."""
    problem = replace(PROBLEMS.get("dp-ftrl/adaptive", PROBLEM), users=100_000)
    info = ALGORITHMS["dp-ftrl"]
    options = info.options(**SMALL["dp-ftrl/adaptive"] | {"rounds": 2100, "epochs": 3})
    with bent((Factorisation, "reach"), times(0.5)):
        plan = info.plan(problem, PRIVACY, options, "calibrated", 7)
        assert not passes(plan)
    assert not passes(plan)
    assert passes(info.plan(problem, PRIVACY, options, "calibrated", 7))


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS)
def test_whether_a_plan_passes_does_not_depend_on_what_found_its_noise(mutant: str) -> None:
    """Of every scene of every algorithm; and whatever has less noise than an honest plan, and nothing else, fails."""
    for name in (name for name in SMALL if name != "sgd"):
        plan, passed = made_with(mutant, name)
        if plan is not None:
            assert passes(plan) == passed, name
