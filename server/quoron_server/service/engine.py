"""The engine of a federation: called from a run's own thread, answered by clients through the event loop.

engine = GrpcEngine(sessions, session, loop, problem=problem, seconds=30)
answers = engine.ask(question)
"""

import asyncio
import concurrent.futures
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from operator import add

from quoron_client.protocol.questions import FAR, Answers, Question
from quoron_privacy.errors import RunError
from quoron_privacy.release import Sums
from quoron_protos.v1 import federation_pb2 as pb
from quoron_server.problem import Problem
from quoron_server.service.sessions import RunSession, Sessions


class RunStopped(RunError):
    """The run was stopped, by its operator or because the coordinator shuts down."""


@dataclass(slots=True, eq=False)
class GrpcEngine:
    """Asks the members of one run."""

    sessions: Sessions
    session: RunSession
    loop: asyncio.AbstractEventLoop
    problem: Problem
    seconds: float
    early_ends: bool = False
    note_agreed: Callable[[set[int]], None] | None = None  # gets the members who have agreed since the last call
    ready: Callable[[], None] = lambda: None  # raises while nobody may be counted as missing
    _noted: set[int] = field(default_factory=set)
    _pending: "concurrent.futures.Future[Answers] | None" = None

    def ask(self, question: Question) -> Answers | Sums:
        """One row an asked user, in cohort order; their sums, if silos have sent such. RunStopped after `stop`, from
        whichever thread."""
        answers = self.collect(question, question.task.answer_shape(self.problem.dimension))
        largest = FAR * question.task.honest(self.problem.bounds)
        found = Answers.checked(answers.values, answers.status, largest=largest, own=True)
        if (sums := self.session.summed) and question.reduction is not None:
            return reduce(add, sums, question.reduction.of(found.values, found.answered))
        return found.attended() if question.attended else found

    def collect(self, question: Question, shape: tuple[int, ...], row: pb.Row | None = None) -> Answers:
        """What came, of this shape, as `Sessions.ask` has it: nobody has looked at it."""
        self.ready()
        self.note()
        coroutine = self.sessions.ask(
            self.session, question, shape=shape, seconds=self.seconds, early_ends=self.early_ends, row=row
        )
        self._pending = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        if self.session.stopped:
            self._pending.cancel()
        try:
            answers = self._pending.result()
        except concurrent.futures.CancelledError:
            raise RunStopped(
                f"Run {self.session.run} was stopped before round {question.round} was complete."
            ) from None
        self.ready()
        self.note()
        return answers

    def note(self) -> None:
        """Store which members have agreed, before any question and each round's commit: a counted answer implies it.

        A client that comes back and does not hear so takes the run for one that has not begun, unless it was drawn and
        has answered: its charge would reveal that (docs/privacy/lifetime.md#ol1).
        """
        if self.note_agreed is None or len(self.session.agreed) == len(self._noted):  # nobody takes it back
            return
        new = set(self.session.agreed) - self._noted
        if new:
            self.note_agreed(new)
            self._noted |= new

    def note_of(self, user: int) -> None:
        """If a client that comes back has agreed in the open round."""
        if user in self.session.agreed and user not in self._noted:
            self.note()

    @property
    def last_asked(self) -> int:
        """As `rounds.Engine`."""
        return self.session.last_asked

    def measured(self) -> dict[str, float]:
        """Of the last round, as messages of gRPC: bytes of the questions that were said and of the answers taken."""
        down, up = self.session.moved
        return {"measured_down": down, "measured_up": up}

    def stop(self) -> None:
        """Give up the open round, and every later one."""
        self.session.stopped = True
        if self._pending is not None:
            self._pending.cancel()
