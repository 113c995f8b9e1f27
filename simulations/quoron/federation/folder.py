"""The folder of a local federation: the parts that containers mount, each with what its owner alone sees.

| part               | holds                                                                                    |
| ------------------ | ---------------------------------------------------------------------------------------- |
| authority/         | the authority's key and every certificate, as `quoron admin certs` makes them                  |
| coordinator/       | certificate.pem, key.pem, authority.pem, revoked.json, tokens.json                       |
| operator/          | authority.pem, token                                                                     |
| clients/client-N/  | certificate.pem, key.pem, authority.pem; items.parquet; record.sqlite; client.log        |
| store/             | the coordinator's database                                                               |
| source.toml        | whose items they are, of a federation that is operated                                   |
| run.toml           | the columns of those items, for `quoron submit`                                          |
| order.json         | what was asked for                                                                       |
| running.json       | addresses and numbers of the processes, while they run                                   |

What a local federation is started with: how many clients in how many processes, and where.
"""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quoron.engine.processors import processors
from quoron_client.durable import OWN, PRIVATE, acquired, make_folder, replace_whole
from quoron_client.protocol import identity, is_loopback
from quoron_privacy.errors import ConfigError
from quoron_server.service import certificates, tokens
from quoron_server.storage.database import Database
from quoron_server.storage.registry import Registry

