"""Questions and answers as messages of the protocol, and back: whatever arrives is checked before it is believed.

    >>> task = AverageGradient(np.zeros((1, 2)), (1.0,))
    >>> message = question_to_wire(Question(3, np.array([7]), task), 0, run="r", user=7, seconds=60)
    >>> question_from_wire(message)[:2]
    ('r', 3)

Arrays are raw little-endian bytes in C order. A question holds the part of one user. A message of the coordinator that
is not of this protocol raises `WireError`; what a client sends never raises: it becomes zeros that are `REJECTED`.

Questions and answers that are too long for one message: their end follows them, in parts of the same stream.

    messages = answer_messages(answer)          # one, or one and its parts
    whole = reassembler.take(message, allowed)     # None until all of it is there

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

A silo is one client that holds the rows of several persons, each a user of the federation. It has one question for all
its asked persons, and one answer: a row and a status for each of them, or sums of their rows on the integer grid of the
run's plan. Persons are named by bits in the order of their numbers: nobody twice, nobody of another silo, and equally
many bytes for all choices of persons.

    >>> bits_of(np.array([0, 2, 9]), people=12).hex(), persons_of(bytes([5, 2]), people=12).tolist()
    ('0502', [0, 2, 9])
"""

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import fields, is_dataclass
from functools import cache, partial
from hashlib import blake2b
from math import exp, inf, isfinite, prod
from types import NoneType, UnionType
from typing import Annotated, Any, Generic, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from quoron_client.protocol.domains import Box, L2Ball
from quoron_client.protocol.questions import (
    REJECTED,
    Answers,
    AverageGradient,
    AverageLoss,
    LocalSGD,
    MomentAndGradient,
    PlacedGradient,
    Question,
    RangeReport,
    SecondMoment,
    Status,
    Task,
    VectorReport,
)
from quoron_client.protocol.smoothing import Convolution, Moreau
from quoron_privacy.errors import QuoronError, WireError
from quoron_privacy.means import silo_sums
from quoron_privacy.means.clipping import ChangeSum, ClippedSum
from quoron_privacy.means.free_counts import (
    ColumnSum,
    Contrasts,
    ContrastSum,
    LengthSum,
    NormCountSum,
    ShapedMomentSum,
    VectorLengthSum,
)
from quoron_privacy.release import Reduction, Sums
from quoron_protos.v1 import federation_pb2 as federation
from quoron_protos.v1 import values_pb2 as values

BESIDE = 4 << 10  # bytes of a question or an answer beside its vectors, and of a part beside its data
MOST = (256 << 10) - BESIDE  # bytes of one message, and of what a part holds: so much of a call that never ends is held
_DIGEST = 32  # bytes

Long = federation.Question | federation.Answer | federation.MaskedAnswer
_HEADS: dict[type, tuple[str, ...]] = {  # what stays where the end follows
    federation.Question: ("run", "round", "digest", "seconds", "follows"),
    federation.Answer: ("run", "round", "digest", "status", "follows"),
    federation.MaskedAnswer: ("run", "round", "digest", "sealed", "follows"),
}
_KINDS = {federation.Question: "question", federation.Answer: "answer", federation.MaskedAnswer: "masked"}
Message = TypeVar("Message", federation.ServerMessage, federation.ClientMessage)
T = TypeVar("T")
Sizes = dict[str, int]  # of axes, by their letters


def continuation(end: bytes) -> federation.Follows:
    """Return what stands in place of a question's end."""
    return federation.Follows(length=len(end), digest=blake2b(end, digest_size=_DIGEST).digest())


def chunks(end: bytes) -> Iterator[federation.Part]:
    """Yield the end, in order."""
    for offset in range(0, len(end), MOST):
        yield federation.Part(offset=offset, data=end[offset : offset + MOST])


def answer_messages(answer: federation.Answer | federation.MaskedAnswer) -> Iterator[federation.ClientMessage]:
    """Yield an answer, and where it is too long for one message its values after it."""
    if answer.ByteSize() <= MOST:
        yield _client_message(answer)
        return
    head, end = type(answer)(), deepcopy(answer)
    for name in _HEADS[type(answer)][:-1]:
        setattr(head, name, getattr(answer, name))
        end.ClearField(name)
    data = end.SerializeToString()
    head.follows.length = len(data)
    yield _client_message(head)
    for part in chunks(data):
        yield federation.ClientMessage(part=part)


