"""A simulated population on Flower's nodes: the ServerApp carries a run out, the ClientApps compute its users' answers.

Both read one configuration from the run config and draw the same users from it, so nothing but questions and answers
crosses between them; the bits are those of the inline engine. The run config has the configuration's file (`preset`),
the run folder (`folder`), and a file for the lines of `Events` (`events`), for the caller, who follows the run.

A node that holds a user's `data` takes no part, unless its owner lets it simulate (`simulation-seed`).
"""

import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any

from flwr.app import Context, RecordDict
from flwr.serverapp import Grid, ServerApp

from quoron.config import Config
from quoron.engine.inline import InlineEngine
from quoron.run_folder import RunFolder
from quoron.simulation import run as runs
from quoron.simulation.problem import setup
from quoron.simulation.sources import resolve
from quoron_client.flower.serving import make_app
from quoron_client.protocol.flower_records import NOT_SIMULATED, Values, answered
from quoron_privacy.errors import QuoronError, RunError
from quoron_server.flower.engine import FlowerEngine, NodeFailed, Shards
from quoron_server.rounds import Observer, RoundEvent
from quoron_server.serial import dumps

RUN = "simulation"
SECONDS = 3600.0  # until a round closes: nobody is late in a simulation, but a process may die
WAITING = 600.0  # for nodes to be there
_LOOK = 0.5  # seconds between two looks whether a run is still wanted
_TOLD = 5.0  # seconds between two words of how many nodes have come, or answered
Settings = Mapping[str, Any]


def answer(values: Values, context: Context) -> RecordDict:
    """Return the answers of a partition's users who are asked, in their order, computed as the inline engine does."""
    engine, seed = _engine(tuple(sorted(context.run_config.items())))
    return answered(values, lambda question: engine.rows(replace(question, task=question.task.directed(seed))))


@lru_cache(maxsize=2)
def _engine(settings: tuple[tuple[str, Any], ...]) -> tuple[InlineEngine, int]:
    """Return the same for every message of a process."""
    config = read(dict(settings))
    engine = setup(config, Path.cwd()).engine
    assert isinstance(engine, InlineEngine)
    return engine, config.run.seed


def read(settings: Settings) -> Config:
    """Return the configuration of a run config."""
    return resolve(str(settings["preset"]))[0]


class Events(Observer):
    """Writes what happens into a file, a line of JSON each, and ends this process when that is gone.

    The file's folder is removed with the process that started the run, however that ends. A context manager.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._over = path, threading.Event()

    def __enter__(self) -> "Events":
        if not self._path.exists():
            raise RunError("Expected a run that is still wanted, got one whose command has ended.")
        threading.Thread(target=self._end_when_unwanted, daemon=True).start()
        self._tell(kind="started", process=os.getpid())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        if error is None:
            self._tell(kind="ended")
        elif isinstance(error, QuoronError):
            self._tell(kind="ended", error=type(error).__name__, message=str(error))
        else:
            self._tell(kind="ended", error="RunError", message=f"The ServerApp failed: {type(error).__name__}: {error}")

    def said(self, text: str) -> None:
        """What is waited for."""
        self._tell(kind="waiting", what=text)

    def round_finished(self, event: RoundEvent) -> None:
        """One line a round."""
        self._tell(kind="round", event=asdict(event))

    def _tell(self, **event: Any) -> None:
        with suppress(FileNotFoundError), open(self._path, "r+", encoding="utf-8") as lines:
            lines.seek(0, os.SEEK_END)
            lines.write(dumps(event) + "\n")

    def _end_when_unwanted(self) -> None:
        while self._path.exists():
            if self._over.wait(_LOOK):
                return
        os._exit(1)  # the ledger holds all that counts, at every moment


def carry_out(grid: Grid, context: Context) -> None:
    """The main of the ServerApp: a run in its folder, from wherever its ledger stands."""
    settings = context.run_config
    with Events(Path(str(settings["events"]))) as observer:
        prepared, folder = runs.prepare(read(settings), Path.cwd()), RunFolder(Path(str(settings["folder"])))
        fleet = Shards.found(grid, run=RUN, seconds=WAITING, progress=_Counting(observer, "nodes are there"))
        ways: dict[str, Any] = {
            "early_ends": True,
            "demanding": True,
            "progress": _Counting(observer, "nodes have answered"),
        }
        engine = FlowerEngine(grid, fleet, RUN, prepared.scene.problem, SECONDS, **ways)
        try:
            runs.carry_out(replace(prepared, scene=replace(prepared.scene, engine=engine)), folder, [observer])
        except NodeFailed as error:
            how = f"Nothing is lost: `quoron resume {folder.path}` goes on without Flower, and shows what fails."
            raise NodeFailed(f"{error} {how}") from None


class _Counting:
    """Tells an observer how many have come, now and then: the data are made up."""

    def __init__(self, observer: Events, what: str) -> None:
        self._observer, self._what, self._due = observer, what, time.monotonic() + _TOLD

    def __call__(self, answered: int, asked: int) -> None:
        if (now := time.monotonic()) >= self._due:
            self._due = now + _TOLD
            self._observer.said(f"{answered:,} of {asked:,} {self._what}")


def _real(context: Context) -> str | None:
    """Return why not on this node: a run config, which says what is read, is not its owner's."""

    def given(key: str) -> Any:
        return context.node_config.get(key, os.environ.get(f"QUORON_{key.upper().replace('-', '_')}", ""))

    simulates = given("simulation-seed") not in ("", "none")
    return NOT_SIMULATED if given("data") != "" and not simulates else None


client_app = make_app(answer, _real)
server_app = ServerApp()
server_app.main()(carry_out)
