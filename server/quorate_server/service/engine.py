"""The engine of a federation: called from a run's own thread, answered by clients through the event loop.

engine = GrpcEngine(rooms, room, loop, problem=problem, seconds=30)
answers = engine.ask(question)
"""

import asyncio
import concurrent.futures
from dataclasses import dataclass

import numpy as np

from quorate_client.questions import (
    Answers,
    AverageGradient,
    LocalSGD,
    Question,
    RangeReport,
    SecondMoment,
    Task,
)
from quorate_protos.errors import RunError
from quorate_server.problem import Problem
from quorate_server.service.rooms import Room, Rooms

FAR = 1e9  # answers beyond this many times the largest honest coordinate are rejected, so that no sum overflows


class RunStopped(RunError):
    """The run was told to stop, by its operator or because the coordinator is leaving."""


@dataclass(slots=True, eq=False)
class GrpcEngine:
    """Asks the members of one room."""

    rooms: Rooms
    room: Room
    loop: asyncio.AbstractEventLoop
    problem: Problem
    seconds: float
    stopped: bool = False
    _pending: "concurrent.futures.Future[Answers] | None" = None

    def ask(self, question: Question) -> Answers:
        """One row an asked user, in cohort order; RunStopped after `stop`, from whichever thread."""
        shape = question.task.answer_shape(self.problem.dimension)
        coroutine = self.rooms.ask(self.room, question, shape=shape, seconds=self.seconds)
        self._pending = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        if self.stopped:
            self._pending.cancel()
        try:
            answers = self._pending.result()
        except concurrent.futures.CancelledError:
            raise RunStopped(f"Run {self.room.run} was stopped before round {question.round} was complete.") from None
        return Answers.checked(answers.values, answers.status, largest=FAR * honest(self.problem, question.task))

    def measured(self) -> dict[str, float]:
        """Of the last round, as messages of gRPC: bytes of the questions that were said and of the answers taken."""
        down, up = self.room.moved
        return {"measured_down": down, "measured_up": up}

    def stop(self) -> None:
        """Give up the open round, and every later one."""
        self.stopped = True
        if self._pending is not None:
            self._pending.cancel()


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
