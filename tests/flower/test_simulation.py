"""A simulation on Flower, without Flower: the ServerApp and the ClientApp of the package, on nodes in this process."""

import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import quoron
from flower.grids import SECRET, FakeGrid, Rows, error_reply, spread
from quoron.engine import on_ray
from quoron.engine.choice import Flower
from quoron.federation import flower_simulation
from quoron.federation.flower_simulation import COMMAND, RoundSender, carried_out, client_app, simulate
from quoron.planning.plans import Prepared
from quoron.run_folder import RunFolder
from quoron.simulation import run as runs
from quoron.simulation import sources
from quoron.simulation.problem import Setup
from quoron_client.flower.serving import make_app
from quoron_privacy.errors import ConfigError, RunError
from quoron_server.wording import sentence

SMALL = (
    "population.users=60",
    "population.items_per_user=3",
    "population.dimension=2",
    "privacy.epsilon=8",
    "privacy.delta=0.001",
    "algorithm.name=one-pass-dp-sgd",
    "algorithm.options.rounds=4",
)

LEDGER = {"ledger.sqlite", "ledger.sqlite-acknowledged"}


class FlowerHere:
    """A program of Flower's whose ServerApp is a thread and whose nodes are calls."""

    def __init__(self, nodes: int = 5) -> None:
        self.grid = FakeGrid(make_app(Rows()), spread(nodes))
        self.thread: threading.Thread | None = None
        self.log, self.written = Path("nowhere"), ""

    def begin(self, command: Sequence[str], *, files: Sequence[int], log: Path, **_: Any) -> "FlowerHere":
        folder, pipe = RunFolder(Path(command[4])), os.dup(files[0])
        assert command[3] == COMMAND
        assert command[7] == str(files[0])
        self.grid.app = client_app(folder)
        self.log = log
        self.thread = threading.Thread(target=self.serve, args=(folder, Connection(pipe, readable=False)))
        self.thread.start()
        return self

    def serve(self, folder: RunFolder, parent: Connection) -> None:
        with parent:
            parent.send(carried_out(self.grid, len(self.grid.configs), folder, RoundSender(parent)))

    def __enter__(self) -> "FlowerHere":
        return self

    def __exit__(self, *_: object) -> None:
        assert self.thread is not None
        self.thread.join()


@pytest.fixture
def flower_here(monkeypatch: pytest.MonkeyPatch) -> Iterator[FlowerHere]:
    here = FlowerHere()
    monkeypatch.setattr(on_ray, "require_tokens", lambda: None)  # as if Ray were installed
    monkeypatch.setattr(flower_simulation, "Program", here.begin)
    yield here
    if here.thread is not None:
        here.thread.join()


