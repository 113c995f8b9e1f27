"""Starting and ending a local federation from the process of a command.

with Local(folder, order) as local:
    local.ready()                   # everybody is there
    ...                             # local.operator() is a connection to its control plane

One that is there to be operated, until it is stopped:

start(Path("federation"), config, base, clients=20)
print(words(status(Path("federation"))))
stop(Path("federation"))
"""

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from types import TracebackType
from typing import Any

from quoron.config import Config
from quoron.engine.processes import ALONE, Program, send
from quoron.federation.client_items import give_tables, silos_in
from quoron.federation.control import Control
from quoron.federation.folder import ORDER, RUNNING, Folder, Order
from quoron_client.durable import OWN, make_folder
from quoron_privacy.errors import ConfigError, QuoronError, RunError

LOG = "supervisor.log"
# Looking for garbage among what is imported would take a tenth of the time.
COMMAND = "import gc; gc.disable(); from quoron.federation.programs import main; main()"
LOGS = "coordinator.log", LOG
TIMEOUT = 300.0  # seconds between two signs of life while a federation starts
# Completion queues of gRPC look at sockets themselves, with no thread between: an eighth of the coordinator's time.
# A release that no longer knows these words passes them over.
POLLING = {
    "GRPC_EXPERIMENTS": "-event_engine_listener,-event_engine_client,-event_engine_for_all_other_endpoints",
}
Report = Callable[[str], None]


