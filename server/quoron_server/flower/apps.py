"""Private training of somebody else's model: rounds over a Grid whose ClientApps answer with `answer_with`.

    promise = {"problem": problem, "privacy": Privacy(2.0, 1e-6), "clip_norm": 1.0}
    training = Training(run="spring", algorithm="dp-ftrl", **promise)
    plan = training.plan()
    shift = train(grid, training, plan, store, start, action="private", seconds=60, waiting=600)

What a client returns comes out of a black box: see `quoron_server.black_box`.
"""

import json
import logging
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from types import MappingProxyType
from typing import Literal, get_args

import numpy as np
from flwr.app import RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from quoron_client.protocol import wire
from quoron_client.protocol.flower_records import Values
from quoron_client.protocol.questions import Answers, AverageGradient, Question
from quoron_privacy.errors import ConfigError, RunError
from quoron_protos.v1 import federation_pb2 as pb
from quoron_server.algorithms import ALGORITHMS
from quoron_server.black_box import Asked
from quoron_server.federation import RunStore
from quoron_server.flower.engine import (
    FlowerEngine,
    Part,
    announced,
    asked_of,
    declined_are_told,
    identity,
    note,
    read_answer,
)
from quoron_server.flower.exchange import Hellos, Letter, nodes
from quoron_server.flower.serving import announce, enrol, farewell, to_the_end, wait_for
from quoron_server.parameters import Assumption, Kind
from quoron_server.plan import RunPlan
from quoron_server.rounds import Engine
from quoron_server.specification import describe_promise, ending_early, require_open_cohorts
from quoron_server.storage.ledger import Ledger
from quoron_server.storage.registry import EVERYONE

Identities = Literal["keys", "partitions"]
_BRIEFLY = 2.0  # seconds that a round waits for a hello, now and then
_GREETED_AGAIN = 30.0  # seconds until a node that took no part is due again, and twice as long each time after
ASSUMED: Mapping[Identities, Assumption] = MappingProxyType(
    {"keys": Assumption(Kind.ONE_KEY_ONE_USER), "partitions": Assumption(Kind.ONE_PARTITION_ONE_USER)}
)
_log = logging.getLogger("quoron")


@dataclass(frozen=True, slots=True, kw_only=True)
class Training(Asked):
    """One private training run of a black box."""

    run: str
    group: str = EVERYONE  # as whom all who come are enrolled
    identities: Identities = "keys"  # who is a user: the holder of a SuperNode's key, or a partition of a simulation
    seed: int = 0  # public randomness: slots and partition
    early_ends: bool = False  # rounds end once all have answered; with "partitions", where nobody else is, always

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

    def plan(self) -> RunPlan:
        """The plan, verified against its theorem.

        ConfigError, with the reason, for what a black box cannot carry out; Infeasible; VerificationError.
        """
        if self.identities not in get_args(Identities):
            known = " or ".join(get_args(Identities))
            raise ConfigError(f"Expected identities to be {known}, got identities={self.identities!r}.")
        plan = self.planned(self.seed)
        _require_fitting(self.algorithm, plan)
        plan = plan.assuming([ASSUMED[self.identities]])
        if self.ends_early:
            plan = ending_early(plan)
        if self.early_ends and self.identities == "keys" and not self.simulation:
            require_open_cohorts(plan)
        ALGORITHMS[self.algorithm].verify(plan)
        return plan.simulated() if self.simulation else plan


