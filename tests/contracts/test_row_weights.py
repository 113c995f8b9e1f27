"""A run whose rows count by a column, replayed: neighbours, and the same bits after it.

data-quality#h3: weights change what a user's own items count, within [0, 1], and nothing else. Broken twin: weights
above one.
"""

import math
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.charges import charges, require_charged
from contracts.forced import FORCED
from contracts.worlds import World, same
from quoron.config import from_tree
from quoron.planning.plans import Prepared
from quoron.training import lifetime, run
from quoron.training.table import CuratorEngine, load_rows
from quoron_client.compute.enforcement import bounded
from quoron_client.compute.gradients import average_gradient
from quoron_client.data.items import ItemBatch
from quoron_client.protocol.questions import AverageGradient
from quoron_privacy.noise.streams import SeededNoise
from quoron_server.algorithms import ALGORITHMS
from quoron_server.plan import RunPlan

USERS, ROWS = 200, 3
METHODS = {"one-pass-dp-sgd": {"rounds": 4}, "whitened-tracking": {"rounds": 4}}
LABELS = ("a", "b", "c")  # of which the first two are the classes
MOST = 90.0
COUNTS = {"a": 1.0, "b": MOST, "c": math.nan}  # what a row counts
draw = np.random.Generator(np.random.Philox(8))
X = draw.normal(size=(USERS * ROWS, 2))
Y = np.where(X[:, 0] + draw.normal(size=USERS * ROWS) > 1.5, "b", "a")
Rows = list[tuple[float, float, str]]


def table(own: Rows) -> pa.Table:
    """Everybody's rows, those of the last user being `own`."""
    kept = slice(0, (USERS - 1) * ROWS)
    columns = [[*X[kept, place].tolist(), *(row[place] for row in own)] for place in (0, 1)]
    who = np.append(np.repeat(np.arange(USERS - 1), ROWS), np.full(len(own), USERS - 1))
    labels = [*Y[kept].tolist(), *(row[2] for row in own)]
    counts = [COUNTS[label] for label in labels]
    return pa.table({"who": who, "u": columns[0], "v": columns[1], "ill": labels, "count": counts})


@cache
def prepared(name: str) -> Prepared[Any]:
    section: dict[str, Any] = {"kind": "table", "path": "frame", "user": "who", "items_per_user": ROWS}
    section["label"] = {"column": "ill", "classes": ["a", "b"]}
    section["columns"] = {"numeric": {"u": [-3, 3], "v": [-3, 3]}, "weight": {"column": "count", "most": MOST}}
    tree = {"population": section, "privacy": {"epsilon": 8.0, "delta": 1e-4}, "domain": {"radius": 2.0}}
    tree |= {"algorithm": {"name": name, "options": METHODS[name]}}
    return run.prepare(from_tree(tree), Path.cwd(), name="replayed", frame=table([(0.0, 0.0, "a")]))


@pytest.fixture(autouse=True, scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(lifetime.VARIABLE, str(tmp_path_factory.mktemp("accounts") / "lifetime.sqlite"))
        yield
    prepared.cache_clear()


def items(name: str, own: Rows) -> ItemBatch:
    return load_rows(prepared(name).config, Path.cwd(), table(own)).items  # type: ignore[return-value]


def shown(name: str, batch: ItemBatch, world: World) -> list[tuple[Any, ...]]:
    """A run on these items in a world, as everybody sees it."""
    scene, plan = prepared(name).setup, world.plan
    algorithm, found = ALGORITHMS[name].make(plan), []
    engine = CuratorEngine(scene.rows.declared, batch, SeededNoise(5), seed=plan.seed)
    state = algorithm.init()
    with ExitStack() as stack:
        for owner, method, factory in FORCED:
            stack.enter_context(patch.object(owner, method, factory(world, getattr(owner, method))))
        while True:
            with world.opened():
                question = algorithm.request(state, world)
            if question is None:
                return [*found, ("model", algorithm.model(state))]
            world.round = question.round
            answers = engine.ask(question)
            world.open = False
            update = algorithm.update(state, answers, world)
            state = update.state
            found.append((question, dict(update.public), [dict(each.parameters) for each in update.releases]))


def replayed(name: str, first: Rows, second: Rows) -> list[float]:
    """What of the charges forcing the second world took; Complaint where the worlds are told apart, or it is more."""
    plan: RunPlan = prepared(name).planned.plan.without("held_out", "estimates", "data_quality").simulated()
    one, two = (items(name, own) for own in (first, second))
    own = slice(0, (USERS - 1) * ROWS)
    assert one.weights is not None
    assert two.weights is not None
    same("everybody else's items", (one.features[own], one.weights[own]), (two.features[own], two.weights[own]))
    world = World(plan)
    other = World(plan, world)
    for at, (a, b) in enumerate(zip(shown(name, one, world), shown(name, two, other), strict=True)):
        same(f"round {at}", a, b)
    require_charged(plan, other.spent)
    return [cost / charged for _, cost, charged in charges(plan, other.spent) if charged]


numbers = st.floats(-4, 4) | st.sampled_from([0.0, 3.0, -3.0, np.inf, np.nan, 1e300])
own_rows = st.lists(st.tuples(numbers, numbers, st.sampled_from(LABELS)), min_size=1, max_size=4)


@pytest.mark.parametrize("name", METHODS)
@settings(derandomize=True, deadline=None, max_examples=8)
@given(first=own_rows, second=own_rows)
def test_a_run_whose_rows_count_by_a_column_costs_what_its_plan_charges(name, first, second):
    replayed(name, first, second)


FAR: tuple[Rows, Rows] = ([(3.0, 3.0, "b")] * 3, [(-3.0, -3.0, "b")] * 3)


def test_the_farthest_users_use_what_is_charged_whatever_their_rows_weigh():
    rare = replayed("one-pass-dp-sgd", *FAR)
    assert 0.1 < max(rare) <= 1 + 1e-9
    common = [[(u, v, "a") for u, v, _ in own] for own in FAR]
    light = replayed("one-pass-dp-sgd", *common)
    assert max(light) < 0.1 * max(rare)


def test_weights_above_one_are_held_by_whoever_answers():
    """Else a user's gradient is longer than the plan's bound."""
    whole, loss = items("one-pass-dp-sgd", FAR[0]), prepared("one-pass-dp-sgd").setup.rows.declared.loss
    broken = replace(whole, weights=10 * whole.item_weights)
    assert max(broken.item_weights) == 10.0
    bound = prepared("one-pass-dp-sgd").planned.plan.problem.lipschitz
    task = AverageGradient(np.zeros((1, broken.dimension)), (1.0,))
    longest = [
        np.linalg.norm(average_gradient(loss, batch, task), axis=1).max() for batch in (bounded(broken, loss), broken)
    ]
    assert longest[0] <= bound < longest[1]