def _client_message(answer: federation.Answer | federation.MaskedAnswer) -> federation.ClientMessage:
    message = federation.ClientMessage()
    getattr(message, _KINDS[type(answer)]).CopyFrom(answer)
    return message


class Reassembler(Generic[Message]):
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

    def take(self, message: Message, allowed: Callable[[Long], int | None]) -> Message | None:
        """Return a message, with its end if that follows; None while that is on its way.

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
        long: Long | None = getattr(message, kind) if kind in _KINDS.values() else None
        if long is None or not long.HasField("follows"):
            return message
        self._begin(long, allowed(long))
        return None

    def _begin(self, head: Long, allowed: int | None) -> None:
        announced = head.follows
        if any(field.name not in _HEADS[type(head)] for field, _ in head.ListFields()):
            raise WireError("Expected a message whose end follows it to be without it, got both.")
        named = _DIGEST if isinstance(head, federation.Question) else 0
        if len(announced.digest) != named or not announced.length > MOST - BESIDE or not announced.length:
            raise WireError(f"Expected what follows to be too long for one message, got {announced.length:,} bytes.")
        if allowed is not None and announced.length > allowed:
            raise WireError(f"Expected at most {allowed:,} bytes to follow, got {announced.length:,} announced.")
        self._head, self._length, self._here = head, announced.length, 0
        self._kept = None if allowed is None else []

    def _added(self, part: federation.Part) -> Message | None:
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

    def _put_together(self) -> Message | None:
        head, kept = self._head, self._kept
        self._head, self._kept = None, None
        if head is None or kept is None:
            return None
        end = b"".join(kept)
        kept.clear()
        if isinstance(head, federation.Question) and continuation(end).digest != head.follows.digest:
            raise WireError(f"Expected {len(end):,} bytes of the announced digest, got others.")
        message: Any = (
            federation.ServerMessage() if isinstance(head, federation.Question) else federation.ClientMessage()
        )
        whole = getattr(message, _KINDS[type(head)])
        try:
            whole.MergeFromString(end)
        except DecodeError:
            raise WireError("Expected the end of a message, got bytes that are none.") from None
        del end
        head.ClearField("follows")
        if any(field.name in _HEADS[type(head)] for field, _ in whole.ListFields()):
            raise WireError("Expected the end of a message, got another beginning.")
        whole.MergeFromString(head.SerializeToString())
        made: Message = message
        return made


PROTOCOL = 2
MAX_MESSAGE = 512 << 20  # bytes of a question or an answer, in parts: a client's record is a value of SQLite
MAX_WHOLE = 64 << 20  # bytes of one that travels whole, as through Flower
MAX_DESCRIPTION = 1 << 20  # characters of an announcement
MAX_VECTORS = 4  # in a question to one user
MAX_NUMBERS = MAX_MESSAGE // 8 - 1024  # of one array, so that what surrounds it fits as well
DIGEST_SIZE = 16  # bytes
MAX_RUNS = 64  # that a coordinator carries out at the same time
MAX_SENT = 500  # runs, the latest, that a coordinator reports to a client that enrols
UNASKED = "unasked"  # the end of a run that had not begun: no user was asked or is charged
MAX_NAME = 200  # characters of a run's name
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
        row: federation.Reduction | None = None,
    ) -> "Body":
        """Of a task that is the part of one user; or of the `persons` of a silo, that answers with `sums` perhaps. With
        two servers one user's answer becomes a `row`."""
        asked = federation.Question(persons=persons, sums=sums, row=row)
        write(task, getattr(asked, task_name(task)))
        data = asked.SerializeToString(deterministic=True)
        end = continuation(data)
        return cls(data, end.digest, None if len(data) + BESIDE <= MOST else end)


def question_to_wire(
    question: Question, slots: int | NDArray[np.int64], *, run: str, user: int, seconds: int
) -> federation.Question:
    """Return the part of some cohort rows, the first of them `user`, of a question whose round closes in `seconds`."""
    body = Body.of(question.task.part(np.atleast_1d(slots)))
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
    for name in _HEADS[federation.Question]:
        asked.ClearField(name)
    return continuation(asked.SerializeToString(deterministic=True)).digest


