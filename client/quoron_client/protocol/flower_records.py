"""Questions and answers as Flower's records. The bytes within are those of the protocol: see `wire`.

| message            | record "quoron" holds                                                          |
| ------------------ | ------------------------------------------------------------------------------- |
| `query.hello`      | version; a nonce, as in every message                                           |
| its reply          | version, the nonce, partition (-1 where the node was given none); people, of a  |
|                    | silo                                                                            |
| `query.announced`  | version, announcement, user: to every member who is there, before any question  |
| its reply          | agreed, or declined                                                             |
| `query.<task>`     | version, announcement, user, question: to a node; a silo's has its persons      |
| its reply          | answer, or declined                                                             |
| `query.<task>`     | version, question, users whom it is for                                         |
| its reply          | answer: of the users of a simulation                                            |
| `query.ended`      | version, run, how                                                               |
| a plug-in's action | a nonce alone: a hello; announcement, user, and question; run, how: as above     |
| any reply          | refused: why, in words that no data can influence                               |

A node of a federation holds one user, or is a silo of as many as it has declared; one of a simulation may hold many.
"""

from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version

import numpy as np
from flwr.app import ConfigRecord, RecordDict
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from quoron_client.protocol import wire
from quoron_client.protocol.questions import Answers, Question
from quoron_privacy.errors import WireError
from quoron_protos.v1 import federation_pb2 as pb
from quoron_protos.v1 import values_pb2

HELLO, ANNOUNCED, ENDED = "hello", "announced", "ended"
FAILED, OTHER_VERSION = "failed", "another version"
REFUSALS = (FAILED, OTHER_VERSION)  # all that a node of ours says when it refuses
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
        yield {
            "question": shared or encoded(rows),
            "users": bytes(wire.array_to_wire(question.cohort[rows]).SerializeToString()),
        }


def answered(values: Values, rows: Callable[[Question], Answers]) -> RecordDict:
    """Return the reply to a part that `question_values` made: `rows` has the answers of its users, who are the cohort.

    Raises WireError for anything else.
    """
    message = pb.Question.FromString(bytes_of(values, "question"))
    run, number, digest, task = wire.question_from_wire(message)
    users = wire.array_from_wire(values_pb2.Array.FromString(bytes_of(values, "users")), "int64")
    if users.ndim != 1 or not len(users):
        raise WireError("Expected the numbers of the users who are asked, got none.")
    wire.check_own(task, len(users))
    answer = wire.rows_to_wire(run, number, digest, rows(Question(number, users, task)))
    return record(answer=bytes(answer.SerializeToString()))


def answer_of(values: Values) -> pb.Answer:
    """Return the answer in a reply. Raises WireError for anything else."""
    try:
        return pb.Answer.FromString(bytes_of(values, "answer"))
    except DecodeError:
        raise WireError("Expected an answer in a message, got other bytes.") from None


def bytes_of(values: Values, key: str) -> bytes:
    """Return one of our values. Raises WireError where it is missing, or is no bytes."""
    value = values.get(key)
    if not isinstance(value, bytes):
        raise WireError(f"Expected {key} in a message, got none.")
    return value
