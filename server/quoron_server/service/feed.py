"""Public events of one run: everything from the first, then as they happen, to any number of watchers."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any

MOST_SHOWN = 100  # names in one line
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


def named(event: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """A round's event with the names of those who are missing, where that is public; `names` by slot, or none."""
    absent = event["public"].get("absent") if names else None
    if not absent:
        return event
    missing = list(dict.fromkeys(names[slot] for slot in absent))  # of a silo once
    return event | {"public": {**event["public"], "missing": missing}}


def missing_words(event: Mapping[str, Any] | None, unwilling: Sequence[str]) -> str:
    """Who was missing in a run that ended below its minimum cohort, for people.

    In its last round, if it had come to one.
    """
    if event is None:
        return f" Missing: {_listed(unwilling)}."
    public = event["public"]
    return f" {public['answered']} messages came; missing: {_listed(public.get('missing', ()))}."


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:MOST_SHOWN]) + (" and others" if len(names) > MOST_SHOWN else "")
