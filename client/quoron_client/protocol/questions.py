"""The two types that cross between coordinator and clients: a question to a cohort, and its answers.

An answer is a fixed-shape array and a status. A user who drops out, is late, or sends nonsense becomes a row of zeros
with a status other than `ANSWERED`; what the row means (a zero vector, an isolated point) is the algorithm's neutral
element. No value a user sends can raise, stall or change the shape of a round.

The tasks of a question: what a client computes for it.

Gradients at points that the coordinator names, of all of a user's items or of some, by their places. A pass of SGD over
a user's own items; the second moment of its features; rounds in a metric that the users' own second moment gives.

Questions of the local model: reports that are private before they leave a client.

    >>> gradient = AverageGradient(np.zeros((1, 3)), (1.0,))
    >>> VectorReport(gradient, 1.0, 1e-6, 2.0, np.zeros(3)).spends
    (1.0, 1e-06)

Source: Bassily & Sun (2023), Algorithm 5, repaired; docs/privacy/local-model.md.

Answers of black boxes: a question put to a function of which nothing is known but that it returns gradients.

>>> task = AverageGradient(np.array([[1.0, 2.0], [0.0, 1.0]]), (1.0, -0.5))
>>> combined(task, lambda point: 2 * point).tolist()
[2.0, 3.0]

A field's annotation is how `wire.read` checks it when a question arrives: the axes of an array by letters, those of one
letter equally long, and the range of a whole number. What annotations cannot say, `Task.check` does.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from math import prod
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from quoron_client.protocol.domains import Bounds, Domain
from quoron_client.protocol.smoothing import Convolution, Smoothing
from quoron_privacy.errors import WireError, probability
from quoron_privacy.release import Reduction, Sums, packed

Floats = NDArray[np.float64]
Matrix = Annotated[Floats, "p d"]
Vector = Annotated[Floats, "d"]
MAX_FEATURES = 11_584  # whose second moment is one array of a message
MAX_POINTS = 16  # at which losses are asked for
MAX_BINS = 1 << 16


class Status(IntEnum):
    """What became of one asked user."""

    ANSWERED = 0
    MISSING = 1  # no answer in time, or nobody there
    REJECTED = 2  # wrong shape, non-finite, or absurdly large


# As numbers for arrays: of a member of an enumeration numpy asks a dozen questions before it compares with it.
ANSWERED, MISSING, REJECTED = (np.uint8(int(status)) for status in (Status.ANSWERED, Status.MISSING, Status.REJECTED))
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
    def gradients_per_user(self) -> int:
        """User-average gradients each asked user computes: one, or what takes as long."""
        return 1

    def planned_gradients(self, items: int) -> int:
        """Return item gradients of a user with so many items, as planned."""
        return self.gradients_per_user * items

    def answer_shape(self, dimension: int) -> tuple[int, ...]:
        """Return the shape of one user's answer for a model of `dimension` numbers: that of the model."""
        return (dimension,)

    @property
    def numbers_down(self) -> int:
        """Numbers in the arrays of the question to one user."""
        held = {item.name: getattr(self, item.name) for item in fields(self)}  # type: ignore[arg-type]
        arrays = {name: value.shape for name, value in held.items() if isinstance(value, np.ndarray)}
        own: int = sum(prod(shape[1:] if name == self.own else shape) for name, shape in arrays.items())
        return own + sum(value.numbers_down for value in held.values() if isinstance(value, Task))

    @abstractmethod
    def honest(self, bounds: Bounds) -> float:
        """Return the size of an honest answer's coordinates up to a moderate factor, from public constants alone."""

    @property
    def spends(self) -> tuple[float, float]:
        """(ε, δ) of one answer by itself; (0, 0) where what the coordinator does with all of them protects it."""
        return 0.0, 0.0

    def part(self, slots: slice | NDArray[np.int64]) -> Self:
        """Return the task of some slots of the cohort."""
        return self if self.own is None else self._with(self.own, getattr(self, self.own)[slots])

    def directed(self, seed: int) -> Self:
        """Return the task with the directions of its smoothing drawn from `seed`, where it has any."""
        smoothing = getattr(self, "smoothing", None)
        return self._with("smoothing", replace(smoothing, seed=seed)) if isinstance(smoothing, Convolution) else self

    def _with(self, name: str, value: Any) -> Self:
        changes: dict[str, Any] = {name: value}
        return replace(self, **changes)  # type: ignore[type-var]  # every task is a dataclass

    def check(self) -> None:  # noqa: B027  # most have nothing to add
        """Raise WireError or ConfigError for fields that no question has, although each is as its annotation says."""


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """What one cohort is asked in one round; `cohort` holds distinct user numbers, in slot order.

    With a `reduction` the algorithm reads nothing of the answers but that, and an engine may return `Sums` of it. Where
    it is `drawn`, another start of the run draws the cohort again, and what each user has of its own.
    """

    round: int  # from 0
    cohort: NDArray[np.int64]  # (k,)
    task: Task
    planned: int | None = None  # users as announced in public; None where k itself is public
    reduction: Reduction | None = None  # stays with the server that asks: no client receives it
    drawn: bool = False  # whom it asks is by secret coins, on which the promise rests
    attended: bool = False  # who answers is public: a user who sends anything has answered, if only with the zero row

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
        down, up = self.task.numbers_down, prod(self.task.answer_shape(dimension))
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
            if values.max(initial=0.0) <= largest and values.min(initial=0.0) >= -largest:
                usable = np.ones(len(values), np.bool_)
                if not status.any():
                    return cls(values, status)
            else:
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
        """Return the same where who answers is public: what came and cannot be used is the zero row, as an answer."""
        return Answers(self.values, np.where(self.status == MISSING, MISSING, ANSWERED))

    @property
    def answered(self) -> NDArray[np.bool_]:
        """Which rows hold a usable answer, shape (k,); where who answers is public, whose answer came."""
        answered: NDArray[np.bool_] = self.status == ANSWERED
        return answered


