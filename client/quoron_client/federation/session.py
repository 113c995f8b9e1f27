"""A client and its conversation with a coordinator: enrol, answer what is asked, come back after every interruption.

    asyncio.run(run_client(ClientConfig(coordinator="localhost:7443", data=Path("mine.csv"), ...)))

Whose data it answers from, and that this is so, is known before it says a word to a coordinator.

| what ends a conversation                                        | then                                            |
| --------------------------------------------------------------- | ----------------------------------------------- |
| the coordinator leaves or dies, the link drops, any other status | another try, after longer and longer waits      |
| a message that is none of this protocol's                       | the same, with a line in the log                |
| a certificate that is not the coordinator's, or is over          | the same: a portal of a hotel passes by         |
| a refusal before this client was ever welcomed                  | an error with the reason: somebody is looking   |
| a refusal by the operator: revoked, or a second client of a key  | an error with the reason                        |
| the owner: a request to stop, a record that cannot be written   | the end, or an error                            |

In a run with public participation every message leaves at a time that is public: half a round after its question came,
an answer if it is ready, zeros if it is not. Whatever is computed meanwhile, messages are heard as they come.
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

from quoron_client.federation.config import ClientConfig
from quoron_client.federation.record import Record, StoreClaim
from quoron_client.federation.terms import read_promised
from quoron_client.federation.work import Worker
from quoron_client.protocol import wire
from quoron_client.protocol.identity import check_identity, endings, warn_of_readers
from quoron_client.protocol.wire import MOST_TOLD, UNASKED
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
SENDS = 0.5  # of a round's seconds after its question: when a client answers, if who answers is public
_READY = 0.9  # of that time: when it is looked at whether there is an answer, so that zeros leave no later than one
_TO_KEEP = 0.25  # seconds before it leaves, at least: zeros are written first, however short a time a question names
_MOST_WAITING = 16 << 20  # bytes that were heard and wait for what is computed, and one message
LONGEST_SAID = 4 << 20  # bytes of one message of the coordinator: a specification goes whole
_OPTIONS = (
    ("grpc.max_receive_message_length", LONGEST_SAID),
    ("grpc.max_send_message_length", wire.MOST + wire.BESIDE),
    *wire.KEEPALIVE,
    ("grpc.http2.max_pings_without_data", 0),
    *wire.STEADY,
    ("grpc.http2.lookahead_bytes", 1 << 20),  # of a question, before the first word about how much may come
    # Each attempt is a connection of its own, at the times chosen here.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
)


async def run_client(config: ClientConfig, *, stop: asyncio.Event | None = None) -> None:
    """Take part in a coordinator's runs until `stop` is set; without it, for ever. With a user column, take part for
    everybody in the file.

    Raises what `Worker.of` and `take_part` do.
    """
    await take_part(config, stop=stop, worker=Worker.of)


async def take_part(
    config: ClientConfig,
    *,
    stop: asyncio.Event | None = None,
    worker: Callable[[ClientConfig, Record], Worker],
) -> None:
    """As `run_client`, with what `worker` makes to answer in its name.

    Raises what `worker` and `session.converse` do, IdentityError for files that will not do at the start, LedgerError
    for a record that cannot be read.
    """
    if config.certificate is not None and config.key is not None and config.authority is not None:
        check_identity(config.certificate, config.key, config.authority)
    epsilon, delta = config.lifetime_epsilon, config.lifetime_delta
    choices = {"new_record": config.new_record, "other_database": config.other_database}
    with Record.open(config.record, epsilon=epsilon, delta=delta, **choices) as record:
        for path in (config.record, config.key):
            warn_of_readers(path)
        works = await asyncio.to_thread(worker, config, record)
        if config.second_server_key is not None and config.certificate is not None:
            works.pinned = masked.Pinned.read(config.second_server_key, config.certificate)
        await converse(config, works, asyncio.Event() if stop is None else stop)


async def converse(config: ClientConfig, worker: Worker, stop: asyncio.Event) -> None:
    """Take part in a coordinator's runs until `stop` is set, with what `worker` answers.

    However a conversation ends, another is tried, after longer and longer waits, except where the table above names an
    error. Raises IdentityError for a client that is refused, and LedgerError for a record that cannot be written.
    Before the first welcome, raises WireError for a coordinator that does not speak this protocol and RunError for one
    that does not take this client.
    """
    session = _Session(config, worker)
    reminding = asyncio.create_task(_remind(config))
    try:
        await _until(stop, session.persist())
    finally:
        reminding.cancel()
        session.close()


async def _remind(config: ClientConfig) -> None:
    """For ever: a line a day in the log about each file of our own that ends soon."""
    while config.certificate is not None and config.authority is not None:
        with suppress(IdentityError):  # which the next connection names
            for said in await asyncio.to_thread(endings, config.certificate, config.authority):
                _LOG.warning("%s", said)
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
        self._computing = ThreadPoolExecutor(1, thread_name_prefix="attends")  # what is sent at its time, ready or not

    def close(self) -> None:
        """Begin nothing more."""
        self._computing.shutdown(wait=False, cancel_futures=True)

    async def persist(self) -> None:
        """One conversation after the other."""
        clock, first = asyncio.get_running_loop().time, self._config.retry_seconds
        while True:
            before = self._welcomed
            await self._once()
            began = None if self._welcomed == before else self._welcomed
            self._wait = next_wait(self._wait, first=first, lasted=0.0 if began is None else clock() - began)
            # Many clients of one coordinator that comes back shall not all come at once.
            await asyncio.sleep(self._wait * random.uniform(0.5, 1.0))

    async def _once(self) -> None:
        """One conversation, from its beginning to however it ends. Raises what must end the client."""
        try:
            await self._converse()
            self._again(logging.INFO, "it closed the conversation")
        except grpc.aio.AioRpcError as error:
            fatal = _fatal(error, self._config, welcomed=self._welcomed is not None)
            if fatal is not None:
                raise fatal from None
            self._again(*_status_and_reason(error, self._config))
        except (IdentityError, OSError) as error:  # of our own files, which may be about to be renewed
            self._again(logging.WARNING, str(error).rstrip("."))
        except DecodeError:
            self._again(logging.WARNING, "it sent something that is no message of this protocol")
        except WireError as error:
            said = str(error).rstrip(".")
            self._again(logging.WARNING, f"it sent something that is no message of this protocol. {said}")
        except QuoronError:
            raise
        except Exception:
            # Whatever it is, it came from outside, and what comes from outside ends conversations, not clients.
            _LOG.exception("Coordinator %s: an error that was not foreseen. Trying again.", self._config.coordinator)

    def _again(self, level: int, said: str) -> None:
        _LOG.log(level, "Coordinator %s: %s. Trying again.", self._config.coordinator, said)

    async def _converse(self) -> None:
        software = f"quoron {version('quoron')}"
        name = self._config.client_name
        metadata = None if name is None else grpc.aio.Metadata(("quoron-client", name))
        async with _channel(self._config) as channel:
            stub = ClientPlaneStub(channel)
            place, record = self._config.coordinator, self._worker.record
            seen = await asyncio.to_thread(record.seen, place)
            people = self._worker.people
            several = people if people > 1 else 0
            asked = federation.EnrolRequest(protocol=wire.PROTOCOL, software=software, seen=seen, people=several)
            try:
                async with asyncio.timeout(_ENROL_SECONDS):  # gRPC forgets its own while a peer sends without an end
                    enrolled = await stub.Enrol(asked, metadata=metadata)
            except TimeoutError:
                raise TimeoutError(f"it gave no place within {_ENROL_SECONDS:g} seconds") from None
            if enrolled.user >= 2**63:
                raise WireError(f"Expected a user number below 2^63, got {enrolled.user}.")
            if enrolled.people != several:
                raise WireError(f"Expected a place for {people:,} people, got one for {max(1, enrolled.people):,}.")
            agreed, store = _agreed(enrolled), StoreClaim.read(enrolled.books)
            await asyncio.to_thread(record.saw, place, store, seen)
            await asyncio.to_thread(record.witness, agreed)
            call, lane = stub.Work(metadata=metadata), _Lane()
            said = asyncio.Lock()  # the parts of an answer go out with nothing between
            hello = federation.ClientMessage(hello=federation.Hello(protocol=wire.PROTOCOL, software=software))
            await _say(call, said, (hello,))
            reading = asyncio.create_task(self._listen(call, said, lane, enrolled.user))
            try:
                while (heard := await lane.next()) is not None:
                    await _say(call, said, await self._react(heard, enrolled.user))
                await reading  # how it ended
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
                call.cancel()

    async def _listen(self, call: _Call, said: asyncio.Lock, lane: "_Lane", user: int) -> None:
        """Hear everything as it comes, until the end. What has its time is seen to here, all else in its lane."""
        worker, arriving = self._worker, wire.Arriving[federation.ServerMessage]()
        timely: set[asyncio.Task[None]] = set()

        def done(task: asyncio.Task[None]) -> None:
            timely.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                lane.close(error)

        try:
            while isinstance(message := await call.read(), federation.ServerMessage):  # else: the end
                heard = arriving.take(message, worker.wanted)
                if heard is None:
                    continue
                if len(timely) > wire.MOST_RUNS:
                    raise WireError(f"Expected at most {wire.MOST_RUNS} questions at a time, got more.")
                question = _question(heard)
                if question is not None and (seconds := worker.attends(question.run)) is not None:
                    work = self._attend(call, said, question, min(seconds, question.seconds))
                elif isinstance(heard, federation.ServerMessage) and _is_timely(heard):
                    work = self._join(call, said, heard.run, user)
                else:
                    await lane.put(heard)
                    continue
                timely.add(task := asyncio.create_task(work))
                task.add_done_callback(done)
        finally:
            for task in timely:
                task.cancel()
            lane.close()

    async def _join(self, call: _Call, said: asyncio.Lock, run: federation.Announcement, user: int) -> None:
        """Consent to a run that tells who answers, by its terms alone; only then are the items looked at."""
        consent = await asyncio.to_thread(self._worker.consider, run, user)
        await _say(call, said, (federation.ClientMessage(consent=consent),))
        self._computing.submit(self._worker.prepare, run.run)

    async def _attend(self, call: _Call, said: asyncio.Lock, question: federation.Question, seconds: float) -> None:
        """Answer when it is time, neither sooner nor later, whatever there is by then."""
        loop, worker = asyncio.get_running_loop(), self._worker
        asked, took = loop.time(), SENDS * seconds
        computed = self._computing.submit(worker.reply, question)
        await asyncio.sleep(asked + min(_READY * took, took - _TO_KEEP) - loop.time())
        late = computed.cancel() or not computed.done()
        answer = await asyncio.to_thread(worker.reply, question, ready=False) if late else computed.result()
        await asyncio.sleep(asked + took - loop.time())
        await _say(call, said, _messages(answer, question))

    async def _react(
        self, message: federation.ServerMessage | wire.Long, user: int
    ) -> Iterable[federation.ClientMessage]:
        """What to say to a message; computing leaves the event loop free to answer the transport's pings."""
        worker = self._worker
        if not isinstance(message, federation.ServerMessage):
            return await self._answered(message)
        kind = message.WhichOneof("kind")
        if kind == "welcome":
            self._welcomed = asyncio.get_running_loop().time()
            _LOG.info("Coordinator %s: enrolled, waiting for runs.", self._config.coordinator)
        elif kind == "run":
            consent = await asyncio.to_thread(worker.consider, message.run, user)
            return (federation.ClientMessage(consent=consent),)
        elif kind == "question":
            return await self._answered(message.question)
        elif kind == "receipt":
            receipt = message.receipt
            _LOG.debug("Round %d of run %r: verdict %d.", receipt.round, receipt.run, receipt.verdict)
        elif kind == "ended":
            run, how = message.ended.run, message.ended.how
            if await asyncio.to_thread(lambda: worker.forget(run, begun=how != UNASKED)):
                _LOG.info("Run %r has ended: %s.", run, _printable(how))
        return ()

    async def _answered(self, question: wire.Long) -> Iterable[federation.ClientMessage]:
        """The answer, in as many messages as it takes, once it is made."""
        assert isinstance(question, federation.Question)
        answer = await asyncio.to_thread(self._worker.at_once, question)
        return _messages(answer, question)


