"""What the registry says about one algorithm."""

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from math import isfinite
from typing import Any, Literal, get_type_hints

from quoron_protos.errors import VerificationError
from quoron_server.algorithm import Algorithm
from quoron_server.plan import Adjacency, Constants, Exposure, Plan, Privacy
from quoron_server.problem import Problem

Planner = Callable[[Problem, Privacy, Any, Constants, int], Plan]


def _one_vector(plan: Plan) -> int:
    return plan.problem.dimension


@dataclass(frozen=True, slots=True)
class AlgorithmInfo:
    """One line of `quoron algorithms`, and the functions behind it."""

    name: str
    summary: str
    paper: str
    algorithm_numbers: str
    exposure: Exposure
    adjacency: tuple[Adjacency, ...]  # what calibrated plans promise
    constants: tuple[Constants, ...]
    theorem: str  # a file under docs/privacy/
    options: type  # frozen dataclass of planning options, all with defaults
    plan: Planner  # (problem, privacy, options, constants, seed) -> Plan; raises Infeasible
    verify: Callable[[Plan], None]  # independent re-check of the theorem; raises VerificationError
    make: Callable[[Plan], Algorithm[Any]]  # verifies, then builds
    passes: Literal["one", "many"] = "one"  # how often a user may be asked
    removes_outliers: bool = False
    answer: Callable[[Plan], int] = _one_vector  # numbers in the largest answer of any task
    exposures: tuple[Exposure, ...] = ()  # what plans may promise, where `verify` tells them apart; else `exposure`


def guarded(info: AlgorithmInfo) -> AlgorithmInfo:
    """`info` whose `verify` and `make` first check that the plan promises what this algorithm's theorem is about."""

    def verify(plan: Plan) -> None:
        _check_promise(info, plan)
        info.verify(plan)
        _check_rounds(plan)

    def make(plan: Plan) -> Algorithm[Any]:
        _check_promise(info, plan)
        made = info.make(plan)
        _check_rounds(plan)
        return made

    return replace(info, verify=verify, make=make)


def _check_promise(info: AlgorithmInfo, plan: Plan) -> None:
    promise = plan.guarantee
    offered = info.adjacency if promise.proved else ("replace-one", "zero-out")
    for name, expected, got in (
        ("algorithm", (info.name,), plan.algorithm),
        ("exposure", info.exposures or (info.exposure,), promise.exposure),
        ("adjacency", offered, promise.adjacency),
    ):
        if got not in expected:
            raise VerificationError(f"Expected {name} {' or '.join(expected)} in a plan of {info.name}, got {got!r}.")
    _check_numbers(plan.cost, "cost")
    if not (plan.cost.rounds >= 1 and plan.cost.messages >= 1):
        raise VerificationError(f"Expected at least one round and one message, got {plan.cost}.")
    if promise.exposure == "none":
        return  # without privacy an infinite clip is meant
    _check_numbers(plan.parameters, "parameters")


def _check_rounds(plan: Plan) -> None:
    """Budgets and clients are told the cost's rounds; they are those of the parameters, where these say."""
    rounds = getattr(plan.parameters, "rounds", plan.cost.rounds)
    if rounds != plan.cost.rounds:
        raise VerificationError(f"Expected cost.rounds={rounds}, as the parameters say, got {plan.cost.rounds}.")


def _check_numbers(value: Any, where: str) -> None:
    """Every number finite and every count an integer: comparisons with NaN are False and would check nothing."""
    if is_dataclass(value):
        kinds = get_type_hints(type(value))
        for item in fields(value):
            held, place = getattr(value, item.name), f"{where}.{item.name}"
            if kinds[item.name] is int and (not isinstance(held, int) or isinstance(held, bool)):
                raise VerificationError(f"Expected {place} to be an integer, got {held!r}.")
            _check_numbers(held, place)
    elif isinstance(value, tuple | list):
        for index, held in enumerate(value):
            _check_numbers(held, f"{where}[{index}]")
    elif isinstance(value, float) and not isfinite(value):
        raise VerificationError(f"Expected {where} to be finite, got {value}.")
