"""A plan says how many bytes its run will move, before it asks anybody."""

from dataclasses import replace
from pathlib import Path

import pytest

from contracts.scenes import Quadratic, execute, make_plan
from cover import EVERY_QUESTION, by_default
from quoron.planning.projection import NAME, by_round, wire_of_plan
from quoron_server.algorithms import ALGORITHMS
from quoron_server.books.ledger import Ledger
from quoron_server.plan import Cost


@pytest.mark.parametrize("name", by_default(ALGORITHMS, EVERY_QUESTION))
def test_a_plans_bytes_are_those_of_its_run(name: str, tmp_path: Path) -> None:
    execute(name, tmp_path, Quadratic())
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        rows = by_round(ledger.events(), run=NAME, network=None)
    told = wire_of_plan(make_plan(name))
    assert told.messages == pytest.approx(sum(row["wire_messages"] for row in rows), rel=0.01)  # of whole users a round
    assert told.down == pytest.approx(sum(row["wire_down"] for row in rows), rel=0.1)  # of models of two numbers
    assert told.up == pytest.approx(sum(row["wire_up"] for row in rows), rel=0.05)


def test_a_plan_of_more_columns_never_tells_fewer_bytes() -> None:
    plan = make_plan("local-model")
    told = []
    for dimension in (*range(1, 200), 10**4, 10**7):
        problem = replace(plan.problem, dimension=dimension)
        cost = Cost.of(problem, plan.parameters)
        told.append(wire_of_plan(replace(plan, problem=problem, cost=cost)))
    assert [each.down for each in told] == sorted(each.down for each in told)
    assert [each.up for each in told] == sorted(each.up for each in told)
