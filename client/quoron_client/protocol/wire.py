"""Questions and answers as messages of the protocol, and back: whatever arrives is checked before it is believed.

    >>> task = AverageGradient(np.zeros((1, 2)), (1.0,))
    >>> message = question_to_wire(Question(3, np.array([7]), task), 0, run="r", user=7, seconds=60)
    >>> question_from_wire(message)[:2]
    ('r', 3)

Arrays are raw little-endian bytes in C order. A question holds the part of one user. A message of the coordinator that
is not of this protocol raises `WireError`; what a client sends never raises: it becomes zeros that are `REJECTED`.

Questions and answers that are too long for one message: their end follows them, in parts of the same stream.

    messages = said(answer)                     # one, or one and its parts
    whole = arriving.take(message, allowed)     # None until all of it is there

The end is a question's task, of whom and for which sums; or an answer's values or sums. In its place stands its length,
of a question its digest too, which is in the question's name, and nothing else is said until it has come. That bytes of
an answer arrive as they left is the transport's part. A part holds `MOST` bytes and the last one the rest, so the
receiver holds the bytes that have come, never more than were announced, and none of a message that it does not want.
What fits into one message is one, as ever.

| what comes                                              | what happens                                           |
| ------------------------------------------------------- | ------------------------------------------------------ |
| more than is allowed, or less than would need parts     | WireError, before any of it                            |
| a part out of order, missing, repeated                  | WireError: the byte that was expected, the one that came |
| a part of another size                                  | WireError                                              |
| another message before the last part, a part after none | WireError                                              |
| a question of another digest; bytes of more than the end | WireError                                             |
| the end of what is not wanted (any more)                | dropped as it comes                                    |
"""

from collections.abc import Callable, Iterator
from hashlib import blake2b
from math import isfinite, prod
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from quoron_client.protocol.domains import Box, Domain, L2Ball
from quoron_client.protocol.questions import (
    AverageGradient,
    AverageLoss,
    LocalSGD,
    Matrix,
    MomentAndGradient,
    PlacedGradient,
    Question,
    RangeReport,
    SecondMoment,
    Status,
    Task,
    Vector,
    VectorReport,
)
from quoron_client.protocol.smoothing import Convolution, Moreau, Smoothing
from quoron_privacy.errors import QuoronError, WireError
from quoron_protos.v1 import federation_pb2 as federation
from quoron_protos.v1 import values_pb2 as values

BESIDE = 4 << 10  # bytes of a question or an answer beside its vectors, and of a part beside its data
MOST = (256 << 10) - BESIDE  # bytes of one message, and of what a part holds: so much of a call that never ends is held
_DIGEST = 32  # bytes

Long = federation.Question | federation.Answer | federation.MaskedAnswer
Message = TypeVar("Message", federation.ServerMessage, federation.ClientMessage)


def fits_one_message(length: int) -> bool:
    """Return whether a question or an answer of so many bytes is one message."""
    return length <= MOST


def follows(end: bytes) -> federation.Follows:
    """Return what stands in place of a question's end."""
    return federation.Follows(length=len(end), digest=blake2b(end, digest_size=_DIGEST).digest())


def parts(end: bytes) -> Iterator[federation.Part]:
    """Yield the end, in order."""
    for offset in range(0, len(end), MOST):
        yield federation.Part(offset=offset, data=end[offset : offset + MOST])


def said(answer: federation.Answer | federation.MaskedAnswer) -> Iterator[federation.ClientMessage]:
    """Yield an answer, and where it is too long for one message its values after it."""
    if fits_one_message(answer.ByteSize()):
        yield _told(answer)
        return
    if isinstance(answer, federation.MaskedAnswer):
        masked = federation.MaskedAnswer(run=answer.run, round=answer.round, digest=answer.digest, sealed=answer.sealed)
        yield from _parted(masked, federation.MaskedAnswer(values=answer.values).SerializeToString())
        return
    head = federation.Answer(run=answer.run, round=answer.round, digest=answer.digest, status=answer.status)
    rest = federation.Answer(values=answer.values if answer.HasField("values") else None, statuses=answer.statuses)
    if answer.HasField("sums"):
        rest.sums.CopyFrom(answer.sums)
    yield from _parted(head, rest.SerializeToString())


