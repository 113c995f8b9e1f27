"""The second server: its store, its keys, one port for coordinators that it knows, and their calls.

    async with SecondServer(SecondServerConfig(coordinators=("ab12…",), ...)) as running:
        running.listen     # host:port

A caller shows a certificate of the authority of the second server's own operator, and has a key that the operator has
named: there is no plaintext. Of a call the log has the run, the round and what was refused; nothing that is said,
logged or counted depends on answers or on how many came. Its metrics are public values: of users nothing, not even how
many there were (docs/two-servers.md#metrics).
"""

import asyncio
import logging
import re
import shutil
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import grpc
from prometheus_client import Metric

from quoron_client.durable import locked
from quoron_privacy.errors import ConfigError, LedgerUnavailable, QuoronError
from quoron_privacy.two_servers.noise import Entry
from quoron_protos.v1 import helper_pb2 as pb
from quoron_protos.v1 import helper_pb2_grpc
from quoron_server.second_server.keys import Keys, public_fingerprint, signing_key
from quoron_server.second_server.runs import (
    CLOSED,
    EXPIRED,
    KEEP,
    OPEN,
    RESTORED,
    HelpedRuns,
    HelpedRunStore,
    Refused,
    UnknownRun,
)
from quoron_server.service import security
from quoron_server.service.metrics import ServerMetrics, family
from quoron_server.service.program import Port, Program
from quoron_server.service.security import Transport, Trust
from quoron_server.storage.database import Database

SERVICE = "quoron.v1.Helper"
_CALLS = 8  # at a time
TIMEOUT, EACH = 60.0, 0.02  # seconds for a call, and for each user of a list: twice what a coordinator waits
_CUT_OFF = 0.1  # seconds within which gRPC cancels a call that was cut off, whose list ends like a short one
_CHUNK = 256 << 10  # bytes of a reply in one message
_OPTIONS = (("grpc.max_allowed_incoming_connections", 64), ("grpc.max_concurrent_streams", 4))
REFUSED = ("identity", "expired", "refused", "away", "error")  # calls, and why
Stored = Counter[str]  # of runs, by state
_log = logging.getLogger("quoron.second_server")
T = TypeVar("T")
Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondServerConfig:
    """Where to listen, whom to know, where to keep. ConfigError for what cannot be meant."""

    certificate: Path
    key: Path
    authority: Path  # whose certificates coordinators show: of the second server's own operator
    coordinators: tuple[str, ...]  # SHA-256 of their keys, in hexadecimal
    listen: str = "127.0.0.1:7445"
    database: str = "sqlite:///second-server.sqlite"
    keys: Path = Path("second-server-keys")  # of runs: for no backup
    signing_key: Path = Path("second-server-signing.key")
    keep: float = KEEP  # seconds after its consent in which a run has to end
    allow_simulation: bool = False
    threads: int | None = None  # that open seals; None: as many as there are cores
    metrics: str | None = None  # where /metrics and /healthz are served, [HOST:]PORT; None: nowhere

    def __post_init__(self) -> None:
        if not self.coordinators or not all(re.fullmatch("[0-9a-f]{64}", digest) for digest in self.coordinators):
            raise ConfigError(
                f"Expected the fingerprints of coordinators, 64 digits of SHA-256 each, got {self.coordinators}. "
                "Their operator's `quoron admin certs` shows them."
            )
        if not 60 <= self.keep <= 366 * 86_400:
            raise ConfigError(f"Expected keep in [60, {366 * 86_400}] seconds, got {self.keep:g}.")


class SecondServerMetrics(ServerMetrics[Stored]):
    """The values of one second server."""

    def __init__(self, helped: HelpedRuns, database: Database, days_left: Callable[[], Mapping[str, float]]) -> None:
        super().__init__(database, days_left)
        self._helped = helped
        self.refused: Counter[str] = Counter()  # calls, by one of `REFUSED`
        self.on_time = True  # whether the keys of finished runs could be destroyed when it was last tried

    def _read(self) -> Stored:
        return Counter(run.state for run in self._helped.store.runs())

    def _free(self) -> Mapping[str, int]:
        with suppress(OSError):
            return {"keys": shutil.disk_usage(self._helped.keys.folder).free}
        return {}

    def _own(self, stored: Stored | None) -> Iterator[Metric]:
        words = "Whether the keys of finished runs could be destroyed when it was last tried."
        yield family("second_server_keys_end", words, self.on_time)
        refused = [({"why": why}, self.refused[why]) for why in REFUSED]
        yield family("calls_refused_total", "Calls that were refused, since the start.", refused, "counter")
        if stored is None:
            return
        runs = [({"state": state}, stored[state]) for state in (OPEN, CLOSED, EXPIRED, RESTORED)]
        yield family("second_server_runs", "Runs by state.", runs)


