"""The coordinator as a process: database, runs, two listening planes, and an orderly end.

asyncio.run(serve(ServeConfig(transport=Transport(insecure=True))))
"""

import asyncio
import ctypes
import logging
import math
import os
import resource
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health
from grpc_reflection.v1alpha import reflection

from quoron_client.protocol import wire
from quoron_client.protocol.charges import MOST_PEOPLE
from quoron_privacy.errors import ConfigError
from quoron_privacy.kernels.on_first_use import OnFirstUse
from quoron_protos.v1 import federation_pb2, federation_pb2_grpc
from quoron_server.books.database import Database
from quoron_server.books.roster import AWAY_AFTER
from quoron_server.books.store import software
from quoron_server.rounds import Evaluate
from quoron_server.service import journal, security
from quoron_server.service import metrics as metrics_port
from quoron_server.service.client_plane import SERVICE as CLIENT_PLANE
from quoron_server.service.client_plane import ClientPlane, Doorkeeper
from quoron_server.service.control_plane import ControlPlane, TokenGate
from quoron_server.service.manager import Manager
from quoron_server.service.metrics import Metrics
from quoron_server.service.security import Transport, Trust
from quoron_server.service.sessions import Sessions
from quoron_server.specification import LONGEST
from quoron_server.traffic import spill_folder

if TYPE_CHECKING:
    from quoron_server.service import helping as two_servers
else:
    two_servers = OnFirstUse("quoron_server.service.helping")  # with a helper alone

HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
CONTROL_PLANE = federation_pb2.DESCRIPTOR.services_by_name["ControlPlane"].full_name
LOOK, PATIENCE = 5.0, 10.0  # seconds between two looks at the database, and for one before it counts as away
GRACE = 1.0  # seconds for calls in progress when the coordinator leaves
LEAVING = 5.0  # seconds for all of it, as a program: less than containers are given before they are killed
_ARENAS = -8  # M_ARENA_MAX of <malloc.h>
SMALLEST = 64 << 10  # bytes: what is no answer may be as long
MOST_OPERATORS = 32  # connections to the control plane, so that an operator with many keeps no client out
MOST_OF_ONE_TOKEN = 12  # of these: a few who watch, share a token
MOST_CLIENTS = 2000  # connections, by default: 70 KiB each, for any client
_RESERVED = 128  # files of our own: database, logs, listening sockets
# Of the control plane. A caller without a token can at most send a health probe's message, of the largest size, in
# every stream of every connection.
_CONTROL = (
    ("grpc.max_receive_message_length", LONGEST + SMALLEST),
    ("grpc.max_allowed_incoming_connections", MOST_OPERATORS),
    ("grpc.max_concurrent_streams", 4),
    ("grpc.max_connection_idle_ms", 60_000),
)
_CONNECTION = (
    ("grpc.so_reuseport", 0),  # a port in use is an error, not a partner
    *wire.KEEPALIVE,
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.server_handshake_timeout_ms", 10_000),
    *wire.STEADY,  # and the window of the transport does not grow for what nobody reads
)
# Of one client: its conversation, and an enrolment or an inquiry after health. Each may hold one message.
_STREAMS = (("grpc.max_concurrent_streams", 2),)
_log = logging.getLogger("quoron")


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """Where to listen, what to trust, where to keep."""

    transport: Transport
    listen: str = "127.0.0.1:7443"  # clients
    control: str = "127.0.0.1:7444"  # operators and auditors
    database: str = "sqlite:///coordinator.sqlite"
    tokens: Path = field(default_factory=lambda: Path("tokens.json"))
    allow_simulation: bool = False
    max_message: int = 4 << 20  # bytes of an answer, in parts if need be: of d numbers up to d = 523,000
    max_clients: int = MOST_CLIENTS  # connected at a time, if there are as many files
    metrics: str | None = None  # where /metrics and /healthz are served, [HOST:]PORT; None: nowhere
    gather: float = 0.0  # seconds after a start in which clients come back, before anybody is asked
    away_after: float = AWAY_AFTER  # seconds until a user who is not seen is a member of no run that begins
    max_users_per_client: int = 1  # for whom one client may answer: each takes a seat, and is a user of runs
    helper: "two_servers.HelperLink | None" = None  # of two servers; None: runs of that trust model are refused
    evaluate: Evaluate | None = None  # measures models of simulations, by who has made up their users