def _parted(head: federation.Answer | federation.MaskedAnswer, end: bytes) -> Iterator[federation.ClientMessage]:
    head.follows.length = len(end)
    yield _told(head)
    for part in parts(end):
        yield federation.ClientMessage(part=part)


def _told(answer: federation.Answer | federation.MaskedAnswer) -> federation.ClientMessage:
    if isinstance(answer, federation.Answer):
        return federation.ClientMessage(answer=answer)
    return federation.ClientMessage(masked=answer)


class Arriving(Generic[Message]):
    """Messages of one direction of a conversation, put together. After a WireError there is nothing more to hear."""

    def __init__(self) -> None:
        self._head: Long | None = None
        self._length = self._here = 0
        self._kept: list[bytes] | None = None  # None: dropped

    @property
    def open(self) -> bool:
        """Whether parts are due."""
        return self._head is not None

    @property
    def ends(self) -> bool:
        """Whether the next part is the last of what is kept, which `take` then puts together: it takes a while."""
        return self._kept is not None and self._length - self._here <= MOST

    def take(self, message: Message, allowed: Callable[[Long], int | None]) -> Message | Long | None:
        """Return a message as it is; a question or an answer that its end has followed; None while that is on its way.

        `allowed` says of one without its end how many bytes that may have, or None where nothing is wanted of it: then
        it is dropped as it comes, and None. Raises WireError as the table says.
        """
        kind = message.WhichOneof("kind")
        if self._head is not None:
            if kind != "part":
                raise WireError(f"Expected the part at byte {self._here:,} of {self._length:,}, got another message.")
            return self._added(message.part)
        if kind == "part":
            raise WireError("Expected a message that parts follow, got a part.")
        long: Long | None = getattr(message, kind) if kind in ("question", "answer", "masked") else None
        if long is None or not long.HasField("follows"):
            return message
        self._begin(long, allowed(long))
        return None

    def _begin(self, head: Long, allowed: int | None) -> None:
        announced = head.follows
        if isinstance(head, federation.Question):
            end = head.WhichOneof("task") or head.persons or head.HasField("sums") or head.HasField("row")
        elif isinstance(head, federation.MaskedAnswer):
            end = bool(head.values)
        else:
            end = head.HasField("values") or head.statuses or head.HasField("sums")
        if end:
            raise WireError("Expected a message whose end follows it to be without it, got both.")
        named = _DIGEST if isinstance(head, federation.Question) else 0
        if len(announced.digest) != named or not announced.length > MOST - BESIDE or not announced.length:
            raise WireError(f"Expected what follows to be too long for one message, got {announced.length:,} bytes.")
        if allowed is not None and announced.length > allowed:
            raise WireError(f"Expected at most {allowed:,} bytes to follow, got {announced.length:,} announced.")
        self._head, self._length, self._here = head, announced.length, 0
        self._kept = None if allowed is None else []

    def _added(self, part: federation.Part) -> Long | None:
        data, due = part.data, min(MOST, self._length - self._here)
        if part.offset != self._here:
            raise WireError(
                f"Expected the part at byte {self._here:,} of {self._length:,}, got the one at {part.offset:,}."
            )
        if len(data) != due:
            raise WireError(f"Expected {due:,} bytes in the part at byte {self._here:,}, got {len(data):,}.")
        self._here += due
        if self._kept is not None:
            self._kept.append(data)
        return self._put_together() if self._here == self._length else None

    def _put_together(self) -> Long | None:
        head, kept = self._head, self._kept
        self._head, self._kept = None, None
        if head is None or kept is None:
            return None
        end = b"".join(kept)
        kept.clear()
        if isinstance(head, federation.Question) and follows(end).digest != head.follows.digest:
            raise WireError(f"Expected {len(end):,} bytes of the announced digest, got others.")
        try:
            whole = type(head).FromString(end)
        except DecodeError:
            raise WireError("Expected the end of a message, got bytes that are none.") from None
        del end
        head.ClearField("follows")
        if whole.run or whole.round or whole.digest or whole.HasField("follows"):
            raise WireError("Expected the end of a message, got another beginning.")
        whole.MergeFromString(head.SerializeToString())
        return whole


