"""A simulation carried out by Flower: users spread over its simulated nodes, in one program for the time of the run.

    result = simulate(prepared, folder, engine=Flower(nodes=50, cpus=2))

The program has a reaper, so that Ray and all that is written for it are gone with this process. Its ServerApp carries
the run out, its ClientApps compute the answers of their users. Both read the configuration in the run's folder and draw
the same users from it, so nothing but questions and answers crosses between them; the bits are those of the inline
engine, and either may continue what the other began. What happens comes back over a pipe.
"""

import os
import re
import sys
import traceback
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from quoron.engine import on_ray
from quoron.engine.choice import Flower
from quoron.engine.inline import InlineEngine
from quoron.engine.processes import Program, reply, result_of
from quoron.planning.plans import Prepared
from quoron.run_folder import RunFolder
from quoron.simulation import run as runs
from quoron.simulation.problem import Setup, setup
from quoron.simulation.run import SimulatedRun
from quoron_client.flower.serving import make_app
from quoron_client.protocol.flower_records import Values, answered
from quoron_privacy.errors import ConfigError, RunError
from quoron_server.flower.engine import FlowerEngine, NodeFailed, Shards
from quoron_server.rounds import Observer, RoundEvent

NODES, FLOWER = 50, Flower()
LOG = "flower.log"  # in the run folder
RUN = "simulation"
SECONDS = 3600.0  # until a round closes: nobody is late in a simulation, but a process may die
WAITING = 600.0  # for nodes to be there
COMMAND = "from quoron.federation.flower_simulation import main; main()"  # importable, for Ray's actors
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_ERRORS = (re.compile(r"^[\w.]*(Error|Exception)\b"), re.compile(r"\bERROR\b|error:"))  # raised; else logged
_LONGEST = 500  # characters of a line that is passed on
_SILENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
}


def simulate(
    prepared: Prepared[Setup], folder: RunFolder, observers: Sequence[Observer] = (), engine: Flower = FLOWER
) -> SimulatedRun:
    """Carry a run out on simulated SuperNodes, which read the configuration in its folder, and return it.

    Raises ConfigError without Ray; RunError, with the run as its ledger holds it, if Flower or a node fails.
    """
    if prepared.config.privacy.min_cohort.participation == "public":
        raise ConfigError(
            "Expected privacy.min_cohort.participation='private' on Flower, got 'public': nodes answer when they have "
            "computed. Use engine inline or service."
        )
    on_ray.require_tokens()
    if runs.begin(prepared, folder):
        return runs.carry_out(prepared, folder, observers)  # complete: nobody is asked
    nodes, log = min(engine.nodes or NODES, prepared.setup.problem.users), folder.path / LOG
    ours, theirs = Pipe(duplex=False)
    for observer in observers:
        observer.started(prepared.planned.plan)
    with on_ray.private_folder() as (scratch, cluster), ours:  # Flower starts Ray in the program, with its environment
        home = scratch / "home"
        sizes = nodes, engine.cpus or os.cpu_count() or 1
        with theirs:
            program = Program(
                [sys.executable, "-P", "-c", COMMAND, *map(str, (folder.path.resolve(), *sizes, theirs.fileno()))],
                environment=environment(home) | cluster,
                log=log,
                files=[theirs.fileno()],
                folders=[scratch],
            )
        with program:
            runs.notify(observers, f"starting {nodes} nodes")
            _follow(ours, observers, program, folder)
    log.unlink(missing_ok=True)  # nobody reads it unless something failed
    result = runs.written(prepared, folder)
    for observer in observers:
        observer.finished(result.model)
    return result


