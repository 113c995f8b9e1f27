"""Simulated users spread over nodes: every row lands at its slot, and what a node does wrong is nobody else's loss."""

import logging
from collections.abc import Callable, Iterable

import numpy as np
import pytest
from flwr.app import Message, RecordDict

from flower.grids import (
    SECRET,
    Failing,
    FakeGrid,
    FakeTime,
    Rows,
    computing,
    error_reply,
    from_node,
    in_reply_to,
    spread,
    with_values,
)
from flower.test_records import KINDS, array, question_of
from quoron_client.flower import serving
from quoron_client.flower.serving import make_app
from quoron_client.protocol.domains import L2Ball
from quoron_client.protocol.questions import Question, Status
from quoron_privacy.errors import RunError
from quoron_server.flower import exchange, shards
from quoron_server.flower.engine import FlowerEngine, NodeFailed
from quoron_server.flower.shards import Shards
from quoron_server.problem import Problem

NODES, USERS = 7, 30
BAD = 2  # partition that does something wrong


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    clock = FakeTime()
    monkeypatch.setattr(exchange, "time", clock)
    monkeypatch.setattr(shards, "time", clock)
    return clock


def problem(dimension: int) -> Problem:
    return Problem(
        users=1000,
        items_per_user=4,
        dimension=dimension,
        domain=L2Ball(1e9),
        lipschitz=1e9,
        smoothness=1.0,
        feature_norm=1e9,
    )


def engine_of(grid: FakeGrid, dimension: int, *, demanding: bool = False) -> FlowerEngine:
    fleet = Shards.found(grid, run="trial", seconds=60)
    return FlowerEngine(grid, fleet, "trial", problem(dimension), 60, early_ends=True, demanding=demanding)


def node_of(grid: FakeGrid, partition: int) -> int:
    return next(node for node, config in grid.configs.items() if config["partition-id"] == partition)


def dimension_of(question: Question) -> int:
    task = getattr(question.task, "gradient", question.task)
    for name in ("points", "starts"):
        if hasattr(task, name):
            return int(getattr(task, name).shape[1])
    return int(task.dimension)


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_every_row_lands_at_its_slot(kind: str, shuffled: bool) -> None:
    for seed in range(3):
        question = question_of(kind, USERS, seed)
        task = question.task
        if kind == "range":  # so that the numbers of users are answers that may be sent
            task, question = question.task, Question(question.round, np.arange(USERS), task)
        grid = FakeGrid(computing(Rows()), spread(NODES), shuffled=shuffled)
        found = engine_of(grid, dimension_of(question)).ask(question)
        np.testing.assert_array_equal(found.values, Rows().ask(question).values)
        assert not found.status.any()
        asked = [message for message in grid.asked if message.metadata.message_type != "query.hello"]
        assert len(asked) == len(set(question.cohort % NODES)), "one message for each node that holds somebody"


def test_nodes_without_anybody_of_the_cohort_are_not_asked() -> None:
    question = question_of("gradient", 1, 0)
    grid = FakeGrid(computing(Rows()), spread(NODES))
    engine_of(grid, dimension_of(question)).ask(question)
    assert sum(message.metadata.message_type != "query.hello" for message in grid.asked) == 1


Fault = Callable[[Message, Message], Iterable[Message]]
FAULTS: dict[str, Fault] = {
    "never answers": lambda message, reply: [],
    "an exception with a secret": lambda message, reply: [error_reply(message)],
    "under another node's name": lambda message, reply: [from_node(reply, 5)],
    "to another message": lambda message, reply: [in_reply_to(reply, "message 1")],
    "no record": lambda message, reply: [Message(RecordDict(), reply_to=message)],
    "a refusal": lambda message, reply: [with_values(reply, refused="failed", values=None)],
    "a refusal of its own": lambda message, reply: [with_values(reply, refused=SECRET, values=None, status=None)],
    "values missing": lambda message, reply: [with_values(reply, values=None)],
    "status missing": lambda message, reply: [with_values(reply, status=None)],
    "another shape": lambda message, reply: [with_values(reply, values=array(np.ones((1, 1))))],
    "whole numbers": lambda message, reply: [with_values(reply, values=array(np.ones((4, 3), np.int64)))],
    "a huge array": lambda message, reply: [with_values(reply, values=array(np.ones((40_000, 3))))],
    "bytes of nothing": lambda message, reply: [with_values(reply, values=b"\xff" * 100)],
    "a status of its own": lambda message, reply: [with_values(reply, status=b"\7" * 30)],
    "NaN": lambda message, reply: [_filled(reply, np.nan)],
    "infinity": lambda message, reply: [_filled(reply, np.inf)],
    "1e300": lambda message, reply: [_filled(reply, 1e300)],
}


