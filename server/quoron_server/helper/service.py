"""The helper as a process: its books, its keys, one listening port for coordinators it knows, and an orderly end.

    with HelperProcess(HelperConfig(coordinators=("ab12…",), ...)) as running:
        running.listen     # host:port

A caller shows a certificate of the authority of the helper's own operator, and has a key that the operator has named:
there is no plaintext. Of a call the log has the run, the round and what was refused; nothing that is said,
logged or counted depends on answers or on how many came.
"""

import logging
import re
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from quoron_client.protocol import wire
from quoron_client.protocol.identity import fingerprint, load
from quoron_privacy.errors import ConfigError, LedgerError, LedgerUnavailable, QuoronError
from quoron_privacy.two_servers.noise import Entry
from quoron_protos.v1 import helper_pb2 as pb
from quoron_protos.v1 import helper_pb2_grpc
from quoron_server.books.database import Database
from quoron_server.books.store import software
from quoron_server.helper.books import HelperBooks
from quoron_server.helper.keys import Keys, public_fingerprint, signing_key
from quoron_server.helper.metrics import HelperMetrics, served
from quoron_server.helper.runs import KEEP, Helped, Refused, UnknownRun
from quoron_server.service import metrics as metrics_port
from quoron_server.service import security
from quoron_server.service.folder_lock import locked
from quoron_server.service.security import Trust

SERVICE = "quoron.v1.Helper"
LOOK = 5.0  # seconds between two looks for runs whose time is over
GRACE = 2.0  # seconds for calls in progress when the helper leaves
_CALLS = 8  # at a time
PATIENCE, EACH = 60.0, 0.02  # seconds for a call, and for each user of a list: twice what a coordinator waits
_CHUNK = 256 << 10  # bytes of a reply in one message
_OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_allowed_incoming_connections", 64),
    ("grpc.max_concurrent_streams", 4),
    ("grpc.server_handshake_timeout_ms", 10_000),
    *wire.KEEPALIVE,  # who is gone keeps no place, and no firewall takes a long round for the end
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
)
_log = logging.getLogger("quoron.helper")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class HelperConfig:
    """Where to listen, whom to know, where to keep. ConfigError for what cannot be meant."""

    certificate: Path
    key: Path
    authority: Path  # whose certificates coordinators show: of the helper's own operator
    coordinators: tuple[str, ...]  # SHA-256 of their keys, in hexadecimal
    listen: str = "127.0.0.1:7445"
    database: str = "sqlite:///helper.sqlite"
    keys: Path = Path("helper-keys")  # of runs: for no backup
    signing_key: Path = Path("helper-signing.key")
    keep: float = KEEP  # seconds after its consent in which a run has to end
    allow_simulation: bool = False
    threads: int | None = None  # that open seals; None: as many as there are cores
    metrics: str | None = None  # where /metrics and /healthz are served, [HOST:]PORT; None: nowhere

    def __post_init__(self) -> None:
        if not self.coordinators or not all(re.fullmatch("[0-9a-f]{64}", each) for each in self.coordinators):
            raise ConfigError(
                f"Expected the fingerprints of coordinators, 64 digits of SHA-256 each, got {self.coordinators}. "
                "Their operator's `quoron admin certs` shows them."
            )
        if not 60 <= self.keep <= 366 * 86_400:
            raise ConfigError(f"Expected keep in [60, {366 * 86_400}] seconds, got {self.keep:g}.")
        if self.metrics is not None:
            metrics_port.place(self.metrics)


def keys_of(certificates: Iterable[Path]) -> tuple[str, ...]:
    """The fingerprints of coordinators, by their certificates. IdentityError for files that are none."""
    return tuple(fingerprint(load(each)) for each in certificates)


