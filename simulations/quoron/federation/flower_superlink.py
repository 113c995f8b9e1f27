"""Flower's SuperLink for the runs of one user of this machine: no other user's program gets an answer. Linux.

    python -m quoron.federation.flower_superlink --insecure --simulation --host 127.0.0.1 --port 9000

A SuperLink carries out whatever app it is given, and has no account to log in to. One that we start for a simulation
listens on the loopback interface, where every user of the machine can connect; so it asks the kernel whose the other
end of a connection is. Programs of the same user need no secret: they can read whatever we have.
"""

import os
import socket
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

ESTABLISHED = "01"  # only then a socket has an owner: one that is closed is nobody's, which the kernel writes as root's
TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
MARK = "/quoron"  # answers that this is a SuperLink that asks
Scope = MutableMapping[str, Any]
App = Callable[[Scope, Any, Any], Awaitable[None]]


def gate(app: App) -> App:
    """Return the same for connections of our own user's; HTTP's 403 for others."""

    async def asked(scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await app(scope, receive, send)
        elif owner_of(scope["client"], scope["server"]) != os.getuid():
            await _answer(send, 403)
        elif scope["path"] == MARK:
            await _answer(send, 204)
        else:
            await app(scope, receive, send)

    return asked


def owner_of(client: tuple[str, int] | None, server: tuple[str, int] | None) -> int | None:
    """Return the user whose the client's end of a connection on this machine is; None if the kernel shows none."""
    if client is None or server is None:
        return None
    for table in TABLES:
        try:
            lines = table.read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == ESTABLISHED and (_end(fields[1]), _end(fields[2])) == (client[:2], server[:2]):
                return int(fields[7]) if fields[9] != "0" else None
    return None


def _end(text: str) -> tuple[str, int]:
    """Return an address of the kernel's, in words of four bytes of the machine's order."""
    host, _, port = text.partition(":")
    raw = b"".join(int(host[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(host), 8))
    mapped = raw.removeprefix(bytes(10) + b"\xff\xff")
    family = socket.AF_INET if len(mapped) == 4 else socket.AF_INET6
    return socket.inet_ntop(family, mapped), int(port, 16)


async def _answer(send: Any, status: int) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


def main() -> None:
    """Flower's own program, behind the gate."""
    import uvicorn
    from flwr.superlink.cli.flower_superlink import flower_superlink

    serve: Any = uvicorn.run

    def guarded(app: Any, **settings: Any) -> None:
        # A header that says whom a proxy speaks for would be believed of anybody on this machine.
        serve(gate(app), **settings | {"proxy_headers": False})

    uvicorn.run = guarded
    sys.argv[0] = "flower-superlink"
    flower_superlink()


if __name__ == "__main__":
    main()
