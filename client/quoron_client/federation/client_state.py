"""A client's durable state: its answers, and what each of its persons has spent.

    >>> from tempfile import mkdtemp
    >>> record = ClientState(Path(mkdtemp()) / "state.sqlite", epsilon=2.0, delta=1e-5)
    >>> terms = Agreement("r", bytes(16), epsilon=1.5, delta=1e-6, participations=1)
    >>> record.agree(terms), record.keep("r", 0, b"question", b"answer")
    (None, b'answer')
    >>> record.keep("r", 0, b"question", b"another"), record.keep("r", 1, b"later", b"answer"), record.spent
    (b'answer', None, (1.5, 1e-06))
    >>> record.close()

A silo has one state for all of its persons, who have separate limits:

    >>> record = ClientState(Path(mkdtemp()) / "record.sqlite", epsilon=2.0, delta=1e-5)
    >>> seats = record.register(["anna", "ben", "carla"])
    >>> record.agree(terms), record.keep("r", 0, b"question", b"rows of two", seats[:2])
    (None, b'rows of two')
    >>> record.may_answer("r", 1, seats)[0], record.charged(seats)[:, 0]
    (array([False, False,  True]), array([1.5, 1.5, 1.5]))
    >>> record.depart("carla", time="2026-01-02T03:04:05+00:00"), record.may_answer("r", 1, seats)[0].any()
    ((2, '2026-01-02T03:04:05+00:00', 0), np.False_)
    >>> record.close()

The client does not trust the coordinator. A round of a run has one answer, which is written here before it is sent,
sent again for the same question, and refused for any other. Once a later round was answered, nothing of an earlier one
is sent, also if the coordinator's database was restored. Flower reports no database, and its rounds may go back: there,
too, a round has one answer. A person is charged in full when a run is agreed to, whether or not the person is asked.
Charges of all runs add up, which is sound however the coordinator composes them, and stay within the limits of one
person. A person without budget, or who has left, is absent from answers (docs/privacy/lifetime.md#ol1).

A state without a run that, to a coordinator, this key has agreed to is refused by name. An owner without another copy
declares so (`new_record`): runs that coordinators report are then charged to all persons. In turn the state keeps what
it has seen of each coordinator's store, and refuses an older store by name:

    >>> word, head = "0" * 16, "a" * 64
    >>> claim = StoreClaim((word,), rows=7, head=head, then=head, charged=frozenset())
    >>> print(objection(SeenStore(word, word, 7, head), claim, 7))
    None
    >>> print(objection(SeenStore(word, word, 8, head), claim, 8))
    7 rows of the lifetime ledger, where this client saw 8

A store has a random word, and another each time it is restored: the last is its incarnation. Within one,
rows of the lifetime ledger are only added, and a row's hash depends on all rows before it. A store that reports a
restore may have fewer rows, but must know every run that this client has been charged for. A dishonest coordinator can
keep this client from taking part, but cannot lower its charges, which are counted here.

Answers may depend on the owner's data, so the file is readable by its owner alone, and answers are erased when the run
has ended. Without the file these protections are lost: keep it with the data. When an owner leaves (`leave`), all is
erased but the time and what was spent, and the file answers nothing more. When a person leaves a silo (`depart`), that
person's answers are erased.

The file is SQLite with full synchronisation, so that writes survive a crash and a loss of power. Between two writes all
of it is in one file, and writes are counted in the file and next to it (`-acknowledged`): an older, empty or torn copy
is refused by name. The file has a salted digest of each person's name; an adversary with the file can test a guessed
name, as the salt is in it. A run has one row, whatever the number of persons: a bit for each that is charged or has
answered and, while the run is open, counts of answers. A question that was answered has one row, with a bit for each
person in the answer. Sums of ε and of δ are correctly rounded.
"""

import json
import os
import re
import secrets
import sqlite3
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from hashlib import blake2b
from math import fsum
from pathlib import Path
from threading import RLock
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from quoron_client.durable import HighWaterMark
from quoron_client.protocol.wire import MAX_SENT, run_mark
from quoron_privacy.arrays import Mask, compressed, decompressed, mask
from quoron_privacy.errors import ConfigError, LedgerError, WireError, printable
from quoron_protos.v1 import federation_pb2 as federation

Persons = NDArray[np.int64]
Sums = NDArray[np.float64]
_Number = TypeVar("_Number", bound=np.generic)
ONE_USER: Persons = np.zeros(1, np.int64)
ONE_USER.setflags(write=False)

_MAX_OPEN = 1000  # runs: a coordinator could announce any number
_MAX_RESTORED = 1000
_WORD, _HASH = re.compile("[0-9a-f]{16}"), re.compile("[0-9a-f]{64}")
May = Callable[[Collection[int], int], bool]  # rounds that were answered, another one