class Local:
    """The processes of one federation, which end with this one unless they are detached. A context manager."""

    def __init__(self, folder: Folder, order: Order) -> None:
        """`folder` has everybody's identity and items."""
        self.folder, self.order = folder, order
        self._program: Program | None = None
        self._ours: Connection | None = None
        self._detached = False
        self.listen = self.control = ""

    def __enter__(self) -> "Local":
        make_folder(self.folder.path, mode=OWN)
        with self.folder.lock() as lock:
            if lock is None:
                raise ConfigError(f"Expected a federation that is stopped in {self.folder.path}, got one that runs.")
            (self.folder.path / RUNNING).unlink(missing_ok=True)  # of one that was killed: others may have its numbers
            self.folder.write(ORDER, asdict(self.order))
            self._launch(lock)
        return self

    def _launch(self, lock: int) -> None:
        """Start the supervisor, whose the lock is from now on."""
        self._ours, theirs = Pipe()
        try:
            with theirs:
                self._program = Program(
                    [sys.executable, "-P", "-c", COMMAND, str(self.folder.path.resolve()), str(theirs.fileno())],
                    environment=POLLING | os.environ | ALONE,
                    log=self.folder.path / LOG,
                    files=[theirs.fileno(), lock],
                )
        except BaseException as error:
            self._ours.close()
            if self.order.passing:
                shutil.rmtree(self.folder.path, ignore_errors=True)
            if isinstance(error, OSError):
                raise RunError(f"Expected room for another process, got none: {error.strerror}.") from None
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._ours is not None
        assert self._program is not None
        lost, said = self._program.code is not None, self.folder.last_words(*LOGS)
        self._ours.close()
        if self._detached:
            self._program.detach()
            return
        self._program.wait()
        if self.order.passing:
            shutil.rmtree(self.folder.path, ignore_errors=True)  # if its supervisor was killed
        if lost and isinstance(error, QuoronError):  # what follows from it says less
            raise RunError(f"The local federation has ended. {said}") from None

    def begin(self) -> None:
        """Start everybody, now that all is there."""
        self._say("begin")

    def ready(self, report: Report = lambda _: None) -> None:
        """Wait until every client is in conversation with the coordinator. RunError if that cannot be."""
        here, reported, began = 0, -1, time.monotonic()
        while here < self.order.clients:
            if (tenth := 10 * here // self.order.clients) != reported:
                reported = tenth
                report(f"{here:,} of {self.order.words}")
            said = self._next(f"{here:,} of {self.order.clients:,} clients are here.")
            if "failed" in said:
                raise RunError(f"The local federation does not start. {said['failed']}")
            if "listening" in said:
                self.listen, self.control = said["listening"]
            here = said.get("here", here)
        report(f"{self.order.words}: all here after {time.monotonic() - began:.1f} s")

    def check(self) -> None:
        """Raise RunError if its processes are gone, or one of them has failed."""
        assert self._program is not None
        assert self._ours is not None
        with suppress(EOFError, OSError):
            while self._ours.poll():
                if failed := self._ours.recv().get("failed"):
                    raise RunError(f"The local federation has ended. {failed}")
        if self._program.code is not None:
            raise RunError(f"The local federation has ended. {self.folder.last_words(*LOGS)}")

    def operator(self) -> Control:
        """Return a connection to the control plane."""
        return Control(self.control, self.folder.token, self.folder.authority)

    def stop(self) -> None:
        """End all processes in order, and keep the folder."""
        self._say("stop")
        while "stopped" not in self._next():
            pass

    def detach(self) -> None:
        """Leave everything running, whatever becomes of this process."""
        self._detached = True  # first: an interrupt between the two finds nothing that has to be waited for
        self._say("keep")

    def _say(self, word: str) -> None:
        assert self._ours is not None
        with suppress(OSError):
            self._ours.send(word)

    def _next(self, so_far: str = "") -> dict[str, Any]:
        assert self._ours is not None
        if not self._ours.poll(TIMEOUT):
            raise RunError(
                f"Expected a sign of life of the local federation within {TIMEOUT:g} s, got none. {so_far} Its "
                f"logs are in {self.folder.path}: {self.folder.last_words(*LOGS)}"
            )
        try:
            return dict(self._ours.recv())
        except (EOFError, OSError):
            said = self.folder.last_words(*LOGS)
            raise RunError(f"The local federation has ended. Its logs are in {self.folder.path}: {said}") from None


def stop(path: Path, seconds: float = 60.0) -> bool:
    """End a federation that was kept; whether there was one. RunError if it does not end."""
    folder = Folder(path)
    if not folder.runs:
        return False
    supervisor, asked, ends = None, None, time.monotonic() + seconds
    while folder.runs:
        supervisor = folder.read(RUNNING).get("supervisor")  # none yet, while it starts
        if supervisor is not None and supervisor != asked:
            send(supervisor, signal.SIGTERM)
            asked = supervisor
        if time.monotonic() > ends:
            raise RunError(f"Expected the federation in {folder.path} to end, but process {asked} is still there.")
        time.sleep(0.05)
    return True


FEW = 20  # clients, where nobody says how many


def start(
    path: Path,
    config: Config | None,
    base: Path,
    *,
    clients: int | None = None,
    listen: str,
    control: str,
    report: Report = lambda _: None,
) -> dict[str, Any]:
    """Start a coordinator and its clients, which go on; what `status` says then.

    A folder that is there goes on with its keys, items, store and records, with more clients if so many are wanted: of
    the configuration that it was started with, which need not be given again. Of one with population.silos there is a
    client for each. Raises ConfigError for another one, for a folder that runs, where there are fewer users than
    clients, and for other clients than silos.
    """
    folder = Folder(path)
    found = silos_in(folder, config, base)
    user, silos = (None, None) if found is None else found
    count = clients or FEW if silos is None else len(silos.sizes)
    if clients not in (None, count):
        raise ConfigError(f"Expected a client for each of {count:,} silos, got --clients {clients}. Leave it out.")
    order = Order(
        clients=count,
        listen=listen,
        control=control,
        user=user,
        people=() if silos is None else silos.sizes,
    )
    with Local(folder, order) as local:  # first: it alone has the folder
        folder.make(count)
        give_tables(folder, config, base, count, silos)
        local.begin()
        local.ready(report)
        local.detach()
    return status(path)


def status(path: Path) -> dict[str, Any]:
    """Where it listens, how many clients and users there are, and how many clients in conversation: 0 at first."""
    folder = Folder(path)
    if not folder.runs:
        return {"running": False, "folder": str(folder.path)}
    order = folder.read(ORDER) | {"here": 0, "processes": ()} | folder.read(RUNNING)
    fields = {name: order.get(name) for name in ("listen", "control", "clients", "here", "supervisor")}
    fields["users"] = sum(order["people"]) or order["clients"]
    return {"running": True, "folder": str(folder.path)} | fields | {"processes": len(order["processes"])}


def words(found: Mapping[str, Any]) -> str:
    """Return what `status` found, for people, and how a run is submitted to it."""
    if not found["running"]:
        return f"{found['folder']}: does not run"
    return (
        f"{found['folder']}: {found['here']} of {found['clients']} clients are here, in {found['processes']} "
        f"processes\nclients {found['listen']}, operators {found['control']}\n"
        f"quoron login {found['control']} --token-file {found['folder']}/operator/token "
        f"--authority {found['folder']}/operator/authority.pem\n"
        f"quoron submit {found['folder']}/run.toml --run trial --users {found['users']} --timeout 2"
    )
