"""A private PostgreSQL server for tests: own folder, unix socket only, stopped by its own process id."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import warden

BINARIES = ("initdb", "postgres", "psql", "pg_isready")


def found(name: str) -> str | None:
    """On the path, or where Debian keeps the binaries of each version."""
    debian = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True)
    return shutil.which(name) or (str(debian[0]) if debian else None)


def missing() -> str | None:
    """Why there can be no server here; None if there can."""
    absent = [name for name in BINARIES if found(name) is None]
    if absent:
        return f"PostgreSQL is not installed: no {', '.join(absent)}"
    if os.geteuid() == 0 and _user() is None:
        return "PostgreSQL does not run as root, and there is no other user to run it as"
    if os.geteuid() == 0 and shutil.which("setpriv") is None:
        return "PostgreSQL does not run as root, and there is no setpriv to run it as another user"
    return None


def _user() -> str | None:
    names = {entry.pw_name for entry in pwd.getpwall()}
    return next((name for name in ("postgres", "nobody") if name in names), None)


@dataclass
class PostgresServer:
    """A running server; `restart` after a `crash` recovers from its write-ahead log."""

    folder: Path
    process: subprocess.Popen[bytes] | None = None
    _numbers: Iterator[int] = field(default_factory=count)

    def new_database(self) -> str:
        """The URL of a fresh, empty database."""
        name = f"test{next(self._numbers)}"
        self.sql(f"CREATE DATABASE {name}")
        return f"postgresql://postgres@/{name}?host={self.folder}"

    def sql(self, statement: str, database: str = "postgres") -> str:
        """What psql says, one row a line."""
        command = [found("psql"), "-h", self.folder, "-U", "postgres", "-d", database, "-qAtX", "-c", statement]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def start(self) -> None:
        """Until it answers."""
        command = [*_as_user(), found("postgres"), "-D", self.folder / "data", "-k", self.folder]
        command += ["-c", "listen_addresses="]
        command += ["-c", "shared_buffers=16MB", "-c", "max_wal_size=64MB", "-c", "min_wal_size=32MB"]
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        ready = [found("pg_isready"), "-q", "-h", self.folder, "-U", "postgres"]
        while subprocess.run(ready, check=False).returncode != 0:
            if self.process.poll() is not None:
                raise RuntimeError((self.folder / "log").read_text())

    def crash(self) -> None:
        """Stop without a checkpoint or a word to anyone, as a power loss that the operating system survives."""
        self._stop(signal.SIGQUIT)

    def stop(self) -> None:
        """End it and everything it began."""
        self._stop(signal.SIGINT)

    def _stop(self, how: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(30)
            self.process = None


def _as_user() -> list[str]:
    """What to put before a command that must not run as root. Not Popen's `user`: it forks, and a fork of a process in
    which gRPC is at work may abort before it becomes the command."""
    if os.geteuid() != 0:
        return []
    entry = pwd.getpwnam(_user() or "")
    return ["setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--clear-groups"]


def quick_folder() -> str | None:
    """Where files are in memory: enough for a kill, which loses nothing that was written; None if there is no room."""
    memory = "/dev/shm"
    return memory if os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 2**29 else None


@contextmanager
def running() -> Iterator[PostgresServer]:
    """A server in a temporary folder of its own: short, as a socket's path must be, and open to the server's user."""
    with tempfile.TemporaryDirectory(prefix=warden.prefix(), dir=quick_folder()) as name:
        folder = Path(name)
        if os.geteuid() == 0:
            entry = pwd.getpwnam(_user() or "")
            os.chown(folder, entry.pw_uid, entry.pw_gid)
        command = [*_as_user(), found("initdb"), "-D", folder / "data", "-U", "postgres", "-A", "trust", "-N"]
        subprocess.run([*command, "--no-locale", "-E", "UTF8"], check=True, capture_output=True, cwd=folder)
        server = PostgresServer(folder)
        server.start()
        try:
            yield server
        finally:
            server.stop()
