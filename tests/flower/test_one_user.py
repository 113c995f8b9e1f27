"""A node's owner decides what is answered; whatever goes wrong, the server learns nothing of the data."""

import json
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from federation.crowd import SEED, write_items
from flower.federation import small
from flower.grids import crossed
from one_answer import answer_from_wire
from quoron_client.federation.client_state import ClientState
from quoron_client.flower import app as apps
from quoron_client.protocol.flower_records import Values, record, values_of
from quoron_client.protocol.questions import AverageGradient, Question, Status
from quoron_client.protocol.wire import question_to_wire
from quoron_protos.v1 import federation_pb2 as pb
from quoron_server.specification import describe, make_plan

WANTED = small("dp-sgd-wor", "spring", 5)


@cache
def described() -> dict[str, Any]:
    """What a node is told of the run."""
    return describe(WANTED, make_plan(WANTED))


@pytest.fixture
def config(tmp_path: Path) -> dict[str, Any]:
    """A node config that takes part in anything."""
    return {
        "data": str(write_items(tmp_path, 1)[0]),
        "state": str(tmp_path / "record.sqlite"),
        "limit": "100,1",
        "simulation-seed": str(SEED),
    }


def values(round_number: int = 0, at: float = 0.0, run: str = "spring", **description: object) -> Values:
    """What a node is sent: the announcement of a run and a question of it."""
    text = json.dumps(described() | {"run": run} | description)
    task = AverageGradient(np.full((1, 3), at), (1.0,))
    asked = question_to_wire(Question(round_number, np.array([0]), task), 0, run=run, user=0, seconds=60)
    announced = pb.Announcement(run=run, description=text).SerializeToString()
    return {
        "version": version("quoron"),
        "announcement": announced,
        "user": 0,
        "question": asked.SerializeToString(),
    }


def reply(
    sent: Values,
    config: dict[str, Any],
    action: str = "average_gradient",
    *,
    app: ClientApp = apps.app,
    **run_config: Any,
) -> Values:
    """What leaves the node, as the wire carries it; that of a run that it declines when that is announced."""
    if "question" in sent and app is apps.app:
        said = reply({name: value for name, value in sent.items() if name != "question"}, config, "announced")
        if "agreed" not in said:
            return said
    message = Message(crossed(record(**sent)), 5, f"query.{action}")
    message.metadata.__dict__["_message_id"] = "message"
    answer = app(message, Context(1, 5, config, RecordDict(), run_config))
    assert not answer.has_error()
    return values_of(crossed(answer.content))


def test_the_same_question_gets_the_same_bytes_and_another_one_of_its_round_none(config: dict[str, Any]) -> None:
    first = reply(values(), config)
    assert reply(values(), config) == first
    other = pb.Answer.FromString(reply(values(at=0.5), config)["answer"])
    gradient, status = answer_from_wire(other, (3,))
    assert status == Status.MISSING
    assert not gradient.any()


def test_a_run_beyond_the_lifetime_epsilon_is_declined(config: dict[str, Any]) -> None:
    config["limit"] = "20,1"
    assert "answer" in reply(values(), config)
    assert reply(values(run="summer"), config) == {"declined": True}  # 15 and 15
    with ClientState(Path(config["state"]), epsilon=20.0, delta=1.0) as kept:
        assert kept.spent == (15.0, 0.1)


def test_after_the_end_of_a_run_its_answers_are_erased_and_nothing_more_is_answered(config: dict[str, Any]) -> None:
    reply(values(), config)
    assert reply({"version": version("quoron"), "run": "spring", "how": "complete"}, config, "ended") == {}
    late = pb.Answer.FromString(reply(values(round_number=1), config)["answer"])
    assert answer_from_wire(late, (3,))[1] == Status.MISSING
    with ClientState(Path(config["state"]), epsilon=20.0, delta=1.0) as kept:
        assert kept.spent == (15.0, 0.1)
        assert kept.recall("spring", 0, pb.Question.FromString(values()["question"]).digest) is None
