"""A client's stream with a coordinator: enrol, answer questions, reconnect after every interruption.

    asyncio.run(run_client(ClientConfig(coordinator="localhost:7443", data=Path("mine.csv"), ...)))

The client's data are checked before it connects.

| what ends a stream                                               | then                                              |
| ---------------------------------------------------------------- | ------------------------------------------------- |
| the coordinator stops or dies, the link drops, any other status  | another try, after longer and longer waits        |
| no answer to the enrolment in 30 seconds                         | the same                                          |
| a message that is not of this protocol                           | the same, with a line in the log                  |
| a certificate that is not the coordinator's, or has expired      | the same: a captive portal is temporary           |
| a refusal before this client was ever welcomed                   | an error with the reason: an operator is watching |
| a refusal by the operator: revoked, or a second client of a key  | an error with the reason                          |
| the owner: a request to stop, client state that cannot be written | the end, or an error                             |

In a run with public participation a client sends at a public time, half a round after the question: its answer, or
zeros if that is not ready. Messages are received while answers are computed.
"""

import asyncio
import logging
import random
import re
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError

from quoron_client.federation.client_state import ClientState, StoreClaim
from quoron_client.federation.config import ClientConfig
from quoron_client.federation.terms import Promised
from quoron_client.federation.work import Worker
from quoron_client.protocol import wire
from quoron_client.protocol.identity import check_identity, endings, warn_of_readers
from quoron_client.protocol.wire import MAX_SENT, UNASKED
from quoron_privacy.errors import IdentityError, QuoronError, RunError, WireError, printable
from quoron_privacy.kernels.on_first_use import OnFirstUse
from quoron_protos.v1 import federation_pb2 as federation
from quoron_protos.v1.federation_pb2_grpc import ClientPlaneStub

if TYPE_CHECKING:
    from quoron_client.protocol import masked
else:
    masked = OnFirstUse("quoron_client.protocol.masked")  # of two servers alone

_LOG = logging.getLogger("quoron.client")
_Call = grpc.aio.StreamStreamCall[federation.ClientMessage, federation.ServerMessage]
_LONGEST_WAIT = 60.0  # seconds between attempts to connect
_ENROL_SECONDS = 30.0
_A_DAY = 86_400.0  # seconds between two warnings of a certificate that ends soon
SENDS = 0.5  # of a round's seconds after its question: when a client answers under public participation
_READY = 0.9  # of that time: when zeros replace an answer that is not ready, so that they leave at the same time
_TO_KEEP = 0.25  # seconds before sending, at least, for zeros to be written to the client state
_MAX_WAITING = 16 << 20  # bytes of received messages that wait to be handled, and one message more
LONGEST_SAID = 4 << 20  # bytes of one message of the coordinator, such as a specification
_OPTIONS = (
    ("grpc.max_receive_message_length", LONGEST_SAID),
    ("grpc.max_send_message_length", wire.MOST + wire.BESIDE),
    *wire.KEEPALIVE,
    ("grpc.http2.max_pings_without_data", 0),
    *wire.STEADY,
    ("grpc.http2.lookahead_bytes", 1 << 20),  # of a question, before flow control says how much may come
    # Each attempt makes a new connection, at the times chosen here.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
)


async def run_client(
    config: ClientConfig,
    *,
    stop: asyncio.Event | None = None,
    worker: Callable[[ClientConfig, ClientState], Worker] = Worker.of,
) -> None:
    """Take part in a coordinator's runs until `stop` is set; with a user column, for all users in the file.

    Reconnects however a stream ends, after longer and longer waits, except where the table above names an error. Raises
    what `worker` does, IdentityError for unusable identity files and for a client that is refused, LedgerError for
    client state that cannot be read or written. Before the first welcome, raises WireError for a coordinator of another
    protocol and RunError for one that refuses this client.
    """
    if config.certificate is not None and config.key is not None and config.authority is not None:
        check_identity(config.certificate, config.key, config.authority)
    epsilon, delta = config.lifetime_epsilon, config.lifetime_delta
    choices = {"new_record": config.new_record, "other_database": config.other_database}
    with ClientState(config.record, epsilon=epsilon, delta=delta, **choices) as record:
        for path in (config.record, config.key):
            warn_of_readers(path)
        answering = await asyncio.to_thread(worker, config, record)
        if config.second_server_key is not None and config.certificate is not None:
            answering.pinned = masked.Pinned.read(config.second_server_key, config.certificate)
        session, reminding = _Session(config, answering), asyncio.create_task(_warn_of_expiry(config))
        try:
            await _until(asyncio.Event() if stop is None else stop, session.reconnect_forever())
        finally:
            reminding.cancel()
            session.close()


