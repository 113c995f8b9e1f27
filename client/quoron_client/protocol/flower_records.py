"""Questions and answers as Flower's records. The bytes within are those of the protocol: see `wire`.

| message            | record "quoron" holds                                                          |
| ------------------ | ------------------------------------------------------------------------------- |
| `query.hello`      | version; a nonce, as in every message                                           |
| its reply          | version, the nonce, partition, partitions (-1 where the node was given none);   |
|                    | people, of a silo                                                               |
| `query.announced`  | version, announcement, user: to every member who is there, before any question  |
| its reply          | agreed, or declined                                                             |
| `query.<task>`     | version, announcement, user, question: to a node; a silo's has its persons      |
| its reply          | answer, or declined                                                             |
| `query.<task>`     | version, question, users whom it is for                                         |
| its reply          | values (k, *shape), status (k,): of the users of a simulation                   |
| `query.ended`      | version, run, how                                                               |
| a plug-in's action | a nonce alone: a hello; announcement, user, and question; run, how: as above     |
| any reply          | refused: why, in words that no data can influence                               |

A node of a federation holds one user, or is a silo of as many as it has declared; one of a simulation may hold many.
"""

from collections.abc import Iterator, Sequence
from importlib.metadata import version

import numpy as np
from flwr.app import ConfigRecord, RecordDict
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from quoron_client.protocol import wire
from quoron_client.protocol.questions import (
    Answers,
    Question,
    Status,
)
from quoron_privacy.errors import WireError
from quoron_protos.v1 import federation_pb2 as pb
from quoron_protos.v1 import values_pb2

HELLO, ANNOUNCED, ENDED = "hello", "announced", "ended"
FAILED, OTHER_VERSION = "failed", "another version"
NOT_SIMULATED = "a user's data is configured here"
REFUSALS = (FAILED, OTHER_VERSION, NOT_SIMULATED)  # all that a node of ours says when it refuses
VERSION = version("quoron")  # read once: looking it up costs as much as answering a small question
_NAME = "quoron"
Values = dict[str, int | float | str | bytes]


def record(**values: int | float | str | bytes) -> RecordDict:
    """Our values as the one record of a message."""
    return RecordDict({_NAME: ConfigRecord({**values})})


def values_of(content: RecordDict) -> Values:
    """Our values in a message. Raises WireError for a message without them."""
    found = content.get(_NAME)
    if not isinstance(found, ConfigRecord):
        raise WireError("Expected a message of quoron, got one without its record.")
    return {key: value for key, value in found.items() if isinstance(value, int | float | str | bytes)}


def refusal(values: Values) -> str | None:
    """Return why a node refuses, fit for a log whatever it has sent; None if it does not."""
    said = values.get("refused")
    return said if said is None or said in REFUSALS else f"in other words, {str(said)[:60]!r}"


def question_values(
    question: Question, parts: Sequence[NDArray[np.int64]], *, run: str, seconds: int
) -> Iterator[Values]:
    """Yield the part of a question for each of `parts`, rows (k,) of its cohort; a user is its number in the cohort."""

    def encoded(rows: NDArray[np.int64]) -> bytes:
        user = int(question.cohort[rows[0]])
        return bytes(wire.question_to_wire(question, rows, run=run, user=user, seconds=seconds).SerializeToString())

    # Large models: what all are asked alike is encoded once.
    shared = None if question.task.own or not parts else encoded(parts[0])
    for rows in parts:
        yield {"question": shared or encoded(rows), "users": _sent(question.cohort[rows])}


def question_from_values(values: Values) -> Question:
    """Return the part that `question_values` made: its users as the cohort. Raises WireError for anything else."""
    message = pb.Question.FromString(bytes_of(values, "question"))
    _, number, _, task = wire.question_from_wire(message)
    sent = values_pb2.Array.FromString(bytes_of(values, "users"))
    users = wire.array_from_wire(sent, "int64")
    if users.ndim != 1 or not len(users):
        raise WireError("Expected the numbers of the users who are asked, got none.")
    wire.check_own(task, len(users))
    return Question(number, users, task)


def answers_record(answers: Answers) -> RecordDict:
    """Return the answers of a part, in the order of its users."""
    return record(values=_sent(answers.values), status=answers.status.astype(np.uint8).tobytes())


def answers_from_record(content: RecordDict, users: int, shape: tuple[int, ...]) -> Answers | None:
    """Return rows of that shape for so many users, or None if it is anything else. Never raises.

    A row with numbers that are not finite is zeros that are REJECTED, and changes no other row.
    """
    try:
        values = values_of(content)
        statuses = np.frombuffer(bytes_of(values, "status"), np.uint8)
        sent = values_pb2.Array.FromString(bytes_of(values, "values"))
    except (WireError, DecodeError):
        return None
    found = wire.floats_from_wire(sent, (users, *shape))
    if found is None or statuses.shape != (users,) or (statuses > Status.REJECTED).any():
        return None
    return Answers.checked(found, statuses.copy(), largest=np.finfo(np.float64).max)


def _sent(array: NDArray[np.float64] | NDArray[np.int64]) -> bytes:
    return bytes(wire.array_to_wire(array).SerializeToString())


def bytes_of(values: Values, key: str) -> bytes:
    """Return one of our values. Raises WireError where it is missing, or is no bytes."""
    value = values.get(key)
    if not isinstance(value, bytes):
        raise WireError(f"Expected {key} in a message, got none.")
    return value
