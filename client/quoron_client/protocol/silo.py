"""What a silo is asked and what it answers: one question for all its asked persons, and one answer.

    >>> bits_of(np.array([0, 2, 9]), people=12).hex(), persons_of(bytes([5, 2]), people=12).tolist()
    ('0502', [0, 2, 9])

A silo is one client that holds the rows of several persons, each a user of the federation. Persons are named by bits in
the order of their numbers: nobody twice, nobody of another silo, and equally many bytes for all choices of persons. The
answer has a row and a status for each of them, or sums of their rows on the integer grid of the run's plan.
"""

from math import isfinite, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quoron_client.protocol.questions import Answers, Status
from quoron_client.protocol.wire import MAX_NUMBERS, array_from_wire, array_to_wire
from quoron_privacy.errors import QuoronError, WireError
from quoron_privacy.means import silo_sums
from quoron_privacy.means.clipping import ChangeSum, ClippedSum
from quoron_privacy.means.free_presence import (
    ColumnSum,
    Contrasts,
    ContrastSum,
    LengthSum,
    ShapedMomentSum,
    VectorLengthSum,
)
from quoron_privacy.means.moment import MomentSum
from quoron_privacy.means.norm_counts import NormCountSum
from quoron_privacy.release import Reduction, Sums
from quoron_protos.v1 import federation_pb2 as federation
from quoron_protos.v1 import values_pb2

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


def rows_to_wire(run: str, round: int, digest: bytes, found: Answers) -> federation.Answer:
    """Return the rows of a silo's asked persons, zeros where not answered; its length says nothing of them."""
    sent = found.values.astype(np.float64, copy=False)
    if not (answered := found.answered).all():
        sent = np.where(answered.reshape((-1,) + (1,) * (sent.ndim - 1)), sent, 0.0)
    values = array_to_wire(sent)
    status = np.ascontiguousarray(found.status, np.uint8).tobytes()
    return federation.Answer(run=run, round=round, digest=digest, values=values, statuses=status)


def rows_from_wire(message: federation.Answer, shape: tuple[int, ...], asked: int) -> Answers:
    """Return rows (asked, *shape) and a status for each; never raises. Whatever is not usable is zeros.

    | what was sent                                            | status of the person           |
    | -------------------------------------------------------- | ------------------------------ |
    | a row of finite float64 numbers, answered                | ANSWERED                       |
    | missing or rejected, by the silo itself, one or all       | as sent                        |
    | a row with a number that is not finite, another status   | REJECTED, and nobody else is   |
    | another type, another number of rows, columns or statuses | REJECTED, all of the silo's    |
    """
    whole, sent = int(message.status), message.values
    if whole in (Status.MISSING, Status.REJECTED):
        return _nothing(shape, asked, Status(whole))
    statuses = np.frombuffer(message.statuses, np.uint8)
    numbers = prod(shape)
    if whole == Status.ANSWERED and len(statuses) == asked and sent.dtype == "float64":
        data = sent.data  # every look at it is a copy
        if tuple(sent.shape) == (asked, *shape) and len(data) == 8 * asked * numbers:
            rows = np.frombuffer(data, "<f8").astype(np.float64).reshape(asked, numbers)
            with np.errstate(invalid="ignore", over="ignore"):
                usable = np.isfinite(rows).all(axis=1)
            known = statuses <= Status.REJECTED
            status = np.where(known, statuses, Status.REJECTED).astype(np.uint8)
            status[(status == Status.ANSWERED) & ~usable] = Status.REJECTED
            rows[status != Status.ANSWERED] = 0.0
            return Answers(rows.reshape(asked, *shape), status)
    return _nothing(shape, asked, Status.REJECTED)


def reduction_to_wire(reduction: Reduction | None) -> federation.Reduction | None:
    """Return the reduction by which a silo makes sums; None where it answers with rows."""
    if isinstance(reduction, ContrastSum):
        message = reduction_to_wire(reduction.own)
        assert message is not None
        message.classes = reduction.contrasts.outputs
        return message
    if isinstance(reduction, ClippedSum):
        return federation.Reduction(clipped=_clipped(reduction))
    if isinstance(reduction, ChangeSum):
        return federation.Reduction(changes=_clipped(reduction.own))
    if isinstance(reduction, MomentSum):
        moment = federation.MomentSum(dimension=reduction.dimension, norm=reduction.norm, divisor=reduction.divisor)
        return federation.Reduction(moment=moment)
    if isinstance(reduction, NormCountSum):
        counts = federation.NormCountSum(
            radius=reduction.radius,
            users=reduction.users,
            transform=_to(reduction.transform),
            centre=_to(reduction.centre),
        )
        return federation.Reduction(norm_counts=counts)
    if isinstance(reduction, LengthSum | VectorLengthSum):
        lengths = federation.LengthSum(users=reduction.users, transform=_to(reduction.transform), top=reduction.top)
        whole = isinstance(reduction, LengthSum)
        return federation.Reduction(lengths=lengths) if whole else federation.Reduction(vector_lengths=lengths)
    if isinstance(reduction, ColumnSum):
        columns = federation.ColumnSum(
            users=reduction.users, windows=_to(reduction.windows), scale=reduction.scale, constant=reduction.constant
        )
        return federation.Reduction(columns=columns)
    if isinstance(reduction, ShapedMomentSum):
        shaped = federation.ShapedMomentSum(
            users=reduction.users, transform=_to(reduction.transform), radius=reduction.radius
        )
        return federation.Reduction(shaped_moment=shaped)
    return None


