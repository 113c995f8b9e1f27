"""A port of plain HTTP for those who watch over a coordinator or a helper: /metrics, /healthz, /alarms.yml with rules.

    server = await listen("127.0.0.1:9464", metrics, serving=lambda: True)

It is off unless asked for, and on loopback unless another address is given. What it tells is public, so it asks for no
token; it reads one short request a connection, in a few seconds, of a few connections at a time.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from quoron_privacy.errors import ConfigError

LOOPBACK = "127.0.0.1"
MOST = 16  # connections at a time; others are hung up on
LONGEST = 8 << 10  # bytes of a request
PATIENCE = 5.0  # seconds for one
ALARMS = Path(__file__).with_name("alarms.yml")
_PATHS = "Expected GET /metrics, /healthz or /alarms.yml.\n"
_KIND = {"/metrics": "text/plain; version=0.0.4; charset=utf-8", "/healthz": "text/plain; charset=utf-8"}
_WORDS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


class Told(Protocol):
    """What there is to tell."""

    async def text(self) -> str:
        """All metrics, as they are now."""


def place(address: str) -> tuple[str, int]:
    """Host and port of "[HOST:]PORT"; ConfigError if it is none."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or not port.isascii() or int(port) > 65535 or address.startswith(":"):
        raise ConfigError(f"Expected --metrics as PORT or HOST:PORT, such as 9464, got {address!r}.")
    return host.strip("[]") or LOOPBACK, int(port)


async def listen(address: str, metrics: Told, *, serving: Callable[[], bool], alarms: Path = ALARMS) -> asyncio.Server:
    """A server there; ConfigError if that is no address, or none of this machine's that is free."""
    host, port = place(address)
    here = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal here
        here += 1
        try:
            if here <= MOST:
                with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                    async with asyncio.timeout(PATIENCE):
                        head = await reader.readuntil(b"\r\n\r\n")
                    writer.transport.set_write_buffer_limits(0)  # so that it drains to the last byte
                    writer.write(await _answered(head, metrics, alarms, serving=serving()))
                    async with asyncio.timeout(PATIENCE):
                        await writer.drain()
        finally:
            here -= 1
            writer.transport.abort()  # whoever does not read keeps no file open here

    try:
        return await asyncio.start_server(answer, host, port, limit=LONGEST)
    except OSError as error:
        raise ConfigError(
            f"Cannot listen on {address} for --metrics: {error.strerror or error}. Choose another, or end the process "
            "that listens there."
        ) from None


def address_of(server: asyncio.Server) -> str:
    """Where it listens, with the port that the system gave."""
    host, port = server.sockets[0].getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def _answered(head: bytes, metrics: Told, alarms: Path, *, serving: bool) -> bytes:
    """The whole answer to a request."""
    words = head.partition(b"\r\n")[0].decode("latin-1").split(" ")
    method, path = (words[0], words[1].partition("?")[0]) if len(words) == 3 else ("", "")
    kind = _KIND.get(path, "text/plain; charset=utf-8")
    if not path:
        code, body = 400, _PATHS
    elif method not in ("GET", "HEAD"):
        code, body = 405, "Expected GET.\n"
    elif path == "/metrics":
        code, body = 200, await metrics.text()
    elif path == "/alarms.yml":
        code, body = 200, alarms.read_text(encoding="utf-8")
    elif path == "/healthz":
        code, body = (
            (200, "serving\n")
            if serving
            else (503, "not serving: the database does not answer, or cannot be written\n")
        )
    else:
        code, body = 404, _PATHS
    data = body.encode()
    lines = [f"HTTP/1.1 {code} {_WORDS[code]}", f"Content-Type: {kind}", f"Content-Length: {len(data)}"]
    lines += ["Connection: close", "Cache-Control: no-store", "", ""]
    return "\r\n".join(lines).encode() + (b"" if method == "HEAD" else data)
