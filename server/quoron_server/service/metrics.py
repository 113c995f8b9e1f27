"""Metrics of a coordinator in Prometheus' text format, and the port that serves them: public values, no others.

    >>> print(text([family("runs", "Runs by state.", [({"state": "running"}, 2)])]), end="")
    # HELP quoron_runs Runs by state.
    # TYPE quoron_runs gauge
    quoron_runs{state="running"} 2.0

Nothing follows from an answer, from who gave one or when, or from how many there were. The text is the same for any
answers (docs/operate.md#metrics), except those of a length or type that no data lead to. The progress of a run changes
when its event stream reports it. Sizes are rounded.
"""

import asyncio
import logging
import math
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Generic, TypeVar, get_args

from prometheus_client import Metric, generate_latest

from quoron_privacy.errors import ConfigError, LedgerError, LedgerUnavailable
from quoron_server.plan import EVERYONE
from quoron_server.service.certificates import Version, version
from quoron_server.storage.database import Database
from quoron_server.storage.registry import OPEN, State
from quoron_server.storage.store import software

if TYPE_CHECKING:  # of the coordinator's own metrics alone
    from quoron_server.service.scheduler import RunScheduler
    from quoron_server.service.security import Transport

DATABASE_TIMEOUT = 3.0  # seconds for the database, before it counts as away
_CHAIN_LOOK = 30.0  # seconds between two verifications of the whole chain, at least
_SHARE = 100.0  # and so many times what one takes
FREE, _SIZE = 64 << 20, 1 << 20  # bytes to which free room is rounded down and databases are rounded up
_log = logging.getLogger("quoron")
Sample = tuple[Mapping[str, str], float]
S = TypeVar("S")  # what is read from the database


_PER_RUN = {
    "run_rounds_done": "Rounds of an open run that were reported to its watchers.",
    "run_rounds_planned": "Rounds that it has at most.",
    "run_round_seconds": "What a round takes, with the pause behind it.",
    "run_idle_seconds": "Since it opened, reported a round or was resumed, whichever was last.",
    "run_members": "Users whose run it is.",
    "run_members_connected": "Of these, who is connected, or was 50 seconds ago.",
    "run_min_cohort": "Share of those asked who must answer, as declared.",
}

LOOPBACK = "127.0.0.1"
MOST = 16  # connections at a time; others are hung up on
LONGEST = 8 << 10  # bytes of a request
REQUEST_TIMEOUT = 5.0  # seconds for one

_PATHS = "Expected GET /metrics, /healthz or /alarms.yml.\n"
_KIND = {"/metrics": "text/plain; version=0.0.4; charset=utf-8", "/healthz": "text/plain; charset=utf-8"}
_WORDS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


def family(name: str, help_: str, samples: "Iterable[Sample] | float", kind: str = "gauge") -> Metric:
    """Return one of our own metrics, with one value or one for each set of labels."""
    made = Metric(f"quoron_{name.removesuffix('_total')}", help_, kind)
    for labels, value in [({}, samples)] if isinstance(samples, int | float) else samples:
        made.add_sample(f"quoron_{name}", dict(labels), value)
    return made


def text(families: Iterable[Metric]) -> str:
    """Prometheus' text format, version 0.0.4; families without samples are left out."""
    found: Any = SimpleNamespace(collect=lambda: [family for family in families if family.samples])
    return generate_latest(found).decode()


