"""What every plan is refused for, and what every option: one number, word or entry at a time."""

import math
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from contracts.scenes import PRIVACY, PROBLEM, PROBLEMS, make_plan
from quoron_privacy.errors import QuoronError
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.options import options_of
from quoron_server.plan import RunPlan

# What is verified at length, every time anew; `test_accelerated_erm_plans.py` has its changes.
SLOW = ("accelerated-erm",)
NEAR = 1e-3
WRONG = (math.nan, -1, 0, 1e300, "nonsense")


def verdicts(_: Path, name: str) -> Iterator[tuple[str, Any]]:
    """The changes of a variant's plan that `verify` lets pass: all others are refused."""
    plan = make_plan(name)
    verify, accepted, refused = ALGORITHMS[plan.algorithm].verify, [], 0
    for what in ("parameters", "guarantee", "cost", "problem"):
        for where, changed in changes(getattr(plan, what)):
            other = _made(plan, what, changed)
            if other is not None and passes(verify, other):
                accepted.append(f"{what}.{where}")
            else:
                refused += 1
    yield name, {"refused": refused, "accepted": accepted}


def options(_: Path, name: str) -> Iterator[tuple[str, Any]]:
    """What is said of every option of an algorithm: no number, below nothing, nothing, beyond everything, no word."""
    info, problem = ALGORITHMS[name], PROBLEMS.get(name, PROBLEM)
    for item in fields(info.options):
        for wrong in WRONG:
            title = f"{name}: {item.name}={wrong}"
            try:
                info.plan(problem, PRIVACY, options_of(info, {item.name: wrong}))
            except QuoronError as error:
                yield title, f"{type(error).__name__}: {error}"
            else:
                yield title, "planned"


def changes(value: Any, kind: Any = None) -> Iterator[tuple[str, Any]]:
    """`value` with one thing in it changed, and what: of every tuple the first and the last entry alone."""
    if is_dataclass(value) and not isinstance(value, type):
        hints = get_type_hints(type(value)) if _resolvable(type(value)) else {}
        for item in fields(value):
            for where, changed in changes(getattr(value, item.name), hints.get(item.name)):
                try:
                    yield f"{item.name}{where}", replace(value, **{item.name: changed})
                except (QuoronError, ValueError, TypeError):  # refused when it is made
                    continue
    elif isinstance(value, tuple) and value:
        yield " without its last", value[:-1]
        yield " with its last twice", (*value, value[-1])
        for index in sorted({0, len(value) - 1}):
            for where, changed in changes(value[index]):
                yield f"[{index}]{where}", (*value[:index], changed, *value[index + 1 :])
    elif isinstance(value, bool):
        yield f"={not value}", not value
    elif isinstance(value, int):
        yield from ((f"{step:+}", value + step) for step in (-1, 1, -value))
    elif isinstance(value, float):
        yield from ((f"*{times}", value * times) for times in (1 - NEAR, 1 + NEAR, -1))
    elif isinstance(value, str) and get_origin(kind) is Literal:
        yield from ((f"={word}", word) for word in get_args(kind) if word != value)


def _resolvable(kind: type) -> bool:
    try:
        get_type_hints(kind)
    except NameError:
        return False
    return True


def _made(plan: RunPlan, what: str, changed: Any) -> RunPlan | None:
    try:
        return replace(plan, **{what: changed})
    except QuoronError:
        return None


def passes(verify: Any, changed: Any) -> bool:
    """Whether a check lets it pass."""
    try:
        verify(changed)
    except (QuoronError, ArithmeticError):
        return False
    return True
