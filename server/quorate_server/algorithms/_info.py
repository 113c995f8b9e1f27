"""What the registry says about one algorithm."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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
