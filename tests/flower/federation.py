"""A federation of Flower for the tests: the loopback example as a library, and runs that are submitted to it."""

import importlib.util
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from federation.crowd import FEW, SEED, Without, from_items, inline_model, specification, write_items
from quoron.federation.flower_simulation import environment
from quoron.federation.submission import write_app
from quoron_client.protocol.questions import Status
from quoron_server.specification import RunSpecification

AWAY_SECONDS = 900.0  # seconds, on a machine that does much else
# What is feasible with so few users, and how.
SMALL: dict[str, dict[str, Any]] = {
    "accelerated-sgd": {"rounds": 3},
    "accelerated-srgd": {"rounds": 3},
    "dp-ftrl": {"rounds": 2},
    "dp-sgd-poisson": {"rounds": 2, "rate": 0.5},
    "dp-sgd-wor": {"rounds": 2, "rate": 0.6},
    "group-phased-sgd": {"rounds": 2, "phases": 2},
    "recentred-sgd": {"rounds": 2, "rate": 0.6},
    "one-pass-dp-sgd": {"rounds": 2},
    "online-to-batch": {"rounds": 2},
    "phased-sgd": {},
    "sgd": {"rounds": 2},
    "srgd": {"rounds": 2},
}
EXAMPLE = Path(__file__).parents[2] / "examples" / "flower" / "loopback.py"
LARGE = sorted(set(FEW) - set(SMALL))


def _loopback() -> ModuleType:
    made = importlib.util.spec_from_file_location("loopback", EXAMPLE)
    module = importlib.util.module_from_spec(made)
    sys.modules["loopback"] = module
    made.loader.exec_module(module)
    return module


_EXAMPLE = _loopback()
Loopback, Process = _EXAMPLE.Loopback, _EXAMPLE.Process
FlowerConnection, program = _EXAMPLE.FlowerConnection, _EXAMPLE.program


def small(name: str, run: str, users: int, **changes: object) -> RunSpecification:
    """A run of `users` that is done in seconds."""
    problem = replace(specification(name).problem, users=users)
    usual = {"problem": problem, "options": SMALL[name], "seconds": 300.0, "early_ends": True}
    return specification(name, run, **(usual | changes))


@contextmanager
def federation(folder: Path, users: int, *, start: bool = True) -> Iterator[Any]:
    """So many users with the items of `from_items`, who take part in anything; all there unless told otherwise."""
    (folder / "items").mkdir(parents=True)
    accepts = {"limit": "inf,inf", "accept": "none,central-release,central-broadcast,local"}
    configs = [
        {"data": str(path), "simulation-seed": str(SEED), **accepts} for path in write_items(folder / "items", users)
    ]
    with Loopback(folder, configs, QUORON_ALLOW_SIMULATION="1") as running:
        for number in range(users if start else 0):
            running.start_node(number)
        yield running


def submit(running: Any, wanted: RunSpecification, *, waiting: float = 300.0) -> int:
    """Number of the run that Flower starts of an app."""
    write_app(app := running.folder / "apps" / wanted.run, wanted, waiting=waiting)
    return int(running.connection().call("run", str(app), "here")["run-id"])


def status(running: Any, number: int) -> str:
    """Of a run, and why it is that."""
    (run,) = running.connection().call("list", "here", "--run-id", str(number))["runs"]
    return f"{run['status']} {run.get('status-details') or ''}".strip()


def log_of(running: Any, number: int) -> str:
    """What the ServerApp of a run has written."""
    words = [program("flwr"), "log", str(number), "here", "--show"]
    return subprocess.run(
        words, env=environment(running.connection().home), capture_output=True, text=True, check=False
    ).stdout


def until(condition: Callable[[], Any], running: Any, number: int | None = None) -> Any:
    """Wait for something that is true; fail with the logs if Flower's run `number` ends without it."""
    ends, asked = time.monotonic() + AWAY_SECONDS, time.monotonic()
    while not (found := condition()):
        over = time.monotonic() > ends
        if number is not None and time.monotonic() - asked > 20:
            asked = time.monotonic()
            state = status(running, number)
            over = over or (state.startswith("finished") and not condition())
            assert not over, f"{state}\n{log_of(running, number)[-4000:]}"
        assert not over, f"not within {AWAY_SECONDS:g} seconds"
        time.sleep(0.2)
    return found


def model_of(running: Any, wanted: RunSpecification, number: int) -> np.ndarray:
    """The model of a run, once it is there."""
    path = running.results / wanted.run / "model.npz"
    until(path.exists, running, number)
    with np.load(path) as stored:
        return stored["model"]


def expected(wanted: RunSpecification, folder: Path) -> np.ndarray:
    """The model of the inline engine."""
    folder.mkdir(exist_ok=True)
    return inline_model(wanted, folder, from_items(wanted.problem.users))


def without(wanted: RunSpecification, folder: Path, *, user: int, first: int = 0) -> np.ndarray:
    """The model if a user answers in no round from the `first` on."""
    engine = Without(from_items(wanted.problem.users), {user: Status.MISSING}, range(first, 1000))
    return inline_model(wanted, folder, engine=engine)


def questions(running: Any, number: int, run: str) -> list[tuple[int, bytes]]:
    """Round and digest of every question that a user has answered in a run, by its own record."""
    return _rows(running.node(number) / "record.sqlite", "SELECT round, digest FROM answers WHERE run = ?", run)


def rounds_answered(running: Any, run: str) -> int:
    """How many rounds of a run somebody has answered; the store is closed to others while it goes on."""
    return len(
        {round_number for user in range(len(running.users)) for round_number, _ in questions(running, user, run)}
    )


def members(database: Path, run: str) -> list[int]:
    """Users by slot, once the run has ended."""
    return [row[0] for row in _rows(database, "SELECT user FROM slots WHERE run = ? ORDER BY slot", run)]


def _rows(path: Path, query: str, run: str) -> list[Any]:
    if not path.exists():
        return []
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)
    try:
        return connection.execute(query, (run,)).fetchall()
    except sqlite3.OperationalError:  # not there yet, or being written
        return []
    finally:
        connection.close()


def children(process: int) -> list[int]:
    """Numbers of the processes that a process has started."""
    path = Path(f"/proc/{process}/task/{process}/children")
    return [int(each) for each in path.read_text().split()] if path.exists() else []


def descendants(process: int) -> list[int]:
    found = children(process)
    return found + [each for child in found for each in descendants(child)]


def command(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def serverapp(running: Any) -> int | None:
    """Number of the process that carries the run out."""
    return next((each for each in descendants(running.superexec.number) if "flwr-serverapp" in command(each)), None)


def kill(process: int) -> None:
    os.kill(process, 9)
