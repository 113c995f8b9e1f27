"""A federation of Flower on this machine: one SuperLink, one SuperNode for every user, as a deployment has them.

    python examples/flower/loopback.py --users 5 --folder trial

TLS with a private authority, SuperNodes known by their keys, the SuperLink's state and our database in files, and the
ServerApp in a process of its own (`--isolation process`), so that any part can be killed and started again. The data
are made up. It runs until Ctrl-C, SIGTERM or the end of its terminal; with the same folder the users are the same, and
a run that was interrupted goes on when it is submitted again.

| process          | what it holds                                                                          |
| ---------------- | -------------------------------------------------------------------------------------- |
| flower-superlink | superlink.sqlite: messages on their way. It sees every answer                          |
| flower-superexec | starts the ServerApp, whose environment says where store.sqlite and results/ are       |
| flower-supernode | nodes/N: its key, one user's data, and the record of what was answered; once a user    |

Nothing here listens beyond 127.0.0.1. Where others connect, let them reach `/v1/fleet/` only: Flower's control has no
accounts.
"""

import argparse
import csv
import json
import os
import secrets
import shutil
import signal
import ssl
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

import httpx
import numpy as np
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from quoron.engine.processes import Program
from quoron.engine.processors import free_ports
from quoron.federation.flower_simulation import environment, last_error
from quoron_privacy.errors import RunError
from quoron_server.service import certificates

CONFIG = """\
# Whom a run is for and what is public about their data. Nobody reads the table named here: users have their own.
[population]
kind = "table"
path = "each-user-has-its-own.csv"
user = "person"
label = "sick"
items_per_user = 20
columns.numeric = { age = [0.0, 100.0], weight = [0.0, 200.0] }

[privacy]
epsilon = 8.0
delta = 1e-2
min_cohort = "none"

[algorithm]
name = "dp-sgd-wor"
options = { rounds = 3, rate = 0.6 }
"""
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
QUICK = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1"}  # seconds until a SuperExec notices work; Flower's default is 1
START_SECONDS = 60.0


def program(name: str) -> str:
    """Path of a program of Flower's: beside this Python, or on the path."""
    found = shutil.which(name, path=environment(Path())["PATH"])
    if found is None:
        raise RunError(f"Expected the program {name} of Flower, found none. Install quoron again.")
    return found


@dataclass(frozen=True, slots=True)
class FlowerConnection:
    """How `flwr` reaches a SuperLink, from a folder that is its FLWR_HOME."""

    home: Path
    address: str  # host:port
    authority: str | Path | None = None  # that signed its certificate; None is plaintext

    def begin(self) -> None:
        """Write what `flwr` reads."""
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        how = "insecure = true" if self.authority is None else f"root-certificates = {json.dumps(str(self.authority))}"
        text = f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = {json.dumps(self.address)}\n{how}\n'
        (self.home / "config.toml").write_text(text, encoding="utf-8")

    def call(self, *arguments: str) -> dict[str, Any]:
        """Return the reply of `flwr` with these arguments. Raises RunError, with its words, where it fails."""
        command = [program("flwr"), *arguments, "--format", "json"]
        done = subprocess.run(command, env=environment(self.home), capture_output=True, text=True, check=False)
        start, reply = done.stdout.find("{"), dict[str, Any]()
        with suppress(ValueError):
            reply = json.loads(done.stdout[start:]) if start >= 0 else {}
        if done.returncode or not reply.get("success", False):
            said = reply.get("error-message") or done.stderr.strip() or done.stdout.strip()
            raise RunError(f"`flwr {arguments[0]}` at {self.address} failed: {said[-2000:]}")
        return reply


