"""A local federation's processes: what they do once they are there, coordinate or be clients, and what keeps them.

write(folder, prepared, slow)     # the process that starts a simulation
simulation = read(folder)         # the process that its coordinator and clients are copies of

The program that they come from, and that ends them, is `programs FOLDER SOCKET`. It imports what all of them need, and
then forks each of them: that costs milliseconds and a few megabytes, where a program of its own costs a
processor seconds and a hundred megabytes. It has one thread, so nothing is copied half done. A process that dies is
started again. When its socket ends, as it does when its parent is gone, it ends all of them at once and removes a
temporary folder. When it is gone itself, they end with it.
"""

import asyncio
import gc
import logging
import os
import pickle
import random
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import cryptography.hazmat.backends.openssl.backend  # noqa: F401  # once, and not by each client
import numpy as np

from quoron.data.users import Corruption
from quoron.engine.inline import SENT, InlineEngine
from quoron.federation import log_limit
from quoron.federation.folder import ITEMS, ORDER, RUNNING, Folder, Order
from quoron.planning.plans import Prepared
from quoron.results import restored
from quoron.simulation.problem import Setup
from quoron_client.compute.enforcement import bounded
from quoron_client.federation.config import PUBLIC_PARTICIPATION, TRUST_MODELS, TWO_SERVERS, ClientConfig
from quoron_client.federation.own_table import OwnItems
from quoron_client.federation.session import run_client
from quoron_client.federation.work import Worker
from quoron_client.protocol.questions import Status
from quoron_client.protocol.wire import answer_to_wire, question_from_wire
from quoron_privacy.errors import QuoronError
from quoron_protos.v1 import federation_pb2 as federation
from quoron_server.service.certificates import Revocations
from quoron_server.service.coordinator import Coordinator, ServeConfig
from quoron_server.service.program import LEAVING, allow_many_files, serve
from quoron_server.service.security import Transport

SIMULATION = "simulation.pickle"
EPSILON, DELTA = 8.0, 1e-4  # what a client's owner allows in a federation that is kept, as in docker-compose.yml
WAITING = 75.0  # seconds in which clients come back to a coordinator of such a federation
LARGEST = 64 << 20  # bytes of an answer in a simulation; for real as `quoron serve`
LOOK = 0.05
LATER = 60.0  # seconds until a client that has failed tries again
LONGEST = 1000  # characters of why a client has failed, which are written to the supervisor at once or not at all
ONE_SERVER = tuple(model for model in TRUST_MODELS if model != TWO_SERVERS)  # no second operator is on this machine
_LOG = logging.getLogger("quoron")


@dataclass(frozen=True, slots=True)
class Simulation:
    """What a simulation hands to the processes of its federation."""

    setup: Setup  # whose users the clients are, with the inline engine, which draws who fails to answer
    slow: float  # seconds that every answer takes more


