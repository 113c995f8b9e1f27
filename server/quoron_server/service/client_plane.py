"""The client plane over gRPC: enrolment, a stream for each client, and limits of calls and connections.

Messages are received as bytes and parsed here, so that all bytes of clients take one code path.
"""

import asyncio
import ipaddress
import logging
import os
import socket
import stat
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import grpc
from google.protobuf.message import DecodeError

from quoron_client.protocol import wire
from quoron_privacy.errors import ConfigError, LedgerError, QuoronError, WireError
from quoron_protos.v1 import federation_pb2 as pb
from quoron_server.service import certificates, event_log, records, security
from quoron_server.service.active_run import RunStopped
from quoron_server.service.certificates import Revocations
from quoron_server.service.client_stream import ClientStream
from quoron_server.service.scheduler import OTHER_PROTOCOL, RunScheduler
from quoron_server.service.security import Caller, Trust
from quoron_server.storage.registry import ForgottenKey, NotEnrolled

Place = tuple[str, int]  # address and port

_MOST = 4096  # names, before those with full buckets are removed

MAX_SENT = 1000  # ended runs that are announced to a reconnected client
MAX_EACH = 4  # connections of one client: one is used, others may be dying unnoticed
MAX_BESIDE = 64  # beyond them, which are ended a few at a time; those beyond all of these at once
ENDED_EACH = 2  # connections of one client that are ended in a poll
POLL = 0.25  # seconds between two polls
_SHARE = 10.0  # the pause between two polls, in durations of a poll
_FILES = "/dev/fd"  # the files of this process

SERVICE = "quoron.v1.ClientPlane"
GREETING_SECONDS = 30.0
NONSENSE, LEAVING = "Expected a message of this protocol.", "The coordinator is leaving. Come back later."
_UNREAD = "An earlier stream of this client ended unread, on a connection that is still open. Close it."
_SLOW = f"Expected an enrolment within {GREETING_SECONDS:g} seconds, and one a second from one client."
CERTIFICATE_SECONDS = 3.0  # between two checks of the certificates of connected clients
_LONGEST_GREETING, _LONGEST_SMALL = (
    4 << 10,
    64 << 10,
)  # bytes of an enrolment or a handshake, and of other messages than answers
_log = logging.getLogger("quoron")
Context = Any  # grpc.aio.ServicerContext[bytes, bytes]


@dataclass(slots=True)
class RateLimit:
    """A token bucket for each name, which holds `burst` tokens and gains one every `seconds`.

    >>> limit = RateLimit(burst=2, seconds=1.0)
    >>> [limit.wait("ada", now) for now in (10.0, 10.0, 10.25, 11.0)], limit.wait("ben", 10.25)
    ([0.0, 0.0, 0.75, 0.0], 0.0)
    """

    burst: int = 10
    seconds: float = 1.0
    _full: dict[str, float] = field(default_factory=dict)  # when a bucket will be full again

    def wait(self, name: str, now: float) -> float:
        """Take a token; return 0, or the seconds to wait if there is none."""
        if len(self._full) >= _MOST:
            self._full = {source: full for source, full in self._full.items() if full > now}
        after = max(self._full.get(name, now), now) + self.seconds
        early = after - self.burst * self.seconds - now
        if early > 0:
            return early
        self._full[name] = after
        return 0.0


