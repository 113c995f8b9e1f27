"""Runs, one thread each: begun when enough users are enrolled, resumed when the coordinator comes back.

What is written, and in which order, each step harmless to repeat:

    submit      the specification, after its plan was made and verified and the population's budget asked
    begin       members, charge of the population's ledger, the run's own ledger with a fresh noise key
    every round spend, commit (`rounds.run`)
    end         the model, the end in the population's ledger, the run's state

While the database is away a run pauses, then goes on from what the ledger holds. A run that this coordinator may not
go on with (another version's plan, a simulation where none is allowed) is left as it is, for one that may, or for
`cancel`.
"""

import asyncio
import hashlib
import json
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from quorate_protos.errors import LedgerUnavailable, QuorateError, RunError
from quorate_server import rounds
from quorate_server.algorithms import ALGORITHMS
from quorate_server.database import Database
from quorate_server.ledger import Ledger
from quorate_server.noise import NoiseSource, SecureNoise, SeededNoise
from quorate_server.plan import Plan
from quorate_server.population_ledger import PopulationLedger
from quorate_server.registry import Registry, State
from quorate_server.rounds import RoundEvent
from quorate_server.service import specification as specifications
from quorate_server.service.engine import GrpcEngine, RunStopped
from quorate_server.service.feed import Feed, public
from quorate_server.service.records import OPEN, Records, patiently
from quorate_server.service.rooms import Rooms
from quorate_server.service.specification import RunSpecification

MOST_RUNS = 64  # at the same time
_LONGEST_PAUSE = 30.0  # seconds between two tries of a database that is away
_log = logging.getLogger("quorate")
T = TypeVar("T")
Check = Callable[[RunSpecification], None]


class OtherVersion(RunError):
    """Another version or configuration began this run: nothing of it is changed, so that it can still go on there."""


@dataclass(slots=True, eq=False)
class _Run:
    specification: RunSpecification
    plan: Plan
    feed: Feed = field(default_factory=Feed)
    engine: GrpcEngine | None = None
    task: "asyncio.Task[None] | None" = None
    cancelled: bool = False

    @property
    def name(self) -> str:
        return self.specification.run


