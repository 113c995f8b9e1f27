"""No process outlives the tests that started it, however they end.

    warden.start()    # in the process of the tests

Whatever the tests start, and whatever that starts, has a mark of theirs in its environment: processes that leave their
group, session and parent still have it. A small process apart waits for the tests to end, and then ends all that bear
the mark, and removes the folders that do. It reads /proc, so it works on Linux; elsewhere there is none.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

MARK = "QUORON_TESTS"
PROC = Path("/proc")
GRACE = 3.0  # seconds in which a process may end in order, such as a server of databases


def start() -> object:
    """Mark this process's environment, for all that it starts from now on. It is watched while the result is kept."""
    if not (PROC / "self" / "environ").exists():
        return None
    mark = f"{os.getpid()}.{os.urandom(4).hex()}"
    # Tests may run tests: what the inner ones start belongs to the outer ones too.
    os.environ[MARK] = f"{os.environ.get(MARK, '')} {mark}".strip()
    # In a session of its own, so that Ctrl-C and a closed terminal do not reach it. Its input ends with this process.
    return subprocess.Popen([sys.executable, "-S", __file__, mark], stdin=subprocess.PIPE, start_new_session=True)


def prefix() -> str:
    """For the name of a temporary folder that is to be gone with this process."""
    return f"quoron-{os.environ.get(MARK, '').replace(' ', '-')}-"


def marked(mark: str) -> list[int]:
    """Numbers of all processes that bear a mark, but for this one."""
    found = (int(each.name) for each in PROC.iterdir() if each.name.isdigit())
    return [number for number in found if number != os.getpid() and mark.encode() in _environment(number)]


def _environment(number: int) -> bytes:
    try:
        data = (PROC / str(number) / "environ").read_bytes()
    except OSError:  # it has ended, or is another user's
        return b""
    return b"".join(each for each in data.split(b"\0") if each.startswith(f"{MARK}=".encode()))


def end(mark: str) -> None:
    """End all that bear a mark: asked first, then without asking."""
    ends = time.monotonic() + GRACE
    for number in marked(mark):
        _send(number, signal.SIGTERM)
    while left := marked(mark):
        if time.monotonic() > ends:
            for number in left:
                _send(number, signal.SIGKILL)
        time.sleep(0.05)
    for root in ("/dev/shm", tempfile.gettempdir()):
        for folder in Path(root).glob(f"quoron-*{mark}-*"):
            shutil.rmtree(folder, ignore_errors=True)


def _send(number: int, what: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(number, what)


if __name__ == "__main__":
    sys.stdin.read()
    end(sys.argv[1])