class Process(Program):
    """A program of Flower's and its home, which is removed when it ends."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        home: Path,
        log: Path,
        more: Mapping[str, str] | None = None,
    ) -> None:
        """`more` is put into its environment."""
        self.name = name
        own = {**environment(home), **(more or {})}
        super().__init__([program(name), *arguments], environment=own, log=log, folders=[home])

    def ask_to_end(self) -> None:
        """It may take its time: a SuperNode tells the SuperLink that it leaves."""
        self._process.terminate()

    def end(self, seconds: float = 20.0) -> None:
        """Ask it to end, give it so many seconds, then end it."""
        self.ask_to_end()
        self.wait(seconds)
        self.kill()

    def check(self) -> None:
        """Raise RunError if it has ended."""
        if self.code is not None:
            raise RunError(
                f"{self.name} has ended with code {self.code}. Its log is {self.log}.{last_error(self.written)}"
            )

    def healthy(self, url: str, authority: Path | None = None) -> None:
        """Wait until `url` answers, with a certificate that `authority` signed if it is https; RunError if not."""
        trusted = True if authority is None else ssl.create_default_context(cafile=str(authority))
        ends = time.monotonic() + START_SECONDS
        while time.monotonic() < ends:
            self.check()
            try:
                if httpx.get(url, timeout=2.0, verify=trusted, trust_env=False).is_success:
                    return
            except httpx.HTTPError:
                time.sleep(0.1)
        raise RunError(f"{self.name} did not start within {START_SECONDS:g} seconds. Its log is {self.log}.")


class Loopback:
    """The processes of a federation in a folder. A context manager: all are gone at its end, or with this process.

    `users` holds each user's node config, beside the key, the record and the place that every node has; `server` is the
    environment of the ServerApp, beside where the database and the results are.
    """

    def __init__(self, folder: Path, users: Sequence[Mapping[str, str | int | float]], **server: str) -> None:
        self.folder, self.users = folder.resolve(), users
        self.authority = self.folder / "certificates" / "authority.pem"
        self.database = f"sqlite:///{self.folder}/store.sqlite"
        self.results = self.folder / "results"
        self.superlink: Process | None = None
        self.superexec: Process | None = None
        self.nodes: dict[int, Process] = {}
        own = {"QUORON_DATABASE": self.database, "QUORON_RESULTS": str(self.results), "QUORON_SUPERNODE_AUTH": "1"}
        self._server = {**QUICK, **own, **server}
        self._port = free_ports(1)[0]

    @property
    def address(self) -> str:
        """Of the SuperLink."""
        return f"127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        """Server side only; SuperNodes are registered, and start with `start_node`."""
        with ExitStack() as stack:
            stack.callback(self.stop)
            self._prepare()
            self.start_superlink()
            self.start_superexec()
            connection = self.connection()
            connection.begin()
            for number in range(len(self.users)):
                self._register(connection, number)
            stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def connection(self) -> FlowerConnection:
        """For Flower's own command line."""
        return FlowerConnection(self.folder / "operator", self.address, self.authority)

    def start_superlink(self) -> None:
        """Start it, or start it again; returns once it is healthy."""
        own = self.folder / "certificates"
        arguments = ["--host", "127.0.0.1", "--port", str(self._port), "--isolation", "process"]
        arguments += ["--enable-supernode-auth", "--database", str(self.folder / "superlink.sqlite")]
        arguments += [
            "--ssl-ca-certfile",
            str(self.authority),
            "--ssl-certfile",
            str(own / "superlink/certificate.pem"),
        ]
        arguments += [
            "--ssl-keyfile",
            str(own / "superlink/key.pem"),
            "--superexec-auth-secret-file",
            str(self._secret),
        ]
        self.superlink = self._start("flower-superlink", arguments, "superlink")
        self.superlink.healthy(f"https://{self.address}/health", self.authority)

    def start_superexec(self, **environment: str) -> None:
        """Whatever starts the ServerApp, which has its environment."""
        arguments = ["--runtime-api-address", self.address, "--root-certificates", str(self.authority)]
        arguments += ["--superexec-auth-secret-file", str(self._secret)]
        self.superexec = self._start("flower-superexec", arguments, "serverapp", {**self._server, **environment})

    def start_node(self, number: int, **environment: str) -> None:
        """Start a user's SuperNode, or start it again."""
        home, port = self.node(number), free_ports(1)[0]
        arguments = ["--superlink", self.address, "--root-certificates", str(self.authority)]
        arguments += ["--auth-supernode-private-key", str(home / "key"), "--node-config", str(home / "node.toml")]
        arguments += ["--host", "127.0.0.1", "--port", str(port)]
        self.nodes[number] = self._start("flower-supernode", arguments, f"node-{number}", {**QUICK, **environment})
        self.nodes[number].healthy(f"http://127.0.0.1:{port}/health")

    def configure(self, number: int, **changes: str | float) -> None:
        """Write a user's node config, for when its SuperNode starts."""
        place = {"partition-id": number, "num-partitions": len(self.users)}
        own = {"state": str(self.node(number) / "record.sqlite"), **self.users[number], **changes}
        lines = (f"{key} = {json.dumps(value)}\n" for key, value in {**place, **own}.items())
        (self.node(number) / "node.toml").write_text("".join(lines), encoding="utf-8")

    def stop(self) -> None:
        """End every process, SuperNodes first."""
        rest = [each for each in (self.superexec, self.superlink) if each is not None]
        for several in (list(self.nodes.values()), rest):
            for process in several:
                process.ask_to_end()
            for process in several:
                process.end()
        self.nodes, self.superexec, self.superlink = {}, None, None

    def node(self, number: int) -> Path:
        """A user's own folder."""
        return self.folder / "nodes" / str(number)

    def log(self, name: str) -> str:
        """What a process has said: superlink, serverapp, node-0, ..."""
        return (self.folder / "logs" / f"{name}.log").read_text(encoding="utf-8", errors="replace")

    @property
    def _secret(self) -> Path:
        return self.folder / "certificates" / "superexec.secret"

    def _prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)  # the SuperLink's files hold answers without noise, also of runs that are over
        own = self.folder / "certificates"
        certificates.make_authority(own, days=30)
        if not (own / "superlink/certificate.pem").exists():
            certificates.issue(own, "superlink", coordinator=True, hosts=("127.0.0.1", "localhost"), days=30)
        if not self._secret.exists():
            _write_secret(self._secret, secrets.token_bytes(32))
        self.results.mkdir(exist_ok=True)
        for number in range(len(self.users)):
            self.node(number).mkdir(parents=True, exist_ok=True)
            if not (self.node(number) / "key").exists():
                _make_key(self.node(number) / "key")
            self.configure(number)

    def _register(self, connection: FlowerConnection, number: int) -> None:
        done = self.node(number) / "registered"
        if not done.exists():
            connection.call("supernode", "register", str(self.node(number) / "key.pub"), "here")
            done.touch()

    def _start(
        self, name: str, arguments: Sequence[str], what: str, environment: Mapping[str, str] | None = None
    ) -> Process:
        home, log = self.folder / "homes" / what, self.folder / "logs" / f"{what}.log"
        return Process(name, arguments, home=home, log=log, more=environment)