def task_name(task: Task) -> str:
    """Return a task's name on the wire."""
    return _NAMES[type(task)]


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
    return run, round_number, digest, read(TASKS[kind], getattr(message, kind))


def check_own(task: Task, asked: int) -> None:
    """Raise WireError unless a task has something for each of so many, where it has something of each one's own."""
    if task.own is not None and (given := len(getattr(task, task.own))) != asked:
        raise WireError(f"Expected {task.own} for each of {asked:,} persons, got {given:,}.")


def answer_to_wire(run: str, round: int, digest: bytes, values: NDArray[Any], status: Status) -> federation.Answer:
    """Return one user's answer, `values` of the task's shape; zeros unless answered, so that its size says nothing."""
    sent = values if status == Status.ANSWERED else np.zeros_like(values)
    name = f"STATUS_{status.name}"
    return federation.Answer(run=run, round=round, digest=digest, status=name, values=array_to_wire(sent))


def rows_to_wire(run: str, round: int, digest: bytes, found: Answers) -> federation.Answer:
    """Return the rows of the asked users, zeros where not answered, so that its size says nothing.

    Of one user it is that user's row and status: as in a question, an axis of length 1 is not sent.
    """
    if len(found.status) == 1:
        return answer_to_wire(run, round, digest, found.values[0], Status(int(found.status[0])))
    sent = found.values.astype(np.float64, copy=False)
    if not (answered := found.answered).all():
        sent = np.where(answered.reshape((-1,) + (1,) * (sent.ndim - 1)), sent, 0.0)
    status = np.ascontiguousarray(found.status, np.uint8).tobytes()
    return federation.Answer(run=run, round=round, digest=digest, values=array_to_wire(sent), statuses=status)


def rows_from_wire(message: federation.Answer, shape: tuple[int, ...], asked: int) -> Answers | None:
    """Return rows (asked, *shape), to be read, and a status for each; never raises. Whatever is not usable is zeros.

    | what was sent                                             | status of the user                          |
    | --------------------------------------------------------- | ------------------------------------------- |
    | a row of finite float64 numbers, answered                 | ANSWERED                                    |
    | missing or rejected, by the client itself, one or all     | as sent                                     |
    | a row with a number that is not finite, another status    | REJECTED, and nobody else is                |
    | another type, another number of rows, columns or statuses | None: no client that works sends it         |
    """
    whole = int(message.status)
    if whole in (Status.MISSING, Status.REJECTED):
        return Answers(np.zeros((asked, *shape)), np.full(asked, whole, np.uint8))
    sent = (asked, *shape) if asked > 1 else shape
    found = floats_from_wire(message.values, sent) if whole == Status.ANSWERED else None
    statuses = np.frombuffer(message.statuses if asked > 1 else b"\0", np.uint8)
    if found is None or len(statuses) != asked:
        return None
    found = found.reshape(asked, *shape)
    if np.count_nonzero(np.isfinite(found)) == found.size and not np.count_nonzero(statuses):  # ANSWERED is 0
        return Answers(found, statuses)
    return Answers.checked(found, np.minimum(statuses, REJECTED), largest=np.finfo(np.float64).max)


def floats_from_wire(message: values.Array, shape: tuple[int, ...]) -> NDArray[np.float64] | None:
    """Return float64 numbers of that shape, finite or not, to be read; None for anything else."""
    if message.dtype != "float64" or tuple(message.shape) != shape:
        return None
    data = message.data  # every access is a copy
    fits = len(data) == 8 * prod(shape)
    return np.frombuffer(data, "<f8").astype(np.float64, copy=False).reshape(shape) if fits else None


def array_to_wire(array: NDArray[Any]) -> values.Array:
    """Raw little-endian bytes in C order."""
    message = values.Array()
    _fill(message, array, array.dtype.name)
    return message


def _fill(message: values.Array, array: NDArray[Any], dtype: str) -> None:
    message.dtype, message.data = dtype, np.ascontiguousarray(array, np.dtype(dtype).newbyteorder("<")).tobytes()
    message.shape.extend(array.shape)


