"""What operators and auditors may read of the runs, from the database; each read once more over a new connection.

And the users as operators see and change them: only connections and what an operator says move the roster, never an
answer (docs/privacy/silos.md#ro1).
"""

import asyncio
import json
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from quoron_client.protocol.wire import MAX_SENT, run_mark
from quoron_privacy.errors import ConfigError, LedgerError, LedgerUnavailable, QuoronError, RunError
from quoron_privacy.kernels.on_first_use import OnFirstUse
from quoron_server.federation import RunStore
from quoron_server.plan import RunPlan
from quoron_server.service import event_log
from quoron_server.service.certificates import Revocations
from quoron_server.service.event_log import EventStream, listed, named, public
from quoron_server.service.sessions import Sessions
from quoron_server.specification import RunSpecification, make_plan
from quoron_server.storage.ledger import Ledger
from quoron_server.storage.registry import OPEN, RunRow, User
from quoron_server.wording import plan_json

if TYPE_CHECKING:
    from quoron_server.storage import backup
else:  # when somebody asks
    backup = OnFirstUse("quoron_server.storage.backup")

POLL = 3.0  # seconds between two checks of revoked and connected users
_MAX_USERS = 1000  # at a time
GONE = "This user has left this federation, and was forgotten. Nothing is asked of it any more."
_READERS = 4  # threads for everything that is only read
T = TypeVar("T")


class UnknownRun(ConfigError):
    """There is no run of that name."""


