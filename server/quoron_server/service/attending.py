"""What a run waits for: users to enrol, members who agree before anybody is asked, and answers.

    gathering = Gathering(specification, session)
    await gathering.wait(begins)     # until enough members have agreed; BelowMinCohort when their time is over

All of it is a function of connections, terms and owners' limits, never of an answer:
docs/privacy/public-participation.md.
"""

import asyncio
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from quoron_client.protocol.questions import Status
from quoron_privacy.errors import BelowMinCohort
from quoron_server.service.engine import RunStopped
from quoron_server.service.feed import MOST_SHOWN
from quoron_server.service.sessions import RunSession, look
from quoron_server.specification import RunSpecification, willing_needed


@dataclass(slots=True, eq=False)
class Gathering:
    """The members of a run until enough of them are connected and have agreed; nothing is charged before."""

    wanted: RunSpecification
    session: RunSession
    until: float = 0.0  # loop time to which they may
    over: bool = False  # enough have, or the run has begun before
    willing: int = 0  # have agreed, when that was last looked at: when each does so may tell how long its file is
    _left: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def needed(self) -> int:
        """So many of them."""
        return willing_needed(self.wanted)

    def stop(self) -> None:
        """Wait no longer: the run does not begin now."""
        self._left.set()

    async def wait(self, begins: float) -> None:
        """From loop time `begins` on for as long as was declared. BelowMinCohort afterwards; RunStopped after `stop`.

        When a run begins depends on who is connected and has agreed, looked at from time to time unless early ends are
        accepted.
        """
        loop, wanted = asyncio.get_running_loop(), self.wanted
        self.until = begins + wanted.waiting
        pause = look(wanted.seconds, early_ends=wanted.early_ends)
        while not self._left.is_set():
            self.willing = self.session.count(self.session.present)
            self.over = self.over or self.willing >= self.needed
            if self.over:
                return
            if loop.time() >= self.until:
                raise BelowMinCohort(
                    f"No minimum cohort of willing clients: {self.willing} of {len(self.session.members)} were "
                    f"connected and had agreed to take part after {wanted.waiting:g} seconds, {self.needed} were "
                    "needed. Nobody was asked and nothing was charged. See that clients run and that their owners' "
                    "limits leave room, then submit another run."
                )
            with suppress(TimeoutError):
                await asyncio.wait_for(self._left.wait(), min(pause, self.until - loop.time()))
        raise RunStopped(f"Run {wanted.run} was stopped before it began.")

    def figures(self) -> dict[str, int]:
        """How it stands, as whoever watches is told."""
        return {"willing": self.willing, "needed": self.needed, "members": len(self.session.members)}

    def unwilling(self) -> list[int]:
        """Members who are not here, or have not agreed; as many as are named."""
        return sorted(self.session.users - self.session.present)[: MOST_SHOWN + 1]


def users_awaited(wanted: RunSpecification, there: Mapping[str, int]) -> dict[str, Any]:
    """What a run waits for that has too few users, as whoever watches is told; `there` by state."""
    figures = dict(there) | {"needed": wanted.problem.users, "group": wanted.group}
    return {"kind": "awaits", "what": "users", **figures, "min_cohort": wanted.min_cohort}


def awaited(
    wanted: RunSpecification, session: RunSession, gathering: Gathering | None, connected: int, *, rounds: int
) -> dict[str, Any] | None:
    """What a run waits for whose members are known: that they agree, come back, or answer. None between two rounds."""
    now, here = asyncio.get_running_loop().time(), {"connected": connected}
    if gathering is not None and not gathering.over:
        return {"kind": "awaits", "what": "willing", **gathering.figures(), **here, **_ends(gathering.until - now)}
    if session.open is None:
        left = session.gathered - now
        return {"kind": "awaits", "what": "clients", **here, **_ends(left)} if left > 0 else None
    question = session.open.question
    figures = {"round": question.round, "rounds": rounds, "asked": question.messages, **here}
    if question.attended:  # who answers, and when, is public: docs/privacy/public-participation.md
        figures["answered"] = int(np.count_nonzero(session.open.status != Status.MISSING))
    ends = _ends(session.open.closes - now)
    return {"kind": "awaits", "what": "answers", **figures, **ends, "min_cohort": wanted.min_cohort}


def _ends(seconds: float) -> dict[str, Any]:
    """The time of day so far from now, and the seconds until then, for whoever has another clock."""
    ends = (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat(timespec="seconds")
    return {"ends": ends, "left": max(0, math.ceil(seconds))}