class _Lane:
    """What was heard and waits while something is computed: in order, and no more of it than memory is meant for."""

    def __init__(self) -> None:
        self._waiting: deque[federation.ServerMessage | wire.Long] = deque()
        self._bytes, self._closed = 0, False
        self._error: BaseException | None = None
        self._news, self._room = asyncio.Event(), asyncio.Event()

    async def put(self, heard: federation.ServerMessage | wire.Long) -> None:
        """Once there is room."""
        while self._bytes >= _MOST_WAITING:
            self._room.clear()
            await self._room.wait()
        self._waiting.append(heard)
        self._bytes += heard.ByteSize()
        self._news.set()

    async def next(self) -> federation.ServerMessage | wire.Long | None:
        """Return what was heard first; None at the end, after `close`. Raises what it was closed with, at once."""
        while not (self._waiting or self._closed):
            self._news.clear()
            await self._news.wait()
        if self._error is not None:
            raise self._error
        if not self._waiting:
            return None
        heard = self._waiting.popleft()
        self._bytes -= heard.ByteSize()
        self._room.set()
        return heard

    def close(self, error: BaseException | None = None) -> None:
        """Nothing more comes, by an error perhaps."""
        self._closed, self._error = True, self._error or error
        self._news.set()


def _question(heard: federation.ServerMessage | wire.Long) -> federation.Question | None:
    """The question that a message is, whole or put together of parts."""
    if isinstance(heard, federation.Question):
        return heard
    if isinstance(heard, federation.ServerMessage) and heard.WhichOneof("kind") == "question":
        return heard.question
    return None


