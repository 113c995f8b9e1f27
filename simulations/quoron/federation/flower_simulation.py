"""A simulation carried out by Flower: users spread over its nodes, one SuperLink for the time of the run.

    result = simulate(prepared, folder, base, nodes=50, cpus=2)

The bits are those of the inline engine, so either may continue what the other began.
"""

import os
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from socket import gethostname
from typing import Any

from quoron.engine import on_ray
from quoron.engine.choice import Flower
from quoron.engine.processors import free_port
from quoron.federation.flower_claim import Claim, alive
from quoron.federation.flower_commands import FlowerConnection, Process, last_error, write_bundle
from quoron.federation.flower_superlink import MARK
from quoron.federation.flower_warden import scratch
from quoron.planning.plans import Prepared
from quoron.run_folder import RunFolder
from quoron.simulation import run as runs
from quoron.simulation.problem import Setup
from quoron.simulation.run import SimulatedRun
from quoron_client.durable import public
from quoron_privacy import errors
from quoron_privacy.errors import QuoronError, RunError
from quoron_server.rounds import Observer, RoundEvent

GATED = sys.platform == "linux"  # where the kernel says whose the other end of a connection is
COMPONENTS = {
    "server": "quoron.federation.flower_simulated:server_app",
    "client": "quoron.federation.flower_simulated:client_app",
}
NODES = 50
LOG = "flower.log"  # in the run folder
_LOOK, _ASK = 0.1, 15.0  # seconds between two looks at the run's events, and two questions for its state
_PATIENCE = 600.0  # seconds that a SuperLink may be away


def simulate(
    prepared: Prepared[Setup],
    folder: RunFolder,
    base: Path,
    observers: Sequence[Observer] = (),
    *,
    nodes: int = NODES,
    cpus: int | None = None,
    connection: FlowerConnection | None = None,
) -> SimulatedRun:
    """Carry a run out on Flower and return it: on `nodes` simulated SuperNodes on `cpus`, or a running federation's.

    A table's relative path is relative to `base`. With a `connection` the nodes are the SuperNodes there: they have
    quoron, their --node-config says partition-id and num-partitions, and the ServerApp sees the run folder. Raises
    ConfigError without Ray or that folder; RunError, with the run as its ledger holds it, if Flower or a node fails.
    """
    if prepared.config.privacy.min_cohort.participation == "public":
        raise errors.ConfigError(
            "Expected privacy.min_cohort.participation='private' on Flower, got 'public': nodes answer when they have "
            "computed. Use engine inline or service."
        )
    if connection is None:
        on_ray.require_tokens()
    if runs.begin(prepared, folder):
        return runs.carry_out(prepared, folder, observers)  # complete: nobody is asked
    follower = _Follower(prepared, folder, observers, base)
    if connection is None:
        follower.alone(min(nodes, prepared.scene.problem.users), cpus or os.cpu_count() or 1)
    else:
        connection.begin()
        with scratch() as place:
            follower.follow(connection, place)
    result = runs.stored(prepared, folder)
    for observer in observers:
        observer.finished(result.model)
    return result


def carry_out(
    prepared: Prepared[Setup], folder: RunFolder, base: Path, observers: Sequence[Observer], engine: Flower
) -> SimulatedRun:
    """Carry a run out on the nodes of an engine; errors as of `simulate`."""
    if engine.superlink is None:
        return simulate(prepared, folder, base, observers, nodes=engine.nodes or NODES, cpus=engine.cpus)
    with scratch() as own:
        there = FlowerConnection(own / "home", engine.superlink, engine.authority)
        return simulate(prepared, folder, base, observers, connection=there)


