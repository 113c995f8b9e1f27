"""The client plane over gRPC: enrolment, and one long conversation with each client.

Messages are read as bytes and parsed here, so that whatever bytes a client sends meet one code path.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError

from quoron_client import wire
from quoron_protos.errors import QuoronError
from quoron_protos.v1 import federation_pb2 as pb
from quoron_server.service import revocation, security
from quoron_server.service.conversation import Conversation
from quoron_server.service.engine import RunStopped
from quoron_server.service.manager import Manager
from quoron_server.service.revocation import Revocations
from quoron_server.specification import AROUND

SERVICE = "quoron.v1.ClientPlane"
NONSENSE, LEAVING = "Expected a message of this protocol.", "The coordinator is leaving. Come back later."
_UNREAD = "An earlier conversation with this client ended unread, on a connection that is still open. Close it."
LOOK = 3.0  # seconds between two looks for those who are revoked and say nothing
_GREETING_SECONDS = 30.0
_LONGEST_GREETING, _LONGEST_SMALL = 4 << 10, 64 << 10  # bytes of an enrolment or a hello, and of what is no answer
_log = logging.getLogger("quoron")
Context = Any  # grpc.aio.ServicerContext[bytes, bytes]


class ClientPlane:
    """The two methods of the client plane, on raw bytes."""

    def __init__(self, manager: Manager, *, plaintext: bool, revoked: Revocations | None = None) -> None:
        self._manager, self._plaintext, self._revoked = manager, plaintext, revoked
        self._identities: dict[Conversation, str] = {}

    def handlers(self) -> grpc.GenericRpcHandler:
        """What a server is given."""
        methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "Enrol": grpc.unary_unary_rpc_method_handler(self.enrol),
            "Work": grpc.stream_stream_rpc_method_handler(self.work),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def enrol(self, request: bytes, context: Context) -> bytes:
        """A place in the population, the same for the same certificate."""
        identity, group = await self._identity(context)
        await _check_length(request, _LONGEST_GREETING, context)
        try:
            protocol = pb.EnrolRequest.FromString(request).protocol
        except DecodeError:
            await _refuse(context, grpc.StatusCode.INVALID_ARGUMENT, NONSENSE)
        await _check_protocol(protocol, context)
        try:
            user = await self._manager.enrol(identity, group)
        except RunStopped:
            await _refuse(context, grpc.StatusCode.UNAVAILABLE, LEAVING)
        except QuoronError as error:
            _log.warning("refused an enrolment: %s", error)
            await _refuse(context, grpc.StatusCode.FAILED_PRECONDITION, "This client cannot be enrolled here.")
        return pb.EnrolReply(user=user).SerializeToString()

    async def work(self, requests: AsyncIterator[bytes], context: Context) -> None:
        """Hello, then announcements, consents, questions, answers and receipts until either side leaves."""
        try:
            async with asyncio.timeout(_GREETING_SECONDS):
                user, identity = await self._greeted(requests, context)
        except TimeoutError:
            words = f"Expected a hello within {_GREETING_SECONDS:g} seconds."
            await _refuse(context, grpc.StatusCode.DEADLINE_EXCEEDED, words)
        rooms = self._manager.rooms
        if rooms.backlog.unread(user):
            await _refuse(context, grpc.StatusCode.UNAVAILABLE, _UNREAD)
        conversation = Conversation(user, rooms.backlog)
        conversation.start(context)
        self._identities[conversation] = identity
        rooms.enter(conversation)
        catching_up = asyncio.create_task(self._catch_up(conversation))  # runs that end from now on: `Rooms.close`
        try:
            async for data in requests:
                limit = max(8 * rooms.longest_answer(user) + AROUND, _LONGEST_SMALL)
                await self._admit(identity, context)
                await self._hear(conversation, await _parsed(data, limit, context), len(data))
                await conversation.room()
        except asyncio.CancelledError:
            if conversation.ending is None:
                raise
            rooms.leave(conversation)
            await _hang_up(context, conversation)
        finally:
            rooms.leave(conversation)
            del self._identities[conversation]
            catching_up.cancel()
            conversation.close()

    async def watch_revocations(self) -> None:
        """For ever, every few seconds: end conversations with clients that are revoked but only listen."""
        while self._revoked is not None:
            await asyncio.sleep(LOOK)
            revoked = self._revoked.now()
            for conversation in [each for each, identity in self._identities.items() if identity in revoked]:
                conversation.end(revocation.WORDS, grpc.StatusCode.UNAUTHENTICATED)

    async def _catch_up(self, conversation: Conversation) -> None:
        """Tell a client which runs have ended while it was away, so that it erases the answers that it keeps."""
        with suppress(QuoronError):  # the database is another's, or the coordinator leaves: it will ask again
            for run, how in await self._manager.ended_with(conversation.user):
                conversation.send(pb.ServerMessage(ended=pb.Ended(run=run, how=how)))
                await conversation.room()

    async def _greeted(self, requests: AsyncIterator[bytes], context: Context) -> tuple[int, str]:
        """The user that a conversation is with, and its identity, after its hello."""
        identity, _ = await self._identity(context)
        try:
            user = await self._manager.user(identity)
        except RunStopped:
            await _refuse(context, grpc.StatusCode.UNAVAILABLE, LEAVING)
        if user is None:
            await _refuse(context, grpc.StatusCode.FAILED_PRECONDITION, "Expected an enrolled client. Enrol first.")
        first = await _parsed(await anext(requests, b""), _LONGEST_GREETING, context)
        if first.WhichOneof("kind") != "hello":
            await _refuse(context, grpc.StatusCode.INVALID_ARGUMENT, "Expected a hello first.")
        await _check_protocol(first.hello.protocol, context)
        return user, identity

    async def _hear(self, conversation: Conversation, message: pb.ClientMessage, size: int) -> None:
        kind = message.WhichOneof("kind")
        if kind == "answer":
            answer = message.answer
            verdict = self._manager.rooms.answer(conversation.user, answer, size)
            receipt = pb.Receipt(run=answer.run, round=answer.round, verdict=verdict)
            conversation.send(pb.ServerMessage(receipt=receipt))
        elif kind == "consent":
            await self._manager.rooms.consent(conversation, message.consent)

    async def _identity(self, context: Context) -> tuple[str, str]:
        """Fingerprint and group of whoever calls."""
        found = security.identity(
            context.auth_context(), tuple(context.invocation_metadata()), plaintext=self._plaintext
        )
        if found is None:
            await _refuse(context, grpc.StatusCode.UNAUTHENTICATED, "Expected a client certificate.")
        await self._admit(found[0], context)
        return found

    async def _admit(self, identity: str, context: Context) -> None:
        """Refuse a client that is revoked, in the middle of a conversation too."""
        if self._revoked is not None and identity in self._revoked:
            await _refuse(context, grpc.StatusCode.UNAUTHENTICATED, revocation.WORDS)


async def _check_length(data: bytes, limit: int, context: Context) -> None:
    """Before parsing, which takes many times the memory of some messages."""
    if len(data) > limit:
        await _refuse(context, grpc.StatusCode.INVALID_ARGUMENT, NONSENSE)


async def _parsed(data: bytes, limit: int, context: Context) -> pb.ClientMessage:
    await _check_length(data, limit, context)
    try:
        message = pb.ClientMessage.FromString(data)
    except DecodeError:
        await _refuse(context, grpc.StatusCode.INVALID_ARGUMENT, NONSENSE)
    if len(message.answer.run) > wire.MAX_NAME:  # a receipt would repeat it
        await _refuse(context, grpc.StatusCode.INVALID_ARGUMENT, NONSENSE)
    return message


async def _check_protocol(protocol: int, context: Context) -> None:
    if protocol != wire.PROTOCOL:
        words = f"Expected protocol {wire.PROTOCOL}. Use a matching version."
        await _refuse(context, grpc.StatusCode.FAILED_PRECONDITION, words)


async def _hang_up(context: Context, conversation: Conversation) -> None:
    """End the call as the conversation was ended; a write that the client never took may be in the way."""
    try:
        async with asyncio.timeout(conversation.parting):
            await context.abort(conversation.code, conversation.ending)
    except grpc.aio.AbortError:
        raise
    except Exception as error:
        _log.debug("user %d was not told %r: %r", conversation.user, conversation.ending, error)


async def _refuse(context: Context, code: grpc.StatusCode, words: str) -> NoReturn:
    await context.abort(code, words)
    raise AssertionError  # abort has raised
