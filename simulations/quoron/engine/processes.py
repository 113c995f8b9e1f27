"""Processes of ours, ended by their number, none of which outlives the process that started it.

    with Program("flower-superlink", [...], log=log, environment=...) as program:  # a command
        program.check()
    workers = Workers(threads=1, modules=["quoron.engine.sharded"])
    with workers.start(pickle.dumps(service)) as worker:  # a copy of a program that has imported those modules
        worker.ask(question)  # service(question) there

| process                      | how it learns that the process that started it is gone                         |
| ---------------------------- | ------------------------------------------------------------------------------ |
| a worker                     | the socket ends that it is asked over, which nobody else has                    |
| a child of a local federation | a pipe ends that its supervisor alone holds (`die_with`)                      |
| a program with a reaper      | its reaper's input ends, which then ends all that the program has started       |

A process that forks has one thread, so nothing is copied half done: workers are copies of a program of their own, never
of the process that asks them. A copy costs milliseconds, a program of its own more than a second of a processor.
"""

import gc
import importlib
import mmap
import os
import pickle
import queue
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NoReturn, Self

from quoron.engine import reaper
from quoron_client.durable import make_folder, public
from quoron_privacy import errors
from quoron_privacy.errors import QuoronError, RunError

PATIENCE = 10.0  # seconds that a process has to end by itself
TAIL = 2000  # characters of what a worker that died had written
# What forks has one thread: no library's own, of linear algebra or of pyarrow's memory.
ALONE = dict.fromkeys(("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1") | {
    "JE_ARROW_MALLOC_CONF": "background_thread:false"
}
Service = Callable[[Any], Any]  # what a worker does with a message


class Died(RunError):
    """A worker is gone."""


def forking(module: str, *arguments: str) -> list[str]:
    """Return the command of a program of ours that imports what its copies need and then forks them, under `ALONE`.

    Looking for garbage among what is imported would take a tenth of the time.
    """
    return [sys.executable, "-P", "-c", f"import gc; gc.disable(); import {module} as it; it.main()", *arguments]


def fork(life: Callable[[], object]) -> int:
    """Return the number of a copy of this process, which ends with `life`: with code 1 if that raises."""
    number = os.fork()
    if number:
        return number
    code = 1
    try:
        gc.enable()
        life()
        code = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(code)


def die_with(pipe: int) -> None:
    """End this process when a pipe ends, whose other end its parent holds."""

    def wait() -> None:
        os.read(pipe, 1)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def send(process: int | None, what: signal.Signals) -> None:
    """Send a signal to a process, if there is one."""
    if process is not None:
        with suppress(ProcessLookupError):
            os.kill(process, what)


class Lines:
    """Bytes that come in pieces, as lines."""

    def __init__(self) -> None:
        self._rest = b""

    def of(self, data: bytes) -> list[bytes]:
        """Return the lines that are whole with these bytes."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        return lines


class Program:
    """A command that is started, waited for, and ended by its number. A context manager."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        log: Path | None = None,
        files: Sequence[int] = (),
        folders: Sequence[Path] = (),
        mark: str = "",
    ) -> None:
        """`log` is what its output is appended to, `files` are open ones that it inherits.

        With `folders` it has a reaper: it, all that it starts and they are gone with this process, however that ends;
        and so is all that has `mark`, such as `FLWR_HOME=/tmp/quoron-7-a/home`, in its environment.
        """
        self.log = log
        if log is not None:
            make_folder(log.parent)
        with open(os.devnull if log is None else log, "ab", opener=public) as out:
            self._begins = out.tell()  # what stands before is an earlier program's
            self._process = subprocess.Popen(
                reaper.command(mark, [*folders], [*command]) if folders else [*command],
                env=environment,
                pass_fds=files,
                stdin=subprocess.PIPE if folders else subprocess.DEVNULL,
                stdout=out,
                stderr=None if log is None else out,
                start_new_session=True,  # an interrupt at the terminal is for its parent
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def number(self) -> int:
        """Of the process."""
        return self._process.pid

    @property
    def code(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._process.poll()

    @property
    def written(self) -> str:
        """What it has written to its log."""
        return "" if self.log is None else self.log.read_bytes()[self._begins :].decode(errors="replace")

    def wait(self, seconds: float | None = None) -> None:
        """Wait until it has ended, for so many seconds at most."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def keep(self) -> None:
        """Leave it running: nobody waits for it."""
        self._process.returncode = 0

    def end(self, seconds: float = 20.0) -> None:
        """Ask it to end, then end it, and whatever it has started."""
        self.ask_to_end()
        self.wait(seconds)
        self.kill()

    def ask_to_end(self) -> None:
        """It may take its time; what has a reaper has none."""
        if self._process.stdin is None:
            self._process.terminate()
        else:
            self._process.stdin.close()  # which a reaper notices even if it has only begun

    def kill(self) -> None:
        """End it at once, and whatever it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # it leads a group of its own
        self._process.wait()


class Workers:
    """Workers of this machine, and the program that they are copies of: there from the first to the end of the last."""

    def __init__(self, threads: int, modules: Sequence[str]) -> None:
        """`threads` are those of each worker's compiled loops, `modules` what its service needs."""
        self._threads, self._modules = threads, modules
        self._lock = threading.Lock()
        self._program: Program | None = None
        self._orders: socket.socket | None = None
        self._alive: list[Worker] = []
        self._stopped = False

    def start(self, service: bytes) -> "Worker":
        """Return a worker for a pickled service. Raises Died."""
        worker = Worker(self)
        try:
            worker.send(service)
        except BaseException:
            worker.close()
            raise
        return worker

    def stop(self) -> None:
        """End every worker at once; none begins any more."""
        with self._lock:
            self._stopped = True
            for worker in self._alive:
                send(worker.number, signal.SIGKILL)

    def begin(self, worker: "Worker", *files: int) -> int:
        """Return the number of a new process that has these files. Raises Died."""
        with self._lock:
            self._alive.append(worker)
            try:
                if self._stopped:
                    raise OSError
                if self._orders is None or self._program is None or self._program.code is not None:
                    self._end()
                    self._begin()
                assert self._orders is not None
                socket.send_fds(self._orders, [b"w"], files)
                number = self._orders.recv(8, socket.MSG_WAITALL)
            except OSError:
                number = b""
        if len(number) < 8:
            self.gone(worker)
            raise Died("A worker has not begun.")
        return int.from_bytes(number, "big")

    def gone(self, worker: "Worker") -> None:
        """One worker less."""
        with self._lock:
            self._alive.remove(worker)
            if not self._alive:
                self._end()

    def _begin(self) -> None:
        self._orders, theirs = socket.socketpair()
        with theirs:
            self._program = Program(
                forking("quoron.engine.processes", str(theirs.fileno()), *self._modules),
                environment=os.environ | ALONE | {"NUMBA_NUM_THREADS": str(self._threads)},
                files=[theirs.fileno()],
            )

    def _end(self) -> None:
        if self._orders is not None:
            self._orders.close()
        if self._program is not None:
            self._program.wait(PATIENCE)
            self._program.kill()  # it has nothing to lose
        self._orders = self._program = None


class Worker(AbstractContextManager["Worker"]):
    """A worker process, asked over a socket; arrays of its replies come in shared memory. A context manager."""

    number: int | None = None

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        ours, theirs = socket.socketpair()
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # a folder in memory, where there is one
        self._shared: Any = TemporaryFile(prefix="quoron-shared-", dir=memory)  # noqa: SIM115
        self._log: Any = TemporaryFile()  # noqa: SIM115
        self._view: mmap.mmap | None = None
        self._socket = Connection(ours.detach())
        try:
            with theirs:
                self.number = workers.begin(self, theirs.fileno(), self._shared.fileno(), self._log.fileno())
        except BaseException:
            self._close_files()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, message: Any) -> Any:
        """Return what the service returns. Raises Died, and the service's errors."""
        self.send(message)
        try:
            kind, sizes, found = self._socket.recv()
        except (EOFError, OSError):
            raise self._died() from None
        if kind == "failed":
            raise own_error(*found)
        if sum(sizes) > (0 if self._view is None else len(self._view)):
            self._view = mmap.mmap(self._shared.fileno(), sum(sizes))
        arrays, first = [], 0
        for size in sizes:
            assert self._view is not None
            arrays.append(bytearray(memoryview(self._view)[first : first + size]))
            first += size
        return pickle.loads(found, buffers=arrays)  # from a copy of a program of ours, and nobody else

    def send(self, message: Any) -> None:
        """Send a message, to be answered in its turn. Raises Died."""
        try:
            self._socket.send(message)
        except OSError:
            raise self._died() from None

    def close(self) -> None:
        """End it, and come back when it has."""
        ending = socket.socket(fileno=self._socket.fileno())
        try:
            ending.shutdown(socket.SHUT_WR)
            ending.settimeout(PATIENCE)
            try:
                _emptied(ending)
            except TimeoutError:  # it holds its end still, so the number is its own
                send(self.number, signal.SIGKILL)
                ending.settimeout(None)
                _emptied(ending)
        except OSError:  # it had ended before
            pass
        finally:
            ending.detach()
            self._close_files()
            self._workers.gone(self)

    def _close_files(self) -> None:
        self._socket.close()
        self._shared.close()
        self._log.close()

    def _died(self) -> Died:
        self._log.seek(0)
        last = self._log.read().decode(errors="replace").strip()[-TAIL:]
        return Died(f"A worker has ended, perhaps for want of memory.{f' It said: {last}' if last else ''}")


def own_error(kind: str, message: str) -> QuoronError:
    """Return the error of another process as what it was."""
    named = getattr(errors, kind, RunError)
    plain = isinstance(named, type) and issubclass(named, QuoronError) and named is not errors.Infeasible
    return named(message) if plain else RunError(message)


def _emptied(ending: socket.socket) -> None:
    """Hear whatever somebody was about to say, to the end."""
    while ending.recv(1 << 16):
        pass


FILES = 3  # a worker's: socket, shared memory, and what it prints


def main() -> None:
    """Import modules, and become a worker whenever one is asked for, until the socket ends: `NUMBER MODULE...`."""
    for name in sys.argv[2:]:
        importlib.import_module(name)
    _warm()
    gc.freeze()  # what is there now no worker has to look through again
    with socket.socket(fileno=int(sys.argv[1])) as orders:
        while True:
            word, files, _, _ = socket.recv_fds(orders, 1, FILES)
            if not word:
                break
            child = fork(lambda files=files: _work(orders, *files))  # type: ignore[misc]
            for number in files:
                os.close(number)
            orders.sendall(child.to_bytes(8, "big"))
    with suppress(ChildProcessError):
        while True:  # a child that has ended keeps its number until here
            os.wait()
    os._exit(0)  # at once: there is nothing to put in order


def _warm() -> None:
    """The first compiled loop of a process takes half a second more than the second."""
    import numpy as np

    from quoron_client.compute.enforcement import bounded
    from quoron_client.data.items import ItemBatch
    from quoron_client.losses import Linear

    bounded(ItemBatch(np.zeros((1, 1), np.float32), np.zeros(1), np.array([0, 1])), Linear())


def _work(orders: socket.socket, number: int, shared: int, log: int) -> NoReturn:
    """A worker's life: it answers until its socket ends."""
    orders.close()
    for output in (1, 2):
        os.dup2(log, output)
    if (pyarrow := sys.modules.get("pyarrow")) is not None:
        pyarrow.set_cpu_count(int(os.environ["NUMBA_NUM_THREADS"]))
    connection, messages = Connection(number), queue.SimpleQueue[Any]()
    threading.Thread(target=_listen, args=(connection, messages), daemon=True).start()
    view: mmap.mmap | None = None

    def tell(reply: Any) -> None:
        nonlocal view
        arrays: list[pickle.PickleBuffer] = []
        written = pickle.dumps(reply, 5, buffer_callback=arrays.append)
        parts = [array.raw() for array in arrays]
        sizes, first = [part.nbytes for part in parts], 0
        if sum(sizes) > (0 if view is None else len(view)):
            os.truncate(shared, sum(sizes))
            view = mmap.mmap(shared, sum(sizes))
        for part in parts:
            assert view is not None
            view[first : first + part.nbytes] = part
            first += part.nbytes
        connection.send(("returned", sizes, written))

    service: Service = pickle.loads(messages.get())  # from the process that started this one, and no other
    while True:
        try:
            returned = service(messages.get())
        except QuoronError as error:
            connection.send(("failed", (), (type(error).__name__, str(error))))
        else:
            tell(returned)


def _listen(connection: Connection, messages: "queue.SimpleQueue[Any]") -> None:
    """Whatever comes; at the end of the socket, the end."""
    try:
        while True:
            messages.put(connection.recv())
    except (EOFError, OSError):
        os._exit(0)