class HelperProcess:
    """A running helper; `with` starts and stops it. A port of 0 becomes what the system gave."""

    def __init__(self, config: HelperConfig) -> None:
        self.config, self.listen = config, config.listen
        self.signing = signing_key(config.signing_key)
        self.helped: Helped
        self._database: Database
        self._server: grpc.Server
        self._health = health.HealthServicer()
        self._leaving = threading.Event()
        self._open = ExitStack()
        self.metrics: HelperMetrics
        self.metrics_address: str | None = None  # where /metrics is served, with its port; None for nowhere

    def __enter__(self) -> "HelperProcess":
        config = self.config
        trust = Trust(config.certificate, config.key, config.authority)
        self._database = Database(config.database)
        try:
            keys = Keys(config.keys)
            self._open.enter_context(locked(config.keys, wait=False))  # or a copy of the database could answer beside
            self.helped = Helped(
                HelperBooks(self._database),
                keys,
                self.signing,
                keep=config.keep,
                allow_simulation=config.allow_simulation,
                threads=config.threads,
            )
            self.metrics = HelperMetrics(self.helped, self._database, lambda: _days_left(trust))
            if config.metrics is not None:
                port_of_metrics = served(
                    config.metrics,
                    self.metrics,
                    serving=lambda: self.metrics.on_time and not self._database.failing,
                )
                self.metrics_address = self._open.enter_context(port_of_metrics)
            self._server = grpc.server(ThreadPoolExecutor(_CALLS, thread_name_prefix="calls"), options=_OPTIONS)
            helper_pb2_grpc.add_HelperServicer_to_server(
                HelperService(self.helped, trust, config, self.metrics), self._server
            )
            health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
            try:
                port = self._server.add_secure_port(config.listen, trust.credentials(clients=True))
            except RuntimeError:
                raise ConfigError(
                    f"Cannot listen on {config.listen}: the port is in use, or the address is not this machine's."
                ) from None
            self._server.start()
        except BaseException:
            self._open.close()
            self._database.close()
            raise
        self.listen = f"{config.listen.rpartition(':')[0]}:{port}"
        for name in ("", SERVICE):
            self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        threading.Thread(target=self._watch, name="expires", daemon=True).start()
        _log.info("%s has started: coordinators %s", software(), self.listen)
        return self

    def __exit__(self, *_: object) -> None:
        self._leaving.set()
        self._health.enter_graceful_shutdown()
        self._server.stop(GRACE).wait()
        self._open.close()
        self.helped.close_threads()
        self._database.close()
        _log.info("leaving")

    @property
    def fingerprint(self) -> str:
        """Of the key that it signs with."""
        return public_fingerprint(self.signing.public_key())

    def _watch(self) -> None:
        while not self._leaving.wait(LOOK):
            try:
                self.helped.expire()
                self.metrics.on_time = True
                with suppress(LedgerError):
                    self._database.probe()  # to which it writes, if it could not
                up, down = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
                self._health.set("", down if self._database.failing else up)
            except Exception as error:  # keys that cannot be removed are tried again: no error ends this thread
                _log.error("runs whose time is over could not be ended: %s", error)
                self.metrics.on_time = False
                self._health.set("", health_pb2.HealthCheckResponse.NOT_SERVING)


