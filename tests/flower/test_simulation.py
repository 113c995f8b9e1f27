"""A simulation on Flower, without Flower: the ServerApp and the ClientApp of the package, on nodes in this process."""

import json
import os
import shutil
import threading
import tomllib
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from flwr.app import Context, RecordDict
from flwr.common.config import flatten_dict

import quoron
from federation.crowd import HANGS
from flower.grids import SECRET, Failing, FakeGrid, Rows, error_reply, spread
from quoron.engine import on_ray
from quoron.engine.choice import Flower
from quoron.federation import flower_simulated, flower_simulation
from quoron.federation.flower_simulated import Events
from quoron.federation.flower_simulation import COMPONENTS, simulate
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


@pytest.fixture(autouse=True)
def left(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The times that a ServerApp would have ended its process, which here is that of the tests."""
    codes: list[int] = []
    monkeypatch.setattr(flower_simulated.os, "_exit", codes.append)
    return codes


class FlowerHere:
    """A SuperLink whose ServerApp is a thread and whose nodes are calls."""

    def __init__(self, nodes: int = 5) -> None:
        self.grid = FakeGrid(flower_simulated.client_app, spread(nodes))
        self.config: dict[str, Any] = {}
        self.thread: threading.Thread | None = None
        self.error: BaseException | None = None
        self.status = "running"

    def run(self, app: Path, *, federation: str | None = None) -> int:
        tree = tomllib.loads((app / "pyproject.toml").read_text(encoding="utf-8"))
        assert tree["tool"]["flwr"]["app"]["components"] == {
            "serverapp": COMPONENTS["server"],
            "clientapp": COMPONENTS["client"],
        }
        self.config = flatten_dict(tree["tool"]["flwr"]["app"]["config"])
        self.grid.run_config = self.config
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()
        return 7

    def _serve(self) -> None:
        try:
            flower_simulated.carry_out(self.grid, context_of(self.config))
        except BaseException as error:
            self.error = error

    def status_and_details(self, run: int) -> tuple[str, str]:
        assert self.thread is not None
        ended = not self.thread.is_alive()
        return (
            ("finished:failed" if self.error else "finished:completed", str(self.error)) if ended else ("running", "")
        )

    def log(self, run: int) -> str:
        return "what Flower logged\n"


@pytest.fixture
def flower_here(monkeypatch: pytest.MonkeyPatch) -> Iterator[FlowerHere]:
    here = FlowerHere()
    monkeypatch.setattr(on_ray, "require_tokens", lambda: None)  # as if Ray were installed
    monkeypatch.setattr(flower_simulation, "superlink", lambda place, log: nullcontext((here, lambda: None)))
    yield here
    if here.thread is not None:
        here.thread.join()


def context_of(config: dict[str, Any]) -> Context:
    return Context(1, 1, {}, RecordDict(), config)


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

    def said(self, text: str) -> None:
        self.heard.append(text)


def test_a_run_on_flower_leaves_the_same_folder_and_tells_observers(
    tmp_path: Path, flower_here: FlowerHere, model: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flower_simulated, "_TOLD", -1.0)  # every word
    prepared, folder = prepared_in(tmp_path / "run")
    watching = Watching()
    result = simulate(prepared, folder, [watching])
    np.testing.assert_array_equal(result.weights, model)
    told = ["starting Flower", "starting 50 nodes"]
    told += [f"{number} of 5 nodes {said}" for said in ("are there", "have answered") for number in range(1, 6)]
    assert [each for each in watching.heard if isinstance(each, str) and each != "started"][:12] == told
    assert "started" in watching.heard[:-1]
    assert [each for each in watching.heard[:-1] if not isinstance(each, str)] == [0, 1, 2, 3]
    np.testing.assert_array_equal(watching.heard[-1], model)
    made = LEDGER | {"config.toml", "model.npz", "plan.json", "report.html", "rounds.parquet", "summary.json"}
    assert {each.name for each in folder.path.iterdir()} == made
    assert result.summary.statement == sentence(prepared.planned.plan.guarantee)
    assert flower_here.error is None


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
    tmp_path: Path, flower_here: FlowerHere, model: np.ndarray, left: list[int]
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
    flower_here.thread.join()  # type: ignore[union-attr]
    np.testing.assert_array_equal(quoron.resume(folder.path).weights, model)
    assert left == []


def test_the_text_of_a_client_s_exception_is_nowhere_in_the_run_folder(tmp_path: Path, flower_here: FlowerHere) -> None:
    prepared, folder = prepared_in(tmp_path / "run")
    flower_here.grid.app = make_app(Failing(Rows()))
    with pytest.raises(RunError) as raised:
        simulate(prepared, folder)
    assert SECRET not in str(raised.value)
    assert not any(SECRET.encode() in each.read_bytes() for each in folder.path.iterdir())


def test_an_end_without_a_word_is_told_with_flower_s_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flower_here: FlowerHere
) -> None:
    prepared, folder = prepared_in(tmp_path / "run")
    monkeypatch.setattr(flower_simulation, "_ASK", 0.0)
    monkeypatch.setattr(flower_here, "run", lambda app, federation=None: 7)
    monkeypatch.setattr(flower_here, "status_and_details", lambda run: ("finished:failed", "no such component"))
    with pytest.raises(
        RunError, match=r"finished:failed no such component.*quoron resume .*--engine flower or without"
    ):
        simulate(prepared, folder)
    assert (folder.path / flower_simulation.LOG).read_text() == "what Flower logged\n"


def test_without_ray_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_ray, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install"):
        simulate(*prepared_in(tmp_path / "run"))


# Choosing an engine.


@pytest.mark.parametrize(
    ("choice", "says"),
    [
        ({"nodes": 0}, "Expected nodes to be an integer >= 1, got nodes=0"),
    ],
)
def test_options_that_do_not_go_together_are_refused(choice: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Flower(**choice)


# Two processes.


def test_a_serverapp_that_is_no_longer_wanted_leaves_and_one_that_comes_later_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, path = threading.Event(), tmp_path / flower_simulation.EVENTS
    monkeypatch.setattr(flower_simulated.os, "_exit", lambda code: gone.set())
    path.touch()
    with Events(path) as events:
        assert json.loads(path.read_text())["process"] == os.getpid()
        path.unlink()
        assert gone.wait(HANGS)
        events.said("nobody reads it")
    with pytest.raises(RunError, match="still wanted"), Events(path):
        pass
    assert not path.exists()


def test_a_data_frame_runs_on_flower(tmp_path: Path, flower_here: FlowerHere) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"who": np.repeat(np.arange(80), 3), "x": rng.uniform(-1, 1, 240), "y": rng.integers(0, 2, 240)}
    )
    options = {"user": "who", "label": "y", "columns": {"numeric": {"x": (-1.0, 1.0)}}, "settings": SMALL[3:]}
    there = quoron.simulate(frame, out=tmp_path / "flower", engine="flower", **options)
    assert flower_here.thread is not None
    np.testing.assert_array_equal(there.weights, quoron.simulate(frame, out=tmp_path / "inline", **options).weights)
