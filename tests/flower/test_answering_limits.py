"""What a node answers is its owner's decision: within limits of a lifetime, once a round, and no word of the data."""

import json
import logging
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict

from cover import by_default
from federation.crowd import SEED, write_items
from flower.federation import small
from flower.grids import SECRET, crossed
from flower.plugged import CLIP, DIMENSION, USERS, Gradient, Killed, people, plugged, pulls, questions, trained, words
from one_answer import answer_from_wire
from quoron.flower.training import Training
from quoron_client.federation.client_state import ClientState
from quoron_client.flower import app as apps
from quoron_client.flower.answering import answer_with, combined
from quoron_client.protocol.domains import L2Ball
from quoron_client.protocol.flower_records import Values, record, values_of
from quoron_client.protocol.questions import (
    AverageGradient,
    AverageLoss,
    LocalSGD,
    MomentAndGradient,
    Question,
    SecondMoment,
    Status,
)
from quoron_client.protocol.smoothing import Moreau
from quoron_client.protocol.wire import question_to_wire
from quoron_privacy.errors import DataError, WireError
from quoron_protos.v1 import federation_pb2 as pb
from quoron_server.plan import Privacy
from quoron_server.problem import Problem
from quoron_server.specification import describe, describe_promise, make_plan

EPSILON, DELTA = 8.0, 1e-3  # of `plugged.trained`


@pytest.fixture(autouse=True)
def _trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ServerApp's environment allows made-up users and seeds."""
    monkeypatch.setenv("QUORON_ALLOW_SIMULATION", "1")


@cache
def described() -> dict[str, Any]:
    """What a node is told of a run."""
    known: dict[str, Any] = {"dimension": DIMENSION, "domain": L2Ball(2.0), "lipschitz": CLIP, "smoothness": 1.0}
    problem = Problem(users=USERS, items_per_user=1, **known)
    promise: dict[str, Any] = {"privacy": Privacy(EPSILON, DELTA), "clip_norm": CLIP, "options": {"rounds": 3}}
    training = Training(run="spring", algorithm="one-pass-dp-sgd", problem=problem, **promise)
    return describe_promise("spring", training.plan(), simulation=False)


def values(
    number: int = 0, at: float = 0.5, run: str = "spring", task: Any = None, known: Any = None, **changed: Any
) -> Values:
    """What a node is sent."""
    text = json.dumps((known or described()) | {"run": run} | changed)
    task = task or AverageGradient(np.full((1, DIMENSION), at), (1.0,))
    asked = question_to_wire(Question(number, np.array([0]), task), 0, run=run, user=0, seconds=60)
    announced = pb.Announcement(run=run, description=text).SerializeToString()
    return {"version": version("quoron"), "announcement": announced, "user": 0, "question": asked.SerializeToString()}


def reply(sent: Values, config: Mapping[str, Any], gradient: Gradient | None = None) -> Values:
    """What leaves the node, as the wire carries it; that of a run that it declines when that is announced."""
    heard = {name: value for name, value in sent.items() if name != "question"}
    if "question" in sent and "agreed" not in (said := said_by(heard, config, gradient)):
        return said
    return said_by(sent, config, gradient)


def said_by(sent: Values, config: Mapping[str, Any], gradient: Gradient | None = None) -> Values:
    """What leaves the node, as the wire carries it: each time a process of its own, that remembers nothing."""
    message = Message(crossed(record(**sent)), 5, "query.private")
    message.metadata.__dict__["_message_id"] = "message"
    answer = answer_with(message, Context(1, 5, dict(config), RecordDict(), {}), gradient or pulls(0))
    assert not answer.has_error()
    return values_of(crossed(answer.content))


def status_of(found: Values) -> Status:
    return Status(answer_from_wire(pb.Answer.FromString(found["answer"]), (DIMENSION,))[1])


def spent(config: Mapping[str, Any]) -> tuple[float, float]:
    with ClientState(Path(config["state"]), epsilon=100.0, delta=1.0) as kept:
        return kept.spent


@pytest.fixture
def config(tmp_path: Path) -> dict[str, Any]:
    return {"state": str(tmp_path / "record.sqlite"), "limit": "9,1"}


def test_a_run_beyond_the_lifetime_epsilon_is_declined_before_the_function_sees_it(config: dict[str, Any]) -> None:
    seen: list[np.ndarray] = []

    def gradient(model: np.ndarray) -> np.ndarray:
        seen.append(model)
        return model

    assert status_of(reply(values(), config, gradient)) == Status.ANSWERED
    assert reply(values(run="summer"), config, gradient) == {"declined": True}
    assert len(seen) == 1
    assert spent(config) == (EPSILON, DELTA)
    assert "answer" in reply(values(run="autumn", epsilon=1.0), config, gradient)
    assert reply(values(run="winter", epsilon=0.5, delta=0.999), config, gradient) == {"declined": True}


