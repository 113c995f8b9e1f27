"""At which bytes a full disk makes a difference: where writes of a program begin and end, as strace saw them.

    for trace in traces(log, "/tmp/place"):
        trace.room, trace.borders

A disk that is full at byte L (RLIMIT_FSIZE) lets a write of the bytes [a, b) of a file be whole where L >= b, refuses
it where L <= a, and cuts it to [a, L) in between. So where none of the writes that a program tries with room for L
begins or ends in (L, L'], it does the same with room for L', but for how long the piece is that was cut: by induction
each of its calls has the same arguments and the same result, or is cut and then refused. It takes for granted that the
program does not read that piece, and goes by nothing else that changes from life to life.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

UNFORESEEN = ("fallocate", "writev", "pwritev", "pwritev2", "copy_file_range", "sendfile")
CALLS = ",".join(("prlimit64", "openat", "lseek", "write", "pwrite64", "ftruncate", *UNFORESEEN))
STRACE = ("strace", "-f", "-y", "-s", "0", "-e", f"trace={CALLS}", "-o")
WHOLE = 1 << 40  # room for all
SHORT = 32  # bytes of a cut piece that are tried one by one
_LINE = re.compile(r"(\d+)\s+(?:<\.\.\. )?(\w+)(?: resumed>|\()(.*)")
_RESULT = re.compile(r"(.*)\)\s+= (-?\d+)")


@dataclass(slots=True)
class Trace:
    """What a program tried to write while no file might grow beyond so many bytes."""

    room: int
    writes: list[tuple[int, int]] = field(default_factory=list)  # first byte and the one after the last, in order

    @property
    def borders(self) -> set[int]:
        """Where one of them begins or ends."""
        return {border for write in self.writes for border in write}

    @property
    def granted(self) -> list[tuple[int, int]]:
        """Those before the first that there was no room for."""
        refused = next((at for at, (_, end) in enumerate(self.writes) if end > self.room), len(self.writes))
        return self.writes[:refused]


@dataclass(slots=True)
class Swept:
    """Lives of a program by their room, and the rooms from which on other writes are whole, cut or refused."""

    lives: dict[int, dict[str, Any]] = field(default_factory=dict)
    borders: set[int] = field(default_factory=lambda: {0, WHOLE})
    writes: list[tuple[int, int]] = field(default_factory=list)  # of the life with room for all, which is the first

    def add(self, life: dict[str, Any], trace: Trace) -> None:
        """A life with room up to a border."""
        if trace.room == WHOLE:
            self.writes = trace.writes
        assert trace.room == life["room"]
        assert trace.granted == self.writes[: len(trace.granted)]  # lives are alike until a write is refused
        self.borders |= {each for each in trace.borders if each <= self.most}
        self.lives[trace.room] = life

    @property
    def most(self) -> int:
        """Bytes from which on there is room for all."""
        return max(end for _, end in self.writes)

    @property
    def untried(self) -> list[int]:
        """Borders, the largest first."""
        return sorted(self.borders - self.lives.keys(), reverse=True)

    @property
    def stretches(self) -> list[range]:
        """Rooms between two borders, which differ in how long a cut piece is."""
        return [range(first + 1, last) for first, last in pairwise(sorted(self.borders - {WHOLE}))]

    @property
    def unlike(self) -> list[range]:
        """Stretches of which a life, or that of the border before, went otherwise than another."""
        return [each for each in self.stretches if len({str(life["seen"]) for life in self._of(each)}) > 1]

    def _of(self, stretch: range) -> list[dict[str, Any]]:
        return [self.lives[room] for room in (stretch.start - 1, *stretch) if room in self.lives]


def some(stretch: range) -> list[int]:
    """All where they are few, else the first, the one in the middle and the last."""
    return list(stretch) if len(stretch) < SHORT else [stretch[0], stretch[len(stretch) // 2], stretch[-1]]


def traces(log: Path, place: str) -> Iterator[Trace]:
    """What was written below a folder, from each call that limits files to the one that lifts the limit."""
    trace: Trace | None = None
    ends: dict[str, int] = {}
    for name, given, result in _calls(log):
        if name == "prlimit64":
            room = _room(given)
            if trace is not None and room not in (None, trace.room):
                yield trace
                trace = None
            if room is not None and room <= WHOLE and trace is None:
                trace = Trace(room)
        elif name == "openat":
            assert "O_APPEND" not in given, given
            ends[str(result)] = 0
        elif place in given:
            assert name not in UNFORESEEN, f"{name}({given})"
            file, numbers = given.partition("<")[0], [int(each) for each in re.findall(r", (\d+)", given)]
            if name == "lseek":
                ends[file] = result
                continue
            first = ends.get(file, 0) if name == "write" else numbers[-1]
            if name == "write":
                ends[file] = first + max(0, result)
            if trace is not None:
                trace.writes.append((first, first if name == "ftruncate" else first + numbers[0]))
    assert trace is None


def _room(given: str) -> int | None:
    """The limit that a call sets, more than WHOLE where it lifts it; None if it sets none of files."""
    if "RLIMIT_FSIZE, {" not in given:
        return None
    found = re.search(r"RLIMIT_FSIZE, \{rlim_cur=([0-9*]+),", given)
    room = 1
    for factor in found[1].split("*") if found else (2 * WHOLE,):
        room *= int(factor)
    return room


def _calls(log: Path) -> Iterator[tuple[str, str, int]]:
    """Name, arguments and result of each call that has one; one that another thread's interrupts is put together."""
    begun: dict[str, str] = {}
    with log.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            found = _LINE.match(line)
            if found is None:
                continue
            thread, name, rest = found.groups()
            if " <unfinished" in rest:
                begun[thread] = rest.partition(" <unfinished")[0]
                continue
            done = _RESULT.match(begun.pop(thread, "") + rest)
            if done is not None:
                yield name, done[1], int(done[2])