def _make_key(path: Path) -> None:
    """The key that a SuperNode is known by: P-384 in OpenSSH's form, its public half beside it."""
    key = ec.generate_private_key(ec.SECP384R1())
    form, plain = serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    _write_secret(path, key.private_bytes(serialization.Encoding.PEM, form, plain))
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    path.with_suffix(".pub").write_bytes(public)


def _write_secret(path: Path, data: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)


def _make_data(path: Path, user: int, rows: int = 20) -> None:
    """Items that are made up."""
    rng = np.random.default_rng(user)
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["age", "weight", "sick"])
        for age, weight in zip(rng.uniform(20, 90, rows), rng.uniform(40, 140, rows), strict=True):
            table.writerow([f"{age:.1f}", f"{weight:.1f}", int(age + weight + rng.normal(0, 20) > 145)])


def _end(number: int, frame: FrameType | None) -> None:
    for each in ENDS:
        signal.signal(each, signal.SIG_IGN)  # once is enough: every process is being ended
    raise KeyboardInterrupt


def main() -> None:
    """Bring a federation up and wait."""
    options = argparse.ArgumentParser(description="A federation of Flower on this machine, for trials.")
    options.add_argument("--users", type=int, default=5)
    options.add_argument("--folder", type=Path, default=Path("flower-trial"))
    options.add_argument("--simulation", action="store_true", help="take part in and accept runs with seeded noise")
    given = options.parse_args()
    users: list[Mapping[str, str | int | float]] = []
    for user in range(given.users):
        data = given.folder.resolve() / "nodes" / str(user) / "items.csv"
        data.parent.mkdir(parents=True, exist_ok=True)
        if not data.exists():
            _make_data(data, user)
        seed = {"simulation-seed": "7"} if given.simulation else {}
        users.append({"data": str(data), "limit": "16,0.1", **seed})
    config = given.folder / "run.toml"
    if not config.exists():
        config.write_text(CONFIG, encoding="utf-8")
    for number in ENDS:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # as by nohup
            signal.signal(number, _end)
    server = {"QUORON_ALLOW_SIMULATION": "1"} if given.simulation else {}
    with suppress(KeyboardInterrupt), Loopback(given.folder, users, **server) as running:
        for user in range(given.users):
            running.start_node(user)
        print(f"{given.users} SuperNodes, each one user, at the SuperLink {running.address}. Submit a run with\n")
        app = given.folder / "first-app"
        print(f"    export FLWR_HOME={running.folder}/operator FLWR_TELEMETRY_ENABLED=0")
        print(f"    quoron submit {config} --app {app} --run first --users {given.users} --timeout 20")
        print(f"    flwr run {app} here --stream\n")
        print(f"Models arrive in {running.results}. End everything with Ctrl-C.", flush=True)
        while True:
            signal.pause()


if __name__ == "__main__":
    main()
