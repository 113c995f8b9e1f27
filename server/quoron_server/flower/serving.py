"""The ServerApp of a federation: one run, in the same store as our own coordinator's.

    ended = serve(grid, specification, database, waiting=600)

The same run submitted again, after a ServerApp was killed, is resumed from the ledger.
"""

import json
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any, TypeVar

import numpy as np
from flwr.serverapp import Grid
from numpy.typing import NDArray

from quoron_client.protocol import wire
from quoron_client.protocol.flower_records import ENDED, HELLO, Values
from quoron_privacy.errors import (
    BelowMinCohort,
    ConfigError,
    LedgerUnavailable,
    OtherVersion,
    QuoronError,
    RunError,
)
from quoron_protos.v1 import federation_pb2 as pb
from quoron_server import specification as specifications
from quoron_server.federation import Described, RunStore
from quoron_server.flower.engine import FlowerEngine, Users, by_key, declined_named_at_end, identity
from quoron_server.flower.exchange import Handshakes, NoNodeUnderstands, Outbound, SuperLinkAway, exchange, nodes
from quoron_server.plan import RunPlan
from quoron_server.rounds import RoundEvent
from quoron_server.silos import homes
from quoron_server.specification import RunSpecification
from quoron_server.storage.database import Database
from quoron_server.storage.ledger import Ledger
from quoron_server.storage.registry import EVERYONE, OPEN, Front, State
from quoron_server.wording import NO_MIN_COHORT, sentence

LONGEST_WAIT = 7 * 86400.0  # seconds for users to connect, in which the store is closed to other runs
_LONGEST_PAUSE = 30.0  # seconds between two tries of an unreachable database
_FAREWELL_SECONDS = 60.0
_GREETING_SECONDS = 120.0
_GREETED_AGAIN = 30.0  # seconds until a node that took no part is due again, and twice as long each time after
_BRIEFLY = 2.0  # seconds that a round waits for handshakes of new nodes
_LOGGED_AGAIN = 30.0  # seconds after which an unchanged line is logged again
_log = logging.getLogger("quoron")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Ended:
    """A complete run."""

    specification: RunSpecification
    plan: RunPlan
    ledger: dict[str, Any]  # what was spent and released
    model: NDArray[np.float64]


def serve(
    grid: Grid,
    text: str,
    database: str,
    *,
    waiting: float,
    group: str = EVERYONE,
    allow_simulation: bool = False,
    max_users: int = 1,
) -> Ended:
    """Carry out the run of a specification's text, or resume it from the store in `database`.

    It begins once enough users are active; its rounds, once all members are connected or `waiting` seconds are over.
    Nodes are enrolled in `group`, as silos of at most `max_users` users. A run that names another group is refused:
    its submitter would choose whose privacy budget is charged. Raises ConfigError, Infeasible,
    VerificationError, BudgetExceeded and LedgerError as the coordinator's `submit` does; RunError if too few users
    come, or the run has ended without a model; SuperLinkAway.
    """
    specification = RunSpecification.parse(text)
    if not 0 <= waiting <= LONGEST_WAIT:  # nan would wait for ever
        raise ConfigError(f"Expected waiting in [0, {LONGEST_WAIT:.0f}] seconds, got waiting={waiting}.")
    if specification.group != group:
        raise ConfigError(
            f"Expected a run of group {group}, got group={specification.group!r}. The operator's QUORON_GROUP decides."
        )
    specifications.require_private_participation(specification)
    plan = specifications.make_plan(specification)
    specifications.require_deployable(specification, plan, allow_simulation=allow_simulation)
    specifications.require_fitting(plan, wire.MAX_WHOLE, most=wire.MAX_WHOLE)
    specifications.require_telling(specification, plan)
    with Database(database) as opened:
        store = RunStore(opened)
        store.settle()

        def fit(members: NDArray[np.int64]) -> None:
            specifications.require_silos(specification, plan, homes(members, store.registry.silos()))

        described = specifications.describe(specification, plan)
        seconds, early = specification.seconds, specification.early_ends
        given: dict[str, Any] = {"seconds": seconds, "early_ends": early, "waiting": waiting, "check": fit}
        there = ConnectedNodes(grid, max_users=max_users)
        model = carry_out(grid, store, specification, plan, "flower", described, there, **given)
        ledger = Ledger.within(opened, specification.run)
        releases = [{"round": number} | asdict(release) for number, release in ledger.releases()]
        return Ended(specification, plan, {"spent": ledger.spent(), "releases": releases}, model)


