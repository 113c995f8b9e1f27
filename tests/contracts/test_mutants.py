"""Every function that noise depends on, bent so that there is too little: no plan that it made passes `verify`.

Nor does `verify` ask it: whether a plan passes is the same while the function is bent as when it is not. What the run
itself asks, such as on which level a score stands, is bent in a sound plan, which is refused then.
"""

import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import numpy as np
import pytest

import quoron_privacy
from contracts.scenes import PRIVACY, PROBLEM, PROBLEMS, SMALL
from cover import by_default
from quoron_privacy.accounts import gdp, sensitivity_recount, subsampling
from quoron_privacy.errors import QuoronError, VerificationError
from quoron_privacy.gaussian import GaussianNoise, acute_sensitivity, mean_sensitivity
from quoron_privacy.histograms import min_cohort
from quoron_privacy.histograms.min_cohort import MinCohort
from quoron_privacy.means import free_counts, rotation
from quoron_privacy.means.free_counts import (
    LogLength,
    MomentMean,
    NormCountMean,
    PrefixNormCounts,
)
from quoron_privacy.means.private_range import bounded_range_mu
from quoron_privacy.prefix.noise import Factorisation, PrefixNoise
from quoron_privacy.robust import coordinate_median, outlier_mean, smooth_test, subsampled_test
from quoron_privacy.robust.coordinate_median import MedianParameters
from quoron_privacy.robust.filter import concentration, outlier_filter, thresholds
from quoron_privacy.robust.filter.outlier_filter import FilterParameters
from quoron_privacy.robust.outlier_mean import OutlierMean
from quoron_privacy.robust.smooth_test import SmoothTest
from quoron_server import algorithms
from quoron_server.algorithms import ALGORITHMS, search
from quoron_server.algorithms import min_cohort as min_cohort_server
from quoron_server.algorithms.localised import median
from quoron_server.algorithms.localised import phased as localised_plan
from quoron_server.algorithms.noisy import NoisySGDParameters
from quoron_server.algorithms.one_epoch import OneEpochParameters
from quoron_server.algorithms.tracking import TrackingParameters
from quoron_server.plan import Privacy, RunPlan
from quoron_server.schedule import CountLeakage, Rounds

for package in (quoron_privacy, algorithms):  # a module that is imported while a function is bent would keep it
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)

WITH_MIN_COHORT = replace(PRIVACY, min_cohort=0.5, min_cohort_epsilon=1.7)


def plan_of(name: str, privacy: Privacy) -> RunPlan | None:
    """A plan of a scene; None where the bent function leaves none."""
    info = ALGORITHMS[name.partition("/")[0]]
    try:
        with np.errstate(all="ignore"):
            options = info.options(**SMALL.get(name, {}))
            return info.plan(PROBLEMS.get(name, PROBLEM), privacy, options, "calibrated", 7)
    except QuoronError:
        return None


def passes(plan: RunPlan) -> bool:
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
    """A function in every module that has it by name, or (class, name of a method or property)."""
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
        yield
    forget()


def scaled(found: Any, factor: float) -> Any:
    """All numbers of a result; those that are whole stay whole and positive."""
    if type(found) in (tuple, list):
        return type(found)(scaled(each, factor) for each in found)
    if type(found) is int:
        return max(1, int(factor * found))
    floats = isinstance(found, float) or (isinstance(found, np.ndarray) and found.dtype.kind == "f")
    return factor * found if floats else found


def times(factor: float) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return lambda was: lambda *given, **named: scaled(was(*given, **named), factor)


def quieter(was: Callable[..., Any]) -> Callable[..., Any]:
    def made(*given: Any, **named: Any) -> Any:
        found = was(*given, **named)
        return replace(found, scale=0.9 * found.scale)

    return made


def levels_twice(was: Callable[..., Any]) -> Callable[..., Any]:
    """Half as high as one user moves the score."""

    def level(self: SmoothTest, score: int) -> int | None:
        found: int | None = was(self, score)
        return found and min(2 * found, len(self.table) - 1)

    return level