class ServerMetrics(ABC, Generic[S]):
    """The values of one server, read when they are asked for. Its methods belong to the event loop."""

    def __init__(self, database: Database, days_left: Callable[[], Mapping[str, float]]) -> None:
        """`days_left`: until the first certificate of a kind ends."""
        self._database, self._days_left, self._clock = database, days_left, time.time
        self._started = self._clock()
        self._reading: asyncio.Future[S] | None = None

    async def text(self) -> str:
        """Return every metric as it is served; those of the database only while it answers."""
        stored = await self._stored()
        up = stored is not None and not self._database.failing
        free = [({"place": place}, room // FREE * FREE) for place, room in self._free().items()]
        if (file := self._database.path) is not None:
            with suppress(OSError):
                free.append(({"place": "database"}, shutil.disk_usage(file.parent).free // FREE * FREE))
        days = [({"of": of}, math.floor(left)) for of, left in self._days_left().items()]
        return text(
            [
                family("build_info", "The code that runs here.", [({"version": software()}, 1)]),
                family("start_time_seconds", "When this process started, as Unix time.", self._started),
                family("clock_seconds", "This machine's clock, as Unix time.", self._clock()),
                family("database_up", "Whether the database answers, and can be written.", int(up)),
                family("disk_free_bytes", "Room left, rounded down to 64 MiB.", free),
                family("certificate_days_left", "Whole days to the end of the first certificate of a kind.", days),
                *self._own(stored),
            ]
        )

    async def _stored(self) -> S | None:
        """None if the database does not answer in time; one reading at a time, however often it is asked."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.ensure_future(asyncio.to_thread(self._read))
            self._reading.add_done_callback(lambda done: done.cancelled() or done.exception())
        reading = self._reading
        await asyncio.wait({reading}, timeout=DATABASE_TIMEOUT)
        if not reading.done() or reading.cancelled() or reading.exception() is not None:
            return None
        return reading.result()

    @abstractmethod
    def _read(self) -> S:
        """Return what the database says, in another thread."""

    @abstractmethod
    def _free(self) -> Mapping[str, int]:
        """Return bytes left on other disks than the database's, by what is stored there."""

    @abstractmethod
    def _own(self, stored: S | None) -> Iterator[Metric]:
        """Yield the metrics of this kind of server; `stored` is None while the database does not answer."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What the database says, of one reading."""

    states: Mapping[str, int]
    users: Mapping[str, Mapping[str, int]]  # by group and state
    groups: Mapping[str, tuple[float, tuple[float, float, float] | None]]  # Σ ε; of a limit its ε, and what ε, μ fit


class Metrics(ServerMetrics[Stored]):
    """The values of one coordinator."""

    def __init__(
        self,
        scheduler: "RunScheduler",
        database: Database,
        transport: "Transport",
        days_left: Callable[[], Mapping[str, float]],
    ) -> None:
        super().__init__(database, days_left)
        self._scheduler, self._transport = scheduler, transport
        self._registry, self._population = scheduler.registry, scheduler.population
        self._place = database.path
        self._file = _inode(self._place)
        self.whole = True  # the chain, when it was last verified

    def _free(self) -> Mapping[str, int]:
        return {"scratch": self._scheduler.sessions.free_disk}

    def _own(self, stored: Stored | None) -> Iterator[Metric]:
        yield family("ledger_intact", "Whether the privacy ledger was intact when it was last verified.", self.whole)
        yield from self._of_store(stored)
        runs = self._scheduler.standing()
        for name, words in _PER_RUN.items():
            found = [({"run": run}, figures.get(name)) for run, figures in runs.items()]
            yield family(name, words, [(labels, number) for labels, number in found if number is not None])
        late = "Rounds that opened late, as the work of the one before took longer than its pause."
        yield family("rounds_late_total", late, self._scheduler.sessions.late, "counter")
        yield from self._of_doors()

    async def watch_chain(self) -> None:
        """For ever: verify the whole chain now and then, in at most a hundredth of the time."""
        while True:
            began = time.monotonic()
            await self.verify()
            await asyncio.sleep(max(_CHAIN_LOOK, _SHARE * (time.monotonic() - began)))

    async def verify(self) -> None:
        """Verify the whole chain once; what a database that is away says of it is nothing."""
        try:
            await asyncio.to_thread(self._population.verify)
        except LedgerUnavailable:
            return
        except LedgerError as error:
            if self.whole:
                _log.error("the lifetime ledger does not hold together: %s", error)
            self.whole = False
        else:
            self.whole = True

    def _read(self) -> Stored:
        groups: dict[str, tuple[float, tuple[float, float, float] | None]] = {}
        for name in self._population.groups():
            account, charges = self._population.account(name), self._population.charges(name)
            left = None
            if account is not None:
                left = account.limit.epsilon, account.largest_epsilon(0.0), account.largest_mu(0.0)
            groups[name] = sum(charge.epsilon for charge in charges), left
        users = {name: self._registry.standing(name) for name in sorted({*groups, EVERYONE})}
        return Stored(self._registry.states(), users, groups)

    def _of_store(self, stored: Stored | None) -> Iterator[Metric]:
        there = self._place is None or (self._file is not None and _inode(self._place) == self._file)
        yield family("database_in_place", "Whether the database's file is the one that was opened.", there)
        if self._place is not None:
            size = sum((version(Path(f"{self._place}{end}")) or (0, 0, 0))[2] for end in ("", "-wal"))
            yield family("database_bytes", "Size of the database's file, rounded up to MiB.", -(-size // _SIZE) * _SIZE)
        counts = self._scheduler.counts
        text = "Enrolments of clients that have seen more of the privacy ledger than there is, since the start."
        yield family("newer_database_seen_total", text, counts.newer_store, "counter")
        refused = [({"why": why}, number) for why, number in counts.refused.items()]
        yield family("submissions_refused_total", "Runs that were not taken on, since the start.", refused, "counter")
        if stored is None:
            return
        open_runs = sum(stored.states.get(state, 0) for state in OPEN)
        all_wait = bool(self._scheduler.records.away)
        paused = open_runs if all_wait else len(self._scheduler.records.paused)
        ended = [({"how": how}, stored.states.get(how, 0)) for how in get_args(State) if how not in OPEN]
        yield family("runs_ended", "Runs that have ended, by how.", ended)
        waiting = 0 if all_wait else self._scheduler.waiting
        going = open_runs - paused - waiting
        open_ = {"waiting": waiting, "running": max(0, going), "paused": paused}
        yield family("runs", "Runs that have not ended, by state.", [({"state": s}, n) for s, n in open_.items()])
        users = [({"group": group, "state": state}, n) for group, by in stored.users.items() for state, n in by.items()]
        yield family("users", "Users by state.", users)
        groups = stored.groups.items()
        yield family("epsilon_charged", "Sum of all ε charged.", [({"group": g}, e) for g, (e, _) in groups])
        limits = [({"group": group}, limit) for group, (_, limit) in groups if limit is not None]
        limit, epsilon, mu = ([(labels, numbers[place]) for labels, numbers in limits] for place in range(3))
        yield family("epsilon_limit", "The group's limit.", limit)
        yield family("epsilon_left", "The largest ε of a run that still fits, with δ = 0 and no μ.", epsilon)
        yield family("mu_left", "The largest μ of a Gaussian run that still fits.", mu)

    def _of_doors(self) -> Iterator[Metric]:
        yield family("clients_connected", "Connected clients.", self._scheduler.sessions.connected)
        calls = [({"why": why}, number) for why, number in self._scheduler.counts.calls.items()]
        yield family("calls_refused_total", "Calls that were refused, since the start.", calls, "counter")
        if self._transport.revoked is not None:
            try:
                revoked, readable = len(self._transport.revoked.now()), 1
            except ConfigError:
                revoked, readable = None, 0
            yield family("revocations_readable", "Whether the list of revoked clients can be read.", readable)
            if revoked is not None:
                yield family("revoked_clients", "Clients on it.", revoked)


def _inode(path: Path | None) -> Version:
    return ((path and version(path)) or ())[:2] or None


ALARMS = Path(__file__).with_name("alarms.yml")


def place(address: str) -> tuple[str, int]:
    """Host and port of "[HOST:]PORT"; ConfigError if it is none."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or not port.isascii() or int(port) > 65535 or address.startswith(":"):
        raise ConfigError(f"Expected --metrics as PORT or HOST:PORT, such as 9464, got {address!r}.")
    return host.strip("[]") or LOOPBACK, int(port)


async def listen(address: str, metrics: ServerMetrics[Any], *, serving: Callable[[], bool]) -> asyncio.Server:
    """Serve /metrics, /healthz and /alarms.yml by plain HTTP; ConfigError for an address that cannot be used.

        server = await listen("127.0.0.1:9464", metrics, serving=lambda: True)

    It is off unless asked for, and on loopback unless another address is given. Its content is public, so it asks for
    no token; it reads one short request a connection, in a few seconds, of a few connections at a time.
    """
    host, port = place(address)
    here = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal here
        here += 1
        try:
            if here <= MOST:
                with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                    async with asyncio.timeout(REQUEST_TIMEOUT):
                        head = await reader.readuntil(b"\r\n\r\n")
                    writer.transport.set_write_buffer_limits(0)  # so that it drains to the last byte
                    writer.write(await _answered(head, metrics, serving=serving()))
                    async with asyncio.timeout(REQUEST_TIMEOUT):
                        await writer.drain()
        finally:
            here -= 1
            writer.transport.abort()  # a caller that does not read keeps no file open here

    try:
        return await asyncio.start_server(answer, host, port, limit=LONGEST)
    except OSError as error:
        raise ConfigError(
            f"Cannot listen on {address} for --metrics: {error.strerror or error}. Choose another, or end the process "
            "that listens there."
        ) from None


def address_of(server: asyncio.Server) -> str:
    """Return where it listens, with the port that the system gave."""
    host, port = server.sockets[0].getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def _answered(head: bytes, metrics: ServerMetrics[Any], *, serving: bool) -> bytes:
    """Return the whole answer to a request."""
    words = head.partition(b"\r\n")[0].decode("latin-1").split(" ")
    method, path = (words[0], words[1].partition("?")[0]) if len(words) == 3 else ("", "")
    kind = _KIND.get(path, "text/plain; charset=utf-8")
    if not path:
        code, body = 400, _PATHS
    elif method not in ("GET", "HEAD"):
        code, body = 405, "Expected GET.\n"
    elif path == "/metrics":
        code, body = 200, await metrics.text()
    elif path == "/alarms.yml":
        code, body = 200, ALARMS.read_text(encoding="utf-8")
    elif path == "/healthz":
        code, body = (
            (200, "serving\n")
            if serving
            else (503, "not serving: the database does not answer, or cannot be written\n")
        )
    else:
        code, body = 404, _PATHS
    data = body.encode()
    lines = [f"HTTP/1.1 {code} {_WORDS[code]}", f"Content-Type: {kind}", f"Content-Length: {len(data)}"]
    lines += ["Connection: close", "Cache-Control: no-store", "", ""]
    return "\r\n".join(lines).encode() + (b"" if method == "HEAD" else data)
