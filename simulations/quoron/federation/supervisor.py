"""The program that a local federation's processes come from, and that ends them: `supervisor FOLDER SOCKET`.

It imports what coordinator and clients need, and then forks each of them: that costs milliseconds and a few megabytes,
where a program of its own costs a processor seconds and a hundred megabytes. It has one thread, so nothing is copied
half done. A process that dies is started again. When its socket ends, as it does when its parent is gone, it ends all
of them at once and removes a temporary folder. When it is gone itself, they see the end of a pipe.
"""

import gc
import json
import os
import random
import selectors
import shutil
import signal
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from quoron.engine.processes import Lines, die_with, fork, send
from quoron.federation import log_limit, programs
from quoron.federation.folder import ORDER, RUNNING, Folder, Order
from quoron_server.service.program import allow_many_files

AGAIN, QUICK, TRIES = 0.2, 2.0, 5  # seconds before a restart; shorter lives than this fail, after so many tries
TIMEOUT = 6.0  # seconds that those who are asked to end may take


@dataclass(slots=True)
class Child:
    """A process, or one that is to be."""

    numbers: tuple[int, ...] = ()  # of the clients in it; none: the coordinator
    process: int | None = None
    began: float = 0.0
    due: float = 0.0  # when it is to begin
    short: int = 0  # lives that were none, in a row
    by_itself: bool = False  # whether the last one was ended by nobody

    @property
    def kind(self) -> str:
        """Whose process it is."""
        return "clients" if self.numbers else "coordinator"


