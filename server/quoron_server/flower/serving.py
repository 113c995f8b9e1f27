"""The ServerApp of a federation: one run, with the same books as our own coordinator keeps.

    ended = serve(grid, specification, database, waiting=600)

A ServerApp that was killed has lost nothing: the same run submitted again goes on from the ledger.
"""

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, TypeVar

import numpy as np
from flwr.serverapp import Grid
from numpy.typing import NDArray

from quoron_client.protocol import wire
from quoron_client.protocol.flower_records import ENDED, HELLO, refusal, values_of
from quoron_privacy.errors import (
    ConfigError,
    LedgerUnavailable,
    OtherVersion,
    QuoronError,
    RunError,
    WireError,
    WithoutQuorum,
)
from quoron_protos.v1 import federation_pb2 as pb
from quoron_server import specification as specifications
from quoron_server.books.database import Database
from quoron_server.books.ledger import Ledger
from quoron_server.books.registry import EVERYONE, OPEN, State
from quoron_server.flower.engine import FlowerEngine
from quoron_server.flower.exchange import Letter, SuperLinkAway, exchange, nodes
from quoron_server.flower.pulls import Pulls
from quoron_server.flower.users import Users, identity
from quoron_server.plan import Plan
from quoron_server.rounds import Engine, RoundEvent
from quoron_server.runs import Books, Described
from quoron_server.specification import RunSpecification
from quoron_server.wording import NO_QUORUM, sentence

LONGEST_WAIT = 7 * 86400.0  # seconds for users to come, in which the books are closed to other runs
_LONGEST_PAUSE = 30.0  # seconds between two tries of a database that is away
_FAREWELL_SECONDS = 60.0
_GREETING_SECONDS = 120.0
_GREETED_AGAIN = 30.0
_log = logging.getLogger("quoron")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Ended:
    """A complete run."""

    specification: RunSpecification
    plan: Plan
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
) -> Ended:
    """Carry out the run of a specification's text, from wherever the books of `database` stand.

    It begins once enough users are enrolled, and goes on once all members are there or `waiting` seconds are over.
    Whoever comes is enrolled in `group`, and a run that names another is refused: its submitter would choose whose
    lifetime budget is drawn on. Raises ConfigError, Infeasible, VerificationError, BudgetExceeded and LedgerError as
    the coordinator's `submit` does; RunError if too few users come, or the run has ended without a model;
    SuperLinkAway.
    """
    specification = RunSpecification.parse(text)
    if not 0 <= waiting <= LONGEST_WAIT:  # nan would wait for ever
        raise ConfigError(f"Expected waiting in [0, {LONGEST_WAIT:.0f}] seconds, got waiting={waiting}.")
    if specification.group != group:
        raise ConfigError(
            f"Expected a run of group {group}, got group={specification.group!r}. The operator's QUORON_GROUP decides."
        )
    plan = specifications.make_plan(specification)
    specifications.require_deployable(specification, plan, allow_simulation=allow_simulation)
    specifications.require_fitting(plan, wire.MAX_WHOLE, most=wire.MAX_WHOLE)
    specifications.require_telling(specification, plan)
    with Database(database) as opened:
        books = Books(opened)
        books.settle()
        try:
            if not books.enter(specification, plan, "flower"):
                _carry_out(grid, books, specification, plan, waiting)
        except QuoronError:
            _say_farewell(grid, books, specification.run)
            raise
        _say_farewell(grid, books, specification.run)
        ledger = Ledger.within(opened, specification.run)
        releases = [{"round": number} | asdict(release) for number, release in ledger.releases()]
        return Ended(specification, plan, {"spent": ledger.spent(), "releases": releases}, ledger.model)


def _carry_out(grid: Grid, books: Books, specification: RunSpecification, plan: Plan, waiting: float) -> None:
    enrol(books, specification.group, specification.problem.users, waiting, _Hellos(grid).greeted)

    def engine(members: NDArray[np.int64]) -> FlowerEngine:
        described = json.dumps(specifications.describe(specification, plan))
        announcement = pb.Announcement(run=specification.run, description=described)
        fleet = Users(grid, announcement, members, cache(books.registry.user))
        wait_for(members, lambda _: len(fleet.homes()), waiting)
        seconds, early_ends = specification.seconds, specification.early_ends
        return FlowerEngine(grid, fleet, specification.run, plan.problem, seconds, early_ends)

    to_the_end(books, specification, plan, engine)


def to_the_end(
    books: Books, specification: Described, plan: Plan, engine: Callable[[NDArray[np.int64]], Engine]
) -> NDArray[np.float64]:
    """Carry a run out, from wherever the books stand, and end it: the model. `engine` asks the members, user by slot.

    Whatever a later start may mend leaves the run as it is: LedgerUnavailable, OtherVersion, SuperLinkAway.
    """
    try:
        members = retried_while_away(lambda: books.begin(specification, plan))
        asks = engine(members)
        model = retried_while_away(lambda: books.carry_out(specification, plan, asks, [LogObserver()]))
    except (LedgerUnavailable, OtherVersion, SuperLinkAway):
        raise
    except QuoronError as problem:
        how: State = "without-quorum" if isinstance(problem, WithoutQuorum) else "failed"
        said = str(problem)
        retried_while_away(lambda: books.end(specification.run, how, said))
        raise
    retried_while_away(lambda: books.end(specification.run, "complete"))
    return model


