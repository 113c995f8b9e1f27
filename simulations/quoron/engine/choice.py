"""Engines carry a run out: this process, a Ray cluster, nodes of Flower, or a federation on this machine.

The bits are the same.

quoron.simulate("quickstart", engine=Service(clients=20))
quoron.simulate("quickstart", engine="service:clients=20")

Workers share the users (`ShardedEngine`): one question is asked of all shards at once, and their answers put together.
What a user answers depends on that user and the question alone. Rows come back piece by piece, each of bounded size,
and go to their users' slots; sums are of integers, and add up the same in any order. A worker that dies is replaced by
another with the same users, and asked again what it had not answered: nothing that it knew is lost with it.

Users are cut into as many equal stretches as there are workers: by number, or of files by where they are, so that a
worker reads its own part of them. What is made up when it is asked for needs no cutting of data.
"""

import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from importlib.util import find_spec
from math import prod
from typing import TYPE_CHECKING, Any, Union

import numpy as np
from numpy.typing import NDArray

from quoron.arguments import shortened
from quoron.data.users import Users
from quoron.engine import processes
from quoron.engine.inline import Indices, InlineEngine, Response, merged, part_of, stored_or_recomputed
from quoron.engine.processes import Died
from quoron.engine.processors import processors
from quoron.toml_text import pairs
from quoron_client.protocol.questions import Question
from quoron_privacy.errors import ConfigError, RunError, count, nearest
from quoron_privacy.noise.streams import NoiseSource

if TYPE_CHECKING:
    from quoron.engine import on_ray
    from quoron.planning.plans import Prepared
    from quoron.simulation.problem import Setup


@dataclass(frozen=True, slots=True)
class KeyedRandomness:
    """Users' own random words for local reports, from the noise of this start: none serves a second table."""

    noise: NoiseSource

    def words(self, *, round: int, users: Users, first: int, size: int) -> NDArray[np.uint64]:
        """Words `first` to `first + size` of each user's stream of this round, shape (k, size)."""
        streams = (self.noise.stream("local report", round, int(user)) for user in users)
        return np.stack([stream.words(first + size)[first:] for stream in streams])


PIECE = 16 << 20  # bytes of answers that are on their way from one worker
TRIES = 3  # workers that may die in a row over one piece


Worker = Union[processes.Worker, "on_ray.Actor"]  # a process that answers for one shard
Start = Callable[[bytes], Worker]  # of a pickled service