PROTOCOL = 2
MAX_MESSAGE = 512 << 20  # bytes of a question or an answer, in parts: a client's record is a value of SQLite
MAX_WHOLE = 64 << 20  # bytes of one that travels whole, as through Flower
MAX_DESCRIPTION = 1 << 20  # characters of an announcement
MOST_VECTORS = 4  # in a question to one user
MAX_NUMBERS = MAX_MESSAGE // 8 - 1024  # of one array, so that what surrounds it fits as well
DIGEST_SIZE = 16  # bytes
MOST_RUNS = 64  # that a coordinator carries out at the same time
MAX_NAME = 200  # characters of a run's name
MAX_BINS = 1 << 16
MAX_POINTS = 16  # at which losses are asked for
KEEPALIVE_SECONDS = 30  # between a client's pings; a server must allow them this often, also without data
# A peer that does not answer a ping is gone. gRPC waits a minute by default; a slow link needs some seconds.
KEEPALIVE = (
    ("grpc.keepalive_time_ms", 1000 * KEEPALIVE_SECONDS),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 20_000),
)
GONE_AFTER = 50  # seconds until a connection that has died without a word counts as none
# Of both ends' connections: no pings that measure the link, so that a round's bytes follow from its question alone.
STEADY = (("grpc.http2.bdp_probe", 0),)

_AXES = 3
_NUMBERS = ("float64", "int64")


class Body(NamedTuple):
    """The task of one user as bytes: the end of a question's message, the same for all who are asked the same."""

    data: bytes
    digest: bytes  # of them: made once, however many are asked
    follows: federation.Follows | None  # of those that are too long for one message

    @classmethod
    def of(
        cls,
        task: Task,
        persons: bytes = b"",
        sums: federation.Reduction | None = None,
        row: federation.Row | None = None,
    ) -> "Body":
        """Of a task that is the part of one user; or of the `persons` of a silo, that answers with `sums` perhaps. With
        two servers one user's answer becomes a `row`."""
        kind, encode, _ = _CODECS[type(task)]
        asked = federation.Question(**{kind: encode(task)}, persons=persons, sums=sums, row=row)
        data = asked.SerializeToString(deterministic=True)
        end = follows(data)
        return cls(data, end.digest, None if fits_one_message(len(data) + BESIDE) else end)


def question_to_wire(question: Question, slot: int, *, run: str, user: int, seconds: int) -> federation.Question:
    """Return the part of cohort row `slot`, who is `user`, of a question whose round closes in `seconds`."""
    body = Body.of(question.task.part(slice(slot, slot + 1)))
    message = question_head(body, run=run, round=question.round, user=user, seconds=seconds)
    message.MergeFromString(body.data)
    return message


def question_head(body: Body, *, run: str, round: int, user: int, seconds: int) -> federation.Question:
    """Return all of a question to `user` but its task; as bytes it is what stands before the body."""
    digest = question_digest(run, round, user, body.digest)
    return federation.Question(run=run, round=round, digest=digest, seconds=seconds)


def body_digest(message: federation.Question) -> bytes:
    """Of what a question asks, as its `Body` has it: 32 bytes."""
    asked = federation.Question()
    asked.CopyFrom(message)
    for name in ("run", "round", "digest", "seconds", "follows"):
        asked.ClearField(name)
    return follows(asked.SerializeToString(deterministic=True)).digest


def task_name(task: Task) -> str:
    """Return a task's name on the wire."""
    return _CODECS[type(task)][0]


def question_digest(run: str, round: int, user: int, body: bytes) -> bytes:
    """Return the name of a question to one user, 16 bytes; `body` is the digest of its task."""
    label = f"{len(run)}/{run}/{round}/{user}/".encode() + body
    return blake2b(label, digest_size=DIGEST_SIZE, person=b"quoron-question").digest()


