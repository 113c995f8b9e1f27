"""Following a run through restarts of its coordinator: every event once, over whatever connection it came, in words."""

import time
from collections.abc import Callable, Iterator
from typing import Any

from quoron.federation.control import Control
from quoron_client.protocol.wire import GONE_AFTER
from quoron_privacy.errors import LedgerUnavailable, RunError, Unreachable, printable

LONGEST = 10.0  # seconds between two tries
_SHOWN = 20  # names in one line


class Paused(RunError):
    """A run was left as it is: its coordinator may not go on with it, or somebody has to decide."""

    exit_code = 4


class Gone(Unreachable):
    """Nobody answers, for longer than was to be waited."""

    exit_code = 5


def followed(
    control: Control,
    run: str,
    *,
    timeout: float,
    told: Callable[[str], None] = lambda why: None,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[dict[str, Any]]:
    """The events of `run` to the one of kind "ended" or "paused", as `Control.watch` but through every absence.

    A coordinator has `timeout` seconds to be there, at the beginning as after it has left, of which `told` hears;
    Gone afterwards.
    """
    last, gone = -1, -1.0  # round, and since when nobody answers
    shown: dict[str, Any] = {}  # what was awaited
    pause = 1.0
    while True:
        try:
            for event in control.watch(run):
                pause, gone = 1.0, -1.0
                kind = event.get("kind")
                if kind == "round":
                    if event["round"] <= last:
                        continue
                    last = event["round"]
                elif kind == "awaits":
                    if (told_before := event | {"left": None}) == shown:
                        continue
                    shown = told_before
                yield event
                if kind in ("ended", "paused"):
                    return
            raise Unreachable("The coordinator has left.")  # it ends a stream without an end when it leaves
        except (Unreachable, LedgerUnavailable) as error:
            now = clock()
            if gone < 0:
                gone = now
                if timeout:
                    told(f"the coordinator does not answer, trying again for {timeout:g} s: {error}")
            if now - gone + pause > timeout:
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
    public = event["public"]
    line = _round(event | public, event["messages"])
    if "min_cohort" in public:
        line += f", minimum cohort {public['min_cohort']}"
    if public.get("halted"):
        line += ", halted"
    if missing := public.get("missing"):
        line += f"; missing: {', '.join(missing[:_SHOWN])}" + (" and others" if len(missing) > _SHOWN else "")
    return line


def _round(event: dict[str, Any], asked: int) -> str:
    """Which round, whom it asks, and how many messages came where that is public; what they hold is not known."""
    line = f"round {event['round'] + 1} of at most {event['rounds']}: {asked} users asked"
    return line + (f", {event['answered']} messages came" if "answered" in event else "")


def _awaited(event: dict[str, Any]) -> str:
    """What a run waits for."""
    if event["what"] == "ledger":
        return f"paused: {event['error']}"
    if event["what"] == "clients":
        return f"awaits clients that come back after the coordinator's start, {_left(event)}{_connected(event)}"
    if event["what"] == "willing":
        counts = f"{event['willing']} of {event['members']} members have agreed, {event['needed']} are needed"
        return f"awaits clients that agree to take part, {_left(event)}: {counts}{_connected(event)}"
    if event["what"] == "users":
        there = f"awaits users: {event['active']} of {event['needed']} are active in population {event['group']}"
        return f"{there} ({event['away']} away, {event['retired']} retired); {_min_cohort(event['min_cohort'])}"
    return f"{_round(event, event['asked'])}, {_min_cohort(event['min_cohort'])}, {_left(event)}{_connected(event)}"


def _left(event: dict[str, Any]) -> str:
    """Until when, by the coordinator's clock alone where it says so."""
    return f"{event['left']} s left" if "left" in event else f"until {event['ends']}"


def _connected(event: dict[str, Any]) -> str:
    """How many clients are there, which tells nothing of who has answered."""
    return f"; {event['connected']} connected in the last {GONE_AFTER} s" if "connected" in event else ""


def _min_cohort(share: float | None) -> str:
    return "no minimum cohort is declared" if share is None else f"minimum cohort {share:g} of those asked"