@dataclass(frozen=True, slots=True, eq=False)
class Agreement:
    """A run that was agreed to: its terms, which do not change, and its persons, a row of `runs`."""

    run: str
    terms: bytes  # digest of everything announced
    epsilon: float  # the charge of a person under replace-one: more than the announced ε under zero-out
    delta: float
    participations: int  # of one person
    promise: str = ""  # the announced guarantee, for the owner's account: JSON; empty where it is not known
    agreed: str | None = None  # ISO 8601, UTC; None: by a coordinator's report
    store: str | None = None  # the first word of the coordinator's store
    people: int = 1  # persons of the silo while the run was open; 1 of a user
    everybody: int = 0  # 1: all persons are charged, also those who come later
    ended: int = 0
    given: int = 0  # answers of all persons
    charged: Mask = field(default_factory=lambda: np.zeros(0, bool))  # shape (n,)
    answered: Mask = field(default_factory=lambda: np.zeros(0, bool))
    counts: NDArray[np.unsignedinteger] = field(default_factory=lambda: np.zeros(0, np.uint8))  # none after the end

    @classmethod
    def read(cls, database: sqlite3.Connection, run: str) -> "Agreement | None":
        """Return the run of this name; None if it was not agreed to."""
        return next(cls.all(database, "run = ?", run), None)

    @classmethod
    def all(cls, database: sqlite3.Connection, where: str = "true", *given: Any) -> Iterator["Agreement"]:
        """Return the runs with this property, from the first."""
        rows = database.execute(f"SELECT {_COLUMNS} FROM runs WHERE {where} ORDER BY rowid", given).fetchall()
        for *told, charged, answered, counts in rows:
            counted = np.frombuffer(zlib.decompress(counts[1:]), f"<u{counts[0]}").copy()
            yield cls(*[*told, decompressed(charged), decompressed(answered), counted])

    def write(self, database: sqlite3.Connection) -> None:
        """Write the run, in place of what the state has of it."""
        size = self.counts.itemsize
        counts = bytes([size]) + zlib.compress(self.counts.astype(f"<u{size}").tobytes(), 1)
        told = [getattr(self, item.name) for item in fields(self)[:-3]]
        row = (*told, compressed(self.charged), compressed(self.answered), counts)
        database.execute(_WRITE_RUN, (_mark(row), *row))

    def charges(self, those: Persons) -> Mask:
        """Return which of these persons are charged."""
        return at(self.charged, those) | bool(self.everybody)


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """The answer to a question."""

    digest: bytes  # of the question
    persons: Persons  # in it, in order
    tasks: bytes | None  # digests of their tasks, where it has a row for each of them
    answer: bytes | None  # None once it was erased


@dataclass(frozen=True, slots=True)
class StoreClaim:
    """A coordinator's description of its store."""

    incarnations: tuple[str, ...]  # from the first
    rows: int  # of the lifetime ledger
    head: str  # hash of the last; of 64 zeros without one
    then: str  # hash of the last row of those that the client named; empty if there are fewer
    charged: frozenset[int] | None  # marks of runs charged to this client's group; None if not all were reported

    @classmethod
    def read(cls, message: federation.Store) -> "StoreClaim":
        """Return the claim in a message. Raises WireError for an impossible one."""
        words, charged = tuple(message.incarnations), message.charged
        if (
            not 0 < len(words) <= _MAX_RESTORED
            or not all(map(_WORD.fullmatch, words))
            or message.rows >= 2**31
            or _HASH.fullmatch(message.head) is None
            or (message.then and _HASH.fullmatch(message.then) is None)
            or len(charged) > MAX_SENT
        ):
            raise WireError("Expected a description of the coordinator's database, got something else.")
        return cls(
            words, message.rows, message.head, message.then, None if len(charged) == MAX_SENT else frozenset(charged)
        )

    def lacks(self, runs: Iterable[str]) -> list[str]:
        """Return those of `runs` that are not charged in this store; none if not all were reported."""
        return [] if self.charged is None else [run for run in runs if run_mark(run) not in self.charged]


@dataclass(frozen=True, slots=True)
class SeenStore:
    """What a client has seen of a coordinator's store."""

    root: str  # its first word
    incarnation: str
    rows: int
    head: str


def objection(seen: SeenStore, claim: StoreClaim, named: int) -> str | None:
    """Return how a store is older than the one that was seen, or another one; None if it is neither.

    `named` is the number of rows whose hash was requested.
    """
    if claim.incarnations[0] != seen.root:
        return f"another, which began as {claim.incarnations[0]}"
    if seen.incarnation not in claim.incarnations:
        return f"incarnation {claim.incarnations[-1]}, which is older, or another copy"
    if seen.incarnation != claim.incarnations[-1]:
        return None  # restored since, and reported
    if claim.rows < seen.rows:
        return f"{claim.rows} rows of the lifetime ledger, where this client saw {seen.rows}"
    if seen.rows and named == seen.rows and claim.then != seen.head:
        return f"other rows among the first {seen.rows} of the lifetime ledger"
    return None


@dataclass(frozen=True, slots=True)
class Erasure:
    """All that remains of the state of an owner who has left."""

    time: str  # ISO 8601, UTC, to the second
    key: str  # SHA-256 of the public key, if it is known
    epsilon: float  # spent over all runs, permanently
    delta: float
    runs: int  # rows that were erased: runs, answers, and coordinators' stores
    answers: int
    stores: int

    @classmethod
    def read(cls, database: sqlite3.Connection) -> Self | None:
        """Return what a state says; None for an owner who has not left."""
        (erasure,) = database.execute("SELECT erasure FROM state").fetchone()
        return None if erasure is None else cls(**json.loads(erasure))

    def write(self, database: sqlite3.Connection) -> None:
        """Erase all runs, answers and coordinators' stores, overwritten by `secure_delete`, and write this."""
        for table in ("answers", "runs", "stores", "people"):
            database.execute(f"DELETE FROM {table}")
        database.execute("UPDATE state SET salt = NULL, erasure = ?", (json.dumps(asdict(self)),))

    def refusal(self, path: Path) -> str:
        """Return why the state answers nothing."""
        return (
            f"Expected the client state of a user who takes part, got {str(path)!r}, whose user has left on "
            f"{self.time[:10]}: it answers nothing any more. Use another key and another state to begin again, as "
            f"another user. ε = {self.epsilon:g} was spent before."
        )


