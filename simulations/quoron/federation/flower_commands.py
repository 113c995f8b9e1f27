"""Flower's own programs, started with a home of their own so that nothing else of the user's Flower is touched.

`flwr run` is given an app as a folder with a pyproject.toml (`submit`). The components are those of the installed
package; the folder carries the run config only.

Submitting a run to a federation of Flower is `quoron submit --superlink HOST:PORT`:

    with operator("127.0.0.1:8000", authority) as connection:
        number = submit(connection, specification, waiting=600)
        follow(connection, number, print)
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from quoron import toml_text
from quoron.run_folder import write
from quoron_client.durable import OWN, make_folder
from quoron_client.protocol import check_plaintext
from quoron_privacy.errors import ConfigError, RunError
from quoron_server.specification import RunSpecification

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_ERRORS = (re.compile(r"^[\w.]*(Error|Exception)\b"), re.compile(r"\bERROR\b|error:"))  # raised; else logged
_LONGEST = 500  # characters of a line that is passed on
_SILENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
}


@dataclass(frozen=True, slots=True)
class FlowerConnection:
    """How to reach a SuperLink, from a folder that is its FLWR_HOME."""

    home: Path
    address: str  # host:port
    authority: str | Path | None = None  # that signed its certificate; None is plaintext

    def begin(self) -> None:
        """Write what `flwr` reads."""
        make_folder(self.home, mode=OWN)
        how = "insecure = true" if self.authority is None else f"root-certificates = {json.dumps(str(self.authority))}"
        text = f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = {json.dumps(self.address)}\n{how}\n'
        write(self.home / "config.toml", text.encode(), advice="Choose another folder.")

    def run(self, app: Path) -> int:
        """Start a run of an app; its number."""
        reply = self.call("run", str(app), "here")
        if not reply.get("run-id"):
            raise RunError(f"Flower did not start the run: {str(reply.get('error-message') or reply)[:2000]}")
        return int(reply["run-id"])

    def status_and_details(self, run: int) -> tuple[str, str]:
        """Status of a run, and why it is that."""
        reply = self.call("list", "here", "--run-id", str(run))
        runs = reply.get("runs") or []
        return (str(runs[0]["status"]), str(runs[0].get("status-details") or "")) if runs else ("unknown", "")

    def stream(self, run: int) -> Iterator[str]:
        """Lines of the ServerApp's log from the first, until the run ends or the connection is lost."""
        command = [program("flwr"), "log", str(run), "here", "--stream"]
        process = subprocess.Popen(
            command, env=environment(self.home), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        with process:
            try:
                yield from (line.rstrip("\n") for line in process.stdout or ())
            finally:
                process.terminate()

    def call(self, *arguments: str) -> dict[str, Any]:
        """Return the reply of `flwr` with these arguments. Raises RunError, with its words, where it fails."""
        command = [program("flwr"), *arguments, "--format", "json"]
        done = subprocess.run(command, env=environment(self.home), capture_output=True, text=True, check=False)
        start = done.stdout.find("{")
        try:
            reply = json.loads(done.stdout[start:]) if start >= 0 else {}
        except ValueError:
            reply = {}
        if done.returncode or not reply.get("success", False):
            said = reply.get("error-message") or done.stderr.strip() or done.stdout.strip()
            raise RunError(f"`flwr {arguments[0]}` at {self.address} failed: {said[-2000:]}")
        return dict(reply)


def last_error(log: str | Iterable[str]) -> str:
    """The last error that a log tells, as words to follow others: what was raised, else what was logged, else nothing.

    >>> last_error("Traceback (most recent call last):\\nOSError: no room\\nERROR :  Exit Code: 200")
    ' Its last error: OSError: no room'
    """
    lines = [_COLOURS.sub("", line).strip() for line in (log.splitlines() if isinstance(log, str) else log)]
    found = [line for pattern in reversed(_ERRORS) for line in lines if pattern.search(line)]
    return f" Its last error: {found[-1][:_LONGEST]}" if found else ""


def environment(home: Path) -> dict[str, str]:
    """For a program of Flower's: its own home, no telemetry, nothing installed behind our back."""
    beside = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    return {**os.environ, **_SILENT, "FLWR_HOME": str(home.resolve()), "PATH": beside}


def program(name: str) -> str:
    """Path of a program of Flower's: beside this Python, or on the path."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise ConfigError(f"Expected the program {name} of Flower, found none. Install quoron again.")
    return found


COMPONENTS = {"serverapp": "quoron.federation.flower_app:server_app", "clientapp": "quoron_client.flower.app:app"}
SAYS = "quoron: "  # before each line of ours in the ServerApp's log
_PATIENCE = 600.0  # seconds that a SuperLink may be away
_KEPT = 1000  # last lines of the ServerApp's log, of which the last error is passed on


@contextmanager
def operator(address: str, authority: Path | None, *, insecure: bool = False) -> Iterator[FlowerConnection]:
    """A connection for Flower's command line, with a home that is gone afterwards.

    `authority` signed the SuperLink's certificate; `insecure` is plaintext, on this machine alone.
    ConfigError for both or neither.
    """
    check_plaintext(address, insecure=insecure)
    if (authority is None) is not insecure:
        raise ConfigError(
            f"Expected QUORON_AUTHORITY=CA.pem or QUORON_INSECURE=1, or a profile with either, to reach the SuperLink "
            f"{address}, got {'both' if insecure else 'neither'}."
        )
    if authority is not None and not authority.is_file():
        raise ConfigError(f"Expected an authority's certificate at {authority}, found none.")
    with TemporaryDirectory(prefix="quoron-flower-") as scratch:
        connection = FlowerConnection(Path(scratch), address, None if authority is None else authority.resolve())
        connection.begin()
        yield connection


def submit(connection: FlowerConnection, specification: RunSpecification, *, waiting: float) -> int:
    """Start the ServerApp of a run; Flower's number of it. The same run again goes on from its ledger.

    `waiting` seconds for its users to come. Raises RunError if Flower does not take it.
    """
    project = {
        "name": "quoron",
        "version": version("quoron"),
        "description": "User-level private federated optimisation",
        "license": "Apache-2.0",
        "dependencies": [f"quoron=={version('quoron')}"],
    }
    config = {"specification": specification.as_text(), "waiting": float(waiting)}
    app = {"publisher": "quoron", "components": COMPONENTS, "config": config}
    make_folder(folder := connection.home / "app")
    text = toml_text.dumps({"project": project, "tool": {"flwr": {"app": app}}})
    write(folder / "pyproject.toml", text.encode(), advice="Choose another folder.")
    return connection.run(folder)


def follow(connection: FlowerConnection, number: int, say: Callable[[str], None]) -> None:
    """Say what the ServerApp tells of a run until its end; RunError if it ends without a model."""
    shown, seen = 0, time.monotonic()
    lines: deque[str] = deque(maxlen=_KEPT)
    while True:
        for index, line in enumerate(connection.stream(number)):
            if index >= shown:
                lines.append(line)
                if line.startswith(SAYS):
                    say(line.removeprefix(SAYS))
            shown = max(shown, index + 1)
            seen = time.monotonic()
        try:
            status, details = connection.status_and_details(number)
        except RunError:
            if time.monotonic() - seen > _PATIENCE:
                raise
        else:
            if status.startswith("finished"):
                break
        time.sleep(2.0)
    if status != "finished:completed":
        raise RunError(f"Flower's run {number} has ended without a model ({status}). {details}{last_error(lines)}")