def _messages(answer: bytes | None, question: federation.Question) -> Iterable[federation.ClientMessage]:
    """The answer to a question in as many messages as it takes; none of none."""
    if answer is None:
        return ()
    masked = question.HasField("row")
    return wire.said(federation.MaskedAnswer.FromString(answer) if masked else federation.Answer.FromString(answer))


def _is_timely(message: federation.ServerMessage) -> bool:
    """Whether an announcement is of a run of whose answers nothing but values may depend on items."""
    if message.WhichOneof("kind") == "run":
        with suppress(WireError):  # which its lane says
            return read_promised(message.run.run, message.run.description).timely
    return False


def _agreed(enrolled: federation.EnrolReply) -> list[tuple[str, float, float]]:
    """What a coordinator says that this key has agreed to. WireError for what cannot be."""
    charges = [(each.run, each.epsilon, each.delta) for each in enrolled.agreed]
    if len(charges) > MOST_TOLD or not all(
        0 < len(run) <= wire.MAX_NAME and epsilon >= 0 and 0 <= delta <= 1 for run, epsilon, delta in charges
    ):
        raise WireError(f"Expected at most {MOST_TOLD} runs with their ε and δ, got something else.")
    return charges


def next_wait(wait: float, *, first: float, lasted: float) -> float:
    """Return seconds until the next try, after a try that waited `wait` and a conversation that lasted so long.

    A conversation longer than the wait before it is no flood, and the waits begin again; otherwise they double.
    """
    return first if lasted > wait else max(first, min(2 * wait, _LONGEST_WAIT))


