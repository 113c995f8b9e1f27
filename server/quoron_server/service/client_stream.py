"""Outbound messages: the queue of one client's stream, and their bytes over all streams.

    backlog = Backlog()
    await backlog.wait_for_space(timeout=15)         # before a large message that the client did not request
    stream.send(message)

A message takes memory from `send` until the transport has accepted it, which it does as fast as the client reads. A
client that does not read loses the round. Its stream is ended at once if more waits for it than a reading client ever
leaves, and otherwise when other clients have waited long enough for its memory. Later rounds ask it last, so that it
can delay the others only once. The transport keeps a message that it has begun to send until the client reads it or
the connection ends: until then that client gets no new stream.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import grpc

from quoron_client.protocol import wire
from quoron_protos.v1 import federation_pb2 as pb

MOST_BYTES = 256 << 20  # that wait, over all streams; one message more while it is being added
MAX_UNSENT = 64  # messages to a client that does not read; beyond them its messages are not read either
_MAX_WAITING = 8 * MAX_UNSENT  # beyond them the stream ends; more than a reconnected client is sent at once
_SPARE = 1 << 20  # bytes that wait, beyond one message of each kind and run
_CLOSING_SECONDS = 30.0  # for a client to read messages in transit, before the status of the end
_SLOW_CLOSING_SECONDS = 1.0  # for a client whose stream is ended because it does not read
_QUESTION = pb.ServerMessage.QUESTION_FIELD_NUMBER << 3 | 2  # its tag: a field of bytes
Context = Any  # grpc.aio.ServicerContext[bytes, bytes]


def packets(message: pb.ServerMessage, body: wire.Body | None) -> Iterator[bytes]:
    """Yield the encoded messages of a message, for a question with its `body`: one, or several chunks.

    The body is not parsed, and is copied one chunk at a time.
    """
    if body is None:
        yield message.SerializeToString()
    elif body.follows is None:
        head = message.question.SerializeToString()
        yield b"".join((bytes([_QUESTION]), _varint(len(head) + len(body.data)), head, body.data))
    else:
        message.question.follows.CopyFrom(body.follows)
        yield message.SerializeToString()
        for part in wire.chunks(body.data):
            yield pb.ServerMessage(part=part).SerializeToString()


def _length(message: pb.ServerMessage, body: wire.Body | None) -> int:
    """Return the bytes of a message if it were sent as one."""
    if body is None:
        return message.ByteSize()
    inner = message.question.ByteSize() + len(body.data)
    return 1 + len(_varint(inner)) + inner


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])


class Backlog:
    """Bytes that wait to be sent, and the tasks that wait for there to be fewer."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self.most = most
        self.bytes = 0
        self.peak = 0  # the most so far
        self.slow: dict[int, float] = {}  # loop time at which a user's stream was last ended because it did not read
        self._since: dict[ClientStream, float] = {}  # loop time at which the transport began to accept a message
        self._unread: set[ClientStream] = set()  # ended during a write that the transport has not finished
        self._queue: deque[asyncio.Future[None]] = deque()

    async def wait_for_space(self, timeout: float) -> None:
        """Wait until a message may be added, first come first served.

        After `timeout` seconds, end the streams of the clients that have not read a message for as long.
        """
        while self.bytes >= self.most:
            turn = asyncio.get_running_loop().create_future()
            self._queue.append(turn)
            try:
                async with asyncio.timeout(timeout):
                    await turn
            except TimeoutError:
                with suppress(ValueError):  # its turn came at the last moment
                    self._queue.remove(turn)
                self._end_slow(asyncio.get_running_loop().time() - timeout)
            else:
                asyncio.get_running_loop().call_soon(self._next)  # after what this one adds

    def grew(self, size: int) -> None:
        """Add bytes that wait."""
        self.bytes += size
        self.peak = max(self.peak, self.bytes)

    def shrank(self, size: int) -> None:
        """Remove bytes that wait, and let the next task go on."""
        self.bytes -= size
        self._next()

    def unread(self, user: int) -> bool:
        """Return whether an ended stream of `user` still takes memory."""
        return any(stream.user == user for stream in self._unread)

    def left(self, stream: "ClientStream") -> None:
        """Note a stream that was ended during a write."""
        self._unread.add(stream)

    def writing(self, stream: "ClientStream", now: float) -> None:
        """Note that at loop time `now` the transport began to accept a message."""
        self._since[stream] = now

    def written(self, stream: "ClientStream") -> None:
        """Note that the transport has accepted the message, or never will."""
        self._since.pop(stream, None)
        self._unread.discard(stream)

    def _next(self) -> None:
        while self._queue and self.bytes < self.most:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def _end_slow(self, before: float) -> None:
        for stream in [stream for stream, since in self._since.items() if since <= before]:
            stream.end_slow()