# One scene each: those of all algorithms are gone through below, which takes minutes.
HARD, MEDIAN = "filtered-sgd", "median-sgd"
# What finds noise -> (how it is bent, plans that it makes then, each of which must be refused)
PREFIX = ("accelerated-srgd", "dp-ftrl", "dp-ftrl/epochs", "tracking-srgd")
MUTANTS: dict[str, tuple[Any, Any, tuple[str, ...]]] = {
    "gdp.delta_for": (
        gdp.delta_for,
        times(0.5),
        ("one-pass-dp-sgd", "local-model", "filtered-sgd"),
    ),
    "outlier_filter.game_values": (outlier_filter.game_values, times(0.5), ("filtered-sgd",)),
    "gdp.mu_for": (gdp.mu_for, times(1.1), ("tracking-srgd", "whitened-tracking", "winsorised-erm", "phased-sgd")),
    "gdp.compose": (gdp.compose, times(0.9), ("winsorised-erm", "winsorised-erm/zero-out")),
    "subsampling.wor_round_mu": (subsampling.wor_round_mu, times(1.1), ("dp-sgd-wor",)),
    "GaussianNoise.for_mu": (
        (GaussianNoise, "for_mu"),
        quieter,
        ("recentred-sgd", "outlier-iterates", "dp-sgd-poisson", "local-model"),
    ),
    "GaussianNoise.effective_mu": (
        (GaussianNoise, "effective_mu"), times(0.9), ("phased-sgd", "group-phased-sgd")
    ),
    "PrefixNoise.for_mu": ((PrefixNoise, "for_mu"), quieter, PREFIX),
    "Factorisation.participation_norm": ((Factorisation, "participation_norm"), times(0.9), PREFIX),
    "mean_sensitivity": (mean_sensitivity, times(0.9), ("mean-sgd", "one-pass-dp-sgd")),
    "acute_sensitivity": (acute_sensitivity, times(0.9), ("whitened-tracking", "one-round-least-squares")),
    "bounded_range_mu": (bounded_range_mu, times(0.9), ("winsorised-erm", "mean-sgd")),
    "LogLength.for_mu": ((LogLength, "for_mu"), quieter, ("whitened-tracking", "tracking-srgd")),
    "MomentMean.for_mu": ((MomentMean, "for_mu"), quieter, ("whitened-tracking", "one-round-least-squares")),
    "NormCountMean.for_mu": (
        (NormCountMean, "for_mu"),
        quieter,
        ("whitened-tracking", "tracking-srgd", "one-pass-dp-sgd/adaptive"),
    ),
    "PrefixNormCounts.for_mu": ((PrefixNormCounts, "for_mu"), quieter, ("tracking-srgd",)),
    "padded": (rotation.padded, times(0.5), ("mean-sgd", "winsorised-erm")),
    "OutlierMean.rounding_slack": ((OutlierMean, "rounding_slack"), times(0.5), ("outlier-iterates", "outlier-gd")),
    "OutlierMean.shifts_at": ((OutlierMean, "shifts_at"), times(0.9), ("outlier-gd",)),
    "_shift": (outlier_mean._shift, times(0.9), ("accelerated-erm",)),
    "ladder_mus": (smooth_test.ladder_mus, times(0.9), ("accelerated-erm",)),
    "sampling_rate": (subsampled_test.sampling_rate, times(0.9), ("accelerated-erm",)),
    "search.left_of_delta": (
        search.left_of_delta,
        times(1.1),
        ("accelerated-erm", "outlier-iterates"),
    ),
    "score_error": (concentration.score_error, times(0.9), (MEDIAN,)),
    "median.rounding": (median.rounding, times(0.9), (MEDIAN,)),
    "release_scale": (localised_plan.release_scale, times(0.9), (HARD, MEDIAN)),
    "outlier_filter._shifts": (outlier_filter._shifts, times(0.9), (HARD,)),
    "outlier_filter._one_kept": (outlier_filter._one_kept, times(0.9), (HARD,)),
    "cutoff_law": (thresholds.cutoff_law, times(0.9), (HARD,)),
    "cutoff_curves": (outlier_filter.cutoff_curves, times(0.9), (HARD,)),
    "looked_up": (outlier_filter.looked_up, times(0.9), (HARD,)),
    "FilterParameters.survivors": ((FilterParameters, "survivors"), times(1.1), (HARD,)),
    "FilterParameters.cutoff_max": ((FilterParameters, "cutoff_max"), times(0.5), (HARD,)),
    "FilterParameters.noise_scale": ((FilterParameters, "noise_scale"), times(0.9), (HARD,)),
    "MedianParameters.noise_scale": ((MedianParameters, "noise_scale"), times(0.9), (MEDIAN,)),
    "median._usable_mu": (coordinate_median._usable_mu, times(1.1), (MEDIAN,)),
    "median._pair_delta": (coordinate_median._pair_delta, times(0.5), (MEDIAN,)),
}  # fmt: skip
# What a run asks while it tests, and the scenes whose sound plans are refused where that is bent.
ASKED: dict[str, tuple[Any, Any, tuple[str, ...]]] = {
    "score_step": (outlier_mean.score_step, times(0.5), ("outlier-iterates", "outlier-gd")),
    "SmoothTest.rung": ((SmoothTest, "level"), levels_twice, ("outlier-iterates",)),
    "FilterParameters.cutoff_decay": ((FilterParameters, "cutoff_decay"), times(2.0), (HARD,)),
}


