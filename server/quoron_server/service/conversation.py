"""What waits to be sent: for one client, and for all of them together.

    backlog = Backlog()
    await backlog.wait_for_space(patience=15)         # before something large is said that nobody asked for
    conversation.send(message)

A message is held from `send` until the transport has taken it, which it does as fast as the client reads. A client that
does not read loses the round: its stream is ended, at once when more waits for it than a client that reads would ever
leave, and otherwise when others have waited long enough for its memory. From then on it is asked after the others, so
that one client can keep them waiting only once. What the transport has begun to take it keeps until the client reads it
or its connection ends: until then nothing new is said to that client.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import grpc

from quoron_client.protocol import wire
from quoron_protos.v1 import federation_pb2 as pb

MOST_BYTES = 256 << 20  # that wait, over all conversations; one message more while it is being added
MOST_UNSENT = 64  # messages to a client that does not read; then it is not read either
_MOST_WAITING = 8 * MOST_UNSENT  # then the conversation ends; more than a client that comes back is sent at once
_SPARE = 1 << 20  # bytes that wait, beyond one message of each kind and run
_PARTING_SECONDS = 30.0  # for a client to read what is on its way before it can hear of the end
_LATE_PARTING_SECONDS = 1.0  # for one that is hung up on because it does not read
_QUESTION = pb.ServerMessage.QUESTION_FIELD_NUMBER << 3 | 2  # its tag: a field of bytes
Context = Any  # grpc.aio.ServicerContext[bytes, bytes]


def packets(message: pb.ServerMessage, body: wire.Body | None) -> Iterator[bytes]:
    """What is written for a message, a question with its `body`: one message, as protobuf would write it, or several.

    The body is not parsed, and of one in parts no more is copied than is being written.
    """
    if body is None:
        yield message.SerializeToString()
    elif body.follows is None:
        head = message.question.SerializeToString()
        yield b"".join((bytes([_QUESTION]), _varint(len(head) + len(body.data)), head, body.data))
    else:
        message.question.follows.CopyFrom(body.follows)
        yield message.SerializeToString()
        for part in wire.parts(body.data):
            yield pb.ServerMessage(part=part).SerializeToString()


def _length(message: pb.ServerMessage, body: wire.Body | None) -> int:
    """Bytes of a message as one, whether it is."""
    if body is None:
        return message.ByteSize()
    inner = message.question.ByteSize() + len(body.data)
    return 1 + len(_varint(inner)) + inner


def _varint(number: int) -> bytes:
    said = bytearray()
    while number > 0x7F:
        said.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*said, number])


class Backlog:
    """Bytes that wait to be sent, and those who wait for there to be fewer."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self.most = most
        self.bytes = 0
        self.peak = 0  # the most that there were
        self.slow: dict[int, float] = {}  # loop time at which a user was last hung up on, because it did not read
        self._since: dict[Conversation, float] = {}  # loop time at which the transport began to take a message
        self._unread: set[Conversation] = set()  # ended in the middle of a write that the transport has not done with
        self._queue: deque[asyncio.Future[None]] = deque()

    async def wait_for_space(self, patience: float) -> None:
        """Wait until something may be added, in order of coming.

        After `patience` seconds, end the streams of the clients that have not read a message for as long.
        """
        while self.bytes >= self.most:
            turn = asyncio.get_running_loop().create_future()
            self._queue.append(turn)
            try:
                async with asyncio.timeout(patience):
                    await turn
            except TimeoutError:
                with suppress(ValueError):  # its turn came at the last moment
                    self._queue.remove(turn)
                self._hang_up(asyncio.get_running_loop().time() - patience)
            else:
                asyncio.get_running_loop().call_soon(self._next)  # after what this one adds

    def grew(self, size: int) -> None:
        """So many bytes more."""
        self.bytes += size
        self.peak = max(self.peak, self.bytes)

    def shrank(self, size: int) -> None:
        """So many bytes less."""
        self.bytes -= size
        self._next()

    def unread(self, user: int) -> bool:
        """Whether an ended conversation with `user` still takes memory."""
        return any(each.user == user for each in self._unread)

    def left(self, conversation: "Conversation") -> None:
        """A conversation was ended in the middle of a write."""
        self._unread.add(conversation)

    def writing(self, conversation: "Conversation", now: float) -> None:
        """At loop time `now` the transport has begun to take a message."""
        self._since[conversation] = now

    def written(self, conversation: "Conversation") -> None:
        """It has taken it, or never will."""
        self._since.pop(conversation, None)
        self._unread.discard(conversation)

    def _next(self) -> None:
        while self._queue and self.bytes < self.most:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def _hang_up(self, before: float) -> None:
        for conversation in [each for each, since in self._since.items() if since <= before]:
            conversation.hang_up()


