"""The inline engine: a cohort of simulated users answers in this process, chunk by chunk.

    engine = InlineEngine(population)
    answers = engine.ask(question)

What a user answers depends on that user and the question alone, and sums are exact, so the chunk size changes no bit.
Users who are made when they are asked are made, answer and are forgotten in chunks that a processor's cache holds, of
which each thread takes the next.
In the local model users randomise their reports themselves, here with words from `seed`.

Answers too large for memory are blocks of rows that are computed whenever a caller reads them (`RecomputedRows`): a
block has the same bits every time, and only takes longer than rows in memory. Only second moments are that long: d (d
+ 1) / 2 numbers of every user; the gradients after them are as long as other answers, and stay in memory. Blocks are of
slots: items on disk are read in the order of slots, too, where every user is asked in every round.

Of users whose items are on disk those who are read together are asked one piece after the other: any pieces put
together again are the same bits.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property, partial, reduce
from math import prod
from operator import add
from typing import TYPE_CHECKING, Any

import numba
import numpy as np
from numpy.typing import NDArray

from quoron.data.users import Answering, Corruption, Purpose, Users, Vector, uniforms, words
from quoron_client.compute.draws import Keys, user_keys
from quoron_client.compute.enforcement import bounded, smoothness_scale
from quoron_client.compute.gradients import gradient_sums
from quoron_client.compute.work import answer, local_report
from quoron_client.data.items import ItemBatch, Items, ItemView
from quoron_client.protocol.domains import Bounds
from quoron_client.protocol.questions import (
    ANSWERED,
    FAR,
    MISSING,
    Answers,
    AverageGradient,
    LocalReport,
    Matrix,
    MomentAndGradient,
    Question,
    SecondMoment,
    Task,
    summed,
)
from quoron_client.protocol.smoothing import Convolution
from quoron_client.randomisers import LocalRandomness, SeededRandomness
from quoron_privacy.kernels.threads import at_once
from quoron_privacy.means.clipping import ClippedSum
from quoron_privacy.noise.samplers import ascending
from quoron_privacy.release import Sums

if TYPE_CHECKING:
    from quoron.data.population import ItemStore

    StoredItems = ItemBatch | ItemView | ItemStore  # items by number of user
Indices = NDArray[np.int64]
Response = Answers | Sums
MAX_BYTES = 1 << 28  # of answers that stay in memory
BLOCK = 1 << 24  # bytes that are computed at a time


@dataclass(slots=True, eq=False)
class RecomputedRows:
    """Rows (k, p) of the answers to a question; the block read last stays in memory. Threads may read together."""

    ask: Callable[[Question], Response]
    question: Question
    shape: tuple[int, int]
    gradients: Matrix  # (k, d), the last numbers of each row, which stay in memory
    _first: int = -1  # of the block in memory
    _block: Matrix = field(default_factory=lambda: np.zeros((0, 0)))
    _lock: Any = field(default_factory=threading.Lock)

    def __len__(self) -> int:
        return self.shape[0]

    def reshape(self, *shape: int) -> "RecomputedRows":
        """Return the same: a row is a line of numbers as it is."""
        assert shape in (self.shape, (self.shape,))
        return self

    def __getitem__(self, rows: slice | tuple[slice, slice]) -> Matrix:
        if isinstance(rows, tuple):  # of columns, the gradients alone
            rows, columns = rows
            assert columns == slice(self.shape[1] - self.gradients.shape[1], None)
            return self.gradients[rows]
        first, last, step = rows.indices(len(self))
        assert step == 1
        if first >= last:
            return np.zeros((0, self.shape[1]))
        with self._lock:
            starts = range(first - first % self.rows, last, self.rows)
            blocks = [self._of(at)[max(first - at, 0) : last - at] for at in starts]
        return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)

    @property
    def rows(self) -> int:
        """Of a block."""
        return max(1, BLOCK // (8 * self.shape[1]))

    def _of(self, at: int) -> Matrix:
        """Return the block that begins there."""
        if at != self._first:
            self._block = np.zeros((0, 0))  # one at a time is in memory
            self._block, self._first = self.answers_at(at).values, at
        return self._block

    def answers_at(self, at: int) -> Answers:
        """Answers of the users of a block."""
        own = slice(at, at + self.rows)
        answers = self.ask(part_of(self.question, own))
        assert isinstance(answers, Answers)
        return answers


def stored_or_recomputed(ask: Callable[[Question], Response], question: Question, population: Answering) -> Response:
    """Return the response; second moments of too many users for memory are `RecomputedRows`.

    Factors have as many rows as the user of most items, where all items lie in one place: their zeros take no time.
    """
    items: StoredItems | None = getattr(population, "store", None) or getattr(population, "all_items", None)
    if isinstance(question.task, SecondMoment | MomentAndGradient) and items is not None and question.task.rows is None:
        most = min(max(1, items.longest), question.task.dimension)
        question = replace(question, task=replace(question.task, rows=most))
    if not isinstance(question.task, MomentAndGradient) or question.reduction is not None:
        return ask(question)
    users, numbers = len(question.cohort), prod(question.task.answer_shape(population.dimension))
    if 8 * users * numbers <= MAX_BYTES:
        return ask(question)
    size = question.task.model_size
    rows = RecomputedRows(ask, question, (users, numbers), np.empty((users, size)))
    status: NDArray[np.uint8] = np.empty(users, np.uint8)
    for at in range(0, users, rows.rows):
        own, answers = slice(at, at + rows.rows), rows.answers_at(at)
        rows.gradients[own], status[own] = answers.values[:, -size:], answers.status
    return Answers(rows, status)  # type: ignore[arg-type]


_IN_PLACE = 64  # bytes that a user takes whose items are read where they are: its place, its rows, its status
CACHED = 1 << 22  # bytes of items that are made at a time: the last cache holds those of a few threads
# Plain integers: of a member of an enumeration numpy asks a dozen questions before it compares with it.
_HONEST, _SHIFTED, _MISSING, _ZERO = (
    int(kind) for kind in (Corruption.HONEST, Corruption.SHIFTED, Corruption.MISSING, Corruption.ZERO)
)
SENT = {int(Corruption.HUGE): 1e300, int(Corruption.NAN): np.nan, int(Corruption.INF): np.inf, _ZERO: 0.0}


class InlineEngine:
    """Answers questions for a population, in memory bounded by `chunk_bytes` of items at a time, besides the answers.

    Of a question with a reduction it returns the sums, and holds no answers but a chunk's.

    | what a user does                  | row of the answer                                   |
    | --------------------------------- | --------------------------------------------------- |
    | honest, or shifted                | its answer, ANSWERED                                |
    | sends 1e300, NaN or infinity      | zero, REJECTED                                      |
    | sends zeros                       | zero, ANSWERED                                      |
    | never answers, or has no items    | zero, MISSING                                       |
    | drops out of this round           | zero, MISSING                                       |
    | holds a non-finite item           | zero, REJECTED                                      |
    | bad or no items, a local report   | that of a zero gradient, ANSWERED: nobody can tell  |
    | is there, where that is public    | its answer or zero, ANSWERED, whatever it holds     |

    With `dropout` every asked user fails to answer with that probability, independently in every round, drawn by
    (`seed`, round, user). Nothing a user holds or sends raises.
    """

    enclosed = True  # points stay in this process: rounds of a large model share a commit

    def __init__(
        self,
        population: Answering,
        *,
        seed: int = 0,
        chunk_bytes: int = 16 << 20,
        dropout: float = 0.0,
        randomness: LocalRandomness | None = None,
    ) -> None:
        self.population = population
        self._randomness = randomness or SeededRandomness(seed)  # each user's own words, never the server's noise
        self._chunk_bytes = chunk_bytes
        self._seed, self._dropout = seed, dropout
        self._scales: dict[float, Vector] = {}  # of all users in memory, by the bound asked for last

    def over(self, population: Answering) -> "InlineEngine":
        """Return the same engine for other users."""
        other = copy(self)
        other.population, other._scales = population, {}
        other.__dict__.pop("_all_users", None)
        return other

    def ask(self, question: Question) -> Answers | Sums:
        """Sums of the question's reduction, if it has one; else answers of its cohort, in slot order."""
        return stored_or_recomputed(self._respond, question, self.population)

    def _respond(self, question: Question) -> Response:
        return self.rows(question) if question.reduction is None else self._in_pieces(question, self._summed)

    def rows(self, question: Question) -> Answers:
        """Answers of the question's cohort, in slot order."""
        answers = self._in_pieces(replace(question, reduction=None), self._rows)
        assert isinstance(answers, Answers)
        return answers

    def _in_pieces(self, question: Question, ask: Callable[[Question], Response]) -> Response:
        """What is asked of users whose items are on disk: of those who are read together, one piece after the other."""
        pieces = getattr(self.population, "pieces", None)
        if pieces is None or not len(question.cohort):
            return ask(question)
        parts = ((own, ask(part_of(question, own))) for own in pieces(question.cohort))
        return merged(question, parts, self.population.dimension)

    def _summed(self, question: Question) -> Sums:
        totals: list[Sums] = []
        reduction = question.reduction
        assert reduction is not None
        # Gradients are summed as they are computed: the same integers as those of rows.
        fuses = isinstance(question.task, AverageGradient) and self.population.loss.outputs == 1
        loop = reduction if fuses and isinstance(reduction, ClippedSum) else None

        def summed(slots: slice) -> None:
            if loop is not None:
                sums = self._sums(question, loop, slots)
            else:
                part = self._part(question, slots)
                sums = reduction.of(part.values, part.answered)
            with suppress(IndexError):  # so there are never more of them than threads
                sums = sums + totals.pop()
            totals.append(sums)

        self._each_chunk(question, summed, rows=loop is None)
        return reduce(add, totals)

    def _rows(self, question: Question) -> Answers:
        if not self._generates and len(question.cohort) <= self._chunk(question.task, rows=True):
            return self._part(question, slice(None))
        values, status = _silence(len(question.cohort), self.population.dimension, question.task)

        def written(slots: slice) -> None:
            part = self._part(question, slots)
            values[slots], status[slots] = part.values, part.status

        self._each_chunk(question, written, rows=True)
        return Answers(values, status)

    def _each_chunk(self, question: Question, work: Callable[[slice], None], *, rows: bool) -> None:
        """Do `work` for the slots of each chunk, in no order: on all threads, if the users are made there.

        A chunk is as many users as there is memory for, their `rows` too if these stay there; an empty cohort has
        one chunk, which is empty.
        """
        task, users = question.task, max(1, len(question.cohort))
        room = self._chunk(task, rows=rows)
        alone = not self._generates or isinstance(task, LocalReport)  # a client's own words come one by one
        if rows and alone and users > room:
            room = -(-room // 2)  # these rows are there once more until they are kept, and while they are made
        threads = 1 if alone else min(numba.get_num_threads(), -(-users // room))
        chunk = -(-users // (threads * -(-users // (threads * room))))  # as many for each thread
        slots = [slice(start, start + chunk) for start in range(0, users, chunk)]
        at_once([partial(work, part) for part in slots], threads)

    def _chunk(self, task: Task, *, rows: bool) -> int:
        """How many users fit into `chunk_bytes`, with items that are copied, or made, unless they are read in place."""
        copied = _draws(task) or not isinstance(getattr(self.population, "all_items", None), ItemBatch | ItemView)
        return self._room(task, copied=copied, rows=rows)

    @cached_property
    def _all_users(self) -> Users:
        return np.arange(self.population.users)

    @property
    def _generates(self) -> bool:
        """Whether the population makes items, within their bounds, when they are asked for."""
        return getattr(self.population, "generates_items", False)

    def _part(self, question: Question, slots: slice) -> Answers:
        """Answers of some slots."""
        task = question.task.part(slots)
        users = question.cohort[slots]
        values, status = self._chunk_answers(users, task, question.round)
        found = Answers.checked(values, status, largest=self._largest(task))
        if not question.attended:
            return found
        away = self.faults(users, question.round) == _MISSING
        return Answers(found.values, np.where(away, MISSING, ANSWERED))

    def _sums(self, question: Question, reduction: ClippedSum, slots: slice) -> Sums:
        """Return the reduction of some slots' answers, without their rows."""
        users, task, loss = question.cohort[slots], question.task, self.population.loss
        assert isinstance(task, AverageGradient)
        faults = self.faults(users, question.round)
        sums: list[Sums] = []
        if sent := np.count_nonzero(faults == _ZERO):  # what else is wrong is rejected, or never sent
            sums.append(reduction.of(np.zeros((sent, self.population.dimension)), np.ones(sent, np.bool_)))
        for places in self._computing(users, faults, task):
            some, chosen = faults[places], users[places]
            if not self._generates:  # sums have no order, and memory is read best in its own
                total = self.population.users
                chosen = self._all_users if len(chosen) == total else ascending(chosen, total)
            batch, keys = self._items(chosen, some, task), _keys(task, question.round, chosen)
            scale = self._scale(chosen, some, task)
            largest = self._largest(task)
            sums.append(gradient_sums(loss, batch, task, reduction, largest=largest, keys=keys, scale=scale))
        nobody = np.zeros((0, self.population.dimension)), np.zeros(0, np.bool_)
        return reduce(add, sums) if sums else reduction.of(*nobody)

    def _computing(self, users: Users, faults: NDArray[np.uint8], task: Task) -> list[NDArray[np.intp] | slice]:
        """Places of those who compute an answer; apart, where items are read in place, whose items are altered copies.

        Of these, no more at a time than fit into memory.
        """
        in_place = getattr(self.population, "all_items", None) is not None
        computing = faults <= (_HONEST if in_place else _SHIFTED)
        if computing.all():
            return [slice(None)] if len(users) else []
        found = [computing.nonzero()[0]]
        altered = (faults == _SHIFTED).nonzero()[0]
        if in_place and len(altered):
            found += np.array_split(altered, -(-len(altered) // self._room(task, copied=True, rows=True)))
        return [places for places in found if len(places)]

    def _items(self, users: Users, faults: NDArray[np.uint8], task: Task) -> Items:
        """Within their bounds: where they lie, if the population has them in memory; else a copy."""
        stored: StoredItems | None = getattr(self.population, "all_items", None)
        if isinstance(stored, ItemBatch) and users is self._all_users and faults[0] == _HONEST:
            return stored
        if stored is not None and faults[0] == _HONEST:
            return stored.of(users) if _draws(task) else stored.seen(users)  # draws are for every row of a block
        items = self.population.items(users)
        return items if self._generates else bounded(items, self.population.loss)

    def _scale(self, users: Users, faults: NDArray[np.uint8], task: Task) -> Vector | None:
        """How much these users scale their loss down, where that is known: once for all whose items are in memory."""
        stored: StoredItems | None = getattr(self.population, "all_items", None)
        bound = getattr(task, "user_smoothness", None)
        if not isinstance(stored, ItemBatch | ItemView) or bound is None or faults[0] != _HONEST:
            return None
        if bound not in self._scales:
            self._scales = {bound: smoothness_scale(self.population.loss, stored, bound)}
        return self._scales[bound][users]

    def _room(self, task: Task, *, copied: bool, rows: bool) -> int:
        """How many users fit into `chunk_bytes`: their items where they are copied, their answers where rows are."""
        dimension = self.population.dimension
        items = self.population.items_per_user * (4 * dimension + 8) if copied else _IN_PLACE
        answers = 8 * prod(task.answer_shape(dimension)) if rows else 0
        room = min(self._chunk_bytes, CACHED) if self._generates else self._chunk_bytes
        return max(1, room // max(items, answers))

    def _largest(self, task: Task) -> float:
        population, smoothing = self.population, getattr(task, "smoothing", None)
        lipschitz = population.loss.lipschitz(population.domain, population.dimension, smoothing)
        bounds = Bounds(lipschitz, population.domain.norm_bound(population.dimension), population.loss.feature_norm)
        return FAR * task.honest(bounds)

    def _chunk_answers(self, users: Users, task: Task, round_number: int) -> tuple[Matrix, NDArray[np.uint8]]:
        faults = self.faults(users, round_number)
        computing = self._computing(users, faults, task)
        if len(computing) == 1 and isinstance(computing[0], slice):
            computed = self._answers(users, faults, task, round_number)
            return computed.values, computed.status
        values, status = _silence(len(users), self.population.dimension, task)
        for places in computing:
            computed = self._answers(users[places], faults[places], task.part(places), round_number)
            values[places], status[places] = computed.values, computed.status
        status[faults == _MISSING] = MISSING
        for fault, sent in SENT.items():
            values[faults == fault] = sent
        return values, status

    def _answers(self, users: Users, faults: NDArray[np.uint8], task: Task, round_number: int) -> Answers:
        """Return what the clients of users who compute an answer send."""
        batch, loss = self._items(users, faults, task), self.population.loss
        if isinstance(task, LocalReport):
            return local_report(loss, batch, task, self._randomness, round=round_number, users=users)
        scale = self._scale(users, faults, task)
        return answer(loss, batch, task, keys=_keys(task, round_number, users), scale=scale)

    def faults(self, users: Users, round_number: int) -> NDArray[np.uint8]:
        """Return which `Corruption` each of `users` (k,) shows in a round, with those who drop out of it MISSING."""
        faults = self.population.corruption(users)
        if self._dropout > 0:
            draws = uniforms(words(seed=self._seed, purpose=Purpose.DROPOUT, users=users, block=round_number)[:, 0])
            faults[draws < self._dropout] = _MISSING
        return faults


def _draws(task: Task) -> bool:
    """Return whether users need random points to answer."""
    return isinstance(getattr(task, "smoothing", None), Convolution)


def _keys(task: Task, round_number: int, users: Users) -> Keys | None:
    """Return what those are keyed by."""
    return user_keys(round_number, users) if _draws(task) else None


def _silence(users: int, dimension: int, task: Task) -> tuple[Matrix, NDArray[np.uint8]]:
    """Return rows of zeros of the task's shape, and a status ANSWERED for each."""
    return np.zeros((users, *task.answer_shape(dimension))), np.full(users, ANSWERED)


def part_of(question: Question, own: Indices | slice) -> Question:
    """Return the question to some slots of its cohort."""
    return replace(question, cohort=question.cohort[own], task=question.task.part(own))


def merged(question: Question, parts: Iterator[tuple[Indices, Response]], dimension: int) -> Response:
    """Return the answers of parts, each with its slots, in the slots' order; or their sums."""
    if question.reduction is not None:
        return reduce(add, (summed(answers, question.reduction) for _, answers in parts))
    shape = question.task.answer_shape(dimension)
    values, status = np.zeros((len(question.cohort), *shape)), np.zeros(len(question.cohort), np.uint8)
    for own, answers in parts:
        assert isinstance(answers, Answers)
        values[own], status[own] = answers.values, answers.status
    return Answers(values, status)
