"""Ports of this machine's own, for processes that it starts."""

import secrets
import socket
from contextlib import ExitStack, suppress

PORTS = range(10_000, 32_000)  # below those that a system gives to whoever asks for any


def free_port() -> int:
    """A port of the loopback interface that nobody listens on, nor is given by the system until somebody does."""
    return free_ports(1)[0]


def free_ports(number: int) -> tuple[int, ...]:
    """So many of them, no two alike."""
    found: list[int] = []
    with ExitStack() as held:
        while len(found) < number:
            port, each = secrets.choice(PORTS), held.enter_context(socket.socket())
            with suppress(OSError):
                each.bind(("127.0.0.1", port))
                found.append(port)
    return tuple(found)