def question_name(message: federation.Question) -> tuple[str, int, bytes]:
    """Run, round and digest of a question, which an answer quotes. Raises WireError."""
    if not 0 < len(message.run) <= MAX_NAME:
        raise WireError(f"Expected a run's name of 1 to {MAX_NAME} characters, got {len(message.run)}.")
    if len(message.digest) != DIGEST_SIZE:
        raise WireError(f"Expected a digest of {DIGEST_SIZE} bytes, got {len(message.digest)}.")
    return message.run, message.round, message.digest


def question_from_wire(message: federation.Question) -> tuple[str, int, bytes, Task]:
    """Run, round, digest and the task: of one user starts (1, d), coordinates (1,), of k persons (k, d) and (k,).

    The client draws its own directions: a `Convolution` comes without a seed, here 0, to be replaced. Raises WireError
    for anything that is not a question of this protocol.
    """
    run, round_number, digest = question_name(message)
    kind = message.WhichOneof("task")
    if kind is None:
        raise WireError("Expected a question with a task that this client knows, got another. Update the client.")
    try:
        task = TASKS[kind](getattr(message, kind))
    except WireError:
        raise
    except QuoronError as error:  # constructors of domains and smoothings check their numbers
        raise WireError(str(error)) from None
    return run, round_number, digest, task


def check_own(task: Task, asked: int) -> None:
    """Raise WireError unless a task has something for each of so many, where it has something of each one's own."""
    if task.own is not None and (given := len(getattr(task, task.own))) != asked:
        raise WireError(f"Expected {task.own} for each of {asked:,} persons, got {given:,}.")


def answer_to_wire(run: str, round: int, digest: bytes, values: NDArray[Any], status: Status) -> federation.Answer:
    """Return one user's answer, `values` of the task's shape; zeros unless answered, so that its size says nothing."""
    sent = values if status == Status.ANSWERED else np.zeros_like(values)
    name = f"STATUS_{status.name}"
    return federation.Answer(run=run, round=round, digest=digest, status=name, values=array_to_wire(sent))


def answer_from_wire(message: federation.Answer, shape: tuple[int, ...]) -> tuple[NDArray[np.float64], Status]:
    """Return values of that shape, to be read, and a status; never raises. Whatever is not a usable answer is zeros.

    | what was sent                                        | status         |
    | ---------------------------------------------------- | -------------- |
    | finite float64 numbers of `shape`, answered          | ANSWERED       |
    | missing, or rejected by the client itself            | as sent        |
    | another type, shape or length, or a number not finite | REJECTED      |
    | a status of another protocol                         | REJECTED       |
    """
    status, sent = int(message.status), message.values
    if status in (Status.MISSING, Status.REJECTED):
        return np.zeros(shape), Status(status)
    if status == Status.ANSWERED and sent.dtype == "float64" and tuple(sent.shape) == shape:
        data = sent.data  # every look at it is a copy
        if len(data) == 8 * prod(shape):
            found = np.frombuffer(data, "<f8").astype(np.float64, copy=False)
            if np.count_nonzero(np.isfinite(found)) == len(found):  # several times as fast as `all`
                return found.reshape(shape), Status.ANSWERED
    return np.zeros(shape), Status.REJECTED


def fits(message: federation.Answer, shape: tuple[int, ...]) -> bool:
    """Return whether an answer has the type, shape and length that was asked for, and a status of this protocol.

    A client that works sends no other, whatever its data are; what the numbers are is not looked at.
    """
    status, sent = int(message.status), message.values
    if status != Status.ANSWERED:
        return status in (Status.MISSING, Status.REJECTED)
    return sent.dtype == "float64" and tuple(sent.shape) == shape and len(sent.data) == 8 * prod(shape)


def array_to_wire(array: NDArray[Any]) -> values.Array:
    """Raw little-endian bytes in C order."""
    little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return values.Array(dtype=array.dtype.name, shape=array.shape, data=little.tobytes())


