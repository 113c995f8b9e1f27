"""Flower's own Grid over HTTP, before a SuperLink that holds replies of which one is not what it seems."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import ConfigRecord, Metadata
from flwr.app.message import make_message, remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ConfirmMessageReceivedResponse, PullObjectResponse
from flwr.proto.runtime_pb2 import (
    GetNodesResponse,
    PullAppMessagesRequest,
    PullAppMessagesResponse,
    PushAppMessagesRequest,
    PushAppMessagesResponse,
)
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.superlink.grid import HttpGrid

from flower.grids import FakeTime
from quoron_client.protocol.flower_records import HELLO, record, values_of
from quoron_server.flower import exchange as exchanging
from quoron_server.flower.exchange import Outbound, stream_replies

NODES = range(100, 110)
BAD = 104


@dataclass
class SuperLink:
    """What a Grid asks of it. Every node has answered; a reply that was asked for is gone, as in its database."""

    garbled: bool = False
    half: bool = False  # sent: its objects are announced and do not come
    replies: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    withheld: set[str] = field(default_factory=set)

    def PushMessages(self, request: PushAppMessagesRequest) -> PushAppMessagesResponse:
        for message, tree in zip(request.messages_list, request.message_object_trees, strict=True):
            self._answer(message.metadata, tree.object_id)
        return PushAppMessagesResponse(message_ids=[tree.object_id for tree in request.message_object_trees])

    def _answer(self, asked: Any, message_id: str) -> None:
        node = asked.dst_node_id
        found = Metadata(1, "", node, 1, message_id, asked.group_id, time.time(), 60.0, asked.message_type)
        reply = make_message(metadata=found, content=record(node=node))
        root: Any = reply
        reply.metadata.__dict__["_message_id"] = reply.object_id
        sent = message_to_proto(remove_content_from_message(reply))
        if self.garbled and node == BAD:
            root = ConfigRecord({"node": node})
            sent.metadata.message_id = root.object_id
        objects = {name: each.deflate() for name, each in get_all_nested_objects(root).items()}
        self.objects |= objects
        self.withheld |= set(objects) if self.half and node == BAD else set()
        self.replies[message_id] = sent, get_object_tree(root)

    def PullMessages(self, request: PullAppMessagesRequest) -> PullAppMessagesResponse:
        found = [self.replies.pop(each) for each in request.message_ids if each in self.replies]
        messages, trees = [message for message, _ in found], [tree for _, tree in found]
        return PullAppMessagesResponse(messages_list=messages, message_object_trees=trees)

    def PushObject(self, request: Any) -> None:
        raise AssertionError("it asks for none")

    def PullObject(self, request: Any) -> PullObjectResponse:
        if request.object_id in self.withheld:
            return PullObjectResponse(object_found=True, object_available=False)
        content = self.objects[request.object_id]
        return PullObjectResponse(object_found=True, object_available=True, object_content=content)

    def ConfirmMessageReceived(self, request: Any) -> ConfirmMessageReceivedResponse:
        return ConfirmMessageReceivedResponse()

    def GetNodes(self, request: Any) -> GetNodesResponse:
        return GetNodesResponse()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Who is heard of; the time is over when so many nodes are."""
    links: list[SuperLink] = []
    clock = FakeTime()
    monkeypatch.setattr(exchanging, "time", clock)
    monkeypatch.setattr(exchanging, "_HANGS", 0.1)

    def heard_of(nodes: int, **wrong: bool) -> list[int]:
        links.append(SuperLink(**wrong))
        grid: Any = HttpGrid(token="token")
        grid._run, grid._client = SimpleNamespace(run_id=1), links[-1]
        replies = {}
        for index, reply in stream_replies(
            grid, [Outbound(node, HELLO, {}) for node in NODES], group="test", seconds=3600.0
        ):
            replies[index] = reply
            clock.now += 3600.0 * (len(replies) == nodes)
        assert all(values_of(reply)["node"] == NODES[index] for index, reply in replies.items())
        return [NODES[index] for index in sorted(replies)]

    yield heard_of
    for link in links:
        link.withheld.clear()  # so that no thread outlives the test by much


def test_one_reply_that_is_none_costs_no_other_node_its_answer(asked: Any) -> None:
    honest = [node for node in NODES if node != BAD]
    assert asked(len(NODES)) == list(NODES)
    assert asked(len(NODES), garbled=True) == honest
    assert asked(len(honest), half=True) == honest
