"""What a local federation's processes do once they are there: coordinate, or be clients.

A made-up user's items are in a file as they are: no table's rows become these very bits.

What a run will ask, asked once before anybody is there: loops are compiled, or found, once and not by each client.

write(folder, prepared)        # whoever starts a federation
carry_out(folder)              # the process that its clients are copies of
"""

import asyncio
import gc
import json
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from quoron import config as configs
from quoron.data.users import Corruption
from quoron.federation.folder import ITEMS, Faults, Folder, Order, reached
from quoron.planning.plans import Prepared
from quoron.simulation import problem
from quoron.simulation.problem import Setup
from quoron_client.compute.draws import user_keys
from quoron_client.compute.enforcement import bounded
from quoron_client.compute.work import answer, local_report
from quoron_client.data.items import ItemBatch
from quoron_client.federation import log_limit
from quoron_client.federation.client import run_client, take_part
from quoron_client.federation.config import PUBLIC_PARTICIPATION, TRUST_MODELS, TWO_SERVERS, ClientConfig
from quoron_client.federation.own_table import OwnItems
from quoron_client.federation.record import Record
from quoron_client.federation.work import Worker
from quoron_client.losses import make_loss
from quoron_client.protocol.questions import Answers, LocalReport, Status, Task, summed
from quoron_client.protocol.wire import answer_to_wire, question_from_wire, question_to_wire, task_name
from quoron_client.randomisers import SeededRandomness
from quoron_privacy.errors import QuoronError
from quoron_privacy.noise.streams import SeededNoise, StartedNoise
from quoron_protos.v1 import federation_pb2 as federation
from quoron_server.algorithms import ALGORITHMS
from quoron_server.rounds import Evaluate
from quoron_server.service.certificates import Revocations
from quoron_server.service.coordinator import LEAVING, Coordinator, ServeConfig, serve
from quoron_server.service.security import Transport


def save_items(path: Path, batch: ItemBatch) -> None:
    """Write the items of one user."""
    more: dict[str, Any] = {} if batch.weights is None else {"weights": batch.weights}
    np.savez(path, features=batch.features, labels=batch.labels, offsets=batch.offsets, **more)


def load_items(path: Path) -> ItemBatch:
    """What `save_items` wrote."""
    with np.load(path, allow_pickle=False) as stored:
        return ItemBatch(stored["features"], stored["labels"], stored["offsets"], stored.get("weights"))


MADE = "items.npz"  # a made-up user's items, as they are
POPULATION, FRAME = "population.toml", "population.arrow"  # whom a simulation measures models on
EPSILON, DELTA = 8.0, 1e-4  # what a client's owner allows in a federation that is kept, as in docker-compose.yml
GATHER = 75.0  # seconds in which clients come back to a coordinator of such a federation
LARGEST = 64 << 20  # bytes of an answer in a simulation; for real as `quoron serve`
LOOK = 0.05
LATER = 60.0  # seconds until a client that has failed tries again
LONGEST = 1000  # characters of why a client has failed, which are written to the keeper at once or not at all
ONE_SERVER = tuple(each for each in TRUST_MODELS if each != TWO_SERVERS)  # no second operator is on this machine
_SENT = {Corruption.HUGE: 1e300, Corruption.NAN: np.nan, Corruption.INF: np.inf, Corruption.ZERO: 0.0}
_LOG = logging.getLogger("quoron")
_lifeline: int = -1


def watch_over(lifeline: int) -> None:
    """The pipe whose end is that of the keeper, for its children."""
    global _lifeline
    _lifeline = lifeline


def _begin() -> None:
    """In a process of its own: it dies with its keeper, says what it does, and leaves no dump."""
    log_limit.begin()

    def die() -> None:
        os.read(_lifeline, 1)
        os._exit(1)

    threading.Thread(target=die, daemon=True).start()


