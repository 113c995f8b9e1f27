"""Who takes part and what runs: enrolled users, submitted runs, and the members of each run.

    registry = Registry(database, away_after=7 * DAY)
    user = registry.enrol(fingerprint, "clinics", name="ada")   # the same certificate is the same user, permanently
    registry.retire([user]); registry.away(user); registry.back(user)
    registry.add_run("summer", specification)
    members = registry.fix_members("summer", 1000)  # user by slot; drawn of the active ones, once

Users are numbered from 0 as they enrol. Every user belongs to one group, for which the population ledger adds up what
was promised; so a group's sum bounds each of its users' lifetime loss. A *silo* is one client of several people, each a
user: their numbers follow each other from the one by which the silo is known. It is one row here, and what is said of
it is said of all of them. Members are drawn by public randomness (`quoron_server.silos`): an auditor can repeat it.
"""

import hashlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Literal, TypeVar, get_args

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from quoron_privacy.errors import ConfigError, LedgerError, OtherVersion, count, printable
from quoron_server.plan import EVERYONE as EVERYONE
from quoron_server.silos import Draw, draw, homes, packed, seed_of, unpacked
from quoron_server.storage.database import Database
from quoron_server.storage.store import now

UserState = Literal["active", "away", "retired"]
State = Literal["waiting", "running", "complete", "below-min-cohort", "cancelled", "failed"]
OPEN = ("waiting", "running")  # states of a run that has not ended
Front = Literal["service", "flower", "flower-app"]
SERVICE: Front = "service"
FRONTS: dict[Front, str] = {  # what brings a run's questions to its members; nothing else can
    "service": "`quoron serve`",
    "flower": "`quoron submit --engine flower`",
    "flower-app": "a ServerApp of your own on Flower",
}