# Each bends a step of one sum, whose end "gdp.delta_for", "FilterParameters.survivors" and "ladder_mus" bend, too.
INNER = ("looked_up", "cutoff_curves", "cutoff_law", "outlier_filter._one_kept", "outlier_filter.game_values")
INNER += ("search.left_of_delta", "FilterParameters.cutoff_max")
BENT = [(mutant, name) for mutant, each in MUTANTS.items() for name in each[2]]


def made_with(mutant: str, name: str) -> tuple[RunPlan | None, bool]:
    """A plan that the bent function made, if that is any, and whether it passes while that is bent."""
    of, wrong, _ = MUTANTS[mutant]
    with bent(of, wrong):
        plan = plan_of(name, PRIVACY)
        return plan, plan is not None and passes(plan)


@pytest.mark.parametrize(
    ("mutant", "name"), by_default(BENT, [(mutant, name) for mutant, name in BENT if mutant not in INNER])
)
def test_no_plan_of_too_little_noise_passes(mutant: str, name: str) -> None:
    plan, passed = made_with(mutant, name)
    assert plan is not None
    assert not passed
    assert not passes(plan)


@pytest.mark.parametrize(("asked", "name"), [(asked, name) for asked, each in ASKED.items() for name in each[2]])
def test_no_plan_passes_whose_run_tests_more_coarsely_than_it_says(asked: str, name: str) -> None:
    plan = plan_of(name, PRIVACY)
    assert plan is not None
    assert passes(plan)
    with bent(*ASKED[asked][:2]):
        assert not passes(plan)