def coordinator(folder: Folder, order: Order, status: int) -> None:
    """Coordinate until SIGTERM; say on `status` where it listens and how many clients are here."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    gc.set_threshold(200_000, 20, 20)  # as of a command
    _begin()
    own, before = folder.coordinator, (folder.path / "books" / "coordinator.sqlite-acknowledged").exists()
    transport = Transport(
        own / "certificate.pem", own / "key.pem", own / "authority.pem", revoked=Revocations(own / "revoked.json")
    )
    simulated = order.simulation_seed is not None
    config = ServeConfig(
        transport,
        order.listen,
        order.control,
        folder.books,
        own / "tokens.json",
        allow_simulation=simulated,
        max_users_per_client=max(order.people, default=1),
        max_clients=max(2 * order.clients, 64),
        gather=0.0 if simulated or not before else GATHER,
        evaluate=_evaluate(folder) if simulated else None,
        max_message=LARGEST if simulated else LARGEST >> 4,
    )
    counting: list[asyncio.Task[None]] = []

    def ready(running: Coordinator) -> None:
        _say(status, f"listening {running.listen} {running.control}")
        counting.append(asyncio.ensure_future(_count(running, status)))

    asyncio.run(serve(config, ready=ready, patience=LEAVING))


async def _count(running: Coordinator, status: int) -> None:
    shown = -1
    while True:
        if running.sessions.connected != shown:
            shown = running.sessions.connected
            _say(status, f"here {shown}")
        await asyncio.sleep(LOOK)


def _evaluate(folder: Folder) -> Evaluate | None:
    """How good a model is, by whoever holds the simulated users, who are looked for when it is first asked."""
    if not (folder.path / POPULATION).exists():
        return None

    @cache
    def people() -> problem.Setup:
        config, frame = configs.located(configs.from_tree(configs.read(folder.path / POPULATION)), folder.path), None
        if (folder.path / FRAME).exists():
            with pa.memory_map(str(folder.path / FRAME)) as source:
                frame = pa.ipc.open_file(source).read_all()
        return problem.setup(config, folder.path, frame)

    return lambda model: people().evaluate(model)


def clients(folder: Folder, order: Order, numbers: tuple[int, ...], died: frozenset[int], status: int) -> None:
    """Be these clients until SIGTERM; `died` have been killed before."""
    _begin()
    asyncio.run(_clients(folder, order, numbers, died, status))


async def _clients(folder: Folder, order: Order, numbers: tuple[int, ...], died: frozenset[int], status: int) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.set_default_executor(ThreadPoolExecutor(len(numbers) + 2))  # one that is slow keeps nobody waiting
    await asyncio.gather(
        *(
            _client(folder.client(number), order, number, _dies(number, died, status, order.faults), stop, status)
            for number in numbers
        )
    )


def _dies(number: int, died: frozenset[int], status: int, faults: Faults) -> Callable[[int], None]:
    def maybe(round_: int) -> None:
        if faults.killed(number, round_, before=number in died):
            _say(status, f"dying {number}")
            os.kill(os.getpid(), signal.SIGKILL)

    return maybe


async def _client(
    place: Path,
    order: Order,
    number: int,
    dies: Callable[[int], None],
    stop: asyncio.Event,
    status: int,
) -> None:
    """Until `stop`. What ends it before is said on `status`, ends no other client of this process, and may pass."""
    simulated = order.simulation_seed is not None
    made = simulated and (place / MADE).exists()
    config = ClientConfig(
        coordinator=reached(order.listen),
        data=place / (MADE if made else ITEMS),
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
    corruption = order.corruption[number - 1] if order.corruption else Corruption.HONEST
    user = User(number, order, Corruption(corruption), dies)
    while not stop.is_set():
        try:
            if simulated:
                await take_part(
                    config, stop=stop, worker=lambda owner, record: SimulatedWorker.of(owner, record, user, made=made)
                )
            else:
                await run_client(config, stop=stop)
        except Exception as error:
            words = str(error) if isinstance(error, QuoronError) else f"{type(error).__name__}: {error}"
            _LOG.error("client %d: %s", number, words, exc_info=not isinstance(error, QuoronError))
            _say(status, f"failed {number} {' '.join(words.split())[:LONGEST]}")
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), LATER)


@dataclass(frozen=True, slots=True)
class User:
    """What a simulated client does."""

    number: int
    order: Order
    corruption: Corruption
    dies: Callable[[int], None]


@dataclass(slots=True)
class SimulatedWorker(Worker):
    """A client with faults, and of a made-up user with its items as they are."""

    simulated: User | None = None

    @classmethod
    def of(cls, owner: ClientConfig, record: Record, user: User, *, made: bool) -> "SimulatedWorker":
        """`made`: its items are a file of numbers, not of a table."""
        worker = cls(owner, record, simulated=user)
        if made:
            worker.items = lambda path, _: OwnItems(load_items(path), None)
        return worker

    def reply(self, message: federation.Question, *, ready: bool = True) -> bytes | None:
        """The answer to a question, unless it was ordered that there is none."""
        user = self.simulated
        assert user is not None
        faults, order = user.order.faults, user.order
        user.dies(message.round)
        if ready and (delay := faults.delay(user.number, order.clients)):
            time.sleep(delay)
        if user.corruption == Corruption.MISSING or faults.silent(
            user.number, message.round, order.simulation_seed or 0
        ):
            return None
        if user.corruption not in _SENT:
            return Worker.reply(self, message, ready=ready)
        run, number, digest, task = question_from_wire(message)
        part = self.parts.get(run)
        if part is None:
            return None
        values = np.full(task.answer_shape(part.terms.dimension), _SENT[user.corruption])
        return bytes(answer_to_wire(run, number, digest, values, Status.ANSWERED).SerializeToString())


def _say(status: int, line: str) -> None:
    os.write(status, f"{line}\n".encode())


QUESTIONS, REHEARSAL_ITEMS = "rehearsal.json", "rehearsal.npz"
ROUNDS, MOST = 64, 1 << 24  # looked at; numbers that the answers of one may have


def write(folder: Folder, prepared: Prepared[Setup]) -> None:
    """A question of each kind that the run asks, and one user's items to answer it with."""
    loss = prepared.scene.population.loss
    found = {kind: message.SerializeToString().hex() for kind, message in _questions(prepared).items()}
    told = {"loss": {"name": loss.name, **loss.bounds}, "questions": list(found.values())}
    (folder.path / QUESTIONS).write_text(json.dumps(told), encoding="utf-8")
    save_items(folder.path / REHEARSAL_ITEMS, prepared.scene.population.items(np.zeros(1, np.int64)))


