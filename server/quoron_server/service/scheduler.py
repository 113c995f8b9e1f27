"""The scheduler of runs, a thread each: begins them when enough users are active, and resumes them after a restart.

A run is entered after its plan was verified and the population's budget checked; `quoron_server.federation` has the
order of writes from then on. While the database cannot be reached a run pauses, then is resumed from the ledger. A run
that this coordinator may not resume (another version's or configuration's, a simulation where none is allowed, one of
Flower's) is left as it is, for a coordinator that may, or for `cancel`.
"""

import asyncio
import json
import logging
import math
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from grpc import StatusCode

from quoron_client.protocol import wire
from quoron_privacy.errors import (
    BelowMinCohort,
    BudgetExceeded,
    LedgerError,
    LedgerUnavailable,
    OtherVersion,
    QuoronError,
)
from quoron_privacy.kernels.on_first_use import OnFirstUse
from quoron_server import specification as specifications
from quoron_server.federation import RunStore
from quoron_server.plan import RunPlan
from quoron_server.rounds import Observer
from quoron_server.service import certificates, event_log, records, security
from quoron_server.service.active_run import ActiveRun, GrpcEngine, RunStopped
from quoron_server.service.event_log import EventStream
from quoron_server.service.records import Records, Users, outside, retried_once
from quoron_server.service.sessions import Sessions
from quoron_server.silos import homes
from quoron_server.specification import OtherPlan, RunSpecification
from quoron_server.storage.database import Database
from quoron_server.storage.registry import OPEN, SERVICE, NotEnrolled, State, TooFewActive
from quoron_server.storage.store import software
from quoron_server.wording import digest

if TYPE_CHECKING:
    from quoron_server.service import second_server_client as two_servers
    from quoron_server.service.coordinator import ServeConfig
else:
    two_servers = OnFirstUse("quoron_server.service.second_server_client")  # with a second server alone

WHY = ("limit", "plan", "other")  # a submitted run is refused
OTHER_PROTOCOL = f"Expected protocol {wire.PROTOCOL}, which {software()} speaks"
CALLS = ("identity", "revoked", "expired", "foreign", "other")  # a call is refused

_LONGEST_PAUSE = 30.0  # seconds between two tries of a database that is away
_MEMORY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")  # bytes of this machine
_log = logging.getLogger("quoron")
T = TypeVar("T")


@dataclass(slots=True)
class Counts:
    """Counts since the process began, for monitoring; none depends on data."""

    refused: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(WHY, 0)))
    calls: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(CALLS, 0)))
    newer_store: int = 0  # enrolments of clients that have seen more of the lifetime ledger than there is

    def refuse(self, error: QuoronError) -> None:
        """Count a refused run, unless the database could not be reached."""
        if not isinstance(error, LedgerUnavailable):
            kinds = {"limit": BudgetExceeded, "plan": OtherPlan}
            self.refused[next((why for why, kind in kinds.items() if isinstance(error, kind)), "other")] += 1

    def refuse_call(self, code: StatusCode, words: str) -> None:
        """Count a refused call of a client or an operator."""
        known = {certificates.WORDS: "revoked", records.GONE: "revoked", security.EXPIRED: "expired"}
        kinds = {StatusCode.UNAUTHENTICATED: "identity", StatusCode.INVALID_ARGUMENT: "foreign"}
        why = "foreign" if words.startswith(OTHER_PROTOCOL) else known.get(words)
        self.calls[why or kinds.get(code, "other")] += 1