async def _say(call: _Call, said: asyncio.Lock, messages: Iterable[federation.ClientMessage]) -> None:
    """Write to a conversation; to one that has ended meanwhile, nothing: reading it then tells how it ended."""
    async with said:
        for message in messages:
            with suppress(asyncio.InvalidStateError):
                await call.write(message)


def _channel(config: ClientConfig) -> grpc.aio.Channel:
    """A new connection; certificates are read again each time, so that they may be renewed under a running client."""
    if config.certificate is None or config.key is None or config.authority is None:
        return grpc.aio.insecure_channel(config.coordinator, options=_OPTIONS)
    check_identity(config.certificate, config.key, config.authority)
    files = (config.authority, config.key, config.certificate)
    identity = grpc.ssl_channel_credentials(*(path.read_bytes() for path in files))
    return grpc.aio.secure_channel(config.coordinator, identity, options=_OPTIONS)


def _status_and_reason(error: grpc.aio.AioRpcError, config: ClientConfig) -> tuple[int, str]:
    """How loudly to speak of the end of a conversation that will be tried again, and in which words."""
    if re.search("CERTIFICATE_VERIFY_FAILED|Hostname Verification Check failed", error.details() or ""):
        return logging.WARNING, (
            f"expected a certificate of its name from the authority in {str(config.authority)!r}, valid now, got "
            "another: something else may answer in its place. Check both"
        )
    expected = error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
    level = logging.INFO if expected else logging.WARNING
    return level, f"{error.code().name}, {_printable(error.details()).rstrip('.')}"


def _fatal(error: grpc.aio.AioRpcError, config: ClientConfig, *, welcomed: bool) -> QuoronError | None:
    """The named error for what an operator decided or, before the first welcome, for what waiting will not mend."""
    code, said, place = error.code(), _printable(error.details()).rstrip("."), config.coordinator
    shown = config.client_name if config.certificate is None else str(config.certificate)
    if code == grpc.StatusCode.ABORTED:  # two would take the place from each other for ever, with a record each
        return IdentityError(f"Expected one client with {shown!r} at coordinator {place}, it answers: {said}.")
    if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
        return IdentityError(f"Expected coordinator {place} to accept {shown!r}, it answers: {said}.")
    if welcomed:  # it was right once: another version, or a store that is restored, may pass by as well
        return None
    if code == grpc.StatusCode.UNIMPLEMENTED:
        return WireError(f"Expected a coordinator of protocol {wire.PROTOCOL} at {place}, it answers: {said}.")
    if code == grpc.StatusCode.FAILED_PRECONDITION:  # for what, only the coordinator knows
        return RunError(f"Expected coordinator {place} to take {shown!r} in, it answers: {said}.")
    return None


def _printable(said: str | None) -> str:
    """What another machine said, in one line of a log."""
    return printable(" ".join((said or "no reason")[:300].split()))
