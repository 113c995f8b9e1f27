"""What a local federation is started with: how many clients in how many processes, where, and what is to go wrong.

What is to go wrong is who is silent, slow or killed.

    >>> Kill.parse("3@2"), Slow.parse("10%:2s")
    (Kill(client=3, round=2, comes_back=True), Slow(share=0.1, seconds=2.0))

Only simulations have faults: a federation that is kept to be operated has none.
"""

import ipaddress
import re
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np

from quoron.network import Network
from quoron.populations.users import Purpose, uniforms, words
from quoron.processors import free_memory
from quoron_privacy.errors import ConfigError

_KILL = re.compile(r"(\d{1,9})@(\d{1,9})(:gone)?")
_SLOW = re.compile(r"(?:(\d+(?:\.\d+)?)%:)?(\d+(?:\.\d+)?)(ms|s)")


@dataclass(frozen=True, slots=True)
class Kill:
    """A client's process is killed (SIGKILL) when it is asked in a round; then it is started again, or not."""

    client: int  # from 1
    round: int  # from 1, as displays count
    comes_back: bool = True

    @classmethod
    def parse(cls, text: str) -> Self:
        """Of `CLIENT@ROUND`, and `:gone` behind it for one that is not started again."""
        found = _KILL.fullmatch(text.strip())
        if found is None or not int(found[1]) or not int(found[2]):
            raise ConfigError(f"Expected a kill as CLIENT@ROUND, such as 3@2, or 3@2:gone, got {text!r}.")
        return cls(int(found[1]), int(found[2]), found[3] is None)


@dataclass(frozen=True, slots=True)
class Slow:
    """This share of the clients, those with the highest numbers, takes so many seconds more to answer."""

    share: float
    seconds: float

    @classmethod
    def parse(cls, text: str) -> Self:
        """Of `SHARE%:SECONDSs`; without a share everybody is slow."""
        found = _SLOW.fullmatch(text.strip())
        share = None if found is None else float(found[1] or 100) / 100
        if found is None or share is None or share > 1:
            raise ConfigError(f"Expected slow clients as 10%:2s, or 2s for all, got {text!r}.")
        return cls(share, float(found[2]) * (1e-3 if found[3] == "ms" else 1.0))


@dataclass(frozen=True, slots=True)
class Faults:
    """All that was ordered."""

    kills: tuple[Kill, ...] = ()
    slow: Slow | None = None
    network: Network | None = None  # of which dropouts are carried out, drawn as by the inline engine

    @classmethod
    def parse(cls, *, kills: tuple[str, ...] = (), slow: str | None = None, network: str | None = None) -> Self:
        """Of the texts of the command line."""
        return cls(
            tuple(Kill.parse(each) for each in kills),
            None if slow is None else Slow.parse(slow),
            None if network is None else Network.parse(network),
        )

    def check(self, clients: int) -> None:
        """ConfigError for a client that there is not."""
        for kill in self.kills:
            if kill.client > clients:
                raise ConfigError(f"Expected a client to kill among {clients:,}, got number {kill.client:,}.")
        if len({kill.client for kill in self.kills}) < len(self.kills):
            raise ConfigError("Expected every client to be killed once at most, got two kills of one. Name others.")

    def check_rounds(self, rounds: int) -> None:
        """ConfigError for a round that the run has not."""
        for kill in self.kills:
            if kill.round > rounds:
                raise ConfigError(f"Expected a client to be killed in one of {rounds:,} rounds, got {kill.round:,}.")

    def killed(self, client: int, round_: int, *, before: bool) -> bool:
        """Whether a client dies when it is asked in a round (from 0); `before`: it has died already."""
        return not before and any((each.client, each.round - 1) == (client, round_) for each in self.kills)

    def gone(self, client: int) -> bool:
        """Whether it is not started again when it has died."""
        return any(each.client == client and not each.comes_back for each in self.kills)

    def delay(self, client: int, clients: int) -> float:
        """Seconds that a client takes more."""
        return (
            self.slow.seconds if self.slow is not None and client > clients - round(self.slow.share * clients) else 0.0
        )

    def silent(self, client: int, round_: int, seed: int) -> bool:
        """Whether a client does not answer in a round: the coins of the inline engine."""
        if self.network is None or not self.network.dropout:
            return False
        users = np.array([client - 1], np.int64)
        drawn = uniforms(words(seed=seed, purpose=Purpose.DROPOUT, users=users, block=round_)[:, 0])
        return bool(drawn[0] < self.network.dropout)


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
    def passing(self) -> bool:
        """Whether the folder is removed at the end: a simulation's."""
        return self.simulation_seed is not None

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
