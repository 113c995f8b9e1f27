"""Who takes part and what runs: enrolled users, submitted runs, and the members of each run.

    registry = Registry(database, away_after=7 * DAY)
    user = registry.enrol(fingerprint, "clinics", name="ada")   # the same certificate is the same user, permanently
    registry.retire([user]); registry.back(user)
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
from numpy.typing import NDArray

from quoron_privacy.arrays import compressed, decompressed, mask
from quoron_privacy.errors import ConfigError, LedgerError, OtherVersion, count, printable
from quoron_server.plan import EVERYONE as EVERYONE
from quoron_server.silos import Draw, draw, homes, seed_of
from quoron_server.storage.store import Execute, Row, Store, Table, marks, now

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

_draws = Table(
    "draws",
    {
        "run": "TEXT NOT NULL",
        "seed": "TEXT NOT NULL",
        "active": "BLOB NOT NULL",  # who was: bits by user, compressed
    },
    ("run",),
)
_gone = Table(  # users of whom nothing is kept but that they were
    "forgotten",
    {
        "user": "INTEGER NOT NULL",
        "time": "TEXT NOT NULL",
        "agreements": "INTEGER NOT NULL",
    },
    ("user",),
)
# Digests of their keys, which say nothing of whose they were: never another user.
_nobodys = Table("nobodys", {"digest": "TEXT NOT NULL"}, ("digest",))
_slots = Table(
    "slots", {"run": "TEXT NOT NULL", "slot": "INTEGER NOT NULL", "user": "INTEGER NOT NULL"}, ("run", "slot")
)
_agreed = Table(  # whose client has said that it takes part: its own record must know of it
    "agreed",
    {
        "user": "INTEGER NOT NULL",
        "run": "TEXT NOT NULL",
        "epsilon": "FLOAT NOT NULL",  # what it costs a user over a lifetime, for replacing one
        "delta": "FLOAT NOT NULL",
    },
    ("user", "run"),
)
INDICES = {
    "users_standing": 'users ("group", state, seen)',
    "users_names": "users (name)",
    "slots_by_user": 'slots ("user")',
}

T = TypeVar("T")

STATES: tuple[UserState, ...] = ("active", "away", "retired")
DAY = 86400.0
AWAY_AFTER = 7 * DAY
REVOKED, FORGOTTEN = "revoked", "forgotten"
_SAID = "by its operator"
_STEPS = 24  # of `away_after`, in which it is kept when somebody was seen
_LONGEST = 128  # characters of a name, and of what its client says that it runs
_AT_ONCE, _SHOWN = 500, 16  # users in one statement; characters of a fingerprint


class ForgottenKey(LedgerError):
    """A key of a user who has left, and was forgotten."""


def nobodys(fingerprint: str) -> str:
    """Return the digest by which a forgotten key is known."""
    return hashlib.sha256(f"quoron nobody's {fingerprint}".encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class User:
    """One user, as the roster has it."""

    user: int
    fingerprint: str
    group: str
    enrolled_at: str
    name: str = ""  # of its certificate, for people; several may have the same
    software: str = ""  # that its client said last
    state: UserState = "active"  # as was said; who was not seen is away
    why: str = ""  # it is not active
    seen: int = 0  # seconds since 1970, to the grid
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
    number: int  # in order of submission
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


USERS = Table.of("users", User, "user", unique="fingerprint")
_runs = Table.of("runs", RunRow, "run", unique="number")
SCHEMA = (USERS, _draws, _gone, _nobodys, _runs, _slots, _agreed)


class Registry:
    """Users, runs and memberships in one database. Every method is one transaction and may be repeated.

    A user is *retired* when its operator says so or its key was revoked; *away* when it was not seen for `away_after`
    seconds; otherwise *active*. To be seen is to be connected: nothing that a client
    computes, answers or declines moves any of it, so who is drawn is no function of anybody's data
    (docs/privacy/silos.md#ro1). When somebody was seen is kept as a time on a grid of `away_after` / 24: who had to
    come back in the middle of a round does not show.
    """

    def __init__(
        self, database: Store, *, away_after: float = AWAY_AFTER, clock: Callable[[], float] = time.time
    ) -> None:
        """Makes its tables. `away_after` seconds, infinite for never."""
        if not away_after >= 1:
            raise ConfigError(f"Expected away_after of 1 second or more, got {away_after}.")
        self._database, self._clock, self._away_after = database, clock, away_after
        self._grid = max(1, int(min(away_after, 365 * DAY) / _STEPS))
        database.ensure(SCHEMA)
        with database.transaction() as execute:
            for name, columns in INDICES.items():
                execute(f"CREATE INDEX IF NOT EXISTS {name} ON {columns}")

    def enrol(
        self, fingerprint: str, group: str = EVERYONE, *, name: str = "", software: str = "", people: int = 1
    ) -> int:
        """The number of the user with this key, new or known, who is here: it is seen; of so many people the first's.

        NotEnrolled if known in another group or for another number of people, ForgottenKey for one that was forgotten.
        """
        count(people=people)
        called = {"name": printable(name)[:_LONGEST], "software": printable(software)[:_LONGEST]}
        with self._database.transaction() as execute:
            found = execute("SELECT * FROM users WHERE fingerprint = ?", [fingerprint])
            if not found:
                if execute("SELECT digest FROM nobodys WHERE digest = ?", [nobodys(fingerprint)]):
                    raise ForgottenKey(
                        "Expected a key that is in use, got one of a user who has left and was forgotten."
                    )
                user = following(execute, USERS, '"user" + people - 1')
                new = User(user, fingerprint, group, now(), seen=self.step, people=people)
                USERS.insert(execute, asdict(new) | called)
                return user
            known = found[0]
            if known["group"] != group:
                raise NotEnrolled(
                    f"Expected user {known['user']} in its group {known['group']!r}, got group {group!r}. A user never "
                    "changes group: what was guaranteed to it is added up there.",
                    outside="This client cannot be enrolled here.",
                )
            if known["people"] != people:
                raise NotEnrolled(
                    f"Expected {known['people']:,} people of the client that is enrolled as user {known['user']}, got "
                    f"{people:,}. A client always has the same number of people, as each is a user with a number. Give "
                    "the same number: with fewer in the client's file, the others are absent. For more, enrol a "
                    "further client with a key of its own."
                )
            changes: Row = {key: value for key, value in called.items() if value and known[key] != value}
            if known["seen"] < self.step:
                changes["seen"] = self.step
            if changes:
                _change(execute, changes, '"user" = ?', known["user"])
        return int(known["user"])

    def user(self, fingerprint: str) -> int | None:
        """Return the number of the user with this key; None if unknown."""
        rows = self._database.rows('SELECT "user" FROM users WHERE fingerprint = ?', [fingerprint])
        return int(rows[0]["user"]) if rows else None

    def seen(self, users: Iterable[int]) -> None:
        """These are connected now."""
        at = self.step
        with self._database.transaction() as execute:
            for some in _batched(users, _AT_ONCE):
                _change(execute, {"seen": at}, f'"user" IN ({marks(some)}) AND seen < ?', *some, at)

    def users_count(self) -> int:
        """Return how many have enrolled."""
        return int(self._database.rows("SELECT sum(people) AS users FROM users")[0]["users"] or 0)

    def silos(self) -> dict[int, int]:
        """Return how many people each client of several has, by the number of its first."""
        rows = self._database.rows('SELECT "user", people FROM users WHERE people > 1')
        return {row["user"]: row["people"] for row in rows}

    def standing(self, group: str) -> dict[str, int]:
        """Return how many of a group are in each state now."""
        query = 'SELECT state, seen < ? AS late, sum(people) AS users FROM users WHERE "group" = ? GROUP BY 1, 2'
        found: dict[str, int] = dict.fromkeys(STATES, 0)
        for row in self._database.rows(query, [self._cutoff(), group]):
            found["away" if row["state"] == "active" and row["late"] else row["state"]] += int(row["users"])
        return found

    def active(self, group: str) -> NDArray[np.int64]:
        """Return the numbers of those whom a run may draw from now, in order."""
        query = 'SELECT "user", people FROM users WHERE "group" = ? AND state = ? AND seen >= ? ORDER BY "user"'
        found = [(row["user"], row["people"]) for row in self._database.rows(query, [group, "active", self._cutoff()])]
        firsts, people = np.array(found, np.int64).reshape(-1, 2).T
        return np.repeat(firsts - np.cumsum(people) + people, people) + np.arange(people.sum())

    def page(self, *, after: int = 0, most: int = _AT_ONCE) -> list[User]:
        """Return users from number `after` on, at most so many, in order."""
        rows = self._database.rows('SELECT * FROM users WHERE "user" >= ? ORDER BY "user" LIMIT ?', [after, most])
        return [self._user(row) for row in rows]

    def find(self, word: str) -> User:
        """The user with this number, name or fingerprint (or the first 8 digits of one at least), or the silo with the
        number of any of its people. ConfigError for none, and for several."""
        short = len(word) >= 8 and not set(word) - set("0123456789abcdef")
        tries: list[tuple[str, Any]] = []
        if word.isascii() and word.isdigit() and len(word) < 10:
            tries += [('? - "user" BETWEEN 0 AND people - 1', int(word))]
        tries += [("name = ?", word), ("fingerprint = ?", word)]
        tries += [("fingerprint LIKE ?", f"{word}%")] if short else []
        for where, given in tries:
            found = self._database.rows(f'SELECT * FROM users WHERE {where} ORDER BY "user" LIMIT 3', [given])
            if len(found) == 1:
                return self._user(found[0])
            if found:
                numbers = ", ".join(str(row["user"]) for row in found)
                raise ConfigError(f"Expected one user, got {word!r}, which several have: {numbers}. Give a number.")
        raise ConfigError(f"Expected a user's number, name or fingerprint of `quoron admin users list`, got {word!r}.")

    def retire(self, users: Iterable[int]) -> None:
        """They are members of no run that begins from now on; of those that have begun they stay members. Of who is
        retired already, the reason stays: by it a key that was lost does not come back."""
        self._say(users, "retired", _SAID)

    def retire_keys(self, fingerprints: Iterable[str]) -> list[int]:
        """Return the same, by their keys; those who were not retired so before."""
        found: list[int] = []
        with self._database.transaction() as execute:
            for some in _batched(sorted(fingerprints), _AT_ONCE):
                new = f"fingerprint IN ({marks(some)}) AND state != 'retired'"
                found += _change(execute, {"state": "retired", "why": REVOKED}, new, *some)
        return sorted(found)

    def back(self, user: int) -> None:
        """It is active from now on, though it may have to be seen first. ConfigError for one without a key."""
        found = self.find(str(user))
        if found.why == FORGOTTEN:
            raise ConfigError(f"Expected a user who has a key, got user {user}: {found.why}.")
        self._say([found.user], "active", "")

    def forget(self, user: int) -> dict[str, Any]:
        """Erase who a user was: its name, its key, what its client runs, when it came and was seen, and what it agreed
        to. Its number stays, retired, and its seats; its key is nobody's. What was erased, the same if it was before.
        """
        with self._database.transaction() as execute:
            for before in execute('SELECT * FROM forgotten WHERE "user" = ?', [user]):
                return before
            known = execute('SELECT fingerprint FROM users WHERE "user" = ?', [user])
            if not known:
                raise ConfigError(f"Expected a user's number, got {user}. `quoron admin users list` has them.")
            _nobodys.insert(execute, {"digest": nobodys(known[0]["fingerprint"])})
            agreements = len(execute('DELETE FROM agreed WHERE "user" = ? RETURNING run', [user]))
            nothing = {"name": "", "software": "", "enrolled_at": "", "seen": 0, "state": "retired", "why": FORGOTTEN}
            _change(execute, nothing | {"fingerprint": f"{FORGOTTEN} {user}"}, '"user" = ?', user)
            done = {"user": user, "time": now(), "agreements": agreements}
            _gone.insert(execute, done)
            return done

    def called(self, users: Sequence[int]) -> list[str]:
        """Return what an operator knows these users by: their names, or the beginning of their fingerprints."""
        found: dict[int, str] = {}
        silos = self.silos()
        clients = homes(np.array(users, np.int64), silos).tolist()
        for some in _batched(sorted(set(clients)), _AT_ONCE):
            query = f'SELECT "user", name, fingerprint, people FROM users WHERE "user" IN ({marks(some)})'
            for row in self._database.rows(query, some):
                people = f" ({row['people']:,} people)" if row["people"] > 1 else ""
                found[row["user"]] = (row["name"] or row["fingerprint"][:_SHOWN]) + people
        return [found.get(client, f"user {client}") for client in clients]

    def add_run(self, run: str, specification: str, front: Front = SERVICE) -> bool:
        """Enter a run as waiting; False if the identical one is there.

        LedgerError if another run has its name, OtherVersion if the identical one was entered by another front.
        """
        with self._database.transaction() as execute:
            known = self.run(run)
            if known is None:
                number = following(execute, _runs, "number")
                _runs.insert(execute, asdict(RunRow(run, number, specification, "waiting", now(), None, front)))
                return True
        if known.specification != specification:
            raise LedgerError(f"Expected a new name, got run={run!r}: another run has it. Choose another name.")
        known.require(front)
        return False

    def set_state(self, run: str, state: str, error: str | None = None) -> None:
        """Where the run stands now, a `State`. LedgerError if there is no such run or state."""
        if state not in get_args(State):
            raise LedgerError(f"Expected a state of {get_args(State)}, got {state!r}.")
        change = "UPDATE runs SET state = ?, error = ? WHERE run = ? RETURNING run"
        if not self._database.rows(change, [state, error, run]):
            raise LedgerError(f"Expected a run that was submitted, got run={run!r}.")

    def runs(self) -> list[RunRow]:
        """Return every run, in the order of submission."""
        return [RunRow(**row) for row in self._database.rows("SELECT * FROM runs ORDER BY number")]

    def states(self) -> dict[str, int]:
        """Return how many runs there are in each state that any is in."""
        rows = self._database.rows("SELECT state, count(*) AS runs FROM runs GROUP BY state")
        return {row["state"]: row["runs"] for row in rows}

    def run(self, run: str) -> RunRow | None:
        """One run, None if never submitted."""
        rows = self._database.rows("SELECT * FROM runs WHERE run = ?", [run])
        return RunRow(**rows[0]) if rows else None

    def fix_members(self, run: str, n: int, group: str = EVERYONE) -> NDArray[np.int64]:
        """User by slot, shape (n,): n active users of `group`, in order, drawn once and the same ever after.

        TooFewActive, with numbers, if fewer are; OtherVersion if the run began with another number of members.
        """
        count(n=n)
        with self._database.transaction() as execute:
            fixed = self.members(run)
            if not len(fixed):
                fixed = self._draw(execute, run, n, group)
                rows = [{"run": run, "slot": slot, "user": user} for slot, user in enumerate(fixed.tolist())]
                _slots.insert(execute, *rows)
        if len(fixed) != n:
            raise OtherVersion(f"Expected the {len(fixed)} members that run {run!r} began with, got n={n}.")
        return fixed

    def seated(self, run: str) -> bool:
        """Return whether the members of a run are fixed."""
        return bool(self._database.rows("SELECT slot FROM slots WHERE run = ? LIMIT 1", [run]))

    def drawn(self, run: str) -> Draw | None:
        """Return how the members of a run were drawn; None before."""
        rows = self._database.rows("SELECT seed, active FROM draws WHERE run = ?", [run])
        if not rows:
            return None
        return Draw(rows[0]["seed"], np.flatnonzero(decompressed(bytes(rows[0]["active"]))), self.members(run))

    def members(self, run: str) -> NDArray[np.int64]:
        """User by slot, as fixed; shape (0,) before."""
        rows = self._database.rows('SELECT "user" FROM slots WHERE run = ? ORDER BY slot', [run])
        return np.array([row["user"] for row in rows], dtype=np.int64)

    def ended_with(self, user: int, most: int) -> list[tuple[str, State]]:
        """Name and state of the runs with users of client `user` as members that have ended, from the latest, at most
        so many."""
        last = user + self.silos().get(user, 1) - 1
        seated = 'run IN (SELECT run FROM slots WHERE "user" BETWEEN ? AND ?)'
        query = f"SELECT run, state FROM runs WHERE {seated} AND state NOT IN (?, ?) ORDER BY number DESC LIMIT ?"
        return [(row["run"], row["state"]) for row in self._database.rows(query, [user, last, *OPEN, most])]

    def note_agreed(self, run: str, users: Sequence[int], *, epsilon: float, delta: float) -> None:
        """Keep, for their own clients, that these users have agreed to a run, whether they were asked or not; but of
        those who were forgotten meanwhile nothing."""
        with self._database.transaction() as execute:
            known = execute('SELECT "user" FROM agreed WHERE run = ? UNION SELECT "user" FROM forgotten', [run])
            new = sorted(set(users) - {row["user"] for row in known})
            row = {"run": run, "epsilon": epsilon, "delta": delta}
            _agreed.insert(execute, *(row | {"user": user} for user in new))

    def agreed(self, user: int, most: int) -> list[tuple[str, float, float]]:
        """Name, ε and δ of the runs that a user has agreed to, from the latest, at most so many."""
        query = 'SELECT * FROM agreed JOIN runs USING (run) WHERE "user" = ? ORDER BY number DESC LIMIT ?'
        return [(row["run"], row["epsilon"], row["delta"]) for row in self._database.rows(query, [user, most])]

    def _draw(self, execute: Execute, run: str, n: int, group: str) -> NDArray[np.int64]:
        """Draw the members of a run, within the transaction that fills its seats. TooFewActive, with numbers."""
        row = self.run(run)
        active, seed = self.active(group), seed_of(run, "" if row is None else row.specification)
        if len(active) < n:
            there = self.standing(group)
            raise TooFewActive(
                f"Expected {n} active users in population {group!r}, got {there['active']} ({there['away']} away, "
                f"{there['retired']} retired). Wait for more to connect, or begin a run for fewer."
            )
        _draws.insert(execute, {"run": run, "seed": seed, "active": compressed(mask(active))})
        return draw(seed, active, n)

    def _say(self, users: Iterable[int], state: UserState, why: str) -> None:
        but = " AND state != 'retired'" if state == "retired" else ""
        with self._database.transaction() as execute:
            for some in _batched(users, _AT_ONCE):
                _change(execute, {"state": state, "why": why}, f'"user" IN ({marks(some)}){but}', *some)

    def _user(self, row: Row) -> User:
        late = row["state"] == "active" and row["seen"] < self._cutoff()
        return User(**(row | {"state": "away", "why": "not seen since"} if late else row))

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


def _change(execute: Execute, changes: Row, where: str, *given: Any) -> list[int]:
    """Change some users; return the numbers of those."""
    made = ", ".join(f"{name} = ?" for name in changes)
    rows = execute(f'UPDATE users SET {made} WHERE {where} RETURNING "user"', [*changes.values(), *given])
    return [row["user"] for row in rows]


def following(execute: Execute, table: Table, column: str) -> int:
    """Return the first number after all in a column."""
    (row,) = execute(f"SELECT max({column}) AS highest FROM {table.name}")
    return 0 if row["highest"] is None else int(row["highest"]) + 1