VERSION = 7
_TABLES = f"""
CREATE TABLE runs (
    mark BLOB NOT NULL, run TEXT PRIMARY KEY, terms BLOB NOT NULL, epsilon REAL NOT NULL, delta REAL NOT NULL,
    participations INTEGER NOT NULL, promise TEXT NOT NULL, agreed TEXT, store TEXT, people INTEGER NOT NULL,
    everybody INTEGER NOT NULL, ended INTEGER NOT NULL, given INTEGER NOT NULL, charged BLOB NOT NULL,
    answered BLOB NOT NULL, counts BLOB NOT NULL
) STRICT;
CREATE TABLE answers (
    run TEXT NOT NULL REFERENCES runs, round INTEGER NOT NULL, digest BLOB NOT NULL, epsilon REAL NOT NULL,
    delta REAL NOT NULL, store TEXT, mark BLOB NOT NULL, persons BLOB, tasks BLOB, answer BLOB,
    PRIMARY KEY (run, round, digest)
) STRICT;
CREATE TABLE stores (
    root TEXT PRIMARY KEY, place TEXT NOT NULL, incarnation TEXT NOT NULL, rows INTEGER NOT NULL, head TEXT NOT NULL
) STRICT;
CREATE TABLE people (
    person INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE, departed TEXT
) STRICT;
CREATE INDEX gone ON people (departed) WHERE departed IS NOT NULL;
CREATE TABLE state (acknowledged INTEGER NOT NULL, mark BLOB NOT NULL, salt BLOB, erasure TEXT) STRICT;
INSERT INTO state VALUES (0, x'', NULL, NULL);
PRAGMA user_version = {VERSION};
"""
_NAMES = [item.name for item in fields(Agreement)]
_COLUMNS, _CHANGED = ", ".join(_NAMES), ", ".join(f"excluded.{name}" for name in _NAMES)
_WRITE_RUN = f"""INSERT INTO runs (mark, {_COLUMNS}) VALUES (?{", ?" * len(_NAMES)})
    ON CONFLICT (run) DO UPDATE SET (mark, {_COLUMNS}) = (excluded.mark, {_CHANGED})"""
