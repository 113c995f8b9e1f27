"""What a family of processes uses, known by a variable in the environment that all inherit: Linux only."""

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_ALL_THREADS = 2  # the clock of another process, as clock_getcpuclockid(3) makes it: exact, where stat counts ticks


VARIABLE = "QUORON_BENCHMARK"


def members(mark: str) -> Iterator[Path]:
    """Folders in /proc of the processes that were started with VARIABLE=mark, and of their descendants."""
    wanted = f"{VARIABLE}={mark}".encode()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                if wanted in (folder / "environ").read_bytes().split(b"\0"):
                    yield folder


def cpu_seconds(mark: str) -> float:
    """Of all of them, with those of their children who have ended."""
    return sum(map(cpu, members(mark)))


def memory(mark: str) -> float:
    """Of all of them now, MiB; what several share counts once."""
    return sum(map(mebibytes, members(mark)))


def cpu(folder: Path) -> float:
    """Of a process, with its children who have ended."""
    with suppress(OSError):
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        ended = sum(map(int, fields[13:15])) / _TICKS
        return ended + time.clock_gettime((~int(folder.name) << 3) | _ALL_THREADS)
    return 0.0


def mebibytes(folder: Path) -> float:
    """Of a process now, with its share of the memory that it shares."""
    with suppress(OSError):
        found = re.search(r"^Pss:\s+(\d+) kB", (folder / "smaps_rollup").read_text(), flags=re.MULTILINE)
        return int(found[1]) / 1024 if found else 0.0
    return 0.0