def carry_out(
    grid: Grid,
    store: RunStore,
    asked: Described,
    plan: RunPlan,
    front: Front,
    described: Mapping[str, Any],
    there: "ConnectedNodes",
    *,
    seconds: float,
    early_ends: bool,
    waiting: float,
    action: str | None = None,
    start: NDArray[np.float64] | None = None,
    watched: bool = False,
    check: Callable[[NDArray[np.int64]], None] = lambda members: None,
) -> NDArray[np.float64]:
    """Carry out or resume a run, end it, and return its model: of nodes that are `there`, with `described` announced.

    It begins once enough users are connected; its rounds, once all members are or `waiting` seconds are over. `action`
    and `start` as in `Users`, `watched` as in `FlowerEngine`; `check` raises ConfigError for members who cannot be in
    it. Errors that a later start may mend leave the run open: LedgerUnavailable, OtherVersion, SuperLinkAway,
    NoNodeUnderstands.
    """
    run, known = asked.run, cache(store.registry.user)
    announcement = pb.Announcement(run=run, description=json.dumps(described))

    def fleet(members: NDArray[np.int64], declined: set[int]) -> Users:
        silos = store.registry.silos()
        return Users(there.homes_now, announcement, members, known, declined, silos=silos, action=action, start=start)

    def remembering(members: NDArray[np.int64]) -> Iterable[int]:
        """Return the nodes that may keep client state; partitions of a simulation keep none."""
        return fleet(members, set()).homes().values() if there.by_keys else ()

    with farewell(grid, store, run, action or ENDED, remembering), declined_named_at_end(run) as declined:
        if store.enter(asked, plan, front):
            return Ledger.within(store.database, run).model
        released = (before := Ledger.begun(store.database, run)) is not None and before.finished
        if not released:
            seats = 0 if store.registry.seated(run) else plan.problem.users
            enrol(store, asked.group, seats, waiting, there)
        drawn, _ = retried_while_away(lambda: store.members(asked, plan))
        try:
            check(drawn)
            members = retried_while_away(lambda: store.begin(asked, plan))
            users = fleet(members, declined)
            if not released:
                waited("members", len(members), waiting, lambda: (there.greeted_of(users), there.connected))
                announce(grid, users, run, early_ends=early_ends)
            engine = FlowerEngine(grid, users, run, plan.problem, seconds, early_ends, watched=watched)
            model = retried_while_away(lambda: store.carry_out(asked, plan, engine, [LogObserver()]))
        except (LedgerUnavailable, OtherVersion, SuperLinkAway, NoNodeUnderstands):
            raise
        except QuoronError as problem:
            how: State = "below-min-cohort" if isinstance(problem, BelowMinCohort) else "failed"
            said = str(problem)
            retried_while_away(lambda: store.end(run, how, said))
            raise
        retried_while_away(lambda: store.end(run, "complete"))
        return model


def waited(who: str, wanted: int, seconds: float, found: Callable[[], tuple[int, int]]) -> int:
    """Wait until so many are there, at most `seconds`; how many are.

    `found` returns how many are, and how many nodes are connected: that is logged whenever it changes, and every 30
    seconds. Nodes that connect while it waits for a silent one still get a handshake.
    """
    ends, before, due = time.monotonic() + seconds, -1, 0.0
    while True:
        last = time.monotonic() >= ends
        number, connected = found()
        if number >= wanted:
            return number
        now = time.monotonic()
        if number != before or now >= due:
            numbers = (number, wanted, connected, max(0.0, ends - now))
            _log.info("waiting for %s: %d of %d, with %d nodes connected; %.0f s left", who, *numbers)
            before, due = number, now + _LOGGED_AGAIN
        if last:
            return number
        time.sleep(1.0)