class ClientStream:
    """The stream of one connected client: its outbound queue, and its end."""

    def __init__(self, user: int, backlog: Backlog) -> None:
        self.user = user
        self.ending: str | None = None  # why the coordinator ends it
        self.code = grpc.StatusCode.ABORTED  # with which it does
        self.closing_seconds = _CLOSING_SECONDS
        self._backlog = backlog
        self._loop = asyncio.get_running_loop()  # kept: each call asks the system for the process id
        self._unsent: deque[tuple[pb.ServerMessage, wire.Body | None, int]] = deque()
        self._news: asyncio.Future[None] | None = None  # set when a message is queued
        self._waiting = 0  # bytes of these, and of the message that is being written
        self._writing = 0  # bytes of the message that is being written
        self._chunked_run: str | None = None  # the run whose question is being sent in chunks
        self._largest: dict[tuple[str, str], int] = {}  # bytes of a message, by kind and run, since all was sent
        self._space = asyncio.Event()
        self._handler = asyncio.current_task()
        self._pump: asyncio.Task[None] | None = None

    def send(self, message: pb.ServerMessage, body: wire.Body | None = None) -> int:
        """Queue a message; return its bytes, 0 if it will not be sent. Ends the stream if too much is unread.

        `body` is the end of a question, shared by many clients and never copied: one in chunks counts as one chunk.
        """
        if self.ending is not None:
            return 0
        kind, length = message.WhichOneof("kind"), _length(message, body)
        size = length if body is None or body.follows is None else wire.MOST + wire.BESIDE
        if kind in ("run", "question", "ended"):  # which the coordinator sends without a request, and repeats
            which = kind, getattr(message, kind).run
            self._largest[which] = max(self._largest.get(which, 0), size)
        allowed = sum(self._largest.values()) + _SPARE
        if len(self._unsent) >= _MAX_WAITING or self._waiting + size > allowed:
            self.end_slow()
            return 0
        self._waiting += size
        self._backlog.grew(size)
        self._unsent.append((message, body, size))
        if self._news is not None and not self._news.done():
            self._news.set_result(None)
        return length

    def over(self, run: str) -> None:
        """Drop the unsent chunks of a question whose round is over.

        A stream that has sent some of them ends, as chunks are sent all or none; the answer would be too late.
        """
        if self._chunked_run == run:
            self.end_slow()
            return
        waiting = list(self._unsent)
        self._unsent.clear()
        for item in waiting:
            message, body, size = item
            if body is not None and body.follows is not None and message.question.run == run:
                self._less(size)
            else:
                self._unsent.append(item)

    def end_slow(self) -> None:
        """End the stream of a client that does not read; it may reconnect. One that is closing ends now."""
        self._backlog.slow[self.user] = self._loop.time()
        if self.ending is not None and self._handler is not None:
            self._handler.cancel()  # while it is closing
        self.closing_seconds = _SLOW_CLOSING_SECONDS
        self.end("The client does not read.", grpc.StatusCode.UNAVAILABLE)

    def end(self, why: str, code: grpc.StatusCode = grpc.StatusCode.ABORTED) -> None:
        """End the stream, once."""
        if self.stop(why, code) and self._handler is not None:
            self._handler.cancel()

    def stop(self, why: str, code: grpc.StatusCode) -> bool:
        """Drop the queue but for the message that is being written; return whether the stream was open."""
        if self.ending is not None:
            return False
        self.ending, self.code = why, code
        self._unsent.clear()  # a client that does not read keeps its call for a while, not the memory
        self._less(self._waiting - self._writing)
        if self._writing:
            self._backlog.left(self)
        return True

    async def quiet(self) -> None:
        """After `stop`, wait until nothing is being written: a status is sent after the last message."""
        if self._pump is not None:
            if not self._writing:
                self._pump.cancel()
            await asyncio.wait({self._pump})

    def start(self, context: Context) -> None:
        """Begin to send the queue, for as long as the stream lasts."""
        self._pump = asyncio.create_task(self._send_all(context))

    def close(self) -> None:
        """Drop the queue: the call is over."""
        if self._pump is not None and not self._writing:
            self._pump.cancel()
        self._less(self._waiting)

    async def _send_all(self, context: Context) -> None:
        try:
            with suppress(Exception):  # a write fails when the client has gone, which the reader handles
                while self.ending is None:
                    while not self._unsent:
                        self._news = self._loop.create_future()
                        await self._news
                    message, body, size = self._unsent.popleft()
                    self._chunked_run = message.question.run if body is not None and body.follows is not None else None
                    for data in packets(message, body):
                        self._writing = min(size, len(data))
                        self._backlog.writing(self, self._loop.time())
                        await context.write(data)
                        self._backlog.written(self)
                        self._writing = 0
                        if self.ending is not None:
                            break
                    self._chunked_run = None
                    self._less(size)
                    del message, body, data
                    if not self._waiting:
                        self._largest.clear()
                    if len(self._unsent) < MAX_UNSENT:
                        self._space.set()
        finally:
            self._writing = 0
            self._backlog.written(self)

    async def wait_for_space(self) -> None:
        """Wait until the client has read most of what it was sent."""
        while len(self._unsent) >= MAX_UNSENT:
            self._space.clear()
            await self._space.wait()

    def _less(self, size: int) -> None:
        size = min(size, self._waiting)
        self._waiting -= size
        self._backlog.shrank(size)