def test_the_same_question_gets_the_same_bytes_and_another_of_its_round_none(config: dict[str, Any]) -> None:
    dice = np.random.default_rng(3)
    first = reply(values(), config, lambda model: dice.normal(size=DIMENSION))
    assert reply(values(), config, lambda model: dice.normal(size=DIMENSION)) == first
    assert status_of(reply(values(at=0.25), config)) == Status.MISSING
    for number in (1, 2):  # one-pass: each user is asked once
        assert status_of(reply(values(number), config)) == Status.MISSING


def test_a_question_that_is_not_of_the_announced_run_is_refused_and_costs_nothing(config: dict[str, Any]) -> None:
    other = values(run="summer")["announcement"]
    wrong = [
        values() | {"announcement": other},
        values() | {"announcement": b"\xff"},
        values(number=3),
        values(task=AverageGradient(np.zeros((1, DIMENSION + 1)), (1.0,))),
        values(task=SecondMoment(DIMENSION)),
        values(epsilon="much"),
        values() | {"user": "zero"},
        {key: value for key, value in values().items() if key != "announcement"},
    ]
    for sent in wrong:
        assert said_by(sent, config) == {"refused": "failed"}
    assert not Path(config["state"]).exists() or spent(config) == (0.0, 0.0)


def test_a_question_of_a_run_that_was_not_announced_before_is_declined_and_charges_nobody(
    config: dict[str, Any],
) -> None:
    """Who agreed with its first question told later, by its limits, whether it had been drawn."""
    assert said_by(values(), config) == {"declined": True}
    assert spent(config) == (0.0, 0.0)
    announced = {name: value for name, value in values().items() if name != "question"}
    assert said_by(announced, config) == {"agreed": True}
    assert spent(config) == (EPSILON, DELTA)
    assert "answer" in said_by(values(), config)


@pytest.mark.parametrize("accept", ["local", "central-broadcast,local"])
def test_a_run_of_exposure_local_gets_no_gradient_whatever_the_owner_accepts(
    accept: str, config: dict[str, Any]
) -> None:
    """Its answers are to be private by themselves, which a gradient is not; nothing is charged."""
    found = reply(values(trust_model="local"), config | {"accept": accept}, lambda model: np.ones(3))
    assert "answer" not in found
    assert found["declined"]
    assert spent(config) == (0.0, 0.0)


