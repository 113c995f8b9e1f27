"""Flower's Grid in one process: every node is a call of a ClientApp, and whatever a node can do wrong can be said."""

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import numpy as np
from flwr.app import Context, Error, Message, Metadata, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.client_app import LoadClientAppError
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid

from quoron.engine.inline import InlineEngine
from quoron_client.flower.serving import make_app
from quoron_client.protocol.flower_records import Values, answered
from quoron_client.protocol.questions import Answers, Question
from quoron_protos.v1 import federation_pb2 as pb
from quoron_server.rounds import Engine

SECRET = "the diagnosis of user seven"


@dataclass
class FakeGrid(Grid):
    """Nodes by number with their `--node-config`. `fault` says what arrives in place of the replies to a message.

    What has been pulled is gone, as in Flower, whatever becomes of it: `reading` sees each reply then, and may raise or
    wait. `away` says at which calls (counted from 0) the SuperLink is away.
    """

    app: ClientApp
    configs: Mapping[int, dict[str, Any]]
    run_config: dict[str, Any] = field(default_factory=dict)
    keys: Mapping[int, bytes] = field(default_factory=dict)
    fault: Callable[[Message, Message], Iterable[Message]] = lambda message, reply: [reply]
    reading: Callable[[Message], object] = lambda reply: None
    unknown: frozenset[int] = frozenset()  # nodes that it lists but does not know when they are sent something
    silently: bool = True  # leaves out what it does not take, as in simulation; else puts None in its place
    away: frozenset[int] = frozenset()
    shuffled: bool = False  # replies arrive one at a time, in another order
    received: list[Message] = field(default_factory=list)  # every reply that has left a node
    asked: list[Message] = field(default_factory=list)
    _calls: int = 0
    _ready: dict[str, list[Message]] = field(default_factory=dict)
    _one: threading.Lock = field(default_factory=threading.Lock)  # of the threads that pull

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    def create_message(self, *_: Any, **__: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(self, *_: Any, **__: Any) -> Iterable[Message]:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.configs)

    def get_nodes(self) -> Iterable[NodeInfo]:
        self._call()
        return [NodeInfo(node_id=node, public_key=self.keys.get(node, b"")) for node in self.configs]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        self._call()
        taken: list[Any] = []
        for message in messages:
            node = message.metadata.dst_node_id
            message.metadata.__dict__["_message_id"] = f"message {len(self.asked)}"
            self.asked.append(message)
            if node in self.unknown or node not in self.configs:
                taken += [] if self.silently else [None]
                continue
            taken.append(message.metadata.message_id)
            self._ready[message.metadata.message_id] = list(self.fault(message, self._reply(message)))
        return taken

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        with self._one:
            self._call()
            wanted, ready = set(message_ids), [each for each, replies in self._ready.items() if replies]
            found = [each for each in (ready[-1:] if self.shuffled else ready) if each in wanted]
            replies = [reply for each in found for reply in self._ready.pop(each)]
        for reply in replies:
            self.reading(reply)
        return replies

    def _reply(self, message: Message) -> Message:
        """What the node's ClientApp says, after it has crossed the wire both ways."""
        node = message.metadata.dst_node_id
        message.content = crossed(message.content)
        context = Context(1, node, self.configs[node], RecordDict(), self.run_config)
        try:
            reply = self.app(message, context)
        except LoadClientAppError as error:
            reply = error_reply(message, str(error), code=1)
        except Exception as error:
            reply = error_reply(message, str(error))
        if reply.has_content():
            reply.content = crossed(reply.content)
        self.received.append(reply)
        return reply

    def _call(self) -> None:
        self._calls += 1
        if self._calls - 1 in self.away:
            raise httpx.ConnectError("connection refused")


def crossed(content: RecordDict) -> RecordDict:
    return recorddict_from_proto(recorddict_to_proto(content))


def spread(partitions: int, *, first: int = 100) -> dict[int, dict[str, Any]]:
    """Node configs of so many nodes, whose numbers are in no order."""
    numbers = first + np.random.default_rng(3).permutation(partitions)
    return {
        int(node): {"partition-id": place, "num-partitions": partitions} for place, node in enumerate(numbers.tolist())
    }


@dataclass
class Computing:
    """The users of an engine behind every node; whoever holds the seed gives them their directions."""

    engine: Engine
    seed: int = 0

    def answer(self, values: Values, context: Context) -> RecordDict:
        return answered(values, lambda asked: self.engine.ask(replace(asked, task=asked.task.directed(self.seed))))


class Failing(Computing):
    def answer(self, values: Values, context: Context) -> RecordDict:
        raise ValueError(SECRET)


def computing(engine: InlineEngine | Engine, seed: int = 0) -> ClientApp:
    return make_app(Computing(engine, seed).answer)


@dataclass
class Rows:
    """Answers that tell whose they are: row u is filled with u + round / 1000."""

    asked: list[np.ndarray] = field(default_factory=list)

    def ask(self, question: Question) -> Answers:
        self.asked.append(question.cohort)
        shape = question.task.answer_shape(dimension_of(question))
        tall = (question.cohort + question.round / 1000).reshape((-1,) + (1,) * len(shape))
        return Answers(tall * np.ones((1, *shape)), np.zeros(len(question.cohort), np.uint8))


def dimension_of(question: Question) -> int:
    task = question.task
    task = getattr(task, "gradient", task)
    if hasattr(task, "points"):
        return int(task.points.shape[1])
    return int(task.starts.shape[1]) if hasattr(task, "starts") else int(task.dimension)


def error_reply(message: Message, reason: str = SECRET, *, code: int = 2) -> Message:
    """What Flower makes of an exception in a ClientApp."""
    return Message(Error(code=code, reason=reason), reply_to=message)


def given_up(message: Message) -> Message:
    """What a SuperLink says of a message that it no longer knows."""
    lost = error_reply(message, "lost", code=3)
    lost.metadata.__dict__["_src_node_id"] = SUPERLINK_NODE_ID
    return lost


def from_node(reply: Message, node: int) -> Message:
    """The same reply, as if another node had sent it."""
    return _changed(reply, src_node_id=node)


def in_reply_to(reply: Message, message_id: str) -> Message:
    """The same reply, as if it belonged to another message."""
    return _changed(reply, reply_to_message_id=message_id)


def _changed(reply: Message, **changes: Any) -> Message:
    names = ("run_id", "message_id", "src_node_id", "dst_node_id", "reply_to_message_id", "group_id", "created_at")
    values = {name: getattr(reply.metadata, name) for name in (*names, "ttl", "message_type")}
    return Message(content=reply.content, metadata=Metadata(**(values | changes)))


def with_values(reply: Message, **values: Any) -> Message:
    """The same reply with some of our values replaced; None removes one."""
    record = reply.content["quoron"]
    for key, value in values.items():
        if value is None:
            del record[key]
        else:
            record[key] = value
    return reply


def with_answer(reply: Message, **fields: Any) -> Message:
    """The same answer with something else in some of its fields."""
    answer = pb.Answer.FromString(reply.content["quoron"]["answer"])
    for name in fields:
        answer.ClearField(name)
    answer.MergeFrom(pb.Answer(**fields))
    return with_values(reply, answer=answer.SerializeToString())


@dataclass
class FakeTime:
    """A clock that moves when somebody sleeps; in place of the module `time`."""

    now: float = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.now += seconds
