"""The compose file carried out as processes on loopback: the same commands, environment, files and order, no engine.

A named volume is a folder, a container's path is that folder, a container's name is 127.0.0.1. Whatever the compose
file mounts nowhere, a process does not find.
"""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent.parent
FILE = ROOT / "docker-compose.yml"
PATIENCE = 120  # seconds that any step may take
LISTENING = (
    *(("coordinator", port) for port in ("7443", "7444")),
    ("flower-superlink", "8443"),
    *(("flower-proxy", port) for port in ("8443", "8080")),
    *((f"flower-node-{number}", "9094") for number in (1, 2, 3)),
    *((f"flower-{name}", "9098") for name in ("server", "app-1", "app-2", "app-3")),
)
Service = Mapping[str, Any]


def services() -> dict[str, Service]:
    """The services of the compose file, merges resolved."""
    return dict(yaml.safe_load(FILE.read_text(encoding="utf-8"))["services"])


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Composition:
    """Every service but PostgreSQL's, as processes whose files are below `place`."""

    place: Path
    database: str  # URL in PostgreSQL's place
    # A container's name and port, for those who call it and for itself, and the port that it has here.
    ports: dict[tuple[str, str], int] = field(default_factory=lambda: {each: free_port() for each in LISTENING})
    running: dict[str, subprocess.Popen[str]] = field(default_factory=dict)
    written: dict[tuple[str, str], Path] = field(default_factory=dict)

    def __enter__(self) -> "Composition":
        (self.place / "bin").mkdir(parents=True)
        program = self.place / "bin" / "quoron"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m quoron "$@"\n')
        program.chmod(0o755)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.running.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with what it has started
            process.wait()

    def start(self, name: str, *arguments: str) -> subprocess.Popen[str]:
        """Start a service, with other arguments if some are given; its output is in `log(name)`."""
        service = services()[name]
        words = [*service.get("entrypoint", ["quoron"]), *(arguments or service.get("command", ()))]
        return self._spawn(name, name, words)

    def finish(self, name: str, *arguments: str, seconds: float = PATIENCE) -> str:
        """Run a service to its end, which must be a good one; what it printed."""
        process = self.start(name, *arguments)
        code = process.wait(seconds)
        assert code == 0, f"{name} ended with {code}:\n{self.log(name)}"
        return self.log(name)

    def listens(self, name: str, port: str) -> bool:
        """Wait until a service listens on one of its ports, or has ended."""
        while self.running[name].poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.ports[name, port])):
                return True
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.running[name].wait(0.1)
        return False

    def healthy(self, name: str) -> bool:
        """What the service's health check says."""
        test = services()[name]["healthcheck"]["test"]
        assert test[0] == "CMD"
        return self._spawn(f"{name}-health", name, test[1:]).wait(PATIENCE) == 0

    def becomes_healthy(self, name: str) -> bool:
        """Whether the service's health check says so in the end, as the engine asks it."""
        ends = time.monotonic() + PATIENCE
        while not self.healthy(name):
            if self.running[name].poll() is not None or time.monotonic() > ends:
                return False
        return True

    def stop(self, name: str) -> int:
        """Ask a service to end, as the engine does, and its exit code."""
        self.running[name].send_signal(signal.SIGTERM)
        return self.running[name].wait(PATIENCE)

    def log(self, name: str) -> str:
        """What a service has printed."""
        return (self.place / f"{name}.log").read_text(encoding="utf-8")

    def volume(self, name: str) -> Path:
        """The folder that stands for a named volume."""
        folder = self.place / "volumes" / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def inside(self, name: str, text: str) -> str:
        """A service's word or variable, with the paths and addresses that it has outside of a container."""
        if (name, text) in self.written:
            return str(self.written[name, text])
        for source, target in self._mounts(services()[name]):
            if text == target or text.startswith(f"{target}/"):
                return f"{source}{text[len(target) :]}"
        return self.addressed(name, text)

    def addressed(self, name: str, text: str) -> str:
        """A service's text with the addresses that containers have here."""
        for (host, port), ours in self.ports.items():
            itself = ("localhost", "0.0.0.0", "127.0.0.1") if host == name else ()
            text = re.sub(rf"\b({'|'.join(map(re.escape, (host, *itself)))}):{port}\b", f"127.0.0.1:{ours}", text)
            if itself and text in (port, "0.0.0.0"):
                text = str(ours) if text == port else "127.0.0.1"
        return text

    def _mounts(self, service: Service) -> list[tuple[Path, str]]:
        mounts = []
        for mount in service.get("volumes", ()):
            source, target = mount.split(":")[:2]
            mounts.append(((ROOT / source).resolve() if source.startswith(".") else self.volume(source), target))
        return mounts

    def write_config(self, name: str, target: str) -> None:
        """A configuration file for a service as it is here, in place of the one that is mounted at `target`."""
        ((source, _),) = [each for each in self._mounts(services()[name]) if each[1] == target]
        folders = {inside: str(folder) for folder, inside in self._mounts(services()[name])}
        folders["/tmp"] = str(self._home(name))
        anywhere = rf"(?<![\w/])({'|'.join(map(re.escape, folders))})(?=/)"
        text = re.sub(anywhere, lambda found: folders[found[0]], source.read_text(encoding="utf-8"))
        text = self.addressed(name, text)
        self.written[name, target] = self._home(name) / source.name
        self.written[name, target].write_text(text, encoding="utf-8")

    def _home(self, name: str) -> Path:
        """What a container has as /tmp and as its working folder."""
        home = self.place / "home" / name
        home.mkdir(parents=True, exist_ok=True)
        return home

    def _spawn(self, name: str, of: str, words: Sequence[str]) -> subprocess.Popen[str]:
        service, command = services()[of], [self.inside(of, word) for word in words]
        environment = {key: self.inside(of, str(value)) for key, value in service.get("environment", {}).items()}
        if "QUORON_TRIAL" in environment:
            environment["QUORON_TRIAL"] = str(self._trial(of))
        if "FLWR_HOME" in environment:
            environment["FLWR_HOME"] = str(self._home(of) / "flwr")
        if "QUORON_DATABASE" in environment:
            environment["QUORON_DATABASE"] = self.database
        kept = {key: os.environ[key] for key in ("HOME", "LANG", "NUMBA_CACHE_DIR") if key in os.environ}
        path = f"{self.place / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        with open(self.place / f"{name}.log", "w", encoding="utf-8") as log:
            process = subprocess.Popen(
                [shutil.which(command[0], path=path) or command[0], *command[1:]],
                env={**kept, "PATH": path, "PYTHONUNBUFFERED": "1", **environment},
                cwd=self._home(name),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        self.running[name] = process
        return process

    def _trial(self, name: str) -> Path:
        """One folder of links to the volumes that a service has below /trial."""
        trial = self.place / "trials" / name
        trial.mkdir(parents=True, exist_ok=True)
        for source, target in self._mounts(services()[name]):
            link = trial / Path(target).name
            if target.startswith("/trial/") and not link.exists():
                link.symlink_to(source)
        return trial
