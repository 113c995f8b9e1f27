"""What operators and auditors may read of the runs, from the database; each read once more over a new connection."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from quoron_protos.errors import ConfigError, LedgerUnavailable, RunError
from quoron_server.database import Database
from quoron_server.ledger import Ledger
from quoron_server.population_ledger import PopulationLedger
from quoron_server.registry import OPEN, Registry, RunRow
from quoron_server.service.feed import Feed, public
from quoron_server.specification import RunSpecification, make_plan

T = TypeVar("T")


class UnknownRun(ConfigError):
    """There is no run of that name."""


class Records:
    """Reads. Methods raise UnknownRun, and LedgerUnavailable while the database is away."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._registry, self._population = Registry(database), PopulationLedger(database)
        self.paused: dict[str, str] = {}  # by run: why this coordinator leaves it as it is, though it has not ended

    async def status(self, run: str) -> dict[str, Any]:
        """State of one run; an error says why it failed, or why it is paused."""
        return self._told(await self._row(run))

    async def runs(self) -> list[dict[str, Any]]:
        """State of every run, in order of submission."""
        return [self._told(row) for row in await patiently(self._registry.runs)]

    async def plan(self, run: str) -> dict[str, Any]:
        """The plan of a run."""
        row = await self._row(run)
        plan = await asyncio.to_thread(make_plan, RunSpecification.parse(row.specification))
        return plan.as_json()

    async def model(self, run: str) -> NDArray[np.float64]:
        """The released model of a complete run, shape (d,); RunError before."""
        row = await self._row(run)
        if row.state != "complete":
            raise RunError(f"Expected run {run} to be complete, got state {row.state}. Watch it with `quoron watch`.")
        return await patiently(lambda: Ledger.within(self._database, run).model)

    async def ledger(self, run: str) -> dict[str, Any]:
        """What a run has spent and released; without a name, the population's lifetime ledger."""
        if not run:
            exported: dict[str, Any] = json.loads(await patiently(self._population.export))
            return exported
        row = await self._row(run)
        return await patiently(lambda: self._spent(row))

    async def feed(self, run: str) -> Feed:
        """The public events of a run that has ended, or that nobody carries out now."""
        row = await self._row(run)
        feed = Feed(await patiently(lambda: self.events(run)))
        if row.state in OPEN:
            feed.add({"kind": "paused", "error": self._error(row)})
        else:
            feed.add({"kind": "ended", "how": row.state, "error": row.error})
        return feed

    def events(self, run: str) -> list[dict[str, Any]]:
        """Committed rounds, as everybody may see them; blocks."""
        if not Ledger.begun(self._database, run):
            return []
        return [public(event) for event in Ledger.within(self._database, run).events()]

    async def _row(self, run: str) -> RunRow:
        row = await patiently(lambda: self._registry.run(run))
        if row is None:
            raise UnknownRun(f"Expected the name of a run, got {run!r}. `quoron runs` lists them.")
        return row

    def _told(self, row: RunRow) -> dict[str, Any]:
        return {"run": row.run, "state": row.state, "created": row.created, "error": self._error(row)}

    def _error(self, row: RunRow) -> str | None:
        return self.paused.get(row.run) if row.state in OPEN else row.error

    def _spent(self, row: RunRow) -> dict[str, Any]:
        if not Ledger.begun(self._database, row.run):
            return {"run": row.run, "state": row.state, "spent": {}, "releases": []}
        ledger = Ledger.within(self._database, row.run)
        releases = [{"round": number} | asdict(release) for number, release in ledger.releases()]
        return {"run": row.run, "state": row.state, "spent": ledger.spent(), "releases": releases}


async def patiently(function: Callable[[], T]) -> T:
    """For somebody who waits: in a thread, once more over a new connection if need be, and then the error."""
    try:
        return await asyncio.to_thread(function)
    except LedgerUnavailable:
        return await asyncio.to_thread(function)
