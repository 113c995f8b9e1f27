"""Following a run through restarts of its coordinator: every event once, over whatever connection it came, in words."""

import time
from collections.abc import Callable, Iterator
from typing import Any

from quoron.operate.control import Control
from quoron_client.protocol.wire import GONE_AFTER
from quoron_privacy.errors import LedgerUnavailable, RunError, Unreachable, printable

LONGEST = 10.0  # seconds between two tries
_SHOWN = 20  # names in one line


class Paused(RunError):
    """A run was left as it is: its coordinator may not go on with it, or somebody has to decide."""

    exit_code = 4


class Gone(Unreachable):
    """Nobody answers, for longer than there was patience."""

    exit_code = 5


def followed(
    control: Control,
    run: str,
    *,
    patience: float,
    told: Callable[[str], None] = lambda why: None,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[dict[str, Any]]:
    """The events of `run` to the one of kind "ended" or "paused", as `Control.watch` but through every absence.

    A coordinator that was there has `patience` seconds to come back, of which `told` hears; Gone afterwards, or
    at once if nobody was there at the beginning.
    """
    last, gone = -1, -1.0  # round, and since when nobody answers
    shown: dict[str, Any] = {}  # what was awaited
    pause, here = 1.0, False
    while True:
        try:
            for event in control.watch(run):
                pause, here, gone = 1.0, True, -1.0
                kind = event.get("kind")
                if kind == "round":
                    if event["round"] <= last:
                        continue
                    last = event["round"]
                elif kind == "awaits":
                    if event == shown:
                        continue
                    shown = event
                yield event
                if kind in ("ended", "paused"):
                    return
            raise Unreachable("The coordinator has left.")  # it ends a stream without an end when it leaves
        except (Unreachable, LedgerUnavailable) as error:
            now = clock()
            if gone < 0:
                gone = now
                if here:
                    told(f"the coordinator does not answer, trying again for {patience:g} s: {error}")
            if not here or now - gone + pause > patience:
                raise Gone(str(error)) from None
        sleep(pause)
        pause = min(2 * pause, LONGEST)


def words(event: dict[str, Any]) -> str:
    """An event of `watch` as a line for people, whatever the coordinator put into it."""
    return printable(" ".join(_words(event).split()))


def _words(event: dict[str, Any]) -> str:
    if event["kind"] == "paused":
        return "paused" + (f": {event['error']}" if event.get("error") else "")
    if event["kind"] == "ended":
        return f"{event['how']}" + (f": {event['error']}" if event.get("error") else "")
    if event["kind"] == "awaits":
        return _awaited(event)
    public = " ".join(f"{key}={value}" for key, value in event["public"].items() if not isinstance(value, list))
    public = public.replace("answered=", "messages=")  # whoever counts them knows nothing of what is in them
    missing = event["public"].get("missing")
    if missing:
        public += f"; missing: {', '.join(missing[:_SHOWN])}" + (" and others" if len(missing) > _SHOWN else "")
    return f"round {event['round'] + 1} of at most {event['rounds']}: {event['messages']} users asked {public}".rstrip()


def _awaited(event: dict[str, Any]) -> str:
    """What a run waits for."""
    if event["what"] == "ledger":
        return f"paused: {event['error']}"
    if event["what"] == "clients":
        words = f"awaits clients, who have until {event['ends']} to come back after the coordinator's start"
        return words + _connected(event)
    if event["what"] == "willing":
        counts = f"{event['willing']} of {event['members']} members have agreed, {event['needed']} are needed"
        return f"awaits clients that agree to take part, until {event['ends']}: {counts}{_connected(event)}"
    if event["what"] == "users":
        there = f"awaits users: {event['active']} of {event['needed']} are active in group {event['group']}"
        return f"{there} ({event['away']} away, {event['retired']} retired); {_quorum(event['quorum'])}"
    return (
        f"awaits answers in round {event['round'] + 1} of at most {event['rounds']}: {event['asked']} users asked, "
        f"until {event['ends']}; {_quorum(event['quorum'])}{_connected(event)}"
    )


def _connected(event: dict[str, Any]) -> str:
    """How many clients are there, which tells nothing of who has answered."""
    return f"; {event['connected']} connected in the last {GONE_AFTER} s" if "connected" in event else ""


def _quorum(share: float | None) -> str:
    return "no quorum is declared" if share is None else f"quorum {share:g} of those asked"
