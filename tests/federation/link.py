"""A link between clients and a coordinator that counts what passes, frame by frame."""

import asyncio
import contextlib
from collections import Counter
from dataclasses import dataclass, field

from quoron_protos.v1 import federation_pb2 as pb

PREFACE = 24  # bytes that begin a connection of HTTP/2
DATA = 0
ENROL = 1  # the first call of a connection
TOLD = ("question", "answer", "receipt")


@dataclass
class Messages:
    """Reads one direction of one connection."""

    kind: type[pb.ServerMessage] | type[pb.ClientMessage]
    counted: Counter[str]
    skip: int = 0
    raw: bytearray = field(default_factory=bytearray)
    streams: dict[int, bytearray] = field(default_factory=dict)

    def feed(self, data: bytes) -> None:
        """Count the messages that `data` completes: how many, and their bytes."""
        self.counted["raw"] += len(data)
        self.raw += data
        if self.skip and len(self.raw) >= self.skip:
            del self.raw[: self.skip]
            self.skip = 0
        while not self.skip and len(self.raw) >= 9:
            length = int.from_bytes(self.raw[:3], "big")
            if len(self.raw) < 9 + length:
                return
            if self.raw[3] == DATA:
                assert not self.raw[4] & 8, "padding"
                stream = int.from_bytes(self.raw[5:9], "big")
                if stream != ENROL:
                    self._message(self.streams.setdefault(stream, bytearray()), bytes(self.raw[9 : 9 + length]))
            del self.raw[: 9 + length]

    def _message(self, pending: bytearray, data: bytes) -> None:
        pending += data
        while len(pending) >= 5 and len(pending) >= 5 + (length := int.from_bytes(pending[1:5], "big")):
            assert pending[0] == 0, "compressed"
            kind = self.kind.FromString(bytes(pending[5 : 5 + length])).WhichOneof("kind")
            if kind in TOLD:
                self.counted[kind] += 1
                self.counted[f"{kind} bytes"] += length
            del pending[: 5 + length]


@dataclass
class Link:
    """A proxy on loopback."""

    target: str
    counted: Counter[str] = field(default_factory=Counter)
    address: str = ""

    serving: set[asyncio.Task[None]] = field(default_factory=set)

    @contextlib.asynccontextmanager
    async def running(self):
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            for task in self.serving:
                task.cancel()
            await asyncio.gather(*self.serving, return_exceptions=True)

    def _accept(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        self.serving.add(asyncio.create_task(self._serve(client, to_client)))

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        host, _, port = self.target.rpartition(":")
        server, to_server = await asyncio.open_connection(host, int(port))
        upward = self._pump(client, to_server, Messages(pb.ClientMessage, self.counted, PREFACE))
        downward = self._pump(server, to_client, Messages(pb.ServerMessage, self.counted))
        try:
            await asyncio.gather(upward, downward)
        finally:
            for sink in (to_client, to_server):
                sink.close()
                with contextlib.suppress(OSError):
                    await sink.wait_closed()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, messages: Messages) -> None:
        while data := await source.read(1 << 16):
            messages.feed(data)
            sink.write(data)
        with contextlib.suppress(OSError):
            sink.close()
