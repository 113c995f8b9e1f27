"""What this machine has for a process: processors, memory, ports."""

import os
import secrets
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

PORTS = range(10_000, 32_000)  # below those that a system gives to processes that ask for any


def free_ports(number: int) -> tuple[int, ...]:
    """Return different free ports of the loopback interface, below those that a system assigns."""
    found: list[int] = []
    with ExitStack() as held:
        while len(found) < number:
            port, each = secrets.choice(PORTS), held.enter_context(socket.socket())
            with suppress(OSError):
                each.bind(("127.0.0.1", port))
                found.append(port)
    return tuple(found)


def processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_memory(root: Path = Path("/")) -> int:
    """Bytes that the system, and every control group that this process is in, would still give, as far as they say so.

    What can be swapped out counts. `root` is where the system tells of itself.
    """
    found = []
    with suppress(OSError, KeyError, ValueError):
        said = dict(line.split(":", 1) for line in (root / "proc/meminfo").read_text().splitlines())
        found.append(1024 * sum(int(said[name].split()[0]) for name in ("MemAvailable", "SwapFree")))
    with suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, kinds, path = line.split(":", 2)
            if not kinds:  # of version 2, which has one hierarchy
                found += _left(root / "sys/fs/cgroup", path.strip("/"))
    with suppress(AttributeError, ValueError, OSError):
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return max(0, min(found, default=1 << 62))


def _left(mounted: Path, path: str) -> list[int]:
    """What a control group and those above it would give, as far as they are seen: a container sees its own as root."""
    found, group = [], mounted / path
    while True:
        with suppress(OSError, KeyError, ValueError):  # "max" is no number: no limit
            stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            held = int((group / "memory.current").read_text()) - int(stat["inactive_file"])  # files make way
            found.append(int((group / "memory.max").read_text()) - held)
        if group == mounted:
            return found
        group = group.parent
