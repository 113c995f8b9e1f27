"""How large an answer may be before it is taken out, from public constants alone: the same on every real engine."""

import numpy as np

from quoron_client.questions import AverageGradient, LocalSGD, RangeReport, SecondMoment, Task
from quoron_server.problem import Problem

FAR = 1e9  # answers beyond this many times the largest honest coordinate are rejected, so that no sum overflows


def honest(problem: Problem, task: Task) -> float:
    """The size of an honest answer's coordinates up to a moderate factor, from public constants alone."""
    if isinstance(task, SecondMoment):
        return problem.feature_norm or 1.0
    if isinstance(task, LocalSGD):
        return problem.radius
    if isinstance(task, RangeReport):
        return 1.0
    if isinstance(task, AverageGradient):
        centre = 0.0 if task.centre is None else float(np.linalg.norm(task.centre))
        return problem.lipschitz * float(np.abs(task.weights).sum()) + centre
    return float(np.linalg.norm(task.centre)) + 1e4 * task.radius  # noise of a report is below 10⁴ radii
