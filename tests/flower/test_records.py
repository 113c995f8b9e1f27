"""Questions and answers as Flower's records: a shard is asked exactly what its users are, and no bytes break it."""

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from flower.grids import crossed
from quoron_client.protocol.domains import Box, L2Ball
from quoron_client.protocol.flower_records import (
    Values,
    answers_from_record,
    answers_record,
    question_from_values,
    question_values,
    record,
    values_of,
)
from quoron_client.protocol.gradients import AverageGradient
from quoron_client.protocol.local_sgd import LocalSGD
from quoron_client.protocol.moments import SecondMoment
from quoron_client.protocol.questions import Answers, Question, Status
from quoron_client.protocol.reports import RangeReport, VectorReport
from quoron_client.protocol.smoothing import Convolution, Moreau
from quoron_client.protocol.whitened import AverageLoss, MomentAndGradient
from quoron_privacy.errors import WireError

KINDS = ("gradient", "moment", "both", "losses", "passes", "range", "vector")


def question_of(kind: str, users: int, seed: int) -> Question:
    """A question of any kind to users of any number."""
    rng = np.random.default_rng(seed)
    dimension = int(rng.integers(1, 5))
    points = int(rng.integers(1, 3))
    smoothing = [None, Moreau(0.5), Convolution(0.25, 0)][int(rng.integers(3))]
    gradient = AverageGradient(
        rng.normal(size=(points, dimension)),
        tuple(rng.normal(size=points).tolist()),
        user_smoothness=[None, 0.25][int(rng.integers(2))],
        centre=[None, rng.normal(size=dimension)][int(rng.integers(2))],
        reference_items=[None, 4][int(rng.integers(2))],
        smoothing=smoothing,
    )
    cohort = rng.permutation(10 * users)[:users].astype(np.int64)
    if kind == "gradient":
        task = gradient
    elif kind == "moment":
        task = SecondMoment(dimension)
    elif kind == "both":
        task = MomentAndGradient(dimension, rng.normal(size=dimension), gradient.centre)
    elif kind == "losses":
        task = AverageLoss(rng.normal(size=(points, dimension)))
    elif kind == "passes":
        domain = [L2Ball(2.0), Box(1.5)][int(rng.integers(2))]
        task = LocalSGD(rng.normal(size=(users, dimension)), 0.125, domain, smoothing)
    elif kind == "range":
        signs = rng.choice([-1.0, 1.0], size=dimension)
        task = RangeReport(gradient, 0.5, 8, 2.0, signs, rng.integers(0, dimension, users))
    else:
        task = VectorReport(gradient, 0.5, 1e-6, 1.5, rng.normal(size=dimension))
    return Question(int(rng.integers(0, 100)), cohort, task)


def digest(question: Question, rows: np.ndarray) -> str:
    """Everything that the users in `rows` are asked, in words."""
    task = question.task
    own = {}
    if isinstance(task, LocalSGD):
        own["starts"] = task.starts[rows].tolist()
    if isinstance(task, RangeReport):
        own["coordinates"] = task.coordinates[rows].tolist()
    shared = {name: getattr(task, name) for name in task.__slots__ if name not in ("starts", "coordinates")}
    gradient = shared.pop("gradient", None)
    if gradient is not None:
        shared |= {f"gradient.{name}": getattr(gradient, name) for name in gradient.__slots__}
    words = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in shared.items()}
    return repr((question.round, question.cohort[rows].tolist(), type(task).__name__, words, own))


def values_for(question: Question, rows: np.ndarray) -> Values:
    """What the users in `rows` are sent, beside others."""
    others = np.setdiff1d(np.arange(len(question.cohort)), rows)
    parts = [others, rows] if len(others) else [rows]
    return list(question_values(question, parts, run="trial", seconds=60))[-1]


@given(
    kind=st.sampled_from(KINDS),
    users=st.integers(1, 12),
    seed=st.integers(0, 10_000),
    data=st.data(),
)
@settings(derandomize=True, deadline=None, max_examples=60)
def test_a_shard_is_asked_exactly_what_its_users_are(kind: str, users: int, seed: int, data: st.DataObject) -> None:
    question = question_of(kind, users, seed)
    rows = np.array(data.draw(st.lists(st.integers(0, users - 1), min_size=1, unique=True)), np.int64)
    values = values_of(crossed(record(**values_for(question, rows))))
    received = question_from_values(values)
    assert digest(received, np.arange(len(rows))) == digest(question, rows)