def array_from_wire(message: values.Array, dtype: str) -> NDArray[Any]:
    """An array of its own memory, with up to three axes. Raises WireError unless it is of `dtype` ("float64", "int64"),
    finite, and of numbers that fit into a message."""
    if message.dtype != dtype:
        raise WireError(f"Expected an array of {dtype}, got one of {message.dtype[:20]!r}.")
    shape = tuple(message.shape)
    # Each axis first: a product of enormous numbers would be slow, and with a zero axis among them small.
    if len(shape) > _AXES or max(shape, default=0) > MAX_NUMBERS or prod(shape) > MAX_NUMBERS:
        raise WireError(f"Expected an array of at most {_AXES} axes and {MAX_NUMBERS:,} numbers, got another shape.")
    data = message.data  # each access copies it
    if len(data) != 8 * prod(shape):
        raise WireError(f"Expected {8 * prod(shape):,} bytes in an array of shape {shape}, got {len(data):,}.")
    kind = np.dtype(dtype)
    found = np.frombuffer(data, kind.newbyteorder("<")).astype(kind).reshape(shape)
    if np.count_nonzero(np.isfinite(found)) < found.size:  # several times as fast as `all`
        raise WireError("Expected an array of finite numbers, got others among them.")
    return found


class Field(NamedTuple):
    """A field of a dataclass that is written and read, as its annotation says."""

    name: str
    sent: str  # the message's field
    optional: bool
    axes: tuple[str, ...]
    dtype: str  # of an array, as sent
    reader: Callable[[Any, str, Sizes], Any]  # of the message, by the name of its field


@cache
def fields_of(kind: Any) -> tuple[Field, ...]:
    """Return the fields of a dataclass, see `read`."""
    annotations = get_type_hints(kind, include_extras=True)
    return tuple(_field(item.name, annotations[item.name]) for item in fields(kind))


def _field(name: str, annotation: Any) -> Field:
    options = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    kinds = [option for option in options if option is not NoneType]
    kind, *rules = get_args(kinds[0]) if get_origin(kinds[0]) is Annotated else kinds[:1]
    words = [rule for rule in rules if isinstance(rule, str)]
    axes, sent, dtype = tuple(words[0].split()) if words else (), words[1] if len(words) > 1 else name, ""
    reader: Callable[[Any, str, Sizes], Any]
    if len(kinds) > 1:
        reader = _choice
    elif get_origin(kind) is _ARRAY:
        own = get_args(kind)[-1]
        own = get_args(own)[0] if get_origin(own) is np.dtype else own
        dtype = next((rule for rule in rules if isinstance(rule, type)), own).__name__
        reader = partial(_array, axes, own, dtype)
    elif axes:
        reader = partial(_numbers, axes)
    elif kind in (float, int):
        reader = _positive if kind is float else partial(_whole, rules[0] if rules else range(1, 1 << 31))
    else:
        reader = _flag if kind is bool else partial(_nested, kind)
    return Field(name, sent, len(kinds) < len(options), axes, dtype, reader)


def write(value: Any, message: Any) -> None:
    """Write a dataclass into a message of its kind: each field that is not None into that of its name, see `read`."""
    message.SetInParent()
    kind: Any = type(value)
    for name, sent, _, axes, dtype, _ in fields_of(kind):
        held = getattr(value, name)
        if held is None:
            continue
        if axes and axes[0] in _ALONE and len(held) == 1:
            held = held[0]
        if isinstance(held, np.ndarray):
            _fill(getattr(message, sent), held, dtype)
        elif isinstance(held, tuple):
            getattr(message, sent).extend(held)
        elif type(held) in _TAGS:
            setattr(getattr(message, sent), _TAGS[type(held)], getattr(held, fields(held)[0].name))
        elif is_dataclass(held):
            write(held, getattr(message, sent))
        else:
            setattr(message, sent[:-1] if axes else sent, held)


def read(kind: type[T], message: Any) -> T:
    """Return the dataclass that a message is. WireError names a field that is not as its annotation says.

    | annotation                     | what the field may be                                                     |
    | ------------------------------ | ------------------------------------------------------------------------- |
    | `float`                        | finite, above 0                                                           |
    | `int`, `Annotated[int, range]` | in [1, 2^31), in the range                                                |
    | `Annotated[NDArray, "p d"]`    | finite, not empty; axes of one letter have one length in the whole message |
    | ... `"k d"`, `"1 d"`           | without its first axis if that has length 1                               |
    | ... `"k"`                      | if it has length 1, one number, of the singular's name                    |
    | ... `"p d", "x"`               | of the name x in the message                                              |
    | ... `"d", np.int64`            | an array of whole numbers in the message                                  |
    | a dataclass; a union of them   | fields of its own; one number, of the name of one of them                 |
    | `... | None`                   | absent                                                                    |
    """
    try:
        made: T = _read(kind, message, {"1": 1})
        return made
    except WireError:
        raise
    except QuoronError as error:  # constructors check their numbers, too
        raise WireError(str(error)) from None


