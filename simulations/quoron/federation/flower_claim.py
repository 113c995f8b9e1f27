"""A run folder between two processes: whoever started a run on Flower, and the ServerApp that carries it out.

    with Claim.of(folder, superlink=pid) as claim:      # who starts the run and follows it
        for line in claim.lines(): ...
    with ClaimObserver(folder, token) as observer:      # the ServerApp
        runs.carry_out(prepared, folder, [observer])

The claim says that the run is still wanted, and by whom. Without it the ServerApp ends at once, wherever it is: so a
folder never has a second writer, and a ServerApp that another machine starts in a folder of the same name writes
nothing into it.
"""

import json
import os
import secrets
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quoron.run_folder import write
from quoron_client.durable import public
from quoron_privacy.errors import ConfigError, QuoronError, RunError
from quoron_server.plan import RunPlan
from quoron_server.rounds import RoundEvent
from quoron_server.serial import dumps

CLAIM, LINES = "flower-claim.json", "flower-events.jsonl"
_LOOK = 0.5  # seconds between two looks of the ServerApp at the claim


@dataclass(slots=True)
class Claim:
    """A folder's claim. A context manager; afterwards the ServerApp is gone, or goes as soon as it comes."""

    folder: Path
    superlink: int | None = None  # a process that ends with the run, if its owner cannot end it
    token: str = field(default_factory=lambda: secrets.token_hex(16))
    _read: int = 0

    def __enter__(self) -> "Claim":
        before = _read(self.folder)
        if before.get("host") == socket.gethostname() and alive(int(before["owner"])):
            raise RunError(
                f"Expected a run folder that nobody uses, got {self.folder}, whose run process {before['owner']} "
                "carries out on Flower. Wait for it, or end it."
            )
        (self.folder / LINES).unlink(missing_ok=True)
        owner = {"token": self.token, "host": socket.gethostname(), "owner": os.getpid(), "superlink": self.superlink}
        write(self.folder / CLAIM, dumps(owner).encode())
        return self

    def __exit__(self, *_: object) -> None:
        (self.folder / CLAIM).unlink(missing_ok=True)
        (self.folder / LINES).unlink(missing_ok=True)

    def lines(self) -> Iterator[dict[str, Any]]:
        """What the ServerApp has told since the last call."""
        path = self.folder / LINES
        if not path.exists():
            return
        with path.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._read += len(line)
                yield json.loads(line)


class ClaimObserver:
    """An observer whose rounds the owner of a claim reads. Raises ConfigError where there is no such claim."""

    def __init__(self, folder: Path, token: str) -> None:
        self._folder, self._token, self._over = folder, token, threading.Event()
        if not self._wanted():
            raise ConfigError(
                f"Expected the folder {folder} of the user who started the run, but the ServerApp of "
                f"{socket.gethostname()} does not see it, or the run is no longer wanted. Share that "
                "folder with the ServerApp's machine."
            )

    def __enter__(self) -> "ClaimObserver":
        threading.Thread(target=self._leave_when_unwanted, daemon=True).start()
        self._tell(kind="started", process=os.getpid(), host=socket.gethostname())
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

    def started(self, plan: RunPlan) -> None:
        """The owner has the plan."""

    def round_finished(self, event: RoundEvent) -> None:
        """One line a round."""
        self._tell(kind="round", event=asdict(event))

    def finished(self, model: NDArray[np.float64]) -> None:
        """The owner reads the folder."""

    def _tell(self, **line: Any) -> None:
        with open(self._folder / LINES, "a", encoding="utf-8", opener=public) as lines:
            lines.write(dumps(line) + "\n")

    def _wanted(self) -> bool:
        claim = _read(self._folder)
        if claim.get("token") != self._token:
            return False
        if claim["superlink"] is not None and claim["host"] == socket.gethostname() and not alive(claim["owner"]):
            with suppress(OSError):  # its owner was killed, and cannot
                os.kill(claim["superlink"], signal.SIGTERM)
            return False
        return True

    def _leave_when_unwanted(self) -> None:
        while self._wanted():
            if self._over.wait(_LOOK):
                return
        os._exit(1)  # the ledger holds all that counts, at every moment


def _read(folder: Path) -> dict[str, Any]:
    """The claim of a folder, empty if there is none."""
    try:
        return dict(json.loads((folder / CLAIM).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def alive(process: int) -> bool:
    """Whether there is a process of this number that still runs: Flower leaves those that have ended unread."""
    try:
        return Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except (OSError, IndexError):
        pass  # gone, or a system without /proc
    try:
        os.kill(process, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return True