class HelperService(helper_pb2_grpc.HelperServicer):
    """The calls of a coordinator, as `Helped` has them."""

    def __init__(self, helped: Helped, trust: Trust, config: HelperConfig, metrics: HelperMetrics) -> None:
        self._helped, self._trust, self._config, self._metrics = helped, trust, config, metrics

    def Open(self, request: pb.OpenRun, context: Any) -> pb.HelperConsent:
        """See helper.proto."""
        return self._done(context, lambda caller: self._helped.open(request, caller))

    def Sum(self, request_iterator: Iterator[pb.ListPart], context: Any) -> Iterator[pb.Chunk]:
        """See helper.proto."""
        with _Ending(context) as ending:
            reply = self._done(context, lambda caller: self._summed(request_iterator, caller, ending))
            yield from _chunks(reply)

    def Recall(self, request: pb.RoundReference, context: Any) -> Iterator[pb.Chunk]:
        """See helper.proto."""
        with _Ending(context):
            reply = self._done(context, lambda caller: self._helped.recall(request.run, request.round, caller))
            yield from _chunks(reply)

    def Close(self, request: pb.CloseRun, context: Any) -> pb.Closed:
        """See helper.proto."""
        return self._done(
            context, lambda caller: pb.Closed(news=self._helped.close(request.run, request.plan_digest, caller))
        )

    def _summed(self, parts: Iterator[pb.ListPart], caller: str, ending: "_Ending") -> pb.Reply:
        head: pb.HelperList | None = None
        entries: list[Entry] = []
        most = 0
        for part in parts:
            if part.HasField("head"):
                if head is not None:
                    raise Refused("Expected one head of a list, got two.")
                head, most = part.head, self._helped.users(part.head.run, caller)
                ending.after(PATIENCE + EACH * most)
            if head is None or head.entries > most or len(entries) + len(part.entries) > head.entries:
                raise Refused(f"Expected a list that begins with its length, of at most {most:,} users, got another.")
            entries += [Entry(each.fingerprint, each.question_digest, each.sealed, each.group) for each in part.entries]
        if head is None or len(entries) != head.entries:
            raise Refused("Expected as many entries as a list announces, got fewer.")
        return self._helped.sum(head, entries, caller)

    def _done(self, context: Any, work: Callable[[str], T]) -> T:
        """What a known coordinator asks for, or the status that says why not."""
        metadata = tuple(context.invocation_metadata())
        found = security.caller(context.auth_context(), metadata, authorities=self._trust.now().authorities)
        if found is None or found.objection is not None or not found.timely():
            why = "identity" if found is None or found.timely() else "expired"
            self._abort(context, grpc.StatusCode.UNAUTHENTICATED, why, "Expected a certificate of our own operator.")
        if found.identity not in self._config.coordinators:
            self._abort(context, grpc.StatusCode.PERMISSION_DENIED, "identity", "This coordinator is not one of ours.")
        try:
            return work(found.identity)
        except grpc.RpcError:  # it was taken back, or stood still for too long
            _log.warning("a call of a coordinator ended before it was whole")
            raise
        except UnknownRun as error:
            self._abort(context, grpc.StatusCode.NOT_FOUND, None, str(error))
        except LedgerUnavailable as error:
            self._abort(context, grpc.StatusCode.UNAVAILABLE, "away", error.outside)
        except OSError as error:  # such as a full disk: what waits for it goes on when there is room
            _log.error("the second server cannot write: %s", error)
            self._abort(context, grpc.StatusCode.UNAVAILABLE, "away", "The second server cannot write now.")
        except QuoronError as error:
            _log.warning("refused: %s", error)
            self._abort(context, grpc.StatusCode.FAILED_PRECONDITION, "refused", getattr(error, "outside", str(error)))
        except Exception:
            _log.exception("an error that was not foreseen")
            self._abort(context, grpc.StatusCode.INTERNAL, "error", "See the second server's log.")

    def _abort(self, context: Any, code: grpc.StatusCode, why: str | None, words: str) -> NoReturn:
        if why is not None:  # a round that was not answered yet is no refusal
            self._metrics.refused[why] += 1
        context.abort(code, words[:1000])
        raise AssertionError("abort returns never")


class _Ending:
    """Ends a call that is not over in time: a coordinator that falls silent in the middle of one keeps no thread."""

    def __init__(self, context: Any) -> None:
        self._context, self._timer = context, threading.Timer(0.0, context.cancel)
        self.after(PATIENCE)

    def after(self, seconds: float) -> None:
        """So long from now on."""
        self._timer.cancel()
        self._timer = threading.Timer(seconds, self._context.cancel)
        self._timer.daemon = True
        self._timer.start()

    def __enter__(self) -> "_Ending":
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()


def _days_left(trust: Trust) -> dict[str, float]:
    left = trust.now().days_left()
    return {"second-server": left["coordinator"], "authority": left["authority"]}


def _chunks(reply: pb.Reply) -> Iterator[pb.Chunk]:
    data = reply.SerializeToString()
    for start in range(0, max(1, len(data)), _CHUNK):
        yield pb.Chunk(data=data[start : start + _CHUNK])


def serve(config: HelperConfig, *, ready: Callable[[HelperProcess], None] | None = None) -> None:
    """Help until SIGTERM or SIGINT."""
    leaving = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: leaving.set())
    with HelperProcess(config) as running:
        if ready is not None:
            ready(running)
        leaving.wait()
