"""Workers as processes of this machine: programs of their own, never forks, with shared memory for what they answer.

Each is asked over a socket that nobody else has. Rows of answers are written where both look; the socket carries only
how many. A worker ends at once when its socket does, so none outlives whoever started it, however that ends.
"""

import mmap
import os
import socket
import subprocess
import sys
import tempfile
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from quoron.comparing.pool import THREADS, processors
from quoron.sharding.engine import Died, Worker, own_error
from quoron.simulation.pieces import Told
from quoron_client.protocol.questions import Answers, Question


class Process:
    """One worker; see `quoron.sharding.worker` for what it does."""

    def __init__(self, letter: bytes, threads: int) -> None:
        ours, theirs = socket.socketpair()
        self._shared: Any = tempfile.TemporaryFile(prefix="quoron-shared-", dir=_memory())  # noqa: SIM115
        self._view: mmap.mmap | None = None
        self._room = 0
        try:
            with theirs:
                numbers = (theirs.fileno(), self._shared.fileno())
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "quoron.sharding.worker", *map(str, numbers)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=numbers,
                    env=os.environ | dict.fromkeys(THREADS, str(threads)),
                )
            self._socket = Connection(ours.detach())
            self._send(letter)
        except BaseException:
            self._shared.close()
            raise

    @property
    def number(self) -> int:
        """Of the process."""
        return self._process.pid

    def ask(self, question: Question, most: int) -> Told:
        """Its answer. Raises Died."""
        if most > self._room:
            self._shared.truncate(most)
            self._view, self._room = mmap.mmap(self._shared.fileno(), most), most
        self._send((question, most))
        try:
            told = self._socket.recv()
        except (EOFError, OSError):
            raise Died("A worker has ended.") from None
        kind, *rest = told
        if kind == "error":
            raise own_error(*rest)
        if kind == "sums":
            return rest[0]  # type: ignore[no-any-return]
        shape = rest[0]
        size = 8 * int(np.prod(shape))
        values = np.frombuffer(self._view or b"", np.float64, size // 8).reshape(shape).copy()
        status = np.frombuffer(self._view or b"", np.uint8, shape[0], offset=size).copy()
        return Answers(values, status)

    def close(self) -> None:
        """End it."""
        self._socket.close()
        self._process.kill()  # it has nothing to lose
        self._process.wait()
        self._shared.close()

    def _send(self, what: Any) -> None:
        try:
            self._socket.send(what)
        except OSError:
            raise Died("A worker has ended.") from None


def starter(workers: int) -> Any:
    """Starts workers that share this machine's processors."""
    threads = max(1, processors() // workers)

    def start(number: int, letter: bytes) -> Worker:
        del number
        return Process(letter, threads)

    return start


def _memory() -> str | None:
    """A folder in memory, where there is one."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
