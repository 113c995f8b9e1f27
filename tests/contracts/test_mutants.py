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
from quoron_privacy.counts.quorum import Quorum
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
from quoron_server.algorithms import quorum as quorum_server
from quoron_server.algorithms.noisy.draws import DRAWS
from quoron_server.algorithms.noisy.method import NoisySGDParameters
from quoron_server.algorithms.one_epoch.method import OneEpochParameters
from quoron_server.algorithms.tracking.method import TrackingParameters
from quoron_server.parameters import Attendance
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
    "acute_sensitivity": (acute_sensitivity, times(0.9), ("whitened-tracking", "tracking-srgd")),
    "moment_sensitivity": (moment_sensitivity, times(0.9), ("one-round-least-squares",)),
    "bounded_range_mu": (bounded_range_mu, times(0.9), ("winsorised-erm", "mean-sgd/range")),
    "SecondMomentNoise.for_mu": ((SecondMomentNoise, "for_mu"), quieter, ("one-round-least-squares",)),
    "LogLength.for_mu": ((LogLength, "for_mu"), quieter, ("whitened-tracking", "tracking-srgd")),
    "MomentMean.for_mu": ((MomentMean, "for_mu"), quieter, ("whitened-tracking", "tracking-srgd")),
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


@contextmanager
def spare(name: str, value: float) -> Iterator[None]:
    """One of the shares that whoever is away leaves to a count, in every module that has it."""
    with pytest.MonkeyPatch.context() as patch:
        for each in [*sys.modules.values()]:
            if getattr(each, "__name__", "").startswith(("quoron_privacy", "quoron_server")) and hasattr(each, name):
                patch.setattr(each, name, value)
        yield


def louder(was: Callable[..., tuple[Attendance, ...]]) -> Callable[..., tuple[Attendance, ...]]:
    return lambda *given: tuple(replace(each, mu=1.01 * each.mu) for each in was(*given))


def all_told(was: Callable[..., tuple[Attendance, ...]]) -> Callable[..., tuple[Attendance, ...]]:
    return lambda *given: tuple(replace(each, told=True) for each in was(*given))


def everybody_counts(was: Callable[..., tuple[Attendance, ...]]) -> Callable[..., tuple[Attendance, ...]]:
    return lambda *given: tuple(replace(each, most=None) for each in was(*given))


def by_columns(was: Callable[..., tuple[Attendance, ...]]) -> Callable[..., tuple[Attendance, ...]]:
    """A column of C for every count of a user's, where that is paid once for all of them."""
    return lambda p, problem: tuple(replace(each, mu=p.noise.column_norm * each.mu) for each in was(p, problem))


# What finds a count, bent, and the scenes in which nothing pays for what it claims then. The largest shares are √¾, √½.
FINE: dict[str, tuple[Any, tuple[str, ...]]] = {
    "SPARE": (
        lambda: spare("SPARE", 0.8661),
        (
            "one-pass-dp-sgd",
            "dp-sgd-wor",
            "mean-sgd",
            "mean-sgd/range",
            "accelerated-srgd",
            "accelerated-sgd",
            "dp-ftrl",
            "dp-ftrl/epochs",
            "phased-sgd",
            "accelerated-erm/clip",
            "whitened-tracking",
        ),
    ),
    "Quorum.deviation": (
        lambda: bent((Quorum, "deviation"), times(0.5)),
        ("one-pass-dp-sgd", "dp-sgd-poisson", "winsorised-erm", "one-round-least-squares", "dp-ftrl/adaptive"),
    ),
    "quorum._room": (
        lambda: bent(quorum_server._room, times(1.05)),
        ("winsorised-erm", "one-round-least-squares", "dp-sgd-poisson"),
    ),
    "attendance, told": (lambda: bent((TrackingParameters, "attendance"), louder), ("tracking-srgd",)),
    "attendance, told by nothing": (
        lambda: bent((NoisySGDParameters, "attendance"), all_told),
        ("one-pass-dp-sgd", "dp-sgd-wor"),
    ),
    "attendance, epochs": (
        lambda: bent((OneEpochParameters, "attendance"), by_columns),
        ("dp-ftrl/epochs", "dp-ftrl/banded"),
    ),
    "attendance, reserves": (
        lambda: bent((OneEpochParameters, "attendance"), everybody_counts),
        ("dp-ftrl", "dp-ftrl/epochs"),
    ),
}


@pytest.mark.parametrize(("mutant", "name"), [(mutant, name) for mutant, each in FINE.items() for name in each[1]])
def test_no_count_that_is_finer_than_what_pays_for_it_passes(mutant: str, name: str) -> None:
    honest = plan_of(name, WITH_QUORUM)
    assert honest is not None
    assert passes(honest)
    with FINE[mutant][0]():
        plan = plan_of(name, WITH_QUORUM)
        assert plan is not None
        assert not passes(plan)


DECLARED = (  # numbers that a plan says of itself, together, by which a count would be finer
    ("one-pass-dp-sgd", ("sensitivity", "round_mu")),
    ("one-pass-dp-sgd", ("sensitivity", "noise_scale")),
    ("dp-sgd-wor", ("sensitivity", "round_mu")),
    ("dp-sgd-wor", ("sensitivity", "noise_scale")),
    ("accelerated-srgd", ("sensitivity", "noise_scale")),
    ("dp-ftrl", ("sensitivity", "noise_scale")),
    ("dp-ftrl/banded", ("sensitivity", "mu")),
    ("dp-ftrl/epochs", ("sensitivity", "noise_scale")),
)


@pytest.mark.parametrize(("name", "numbers"), DECLARED)
@pytest.mark.parametrize("factor", [1.001, 3.0])
def test_what_a_plan_declares_of_its_rounds_buys_no_finer_count(
    name: str, numbers: tuple[str, ...], factor: float
) -> None:
    plan = plan_of(name, WITH_QUORUM)
    assert plan is not None
    declared = {each: factor * getattr(plan.parameters, each) for each in numbers}
    assert not passes(replace(plan, parameters=replace(plan.parameters, **declared)))


@pytest.mark.parametrize("numbers", [("mu",), ()])
def test_what_a_phase_declares_buys_no_finer_count(numbers: tuple[str, ...]) -> None:
    plan = plan_of("phased-sgd", WITH_QUORUM)
    assert plan is not None
    p: Any = plan.parameters
    phases = tuple(replace(each, sensitivity=3 * each.sensitivity) for each in p.phases)
    declared = {each: 3 * getattr(p, each) for each in numbers}
    assert not passes(replace(plan, parameters=replace(p, phases=phases, **declared)))
