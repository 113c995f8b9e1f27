"""Workers as processes of this machine, with shared memory for what they answer.

They are copies of one program that has imported what they need (`quoron.engine.worker`), never of the process that
asks, which may have threads. Each is asked over a socket that nobody else has. Rows of answers are written where both
look; the socket carries only how many. A worker ends at once when its socket does, so none outlives whoever started
it, however that ends.
"""

import mmap
import os
import signal
import socket
import subprocess
import tempfile
import threading
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from quoron.data.users import Answering
from quoron.engine.inline import Told
from quoron.engine.processors import ALONE, forking, processors
from quoron.engine.sharded import Died, Settings, ShardedEngine, Worker, own_error
from quoron_client.protocol.questions import Answers, Question

PATIENCE = 10.0  # seconds that a process has to end by itself


class Nursery:
    """The program that becomes workers: there from the first of them to the end of the last."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._lock = threading.Lock()
        self._program: subprocess.Popen[bytes] | None = None
        self._orders: socket.socket | None = None
        self._workers = 0

    def born(self, *files: int) -> int:
        """A worker that has these files; its number. Raises Died."""
        with self._lock:
            self._workers += 1
            try:
                if self._orders is None or self._program is None or self._program.poll() is not None:
                    self._end()
                    self._begin()
                assert self._orders is not None
                socket.send_fds(self._orders, [b"w"], files)
                number = self._orders.recv(8, socket.MSG_WAITALL)
            except OSError:
                number = b""
        if len(number) < 8:
            self.gone()
            raise Died("A worker has not begun.")
        return int.from_bytes(number, "big")

    def gone(self) -> None:
        """One worker less."""
        with self._lock:
            self._workers -= 1
            if self._workers == 0:
                self._end()

    def _begin(self) -> None:
        self._orders, theirs = socket.socketpair()
        with theirs:
            self._program = subprocess.Popen(
                forking("quoron.engine.worker", str(theirs.fileno())),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=os.environ | ALONE | {"NUMBA_NUM_THREADS": str(self._threads)},
            )

    def _end(self) -> None:
        if self._orders is not None:
            self._orders.close()
        if self._program is not None:
            try:
                self._program.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self._program.kill()  # it has nothing to lose
                self._program.wait()
        self._orders = self._program = None


class WorkerProcess:
    """One worker; see `quoron.engine.worker` for what it does."""

    def __init__(self, letter: bytes, nursery: Nursery) -> None:
        self._nursery = nursery
        ours, theirs = socket.socketpair()
        self._shared: Any = tempfile.TemporaryFile(prefix="quoron-shared-", dir=_memory())  # noqa: SIM115
        self._view: mmap.mmap | None = None
        self._room = 0
        self._socket = Connection(ours.detach())
        try:
            with theirs:
                self.number = nursery.born(theirs.fileno(), self._shared.fileno())
        except BaseException:
            self._socket.close()
            self._shared.close()
            raise
        try:
            self._send(letter)
        except BaseException:
            self.close()
            raise

    def ask(self, question: Question, most: int) -> Told:
        """Its answer. Raises Died."""
        if most > self._room:
            self._shared.truncate(most)
            self._view, self._room = mmap.mmap(self._shared.fileno(), most), most
        self._send((question, most))
        try:
            message = self._socket.recv()
        except (EOFError, OSError):
            raise Died("A worker has ended.") from None
        kind, *rest = message
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
        """End it, and come back when it has."""
        ending = socket.socket(fileno=self._socket.fileno())
        try:
            ending.shutdown(socket.SHUT_WR)
            ending.settimeout(PATIENCE)
            try:
                _emptied(ending)
            except TimeoutError:  # it holds its end still, so the number is its own
                os.kill(self.number, signal.SIGKILL)
                ending.settimeout(None)
                _emptied(ending)
        except OSError:  # it had ended before
            pass
        finally:
            ending.detach()
            self._socket.close()
            self._shared.close()
            self._nursery.gone()

    def _send(self, what: Any) -> None:
        try:
            self._socket.send(what)
        except OSError:
            raise Died("A worker has ended.") from None


def engine(population: Answering, workers: int, settings: Settings) -> ShardedEngine:
    """An engine over a population whose workers share this machine's processors; whoever has it closes it."""
    nursery = Nursery(max(1, processors() // workers))

    def start(number: int, letter: bytes) -> Worker:
        del number
        return WorkerProcess(letter, nursery)

    return ShardedEngine.of(population, workers, start, settings)


def _emptied(ending: socket.socket) -> None:
    """Hear whatever somebody was about to say, to the end."""
    while ending.recv(1 << 16):
        pass


def _memory() -> str | None:
    """A folder in memory, where there is one."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