SCHEMA = sa.MetaData()
USERS = sa.Table(
    "users",
    SCHEMA,
    sa.Column("user", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("fingerprint", sa.Text, nullable=False, unique=True),
    sa.Column("group", sa.Text, nullable=False),
    sa.Column("enrolled_at", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False, server_default=""),
    sa.Column("software", sa.Text, nullable=False, server_default=""),
    sa.Column("state", sa.Text, nullable=False, server_default="active"),  # as was said; who was not seen is away
    sa.Column("why", sa.Text, nullable=False, server_default=""),
    sa.Column("seen", sa.BigInteger, nullable=False, server_default="0", default=lambda: int(time.time())),
    sa.Column("people", sa.Integer, nullable=False, server_default="1"),  # users from `user` on, of one client
)
KEYS = sa.Table(  # that were somebody's: of no use any more, and never another user
    "rotated",
    SCHEMA,
    sa.Column("fingerprint", sa.Text, primary_key=True),
    sa.Column("user", sa.Integer, nullable=False),
    sa.Column("statement", sa.Text, nullable=False),  # signed by it and by the key that follows it
    sa.Column("time", sa.Text, nullable=False),
)
DRAWS = sa.Table(
    "draws",
    SCHEMA,
    sa.Column("run", sa.Text, primary_key=True),
    sa.Column("seed", sa.Text, nullable=False),
    sa.Column("active", sa.LargeBinary, nullable=False),  # who was: bits by user, compressed
)
GONE = sa.Table(  # users of whom nothing is kept but that they were
    "forgotten",
    SCHEMA,
    sa.Column("user", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("time", sa.Text, nullable=False),
    sa.Column("keys", sa.Integer, nullable=False),  # that were erased
    sa.Column("agreements", sa.Integer, nullable=False),
)
NOBODYS = sa.Table(  # digests of their keys, which say nothing of whose they were: never another user
    "nobodys",
    SCHEMA,
    sa.Column("digest", sa.Text, primary_key=True),
)
_runs = sa.Table(
    "runs",
    SCHEMA,
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
    SCHEMA,
    sa.Column("run", sa.Text, primary_key=True),
    sa.Column("slot", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("user", sa.Integer, nullable=False),
)
_agreed = sa.Table(  # whose client has said that it takes part: its own record must know of it
    "agreed",
    SCHEMA,
    sa.Column("user", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("run", sa.Text, primary_key=True),
    sa.Column("epsilon", sa.Float, nullable=False),  # what it costs a user over a lifetime, for replacing one
    sa.Column("delta", sa.Float, nullable=False),
)
STANDING = sa.Index("users_standing", USERS.c.group, USERS.c.state, USERS.c.seen)
NAMES = sa.Index("users_names", USERS.c.name)
_by_user = sa.Index("slots_by_user", _slots.c.user)

T = TypeVar("T")

STATES: tuple[UserState, ...] = ("active", "away", "retired")
DAY = 86400.0
AWAY_AFTER = 7 * DAY
REVOKED, ROTATED = "revoked", "its key is another user's now"
FORGOTTEN = "forgotten"
_SAID = "by its operator"
_STEPS = 24  # of `away_after`, in which it is kept when somebody was seen
_LONGEST = 128  # characters of a name, and of what its client says that it runs
_AT_ONCE, _SHOWN = 500, 16  # users in one statement; characters of a fingerprint


class RotatedKey(LedgerError):
    """A key that its owner has put another one in the place of."""


class ForgottenKey(LedgerError):
    """A key of a user who has left, and was forgotten."""


def require_current(connection: sa.Connection, fingerprint: str) -> None:
    """RotatedKey or ForgottenKey of one that was somebody's."""
    forgotten = sa.select(NOBODYS).where(NOBODYS.c.digest == nobodys(fingerprint))
    if connection.execute(forgotten).first() is not None:
        raise ForgottenKey("Expected a key that is in use, got one of a user who has left and was forgotten.")
    gone = connection.execute(sa.select(KEYS.c.user).where(KEYS.c.fingerprint == fingerprint)).first()
    if gone is not None:
        raise RotatedKey(
            f"Expected a key that is in use, got one that user {gone.user} has put another in the place of."
        )


def nobodys(fingerprint: str) -> str:
    """Return the digest by which a forgotten key is known."""
    return hashlib.sha256(f"quoron nobody's {fingerprint}".encode()).hexdigest()


def require_unused(connection: sa.Connection, other: int, user: int) -> None:
    """Raise ConfigError if `other` was ever in a run: then it is another user, and what it was promised stands."""
    people = connection.scalar(sa.select(USERS.c.people).where(USERS.c.user == other)) or 1
    for table in (_slots, _agreed):
        any_of = table.c.user.between(other, other + people - 1)
        if connection.execute(sa.select(table.c.user).where(any_of).limit(1)).first() is not None:
            raise ConfigError(
                f"Expected a new key that was in no run, got that of user {other}. It is another user than user {user} "
                "permanently: retire one of them, or rotate to a key that is new."
            )


@dataclass(frozen=True, slots=True)
class User:
    """One user, as the roster has it."""

    user: int
    name: str  # of its certificate, for people; several may have the same
    group: str
    state: UserState
    why: str  # it is not active
    seen: float  # seconds since 1970, to the grid
    software: str  # that its client said last
    fingerprint: str
    enrolled_at: str
    people: int = 1  # of a silo: users `user`, `user` + 1, ...

    def as_json(self) -> dict[str, Any]:
        """For people: when it was seen as a time."""
        return asdict(self) | {"seen": datetime.fromtimestamp(self.seen, UTC).isoformat(timespec="minutes")}


class NotEnrolled(LedgerError):
    """A client is known in another group, or with another number of people; `outside` is what the client reads."""


class TooFewActive(LedgerError):
    """A run has more seats than there are active users in its group."""


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
        """Raise OtherVersion unless it was entered by this front, as the members of another hear of no question."""
        if self.front != front:
            raise OtherVersion(
                f"Expected run {self.run} to go on by {FRONTS.get(self.front, self.front)}, which it was submitted "
                f"through, got {FRONTS[front]}. Go on with it there, or cancel it."
            )


class Registry:
    """Users, runs and memberships in one database. Every method is one transaction and may be repeated.

    A user is *retired* when its operator says so or its key was revoked; *away* when its operator says so, or when it
    was not seen for `away_after` seconds; otherwise *active*. To be seen is to be connected: nothing that a client
    computes, answers or declines moves any of it, so who is drawn is no function of anybody's data
    (docs/privacy/silos.md#ro1). When somebody was seen is kept as a time on a grid of `away_after` / 24: who had to
    come back in the middle of a round does not show.
    """

    def __init__(
        self, database: Database, *, away_after: float = AWAY_AFTER, clock: Callable[[], float] = time.time
    ) -> None:
        """Makes its tables, and what those of earlier versions lack. `away_after` seconds, infinite for never."""
        if not away_after >= 1:
            raise ConfigError(f"Expected away_after of 1 second or more, got {away_after}.")
        self._database, self._clock, self._away_after = database, clock, away_after
        self._grid = max(1, int(min(away_after, 365 * DAY) / _STEPS))
        database.ensure(SCHEMA)
        with database.writing() as connection:
            added = [column for table in (USERS, _runs) for column in _added(connection, table)]
            if USERS.c.seen in added:  # none was recorded before: from now on
                connection.execute(USERS.update().values(seen=self.step))
            for index in (STANDING, NAMES, _by_user):
                index.create(connection, checkfirst=True)

    def enrol(
        self, fingerprint: str, group: str = EVERYONE, *, name: str = "", software: str = "", people: int = 1
    ) -> int:
        """The number of the user with this key, new or known, who is here: it is seen; of so many people the first's.

        NotEnrolled if known in another group or for another number of people, RotatedKey for a key that was somebody's.
        """
        count(people=people)
        called = {"name": printable(name)[:_LONGEST], "software": printable(software)[:_LONGEST]}
        with self._database.writing() as connection:
            known = connection.execute(sa.select(USERS).where(USERS.c.fingerprint == fingerprint)).first()
            if known is None:
                require_current(connection, fingerprint)
                user = following(connection, USERS.c.user + USERS.c.people - 1)
                row = {"user": user, "fingerprint": fingerprint, "group": group, "enrolled_at": now(), "people": people}
                connection.execute(USERS.insert(), row | called | {"seen": self.step})
                return user
            stored = str(known._mapping["group"])
            if stored != group:
                raise NotEnrolled(
                    f"Expected user {known.user} in its group {stored!r}, got group {group!r}. A user never changes "
                    "group: what was guaranteed to it is added up there.",
                    outside="This client cannot be enrolled here.",
                )
            if known.people != people:
                raise NotEnrolled(
                    f"Expected {known.people:,} people of the client that is enrolled as user {known.user}, got "
                    f"{people:,}. A client always has the same number of people, as each is a user with a number. Give "
                    "the same number: with fewer in the client's file, the others are absent. For more, enrol a "
                    "further client with a key of its own."
                )
            changes: dict[str, Any] = {
                key: value for key, value in called.items() if value and getattr(known, key) != value
            }
            if known.seen < self.step:
                changes["seen"] = self.step
            if changes:
                connection.execute(USERS.update().where(USERS.c.user == known.user).values(changes))
        return int(known.user)

    def user(self, fingerprint: str) -> int | None:
        """Return the number of the user with this key; None if unknown."""
        rows = self._database.all(sa.select(USERS.c.user).where(USERS.c.fingerprint == fingerprint))
        return int(rows[0].user) if rows else None

    def seen(self, users: Iterable[int]) -> None:
        """These are connected now."""
        at = self.step
        with self._database.writing() as connection:
            for some in _batched(users, _AT_ONCE):
                late = USERS.c.user.in_(some), USERS.c.seen < at
                connection.execute(USERS.update().where(*late).values(seen=at))

    def users_count(self) -> int:
        """Return how many have enrolled."""
        return int(self._database.all(sa.select(sa.func.sum(USERS.c.people)))[0][0] or 0)

    def silos(self) -> dict[int, int]:
        """Return how many people each client of several has, by the number of its first."""
        query = sa.select(USERS.c.user, USERS.c.people).where(USERS.c.people > 1)
        return {int(row.user): int(row.people) for row in self._database.all(query)}

    def standing(self, group: str) -> dict[str, int]:
        """Return how many of a group are in each state now."""
        late = (USERS.c.seen < self._cutoff()).label("late")
        query = sa.select(USERS.c.state, late, sa.func.sum(USERS.c.people).label("users")).where(USERS.c.group == group)
        found: dict[str, int] = dict.fromkeys(STATES, 0)
        for row in self._database.all(query.group_by(USERS.c.state, late)):
            found["away" if row.state == "active" and row.late else row.state] += int(row.users)
        return found

    def active(self, group: str) -> NDArray[np.int64]:
        """Return the numbers of those whom a run may draw from now, in order."""
        here = USERS.c.group == group, USERS.c.state == "active", USERS.c.seen >= self._cutoff()
        found = self._database.all(sa.select(USERS.c.user, USERS.c.people).where(*here).order_by(USERS.c.user))
        firsts, people = np.array([tuple(row) for row in found], dtype=np.int64).reshape(-1, 2).T
        return np.repeat(firsts - np.cumsum(people) + people, people) + np.arange(people.sum())

    def page(self, *, group: str = "", state: str = "", after: int = 0, most: int = _AT_ONCE) -> list[User]:
        """Users from number `after` on, at most so many, of one group and state or of all. ConfigError for no state."""
        if state and state not in STATES:
            raise ConfigError(f"Expected a state of {', '.join(STATES)}, got {state!r}.")
        query, late = sa.select(USERS).where(USERS.c.user >= after), USERS.c.seen < self._cutoff()
        if group:
            query = query.where(USERS.c.group == group)
        if state == "away":
            query = query.where(sa.or_(USERS.c.state == "away", sa.and_(USERS.c.state == "active", late)))
        elif state:
            query = query.where(USERS.c.state == state, *([~late] if state == "active" else []))
        return [self._told(row) for row in self._database.all(query.order_by(USERS.c.user).limit(most))]

    def find(self, word: str) -> User:
        """The user with this number, name or fingerprint (or the first 8 digits of one at least), or the silo with the
        number of any of its people. ConfigError for none, and for several."""
        short = len(word) >= 8 and not set(word) - set("0123456789abcdef")
        tries: list[sa.ColumnElement[bool]] = []
        if word.isascii() and word.isdigit() and len(word) < 10:
            tries += [sa.and_(USERS.c.user <= int(word), USERS.c.user + USERS.c.people > int(word))]
        tries += [USERS.c.name == word, USERS.c.fingerprint == word]
        tries += [USERS.c.fingerprint.startswith(word)] if short else []
        for each in tries:
            found = self._database.all(sa.select(USERS).where(each).order_by(USERS.c.user).limit(3))
            if len(found) == 1:
                return self._told(found[0])
            if found:
                numbers = ", ".join(str(row.user) for row in found)
                raise ConfigError(f"Expected one user, got {word!r}, which several have: {numbers}. Give a number.")
        raise ConfigError(f"Expected a user's number, name or fingerprint of `quoron admin users list`, got {word!r}.")

    def retire(self, users: Iterable[int]) -> None:
        """They are members of no run that begins from now on; of those that have begun they stay members. Of who is
        retired already, the reason stays: by it a seat or a key that was lost does not come back."""
        self._say(users, "retired", _SAID)

    def retire_keys(self, fingerprints: Iterable[str]) -> list[int]:
        """Return the same, by their keys; those who were not retired so before."""
        found: list[int] = []
        with self._database.writing() as connection:
            for some in _batched(sorted(fingerprints), _AT_ONCE):
                new = USERS.c.fingerprint.in_(some), USERS.c.state != "retired"
                found += connection.execute(sa.select(USERS.c.user).where(*new)).scalars().all()
                connection.execute(USERS.update().where(*new).values(state="retired", why=REVOKED))
        return sorted(found)

    def away(self, user: int) -> None:
        """It is no member of runs that begin, until it is said to be back. ConfigError for one that is retired."""
        found = self.find(str(user))
        if found.state == "retired":
            raise ConfigError(f"Expected a user who is active or away, got user {user}, retired: {found.why}.")
        self._say([found.user], "away", _SAID)

    def back(self, user: int) -> None:
        """It is active from now on, though it may have to be seen first. ConfigError for one without a key."""
        found = self.find(str(user))
        if found.why in (ROTATED, FORGOTTEN):
            raise ConfigError(f"Expected a user who has a key, got user {user}: {found.why}.")
        self._say([found.user], "active", "")

    def rotate(self, old: str, new: str, statement: str) -> tuple[int, int | None]:
        """The user with the key `old` has the key `new` from now on, and the same number, memberships and budget.

        `statement` is signed by both, which the caller has checked. Whom `new` was enrolled as, the second number, is
        retired if that was in no run. Again is the same. ConfigError for an `old` that is nobody's or was revoked, and
        for a `new` that is known as another user who was in a run.
        """
        with self._database.writing() as connection:
            user = connection.execute(sa.select(USERS).where(USERS.c.fingerprint == old)).first()
            before = connection.execute(sa.select(KEYS).where(KEYS.c.fingerprint == old)).first()
            holder = connection.execute(sa.select(USERS).where(USERS.c.fingerprint == new)).first()
            if before is not None and holder is not None and holder.user == before.user:
                return int(holder.user), None
            if user is None:
                gone = "" if before is None else f", which user {before.user} has put another in the place of"
                raise ConfigError(f"Expected the key of a user, got {old[:16]}…{gone}.")
            if user.why == REVOKED:
                raise ConfigError(
                    f"Expected a key that was never revoked, got that of user {user.user}: anyone who has it could "
                    "sign for any other. Retire the user and enrol another."
                )
            require_current(connection, new)
            if holder is not None:
                require_unused(connection, holder.user, user.user)
                other = {"fingerprint": f"user {user.user}: {new}", "state": "retired", "why": ROTATED}
                connection.execute(USERS.update().where(USERS.c.user == holder.user).values(other))
            row = {"fingerprint": old, "user": user.user, "statement": statement, "time": now()}
            connection.execute(KEYS.insert(), row)
            connection.execute(USERS.update().where(USERS.c.user == user.user).values(fingerprint=new))
            return int(user.user), None if holder is None else int(holder.user)

    def forget(self, user: int) -> dict[str, Any]:
        """Erase who a user was: its name, its keys, what its client runs, when it came and was seen, and what it agreed
        to; so of whom its new key was enrolled as. Its number stays, retired, and its seats; its keys are nobody's.
        What was erased, the same if it was before."""
        with self._database.writing() as connection:
            known = connection.execute(sa.select(USERS.c.fingerprint).where(USERS.c.user == user)).first()
            before = connection.execute(sa.select(GONE).where(GONE.c.user == user)).first()
            if before is not None:
                return dict(before._mapping)
            if known is None:
                raise ConfigError(f"Expected a user's number, got {user}. `quoron admin users list` has them.")
            rotated = connection.scalars(sa.select(KEYS.c.fingerprint).where(KEYS.c.user == user))
            keys = sorted({known.fingerprint, *rotated})
            for each in map(nobodys, keys):
                if connection.execute(sa.select(NOBODYS).where(NOBODYS.c.digest == each)).first() is None:
                    connection.execute(NOBODYS.insert(), {"digest": each})
            connection.execute(KEYS.delete().where(KEYS.c.user == user))
            agreements = connection.execute(_agreed.delete().where(_agreed.c.user == user)).rowcount
            nothing = {"name": "", "software": "", "enrolled_at": "", "seen": 0, "state": "retired", "why": FORGOTTEN}
            rows = USERS.update().where(sa.or_(USERS.c.user == user, USERS.c.fingerprint.startswith(f"user {user}: ")))
            connection.execute(rows.values(nothing | {"fingerprint": f"{FORGOTTEN} " + sa.cast(USERS.c.user, sa.Text)}))
            done = {"user": user, "time": now(), "keys": len(keys), "agreements": agreements}
            connection.execute(GONE.insert(), done)
            return done

    def rotations(self) -> list[dict[str, Any]]:
        """Return every key that was somebody's, with the statement that put another in its place."""
        rows = self._database.all(sa.select(KEYS).order_by(KEYS.c.user, KEYS.c.time))
        return [dict(row._mapping) for row in rows]

    def called(self, users: Sequence[int]) -> list[str]:
        """Return what an operator knows these users by: their names, or the beginning of their fingerprints."""
        found: dict[int, str] = {}
        silos = self.silos()
        clients = homes(np.array(users, np.int64), silos).tolist()
        for some in _batched(sorted(set(clients)), _AT_ONCE):
            for row in self._database.all(sa.select(USERS).where(USERS.c.user.in_(some))):
                people = f" ({row.people:,} people)" if row.people > 1 else ""
                found[int(row.user)] = (row.name or row.fingerprint[:_SHOWN]) + people
        return [found.get(client, f"user {client}") for client in clients]

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
        """Return every run, in the order of submission."""
        return [_row(stored) for stored in self._database.all(sa.select(_runs).order_by(_runs.c.number))]

    def states(self) -> dict[str, int]:
        """Return how many runs there are in each state that any is in."""
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
                fixed = self._draw(connection, run, n, group)
                rows = [{"run": run, "slot": slot, "user": user} for slot, user in enumerate(fixed.tolist())]
                connection.execute(_slots.insert(), rows)
        if len(fixed) != n:
            raise OtherVersion(f"Expected the {len(fixed)} members that run {run!r} began with, got n={n}.")
        return fixed

    def seated(self, run: str) -> bool:
        """Return whether the members of a run are fixed."""
        return bool(self._database.all(sa.select(_slots.c.slot).where(_slots.c.run == run).limit(1)))

    def drawn(self, run: str) -> Draw | None:
        """Return how the members of a run were drawn; None before, and for runs of earlier versions."""
        rows = self._database.all(sa.select(DRAWS).where(DRAWS.c.run == run))
        return Draw(str(rows[0].seed), unpacked(rows[0].active), self.members(run)) if rows else None

    def members(self, run: str) -> NDArray[np.int64]:
        """User by slot, as fixed; shape (0,) before."""
        query = sa.select(_slots.c.user).where(_slots.c.run == run).order_by(_slots.c.slot)
        return np.array([row.user for row in self._database.all(query)], dtype=np.int64)

    def ended_with(self, user: int, most: int) -> list[tuple[str, State]]:
        """Name and state of the runs with users of client `user` as members that have ended, from the latest, at most
        so many."""
        last = user + self.silos().get(user, 1) - 1
        seated = sa.select(_slots.c.run).where(_slots.c.user.between(user, last))
        query = sa.select(_runs.c.run, _runs.c.state).where(_runs.c.run.in_(seated))
        ended = query.where(_runs.c.state.not_in(OPEN))
        rows = self._database.all(ended.order_by(_runs.c.number.desc()).limit(most))
        return [(row.run, row.state) for row in rows]

    def note_agreed(self, run: str, users: Sequence[int], *, epsilon: float, delta: float) -> None:
        """Keep, for their own clients, that these users have agreed to a run, whether they were asked or not; but of
        those who were forgotten meanwhile nothing."""
        with self._database.writing() as connection:
            known, gone = sa.select(_agreed.c.user).where(_agreed.c.run == run), sa.select(GONE.c.user)
            new = sorted(set(users) - set(connection.scalars(known)) - set(connection.scalars(gone)))
            if new:
                row = {"run": run, "epsilon": epsilon, "delta": delta}
                connection.execute(_agreed.insert(), [row | {"user": user} for user in new])

    def agreed(self, user: int, most: int) -> list[tuple[str, float, float]]:
        """Name, ε and δ of the runs that a user has agreed to, from the latest, at most so many."""
        query = sa.select(_agreed).join(_runs, _runs.c.run == _agreed.c.run).where(_agreed.c.user == user)
        rows = self._database.all(query.order_by(_runs.c.number.desc()).limit(most))
        return [(row.run, row.epsilon, row.delta) for row in rows]

    def _draw(self, connection: sa.Connection, run: str, n: int, group: str) -> NDArray[np.int64]:
        """Draw the members of a run, within the transaction that fills its seats. TooFewActive, with numbers."""
        specification = connection.scalar(sa.select(_runs.c.specification).where(_runs.c.run == run)) or ""
        active, seed = self.active(group), seed_of(run, specification)
        if len(active) < n:
            there = self.standing(group)
            raise TooFewActive(
                f"Expected {n} active users in population {group!r}, got {there['active']} ({there['away']} away, "
                f"{there['retired']} retired). Wait for more to connect, or begin a run for fewer."
            )
        connection.execute(DRAWS.insert(), {"run": run, "seed": seed, "active": packed(active)})
        return draw(seed, active, n)

    def _say(self, users: Iterable[int], state: UserState, why: str) -> None:
        with self._database.writing() as connection:
            for some in _batched(users, _AT_ONCE):
                which = USERS.c.user.in_(some), *([USERS.c.state != "retired"] if state == "retired" else [])
                connection.execute(USERS.update().where(*which).values(state=state, why=why))

    def _told(self, row: Any) -> User:
        late = row.state == "active" and row.seen < self._cutoff()
        why = "not seen since" if late else row.why
        state: UserState = "away" if late else row.state
        group = str(row._mapping["group"])
        known = row.seen, row.software, row.fingerprint, row.enrolled_at, row.people
        return User(row.user, row.name, group, state, why, *known)

    @property
    def step(self) -> int:
        """Return the time on the grid, which is stored for a user who is seen."""
        return int(self._clock()) // self._grid * self._grid

    def _cutoff(self) -> int:
        """Users last seen before this time are away; never earlier than after `away_after`, whatever the grid."""
        return 0 if math.isinf(self._away_after) else int(self._clock() - self._away_after) - self._grid


def _batched(values: Iterable[T], most: int) -> Iterator[list[T]]:
    rest = iter(values)
    while some := list(islice(rest, most)):
        yield some


def following(connection: sa.Connection, column: "sa.ColumnElement[Any]") -> int:
    """Return the first number after all in a column."""
    highest = connection.scalar(sa.select(sa.func.max(column)))
    return 0 if highest is None else int(highest) + 1


def _added(connection: sa.Connection, table: sa.Table) -> list[sa.Column[Any]]:
    """Give a table of an earlier version the columns that it lacks; those."""
    there = {each["name"] for each in sa.inspect(connection).get_columns(table.name)}
    lacking = [column for column in table.columns if column.name not in there]
    for column in lacking:
        words = sa.schema.CreateColumn(column).compile(dialect=connection.dialect)
        connection.exec_driver_sql(f"ALTER TABLE {table.name} ADD COLUMN {words}")
    return lacking


def _row(stored: Any) -> RunRow:
    return RunRow(stored.run, stored.specification, stored.state, stored.created, stored.error, stored.front)
