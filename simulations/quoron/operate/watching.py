"""Following a run through restarts of its coordinator: every event once, whatever connection it came over."""

import time
from collections.abc import Callable, Iterator
from typing import Any

from quoron.operate.control import Control
from quoron_privacy.errors import LedgerUnavailable, RunError, Unreachable

LONGEST = 10.0  # seconds between two tries


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
