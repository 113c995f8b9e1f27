"""What a silo is asked and what it answers: one question for all its asked persons, and one answer.

    >>> bits_of(np.array([0, 2, 9]), people=12).hex(), persons_of(bytes([5, 2]), people=12).tolist()
    ('0502', [0, 2, 9])

A silo is one client that holds the rows of several persons, each a user of the federation. Persons are named by bits in
the order of their numbers: nobody twice, nobody of another silo, and equally many bytes for all choices of persons. The
answer has a row and a status for each of them, or sums of their rows on the integer grid of the run's plan.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quoron_client.protocol.questions import Status
from quoron_client.protocol.wire import read, write
from quoron_privacy.errors import WireError
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
    """Return the reduction by which a silo makes sums; None where it answers with rows."""
    rows = reduction.own if isinstance(reduction, ChangeSum | ContrastSum) else reduction
    name = "changes" if isinstance(reduction, ChangeSum) else _NAMES.get(type(rows))
    if name is None:
        return None
    message = federation.Reduction()
    write(rows, getattr(message, name))
    if isinstance(reduction, ContrastSum):
        message.classes = reduction.contrasts.outputs
    return message


def reduction_from_wire(message: federation.Reduction) -> Reduction:
    """WireError for one that this silo does not know, or that cannot be."""
    name = message.WhichOneof("kind")
    if name is None:
        raise WireError("Expected sums that this client knows, got others. Update the client.")
    own: Reduction = read(_SUMS[name], getattr(message, name))
    if name == "changes" and isinstance(own, ClippedSum):
        own = ChangeSum(own)
    if not message.HasField("classes"):
        return own
    if not isinstance(own, NormCountSum | VectorLengthSum) or own.transform is None or message.classes < 2:
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
    "moment": MomentSum,
    "norm_counts": NormCountSum,
    "lengths": LengthSum,
    "vector_lengths": VectorLengthSum,
    "columns": ColumnSum,
    "shaped_moment": ShapedMomentSum,
}
_NAMES = {kind: name for name, kind in _SUMS.items()}
_SUMS["changes"] = ClippedSum  # of the changes
