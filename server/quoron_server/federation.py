"""The store of a federation's runs: all that one database holds of them, in order.

    store = RunStore(database)
    store.settle()                                  # at every start
    store.submit(specification, plan, front)        # it is taken on
    members = store.begin(specification, plan)      # before its first question, and again after every restart
    model = store.carry_out(specification, plan, engine)
    store.end(run, "complete")

Whatever brings questions to users keeps the same store: our own service, or a server of another framework. What is
written, and in which order:

    begin       members, charge of the population's ledger, the run's own ledger with a fresh noise key
    every round commit, with the next one spent (`rounds.run`)
    end         the run's state; its secrets erased; model and end in the population's ledger
"""

import hashlib
import logging
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.arrays import Vector
from quoron_privacy.errors import LedgerError, LedgerUnavailable, RunError
from quoron_server.plan import RunPlan
from quoron_server.rounds import Engine, Evaluate, Observer
from quoron_server.runs import Run, end
from quoron_server.storage.database import Database
from quoron_server.storage.ledger import Ledger
from quoron_server.storage.lifetime_ledger import PopulationLedger, known_of
from quoron_server.storage.registry import AWAY_AFTER, OPEN, Front, Registry, State
from quoron_server.wording import digest

_log = logging.getLogger("quoron")


class Described(Protocol):
    """What the store must know of a run beside its plan."""

    @property
    def run(self) -> str:
        """Its name."""

    @property
    def group(self) -> str:
        """Whose lifetime budget it draws on."""

    @property
    def simulation_seed(self) -> int | None:
        """The seed of a simulation, whose noise comes from it."""

    @property
    def trust_clients(self) -> bool:
        """Whether trust model `central-release` is accepted."""

    def as_text(self) -> str:
        """Return all that makes it this run and no other: the same run has the same text."""