class SecondServer(Program):
    """A running second server; `async with` starts and stops it. A port of 0 becomes what the system gave."""

    name = "second-server"
    metrics: SecondServerMetrics

    def __init__(self, config: SecondServerConfig) -> None:
        transport = Transport(config.certificate, config.key, config.authority)
        super().__init__(transport, config.database, config.listen, metrics=config.metrics)
        self.config = config
        self.signing = signing_key(config.signing_key)
        self.notes["signs with"] = public_fingerprint(self.signing.public_key())
        self.helped: HelpedRuns

    @property
    def listen(self) -> str:
        """Where coordinators connect."""
        return self.addresses["coordinators"]

    @asynccontextmanager
    async def _services(self) -> AsyncIterator[Sequence[Port]]:
        config, trust = self.config, self._trust
        assert trust is not None
        keys, store = Keys(config.keys), HelpedRunStore(self._database)
        with locked(config.keys, wait=False):  # or a copy of the database could answer beside this one
            keep, seeded, threads = config.keep, config.allow_simulation, config.threads
            self.helped = HelpedRuns(store, keys, self.signing, keep=keep, allow_simulation=seeded, threads=threads)
            self.open_runs = sum(run.state == OPEN for run in store.runs())
            self.metrics = SecondServerMetrics(self.helped, self._database, self.days_left)
            with ThreadPoolExecutor(_CALLS, thread_name_prefix="calls") as pool:
                calls = CoordinatorCalls(self.helped, trust, config.coordinators, self.metrics.refused, pool)
                yield [
                    Port(
                        callers="coordinators",
                        address=config.listen,
                        certificates=True,
                        service=SERVICE,
                        add=lambda server: helper_pb2_grpc.add_HelperServicer_to_server(calls, server),
                        options=_OPTIONS,
                    )
                ]
                await self.stop_ports()  # calls in progress need the keys
            self.helped.close_threads()

    async def _tend(self) -> bool:
        """Destroy the keys of runs whose time is over. Keys that cannot be removed are tried again."""
        try:
            await asyncio.to_thread(self.helped.expire)
            self.metrics.on_time = True
        except Exception as error:
            _log.error("runs whose time is over could not be ended: %s", error)
            self.metrics.on_time = False
        return self.metrics.on_time