_ANSWERS = "SELECT mark, run, round, digest, epsilon, delta, store, persons, tasks FROM answers WHERE persons NOTNULL"
_WRITE_ANSWER = """INSERT INTO answers
    (mark, run, round, digest, epsilon, delta, store, persons, tasks, answer) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_ANSWERED = "the round was already answered, to another question"
_CHARGED = "SELECT epsilon, delta, everybody, charged FROM runs WHERE run != ? ORDER BY rowid"


class ClientState(AbstractContextManager["ClientState"]):
    """Close with `close` or by leaving its context. Threads may share it."""

    def __init__(
        self,
        path: Path,
        *,
        epsilon: float,
        delta: float,
        new_record: bool = False,
        other_database: bool = False,
        leaving: bool = False,
        settled: bool = False,
    ) -> None:
        """Open the state in `path`, a new one if there is none.

        Args:
            path: of the SQLite file.
            epsilon, delta: lifetime limits of one person.
            new_record: accept a state that is older than its count, or than a coordinator's report.
            other_database: accept a coordinator's store that is older than the one that was seen.
            leaving: open the state of an owner who has left, too.
            settled: charge and register no persons: that was done when runs were announced.

        Raises LedgerError for a file that is no client state, damaged, older, or of an owner who has left.
        """
        self._path, self._limits = path, (epsilon, delta)
        self._new_record, self._other_database = new_record, other_database
        self._leaving, self._settled = leaving, settled
        self._lock = RLock()  # closing waits for writes
        self._tally = HighWaterMark(path)
        # Of the coordinator's store of current runs; None where it is not reported.
        self._root: str | None = None
        self._incarnation: str | None = None
        self._named = False  # whether persons were registered by this process: otherwise it answers for one user
        self._again = set[str]()  # those of earlier processes that this one has agreed to, too
        try:
            # The journals take the file's permissions.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        except (OSError, sqlite3.Error) as error:
            raise LedgerError(f"Expected a client's state at {str(path)!r}, cannot open it: {error}.") from None
        try:
            self._prepare()
            with self._errors() as database:  # the last run that an earlier process agreed to
                (self._before,) = database.execute("SELECT coalesce(max(rowid), 0) FROM runs").fetchone()
        except BaseException:
            self._database.close()
            raise

    def close(self) -> None:
        """Close the file; nothing is lost without it."""
        with self._lock:
            self._database.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _prepare(self) -> None:
        with self._errors():
            for setting in ("journal_mode = DELETE", "synchronous = EXTRA", "foreign_keys = ON", "secure_delete = ON"):
                self._database.execute(f"PRAGMA {setting}")
            with self._exclusive():
                (version,) = self._database.execute("PRAGMA user_version").fetchone()
                (tables,) = self._database.execute("SELECT count(*) FROM sqlite_schema").fetchone()
                if version == 0 and tables == 0:
                    for statement in _TABLES.split(";"):
                        self._database.execute(statement)
                    self._database.execute("UPDATE state SET mark = ?", (self._mark_of_all(),))
                elif version != VERSION:
                    raise LedgerError(
                        f"Expected a client's state of version {VERSION} in {str(self._path)!r}, got {version}. "
                        "It is another file, or of another release: use the version that wrote it."
                    )
                self._check_whole()
                self._check_count()
                self._check_stays()

    def _check_whole(self) -> None:
        """Raise LedgerError for a damaged file, such as a copy that was made during a write."""
        database = self._database
        whole = [row[0] for row in database.execute("PRAGMA integrity_check")] == ["ok"]
        if not whole or database.execute("SELECT mark FROM state").fetchall() != [(self._mark_of_all(),)]:
            raise self._damaged()
        for rows in (f"SELECT mark, {_COLUMNS} FROM runs", _ANSWERS):
            if any(mark != _mark(row) for mark, *row in database.execute(rows)):
                raise self._damaged()

    def _mark_of_all(self) -> bytes:
        """Return the digest of all runs and of what was seen of stores, and of how many answers and persons there are.

        A file that was copied during a write has pages of different times, and another digest.
        """
        parts = (
            "SELECT mark FROM runs ORDER BY rowid",
            "SELECT * FROM stores ORDER BY root",
            "SELECT count(*) FROM answers",
            "SELECT count(*), (SELECT count(*) FROM people WHERE departed NOTNULL) FROM people",
            "SELECT salt, erasure FROM state",
        )
        return _mark([value for part in parts for row in self._database.execute(part) for value in row])

    def _damaged(self) -> LedgerError:
        return LedgerError(
            f"Expected a whole client's state in {str(self._path)!r}, got one that was damaged, or copied in the "
            "middle of a write. Put back a copy that is whole. If there is none, move it away and say --new-state."
        )

    def _check_stays(self) -> None:
        """Raise LedgerError for an owner who has left."""
        erasure = None if self._leaving else Erasure.read(self._database)
        if erasure is not None:
            raise LedgerError(erasure.refusal(self._path))

    def _check_count(self) -> None:
        (found,) = self._database.execute("SELECT acknowledged FROM state").fetchone()
        if self._new_record:
            self._keep_count(found)
            return
        try:
            kept = None if (read := self._tally.read()) is None else read[0]
        except (OSError, ValueError):
            kept = -1
        if kept == -1 or (kept is None and found):
            what = "something unreadable" if kept else "none"
            raise LedgerError(
                f"Expected the number of writes of the client's state {str(self._path)!r} in "
                f"{self._tally.path.name!r} beside it, got {what}: the state may be an older copy. Put back both. If "
                "there is nothing else, say --new-state: what the coordinator knows is then counted as spent."
            )
        if kept is not None and found < kept:
            raise LedgerError(
                f"Expected {kept} writes in the client's state {str(self._path)!r}, got {found}: it is an older copy, "
                "or was removed, and what it lacks may have been spent. Put back the newer one. If there is none, say "
                "--new-state: what the coordinator knows is then counted as spent."
            )
        if kept is None:
            self._keep_count(0)

    def _keep_count(self, count: int) -> None:
        try:
            self._tally.write(count)
        except OSError as error:
            raise LedgerError(
                f"Expected to write {str(self._tally.path)!r}, cannot: {error.strerror}. Make room, then start again."
            ) from None

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Run a transaction, counted if it writes. Raises LedgerError once the owner has left, and as `_errors`."""
        count: int | None = None
        with self._errors() as database:
            with self._exclusive():
                self._check_stays()
                before = database.total_changes
                yield database
                if database.total_changes != before:
                    query = "UPDATE state SET acknowledged = acknowledged + 1, mark = ? RETURNING acknowledged"
                    (count,) = database.execute(query, (self._mark_of_all(),)).fetchone()
            if count is not None:
                self._keep_count(count)

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Run a transaction with an exclusive lock: another process may use the same file."""
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:  # unless a full disk has ended it, whose error is raised
                self._database.execute("ROLLBACK")
            raise

    @contextmanager
    def _errors(self) -> Iterator[sqlite3.Connection]:
        """Serialise threads, and turn errors of SQLite into a LedgerError that names the file."""
        try:
            with self._lock:
                yield self._database
        except UnicodeDecodeError:  # of SQLite's message about a damaged table
            raise self._damaged() from None
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_CORRUPT:
                raise self._damaged() from None
            raise LedgerError(
                f"Expected to read and write the client's state {str(self._path)!r}, got: {error}."
            ) from None

    def register(self, names: Sequence[str], most: int | None = None) -> Persons:
        """Return the number of each person of a silo, by name, shape (k,); -1 for a person who has left or is beyond
        `most`. New persons get permanent numbers in the order given, up to `most` in all.

        Names are kept as salted digests. A new person is charged for the open runs for which its budget suffices.
        Raises LedgerError for the state of a single user who has answered.
        """
        self._named = True
        if self._settled:
            numbers, left = self.known(names)
            return np.where([since is None for since in left], numbers, -1)
        with self._transaction() as database:
            (salt,) = database.execute("SELECT salt FROM state").fetchone()
            if salt is None:
                if database.execute("SELECT 1 FROM runs WHERE given").fetchone():
                    raise LedgerError(
                        "Expected the client state of a silo, or a new one, got that of one user, who has answered. "
                        "Give the silo another state, key and certificate."
                    )
                salt = secrets.token_bytes(32)
                database.execute("UPDATE state SET salt = ?", (salt,))
            digests = [_digest(salt, name) for name in names]
            known = {row[0]: row[1] if row[2] is None else -1 for row in database.execute(_PEOPLE)}
            before = free = len(known)
            for digest in digests:
                if digest not in known:
                    known[digest] = free if most is None or free < most else -1
                    free += known[digest] >= 0
            new = [(number, digest) for digest, number in known.items() if number >= before]
            database.executemany("INSERT INTO people (person, digest) VALUES (?, ?)", new)
            if new:
                for agreed in Agreement.all(database, "NOT ended"):
                    if agreed.charged.any():
                        self._charge(agreed, np.arange(before, free), people=free)
            return np.array([known[digest] for digest in digests], np.int64)

    def known(self, names: Sequence[str]) -> tuple[Persons, list[str | None]]:
        """Return the number of each name, -1 if unknown, and when the person left; writes nothing."""
        with self._errors() as database:
            (salt,) = database.execute("SELECT salt FROM state").fetchone()
            people = {row[0]: (row[1], row[2]) for row in database.execute(_PEOPLE)}
            found = [people.get(_digest(salt or b"", name), (-1, None)) for name in names]
            return np.array([number for number, _ in found], np.int64), [left for _, left in found]

    @property
    def people(self) -> int:
        """Number of persons, including those who have left; 0 in the state of a single user."""
        with self._errors() as database:
            return int(database.execute("SELECT count(*) FROM people").fetchone()[0])

    @property
    def welcomed(self) -> bool:
        """Whether it knows a coordinator's store: then its client is enrolled there."""
        with self._errors() as database:
            return bool(database.execute("SELECT count(*) FROM stores").fetchone()[0])

    @property
    def departures(self) -> list[str]:
        """When persons have left, in order."""
        with self._errors() as database:
            rows = database.execute("SELECT departed FROM people WHERE departed IS NOT NULL ORDER BY departed")
            return [row[0] for row in rows]

    def compare_agreed(self, known: Sequence[tuple[str, float, float]]) -> None:
        """Compare with a coordinator's report: names, ε and δ of runs that this key has agreed to.

        Raises LedgerError if the state lacks one: it is an older copy, or the coordinator is dishonest, which only
        keeps this client away. A state opened with `new_record` charges such runs to all persons instead, and answers
        nothing more in them.

        A run that an earlier process agreed to, that was never answered, and that is not reported has not begun: its
        charge is removed until the run is announced and agreed to again.
        """
        with self._transaction() as database:
            have = {row[0] for row in database.execute("SELECT run FROM runs")}
            lacking = [run for run in known if run[0] not in have]
            if lacking and not self._new_record:
                raise LedgerError(
                    f"Expected {str(self._path)!r} to know run {printable(lacking[0][0])!r}, which its "
                    f"coordinator says that this key has agreed to, but it lacks {len(lacking)} such: it is an older "
                    "copy, or another client's. Put back the newer one. If there is none, say --new-state: they are "
                    "then counted as spent."
                )
            for run, epsilon, delta in lacking:  # charged to all persons, and ended here
                if run not in have:
                    Agreement(run, b"", epsilon, delta, participations=0, everybody=1, ended=1).write(database)
                have.add(run)
            if len(known) < MAX_SENT:
                begun = {run for run, *_ in known} | self._again
                earlier = "NOT ended AND NOT given AND store = ? AND rowid <= ?"
                for agreed in Agreement.all(database, earlier, self._root, self._before):
                    if agreed.run not in begun and agreed.charged.any():
                        replace(agreed, charged=np.zeros_like(agreed.charged)).write(database)

    def _all_persons(self) -> Persons:
        """Return the numbers of all persons, or of the one user."""
        return np.arange(max(1, self.people))

    def rows_seen(self, place: str) -> int:
        """Return how many rows of its lifetime ledger the coordinator at this address has reported so far."""
        with self._errors() as database:
            found = database.execute("SELECT max(rows) FROM stores WHERE place = ?", (place,)).fetchone()
            return int(found[0] or 0)

    def check_store(self, place: str, claim: StoreClaim, named: int) -> None:
        """Check and keep the claim of a coordinator at an address, to which `named` rows were reported as seen.

        Raises LedgerError for a store that is older than the one that was seen, or another one, or that lacks a run
        charged here. A state opened with `other_database` accepts it, and expects those runs no more.
        """
        root, incarnation = claim.incarnations[0], claim.incarnations[-1]
        with self._transaction() as database:
            query = "SELECT root, incarnation, rows, head FROM stores WHERE root = ? OR place = ? ORDER BY root != ?"
            found = database.execute(query, (root, place, root)).fetchone()
            seen = None if found is None else SeenStore(*found)
            wrong = None if seen is None else objection(seen, claim, named)
            lacking = []
            if seen is not None and seen.incarnation != incarnation:  # otherwise rows and hash show it
                charged = "SELECT run FROM runs WHERE store = ? AND given AND epsilon < 9e999"
                lacking = claim.lacks(row[0] for row in database.execute(charged, (root,)).fetchall())
            if wrong is None and lacking:
                wrong = (
                    f"a lifetime ledger without run {printable(lacking[0])!r}, and {len(lacking)} such in all, which "
                    "was answered here: the operator enters what is missing (quoron ledger charge --spent)"
                )
            if seen is not None and wrong is not None and not self._other_database:
                raise LedgerError(
                    f"Expected the database of coordinator {place} that this client has seen, incarnation "
                    f"{seen.incarnation} of {seen.rows} rows, or a newer one, got {wrong}. The coordinator's database "
                    "is older than what this client saw, or another: its operator puts back the newer one. If there "
                    "is nothing else, say --accept-other-database: what it lacks then counts here alone."
                )
            if wrong is not None:
                database.execute("DELETE FROM stores WHERE place = ?", (place,))
                for run in lacking:
                    for agreed in Agreement.all(database, "run = ?", run):
                        replace(agreed, store=None).write(database)
            row = (root, place, incarnation, claim.rows, claim.head)
            if database.execute("SELECT * FROM stores WHERE root = ?", (root,)).fetchone() != row:
                database.execute("INSERT OR REPLACE INTO stores VALUES (?, ?, ?, ?, ?)", row)
            self._root, self._incarnation = root, incarnation

    def leave(self, *, key: str, time: str) -> Erasure:
        """Erase all but the time and what was spent, in one transaction. No process answers anything more. Repeating it
        returns the first erasure."""
        with self._transaction() as database:
            if (erasure := Erasure.read(database)) is None:
                tables = ("runs", "answers", "stores")
                counts = [database.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables]
                erasure = Erasure(time, key, *self.spent, *counts)
                erasure.write(database)
            return erasure

    @property
    def spent(self) -> tuple[float, float]:
        """(ε, δ) charged so far over all runs: the largest of any person."""
        with self._errors():
            epsilon, delta = self.charged(self._all_persons()).max(axis=0)
        return float(epsilon), float(delta)

    def charged(self, those: Persons) -> Sums:
        """Return ε and δ charged so far over all runs, of each of these persons, shape (k, 2)."""
        with self._errors() as database:
            return _spent(database, those)

    def agreements(self) -> list[tuple[Agreement, int]]:
        """Return every run that was agreed to, from the first, and the number of its rounds that were answered."""
        with self._errors() as database:
            rounds = dict(database.execute("SELECT run, count(DISTINCT round) FROM answers GROUP BY run"))
            return [(agreed, rounds.get(agreed.run, 0)) for agreed in Agreement.all(database)]

    def agree(self, agreement: Agreement) -> str | None:
        """Agree to a run durably, and charge all persons with enough budget. Return None, or why not: terms differ from
        earlier ones, or no person has enough budget.

        The decision depends on terms, limits and departures alone, not on who was asked or has answered in earlier
        runs, which may be secret (docs/privacy/lifetime.md#ol1). A repeated call charges new persons, too.
        """
        a = agreement
        with self._transaction() as database:
            found = Agreement.read(database, a.run)
            if found is not None and found.terms != a.terms:
                return "its terms are not those of its first announcement"
            if found is None and self._settled:
                return "it was asked about before it was announced"
            (many,) = database.execute("SELECT count(*) FROM runs WHERE NOT ended").fetchone()
            if found is None and many >= _MAX_OPEN:
                return "too many runs are open that were agreed to: their coordinators end some first"
            persons, charged = self._all_persons(), found is not None and bool(found.charged.any())
            if not (found is not None and found.ended) and not self._settled:
                time = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S}+00:00"
                new = replace(a, agreed=time, store=self._root) if found is None else found
                charged = self._charge(new, persons, people=len(persons))
            if not charged:
                before = _spent(database, persons[:1], besides=a.run)[0]
                for name, had, wanted, limit in zip("εδ", before, (a.epsilon, a.delta), self._limits, strict=True):
                    if fsum((had, wanted)) > limit:
                        return (
                            f"its {name} = {wanted:g} and the {had:g} spent before exceed the lifetime limit {limit:g}"
                        )
                return "nobody has room for it"
        if found is not None:
            self._again.add(a.run)
        return None

    def _charge(self, a: Agreement, those: Persons, *, people: int) -> bool:
        """Charge those of them who are not yet, are here and have room; return whether any person is charged."""
        database = self._database
        new = ~at(a.charged, those) & _here(database, those)
        sums = _spent(database, those[new], plus=[(a.epsilon, a.delta)], besides=a.run)
        new[new] = (sums <= self._limits).all(axis=1)
        if not new.any():
            return bool(a.charged.any())
        size = int(those[new].max()) + 1
        charged, answered, counts = (
            np.pad(values, (0, max(0, size - len(values)))) for values in (a.charged, a.answered, a.counts)
        )
        charged[those[new]] = True
        counts = counts.astype(np.min_scalar_type(a.participations))
        replace(a, people=people, charged=charged, answered=answered, counts=counts).write(database)
        return True

    def kept(self, run: str, round: int) -> list[Kept]:
        """Return the answers to the questions of this round; none after an answer in a later round."""
        with self._errors() as database:
            query = "SELECT digest, persons, tasks, answer FROM answers WHERE run = ? AND round = ? AND persons NOTNULL"
            rows = [] if self._is_past(run, round) else database.execute(query, (run, round)).fetchall()
            return [Kept(digest, np.flatnonzero(decompressed(persons)), *more) for digest, persons, *more in rows]

    def recall(self, run: str, round: int, digest: bytes) -> bytes | None:
        """Return the kept answer to this question; None after an answer in a later round."""
        return next((kept.answer for kept in self.kept(run, round) if kept.digest == digest), None)

    def _is_past(self, run: str, round: int) -> bool:
        """Return whether a later round was answered.

        A coordinator commits a round before it asks the next, and a restore ends its runs: one that asks an earlier
        round has an older copy of its database, and does not report it.
        """
        later = "SELECT 1 FROM answers WHERE run = ? AND round > ? AND store IS NOT NULL"
        return self._database.execute(later, (run, round)).fetchone() is not None

    def may_answer(
        self,
        run: str,
        round: int,
        those: Persons = ONE_USER,
        *,
        spends: tuple[float, float] = (0.0, 0.0),
        may: May | None = None,
    ) -> tuple[Mask, str | None]:
        """Return which of these persons may give a new answer in this round, shape (k,), and a reason if none may.

        The reason is that of the first person; without persons, a reason that holds for all. By default `those` is the
        one user. A local report `spends` (ε, δ). `may` tells whether the plan has a user in this round who was in
        given others. Persons that may not answer count as absent, without a visible reason.
        """
        with self._errors() as database:
            none = np.zeros(len(those), bool)
            agreed = Agreement.read(database, run)
            if agreed is None:
                return none, "the run was not agreed to"
            if agreed.ended:
                return none, "the run has ended"
            if self._is_past(run, round):
                return none, "a later round was answered: the coordinator's database was put back to before it"
            query = "SELECT persons, answer IS NULL FROM answers WHERE run = ? AND round = ?"
            before = [(decompressed(persons), gone) for persons, gone in database.execute(query, (run, round))]
            if any(gone for _, gone in before):  # the answer of a person who has left
                return none, _ANSWERED
            if may is not None:
                rounds = database.execute("SELECT DISTINCT round FROM answers WHERE run = ?", (run,)).fetchall()
                if not may([row[0] for row in rounds], round):
                    return none, "the plan has no user in this round who was in those that were answered"
            if not self._named and self.people:
                return none, "the client state is that of a silo's persons, not of one user"
            again: Mask = np.any([none, *(at(persons, those) for persons, _ in before)], axis=0)
            given = at(agreed.counts, those)
            # Both sides are for replacing one user. In a run of trust model local this enforces the announced charge.
            # In others the coordinator enforces the announced guarantee, and this the person's lifetime limit: a
            # zero-out guarantee is charged twice, so reports may add up to that.
            own = _reported(database, run, those, bool(given.any()), spends)
            over: Mask = np.any(own > (agreed.epsilon, agreed.delta), axis=1)
            reasons = (
                (again, _ANSWERED),
                (~_here(database, those), "the person has left, or is not one of this silo's"),
                (~at(agreed.charged, those), "the lifetime limit does not allow the run"),
                (given >= agreed.participations, f"all {agreed.participations} answers of the run were given"),
                (over, "local reports would spend more than was agreed to"),
            )
            allowed = ~np.logical_or.reduce([may_not for may_not, _ in reasons])
            if allowed.any() or not len(those):
                return allowed, None
            return allowed, next(why for may_not, why in reasons if may_not[0])

    def keep(
        self,
        run: str,
        round: int,
        digest: bytes,
        answer: bytes,
        those: Persons = ONE_USER,
        *,
        spends: tuple[float, float] = (0.0, 0.0),
        may: May | None = None,
        tasks: bytes | None = None,
    ) -> bytes | None:
        """Write an answer of these persons, and return the answer to send: this one, or the one that was kept before.

        One is kept before for the same question. None if some of the persons may not answer (any more). `tasks` are
        those of an answer with a row for each person.
        """
        with self._transaction() as database:
            if (before := self.recall(run, round, digest)) is not None:
                return before
            allowed, _ = self.may_answer(run, round, those, spends=spends, may=may)
            agreed = Agreement.read(database, run)
            if agreed is None or not len(those) or not allowed.all():
                return None
            row = (run, round, digest, *spends, self._incarnation, compressed(mask(those)), tasks)
            # The answer is the last column: sums of ε over rounds do not read it.
            database.execute(_WRITE_ANSWER, (_mark(row), *row, answer))
            agreed.answered[those] = True
            agreed.counts[those] += 1
            replace(agreed, given=agreed.given + len(those)).write(database)
        return answer

    def end(self, run: str, *, begun: bool = True) -> bool:
        """Erase the answers of a run that has ended; charges stay, unless the run had not `begun`, by its coordinator,
        and nothing was answered in it.

        Returns whether the run was open here: a coordinator reports ended runs to every client that reconnects.
        """
        with self._errors() as database:
            if not database.execute("SELECT 1 FROM runs WHERE run = ? AND NOT ended", (run,)).fetchone():
                return False
            with self._transaction():
                agreed = next(Agreement.all(database, "run = ?", run))
                charged = agreed.charged & (begun or bool(agreed.given))
                replace(agreed, ended=1, charged=charged, counts=np.zeros(0, np.uint8)).write(database)
                erased = "UPDATE answers SET persons = NULL, tasks = NULL, answer = NULL WHERE run = ?"
                database.execute(erased, (run,))
        self._again.discard(run)
        return True

    def depart(self, name: str, *, time: str) -> tuple[int, str, int]:
        """Remove a person from a silo, in one transaction: from future answers, and from kept ones. Return its number,
        when it left first, and how many answers are erased now.

        A kept answer with the person's row is erased whole: a second answer without it would reveal the row. Raises
        ConfigError for an unknown name.
        """
        with self._transaction() as database:
            (person,), (left,) = self.known([name])
            if person < 0:
                raise ConfigError(
                    f"Expected a person whom {self._path} knows, got {name!r}. Write the name as the table does, whole "
                    "numbers without a decimal point. Anyone who was never registered is in no answer: take the rows "
                    "out of the table before the client is started."
                )
            if left is None:
                database.execute("UPDATE people SET departed = ? WHERE person = ?", (time, int(person)))
            kept = database.execute(
                "SELECT rowid, persons FROM answers WHERE answer IS NOT NULL AND persons IS NOT NULL"
            )
            erased = [(row,) for row, persons in kept.fetchall() if at(decompressed(persons), np.array([person]))[0]]
            database.executemany("UPDATE answers SET answer = NULL WHERE rowid = ?", erased)
        return int(person), left or time, len(erased)