def enrol(books: Books, group: str, needed: int, waiting: float, greeted: Callable[[float], Mapping[str, int]]) -> None:
    """Enrol whoever says hello, once there are enough to begin; RunError if there are not in time.

    `greeted` waits so many seconds for hellos, and gives the partition, or -1, of every user who has said one. By
    partition first, so that the users of a simulation have the same numbers every time.
    """
    ends, before = time.monotonic() + waiting, -1
    while True:
        last = time.monotonic() > ends  # whoever came while a silent node was waited for is still greeted
        partitions = greeted(_GREETING_SECONDS)
        fresh = [name for name in partitions if books.registry.user(name) is None]
        found = books.registry.users_count(group) + len(fresh)
        if found >= needed:
            break
        if found != before:
            _log.info("waiting for users: %d of %d", found, needed)
            before = found
        if last:
            raise RunError(
                f"Expected {needed} users in group {group} within {waiting:g} seconds, got {found}. Start more "
                "SuperNodes with this version of quoron, or begin a run for fewer users."
            )
        time.sleep(1.0)
    for name in sorted(fresh, key=lambda each: (partitions[each], each)):
        books.registry.enrol(name, group)


class _Hellos:
    """Who has said hello in our version, and when others are due again: they may come back with another version."""

    def __init__(self, grid: Grid) -> None:
        self._grid, self._pulls = grid, Pulls()
        self._partitions: dict[str, int] = {}
        self._due: dict[int, float] = {}

    def greeted(self, seconds: float) -> Mapping[str, int]:
        """As `enrol` asks for."""
        now = time.monotonic()
        new = {node: identity(key) for node, key in nodes(self._grid).items() if self._due.get(node, now) <= now}
        new = {node: name for node, name in new.items() if name not in self._partitions}
        self._partitions |= _hellos(self._grid, new, self._pulls, seconds)
        self._due |= dict.fromkeys(new, now + _GREETED_AGAIN)
        return self._partitions


def _hellos(grid: Grid, new: dict[int, str], pulls: Pulls, seconds: float) -> dict[str, int]:
    """Partition of each node that answers a hello in our version."""
    numbers = sorted(new)
    letters = [Letter(node, HELLO, {}) for node in numbers]
    found = {}
    for index, reply in exchange(grid, letters, group="hello", seconds=seconds, pulls=pulls).items():
        try:
            values = values_of(reply)
        except WireError:
            continue
        if (why := refusal(values)) is not None:
            _log.warning("node %d takes no part: %s", numbers[index], why)
            continue
        partition = values.get("partition")
        found[new[numbers[index]]] = partition if isinstance(partition, int) else -1
    return found


def wait_for(members: NDArray[np.int64], greeted: Callable[[float], int], waiting: float) -> None:
    """Until every member is there; who is not by then is missing, like anybody who does not answer."""
    ends, before = time.monotonic() + waiting, 0
    while (absent := len(members) - greeted(_GREETING_SECONDS)) and time.monotonic() < ends:
        if absent != before:
            _log.info("waiting for %d of %d members", absent, len(members))
            before = absent
        time.sleep(1.0)


def _say_farewell(grid: Grid, books: Books, run: str) -> None:
    """If a run has ended, members may erase the answers that they keep.

    Said at every start that meets it, and never a reason to fail: who does not hear of it harms nobody else.
    """
    try:
        row = books.registry.run(run)
        if row is None or row.state in OPEN:
            return
        fleet = Users(grid, pb.Announcement(run=run), books.registry.members(run), cache(books.registry.user))
        letters = [Letter(node, ENDED, {"run": run, "how": row.state}) for node in fleet.homes().values()]
        exchange(grid, letters, group="farewell", seconds=_FAREWELL_SECONDS)
    except QuoronError as error:
        _log.warning("not all members have heard that the run has ended: %s", error)


def retried_while_away(work: Callable[[], T]) -> T:
    """What `work` returns, tried again while the database is away."""
    pause = 0.1
    while True:
        try:
            return work()
        except LedgerUnavailable as error:
            _log.warning("paused: %s", error)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)


class LogObserver:
    """An observer: public events, in Flower's log."""

    def started(self, plan: Plan) -> None:
        """The promise."""
        _log.info("%s: %s", plan.algorithm, sentence(plan.guarantee))
        if plan.guarantee.quorum is None:
            _log.info("%s", NO_QUORUM)

    def round_finished(self, event: RoundEvent) -> None:
        """One line a round."""
        quorum = f", quorum {event.public['quorum']}" if "quorum" in event.public else ""
        _log.info("round %d of at most %d: %d users asked%s", event.round + 1, event.rounds, event.asked, quorum)

    def finished(self, model: NDArray[np.float64]) -> None:
        """The end."""
        _log.info("complete: a model of %d numbers is released", len(model))
