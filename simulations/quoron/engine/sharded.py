"""One question asked of all shards at once, and their answers put together: the same bits for any number of workers.

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
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from quoron.data.users import Users
from quoron.engine.inline import Indices, InlineEngine, Told, looked_at_again, part_of, together
from quoron.engine.processes import Died, Workers
from quoron.engine.processors import processors
from quoron_client.protocol.questions import Question
from quoron_privacy.errors import RunError
from quoron_privacy.noise.streams import NoiseSource


@dataclass(frozen=True, slots=True)
class KeyedRandomness:
    """Users' own random words for local reports, from the noise of this start: none serves a second table."""

    noise: NoiseSource

    def words(self, *, round: int, users: Users, first: int, size: int) -> NDArray[np.uint64]:
        """Words `first` to `first + size` of each user's stream of this round, shape (k, size)."""
        streams = (self.noise.stream("local report", round, int(user)) for user in users)
        return np.stack([stream.words(first + size)[first:] for stream in streams])

    def require_deployable(self) -> None:
        """Raise RunError unless the key is secret."""
        self.noise.require_deployable()


PIECE = 16 << 20  # bytes of answers that are on their way from one worker
TRIES = 3  # workers that may die in a row over one piece


class Worker(Protocol):
    """A process that answers for one shard."""

    def ask(self, message: Question, /) -> Told:
        """Return its answer. Raises Died; any other QuoronError is the worker's own."""

    def close(self) -> None:
        """End it, whatever it does."""


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

    def ask(self, question: Question) -> Told:
        """Answers of the question's cohort."""
        return looked_at_again(self._answers, question, self.population.dimension) or self._answers(question)

    def _answers(self, question: Question) -> Any:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self.shards, thread_name_prefix="quoron-shard")
        shards = self.shard_of[question.cohort]
        asked = [(shard, np.flatnonzero(shards == shard)) for shard in range(self.shards)]
        waiting = [
            self._threads.submit(self._shard, shard, question, own) for shard, own in asked if len(own) or shard == 0
        ]
        pieces = [piece for each in waiting for piece in each.result()]
        return together(question, iter(pieces), self.population.dimension)

    def close(self) -> None:
        """End all workers, and whatever was started for them."""
        try:
            self._end_workers()
        finally:
            self._after()

    def _end_workers(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
            self._threads = None
        for worker in self._workers.values():
            worker.close()
        self._workers.clear()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _shard(self, shard: int, question: Question, own: Indices) -> list[tuple[Indices, Told]]:
        return [(piece, self._asked(shard, part_of(question, piece))) for piece in self._pieces(question, own)]

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
        people = self.population if part is None else part(np.flatnonzero(self.shard_of == shard))
        return pickle.dumps(self._engine.over(people).ask, pickle.HIGHEST_PROTOCOL)

    def _asked(self, shard: int, question: Question) -> Told:
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
    return ShardedEngine(engine, workers, Workers(max(1, processors() // workers)).start)