def array_from_wire(message: values.Array, *, dtype: str, max_numbers: int) -> NDArray[Any]:
    """An array of its own memory, with up to three axes. Raises WireError unless it is of `dtype` ("float64", "int64"),
    finite, and of at most `max_numbers` numbers."""
    if dtype not in _NUMBERS or message.dtype != dtype:
        raise WireError(f"Expected an array of {dtype}, got one of {message.dtype[:20]!r}.")
    shape = tuple(message.shape)
    # Each axis first: a product of enormous numbers would be slow, and with a zero axis among them small.
    if len(shape) > _AXES or any(size > max_numbers for size in shape) or prod(shape) > max_numbers:
        raise WireError(f"Expected an array of at most {_AXES} axes and {max_numbers:,} numbers, got another shape.")
    data = message.data  # every look at it is a copy
    if len(data) != 8 * prod(shape):
        raise WireError(f"Expected {8 * prod(shape):,} bytes in an array of shape {shape}, got {len(data):,}.")
    kind = np.dtype(dtype)
    found = np.frombuffer(data, kind.newbyteorder("<")).astype(kind).reshape(shape)
    if not np.isfinite(found).all():
        raise WireError("Expected an array of finite numbers, got others among them.")
    return found


def _gradient_to_wire(task: AverageGradient) -> federation.AverageGradient:
    message = federation.AverageGradient(
        points=array_to_wire(task.points), weights=task.weights, smoothing=_smoothing_to_wire(task.smoothing)
    )
    if task.user_smoothness is not None:
        message.user_smoothness = task.user_smoothness
    if task.centre is not None:
        message.centre.CopyFrom(array_to_wire(task.centre))
    if task.reference_items is not None:
        message.reference_items = task.reference_items
    return message


def _gradient_from_wire(message: federation.AverageGradient) -> AverageGradient:
    points, weights = _floats(message.points, axes=2), tuple(message.weights)
    if len(points) not in (1, 2) or len(weights) != len(points):
        raise WireError(f"Expected one or two points, each with its weight, got {len(points)} and {len(weights)}.")
    if not all(map(isfinite, weights)):
        raise WireError("Expected finite weights, got others among them.")
    reference = message.reference_items if message.HasField("reference_items") else None
    if reference is not None and not 1 <= reference < 2**63:
        raise WireError(f"Expected reference_items in [1, 2^63), got {reference}.")
    smoothness = message.user_smoothness if message.HasField("user_smoothness") else None
    return AverageGradient(
        points,
        weights,
        user_smoothness=None if smoothness is None else _positive("user_smoothness", smoothness),
        centre=_vector(message.centre, points.shape[1]) if message.HasField("centre") else None,
        reference_items=reference,
        smoothing=_smoothing_from_wire(message.smoothing),
    )


def _placed_to_wire(task: PlacedGradient) -> federation.PlacedGradient:
    message = federation.PlacedGradient(
        point=array_to_wire(task.points[0]),
        places=_own_to_wire(task.places),
        divisor=task.divisor,
        expected=task.expected,
    )
    if task.clip is not None:
        message.clip = task.clip
    return message


def _placed_from_wire(message: federation.PlacedGradient) -> PlacedGradient:
    places = np.atleast_2d(array_from_wire(message.places, dtype="int64", max_numbers=MAX_NUMBERS))
    if places.ndim != 2 or places.size == 0 or places.min() < -1:
        raise WireError(f"Expected a list of places from 0, or -1 for none, got another of shape {places.shape}.")
    named = np.sort(places, axis=1)  # sorted by us: numpy's own look for what is there twice takes thirty times as long
    if np.any((named[:, 1:] == named[:, :-1]) & (named[:, 1:] >= 0)):
        raise WireError("Expected each place once, got one twice.")
    return PlacedGradient(
        _floats(message.point, axes=1)[None, :],
        places,
        _positive("divisor", message.divisor),
        _positive("clip", message.clip) if message.HasField("clip") else None,
        int(message.expected),
    )