@pytest.mark.parametrize(
    ("module", "was", "wrong"),
    [
        (free_counts, "1.4142135", "1.6"),
        (free_counts, "0.9486832", "1.0"),
        (free_counts, "length, within, here, near = sums.cells", "within, length, here, near = sums.cells"),
        (free_counts, "beyond, within, here = noised[-3:]", "within, beyond, here = noised[-3:]"),
        (free_counts, "HERE = 0.8660254", "HERE = 0.9"),
        (free_counts, "COLUMN_PRESENCE = 0.3162277", "COLUMN_PRESENCE = 0.5"),
        (free_counts, "sqrt(1.5 / 5), sqrt(1.5 / 5)", "sqrt(1.5 / 5), sqrt(2 / 5)"),
    ],
)
def test_rows_with_other_weights_or_read_in_another_order_cannot_be_imported(
    module: Any, was: str, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, changed = Path(module.__file__).read_text(encoding="utf-8"), ModuleType("changed")
    monkeypatch.setitem(sys.modules, "changed", changed)
    assert source.count(was) >= 1
    exec(compile(source, "sound", "exec"), changed.__dict__)
    with pytest.raises(VerificationError, match="Expected"):
        exec(compile(source.replace(was, wrong), "changed", "exec"), changed.__dict__)


def test_a_min_cohort_that_the_rest_does_not_pay_for_is_refused() -> None:
    with bent(min_cohort.rest, lambda was: lambda epsilon, delta, spent: (epsilon, delta)):
        plan = plan_of("dp-ftrl", WITH_MIN_COHORT)
        assert plan is not None
        assert not passes(plan)


@pytest.mark.parametrize(
    ("of", "name"),
    [
        (sensitivity_recount.choice, "winsorised-erm"),
        (sensitivity_recount.together, "winsorised-erm/zero-out"),
        (sensitivity_recount.mu, "group-phased-sgd"),
        (sensitivity_recount.rows, "one-pass-dp-sgd/adaptive"),
    ],
)
def test_a_second_account_that_finds_half_buys_no_finer_counts(of: Any, name: str) -> None:
    """What is left for a minimum cohort is found by the first account, too."""
    with bent(of, times(0.5)):
        plan = plan_of(name, WITH_MIN_COHORT)
    assert plan is not None
    assert passes(plan)


def test_a_column_norm_of_half_of_what_it_is_is_seen_in_more_rounds_than_can_be_played_from_each() -> None:
    """Sums of 2,100 rounds and three epochs."""
    problem = replace(PROBLEMS.get("dp-ftrl/epochs", PROBLEM), users=100_000)
    info = ALGORITHMS["dp-ftrl"]
    options = info.options(**SMALL["dp-ftrl/epochs"] | {"rounds": 2100})
    with bent((Factorisation, "participation_norm"), times(0.5)):
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


# What planning and verifying may share (docs/privacy/pairs.md): costs; what a problem says of itself; which
# factorisation is played; what clients compute of their own reports; arithmetic of μ.
TOGETHER = (
    *("cohorts", "interactions", "Schedule.total", "numbers_up", "rounds", "_separation", "_curvature"),
    *("Problem.features", "beta", "coordinate_beta", "coordinate_bound"),
    *("prefix.strategies", "bassily_sun.vector_scale"),
    *("gdp._mills", "gdp._step_until", "gdp.delta_for", "gdp.mu_for", "gdp.left", "roots.root"),
)


def called(act: Callable[[], Any]) -> set[tuple[str, str]]:
    """(module, qualified name) of every function of ours, private ones too, that is called meanwhile."""
    found = set()

    def seen(frame: FrameType, event: str, _: Any) -> None:
        module = frame.f_globals.get("__name__", "")
        if event == "call" and module.startswith(("quoron_privacy", "quoron_server")):
            found.add((module, frame.f_code.co_qualname))

    forget()
    sys.setprofile(seen)
    try:
        act()
    finally:
        sys.setprofile(None)
    return found


def owner_of(module: str, name: str) -> Any:
    """What `bent` takes; None for what has no name of its own and for checks."""
    first, _, rest = name.partition(".")
    of = getattr(sys.modules[module], first, None)
    told = f"{module}.{name}"
    if "<" in name or "__" in name or module == "quoron_privacy.errors" or any(each in told for each in TOGETHER):
        return None
    return of if not rest else (of, rest) if rest in vars(of or object) else None


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SMALL if name != "sgd"])
def test_no_function_that_planning_and_verifying_share_hides_that_it_is_wrong(name: str) -> None:
    """Each that both call, halved and doubled: a plan that passes meanwhile passes afterwards."""
    plan = plan_of(name, PRIVACY)
    assert plan is not None
    for shared in sorted(called(lambda: plan_of(name, PRIVACY)) & called(lambda: passes(plan))):
        of = owner_of(*shared)
        for factor in (0.5, 0.9, 1.1, 2.0) if of is not None else ():
            with bent(of, times(factor)):
                made = plan_of(name, PRIVACY)
                passed = made is not None and passes(made)
            assert not passed or passes(made), (shared, factor)


