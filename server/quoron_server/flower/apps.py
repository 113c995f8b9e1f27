"""Private training of somebody else's model: rounds over a Grid whose ClientApps answer with `answer_with`.

    training = Training(run="spring", algorithm="dp-ftrl", problem=problem, epsilon=2.0, delta=1e-6, clip_norm=1.0)
    plan = training.plan()
    shift = train(grid, training, plan, books, start, action="private", seconds=60, waiting=600)

What a client returns comes out of a black box: see `quoron_server.black_box`.
"""

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any, get_args

import numpy as np
from flwr.serverapp import Grid
from numpy.typing import NDArray

from quoron_client.protocol import wire
from quoron_client.protocol.questions import Answers, Question
from quoron_privacy.errors import ConfigError, RunError
from quoron_privacy.release import Sums
from quoron_server.algorithms import ALGORITHMS
from quoron_server.black_box import plan_for
from quoron_server.books.ledger import Ledger
from quoron_server.flower.black_boxes import Attendance, BlackBoxes, Identities
from quoron_server.flower.engine import FlowerEngine
from quoron_server.flower.serving import to_the_end
from quoron_server.parameters import Assumption, Kind
from quoron_server.plan import Plan, Privacy
from quoron_server.problem import Problem
from quoron_server.rounds import Engine
from quoron_server.runs import Books
from quoron_server.specification import ending_early, require_open_cohorts

ASSUMED: Mapping[Identities, Assumption] = MappingProxyType(
    {"keys": Assumption(Kind.ONE_KEY_ONE_USER), "partitions": Assumption(Kind.ONE_PARTITION_ONE_USER)}
)
_GREETING_SECONDS = 120.0
_log = logging.getLogger("quoron")


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """One private training run of a black box."""

    run: str
    algorithm: str  # whose promise rests on the server alone: `AlgorithmInfo.no_black_boxes` is None
    problem: Problem  # users, dimension, domain; its bound on gradients is the clip
    epsilon: float
    delta: float
    clip_norm: float | None  # C: Euclidean norm at which a user's answer is clipped; None: it follows the users
    options: Mapping[str, Any] = field(default_factory=dict)  # of the algorithm
    identities: Identities = "keys"  # who is a user: whoever holds a SuperNode's key, or a partition of a simulation
    group: str = "everyone"  # whose lifetime budget it draws on
    seed: int = 0  # public randomness: slots and partition
    simulation_seed: int | None = None  # of a simulation
    start: str = ""  # digest of the model that training starts from
    early_ends: bool = False  # rounds end once all have answered; with "partitions", where nobody else is, always
    quorum: float | None = None  # share of those asked who must answer; None: nobody checks whether anyone does
    quorum_epsilon: float = 0.0  # of epsilon, for the quorum

    @property
    def simulation(self) -> bool:
        """Whether its noise is seeded."""
        return self.simulation_seed is not None

    @property
    def ends_early(self) -> bool:
        """Whether a round ends before its time once everybody has answered."""
        return self.early_ends or self.identities == "partitions"

    @property
    def trust_clients(self) -> bool:
        """Never: whatever clients are sent is private."""
        return False

    def as_text(self) -> str:
        """All that makes it this run and no other."""
        return json.dumps(asdict(self), sort_keys=True, default=str)

    def plan(self) -> Plan:
        """The plan, verified against its theorem.

        ConfigError, with the reason, for what a black box cannot carry out; Infeasible; VerificationError.
        """
        if self.identities not in get_args(Identities):
            known = " or ".join(get_args(Identities))
            raise ConfigError(f"Expected identities to be {known}, got identities={self.identities!r}.")
        privacy = Privacy(self.epsilon, self.delta, self.quorum, self.quorum_epsilon)
        plan = plan_for(
            self.problem,
            privacy,
            algorithm=self.algorithm,
            clip_norm=self.clip_norm,
            options=self.options,
            seed=self.seed,
        )
        _require_fitting(self.algorithm, plan)
        plan = plan.assuming([ASSUMED[self.identities]])
        if self.ends_early:
            plan = ending_early(plan)
        if self.early_ends and self.identities == "keys" and not self.simulation:
            require_open_cohorts(plan)
        ALGORITHMS[self.algorithm].verify(plan)
        return plan.simulated() if self.simulation else plan