def _second_moment_to_wire(task: SecondMoment) -> federation.SecondMoment:
    message = federation.SecondMoment(dimension=task.dimension)
    if task.label_scale is not None:
        message.label_scale = task.label_scale
    return message


def _second_moment_from_wire(message: federation.SecondMoment) -> SecondMoment:
    if not message.HasField("label_scale"):
        return SecondMoment(_features(message.dimension))
    return SecondMoment(_features(message.dimension), _positive("label_scale", message.label_scale))


def _moment_and_gradient_to_wire(task: MomentAndGradient) -> federation.MomentAndGradient:
    message = federation.MomentAndGradient(dimension=task.dimension, point=array_to_wire(task.point))
    if task.centre is not None:
        message.centre.CopyFrom(array_to_wire(task.centre))
    return message


def _moment_and_gradient_from_wire(message: federation.MomentAndGradient) -> MomentAndGradient:
    point = _floats(message.point, axes=1)
    centre = _vector(message.centre, len(point)) if message.HasField("centre") else None
    return MomentAndGradient(_features(message.dimension), point, centre)


def _average_loss_to_wire(task: AverageLoss) -> federation.AverageLoss:
    return federation.AverageLoss(points=array_to_wire(task.points))


def _average_loss_from_wire(message: federation.AverageLoss) -> AverageLoss:
    points = _floats(message.points, axes=2)
    if len(points) > MAX_POINTS:
        raise WireError(f"Expected at most {MAX_POINTS} points, got {len(points)}.")
    return AverageLoss(points)


def _local_sgd_to_wire(task: LocalSGD) -> federation.LocalSGD:
    return federation.LocalSGD(
        start=_own_to_wire(task.starts),
        step_size=task.step_size,
        domain=_domain_to_wire(task.domain),
        smoothing=_smoothing_to_wire(task.smoothing),
    )


def _local_sgd_from_wire(message: federation.LocalSGD) -> LocalSGD:
    return LocalSGD(
        _floats(message.start, axes=2 if len(message.start.shape) == 2 else 1).reshape(-1, message.start.shape[-1]),
        _positive("step_size", message.step_size),
        _domain_from_wire(message.domain),
        _smoothing_from_wire(message.smoothing),
    )


def _range_report_to_wire(task: RangeReport) -> federation.RangeReport:
    return federation.RangeReport(
        gradient=_gradient_to_wire(task.gradient),
        epsilon=task.epsilon,
        bins=task.bins,
        half_width=task.half_width,
        signs=array_to_wire(task.signs.astype(np.int64)),
        coordinate=int(task.coordinates[0]) if len(task.coordinates) == 1 else 0,
        coordinates=None if len(task.coordinates) == 1 else array_to_wire(task.coordinates),
    )


def _range_report_from_wire(message: federation.RangeReport) -> RangeReport:
    gradient = _gradient_from_wire(message.gradient)
    dimension = gradient.points.shape[1]
    signs = array_from_wire(message.signs, dtype="int64", max_numbers=MAX_NUMBERS)
    if signs.shape != (dimension,) or not np.all(np.abs(signs) == 1):
        raise WireError(f"Expected {dimension} signs, each -1 or 1, got others.")
    coordinates = np.array([message.coordinate], np.int64)
    if message.HasField("coordinates"):
        coordinates = array_from_wire(message.coordinates, dtype="int64", max_numbers=MAX_NUMBERS)
    if coordinates.ndim != 1 or not np.all((coordinates >= 0) & (coordinates < 1 << (dimension - 1).bit_length())):
        raise WireError(f"Expected a coordinate of the rotated gradient, got {coordinates[:1].tolist()}.")
    if not 2 <= message.bins <= MAX_BINS:
        raise WireError(f"Expected bins in [2, {MAX_BINS}], got {message.bins}.")
    return RangeReport(
        gradient,
        _positive("epsilon", message.epsilon),
        message.bins,
        _positive("half_width", message.half_width),
        signs.astype(np.float64),
        coordinates,
    )


