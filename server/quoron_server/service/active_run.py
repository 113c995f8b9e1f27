"""Active runs of a coordinator: their engine, the wait for willing clients, their progress and their events.

engine = GrpcEngine(sessions, session, loop, problem=problem, seconds=30)
answers = engine.ask(question)      # from a run's own thread; clients answer through the event loop
"""

import asyncio
import concurrent.futures
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from quoron_client.protocol.questions import FAR, Answers, Question, Status
from quoron_privacy.errors import BelowMinCohort, RunError
from quoron_privacy.release import Sums
from quoron_protos.v1 import federation_pb2 as pb
from quoron_server.plan import RunPlan
from quoron_server.problem import Problem
from quoron_server.rounds import PAUSE, Observer, RoundEvent, opening
from quoron_server.service.event_log import MAX_SHOWN, EventStream, named, public
from quoron_server.service.sessions import RunSession, Sessions, poll_seconds
from quoron_server.specification import RunSpecification


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
    note_agreed: Callable[[set[int]], None] | None = None  # receives the members that have agreed since the last call
    _noted: set[int] = field(default_factory=set)
    _pending: "concurrent.futures.Future[Answers] | None" = None

    def ask(self, question: Question) -> Answers | Sums:
        """Return a row for each asked user, in cohort order, or sums if silos have sent them. Raises RunStopped after
        `stop` from any thread."""
        answers = self.collect(question, question.task.answer_shape(self.problem.dimension))
        largest = FAR * question.task.honest(self.problem.bounds)
        found = Answers.checked(answers.values, answers.status, largest=largest, own=True)
        if (sums := self.session.summed) and question.reduction is not None:
            return reduce(add, sums, question.reduction.of(found.values, found.answered))
        return found.attended() if question.attended else found

    def collect(self, question: Question, shape: tuple[int, ...], row: pb.Reduction | None = None) -> Answers:
        """Return the received answers, of this shape, as `Sessions.ask` does, unchecked."""
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
        self.note()
        return answers

    def note(self) -> None:
        """Store which members have agreed, before every question and every commit of a round.

        A reconnected client whose consent is not reported takes the run for one that has not begun, unless it was
        sampled and has answered: its charge would reveal that (docs/privacy/lifetime.md#ol1).
        """
        if self.note_agreed is None or len(self.session.agreed) == len(self._noted):  # consent is never withdrawn
            return
        new = set(self.session.agreed) - self._noted
        if new:
            self.note_agreed(new)
            self._noted |= new

    def note_of(self, user: int) -> None:
        """Store the consent of a reconnected client, if it has agreed in the open round."""
        if user in self.session.agreed and user not in self._noted:
            self.note()

    @property
    def last_asked(self) -> int:
        """As `rounds.Engine`."""
        return self.session.last_asked

    def measured(self) -> dict[str, float]:
        """Return the bytes of the last round's questions and accepted answers, as messages of gRPC."""
        down, up = self.session.moved
        return {"measured_down": down, "measured_up": up}

    def stop(self) -> None:
        """Cancel the open round, and every later one."""
        self.session.stopped = True
        if self._pending is not None:
            self._pending.cancel()


