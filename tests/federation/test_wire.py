"""The wire stays what it is: questions and answers there and back, whatever is damaged on the way, generated code."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from google.protobuf.message import DecodeError

from one_answer import answer_from_wire
from quoron_client.protocol import wire
from quoron_client.protocol.domains import Box, L2Ball
from quoron_client.protocol.questions import (
    AverageGradient,
    AverageLoss,
    LocalSGD,
    MomentAndGradient,
    PlacedGradient,
    Question,
    RangeReport,
    SecondMoment,
    Status,
    VectorReport,
)
from quoron_client.protocol.smoothing import Convolution, Moreau
from quoron_client.protocol.wire import (
    DIGEST_SIZE,
    MAX_MESSAGE,
    MAX_NUMBERS,
    answer_to_wire,
    array_from_wire,
    array_to_wire,
    question_from_wire,
    question_to_wire,
)
from quoron_privacy.errors import WireError
from quoron_protos.v1 import federation_pb2 as federation

DIGEST = bytes(range(DIGEST_SIZE))
ROOT = Path(__file__).parent.parent.parent
POINTS = np.array([[1.0, -2.0, 3.0], [0.5, 0.0, 2.0**-40]])
PLAIN = AverageGradient(POINTS[:1], (1.0,))
FULL = AverageGradient(
    POINTS, (1.0, -0.5), user_smoothness=0.25, centre=POINTS[1], reference_items=50, smoothing=Moreau(0.5)
)
TASKS = {
    "average gradient": FULL,
    "plain gradient": PLAIN,
    "convolved gradient": AverageGradient(POINTS, (1.0, -0.5), smoothing=Convolution(0.5, 99)),
    "second moment": SecondMoment(3),
    "second moment with labels": SecondMoment(4, 0.5),
    "second moment of few rows": SecondMoment(4, rows=2),
    "moment and gradient": MomentAndGradient(3, POINTS[0]),
    "moment and centred gradient": MomentAndGradient(3, POINTS[0], POINTS[1]),
    "moment of few rows and gradient": MomentAndGradient(3, POINTS[0], rows=1),
    "average loss": AverageLoss(POINTS),
    "local SGD": LocalSGD(POINTS, 0.125, L2Ball(2.0), Moreau(0.25)),
    "local SGD in a box": LocalSGD(POINTS, 0.125, Box(2.0)),
    "placed gradient": PlacedGradient(POINTS[:1], np.array([[1, 2, -1], [0, 5, 2]]), 3.0, 0.5, 2),
    "unclipped places": PlacedGradient(POINTS[:1], np.array([[1], [0]]), 1.0),
    "range report": RangeReport(FULL, 1.0, 8, 2.0, np.array([1.0, -1.0, 1.0]), np.array([3, 0])),
    "vector report": VectorReport(PLAIN, 1.0, 1e-6, 2.0, POINTS[1]),
}


def asked(task, slot=1):
    return question_to_wire(Question(7, np.array([4, 9]), task), slot, run="run", user=9, seconds=60)


def same(found, wanted):
    """Dataclasses of arrays, numbers and dataclasses."""
    assert type(found) is type(wanted)
    for name in wanted.__dataclass_fields__:
        left, right = getattr(found, name), getattr(wanted, name)
        if hasattr(right, "__dataclass_fields__"):
            same(left, right)
        else:
            np.testing.assert_array_equal(left, right, err_msg=name)


def test_the_generated_code_is_that_of_the_sources():
    """Of which `scripts/check` sees that no field has another number or type than it had (buf)."""
    path = ROOT / "scripts" / "gen_protos.py"
    spec = importlib.util.spec_from_file_location("gen_protos", path)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert list(script.stale(script.generated())) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda m: m.ClearField("average_gradient"), "a task that this client knows"),
        (lambda m: m.ClearField("run"), "1 to 200 characters, got 0"),
        (lambda m: setattr(m, "digest", b"short"), "digest of 16 bytes, got 5"),
        (lambda m: m.average_gradient.weights.append(1.0), r"weights of shape \(p=2\), got \(3,\)"),
        (lambda m: m.average_gradient.points.shape.__setitem__(0, 2**63), "numbers, got another shape"),
        (lambda m: setattr(m.average_gradient.smoothing, "moreau", 0.0), "parameter > 0"),
    ],
)
def test_questions_that_are_not_of_the_protocol_are_refused_by_name(change, said):
    message = asked(FULL)
    change(message)
    with pytest.raises(WireError, match=said):
        question_from_wire(message)


class TestAnswers:
    @pytest.mark.parametrize("status", [Status.MISSING, Status.REJECTED])
    def test_that_are_none_carry_zeros_of_the_same_size(self, status):
        sent = np.array([1.0, 2.0])
        message = answer_to_wire("r", 3, DIGEST, sent, status)
        assert len(message.values.data) == 16
        message.values.CopyFrom(array_to_wire(sent))  # whatever it says, it is no answer
        found, kept = answer_from_wire(message, (2,))
        assert kept == status
        assert not found.any()


class TestArrays:
    @pytest.mark.parametrize("array", [np.arange(6).reshape(2, 3), np.zeros((0, 2**20)), np.float64(3.0)[None]])
    def test_arrive_in_memory_of_their_own(self, array):
        found = array_from_wire(array_to_wire(array), array.dtype.name)
        np.testing.assert_array_equal(found, array)
        assert found.flags.writeable
        assert found.flags.owndata or found.base.flags.owndata

    def test_of_too_many_numbers_are_refused_before_they_are_read(self, monkeypatch):
        monkeypatch.setattr(wire, "MAX_NUMBERS", 5)
        with pytest.raises(WireError, match="at most 3 axes and 5 numbers"):
            array_from_wire(array_to_wire(np.zeros(6)), "float64")

    def test_of_the_largest_size_fit_into_a_message(self):
        assert 8 * MAX_NUMBERS < MAX_MESSAGE


MANY = 20_000  # of each of the two directions
SHAPES = [(3,), (2, 3), (8,)]
SPECIAL = [0.0, -0.0, np.nan, np.inf, -np.inf, 1e300, 5e-324]


def questions():
    return [asked(task, 0) for task in TASKS.values()]


def answers():
    rng = np.random.default_rng(0)
    return [
        answer_to_wire("run", 3, bytes(16), rng.standard_normal(shape), status) for shape in SHAPES for status in Status
    ]


def numbers(message):
    """Every (message, field) below that can be set to a number, and every array."""
    places, arrays = [], []
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            inner = numbers(value)
            places += inner[0]
            arrays += inner[1] + ([value] if field.message_type.name == "Array" else [])
        elif field.type == field.TYPE_DOUBLE and not isinstance(value, float):
            places += [(value, i) for i in range(len(value))]
        elif field.type == field.TYPE_DOUBLE:
            places.append((message, field.name))
    return places, arrays


def damaged(rng, seeds, written):
    """The bytes of one message: random, truncated, spliced, with flipped bits, or well-formed with wrong contents."""
    way, i = rng.integers(8), rng.integers(len(seeds))
    data = bytearray(written[i])
    if way == 0:
        return rng.bytes(int(rng.integers(0, 200)))
    if way == 1:
        return bytes(data[: rng.integers(len(data) + 1)])
    if way == 2:
        for _ in range(rng.integers(1, 6)):
            data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
        return bytes(data)
    if way == 3:
        other = written[rng.integers(len(written))]
        return bytes(data[: rng.integers(len(data))] + other[rng.integers(len(other)) :])
    if way == 4:
        return bytes(data)  # as it should be: a replay
    message = type(seeds[i]).FromString(bytes(data))
    places, arrays = numbers(message)
    if way == 5 and places:
        owner, name = places[rng.integers(len(places))]
        value = SPECIAL[rng.integers(len(SPECIAL))]
        owner.__setitem__(name, value) if isinstance(name, int) else setattr(owner, name, value)
    elif arrays:
        wrong(rng, arrays[rng.integers(len(arrays))])
    return message.SerializeToString()


def wrong(rng, array):
    """Another type, another shape, more or fewer bytes, or numbers that are none."""
    way = rng.integers(6)
    if way == 0:
        array.dtype = ["float32", "object", "int64", "", ">f8", "float64", "\u00e9" * 99][rng.integers(7)]
    elif way == 1 and array.shape:
        array.shape[rng.integers(len(array.shape))] = [0, 1, 2**63, 2**64 - 1, 2**32, 7][rng.integers(6)]
    elif way == 2:
        array.shape.extend(map(int, rng.integers(0, 3, rng.integers(1, 40))))
    elif way == 3:
        array.data = array.data + bytes(int(rng.choice([1, 8, 1 << 12])))
    elif way == 4:
        array.data = np.full(len(array.data) // 8, SPECIAL[rng.integers(len(SPECIAL))]).tobytes()
    else:
        del array.shape[:]


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_client_takes_a_question_of_the_protocol_or_refuses_it_by_name(seed):
    rng, seeds = np.random.default_rng(seed), questions()
    written, counts = [each.SerializeToString() for each in seeds], {"taken": 0, "refused": 0, "unreadable": 0}
    longest = 0
    for _ in range(MANY // 2):
        data = damaged(rng, seeds, written)
        try:
            message = federation.Question.FromString(data)
        except DecodeError:  # the transport's own refusal
            counts["unreadable"] += 1
            continue
        try:
            run, number, digest, task = question_from_wire(message)
        except WireError as error:
            longest = max(longest, len(str(error)))
            counts["refused"] += 1
            continue
        counts["taken"] += 1
        assert (run, number, digest) == (message.run, message.round, message.digest)
        assert sum(np.asarray(getattr(task, name)).size for name in task.__dataclass_fields__) < 100
        assert question_from_wire(message)[:3] == (run, number, digest)
    assert longest < 500  # whatever was sent, it is not repeated at length
    assert min(counts.values()) > MANY // 40, counts


@pytest.mark.parametrize("seed", [3, pytest.param(4, marks=pytest.mark.slow)])
def test_a_coordinator_gets_a_usable_row_or_a_rejected_one(seed):
    rng, seeds = np.random.default_rng(seed), answers()
    written, counts = [each.SerializeToString() for each in seeds], dict.fromkeys(Status, 0)
    for _ in range(MANY // 2):
        try:
            message = federation.Answer.FromString(damaged(rng, seeds, written))
        except DecodeError:
            continue
        shape = SHAPES[rng.integers(len(SHAPES))]
        found, status = answer_from_wire(message, shape)
        counts[status] += 1
        assert found.shape == shape
        assert found.dtype == np.float64
        assert np.isfinite(found).all()
        assert status == Status.ANSWERED or not found.any()
        if status == Status.ANSWERED:
            assert message.values.data == found.tobytes()
    assert min(counts.values()) > MANY // 100, counts
