"""What a coordinator says of its runs, users and operators: a log for people and programs, and public events of a run.

    note("cancelled", run="summer", by="ada")    # "run summer was cancelled by ada", event "cancelled", run, by

Everything noted is planned or public: nothing of who answered, when, or what, nor of how many. The entries:
docs/operate.md#logs.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any

from quoron_privacy.errors import printable

_log = logging.getLogger("quoron")
_NOBODY = "nobody that gave a name"
_LONGEST, _SHOWN = 64, 16  # characters of a client's name, and of a fingerprint where there is none

MAX_SHOWN = 100  # names in one line
PRIVATE = ("diagnostics",)  # empty outside a simulation, and the seconds are 0 there

EVENTS: Mapping[str, str] = {  # the first word is the event's name
    "started": "%(software)s has started: %(where)s; %(runs)d runs have not ended",
    "leaving": "leaving",
    "enrolled": "user %(user)d enrolled in group %(group)s, as %(name)s",  # who is known and comes back is not noted
    "enrolled silo": "user %(user)d enrolled in group %(group)s, as %(name)s, with %(people)d people",
    "revoked": "%(clients)d clients are revoked, new among them: %(names)s",
    "submitted": "run %(run)s was submitted by %(by)s for group %(group)s, plan %(plan).12s",
    "refused": "what %(by)s submitted was refused: %(why)s",
    "began": "run %(run)s begins with %(users)d users, at most %(rounds)d rounds, %(done)d of them done",
    "resumed": "run %(run)s goes on with %(users)d users, at most %(rounds)d rounds, %(done)d of them done",
    "paused": "run %(run)s is paused: %(why)s",
    "ended": "run %(run)s has ended: %(how)s",
    "ended early": "run %(run)s has ended: %(how)s, %(why)s",  # it has no model, and nobody cancelled it
    "cancelled": "run %(run)s was cancelled by %(by)s",
    "limited": "group %(group)s was limited by %(by)s to %(limit)s",
    "charged": "another tool's %(run)s was charged by %(by)s to group %(group)s, with %(charge)s",
    "user": "%(action)s, said %(by)s: %(said)s",  # retired, back, forgotten, or with another key
    "copied": "the database was copied by %(by)s to %(file)s",
}
_WARNINGS = ("refused", "paused", "ended early")


def called(name: str, identity: str) -> str:
    """Return what a client is called in a log, on one line: its name, or the beginning of its key's fingerprint."""
    return printable(" ".join(name.split()))[:_LONGEST] or identity[:_SHOWN]


def note(event: str, *, shown: dict[str, str] | None = None, **fields: Any) -> None:
    """One line in the words of `EVENTS`, of `fields` and of what is `shown` beside them; JSON lines have the fields."""
    words, level = EVENTS[event], logging.WARNING if event in _WARNINGS else logging.INFO
    said = fields | {"by": fields.get("by") or _NOBODY} | (shown or {})
    _log.log(level, words, said, extra={"event": event.partition(" ")[0], "fields": fields}, stacklevel=2)


class EventStream:
    """Public events of one run: everything from the first, then as they happen, to any number of watchers.

    Append from the event loop, watch from any task of it.
    """

    def __init__(self, events: Iterable[Mapping[str, Any]] = ()) -> None:
        self._events: list[Mapping[str, Any]] = []
        self._last = -1  # round
        self._news = asyncio.Event()
        for event in events:
            self.add(event)

    def add(self, event: Mapping[str, Any]) -> None:
        """Append an event for every watcher. Leave out a round that is there already, after a resumption."""
        if event["kind"] == "round":
            if event["round"] <= self._last:
                return
            self._last = event["round"]
        self._events.append(event)
        self._news.set()
        self._news = asyncio.Event()

    @property
    def rounds(self) -> int:
        """Number of rounds in the stream."""
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


def listed(names: Sequence[str]) -> str:
    """Return the first names of many, for people."""
    return ", ".join(names[:MAX_SHOWN]) + (" and others" if len(names) > MAX_SHOWN else "")