class CoordinatorCalls(helper_pb2_grpc.HelperServicer):
    """The calls of a coordinator, as `Helped` has them."""

    def __init__(
        self, helped: HelpedRuns, trust: Trust, coordinators: Sequence[str], refused: Counter[str], threads: Executor
    ) -> None:
        """`refused` counts calls by one of `REFUSED`; `threads` do the work."""
        self._helped, self._trust, self._coordinators = helped, trust, coordinators
        self._refused, self._threads, self._places = refused, threads, asyncio.Semaphore(_CALLS)

    async def Open(self, request: pb.OpenRun, context: Context) -> pb.HelperConsent:
        """See helper.proto."""
        async with self._call(context, seconds=None) as (caller, _):  # a plan takes as long as the coordinator waits
            return await self._do(self._helped.open, request, caller)

    # What takes long to send is written here, within the call's time: gRPC takes such methods as well as generators.
    async def Sum(self, request_iterator: AsyncIterable[pb.ListPart], context: Context) -> None:  # type: ignore[override]
        """See helper.proto."""
        async with self._call(context) as (caller, timeout):
            head, entries = await self._list(request_iterator, caller, timeout)
            await _send(await self._do(self._helped.sum, head, entries, caller), context)

    async def Recall(self, request: pb.RoundReference, context: Context) -> None:  # type: ignore[override]
        """See helper.proto."""
        async with self._call(context) as (caller, _):
            await _send(await self._do(self._helped.recall, request.run, request.round, caller), context)

    async def Close(self, request: pb.CloseRun, context: Context) -> pb.Closed:
        """See helper.proto."""
        async with self._call(context) as (caller, _):
            return pb.Closed(news=await self._do(self._helped.close, request.run, request.plan_digest, caller))

    async def _do(self, work: Callable[..., T], *given: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(work, *given))

    async def _list(
        self, parts: AsyncIterable[pb.ListPart], caller: str, timeout: asyncio.Timeout
    ) -> tuple[pb.HelperList, list[Entry]]:
        head: pb.HelperList | None = None
        entries: list[Entry] = []
        most = 0
        async for part in parts:
            if part.HasField("head"):
                if head is not None:
                    raise Refused("Expected one head of a list, got two.")
                head, most = part.head, await self._do(self._helped.users, part.head.run, caller)
                timeout.reschedule(asyncio.get_running_loop().time() + TIMEOUT + EACH * most)
            if head is None or head.entries > most or len(entries) + len(part.entries) > head.entries:
                raise Refused(f"Expected a list that begins with its length, of at most {most:,} users, got another.")
            entries += [Entry(row.fingerprint, row.question_digest, row.sealed, row.group) for row in part.entries]
        if head is None or len(entries) != head.entries:
            await asyncio.sleep(_CUT_OFF)
            raise Refused("Expected as many entries as a list announces, got fewer.")
        return head, entries

    @asynccontextmanager
    async def _call(
        self, context: Context, *, seconds: float | None = TIMEOUT
    ) -> AsyncIterator[tuple[str, asyncio.Timeout]]:
        """One of a few calls at a time, of a known coordinator; what fails ends it with the status that says why.

        A coordinator that falls silent in the middle of a call keeps its place for `seconds` and no longer.
        """
        metadata = tuple(context.invocation_metadata() or ())
        found = security.caller(context.auth_context(), metadata, authorities=self._trust.now().authorities)
        if found is None or found.objection is not None or not found.timely():
            self._refused["identity" if found is None or found.timely() else "expired"] += 1
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "Expected a certificate of our own operator.")
        if found.identity not in self._coordinators:
            self._refused["identity"] += 1
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "This coordinator is not one of ours.")
        try:
            async with self._places, asyncio.timeout(seconds) as timeout:
                yield found.identity, timeout
        except asyncio.CancelledError:  # it was taken back
            _log.warning("a call of a coordinator ended before it was whole")
            raise
        except Exception as error:
            code, why, words = _failed(error)
            self._refused.update(why)
            await context.abort(code, words[:1000])


def _failed(error: Exception) -> tuple[grpc.StatusCode, tuple[str, ...], str]:
    """Return the status of a call that failed, why it is counted, and words; the log has the rest."""
    if isinstance(error, UnknownRun):  # a round that was not answered yet is no refusal
        return grpc.StatusCode.NOT_FOUND, (), str(error)
    if isinstance(error, TimeoutError):
        _log.warning("a call of a coordinator ended before it was whole")
        return grpc.StatusCode.CANCELLED, (), "The call took too long."
    if isinstance(error, LedgerUnavailable):
        return grpc.StatusCode.UNAVAILABLE, ("away",), error.outside
    if isinstance(error, OSError):  # such as a full disk: what waits for it goes on when there is room
        _log.error("the second server cannot write: %s", error)
        return grpc.StatusCode.UNAVAILABLE, ("away",), "The second server cannot write now."
    if isinstance(error, QuoronError):
        _log.warning("refused: %s", error)
        return grpc.StatusCode.FAILED_PRECONDITION, ("refused",), getattr(error, "outside", str(error))
    _log.error("an error that was not foreseen", exc_info=error)
    return grpc.StatusCode.INTERNAL, ("error",), "See the second server's log."


async def _send(reply: pb.Reply, context: Context) -> None:
    data = reply.SerializeToString()
    for start in range(0, max(1, len(data)), _CHUNK):
        await context.write(pb.Chunk(data=data[start : start + _CHUNK]))
