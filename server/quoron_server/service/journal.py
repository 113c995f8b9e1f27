"""What a coordinator says of its runs, users and operators: a log for people and programs, and public events of a run.

    journal.cancelled("summer", by="ada")    # "run summer was cancelled by ada", event "cancelled", run, by

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

MOST_SHOWN = 100  # names in one line
PRIVATE = ("diagnostics",)  # empty outside a simulation, and the seconds are 0 there


def called(name: str, identity: str) -> str:
    """What a client is called in a log, on one line: its name, or the beginning of its key's fingerprint."""
    return printable(" ".join(name.split()))[:_LONGEST] or identity[:_SHOWN]


def started(version: str, addresses: Mapping[str, str], taken_up: int) -> None:
    """Everything listens, for callers of a kind at an address each."""
    where = ", ".join(f"{callers} %s" for callers in addresses)
    fields: dict[str, Any] = {"software": version, **addresses, "runs": taken_up}
    _note("started", f"%s has started: {where}; %d runs have not ended", **fields)


def leaving() -> None:
    """Log that the server shuts down."""
    _note("leaving", "leaving")


def enrolled(user: int, group: str, name: str, people: int) -> None:
    """A new user, or so many of a silo, by its client's name; who is known and comes back is not noted."""
    words = "user %d enrolled in group %s, as %s" + (", with %d people" if people > 1 else "")
    _note("enrolled", words, user=user, group=group, name=name, people=people)


def revoked(number: int, names: str) -> None:
    """The list of revoked clients has changed."""
    _note("revoked", "%d clients are revoked, new among them: %s", clients=number, names=names)


def submitted(run: str, by: str, group: str, plan: str) -> None:
    """An operator has asked for a run, which was taken on."""
    words = "run %s was submitted by %s for group %s, plan %.12s"
    _note("submitted", words, run=run, by=by or _NOBODY, group=group, plan=plan)


def refused(by: str, why: str) -> None:
    """What an operator asked for was not taken on."""
    _note("refused", "what %s submitted was refused: %s", level=logging.WARNING, by=by or _NOBODY, why=why)


def begun(run: str, *, again: bool, users: int, rounds: int, done: int) -> None:
    """A run begins, or goes on after a restart, with so many rounds committed."""
    event, doing = ("resumed", "goes on") if again else ("began", "begins")
    words = f"run %s {doing} with %d users, at most %d rounds, %d of them done"
    _note(event, words, run=run, users=users, rounds=rounds, done=done)


def paused(run: str, why: str) -> None:
    """A run is left as it is."""
    _note("paused", "run %s is paused: %s", level=logging.WARNING, run=run, why=why)


def ended(run: str, how: str, why: str) -> None:
    """A run asks no more; `why` where it has no model and nobody cancelled it."""
    words, level = ("run %s has ended: %s, %s", logging.WARNING) if why else ("run %s has ended: %s", logging.INFO)
    _note("ended", words, level=level, run=run, how=how, why=why)


def cancelled(run: str, by: str) -> None:
    """An operator has ended a run."""
    _note("cancelled", "run %s was cancelled by %s", run=run, by=by or _NOBODY)


def limited(group: str, by: str, limit: str) -> None:
    """An operator has set a limit."""
    _note("limited", "group %s was limited by %s to %s", group=group, by=by or _NOBODY, limit=limit)


def charged(run: str, by: str, group: str, charge: str) -> None:
    """An operator has entered what another tool spends."""
    words = "another tool's %s was charged by %s to group %s, with %s"
    _note("charged", words, run=run, by=by or _NOBODY, group=group, charge=charge)


def user(action: str, by: str, said: str) -> None:
    """Something was said of a user: that it is retired, away, back, replaced or forgotten, or has another key."""
    _note("user", "%s, said %s: %s", action=action, by=by or _NOBODY, said=said)


def copied(by: str, file: str) -> None:
    """An operator has had the database copied."""
    _note("copied", "the database was copied by %s to %s", by=by or _NOBODY, file=file)


def _note(event: str, words: str, *, level: int = logging.INFO, **fields: Any) -> None:
    """`words` with the first of `fields`, in their order; where lines are JSON, all of them beside `event`."""
    shown = list(fields.values())[: words.count("%")]
    _log.log(level, words, *shown, extra={"event": event, "fields": fields}, stacklevel=2)


class Feed:
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
