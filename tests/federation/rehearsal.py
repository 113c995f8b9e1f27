"""Where faults are rehearsed: a coordinator that runs, its clients and operator, and what is scraped of it.

The world is small: twenty clients in one process, rounds of a minute whose clock is put forward where time has to pass.
"""

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from federation.crowd import (
    Answering,
    Honest,
    Peer,
    coordinator,
    crowd,
    fetched,
    put_clock_forward,
    specification,
    until,
)
from quoron.federation.control import Control
from quoron_server.service import Coordinator, tokens

NAME, USERS, SECONDS = "one-pass-dp-sgd", 20, 60.0
ROUND = 1.1 * SECONDS
Shot = dict[str, float]  # value by series, as it was scraped; without any but `up` where nobody answers
Rehearsal = Callable[["Scene"], Awaitable[None]]
REHEARSALS: dict[str, Rehearsal] = {}


def rehearsal(fault: str) -> Callable[[Rehearsal], Rehearsal]:
    """Of a line of the runbook."""

    def named(function: Rehearsal) -> Rehearsal:
        REHEARSALS[fault] = function
        return function

    return named


@dataclass
class Scene:
    """A coordinator with its clients, its operator, and what was scraped so far."""

    folder: Path
    patch: pytest.MonkeyPatch
    changes: dict[str, Any] = field(default_factory=dict)
    running: Coordinator = field(init=False)
    peers: list[Peer] = field(default_factory=list)
    well: Shot = field(default_factory=dict)
    faulty: list[tuple[float, Shot]] = field(default_factory=list)  # seconds since the fault
    mended: Shot = field(default_factory=dict)
    ahead: float = 0.0  # of this machine's own clock
    _served: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)
    _joined: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)

    async def serve(self) -> None:
        self.running = await self._served.enter_async_context(coordinator(self.folder, metrics="0", **self.changes))
        self.running.metrics._clock = lambda: time.time() + self.ahead

    async def leave(self) -> None:
        await self._joined.aclose()
        await self._served.aclose()

    async def join(self, answering: Answering | None = None) -> None:
        """All clients enrol and are at work, honestly unless told otherwise."""
        answering = answering or Honest.of(USERS)
        for peer in (peers := await self._joined.enter_async_context(crowd(self.running.listen, USERS))):
            self._joined.callback(asyncio.create_task(peer.work(answering, 99)).cancel)
        self.peers = peers

    async def submit(self, run: str = "trial", **changes: Any) -> None:
        wanted = specification(NAME, run, **{"seconds": SECONDS, "early_ends": False, **changes})
        await self.running.scheduler.submit(wanted.as_text(), by="ada")

    def is_open(self, run: str = "trial") -> bool:
        """Whether a round of the run takes answers."""
        session = self.running.sessions.runs.get(run)
        return session is not None and session.open is not None

    async def asked(self, run: str = "trial") -> None:
        await until(lambda: self.is_open(run))

    async def begun(self, **changes: Any) -> None:
        """What is well: a run in its first round, whose clients are here."""
        await self.serve()
        await self.join()
        await self.submit(**changes)
        await self.asked()
        self.well = await self.scraped()

    async def restarted(self) -> None:
        """The coordinator and its clients are back, and the run goes on."""
        await self.leave()
        await self.serve()
        await self.join()
        await self.asked()

    async def two_rounds(self) -> None:
        """What is told over two rounds of the fault, whatever goes on meanwhile."""
        for passed in (0.0, SECONDS, 2 * SECONDS):
            put_clock_forward(passed - (self.faulty[-1][0] if self.faulty else 0.0))
            self.faulty.append((passed, await self.scraped()))

    async def stays(self) -> None:
        """The same over two rounds."""
        self.faulty.append((0.0, await self.scraped()))

    async def scraped(self) -> Shot:
        """What Prometheus would have: times of day are told by how far they are from now."""
        try:
            found = await fetched(str(self.running.metrics_address), "GET /metrics HTTP/1.1\r\nHost: hub\r\n\r\n")
        except OSError:
            return {"up": 0.0}
        head, _, body = found.partition("\r\n\r\n")
        assert head.startswith("HTTP/1.1 200 OK"), head
        series, now = dict(re.findall(r"^(\w+(?:\{.*\})?) (\S+)$", body, flags=re.MULTILINE)), time.time()
        shot = {name: float(value) - (now if _is_time(name) else 0.0) for name, value in series.items()}
        return {"up": 1.0} | shot

    @contextlib.asynccontextmanager
    async def operator(self, token: str | None = None) -> AsyncIterator[Callable[..., Awaitable[Any]]]:
        """An operator's calls, with a good token unless another is given."""
        if token is None:
            token = tokens.add(self.folder / "tokens.json", name=f"ada-{time.monotonic_ns()}", role="operator")
        with Control(self.running.control, token, insecure=True) as control:
            yield lambda command, **named: asyncio.to_thread(control.call, command, **named)

    @property
    def url(self) -> str:
        return f"sqlite:///{self.folder}/coordinator.sqlite"


def _is_time(series: str) -> bool:
    return series in ("quoron_clock_seconds", "quoron_start_time_seconds")
