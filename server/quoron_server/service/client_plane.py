"""The client plane over gRPC: enrolment, one long conversation with each client, and limits of calls and connections.

Messages are read as bytes and parsed here, so that whatever bytes a client sends meet one code path.
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
from quoron_server.service import certificates, journal, records, security
from quoron_server.service.certificates import Revocations
from quoron_server.service.conversation import Conversation
from quoron_server.service.manager import OTHER_PROTOCOL, Manager
from quoron_server.service.running import RunStopped
from quoron_server.service.security import Caller, Trust
from quoron_server.storage.registry import ForgottenKey, OtherGroup, OtherPeople, RotatedKey

Place = tuple[str, int]  # address and port

_MOST = 4096  # names, before those are forgotten that have nothing to wait for

MOST_TOLD = 1000  # ended runs that a returning client hears of
MOST_EACH = 4  # connections of one client: one is used, others may be dying unnoticed
MOST_BESIDE = 64  # beyond them, which are ended one after another; those beyond all of these at once
ENDED_EACH = 2  # of one client's in a look
LOOK = 0.25  # seconds between two looks
_SHARE = 10.0  # between two looks passes so many times what a look takes
_FILES = "/dev/fd"  # the files of this process

SERVICE = "quoron.v1.ClientPlane"
GREETING_SECONDS = 30.0
NONSENSE, LEAVING = "Expected a message of this protocol.", "The coordinator is leaving. Come back later."
_UNREAD = "An earlier conversation with this client ended unread, on a connection that is still open. Close it."
_SLOW = f"Expected an enrolment within {GREETING_SECONDS:g} seconds, and one a second from one client."
CERTIFICATE_SECONDS = (
    3.0  # seconds between two looks for those whose certificate is no longer good, and who say nothing
)
_LONGEST_GREETING, _LONGEST_SMALL = 4 << 10, 64 << 10  # bytes of an enrolment or a hello, and of what is no answer
_log = logging.getLogger("quoron")
Context = Any  # grpc.aio.ServicerContext[bytes, bytes]


@dataclass(slots=True)
class RateLimit:
    """A bucket for each name, which holds `burst` and gains one in so many `seconds`.

    >>> limit = RateLimit(burst=2, seconds=1.0)
    >>> [limit.wait("ada", now) for now in (10.0, 10.0, 10.25, 11.0)], limit.wait("ben", 10.25)
    ([0.0, 0.0, 0.75, 0.0], 0.0)
    """

    burst: int = 10
    seconds: float = 1.0
    _full: dict[str, float] = field(default_factory=dict)  # when a bucket will be full again

    def wait(self, name: str, now: float) -> float:
        """Seconds until it is worth asking again; 0 if it may go on now, which is counted."""
        if len(self._full) >= _MOST:
            self._full = {each: full for each, full in self._full.items() if full > now}
        after = max(self._full.get(name, now), now) + self.seconds
        early = after - self.burst * self.seconds - now
        if early > 0:
            return early
        self._full[name] = after
        return 0.0


class ConnectionLimiter:
    """Which connections to a port may stay: those that brought a call with a credential, and a few without a call.

        limiter = ConnectionLimiter(most=2000)
        limiter.admit(context.peer(), identity)      # at every call with a good certificate, or a good token
        await limiter.watch(port)                    # for ever

    gRPC limits connections by their number alone. An attacker who opens as many, with half a handshake or less on each,
    would keep all clients out, and each of them takes 70 KiB. So the coordinator reads its own sockets, several times a
    second: when connections that have brought no client's call take half of all places, or seven eighths together with
    the others, the oldest of them are ended. So a client that shakes hands in an ordinary time gets through, as do many
    that come back at once.

    One client has a few connections, of which its oldest make room: two at a time, and all at once where half of the
    places are taken. A client that is cut off comes back at once, and a handshake costs more processor time than what
    is sent on a connection that is left alone for a while.

    A socket is ended by shutdown(2), as if its other end had closed it: it stays gRPC's, which cleans up after it. All
    of it is used in one event loop.
    """

    def __init__(self, most: int, *, each: int = MOST_EACH) -> None:
        """For a port that takes `most` connections."""
        self._most, self._each = most, each
        self._known: dict[int, Place | None] = {}  # inode: far end, unless it was ended; oldest first
        self._admitted: dict[Place, str] = {}  # oldest first

    def admit(self, peer: str, identity: str) -> None:
        """A client has called from where gRPC says; what is no address of a network takes no place of a port's."""
        if not peer.startswith(("ipv4:", "ipv6:")):
            return
        host, _, port = unquote(peer.partition(":")[2]).rpartition(":")
        self._admitted.setdefault(_place(host.strip("[]"), int(port)), identity)

    async def watch(self, port: int) -> None:
        """For ever: keep the number of connections to our `port` within bounds, on a system that shows its files."""
        while os.path.isdir(_FILES):
            began = time.perf_counter()
            with suppress(OSError):  # no file is free to look with: the next time, perhaps
                self.look(port)
            await asyncio.sleep(max(LOOK, _SHARE * (time.perf_counter() - began)))

    def look(self, port: int) -> int:
        """Once; how many were ended."""
        found = {inode: file for name in os.listdir(_FILES) if (inode := _inode(file := int(name))) is not None}
        known = {inode: place for inode, place in self._known.items() if inode in found}
        self._known = known | {each: _far_end(found[each], port) for each in found if each not in known}
        here = {place: inode for inode, place in self._known.items() if place is not None}
        self._admitted = {place: who for place, who in self._admitted.items() if place in here}
        strangers = [inode for place, inode in here.items() if place not in self._admitted]
        places = max(self._most // 8, min(self._most // 2, 7 * self._most // 8 - len(self._admitted)))
        leaving = strangers[: max(0, len(strangers) - places)]
        of: dict[str, list[int]] = defaultdict(list)
        for place, who in self._admitted.items():
            of[who].append(here[place])
        crowded = 2 * len(here) > self._most
        for own in of.values():
            beyond = max(0, len(own) - self._each)
            leaving += own[: beyond if crowded else max(min(beyond, ENDED_EACH), beyond - MOST_BESIDE)]
        self._known |= dict.fromkeys(leaving)  # gRPC may take a while to clean up after them
        return sum(_end(found[inode], inode) for inode in leaving)


def _inode(file: int) -> int | None:
    """Of a socket."""
    try:
        status = os.fstat(file)
    except OSError:  # it was closed meanwhile
        return None
    return status.st_ino if stat.S_ISSOCK(status.st_mode) else None


def _far_end(file: int, port: int) -> Place | None:
    """Of a connection to our port; None for every other socket."""
    with suppress(OSError), _held(file) as own:
        if own.family in (socket.AF_INET, socket.AF_INET6) and own.getsockname()[1] == port:
            return _place(*own.getpeername()[:2])
    return None


def _end(file: int, inode: int) -> bool:
    """Whether it was still there to be ended."""
    with suppress(OSError), _held(file) as own:
        if _inode(own.fileno()) == inode:  # and no other that got the number of a file that was closed
            own.shutdown(socket.SHUT_RDWR)
            return True
    return False


def _held(file: int) -> socket.socket:
    """A second hold of it; OSError for what is no socket any more."""
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
        manager: Manager,
        *,
        revoked: Revocations | None = None,
        trust: Trust | None = None,
        connection_limiter: ConnectionLimiter | None = None,
    ) -> None:
        """Without `trust` in plaintext."""
        self._manager, self._revoked = manager, revoked
        self._trust, self._connection_limiter = trust, connection_limiter
        self._callers: dict[Conversation, Caller] = {}
        self._rate_limit = RateLimit()

    def handlers(self) -> grpc.GenericRpcHandler:
        """What a server is given."""
        methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "Enrol": grpc.stream_unary_rpc_method_handler(self.enrol),
            "Work": grpc.stream_stream_rpc_method_handler(self.work),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def enrol(self, requests: AsyncIterator[bytes], context: Context) -> bytes:
        """Return a place in the population, the same for the same certificate. The caller is known before its message.

        A client that enrols again and again waits: all clients share the database.
        """
        try:
            with _foreseen():
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
            people, told = max(1, asked.people), {"name": caller.name, "software": asked.software}
            user = await self._manager.enrol(caller.identity, caller.group, **told, people=people)
            agreed = await self._manager.agreed(user)
            standing = await self._manager.records.store(caller.group, asked.seen)
            self._manager.counts.newer_store += asked.seen > standing["rows"]
            store = pb.Books(**standing)
        except RunStopped:
            raise Refused(grpc.StatusCode.UNAVAILABLE, LEAVING) from None
        except ForgottenKey:
            raise Refused(grpc.StatusCode.UNAUTHENTICATED, records.GONE) from None
        except (OtherGroup, OtherPeople, RotatedKey) as error:
            _log.warning("refused the enrolment of %s: %s", journal.called(caller.name, caller.identity), error)
            words = {OtherGroup: "This client cannot be enrolled here.", RotatedKey: records.ROTATED}
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION, words.get(type(error), str(error))) from None
        charges = [pb.Agreed(run=run, epsilon=epsilon, delta=delta) for run, epsilon, delta in agreed]
        said = people if people > 1 else 0
        return pb.EnrolReply(user=user, agreed=charges, books=store, people=said).SerializeToString()

    async def work(self, requests: AsyncIterator[bytes], context: Context) -> None:
        """Hello, then announcements, consents, questions and answers until either side leaves."""
        try:
            with _foreseen():
                user, caller = await self._greeted(requests, context)
            conversation = Conversation(user, self._manager.sessions.backlog)
        except Refused as refusal:
            self._note(refusal, context)
            await context.abort(refusal.code, refusal.words)
            raise
        conversation.start(context)
        self._callers[conversation] = caller
        sessions = self._manager.sessions
        sessions.enter(conversation)
        arriving, size = wire.Arriving[pb.ClientMessage](), 0
        catching_up = asyncio.create_task(self._catch_up(conversation))  # runs that end from now on: `Rooms.close`
        try:
            with _foreseen():
                while (data := await context.read()) is not grpc.aio.EOF:  # as `requests`, with less between
                    limit = max(9 * sessions.longest_answer(user) + wire.BESIDE, _LONGEST_SMALL)
                    self._admit(caller)
                    said = _parsed(data, wire.MOST + wire.BESIDE if arriving.open else limit)
                    size = len(data) + (size if arriving.open else 0)
                    if arriving.ends:  # what is long is put together apart, while others are heard
                        heard = await asyncio.to_thread(self._put_together, conversation, arriving, said)
                    else:
                        heard = self._put_together(conversation, arriving, said)
                    if heard is not None:
                        await self._hear(conversation, heard, size)
                    await conversation.wait_for_space()
        except Refused as refusal:
            self._note(refusal, context)
            conversation.stop(refusal.words, refusal.code)
            sessions.leave(conversation)
            await _hang_up(context, conversation)
        except asyncio.CancelledError:
            if conversation.ending is None:
                raise
            sessions.leave(conversation)
            await _hang_up(context, conversation)
        finally:
            sessions.leave(conversation)
            del self._callers[conversation]
            catching_up.cancel()
            conversation.close()

    def _note(self, refusal: "Refused", context: Context) -> None:
        """One line for the operator; who writes the log keeps its length within bounds."""
        who = self._shown(context)
        # A refused caller is not named: an erased user has no name any more, and a stranger may give any.
        strange = refusal.code is grpc.StatusCode.UNAUTHENTICATED
        if who is None or (strange and not who.chain):
            called = context.peer()
        else:
            called = journal.called("" if strange else who.name, who.identity)
        _log.info("refused %s: %s, %s", called, refusal.code.name, refusal.words)
        self._manager.counts.refuse_call(refusal.code, refusal.words)
        if who is not None and refusal.words.startswith(OTHER_PROTOCOL):
            self._misfit(who, "speaks another protocol")

    def _misfit(self, caller: Caller, what: str) -> None:
        """A client whose software does not fit, whatever its data are: named once in the log, and counted by name."""
        name = caller.name or caller.identity[:16]
        if self._manager.counts.misfit(name):
            _log.warning("client %r %s: its software does not fit, and what it sends counts as nothing", name, what)

    async def watch_certificates(self) -> None:
        """For ever, every few seconds: end conversations with clients that only listen, by certificates that are
        revoked, have expired, or are of an authority that was taken away; and warn of what ends soon.

        A list that cannot be read at two looks in a row, which is longer than it takes to replace it, ends them all.
        """
        closed, trusted = False, None if self._trust is None else self._trust.now()
        while self._trust is not None:
            await asyncio.sleep(CERTIFICATE_SECONDS)
            earlier, trusted = trusted, self._trust.now()
            for conversation, caller in list(self._callers.items()) if earlier is not trusted else ():
                if not certificates.near(caller.chain, trusted.authorities):  # it may come back with another's
                    conversation.end(security.STRANGE, grpc.StatusCode.FAILED_PRECONDITION)
            try:
                revoked, before, closed = frozenset() if self._revoked is None else self._revoked.now(), False, False
            except ConfigError:
                revoked, before, closed = frozenset(), closed, True
            for conversation, caller in list(self._callers.items()):
                if caller.identity in revoked:
                    conversation.end(certificates.WORDS, grpc.StatusCode.UNAUTHENTICATED)
                elif before:
                    conversation.end(certificates.CLOSED, grpc.StatusCode.UNAVAILABLE)
                elif not caller.timely():
                    conversation.end(security.EXPIRED, grpc.StatusCode.FAILED_PRECONDITION)

    def days_left(self) -> float | None:
        """Days until the first certificate of a client that is connected ends; None where there is none."""
        days = (caller.days_left() for caller in self._callers.values())
        return min((each for each in days if each is not None), default=None)

    async def _catch_up(self, conversation: Conversation) -> None:
        """Tell a client which runs have ended while it was away, so that it erases the answers that it keeps."""
        with suppress(QuoronError):  # the database is another's, or the coordinator leaves: it will ask again
            manager = self._manager
            for run, how in await manager.stored(manager.registry.ended_with, conversation.user, MOST_TOLD):
                conversation.send(pb.ServerMessage(ended=pb.Ended(run=run, how=how)))
                await conversation.wait_for_space()

    async def _greeted(self, requests: AsyncIterator[bytes], context: Context) -> tuple[int, Caller]:
        """The user that a conversation is with, and who that is, after its hello."""
        try:
            async with asyncio.timeout(GREETING_SECONDS):
                caller = self._caller(context)
                first = _parsed(await anext(requests, b""), _LONGEST_GREETING)
                if first.WhichOneof("kind") != "hello":
                    raise Refused(grpc.StatusCode.INVALID_ARGUMENT, "Expected a hello first.")
                _check_protocol(first.hello)
                # Whose key it is now: it may have changed, or been forgotten, while the hello was waited for.
                user = await self._manager.stored(self._manager.registry.user, caller.identity)
        except TimeoutError:
            words = f"Expected a hello within {GREETING_SECONDS:g} seconds."
            raise Refused(grpc.StatusCode.DEADLINE_EXCEEDED, words) from None
        except RunStopped:
            raise Refused(grpc.StatusCode.UNAVAILABLE, LEAVING) from None
        if user is None:
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION, "Expected an enrolled client. Enrol first.")
        if self._manager.sessions.backlog.unread(user):
            raise Refused(grpc.StatusCode.UNAVAILABLE, _UNREAD)
        return user, caller

    def _put_together(
        self, conversation: Conversation, arriving: wire.Arriving[pb.ClientMessage], message: pb.ClientMessage
    ) -> pb.ClientMessage | pb.Answer | pb.MaskedAnswer | None:
        """What a message says, or completes. Values that nobody waits for are dropped, with their verdict."""
        sessions = self._manager.sessions

        def allowed(answer: wire.Long) -> int | None:
            if isinstance(answer, pb.Question):
                return None
            most = sessions.expects(conversation.user, answer)
            if most is None:
                self._answered(conversation, answer, 0)
            return most

        try:
            found = arriving.take(message, allowed)
        except WireError as error:
            raise Refused(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from None
        return None if isinstance(found, pb.Question) else found

    async def _hear(
        self, conversation: Conversation, message: pb.ClientMessage | pb.Answer | pb.MaskedAnswer, size: int
    ) -> None:
        kind = message.WhichOneof("kind") if isinstance(message, pb.ClientMessage) else None
        if not isinstance(message, pb.ClientMessage):
            self._answered(conversation, message, size)
        elif kind in ("answer", "masked"):
            self._answered(conversation, getattr(message, kind), size)
        elif kind == "consent":
            await self._manager.sessions.consent(conversation, message.consent)

    def _answered(self, conversation: Conversation, answer: pb.Answer | pb.MaskedAnswer, size: int) -> None:
        sessions, user = self._manager.sessions, conversation.user
        misfits = sessions.misfits[user]
        verdict = sessions.answer(user, answer, size)
        if sessions.misfits[user] > misfits:
            self._misfit(self._callers[conversation], "answers with another type or length than it was asked for")
        if verdict == pb.VERDICT_TAKEN:  # nobody needs to hear it, and saying so costs as much as the next question
            return
        receipt = pb.Receipt(run=answer.run, round=answer.round, verdict=verdict)
        conversation.send(pb.ServerMessage(receipt=receipt))

    def _caller(self, context: Context) -> Caller:
        """Return the caller, if it may call."""
        found = self._shown(context)
        if found is None:
            raise Refused(grpc.StatusCode.UNAUTHENTICATED, "Expected a client certificate.")
        if found.objection is not None:
            raise Refused(grpc.StatusCode.UNAUTHENTICATED, found.objection)
        self._admit(found)
        if self._connection_limiter is not None:
            self._connection_limiter.admit(context.peer(), found.identity)
        return found

    def _shown(self, context: Context) -> Caller | None:
        metadata = tuple(context.invocation_metadata())
        authorities = None if self._trust is None else self._trust.now().authorities
        return security.caller(context.auth_context(), metadata, authorities=authorities)

    def _admit(self, caller: Caller) -> None:
        """Refuse a client by its certificate, in the middle of a conversation too: one that is revoked, or has expired,
        or that nobody can tell to be good."""
        try:
            revoked = self._revoked is not None and caller.identity in self._revoked
        except ConfigError:
            raise Refused(grpc.StatusCode.UNAVAILABLE, certificates.CLOSED) from None
        if revoked:
            raise Refused(grpc.StatusCode.UNAUTHENTICATED, certificates.WORDS)
        if caller.identity in self._manager.users.rotated:  # nor here: the new one may be in its files soon
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION, records.ROTATED)
        if not caller.timely():  # not UNAUTHENTICATED, which ends a client: it will read its certificate again
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION, security.EXPIRED)