def _questions(prepared: Prepared[Setup]) -> dict[str, federation.Question]:
    """By kind, of rounds in which everybody answers zero."""
    plan, found = prepared.planned.plan, dict[str, federation.Question]()
    algorithm, noise = ALGORITHMS[plan.algorithm].make(plan), StartedNoise.simulated(SeededNoise(0))
    state = algorithm.init()
    for _ in range(ROUNDS):
        question = algorithm.request(state, noise)
        if question is None:
            break
        if len(question.cohort):
            message = question_to_wire(question, 0, run="rehearsal", user=0, seconds=1)
            found.setdefault(_kind(question.task), message)
        shape = (len(question.cohort), *question.task.answer_shape(plan.problem.dimension))
        if prod(shape) > MOST:
            break
        answers = Answers(np.zeros(shape), np.zeros(shape[0], np.uint8))
        told = answers if question.reduction is None else summed(answers, question.reduction)
        state = algorithm.update(state, told, noise).state
    return found


def _kind(task: Task) -> str:
    """What decides which loops answer it."""
    return f"{task_name(task)} of {len(getattr(task, 'weights', ()))}"


def carry_out(folder: Folder) -> None:
    """Answer what was written, if anything was."""
    if not (folder.path / QUESTIONS).exists():
        return
    told = json.loads((folder.path / QUESTIONS).read_text(encoding="utf-8"))
    loss = make_loss(**told["loss"])
    batch, nobody = bounded(load_items(folder.path / REHEARSAL_ITEMS), loss), np.zeros(1, np.int64)
    for text in told["questions"]:
        task = question_from_wire(federation.Question.FromString(bytes.fromhex(text)))[3].directed(0)
        if isinstance(task, LocalReport):
            local_report(loss, batch, task, SeededRandomness(0), round=0, users=nobody)
        else:
            answer(loss, batch, task, keys=user_keys(0, nobody))
