"""The two types that cross between coordinator and clients: a question to a cohort, and its answers.

An answer is a fixed-shape array and a status. Whoever drops out, is late, or sends nonsense becomes a row of zeros with
a status other than `ANSWERED`; what that means (a zero vector, an isolated point) is the algorithm's neutral element.
No value a user sends can raise, stall or change the shape of a round.
"""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from quorate_client.domains import Domain

Matrix = NDArray[np.float64]


class Status(IntEnum):
    """What became of one asked user."""

    ANSWERED = 0
    MISSING = 1  # no answer in time, or nobody there
    REJECTED = 2  # wrong shape, non-finite, or absurdly large


@dataclass(frozen=True, slots=True, eq=False)
class AverageGradient:
    """Σ_k weights[k] · ∇F_u(points[k]), with F_u the average loss of user u's items.

    One point with weight 1 is the plain gradient; two weighted points are a recursive gradient, computed in one pass
    over the items. With `user_smoothness` the client scales its loss by min(1, user_smoothness / λ_u), λ_u an upper
    bound on its Hessian over the whole domain, so that every conceivable user is `user_smoothness`-smooth.
    """

    points: Matrix  # (p, d), p = 1 or 2
    weights: tuple[float, ...]  # (p,)
    user_smoothness: float | None = None

    @property
    def gradients_per_user(self) -> int:
        """User-average gradients each asked user computes."""
        return len(self.weights)

    @property
    def vectors_per_answer(self) -> int:
        """d-vectors in one answer."""
        return 1


@dataclass(frozen=True, slots=True, eq=False)
class LocalSGD:
    """One pass of projected SGD over a user's items, item by item, from that user's own start iterate.

    The answer holds the final iterate and the sum of the iterates after each step: shape (k, 2, d).
    """

    starts: Matrix  # (k, d), one per asked user
    step_size: float  # η
    domain: Domain

    @property
    def gradients_per_user(self) -> int:
        """A pass costs as many item gradients as one average gradient."""
        return 1

    @property
    def vectors_per_answer(self) -> int:
        """d-vectors in one answer: final iterate and running sum."""
        return 2


Task = AverageGradient | LocalSGD


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """What one cohort is asked in one round; `cohort` holds distinct user numbers, in slot order."""

    round: int  # from 0
    cohort: NDArray[np.int64]  # (k,)
    task: Task


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """Row i answers for cohort[i]. Rows whose status is not ANSWERED are zero."""

    values: Matrix  # (k, d), or (k, 2, d) for LocalSGD
    status: NDArray[np.uint8]  # (k,)

    @classmethod
    def checked(cls, values: Matrix, status: NDArray[np.uint8], *, largest: float) -> "Answers":
        """Rows taken out, before any arithmetic, when non-finite or with a coordinate beyond `largest` in magnitude.

        The rule for a row looks at that row only, so nobody's value changes what happens to another user.
        """
        axes = tuple(range(1, values.ndim))
        with np.errstate(
            invalid="ignore"
        ):  # the comparisons are False for NaN and, with a finite `largest`, infinities
            usable = (values.max(axis=axes, initial=0.0) <= largest) & (values.min(axis=axes, initial=0.0) >= -largest)
        kept = np.where((status == Status.ANSWERED) & ~usable, np.uint8(Status.REJECTED), status).astype(np.uint8)
        absent = kept != Status.ANSWERED
        if not absent.any():
            return cls(values, kept)
        return cls(np.where(absent.reshape((-1,) + (1,) * (values.ndim - 1)), 0.0, values), kept)

    @property
    def answered(self) -> NDArray[np.bool_]:
        """Which rows hold a usable answer, shape (k,)."""
        answered: NDArray[np.bool_] = self.status == Status.ANSWERED
        return answered
