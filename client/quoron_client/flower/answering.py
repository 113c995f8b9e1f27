"""Private aggregation inside somebody else's ClientApp: their model, their data, our questions.

    @app.query("private")
    def private(message: Message, context: Context) -> Message:
        return answer_with(message, context, lambda model: average_gradient(model, load(context)))

The function may return the average gradient of this node's loss at `model`, or a local update: `model` less the model
after some local training. What it returns is clipped on the server, so the promise asks nothing of it but that it looks
at this node's own items only; and, where the printed sentence says so, that it keeps nothing between rounds.
"""

from collections.abc import Callable

import numpy as np
from flwr.app import Context, Message, RecordDict
from numpy.typing import NDArray

from quoron_client.flower.serving import hello, silent
from quoron_client.protocol.black_box import combined as unchecked
from quoron_client.protocol.flower_records import Values, bytes_of, record
from quoron_client.protocol.questions import Status, Task
from quoron_client.protocol.wire import answer_to_wire, question_from_wire
from quoron_privacy.errors import DataError
from quoron_protos.v1 import federation_pb2 as pb

Vector = NDArray[np.float64]
Gradient = Callable[[Vector], Vector]


def answer_with(message: Message, context: Context, gradient: Gradient) -> Message:
    """The reply to a message of `train_privately`; `gradient` takes and returns arrays of shape (d,).

    Load data within `gradient`: what raises there is written to this node's log and never sent, while Flower sends the
    text of an exception outside of it to the server, word for word.

    | what goes wrong                                   | what the server learns                |
    | ------------------------------------------------- | ------------------------------------- |
    | `gradient` raises                                 | that this node failed                 |
    | another shape, or a number that is not finite     | the same                              |
    | a server of another version of quoron            | that this node has another            |
    | a question that only a client of ours can answer  | that this node failed                 |
    """
    return silent(message, lambda values: _reply(values, context, gradient))


def _reply(values: Values, context: Context, gradient: Gradient) -> RecordDict:
    if "question" not in values:
        return hello(values, context)
    question = pb.Question.FromString(bytes_of(values, "question"))
    run, number, digest, task = question_from_wire(question)
    found = combined(task, gradient)
    return record(answer=bytes(answer_to_wire(run, number, digest, found, Status.ANSWERED).SerializeToString()))


def combined(task: Task, gradient: Gradient) -> Vector:
    """Σ_k weights[k] · gradient(points[k]) - centre, shape (d,).

    Raises WireError for a task that asks for more than that, DataError for what is no gradient.
    """
    return _checked(unchecked(task, lambda point: _checked(gradient(point), point.shape)), (task.model_size,))


def _checked(found: Vector, shape: tuple[int, ...]) -> Vector:
    value = np.asarray(found, dtype=np.float64)
    if value.shape != shape:
        raise DataError(f"Expected a gradient of shape {shape}, got {value.shape}. Flatten it.")
    if not np.isfinite(value).all():
        raise DataError("Expected a gradient of finite numbers, got others. Check the data of this node.")
    return value
