"""The ServerApp of a federation, as the installed package offers it: `quoron.federation.flower_app:server_app`.

What the operator decides stands in the environment of the ServerApp's process, not in what a run's submitter sends:

| environment              | meaning                                                                        |
| ------------------------ | ------------------------------------------------------------------------------ |
| QUORON_DATABASE         | where the store is kept: sqlite:///FILE or postgresql://USER@HOST/NAME        |
| QUORON_RESULTS          | folder for models, plans and ledgers of complete runs                          |
| QUORON_SUPERNODE_AUTH   | "1": the SuperLink runs with --enable-supernode-auth, so that a key is a user  |
| QUORON_GROUP            | whose lifetime budget every run here draws on; "everyone" unless told          |
| QUORON_MAX_USERS_PER_CLIENT| for how many a node may answer as a silo, each of them a user; 1 unless told   |
| QUORON_ALLOW_SIMULATION | "1": accept runs with seeded noise, from nodes without authentication          |
"""

import logging
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from quoron.flower.training import allows_simulation, require_users, speak
from quoron.run_folder import RunFolder
from quoron_client.durable import make_folder
from quoron_privacy.errors import ConfigError, QuoronError
from quoron_server.flower.serving import Ended, serve
from quoron_server.storage.registry import EVERYONE
from quoron_server.wording import plan_json

_log = logging.getLogger("quoron")
server_app = ServerApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Carry out the run of the run config's `specification`, and keep what it released."""
    speak()
    try:
        _write_results(*_carried_out(grid, context.run_config, os.environ))
    except QuoronError as error:
        _log.error("%s", error)
        raise


def _carried_out(grid: Grid, settings: Mapping[str, Any], environment: Mapping[str, str]) -> tuple[Ended, Path]:
    """Return what a run released, and the folder for it."""
    require_users(environment)
    results, waiting = Path(_given(environment, "QUORON_RESULTS")), settings.get("waiting")
    ended = serve(
        grid,
        str(settings.get("specification", "")),
        _given(environment, "QUORON_DATABASE"),
        waiting=float(waiting) if isinstance(waiting, int | float) else math.nan,  # which is refused
        group=environment.get("QUORON_GROUP") or EVERYONE,
        allow_simulation=allows_simulation(environment),
        max_users=_whole(environment.get("QUORON_MAX_USERS_PER_CLIENT") or "1"),
    )
    return ended, results / ended.specification.run


def _whole(said: str) -> int:
    if not said.isdecimal() or int(said) < 1:
        raise ConfigError(f"Expected QUORON_MAX_USERS_PER_CLIENT to be a whole number of persons >= 1, got {said!r}.")
    return int(said)


def _write_results(ended: Ended, folder: Path) -> None:
    make_folder(folder)
    results = RunFolder(folder)
    results.write_json("plan.json", plan_json(ended.plan))
    results.write_json("ledger.json", {"run": ended.specification.run, "state": "complete", **ended.ledger})
    results.write_model(ended.model)
    _log.info("the model is in %s", folder)


def _given(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name, "")
    if not value:
        raise ConfigError(f"Expected {name} in the environment of the ServerApp, got none.")
    return value
