"""Processes of ours, ended by their number, none of which outlives the process that started it.

    with Program([...], log=log, environment=...) as program:  # a command
        program.wait()
    with Worker(pickle.dumps(service), threads=1) as worker:
        worker.ask(question)  # service(question) there

| process                      | how it learns that the process that started it is gone                         |
| ---------------------------- | ------------------------------------------------------------------------------ |
| a worker                     | the socket ends that it is asked over, which nobody else has                    |
| a child of a local federation | it waits for its supervisor (`multiprocessing.parent_process`)                |
| a program with a reaper      | its reaper's input ends, which then ends all that the program has started       |

A process that forks has one thread, so nothing is copied half done: a local federation's are copies of a program of
their own. A copy costs milliseconds, a program of its own, such as a worker, more than a second of a processor.
"""

import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Self

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


def send(process: int, what: signal.Signals) -> None:
    """Send a signal to a process, if it is still there."""
    with suppress(ProcessLookupError):
        os.kill(process, what)


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
    ) -> None:
        """`log` is what its output is appended to, `files` are open ones that it inherits.

        With `folders` it has a reaper: it, all that it starts and they are gone with this process, however that ends.
        """
        self.log = log
        if log is not None:
            make_folder(log.parent)
        with open(os.devnull if log is None else log, "ab", opener=public) as out:
            self._begins = out.tell()  # what stands before is an earlier program's
            self._process = subprocess.Popen(
                reaper.command([*folders], [*command]) if folders else [*command],
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

    def detach(self) -> None:
        """Leave it running: nobody waits for it."""
        self._process.returncode = 0

    def end(self, seconds: float = 20.0) -> None:
        """Ask it to end, which may take its time unless it has a reaper; then end it, and whatever it has started."""
        if self._process.stdin is None:
            self._process.terminate()
        else:
            self._process.stdin.close()  # which a reaper notices even if it has only begun
        self.wait(seconds)
        self.kill()

    def kill(self) -> None:
        """End it at once, and whatever it has started."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # it leads a group of its own
        self._process.wait()


class Worker(AbstractContextManager["Worker"]):
    """A worker process, asked over a socket. A context manager."""

    def __init__(self, service: bytes, threads: int) -> None:
        """Start one for a pickled service, with so many `threads` for its compiled loops. Raises Died."""
        self._socket, theirs = Pipe()
        self._log = TemporaryFile()  # noqa: SIM115
        environment = os.environ | ALONE | {"NUMBA_NUM_THREADS": str(threads)}
        files = theirs.fileno(), self._log.fileno()
        command = [sys.executable, "-P", "-m", "quoron.engine.processes", *map(str, files)]
        try:
            with theirs:
                self._program = Program(command, environment=environment, files=files)
        except OSError:
            self._socket.close()
            raise Died("A worker has not begun.") from None
        try:
            self.send(service)
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def number(self) -> int:
        """Of the process."""
        return self._program.number

    def ask(self, message: Any) -> Any:
        """Return what the service returns. Raises Died, and the service's errors."""
        self.send(message)
        try:
            reply = self._socket.recv()  # from a program of ours, and nobody else
        except (EOFError, OSError):
            raise self._died() from None
        return result_of(reply)

    def send(self, message: Any) -> None:
        """Send a message, to be answered in its turn. Raises Died."""
        try:
            self._socket.send(message)
        except OSError:
            raise self._died() from None

    def kill(self) -> None:
        """End it at once: a call that waits for its answer raises `Died`."""
        send(self.number, signal.SIGKILL)  # its number is its own until it is closed

    def close(self) -> None:
        """End it, and come back when it has."""
        self._socket.close()
        self._program.wait(PATIENCE)
        self._program.kill()
        self._log.close()

    def _died(self) -> Died:
        self._log.seek(0)
        last = self._log.read().decode(errors="replace").strip()[-TAIL:]
        return Died(f"A worker has ended, perhaps for want of memory.{f' It said: {last}' if last else ''}")


def reply(service: Service, message: Any) -> tuple[str, Any]:
    """Return what the service of a worker returns, or which error of ours it raises, for `result_of`."""
    try:
        return "returned", service(message)
    except QuoronError as error:
        return "failed", (type(error).__name__, str(error))


def result_of(reply: tuple[str, Any]) -> Any:
    """Return what the service returned, or raise its error."""
    kind, result = reply
    if kind == "failed":
        raise rebuilt_error(*result)
    return result


def rebuilt_error(kind: str, message: str) -> QuoronError:
    """Return the error of another process as what it was."""
    named = getattr(errors, kind, RunError)
    plain = isinstance(named, type) and issubclass(named, QuoronError) and named is not errors.Infeasible
    return named(message) if plain else RunError(message)


def main() -> None:
    """Be a worker until the socket ends: `SOCKET LOG`, the numbers of both."""
    number, log = map(int, sys.argv[1:])
    for output in (1, 2):
        os.dup2(log, output)
    connection, messages = Connection(number), queue.SimpleQueue[Any]()
    threading.Thread(target=_listen, args=(connection, messages), daemon=True).start()
    service: Service = pickle.loads(messages.get())  # from the process that started this one, and no other
    if (pyarrow := sys.modules.get("pyarrow")) is not None:
        pyarrow.set_cpu_count(int(os.environ["NUMBA_NUM_THREADS"]))
    while True:
        connection.send(reply(service, messages.get()))


def _listen(connection: Connection, messages: "queue.SimpleQueue[Any]") -> None:
    """Whatever comes; at the end of the socket, the end."""
    try:
        while True:
            messages.put(connection.recv())
    except (EOFError, OSError):
        os._exit(0)


if __name__ == "__main__":
    main()
