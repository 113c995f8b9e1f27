"""Who takes part and what runs: enrolled users, submitted runs, and the members of each run.

    registry = Registry(database)
    user = registry.enrol(fingerprint)              # the same certificate is the same user, for ever
    registry.add_run("summer", specification)
    members = registry.fix_members("summer", 1000)  # user by slot; drawn of the active ones, once

Users are numbered from 0 as they enrol; `roster` has them. Every user belongs to one group, for which the population
ledger adds up what was promised; so a group's sum bounds each of its users' lifetime loss.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from quoron_privacy.errors import LedgerError, OtherVersion, count
from quoron_server.plan import EVERYONE as EVERYONE
from quoron_server.storage.database import Database
from quoron_server.storage.drawing import Draw, homes
from quoron_server.storage.roster import AWAY_AFTER, USERS, Roster, following
from quoron_server.storage.roster import SCHEMA as SCHEMA
from quoron_server.storage.roster import OtherGroup as OtherGroup
from quoron_server.storage.store import now

State = Literal["waiting", "running", "complete", "below-min-cohort", "cancelled", "failed"]
OPEN = ("waiting", "running")  # states of a run that has not ended
Front = Literal["service", "flower", "flower-app"]
SERVICE: Front = "service"
FRONTS: dict[Front, str] = {  # what brings a run's questions to its members; nothing else can
    "service": "`quoron serve`",
    "flower": "`quoron submit --engine flower`",
    "flower-app": "a ServerApp of your own on Flower",
}
_schema = SCHEMA
_runs = sa.Table(
    "runs",
    _schema,
    sa.Column("run", sa.Text, primary_key=True),
    sa.Column("number", sa.Integer, nullable=False, unique=True),  # in order of submission
    sa.Column("specification", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("created", sa.Text, nullable=False),
    sa.Column("error", sa.Text),
    sa.Column("front", sa.Text, nullable=False, server_default=SERVICE),
)
_slots = sa.Table(
    "slots",
    _schema,
    sa.Column("run", sa.Text, primary_key=True),
    sa.Column("slot", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("user", sa.Integer, nullable=False),
)
_agreed = sa.Table(  # whose client has said that it takes part: its own record must know of it
    "agreed",
    _schema,
    sa.Column("user", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("run", sa.Text, primary_key=True),
    sa.Column("epsilon", sa.Float, nullable=False),  # what it costs a user over a lifetime, for replacing one
    sa.Column("delta", sa.Float, nullable=False),
)
_AT_ONCE, _SHOWN = 500, 16  # users in one query; characters of a fingerprint
_by_user = sa.Index("slots_by_user", _slots.c.user)


@dataclass(frozen=True, slots=True)
class RunRow:
    """One submitted run."""

    run: str
    specification: str
    state: State
    created: str  # for people
    error: str | None
    front: Front

    def require(self, front: Front) -> None:
        """OtherVersion unless it was entered by this front, as the members of another hear of no question."""
        if self.front != front:
            raise OtherVersion(
                f"Expected run {self.run} to go on by {FRONTS.get(self.front, self.front)}, which it was submitted "
                f"through, got {FRONTS[front]}. Go on with it there, or cancel it."
            )


class Registry:
    """Users, runs and memberships in one database. Every method is one transaction and may be repeated."""

    def __init__(
        self, database: Database, *, away_after: float = AWAY_AFTER, clock: Callable[[], float] = time.time
    ) -> None:
        """Makes its tables if they are missing; `away_after` and `clock` as `Roster`."""
        self._database = database
        self.roster = Roster(database, away_after=away_after, clock=clock)
        with database.writing() as connection:
            _by_user.create(connection, checkfirst=True)  # tables of earlier versions have none
            if "front" not in {each["name"] for each in sa.inspect(connection).get_columns(_runs.name)}:
                connection.execute(sa.text(f"ALTER TABLE runs ADD COLUMN front TEXT NOT NULL DEFAULT '{SERVICE}'"))

    def enrol(
        self, fingerprint: str, group: str = EVERYONE, *, name: str = "", software: str = "", people: int = 1
    ) -> int:
        """As `Roster.enrol`."""
        return self.roster.enrol(fingerprint, group, name=name, software=software, people=people)

    def user(self, fingerprint: str) -> int | None:
        """The number of the user with this certificate, None if never enrolled."""
        return self.roster.number(fingerprint)

    def called(self, users: Sequence[int]) -> list[str]:
        """What an operator knows these users by: their names, or the beginning of their fingerprints."""
        found: dict[int, str] = {}
        silos = self.roster.silos()
        clients = homes(np.array(users, np.int64), silos).tolist()
        known = sorted(set(clients))
        for start in range(0, len(known), _AT_ONCE):
            some = USERS.c.user.in_(known[start : start + _AT_ONCE])
            for row in self._database.all(sa.select(USERS).where(some)):
                people = f" ({row.people:,} people)" if row.people > 1 else ""
                found[int(row.user)] = (row.name or row.fingerprint[:_SHOWN]) + people
        return [found.get(client, f"user {client}") for client in clients]

    def users_count(self, group: str | None = None) -> int:
        """How many users have enrolled, in `group` or at all."""
        return self.roster.count(group)

    def add_run(self, run: str, specification: str, front: Front = SERVICE) -> bool:
        """Enter a run as waiting; False if the identical one is there.

        LedgerError if another run has its name, OtherVersion if the identical one was entered by another front.
        """
        with self._database.writing() as connection:
            known = connection.execute(sa.select(_runs).where(_runs.c.run == run)).first()
            if known is None:
                row = {"run": run, "specification": specification, "state": "waiting", "created": now(), "front": front}
                connection.execute(_runs.insert().values(number=following(connection, _runs.c.number), **row))
                return True
        if known.specification != specification:
            raise LedgerError(f"Expected a new name, got run={run!r}: another run has it. Choose another name.")
        _row(known).require(front)
        return False

    def set_state(self, run: str, state: str, error: str | None = None) -> None:
        """Where the run stands now, a `State`. LedgerError if there is no such run or state."""
        if state not in get_args(State):
            raise LedgerError(f"Expected a state of {get_args(State)}, got {state!r}.")
        with self._database.writing() as connection:
            changed = connection.execute(_runs.update().where(_runs.c.run == run).values(state=state, error=error))
            if changed.rowcount != 1:
                raise LedgerError(f"Expected a run that was submitted, got run={run!r}.")

    def runs(self) -> list[RunRow]:
        """Every run, in the order of submission."""
        return [_row(stored) for stored in self._database.all(sa.select(_runs).order_by(_runs.c.number))]

    def states(self) -> dict[str, int]:
        """How many runs there are in each state that any is in."""
        query = sa.select(_runs.c.state, sa.func.count()).group_by(_runs.c.state)
        return {str(state): int(number) for state, number in self._database.all(query)}

    def run(self, run: str) -> RunRow | None:
        """One run, None if never submitted."""
        rows = self._database.all(sa.select(_runs).where(_runs.c.run == run))
        return _row(rows[0]) if rows else None

    def fix_members(self, run: str, n: int, group: str = EVERYONE) -> NDArray[np.int64]:
        """User by slot, shape (n,): n active users of `group`, in order, drawn once and the same ever after.

        TooFewActive, with numbers, if fewer are; OtherVersion if the run began with another number of members.
        """
        count(n=n)
        with self._database.writing() as connection:
            fixed = self.members(run)
            if not len(fixed):
                row = connection.execute(sa.select(_runs.c.specification).where(_runs.c.run == run)).first()
                fixed = self.roster.members(connection, run, row.specification if row else "", n, group).members
                rows = [{"run": run, "slot": slot, "user": user} for slot, user in enumerate(fixed.tolist())]
                connection.execute(_slots.insert(), rows)
        if len(fixed) != n:
            raise OtherVersion(f"Expected the {len(fixed)} members that run {run!r} began with, got n={n}.")
        return fixed

    def seated(self, run: str) -> bool:
        """Whether the members of a run are fixed."""
        return bool(self._database.all(sa.select(_slots.c.slot).where(_slots.c.run == run).limit(1)))

    def drawn(self, run: str) -> Draw | None:
        """How the members of a run were drawn; None before, and for runs of earlier versions."""
        found = self.roster.drawn(run)
        return None if found is None else Draw(*found, self.members(run))

    def shared(self, one: int, other: int) -> int:
        """How many runs have both users, or people of both silos, as members."""
        both = _slots.alias()
        runs = sa.func.count(sa.distinct(_slots.c.run))
        query = sa.select(runs).select_from(_slots.join(both, both.c.run == _slots.c.run))
        return int(self._database.all(query.where(self._of(_slots, one), self._of(both, other)))[0][0])

    def _of(self, slots: sa.FromClause, client: int) -> sa.ColumnElement[bool]:
        """Seats of a client's users."""
        return slots.c.user.between(client, client + self.roster.silos().get(client, 1) - 1)

    def members(self, run: str) -> NDArray[np.int64]:
        """User by slot, as fixed; shape (0,) before."""
        query = sa.select(_slots.c.user).where(_slots.c.run == run).order_by(_slots.c.slot)
        return np.array([row.user for row in self._database.all(query)], dtype=np.int64)

    def ended_with(self, user: int, most: int) -> list[tuple[str, State]]:
        """Name and state of the runs with users of client `user` as members that have ended, from the latest, at most
        so many."""
        seated = sa.select(_slots.c.run).where(self._of(_slots, user))
        query = sa.select(_runs.c.run, _runs.c.state).where(_runs.c.run.in_(seated))
        ended = query.where(_runs.c.state.not_in(OPEN))
        rows = self._database.all(ended.order_by(_runs.c.number.desc()).limit(most))
        return [(row.run, row.state) for row in rows]

    def note_agreed(self, run: str, users: Sequence[int], *, epsilon: float, delta: float) -> None:
        """Keep, for their own clients, that these users have agreed to a run, whether they were asked or not; but of
        those who were forgotten meanwhile nothing."""
        with self._database.writing() as connection:
            query = sa.select(_agreed.c.user).where(_agreed.c.run == run)
            new = sorted(set(users) - set(connection.execute(query).scalars()) - self.roster.forgotten(connection))
            if new:
                row = {"run": run, "epsilon": epsilon, "delta": delta}
                connection.execute(_agreed.insert(), [row | {"user": user} for user in new])

    def agreed(self, user: int, most: int) -> list[tuple[str, float, float]]:
        """Name, ε and δ of the runs that a user has agreed to, from the latest, at most so many."""
        query = sa.select(_agreed).join(_runs, _runs.c.run == _agreed.c.run).where(_agreed.c.user == user)
        rows = self._database.all(query.order_by(_runs.c.number.desc()).limit(most))
        return [(row.run, row.epsilon, row.delta) for row in rows]


def _row(stored: Any) -> RunRow:
    return RunRow(stored.run, stored.specification, stored.state, stored.created, stored.error, stored.front)