def _require_fitting(algorithm: str, plan: RunPlan) -> None:
    """ConfigError for questions that no client takes: they would all refuse, and the model would be noise."""
    points = plan.schedule.gradients_asked
    most = (wire.MAX_WHOLE // 8 - 1024) // points
    if plan.problem.dimension > most:
        raise ConfigError(
            f"Expected dimension to be at most {most:,} for {algorithm}, which asks at {points} "
            f"point{'s' if points > 1 else ''}, got dimension={plan.problem.dimension:,}. Train fewer numbers."
        )


def train(
    grid: Grid,
    training: Training,
    plan: RunPlan,
    store: RunStore,
    start: NDArray[np.float64],
    *,
    action: str,
    seconds: float,
    waiting: float,
) -> NDArray[np.float64]:
    """How far the released model is from `start`, shape (d,); from wherever the store stands.

    It begins once enough users are there, and goes on once all members are or `waiting` seconds are over. Raises
    BudgetExceeded and LedgerError; OtherVersion if the run began otherwise; RunError if too few users come, or the run
    has ended without a model; NobodyUnderstands; SuperLinkAway.
    """
    run = training.run
    described = json.dumps(describe_promise(run, plan, simulation=training.simulation))
    there = Attendance(grid, action, identities=training.identities, users=plan.problem.users)

    def fleet(members: NDArray[np.int64], declined: set[int]) -> BlackBoxes:
        announcement = pb.Announcement(run=run, description=described)
        return BlackBoxes(there, announcement, members, cache(store.registry.user), start, declined)

    def engine(members: NDArray[np.int64], declined: set[int]) -> Engine:
        nodes = fleet(members, declined)
        if not complete:
            wait_for(members, nodes.greeted, waiting)
            announce(grid, nodes, run, early_ends=training.ends_early)
        asks = FlowerEngine(grid, nodes, run, plan.problem, seconds, training.ends_early)
        simulated = training.simulation or training.identities == "partitions"
        return _Watched(asks) if simulated else asks

    def remembering(members: NDArray[np.int64]) -> list[int]:
        """Nodes that may keep a record: no partition of a simulation does."""
        return fleet(members, set()).present() if training.identities == "keys" else []

    with farewell(grid, store, run, action, remembering):
        store.enter(training, plan, "flower-app")
        complete = Ledger.begun(store.database, run) and Ledger.within(store.database, run).finished
        if not complete:
            enrol(store, training.group, 0 if store.registry.seated(run) else plan.problem.users, waiting, there)
        with declined_are_told(run) as declined:
            return to_the_end(store, training, plan, lambda members: engine(members, declined))


@dataclass(frozen=True, slots=True, eq=False)
class _Watched:
    """Tells how many have answered: of made-up data only, for it is a function of them without noise."""

    engine: FlowerEngine

    def ask(self, question: Question) -> Answers:
        """As the engine."""
        answers = self.engine.ask(question)
        asked, answered = len(question.cohort), int(np.count_nonzero(answers.answered))
        _log.info("round %d: %d of %d users who were asked have answered", question.round + 1, answered, asked)
        if asked and not answered:
            _log.warning("round %d: nobody has answered; the logs of the ClientApps say why", question.round + 1)
        return answers


class Attendance:
    """The names of the nodes that are there: a node counts once it has said hello, in our version."""

    def __init__(self, grid: Grid, action: str, *, identities: Identities, users: int) -> None:
        """A name is made of the node's key; in a simulation of its partition, from 0 to `users` - 1."""
        self.grid, self.action, self.hellos, self.connected = grid, action, Hellos(grid, action), 0
        self._identities, self._users = identities, users
        self._greetings: dict[int, tuple[int, str]] = {}  # partition and name of each node that said hello
        self._due: dict[int, tuple[float, float]] = {}  # when each other is greeted again, and the pause after that

    def homes(self) -> dict[str, int]:
        """Node of each name, of those that have said hello and are there now; the first that did, if several have."""
        there, found = nodes(self.grid), dict[str, int]()
        for node, (_, name) in self._greetings.items():
            if node in there:
                found.setdefault(name, node)
        return found

    def homes_now(self) -> dict[str, int]:
        """As `homes`, for a round, which no stranger may hold up: a key says who a node is, without a hello."""
        if self._identities == "keys":
            return {identity(key): node for node, key in sorted(nodes(self.grid).items())}
        self.greet(_BRIEFLY)
        return self.homes()

    def greet(self, seconds: float) -> None:
        """Wait for a hello of every node that is due, for so long. Raises NobodyUnderstands."""
        there, now = nodes(self.grid), time.monotonic()
        strangers = [node for node in sorted(there) if node not in self._greetings]
        due = {node: there[node] for node in strangers if self._due.get(node, (now, 0.0))[0] <= now}
        self.connected = len(there)
        said = self.hellos.say(list(due), seconds)
        now = time.monotonic()
        for node, key in due.items():
            name = None
            if node in said:
                partition = said[node].get("partition")
                place = partition if isinstance(partition, int) else -1
                known = f"partition:{place}" if 0 <= place < self._users else None
                name = identity(key) if self._identities == "keys" else known
            if name is not None:
                self._greetings[node] = place, name
            else:
                _, pause = self._due.get(node, (0.0, _GREETED_AGAIN))
                self._due[node] = now + pause, 2 * pause

    def greeted(self, seconds: float) -> dict[str, int]:
        """Return the partition of each name in `homes`, after waiting up to `seconds` for handshakes."""
        self.greet(seconds)
        return {name: self._greetings[node][0] for name, node in self.homes().items()}

    @property
    def people(self) -> Mapping[str, int]:
        """Every node with a function of its own is one user."""
        return {}


@dataclass(frozen=True, slots=True, eq=False)
class BlackBoxes:
    """The members of a run, each a node with a function of its own; points count from `start`."""

    there: Attendance
    announcement: pb.Announcement
    members: NDArray[np.int64]  # user of each slot
    user: Callable[[str], int | None]  # of a name, if it is enrolled
    start: NDArray[np.float64]  # (d,)
    declined: set[int] = field(default_factory=set)
    agreed: set[int] = field(default_factory=set)  # as of `Users`

    def greeted(self, seconds: float) -> int:
        """How many members are there; only if some are not, nodes that are not known get so long to say hello."""
        found = self._homes(self.there.homes())
        if len(found) < len(self.members):
            self.there.greet(seconds)
            found = self._homes(self.there.homes())
        return len(found)

    def present(self) -> list[int]:
        """Nodes of the members who are there now."""
        return list(self._homes(self.there.homes_now()).values())

    def _homes(self, names: Mapping[str, int]) -> dict[int, int]:
        wanted = set(self.members.tolist())
        there = {self.user(name): node for name, node in names.items()}
        return {user: node for user, node in there.items() if user is not None and user in wanted}

    def announced(self) -> Iterator[tuple[Part, Letter]]:
        """As `Users.announced`."""
        homes = self._homes(self.there.homes_now())
        return announced(homes, self.announcement, self.agreed, self.declined, self.there.action)

    def parts(self, question: Question, seconds: int) -> Iterator[tuple[Part, Letter]]:
        """As `Users.parts`."""
        task = question.task
        if not isinstance(task, AverageGradient):
            raise RunError(f"Expected questions for average gradients, got {type(task).__name__}.")
        moved = replace(question, task=replace(task, points=task.points + self.start))
        homes, told = self._homes(self.there.homes_now()), self.announcement.SerializeToString()
        yield from announced(homes, self.announcement, self.agreed, self.declined, self.there.action)
        users = self.members[question.cohort].tolist()
        for row in secrets.SystemRandom().sample(range(len(users)), len(users)):
            user = users[row]
            if user in homes and user in self.agreed:
                asked = wire.question_to_wire(moved, row, run=self.announcement.run, user=user, seconds=seconds)
                values: Values = {"announcement": told, "user": user, "question": asked.SerializeToString()}
                letter = Letter(homes[user], self.there.action, values)
                yield Part(np.array([row]), asked_of(asked, user)), letter

    def read(self, reply: RecordDict, part: Part, shape: tuple[int, ...]) -> Answers:
        """The answer to this very question; who declines or refuses is MISSING, anything else REJECTED."""
        note(reply, part, self.agreed, self.declined)
        return read_answer(reply, part, shape)
