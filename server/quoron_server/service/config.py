"""Settings of a coordinator."""

import math
import resource
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from quoron_client.protocol import MOST_PEOPLE, wire
from quoron_privacy.errors import ConfigError
from quoron_server.rounds import Evaluate
from quoron_server.service.security import Transport
from quoron_server.storage.roster import AWAY_AFTER

if TYPE_CHECKING:
    from quoron_server.service.helping import SecondServerLink

SMALLEST = 64 << 10  # bytes: what is no answer may be as long
MOST_OPERATORS = 32  # connections to the control plane, so that an operator with many keeps no client out
_RESERVED = 128  # files of our own: database, logs, listening sockets


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """Where to listen, what to trust, where to keep. ConfigError for what cannot be meant."""

    transport: Transport
    listen: str = "127.0.0.1:7443"  # clients
    control: str = "127.0.0.1:7444"  # operators and auditors
    database: str = "sqlite:///coordinator.sqlite"
    tokens: Path = field(default_factory=lambda: Path("tokens.json"))
    allow_simulation: bool = False
    max_message: int = 4 << 20  # bytes of an answer, in parts if need be: of d numbers up to d = 523,000
    max_clients: int = 2000  # connected at a time, if there are as many files: 70 KiB each, for any client
    metrics: str | None = None  # where /metrics and /healthz are served, [HOST:]PORT; None: nowhere
    gather: float = 0.0  # seconds after a start in which clients come back, before anybody is asked
    away_after: float = AWAY_AFTER  # seconds until a user who is not seen is a member of no run that begins
    max_users_per_client: int = 1  # for whom one client may answer: each takes a seat, and is a user of runs
    second_server: "SecondServerLink | None" = None  # of two servers; None: runs of that trust model are refused
    evaluate: Evaluate | None = None  # measures models of simulations, by who has made up their users

    def __post_init__(self) -> None:
        if not SMALLEST <= self.max_message <= wire.MAX_MESSAGE:
            raise ConfigError(
                f"Expected max_message in [{SMALLEST:,}, {wire.MAX_MESSAGE:,}] bytes, got {self.max_message:,}."
            )
        if not 0 <= self.gather < math.inf:
            raise ConfigError(f"Expected gather of 0 seconds or more, got {self.gather}.")
        if not 1 <= self.max_users_per_client <= MOST_PEOPLE:
            raise ConfigError(
                f"Expected max_users_per_client in [1, {MOST_PEOPLE:,}], got {self.max_users_per_client}."
            )
        if self.second_server is not None and self.transport.plaintext:
            raise ConfigError(
                "Expected certificates together with a second server, got --insecure: anyone who reads what clients "
                "send, and is the second server or in its hands, has their answers."
            )
        if self.max_clients < 1:
            raise ConfigError(f"Expected max_clients of 1 or more, got {self.max_clients}.")

    def connections(self) -> int:
        """At most so many of clients, which leave enough files for operators and for the coordinator itself."""
        allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if allowed == resource.RLIM_INFINITY:
            return self.max_clients
        return max(1, min(allowed - MOST_OPERATORS - _RESERVED, self.max_clients))
