"""Choosing and checking a plan: every algorithm is asked, the best feasible one is taken, the others say why not."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from pydantic import TypeAdapter, ValidationError

from quorate._explain import unknown
from quorate.config import AlgorithmSection, Config
from quorate_protos.errors import ConfigError, Infeasible, QuorateError
from quorate_server.algorithms import ALGORITHMS, AlgorithmInfo
from quorate_server.budget import Budget
from quorate_server.plan import Plan, Privacy
from quorate_server.problem import Problem

Registry = Mapping[str, AlgorithmInfo]
BASELINE = "phased-sgd"  # the naive alternative of the papers


@dataclass(frozen=True, slots=True)
class Candidate:
    """What one algorithm would do for this problem: a plan, or why there is none."""

    algorithm: str
    plan: Plan | None
    reason: str = ""  # why it is infeasible

    @property
    def predicted(self) -> float | None:
        """Predicted excess risk."""
        return self.plan.predicted_excess_risk if self.plan else None


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan of a run, and what every other private algorithm would have done."""

    plan: Plan
    candidates: tuple[Candidate, ...]

    @property
    def baseline(self) -> Candidate | None:
        """The naive baseline, phased SGD."""
        return next((each for each in self.candidates if each.algorithm == BASELINE), None)

    def as_json(self) -> dict[str, Any]:
        """The plan, and one entry for each algorithm considered."""
        considered = [
            {"algorithm": each.algorithm, "predicted_excess_risk": each.predicted, "infeasible": each.reason or None}
            for each in self.candidates
        ]
        return self.plan.as_json() | {"considered": considered}


def choose(config: Config, problem: Problem, *, compare: bool = False, algorithms: Registry = ALGORITHMS) -> Planned:
    """The plan of `config.algorithm`; with name `auto`, the feasible one of least predicted excess risk.

    The others are planned for `auto`, with `compare`, and when the named one is infeasible.
    Raises ConfigError for an unknown algorithm or option, Infeasible naming the condition, what would satisfy it and
    what is feasible instead, and BudgetExceeded when the plan could exceed the budget.
    """
    name = config.algorithm.name
    if name != "auto" and name not in algorithms:
        raise ConfigError(
            f"Expected algorithm.name to be auto or one of {', '.join(algorithms)}, got algorithm.name={name!r}."
        )
    planned = (
        _automatic(config, problem, algorithms) if name == "auto" else _named(config, problem, compare, algorithms)
    )
    Budget(**config.budget.model_dump()).check_plan(planned.plan)
    return planned


def options(info: AlgorithmInfo, given: Mapping[str, Any]) -> Any:
    """The algorithm's options dataclass; ConfigError for an unknown key or a wrong type, naming key, value and fix."""
    known = {item.name for item in fields(info.options)}
    for key in given:
        if key not in known:
            raise ConfigError(unknown(("algorithm", "options", key), known))
    try:
        return TypeAdapter(info.options).validate_python(dict(given))
    except ValidationError as error:
        wrong = error.errors()[0]
        key = ".".join(("algorithm", "options", *map(str, wrong["loc"])))
        raise ConfigError(f"Expected {key} to be valid ({wrong['msg']}), got {key}={wrong['input']!r}.") from None


def _automatic(config: Config, problem: Problem, algorithms: Registry) -> Planned:
    if config.algorithm.options:
        raise ConfigError("Expected no algorithm.options with algorithm.name='auto', got some. Name the algorithm.")
    candidates = _candidates(config, problem, algorithms)
    best = min((each for each in candidates if each.plan), key=_order, default=None)
    if best is None or best.plan is None:
        reasons = " ".join(each.reason for each in candidates)
        raise Infeasible("every algorithm", reasons, "more users or a larger epsilon")
    return Planned(best.plan, candidates)


def _named(config: Config, problem: Problem, compare: bool, algorithms: Registry) -> Planned:
    name = config.algorithm.name
    others = {other: info for other, info in algorithms.items() if other != name}
    try:
        plan = _plan(algorithms[name], config, problem, config.algorithm.options)
    except Infeasible as error:
        feasible = tuple(each.algorithm for each in _candidates(config, problem, others) if each.plan)
        raise Infeasible(error.algorithm, error.condition, error.needs, feasible) from None
    candidates = (Candidate(name, plan), *(_candidates(config, problem, others) if compare else ()))
    return Planned(plan, candidates)


def _candidates(config: Config, problem: Problem, algorithms: Registry) -> tuple[Candidate, ...]:
    return tuple(_candidate(info, config, problem) for info in algorithms.values() if info.exposure != "none")


def _candidate(info: AlgorithmInfo, config: Config, problem: Problem) -> Candidate:
    if config.privacy.adjacency not in info.adjacency:
        offered = ", ".join(info.adjacency)
        return Candidate(
            info.name, None, f"{info.name} promises {offered}, and privacy.adjacency={config.privacy.adjacency!r}."
        )
    try:
        return Candidate(info.name, _plan(info, config, problem, {}))
    except QuorateError as error:  # also a loss or domain that the algorithm is not made for
        return Candidate(info.name, None, str(error))


def _plan(info: AlgorithmInfo, config: Config, problem: Problem, given: Mapping[str, Any]) -> Plan:
    section: AlgorithmSection = config.algorithm
    if section.constants not in info.constants:
        raise ConfigError(
            f"Expected algorithm.constants to be one of {', '.join(info.constants)} for {info.name}, "
            f"got algorithm.constants={section.constants!r}."
        )
    privacy = Privacy(config.privacy.epsilon, config.privacy.delta)
    return info.plan(problem, privacy, options(info, given), section.constants, config.run.seed)


def _order(candidate: Candidate) -> float:
    return float("inf") if candidate.predicted is None else candidate.predicted