@contextmanager
def spare(name: str, value: float) -> Iterator[None]:
    """One of the shares that whoever is away leaves to a count, in every module that has it."""
    with pytest.MonkeyPatch.context() as patch:
        forget()
        for each in [*sys.modules.values()]:
            if getattr(each, "__name__", "").startswith(("quoron_privacy", "quoron_server")) and hasattr(each, name):
                patch.setattr(each, name, value)
        yield
    forget()


def counting(wrong: Callable[[CountLeakage], CountLeakage]) -> Callable[..., Callable[..., Iterator[Rounds]]]:
    """Rounds as declared, but for what is claimed of who answers."""
    return lambda was: lambda *given: (replace(each, leaks=wrong(each.leaks)) for each in was(*given))


def by_columns(was: Callable[..., Any]) -> Callable[..., Iterator[Rounds]]:
    """A column of C for every count of a user's, where that is paid once for all of them."""
    return lambda p, problem: counting(lambda one: replace(one, mu=p.noise.column_norm * one.mu))(was)(p, problem)


# What finds a count, bent, and the scenes in which nothing pays for what it claims then. The largest shares are √¾, √½.
FINE: dict[str, tuple[Any, tuple[str, ...]]] = {
    "SPARE": (
        lambda: spare("SPARE", 0.8661),
        (
            "one-pass-dp-sgd",
            "dp-sgd-wor",
            "mean-sgd",
            "accelerated-srgd",
            "accelerated-sgd",
            "dp-ftrl",
            "dp-ftrl/epochs",
            "phased-sgd",
            "whitened-tracking",
        ),
    ),
    "MinCohort.deviation": (
        lambda: bent((MinCohort, "deviation"), times(0.5)),
        ("one-pass-dp-sgd", "dp-sgd-poisson", "winsorised-erm", "one-round-least-squares", "one-pass-dp-sgd/adaptive"),
    ),
    "minimum cohort._room": (
        lambda: bent(min_cohort_server._room, times(1.05)),
        ("winsorised-erm", "one-round-least-squares", "dp-sgd-poisson"),
    ),
    "count_leakage, told": (
        lambda: bent((TrackingParameters, "stretches"), counting(lambda one: replace(one, mu=1.01 * one.mu))),
        ("tracking-srgd",),
    ),
    "participation, told by nothing": (
        lambda: bent((NoisySGDParameters, "stretches"), counting(lambda one: replace(one, released=True))),
        ("one-pass-dp-sgd", "dp-sgd-wor"),
    ),
    "participation, epochs": (
        lambda: bent((OneEpochParameters, "stretches"), by_columns),
        ("dp-ftrl/epochs", "dp-ftrl/banded"),
    ),
}


@pytest.mark.parametrize(("mutant", "name"), [(mutant, name) for mutant, each in FINE.items() for name in each[1]])
def test_no_count_that_is_finer_than_what_pays_for_it_passes(mutant: str, name: str) -> None:
    honest = plan_of(name, WITH_MIN_COHORT)
    assert honest is not None
    assert passes(honest)
    with FINE[mutant][0]():
        plan = plan_of(name, WITH_MIN_COHORT)
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
    plan = plan_of(name, WITH_MIN_COHORT)
    assert plan is not None
    declared = {each: factor * getattr(plan.parameters, each) for each in numbers}
    assert not passes(replace(plan, parameters=replace(plan.parameters, **declared)))


@pytest.mark.parametrize("numbers", [("mu",), ()])
def test_what_a_phase_declares_buys_no_finer_count(numbers: tuple[str, ...]) -> None:
    plan = plan_of("phased-sgd", WITH_MIN_COHORT)
    assert plan is not None
    p: Any = plan.parameters
    phases = tuple(replace(each, sensitivity=3 * each.sensitivity) for each in p.phases)
    declared = {each: 3 * getattr(p, each) for each in numbers}
    assert not passes(replace(plan, parameters=replace(p, phases=phases, **declared)))
