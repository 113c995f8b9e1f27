"""What a local federation is started with: how many clients in how many processes, where, and what is to go wrong."""

import ipaddress
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Self

from quoron.local.faults import Faults
from quoron.processors import free_memory
from quoron_privacy.errors import ConfigError

EACH, MORE = 18 << 20, 3 << 20  # bytes of a process with a client, beside what all share, and of each client more in it
BASE = 600 << 20  # bytes of whoever starts it, of the coordinator, and of what clients share
MOST = 2000  # clients, as many as a coordinator takes unless told otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What the processes are told."""

    clients: int
    processes: int  # that the clients are in
    listen: str  # host:port of the coordinator, for clients
    control: str  # for operators
    simulation_seed: int | None = None  # of a simulation; None: for real
    corruption: tuple[int, ...] = ()  # of a simulation: what each user does, as `populations.Corruption`; none: honest
    kills: tuple[str, ...] = ()
    slow: str | None = None
    network: str | None = None
    user: str | None = None  # of silos: the column that says whose each row is
    people: tuple[int, ...] = ()  # of silos: persons of each client; none: every client is one user
    passing: bool = False  # the folder is gone with whoever started it

    def __post_init__(self) -> None:
        if not 1 <= self.clients <= MOST:
            raise ConfigError(
                f"Expected 1 to {MOST:,} clients on this machine, got {self.clients:,}. Say how many, as clients=."
            )
        if len(self.people) not in (0, self.clients) or bool(self.people) != (self.user is not None):
            raise ConfigError(
                f"Expected the persons of each of {self.clients:,} silos and the column that names them, got "
                f"{len(self.people):,} numbers and column {self.user!r}."
            )
        if not 1 <= self.processes <= self.clients:
            raise ConfigError(f"Expected 1 to {self.clients:,} processes, got {self.processes:,}.")
        self.faults.check(self.clients)
        for address in (self.listen, self.control):
            host_of(address)

    @property
    def faults(self) -> Faults:
        """What is to go wrong."""
        return Faults.parse(kills=self.kills, slow=self.slow, network=self.network)

    @property
    def split(self) -> list[list[int]]:
        """The numbers of the clients in each process, from 1."""
        return [list(range(1 + first, self.clients + 1, self.processes)) for first in range(self.processes)]

    @property
    def words(self) -> str:
        """The split, for people."""
        most = -(-self.clients // self.processes)
        each = "one process each" if most == 1 else f"{self.processes:,} processes, up to {most:,} in each"
        return f"{self.clients:,} clients, {each}"

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, tree: dict[str, Any]) -> Self:
        """What `as_json` gave."""
        given: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in tree.items()}
        return cls(**given)


def host_of(address: str) -> str:
    """The host at which this machine reaches who listens at host:port, which is a loopback one if that is every host.

    ConfigError for what is no such address.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) >= 1 << 16 or (":" in host) != host.startswith("["):
        raise ConfigError(f"Expected HOST:PORT, such as 127.0.0.1:7443 or [::1]:7443, got {address!r}.")
    name = host.strip("[]")
    with suppress(ValueError):
        return "127.0.0.1" if ipaddress.ip_address(name).is_unspecified else name
    return name


def reached(address: str) -> str:
    """Host:port at which this machine reaches who listens at host:port."""
    host = host_of(address)
    return f"{f'[{host}]' if ':' in host else host}:{address.rpartition(':')[2]}"


def processes_for(clients: int, memory: int | None = None, *, resumed: bool = False) -> int:
    """As many as clients, or as fit into three quarters of the memory that is free.

    ConfigError where the clients do not fit even if all are in one process, unless their run is `resumed`: that was
    let in when it began.
    """
    free = free_memory() if memory is None else memory
    left = 3 * free // 4 - BASE - MORE * clients
    if left < EACH - MORE and not resumed:
        fewer = max(0, (3 * free // 4 - BASE - EACH + MORE) // MORE)
        raise ConfigError(
            f"Expected {-(-4 * (BASE + EACH + MORE * (clients - 1)) // 3 >> 20):,} MiB of free memory for {clients:,} "
            f"clients, all in one process, of which three quarters are taken, got {free >> 20:,} MiB. "
            + (f"Say clients={fewer}, or free some; " if fewer else "Free some; ")
            + "workers=1 tries it all the same."
        )
    return max(1, min(clients, left // (EACH - MORE)))
