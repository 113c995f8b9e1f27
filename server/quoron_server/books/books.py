"""The books of every run of one database: who takes part, what was promised, what was asked, how it ended.

    books = Books(database)
    books.settle()                                  # at every start
    books.check(specification, plan)                # before a run is taken on
    members = books.begin(specification, plan)      # before its first question, and again after every restart
    model = books.carry_out(specification, plan, engine)
    books.end(run, "complete")

Whatever brings questions to users keeps the same books: our own service, or a server of another framework. What is
written, and in which order, each step harmless to repeat:

    begin       members, charge of the population's ledger, the run's own ledger with a fresh noise key
    every round spend, commit (`rounds.run`)
    end         the run's state; its secrets erased; model and end in the population's ledger
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.errors import ConfigError, OtherVersion
from quoron_privacy.noise import NoiseSource, SecureNoise, SeededNoise
from quoron_server import rounds
from quoron_server.algorithms import ALGORITHMS
from quoron_server.books.database import Database
from quoron_server.books.ledger import Ledger
from quoron_server.books.lifetime_ledger import PopulationLedger, charges_of
from quoron_server.books.registry import OPEN, Registry, State
from quoron_server.books.restoring import continue_held
from quoron_server.plan import Plan
from quoron_server.rounds import Engine, Observer


class Described(Protocol):
    """What the books must know of a run beside its plan."""

    @property
    def run(self) -> str:
        """Its name."""

    @property
    def group(self) -> str:
        """Whose lifetime budget it draws on."""

    @property
    def simulation(self) -> bool:
        """Whether its noise is seeded."""

    @property
    def simulation_seed(self) -> int | None:
        """The seed of a simulation."""

    @property
    def trust_clients(self) -> bool:
        """Whether exposure `model` is accepted."""

    def as_text(self) -> str:
        """All that makes it this run and no other: the same run has the same text."""


__all__ = ["OPEN", "Books", "charge_of"]


class Books:
    """The durable side of every run of one database. Methods block; every one may be repeated.

    All raise LedgerUnavailable while the database is away, and LedgerError when it is another's by now.
    """

    def __init__(self, database: Database) -> None:
        """Makes its tables if they are missing."""
        self.database = database
        self.registry, self.population = Registry(database), PopulationLedger(database)

    def check(self, specification: Described, plan: Plan) -> None:
        """Raises BudgetExceeded or OtherVersion if the population's ledger would not take the charge of a run now.

        VerificationError for a plan that does not keep its promise in μ.
        """
        if _is_private(plan):
            self.population.check(specification.run, group=specification.group, **charge_of(plan))

    def begin(self, specification: Described, plan: Plan) -> NDArray[np.int64]:
        """Members of a submitted run, user by slot, shape (n,); afterwards its first question may leave.

        OtherVersion, with every secret kept, if it began with another plan, charge or number of members;
        BudgetExceeded, with nothing charged, if its group's limit leaves no room; LedgerError if too few are enrolled.
        """
        run, text = specification.run, json.dumps(plan.as_json(), default=str)
        begun = Ledger.begun(self.database, run)
        if begun and Ledger.within(self.database, run).plan_json != text:
            raise OtherVersion(
                f"Expected the plan that run {run} began with, got another. Use the version that began it."
            )
        members = self.registry.fix_members(run, plan.problem.users, specification.group)
        if _is_private(plan):
            self.population.charge(
                run, statement=plan.guarantee.sentence(), group=specification.group, **charge_of(plan)
            )
        if not begun:
            key = _fresh(specification).export_key()
            fingerprint = hashlib.sha256(specification.as_text().encode()).hexdigest()
            Ledger.begin(self.database, run, plan=text, config_digest=fingerprint, noise_key=key)
            self.database.checkpoint()  # charge and key no longer rest on the journal alone
        self.registry.set_state(run, "running")
        return np.asarray(members, np.int64)

    def carry_out(
        self, specification: Described, plan: Plan, engine: Engine, observers: Sequence[Observer] = ()
    ) -> NDArray[np.float64]:
        """Ask on from where the ledger of a begun run stands, to the end: the released model, shape (d,).

        Raises what `rounds.run` raises. Call `end` afterwards, unless it was OtherVersion or LedgerUnavailable, or the
        engine gave up because this process leaves.
        """
        ledger = Ledger.within(self.database, specification.run)
        return rounds.run(
            ALGORITHMS[plan.algorithm].make(plan),
            engine,
            ledger,
            _fresh(specification) if ledger.finished else _kept(specification, ledger.noise_key),
            observers=observers,
            simulation=specification.simulation,
            trust_clients=specification.trust_clients,
        )

    def end(self, run: str, how: State, error: str | None = None) -> State:
        """How it ended: complete, whatever came after, if its model is released; otherwise as was said first.

        The state comes first: from then on no question is asked, and `settle` makes good what a crash left out.
        """
        row = self.registry.run(run)
        if row is not None and row.state not in OPEN:
            how, error = row.state, row.error
        ledger = Ledger.within(self.database, run) if Ledger.begun(self.database, run) else None
        if ledger is not None and ledger.finished:
            how, error = "complete", None
        self.registry.set_state(run, how, error)
        if ledger is not None and not ledger.finished:
            ledger.abandon()
        if self.population.charged(run) is not None:
            if ledger is not None and ledger.finished:
                model = ledger.model.astype("<f8").tobytes()
                self.population.release(run, {"model": hashlib.sha256(model).hexdigest()})
            self.population.end(run, how)
        return how

    def continue_held(self, run: str, planned: Callable[[str], tuple[Described, Plan]]) -> int | None:
        """Let a run that is held in restored books go on; how many more copies of it were charged, None if unknown.

        `planned` makes a specification and its verified plan of the text of a run that has no charge yet. Raises what
        `restoring.continue_held` and `planned` raise.
        """
        row = self.registry.run(run)
        if row is None:
            return None
        promise = None
        if row.held and self.population.charged(run) is None:
            specification, plan = planned(row.specification)
            promise = {"group": specification.group, **charge_of(plan)} if _is_private(plan) else None
        return continue_held(self.database, run, promise)

    def settle(self) -> None:
        """At a start: end once more whatever was ended, but not to its last line, before this process came.

        Secrets first: LedgerError, of a population's ledger that does not hold together, leaves none of them.
        """
        ended, held = [row for row in self.registry.runs() if row.state not in OPEN], Ledger.unreleased(self.database)
        for row in ended:
            if row.run in held:
                Ledger.within(self.database, row.run).abandon()
        rows = self.population.rows()
        open_ = set(charges_of(rows)) - {row["payload"]["run"] for row in rows if row["kind"] == "end"}
        for row in ended:
            if row.run in open_:
                self.end(row.run, row.state, row.error)

    def cancel(self, run: str) -> State | None:
        """End a run that nobody carries out; what has ended keeps its state. None if unknown."""
        return None if self.registry.run(run) is None else self.end(run, "cancelled")


def _is_private(plan: Plan) -> bool:
    return plan.guarantee.exposure != "none"


def charge_of(plan: Plan) -> dict[str, Any]:
    """What a plan's promise costs over a lifetime, as `PopulationLedger.charge` takes it."""
    promise, gaussian = plan.guarantee, ALGORITHMS[plan.algorithm].gaussian(plan)
    return {
        "epsilon": promise.epsilon,
        "delta": promise.delta,
        "mu": None if gaussian is None else gaussian.mu,
        "variation": 0.0 if gaussian is None else gaussian.variation,
        "adjacency": promise.adjacency,
    }


def _fresh(specification: Described) -> NoiseSource:
    return SecureNoise.fresh() if specification.simulation_seed is None else SeededNoise(specification.simulation_seed)


def _kept(specification: Described, key: bytes) -> NoiseSource:
    try:
        return SecureNoise(key) if specification.simulation_seed is None else SeededNoise(int(key))
    except (ConfigError, ValueError):
        raise OtherVersion(
            f"Expected the kind of noise that began run {specification.run}, got another. Use its own configuration."
        ) from None