def coordinator(folder: Folder, order: Order, simulation: Simulation | None, status: int) -> None:
    """Coordinate until SIGTERM; say on `status` where it listens and how many clients are here."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    gc.set_threshold(200_000, 20, 20)  # as of a command
    own, before = folder.coordinator, (folder.path / "store" / "coordinator.sqlite-acknowledged").exists()
    transport = Transport(
        own / "certificate.pem", own / "key.pem", own / "authority.pem", revoked=Revocations(own / "revoked.json")
    )
    simulated = simulation is not None
    config = ServeConfig(
        transport,
        order.listen,
        order.control,
        folder.database_url,
        own / "tokens.json",
        allow_simulation=simulated,
        max_users_per_client=max(order.people, default=1),
        max_clients=max(2 * order.clients, 64),
        waiting=0.0 if simulated or not before else WAITING,
        evaluate=None if simulation is None else simulation.setup.evaluate,
        max_message=LARGEST if simulated else LARGEST >> 4,
    )
    counting: list[asyncio.Task[None]] = []

    def ready(running: Coordinator) -> None:
        _say(status, f"listening {running.listen} {running.control}")
        counting.append(asyncio.ensure_future(_count(running, status)))

    asyncio.run(serve(Coordinator(config), ready=ready, timeout=LEAVING))


async def _count(running: Coordinator, status: int) -> None:
    shown = -1
    while True:
        if running.sessions.connected != shown:
            shown = running.sessions.connected
            _say(status, f"here {shown}")
        await asyncio.sleep(LOOK)


def clients(folder: Folder, order: Order, simulation: Simulation | None, numbers: tuple[int, ...], status: int) -> None:
    """Be these clients until SIGTERM."""

    async def run_all() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, stop.set)
        loop.set_default_executor(ThreadPoolExecutor(len(numbers) + 2))  # one that is slow keeps nobody waiting
        await asyncio.gather(
            *(_client(folder.client(number), order, simulation, number, stop, status) for number in numbers)
        )

    asyncio.run(run_all())


async def _client(
    place: Path,
    order: Order,
    simulation: Simulation | None,
    number: int,
    stop: asyncio.Event,
    status: int,
) -> None:
    """Until `stop`. What ends it before is said on `status`, ends no other client of this process, and may pass."""
    simulated = simulation is not None
    config = ClientConfig(
        coordinator=order.listen,
        data=place / ITEMS,
        record=place / "record.sqlite",
        certificate=place / "certificate.pem",
        key=place / "key.pem",
        authority=place / "authority.pem",
        lifetime_epsilon=np.inf if simulated else EPSILON,
        lifetime_delta=1.0 if simulated else DELTA,
        accept_trust_models=(*ONE_SERVER, PUBLIC_PARTICIPATION) if simulated else ("central-broadcast", "local"),
        simulation_seed=order.simulation_seed,
        user_column=order.user,
        people=order.people[number - 1] if order.people else None,
    )
    worker: Callable[..., Worker] = Worker.of
    if simulation is not None:
        items = partial(items_of, simulation, number)
        worker = partial(SimulatedWorker, items=items, simulation=simulation, number=number)
    while not stop.is_set():
        try:
            await run_client(config, stop=stop, worker=worker)
        except Exception as error:
            words = str(error) if isinstance(error, QuoronError) else f"{type(error).__name__}: {error}"
            _LOG.error("client %d: %s", number, words, exc_info=not isinstance(error, QuoronError))
            _say(status, f"failed {number} {' '.join(words.split())[:LONGEST]}")
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), LATER)


def items_of(simulation: Simulation, number: int, *_: object) -> OwnItems:
    """Return the items of the user whose client this is (from 1), as the inline engine has them."""
    people = simulation.setup.population
    items = people.items(np.array([number - 1]))
    return OwnItems(items if getattr(people, "generates_items", False) else bounded(items, people.loss), None)


@dataclass(slots=True, kw_only=True)
class SimulatedWorker(Worker):
    """The client of a user of a simulation, with the user's faults."""

    simulation: Simulation
    number: int  # of the client, from 1

    def reply(self, message: federation.Question, *, ready: bool = True) -> bytes | None:
        """Return the answer to a question, unless it was ordered that there is none."""
        engine = self.simulation.setup.engine
        assert isinstance(engine, InlineEngine)
        if ready and self.simulation.slow:
            time.sleep(self.simulation.slow)
        fault = int(engine.faults(np.array([self.number - 1]), message.round)[0])
        if fault == Corruption.MISSING:
            return None
        if fault not in SENT:
            return Worker.reply(self, message, ready=ready)
        run, number, digest, task = question_from_wire(message)
        part = self.parts.get(run)
        if part is None:
            return None
        values = np.full(task.answer_shape(part.terms.dimension), SENT[fault])
        return bytes(answer_to_wire(run, number, digest, values, Status.ANSWERED).SerializeToString())


def _say(status: int, line: str) -> None:
    os.write(status, f"{line}\n".encode())


def write(folder: Folder, prepared: Prepared[Setup], slow: float = 0.0) -> None:
    """What a simulation hands to the processes of its federation."""
    (folder.path / SIMULATION).write_bytes(pickle.dumps(Simulation(prepared.setup, slow), pickle.HIGHEST_PROTOCOL))


def read(folder: Folder) -> Simulation | None:
    """Return the simulation; None where there is none."""
    path = folder.path / SIMULATION
    if not path.exists():
        return None
    simulation = pickle.loads(path.read_bytes())  # of the process that started us, in a private folder
    assert isinstance(simulation, Simulation)
    return simulation


AGAIN, QUICK, TRIES = 0.2, 2.0, 5  # seconds before a restart; shorter lives than this fail, after so many tries
TIMEOUT = 6.0  # seconds that those who are asked to end may take


@dataclass(slots=True)
class Child:
    """A process, or one that is to be."""

    numbers: tuple[int, ...] = ()  # of the clients in it; none: the coordinator
    process: ForkProcess | None = None
    began: float = 0.0
    due: float = 0.0  # when it is to begin
    short: int = 0  # lives that were none, in a row

    @property
    def kind(self) -> str:
        """Whose process it is."""
        return "clients" if self.numbers else "coordinator"


