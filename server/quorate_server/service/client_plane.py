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

from quorate_client import wire
from quorate_protos.errors import QuorateError
from quorate_protos.v1 import federation_pb2 as pb
from quorate_server.service import security
from quorate_server.service.engine import RunStopped
from quorate_server.service.manager import Manager

SERVICE = "quorate.v1.ClientPlane"
NONSENSE, LEAVING = "Expected a message of this protocol.", "The coordinator is leaving. Come back later."
MOST_UNSENT = 64  # messages to a client that does not read; then it is not read either
_MOST_WAITING = 8 * MOST_UNSENT  # then the conversation ends; more than whoever comes back is told of at once
_SPARE = 1 << 20  # bytes that wait, beyond one message of each kind and run
_GREETING_SECONDS = 30.0
_PARTING_SECONDS = 30.0  # for a client to read what is on its way before it can hear of the end
_LONGEST_GREETING, _LONGEST_SMALL = 4 << 10, 64 << 10  # bytes of an enrolment or a hello, and of what is no answer
_AROUND_AN_ANSWER = 4 << 10  # bytes of an answer beside its numbers
_log = logging.getLogger("quorate")
Context = Any  # grpc.aio.ServicerContext[bytes, bytes]


class Conversation:
    """One connected client: what waits to be sent, and a way to end it."""

    def __init__(self, user: int) -> None:
        self.user = user
        self.ending: str | None = None  # why the coordinator ends it
        self.code = grpc.StatusCode.ABORTED  # with which it does
        self._unsent: asyncio.Queue[bytes] = asyncio.Queue()
        self._waiting = 0  # bytes of these
        self._largest: dict[tuple[str, str], int] = {}  # bytes of a message, by kind and run, since all was sent
        self._room = asyncio.Event()
        self._handler = asyncio.current_task()

    def send(self, message: pb.ServerMessage) -> None:
        """Queue a message. A client that leaves too much unread is hung up on."""
        if self.ending is not None:
            return
        data, kind = message.SerializeToString(), message.WhichOneof("kind")
        if kind in ("run", "question", "ended"):  # what the coordinator says by itself, and says again
            which = kind, getattr(message, kind).run
            self._largest[which] = max(self._largest.get(which, 0), len(data))
        allowed = sum(self._largest.values()) + _SPARE
        if self._unsent.qsize() >= _MOST_WAITING or self._waiting + len(data) > allowed:
            self.end("The client does not read.", grpc.StatusCode.UNAVAILABLE)
            return
        self._waiting += len(data)
        self._unsent.put_nowait(data)

    def end(self, why: str, code: grpc.StatusCode = grpc.StatusCode.ABORTED) -> None:
        """Hang up, once."""
        if self.ending is not None:
            return
        self.ending, self.code = why, code
        self._unsent = asyncio.Queue()  # who does not read may keep the call for a while, not the memory
        if self._handler is not None:
            self._handler.cancel()

    async def pump(self, context: Context) -> None:
        """Send what waits, for as long as the conversation lasts."""
        with suppress(Exception):  # a write fails when the client has gone, of which the reader hears as well
            while True:
                data = await self._unsent.get()
                await context.write(data)
                self._waiting -= len(data)
                if not self._waiting:
                    self._largest.clear()
                if self._unsent.qsize() < MOST_UNSENT:
                    self._room.set()

    async def room(self) -> None:
        """Wait until the client has read most of what it was sent."""
        while self._unsent.qsize() >= MOST_UNSENT:
            self._room.clear()
            await self._room.wait()


class ClientPlane:
    """The two methods of the client plane, on raw bytes."""

    def __init__(self, manager: Manager, *, plaintext: bool) -> None:
        self._manager, self._plaintext = manager, plaintext

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
        except QuorateError as error:
            _log.warning("refused an enrolment: %s", error)
            await _refuse(context, grpc.StatusCode.FAILED_PRECONDITION, "This client cannot be enrolled here.")
        return pb.EnrolReply(user=user).SerializeToString()

    async def work(self, requests: AsyncIterator[bytes], context: Context) -> None:
        """Hello, then announcements, consents, questions, answers and receipts until either side leaves."""
        try:
            async with asyncio.timeout(_GREETING_SECONDS):
                user = await self._greeted(requests, context)
        except TimeoutError:
            words = f"Expected a hello within {_GREETING_SECONDS:g} seconds."
            await _refuse(context, grpc.StatusCode.DEADLINE_EXCEEDED, words)
        conversation, rooms = Conversation(user), self._manager.rooms
        pump = asyncio.create_task(conversation.pump(context))
        rooms.enter(conversation)
        try:
            async for data in requests:
                limit = max(8 * rooms.longest_answer(user) + _AROUND_AN_ANSWER, _LONGEST_SMALL)
                self._hear(conversation, await _parsed(data, limit, context))
                await conversation.room()
        except asyncio.CancelledError:
            if conversation.ending is None:
                raise
            rooms.leave(conversation)
            pump.cancel()
            await asyncio.wait({pump})
            await _hang_up(context, conversation)
        finally:
            rooms.leave(conversation)
            pump.cancel()

    async def _greeted(self, requests: AsyncIterator[bytes], context: Context) -> int:
        """The user that a conversation is with, after its hello."""
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
        return user

    def _hear(self, conversation: Conversation, message: pb.ClientMessage) -> None:
        kind = message.WhichOneof("kind")
        if kind == "answer":
            answer = message.answer
            verdict = self._manager.rooms.answer(conversation.user, answer)
            receipt = pb.Receipt(run=answer.run, round=answer.round, verdict=verdict)
            conversation.send(pb.ServerMessage(receipt=receipt))
        elif kind == "consent":
            self._manager.rooms.consent(conversation, message.consent)

    async def _identity(self, context: Context) -> tuple[str, str]:
        """Fingerprint and group of whoever calls."""
        found = security.identity(
            context.auth_context(), tuple(context.invocation_metadata()), plaintext=self._plaintext
        )
        if found is None:
            await _refuse(context, grpc.StatusCode.UNAUTHENTICATED, "Expected a client certificate.")
        return found


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
        async with asyncio.timeout(_PARTING_SECONDS):
            await context.abort(conversation.code, conversation.ending)
    except grpc.aio.AbortError:
        raise
    except Exception as error:
        _log.debug("user %d was not told %r: %r", conversation.user, conversation.ending, error)


async def _refuse(context: Context, code: grpc.StatusCode, words: str) -> NoReturn:
    await context.abort(code, words)
    raise AssertionError  # abort has raised