class Coordinator:
    """A running coordinator; `async with` starts and stops it. Ports of 0 become what the system gave."""

    def __init__(self, config: ServeConfig) -> None:
        config.transport.check((config.listen, config.control))
        if not SMALLEST <= config.max_message <= wire.MAX_MESSAGE:
            raise ConfigError(
                f"Expected max_message in [{SMALLEST:,}, {wire.MAX_MESSAGE:,}] bytes, got {config.max_message:,}."
            )
        if not 0 <= config.gather < math.inf:
            raise ConfigError(f"Expected gather of 0 seconds or more, got {config.gather}.")
        if config.metrics is not None:
            metrics_port.place(config.metrics)
        if not 1 <= config.max_users_per_client <= MOST_PEOPLE:
            raise ConfigError(
                f"Expected max_users_per_client in [1, {MOST_PEOPLE:,}], got {config.max_users_per_client}."
            )
        if config.helper is not None and config.transport.plaintext:
            raise ConfigError(
                "Expected certificates together with a second server, got --insecure: anyone who reads what clients "
                "send, and is the second server or in its hands, has their answers."
            )
        if config.max_clients < 1:
            raise ConfigError(f"Expected max_clients of 1 or more, got {config.max_clients}.")
        self.config = config
        self.listen, self.control = config.listen, config.control
        self.sessions = Sessions(spill=spill_folder(config.database))
        self.manager: Manager
        self._database: Database
        self._clients: ClientPlane
        self._trust: Trust | None = None
        self._servers: list[grpc.aio.Server] = []
        self._health: list[health.HealthServicer] = []
        self._services: list[str] = []
        self._watching: list[asyncio.Task[None]] = []
        self.metrics: Metrics  # what it tells those who watch over it
        self._metrics_server: asyncio.Server | None = None
        self._serving = True

    async def __aenter__(self) -> "Coordinator":
        config = self.config
        self._database = await asyncio.to_thread(Database, config.database)
        try:
            self.manager = Manager(
                self._database,
                self.sessions,
                allow_simulation=config.allow_simulation,
                largest_message=config.max_message,
                # In plaintext, which is for one machine or a proxy, many clients may share a connection.
                most_clients=None if config.transport.plaintext else most_clients(config.max_clients),
                gathering=config.gather,
                evaluate=config.evaluate,
                away_after=config.away_after,
                most_people=config.max_users_per_client,
                revoked=config.transport.revoked,
                put_back=float
                if config.transport.plaintext
                else security.put_back,  # without certificates nothing ends
                helping=None if config.helper is None else two_servers.Helping(config.helper, self._database),
            )
            try:
                await self._start()
            except BaseException:
                await self.manager.stop()
                raise
        except BaseException:
            await self._close()
            raise
        return self

    async def _start(self) -> None:
        """Start runs first, so that clients find them; then the two planes."""
        config = self.config
        transport, most = config.transport, most_clients(config.max_clients)
        doorkeeper = None if transport.plaintext else Doorkeeper(most)
        trust = self._trust = transport.trust()
        clients = self._clients = ClientPlane(
            self.manager, doorkeeper=doorkeeper, revoked=transport.revoked, trust=trust
        )
        longest = (
            ("grpc.max_receive_message_length", min(config.max_message, wire.MOST + wire.BESIDE)),
            ("grpc.max_allowed_incoming_connections", most),
        )
        porter = Doorkeeper(MOST_OPERATORS, each=MOST_OF_ONE_TOKEN)
        operators = ControlPlane(self.manager, config.tokens, porter)
        await self.manager.start()
        self.listen = await self._listen(
            config.listen,
            None if trust is None else trust.credentials(clients=True),
            longest if transport.plaintext else longest + _STREAMS,
            CLIENT_PLANE,
            lambda server: server.add_generic_rpc_handlers((clients.handlers(),)),
        )
        self._watching.append(asyncio.create_task(clients.watch_certificates()))
        if doorkeeper is not None:
            port = int(self.listen.rpartition(":")[2])
            self._watching.append(asyncio.create_task(doorkeeper.watch(port)))
        self.control = await self._listen(
            config.control,
            None if trust is None else trust.credentials(clients=False),
            _CONTROL,
            CONTROL_PLANE,
            lambda server: federation_pb2_grpc.add_ControlPlaneServicer_to_server(operators, server),
            (TokenGate(config.tokens, frozenset({HEALTH}), self.manager.counts),),
        )
        self._watching.append(asyncio.create_task(porter.watch(int(self.control.rpartition(":")[2]))))
        self._watching.append(asyncio.create_task(self._watch_database()))
        self._watching.append(asyncio.create_task(self.manager.users.watch()))
        self.metrics = Metrics(self.manager, self._database, transport, self.days_left)
        if config.metrics is not None:
            self._metrics_server = await metrics_port.listen(
                config.metrics, self.metrics, serving=lambda: self._serving and not self._database.failing
            )
            self._watching.append(asyncio.create_task(self.metrics.watch_chain()))
        journal.started(software(), self.listen, self.control, len(self.manager.standing()))

    def days_left(self) -> dict[str, float]:
        """Days until the coordinator's own certificate ends, the last authority that it trusts, and the first of the
        clients connected now, if there are any; nothing in plaintext."""
        if self._trust is None:
            return {}
        first = self._clients.days_left()
        return self._trust.now().days_left() | ({} if first is None else {"clients": first})

    @property
    def metrics_address(self) -> str | None:
        """Where /metrics is served, with its port; None for nowhere."""
        return None if self._metrics_server is None else metrics_port.address_of(self._metrics_server)

    async def _watch_database(self) -> None:
        """Every few seconds, for ever: set the health status by whether the database is there, ours, and can be
        written."""
        while True:
            asked = asyncio.ensure_future(asyncio.to_thread(self._database.probe))
            done, _ = await asyncio.wait({asked}, timeout=PATIENCE)
            if not done:
                await self._tell(serving=False)
                await asyncio.wait({asked})
            await self._tell(serving=asked.exception() is None)
            await asyncio.sleep(LOOK)

    async def _tell(self, *, serving: bool) -> None:
        self._serving = serving
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for state, service in zip(self._health, self._services, strict=True):
            for name in ("", service):
                await state.set(name, status)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._serving = False
        for each in self._health:
            await each.enter_graceful_shutdown()
        await self.manager.stop()
        self.sessions.dismiss()
        await self._close()

    async def _close(self) -> None:
        for task in self._watching:
            task.cancel()
        if self._metrics_server is not None:
            self._metrics_server.close()
        await asyncio.gather(*(server.stop(GRACE) for server in self._servers))
        await asyncio.to_thread(self._database.close)

    async def _listen(
        self,
        address: str,
        credentials: grpc.ServerCredentials | None,
        options: tuple[tuple[str, int], ...],
        service: str,
        add: Callable[[grpc.aio.Server], None],
        interceptors: tuple[grpc.aio.ServerInterceptor, ...] = (),
    ) -> str:
        """One server with its service, health and reflection; the address with its port."""
        server = grpc.aio.server(interceptors=interceptors, options=(*_CONNECTION, *options))
        add(server)
        state = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(state, server)
        names = (service, HEALTH, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
        try:
            if credentials is None:
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, credentials)
        except RuntimeError:
            raise ConfigError(
                f"Cannot listen on {address}: the port is in use, or the address is not this machine's. "
                "Choose another, or end the process that listens there."
            ) from None
        await server.start()
        self._servers.append(server)
        self._health.append(state)
        self._services.append(service)
        await state.set("", health_pb2.HealthCheckResponse.SERVING)
        await state.set(service, health_pb2.HealthCheckResponse.SERVING)
        return f"{address.rpartition(':')[0]}:{port}"