class RunScheduler:
    """All runs of one coordinator. Methods run in the event loop; the database is used in threads."""

    def __init__(self, database: Database, sessions: Sessions, config: "ServeConfig") -> None:
        """Make the scheduler. `lost` fails when another process owns the database: this process must then restart.

        Runs of two servers need a second server.
        """
        self.sessions, self._config, plaintext = sessions, config, config.transport.insecure
        self._database, self._store = database, RunStore(database, away_after=config.away_after)
        self.registry = self._store.registry
        self.users = Users(self._store, sessions, config.transport.revoked)
        self.population = self._store.population
        self.records = Records(self._store)
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        link = config.second_server
        self._second_server = None if link is None else two_servers.SecondServerClient(link, database)
        # In plaintext, for one machine or a proxy, many clients may share a connection.
        self._most = None if plaintext else config.connections()
        self._gathered = -math.inf  # loop time from which on questions are sent
        self._active: dict[str, ActiveRun] = {}
        self._waiting: dict[str, ActiveRun] = {}
        self._threads = ThreadPoolExecutor(wire.MAX_RUNS, thread_name_prefix="run")
        self.counts = Counts()  # for `metrics`
        self._stopping = asyncio.Event()
        self._starting = asyncio.Lock()
        self._taking = asyncio.Lock()  # from reading a run's stored state to acting on it

    async def start(self) -> None:
        """Resume every open run."""
        if self._config.waiting and await self.stored(self.registry.users_count):
            self._gathered = asyncio.get_running_loop().time() + self._config.waiting
        async with self._taking:
            try:
                await self.stored(self._store.settle)
            except LedgerError as error:  # of a broken audit log: ended runs can still be read
                _log.error("the ends of some runs are not written: %s", error)
            for row in await self.stored(self.registry.runs):
                if row.state not in OPEN:
                    continue
                try:
                    row.require(SERVICE)
                    run = await self._planned(row.specification)
                except QuoronError as error:
                    self._pause(row.run, EventStream(await self.stored(self.records.events, row.run)), error)
                    continue
                run.seated = await self.stored(self.registry.seated, row.run)
                self._waiting[row.run] = run
        await self._close_helped()
        await self._begin_those_that_can()

    async def _close_helped(self) -> None:
        """Report ended runs to the second server, so that it destroys their keys."""
        if self._second_server is not None:
            with suppress(RunStopped):
                await self.stored(self._second_server.close_ended, self.registry)

    async def _planned(self, text: str) -> ActiveRun:
        specification = RunSpecification.parse(text)
        plan = await self.records.make_plan(specification)
        self._require_possible(specification, plan)
        return ActiveRun(specification, plan)

    async def stop(self) -> None:
        """Stop every run where it is; the next start resumes it."""
        self._stopping.set()
        for run in self._active.values():
            run.stop()
        tasks = [run.task for run in self._active.values() if run.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)
        self._threads.shutdown(wait=True)
        await asyncio.to_thread(self.records.close)

    async def enrol(self, identity: str, group: str, *, name: str = "", software: str = "", people: int = 1) -> int:
        """Return the user of an identity, its number in the population; of a client with several, that of the first.

        Raises NotEnrolled beyond the users that one client may have here.
        """
        if people > (most := self._config.max_users_per_client):
            raise NotEnrolled(
                f"Expected a client of at most {most:,} people, got one that answers for {people:,}: each "
                "of them is a user, who takes seats in runs. The coordinator's operator lets it in with `quoron serve "
                f"--set max_users_per_client={people}`."
            )
        known = await self.stored(self.registry.user, identity)
        called = {"name": name, "software": software}
        user: int = await self.stored(lambda: self.registry.enrol(identity, group, **called, people=people))
        if known is None:
            shown = event_log.called(name, identity)
            event = "enrolled silo" if people > 1 else "enrolled"
            event_log.note(event, user=user, group=group, name=shown, people=people)
        self.users.came(group, people)
        return await self.after(user)

    async def after(self, result: T) -> T:
        """Return a result of a change of users, after beginning the runs that now have enough."""
        if self._waiting:
            await self._begin_those_that_can()
        return result

    async def agreed(self, user: int) -> list[tuple[str, float, float]]:
        """Return name, ε and δ of the runs that a user's client has agreed to, the latest first."""
        for engine in [run.engine for run in self._active.values() if run.engine is not None]:
            await self.stored(engine.note_of, user)
        return await self.stored(self.registry.agreed, user, wire.MAX_SENT)

    async def submit(self, text: str, *, by: str = "") -> str:
        """Enter a run of an operator; return its name. Submitting the same specification again is the same run.

        Raises ConfigError, Infeasible, VerificationError, BudgetExceeded and LedgerError.
        """
        try:
            return await self._submit(text, by)
        except QuoronError as error:
            self.counts.refuse(error)
            event_log.note("refused", by=by, why=str(error))
            raise

    async def _submit(self, text: str, by: str) -> str:
        run = await self._planned(text)
        specification, name = run.specification, run.name
        async with self._taking:
            new = await retried_once(lambda: self._store.submit(specification, run.plan, SERVICE, by=by))
            if not new and name not in self._waiting and name not in self._active:  # entered, but not acknowledged?
                row = await retried_once(lambda: self.registry.run(name))
                new = row is not None and row.state == "waiting"
            if new:
                self.records.paused.pop(name, None)
                self._waiting[name] = run
        if new:
            event_log.note("submitted", run=name, by=by, group=specification.group, plan=digest(run.plan))
            await self._begin_those_that_can()
        return name

    def _require_possible(self, specification: RunSpecification, plan: RunPlan) -> None:
        specifications.require_deployable(specification, plan, allow_simulation=self._config.allow_simulation)
        specifications.require_fitting(plan, self._config.max_message)
        apart = specification.silos.count(1) if specification.silos and specification.silo_sums else None
        specifications.require_room(plan, _MEMORY, self.sessions.free_disk, apart)
        specifications.require_telling(specification, plan)
        specifications.require_second_server(specification, plan, helped=self._second_server is not None)
        if self._most is not None:
            specifications.require_connections(specification, self._most, alone=self._config.max_users_per_client == 1)

    async def cancel(self, run: str, *, by: str = "") -> dict[str, Any]:
        """End a run without a model, unless it has one. Its charge stays; its secrets are erased."""
        async with self._taking:
            waiting, active = self._waiting.get(run), self._active.get(run)
            if waiting is not None:
                waiting.cancelled = True  # from now on it does not begin
            if active is None:
                how = await self.stored(lambda: self._store.cancel(run, by=by))
                self._waiting.pop(run, None)
                self.records.paused.pop(run, None)
                self.sessions.close(run, str(how))  # it may be paused
                if waiting is not None:
                    waiting.feed.add({"kind": "ended", "how": how})
                await self._close_helped()
        if active is not None:
            active.cancelled = True
            active.stop()
            await self.stored(lambda: self._store.note_cancelled(run, by=by))
            if active.task is not None:
                await asyncio.wait({active.task})  # also if the caller stops waiting
        event_log.note("cancelled", run=run, by=by)
        return await self.records.status(run)

    async def runs(self) -> list[dict[str, Any]]:
        """Return the state of every run, in order of submission; of open ones with their connected members."""
        return [run | self.sessions.standing(run["run"]) for run in await self.records.runs()]

    async def feed(self, run: str) -> EventStream:
        """Return the public events of a run. Raises UnknownRun for an unknown name."""
        known = self._active.get(run) or self._waiting.get(run)
        return await self.records.feed(run) if known is None else known.feed

    async def awaited(self, run: str) -> dict[str, Any] | None:
        """Return the public event of what a run waits for; None between two rounds."""
        waiting, active = self._waiting.get(run), self._active.get(run)
        if why := self.records.away:
            return {"kind": "awaits", "what": "ledger", "error": why}
        if waiting is not None:
            wanted = waiting.specification
            with suppress(LedgerUnavailable):
                figures = await self.users.standing(wanted.group) | {"needed": wanted.problem.users}
                event = {"kind": "awaits", "what": "users", **figures, "group": wanted.group}
                return event | {"min_cohort": wanted.min_cohort}
        return None if active is None else active.awaited(self.sessions)

    def standing(self) -> dict[str, Mapping[str, float | None]]:
        """Return the public progress of every open run, by the names of metrics."""
        running = {name: run.standing(self.sessions) for name, run in self._active.items()}
        waiting = {name: {"run_rounds_done": 0} for name in self._waiting}
        paused = {name: {"run_rounds_done": rounds} for name, (_, rounds) in self.records.paused.items()}
        return running | waiting | paused

    @property
    def waiting(self) -> int:
        """Number of runs that wait for users."""
        return len(self._waiting)

    def _pause(self, run: str, feed: EventStream, error: QuoronError) -> None:
        """Leave a run as it is stored, and report why to its watchers."""
        event_log.note("paused", run=run, why=str(error))
        self._active.pop(run, None)
        words = outside(error)
        self.records.paused[run] = words, feed.rounds
        feed.add({"kind": "paused", "error": words})

    async def _begin_those_that_can(self) -> None:
        async with self._starting:
            for name, run in list(self._waiting.items()):
                if len(self._active) >= wire.MAX_RUNS:
                    return  # other runs wait until one has ended
                wanted = run.specification.problem.users, run.specification.group
                if not run.seated and not (self.users.may_be(*wanted) and await self.stored(self.users.are, *wanted)):
                    continue
                if name in self._waiting and not run.cancelled and not self._stopping.is_set():
                    self._active[name] = self._waiting.pop(name)
                    run.task = asyncio.create_task(self._whole(run))

    async def _whole(self, run: ActiveRun) -> None:
        """Carry out a run to its end, then begin the next waiting one."""
        await self._live(run)
        if self._waiting and not self._stopping.is_set():
            with suppress(RunStopped):
                await self._begin_those_that_can()

    async def _live(self, run: ActiveRun) -> None:
        """Carry out a run to its end, retrying while the database cannot be reached."""
        how: State = "complete"
        error: str | None = None
        why = ""
        try:
            await self._read(lambda: self._carry_out(run))
        except RunStopped:
            if not run.cancelled:
                return
            how = "cancelled"
        except TooFewActive as problem:  # users were retired since they were counted
            if not run.cancelled:
                _log.info("run %s waits: %s", run.name, problem)
                del self._active[run.name]
                self._waiting[run.name] = run
                return
            how = "cancelled"
        except BelowMinCohort as problem:
            how, error = "below-min-cohort", str(problem)
            if run.specification.participation == "public":
                error += await self._read(lambda: self.records.missing(run.name, run.unwilling()))
        except OtherVersion as problem:
            if not run.cancelled:
                run.publish()
                self._pause(run.name, run.feed, problem)
                return
            how = "cancelled"
        except QuoronError as problem:
            how, error, why = "failed", outside(problem), str(problem)
        except Exception as problem:
            _log.exception("run %s failed", run.name)
            how, error = "failed", f"{type(problem).__name__}: see the coordinator's log"
        try:
            how = await self.stored(self._store.end, run.name, how, error)
        except RunStopped:
            return
        except QuoronError as problem:  # another process owns the database and carries on: nothing may be written
            if not self.lost.done():
                self.lost.set_exception(problem)
            return
        self._active.pop(run.name, None)
        await self._close_helped()
        self.sessions.close(run.name, how if run.begun else wire.UNASKED)
        run.publish()
        failure = error if how in ("failed", "below-min-cohort") else None
        run.feed.add({"kind": "ended", "how": how, "error": failure})
        words = (why or failure) if failure else ""
        event_log.note("ended early" if failure else "ended", run=run.name, how=how, why=words)

    async def _carry_out(self, run: ActiveRun) -> None:
        """Begin or resume a run from the ledger, once."""
        loop, wanted = asyncio.get_running_loop(), run.specification
        members, begun = await asyncio.to_thread(self._store.members, wanted, run.plan)
        run.begun = run.begun or begun
        second_server = self._second_server if run.plan.guarantee.trust_model == "two-servers" else None
        if (session := run.session) is None:
            consent = None if second_server is None else await asyncio.to_thread(second_server.open, wanted, run.plan)
            description = json.dumps(specifications.describe(wanted, run.plan))
            silos = await asyncio.to_thread(self.registry.silos)
            specifications.require_silos(wanted, run.plan, homes(members, silos))
            helped: dict[str, Any] = {} if consent is None else {"spec": run.plan.spec.as_json(), "consent": consent}
            run.session = session = self.sessions.open(
                run.name, description, members, silos=silos, sums=wanted.silo_sums, gathered=self._gathered, **helped
            )
        await run.gather(session, max(loop.time(), self._gathered), over=begun)
        run.begun = True
        events = await asyncio.to_thread(self._begin, run)
        for event in events:
            run.feed.add(event)
        run.moved = max(loop.time(), self._gathered)
        if run.engine is None:
            rounds, doing = run.plan.cost.rounds, "resumed" if begun else "began"
            event_log.note(doing, run=run.name, users=len(members), rounds=rounds, done=len(events))
        run.engine = GrpcEngine(
            self.sessions,
            session,
            loop,
            run.plan.problem,
            wanted.seconds,
            wanted.early_ends,
            lambda users: self._note_agreed(run, users),
        )
        if run.cancelled or self._stopping.is_set():
            raise RunStopped(f"Run {run.name} was stopped.")
        observers: list[Observer] = [run]
        engine: Any = run.engine  # with two servers its sums are still masked
        if second_server is not None:
            engine = two_servers.TwoServersEngine(run.engine, second_server, wanted, run.plan)
            observers.insert(0, engine)
        try:
            given = wanted, run.plan, engine, observers, self._config.evaluate if wanted.simulation else None
            await loop.run_in_executor(self._threads, lambda: self._store.carry_out(*given))
        except BelowMinCohort:  # also published on the schedule
            await run.until_published(self._stopping)
            raise
        await run.until_published(self._stopping)

    def _note_agreed(self, run: ActiveRun, users: set[int]) -> None:
        p = run.plan.guarantee
        epsilon, delta = wire.replace_one(p.epsilon, p.delta, adjacency=p.adjacency, trust_model=p.trust_model)
        self.registry.note_agreed(run.name, sorted(users), epsilon=epsilon, delta=delta)

    def _begin(self, run: ActiveRun) -> list[dict[str, Any]]:
        members = self._store.begin(run.specification, run.plan)
        if run.specification.participation == "public":
            run.names = self.registry.called(members.tolist())
        return self.records.events(run.name)

    async def stored(self, function: Callable[..., T], *arguments: Any) -> T:
        """Return what a method of the store returns, in a thread, retried while its database cannot be reached."""
        return await self._read(lambda: asyncio.to_thread(function, *arguments))

    async def _read(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Retry while the database cannot be reached. Raises RunStopped when the coordinator stops."""
        pause = 0.1
        while True:
            try:
                return await attempt()
            except LedgerUnavailable as error:
                _log.warning("paused: %s", error)
            try:
                await asyncio.wait_for(self._stopping.wait(), pause)
            except TimeoutError:
                pause = min(2 * pause, _LONGEST_PAUSE)
            else:
                raise RunStopped("The coordinator is leaving.")