class _Follower:
    """Starts a run, tells observers of its rounds, and leaves when it has ended."""

    def __init__(self, prepared: Prepared[Setup], folder: RunFolder, observers: Sequence[Observer], base: Path) -> None:
        self._prepared, self._folder, self._observers = prepared, folder, observers
        self._base = base
        self._started = False
        self._process: int | None = None  # of the ServerApp, if it is on this machine

    def alone(self, nodes: int, cpus: int) -> None:
        """On a SuperLink of its own, in Flower's simulation, of which nothing outlives this process."""
        with on_ray.Place.made() as place:  # Flower starts Ray in what comes after it, with its environment
            home, own, port = place.folder / "home", place.folder / "t", free_port()
            own.mkdir()
            connection = FlowerConnection(home, f"127.0.0.1:{port}")
            connection.begin()
            here = ("--host", "127.0.0.1", "--port", str(port))
            arguments: tuple[str, ...] = ("--insecure", "--simulation", "--isolation", "subprocess", *here)
            name = "python" if GATED else "flower-superlink"
            if GATED:
                arguments = ("-m", "quoron.federation.flower_superlink", *arguments)
            more, log = place.environment | {"TMPDIR": str(own)}, self._folder.path / LOG
            self._say("starting Flower")
            with Process(name, arguments, home=home, log=log, more=more, folders=[place.folder]) as superlink:
                superlink.healthy(f"http://127.0.0.1:{port}/health")
                if GATED:  # this SuperLink carries out what it is given
                    superlink.healthy(f"http://127.0.0.1:{port}{MARK}")
                sizes = (
                    f"num-supernodes={nodes} init-args-num-cpus={cpus} client-resources-num-cpus=1 "
                    "init-args-log-to-driver=false"  # what goes wrong in a client is not the server's to know
                )
                self._say(f"starting {nodes} nodes")
                self.follow(connection, place.folder, superlink=superlink, federation=sizes)
                superlink.log.unlink(missing_ok=True)  # nobody reads it unless something failed

    def _say(self, what: str) -> None:
        for observer in self._observers:
            if hasattr(observer, "said"):
                observer.said(what)

    def follow(
        self,
        connection: FlowerConnection,
        scratch: Path,
        *,
        superlink: Process | None = None,
        federation: str | None = None,
    ) -> None:
        """Start the run, and return when it is complete; its own error if it failed."""
        with Claim(self._folder.path, None if superlink is None else superlink.number) as claim:
            settings: dict[str, str | int | float] = {
                "config": self._prepared.config.as_toml(),
                "base": str(self._base.resolve()),
                "folder": str(self._folder.path.resolve()),
                "token": claim.token,
            }
            app = write_bundle(scratch / "app", name="quoron-simulation", settings=settings, **COMPONENTS)
            run = connection.run(app, federation=federation)
            try:
                self._until_ended(claim, connection, run, superlink)
            except KeyboardInterrupt:
                if superlink is None:
                    with suppress(RunError):
                        connection.stop(run)
                raise

    def _until_ended(self, claim: Claim, connection: FlowerConnection, run: int, superlink: Process | None) -> None:
        with _State(connection, run) as state:
            while True:
                why = state.words if state.over else "its process has died" if self._is_dead() else ""
                if any(self._is_end(line) for line in claim.lines()):
                    return
                if why:
                    raise self._failed(connection, run, why)
                if superlink is not None:
                    superlink.check()
                time.sleep(_LOOK)

    def _is_end(self, line: dict[str, Any]) -> bool:
        """Tell what a line says; its error if it is one."""
        if line["kind"] == "started":
            self._process = int(line["process"]) if line["host"] == gethostname() else None
        elif line["kind"] == "waiting":
            self._say(line["what"])
        elif line["kind"] == "round":
            for observer in self._observers:
                if not self._started:
                    observer.started(self._prepared.planned.plan)
                observer.round_finished(RoundEvent(**line["event"]))
            self._started = True
        elif "error" in line:
            raise _named(line["error"], line["message"])
        return bool(line["kind"] == "ended")

    def _is_dead(self) -> bool:
        return self._process is not None and not alive(self._process)

    def _failed(self, connection: FlowerConnection, run: int, why: str) -> RunError:
        log, said = self._folder.path / LOG, connection.log(run)
        with open(log, "a", encoding="utf-8", opener=public) as text:
            text.write(said)
        return RunError(
            f"Flower ended the run: {why}. Its log is {log}. Nothing is lost: continue with "
            f"`quoron resume {self._folder.path}`, with --engine flower or without.{last_error(said)}"
        )


class _State:
    """How a run stands, as Flower says: asked now and then, aside, since asking takes seconds."""

    def __init__(self, connection: FlowerConnection, run: int) -> None:
        self.words, self.over = "", False
        self._connection, self._run = connection, run
        self._enough = threading.Event()

    def __enter__(self) -> "_State":
        threading.Thread(target=self._ask, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()

    def _ask(self) -> None:
        heard = time.monotonic()
        while not self.over and not self._enough.wait(_ASK):
            try:
                status, details = self._connection.status_and_details(self._run)
            except RunError as error:
                self.words, self.over = str(error), time.monotonic() - heard > _PATIENCE
            else:
                heard, self.words, self.over = time.monotonic(), f"{status} {details}", status.startswith("finished")


def _named(kind: str, message: str) -> QuoronError:
    named = getattr(errors, kind, RunError)
    plain = isinstance(named, type) and issubclass(named, QuoronError) and named is not errors.Infeasible
    return named(message) if plain else RunError(message)