@dataclass(slots=True)
class Supervisor:
    """One federation's processes."""

    folder: Folder
    order: Order
    ear: Connection | None  # to its parent
    simulation: Simulation | None = None
    children: list[Child] = field(default_factory=list)
    here: int = 0  # clients in conversation
    leaving: bool = False
    failed: bool = False  # somebody without whom a simulation cannot go on
    saying: int = -1  # the pipe that children write to
    hearing: int = -1  # and its other end

    def supervise(self) -> None:
        """Until the socket ends, or SIGTERM."""
        self.hearing, self.saying = os.pipe()
        os.set_blocking(self.hearing, False)
        signal.signal(signal.SIGTERM, self._leave)
        self._note()  # whom to stop, before anybody is there
        while not self.leaving:
            self._begin_due()
            ends = [child.process.sentinel for child in self.children if child.process is not None]
            ready = wait([self.hearing, *ends, *([] if self.ear is None else [self.ear])], AGAIN)
            self._hear()
            if self.ear in ready:
                self._obey()
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
                child.process = ForkProcess(target=self._live, args=(child,), daemon=True)
                child.process.start()
                self._note()

    def _live(self, child: Child) -> None:
        """The life of a copy of this process."""
        if self.ear is not None:
            self.ear.close()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        gc.enable()
        place = self.folder.client(child.numbers[0]) if child.numbers else self.folder.path
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        log = os.open(place / ("client.log" if child.numbers else "coordinator.log"), flags, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        random.seed()  # or all would wait for the same times
        log_limit.begin()
        threading.Thread(target=_die_with_parent, daemon=True).start()
        if child.numbers:
            clients(self.folder, self.order, self.simulation, child.numbers, self.saying)
        else:
            coordinator(self.folder, self.order, self.simulation, self.saying)

    def _reap(self) -> None:
        """Start dead processes again, except those that die at once each time."""
        for child in self.children:
            if child.process is not None and not child.process.is_alive():
                self._hear()
                exited = (child.process.exitcode or 0) >= 0  # rather than being killed by a signal
                child.process = None
                if not child.numbers:
                    self.here = 0
                child.short = child.short + 1 if exited and time.monotonic() - child.began < QUICK else 0
                child.due = time.monotonic() + AGAIN * 2 ** min(child.short, 6)
                if child.short == TRIES:
                    own = f"clients/client-{child.numbers[0]}/client.log" if child.numbers else "coordinator.log"
                    self._fail(f"One of the {child.kind} does not live: {self.folder.last_words(own)}")

    def _hear(self) -> None:
        """What children say, a line each, which comes as a whole."""
        data = b""
        with suppress(BlockingIOError):
            while more := os.read(self.hearing, 1 << 16):
                data += more
        for kind, *rest in (line.decode(errors="replace").split(maxsplit=2) for line in data.splitlines()):
            if kind == "listening":
                self._listens(*rest)
            elif kind == "here":
                self.here = int(rest[0])
                self._note()
                self._report(here=self.here)
            elif kind == "failed":
                self._fail(f"Client {' has failed: '.join(rest)}")

    def _listens(self, listen: str, control: str) -> None:
        """From now on at these addresses, however often it dies; clients come once they are known."""
        self.order = replace(self.order, listen=listen, control=control)
        if len(self.children) == 1:
            self.children += [Child(tuple(numbers)) for numbers in self.order.split]
        self._report(listening=[listen, control])

    def _obey(self) -> None:
        assert self.ear is not None
        try:
            word = self.ear.recv()
        except (EOFError, OSError):
            for child in self.children:
                if child.process is not None:
                    child.process.kill()
            self.leaving = True
            return
        if word == "begin":
            self.simulation = read(self.folder)
            gc.freeze()  # what is there now no child has to look through, nor to copy
            self.children = [Child()]
        elif word == "stop":
            self._end()
            self._report(stopped=True)
        elif word == "keep":
            self.ear.close()
            self.ear = None

    def _fail(self, words: str) -> None:
        """Report to waiting callers at once. A simulation ends: with a client less it would not be bit-identical."""
        self._report(failed=words)
        self.failed = self.order.simulation_seed is not None

    def _report(self, **what: Any) -> None:
        if self.ear is not None:
            with suppress(OSError):
                self.ear.send(what)

    def _note(self) -> None:
        """For `quoron local status`, and for callers that end processes."""
        running = {"supervisor": os.getpid(), "listen": self.order.listen, "control": self.order.control}
        running |= {"here": self.here, "clients": self.order.clients}
        found = [(child.numbers, None if child.process is None else child.process.pid) for child in self.children]
        running |= {"coordinator": next((process for numbers, process in found if not numbers), None)}
        running |= {"processes": [[list(numbers), process] for numbers, process in found if numbers]}
        with suppress(OSError):
            self.folder.write(RUNNING, running)

    def _end(self) -> None:
        """Clients first, then the coordinator; who takes too long is killed."""
        for kind in ("clients", "coordinator"):
            some = [child.process for child in self.children if child.kind == kind and child.process is not None]
            ends = time.monotonic() + TIMEOUT
            for process in some:
                process.terminate()
            for process in some:
                process.join(max(0.0, ends - time.monotonic()))
                process.kill()
                process.join()
        self.children = []
        with suppress(OSError):
            (self.folder.path / RUNNING).unlink(missing_ok=True)


def _die_with_parent() -> None:
    """End this process when its parent has ended, however that was."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def main() -> None:
    """Keep a federation whose lock has been handed over."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's is for its parent
    allow_many_files()  # of clients that share a process, each has some
    folder, ear = Folder(Path(sys.argv[1])), Connection(int(sys.argv[2]))
    order = restored(Order, folder.read(ORDER))
    Supervisor(folder, order, ear).supervise()  # the folder's lock is open: the parent gave it
    if order.passing:
        shutil.rmtree(folder.path, ignore_errors=True)
