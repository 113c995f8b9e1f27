"""Runs that a coordinator carries out, how far each is, and who tells of their rounds."""

import asyncio
import math
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quoron_server.plan import RunPlan
from quoron_server.round_clock import PAUSE, opening
from quoron_server.rounds import RoundEvent
from quoron_server.service.attending import Gathering
from quoron_server.service.engine import GrpcEngine
from quoron_server.service.feed import Feed, named, public
from quoron_server.service.sessions import RunSession, Sessions
from quoron_server.specification import RunSpecification


@dataclass(slots=True, eq=False)
class Running:
    """A run that this coordinator carries out, or will once enough users are enrolled."""

    specification: RunSpecification
    plan: RunPlan
    feed: Feed = field(default_factory=Feed)
    engine: GrpcEngine | None = None
    task: "asyncio.Task[None] | None" = None
    cancelled: bool = False
    seated: bool = False  # its members are fixed: it goes on with them, wherever they are
    untold: list[dict[str, Any]] = field(default_factory=list)  # events of committed rounds whose time has not come
    moved: float = math.inf  # loop time at which it began, went on, or told of a round
    names: list[str] = field(default_factory=list)  # by slot, where who answers is public
    gathering: Gathering | None = None
    begun: bool = False  # somebody may have been asked, and everybody is charged

    def tell(self) -> None:
        """The feed hears of every committed round."""
        if self.untold:
            self.moved = asyncio.get_running_loop().time()
        while self.untold:
            self.feed.add(named(self.untold.pop(0), self.names))

    def stop(self) -> None:
        """Give up whatever it waits for."""
        for waits in (self.gathering, self.engine):
            if waits is not None:
                waits.stop()

    @property
    def name(self) -> str:
        """Of the run."""
        return self.specification.run


@dataclass(frozen=True, slots=True)
class Standing:
    """How far an open run is, as everybody may know."""

    run: str
    state: str  # waiting, running or paused
    done: int  # rounds that were told
    planned: int | None = None  # rounds, at most
    seconds: float | None = None  # of a round, with the pause behind it
    idle: float | None = None  # seconds since it last moved, of one that runs
    members: int | None = None
    connected: int | None = None  # of these
    min_cohort: float | None = None


def standing(run: Running, sessions: Sessions) -> Standing:
    """Of a run that is carried out."""
    wanted, session, moved = run.specification, sessions.runs.get(run.name), run.moved
    if session is not None:  # clients have their time to come back, and a round the time that it takes answers
        moved = max(moved, session.gathered, -math.inf if session.open is None else session.open.opened)
    idle = max(0.0, asyncio.get_running_loop().time() - moved)
    return Standing(
        run.name,
        "running",
        run.feed.rounds,
        run.plan.cost.rounds,
        (1 + PAUSE) * wanted.seconds,
        math.floor(idle),
        wanted.problem.users,
        None if session is None else session.count(sessions.here(session)),
        wanted.min_cohort,
    )


def published_at(session: RunSession, run: Running) -> float:
    """Loop time at which what the last round has brought may be told."""
    return opening(session.due, asyncio.get_running_loop().time(), run.specification.seconds)


async def until_published(run: Running, session: RunSession, stopping: asyncio.Event) -> None:
    """The end of a run is told on the schedule too, unless the coordinator is leaving."""
    with suppress(TimeoutError):
        async with asyncio.timeout_at(published_at(session, run)):
            await stopping.wait()
    run.tell()


@dataclass(slots=True, eq=False)
class FeedObserver:
    """An observer that tells the feed, from the run's thread."""

    run: Running
    session: RunSession
    loop: asyncio.AbstractEventLoop

    def started(self, plan: RunPlan) -> None:
        """Nothing to tell: the plan is public from the start."""

    def round_finished(self, event: RoundEvent) -> None:
        """After the round's commit. It is told when its time is over, which shows nothing of who answered."""
        self.loop.call_soon_threadsafe(self._keep, public(asdict(event)))

    def _keep(self, event: dict[str, Any]) -> None:
        self.run.untold.append(event)
        self.loop.call_at(published_at(self.session, self.run), self.run.tell)

    def finished(self, model: NDArray[np.float64]) -> None:
        """After the last commit; watchers hear of the end from the manager."""