def summed(answers: Answers | Sums, reduction: Reduction) -> Sums:
    """Return the reduction of these answers; if it was made before, that one."""
    return reduction.of(answers.values, answers.answered) if isinstance(answers, Answers) else answers


class _AtPoints(Task):
    """A task at points of the model, rows (p, d)."""

    __slots__ = ()
    points: Matrix

    @property
    def model_size(self) -> int:
        """d."""
        return int(self.points.shape[1])


@dataclass(frozen=True, slots=True, eq=False)
class AverageGradient(_AtPoints):
    """w_u · (Σ_k weights[k] · ∇F_u(points[k]) - centre), with F_u the average loss of user u's m_u items.

    One point with weight 1 is the plain gradient; two weighted points are a recursive gradient, computed in one pass
    over the items. With `user_smoothness` the client scales its loss by min(1, user_smoothness / λ_u), λ_u an upper
    bound on its Hessian over the whole domain, so that every conceivable user is `user_smoothness`-smooth. With
    `reference_items` w_u = min(1, √(m_u / reference_items)), else 1: users with few items, whose averages are far
    from the centre by chance alone, count for less. With `smoothing` every item's loss is replaced by its smooth
    stand-in.
    """

    points: Matrix  # p = 1 or 2
    weights: Annotated[tuple[float, ...], "p"]
    user_smoothness: float | None = None
    centre: Vector | None = None  # None is zero
    reference_items: Annotated[int, range(1, 1 << 63)] | None = None
    smoothing: Smoothing | None = None

    def check(self) -> None:
        """See Task."""
        if len(self.points) > 2:
            raise WireError(f"Expected one or two points, got {len(self.points)}.")

    @property
    def gradients_per_user(self) -> int:
        """User-average gradients each asked user computes."""
        return len(self.weights)

    def honest(self, bounds: Bounds) -> float:
        """Return the weighted bound of the gradients, and the centre."""
        centre = 0.0 if self.centre is None else float(np.linalg.norm(self.centre))
        return bounds.lipschitz * float(np.abs(self.weights).sum()) + centre


@dataclass(frozen=True, slots=True, eq=False)
class LocalSGD(Task):
    """One pass of projected SGD over a user's items, item by item, from that user's own start iterate.

    The answer holds the final iterate and the mean of the iterates after each step: shape (k, 2, d). With `smoothing`
    every item's loss is replaced by its smooth stand-in.
    """

    own: ClassVar[str] = "starts"
    starts: Annotated[Floats, "k d", "start"]  # one per asked user
    step_size: float  # η
    domain: Domain
    smoothing: Smoothing | None = None

    @property
    def model_size(self) -> int:
        """d."""
        return int(self.starts.shape[1])

    def answer_shape(self, dimension: int) -> tuple[int, ...]:
        """Final iterate and mean iterate."""
        return (2, dimension)

    def honest(self, bounds: Bounds) -> float:
        """Return the domain's radius: an iterate lies in it."""
        return bounds.radius


