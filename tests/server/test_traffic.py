"""Bytes are counted as the protocol's own codec makes them."""

import numpy as np
import pytest

from contracts.scenes import Quadratic, execute
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
from quoron_server.storage.ledger import Ledger
from quoron_server.traffic import encoded

USERS = 5


def gradient(dimension: int, centre: bool = False) -> AverageGradient:
    points = np.ones((2 if centre else 1, dimension))
    return AverageGradient(points, (1.0, -1.0)[: len(points)], 0.25, np.ones(dimension) if centre else None)


TASKS = {
    "gradient": gradient(3),
    "recursive gradient": gradient(40, centre=True),
    "long": gradient(2_055),
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


@pytest.mark.parametrize("name", TASKS)
def test_a_round_has_exactly_the_bytes_of_its_messages(name: str) -> None:
    task = TASKS[name]
    question = Question(3, np.arange(USERS) + 7, task)
    down = up = 0
    for slot in range(USERS):
        asked = wire.question_to_wire(question, slot, run="", user=slot, seconds=0)
        values = np.ones(task.answer_shape(dimension(task)))
        down += len(asked.SerializeToString())
        up += len(wire.answer_to_wire("", 3, asked.digest, values, Status.ANSWERED).SerializeToString())
    assert encoded(question, dimension(task)) == (down, up)


def test_an_empty_cohort_moves_nothing() -> None:
    assert encoded(Question(0, np.zeros(0, np.int64), gradient(3)), 3) == (0, 0)


def test_a_sampled_cohort_is_counted_as_planned_so_that_its_size_stays_secret() -> None:
    sizes = {encoded(Question(0, np.arange(size), gradient(3), planned=10), 3) for size in (1, 9, 12)}
    assert len(sizes) == 1


@pytest.mark.parametrize("name", ["one-pass-dp-sgd", "local-model"])
def test_every_committed_round_says_how_many_bytes_its_messages_have(name: str, tmp_path) -> None:
    execute(name, tmp_path, Quadratic())
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        events = ledger.events()
    assert events
    for event in events:
        assert event["encoded_down"] > event["bytes_down"]
        assert event["encoded_up"] > event["bytes_up"]