async def _warn_of_expiry(config: ClientConfig) -> None:
    """Log a line a day, without end, about each certificate of this client that expires soon."""
    while config.certificate is not None and config.authority is not None:
        with suppress(IdentityError):  # which the next connection names
            for warning in await asyncio.to_thread(endings, config.certificate, config.authority):
                _LOG.warning("%s", warning)
        await asyncio.sleep(_A_DAY)


async def _until(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Run `work` until it ends or fails, or `stop` is set."""
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        for task in (working, stopping):
            task.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)


class _Session:
    def __init__(self, config: ClientConfig, worker: Worker) -> None:
        self._config, self._worker = config, worker
        self._wait = 0.0
        self._welcomed: float | None = None  # loop time of the last welcome
        self._computing = ThreadPoolExecutor(1, thread_name_prefix="attends")  # of answers with a public time

    def close(self) -> None:
        """Cancel computations that have not begun."""
        self._computing.shutdown(wait=False, cancel_futures=True)

    async def reconnect_forever(self) -> None:
        """Open one stream after the other."""
        clock, first = asyncio.get_running_loop().time, self._config.retry_seconds
        while True:
            before = self._welcomed
            await self._once()
            began = None if self._welcomed == before else self._welcomed
            self._wait = next_wait(self._wait, first=first, lasted=0.0 if began is None else clock() - began)
            # Clients of a coordinator that restarts must not all reconnect at once.
            await asyncio.sleep(self._wait * random.uniform(0.5, 1.0))

    async def _once(self) -> None:
        """Open a stream and serve it until it ends. Raises errors that must end the client."""
        try:
            await self._serve_stream()
            self._log_retry(logging.INFO, "it closed the stream")
        except grpc.aio.AioRpcError as error:
            fatal = _fatal(error, self._config, welcomed=self._welcomed is not None)
            if fatal is not None:
                raise fatal from None
            self._log_retry(*_status_and_reason(error, self._config))
        except (IdentityError, OSError) as error:  # a timeout, or files of this client that are about to be renewed
            self._log_retry(logging.WARNING, str(error).rstrip("."))
        except DecodeError:
            self._log_retry(logging.WARNING, "it sent something that is no message of this protocol")
        except WireError as error:
            reason = str(error).rstrip(".")
            self._log_retry(logging.WARNING, f"it sent something that is no message of this protocol. {reason}")
        except QuoronError:
            raise
        except Exception:
            # What a coordinator sends may end a stream, never the client.
            _LOG.exception("Coordinator %s: an unexpected error. Trying again.", self._config.coordinator)

    def _log_retry(self, level: int, reason: str) -> None:
        _LOG.log(level, "Coordinator %s: %s. Trying again.", self._config.coordinator, reason)

    async def _serve_stream(self) -> None:
        software = f"quoron {version('quoron')}"
        name = self._config.client_name
        metadata = None if name is None else grpc.aio.Metadata(("quoron-client", name))
        async with _channel(self._config) as channel:
            stub = ClientPlaneStub(channel)
            place, record = self._config.coordinator, self._worker.record
            seen = await asyncio.to_thread(record.rows_seen, place)
            people = self._worker.people
            several = people if people > 1 else 0
            request = federation.EnrolRequest(protocol=wire.PROTOCOL, software=software, seen=seen, people=several)
            try:
                async with asyncio.timeout(_ENROL_SECONDS):  # gRPC's own never comes while a peer sends without end
                    enrolled = await stub.Enrol(request, metadata=metadata)
            except TimeoutError:
                raise TimeoutError(f"it did not answer the enrolment within {_ENROL_SECONDS:g} seconds") from None
            if enrolled.user >= 2**63:
                raise WireError(f"Expected a user number below 2^63, got {enrolled.user}.")
            if enrolled.people != several:
                raise WireError(f"Expected an enrolment of {people:,} users, got one of {max(1, enrolled.people):,}.")
            agreed, store = _agreed(enrolled), StoreClaim.read(enrolled.store)
            await asyncio.to_thread(record.check_store, place, store, seen)
            await asyncio.to_thread(record.compare_agreed, agreed)
            call, inbox = stub.Work(metadata=metadata), _Inbox()
            sending = asyncio.Lock()  # the chunks of an answer are sent with nothing between them
            hello = federation.ClientMessage(hello=federation.Hello(protocol=wire.PROTOCOL, software=software))
            await _send(call, sending, (hello,))
            reading = asyncio.create_task(self._receive(call, sending, inbox, enrolled.user))
            try:
                while (message := await inbox.next()) is not None:
                    await _send(call, sending, await self._handle(message, enrolled.user))
                await reading  # raises how the stream ended
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
                call.cancel()

    async def _receive(self, call: _Call, sending: asyncio.Lock, inbox: "_Inbox", user: int) -> None:
        """Receive messages until the stream ends: begin answers with a public time at once, queue all others."""
        worker, reassembler = self._worker, wire.Reassembler[federation.ServerMessage]()
        timely: set[asyncio.Task[None]] = set()

        def done(task: asyncio.Task[None]) -> None:
            timely.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                inbox.close(error)

        try:
            while isinstance(message := await call.read(), federation.ServerMessage):  # else: the end
                whole = reassembler.take(message, worker.wanted)
                if whole is None:
                    continue
                if len(timely) > wire.MAX_RUNS:
                    raise WireError(f"Expected at most {wire.MAX_RUNS} questions at a time, got more.")
                if whole.HasField("question") and (seconds := worker.attends(whole.question.run)) is not None:
                    seconds = min(seconds, whole.question.seconds)
                    work = self._answer_on_time(call, sending, whole.question, seconds)
                elif _is_timely(whole):
                    work = self._join(call, sending, whole.run, user)
                else:
                    await inbox.put(whole)
                    continue
                timely.add(task := asyncio.create_task(work))
                task.add_done_callback(done)
        finally:
            for task in timely:
                task.cancel()
            inbox.close()

    async def _join(self, call: _Call, sending: asyncio.Lock, run: federation.Announcement, user: int) -> None:
        """Consent to a run with public participation by its terms alone, before reading any items."""
        consent = await asyncio.to_thread(self._worker.consider, run, user)
        await _send(call, sending, (federation.ClientMessage(consent=consent),))
        self._computing.submit(self._worker.prepare, run.run)

    async def _answer_on_time(
        self, call: _Call, sending: asyncio.Lock, question: federation.Question, seconds: float
    ) -> None:
        """Send at the public time: the answer, or zeros if it is not ready."""
        loop, worker = asyncio.get_running_loop(), self._worker
        asked, took = loop.time(), SENDS * seconds
        computed = self._computing.submit(worker.reply, question)
        await asyncio.sleep(asked + min(_READY * took, took - _TO_KEEP) - loop.time())
        late = computed.cancel() or not computed.done()
        answer = await asyncio.to_thread(worker.reply, question, ready=False) if late else computed.result()
        await asyncio.sleep(asked + took - loop.time())
        await _send(call, sending, _messages(answer, question))

    async def _handle(self, message: federation.ServerMessage, user: int) -> Iterable[federation.ClientMessage]:
        """Return the replies to a message. Computes on threads: the event loop answers the transport's pings."""
        worker = self._worker
        kind = message.WhichOneof("kind")
        if kind == "welcome":
            self._welcomed = asyncio.get_running_loop().time()
            _LOG.info("Coordinator %s: enrolled, waiting for runs.", self._config.coordinator)
        elif kind == "run":
            consent = await asyncio.to_thread(worker.consider, message.run, user)
            return (federation.ClientMessage(consent=consent),)
        elif kind == "question":
            answer = await asyncio.to_thread(worker.at_once, message.question)
            return _messages(answer, message.question)
        elif kind == "receipt":
            receipt = message.receipt
            _LOG.debug("Round %d of run %r: verdict %d.", receipt.round, receipt.run, receipt.verdict)
        elif kind == "ended":
            run, how = message.ended.run, message.ended.how
            if await asyncio.to_thread(lambda: worker.forget(run, begun=how != UNASKED)):
                _LOG.info("Run %r has ended: %s.", run, _printable(how))
        return ()


class _Inbox:
    """Received messages in order, of a bounded number of bytes."""

    def __init__(self) -> None:
        self._waiting: deque[federation.ServerMessage] = deque()
        self._bytes, self._closed = 0, False
        self._error: BaseException | None = None
        self._news, self._space = asyncio.Event(), asyncio.Event()

    async def put(self, message: federation.ServerMessage) -> None:
        """Append a message, once there is space."""
        while self._bytes >= _MAX_WAITING:
            self._space.clear()
            await self._space.wait()
        self._waiting.append(message)
        self._bytes += message.ByteSize()
        self._news.set()

    async def next(self) -> federation.ServerMessage | None:
        """Return the oldest message; None at the end, after `close`. Raises the error of `close` at once."""
        while not (self._waiting or self._closed):
            self._news.clear()
            await self._news.wait()
        if self._error is not None:
            raise self._error
        if not self._waiting:
            return None
        message = self._waiting.popleft()
        self._bytes -= message.ByteSize()
        self._space.set()
        return message

    def close(self, error: BaseException | None = None) -> None:
        """End the messages, with an error if there was one."""
        self._closed, self._error = True, self._error or error
        self._news.set()


def _messages(answer: bytes | None, question: federation.Question) -> Iterable[federation.ClientMessage]:
    """Return the messages of an answer; none without one."""
    if answer is None:
        return ()
    kind = federation.MaskedAnswer if question.HasField("row") else federation.Answer
    return wire.answer_messages(kind.FromString(answer))


def _is_timely(message: federation.ServerMessage) -> bool:
    """Return whether a message announces a run with public participation: only values may depend on items."""
    if message.WhichOneof("kind") == "run":
        with suppress(WireError):  # which is raised when the message is handled
            return Promised.read(message.run.run, message.run.description).timely
    return False


def _agreed(enrolled: federation.EnrolReply) -> list[tuple[str, float, float]]:
    """Return the runs that, to the coordinator, this key has agreed to. Raises WireError for impossible ones."""
    charges = [(agreement.run, agreement.epsilon, agreement.delta) for agreement in enrolled.agreed]
    if len(charges) > MAX_SENT or not all(
        0 < len(run) <= wire.MAX_NAME and epsilon >= 0 and 0 <= delta <= 1 for run, epsilon, delta in charges
    ):
        raise WireError(f"Expected at most {MAX_SENT} runs with their ε and δ, got something else.")
    return charges


def next_wait(wait: float, *, first: float, lasted: float) -> float:
    """Return seconds until the next try, after a try that waited `wait` and a stream that lasted `lasted` seconds.

    Waits begin again after a stream longer than the wait before it; otherwise they double.
    """
    return first if lasted > wait else max(first, min(2 * wait, _LONGEST_WAIT))


async def _send(call: _Call, sending: asyncio.Lock, messages: Iterable[federation.ClientMessage]) -> None:
    """Write messages to a stream; to one that has ended, nothing: reading it raises how it ended."""
    async with sending:
        for message in messages:
            with suppress(asyncio.InvalidStateError):
                await call.write(message)


def _channel(config: ClientConfig) -> grpc.aio.Channel:
    """Open a connection. Reads certificates again, so that they can be renewed under a running client."""
    if config.certificate is None or config.key is None or config.authority is None:
        return grpc.aio.insecure_channel(config.coordinator, options=_OPTIONS)
    shown = check_identity(config.certificate, config.key, config.authority)
    credentials = grpc.ssl_channel_credentials(shown.roots, shown.key, shown.chain)
    return grpc.aio.secure_channel(config.coordinator, credentials, options=_OPTIONS)


def _status_and_reason(error: grpc.aio.AioRpcError, config: ClientConfig) -> tuple[int, str]:
    """Return the log level and the reason of the end of a stream that will be tried again."""
    if re.search("CERTIFICATE_VERIFY_FAILED|Hostname Verification Check failed", error.details() or ""):
        return logging.WARNING, (
            f"expected a certificate of its name from the authority in {str(config.authority)!r}, valid now, got "
            "another: something else may answer in its place. Check both"
        )
    expected = error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
    level = logging.INFO if expected else logging.WARNING
    return level, f"{error.code().name}, {_printable(error.details()).rstrip('.')}"


def _fatal(error: grpc.aio.AioRpcError, config: ClientConfig, *, welcomed: bool) -> QuoronError | None:
    """Return an error for an operator's decision or, before the first welcome, for a lasting fault; None otherwise."""
    code, reason, place = error.code(), _printable(error.details()).rstrip("."), config.coordinator
    shown = config.client_name if config.certificate is None else str(config.certificate)
    if code == grpc.StatusCode.ABORTED:  # two would replace each other without end, each with its own client state
        return IdentityError(f"Expected one client with {shown!r} at coordinator {place}, it answers: {reason}.")
    if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
        return IdentityError(f"Expected coordinator {place} to accept {shown!r}, it answers: {reason}.")
    if welcomed:  # another version, or a store that is being restored, may be temporary
        return None
    if code == grpc.StatusCode.UNIMPLEMENTED:
        return WireError(f"Expected a coordinator of protocol {wire.PROTOCOL} at {place}, it answers: {reason}.")
    if code == grpc.StatusCode.FAILED_PRECONDITION:  # only the coordinator knows why
        return RunError(f"Expected coordinator {place} to take {shown!r} in, it answers: {reason}.")
    return None


def _printable(reason: str | None) -> str:
    """Return a text of another machine as one line for a log."""
    return printable(" ".join((reason or "no reason")[:300].split()))