class Records:
    """Reads. Methods raise UnknownRun, and LedgerUnavailable while the database is away."""

    def __init__(self, store: RunStore) -> None:
        """It reads in threads of its own, and plans in one: a caller with many requests keeps no other waiting."""
        self._database, self._registry, self._population = store.database, store.registry, store.population
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="read")
        self._planner = ThreadPoolExecutor(1, thread_name_prefix="plan")
        self._closed = False
        # By run: why this coordinator leaves it as it is, though it has not ended, and after how many rounds.
        self.paused: dict[str, tuple[str, int]] = {}

    @property
    def away(self) -> str:
        """Why runs wait, though they are here: nothing can be written; "" if they do not."""
        why = self._database.failing
        return f"{why} Nothing is lost, and it goes on by itself once it can be written." if why else ""

    async def status(self, run: str) -> dict[str, Any]:
        """State of one run; an error says why it failed, or why it is paused."""
        return self._summary(await self.row(run))

    async def runs(self) -> list[dict[str, Any]]:
        """State of every run, in order of submission."""
        return [self._summary(row) for row in await self._read(self._registry.runs)]

    async def make_plan(self, specification: RunSpecification) -> RunPlan:
        """Return the plan of a specification, verified; one at a time. Raises what `specification.make_plan` raises."""
        return await asyncio.get_running_loop().run_in_executor(self._planner, make_plan, specification)

    async def plan(self, run: str) -> dict[str, Any]:
        """The plan of a run, as it is stored once the run has begun, with the columns and the loss of its items."""
        row = await self.row(run)
        specification = RunSpecification.parse(row.specification)
        stored = await self._read(lambda: self._stored_plan(run))
        plan = plan_json(await self.make_plan(specification)) if stored is None else stored
        return plan | {"columns": specification.columns.as_json(), "loss": specification.loss}

    def close(self) -> None:
        """Wait for reads in progress; refuse later reads, as the coordinator shuts down."""
        self._closed = True
        self._readers.shutdown(wait=True)
        self._planner.shutdown(wait=True)

    async def model(self, run: str) -> NDArray[np.float64]:
        """Return the released model of a complete run, shape (d,); RunError before."""
        row = await self.row(run)
        if row.state != "complete":
            raise RunError(f"Expected run {run} to be complete, got state {row.state}. Watch it with `quoron watch`.")
        return await self._read(lambda: Ledger.within(self._database, run).model)

    async def ledger(self, run: str) -> dict[str, Any]:
        """Return what a run has spent and released; without a name, the population's lifetime ledger."""
        if not run:
            exported: dict[str, Any] = json.loads(await self._read(self._population.export))
            return exported
        row = await self.row(run)
        return await self._read(lambda: self._spent(row))

    async def back_up(self) -> dict[str, Any]:
        """Copy a SQLite database beside its file, in one transaction; the copy's name and digest.

        ConfigError for a database server, beside which anybody with the right to may read.
        """
        path = self._database.path
        if path is None:
            raise ConfigError("Expected a coordinator with a SQLite file, got one with PostgreSQL. Back up --database.")
        out = path.with_name(f"{path.name}-{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(4)}.backup")
        digest = await self._read(lambda: backup.back_up(self._database, out))
        return {"file": out.name, "sha256": digest}

    async def store(self, group: str, seen: int) -> dict[str, Any]:
        """Return which store this is, for a client of a group that has seen so many rows of the lifetime ledger."""
        return await self._read(lambda: self._store(group, seen))

    async def feed(self, run: str) -> EventStream:
        """Return the public events of a run that has ended, or is not carried out now."""
        row = await self.row(run)
        feed = EventStream(await self._read(lambda: self.events(run)))
        if row.state in OPEN:
            feed.add({"kind": "paused", "error": self._error(row)})
        else:
            feed.add({"kind": "ended", "how": row.state, "error": row.error})
        return feed

    def events(self, run: str) -> list[dict[str, Any]]:
        """Committed rounds, as everybody may see them, where that is public with names; blocks."""
        ledger = Ledger.begun(self._database, run)
        events = [] if ledger is None else [public(event) for event in ledger.events()]
        absences = any(event["public"].get("absent") for event in events)
        names = self._registry.called(self._registry.members(run).tolist()) if absences else ()
        return [named(event, names) for event in events]

    async def missing(self, run: str, unwilling: Sequence[int]) -> str:
        """Who was missing in the last round of a run that ended below its minimum cohort, for people; `unwilling` if it
        never began."""
        events = await self._read(lambda: self.events(run))
        if not events:
            return f" Missing: {listed(await self._read(lambda: self._registry.called(unwilling)))}."
        last = events[-1]["public"]
        return f" {last['answered']} messages came; missing: {listed(last.get('missing', ()))}."

    async def row(self, run: str) -> RunRow:
        """One run as it is stored."""
        row = await self._read(lambda: self._registry.run(run))
        if row is None:
            raise UnknownRun(f"Expected the name of a run, got {run!r}. `quoron runs` lists them.")
        return row

    async def _read(self, function: Callable[[], T]) -> T:
        if self._closed:
            raise LedgerUnavailable("The coordinator is leaving, and reads its ledger no more. Come back later.")
        return await retried_once(function, self._readers)

    def _stored_plan(self, run: str) -> dict[str, Any] | None:
        ledger = Ledger.begun(self._database, run)
        return None if ledger is None else dict(json.loads(ledger.plan_json))

    def _store(self, group: str, seen: int) -> dict[str, Any]:
        rows, head, then = self._population.standing(min(seen, 2**31 - 1))
        charged = [run_mark(charge.run) for charge in reversed(self._population.charges(group)[-MAX_SENT:])]
        state = {"incarnations": self._database.incarnations, "rows": rows, "head": head, "then": then}
        return state | {"charged": charged}

    def _summary(self, row: RunRow) -> dict[str, Any]:
        paused = row.run in self.paused or self.away
        state = "paused" if row.state in OPEN and paused else row.state
        return {"run": row.run, "state": state, "created": row.created, "error": self._error(row)}

    def _error(self, row: RunRow) -> str | None:
        why, _ = self.paused.get(row.run, ("", 0))
        return (why or self.away or None) if row.state in OPEN else row.error

    def _spent(self, row: RunRow) -> dict[str, Any]:
        ledger = Ledger.begun(self._database, row.run)
        if ledger is None:
            return {"run": row.run, "state": row.state, "spent": {}, "releases": []}
        releases = [{"round": number} | asdict(release) for number, release in ledger.releases()]
        return {"run": row.run, "state": row.state, "spent": ledger.spent(), "releases": releases}


def outside(error: QuoronError) -> str:
    """Return what callers over a network see of an error: nothing of where the database is, or of what it holds."""
    return error.outside if isinstance(error, LedgerError) else str(error)


async def retried_once(function: Callable[[], T], pool: ThreadPoolExecutor | None = None) -> T:
    """For somebody who waits: in a thread, once more over a new connection if need be, and then the error."""
    loop = asyncio.get_running_loop()
    try:
        return await loop.run_in_executor(pool, function)
    except LedgerUnavailable:
        return await loop.run_in_executor(pool, function)