def _vector_report_to_wire(task: VectorReport) -> federation.VectorReport:
    return federation.VectorReport(
        gradient=_gradient_to_wire(task.gradient),
        epsilon=task.epsilon,
        delta=task.delta,
        radius=task.radius,
        centre=array_to_wire(task.centre),
    )


def _vector_report_from_wire(message: federation.VectorReport) -> VectorReport:
    gradient = _gradient_from_wire(message.gradient)
    delta = _positive("delta", message.delta)
    if delta >= 1:
        raise WireError(f"Expected delta in (0, 1), got delta={delta}.")
    return VectorReport(
        gradient,
        _positive("epsilon", message.epsilon),
        delta,
        _positive("radius", message.radius),
        _vector(message.centre, gradient.points.shape[1]),
    )


def _domain_to_wire(domain: Domain) -> federation.Domain:
    if isinstance(domain, L2Ball):
        return federation.Domain(ball_radius=domain.radius)
    return federation.Domain(box_half_width=domain.half_width)


def _domain_from_wire(message: federation.Domain) -> Domain:
    kind = message.WhichOneof("kind")
    if kind is None:
        raise WireError("Expected a ball or a box as the domain, got neither.")
    return L2Ball(message.ball_radius) if kind == "ball_radius" else Box(message.box_half_width)


def _smoothing_to_wire(smoothing: Smoothing | None) -> federation.Smoothing | None:
    if smoothing is None:
        return None
    if isinstance(smoothing, Moreau):
        return federation.Smoothing(moreau=smoothing.parameter)
    return federation.Smoothing(convolution_radius=smoothing.radius)


def _smoothing_from_wire(message: federation.Smoothing) -> Smoothing | None:
    kind = message.WhichOneof("kind")
    if kind is None:
        return None
    return Moreau(message.moreau) if kind == "moreau" else Convolution(message.convolution_radius, seed=0)


def _own_to_wire(rows: NDArray[Any]) -> values.Array:
    """What each of the asked has of its own: of one alone without the axis of those who are asked."""
    return array_to_wire(rows[0] if len(rows) == 1 else rows)


def _floats(message: values.Array, *, axes: int) -> Matrix:
    found: Matrix = array_from_wire(message, dtype="float64", max_numbers=MAX_NUMBERS)
    if found.ndim != axes or found.size == 0:
        raise WireError(f"Expected numbers along {axes} axes, got shape {found.shape}.")
    return found


def _vector(message: values.Array, dimension: int) -> Vector:
    found = _floats(message, axes=1)
    if found.shape != (dimension,):
        raise WireError(f"Expected {dimension} numbers, got shape {found.shape}.")
    return found


def _features(dimension: int) -> int:
    if not (0 < dimension <= MAX_NUMBERS and dimension * (dimension + 1) // 2 <= MAX_NUMBERS):
        raise WireError(f"Expected a dimension whose second moment fits into a message, got {dimension}.")
    return dimension


def _positive(name: str, number: float) -> float:
    if not (isfinite(number) and number > 0):
        raise WireError(f"Expected {name} > 0 and finite, got {name}={number}.")
    return number


_Codec = tuple[str, Callable[[Any], Any], Callable[[Any], Task]]
_CODECS: dict[type[Task], _Codec] = {  # of a task, its name on the wire and both directions, for one user
    AverageGradient: ("average_gradient", _gradient_to_wire, _gradient_from_wire),
    PlacedGradient: ("placed_gradient", _placed_to_wire, _placed_from_wire),
    SecondMoment: ("second_moment", _second_moment_to_wire, _second_moment_from_wire),
    MomentAndGradient: ("moment_and_gradient", _moment_and_gradient_to_wire, _moment_and_gradient_from_wire),
    AverageLoss: ("average_loss", _average_loss_to_wire, _average_loss_from_wire),
    LocalSGD: ("local_sgd", _local_sgd_to_wire, _local_sgd_from_wire),
    RangeReport: ("range_report", _range_report_to_wire, _range_report_from_wire),
    VectorReport: ("vector_report", _vector_report_to_wire, _vector_report_from_wire),
}
TASKS = {name: decode for name, _, decode in _CODECS.values()}  # by their names
