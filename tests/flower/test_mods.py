"""Mods and apps that break our messages: named at their first reply, before anybody's data are asked about."""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.clientapp.client_app import LoadClientAppError
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, arrays_size_mod, fixedclipping_mod, message_size_mod
from flwr.proto.node_pb2 import NodeInfo

from flower.grids import SECRET, FakeGrid, FakeTime, error_reply
from flower.plugged import Killed, people, plugged, questions, trained
from quoron_privacy.errors import RunError
from quoron_server.flower import black_boxes, engine, exchange, serving
from quoron_server.flower.hellos import NobodyUnderstands

LONG = 600.0  # seconds for users to come
SOON = 30.0


@pytest.fixture(autouse=True)
def time(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    """Nobody sleeps; the ServerApp's environment allows made-up users and seeds."""
    monkeypatch.setenv("QUORON_ALLOW_SIMULATION", "1")
    fake = FakeTime()
    for module in (black_boxes, engine, exchange, serving):
        monkeypatch.setattr(module, "time", fake)
    return fake


def replaces(message: Message, context: Context, call_next: Callable[..., Message]) -> Message:
    reply = call_next(message, context)
    return Message(RecordDict({"arrays": ArrayRecord([np.zeros(3)])}), reply_to=reply and message)


def changes(message: Message, context: Context, call_next: Callable[..., Message]) -> Message:
    reply = call_next(message, context)
    noised = {key: value[::-1] if isinstance(value, bytes) else value for key, value in reply.content["quoron"].items()}
    reply.content["quoron"] = ConfigRecord(noised)
    return reply


def raises(message: Message, context: Context, call_next: Callable[..., Message]) -> Message:
    raise KeyError(SECRET)


def unloadable(message: Message, context: Context, call_next: Callable[..., Message]) -> Message:
    raise LoadClientAppError(SECRET)


def refuses(message: Message, context: Context, call_next: Callable[..., Message]) -> Message:
    return error_reply(message, f"{SECRET} LocalDpMod", code=6)


BREAKING: dict[str, tuple[Any, str]] = {
    "LocalDpMod": (LocalDpMod(1.0, 1.0, 1.0, 1e-5), "LocalDpMod, a mod of its ClientApp, is there to clip and noise"),
    "fixedclipping_mod": (fixedclipping_mod, "fixedclipping_mod, a mod of its ClientApp"),
    "adaptiveclipping_mod": (adaptiveclipping_mod, "adaptiveclipping_mod, a mod of its ClientApp"),
    "one that refuses in words of its own": (refuses, "a mod of its ClientApp refuses"),
    "one that replaces the record": (replaces, "a mod of its ClientApp has replaced the record"),
    "one that changes what is in it": (changes, "a mod of its ClientApp changes records"),
    "one that raises": (raises, "its ClientApp raised an exception. Give it the action"),
    "an app that is not there": (unloadable, "its ClientApp cannot be loaded. Install quoron"),
}


@pytest.mark.parametrize("name", BREAKING)
def test_a_mod_that_breaks_our_messages_is_named_at_once_and_ends_the_wait(
    name: str, tmp_path: Path, time: FakeTime, caplog: pytest.LogCaptureFixture
) -> None:
    mod, named = BREAKING[name]
    grid, began = plugged(people(), mods=[mod]), time.now
    with pytest.raises(
        NobodyUnderstands, match=r"got none from 6 nodes\. Node 10 and 5 more: .*start the same run"
    ) as no:
        trained(grid, tmp_path, waiting=LONG)
    assert time.now - began < SOON
    assert named in str(no.value)
    assert re.search(f"node 10 takes no part: .*{named}", caplog.text)
    assert "node 11 takes no part: as node 10" in caplog.text
    assert SECRET not in caplog.text + str(no.value), "what an app writes into a reason is never told"
    assert not questions(grid)
    mended = trained(plugged(people()), tmp_path, waiting=LONG)
    np.testing.assert_array_equal(mended.model, trained(plugged(people()), tmp_path / "whole").model)


@pytest.mark.parametrize("mod", [secaggplus_mod, message_size_mod, arrays_size_mod])
def test_a_mod_that_lets_our_messages_be_changes_nothing(mod: Any, tmp_path: Path) -> None:
    with_it = trained(plugged(people(), mods=[mod]), tmp_path / "with")
    np.testing.assert_array_equal(with_it.model, trained(plugged(people()), tmp_path / "without").model)


def test_an_app_without_the_action_is_named(tmp_path: Path, time: FakeTime) -> None:
    grid, began = plugged(people()), time.now
    grid.app = ClientApp()
    with pytest.raises(NobodyUnderstands, match="Give it the action that the server asks for"):
        trained(grid, tmp_path, waiting=LONG)
    assert time.now - began < SOON


def broken(message: Message, reply: Message) -> Iterable[Message]:
    return [error_reply(message, "LocalDpMod expects", code=6)]


def test_one_broken_node_is_named_and_keeps_nobody_else_away(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    grid = plugged(people())
    grid.configs, grid.keys = {9: grid.configs[10], **grid.configs}, {9: b"stranger", **grid.keys}
    grid.fault = lambda message, reply: broken(message, reply) if message.metadata.dst_node_id == 9 else [reply]
    model = trained(grid, tmp_path / "with", waiting=LONG).model
    assert "node 9 takes no part: LocalDpMod" in caplog.text
    np.testing.assert_array_equal(model, trained(plugged(people()), tmp_path / "without").model)


class Late(FakeGrid):
    """Only node 9 is there at first; whether others come before its silence is over, `after` looks says."""

    looks, after = 0, 5

    def get_nodes(self) -> Iterable[NodeInfo]:
        self.looks += 1
        return [node for node in super().get_nodes() if node.node_id == 9 or self.looks > self.after]


def test_too_few_users_are_told_why_others_take_no_part(tmp_path: Path) -> None:
    grid = plugged(people())
    grid.fault = lambda message, reply: broken(message, reply) if message.metadata.dst_node_id == 12 else [reply]
    with pytest.raises(RunError, match=r"Expected 6 users .* got 5\..* Node 12: LocalDpMod"):
        trained(grid, tmp_path, waiting=LONG)


@pytest.mark.parametrize("identities", ["keys", "partitions"])
def test_a_run_that_meets_a_broken_app_in_its_middle_goes_on_once_that_is_mended(
    identities: str, tmp_path: Path, time: FakeTime
) -> None:
    folder, given = tmp_path / "run", {"identities": identities, "waiting": LONG}
    with pytest.raises(Killed):
        trained(plugged(people(), dies_at=4), folder, **given)
    grid, began = plugged(people(), mods=[LocalDpMod(1.0, 1.0, 1.0, 1e-5)]), time.now
    with pytest.raises(NobodyUnderstands, match="LocalDpMod"):
        trained(grid, folder, **given)
    assert time.now - began < SOON
    assert not questions(grid)
    again = trained(plugged(people()), folder, **given)
    np.testing.assert_array_equal(again.model, trained(plugged(people()), tmp_path / "whole", **given).model)


def test_what_becomes_of_questions_is_told_to_nobody_and_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether there is an answer may be a function of the data: a run among errors alone is one like any other."""

    def after_hellos(message: Message, reply: Message) -> Iterable[Message]:
        return broken(message, reply) if "question" in message.content["quoron"] else [reply]

    grid, zeros = plugged(people()), plugged({user: lambda model: np.zeros_like(model) for user in people()})
    grid.fault = after_hellos
    model = trained(grid, tmp_path / "errors", simulation_seed=5).model
    assert "LocalDpMod" not in caplog.text
    np.testing.assert_array_equal(model, trained(zeros, tmp_path / "zeros", simulation_seed=5).model)