MAX_CLIENTS = 2000  # as many as a coordinator takes by default


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The settings that the processes get."""

    clients: int
    processes: int = 0  # that the clients are in; 0: as many as there are processors
    listen: str  # host:port of the coordinator, for clients
    control: str  # for operators
    simulation_seed: int | None = None  # of a simulation; None: for real
    user: str | None = None  # of silos: the column that says whose each row is
    people: tuple[int, ...] = ()  # of silos: persons of each client; none: every client is one user

    def __post_init__(self) -> None:
        object.__setattr__(self, "processes", min(self.clients, self.processes or processors()))
        if not 1 <= self.clients <= MAX_CLIENTS:
            raise ConfigError(
                f"Expected 1 to {MAX_CLIENTS:,} clients on this machine, got {self.clients:,}. "
                "Say how many, as clients=."
            )
        if len(self.people) not in (0, self.clients) or bool(self.people) != (self.user is not None):
            raise ConfigError(
                f"Expected the persons of each of {self.clients:,} silos and the column that names them, got "
                f"{len(self.people):,} numbers and column {self.user!r}."
            )
        for address in (self.listen, self.control):
            if not is_loopback(address) or not address.rpartition(":")[2].isdecimal():
                raise ConfigError(
                    f"Expected a loopback address, such as 127.0.0.1:7443 or [::1]:7443, got {address!r}. "
                    "Others reach a coordinator of `quoron serve`."
                )

    @property
    def passing(self) -> bool:
        """Whether the folder is removed at the end: a simulation's."""
        return self.simulation_seed is not None

    @property
    def split(self) -> list[list[int]]:
        """The numbers of the clients in each process, from 1."""
        return [list(range(1 + first, self.clients + 1, self.processes)) for first in range(self.processes)]

    @property
    def words(self) -> str:
        """The split, for people."""
        largest = -(-self.clients // self.processes)
        split = "one process each" if largest == 1 else f"{self.processes:,} processes, up to {largest:,} in each"
        return f"{self.clients:,} clients, {split}"


HOSTS = ("localhost", "127.0.0.1", "::1")  # by which a coordinator is reached
DAYS = 365
PASSING = "quoron-local-"  # a folder that is to pass begins so
LOCK_SECONDS = 1.0  # that a process which locks a folder waits for those that look whether it runs
ITEMS, SOURCE, RUN, ORDER, RUNNING, DATABASE = (
    "items.parquet",
    "source.toml",
    "run.toml",
    "order.json",
    "running.json",
    "store/coordinator.sqlite",
)


@dataclass(frozen=True, slots=True)
class Folder:
    """One local federation on disk."""

    path: Path

    @property
    def coordinator(self) -> Path:
        """What the coordinator sees."""
        return self.path / "coordinator"

    @property
    def operator(self) -> Path:
        """What an operator sees."""
        return self.path / "operator"

    @property
    def database_url(self) -> str:
        """The coordinator's database."""
        return f"sqlite:///{(self.path / DATABASE).resolve()}"

    @property
    def authority(self) -> Path:
        """The certificate that signs all others."""
        return self.operator / "authority.pem"

    @property
    def token(self) -> str:
        """The operator's."""
        return (self.operator / "token").read_text(encoding="utf-8").strip()

    def client(self, number: int) -> Path:
        """Return what client `number` (from 1) sees."""
        return self.path / "clients" / f"client-{number}"

    def make(self, clients: int) -> None:
        """An authority, a key for the coordinator and for each client, a token; whatever is there is kept."""
        make_folder(self.path, mode=OWN)
        make_folder((self.path / DATABASE).parent, mode=OWN)
        authority = self.path / "authority"
        certificates.make_authority(authority, days=10 * DAYS)
        self._give("coordinator", self.coordinator, hosts=HOSTS)
        for number in range(1, clients + 1):
            self._give(f"client-{number}", self.client(number))
        make_folder(self.operator, mode=OWN)
        shutil.copyfile(authority / "authority.pem", self.authority)
        if not (self.operator / "token").exists():
            entries = self.coordinator / "tokens.json"
            with suppress(ConfigError):  # the attempt before may have ended between the token's entry and its file
                tokens.remove(entries, name="operator")
            token = tokens.add(entries, name="operator", role="operator")
            replace_whole(self.operator / "token", f"{token}\n".encode(), mode=PRIVATE)

    def _give(self, name: str, place: Path, *, hosts: tuple[str, ...] = ()) -> None:
        """Its certificate, its key, and whom to trust."""
        authority = self.path / "authority"
        if not (authority / name / certificates.CERTIFICATE).exists():
            certificates.issue(authority, name, coordinator=bool(hosts), hosts=hosts, days=DAYS)
        make_folder(place, mode=OWN)
        for file in (authority / name).iterdir():
            shutil.copyfile(file, place / file.name)
            (place / file.name).chmod(PRIVATE)

    def enrol(self, clients: int) -> None:
        """Client N is user N - 1: as if they had come in this order."""
        authority = self.path / "authority"
        with Database(self.database_url) as database, database.writing():
            registry = Registry(database)
            for number in range(1, clients + 1):
                certificate = identity.load(authority / f"client-{number}" / certificates.CERTIFICATE)
                registry.enrol(certificates.fingerprint(certificate))

    def write(self, name: str, value: Any) -> None:
        """A JSON file, whole or not at all."""
        replace_whole(self.path / name, json.dumps(value, indent=1).encode(), mode=PRIVATE)

    def read(self, name: str) -> dict[str, Any]:
        """Return a JSON file; empty where there is none."""
        try:
            return dict(json.loads((self.path / name).read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return {}

    def last_words(self, *logs: str) -> str:
        """Return the last line of the first log that says something; the folder may be gone by now."""
        for name in logs:
            with suppress(OSError):
                lines = (self.path / name).read_text(encoding="utf-8", errors="replace").strip().splitlines()
                if lines:
                    return f"{name} ends with: {lines[-1][:500]}"
        return "the logs are empty."

    @contextmanager
    def lock(self) -> Iterator[int | None]:
        """Lock the folder for as long as the block lasts or a child has it open; None: another process has it.

        Processes that only look are waited for.
        """
        with open(self.path / ".lock", "wb", opener=_own) as file:
            yield file.fileno() if acquired(file.fileno(), seconds=LOCK_SECONDS) else None

    @property
    def runs(self) -> bool:
        """Whether its processes are there."""
        with suppress(FileNotFoundError), open(self.path / ".lock", "rb") as file:
            return not acquired(file.fileno(), seconds=0, shared=True)  # several may look at once
        return False


def _own(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, PRIVATE)
