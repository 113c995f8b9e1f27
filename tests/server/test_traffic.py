"""Bytes are counted as the protocol's own codec and the framing below it make them."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from contracts.scenes import SMALL, Quadratic, execute
from quoron_client.protocol import wire
from quoron_client.protocol.domains import L2Ball
from quoron_client.protocol.questions import (
    AverageGradient,
    AverageLoss,
    LocalSGD,
    MomentAndGradient,
    Question,
    RangeReport,
    SecondMoment,
    Status,
    Task,
    VectorReport,
)
from quoron_client.protocol.smoothing import Convolution
from quoron_protos.v1 import federation_pb2 as pb
from quoron_server import traffic as traffic_module
from quoron_server.storage.ledger import Ledger
from quoron_server.traffic import FRAME, WINDOWS, encoded, round_bytes, traffic

USERS, RUN, SECONDS = 5, "a-run", 60


def gradient(dimension: int, centre: bool = False) -> AverageGradient:
    points = np.ones((2 if centre else 1, dimension))
    return AverageGradient(points, (1.0, -1.0)[: len(points)], 0.25, np.ones(dimension) if centre else None)


TASKS = {
    "gradient": gradient(3),
    "recursive gradient": gradient(40, centre=True),
    "long": gradient(FRAME // 8 + 7),
    "moment": SecondMoment(9),
    "both": MomentAndGradient(3, np.ones(3)),
    "losses": AverageLoss(np.ones((2, 3))),
    "local": LocalSGD(np.ones((USERS, 17)), 0.5, L2Ball(2.0), Convolution(0.1, 3)),
    "range": RangeReport(gradient(3), 1.0, 16, 2.0, np.ones(3), np.array([0, 1, 127, 128, 20_000])),
    "vector": VectorReport(gradient(3), 1.0, 1e-6, 2.0, np.zeros(3)),
}


def dimension(task: Task) -> int:
    shapes = {"moment": 9, "local": 17}
    return next((shapes[name] for name, each in TASKS.items() if each is task and name in shapes), 0) or (
        task.points.shape[1] if isinstance(task, AverageGradient) else 3
    )


def on_the_wire(message: pb.ServerMessage | pb.ClientMessage) -> int:
    """The slow obvious way: the message's bytes, cut into frames, cut into records."""
    framed = 5 + len(message.SerializeToString())
    framed += 9 * len(range(0, framed, 16_384))
    return framed + 22 * len(range(0, framed, 16_384))


@pytest.mark.parametrize("name", TASKS)
def test_a_round_moves_exactly_the_bytes_of_its_messages(name: str) -> None:
    task = TASKS[name]
    question = Question(3, np.arange(USERS) + 7, task)
    down = up = 0
    for slot in range(USERS):
        asked = wire.question_to_wire(question, slot, run=RUN, user=slot, seconds=SECONDS)
        values = np.ones(task.answer_shape(dimension(task)))
        answer = wire.answer_to_wire(RUN, 3, asked.digest, values, Status.ANSWERED)
        down += on_the_wire(pb.ServerMessage(question=asked))
        up += on_the_wire(pb.ClientMessage(answer=answer))
    sizes = dict(zip(("down", "up"), encoded(question, dimension(task)), strict=True))
    counted = traffic(messages=USERS, **sizes, run=RUN, seconds=SECONDS)
    windows = USERS * WINDOWS
    assert counted == (down + windows, up + windows)


def told(task: Task, dimension: int) -> tuple[int, int]:
    question = Question(3, np.arange(1), task)
    sizes = dict(zip(("down", "up"), encoded(question, dimension), strict=True))
    return traffic(messages=1, **sizes, run=RUN, seconds=SECONDS)


@given(encoded=st.integers(0, 1 << 29), more=st.integers(0, 1 << 20), extra=st.integers(0, 400))
@example(encoded=wire.MOST - 20, more=1, extra=20)
@example(encoded=2 * wire.MOST, more=1, extra=20)
def test_longer_messages_never_move_fewer_bytes(encoded: int, more: int, extra: int) -> None:
    shorter, longer = (round_bytes(encoded=length, messages=1, extra=extra) for length in (encoded, encoded + more))
    assert encoded < shorter <= longer


def test_an_answer_in_parts_moves_the_bytes_of_its_messages() -> None:
    assert traffic_module.MOST == wire.MOST
    for dimension in (wire.MOST // 8 + 1, 2 * wire.MOST // 8 + 5):
        answer = wire.answer_to_wire(RUN, 3, bytes(16), np.ones(dimension), Status.ANSWERED)
        sent = sum(on_the_wire(each) for each in wire.said(answer))
        nameless = wire.answer_to_wire("", 3, bytes(16), np.ones(dimension), Status.ANSWERED).ByteSize()
        counted = round_bytes(encoded=nameless, messages=1, extra=2 + len(RUN))
        assert abs(counted - sent) < 100


def test_an_empty_cohort_moves_nothing() -> None:
    assert encoded(Question(0, np.zeros(0, np.int64), gradient(3)), 3) == (0, 0)
    assert round_bytes(encoded=0, messages=0, extra=9) == 0


def test_a_sampled_cohort_is_counted_as_planned_so_that_its_size_stays_secret() -> None:
    sizes = {encoded(Question(0, np.arange(size), gradient(3), planned=10), 3) for size in (1, 9, 12)}
    assert len(sizes) == 1


@pytest.mark.parametrize("name", ["one-pass-dp-sgd", "local-model", "filtered-sgd"])
def test_every_committed_round_says_how_many_bytes_its_messages_have(name: str, tmp_path) -> None:
    execute(name, tmp_path, Quadratic())
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        events = ledger.events()
    for event in events:
        assert event["encoded_down"] > event["bytes_down"]
        assert event["encoded_up"] > event["bytes_up"]
    assert name in SMALL or events