def _ends(seconds: float) -> dict[str, Any]:
    """Return the time of day of a deadline, and the seconds until then, for readers with another clock."""
    ends = (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat(timespec="seconds")
    return {"ends": ends, "left": max(0, math.ceil(seconds))}


@dataclass(slots=True, eq=False)
class ActiveRun(Observer):
    """A run that this coordinator carries out, or will carry out once enough users are enrolled.

    It waits until enough members are connected and have agreed; nothing is charged before. As an observer of its own
    rounds it publishes them on the schedule, which does not depend on who answered.
    """

    specification: RunSpecification
    plan: RunPlan
    feed: EventStream = field(default_factory=EventStream)
    session: RunSession | None = None
    engine: GrpcEngine | None = None
    task: "asyncio.Task[None] | None" = None
    cancelled: bool = False
    seated: bool = False  # its members are fixed, connected or not
    unpublished: list[dict[str, Any]] = field(default_factory=list)  # events of committed rounds that are not due yet
    moved: float = math.inf  # loop time at which it began, was resumed, or published a round
    names: list[str] = field(default_factory=list)  # by slot, where who answers is public
    begun: bool = False  # members may have been asked, and all are charged
    until: float | None = None  # loop time of the deadline for members to agree, while they are waited for
    willing: int = 0  # members that had agreed at the last poll: exact times may reveal how long files are
    _stopped: asyncio.Event = field(default_factory=asyncio.Event)
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.specification.run

    @property
    def needed(self) -> int:
        """Members who have to agree before anybody is asked: the minimum cohort's share of all, ⌈q n⌉; 0 without."""
        share = self.specification.min_cohort
        return 0 if share is None else math.ceil(Fraction(repr(share)) * self.specification.problem.users)

    async def gather(self, session: RunSession, begins: float, *, over: bool = False) -> None:
        """Wait until enough members have agreed, from loop time `begins` on as long as declared. Raises BelowMinCohort
        then; RunStopped after `stop`. It is `over` at once for a run that has begun before.

        The beginning of a run depends on who is connected and has agreed, polled once a second unless early ends are
        accepted. The wait is a function of connections, terms and owners' limits, never of an answer:
        docs/privacy/public-participation.md.
        """
        wanted = self.specification
        self.until = begins + wanted.waiting
        pause = poll_seconds(wanted.seconds, early_ends=wanted.early_ends)
        while not self._stopped.is_set():
            self.willing = session.count(session.present)
            if over or self.willing >= self.needed:
                self.until = None
                return
            if self._loop.time() >= self.until:
                raise BelowMinCohort(
                    f"No minimum cohort of willing clients: {self.willing} of {len(session.members)} were connected "
                    f"and had agreed to take part after {wanted.waiting:g} seconds, {self.needed} were needed. Nobody "
                    "was asked and nothing was charged. See that clients run and that their owners' limits leave room, "
                    "then submit another run."
                )
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopped.wait(), min(pause, self.until - self._loop.time()))
        raise RunStopped(f"Run {self.name} was stopped before it began.")

    def unwilling(self) -> list[int]:
        """Return members that are not connected or have not agreed; as many as are named."""
        session = self.session
        return [] if session is None else sorted(session.users - session.present)[: MAX_SHOWN + 1]

    def stop(self) -> None:
        """Cancel what the run waits for: it does not begin, or go on, now."""
        self._stopped.set()
        if self.engine is not None:
            self.engine.stop()

    def round_finished(self, event: RoundEvent) -> None:
        """Queue a committed round, from the run's own thread."""
        self._loop.call_soon_threadsafe(self._keep, public(asdict(event)))

    def _keep(self, event: dict[str, Any]) -> None:
        self.unpublished.append(event)
        self._loop.call_at(self._published_at(), self.publish)

    def _published_at(self) -> float:
        """Return the loop time at which the result of the last round may be published."""
        due = -math.inf if self.session is None else self.session.due
        return opening(due, self._loop.time(), self.specification.seconds)

    def publish(self) -> None:
        """Add the committed rounds to the feed."""
        if self.unpublished:
            self.moved = self._loop.time()
        while self.unpublished:
            self.feed.add(named(self.unpublished.pop(0), self.names))

    async def until_published(self, stopping: asyncio.Event) -> None:
        """Wait for the schedule to publish the end of the run, unless the coordinator shuts down."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self._published_at()):
                await stopping.wait()
        self.publish()

    def awaited(self, sessions: Sessions) -> dict[str, Any] | None:
        """Return the public event of a wait for consent, reconnections or answers; None between two rounds."""
        wanted, session, now = self.specification, self.session, self._loop.time()
        if session is None:
            return None
        here = {"connected": session.count(sessions.here(session))}
        if self.until is not None:
            here |= {"willing": self.willing, "needed": self.needed, "members": len(session.members)}
            return {"kind": "awaits", "what": "willing", **here, **_ends(self.until - now)}
        if session.open is None:
            left = session.gathered - now
            return {"kind": "awaits", "what": "clients", **here, **_ends(left)} if left > 0 else None
        question = session.open.question
        figures = {"round": question.round, "rounds": self.plan.cost.rounds, "asked": question.messages, **here}
        if question.attended:  # who answers, and when, is public: docs/privacy/public-participation.md
            figures["answered"] = int(np.count_nonzero(session.open.status != Status.MISSING))
        ends = _ends(session.open.closes - now)
        return {"kind": "awaits", "what": "answers", **figures, **ends, "min_cohort": wanted.min_cohort}

    def standing(self, sessions: Sessions) -> Mapping[str, float | None]:
        """Return the public progress of a run that is carried out, by the names of metrics."""
        wanted, session, moved = self.specification, self.session, self.moved
        if session is not None:  # not before clients have had time to reconnect, and a round its time for answers
            moved = max(moved, session.gathered, -math.inf if session.open is None else session.open.opened)
        return {
            "run_rounds_done": self.feed.rounds,
            "run_rounds_planned": self.plan.cost.rounds,
            "run_round_seconds": (1 + PAUSE) * wanted.seconds,
            "run_idle_seconds": math.floor(max(0.0, self._loop.time() - moved)),
            "run_members": wanted.problem.users,
            "run_members_connected": None if session is None else session.count(sessions.here(session)),
            "run_min_cohort": wanted.min_cohort,
        }
