"""Public events of one run: everything from the first, then as they happen, to any number of watchers."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quoron_server.plan import Plan
from quoron_server.rounds import RoundEvent

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
class FeedObserver:
    """An observer in the run's thread, by which the event loop hears of every committed round, as everybody may."""

    loop: asyncio.AbstractEventLoop
    keep: Callable[[dict[str, Any]], None]  # in the loop

    def started(self, plan: Plan) -> None:
        """Nothing to tell: the plan is public from the start."""

    def round_finished(self, event: RoundEvent) -> None:
        """After the round's commit."""
        self.loop.call_soon_threadsafe(self.keep, public(asdict(event)))

    def finished(self, model: NDArray[np.float64]) -> None:
        """After the last commit; watchers hear of the end from the manager."""
