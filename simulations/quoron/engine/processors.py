"""What this machine has for a process: processors, memory, ports."""

import os
import secrets
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

PORTS = range(10_000, 32_000)  # below those that a system gives to processes that ask for any


def free_ports(number: int) -> tuple[int, ...]:
    """Return different free ports of the loopback interface, below those that a system assigns."""
    ports: list[int] = []
    with ExitStack() as sockets:
        while len(ports) < number:
            port, listener = secrets.choice(PORTS), sockets.enter_context(socket.socket())
            with suppress(OSError):
                listener.bind(("127.0.0.1", port))
                ports.append(port)
    return tuple(ports)


def processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_memory(root: Path = Path("/")) -> int:
    """Bytes that the system, and every control group that this process is in, would still give, as far as they say so.

    What can be swapped out counts. `root` is where the system tells of itself.
    """
    limits = []
    with suppress(OSError, KeyError, ValueError):
        fields = dict(line.split(":", 1) for line in (root / "proc/meminfo").read_text().splitlines())
        limits.append(1024 * sum(int(fields[name].split()[0]) for name in ("MemAvailable", "SwapFree")))
    with suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, kinds, path = line.split(":", 2)
            if not kinds:  # of version 2, which has one hierarchy
                limits += _group_memory(root / "sys/fs/cgroup", path.strip("/"))
    with suppress(AttributeError, ValueError, OSError):
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return max(0, min(limits, default=1 << 62))


def _group_memory(mounted: Path, path: str) -> list[int]:
    """What a control group and those above it would give, as far as they are seen: a container sees its own as root."""
    limits, group = [], mounted / path
    while True:
        with suppress(OSError, KeyError, ValueError):  # "max" is no number: no limit
            stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            used = int((group / "memory.current").read_text()) - int(stat["inactive_file"])  # files make way
            limits.append(int((group / "memory.max").read_text()) - used)
        if group == mounted:
            return limits
        group = group.parent
