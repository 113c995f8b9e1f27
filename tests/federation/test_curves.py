"""Models that bend in a federation: clients with a table each, and silos, give the bits of one process."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from federation.crowd import SEED, carried_out, complete, coordinator, inline_model
from federation.silos import clients_of, silo_config
from quoron import config as configs
from quoron.data.table import from_table
from quoron.federation.submission import specify
from quoron_client.federation.terms import Terms
from quoron_client.losses import make_loss
from quoron_client.protocol.domains import L2Ball
from quoron_privacy.errors import WireError
from quoron_server.specification import RunSpecification, describe, make_plan

SIZES = (7, 12, 1)
USERS = sum(SIZES)
LABELS = {
    "logistic": "sick",
    "softmax": {"column": "kind", "classes": ["a", "b", "c"]},
    "least_squares": {"column": "height", "range": [0, 2]},
}


def people() -> pd.DataFrame:
    """Four rows a user with gaps, and one user none of whose rows can be used."""
    rng = np.random.default_rng(3)
    age, bmi = rng.uniform(0, 100, 4 * USERS), rng.uniform(10, 40, 4 * USERS)
    age[::7] = np.nan
    frame = pd.DataFrame({"age": age, "bmi": bmi, "ward": rng.choice(["A", "B", "elsewhere"], 4 * USERS)})
    frame["sick"], frame["kind"] = (bmi > 25).astype(int), rng.choice(["a", "b", "c"], 4 * USERS)
    frame["height"] = rng.uniform(0, 2, 4 * USERS)
    frame.loc[12:15, ["sick", "kind", "height"]] = None
    frame["who"] = np.repeat([f"person-{user:05d}" for user in range(USERS)], 4)
    return frame


def specified(loss: str, missing: str = "midpoint", silos: tuple[int, ...] | None = None) -> RunSpecification:
    columns = {"numeric": {"age": [0, 100], "bmi": [10, 40]}, "categorical": {"ward": ["A", "B"]}}
    columns |= {"curves": 3, "pairs": 2, "missing": missing}
    population = {"kind": "table", "path": "t.csv", "user": "who", "label": LABELS[loss], "items_per_user": 4}
    tree = {
        "population": population | {"columns": columns},
        "privacy": {"trust_model": "central-release", "epsilon": 15.0, "delta": 0.1, "allow_large_delta": True},
        "algorithm": {"name": "dp-sgd-poisson", "options": {"rounds": 4, "rate": 0.5}},
        "domain": {"radius": 2.0},
    }
    tree["privacy"] |= {"min_cohort": "none"}
    tree["population"] |= {} if silos is None else {"silos": {"sizes": [*silos]}}
    wanted, _ = specify(configs.from_tree(tree), run="trial", users=USERS, early_ends=True)
    return wanted.model_copy(update={"simulation": True, "simulation_seed": SEED})


async def federated(wanted: RunSpecification, folder: Path, sizes: tuple[int, ...]) -> np.ndarray:
    table, first = people(), 0
    async with coordinator(folder, max_users_per_client=100) as running:
        clients = []
        for number, size in enumerate(sizes):
            path = folder / f"{number}.parquet"
            own = table[4 * first : 4 * (first + size)]
            (own if len(sizes) < USERS else own.drop(columns="who")).to_parquet(path, index=False)
            first += size
            clients.append(silo_config(path, running.listen, user_column="who" if len(sizes) < USERS else None))
        async with clients_of(clients, running):
            await running.scheduler.submit(wanted.as_text())
            return await complete(running)


def inline(wanted: RunSpecification, folder: Path) -> np.ndarray:
    loss, domain = make_loss(**wanted.loss), L2Ball(2.0)
    of = {"user": "who", "loss": loss, "domain": domain, "test_fraction": 0.0, "items_per_user": 4}
    return inline_model(wanted, folder, from_table(people(), wanted.columns, **of))


@pytest.mark.parametrize(
    ("loss", "missing", "silos"),
    [
        pytest.param("softmax", "drop", None, marks=pytest.mark.slow),
        ("softmax", "drop", SIZES),
        ("least_squares", "midpoint", SIZES),
    ],
)
def test_clients_and_silos_give_the_bits_of_one_process(
    loss: str, missing: str, silos: tuple[int, ...] | None, tmp_path: Path
) -> None:
    wanted = specified(loss, missing, silos)
    model = carried_out(federated(wanted, tmp_path, silos or (1,) * USERS))
    assert model.shape == (wanted.columns.dimension * make_loss(**wanted.loss).outputs,)
    assert model.any()
    np.testing.assert_array_equal(model, inline(wanted, tmp_path))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"curves": 2}, "columns that become 18 features, not 20 as announced"),
        ({"pairs": 0}, "columns that become 9 features, not"),
        ({"curves": 9}, "Expected curves from 1 to 8"),
        ({"pairs": True}, "columns that become 14 features, not"),
        ({"curves": 8, "pairs": 8, "features": 400}, "Expected at most 5,000 features"),
    ],
)
def test_announced_columns_that_are_not_those_of_the_plan_are_refused(wrong: dict[str, Any], said: str) -> None:
    wanted = specified("logistic")
    description = describe(wanted, make_plan(wanted))
    assert Terms.read("trial", json.dumps(description)).columns == wanted.columns
    if "features" in wrong:
        wrong["features"] = [{"column": f"x{j}", "low": 0.0, "high": 1.0} for j in range(400)]
    with pytest.raises(WireError, match=said):
        Terms.read("trial", json.dumps(description | {"columns": {**description["columns"], **wrong}}))
