"""A simulated population on Flower's nodes: the ServerApp carries a run out, the ClientApps compute its users' answers.

Both read one configuration from the run config and draw the same users from it, so nothing but questions and answers
crosses between them; the bits are those of the inline engine. The run config of `flwr run`, where "" is unset:

| key                | meaning                                                                            |
| ------------------ | ---------------------------------------------------------------------------------- |
| `preset`           | a preset's name, or the path of a TOML file that every node sees                   |
| `folder`           | run folder; a run of the same configuration there goes on                          |
| `set`              | further keys, such as "algorithm.options.rounds=5; domain.radius=2"                |
| any with a dot     | that key of the configuration, such as `privacy.epsilon`                           |
| `config`, `base`   | instead of a preset: a configuration's text, and where its table's path begins     |
| `token`            | of whoever started the run and follows it in the folder; see `quoron.federation.flower_claim` |

A node that holds a user's `data` takes no part, unless its owner lets it simulate (`simulation-seed`).
"""

import json
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from flwr.app import Context, RecordDict
from flwr.serverapp import Grid, ServerApp

from quoron import config as configs
from quoron.config import Config
from quoron.engine.inline import InlineEngine
from quoron.federation.flower_claim import ClaimObserver
from quoron.reports.progress import Display
from quoron.run_folder import RunFolder, claim
from quoron.simulation import run as runs
from quoron.simulation.problem import setup
from quoron.simulation.sources import resolve
from quoron_client.flower.serving import make_app
from quoron_client.protocol.flower_records import NOT_SIMULATED, Values, answers_record, question_from_values
from quoron_server.flower.engine import FlowerEngine, NodeFailed
from quoron_server.flower.users import Shards

RUN = "simulation"
SECONDS = 3600.0  # until a round closes: nobody is late in a simulation, but a process may die
WAITING = 600.0  # for nodes to be there
_TOLD = 5.0  # seconds between two words of how many nodes have come, or answered
_log = logging.getLogger("quoron")
Settings = Mapping[str, Any]


class SimulatedUsers:
    """The users of a partition, computed as the inline engine does."""

    def answer(self, values: Values, context: Context) -> RecordDict:
        """The answers of the users who are asked, in their order."""
        engine, seed = _engine(tuple(sorted(context.run_config.items())))
        question = question_from_values(values)
        return answers_record(engine.rows(replace(question, task=question.task.directed(seed))))

    def ended(self, values: Values, context: Context) -> None:
        """Nothing is kept of a run."""


@lru_cache(maxsize=2)
def _engine(settings: tuple[tuple[str, Any], ...]) -> tuple[InlineEngine, int]:
    """The same for every message of a process."""
    config, _, base = read(dict(settings))
    engine = setup(config, base).engine
    assert isinstance(engine, InlineEngine)
    return engine, config.run.seed


def read(settings: Settings) -> tuple[Config, str, Path]:
    """The configuration of a run config, a name for its runs, and where a table's relative path begins."""
    given = [f"{key}={json.dumps(value)}" for key, value in settings.items() if "." in key and value != ""]
    given += [each.strip() for each in str(settings.get("set", "")).split(";") if each.strip()]
    base = Path(str(settings.get("base", "")) or Path.cwd())
    if text := str(settings.get("config", "")):
        return configs.parse(text, "the run config", given), RUN, base
    return *resolve(str(settings.get("preset", "")) or "quickstart", given), base


def carry_out(grid: Grid, context: Context) -> None:
    """The main of the ServerApp: a run in its folder, from wherever its ledger stands."""
    settings = context.run_config
    config, name, base = read(settings)
    if token := str(settings.get("token", "")):
        folder = RunFolder(Path(str(settings["folder"])))
        with ClaimObserver(folder.path, token) as observer:
            _in_folder(grid, config, base, folder, observer)
        return
    if settings.get("folder", ""):
        config = config.model_copy(update={"run": config.run.model_copy(update={"out": str(settings["folder"])})})
    folder = claim(config, name)
    _log.warning("the run folder is %s", folder.path.resolve())
    _in_folder(grid, config, base, folder, Display("lines"))


def _in_folder(grid: Grid, config: Config, base: Path, folder: RunFolder, observer: ClaimObserver | Display) -> None:
    prepared = runs.prepare(config, base)
    fleet = Shards.found(grid, run=RUN, seconds=WAITING, told=_Counting(observer, "nodes are there"))
    told = _Counting(observer, "nodes have answered")
    engine = FlowerEngine(grid, fleet, RUN, prepared.scene.problem, SECONDS, early_ends=True, demanding=True, told=told)
    try:
        result = runs.carry_out(replace(prepared, scene=replace(prepared.scene, engine=engine)), folder, [observer])
    except NodeFailed as error:
        how = f"Nothing is lost: `quoron resume {folder.path}` goes on without Flower, and shows what fails."
        raise NodeFailed(f"{error} {how}") from None
    _log.warning("%s", result.summary.statement)


class _Counting:
    """Tells an observer how many have come, now and then: the data are made up."""

    def __init__(self, observer: ClaimObserver | Display, what: str) -> None:
        self._observer, self._what, self._due = observer, what, time.monotonic() + _TOLD

    def __call__(self, answered: int, asked: int) -> None:
        if (now := time.monotonic()) >= self._due:
            self._due = now + _TOLD
            self._observer.said(f"{answered:,} of {asked:,} {self._what}")


def _real(context: Context) -> str | None:
    """Why not on this node: a run config, which says what is read, is not its owner's."""

    def given(key: str) -> Any:
        return context.node_config.get(key, os.environ.get(f"QUORON_{key.upper().replace('-', '_')}", ""))

    simulates = given("simulation-seed") not in ("", "none")
    return NOT_SIMULATED if given("data") != "" and not simulates else None


client_app = make_app(SimulatedUsers(), _real)
server_app = ServerApp()
server_app.main()(carry_out)
