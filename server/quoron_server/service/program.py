"""A server as a process: its database, its ports, what its health says, its metrics, and an orderly end.

    class Clock(Program):                            # declares what it stores, serves and counts
        ...
    asyncio.run(serve(Clock(transport, "sqlite:///clock.sqlite"), timeout=LEAVING))

| what                       | coordinator                          | second server                                 |
| -------------------------- | ------------------------------------ | --------------------------------------------- |
| ports                      | clients, control                     | coordinators                                  |
| stored beside the database | long answers, until their round ends | keys of runs, in a folder that it locks       |
| not healthy while          | the database is away or full         | so, or keys of ended runs cannot be destroyed |
| at its end                 | runs stop, then ports                | ports stop, then work in progress             |

The rest is the same for both: TLS by files that may be renewed, options of gRPC, health, /metrics, logs, and signals.
"""

import asyncio
import ctypes
import logging
import os
import resource
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health

from quoron_client.protocol import wire
from quoron_privacy.errors import ConfigError
from quoron_server.service import event_log
from quoron_server.service import metrics as metrics_port
from quoron_server.service.metrics import ServerMetrics
from quoron_server.service.security import Transport, Trust
from quoron_server.storage.database import Database
from quoron_server.storage.store import software

HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
POLL, TIMEOUT = 5.0, 10.0  # seconds between two checks of the database, and for one before it counts as unreachable
GRACE = 1.0  # seconds for calls in progress when the server leaves
LEAVING = 5.0  # seconds for all of it, as a program: less than containers are given before they are killed
_ARENAS = -8  # M_ARENA_MAX of <malloc.h>
_CONNECTION = (
    ("grpc.so_reuseport", 0),  # a port in use is an error, not a partner
    *wire.KEEPALIVE,  # a peer that is gone keeps no place, and no firewall takes a long round for the end
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.server_handshake_timeout_ms", 10_000),
)
_log = logging.getLogger("quoron")


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """One port of gRPC with its service; health is beside it."""

    callers: str  # what the log calls those who connect here
    address: str  # HOST:PORT; a port of 0 becomes what the system gives
    certificates: bool  # whether callers need one of the authority
    service: str  # its full name
    add: Callable[[grpc.aio.Server], None]
    options: tuple[tuple[str, int], ...] = ()  # beside those of every connection
    interceptors: tuple[grpc.aio.ServerInterceptor, ...] = ()
    watch: Callable[[int], Coroutine[Any, Any, None]] | None = None  # without end, with the number of the port


