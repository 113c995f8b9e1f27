"""Public events of one run: everything from the first, then as they happen, to any number of watchers."""

import asyncio
import math
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quoron_server.plan import Plan
from quoron_server.round_clock import PAUSE, opening
from quoron_server.rounds import RoundEvent
from quoron_server.service.engine import GrpcEngine
from quoron_server.service.sessions import RunSession, Sessions
from quoron_server.specification import RunSpecification

PRIVATE = ("diagnostics",)  # empty outside a simulation, and the seconds are 0 there


class Feed:
    """Append from the event loop, watch from any task of it."""

    def __init__(self, events: Iterable[Mapping[str, Any]] = ()) -> None:
        self._events: list[Mapping[str, Any]] = []
        self._last = -1  # round
        self._news = asyncio.Event()
        for event in events:
            self.add(event)

    def add(self, event: Mapping[str, Any]) -> None:
        """One more event, told to every watcher. A round that is told already, after a resumption, is left out."""
        if event["kind"] == "round":
            if event["round"] <= self._last:
                return
            self._last = event["round"]
        self._events.append(event)
        self._news.set()
        self._news = asyncio.Event()

    @property
    def rounds(self) -> int:
        """How many were told."""
        return self._last + 1

    async def watch(self) -> AsyncIterator[Mapping[str, Any]]:
        """Events from the first to the one of kind "ended", or "paused": nothing more comes from this coordinator."""
        position = 0
        while True:
            news = self._news
            while position < len(self._events):
                event = self._events[position]
                position += 1
                yield event
                if event["kind"] in ("ended", "paused"):
                    return
            await news.wait()


def public(event: Mapping[str, Any]) -> dict[str, Any]:
    """A round's event for everyone: without what is a function of private data, but for what a simulation measured."""
    found = event.get("diagnostics", {}).items()
    measured = {key: value for key, value in found if "measured_" in key or key == "excess_risk"}
    return {"kind": "round"} | {key: value for key, value in event.items() if key not in PRIVATE} | measured


@dataclass(slots=True, eq=False)
class Running:
    """A run that this coordinator carries out, or will once enough users are enrolled."""

    specification: RunSpecification
    plan: Plan
    feed: Feed = field(default_factory=Feed)
    engine: GrpcEngine | None = None
    task: "asyncio.Task[None] | None" = None
    cancelled: bool = False
    seated: bool = False  # its members are fixed: it goes on with them, wherever they are
    untold: list[dict[str, Any]] = field(default_factory=list)  # events of committed rounds whose time has not come
    moved: float = math.inf  # loop time at which it began, went on, or told of a round

    def tell(self) -> None:
        """The feed hears of every committed round."""
        if self.untold:
            self.moved = asyncio.get_running_loop().time()
        while self.untold:
            self.feed.add(self.untold.pop(0))

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
    idle: float | None = None  # seconds since it opened or told of a round, of one that runs
    members: int | None = None
    connected: int | None = None  # of these
    quorum: float | None = None


def standing(run: Running, sessions: Sessions) -> Standing:
    """Of a run that is carried out."""
    wanted, session, idle = run.specification, sessions.runs.get(run.name), 0.0
    if session is not None and session.longest:  # before its first round it waits for people
        moved = run.moved if session.open is None else max(run.moved, session.open.opened)
        idle = max(0.0, asyncio.get_running_loop().time() - moved)
    return Standing(
        run.name,
        "running",
        run.feed.rounds,
        run.plan.cost.rounds,
        (1 + PAUSE) * wanted.seconds,
        math.floor(idle),
        wanted.problem.users,
        None if session is None else len(sessions.here(session)),
        wanted.quorum,
    )


def published_at(session: RunSession, run: Running) -> float:
    """Loop time at which what the last round has brought may be told."""
    return opening(session.due, asyncio.get_running_loop().time(), run.specification.seconds)


@dataclass(slots=True, eq=False)
class FeedObserver:
    """An observer that tells the feed, from the run's thread."""

    run: Running
    session: RunSession
    loop: asyncio.AbstractEventLoop

    def started(self, plan: Plan) -> None:
        """Nothing to tell: the plan is public from the start."""

    def round_finished(self, event: RoundEvent) -> None:
        """After the round's commit. It is told when its time is over, which shows nothing of who answered."""
        self.loop.call_soon_threadsafe(self._keep, public(asdict(event)))

    def _keep(self, event: dict[str, Any]) -> None:
        self.run.untold.append(event)
        self.loop.call_at(published_at(self.session, self.run), self.run.tell)

    def finished(self, model: NDArray[np.float64]) -> None:
        """After the last commit; watchers hear of the end from the manager."""
