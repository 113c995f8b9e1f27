"""A federation on this machine: whose items its clients hold."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from federation.crowd import DIMENSION, items
from quoron.config import parse
from quoron.federation import programs
from quoron.federation.client_items import give_tables
from quoron.federation.folder import ITEMS, Folder
from quoron.simulation import run as runs
from quoron_client.data.items import ItemBatch
from quoron_client.federation.own_table import own_items
from quoron_client.federation.terms import Terms
from quoron_server.specification import describe, make_plan

BROKEN = 4  # the user none of whose rows can be used
TABLE = f"""
[population]
kind = "table"
items_per_user = 4
path = "people.parquet"
user = "who"
label = "sick"
columns.numeric = {{ {", ".join(f"x{j} = [-1.0, 1.0]" for j in range(DIMENSION))} }}
columns.intercept = false
test_fraction = 0.25

[domain]
radius = 2.0

[privacy]
epsilon = 8.0
delta = 1e-2
allow_large_delta = true

[algorithm]
name = "dp-sgd-wor"
options = {{ rounds = 3 }}
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Twelve users of four rows each, of whom one has none that can be used."""
    whole = items(12)
    broken = [
        None if who == f"person-{BROKEN:05d}" else x
        for who, x in zip(whole["who"].to_pylist(), whole["x0"].to_pylist(), strict=True)
    ]
    pq.write_table(
        whole.set_column(whole.column_names.index("x0"), "x0", pa.array(broken)), tmp_path / "people.parquet"
    )
    return tmp_path


class TestItems:
    def test_a_split_table_holds_each_users_items_to_the_bit(self, table: Path, tmp_path: Path) -> None:
        config = parse(TABLE, settings=("population.test_fraction=0.0",))
        prepared, folder = runs.prepare(config, table), Folder(tmp_path / "f")
        population = prepared.setup.population
        for number in range(1, population.users + 1):
            folder.client(number).mkdir(parents=True)
        give_tables(folder, config, table, population.users)
        simulation, terms = programs.Simulation(prepared.setup, 0.0), Terms.read("r", _description(prepared))
        for number in range(1, population.users + 1):
            place, wanted = folder.client(number), population.all_items.of(np.array([number - 1]))
            assert _same(programs.items_of(simulation, number).batch, wanted)
            assert "who" not in pq.read_schema(place / ITEMS).names
            if number != BROKEN + 1:  # whose rows cannot be used
                assert _same(own_items(place / ITEMS, terms).batch, wanted)


def _description(prepared: runs.Prepared) -> str:
    import json

    from quoron.federation.engine import specification

    wanted = specification(prepared).model_copy(update={"run": "r"})
    return json.dumps(describe(wanted, make_plan(wanted)))


def _same(one: ItemBatch, other: ItemBatch) -> bool:
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in ("features", "labels", "offsets"))