class ConnectionLimiter:
    """Ends connections to a port beyond its limits: those without an authenticated call, and the oldest of one client.

        limiter = ConnectionLimiter(most=2000)
        limiter.admit(context.peer(), identity)      # at every call with a valid certificate or token
        await limiter.watch(port)                    # without end

    gRPC limits connections by their number alone. An attacker with that many unfinished handshakes would keep all
    clients out, at 70 KiB of memory for each. So the coordinator polls its own sockets several times a second: when
    connections without a client's call take half of the limit, or seven eighths of it together with the others, the
    oldest of them are ended. Clients that finish their handshake in an ordinary time get through, also many at once.

    Of a client with too many connections the oldest are ended: two at a time, and all at once where half of the limit
    is used. A client that is disconnected reconnects at once, and a handshake costs more processor time than the
    messages on a connection that is left open for a while.

    A socket is ended by shutdown(2), as if its other end had closed it, and gRPC cleans it up. Not thread-safe.
    """

    def __init__(self, most: int, *, each: int = MAX_EACH) -> None:
        """Limit a port that accepts `most` connections, `each` of one client."""
        self._most, self._each = most, each
        self._known: dict[int, Place | None] = {}  # inode: far end, unless it was ended; oldest first
        self._admitted: dict[Place, str] = {}  # oldest first

    def admit(self, peer: str, identity: str) -> None:
        """Note the client that called from a peer of gRPC's; peers that are no network addresses are not limited."""
        if not peer.startswith(("ipv4:", "ipv6:")):
            return
        host, _, port = unquote(peer.partition(":")[2]).rpartition(":")
        self._admitted.setdefault(_place(host.strip("[]"), int(port)), identity)

    async def watch(self, port: int) -> None:
        """Keep the number of connections to `port` within bounds, without end, on systems with /dev/fd."""
        while os.path.isdir(_FILES):
            began = time.perf_counter()
            with suppress(OSError):  # no file descriptor is free: try again later
                self.poll(port)
            await asyncio.sleep(max(POLL, _SHARE * (time.perf_counter() - began)))

    def poll(self, port: int) -> int:
        """End connections beyond the limits; return how many."""
        found = {inode: file for name in os.listdir(_FILES) if (inode := _inode(file := int(name))) is not None}
        known = {inode: place for inode, place in self._known.items() if inode in found}
        self._known = known | {inode: _far_end(found[inode], port) for inode in found if inode not in known}
        here = {place: inode for inode, place in self._known.items() if place is not None}
        self._admitted = {place: who for place, who in self._admitted.items() if place in here}
        unknown = [inode for place, inode in here.items() if place not in self._admitted]
        places = max(self._most // 8, min(self._most // 2, 7 * self._most // 8 - len(self._admitted)))
        leaving = unknown[: max(0, len(unknown) - places)]
        of: dict[str, list[int]] = defaultdict(list)
        for place, who in self._admitted.items():
            of[who].append(here[place])
        crowded = 2 * len(here) > self._most
        for own in of.values():
            beyond = max(0, len(own) - self._each)
            leaving += own[: beyond if crowded else max(min(beyond, ENDED_EACH), beyond - MAX_BESIDE)]
        self._known |= dict.fromkeys(leaving)  # gRPC may take a while to clean up after them
        return sum(_end(found[inode], inode) for inode in leaving)


def _inode(file: int) -> int | None:
    """Return the inode of a socket; None for other files."""
    try:
        status = os.fstat(file)
    except OSError:  # it was closed meanwhile
        return None
    return status.st_ino if stat.S_ISSOCK(status.st_mode) else None


def _far_end(file: int, port: int) -> Place | None:
    """Return the peer of a connection to our port; None for every other socket."""
    with suppress(OSError), _held(file) as own:
        if own.family in (socket.AF_INET, socket.AF_INET6) and own.getsockname()[1] == port:
            return _place(*own.getpeername()[:2])
    return None


def _end(file: int, inode: int) -> bool:
    """End a connection; return whether it was still open."""
    with suppress(OSError), _held(file) as own:
        if _inode(own.fileno()) == inode:  # not a newer file with the same descriptor
            own.shutdown(socket.SHUT_RDWR)
            return True
    return False


def _held(file: int) -> socket.socket:
    """Duplicate a socket's descriptor. Raises OSError if it is no socket any more."""
    own = os.dup(file)
    try:
        return socket.socket(fileno=own)
    except OSError:
        os.close(own)
        raise


def _place(host: str, port: int) -> Place:
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address), port


