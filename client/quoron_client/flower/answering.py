"""Private aggregation inside somebody else's ClientApp: their model, their data, our questions.

    @app.query("private")
    def private(message: Message, context: Context) -> Message:
        return answer_with(message, context, lambda model: average_gradient(model, load(context)))

The function may return the average gradient of this node's loss at `model`, or a local update: `model` less the model
after some local training. What it returns is clipped on the server, so the promise asks nothing of it but that it looks
at this node's own items only; and, where the printed sentence says so, that it keeps nothing between rounds.

A node whose owner says `state` in its node config (`quoron_client.flower.serving`) keeps to `limit` over all runs,
and gives one answer a round, whatever the server asks; one that does not trusts it.
"""

import logging
import os
from collections.abc import Callable

import numpy as np
from flwr.app import Context, Message, RecordDict

from quoron_client.federation.client_state import ClientState
from quoron_client.federation.config import Limits
from quoron_client.federation.terms import Promised, agreement, refusal, terms_digest
from quoron_client.flower.serving import hello, opened, read_limits, silent
from quoron_client.protocol.flower_records import Values, bytes_of, record
from quoron_client.protocol.questions import Status, Task, plain
from quoron_client.protocol.questions import combined as unchecked
from quoron_client.protocol.wire import answer_to_wire, question_from_wire
from quoron_privacy.arrays import Vector
from quoron_privacy.errors import DataError, WireError
from quoron_protos.v1 import federation_pb2 as pb

Gradient = Callable[[Vector], Vector]
_LOG = logging.getLogger("quoron.client")


def answer_with(message: Message, context: Context, gradient: Gradient) -> Message:
    """Return the reply to a message of `train_privately`; `gradient` takes and returns arrays of shape (d,).

    Load data within `gradient`: what raises there is written to this node's log and never sent, while Flower sends the
    text of an exception outside of it to the server, word for word.

    | what goes wrong                                   | what the server learns                |
    | ------------------------------------------------- | ------------------------------------- |
    | `gradient` raises                                 | that this node failed                 |
    | another shape, or a number that is not finite     | the same                              |
    | a server of another version of quoron            | that this node has another            |
    | a question that only a client of ours can answer  | that this node failed                 |
    | a run beyond the limits in the node config        | that its owner declines               |
    | a second question in a round, with a `record`     | that there is no answer               |
    """
    return silent(message, lambda values: _reply(values, context, gradient))


def _reply(values: Values, context: Context, gradient: Gradient) -> RecordDict:
    if not {"announcement", "question", "how"} & set(values):
        return hello(values, context)
    limits, asked = read_limits(context.node_config, os.environ), "question" in values
    if limits is not None:
        with opened(limits, settled=asked) as kept:
            return _by_record(values, limits, kept, gradient)
    if not asked:  # of a run that begins, or one that has ended, nothing is kept
        return record(agreed=True) if "announcement" in values else record()
    run, number, digest, task = question_from_wire(pb.Question.FromString(bytes_of(values, "question")))
    return _sent(answer_to_wire(run, number, digest, combined(task, gradient), Status.ANSWERED))


def _by_record(values: Values, limits: Limits, kept: ClientState, gradient: Gradient) -> RecordDict:
    """As a client of ours: one answer a round, kept before it is sent; none in a run beyond the owner's limits, or that
    was not announced before anybody was asked."""
    if "how" in values:
        kept.end(str(values.get("run")))
        return record()
    announced, user = pb.Announcement.FromString(bytes_of(values, "announcement")), values.get("user")
    terms = Promised.read(announced.run, announced.description)
    if type(user) is not int:
        raise WireError("Expected the announcement of a run to a user, got another.")
    asked = _asked(values, terms) if "question" in values else None
    # Nodes that share a record by mistake, as by QUORON_STATE, are several users: it agrees with the first alone.
    why = refusal(limits, terms)
    if why is None and terms.trust_model == "local":  # a gradient of one's own is none
        why = "a run of trust model local asks for answers that are private by themselves"
    why = why or kept.agree(agreement(terms, terms_digest(f"{announced.description} {user}")))
    if why is not None:
        _LOG.warning("Takes no part in run %r: %s", terms.run, why)
        return record(declined=True)
    if asked is None:
        return record(agreed=True)
    run, number, digest, task = asked
    before = kept.recall(run, number, digest)
    if before is not None:
        return record(answer=before)
    why = kept.may_answer(run, number)[1]
    if why is None:
        answer = answer_to_wire(run, number, digest, *_found(task, gradient, terms))
        sent = kept.keep(run, number, digest, bytes(answer.SerializeToString()))
        if sent is not None:
            return record(answer=sent)
        why = "another process of this node was faster"
    _LOG.warning("No answer in round %d of run %r: %s", number, run, why)
    return _sent(answer_to_wire(run, number, digest, np.zeros(0), Status.MISSING))


def _asked(values: Values, terms: Promised) -> tuple[str, int, bytes, Task]:
    """Run, round, digest and task of a question. WireError for one that is not of the announced run."""
    run, number, digest, task = question_from_wire(pb.Question.FromString(bytes_of(values, "question")))
    if run != terms.run or number >= terms.rounds or plain(task).model_size != terms.dimension:
        raise WireError("Expected a question of the announced run, got another.")
    return run, number, digest, task


def _found(task: Task, gradient: Gradient, terms: Promised) -> tuple[Vector, Status]:
    """Return what is kept as the answer, whatever happens: a second try could be a second look at the data."""
    try:
        return combined(task, gradient), Status.ANSWERED
    except Exception:
        _LOG.exception("The answer could not be computed.")  # the server must not learn why
        return np.zeros(terms.dimension), Status.MISSING


def _sent(answer: pb.Answer) -> RecordDict:
    return record(answer=bytes(answer.SerializeToString()))


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
