"""One network, loss and promise, on one machine and on Flower: the example runs both ways unchanged."""

import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from flower.grids import FakeGrid, spread
from quoron.torch import LocalSGD, answering, weights, with_weights
from quoron.torch.training import ModuleRows, TorchModule
from quoron.training import lifetime
from quoron.training.rows import Items
from quoron_privacy.noise.streams import SeededNoise

EXAMPLE = Path(__file__).parents[2] / "examples" / "models" / "federated"


@pytest.fixture(autouse=True)
def _in_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Flower sets in the process of a ServerApp."""
    for name in ("task_id", "run_id", "node_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)


@pytest.fixture(autouse=True)
def example(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Its folder is on the path."""
    monkeypatch.setenv(lifetime.VARIABLE, str(tmp_path / "own" / "lifetime.sqlite"))
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "network"]:
        del sys.modules[name]


def accuracy(said: str) -> float:
    assert "(8, 0.001)-differential privacy for all items of any one user at once, adjacency replace-one" in said
    return float(re.findall(r"accuracy on .*: ([\d.]+)", said)[0])


def test_the_example_learns_both_ways(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from network import client_app, promise, server_app

    config: dict[str, Any] = promise.defaults() | {
        "simulation-seed": 7,
        "folder": str(tmp_path / "federated"),
        "rounds": 4,
    }
    grid = FakeGrid(client_app.app, spread(int(config["users"])), run_config=config)
    server_app.app(grid, Context(1, 1, {}, RecordDict(), config))
    federated = accuracy(capsys.readouterr().out)
    monkeypatch.setattr(sys, "argv", ["here.py", "--simulation-seed", "7", "--out", str(tmp_path / "here")])
    runpy.run_path(str(EXAMPLE / "here.py"), run_name="__main__")
    assert min(federated, accuracy(capsys.readouterr().out)) > 0.6


@pytest.mark.parametrize("local", [None, LocalSGD(batch_size=20, step_size=0.1)])
def test_what_a_client_answers_is_its_row_on_one_machine(local: LocalSGD | None) -> None:
    from network import task

    held = [task.items(user) for user in range(3)]
    parts = tuple(torch.cat(each).numpy() for each in zip(*held, strict=True))
    together = ModuleRows(
        TorchModule.of(task.network(), task.loss, "cpu"),
        Items(parts, np.arange(0, 61, 20)),
        items_per_user=20,
        local=local,
    )
    point = weights(task.network()) + 0.1
    rows = together(0, np.arange(3), point, SeededNoise(1))
    for user in range(3):
        answer = answering(task.network(), held[user], loss=task.loss, items_per_user=20, local=local)
        np.testing.assert_allclose(answer(point), rows[user], atol=1e-6)
    assert not answering(task.network(), (parts[0][:0], parts[1][:0]), items_per_user=2, loss=task.loss)(point).any()
    np.testing.assert_allclose(weights(with_weights(task.network(), point)), point, rtol=1e-6)