@dataclass(slots=True)
class Supervisor:
    """One federation's processes."""

    folder: Folder
    order: Order
    ear: socket.socket | None  # of its parent
    simulation: programs.Simulation | None = None
    children: list[Child] = field(default_factory=list)
    killed: list[int | str] = field(default_factory=list)  # clients, or the coordinator, as often as they were
    here: int = 0  # clients in conversation
    leaving: bool = False
    failed: bool = False  # somebody without whom a simulation cannot go on
    heard: Lines = field(default_factory=Lines)  # of the children
    told: Lines = field(default_factory=Lines)  # of its parent
    # What keeps children alive, and where they see its end; what they say on, and where it is heard.
    pipes: tuple[int, int, int, int] = (-1, -1, -1, -1)

    def keep(self) -> None:
        """Until the socket ends, or SIGTERM."""
        watched, alive = os.pipe()
        hearing, saying = os.pipe()
        awake, wake = os.pipe()
        for number in (hearing, awake, wake):
            os.set_blocking(number, False)
        self.pipes = alive, watched, saying, hearing
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._leave)
        self._note()  # whom to stop, before anybody is there
        with selectors.DefaultSelector() as selector:
            selector.register(hearing, selectors.EVENT_READ, self._hear)
            selector.register(awake, selectors.EVENT_READ, lambda: os.read(awake, 1 << 12))
            if self.ear is not None:
                selector.register(self.ear, selectors.EVENT_READ, lambda: self._obey(selector))
            while not self.leaving:
                self._begin_due()
                for key, _ in selector.select(self._until_due()):
                    key.data()
                self._reap()
                if self.failed:
                    self._end()
                    self.failed = False
        self._end()
        if self.ear is not None:
            self.ear.close()

    def _leave(self, *_: object) -> None:
        self.leaving = True

    def _begin_due(self) -> None:
        for child in self.children:
            if child.process is None and child.due <= time.monotonic():
                child.began = time.monotonic()
                child.process = fork(partial(self._live, child))
                self._note()

    def _until_due(self) -> float | None:
        due = [child.due for child in self.children if child.process is None]
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _live(self, child: Child) -> None:
        """The life of a copy of this process."""
        alive, watched, saying, _ = self.pipes
        os.close(alive)
        if self.ear is not None:
            self.ear.close()
        signal.set_wakeup_fd(-1)
        for each in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(each, signal.SIG_DFL)
        place = self.folder.client(child.numbers[0]) if child.numbers else self.folder.path
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        log = os.open(place / ("client.log" if child.numbers else "coordinator.log"), flags, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        random.seed()  # or all would wait for the same times
        log_limit.begin()
        die_with(watched)
        if child.numbers:
            programs.clients(self.folder, self.order, self.simulation, child.numbers, saying)
        else:
            programs.coordinator(self.folder, self.order, self.simulation, saying)

    def _reap(self) -> None:
        """Start dead processes again, except those that die at once each time."""
        for child in self.children:
            if child.process is not None and self._has_ended(child):
                self._hear()
                if not child.by_itself:
                    self.killed += child.numbers or ("coordinator",)
                if not child.numbers:
                    self.here = 0
                child.short = child.short + 1 if child.by_itself and time.monotonic() - child.began < QUICK else 0
                child.due = time.monotonic() + AGAIN * 2 ** min(child.short, 6)
                if child.short == TRIES:
                    own = f"clients/client-{child.numbers[0]}/client.log" if child.numbers else "coordinator.log"
                    self._fail(f"One of the {child.kind} does not live: {self.folder.last_words(own)}")

    def _has_ended(self, child: Child, how: int = os.WNOHANG) -> bool:
        """Whether a process is over; then it is none."""
        assert child.process is not None
        number, status = os.waitpid(child.process, how)
        if not number:
            return False
        child.process, child.by_itself = None, os.WIFEXITED(status)
        return True

    def _hear(self) -> None:
        """What children say, a line each."""
        data = b""
        with suppress(BlockingIOError):
            while more := os.read(self.pipes[3], 1 << 16):
                data += more
        for kind, *rest in (line.decode(errors="replace").split(maxsplit=2) for line in self.heard.of(data)):
            if kind == "listening":
                self._listens(*rest)
            elif kind == "here":
                self.here = int(rest[0])
                self._note()
                self._tell(here=self.here)
            elif kind == "failed":
                self._fail(f"Client {' has failed: '.join(rest)}")

    def _listens(self, listen: str, control: str) -> None:
        """From now on at these addresses, however often it dies; clients come once they are known."""
        self.order = replace(self.order, listen=listen, control=control)
        if len(self.children) == 1:
            self.children += [Child(tuple(numbers)) for numbers in self.order.split]
        self._tell(listening=[listen, control])

    def _obey(self, selector: selectors.BaseSelector) -> None:
        assert self.ear is not None
        try:
            data = self.ear.recv(1 << 12)
        except OSError:
            data = b""
        if not data:
            for child in self.children:
                send(child.process, signal.SIGKILL)
            self.leaving = True
        for word in self.told.of(data):
            if word == b"begin":
                self.simulation = programs.read(self.folder)
                gc.freeze()  # what is there now no child has to look through, nor to copy
                self.children = [Child()]
            elif word == b"stop":
                self._end()
                self._tell(stopped={"killed": self.killed})
            elif word == b"keep":
                selector.unregister(self.ear)
                self.ear.close()
                self.ear = None
                return

    def _fail(self, words: str) -> None:
        """Report to waiting callers at once. A simulation ends: with a client less it would not be bit-identical."""
        self._tell(failed=words)
        self.failed = self.order.simulation_seed is not None

    def _tell(self, **what: Any) -> None:
        if self.ear is not None:
            with suppress(OSError):
                self.ear.sendall(json.dumps(what).encode() + b"\n")

    def _note(self) -> None:
        """For `quoron local status`, and for callers that end processes."""
        running = {"supervisor": os.getpid(), "listen": self.order.listen, "control": self.order.control}
        running |= {"here": self.here, "clients": self.order.clients}
        running |= {"coordinator": next((each.process for each in self.children if not each.numbers), None)}
        running |= {"processes": [[list(each.numbers), each.process] for each in self.children if each.numbers]}
        with suppress(OSError):
            self.folder.write(RUNNING, running)

    def _end(self) -> None:
        """Clients first, then the coordinator; who takes too long is killed."""
        for kind in ("clients", "coordinator"):
            some = [child for child in self.children if child.kind == kind and child.process is not None]
            ends = time.monotonic() + TIMEOUT
            for child in some:
                send(child.process, signal.SIGTERM)
            for child in some:
                while not self._has_ended(child):
                    if time.monotonic() > ends:
                        send(child.process, signal.SIGKILL)
                        self._has_ended(child, 0)
                        break
                    time.sleep(0.01)
        self.children = []
        with suppress(OSError):
            (self.folder.path / RUNNING).unlink(missing_ok=True)


def main() -> None:
    """Keep a federation whose lock has been handed over."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's is for its parent
    allow_many_files()  # of clients that share a process, each has some
    folder, ear = Folder(Path(sys.argv[1])), socket.socket(fileno=int(sys.argv[2]))
    order = Order.from_json(folder.read(ORDER))
    Supervisor(folder, order, ear).keep()  # the folder's lock is open: the parent gave it
    if order.passing:
        shutil.rmtree(folder.path, ignore_errors=True)
