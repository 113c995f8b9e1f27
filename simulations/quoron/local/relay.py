"""A client's own link: a relay on the loopback interface with a delay each way, jitter, and so many bits a second.

    async with Relay(link, "127.0.0.1:7443") as relay:
        ...                                       # relay.address leads there, slowly

What passes is TLS, which the relay neither reads nor ends. It holds back at most `WINDOW` bytes in each direction.
"""

import asyncio
import random
from contextlib import suppress

from quoron.network import Link

WINDOW = 1 << 20
_AT_ONCE = 1 << 14


class Relay:
    """An async context manager; connections that are open when it is left are ended."""

    def __init__(self, link: Link, target: str) -> None:
        """To `target`, host:port, over a link's rtt, jitter, up and down."""
        self._link = link
        self._host, _, self._port = target.rpartition(":")
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()
        self.address = ""

    async def __aenter__(self) -> "Relay":
        self._server = await asyncio.start_server(self._begin, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    def _begin(self, own: asyncio.StreamReader, to_own: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._relay(own, to_own))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _relay(self, own: asyncio.StreamReader, to_own: asyncio.StreamWriter) -> None:
        sinks = [to_own]
        try:
            far, to_far = await asyncio.open_connection(self._host, int(self._port))
            sinks.append(to_far)
            link = self._link
            up = asyncio.ensure_future(_carry(own, to_far, link.rtt / 2, link.jitter, link.up))
            down = asyncio.ensure_future(_carry(far, to_own, link.rtt / 2, 0.0, link.down))
            try:
                await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
            finally:
                up.cancel(), down.cancel()
                await asyncio.gather(up, down, return_exceptions=True)
        except OSError:  # nobody is there: the client's connection ends, and it tries again
            pass
        finally:
            for sink in sinks:
                sink.close()


async def _carry(
    source: asyncio.StreamReader, sink: asyncio.StreamWriter, delay: float, jitter: float, rate: float
) -> None:
    """One direction, in order: each piece leaves when the line is free, and comes so much later."""
    clock = asyncio.get_running_loop().time
    queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(WINDOW // _AT_ONCE)

    async def deliver() -> None:
        while (piece := await queue.get())[1]:
            if (left := piece[0] - clock()) > 0:
                await asyncio.sleep(left)
            sink.write(piece[1])
            await sink.drain()

    delivering = asyncio.ensure_future(deliver())
    free = due = 0.0
    try:
        while data := await source.read(_AT_ONCE):
            free = max(free, clock()) + 8 * len(data) / rate
            late = delay + (random.expovariate(1 / jitter) if jitter else 0.0)
            due = max(due, free + late)
            await queue.put((due, data))
        await queue.put((0.0, b""))
        await delivering
    except OSError:
        pass
    finally:
        delivering.cancel()
        with suppress(OSError, asyncio.CancelledError):
            await delivering
