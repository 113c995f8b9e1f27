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
_log = logging.getLogger("quorate")
Context = Any  # grpc.aio.ServicerContext[bytes, bytes]


class Conversation:
    """One connected client: what waits to be sent, and a way to end it."""

    def __init__(self, user: int) -> None:
        self.user = user
        self.ending: str | None = None  # why the coordinator ends it
        self._unsent: asyncio.Queue[bytes] = asyncio.Queue()
        self._room = asyncio.Event()
        self._handler = asyncio.current_task()

    def send(self, message: pb.ServerMessage) -> None:
        """Queue a message."""
        self._unsent.put_nowait(message.SerializeToString())

    def end(self, why: str) -> None:
        """Hang up."""
        self.ending = why
        if self._handler is not None:
            self._handler.cancel()

    async def pump(self, context: Context) -> None:
        """Send what waits, for as long as the conversation lasts."""
        with suppress(Exception):  # a write fails when the client has gone, of which the reader hears as well
            while True:
                await context.write(await self._unsent.get())
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
        conversation, rooms = Conversation(await self._greeted(requests, context)), self._manager.rooms
        pump = asyncio.create_task(conversation.pump(context))
        rooms.enter(conversation)
        try:
            async for data in requests:
                self._hear(conversation, await _parsed(data, context))
                await conversation.room()
        except asyncio.CancelledError:
            if conversation.ending is None:
                raise
            await _refuse(context, grpc.StatusCode.ABORTED, conversation.ending)
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
        first = await _parsed(await anext(requests, b""), context)
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


async def _parsed(data: bytes, context: Context) -> pb.ClientMessage:
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


async def _refuse(context: Context, code: grpc.StatusCode, words: str) -> NoReturn:
    await context.abort(code, words)
    raise AssertionError  # abort has raised