class Conversation:
    """One connected client: what waits to be sent, and a way to end it."""

    def __init__(self, user: int, backlog: Backlog) -> None:
        self.user = user
        self.ending: str | None = None  # why the coordinator ends it
        self.code = grpc.StatusCode.ABORTED  # with which it does
        self.parting = _PARTING_SECONDS
        self._backlog = backlog
        self._loop = asyncio.get_running_loop()  # who asks for it again asks the system for the process's number
        self._unsent: deque[tuple[pb.ServerMessage, wire.Body | None, int]] = deque()
        self._news: asyncio.Future[None] | None = None  # of who waits for something to say
        self._waiting = 0  # bytes of these, and of what is being written
        self._writing = 0  # bytes of the latter
        self._saying: str | None = None  # the run whose question is being said in parts
        self._largest: dict[tuple[str, str], int] = {}  # bytes of a message, by kind and run, since all was sent
        self._space = asyncio.Event()
        self._handler = asyncio.current_task()
        self._pump: asyncio.Task[None] | None = None

    def send(self, message: pb.ServerMessage, body: wire.Body | None = None) -> int:
        """Queue a message: its bytes, 0 if it will not be sent. A client that leaves too much unread is hung up on.

        `body` is the end of a question, which many have in common and nobody holds twice: of one that goes in parts
        what waits is counted as one part.
        """
        if self.ending is not None:
            return 0
        kind, length = message.WhichOneof("kind"), _length(message, body)
        size = length if body is None or body.follows is None else wire.MOST + wire.BESIDE
        if kind in ("run", "question", "ended"):  # what the coordinator says by itself, and says again
            which = kind, getattr(message, kind).run
            self._largest[which] = max(self._largest.get(which, 0), size)
        allowed = sum(self._largest.values()) + _SPARE
        if len(self._unsent) >= _MOST_WAITING or self._waiting + size > allowed:
            self.hang_up()
            return 0
        self._waiting += size
        self._backlog.grew(size)
        self._unsent.append((message, body, size))
        if self._news is not None and not self._news.done():
            self._news.set_result(None)
        return length

    def over(self, run: str) -> None:
        """Drop what is left of a question of a run whose round is over, if that goes in parts.

        A client in the middle of it is cut off, as parts are all said or none; its answer would come too late.
        """
        if self._saying == run:
            self.hang_up()
            return
        waiting = list(self._unsent)
        self._unsent.clear()
        for item in waiting:
            message, body, size = item
            if body is not None and body.follows is not None and message.question.run == run:
                self._less(size)
            else:
                self._unsent.append(item)

    def hang_up(self) -> None:
        """End with a client that does not read; it may come back. One that is leaving already leaves now."""
        self._backlog.slow[self.user] = self._loop.time()
        if self.ending is not None and self._handler is not None:
            self._handler.cancel()  # from its parting
        self.parting = _LATE_PARTING_SECONDS
        self.end("The client does not read.", grpc.StatusCode.UNAVAILABLE)

    def end(self, why: str, code: grpc.StatusCode = grpc.StatusCode.ABORTED) -> None:
        """Hang up, once."""
        if self.stop(why, code) and self._handler is not None:
            self._handler.cancel()

    def stop(self, why: str, code: grpc.StatusCode) -> bool:
        """Say nothing more; what is being written is all that is left. Whether this is new."""
        if self.ending is not None:
            return False
        self.ending, self.code = why, code
        self._unsent.clear()  # who does not read may keep the call for a while, not the memory
        self._less(self._waiting - self._writing)
        if self._writing:
            self._backlog.left(self)
        return True

    async def quiet(self) -> None:
        """After `stop`, wait until nothing is being written: a call is given its status after its last message."""
        if self._pump is not None:
            if not self._writing:
                self._pump.cancel()
            await asyncio.wait({self._pump})

    def start(self, context: Context) -> None:
        """Send what waits, for as long as the conversation lasts."""
        self._pump = asyncio.create_task(self._send_all(context))

    def close(self) -> None:
        """The call is over. Nobody waits any more for what the transport may still hold."""
        if self._pump is not None and not self._writing:
            self._pump.cancel()
        self._less(self._waiting)

    async def _send_all(self, context: Context) -> None:
        try:
            with suppress(Exception):  # a write fails when the client has gone, of which the reader hears as well
                while self.ending is None:
                    while not self._unsent:
                        self._news = self._loop.create_future()
                        await self._news
                    message, body, size = self._unsent.popleft()
                    self._saying = message.question.run if body is not None and body.follows is not None else None
                    for data in packets(message, body):
                        self._writing = min(size, len(data))
                        self._backlog.writing(self, self._loop.time())
                        await context.write(data)
                        self._backlog.written(self)
                        self._writing = 0
                        if self.ending is not None:
                            break
                    self._saying = None
                    self._less(size)
                    del message, body, data
                    if not self._waiting:
                        self._largest.clear()
                    if len(self._unsent) < MOST_UNSENT:
                        self._space.set()
        finally:
            self._writing = 0
            self._backlog.written(self)

    async def wait_for_space(self) -> None:
        """Wait until the client has read most of what it was sent."""
        while len(self._unsent) >= MOST_UNSENT:
            self._space.clear()
            await self._space.wait()

    def _less(self, size: int) -> None:
        size = min(size, self._waiting)
        self._waiting -= size
        self._backlog.shrank(size)
