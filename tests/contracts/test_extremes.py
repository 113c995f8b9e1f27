"""Whatever numbers it is given, planning answers with a plan or with an error that names what is wrong."""

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields

import pytest

from federation.crowd import FEW, specification
from problems import changed
from quoron_privacy.errors import ConfigError, QuoronError
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.options import options_of
from quoron_server.problem import Beliefs, Problem
from quoron_server.specification import make_plan

NUMBERS = (-1, 0, 10**9, 10**30, 10**400, 1e-300, 1e12, 1e300, math.inf, math.nan)
LEFT_OUT = ("domain", "wide", "convex", "beliefs", "curvature", "sigmoid", "intercept", "groups")
CONSTANTS = [each.name for kind in (Problem, Beliefs) for each in fields(kind) if each.name not in LEFT_OUT]
NAMES = sorted(set(FEW) & set(ALGORITHMS))


def extreme_problems(name: str) -> Iterator[Problem]:
    """Every constant at every extreme that a problem may have at all."""
    base = specification(name).problem
    for constant in CONSTANTS:
        for number in (*NUMBERS, 1e30, 1e-30, 3):
            with suppress(ConfigError):
                yield changed(base, **{constant: number})


@pytest.mark.parametrize("constant", [name for name in CONSTANTS if name != "hostile_share"])
def test_constants_beyond_every_unit_are_refused_by_name(constant: str) -> None:
    problem = specification("dp-sgd-wor").problem
    for number in (-1, 10**400, 1e300, math.inf, math.nan):
        with pytest.raises(ConfigError, match=constant):
            changed(problem, **{constant: number})


def test_groups_of_another_number_of_features_are_refused() -> None:
    problem = specification("dp-sgd-wor").problem
    assert changed(problem, groups=(0,) * problem.features).beliefs.groups
    with pytest.raises(ConfigError, match=f"Expected groups of {problem.features} features"):
        changed(problem, groups=(0,) * (problem.features + 1))


@pytest.mark.parametrize("name", NAMES)
def test_options_out_of_range_are_refused_by_name(name: str) -> None:
    info = ALGORITHMS[name]
    for option in fields(info.options):
        for number in (-1, 10**30, 10**400, 1e-300, 1e300, math.inf, math.nan):
            with pytest.raises(ConfigError, match=rf"options\.{option.name}"):
                options_of(info, {option.name: number})


@pytest.mark.parametrize("name", ["one-pass-dp-sgd", "accelerated-srgd", "dp-sgd-wor"])
def test_an_extreme_problem_has_a_plan_or_an_error_of_ours(name: str) -> None:
    check(name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name for name in NAMES if name not in ("one-pass-dp-sgd", "accelerated-srgd", "dp-sgd-wor")]
)
def test_an_extreme_problem_has_a_plan_or_an_error_of_ours_with_every_algorithm(name: str) -> None:
    check(name)


def check(name: str) -> None:
    for problem in extreme_problems(name):
        with suppress(QuoronError):
            make_plan(specification(name, problem=problem))
