"""Processes that carry out the runs of a comparison, and what becomes of them.

Each worker is a program of its own (`worker.py`) that is asked by lines of JSON, so that a script without a `__main__`
guard can compare, and a worker that is killed is seen at once.
"""

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Literal, Protocol

from quoron.comparing.request import Cell
from quoron.config import Config
from quoron.processors import THREADS, processors
from quoron_privacy.errors import ConfigError, RunError

TAIL = 2000  # characters of what a worker that died had written
End = Literal["done", "refused", "failed"]


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One run: a cell with one seed."""

    cell: Cell
    number: int  # of the seed, from 0
    config: Config
    folder: Path

    @property
    def named(self) -> str:
        """For people."""
        return f"{self.cell.named} seed {self.config.run.seed}"


class Watcher(Protocol):
    """Is told what workers, numbered from 0, are doing. Calls come one at a time."""

    def planned(self, runs: int) -> None:
        """How many runs there are to do."""

    def began(self, worker: int, job: Job) -> None:
        """A run begins, or goes on."""

    def moved(self, worker: int, at: int, of: int) -> None:
        """Rounds of it."""

    def ended(self, worker: int, job: Job, end: End, why: str | None) -> None:
        """It is done, was refused by its plan, or failed."""


def carry_out(
    jobs: Sequence[Job],
    base: Path,
    *,
    workers: int | None,
    sharing: Mapping[str, Any] | None = None,
    watcher: Watcher,
) -> dict[Job, tuple[End, str | None]]:
    """What became of each job; relative paths are relative to `base`.

    When a plan is refused, so are all later runs of its cell. RunError if a worker dies, after the others are ended:
    what they did stays, and the same call goes on with it. However this function is left, no worker stays behind.
    With `sharing` (the fields of `quoron.sharding.choice.Sharing`) one run at a time shares its users so.
    """
    watcher.planned(len(jobs))
    count = 1 if sharing is not None else min(_workers(workers), max(1, len(jobs)))
    waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
    for job in jobs:
        waiting.put(job)
    state = _State(base, watcher, sharing)
    threads = [
        threading.Thread(target=_drive, args=(number, waiting, state, count), daemon=True) for number in range(count)
    ]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():  # a join without an end would not see an interruption
                thread.join(0.2)
    finally:
        state.stop()
        for thread in threads:
            thread.join()
    if state.errors:
        raise state.errors[0]
    return state.ends


@dataclass(slots=True, eq=False)
class _State:
    """What the threads share. All of it is touched under the lock."""

    base: Path
    watcher: Watcher
    sharing: Mapping[str, Any] | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    stopped: bool = False
    alive: "list[subprocess.Popen[str]]" = field(default_factory=list)
    refused: dict[Cell, str | None] = field(default_factory=dict)
    ends: dict[Job, tuple[End, str | None]] = field(default_factory=dict)
    errors: list[BaseException] = field(default_factory=list)

    def stop(self) -> None:
        """End every worker; nothing new begins."""
        with self.lock:
            self.stopped = True
            for process in self.alive:
                process.kill()


def _drive(number: int, waiting: "queue.SimpleQueue[Job]", state: _State, workers: int) -> None:
    """One worker's life."""
    try:
        with TemporaryFile() as written, _worker(state, written, workers) as process:
            while process is not None:
                try:
                    job = waiting.get_nowait()
                except queue.Empty:
                    return
                _one(number, job, process, state, written)
    except BaseException as error:
        with state.lock:
            if not state.stopped:
                state.errors.append(error)
        state.stop()


def _one(number: int, job: Job, process: "subprocess.Popen[str]", state: _State, written: IO[bytes]) -> None:
    with state.lock:
        if job.cell in state.refused:
            state.ends[job] = ("refused", state.refused[job.cell])
            state.watcher.ended(number, job, "refused", state.refused[job.cell])
            return
        state.watcher.began(number, job)
    for line in _asked(job, process, state):
        with state.lock:
            if "at" in line:
                state.watcher.moved(number, line["at"], line["of"])
                continue
            end, why = line["end"], line["why"]
            state.ends[job] = (end, why)
            if end == "refused":
                state.refused[job.cell] = why
            state.watcher.ended(number, job, end, why)
            return
    code = process.wait()
    written.seek(0)
    last = written.read().decode(errors="replace").strip()[-TAIL:]
    killed = " Perhaps for want of memory: try fewer workers, --engine inline:workers=1." if code == -9 else ""
    raise RunError(
        f"A worker ended at {job.named} with exit code {code}.{killed} Runs that are done are kept: give the same "
        f"command again, or carry that run out by itself.{f' It said: {last}' if last else ''}"
    )


def _asked(job: Job, process: "subprocess.Popen[str]", state: _State) -> Iterator[Mapping[str, Any]]:
    """The worker's lines about a job; they end early if the worker does."""
    assert process.stdin is not None
    assert process.stdout is not None
    task = {
        "config": job.config.model_dump(mode="json", exclude_none=True),
        "base": str(state.base.resolve()),
        "folder": str(job.folder.resolve()),
        "sharing": state.sharing,
    }
    try:
        process.stdin.write(json.dumps(task) + "\n")
        process.stdin.flush()
    except OSError:
        return
    for line in process.stdout:
        yield json.loads(line)


@contextmanager
def _worker(state: _State, written: IO[bytes], workers: int) -> "Iterator[subprocess.Popen[str] | None]":
    """A running worker, with its share of the processors; None if all is to end."""
    threads = str(max(1, processors() // workers))
    process: subprocess.Popen[str] | None = None
    with state.lock:
        if not state.stopped:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "quoron.comparing.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=written,
                text=True,
                env=os.environ | dict.fromkeys(THREADS, threads),
            )
            state.alive.append(process)
    try:
        yield process
    finally:
        if process is not None:
            process.kill()  # between runs it has nothing to lose, and in one it goes on later
            process.communicate()


def _workers(given: int | None) -> int:
    if given is not None and given < 1:
        raise ConfigError(f"Expected workers >= 1, got workers={given}.")
    return given or processors()