def most_clients(wanted: int) -> int:
    """At most so many connections of clients, which leave enough files for operators and for the coordinator itself."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if allowed == resource.RLIM_INFINITY:
        return wanted
    return max(1, min(allowed - MOST_OPERATORS - _RESERVED, wanted))


def allow_many_files() -> None:
    """As many as the system lets this process have open."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with suppress(ValueError, OSError):  # some systems refuse their own limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _one_arena() -> None:
    """Keep what many threads free of glibc's memory together: spread over arenas, a flood leaves twice as much."""
    with suppress(OSError, AttributeError):  # another library of C
        ctypes.CDLL(None).mallopt(_ARENAS, 1)


def _end_now() -> None:
    _log.warning("leaving at once: something that it waits for, such as the database, does not answer")
    logging.shutdown()
    os._exit(0)


async def serve(
    config: ServeConfig, *, ready: Callable[[Coordinator], None] | None = None, patience: float | None = None
) -> None:
    """Coordinate until SIGTERM or SIGINT, then leave every run where it is: the next start takes it up.

    `ready` is called once everything listens. With `patience` the process ends so many seconds after the signal with
    status 0, whatever it waits for. A database that does not answer can hold a thread for longer than the sender of the
    signal waits, and the store is consistent at every instant. Raises ConfigError, IdentityError and LedgerError before
    everything listens, and LedgerError when another process has taken the database over.
    """
    _one_arena()
    allow_many_files()  # every client is one
    leave = asyncio.Event()
    loop = asyncio.get_running_loop()

    def told_to_leave() -> None:
        leave.set()
        if patience is not None:
            last = threading.Timer(patience, _end_now)
            last.daemon = True  # where all goes well, nobody waits for it
            last.start()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told_to_leave)
    async with Coordinator(config) as coordinator:
        if ready is not None:
            ready(coordinator)
        lost = coordinator.manager.lost
        lost.add_done_callback(lambda _: leave.set())
        await leave.wait()
        journal.leaving()
        if lost.done():
            lost.result()
