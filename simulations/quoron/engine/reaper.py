"""A program, all that it starts and what they write, gone with the parent process, however that ends.

    python -S reaper.py /tmp/quoron-7-a -- flower-superlink --simulation ...

It waits for the end of its own input, which its parent holds and which no death of that keeps open, or for the
program's end, to which it passes on a signal to end. Then it ends, at once, all that the program has started, and
removes the folders. Children of children whose parent is gone become its own, so that none gets away (Linux; elsewhere
it ends the program alone). Nothing of ours is imported: it has to be there before anything that it is for.
"""

import ctypes
import os
import select
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of Linux's prctl
PATIENCE = 60.0  # seconds for what was killed to be gone: a disk that hangs keeps processes
ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)  # by Python, and not by programs


def command(folders: list[Path], program: list[str]) -> list[str]:
    """Return what to start, with a pipe as its input: the reaper of a program."""
    return [sys.executable, "-S", __file__, *map(str, folders), "--", *program]


def main() -> int:
    """Keep to the arguments; the program's own exit code, 0 if it was ended."""
    at = sys.argv.index("--")
    folders, program = sys.argv[1:at], sys.argv[at + 1 :]
    woken, wakes = os.pipe()
    for end in (woken, wakes):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wakes)
    for handled in (*ENDS, signal.SIGCHLD):
        signal.signal(handled, lambda *_: None)
    if PROC.exists():
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    nothing = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]
    child = os.posix_spawn(program[0], program, os.environ, file_actions=nothing, setsigdef=IGNORED)
    code = _until(child, woken)
    gives_up = time.monotonic() + PATIENCE
    while (descendants := _descendants(child)) and time.monotonic() < gives_up:
        for number in descendants:
            with suppress(OSError):
                os.kill(number, signal.SIGKILL)
        _reap()
        time.sleep(0.01)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    return code


def _until(child: int, woken: int) -> int:
    """Whichever comes first; the program's exit code, if it has one."""
    while True:
        ready, *_ = select.select([0, woken], [], [])
        if 0 in ready and not os.read(0, 4096):
            return 0
        signals = os.read(woken, 4096) if woken in ready else b""
        ended = _reap()
        if child in ended:
            return ended[child]
        for number in set(signals) & set(ENDS):
            os.kill(child, number)


def _reap() -> dict[int, int]:
    """Exit codes of all children that have ended."""
    ended = {}
    with suppress(ChildProcessError):
        while True:
            number, status = os.waitpid(-1, os.WNOHANG)
            if not number:
                break
            ended[number] = os.waitstatus_to_exitcode(status)
    return ended


def _descendants(child: int) -> list[int]:
    """Return numbers of our descendants."""
    if not PROC.exists():
        with suppress(OSError):
            os.kill(child, signal.SIGKILL)
        return []
    parents = dict[int, int]()
    for process in PROC.iterdir():
        if not process.name.isdigit():
            continue
        with suppress(OSError):
            state, parent = (process / "stat").read_bytes().rpartition(b")")[2].split()[:2]
            if state not in (b"Z", b"X"):
                parents[int(process.name)] = int(parent)
    below = {os.getpid()}
    while more := {number for number, parent in parents.items() if parent in below} - below:
        below |= more
    return sorted(below - {os.getpid()})


if __name__ == "__main__":
    sys.exit(main())
