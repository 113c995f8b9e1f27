"""A simulation carried out by Flower: users spread over its simulated nodes, one SuperLink for the time of the run.

    result = simulate(prepared, folder, engine=Flower(nodes=50, cpus=2))

The bits are those of the inline engine, so either may continue what the other began. The ServerApp writes what happens,
a line of JSON each, into a file of this run's scratch folder (`simulated.Events`); where that is gone, it ends.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quoron.engine import on_ray
from quoron.engine.choice import Flower
from quoron.engine.processes import own_error
from quoron.engine.processors import free_port
from quoron.federation.flower_commands import FlowerConnection, Process, last_error, write_bundle
from quoron.federation.flower_superlink import MARK
from quoron.planning.plans import Prepared
from quoron.run_folder import RunFolder
from quoron.simulation import run as runs
from quoron.simulation.problem import Setup
from quoron.simulation.run import SimulatedRun
from quoron_client.durable import public
from quoron_privacy.errors import ConfigError, RunError
from quoron_server.rounds import Observer, RoundEvent

GATED = sys.platform == "linux"  # where the kernel says whose the other end of a connection is
COMPONENTS = {
    "server": "quoron.federation.flower_simulated:server_app",
    "client": "quoron.federation.flower_simulated:client_app",
}
NODES, FLOWER = 50, Flower()
LOG = "flower.log"  # in the run folder
EVENTS = "events.jsonl"  # in the scratch folder
_LOOK, _ASK = 0.1, 15.0  # seconds between two looks at the run's events, and without any until its state is asked


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
    nodes = min(engine.nodes or NODES, prepared.scene.problem.users)
    follower = _Follower(prepared, folder, observers)
    with on_ray.Place.made() as place:  # Flower starts Ray in what comes after it, with its environment
        runs.tell(observers, "starting Flower")
        with superlink(place, folder.path / LOG) as (connection, check):
            runs.tell(observers, f"starting {nodes} nodes")
            (events := place.folder / EVENTS).touch()
            where = folder.path.resolve()
            settings = {"preset": str(where / "config.toml"), "folder": str(where), "events": str(events)}
            app = write_bundle(place.folder / "app", name="quoron-simulation", settings=settings, **COMPONENTS)
            sizes = (
                f"num-supernodes={nodes} init-args-num-cpus={engine.cpus or os.cpu_count() or 1} "
                "client-resources-num-cpus=1 "
                "init-args-log-to-driver=false"  # what goes wrong in a client is not the server's to know
            )
            follower.follow(connection, connection.run(app, federation=sizes), events, check)
        (folder.path / LOG).unlink(missing_ok=True)  # nobody reads it unless something failed
    result = runs.stored(prepared, folder)
    for observer in observers:
        observer.finished(result.model)
    return result


@contextmanager
def superlink(place: on_ray.Place, log: Path) -> Iterator[tuple[FlowerConnection, Callable[[], None]]]:
    """A SuperLink of our own in Flower's simulation, of which nothing outlives this process; raises if it has ended."""
    home, own, port = place.folder / "home", place.folder / "t", free_port()
    own.mkdir()
    connection = FlowerConnection(home, f"127.0.0.1:{port}")
    connection.begin()
    here = ("--host", "127.0.0.1", "--port", str(port))
    arguments: tuple[str, ...] = ("--insecure", "--simulation", "--isolation", "subprocess", *here)
    name = "python" if GATED else "flower-superlink"
    if GATED:
        arguments = ("-m", "quoron.federation.flower_superlink", *arguments)
    more = place.environment | {"TMPDIR": str(own)}
    with Process(name, arguments, home=home, log=log, more=more, folders=[place.folder]) as process:
        process.healthy(f"http://127.0.0.1:{port}/health")
        if GATED:  # this SuperLink carries out what it is given
            process.healthy(f"http://127.0.0.1:{port}{MARK}")
        yield connection, process.check


@dataclass(slots=True)
class _Follower:
    """Tells observers of a run's rounds, and leaves when it has ended."""

    prepared: Prepared[Setup]
    folder: RunFolder
    observers: Sequence[Observer]
    started: bool = False
    process: int | None = None  # of the ServerApp

    def follow(self, connection: FlowerConnection, run: int, events: Path, check: Callable[[], None]) -> None:
        """Return when the run is complete; its own error if it failed."""
        heard, line = time.monotonic(), b""
        with events.open("rb") as file:
            while True:
                over = "its process has died" if self._is_dead() else ""
                if time.monotonic() - heard >= _ASK:  # for long nothing was written, and asking Flower takes seconds
                    with suppress(RunError):  # if its SuperLink has ended, `check` sees that
                        status, details = connection.status_and_details(run)
                        over = f"{status} {details}" if status.startswith("finished") else over
                    heard = time.monotonic()
                while (line := line + file.readline()).endswith(b"\n"):
                    if self._is_end(json.loads(line)):
                        return
                    heard, line = time.monotonic(), b""
                if over:
                    raise self._failed(connection, run, over)
                check()
                time.sleep(_LOOK)

    def _is_end(self, event: dict[str, Any]) -> bool:
        """Tell what has happened; its error if it is one."""
        if event["kind"] == "started":
            self.process = int(event["process"])
        elif event["kind"] == "waiting":
            runs.tell(self.observers, event["what"])
        elif event["kind"] == "round":
            for observer in self.observers:
                if not self.started:
                    observer.started(self.prepared.planned.plan)
                observer.round_finished(RoundEvent(**event["event"]))
            self.started = True
        elif "error" in event:
            raise own_error(event["error"], event["message"])
        return bool(event["kind"] == "ended")

    def _is_dead(self) -> bool:
        """Return whether the ServerApp's process does not run any more: Flower leaves those that have ended unread."""
        if self.process is None:
            return False
        try:
            stat = Path(f"/proc/{self.process}/stat").read_bytes()
            return stat.rpartition(b")")[2].split()[0] in (b"Z", b"X")
        except (OSError, IndexError):
            pass  # gone, or a system without /proc
        try:
            os.kill(self.process, 0)
        except ProcessLookupError:
            return True
        return False

    def _failed(self, connection: FlowerConnection, run: int, why: str) -> RunError:
        log, said = self.folder.path / LOG, connection.log(run)
        with open(log, "a", encoding="utf-8", opener=public) as text:
            text.write(said)
        return RunError(
            f"Flower ended the run: {why}. Its log is {log}. Nothing is lost: continue with "
            f"`quoron resume {self.folder.path}`, with --engine flower or without.{last_error(said)}"
        )
