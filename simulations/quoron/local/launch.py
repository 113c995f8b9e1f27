"""Starting and ending a local federation from the process of a command.

with Local(folder, order) as local:
    local.ready()                   # everybody is there
    ...                             # local.operator() is a connection to its control plane
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any

from quoron.local.folder import ORDER, RUNNING, Folder
from quoron.local.order import Order, reached
from quoron.operate.control import Address, Control
from quoron.processors import THREADS
from quoron_client.durable import OWN, make_folder, public
from quoron_privacy.errors import ConfigError, QuoronError, RunError

LOG = "keeper.log"
PATIENCE = 300.0  # seconds between two signs of life while a federation starts
# What forks has one thread: no library's own, of linear algebra or of pyarrow's memory.
ALONE = dict.fromkeys(THREADS, "1") | {"JE_ARROW_MALLOC_CONF": "background_thread:false"}
# Completion queues of gRPC look at sockets themselves, with no thread between: an eighth of the coordinator's time.
# A release that no longer knows these words passes them over.
POLLING = {
    "GRPC_EXPERIMENTS": "-event_engine_listener,-event_engine_client,-event_engine_for_all_other_endpoints",
}
PROGRAM = "import gc; gc.disable(); from quoron.local import keeper; keeper.main()"
Shown = Callable[[str], None]


class Local:
    """The processes of one federation, which end with this one unless they are kept. A context manager."""

    def __init__(self, folder: Folder, order: Order) -> None:
        """`folder` has everybody's identity and items."""
        self.folder, self.order = folder, order
        self._process: subprocess.Popen[bytes] | None = None
        self._ours: socket.socket | None = None
        self._heard, self._kept = b"", False
        self.listen = self.control = ""

    def __enter__(self) -> "Local":
        make_folder(self.folder.path, mode=OWN)
        with self.folder.held() as lock:
            if lock is None:
                raise ConfigError(f"Expected a federation that is stopped in {self.folder.path}, got one that runs.")
            (self.folder.path / RUNNING).unlink(missing_ok=True)  # of one that was killed: others may have its numbers
            self.folder.write(ORDER, self.order.as_json())
            self._launch(lock)
        return self

    def _launch(self, lock: int) -> None:
        """Start the keeper, whose the lock is from now on."""
        self._ours, theirs = socket.socketpair()
        try:
            with theirs, open(self.folder.path / LOG, "ab", opener=public) as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-c", PROGRAM, str(self.folder.path.resolve()), str(theirs.fileno())],
                    pass_fds=[theirs.fileno(), lock],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=POLLING | os.environ | ALONE,
                    start_new_session=True,  # an interrupt at the terminal is for this process
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
        assert self._process is not None
        lost, said = self._process.poll() is not None, self._last_words()
        self._ours.close()
        if self._kept:
            self._process.returncode = 0  # nobody waits for it
            return
        self._process.wait()
        if self.order.passing:
            shutil.rmtree(self.folder.path, ignore_errors=True)  # if its keeper was killed
        if lost and isinstance(error, QuoronError):  # what follows from it says less
            raise RunError(f"The local federation has ended. {said}") from None

    @property
    def keeper(self) -> int:
        """The process from which all others come."""
        assert self._process is not None
        return self._process.pid

    def begin(self, order: Order | None = None) -> None:
        """Start everybody, now that all is there; or once more, by another order."""
        if order is not None:
            self.order = order
            self.folder.write(ORDER, order.as_json())
        self._say(b"begin\n")

    def ready(self, shown: Shown = lambda _: None) -> None:
        """Wait until every client is in conversation with the coordinator. RunError if that cannot be."""
        here, told, began = 0, -1, time.monotonic()
        while here < self.order.clients:
            if (tenth := 10 * here // self.order.clients) != told:
                told = tenth
                shown(f"{here:,} of {self.order.words}")
            said = self._next(f"{here:,} of {self.order.clients:,} clients are here.")
            if "failed" in said:
                raise RunError(f"The local federation does not start. {said['failed']}")
            if "listening" in said:
                self.listen, self.control = said["listening"]
            here = said.get("here", here)
        shown(f"{self.order.words}: all here after {time.monotonic() - began:.1f} s")

    def check(self) -> None:
        """RunError if its processes are gone, or one of them has failed."""
        assert self._process is not None
        assert self._ours is not None
        self._ours.setblocking(False)
        with suppress(OSError):
            while data := self._ours.recv(1 << 16):
                self._heard += data
        *lines, self._heard = self._heard.split(b"\n")
        for line in lines:
            if failed := json.loads(line).get("failed"):
                raise RunError(f"The local federation has ended. {failed}")
        if self._process.poll() is not None:
            raise RunError(f"The local federation has ended. {self._last_words()}")

    def operator(self) -> Control:
        """A connection to the control plane."""
        return Control(Address(reached(self.control), self.folder.token, self.folder.authority))

    def stop(self) -> dict[str, Any]:
        """End all processes in order, and keep the folder: processor seconds and largest memory by kind, and who was
        killed as ordered."""
        self._say(b"stop\n")
        while "stopped" not in (said := self._next()):
            pass
        return dict(said["stopped"])

    def keep(self) -> None:
        """Leave everything running, whatever becomes of this process."""
        self._kept = True  # first: an interrupt between the two finds nothing that has to be waited for
        self._say(b"keep\n")

    def _say(self, word: bytes) -> None:
        assert self._ours is not None
        with suppress(OSError):
            self._ours.sendall(word)

    def _next(self, so_far: str = "") -> dict[str, Any]:
        assert self._ours is not None
        self._ours.settimeout(PATIENCE)
        while b"\n" not in self._heard:
            try:
                data = self._ours.recv(1 << 16)
            except TimeoutError:
                raise RunError(
                    f"Expected a sign of life of the local federation within {PATIENCE:g} s, got none. {so_far} Its "
                    f"logs are in {self.folder.path}: {self._last_words()}"
                ) from None
            if not data:
                raise RunError(
                    f"The local federation has ended. Its logs are in {self.folder.path}: {self._last_words()}"
                )
            self._heard += data
        line, _, self._heard = self._heard.partition(b"\n")
        return dict(json.loads(line))

    def _last_words(self) -> str:
        """The last line of a log that says something: the folder may be gone when it is looked for."""
        for name in ("coordinator.log", LOG):
            with suppress(OSError):
                lines = (self.folder.path / name).read_text(encoding="utf-8", errors="replace").strip().splitlines()
                if lines:
                    return f"{name} ends with: {lines[-1][:500]}"
        return "they are empty."


def stop(folder: Folder, seconds: float = 60.0) -> bool:
    """End a federation that was kept; whether there was one. RunError if it does not end."""
    if not folder.runs:
        return False
    keeper, asked, ends = None, None, time.monotonic() + seconds
    while folder.runs:
        keeper = folder.read(RUNNING).get("keeper")  # none yet, while it starts
        if keeper is not None and keeper != asked:
            with suppress(ProcessLookupError):
                os.kill(int(keeper), signal.SIGTERM)
            asked = keeper
        if time.monotonic() > ends:
            raise RunError(f"Expected the federation in {folder.path} to end, but process {asked} is still there.")
        time.sleep(0.05)
    return True