@dataclass(frozen=True, slots=True, eq=False)
class SecondMoment(Task):
    """A triangular factor of the second moment of a user's features: upper triangular U with Uᵀ U = (1/m_u) Σ w a aᵀ.

    Items have weights w in [0, 1]. Its rows are packed without the zeros below the diagonal: (d (d + 1) / 2,) numbers
    whose Euclidean norm is the root mean squared norm of the features, so at most the feature norm R. The factor says
    no more than the moment. With `label_scale` the label, times it, is one more feature, the last. With `rows`, only so
    many rows of it are sent: all that there are, of users of no more items.
    """

    # d, of the features, the label among them if it is one: that of the model, with one prediction
    dimension: Annotated[int, range(1, MAX_FEATURES + 1)]
    label_scale: float | None = None
    rows: Annotated[int, range(1, MAX_FEATURES + 1)] | None = None

    @property
    def model_size(self) -> int:
        """Of the features."""
        return self.dimension - (self.label_scale is not None)

    @property
    def gradients_per_user(self) -> int:
        """None of features only; with labels what they have in common is the gradient at zero."""
        return int(self.label_scale is not None)

    def answer_shape(self, dimension: int) -> tuple[int, ...]:
        """Of one user's answer."""
        del dimension
        return (packed(self.dimension, self.rows),)

    def honest(self, bounds: Bounds) -> float:
        """Return the bound of a feature norm."""
        return bounds.feature_norm


@dataclass(frozen=True, slots=True, eq=False)
class PlacedGradient(_AtPoints):
    """(1/divisor) Σ_p clip(∇f(x; z_p)) over the places p of a user that row i of `places` names; x the one point.

    Places are numbers, 0, 1, ..., of a user's items in their stored order. A place without an item, and -1, adds zero:
    what is there changes neither the divisor nor any other place. `clip` bounds each item's gradient on its own.
    """

    own: ClassVar[str] = "places"
    points: Annotated[Floats, "1 d", "point"]
    places: Annotated[NDArray[np.int64], "k w"]  # one row per asked user
    divisor: float
    clip: float | None = None
    expected: Annotated[int, range(1 << 63)] = 1  # items of an asked user, as announced in public

    def check(self) -> None:
        """See Task."""
        if self.places.min() < -1:
            raise WireError(f"Expected places from 0, or -1 for none, got {self.places.min()}.")
        named = np.sort(self.places, axis=1)  # by us: numpy's own search for what is there twice takes thirty times
        if np.any((named[:, 1:] == named[:, :-1]) & (named[:, 1:] >= 0)):
            raise WireError("Expected each place once, got one twice.")

    def planned_gradients(self, items: int) -> int:
        """Return the items that are expected, whatever the user has."""
        del items
        return self.expected

    def honest(self, bounds: Bounds) -> float:
        """Return a bound on that many gradients."""
        return bounds.lipschitz * float(self.places.shape[1]) / self.divisor


@dataclass(frozen=True, slots=True, eq=False)
class MomentAndGradient(Task):
    """The factor of `SecondMoment`, then the average gradient at `point` less `centre`: one message of fixed length.

    ((p (p + 1) / 2) + d,) numbers for p features and a model of d, whatever the number of items; fewer with `rows`.
    """

    dimension: Annotated[int, range(1, MAX_FEATURES + 1)]  # p, of the features
    point: Vector
    centre: Vector | None = None  # None is zero
    rows: Annotated[int, range(1, MAX_FEATURES + 1)] | None = None

    @property
    def model_size(self) -> int:
        """d."""
        return len(self.point)

    @property
    def moment(self) -> SecondMoment:
        """The first part."""
        return SecondMoment(self.dimension, rows=self.rows)

    @property
    def gradient(self) -> AverageGradient:
        """The second part."""
        return AverageGradient(self.point[None, :], (1.0,), centre=self.centre)

    def answer_shape(self, dimension: int) -> tuple[int, ...]:
        """Of one user's answer."""
        return (self.moment.answer_shape(dimension)[0] + len(self.point),)

    def honest(self, bounds: Bounds) -> float:
        """Return the larger of both."""
        return max(self.moment.honest(bounds), self.gradient.honest(bounds))