def reduction_from_wire(message: federation.Reduction) -> Reduction:
    """WireError for one that this silo does not know, or that cannot be."""
    try:
        own = _reduction(message, message.WhichOneof("kind"))
        if not message.HasField("classes"):
            return own
        if not isinstance(own, NormCountSum | VectorLengthSum) or own.transform is None or message.classes < 2:
            raise WireError("Expected sums of contrasts of gradients of two classes or more, got others.")
        return ContrastSum(Contrasts(len(own.transform), message.classes), own)
    except WireError:
        raise
    except QuoronError as error:
        raise WireError(str(error)) from None


def _reduction(message: federation.Reduction, kind: str | None) -> Reduction:
    """Of rows as they are."""
    if kind in ("clipped", "changes"):
        clipped = getattr(message, kind)
        made = ClippedSum(_length(clipped.norm), _whole(clipped.divisor), _from(clipped, "centre", axes=1))
        return made if kind == "clipped" else ChangeSum(made)
    if kind == "moment":
        moment = message.moment
        return MomentSum(_whole(moment.dimension), _length(moment.norm), _whole(moment.divisor))
    if kind == "norm_counts":
        counts = message.norm_counts
        transform, centre = _from(counts, "transform", axes=2), _from(counts, "centre", axes=1)
        return NormCountSum(_length(counts.radius), _whole(counts.users), transform, centre)
    if kind == "lengths":
        lengths = message.lengths
        return LengthSum(_whole(lengths.users), _square(lengths), _length(lengths.top))
    if kind == "vector_lengths":
        vectors = message.vector_lengths
        return VectorLengthSum(_whole(vectors.users), _matrix(vectors), _length(vectors.top))
    if kind == "columns":
        columns = message.columns
        windows = _from(columns, "windows", axes=2)
        if windows is None:
            raise WireError("Expected windows of columns, got none.")
        return ColumnSum(_whole(columns.users), windows, _length(columns.scale), columns.constant)
    if kind == "shaped_moment":
        shaped = message.shaped_moment
        return ShapedMomentSum(_whole(shaped.users), _square(shaped), _length(shaped.radius))
    raise WireError("Expected sums that this client knows, got others. Update the client.")


def sums_to_wire(run: str, round: int, digest: bytes, sums: Sums) -> federation.Answer:
    """Return the sums of a silo's asked persons."""
    said = federation.Sums(
        total=array_to_wire(sums.total.astype(np.int64)),
        cells=array_to_wire(sums.cells.astype(np.int64)),
        clipped=sums.clipped,
        answered=sums.answered,
    )
    return federation.Answer(run=run, round=round, digest=digest, sums=said)


def sums_from_wire(message: federation.Answer, length: int, asked: int, reduction: Reduction) -> Sums | None:
    """Return sums of `length` integers and at most so many persons, as sent; None for what is none. Never raises.

    Nor is what no rows of so many persons, reduced so, could add up to.
    """
    if not message.HasField("sums") or int(message.status) != Status.ANSWERED:
        return None
    sent = message.sums
    try:
        total = array_from_wire(sent.total, dtype="int64", max_numbers=length)
        cells = array_from_wire(sent.cells, dtype="int64", max_numbers=4)
    except WireError:
        return None
    if total.shape != (length,) or cells.shape != (4,) or sent.answered > asked or sent.clipped > sent.answered:
        return None
    sums = Sums(total, cells, int(sent.clipped), int(sent.answered))
    return None if silo_sums.objection(sums, reduction, persons=asked, length=length) else sums


def _nothing(shape: tuple[int, ...], asked: int, status: Status) -> Answers:
    return Answers(np.zeros((asked, *shape)), np.full(asked, status, np.uint8))


def _clipped(reduction: ClippedSum) -> federation.ClippedSum:
    return federation.ClippedSum(norm=reduction.norm, divisor=reduction.divisor, centre=_to(reduction.centre))


def _to(array: NDArray[np.float64] | None) -> values_pb2.Array | None:
    return None if array is None else array_to_wire(array)


def _from(message: Any, name: str, *, axes: int) -> NDArray[np.float64] | None:
    if not message.HasField(name):
        return None
    found: NDArray[np.float64] = array_from_wire(getattr(message, name), dtype="float64", max_numbers=MAX_NUMBERS)
    if found.ndim != axes or found.size == 0:
        raise WireError(f"Expected {name} along {axes} axes, got shape {found.shape}.")
    return found


def _matrix(message: Any) -> NDArray[np.float64]:
    found = _from(message, "transform", axes=2)
    if found is None:
        raise WireError("Expected a transform, got none.")
    return found


def _square(message: Any) -> NDArray[np.float64]:
    found = _matrix(message)
    if found.shape[0] != found.shape[1]:
        raise WireError("Expected a transform with as many rows as columns, got another.")
    return found


def _length(number: float) -> float:
    if not (isfinite(number) and number > 0):
        raise WireError(f"Expected a length > 0 and finite, got {number}.")
    return number


def _whole(number: int) -> int:
    if not 0 < number < 2**31:
        raise WireError(f"Expected a whole number in [1, 2^31), got {number}.")
    return number