_PEOPLE = "SELECT digest, person, departed FROM people ORDER BY person"


def _digest(salt: bytes, name: str) -> bytes:
    """Return the digest of a person's name, 16 bytes."""
    return blake2b(name.encode(), digest_size=16, key=salt, person=b"quoron-person").digest()


def _here(database: sqlite3.Connection, persons: Persons) -> Mask:
    """Return which persons are registered and have not left, shape (k,)."""
    (many,) = database.execute("SELECT count(*) FROM people").fetchone()
    if not many:
        return np.equal(persons, 0)
    gone = [row[0] for row in database.execute("SELECT person FROM people WHERE departed IS NOT NULL")]
    inside: Mask = (persons >= 0) & (persons < many)
    return np.logical_and(inside, ~np.isin(persons, gone)) if gone else inside


def _spent(
    database: sqlite3.Connection, persons: Persons, *, plus: Sequence[tuple[float, float]] = (), besides: str = ""
) -> Sums:
    """Return ε and δ that each person is charged over all runs but one, and `plus` these, shape (k, 2)."""
    rows = database.execute(_CHARGED, (besides,)).fetchall()
    held = np.zeros((len(rows), len(persons)), bool)
    for kept, (_, _, everybody, charged) in zip(held, rows, strict=True):
        kept[:] = True if everybody else at(decompressed(charged), persons)
    return _summed(held, [row[:2] for row in rows], plus)