@dataclass(frozen=True, slots=True, eq=False)
class AverageLoss(_AtPoints):
    """F_u(points[k]) for each of p points, ridge included, F_u the average of user u's items: an answer of (p,)."""

    points: Matrix

    def check(self) -> None:
        """See Task."""
        if len(self.points) > MAX_POINTS:
            raise WireError(f"Expected at most {MAX_POINTS} points, got {len(self.points)}.")

    @property
    def gradients_per_user(self) -> int:
        """None; a loss costs as much as a gradient, but is none."""
        return 0

    def answer_shape(self, dimension: int) -> tuple[int, ...]:
        """Of one user's answer."""
        del dimension
        return (len(self.points),)

    def honest(self, bounds: Bounds) -> float:
        """Return a bound: a loss rises by at most the Lipschitz bound times the radius above a few units of slope."""
        return (1.0 + bounds.lipschitz) * (1.0 + bounds.radius)


@dataclass(frozen=True, slots=True, eq=False)
class LocalReport(Task):
    """A report that is private before it leaves the client, made of its average gradient."""

    gradient: AverageGradient
    epsilon: float

    @property
    def model_size(self) -> int:
        """d."""
        return self.gradient.model_size

    @property
    def gradients_per_user(self) -> int:
        """Those of its gradient."""
        return self.gradient.gradients_per_user

    def directed(self, seed: int) -> Self:
        """Return the same report of the gradient with directions from `seed`."""
        return replace(self, gradient=self.gradient.directed(seed))


@dataclass(frozen=True, slots=True, eq=False)
class RangeReport(LocalReport):
    """Noisy bits of coordinate coordinates[i] of the rotated gradient of the i-th asked user: an answer of (bins,).

    The client makes them (ε, 0)-locally private before it sends them: `randomisers.RangeBits`.
    """

    own: ClassVar[str] = "coordinates"
    bins: Annotated[int, range(2, MAX_BINS + 1)]  # of equal width on [-half_width, half_width]
    half_width: float
    signs: Annotated[Floats, "d", np.int64]  # of the public rotation
    coordinates: Annotated[NDArray[np.int64], "k"]  # below the padded dimension

    def check(self) -> None:
        """See Task."""
        if not np.all(np.abs(self.signs) == 1):
            raise WireError(f"Expected signs that are -1 or 1, got {self.signs[np.abs(self.signs) != 1][0]:g}.")
        padded = 1 << (len(self.signs) - 1).bit_length()
        if self.coordinates.min() < 0 or self.coordinates.max() >= padded:
            wrong = self.coordinates.min() if self.coordinates.min() < 0 else self.coordinates.max()
            raise WireError(f"Expected coordinates in [0, {padded:,}), got {wrong:,}.")

    def answer_shape(self, dimension: int) -> tuple[int, ...]:
        """Bits, one a bin."""
        del dimension
        return (self.bins,)

    def honest(self, bounds: Bounds) -> float:
        """Return 1, as answers are bits."""
        del bounds
        return 1.0

    @property
    def spends(self) -> tuple[float, float]:
        """(ε, 0)."""
        return self.epsilon, 0.0


@dataclass(frozen=True, slots=True, eq=False)
class VectorReport(LocalReport):
    """The gradient clipped to a ball around a public centre, with the client's own noise: an answer of (d,).

    The client makes it (ε, δ)-locally private before it sends it, with a noise scale of its own computing:
    `randomisers.VectorNoise`.
    """

    delta: float
    radius: float  # C
    centre: Vector  # public

    def check(self) -> None:
        """See Task."""
        probability(delta=self.delta)

    def honest(self, bounds: Bounds) -> float:
        """Return the centre, and noise, which is below 10⁴ radii."""
        del bounds
        return float(np.linalg.norm(self.centre)) + 1e4 * self.radius

    @property
    def spends(self) -> tuple[float, float]:
        """(ε, δ)."""
        return self.epsilon, self.delta


Array = NDArray[np.float64]


def combined(task: Task, gradient: Callable[[Array], Array]) -> Array:
    """Σ_k weights[k] · gradient(points[k]) - centre, of the shape that `gradient` returns: (d,), or (k, d) for k users.

    `gradient` has a copy of each point, shape (d,). Raises WireError for a task that asks for more than that.
    """
    task = plain(task)
    total = np.zeros(task.points.shape[1])
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is the zero row, later
        for point, weight in zip(task.points, task.weights, strict=True):
            total = total + weight * gradient(point.copy())
        return total if task.centre is None else total - task.centre


def plain(task: Task) -> AverageGradient:
    """Return the task itself; WireError for one that asks for more than average gradients."""
    if not isinstance(task, AverageGradient):
        raise WireError(f"Expected a question for average gradients, got {type(task).__name__}.")
    if not (task.user_smoothness is None and task.reference_items is None and task.smoothing is None):
        raise WireError("Expected a question for plain average gradients, got one that looks inside the loss.")
    return task
