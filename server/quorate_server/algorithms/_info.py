"""What the registry says about one algorithm."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from quorate_protos.errors import VerificationError
from quorate_server.algorithm import Algorithm
from quorate_server.plan import Adjacency, Constants, Exposure, Plan, Privacy
from quorate_server.problem import Problem

Planner = Callable[[Problem, Privacy, Any, Constants, int], Plan]


@dataclass(frozen=True, slots=True)
class AlgorithmInfo:
    """One line of `quorate algorithms`, and the functions behind it."""

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
    exposures: tuple[Exposure, ...] = ()  # what plans may promise, where `verify` tells them apart; else `exposure`


def guarded(info: AlgorithmInfo) -> AlgorithmInfo:
    """`info` whose `verify` and `make` first check that the plan promises what this algorithm's theorem is about."""

    def verify(plan: Plan) -> None:
        _check_promise(info, plan)
        info.verify(plan)

    def make(plan: Plan) -> Algorithm[Any]:
        _check_promise(info, plan)
        return info.make(plan)

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
    if plan.cost.rounds < 1:
        raise VerificationError(f"Expected at least one round, got {plan.cost}.")