class RunStore:
    """The durable side of every run of one database. Methods block; every one may be repeated.

    All raise LedgerUnavailable while the database is away, and LedgerError when it is another's by now.
    """

    def __init__(self, database: Database, *, away_after: float = AWAY_AFTER) -> None:
        """Makes its tables if they are missing; `away_after` as `Roster`."""
        self.database = database
        self.registry, self.population = Registry(database, away_after=away_after), PopulationLedger(database)

    def enter(self, specification: Described, plan: RunPlan, front: Front) -> bool:
        """Take a run on, by the front that brings its questions to users; whether it is complete already.

        Raises what `submit` does; RunError for a run that has ended without a model.
        """
        run = specification.run
        self.submit(specification, plan, front, by=front)
        row = self.registry.run(run)
        if row is not None and row.state not in (*OPEN, "complete"):
            raise RunError(f"Expected run {run} to go on, but it is {row.state}: {row.error}. Choose another name.")
        return row is not None and row.state == "complete"

    def submit(self, specification: Described, plan: RunPlan, front: Front, *, by: str = "") -> bool:
        """Take a run on that somebody asks for, who is on the chain first; False if it is there already.

        Raises what `Run.check` and `Registry.add_run` do: BudgetExceeded or OtherVersion if the population's ledger
        would not take the charge of the run now, VerificationError for a plan that does not keep its guarantee in μ.
        """
        run = specification.run
        self._run(specification, plan).check()
        if self.registry.run(run) is None:
            self.population.submit(run, specification.group, plan=digest(plan), by=by)
        return self.registry.add_run(run, specification.as_text(), front)

    def members(self, specification: Described, plan: RunPlan) -> tuple[NDArray[np.int64], bool]:
        """Members of a submitted run, as `begin` gives them, and whether it has begun; nothing is charged."""
        begun = self._run(specification, plan).begun(self.database)
        return self.registry.fix_members(specification.run, plan.problem.users, specification.group), begun is not None

    def begin(self, specification: Described, plan: RunPlan) -> NDArray[np.int64]:
        """Members of a submitted run, user by slot, shape (n,); afterwards its first question may leave.

        OtherVersion, with every secret kept, if it began with another plan, charge or number of members;
        BudgetExceeded, with nothing charged, if its group's limit leaves no room; LedgerError if too few are active.
        """
        run = self._run(specification, plan)
        run.begun(self.database)
        members = self.registry.fix_members(run.name, plan.problem.users, run.group)
        drawn = self.registry.drawn(run.name)
        run.charge(None if drawn is None else drawn.as_json())
        run.begin(self.database)
        self.registry.set_state(run.name, "running")
        return np.asarray(members, np.int64)

    def carry_out(
        self,
        specification: Described,
        plan: RunPlan,
        engine: Engine,
        observers: Sequence[Observer] = (),
        evaluate: Evaluate | None = None,
    ) -> Vector:
        """Ask on from where the ledger of a begun run stands, to the end: the released model, shape (d,).

        Raises what `rounds.run` raises. Call `end` afterwards, unless it was OtherVersion or LedgerUnavailable, or the
        engine gave up because this process leaves.
        """
        ledger = Ledger.within(self.database, specification.run)
        return self._run(specification, plan).carry_out(ledger, engine, observers, evaluate=evaluate)

    def end(self, run: str, how: State, error: str | None = None) -> State:
        """Return how it ended: complete, whatever came after, if its model is released; otherwise as was said first.

        The state comes first: from then on no question is asked, and `settle` makes good what a crash left out.
        """
        row = self.registry.run(run)
        if row is not None and row.state not in OPEN:
            how, error = row.state, row.error
        ledger = Ledger.begun(self.database, run)
        model = ledger.model if ledger is not None and ledger.finished else None
        if model is not None:
            how, error = "complete", None
        self.registry.set_state(run, how, error)
        if ledger is not None and model is None:
            ledger.abandon()
        if self.population.charged(run) is not None:
            end(self.population, run, how, model=model)
        return how

    def settle(self) -> None:
        """At a start: end once more whatever was ended, but not to its last line, before this process came.

        Secrets first: LedgerError, of a population's ledger that does not hold together, leaves none of them.
        """
        ended, held = [row for row in self.registry.runs() if row.state not in OPEN], Ledger.unreleased(self.database)
        for row in ended:
            if row.run in held:
                Ledger.within(self.database, row.run).abandon()
        rows = self.population.rows()
        open_ = set(known_of(rows).charges) - {row["payload"]["run"] for row in rows if row["kind"] == "end"}
        for row in ended:
            if row.run in open_:
                self.end(row.run, row.state, row.error)

    def cancel(self, run: str, *, by: str = "") -> State | None:
        """End a run that nobody carries out; what has ended keeps its state. None if unknown."""
        self.note_cancelled(run, by=by)
        return None if self.registry.run(run) is None else self.end(run, "cancelled")

    def note_cancelled(self, run: str, *, by: str) -> None:
        """Who cancels an open run, on the chain; a chain that is broken keeps nobody from cancelling."""
        row = self.registry.run(run)
        if row is not None and row.state in OPEN:
            try:
                self.population.cancel(run, by=by)
            except LedgerUnavailable:
                raise
            except LedgerError as error:
                _log.error("it is not on the chain that %s cancels run %s: %s", by or "somebody", run, error)

    def forget_user(self, word: str, *, sure: bool) -> dict[str, Any]:
        """As `Registry.forget`, of a user by number, name or fingerprint, with a row in the chain by which an older
        store is recognised; what was erased. Unless `sure` nothing is done: of whom it would be."""
        user = self.registry.find(word)
        if not sure:
            return user.as_json()
        with self.population.seat({"what": "forgotten", "user": user.user}):
            done = self.registry.forget(user.user)
        self.database.checkpoint()  # no copy of what was erased is left in SQLite's journal
        return {"group": user.group} | done

    def _run(self, specification: Described, plan: RunPlan) -> Run:
        return Run(
            name=specification.run,
            plan=plan,
            digest=hashlib.sha256(specification.as_text().encode()).hexdigest(),
            group=specification.group,
            account=lambda: nullcontext(self.population),
            simulation_seed=specification.simulation_seed,
            trust_clients=specification.trust_clients,
        )