class ClientPlane:
    """The two methods of the client plane, on raw bytes."""

    def __init__(
        self,
        scheduler: RunScheduler,
        *,
        revoked: Revocations | None = None,
        trust: Trust | None = None,
        limiter: ConnectionLimiter | None = None,
    ) -> None:
        """Serve in plaintext without `trust`."""
        self._scheduler, self._revoked = scheduler, revoked
        self._trust, self._limiter = trust, limiter
        self._callers: dict[ClientStream, Caller] = {}
        self._rate_limit = RateLimit()

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the gRPC handler of both methods."""
        methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "Enrol": grpc.stream_unary_rpc_method_handler(self.enrol),
            "Work": grpc.stream_stream_rpc_method_handler(self.work),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def enrol(self, requests: AsyncIterator[bytes], context: Context) -> bytes:
        """Return the user number of a client, the same for the same certificate. Authenticates before reading.

        Enrolments of one client are rate-limited: all clients share the database.
        """
        try:
            with _as_refusal():
                return await self._enrol(requests, context)
        except Refused as refusal:
            self._note(refusal, context)
            await context.abort(refusal.code, refusal.words)
            raise

    async def _enrol(self, requests: AsyncIterator[bytes], context: Context) -> bytes:
        caller = self._caller(context)
        try:
            async with asyncio.timeout(GREETING_SECONDS):
                request = await anext(requests, b"")
                while wait := self._rate_limit.wait(caller.identity, asyncio.get_running_loop().time()):
                    await asyncio.sleep(wait)
        except TimeoutError:
            raise Refused(grpc.StatusCode.DEADLINE_EXCEEDED, _SLOW) from None
        _check_length(request, _LONGEST_GREETING)
        try:
            asked = pb.EnrolRequest.FromString(request)
        except DecodeError:
            raise Refused(grpc.StatusCode.INVALID_ARGUMENT, NONSENSE) from None
        _check_protocol(asked)
        try:
            people, called = max(1, asked.people), {"name": caller.name, "software": asked.software}
            user = await self._scheduler.enrol(caller.identity, caller.group, **called, people=people)
            agreed = await self._scheduler.agreed(user)
            standing = await self._scheduler.records.store(caller.group, asked.seen)
            self._scheduler.counts.newer_store += asked.seen > standing["rows"]
            store = pb.Store(**standing)
        except RunStopped:
            raise Refused(grpc.StatusCode.UNAVAILABLE, LEAVING) from None
        except ForgottenKey:
            raise Refused(grpc.StatusCode.UNAUTHENTICATED, records.GONE) from None
        except NotEnrolled as error:
            _log.warning("refused the enrolment of %s: %s", event_log.called(caller.name, caller.identity), error)
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION, error.outside) from None
        charges = [pb.Agreed(run=run, epsilon=epsilon, delta=delta) for run, epsilon, delta in agreed]
        said = people if people > 1 else 0
        return pb.EnrolReply(user=user, agreed=charges, store=store, people=said).SerializeToString()

    async def work(self, requests: AsyncIterator[bytes], context: Context) -> None:
        """Serve a stream: a handshake, then announcements, consents, questions and answers until one side ends it."""
        try:
            with _as_refusal():
                user, caller = await self._shake_hands(requests, context)
            stream = ClientStream(user, self._scheduler.sessions.backlog)
        except Refused as refusal:
            self._note(refusal, context)
            await context.abort(refusal.code, refusal.words)
            raise
        stream.start(context)
        self._callers[stream] = caller
        sessions = self._scheduler.sessions
        sessions.enter(stream)
        reassembler, size = wire.Reassembler[pb.ClientMessage](), 0
        catching_up = asyncio.create_task(self._catch_up(stream))  # runs that end from now on: `Rooms.close`
        try:
            with _as_refusal():
                while (data := await context.read()) is not grpc.aio.EOF:  # as `requests`, with less between
                    limit = max(9 * sessions.longest_answer(user) + wire.BESIDE, _LONGEST_SMALL)
                    self._admit(caller)
                    received = _parsed(data, wire.MOST + wire.BESIDE if reassembler.open else limit)
                    size = len(data) + (size if reassembler.open else 0)
                    if reassembler.ends:  # long messages are assembled on a thread, while others are received
                        whole = await asyncio.to_thread(self._assemble, stream, reassembler, received)
                    else:
                        whole = self._assemble(stream, reassembler, received)
                    if whole is not None:
                        await self._handle(stream, whole, size)
                    await stream.wait_for_space()
        except Refused as refusal:
            self._note(refusal, context)
            stream.stop(refusal.words, refusal.code)
            sessions.leave(stream)
            await _end_call(context, stream)
        except asyncio.CancelledError:
            if stream.ending is None:
                raise
            sessions.leave(stream)
            await _end_call(context, stream)
        finally:
            sessions.leave(stream)
            del self._callers[stream]
            catching_up.cancel()
            stream.close()

    def _note(self, refusal: "Refused", context: Context) -> None:
        """Log a refusal; the log handler bounds the length of lines."""
        who = self._shown(context)
        # A refused caller is not named: an erased user has no name any more, and an unknown one may give any.
        strange = refusal.code is grpc.StatusCode.UNAUTHENTICATED
        if who is None or (strange and not who.chain):
            called = context.peer()
        else:
            called = event_log.called("" if strange else who.name, who.identity)
        _log.info("refused %s: %s, %s", called, refusal.code.name, refusal.words)
        self._scheduler.counts.refuse_call(refusal.code, refusal.words)

    async def watch_certificates(self) -> None:
        """Every few seconds, without end, disconnect clients whose certificates are revoked, have expired, or are of an
        authority that was removed.

        A revocation list that cannot be read in two checks, longer than replacing it takes, disconnects all clients.
        """
        closed, trusted = False, None if self._trust is None else self._trust.now()
        while self._trust is not None:
            await asyncio.sleep(CERTIFICATE_SECONDS)
            earlier, trusted = trusted, self._trust.now()
            for stream, caller in list(self._callers.items()) if earlier is not trusted else ():
                if not certificates.near(
                    caller.chain, trusted.authorities
                ):  # it may reconnect with a certificate of another
                    stream.end(security.STRANGE, grpc.StatusCode.FAILED_PRECONDITION)
            try:
                revoked, before, closed = frozenset() if self._revoked is None else self._revoked.now(), False, False
            except ConfigError:
                revoked, before, closed = frozenset(), closed, True
            for stream, caller in list(self._callers.items()):
                if caller.identity in revoked:
                    stream.end(certificates.WORDS, grpc.StatusCode.UNAUTHENTICATED)
                elif before:
                    stream.end(certificates.CLOSED, grpc.StatusCode.UNAVAILABLE)
                elif not caller.timely():
                    stream.end(security.EXPIRED, grpc.StatusCode.FAILED_PRECONDITION)

    def days_left(self) -> float | None:
        """Return days until the first certificate of a connected client expires; None without one."""
        days = (caller.days_left() for caller in self._callers.values())
        return min((left for left in days if left is not None), default=None)

    async def _catch_up(self, stream: ClientStream) -> None:
        """Announce runs that ended while a client was disconnected, so that it erases the answers that it keeps."""
        with suppress(QuoronError):  # another process has the database, or the coordinator is stopping
            scheduler = self._scheduler
            for run, how in await scheduler.stored(scheduler.registry.ended_with, stream.user, MAX_SENT):
                stream.send(pb.ServerMessage(ended=pb.Ended(run=run, how=how)))
                await stream.wait_for_space()

    async def _shake_hands(self, requests: AsyncIterator[bytes], context: Context) -> tuple[int, Caller]:
        """Receive the handshake; return the user and the caller of a stream."""
        try:
            async with asyncio.timeout(GREETING_SECONDS):
                caller = self._caller(context)
                first = _parsed(await anext(requests, b""), _LONGEST_GREETING)
                if first.WhichOneof("kind") != "hello":
                    raise Refused(grpc.StatusCode.INVALID_ARGUMENT, "Expected a hello first.")
                _check_protocol(first.hello)
                # Read now: the key's user may have changed, or been erased, during the handshake.
                user = await self._scheduler.stored(self._scheduler.registry.user, caller.identity)
        except TimeoutError:
            words = f"Expected a hello within {GREETING_SECONDS:g} seconds."
            raise Refused(grpc.StatusCode.DEADLINE_EXCEEDED, words) from None
        except RunStopped:
            raise Refused(grpc.StatusCode.UNAVAILABLE, LEAVING) from None
        if user is None:
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION, "Expected an enrolled client. Enrol first.")
        if self._scheduler.sessions.backlog.unread(user):
            raise Refused(grpc.StatusCode.UNAVAILABLE, _UNREAD)
        return user, caller

    def _assemble(
        self, stream: ClientStream, reassembler: wire.Reassembler[pb.ClientMessage], message: pb.ClientMessage
    ) -> pb.ClientMessage | None:
        """Return a message that is complete; None during chunks. Values that are not awaited are dropped."""
        sessions = self._scheduler.sessions

        def allowed(answer: wire.Long) -> int | None:
            if isinstance(answer, pb.Question):
                return None
            most = sessions.expects(stream.user, answer)
            if most is None:
                self._answered(stream, answer, 0)
            return most

        try:
            return reassembler.take(message, allowed)
        except WireError as error:
            raise Refused(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from None

    async def _handle(self, stream: ClientStream, message: pb.ClientMessage, size: int) -> None:
        kind = message.WhichOneof("kind")
        if kind in ("answer", "masked"):
            self._answered(stream, getattr(message, kind), size)
        elif kind == "consent":
            await self._scheduler.sessions.consent(stream, message.consent)

    def _answered(self, stream: ClientStream, answer: pb.Answer | pb.MaskedAnswer, size: int) -> None:
        sessions, user = self._scheduler.sessions, stream.user
        verdict = sessions.answer(user, answer, size)
        if verdict == pb.VERDICT_TAKEN:  # not sent: a receipt would cost as much as the next question
            return
        receipt = pb.Receipt(run=answer.run, round=answer.round, verdict=verdict)
        stream.send(pb.ServerMessage(receipt=receipt))

    def _caller(self, context: Context) -> Caller:
        """Return the caller of an accepted call; raise Refused otherwise."""
        found = self._shown(context)
        if found is None:
            raise Refused(grpc.StatusCode.UNAUTHENTICATED, "Expected a client certificate.")
        if found.objection is not None:
            raise Refused(grpc.StatusCode.UNAUTHENTICATED, found.objection)
        self._admit(found)
        if self._limiter is not None:
            self._limiter.admit(context.peer(), found.identity)
        return found

    def _shown(self, context: Context) -> Caller | None:
        metadata = tuple(context.invocation_metadata())
        authorities = None if self._trust is None else self._trust.now().authorities
        return security.caller(context.auth_context(), metadata, authorities=authorities)

    def _admit(self, caller: Caller) -> None:
        """Refuse a client whose certificate is revoked, has expired, or cannot be checked, also during a stream."""
        try:
            revoked = self._revoked is not None and caller.identity in self._revoked.now()
        except ConfigError:
            raise Refused(grpc.StatusCode.UNAVAILABLE, certificates.CLOSED) from None
        if revoked:
            raise Refused(grpc.StatusCode.UNAUTHENTICATED, certificates.WORDS)
        if not caller.timely():  # not UNAUTHENTICATED, which ends a client: it will read its certificate again
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION, security.EXPIRED)


class Refused(Exception):
    """A refused call, with a status and a text for the client."""

    def __init__(self, code: grpc.StatusCode, words: str) -> None:
        super().__init__(words)
        self.code, self.words = code, words


@contextmanager
def _as_refusal() -> Iterator[None]:
    """Turn every exception of a call into a refusal with a status; the log has the details."""
    try:
        yield
    except (Refused, asyncio.CancelledError):
        raise
    except LedgerError as error:  # another process has the database, or it cannot be reached
        _log.warning("a call could not be answered: %s", error)
        raise Refused(grpc.StatusCode.UNAVAILABLE, LEAVING) from None
    except Exception:
        _log.exception("a call could not be answered")
        raise Refused(grpc.StatusCode.INTERNAL, "The coordinator could not answer. Its log says why.") from None


def _check_length(data: bytes, limit: int) -> None:
    """Refuse long messages before parsing, which takes many times the memory of some."""
    if len(data) > limit:
        raise Refused(grpc.StatusCode.INVALID_ARGUMENT, NONSENSE)


def _parsed(data: bytes, limit: int) -> pb.ClientMessage:
    _check_length(data, limit)
    try:
        message = pb.ClientMessage.FromString(data)
    except DecodeError:
        raise Refused(grpc.StatusCode.INVALID_ARGUMENT, NONSENSE) from None
    if len(message.answer.run) > wire.MAX_NAME:  # a receipt would repeat it
        raise Refused(grpc.StatusCode.INVALID_ARGUMENT, NONSENSE)
    return message


def _check_protocol(asked: pb.EnrolRequest | pb.Hello) -> None:
    if asked.protocol != wire.PROTOCOL:
        theirs = f"{asked.protocol} of {event_log.called(asked.software, 'another version')}"
        words = f"{OTHER_PROTOCOL}, got {theirs}. Use a version that speaks the same."
        raise Refused(grpc.StatusCode.FAILED_PRECONDITION, words)


async def _end_call(context: Context, stream: ClientStream) -> None:
    """End the call with the stream's status, once nothing is being written; the client may never read it."""
    try:
        async with asyncio.timeout(stream.closing_seconds):
            await stream.quiet()
    except TimeoutError:
        _log.debug("user %d does not read, so it does not get the status: %r", stream.user, stream.ending)
        raise asyncio.CancelledError from None  # a status cannot be sent now, nor can gRPC
    await context.abort(stream.code, stream.ending)