def _read(kind: Any, message: Any, sizes: Sizes) -> Any:
    found = {
        name: None if optional and not message.HasField(sent) else reader(message, sent, sizes)
        for name, sent, optional, _, _, reader in fields_of(kind)
    }
    made = kind(**found)
    if isinstance(made, Task):
        made.check()
    return made


def _nested(kind: type, message: Any, sent: str, sizes: Sizes) -> Any:
    return _read(kind, getattr(message, sent), sizes)


def _choice(message: Any, sent: str, _: Sizes) -> Any:
    chosen = getattr(message, sent)
    tag = chosen.WhichOneof("kind")
    if tag is None:
        raise WireError(f"Expected a {sent} that this client knows, got another. Update the client.")
    return _OF_TAGS[tag](getattr(chosen, tag))


def _array(axes: tuple[str, ...], kind: type, dtype: str, message: Any, sent: str, sizes: Sizes) -> NDArray[Any]:
    if len(axes) == 1 and axes[0] in _ALONE and not message.HasField(sent):
        return np.array([getattr(message, sent[:-1])], kind)
    found = array_from_wire(getattr(message, sent), dtype)
    if axes[0] in _ALONE and found.ndim == len(axes) - 1:
        found = found[None]
    _check_shape(sent, found.shape, axes, sizes)
    return found if kind.__name__ == dtype else found.astype(kind)


def _numbers(axes: tuple[str, ...], message: Any, sent: str, sizes: Sizes) -> tuple[float, ...]:
    found = tuple(getattr(message, sent))
    _check_shape(sent, (len(found),), axes, sizes)
    if not all(map(isfinite, found)):
        raise WireError(f"Expected finite {sent}, got others among them.")
    return found


def _check_shape(name: str, shape: tuple[int, ...], axes: tuple[str, ...], sizes: Sizes) -> None:
    fits = len(shape) == len(axes) and 0 not in shape
    for axis, size in zip(axes, shape, strict=fits):
        fits = fits and sizes.setdefault(axis, size) == size
    if not fits:
        wanted = ", ".join(f"{axis}={sizes[axis]}" if axis in sizes else axis for axis in axes)
        raise WireError(f"Expected {name} of shape ({wanted}), got {shape}.")


def _positive(message: Any, sent: str, _: Sizes) -> float:
    number: float = getattr(message, sent)
    if not 0 < number < inf:
        raise WireError(f"Expected {sent} > 0 and finite, got {sent}={number}.")
    return number


def _whole(within: range, message: Any, sent: str, _: Sizes) -> int:
    number: int = getattr(message, sent)
    if number not in within:
        raise WireError(f"Expected {sent} in [{within.start:,}, {within.stop - 1:,}], got {number:,}.")
    return number


def _flag(message: Any, sent: str, _: Sizes) -> bool:
    return bool(getattr(message, sent))


_ARRAY = get_origin(NDArray[np.float64])  # np.ndarray; from NumPy 2.5 on an alias
_ALONE = "k", "1"  # axes that are not sent where they have length 1: of the asked users; of the only point
_TAGS = {L2Ball: "ball_radius", Box: "box_half_width", Convolution: "convolution_radius", Moreau: "moreau"}
_OF_TAGS: dict[str, Callable[[float], Any]] = {tag: kind for kind, tag in _TAGS.items()}
TASKS: dict[str, type[Task]] = {  # by their names on the wire
    "average_gradient": AverageGradient,
    "placed_gradient": PlacedGradient,
    "second_moment": SecondMoment,
    "moment_and_gradient": MomentAndGradient,
    "average_loss": AverageLoss,
    "local_sgd": LocalSGD,
    "range_report": RangeReport,
    "vector_report": VectorReport,
}
_NAMES = {kind: name for name, kind in TASKS.items()}


