"""A plan is only as good as its re-check: no number in it may be something that comparisons let pass."""

import ast
import math
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest

from contracts.scenes import make_plan
from measures import FOLDERS, ROOT
from quoron_privacy.errors import QuoronError, VerificationError
from quoron_server.algorithms import ALGORITHMS

PRIVATE = [name for name, info in ALGORITHMS.items() if info.trust_model != "none"]


def tampered(value: Any, wrong: float) -> Iterator[tuple[str, Any]]:
    """`value` with one number in it replaced, for the first and last entry of every tuple; and where."""
    if is_dataclass(value):
        for item in fields(value):
            for where, changed in tampered(getattr(value, item.name), wrong):
                try:
                    yield f"{item.name}{where}", replace(value, **{item.name: changed})
                except Exception:  # refused already when made
                    continue
    elif isinstance(value, tuple) and value:
        for index in {0, len(value) - 1}:
            for where, changed in tampered(value[index], wrong):
                yield f"[{index}]{where}", (*value[:index], changed, *value[index + 1 :])
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield "", wrong


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", PRIVATE)
def test_a_plan_with_a_number_that_is_none_is_refused(name: str, wrong: float) -> None:
    plan = make_plan(name)
    seen = []
    for where, parameters in tampered(plan.parameters, wrong):
        seen.append(where)
        with pytest.raises(VerificationError, match="parameters"):
            ALGORITHMS[name].verify(replace(plan, parameters=parameters))
    assert len(seen) >= 4


NOISY = ("tracking-srgd", "whitened-tracking", "whitened-tracking/classes", "accelerated-erm")
ROUND = ("accelerated-erm", "outlier-gd", "outlier-iterates")


@pytest.mark.parametrize("wrong", [0.0, -1.0, 1e-300])
@pytest.mark.parametrize(
    ("name", "number", "said"),
    [*((name, "_scale", None) for name in NOISY), *((name, "radius", "radius in ") for name in ROUND)],
)
def test_noise_and_radii_that_are_none_or_negative_are_refused_before_anybody_is_asked(
    name: str, number: str, said: str | None, wrong: float
) -> None:
    """A negative scale has a square like any other; a negative radius times a shift is below any noise."""
    plan = make_plan(name)
    found = [p for where, p in tampered(plan.parameters, wrong) if number in where]
    assert len(found) >= (2 if number == "_scale" else 1)
    for parameters in found:
        with pytest.raises(VerificationError if said else QuoronError, match=said):
            ALGORITHMS[plan.algorithm].verify(replace(plan, parameters=parameters))


@pytest.mark.parametrize("name", PRIVATE)
def test_a_count_that_is_no_integer_is_refused(name: str) -> None:
    plan = make_plan(name)
    for item in fields(plan.parameters):
        held = getattr(plan.parameters, item.name)
        if isinstance(held, int) and not isinstance(held, bool):
            changed = replace(plan.parameters, **{item.name: float(held)})
            with pytest.raises(VerificationError, match="integer"):
                ALGORITHMS[name].verify(replace(plan, parameters=changed))


@pytest.mark.parametrize("name", PRIVATE)
@pytest.mark.parametrize("cost", [{"rounds": 0}, {"messages": -1}, {"rounds": 2.5}])
def test_a_cost_that_is_none_is_refused(name: str, cost: dict[str, Any]) -> None:
    plan = make_plan(name)
    with pytest.raises(VerificationError):
        ALGORITHMS[name].verify(replace(plan, cost=replace(plan.cost, **cost)))


@pytest.mark.parametrize("name", PRIVATE)
def test_calibrated_numbers_that_claim_no_proof_are_refused_as_they_would_skip_its_check(name: str) -> None:
    plan = make_plan(name)
    with pytest.raises(VerificationError, match="proved guarantee"):
        ALGORITHMS[name].make(replace(plan, guarantee=replace(plan.guarantee, proved=False)))


def test_no_file_of_arrays_is_unpickled() -> None:
    for path in (path for folder in FOLDERS.values() for path in (ROOT / folder).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "load" in text else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("np.load", "numpy.load"):
                assert "allow_pickle=False" in ast.unparse(node), path