def enrol(store: RunStore, group: str, needed: int, waiting: float, greeter: "ConnectedNodes") -> None:
    """Enrol the nodes that answer a handshake until enough are active to begin.

    In order of partitions, so that users of a simulation have the same numbers every time. Raises RunError if too few
    are active after `waiting` seconds, and NoNodeUnderstands early if waiting cannot help.
    """
    fresh: dict[str, int] = {}  # partition of each name that is not enrolled

    def found() -> tuple[int, int]:
        nonlocal fresh
        partitions = greeter.greeted(_GREETING_SECONDS)
        known = {name: store.registry.user(name) for name in partitions}
        fresh = {name: partitions[name] for name, user in known.items() if user is None}
        store.registry.seen(user for user in known.values() if user is not None)
        active = store.registry.standing(group)["active"] + sum(greeter.people.get(name, 1) for name in fresh)
        return active, greeter.connected

    active = waited("users", needed, waiting, found)
    greeter.handshakes.require_node(late=True)  # nodes that were enrolled earlier may have another app now
    if active < needed:
        raise RunError(
            f"Expected {needed} users in group {group} within {waiting:g} seconds, got {active}. Start more "
            f"SuperNodes with this version of quoron, or begin a run for fewer users.{greeter.handshakes.why()}"
        )
    for name in sorted(fresh, key=lambda name: (fresh[name], name)):
        store.registry.enrol(name, group, people=greeter.people.get(name, 1))


class ConnectedNodes:
    """The names of connected nodes: of those that have answered a handshake, in our version.

    A node that could not answer gets another handshake later: it may have been updated.
    """

    def __init__(self, grid: Grid, action: str = HELLO, *, max_users: int = 1, partitions: int | None = None) -> None:
        """Name nodes by their keys, or by their partition in a simulation of `partitions`. A node has at most
        `max_users` users."""
        self.handshakes, self.connected, self.people = Handshakes(grid, action), 0, dict[str, int]()
        self._grid, self._most, self._partitions = grid, max_users, partitions
        self._greetings: dict[int, tuple[int, str]] = {}  # partition and name of each node that answered a handshake
        self._due: dict[int, tuple[float, float]] = {}  # of the others: time of the next handshake, next pause

    def homes(self) -> dict[str, int]:
        """Return the node of each name that is connected now; of several, the first that answered a handshake."""
        there, found = nodes(self._grid), dict[str, int]()
        for node, (_, name) in self._greetings.items():
            if node in there:
                found.setdefault(name, node)
        return found

    def homes_now(self) -> dict[str, int]:
        """Return `homes` for a round, which unknown nodes may not delay: a key names a node without a handshake."""
        if self.by_keys:
            return by_key(self._grid)
        self.greet(_BRIEFLY)
        return self.homes()

    @property
    def by_keys(self) -> bool:
        """Whether nodes are known by their keys."""
        return self._partitions is None

    def greeted_of(self, fleet: Users) -> int:
        """Return how many members have answered a handshake; if some have not, unknown nodes get time to do so."""
        known = replace(fleet, names=self.homes)
        if (found := known.here()) < len(fleet.members):
            self.greet(_GREETING_SECONDS)
            found = known.here()
        return found

    def greet(self, seconds: float) -> None:
        """Send a handshake to every node that is due, and wait at most `seconds`. Raises NoNodeUnderstands."""
        there, now = nodes(self._grid), time.monotonic()
        unknown = [node for node in sorted(there) if node not in self._greetings]
        due = [node for node in unknown if self._due.get(node, (now, 0.0))[0] <= now]
        self.connected = len(there)
        replies = self.handshakes.greet(due, seconds)
        now = time.monotonic()
        for node in due:
            place, name = self._named(node, there[node], replies[node]) if node in replies else (-1, None)
            if name is not None:
                self._greetings[node] = place, name
            else:
                _, pause = self._due.get(node, (0.0, _GREETED_AGAIN))
                self._due[node] = now + pause, 2 * pause

    def greeted(self, seconds: float) -> dict[str, int]:
        """Return the partition of each name in `homes`, after waiting up to `seconds` for handshakes."""
        self.greet(seconds)
        return {name: self._greetings[node][0] for name, node in self.homes().items()}

    def _named(self, node: int, key: bytes, values: Values) -> tuple[int, str | None]:
        """Return the partition and the name of a node by its reply; None for a node that may not take part."""
        partition, people = values.get("partition"), values.get("people", 1)
        place = partition if isinstance(partition, int) else -1
        if not isinstance(people, int) or not 1 <= people <= self._most:
            _log.warning(
                "node %d takes no part: it answers for %.20s users, where at most %d are let in "
                "(QUORON_MAX_USERS_PER_CLIENT)",
                *(node, people, self._most),
            )
            return place, None
        if self._partitions is not None:
            return place, f"partition:{place}" if 0 <= place < self._partitions else None
        name = identity(key)
        if people > 1:
            self.people[name] = people
        return place, name


