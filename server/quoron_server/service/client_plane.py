"""The client plane over gRPC: enrolment, and one long conversation with each client.

Messages are read as bytes and parsed here, so that whatever bytes a client sends meet one code path.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import grpc
from cryptography.x509 import Certificate
from google.protobuf.message import DecodeError

from quoron_client.protocol import wire
from quoron_privacy.errors import ConfigError, LedgerError, QuoronError, WireError
from quoron_protos.v1 import federation_pb2 as pb
from quoron_server.books.roster import OtherGroup, OtherPeople
from quoron_server.books.roster_tables import ForgottenKey, RotatedKey
from quoron_server.service import certificates, journal, revocation, security, users
from quoron_server.service.conversation import Conversation
from quoron_server.service.counts import OTHER_PROTOCOL
from quoron_server.service.doorkeeper import Doorkeeper
from quoron_server.service.engine import RunStopped
from quoron_server.service.manager import Manager
from quoron_server.service.rate_limit import RateLimit
from quoron_server.service.revocation import Revocations
from quoron_server.service.security import Caller
from quoron_server.service.trust import Trust

SERVICE = "quoron.v1.ClientPlane"
GREETING_SECONDS = 30.0
NONSENSE, LEAVING = "Expected a message of this protocol.", "The coordinator is leaving. Come back later."
_UNREAD = "An earlier conversation with this client ended unread, on a connection that is still open. Close it."
_SLOW = f"Expected an enrolment within {GREETING_SECONDS:g} seconds, and one a second from one client."
LOOK = 3.0  # seconds between two looks for those whose certificate is no longer good, and who say nothing
_LONGEST_GREETING, _LONGEST_SMALL = 4 << 10, 64 << 10  # bytes of an enrolment or a hello, and of what is no answer
_log = logging.getLogger("quoron")
Context = Any  # grpc.aio.ServicerContext[bytes, bytes]


class ClientPlane:
    """The two methods of the client plane, on raw bytes."""

    def __init__(
        self,
        manager: Manager,
        *,
        revoked: Revocations | None = None,
        trust: Trust | None = None,
        doorkeeper: Doorkeeper | None = None,
    ) -> None:
        """Without `trust` in plaintext."""
        self._manager, self._revoked = manager, revoked
        self._trust, self._doorkeeper = trust, doorkeeper
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
        """A place in the population, the same for the same certificate. Who calls is known before its message is read.

        Whoever enrols again and again waits: the database is everybody's.
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
        _check_protocol(asked.protocol)
        try:
            people, told = max(1, asked.people), {"name": caller.name, "software": asked.software}
            user = await self._manager.enrol(caller.identity, caller.group, **told, people=people)
            agreed = await self._manager.agreed(user)
            standing = await self._manager.records.books(caller.group, asked.seen)
            self._manager.counts.newer_books += asked.seen > standing["rows"]
            books = pb.Books(**standing)
        except RunStopped:
            raise Refused(grpc.StatusCode.UNAVAILABLE, LEAVING) from None
        except OtherGroup as error:
            _log.warning("refused the enrolment of %s: %s", journal.called(caller.name, caller.identity), error)
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION, "This client cannot be enrolled here.") from None
        except OtherPeople as error:
            _log.warning("refused the enrolment of %s: %s", journal.called(caller.name, caller.identity), error)
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION, str(error)) from None
        except ForgottenKey:
            raise Refused(grpc.StatusCode.UNAUTHENTICATED, users.GONE) from None
        except RotatedKey as error:
            _log.warning("refused the enrolment of %s: %s", journal.called(caller.name, caller.identity), error)
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION, users.ROTATED) from None
        charges = [pb.Agreed(run=run, epsilon=epsilon, delta=delta) for run, epsilon, delta in agreed]
        said = people if people > 1 else 0
        return pb.EnrolReply(user=user, agreed=charges, books=books, people=said).SerializeToString()

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
        # One who may not be here is not named: whoever was forgotten has no name any more, and a stranger may say any.
        strange = refusal.code is grpc.StatusCode.UNAUTHENTICATED
        if who is None or (strange and not who.chain):
            called = context.peer()
        else:
            called = journal.called("" if strange else who.name, who.identity)
        _log.info("refused %s: %s, %s", called, refusal.code.name, refusal.words)
        self._manager.counts.refuse_call(refusal.code, refusal.words)
        if who is not None and refusal.words == OTHER_PROTOCOL:
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
            await asyncio.sleep(LOOK)
            earlier, trusted = trusted, self._trust.now()
            if earlier is not trusted:
                self._recheck(trusted.authorities)
            try:
                revoked, before, closed = frozenset() if self._revoked is None else self._revoked.now(), False, False
            except ConfigError:
                revoked, before, closed = frozenset(), closed, True
            for conversation, caller in list(self._callers.items()):
                if caller.identity in revoked:
                    conversation.end(revocation.WORDS, grpc.StatusCode.UNAUTHENTICATED)
                elif before:
                    conversation.end(revocation.CLOSED, grpc.StatusCode.UNAVAILABLE)
                elif not caller.timely():
                    conversation.end(security.EXPIRED, grpc.StatusCode.FAILED_PRECONDITION)

    def _recheck(self, authorities: Sequence[Certificate]) -> None:
        """End conversations with clients whose authority is trusted no more; they may come back with another's."""
        for conversation, caller in list(self._callers.items()):
            if not certificates.near(caller.chain, authorities):
                conversation.end(security.STRANGE, grpc.StatusCode.FAILED_PRECONDITION)

    def days_left(self) -> float | None:
        """Days until the first certificate of a client that is connected ends; None where there is none."""
        days = (caller.days_left() for caller in self._callers.values())
        return min((each for each in days if each is not None), default=None)

    async def _catch_up(self, conversation: Conversation) -> None:
        """Tell a client which runs have ended while it was away, so that it erases the answers that it keeps."""
        with suppress(QuoronError):  # the database is another's, or the coordinator leaves: it will ask again
            for run, how in await self._manager.ended_with(conversation.user):
                conversation.send(pb.ServerMessage(ended=pb.Ended(run=run, how=how)))
                await conversation.wait_for_space()

    async def _greeted(self, requests: AsyncIterator[bytes], context: Context) -> tuple[int, Caller]:
        """The user that a conversation is with, and who that is, after its hello."""
        try:
            async with asyncio.timeout(GREETING_SECONDS):
                user, caller = await self._hello(requests, context)
        except TimeoutError:
            words = f"Expected a hello within {GREETING_SECONDS:g} seconds."
            raise Refused(grpc.StatusCode.DEADLINE_EXCEEDED, words) from None
        if self._manager.sessions.backlog.unread(user):
            raise Refused(grpc.StatusCode.UNAVAILABLE, _UNREAD)
        return user, caller

    async def _hello(self, requests: AsyncIterator[bytes], context: Context) -> tuple[int, Caller]:
        caller = self._caller(context)
        first = _parsed(await anext(requests, b""), _LONGEST_GREETING)
        if first.WhichOneof("kind") != "hello":
            raise Refused(grpc.StatusCode.INVALID_ARGUMENT, "Expected a hello first.")
        _check_protocol(first.hello.protocol)
        try:  # whose key it is now: it may have changed, or been forgotten, while the hello was waited for
            user = await self._manager.user(caller.identity)
        except RunStopped:
            raise Refused(grpc.StatusCode.UNAVAILABLE, LEAVING) from None
        if user is None:
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION, "Expected an enrolled client. Enrol first.")
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
        if not isinstance(message, pb.ClientMessage):
            self._answered(conversation, message, size)
        elif message.WhichOneof("kind") == "masked":
            self._answered(conversation, message.masked, size)
        elif message.WhichOneof("kind") == "answer":
            self._answered(conversation, message.answer, size)
        elif message.WhichOneof("kind") == "consent":
            await self._manager.sessions.consent(conversation, message.consent)

    def _answered(self, conversation: Conversation, answer: pb.Answer | pb.MaskedAnswer, size: int) -> None:
        sessions, user = self._manager.sessions, conversation.user
        misfits = sessions.misfits[user]
        if isinstance(answer, pb.MaskedAnswer):
            verdict = sessions.masked(conversation.user, answer, size)
        else:
            verdict = sessions.answer(conversation.user, answer, size)
        if sessions.misfits[user] > misfits:
            self._misfit(self._callers[conversation], "answers with another type or length than it was asked for")
        if verdict == pb.VERDICT_TAKEN:  # nobody needs to hear it, and saying so costs as much as the next question
            return
        receipt = pb.Receipt(run=answer.run, round=answer.round, verdict=verdict)
        conversation.send(pb.ServerMessage(receipt=receipt))

    def _caller(self, context: Context) -> Caller:
        """Whoever calls, if it may."""
        found = self._shown(context)
        if found is None:
            raise Refused(grpc.StatusCode.UNAUTHENTICATED, "Expected a client certificate.")
        if found.objection is not None:
            raise Refused(grpc.StatusCode.UNAUTHENTICATED, found.objection)
        self._admit(found)
        if self._doorkeeper is not None:
            self._doorkeeper.admit(context.peer(), found.identity)
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
            raise Refused(grpc.StatusCode.UNAVAILABLE, revocation.CLOSED) from None
        if revoked:
            raise Refused(grpc.StatusCode.UNAUTHENTICATED, revocation.WORDS)
        if caller.identity in self._manager.users.rotated:  # nor here: the new one may be in its files soon
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION, users.ROTATED)
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
    except LedgerError as error:  # the database is another's, or away: whoever has it goes on
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


def _check_protocol(protocol: int) -> None:
    if protocol != wire.PROTOCOL:
        raise Refused(grpc.StatusCode.FAILED_PRECONDITION, OTHER_PROTOCOL)


async def _hang_up(context: Context, conversation: Conversation) -> None:
    """End the call as the conversation was ended, once nothing is being written; the client may never take that."""
    try:
        async with asyncio.timeout(conversation.parting):
            await conversation.quiet()
    except TimeoutError:
        _log.debug("user %d was not told %r: it does not read", conversation.user, conversation.ending)
        raise asyncio.CancelledError from None  # a status cannot be sent now, nor can gRPC
    await context.abort(conversation.code, conversation.ending)