@given(users=st.integers(0, 6), axes=st.lists(st.integers(1, 4), min_size=1, max_size=2), seed=st.integers(0, 1000))
@settings(derandomize=True, deadline=None, max_examples=60)
def test_answers_come_back_bit_by_bit(users: int, axes: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    status = rng.integers(0, 3, users).astype(np.uint8)
    values = np.where((status == 0).reshape(-1, *[1] * len(axes)), rng.normal(size=(users, *axes)), 0.0)
    found = answers_from_record(crossed(answers_record(Answers(values, status))), users, tuple(axes))
    assert found is not None
    np.testing.assert_array_equal(found.values, values)
    np.testing.assert_array_equal(found.status, status)


SENT = answers_record(Answers(np.ones((3, 2)), np.zeros(3, np.uint8)))


def altered(**values: object) -> RecordDict:
    """The answers of three users, with something else in place of a part."""
    whole = {**values_of(SENT), **values}
    return RecordDict({"quoron": ConfigRecord({key: value for key, value in whole.items() if value is not None})})


def array(values: np.ndarray) -> object:
    return values_of(answers_record(Answers(values, np.zeros(len(values), np.uint8))))["values"]


NO_ANSWERS = {
    "nothing": RecordDict(),
    "another record": RecordDict({"quoron": ArrayRecord([np.ones(3)])}),
    "no values": altered(values=None),
    "no status": altered(status=None),
    "values that are a number": altered(values=3.5),
    "values of no protocol": altered(values=b"\xff" * 50),
    "no bytes at all": altered(values=b""),
    "a row too few": altered(values=array(np.ones((2, 2)))),
    "a row too many": altered(values=array(np.ones((4, 2)))),
    "another width": altered(values=array(np.ones((3, 1)))),
    "a flat array": altered(values=array(np.ones(6))),
    "whole numbers": altered(values=array(np.ones((3, 2), np.int64))),
    "half the precision": altered(values=array(np.ones((3, 2), np.float32))),
    "bytes cut off": altered(values=values_of(SENT)["values"][:-1]),  # type: ignore[index]
    "a huge array": altered(values=array(np.ones((3000, 2)))),
    "a status too few": altered(status=b"\0\0"),
    "a status that there is not": altered(status=b"\0\3\0"),
    "status as text": altered(status="000"),
    "a refusal": record(refused="failed"),
}


@pytest.mark.parametrize("what", list(NO_ANSWERS))
def test_what_is_not_answers_is_none_and_never_raises(what: str) -> None:
    assert answers_from_record(NO_ANSWERS[what], 3, (2,)) is None
    assert answers_from_record(SENT, 3, (2,)) is not None


@given(values=st.binary(max_size=80), status=st.binary(max_size=5))
@settings(derandomize=True, deadline=None, max_examples=100)
def test_no_bytes_raise(values: bytes, status: bytes) -> None:
    answers_from_record(altered(values=values, status=status), 3, (2,))


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_not_finite_rejects_its_own_row_only(wrong: float) -> None:
    values = np.ones((3, 2))
    values[1, 0] = wrong
    found = answers_from_record(altered(values=array(values)), 3, (2,))
    assert found is not None
    assert found.status.tolist() == [Status.ANSWERED, Status.REJECTED, Status.ANSWERED]
    np.testing.assert_array_equal(found.values, [[1, 1], [0, 0], [1, 1]])


@pytest.mark.parametrize("kind", ["passes", "range"])
def test_a_shard_refuses_parts_that_are_not_one_for_each_user(kind: str) -> None:
    question = question_of(kind, 4, 1)
    values, fewer = values_for(question, np.arange(4)), values_for(question, np.arange(3))
    key = "starts" if kind == "passes" else "coordinates"
    for wrong in ({key: fewer[key]}, {"users": fewer["users"]}, {key: b"\xff"}, {"users": 3}, {"question": b"\xff"}):
        with pytest.raises(Exception, match=r"Expected|Error parsing") as raised:
            question_from_values({**values, **wrong})
        assert isinstance(raised.value, WireError) or "parsing" in str(raised.value)
