"""The coordinator: runs, clients who answer them, and operators who submit them.

asyncio.run(serve(Coordinator(ServeConfig(transport=Transport(insecure=True)))))
"""

import math
import resource
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from quoron_client.protocol import MAX_PEOPLE, wire
from quoron_privacy.errors import ConfigError
from quoron_protos.v1 import federation_pb2, federation_pb2_grpc
from quoron_server.rounds import Evaluate
from quoron_server.service.client_plane import LEAVING, ClientPlane, ConnectionLimiter
from quoron_server.service.client_plane import SERVICE as CLIENT_PLANE
from quoron_server.service.control_plane import ControlPlane, TokenGate
from quoron_server.service.metrics import Metrics
from quoron_server.service.program import HEALTH, Port, Program
from quoron_server.service.scheduler import RunScheduler
from quoron_server.service.security import Transport
from quoron_server.service.sessions import Sessions
from quoron_server.specification import LONGEST
from quoron_server.storage.registry import AWAY_AFTER
from quoron_server.traffic import spill_folder

if TYPE_CHECKING:
    from quoron_server.service.second_server_client import SecondServerLink

SMALLEST = 64 << 10  # bytes: what is no answer may be as long
MAX_OPERATORS = 32  # connections to the control plane, so that an operator with many keeps no client out
_RESERVED = 128  # files of our own: database, logs, listening sockets
CONTROL_PLANE = federation_pb2.DESCRIPTOR.services_by_name["ControlPlane"].full_name
MAX_OF_ONE_TOKEN = 12  # of these: a few who watch, share a token
# Of the control plane. A caller without a token can at most send a health probe's message, of the largest size, in
# every stream of every connection.
_CONTROL = (
    *wire.STEADY,
    ("grpc.max_receive_message_length", LONGEST + SMALLEST),
    ("grpc.max_allowed_incoming_connections", MAX_OPERATORS),
    ("grpc.max_concurrent_streams", 4),
    ("grpc.max_connection_idle_ms", 60_000),
)
# Of one client: its conversation, and an enrolment or an inquiry after health. Each may hold one message.
_STREAMS = (("grpc.max_concurrent_streams", 2),)


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
    waiting: float = 0.0  # seconds after a start in which clients come back, before anybody is asked
    away_after: float = AWAY_AFTER  # seconds until a user who is not seen is a member of no run that begins
    max_users_per_client: int = 1  # for whom one client may answer: each takes a seat, and is a user of runs
    second_server: "SecondServerLink | None" = None  # of two servers; None: runs of that trust model are refused
    evaluate: Evaluate | None = None  # measures models of simulations, by who has made up their users

    def __post_init__(self) -> None:
        if not SMALLEST <= self.max_message <= wire.MAX_MESSAGE:
            raise ConfigError(
                f"Expected max_message in [{SMALLEST:,}, {wire.MAX_MESSAGE:,}] bytes, got {self.max_message:,}."
            )
        if not 0 <= self.waiting < math.inf:
            raise ConfigError(f"Expected waiting of 0 seconds or more, got {self.waiting}.")
        if not 1 <= self.max_users_per_client <= MAX_PEOPLE:
            raise ConfigError(f"Expected max_users_per_client in [1, {MAX_PEOPLE:,}], got {self.max_users_per_client}.")
        if self.second_server is not None and self.transport.insecure:
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
        return max(1, min(allowed - MAX_OPERATORS - _RESERVED, self.max_clients))


class Coordinator(Program):
    """A running coordinator; `async with` starts and stops it. Ports of 0 become what the system gave."""

    name = "coordinator"
    metrics: Metrics

    def __init__(self, config: ServeConfig) -> None:
        super().__init__(config.transport, config.database, config.listen, config.control, metrics=config.metrics)
        self.config = config
        self.sessions = Sessions(spill=spill_folder(config.database))
        self.scheduler: RunScheduler
        self._clients: ClientPlane

    @property
    def listen(self) -> str:
        """Where clients connect."""
        return self.addresses["clients"]

    @property
    def control(self) -> str:
        """Where operators and auditors connect."""
        return self.addresses["control"]

    def days_left(self) -> dict[str, float]:
        """Days until certificates end: as of any program, and the first of the clients connected now."""
        first = None if self._trust is None else self._clients.days_left()
        return super().days_left() | ({} if first is None else {"clients": first})

    @asynccontextmanager
    async def _services(self) -> AsyncIterator[Sequence[Port]]:
        """Start runs before ports, so that clients find them."""
        config = self.config
        plaintext, most = config.transport.insecure, config.connections()
        self.scheduler = RunScheduler(self._database, self.sessions, config)
        try:
            limiter = None if plaintext else ConnectionLimiter(most)
            clients = self._clients = ClientPlane(
                self.scheduler, limiter=limiter, revoked=config.transport.revoked, trust=self._trust
            )
            longest = (
                ("grpc.max_receive_message_length", min(config.max_message, wire.MOST + wire.BESIDE)),
                ("grpc.max_allowed_incoming_connections", most),
            )
            porter = ConnectionLimiter(MAX_OPERATORS, each=MAX_OF_ONE_TOKEN)
            operators = ControlPlane(self.scheduler, config.tokens, porter)
            self.metrics = Metrics(self.scheduler, self._database, config.transport, self.days_left)
            await self.scheduler.start()
            self.lost, self.open_runs = self.scheduler.lost, len(self.scheduler.standing())
            self.watch(clients.watch_certificates())
            self.watch(self.scheduler.users.watch())
            if config.metrics is not None:
                self.watch(self.metrics.watch_chain())
            yield [
                Port(
                    callers="clients",
                    address=config.listen,
                    certificates=True,
                    service=CLIENT_PLANE,
                    add=lambda server: server.add_generic_rpc_handlers((clients.handlers(),)),
                    options=(*wire.STEADY, *longest) if plaintext else (*wire.STEADY, *longest, *_STREAMS),
                    watch=None if limiter is None else limiter.watch,
                ),
                Port(
                    callers="control",
                    address=config.control,
                    certificates=False,
                    service=CONTROL_PLANE,
                    add=lambda server: federation_pb2_grpc.add_ControlPlaneServicer_to_server(operators, server),
                    options=_CONTROL,
                    interceptors=(TokenGate(config.tokens, frozenset({HEALTH}), self.scheduler.counts),),
                    watch=porter.watch,
                ),
            ]
        finally:
            await self.scheduler.stop()
            self.sessions.disconnect(self.sessions.here(), LEAVING)
