"""A hundred thousand messages of every bad kind: each is refused by name or becomes a rejected row, nothing else."""

import numpy as np
import pytest
from google.protobuf.message import DecodeError

from quoron_client.protocol.domains import Box, L2Ball
from quoron_client.protocol.gradients import AverageGradient
from quoron_client.protocol.local_sgd import LocalSGD
from quoron_client.protocol.moments import SecondMoment
from quoron_client.protocol.placed import PlacedGradient
from quoron_client.protocol.questions import Question, Status
from quoron_client.protocol.reports import RangeReport, VectorReport
from quoron_client.protocol.smoothing import Convolution, Moreau
from quoron_client.protocol.whitened import AverageLoss, MomentAndGradient
from quoron_client.protocol.wire import answer_from_wire, answer_to_wire, question_from_wire, question_to_wire
from quoron_privacy.errors import WireError
from quoron_protos.v1 import federation_pb2 as federation

MESSAGES = 50_000  # of each of the two directions
SHAPES = [(3,), (2, 3), (8,)]
SPECIAL = [0.0, -0.0, np.nan, np.inf, -np.inf, 1e300, 5e-324]


def questions():
    point = np.array([[1.0, -2.0, 3.0]])
    full = AverageGradient(np.vstack([point, point]), (1.0, -0.5), 0.25, point[0], 50, Moreau(0.5))
    tasks = [
        full,
        AverageGradient(point, (1.0,), smoothing=Convolution(0.5, 1)),
        SecondMoment(3),
        MomentAndGradient(3, point[0], point[0]),
        AverageLoss(np.vstack([point, point])),
        LocalSGD(point, 0.1, L2Ball(1.0)),
        LocalSGD(point, 0.1, Box(1.0), Moreau(0.1)),
        PlacedGradient(point, np.array([[0, 3, -1]]), 2.0, 0.5, 2),
        RangeReport(full, 1.0, 8, 2.0, np.array([1.0, -1.0, 1.0]), np.array([2])),
        VectorReport(full, 1.0, 1e-6, 2.0, point[0]),
    ]
    return [question_to_wire(Question(3, np.array([5]), task), 0, run="run", user=5, seconds=9) for task in tasks]


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
    for _ in range(MESSAGES // 2):
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
    assert min(counts.values()) > MESSAGES // 40, counts


@pytest.mark.parametrize("seed", [3, 4])
def test_a_coordinator_gets_a_usable_row_or_a_rejected_one(seed):
    rng, seeds = np.random.default_rng(seed), answers()
    written, counts = [each.SerializeToString() for each in seeds], dict.fromkeys(Status, 0)
    for _ in range(MESSAGES // 2):
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
    assert min(counts.values()) > MESSAGES // 100, counts