class Users:
    """The roster of one coordinator. Its methods belong to the event loop; the database is used in threads."""

    def __init__(self, store: RunStore, sessions: Sessions, revoked: Revocations | None = None) -> None:
        self._store, self._registry, self._sessions = store, store.registry, sessions
        self._revoked, self._retired = revoked, frozenset[str]()
        self._seen: tuple[int, set[int]] = (0, set())  # who is known to have been seen in this step
        # At most `_counted + _came` users are active in a group: who was when it was last counted, and who came since.
        self._counted: dict[str, int] = {}
        self._came: Counter[str] = Counter()

    def came(self, group: str, people: int = 1) -> None:
        """So many more of a group may be active."""
        self._came[group] += people

    def may_be(self, needed: int, group: str) -> bool:
        """Return whether so many may be active: it spares every enrolment a count of its whole group."""
        return self._counted.get(group, needed) + self._came[group] >= needed

    def are(self, needed: int, group: str) -> bool:
        """Return whether so many are active, to be drawn from; blocks. False while revocations cannot be read."""
        before = self._came[group]
        try:
            self.poll()
        except ConfigError:
            return False
        active = self._registry.standing(group)["active"]
        self._counted[group] = active - before
        return active >= needed

    async def standing(self, group: str) -> dict[str, int]:
        """Return how many users of a group are active, away and retired."""
        return await retried_once(lambda: self._registry.standing(group))

    async def watch(self) -> None:
        """Every few seconds, without end, mark the connected users as seen and retire the revoked ones."""
        while True:
            await asyncio.sleep(POLL)
            with suppress(QuoronError):  # an unreadable list, a database out of reach: at the next check
                await asyncio.to_thread(self.poll)

    def poll(self) -> None:
        """Do so once, before members are drawn; blocks. Raises ConfigError for an unreadable list of revoked users."""
        step, here = self._registry.step, set(self._sessions.here())
        known = self._seen[1] if self._seen[0] == step else set()
        if not here <= known:
            self._registry.seen(sorted(here - known))
        self._seen = step, here | known
        revoked = self._now_revoked()
        if revoked != self._retired:
            for user in self._registry.retire_keys(revoked - self._retired):
                said = f"User {user} is retired."
                event_log.note("user", action="retire", by="the list of revoked clients", said=said)
            self._retired = revoked

    async def page(self, after: int) -> dict[str, Any]:
        """Return users from number `after` on, at most a thousand."""
        with suppress(ConfigError):
            await retried_once(self.poll)
        found = await retried_once(lambda: self._registry.page(after=min(after, 2**31 - 1), most=_MAX_USERS))
        return {"users": [user.as_json() for user in found], "more": len(found) == _MAX_USERS}

    async def drawn(self, run: str) -> dict[str, Any]:
        """Return how the members of a run were drawn, for an auditor to draw them again. UnknownRun before."""
        row, found = await retried_once(lambda: (self._registry.run(run), self._registry.drawn(run)))
        if row is None or found is None:
            raise UnknownRun(f"Expected a run whose members were drawn, got {run!r}. `quoron runs` lists them.")
        described = {"run": run, "specification": row.specification} | found.as_json()
        return described | {"users": found.active.tolist(), "drawn": found.members.tolist()}

    async def change(self, action: str, word: str) -> dict[str, Any]:
        """Return what an operator says of a user, and what came of it in words. ConfigError for what cannot be."""
        if action not in (actions := ("retire", "back")):
            raise ConfigError(f"Expected {', '.join(actions)}, got {action!r}.")

        def work() -> str:
            user = self._registry.find(word)
            if action == "retire":
                self._registry.retire([user.user])
                return f"{_name(user)} is retired: a member of no run that begins from now on."
            if user.fingerprint in self._now_revoked():
                raise ConfigError(f"Expected a user whose certificate is good, got {_name(user)}: it is revoked.")
            self._registry.back(user.user)
            now = self._registry.find(str(user.user))
            return f"{_name(user)} is {now.state}" + (f", {now.why}: until it connects." if now.why else ".")

        said = await retried_once(work)
        self._counted.clear()
        return {"said": said}

    async def forget(self, word: str, *, sure: bool) -> dict[str, Any]:
        """Erase who a user was, if `sure`; what was erased, or of whom it would be. Again is the same."""
        done = await retried_once(lambda: self._store.forget_user(word, sure=sure))
        if sure:
            self._sessions.disconnect([done["user"]], GONE)
        return done

    def _now_revoked(self) -> frozenset[str]:
        return frozenset() if self._revoked is None else self._revoked.now()


def _name(user: User) -> str:
    people = f"users {user.user} to {user.user + user.people - 1}"
    return (f"user {user.user}" if user.people == 1 else people) + (f" ({user.name})" if user.name else "")