def prepared_in(folder: Path, *settings: str) -> tuple[Prepared[Setup], RunFolder]:
    config, _ = sources.resolve("quickstart", [*SMALL, *settings])
    folder.mkdir()
    return runs.prepare(config, folder), RunFolder(folder)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the same run in one process."""
    folder = tmp_path_factory.mktemp("inline") / "run"
    runs.carry_out(*prepared_in(folder))
    return folder


@pytest.fixture(scope="module")
def model(whole: Path) -> np.ndarray:
    return RunFolder(whole).model()


class Watching:
    def __init__(self) -> None:
        self.heard: list[Any] = []

    def started(self, plan: Any) -> None:
        self.heard.append("started")

    def round_finished(self, event: Any) -> None:
        self.heard.append(event.round)

    def finished(self, model: np.ndarray) -> None:
        self.heard.append(model)

    def waiting(self, text: str) -> None:
        self.heard.append(text)


def test_a_run_on_flower_leaves_the_same_folder_and_tells_observers(
    tmp_path: Path, flower_here: FlowerHere, model: np.ndarray
) -> None:
    prepared, folder = prepared_in(tmp_path / "run")
    watching = Watching()
    result = simulate(prepared, folder, [watching])
    np.testing.assert_array_equal(result.weights, model)
    assert watching.heard[:-1] == ["started", "starting 50 nodes", 0, 1, 2, 3]
    np.testing.assert_array_equal(watching.heard[-1], model)
    made = LEDGER | {"config.toml", "model.npz", "plan.json", "report.html", "rounds.parquet", "summary.json"}
    assert {each.name for each in folder.path.iterdir()} == made
    assert result.summary.statement == sentence(prepared.planned.plan.guarantee)


def test_a_complete_run_asks_nobody(
    tmp_path: Path, whole: Path, model: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_ray, "require_tokens", lambda: None)  # as if Ray were installed
    shutil.copytree(whole, tmp_path / "run")
    prepared = runs.prepare(RunFolder(tmp_path / "run").config(), tmp_path)
    watching = Watching()
    result = simulate(prepared, RunFolder(tmp_path / "run"), [watching])
    np.testing.assert_array_equal(result.weights, model)
    assert len(watching.heard) == 1


def test_a_node_that_fails_ends_the_run_by_name_and_either_engine_goes_on(
    tmp_path: Path, flower_here: FlowerHere, model: np.ndarray
) -> None:
    prepared, folder = prepared_in(tmp_path / "run")
    seen: list[int] = []

    def fault(message: Any, reply: Any) -> list[Any]:
        if message.metadata.message_type != "query.hello":
            seen.append(1)
        return [error_reply(message)] if len(seen) > 8 else [reply]

    flower_here.grid.fault = fault
    with pytest.raises(RunError, match=rf"in round \d, got \d.* `quoron resume {folder.path}` goes on") as raised:
        simulate(prepared, folder)
    assert SECRET not in str(raised.value)
    assert {each.name for each in folder.path.iterdir()} == LEDGER | {"config.toml", "plan.json"}
    np.testing.assert_array_equal(quoron.resume(folder.path).weights, model)


def test_an_end_without_a_word_is_told_with_flower_s_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flower_here: FlowerHere
) -> None:
    prepared, folder = prepared_in(tmp_path / "run")
    monkeypatch.setattr(flower_here, "serve", lambda folder, parent: parent.close())
    flower_here.written = "Traceback:\nOSError: no room\n"
    says = r"Flower ended the run\..*flower\.log\..*quoron resume .*--engine flower or without\. .*OSError: no room$"
    with pytest.raises(RunError, match=says):
        simulate(prepared, folder)


BREAKS = """
import threading, flwr.simulation
from quoron.federation import flower_simulation

def breaks(server, *_, **__):
    threading.Thread(target=threading.Event().wait).start()  # a ServerApp that waits
    raise OSError("no room")

flwr.simulation.run_simulation = breaks
flower_simulation.main()
"""


@pytest.mark.programs
def test_a_simulation_that_does_not_start_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_ray, "require_tokens", lambda: None)  # as if Ray were installed
    monkeypatch.setattr(flower_simulation, "COMMAND", BREAKS)
    with pytest.raises(RunError, match=r"Flower ended the run\..*OSError: no room$"):
        simulate(*prepared_in(tmp_path / "run"))


def test_without_ray_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_ray, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install"):
        simulate(*prepared_in(tmp_path / "run"))


# Choosing an engine.


def test_no_nodes_are_refused() -> None:
    with pytest.raises(ConfigError, match="Expected nodes to be an integer >= 1, got nodes=0"):
        Flower(nodes=0)


def test_a_data_frame_runs_on_flower(tmp_path: Path, flower_here: FlowerHere) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"who": np.repeat(np.arange(80), 3), "x": rng.uniform(-1, 1, 240), "y": rng.integers(0, 2, 240)}
    )
    options = {"user": "who", "label": "y", "columns": {"numeric": {"x": (-1.0, 1.0)}}, "settings": SMALL[3:]}
    there = quoron.simulate(frame, out=tmp_path / "flower", engine="flower", **options)
    assert flower_here.thread is not None
    np.testing.assert_array_equal(there.weights, quoron.simulate(frame, out=tmp_path / "inline", **options).weights)
