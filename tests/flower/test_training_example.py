"""The example of a project with private training plugged in does what its pages say."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from flower import federation
from flower.grids import FakeGrid, spread
from quoron.engine.processors import free_ports
from quoron.federation.flower_simulation import environment
from quoron.flower.training import DATABASE_FILE
from quoron_server.storage.database import Database
from quoron_server.storage.ledger import Ledger

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower" / "plug-in"
CONFIG = tomllib.loads((EXAMPLE / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["flwr"]["app"]["config"]
NODES = int(CONFIG["users"])
SEED = {"simulation-seed": 7}


@pytest.fixture(autouse=True)
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Its folder is on the path."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "plugin"]:
        del sys.modules[name]


def in_process(folder: Path, **changed: Any) -> None:
    """A run of the example's two apps over a Grid of this process."""
    from plugin import client_app, server_app

    config = CONFIG | SEED | {"folder": str(folder)} | changed
    grid = FakeGrid(client_app.app, spread(NODES), run_config=config)
    server_app.app(grid, Context(1, 1, {}, RecordDict(), config))


def model(folder: Path) -> np.ndarray:
    with Database(f"sqlite:///{folder}/{DATABASE_FILE}") as database:
        return Ledger.within(database, "private").model


def has_learned(said: str) -> None:
    assert "(8, 0.001)-differential privacy for all items of any one user at once, adjacency replace-one" in said
    before, after = map(float, re.findall(r"accuracy ([\d.]+) before, ([\d.]+) after", said)[0])
    assert before < 0.6
    assert after > 0.65  # seeds 0 to 15 give 0.69 to 0.83


@pytest.mark.slow
def test_the_example_learns_and_says_what_it_promises(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    in_process(tmp_path)
    has_learned(capsys.readouterr().out)


@pytest.mark.slow
def test_killed_on_flowers_simulation_the_example_goes_on_to_the_bits_of_this_process(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install '.[ray]'")
    home, port = tmp_path / "home", free_ports(1)[0]
    federation.FlowerConnection(home, f"127.0.0.1:{port}").begin()
    arguments = ("--insecure", "--simulation", "--isolation", "subprocess", "--host", "127.0.0.1", "--port", str(port))
    sizes = f"num-supernodes={NODES} init-args-num-cpus=2 client-resources-num-cpus=1"
    command = [federation.program("flwr"), "run", str(EXAMPLE), "here", "--stream", "--federation-config", sizes]
    command += ["-c", f'folder="{tmp_path / "run"}" simulation-seed=7']
    with federation.Process("flower-superlink", arguments, home=home, log=tmp_path / "log") as superlink:
        superlink.healthy(f"http://127.0.0.1:{port}/health")
        with subprocess.Popen(command, env=environment(home), stdout=subprocess.PIPE, text=True) as first:
            for line in first.stdout:
                if line.startswith("round 5 of"):
                    kill_simulation(superlink.number)
                    first.terminate()
        again = subprocess.run(command, env=environment(home), capture_output=True, text=True, check=True)
    assert "round 5 of" not in again.stdout
    assert f"round {CONFIG['rounds']} of" in again.stdout
    has_learned(again.stdout)
    in_process(tmp_path / "here")
    np.testing.assert_array_equal(model(tmp_path / "run"), model(tmp_path / "here"))


def kill_simulation(superlink: int) -> None:
    """The ServerApp's process, and all of Ray that it has started."""
    (server,) = (each for each in federation.descendants(superlink) if "flwr-simulation" in federation.command(each))
    for each in [server, *federation.descendants(server)]:
        with suppress(ProcessLookupError):
            federation.kill(each)