class ShardedEngine(AbstractContextManager["ShardedEngine"]):
    """Asks as many workers as there are shards, at most one a user, what an engine would answer; `close` ends them.

    Workers are started when they are first asked, and `after` is called when all have ended.
    """

    def __init__(
        self, engine: InlineEngine, workers: int, start: Start, after: Callable[[], None] = lambda: None
    ) -> None:
        population = engine.population
        users, self.shards = population.users, min(workers, population.users)
        stored = getattr(population, "storage", None)
        place = np.arange(users) if stored is None else stored()
        self.shard_of = (place * self.shards // users).astype(np.int32)  # (n,)
        self.population, self.replaced = population, 0  # workers that have died and were replaced
        self._start, self._engine, self._after = start, engine, after
        self._workers: dict[int, Worker] = {}
        self._threads: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    def ask(self, question: Question) -> Response:
        """Answers of the question's cohort."""
        return stored_or_recomputed(self._answers, question, self.population)

    def _answers(self, question: Question) -> Any:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self.shards, thread_name_prefix="quoron-shard")
        shards = self.shard_of[question.cohort]
        slots = [(shard, np.flatnonzero(shards == shard)) for shard in range(self.shards)]
        waiting = [
            self._threads.submit(self._shard, shard, question, own) for shard, own in slots if len(own) or shard == 0
        ]
        pieces = [piece for future in waiting for piece in future.result()]
        return merged(question, iter(pieces), self.population.dimension)

    def close(self) -> None:
        """End all workers, and whatever was started for them."""
        try:
            if self._threads is not None:
                self._threads.shutdown(cancel_futures=True)
                self._threads = None
            for worker in self._workers.values():
                worker.close()
            self._workers.clear()
        finally:
            self._after()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _shard(self, shard: int, question: Question, own: Indices) -> list[tuple[Indices, Response]]:
        return [(piece, self._respond(shard, part_of(question, piece))) for piece in self._pieces(question, own)]

    def _pieces(self, question: Question, own: Indices) -> Iterator[Indices]:
        if question.reduction is not None:  # sums are small, for any users
            yield own
            return
        row = 8 * prod(question.task.answer_shape(self.population.dimension)) + 1
        most = max(1, PIECE // row)
        yield from (own[first : first + most] for first in range(0, max(1, len(own)), most))

    def _service(self, shard: int) -> bytes:
        """Return a worker's pickled engine: of its users, or of all where users are synthesised when asked."""
        part = getattr(self.population, "part", None)
        population = self.population if part is None else part(np.flatnonzero(self.shard_of == shard))
        return pickle.dumps(self._engine.over(population).ask, pickle.HIGHEST_PROTOCOL)

    def _respond(self, shard: int, question: Question) -> Response:
        died: Died | None = None
        for _ in range(TRIES):
            worker = self._workers.get(shard)
            try:
                if worker is None:
                    worker = self._workers[shard] = self._start(self._service(shard))
                return worker.ask(question)
            except Died as error:
                died = error
                with self._lock:
                    self.replaced += 1
                if (gone := self._workers.pop(shard, None)) is not None:
                    gone.close()
        raise RunError(
            f"Expected an answer from worker {shard} of {self.shards} in round {question.round}, but {TRIES} in a "
            f"row have died over it: try fewer workers. Nothing is lost: the run can be resumed, with any number of "
            f"them. {died}"
        )


def of_processes(engine: InlineEngine, workers: int) -> ShardedEngine:
    """Return the same engine over workers that share this machine's processors; the caller closes it."""
    return ShardedEngine(engine, workers, partial(processes.Worker, threads=max(1, processors() // workers)))


def _check_fields(engine: "Engine", *, needs: str | None = None, extra: str = "") -> None:
    """Raise ConfigError for a field of another kind, or where the package that the engine `needs` is not installed."""
    for field in fields(engine):
        name, value = field.name, getattr(engine, field.name)
        if field.type == int | None and value is not None:
            count(**{name: value})
        if field.type == str | None and (value == "" or not isinstance(value, str | None)):
            raise ConfigError(f"Expected {name} as a text, got {name}={value!r}.")
    if needs is not None and find_spec(needs) is None:
        raise ConfigError(
            f"Expected {needs} for the engine {type(engine).__name__}, got none. pip install 'quoron[{extra}]'."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Inline:
    """This process, or worker processes that share the users."""

    workers: int | None = None  # None: no workers; in a comparison the number of runs at once

    def __post_init__(self) -> None:
        _check_fields(self)

    def over(self, engine: InlineEngine) -> InlineEngine | ShardedEngine:
        """Return the engine, or the same over workers; the caller closes that."""
        return engine if self.workers is None else of_processes(engine, self.workers)


INLINE = Inline()  # without workers


@dataclass(frozen=True, slots=True, kw_only=True)
class Ray:
    """Workers on a Ray cluster that share the users."""

    workers: int | None = None  # default: one a processor
    address: str | None = None  # HOST:PORT, or auto; default: the cluster that this process is part of

    def __post_init__(self) -> None:
        _check_fields(self)

    def over(self, engine: InlineEngine) -> ShardedEngine:
        """Return the same engine over workers; the caller closes it."""
        from quoron.engine import on_ray

        return ShardedEngine(engine, self.workers or processors(), on_ray.Actor, after=on_ray.joined(self.address))


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A coordinator and a client for each user on this machine."""

    clients: int | None = None  # the first users; default: all users
    workers: int | None = None  # processes that the clients share; default: one a processor
    slow: int | None = None  # milliseconds that every answer of a client takes more
    timeout: int | None = None  # seconds that a round waits for a client that is missing; default 600

    def __post_init__(self) -> None:
        _check_fields(self, needs="grpc", extra="federation")


@dataclass(frozen=True, slots=True, kw_only=True)
class Flower:
    """Simulated SuperNodes of Flower on this machine."""

    nodes: int | None = None  # default 50
    cpus: int | None = None  # processors for them; default all

    def __post_init__(self) -> None:
        _check_fields(self, needs="flwr", extra="flower")


Engine = Inline | Ray | Flower | Service
ENGINES: dict[str, type[Engine]] = {"inline": Inline, "ray": Ray, "flower": Flower, "service": Service}


def from_spec(engine: str | Engine) -> Engine:
    """Return the engine that a text such as `ray:address=auto,workers=8` means; an engine itself as it is.

    A name, and behind a colon its fields as KEY=VALUE with commas between them.

    >>> from_spec("inline:workers=4")
    Inline(workers=4)

    Raises:
        ConfigError: for an unknown name, a key that the engine does not have, and a value that it refuses.
    """
    if not isinstance(engine, str):
        if not isinstance(engine, Engine):
            raise ConfigError(f"Expected engine as a text or as Inline(workers=...), got engine={shortened(engine)}.")
        return engine
    name, colon, listed = engine.partition(":")
    if name not in ENGINES:
        close = nearest(name, ENGINES, "Write NAME:KEY=VALUE.")
        raise ConfigError(f"Expected the engine inline, ray, flower or service, got {name!r}. {close}")
    keys = {other: {field.name: field.type for field in fields(kind)} for other, kind in ENGINES.items()}
    kinds, typed = keys[name], listed.split(",") if colon else ()
    listing = (" ".join((other, ", ".join(of))) for other, of in keys.items())
    otherwise = f"Engines and their keys: {'; '.join(listing)}."
    given = pairs(f"the engine {name}", typed, kinds, otherwise=otherwise)
    given |= {key: int(value) for key, value in given.items() if kinds[key] == int | None and value.isdecimal()}
    try:
        return ENGINES[name](**given)
    except ConfigError as error:
        error.add_note(f"This is of the engine {engine!r}.")
        raise


def inline_or_ray(engine: str | Engine) -> Inline | Ray:
    """Return the engine, as `from_spec`. Raises ConfigError for one whose nodes or clients hold the users."""
    chosen = from_spec(engine)
    if isinstance(chosen, Flower | Service):
        raise ConfigError(
            f"Expected the engine inline or ray for training, got {type(chosen).__name__}, whose nodes "
            "or clients are those of one run. Simulate with it, or submit to a federation."
        )
    return chosen


@contextmanager
def shared(prepared: "Prepared[Setup]", engine: Inline | Ray) -> "Iterator[Prepared[Setup]]":
    """The same run with the engine's workers for its users, for as long as it takes; without any, in this process."""
    setup = prepared.setup
    if isinstance(engine, Inline) and engine.workers is None:
        yield replace(prepared, setup=setup.remembering(prepared.planned.plan))
        return
    assert isinstance(setup.engine, InlineEngine)
    workers = engine.over(setup.engine)
    assert isinstance(workers, ShardedEngine)
    with workers:
        yield replace(prepared, setup=replace(setup, engine=workers))
