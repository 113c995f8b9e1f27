"""A node's owner decides what is answered; whatever goes wrong, the server learns nothing of the data."""

import json
import logging
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
from flower.grids import SECRET, crossed
from quoron.flower import simulated
from quoron_client.federation.record import Record
from quoron_client.flower import app as apps
from quoron_client.flower.node import read_owner
from quoron_client.protocol.flower_records import Values, record, values_of
from quoron_client.protocol.gradients import AverageGradient
from quoron_client.protocol.questions import Question, Status
from quoron_client.protocol.wire import answer_from_wire, question_to_wire
from quoron_privacy.errors import ConfigError
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
        "record": str(tmp_path / "record.sqlite"),
        "lifetime-epsilon": 100.0,
        "lifetime-delta": 1.0,
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
    config["lifetime-epsilon"] = 20.0
    assert "answer" in reply(values(), config)
    assert reply(values(run="summer"), config) == {"declined": True}  # 15 and 15
    with Record.open(Path(config["record"]), epsilon=20.0, delta=1.0) as kept:
        assert kept.spent == (15.0, 0.1)


def test_after_the_end_of_a_run_its_answers_are_erased_and_nothing_more_is_answered(config: dict[str, Any]) -> None:
    reply(values(), config)
    assert reply({"version": version("quoron"), "run": "spring", "how": "complete"}, config, "ended") == {}
    late = pb.Answer.FromString(reply(values(round_number=1), config)["answer"])
    assert answer_from_wire(late, (3,))[1] == Status.MISSING
    with Record.open(Path(config["record"]), epsilon=20.0, delta=1.0) as kept:
        assert kept.spent == (15.0, 0.1)
        assert kept.recall("spring", 0, pb.Question.FromString(values()["question"]).digest) is None


def test_another_version_is_refused_before_anything_is_read(config: dict[str, Any]) -> None:
    for theirs in ("0.0.1", None):
        sent = {key: value for key, value in (values() | {"version": theirs}).items() if value is not None}
        assert reply(sent, config) == {"refused": "another version", "version": version("quoron")}
    assert not Path(config["record"]).exists()


@pytest.mark.parametrize(
    ("key", "value"), [("data", ""), ("lifetime-epsilon", "much"), ("accept", "all"), ("simulation-seed", "-1")]
)
def test_a_wrong_node_config_is_named_to_its_owner(key: str, value: str, config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=key.replace("accept", "accept_exposures")):
        read_owner(config | {key: value}, {})


SENT: list[Values] = [
    {},
    {"announcement": b"\xff" * 9},
    {"question": b"\xff" * 9},
    {"user": "zero"},
    {"announcement": 3},
    {"question": pb.Question(run="another").SerializeToString()},
]


@pytest.mark.parametrize("change", SENT[1:], ids=str)
def test_a_malformed_message_is_refused_in_fixed_words(change: Values, config: dict[str, Any]) -> None:
    assert reply(values() | change, config) == {"refused": "failed"}


def test_the_text_of_an_exception_stays_with_the_owner(
    config: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError(SECRET)

    for place in ("Worker.reply", "opened", "read_owner"):
        with monkeypatch.context() as patched, caplog.at_level(logging.ERROR, "quoron.client"):
            patched.setattr(f"quoron_client.flower.app.{place}", fails)
            assert reply(values(), config) == {"refused": "failed"}
            assert SECRET in caplog.text
            caplog.clear()
    assert "answer" in reply(values(), config)


def test_a_value_that_cannot_be_used_shows_in_no_reply(config: dict[str, Any], tmp_path: Path) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text(f"x0,x1,x2,sick\n0.1,0.2,{SECRET},1\n")
    got = reply(values(), config | {"data": str(bad)})
    answer = pb.Answer.FromString(got["answer"])
    gradient, status = answer_from_wire(answer, (3,))
    assert status == Status.REJECTED
    assert not gradient.any()
    assert SECRET.encode() not in got["answer"]


def test_a_data_file_that_is_not_there_declines_without_its_name(config: dict[str, Any]) -> None:
    assert reply(values(), config | {"data": f"/nowhere/{SECRET}.csv"}) == {"declined": True}


@pytest.mark.parametrize(("key", "value"), [("one-user", "perhaps"), ("items-per-user", "-1"), ("items-per-user", "0")])
def test_an_owners_word_that_cannot_be_meant_is_named(config: dict[str, Any], key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=key.replace("-", ".")):
        read_owner(config | {key: value}, {})


def test_a_simulation_never_runs_on_a_node_with_a_users_data(
    config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its run config names would be read there."""
    refused = {"refused": "a user's data is configured here"}
    monkeypatch.setattr(simulated, "read", None)
    del config["simulation-seed"]
    for real in (config, config | {"simulation-seed": "none"}):
        for action in ("hello", "average_gradient", "ended"):
            assert reply(values(), real, action, app=simulated.client_app) == refused
    monkeypatch.setenv("QUORON_DATA", config.pop("data"))
    assert reply(values(), config, "hello", app=simulated.client_app) == refused
    monkeypatch.setenv("QUORON_SIMULATION_SEED", "3")  # its owner lets it
    assert "partition" in reply(values(), config, "hello", app=simulated.client_app)
    monkeypatch.delenv("QUORON_DATA")
    assert "partition" in reply(values(), {}, "hello", app=simulated.client_app)


def _answers(config: dict[str, Any]) -> bool:
    with Record.open(Path(config["record"]), epsilon=100.0, delta=1.0) as kept:
        return kept.spent != (0.0, 0.0)