class Manager:
    """All runs of one coordinator. Its methods belong to the event loop; the database is used in threads."""

    def __init__(
        self, database: Database, rooms: Rooms, *, allow_simulation: bool = False, check: Check | None = None
    ) -> None:
        """`check` may refuse a specification whose constants do not follow from its loss.

        `lost` fails when the database is another's: the process must then end, and start again.
        """
        self.rooms = rooms
        self._database = database
        self._registry, self._population = Registry(database), PopulationLedger(database)
        self.records = Records(database)
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._allow_simulation, self._check = allow_simulation, check
        self._active: dict[str, _Run] = {}
        self._waiting: dict[str, _Run] = {}
        self._paused: dict[str, Feed] = {}
        self._threads = ThreadPoolExecutor(MOST_RUNS, thread_name_prefix="run")
        self._stopping = asyncio.Event()
        self._starting = asyncio.Lock()
        self._taking = asyncio.Lock()  # from reading a run's stored state to acting on it

    async def start(self) -> None:
        """Take up every run that has not ended."""
        async with self._taking:
            for row in await self._stored(self._registry.runs):
                if row.state not in OPEN:
                    continue
                try:
                    specification = RunSpecification.parse(row.specification)
                    plan = await asyncio.to_thread(specifications.make_plan, specification)
                    specifications.require_deployable(specification, plan, allow_simulation=self._allow_simulation)
                except QuorateError as error:
                    self._pause(row.run, Feed(await self._stored(self.records.events, row.run)), error)
                    continue
                self._waiting[row.run] = _Run(specification, plan)
        await self._begin_those_that_can()

    async def stop(self) -> None:
        """Leave every run where it is; the next start takes it up."""
        self._stopping.set()
        tasks = []
        for run in self._active.values():
            if run.engine is not None:
                run.engine.stop()
            if run.task is not None:
                tasks.append(run.task)
        await asyncio.gather(*tasks, return_exceptions=True)
        self._threads.shutdown(wait=True)

    async def enrol(self, identity: str, group: str) -> int:
        """The user of an identity, its place in the population."""
        user: int = await self._stored(self._registry.enrol, identity, group)
        if self._waiting:
            await self._begin_those_that_can()
        return user

    async def user(self, identity: str) -> int | None:
        """The user of an identity; None if it is not enrolled."""
        return await self._stored(self._registry.user, identity)

    async def submit(self, text: str) -> str:
        """Take a run on; its name. The same specification again is the same run.

        Raises ConfigError, Infeasible, VerificationError, BudgetExceeded and LedgerError.
        """
        specification = RunSpecification.parse(text)
        plan = await asyncio.to_thread(specifications.make_plan, specification)
        specifications.require_deployable(specification, plan, allow_simulation=self._allow_simulation)
        if self._check is not None:
            self._check(specification)
        if _is_private(plan):
            await patiently(lambda: self._population.check(specification.run, **_charge(specification, plan)))
        name = specification.run
        async with self._taking:
            new = await patiently(lambda: self._registry.add_run(name, specification.as_text()))
            if not new and name not in self._waiting and name not in self._active:  # entered, but never acknowledged?
                row = await patiently(lambda: self._registry.run(name))
                new = row is not None and row.state == "waiting"
            if new:
                self._paused.pop(name, None)
                self._waiting[name] = _Run(specification, plan)
        if new:
            await self._begin_those_that_can()
        return name

    async def cancel(self, run: str) -> dict[str, Any]:
        """End a run without a model, unless it has one. What it has spent stays spent; its secrets are erased."""
        async with self._taking:
            waiting, active = self._waiting.pop(run, None), self._active.get(run)
            if active is None:
                how = await self._stored(self._cancel, run)
                self._paused.pop(run, None)
                if waiting is not None:
                    waiting.feed.add({"kind": "ended", "how": how})
        if active is not None:
            active.cancelled = True
            if active.engine is not None:
                active.engine.stop()
            if active.task is not None:
                await asyncio.wait({active.task})  # whoever stops waiting does not stop the run
        return await self.records.status(run)

    async def feed(self, run: str) -> Feed:
        """The public events of a run; UnknownRun if there is none of that name."""
        known = self._active.get(run) or self._waiting.get(run)
        feed = self._paused.get(run) if known is None else known.feed
        return await self.records.feed(run) if feed is None else feed

    def _pause(self, run: str, feed: Feed, error: QuorateError) -> None:
        """Leave a run as it is stored; watchers are told why."""
        _log.warning("run %s is paused: %s", run, error)
        self._active.pop(run, None)
        self._paused[run] = feed
        feed.add({"kind": "paused", "error": str(error)})

    async def _begin_those_that_can(self) -> None:
        async with self._starting:
            for name, run in list(self._waiting.items()):
                specification = run.specification
                users = await self._stored(self._registry.users_count, specification.group)
                if name in self._waiting and users >= specification.problem.users and not self._stopping.is_set():
                    self._active[name] = self._waiting.pop(name)
                    run.task = asyncio.create_task(self._live(run))

    async def _live(self, run: _Run) -> None:
        """A run from here to its end, through every absence of the database."""
        how: State = "complete"
        error: str | None = None
        try:
            await self._patiently(lambda: self._carry_out(run))
        except RunStopped:
            if not run.cancelled:
                return
            how = "cancelled"
        except OtherVersion as problem:
            if not run.cancelled:
                self._pause(run.name, run.feed, problem)
                return
            how = "cancelled"
        except QuorateError as problem:
            how, error = "failed", str(problem)
        except Exception as problem:
            _log.exception("run %s failed", run.name)
            how, error = "failed", f"{type(problem).__name__}: see the coordinator's log"
        try:
            how = await self._stored(self._end, run.name, how, error)
        except RunStopped:
            return
        except QuorateError as problem:  # the database is no longer ours: nothing may be written, somebody else goes on
            if not self.lost.done():
                self.lost.set_exception(problem)
            return
        self._active.pop(run.name, None)
        self.rooms.close(run.name, how)
        run.feed.add({"kind": "ended", "how": how, "error": error if how == "failed" else None})

    async def _carry_out(self, run: _Run) -> None:
        """One try: begin unless begun, then ask on from where the ledger stands."""
        loop = asyncio.get_running_loop()
        members, events = await asyncio.to_thread(self._begin, run)
        for event in events:
            run.feed.add(event)
        room = self.rooms.rooms.get(run.name)
        if room is None:
            told = json.dumps(specifications.describe(run.specification, run.plan))
            room = self.rooms.open(run.name, told, members)
        run.engine = GrpcEngine(self.rooms, room, loop, run.plan.problem, run.specification.seconds)
        if run.cancelled or self._stopping.is_set():
            raise RunStopped(f"Run {run.name} was stopped.")
        await loop.run_in_executor(self._threads, self._rounds, run, run.engine, loop)

    def _begin(self, run: _Run) -> tuple[NDArray[np.int64], list[dict[str, Any]]]:
        specification, plan, database = run.specification, run.plan, self._database
        problem = plan.problem
        text = json.dumps(plan.as_json(), default=str)
        begun = Ledger.begun(database, run.name)
        if begun and Ledger.within(database, run.name).plan_json != text:
            raise OtherVersion(
                f"Expected the plan that run {run.name} began with, got another. Use the version that began it."
            )
        members = self._registry.fix_members(run.name, problem.users, specification.group)
        if _is_private(plan):
            statement = plan.guarantee.sentence()
            self._population.charge(run.name, statement=statement, **_charge(specification, plan))
        if not begun:
            key = _new_noise(specification).export_key()
            fingerprint = hashlib.sha256(specification.as_text().encode()).hexdigest()
            Ledger.begin(database, run.name, plan=text, config_digest=fingerprint, noise_key=key)
        self._registry.set_state(run.name, "running")
        return np.asarray(members, np.int64), self.records.events(run.name)

    def _rounds(self, run: _Run, engine: GrpcEngine, loop: asyncio.AbstractEventLoop) -> None:
        """In the run's own thread."""
        specification = run.specification
        ledger = Ledger.within(self._database, run.name)
        noise = _new_noise(specification) if ledger.finished else _noise(specification, ledger.noise_key)
        rounds.run(
            ALGORITHMS[run.plan.algorithm].make(run.plan),
            engine,
            ledger,
            noise,
            observers=[_Teller(run, loop)],
            simulation=specification.simulation,
            trust_clients=specification.trust_clients,
        )

    def _end(self, run: str, how: State, error: str | None) -> State:
        """How it ended: complete, whatever came after, if its model is released."""
        if Ledger.begun(self._database, run):
            ledger = Ledger.within(self._database, run)
            if ledger.finished:
                how, error = "complete", None
            if any(row["kind"] == "charge" and row["payload"]["run"] == run for row in self._population.rows()):
                if how == "complete":
                    model = ledger.model.astype("<f8").tobytes()
                    self._population.release(run, {"model": hashlib.sha256(model).hexdigest()})
                self._population.end(run, how)
            if how != "complete":
                ledger.abandon()
        self._registry.set_state(run, how, error)
        return how

    def _cancel(self, run: str) -> State | None:
        """End a run that nobody carries out, from its row alone; what has ended keeps its state, but no secret."""
        row = self._registry.run(run)
        if row is not None and row.state in OPEN:
            return self._end(run, "cancelled", None)
        if row is not None and row.state == "failed" and Ledger.begun(self._database, run):
            Ledger.within(self._database, run).abandon()
        return None if row is None else row.state

    async def _stored(self, function: Callable[..., T], *arguments: Any) -> T:
        return await self._patiently(lambda: asyncio.to_thread(function, *arguments))

    async def _patiently(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Try again while the database is away; RunStopped when the coordinator leaves."""
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


@dataclass(slots=True, eq=False)
class _Teller:
    """An observer that tells the feed, from the run's thread."""

    run: _Run
    loop: asyncio.AbstractEventLoop

    def started(self, plan: Plan) -> None:
        """Nothing to tell: the plan is public from the start."""

    def round_finished(self, event: RoundEvent) -> None:
        """After the round's commit."""
        self.loop.call_soon_threadsafe(self.run.feed.add, public(asdict(event)))

    def finished(self, model: NDArray[np.float64]) -> None:
        """After the last commit; watchers hear of the end from the manager."""


def _is_private(plan: Plan) -> bool:
    return plan.guarantee.exposure != "none"


def _charge(specification: RunSpecification, plan: Plan) -> dict[str, Any]:
    promise = plan.guarantee
    return {
        "group": specification.group,
        "epsilon": promise.epsilon,
        "delta": promise.delta,
        "adjacency": promise.adjacency,
    }


def _new_noise(specification: RunSpecification) -> NoiseSource:
    return SecureNoise.fresh() if specification.noise_seed is None else SeededNoise(specification.noise_seed)


def _noise(specification: RunSpecification, key: bytes) -> NoiseSource:
    return SecureNoise(key) if specification.noise_seed is None else SeededNoise(int(key))