def announce(grid: Grid, fleet: Users, run: str, *, early_ends: bool) -> None:
    """Announce a run to every member before any is asked, so that who is charged does not depend on who is sampled
    (docs/privacy/lifetime.md#ol1). Members that do not answer in time get it again in the next round.

    Takes whole seconds unless early ends are accepted: how soon all have agreed depends on how long their files are.
    """
    began, announced = time.monotonic(), list(fleet.announced())
    replies = exchange(grid, (message for _, message in announced), group=f"{run}/announced", seconds=_GREETING_SECONDS)
    for index, reply in replies.items():
        fleet.read(reply, announced[index][0], ())
    if not early_ends:
        time.sleep((began - time.monotonic()) % 1.0)


@contextmanager
def farewell(
    grid: Grid, store: RunStore, run: str, action: str, homes: Callable[[NDArray[np.int64]], Iterable[int]]
) -> Iterator[None]:
    """Announce the end of a run to the nodes of `homes` on leaving, so that members can erase the answers they keep.

    Repeated at every start that finds the run ended. A failure is logged only.
    """
    try:
        yield
    finally:
        if isinstance(sys.exception(), QuoronError | None):
            try:
                row = store.registry.run(run)
                if row is not None and row.state not in OPEN:
                    values: Values = {"run": run, "how": row.state}
                    messages = [Outbound(node, action, values) for node in homes(store.registry.members(run))]
                    exchange(grid, messages, group="farewell", seconds=_FAREWELL_SECONDS)
            except QuoronError as error:
                _log.warning("not all members know that the run has ended: %s", error)


def retried_while_away(work: Callable[[], T]) -> T:
    """Return what `work` returns, repeated while the database cannot be reached."""
    pause = 0.1
    while True:
        try:
            return work()
        except LedgerUnavailable as error:
            _log.warning("paused: %s", error)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)


class LogObserver:
    """Writes public events into Flower's log."""

    def started(self, plan: RunPlan) -> None:
        """Log the guarantee."""
        _log.info("%s: %s", plan.algorithm, sentence(plan.guarantee))
        if plan.guarantee.min_cohort is None:
            _log.info("%s", NO_MIN_COHORT)

    def round_finished(self, event: RoundEvent) -> None:
        """Log a line for the round."""
        min_cohort = f", minimum cohort {event.public['min_cohort']}" if "min_cohort" in event.public else ""
        _log.info("round %d of at most %d: %d users asked%s", event.round + 1, event.rounds, event.asked, min_cohort)

    def finished(self, model: NDArray[np.float64]) -> None:
        """Log the end."""
        _log.info("complete: a model of %d numbers is released", len(model))