class Program(ABC):
    """A server that runs; `async with` starts and stops it."""

    name: ClassVar[str]  # as logs and metrics call its certificate
    metrics: ServerMetrics[Any]  # made with the services

    def __init__(self, transport: Transport, database: str, *ports: str, metrics: str | None = None) -> None:
        """Check what can be checked before anything is opened.

        Args:
            transport: Certificate, key and authority, or plaintext.
            database: URL of the database, of which this process becomes the owner.
            ports: The addresses that it will listen on.
            metrics: Where /metrics and /healthz are served, [HOST:]PORT; None: nowhere.

        Raises:
            ConfigError: For plaintext off loopback, TLS without its files, or an address that is none.
            IdentityError: For certificates that cannot be used.
        """
        transport.check(ports)
        if metrics is not None:
            metrics_port.place(metrics)
        self._transport, self._url, self._metrics_place = transport, database, metrics
        self.addresses: dict[str, str] = {}  # by callers, once it listens
        self.notes: dict[str, str] = {}  # what else is said of where it listens
        self.metrics_address: str | None = None  # with its port; None for nowhere
        self.open_runs = 0  # that had not ended when the services were opened
        self.lost: asyncio.Future[None] | None = None  # done when another process has taken the database over
        self._database: Database
        self._trust: Trust | None = None
        self._serving = True
        self._health, self._names = health.HealthServicer(), [""]
        self._servers: list[grpc.aio.Server] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._open = AsyncExitStack()

    @abstractmethod
    def _services(self) -> AbstractAsyncContextManager[Sequence[Port]]:
        """Open what is served, with `metrics`; its ports, in order. At the end they are still open."""

    async def _tend(self) -> bool:
        """Do what is to be done every few seconds; whether the server is healthy, beside its database."""
        return True

    def days_left(self) -> dict[str, float]:
        """Days until certificates end: its own, and the last authority that it trusts. Empty in plaintext."""
        return {} if self._trust is None else self._trust.days_left()

    def words(self) -> str:
        """One line for people: where it listens."""
        places = self.addresses | self.notes
        if self.metrics_address is not None:
            places["metrics"] = self.metrics_address
        return f"listening: {', '.join(f'{what} {where}' for what, where in places.items())}"

    def watch(self, work: Coroutine[Any, Any, None]) -> None:
        """Have `work` done as long as the server runs."""
        self._tasks.append(asyncio.create_task(work))

    async def __aenter__(self) -> Self:
        self._database = await asyncio.to_thread(Database, self._url)
        try:
            self._open.push_async_callback(self._close)
            self._trust = self._transport.trust(of=self.name)
            for port in await self._open.enter_async_context(self._services()):
                await self._listen(port)
            if self._metrics_place is not None:
                await self._serve_metrics(self._metrics_place)
            self.watch(self._watch())
            where = {"where": ", ".join(f"{callers} {address}" for callers, address in self.addresses.items())}
            event_log.note("started", shown=where, software=software(), **self.addresses, runs=self.open_runs)
        except BaseException:
            await self._open.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._serving = False
        await self._health.enter_graceful_shutdown()
        await self._open.aclose()

    async def stop_ports(self) -> None:
        """End all calls, those in progress within the time of grace; again is the same."""
        stopped, self._servers = self._servers, []
        await asyncio.gather(*(server.stop(GRACE) for server in stopped))

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await self.stop_ports()
        await asyncio.to_thread(self._database.close)

    async def _listen(self, port: Port) -> None:
        """One server with its service and health."""
        server = grpc.aio.server(interceptors=port.interceptors, options=(*_CONNECTION, *port.options))
        port.add(server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        try:
            if self._trust is None:
                number = server.add_insecure_port(port.address)
            else:
                number = server.add_secure_port(port.address, self._trust.credentials(clients=port.certificates))
        except RuntimeError:
            raise ConfigError(
                f"Cannot listen on {port.address}: the port is in use, or the address is not this machine's. "
                "Choose another, or end the process that listens there."
            ) from None
        await server.start()
        self._servers.append(server)
        self._names.append(port.service)
        await self._health.set(port.service, health_pb2.HealthCheckResponse.SERVING)
        self.addresses[port.callers] = f"{port.address.rpartition(':')[0]}:{number}"
        if port.watch is not None:
            self.watch(port.watch(number))

    async def _serve_metrics(self, place: str) -> None:
        server = await metrics_port.listen(
            place, self.metrics, serving=lambda: self._serving and not self._database.failing
        )
        self._open.callback(server.close)
        self.metrics_address = metrics_port.address_of(server)

    async def _watch(self) -> None:
        """Every few seconds, without end, set the health status by whether the database is there, ours, and can be
        written, and by what else it depends on."""
        while True:
            well = await self._tend()
            asked = asyncio.ensure_future(asyncio.to_thread(self._database.probe))
            done, _ = await asyncio.wait({asked}, timeout=TIMEOUT)
            if not done:
                await self._tell(serving=False)
                await asyncio.wait({asked})
            await self._tell(serving=asked.exception() is None and well)
            await asyncio.sleep(POLL)

    async def _tell(self, *, serving: bool) -> None:
        self._serving = serving
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in self._names:
            await self._health.set(name, status)


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


P = TypeVar("P", bound=Program)


async def serve(program: P, *, ready: Callable[[P], None] | None = None, timeout: float | None = None) -> None:
    """Run a server until SIGTERM or SIGINT, then leave every run where it is: the next start takes it up.

    Args:
        program: The server, not started yet.
        ready: Called once everything listens.
        timeout: Seconds after the signal in which the process ends with status 0, whatever it waits for; None: it
            waits. A database that does not answer can hold a thread for longer than the sender of the signal waits,
            and the store is consistent at every instant.

    Raises:
        ConfigError, IdentityError, LedgerError: Before everything listens.
        LedgerError: When another process has taken the database over.
    """
    _one_arena()
    allow_many_files()  # every client is one
    leave = asyncio.Event()

    def told_to_leave() -> None:
        leave.set()
        if timeout is not None:
            last = threading.Timer(timeout, _end_now)
            last.daemon = True  # where all goes well, nobody waits for it
            last.start()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told_to_leave)
    async with program:
        if ready is not None:
            ready(program)
        if program.lost is not None:
            program.lost.add_done_callback(lambda _: leave.set())
        await leave.wait()
        event_log.note("leaving")
        if program.lost is not None and program.lost.done():
            program.lost.result()
