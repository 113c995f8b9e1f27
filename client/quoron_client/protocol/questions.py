"""The two types that cross between coordinator and clients: a question to a cohort, and its answers.

An answer is a fixed-shape array and a status. Whoever drops out, is late, or sends nonsense becomes a row of zeros with
a status other than `ANSWERED`; what that means (a zero vector, an isolated point) is the algorithm's neutral element.
No value a user sends can raise, stall or change the shape of a round.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from enum import IntEnum
from math import prod
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from quoron_client.protocol.domains import Bounds
from quoron_privacy.release import Reduction, Sums

Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]


class Status(IntEnum):
    """What became of one asked user."""

    ANSWERED = 0
    MISSING = 1  # no answer in time, or nobody there
    REJECTED = 2  # wrong shape, non-finite, or absurdly large


# As numbers for arrays: of a member of an enumeration numpy asks a dozen questions before it compares with it.
ANSWERED, MISSING, REJECTED = (np.uint8(int(each)) for each in (Status.ANSWERED, Status.MISSING, Status.REJECTED))
FAR = 1e9  # answers beyond this many times the largest honest coordinate are rejected, so that no sum overflows


class Task(ABC):
    """What every user of a cohort is asked to compute."""

    __slots__ = ()
    own: ClassVar[str | None] = None  # the field whose row i is for the i-th asked user alone; the rest is for all

    @property
    @abstractmethod
    def model_size(self) -> int:
        """d: the numbers of the model that it is about."""

    @property
    @abstractmethod
    def gradients_per_user(self) -> int:
        """User-average gradients each asked user computes."""

    def planned_gradients(self, items: int) -> int:
        """Item gradients of a user with so many items, as planned."""
        return self.gradients_per_user * items

    def computed_gradients(self, items: NDArray[np.int64]) -> int:
        """Item gradients of all asked users together, who have so many items, (k,)."""
        return self.gradients_per_user * int(items.sum())

    @abstractmethod
    def answer_shape(self, dimension: int) -> tuple[int, ...]:
        """Of one user's answer."""

    @abstractmethod
    def numbers_down(self, dimension: int) -> int:
        """Numbers in the question to one user."""

    @abstractmethod
    def honest(self, bounds: Bounds) -> float:
        """The size of an honest answer's coordinates up to a moderate factor, from public constants alone."""

    @property
    def spends(self) -> tuple[float, float]:
        """(ε, δ) of one answer by itself; (0, 0) where what the coordinator does with all of them protects it."""
        return 0.0, 0.0

    def part(self, slots: slice | NDArray[np.int64]) -> Self:
        """The task of some slots of the cohort."""
        return self if self.own is None else self.with_own(getattr(self, self.own)[slots])

    def with_own(self, rows: NDArray[Any]) -> Self:
        """The same task with these rows of what each user has of its own."""
        changes: dict[str, Any] = {str(self.own): rows}
        return replace(self, **changes)  # type: ignore[type-var]  # every task is a dataclass

    def directed(self, seed: int) -> Self:
        """The task with the directions of its smoothing drawn from `seed`, where it has any."""
        del seed
        return self


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """What one cohort is asked in one round; `cohort` holds distinct user numbers, in slot order.

    With a `reduction` the algorithm reads nothing of the answers but that, and an engine may return `Sums` of it. Where
    it is `drawn`, another start of the run draws the cohort anew, and what each user has of its own.
    """

    round: int  # from 0
    cohort: NDArray[np.int64]  # (k,)
    task: Task
    planned: int | None = None  # users as told in public; None where k itself is public
    reduction: Reduction | None = None  # stays with whoever asks: no client is told of it
    drawn: bool = False  # whom it asks is by secret coins, on which the promise rests
    attended: bool = False  # who answers is public: whoever sends anything has answered, if only with the zero row

    @property
    def lasting(self) -> tuple[Any, ...]:
        """All of it that every start of the run asks in this round: the whole, but for coins."""
        task = self.task
        if not self.drawn:
            return self.round, self.cohort, task
        return self.round, task if task.own is None else task.part(slice(0))

    @property
    def messages(self) -> int:
        """Users asked, as planned: under Poisson sampling the realised number is a secret."""
        return len(self.cohort) if self.planned is None else self.planned

    def payload(self, dimension: int) -> tuple[int, int]:
        """(bytes down, bytes up) of the round's float64 numbers, as planned."""
        down, up = self.task.numbers_down(dimension), prod(self.task.answer_shape(dimension))
        return 8 * self.messages * down, 8 * self.messages * up


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """Row i answers for cohort[i]. Rows whose status is not ANSWERED are zero."""

    values: Matrix  # (k, *task.answer_shape(d))
    status: NDArray[np.uint8]  # (k,)

    @classmethod
    def checked(cls, values: Matrix, status: NDArray[np.uint8], *, largest: float, own: bool = False) -> "Answers":
        """Rows taken out, before any arithmetic, when non-finite or with a coordinate beyond `largest` in magnitude.

        The rule for a row looks at that row only, so nobody's value changes what happens to another user. Values that
        are our `own` are changed where they lie.
        """
        axes = tuple(range(1, values.ndim))
        # The comparisons are False for NaN and, with a finite `largest`, infinities. All rows at once is quicker.
        with np.errstate(invalid="ignore"):
            usable = np.ones(len(values), np.bool_)
            if not (values.max(initial=0.0) <= largest and values.min(initial=0.0) >= -largest):
                most, least = values.max(axis=axes, initial=0.0), values.min(axis=axes, initial=0.0)
                usable = (most <= largest) & (least >= -largest)
        kept = np.where((status == ANSWERED) & ~usable, REJECTED, status).astype(np.uint8)
        absent = kept != ANSWERED
        if not absent.any():
            return cls(values, kept)
        if own:
            values[absent] = 0.0
            return cls(values, kept)
        return cls(np.where(absent.reshape((-1,) + (1,) * (values.ndim - 1)), 0.0, values), kept)

    def attended(self) -> "Answers":
        """The same where who answers is public: what came and cannot be used is the zero row, as an answer."""
        return Answers(self.values, np.where(self.status == MISSING, MISSING, ANSWERED))

    @property
    def answered(self) -> NDArray[np.bool_]:
        """Which rows hold a usable answer, shape (k,); where who answers is public, whose answer came."""
        answered: NDArray[np.bool_] = self.status == ANSWERED
        return answered


def summed(answers: Answers | Sums, reduction: Reduction) -> Sums:
    """What the reduction is of these answers, if it has not been made before."""
    return reduction.of(answers.values, answers.answered) if isinstance(answers, Answers) else answers