def test_a_function_that_fails_has_given_its_answer_and_says_no_more(
    config: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    def fails(model: np.ndarray) -> np.ndarray:
        raise ValueError(SECRET)

    with caplog.at_level(logging.ERROR, "quoron.client"):
        failed = reply(values(), config, fails)
    assert SECRET in caplog.text
    assert SECRET.encode() not in failed["answer"]
    assert status_of(failed) == Status.MISSING
    assert reply(values(), config) == failed, "a second try would be a second look"
    assert spent(config) == (EPSILON, DELTA)


def test_after_the_end_of_a_run_its_answers_are_erased_and_none_is_given(config: dict[str, Any]) -> None:
    reply(values(), config)
    assert reply({"version": version("quoron"), "run": "spring", "how": "complete"}, config) == {}
    assert status_of(reply(values(), config)) == Status.MISSING
    assert spent(config) == (EPSILON, DELTA)
    digest = pb.Question.FromString(values()["question"]).digest
    with ClientState(Path(config["state"]), epsilon=100.0, delta=1.0) as kept:
        assert kept.recall("spring", 0, digest) is None
    assert reply({"version": version("quoron"), "run": "spring", "how": "complete"}, {}) == {}


def owners(folder: Path, **said: Any) -> dict[int, dict[str, Any]]:
    """Of all users, each with a record; what is `said` is said by all."""
    folder.mkdir(exist_ok=True)
    usual = {"limit": "9,1", "simulation-seed": "5"}
    return {user: {"state": str(folder / f"{user}.sqlite"), **usual, **said} for user in range(USERS)}


@pytest.mark.parametrize("name", by_default(["one-pass-dp-sgd", "dp-sgd-wor"], ["dp-sgd-wor"]))
def test_a_killed_server_gets_the_answers_that_were_given_and_no_function_is_asked_twice(
    name: str, tmp_path: Path
) -> None:
    whole, asked = trained(plugged(people()), tmp_path / "whole", name).model, list[bytes]()

    def counted(user: int) -> Gradient:
        def gradient(model: np.ndarray) -> np.ndarray:
            asked.append(bytes([user]) + model.tobytes())
            return pulls(user)(model)

        return gradient

    mine = {user: counted(user) for user in range(USERS)}
    with pytest.raises(Killed):
        trained(plugged(mine, dies_at=4, owners=owners(tmp_path / "own")), tmp_path / "killed", name)
    later = plugged(mine, first=100, owners=owners(tmp_path / "own"))
    np.testing.assert_array_equal(trained(later, tmp_path / "killed", name).weights, whole)
    assert len(asked) == len(set(asked)), "an answer is kept before it is sent"
    for config in owners(tmp_path / "own").values():
        assert spent(config) == (EPSILON, DELTA), "anyone who was never drawn is charged like anybody"


def test_answers_are_erased_once_the_run_is_complete_also_by_a_later_start(tmp_path: Path) -> None:
    said = owners(tmp_path / "own")

    def kept() -> int:
        found = 0
        for config in (each for each in said.values() if Path(each["state"]).exists()):
            with closing(sqlite3.connect(config["state"])) as database:
                found += sum(answer is not None for (answer,) in database.execute("SELECT answer FROM answers"))
        return found

    grid, heard = plugged(people(), owners=said), list[int]()

    def dies(message: Message, reply: Message) -> Iterable[Message]:
        if "how" in message.content["quoron"]:
            raise Killed
        heard.append(kept())
        return [reply]

    grid.fault = dies
    with pytest.raises(Killed):
        trained(grid, tmp_path / "store")
    assert max(heard) == USERS
    assert kept() == USERS - 1, "the first to hear has"
    silent = plugged(people(), owners=said)
    trained(silent, tmp_path / "store")
    assert not questions(silent)
    assert kept() == 0


WANTED = small("dp-sgd-wor", "spring", 5)


@cache
def told() -> dict[str, Any]:
    """What a node is told of the run."""
    return describe(WANTED, make_plan(WANTED))


@pytest.fixture
def owned(tmp_path: Path) -> dict[str, Any]:
    """A node config that takes part in anything."""
    return {
        "data": str(write_items(tmp_path, 1)[0]),
        "state": str(tmp_path / "record.sqlite"),
        "limit": "100,1",
        "simulation-seed": str(SEED),
    }


def asking(number: int = 0, at: float = 0.0, run: str = "spring", **changed: object) -> Values:
    """The same of a run of the federation."""
    return values(number, at, run, known=told(), **changed)


def answered(
    sent: Values,
    owned: dict[str, Any],
    action: str = "average_gradient",
) -> Values:
    """What leaves the node, as the wire carries it; that of a run that it declines when that is announced."""
    if "question" in sent:
        said = answered({name: value for name, value in sent.items() if name != "question"}, owned, "announced")
        if "agreed" not in said:
            return said
    message = Message(crossed(record(**sent)), 5, f"query.{action}")
    message.metadata.__dict__["_message_id"] = "message"
    answer = apps.app(message, Context(1, 5, owned, RecordDict(), {}))
    assert not answer.has_error()
    return values_of(crossed(answer.content))


def test_our_app_gives_the_same_question_the_same_bytes_and_another_of_its_round_none(
    owned: dict[str, Any],
) -> None:
    first = answered(asking(), owned)
    assert answered(asking(), owned) == first
    other = pb.Answer.FromString(answered(asking(at=0.5), owned)["answer"])
    gradient, status = answer_from_wire(other, (3,))
    assert status == Status.MISSING
    assert not gradient.any()


def test_a_run_beyond_the_lifetime_epsilon_is_declined(owned: dict[str, Any]) -> None:
    owned["limit"] = "20,1"
    assert "answer" in answered(asking(), owned)
    assert answered(asking(run="summer"), owned) == {"declined": True}  # 15 and 15
    with ClientState(Path(owned["state"]), epsilon=20.0, delta=1.0) as kept:
        assert kept.spent == (15.0, 0.1)


def test_after_the_end_of_a_run_its_answers_are_erased_and_nothing_more_is_answered(owned: dict[str, Any]) -> None:
    answered(asking(), owned)
    assert answered({"version": version("quoron"), "run": "spring", "how": "complete"}, owned, "ended") == {}
    late = pb.Answer.FromString(answered(asking(1), owned)["answer"])
    assert answer_from_wire(late, (3,))[1] == Status.MISSING
    with ClientState(Path(owned["state"]), epsilon=20.0, delta=1.0) as kept:
        assert kept.spent == (15.0, 0.1)
        assert kept.recall("spring", 0, pb.Question.FromString(asking()["question"]).digest) is None


SENT: list[Values] = [
    {"announcement": b"\xff" * 9},
    {"question": b"\xff" * 9},
    {"user": "zero"},
    {"announcement": 3},
    {"question": pb.Question(run="another").SerializeToString()},
]


@pytest.mark.parametrize("change", SENT, ids=str)
def test_a_malformed_message_is_refused_in_fixed_words(change: Values, owned: dict[str, Any]) -> None:
    assert answered(asking() | change, owned) == {"refused": "failed"}


def test_the_text_of_an_exception_stays_with_the_owner(
    owned: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError(SECRET)

    for place in ("Worker.reply", "opened", "read_owner"):
        with monkeypatch.context() as patched, caplog.at_level(logging.ERROR, "quoron.client"):
            patched.setattr(f"quoron_client.flower.app.{place}", fails)
            assert answered(asking(), owned) == {"refused": "failed"}
            assert SECRET in caplog.text
            caplog.clear()
    assert "answer" in answered(asking(), owned)


def test_a_value_that_cannot_be_used_shows_in_no_reply(owned: dict[str, Any], tmp_path: Path) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text(f"x0,x1,x2,sick\n0.1,0.2,{SECRET},1\n")
    got = answered(asking(), owned | {"data": str(bad)})
    answer = pb.Answer.FromString(got["answer"])
    gradient, status = answer_from_wire(answer, (3,))
    assert status == Status.REJECTED
    assert not gradient.any()
    assert SECRET.encode() not in got["answer"]


def test_a_data_file_that_is_not_there_declines_without_its_name(owned: dict[str, Any]) -> None:
    assert answered(asking(), owned | {"data": f"/nowhere/{SECRET}.csv"}) == {"declined": True}


@pytest.mark.parametrize(
    "task",
    [
        SecondMoment(2),
        MomentAndGradient(2, np.zeros(2)),
        AverageLoss(np.zeros((2, 2))),
        LocalSGD(np.zeros((1, 2)), 0.1, L2Ball(1.0)),
        AverageGradient(np.zeros((1, 2)), (1.0,), user_smoothness=1.0),
        AverageGradient(np.zeros((1, 2)), (1.0,), reference_items=3),
        AverageGradient(np.zeros((1, 2)), (1.0,), smoothing=Moreau(0.1)),
    ],
    ids=lambda task: type(task).__name__,
)
def test_a_question_for_more_than_gradients_is_not_answered(task: Any) -> None:
    with pytest.raises(WireError, match="Expected a question for"):
        combined(task, lambda model: model)


def test_a_gradient_cannot_change_the_question() -> None:
    task = AverageGradient(np.ones((1, 2)), (1.0,))

    def spoils(model: np.ndarray) -> np.ndarray:
        model[:] = np.inf
        return np.zeros(2)

    combined(task, spoils)
    np.testing.assert_array_equal(task.points, np.ones((1, 2)))
    with pytest.raises(DataError, match="Flatten"):
        combined(task, lambda model: np.ones((2, 1)))


def test_nodes_that_share_a_record_by_mistake_never_give_one_another_s_answer(config: dict[str, Any]) -> None:
    assert "answer" in reply(values(), config)
    assert reply(values() | {"user": 1}, config, pulls(1)) == {"declined": True}
    assert "answer" in reply(values(), config)


def test_a_zero_out_promise_is_charged_what_it_costs_to_replace_the_user(config: dict[str, Any]) -> None:
    assert reply(values(epsilon=5.0, adjacency="zero-out"), config) == {"declined": True}  # 10
    assert "answer" in reply(values(epsilon=4.0, adjacency="zero-out"), config)
    assert spent(config)[0] == 8.0


def test_owners_who_decline_a_second_run_are_missing_in_it_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    said = owners(tmp_path / "own") | {2: {}}  # user 2 says nothing
    trained(plugged(people(), owners=said), tmp_path / "store")
    grid = plugged(people(), owners=said)
    trained(grid, tmp_path / "store", run="second")
    assert "user 0 takes no part in run second, by its owner's decision" in caplog.text
    assert "user 2 takes no part" not in caplog.text
    assert sum("declined" in each for each in words(grid)) == USERS - 1
    assert len(questions(grid)) == 1, "who declines is asked nothing"
    alone = plugged({user: (pulls(2) if user == 2 else lambda model: np.full(1, np.nan)) for user in range(USERS)})
    trained(alone, tmp_path / "alone")
    second = plugged(people(), owners=said)
    np.testing.assert_array_equal(
        trained(second, tmp_path / "store", run="third").model,
        trained(alone, tmp_path / "alone", run="third").model,
    )
