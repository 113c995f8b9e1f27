"""What a project's own function is asked, and what it cannot do."""

from typing import Any

import numpy as np
import pytest

from quoron_client.flower.answering import combined
from quoron_client.protocol.domains import L2Ball
from quoron_client.protocol.gradients import AverageGradient
from quoron_client.protocol.local_sgd import LocalSGD
from quoron_client.protocol.moments import SecondMoment
from quoron_client.protocol.smoothing import Moreau
from quoron_client.protocol.whitened import AverageLoss, MomentAndGradient
from quoron_privacy.errors import DataError, WireError


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
    ids=[
        "second moment",
        "moment and gradient",
        "losses",
        "local sgd",
        "user smoothness",
        "reference items",
        "smoothing",
    ],
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
