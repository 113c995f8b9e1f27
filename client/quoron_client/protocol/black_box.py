"""Answers of black boxes: a question put to a function of which nothing is known but that it returns gradients.

>>> task = AverageGradient(np.array([[1.0, 2.0], [0.0, 1.0]]), (1.0, -0.5))
>>> combined(task, lambda point: 2 * point).tolist()
[2.0, 3.0]
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from quoron_client.protocol.questions import Task
from quoron_client.protocol.tasks import AverageGradient
from quoron_privacy.errors import WireError

Array = NDArray[np.float64]


def combined(task: Task, gradient: Callable[[Array], Array]) -> Array:
    """Σ_k weights[k] · gradient(points[k]) - centre, of the shape that `gradient` returns: (d,), or (k, d) for k users.

    `gradient` has a copy of each point, shape (d,). Raises WireError for a task that asks for more than that.
    """
    task = plain(task)
    total = np.zeros(task.points.shape[1])
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is the zero row, later
        for point, weight in zip(task.points, task.weights, strict=True):
            total = total + weight * gradient(point.copy())
        return total if task.centre is None else total - task.centre


def plain(task: Task) -> AverageGradient:
    """The task itself; WireError for one that asks for more than average gradients."""
    if not isinstance(task, AverageGradient):
        raise WireError(f"Expected a question for average gradients, got {type(task).__name__}.")
    if not (task.user_smoothness is None and task.reference_items is None and task.smoothing is None):
        raise WireError("Expected a question for plain average gradients, got one that looks inside the loss.")
    return task
