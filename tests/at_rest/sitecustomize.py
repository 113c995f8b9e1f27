"""In every Python that a command of a test starts: it says which addresses are bound, and comes to rest where asked.

On PYTHONPATH by `listening.at_rest` alone. `QUORON_REST` is a named pipe, `QUORON_COMMITS` after how many commits of a
run's ledger the process that carries it out says there that it rests, and waits for ever; with fewer, at its end.
"""

import atexit
import os
import sys
import threading

PIPE = os.environ.get("QUORON_REST", "")
PROGRAMS = {"quoron"}


def _said(words: str) -> None:
    pipe = os.open(PIPE, os.O_WRONLY)
    os.write(pipe, f"{words}\n".encode())
    os.close(pipe)


def _hears(event: str, arguments: tuple[object, ...]) -> None:
    if event == "socket.bind":
        _said(f"bind {os.getpid()} {arguments[1]!r}")


def _rest() -> None:
    _said(f"rest {os.getpid()}")
    threading.Event().wait()


def _rests_after(commits: int) -> None:
    from quoron_server.storage.ledger import Ledger

    original, left = Ledger.commit, [commits]

    def commit(*arguments, **named):  # type: ignore[no-untyped-def]
        result = original(*arguments, **named)
        left[0] -= 1
        if not left[0]:
            _rest()
        return result

    Ledger.commit = commit  # type: ignore[method-assign]


if PIPE:
    sys.addaudithook(_hears)
    if PROGRAMS & set(sys.orig_argv):
        _rests_after(int(os.environ["QUORON_COMMITS"]))
    if "quoron" in sys.orig_argv:
        atexit.register(_rest)