def _summed(held: Mask, costs: Sequence[tuple[float, float]], plus: Sequence[tuple[float, float]]) -> Sums:
    """Return the sums of `costs` by column of `held`, shape (R, k), and of `plus`; equal columns are summed once."""
    patterns, which = np.unique(np.packbits(held, axis=0).T, axis=0, return_inverse=True)
    sums = np.empty((len(patterns), 2))
    for total, pattern in zip(sums, patterns, strict=True):
        bits = np.unpackbits(pattern, count=len(costs))
        all_of = [*(cost for cost, bit in zip(costs, bits, strict=True) if bit), *plus]
        total[:] = fsum(epsilon for epsilon, _ in all_of), fsum(delta for _, delta in all_of)
    return sums[which.ravel()]


def _reported(
    database: sqlite3.Connection, run: str, persons: Persons, given: bool, spends: tuple[float, float]
) -> Sums:
    """Return ε and δ of each person's local reports in a run, with one more that spends so much, shape (k, 2)."""
    query = "SELECT epsilon, delta, persons FROM answers WHERE run = ? AND (epsilon > 0 OR delta > 0)"
    rows = database.execute(query, (run,)).fetchall() if given else []
    held = np.array([at(decompressed(row[2]), persons) for row in rows], bool).reshape(len(rows), len(persons))
    return _summed(held, [row[:2] for row in rows], [spends])


def at(values: NDArray[_Number], persons: Persons) -> NDArray[_Number]:
    """Return the values of these persons; zero beyond the last."""
    inside = (persons >= 0) & (persons < len(values))
    found = np.zeros(len(persons), values.dtype)
    found[inside] = values[persons[inside]]
    return found


def _mark(row: Sequence[Any]) -> bytes:
    """Return a digest of the values of a row, 8 bytes."""
    hashed = blake2b(digest_size=8, person=b"quoron-state")
    for value in row:
        value = float(value) + 0.0 if isinstance(value, int | float) else value  # as SQLite has 1 and -0.0 in a REAL
        data = value if isinstance(value, bytes) else repr(value).encode()
        hashed.update(f"{type(value).__name__}{len(data)} ".encode())
        hashed.update(data)
    return hashed.digest()
