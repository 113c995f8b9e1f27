"""Several classes on Flower: what was declared, submitted and answered by every user's own node becomes one model."""

import logging
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from flwr.app import Context, RecordDict

from federation.crowd import SEED, inline_model
from flower.grids import FakeGrid, FakeTime
from quoron import config as configs
from quoron.operate.flower_app import server_app
from quoron.operate.submission import specify
from quoron.populations import Numeric, from_table
from quoron.run_folder import RunFolder
from quoron_client import L2Ball, make_loss
from quoron_client.data.labels import Classes
from quoron_client.flower.app import app as one_user
from quoron_server.flower import exchange
from quoron_server.specification import make_plan

USERS, ITEMS = 16, 3
CLASSES = ("red", "green", "blue")
CONFIG = """
[population]
kind = "table"
path = "nobody-reads-this.csv"
user = "who"
label = "colour"
classes = ["red", "green", "blue"]
numeric = { a = [-1, 1], b = [-1, 1] }
[domain]
radius = 50.0
[problem]
items_per_user = 3
[privacy]
epsilon = 15.0
delta = 0.1
quorum = "none"
[algorithm]
name = "whitened-tracking"
options = { rounds = 6 }
"""


def table() -> pd.DataFrame:
    """Users whose columns tell their classes."""
    rng = np.random.default_rng(1)
    who = np.repeat([f"person-{user:03d}" for user in range(USERS)], ITEMS)
    place = rng.integers(0, 3, len(who))
    centres = np.array([[-0.6, -0.6], [0.7, 0.0], [-0.2, 0.7]])
    a, b = np.clip(centres[place] + 0.15 * rng.normal(size=(len(who), 2)), -1, 1).T
    return pd.DataFrame({"who": who, "a": a, "b": b, "colour": np.array(CLASSES)[place]})


def test_a_model_of_three_classes_is_learnt_from_nodes_that_hold_one_user_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bits of a simulation of the same users."""
    monkeypatch.setattr(exchange, "time", FakeTime())
    monkeypatch.setattr(logging.getLogger("quoron"), "handlers", [])  # the ServerApp's is for a process of its own
    monkeypatch.setattr(logging.getLogger("quoron"), "level", logging.WARNING)
    monkeypatch.setenv("QUORON_ALLOW_SIMULATION", "1")
    monkeypatch.setenv("QUORON_DATABASE", f"sqlite:///{tmp_path / 'books.sqlite'}")
    monkeypatch.setenv("QUORON_RESULTS", str(tmp_path / "results"))
    whole, nodes = table(), {}
    for user, (_, rows) in enumerate(whole.groupby("who")):
        path = tmp_path / f"{user}.csv"
        rows.drop(columns="who").to_csv(path, index=False)
        own = {"data": str(path), "record": str(tmp_path / f"{user}.sqlite"), "simulation-seed": str(SEED)}
        place = {"partition-id": user, "num-partitions": USERS}
        nodes[100 + user] = own | place | {"lifetime-epsilon": 100.0, "lifetime-delta": 1.0}
    wanted, _ = specify(
        configs.parse(CONFIG), run="colours", users=USERS, seconds=60, simulation_seed=SEED, early_ends=True
    )
    grid = FakeGrid(one_user, nodes, keys={node: f"{node}".encode() for node in nodes}, shuffled=True)
    given = {"specification": wanted.as_text(), "waiting": 0.01}
    server_app(grid, Context(1, 1, {}, RecordDict(), given))

    assert make_plan(wanted).algorithm == "whitened-tracking"
    model = RunFolder(tmp_path / "results" / "colours").model()
    people = from_table(
        whole,
        user="who",
        label=Classes("colour", CLASSES),
        features=(Numeric("a", -1.0, 1.0), Numeric("b", -1.0, 1.0)),
        loss=make_loss("softmax", classes=3, feature_norm=float(wanted.problem.feature_norm)),
        domain=L2Ball(50.0),
        test_fraction=0.0,
        items_per_user=ITEMS,
    )
    np.testing.assert_array_equal(model, inline_model(wanted, tmp_path, people))
    scores = np.column_stack([whole[["a", "b"]], np.ones(len(whole))]) @ model.reshape(3, 3).T
    assert np.mean(np.array(CLASSES)[scores.argmax(axis=1)] == whole["colour"]) > 0.8
