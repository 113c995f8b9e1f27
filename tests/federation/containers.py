"""The compose file carried out as processes on loopback: the same commands, environment, files and order, no engine.

A named volume is a folder, a container's path is that folder, a container's name is 127.0.0.1. Whatever the compose
file mounts nowhere, a process does not find.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent.parent
FILE = ROOT / "docker-compose.yml"
PATIENCE = 120  # seconds that any step may take
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
    ports: dict[str, int] = field(default_factory=lambda: {"7443": free_port(), "7444": free_port()})
    running: dict[str, subprocess.Popen[str]] = field(default_factory=dict)

    def __enter__(self) -> "Composition":
        (self.place / "bin").mkdir(parents=True)
        program = self.place / "bin" / "quorate"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m quorate "$@"\n')
        program.chmod(0o755)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.running.values():
            if process.poll() is None:
                process.kill()
            process.wait()

    def start(self, name: str, *arguments: str) -> subprocess.Popen[str]:
        """Start a service, with other arguments if some are given; its output is in `log(name)`."""
        service = services()[name]
        entry = [self.inside(service, word) for word in service.get("entrypoint", ["quorate"])]
        given = arguments or service.get("command", ())
        return self._spawn(name, service, [*entry, *(self.inside(service, word) for word in given)])

    def finish(self, name: str, *arguments: str) -> str:
        """Run a service to its end, which must be a good one; what it printed."""
        process = self.start(name, *arguments)
        code = process.wait(PATIENCE)
        assert code == 0, f"{name} ended with {code}:\n{self.log(name)}"
        return self.log(name)

    def listens(self, name: str, port: str) -> bool:
        """Wait until a service listens on one of its ports, or has ended."""
        while self.running[name].poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.ports[port])):
                return True
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.running[name].wait(0.1)
        return False

    def healthy(self, name: str) -> bool:
        """What the service's health check says."""
        service = services()[name]
        test = service["healthcheck"]["test"]
        assert test[0] == "CMD"
        check = self._spawn(f"{name}-health", service, [self.inside(service, word) for word in test[1:]])
        return check.wait(PATIENCE) == 0

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

    def inside(self, service: Service, text: str) -> str:
        """A command's word or a variable's value, with the paths and addresses that it has outside of a container."""
        for source, target in self._mounts(service):
            if text == target or text.startswith(f"{target}/"):
                return f"{source}{text[len(target) :]}"
        for host in ("coordinator", "localhost", "0.0.0.0"):
            for port, ours in self.ports.items():
                text = text.replace(f"{host}:{port}", f"127.0.0.1:{ours}")
        return text

    def _mounts(self, service: Service) -> list[tuple[Path, str]]:
        mounts = []
        for mount in service.get("volumes", ()):
            source, target = mount.split(":")[:2]
            mounts.append(((ROOT / source).resolve() if source.startswith(".") else self.volume(source), target))
        return mounts

    def _spawn(self, name: str, service: Service, command: list[str]) -> subprocess.Popen[str]:
        environment = {key: self.inside(service, str(value)) for key, value in service.get("environment", {}).items()}
        if "QUORATE_TRIAL" in environment:
            environment["QUORATE_TRIAL"] = str(self._trial(service))
        if "QUORATE_DATABASE" in environment:
            environment["QUORATE_DATABASE"] = self.database
        kept = {key: os.environ[key] for key in ("HOME", "LANG", "NUMBA_CACHE_DIR") if key in os.environ}
        path = f"{self.place / 'bin'}:{os.environ['PATH']}"
        home = self.place / "home" / name
        home.mkdir(parents=True, exist_ok=True)
        with open(self.place / f"{name}.log", "w", encoding="utf-8") as log:
            process = subprocess.Popen(
                [shutil.which(command[0], path=path) or command[0], *command[1:]],
                env={**kept, "PATH": path, "PYTHONUNBUFFERED": "1", **environment},
                cwd=home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
            )
        self.running[name] = process
        return process

    def _trial(self, service: Service) -> Path:
        """One folder of links to the volumes that a service has below /trial."""
        trial = self.place / "trial"
        trial.mkdir(exist_ok=True)
        for source, target in self._mounts(service):
            link = trial / Path(target).name
            if target.startswith("/trial/") and not link.exists():
                link.symlink_to(source)
        return trial