def _require_fitting(algorithm: str, plan: Plan) -> None:
    """ConfigError for questions that no client takes: they would all refuse, and the model would be noise."""
    points = plan.parameters.points_asked()
    most = (wire.MAX_WHOLE // 8 - 1024) // points
    if plan.problem.dimension > most:
        raise ConfigError(
            f"Expected dimension to be at most {most:,} for {algorithm}, which asks at {points} "
            f"point{'s' if points > 1 else ''}, got dimension={plan.problem.dimension:,}. Train fewer numbers."
        )


def train(
    grid: Grid,
    training: Training,
    plan: Plan,
    books: Books,
    start: NDArray[np.float64],
    *,
    action: str,
    seconds: float,
    waiting: float,
) -> NDArray[np.float64]:
    """How far the released model is from `start`, shape (d,); from wherever the books stand.

    It begins once enough users are there, and goes on once all members are or `waiting` seconds are over. Raises
    BudgetExceeded and LedgerError; OtherVersion if the run began otherwise; RunError if too few users come, or the run
    has ended without a model; SuperLinkAway.
    """
    run = training.run
    books.enter(training, plan, "flower-app")
    complete = Ledger.begun(books.database, run) and Ledger.within(books.database, run).finished
    there = Attendance(grid, action, identities=training.identities, users=plan.problem.users)
    if not complete:
        _enrol(there, books, training, waiting)

    def engine(members: NDArray[np.int64]) -> Engine:
        fleet = BlackBoxes(there, run, members, cache(books.registry.user), start)
        if not complete:
            _wait_for(fleet, waiting)
        asks = FlowerEngine(grid, fleet, run, plan.problem, seconds, training.ends_early)
        simulated = training.simulation or training.identities == "partitions"
        return _Watched(asks) if simulated else asks

    return to_the_end(books, training, plan, engine)


def _enrol(there: Attendance, books: Books, training: Training, waiting: float) -> None:
    """Enrol whoever is there, once there are enough to begin; RunError if there are not in time."""
    ends, group, needed = time.monotonic() + waiting, training.group, training.problem.users
    while True:
        last = time.monotonic() > ends  # whoever came while a silent node was waited for is still greeted
        there.greet(_GREETING_SECONDS)
        fresh = [name for name in there.homes() if books.registry.user(name) is None]
        found = books.registry.users_count(group) + len(fresh)
        if found >= needed:
            break
        if last:
            raise RunError(
                f"Expected {needed} users in group {group} within {waiting:g} seconds, got {found}. Start more "
                "SuperNodes with this version of quoron, or train with fewer users."
            )
        time.sleep(min(1.0, max(0.0, ends - time.monotonic())))
    for name in there.in_order(fresh):
        books.registry.enrol(name, group)


def _wait_for(fleet: BlackBoxes, waiting: float) -> None:
    """Until every member is there; who is not by then is missing, like anybody who does not answer."""
    ends = time.monotonic() + waiting
    while (absent := len(fleet.members) - fleet.greeted(_GREETING_SECONDS)) and time.monotonic() < ends:
        _log.info("waiting for %d of %d members", absent, len(fleet.members))
        time.sleep(min(1.0, max(0.0, ends - time.monotonic())))


@dataclass(frozen=True, slots=True, eq=False)
class _Watched:
    """Tells when nobody has answered at all: of made-up data only, for it is a function of them without noise."""

    engine: Engine

    def ask(self, question: Question) -> Answers | Sums:
        """As the engine."""
        answers = self.engine.ask(question)
        if len(question.cohort) and not np.any(answers.answered):
            _log.warning("round %d: nobody has answered; the logs of the ClientApps say why", question.round)
        return answers