def _follow(ours: Connection, observers: Sequence[Observer], program: Program, folder: RunFolder) -> None:
    """Notify observers until the run is complete; its own error if it failed."""
    while True:
        try:
            kind, what = ours.recv()  # from a program of ours, and nobody else
        except (EOFError, OSError):
            raise RunError(
                f"Flower ended the run. Its log is {program.log}. Nothing is lost: continue with `quoron resume "
                f"{folder.path}`, with --engine flower or without.{last_error(program.written)}"
            ) from None
        if kind != "round":
            return result_of((kind, what))  # type: ignore[no-any-return]
        for observer in observers:
            observer.round_finished(what)


def last_error(log: str) -> str:
    """Return the last error of a log, as words to follow others: what was raised, else what was logged, else nothing.

    >>> last_error("Traceback (most recent call last):\\nOSError: no room\\nERROR :  Exit Code: 200")
    ' Its last error: OSError: no room'
    """
    lines = [_COLOURS.sub("", line).strip() for line in log.splitlines()]
    errors = [line for pattern in reversed(_ERRORS) for line in lines if pattern.search(line)]
    return f" Its last error: {errors[-1][:_LONGEST]}" if errors else ""


def environment(home: Path) -> dict[str, str]:
    """Return the environment of a program of Flower's: its own home, no telemetry, nothing installed unasked."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    return {**os.environ, **_SILENT, "FLWR_HOME": str(home.resolve()), "PATH": path}


# The program.


def main() -> None:
    """Carry a run out on Flower's nodes: `FOLDER NODES CPUS PIPE`."""
    from flwr.simulation import run_simulation

    folder, (nodes, cpus, pipe) = RunFolder(Path(sys.argv[1])), map(int, sys.argv[2:])
    parent, server = Connection(pipe, readable=False), ServerApp()
    server.main()(lambda grid, context: parent.send(carried_out(grid, nodes, folder, RoundSender(parent))))
    # What goes wrong in a client is not the server's to know.
    config: Any = {"init_args": {"num_cpus": cpus, "log_to_driver": False}, "client_resources": {"num_cpus": 1}}
    try:
        run_simulation(server, client_app(folder), nodes, backend_config=config)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # its ServerApp may still wait for answers


class RoundSender(Observer):
    """Sends finished rounds to the process that follows the run."""

    def __init__(self, parent: Connection) -> None:
        self._parent = parent

    def round_finished(self, event: RoundEvent) -> None:
        """After the round's commit."""
        self._parent.send(("round", event))


def carried_out(grid: Grid, nodes: int, folder: RunFolder, observer: RoundSender) -> tuple[str, object]:
    """Carry a run out in its folder, from wherever its ledger stands; return how it ended, for `result_of`."""

    def run(grid: Grid) -> None:
        prepared = runs.prepare(folder.config(), folder.path)
        fleet = Shards.found(grid, nodes, run=RUN, seconds=WAITING)
        engine = FlowerEngine(
            grid,
            fleet,
            RUN,
            prepared.setup.problem,
            SECONDS,
            early_ends=True,
            demanding=True,
        )
        try:
            with prepared.begin(folder) as ledger:
                prepared.run.carry_out(ledger, engine, [observer], evaluate=prepared.setup.evaluate)
        except NodeFailed as error:
            how = f"Nothing is lost: `quoron resume {folder.path}` goes on without Flower, and shows what fails."
            raise NodeFailed(f"{error} {how}") from None

    return reply(run, grid)


def client_app(folder: RunFolder) -> ClientApp:
    """Return the ClientApp of every node."""
    return make_app(partial(_answer, folder.path))


def _answer(folder: Path, values: Values, context: Context) -> RecordDict:
    """Return the answers of a partition's users who are asked, in their order, computed as the inline engine does."""
    engine, seed = _engine(folder)
    return answered(values, lambda question: engine.rows(replace(question, task=question.task.directed(seed))))


@lru_cache(maxsize=2)
def _engine(folder: Path) -> tuple[InlineEngine, int]:
    """Return the same for every message of a process."""
    config = RunFolder(folder).config()
    engine = setup(config, folder).engine
    assert isinstance(engine, InlineEngine)
    return engine, config.run.seed