def _filled(reply: Message, number: float) -> Message:
    users = len(reply.content["quoron"]["status"])
    return with_values(reply, values=array(np.full((users, 3), number)))


def asked_with(fault: Fault, *, demanding: bool = False) -> tuple[Question, FakeGrid, FlowerEngine]:
    """A question to users on nodes of which one does that instead of answering."""
    question = next(each for seed in range(99) if dimension_of(each := question_of("gradient", USERS, seed)) == 3)
    grid = FakeGrid(computing(Rows()), spread(NODES))
    engine = engine_of(grid, 3, demanding=demanding)
    bad = node_of(grid, BAD)
    grid.fault = lambda message, reply: fault(message, reply) if message.metadata.dst_node_id == bad else [reply]
    return question, grid, engine


@pytest.mark.parametrize("name", list(FAULTS))
def test_a_fault_is_the_neutral_element_of_its_own_users_only(name: str, caplog: pytest.LogCaptureFixture) -> None:
    question, _, engine = asked_with(FAULTS[name])
    with caplog.at_level(logging.DEBUG):
        found = engine.ask(question)
    lost = question.cohort % NODES == BAD
    right = Rows().ask(question).values
    assert lost.any()
    np.testing.assert_array_equal(found.values, np.where(lost[:, None], 0.0, right))
    np.testing.assert_array_equal(found.answered, ~lost)
    expected = Status.REJECTED if name in ("NaN", "infinity", "1e300") else Status.MISSING
    assert set(found.status[lost].tolist()) == {expected}
    assert SECRET not in caplog.text


@pytest.mark.parametrize("name", list(FAULTS))
def test_where_nodes_only_compute_a_fault_ends_the_round(name: str) -> None:
    question, _, engine = asked_with(FAULTS[name], demanding=True)
    if name in ("NaN", "infinity", "1e300"):  # those are what users sent
        assert (engine.ask(question).status == Status.REJECTED).any()
        return
    with pytest.raises(
        NodeFailed, match=rf"Expected answers of \d nodes in round {question.round}, got \d\."
    ) as raised:
        engine.ask(question)
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize("silently", [True, False])
def test_nodes_that_are_gone_shift_no_row(silently: bool) -> None:
    question, grid, engine = asked_with(lambda message, reply: [reply])
    grid.silently, grid.unknown = silently, frozenset({node_of(grid, 0), node_of(grid, 4)})
    found = engine.ask(question)
    lost = np.isin(question.cohort % NODES, (0, 4))
    np.testing.assert_array_equal(found.values, np.where(lost[:, None], 0.0, Rows().ask(question).values))


def test_a_client_s_exception_leaves_no_word_of_it(caplog: pytest.LogCaptureFixture) -> None:
    question = question_of("gradient", USERS, 0)
    grid = FakeGrid(make_app(Failing(Rows())), spread(NODES))
    found = engine_of(grid, dimension_of(question)).ask(question)
    assert set(found.status.tolist()) == {Status.MISSING}
    assert len(grid.received) > NODES
    for reply in grid.received:
        assert SECRET not in repr(reply.content)
        assert not reply.has_error()
    assert SECRET in caplog.text, "the node's own log has it"


def test_nodes_that_disagree_on_their_number_are_refused() -> None:
    configs = spread(NODES)
    configs[next(iter(configs))]["num-partitions"] = 8
    with pytest.raises(RunError, match="num-partitions in their --node-config, got 7 and 8"):
        Shards.found(FakeGrid(computing(Rows()), configs), run="trial", seconds=60)


def test_nodes_that_all_fail_are_given_up_at_once(clock: FakeTime, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunError, match="got 0 that answer and 3 that do not"):
        Shards.found(FakeGrid(computing(Rows()), {5: {}, 6: {}, 7: {}}), run="trial", seconds=600)
    assert clock.now < 1010
    monkeypatch.setattr(serving, "VERSION", "0.0.1")
    with pytest.raises(RunError, match="Start the missing SuperNodes, each with this version of quoron"):
        Shards.found(FakeGrid(computing(Rows()), spread(3)), run="trial", seconds=600)