class Refused(Exception):
    """A call that ends here, with a status and words for the client."""

    def __init__(self, code: grpc.StatusCode, words: str) -> None:
        super().__init__(words)
        self.code, self.words = code, words


@contextmanager
def _foreseen() -> Iterator[None]:
    """Every call ends with a status of ours: whatever goes wrong is a refusal, of which the log has the rest."""
    try:
        yield
    except (Refused, asyncio.CancelledError):
        raise
    except LedgerError as error:  # the database is another's, or away: its owner goes on
        _log.warning("a call could not be answered: %s", error)
        raise Refused(grpc.StatusCode.UNAVAILABLE, LEAVING) from None
    except Exception:
        _log.exception("a call could not be answered")
        raise Refused(grpc.StatusCode.INTERNAL, "The coordinator could not answer. Its log says why.") from None


def _check_length(data: bytes, limit: int) -> None:
    """Before parsing, which takes many times the memory of some messages."""
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
        theirs = f"{asked.protocol} of {journal.called(asked.software, 'another version')}"
        words = f"{OTHER_PROTOCOL}, got {theirs}. Use a version that speaks the same."
        raise Refused(grpc.StatusCode.FAILED_PRECONDITION, words)


async def _hang_up(context: Context, conversation: Conversation) -> None:
    """End the call as the conversation was ended, once nothing is being written; the client may never take that."""
    try:
        async with asyncio.timeout(conversation.parting):
            await conversation.quiet()
    except TimeoutError:
        _log.debug("user %d was not told %r: it does not read", conversation.user, conversation.ending)
        raise asyncio.CancelledError from None  # a status cannot be sent now, nor can gRPC
    await context.abort(conversation.code, conversation.ending)