def run_mark(run: str) -> int:
    """Return 64 bits by which a run is known to those parties alone that know its name."""
    return int.from_bytes(blake2b(run.encode(), digest_size=8, person=b"quoron-run").digest(), "little")


def replace_one(epsilon: float, delta: float, *, adjacency: str, trust_model: str) -> tuple[float, float]:
    """Replace-one (ε, δ) of a promise, so that those of all runs add up (docs/privacy/lifetime.md, 4).

    Local reports are replace-one by themselves, and a client's record holds them to what was announced.

    >>> replace_one(1.0, 0.0, adjacency="zero-out", trust_model="central-broadcast")
    (2.0, 0.0)
    """
    if adjacency != "zero-out" or trust_model == "local":
        return epsilon, delta
    return 2 * epsilon, min(1.0, (1 + exp(min(epsilon, 700.0))) * delta)


Persons = NDArray[np.int64]


def bits_of(persons: Persons, *, people: int) -> bytes:
    """Persons of a silo of so many, in order, as bits."""
    asked = np.zeros(people, np.bool_)
    asked[persons] = True
    return np.packbits(asked, bitorder="little").tobytes()


def persons_of(bits: bytes, *, people: int) -> Persons:
    """Return who is asked, in order. WireError unless it is somebody, and all of this silo."""
    if len(bits) != -(-people // 8):
        raise WireError(f"Expected persons of a silo of {people:,} in {-(-people // 8):,} bytes, got {len(bits):,}.")
    found = np.flatnonzero(np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little"))
    if not len(found) or found[-1] >= people:
        raise WireError(f"Expected persons below {people:,}, got none or others.")
    return found.astype(np.int64)


def reduction_to_wire(reduction: Reduction | None) -> federation.Reduction | None:
    """Return the reduction by which a silo makes sums, or a client a masked row; None for one that neither makes."""
    rows = reduction.own if isinstance(reduction, ChangeSum | ContrastSum) else reduction
    name = "changes" if isinstance(reduction, ChangeSum) else _SUM_NAMES.get(type(rows))
    if name is None:
        return None
    message = federation.Reduction()
    write(rows, getattr(message, name))
    if isinstance(reduction, ContrastSum):
        message.classes = reduction.contrasts.outputs
    return message


def reduction_from_wire(message: federation.Reduction) -> Reduction:
    """Raise WireError for one that this client does not know, or that cannot be."""
    name = message.WhichOneof("kind")
    if name is None:
        raise WireError("Expected sums that this client knows, got others. Update the client.")
    own: Reduction = read(_SUMS[name], getattr(message, name))
    if name == "changes" and isinstance(own, ClippedSum):
        own = ChangeSum(own)
    if not message.HasField("classes"):
        return own
    if not isinstance(own, NormCountSum | VectorLengthSum) or message.classes < 2:
        raise WireError("Expected sums of contrasts of gradients of two classes or more, got others.")
    return ContrastSum(Contrasts(len(own.transform), message.classes), own)


def sums_to_wire(run: str, round: int, digest: bytes, sums: Sums) -> federation.Answer:
    """Return the sums of a silo's asked persons."""
    answer = federation.Answer(run=run, round=round, digest=digest)
    write(sums, answer.sums)
    return answer


def sums_from_wire(message: federation.Answer, length: int, asked: int, reduction: Reduction) -> Sums | None:
    """Return sums of `length` integers and at most so many persons, as sent; None for what is none. Never raises.

    Nor is what no rows of so many persons, reduced so, could add up to.
    """
    if not message.HasField("sums") or int(message.status) != Status.ANSWERED:
        return None
    try:
        sums = read(Sums, message.sums)
    except WireError:
        return None
    return None if silo_sums.objection(sums, reduction, persons=asked, length=length) else sums


_SUMS: dict[str, Any] = {  # by their names in a message
    "clipped": ClippedSum,
    "norm_counts": NormCountSum,
    "lengths": LengthSum,
    "vector_lengths": VectorLengthSum,
    "columns": ColumnSum,
    "shaped_moment": ShapedMomentSum,
}
_SUM_NAMES = {kind: name for name, kind in _SUMS.items()}
_SUMS["changes"] = ClippedSum  # of the changes
