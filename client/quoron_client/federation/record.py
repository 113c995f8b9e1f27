"""A client's own durable record: what it has answered, and what each of its persons has thereby spent.

    >>> from tempfile import mkdtemp
    >>> record = Record.open(Path(mkdtemp()) / "record.sqlite", epsilon=2.0, delta=1e-5)
    >>> terms = Agreement("r", bytes(16), epsilon=1.5, delta=1e-6, participations=1)
    >>> record.agree(terms), record.keep("r", 0, b"question", b"answer")
    (None, b'answer')
    >>> record.keep("r", 0, b"question", b"another"), record.keep("r", 1, b"later", b"answer"), record.spent
    (b'answer', None, (1.5, 1e-06))
    >>> record.close()

A silo has a record for all of its persons, each with limits of its own:

    >>> record = Record.open(Path(mkdtemp()) / "record.sqlite", epsilon=2.0, delta=1e-5)
    >>> seats = record.register(["anna", "ben", "carla"])
    >>> record.agree(terms), record.keep("r", 0, b"question", b"rows of two", seats[:2])
    (None, b'rows of two')
    >>> record.may_answer("r", 1, seats)[0], record.charged(seats)[:, 0]
    (array([False, False,  True]), array([1.5, 1.5, 1.5]))
    >>> record.depart("carla", time="2026-01-02T03:04:05+00:00").number, record.may_answer("r", 1, seats)[0].any()
    (2, np.False_)
    >>> record.close()

It does not trust the coordinator. For each round of a run there is one answer, made once: written here before it is
sent, sent again for the same question, and refused for any other. Rounds go forward: once a later one was answered
nothing is sent of an earlier one, also if the coordinator's database was restored since. Flower reports no database,
and rounds may go back: there, too, each has one answer. A person is charged in full for a run when it is agreed to,
whether the person is then asked or not. The charges of all runs add up, which is sound however the coordinator composes
them, and stay within the limits, which are those of one person. A person without budget, or who has left, is not in an
answer, as if away (docs/privacy/lifetime.md#ol1).

A record that lacks a run which a coordinator says this key has agreed to is refused by name. An owner without another
record declares so (`new_record`): runs that coordinators report are then entered as spent, by everybody. In turn the
record keeps what it has seen of each coordinator's store, and refuses an older one by name:

    >>> word, head = "0" * 16, "a" * 64
    >>> claim = StoreClaim((word,), rows=7, head=head, then=head, charged=frozenset())
    >>> print(objection(Seen(word, word, 7, head), claim, 7))
    None
    >>> print(objection(Seen(word, word, 8, head), claim, 8))
    7 rows of the lifetime ledger, where this client saw 8

A store has a random word from its beginning, and one more each time it is restored: the last is its incarnation.
Within one, rows of the lifetime ledger are only ever added, and each row's hash depends on all before it. A store that
was restored, and says so, may have fewer: it must know every run that this client has been charged for. A coordinator
that lies can keep this client away, and lower nothing: its own record decides what it answers.

Answers may be functions of the owner's data, so the file is its owner's alone, and answers are erased when the run has
ended. Without the file these protections are lost: keep it with the data. For an owner who leaves (`leave`) everything
is erased but that it has left and what was spent, and from then on nothing opens the file to answer. For a person who
leaves a silo (`depart`) that person's answers are erased.

The file is SQLite with full synchronisation: what was written survives a crash and a loss of power. Between two writes
all of it is in the one file, and how much was written is counted, in the file and beside it (`-acknowledged`): a copy
that is older, empty or torn is refused by name. Of a person it has a salted digest of the name, so it reveals nobody's;
an adversary who has the file can check a guessed name, as the salt is in it. Of a run it has one row, however many the
persons are: who is charged and who has answered, a bit each, and how often, while the run is open. Sums of ε and of δ
are correctly rounded.
"""

import os
import re
import secrets
import sqlite3
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from math import fsum
from pathlib import Path
from threading import RLock
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from quoron_client.durable import Tally
from quoron_client.protocol.wire import MOST_TOLD, run_mark
from quoron_privacy.arrays import Mask
from quoron_privacy.errors import LedgerError, WireError, printable
from quoron_protos.v1 import federation_pb2 as federation

Persons = NDArray[np.int64]
Sums = NDArray[np.float64]
_Number = TypeVar("_Number", bound=np.generic)
ONE_USER: Persons = np.zeros(1, np.int64)
ONE_USER.setflags(write=False)

_MOST_OPEN = 1000  # runs: a coordinator could announce them for ever
_MOST_RESTORED = 1000
_WORD, _HASH = re.compile("[0-9a-f]{16}"), re.compile("[0-9a-f]{64}")
May = Callable[[Collection[int], int], bool]  # rounds that were answered, another one


@dataclass(frozen=True, slots=True)
class Agreement:
    """What is agreed about a run before anything is answered; it never changes."""

    run: str
    terms: bytes  # digest of everything announced
    epsilon: float  # what a person is charged, for replacing one: a zero-out promise costs more than it says
    delta: float
    participations: int  # of one person
    promise: str = ""  # what was announced of it, for the owner's account: JSON


@dataclass(frozen=True, slots=True, eq=False)
class Charge:
    """A run in the owner's account."""

    run: str
    agreed: str | None  # ISO 8601, UTC; None: a coordinator says so
    promise: str  # JSON; empty where it is not known
    epsilon: float
    delta: float
    ended: bool
    answers: int  # rounds that were answered
    people: int  # that the silo had while it was open; 1 of a user
    charged: Mask  # of the persons asked about
    answered: Mask


@dataclass(frozen=True, slots=True)
class StoreClaim:
    """What a coordinator says of its store."""

    incarnations: tuple[str, ...]  # from the first
    rows: int  # of the lifetime ledger
    head: str  # hash of the last; of 64 zeros without one
    then: str  # hash of the last row of those that the client named; empty if there are fewer
    charged: frozenset[int] | None  # marks of runs charged to this client's group; None if not all were reported

    @classmethod
    def read(cls, message: federation.Books) -> "StoreClaim":
        """As it came. WireError for what cannot be."""
        words, charged = tuple(message.incarnations), message.charged
        if (
            not 0 < len(words) <= _MOST_RESTORED
            or not all(map(_WORD.fullmatch, words))
            or message.rows >= 2**31
            or _HASH.fullmatch(message.head) is None
            or (message.then and _HASH.fullmatch(message.then) is None)
            or len(charged) > MOST_TOLD
        ):
            raise WireError("Expected to hear which database this is, got something else.")
        return cls(
            words, message.rows, message.head, message.then, None if len(charged) == MOST_TOLD else frozenset(charged)
        )

    def lacks(self, runs: Iterable[str]) -> list[str]:
        """Return those of `runs` that are not charged in this store, as far as is known."""
        return [] if self.charged is None else [run for run in runs if run_mark(run) not in self.charged]


@dataclass(frozen=True, slots=True)
class Seen:
    """What a client has seen of a coordinator's store."""

    root: str  # the word with which they began
    incarnation: str
    rows: int
    head: str


def objection(seen: Seen, claim: StoreClaim, named: int) -> str | None:
    """In which way a store is older than the one that was seen, or another; None if it is neither.

    `named` is the number of rows of which the hash was asked.
    """
    if claim.incarnations[0] != seen.root:
        return f"another, which began as {claim.incarnations[0]}"
    if seen.incarnation not in claim.incarnations:
        return f"incarnation {claim.incarnations[-1]}, which comes from before that or beside it"
    if seen.incarnation != claim.incarnations[-1]:
        return None  # restored since, and openly
    if claim.rows < seen.rows:
        return f"{claim.rows} rows of the lifetime ledger, where this client saw {seen.rows}"
    if seen.rows and named == seen.rows and claim.then != seen.head:
        return f"other rows among the first {seen.rows} of the lifetime ledger"
    return None


@dataclass(frozen=True, slots=True)
class Farewell:
    """All that a record says of an owner who has left."""

    time: str  # ISO 8601, UTC, to the second
    key: str  # SHA-256 of the public key, if it is known
    epsilon: float  # spent over all runs, which nothing takes back
    delta: float
    runs: int  # rows that were erased: runs, what was answered in them, and coordinators' stores
    answers: int
    books: int

    @classmethod
    def read(cls, database: sqlite3.Connection) -> Self | None:
        """Return what a record says; None for an owner who has not left."""
        if not database.execute("SELECT 1 FROM sqlite_schema WHERE name = 'left_for_good'").fetchone():
            return None
        return cls(*database.execute("SELECT * FROM left_for_good").fetchone())

    def write(self, database: sqlite3.Connection) -> None:
        """Erase every run, answer and coordinator's store, overwritten by `secure_delete`, and say so."""
        for table in ("answers", "shares", "runs", "books", "people", "silo"):
            database.execute(f"DELETE FROM {table}")
        database.execute(_LEFT)
        database.execute("INSERT INTO left_for_good VALUES (?, ?, ?, ?, ?, ?, ?)", astuple(self))

    def refusal(self, path: Path) -> str:
        """Return why the record answers nothing."""
        return (
            f"Expected the record of a user who takes part, got {str(path)!r}, whose user has left on "
            f"{self.time[:10]}, for good: it answers nothing any more. Anyone who begins again does so as another "
            f"user, with a key and a record of its own, and has spent ε = {self.epsilon:g} before."
        )


@dataclass(frozen=True, slots=True)
class Departure:
    """A person who has left a silo, and what was erased."""

    person: str
    number: int
    left: str  # ISO 8601, UTC, to the second; the first time
    record: str
    epsilon: float  # that it was charged, which nothing takes back
    delta: float
    answers: int  # that were kept, had its row, and are erased


VERSION = 5
_TABLES = f"""
CREATE TABLE runs (
    run TEXT PRIMARY KEY, terms BLOB NOT NULL, epsilon REAL NOT NULL, delta REAL NOT NULL,
    participations INTEGER NOT NULL, charged INTEGER NOT NULL DEFAULT 0, ended INTEGER NOT NULL DEFAULT 0,
    books TEXT, everybody INTEGER NOT NULL DEFAULT 0, agreed TEXT, people INTEGER, promise TEXT
) STRICT;
CREATE TABLE answers (
    run TEXT NOT NULL REFERENCES runs, round INTEGER NOT NULL, digest BLOB NOT NULL,
    epsilon REAL NOT NULL, delta REAL NOT NULL, books TEXT, persons BLOB, answer BLOB, PRIMARY KEY (run, round)
) STRICT;
CREATE TABLE books (
    root TEXT PRIMARY KEY, place TEXT NOT NULL, incarnation TEXT NOT NULL, rows INTEGER NOT NULL, head TEXT NOT NULL
) STRICT;
CREATE TABLE silo (salt BLOB NOT NULL) STRICT;
CREATE TABLE people (
    person INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE, departed TEXT
) STRICT;
CREATE INDEX gone ON people (departed) WHERE departed IS NOT NULL;
CREATE TABLE shares (
    run TEXT PRIMARY KEY REFERENCES runs, given INTEGER NOT NULL, charged BLOB NOT NULL, answered BLOB NOT NULL,
    counts BLOB, mark BLOB NOT NULL
) STRICT;
CREATE TABLE written (
    acknowledged INTEGER NOT NULL, runs INTEGER NOT NULL, charged INTEGER NOT NULL, ended INTEGER NOT NULL,
    answers INTEGER NOT NULL, books INTEGER NOT NULL, given INTEGER NOT NULL, people INTEGER NOT NULL,
    departed INTEGER NOT NULL
) STRICT;
INSERT INTO written VALUES (0, 0, 0, 0, 0, 0, 0, 0, 0);
PRAGMA user_version = {VERSION};
"""
_LEFT = """CREATE TABLE left_for_good (
    time TEXT NOT NULL, key TEXT NOT NULL, epsilon REAL NOT NULL, delta REAL NOT NULL,
    runs INTEGER NOT NULL, answers INTEGER NOT NULL, books INTEGER NOT NULL
) STRICT"""
_COUNTED = "runs, charged, ended, answers, books, given, people, departed"
_FOUND = """(SELECT count(*) FROM runs), (SELECT total(charged) FROM runs), (SELECT total(ended) FROM runs),
    (SELECT count(*) FROM answers), (SELECT total(rows + 1) FROM books), (SELECT total(given) FROM shares),
    (SELECT count(*) FROM people), (SELECT count(*) FROM people WHERE departed IS NOT NULL)"""
_COUNT = f"UPDATE written SET ({_COUNTED}) = (SELECT {_FOUND}), acknowledged = acknowledged + 1"
_ENTER = """INSERT INTO runs (run, terms, epsilon, delta, participations, books, agreed, people, promise, charged)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 1) ON CONFLICT DO UPDATE SET charged = 1, people = excluded.people"""
_ENTER_TOLD = """INSERT INTO runs (run, terms, epsilon, delta, participations, charged, ended, everybody)
    VALUES (?, x'', ?, ?, 0, 1, 1, 1) ON CONFLICT DO NOTHING"""
_OPEN = """SELECT run, terms, epsilon, delta, participations, promise FROM runs
    WHERE charged AND NOT ended ORDER BY rowid"""
_UNBEGUN = "SELECT run FROM runs WHERE charged AND NOT ended AND NOT everybody AND books = ? AND rowid <= ?"
_CHARGES = """SELECT run, agreed, coalesce(promise, ''), epsilon, delta, ended,
    (SELECT count(*) FROM answers WHERE answers.run = runs.run), coalesce(people, 1), everybody
    FROM runs ORDER BY runs.rowid"""
_SHARES = "SELECT mark, charged, answered, counts FROM shares"
_CHARGED = """SELECT epsilon, delta, everybody, shares.charged FROM runs LEFT JOIN shares USING (run)
    WHERE runs.charged AND run != ? ORDER BY runs.rowid"""


class RecordFile:
    """One connection to the file, for one thread at a time. Open with `RecordFile.connect`."""

    def __init__(self, database: sqlite3.Connection, path: Path, *, new_record: bool, leaving: bool) -> None:
        self.database, self.path = database, path
        self._new_record, self._leaving = new_record, leaving
        self._lock = RLock()  # closing waits for what is being written
        self._tally = Tally(path)

    @classmethod
    def connect(cls, path: Path, *, new_record: bool, leaving: bool) -> Self:
        """Return the file in `path`, a new one if there is none; LedgerError as `Record.open`."""
        try:
            # The journals take the file's permissions.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        except (OSError, sqlite3.Error) as error:
            raise LedgerError(f"Expected a client's record at {str(path)!r}, cannot open it: {error}.") from None
        file = cls(database, path, new_record=new_record, leaving=leaving)
        try:
            file._prepare()
        except BaseException:
            database.close()
            raise
        return file

    def close(self) -> None:
        """Nothing is lost without it."""
        with self._lock:
            self.database.close()

    def _prepare(self) -> None:
        with self.errors():
            for setting in ("journal_mode = DELETE", "synchronous = EXTRA", "foreign_keys = ON", "secure_delete = ON"):
                self.database.execute(f"PRAGMA {setting}")
            with self._exclusive():
                (version,) = self.database.execute("PRAGMA user_version").fetchone()
                (tables,) = self.database.execute("SELECT count(*) FROM sqlite_schema").fetchone()
                if version == 0 and tables == 0:
                    for statement in _TABLES.split(";"):
                        self.database.execute(statement)
                elif version != VERSION:
                    raise LedgerError(
                        f"Expected a client's record of version {VERSION} in {str(self.path)!r}, got {version}. "
                        "It is another file, or of another release: use the version that wrote it."
                    )
                self._check_whole()
                self._check_count()
                self._check_stays()

    def _check_whole(self) -> None:
        """A copy that was made in the middle of a write has pages of before and of after."""
        database = self.database
        whole = [row[0] for row in database.execute("PRAGMA integrity_check")] == ["ok"]
        rows = database.execute(f"SELECT {_COUNTED} FROM written").fetchall() if whole else []
        if (
            not whole
            or rows != [tuple(map(int, database.execute(f"SELECT {_FOUND}").fetchone()))]
            or any(mark != _mark(*kept) for mark, *kept in database.execute(_SHARES))
        ):
            raise self._damaged()

    def _damaged(self) -> LedgerError:
        return LedgerError(
            f"Expected a whole client's state in {str(self.path)!r}, got one that was damaged, or copied in the "
            "middle of a write. Put back a copy that is whole. If there is none, move it away and say --new-state."
        )

    def _check_stays(self) -> None:
        """LedgerError for an owner who has left."""
        said = None if self._leaving else Farewell.read(self.database)
        if said is not None:
            raise LedgerError(said.refusal(self.path))

    def _check_count(self) -> None:
        (found,) = self.database.execute("SELECT acknowledged FROM written").fetchone()
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
                f"Expected the number of writes of the client's state {str(self.path)!r} in "
                f"{self._tally.path.name!r} beside it, got {what}: the state may be an older copy. Put back both. If "
                "there is nothing else, say --new-state: what the coordinator knows is then counted as spent."
            )
        if kept is not None and found < kept:
            raise LedgerError(
                f"Expected {kept} writes in the client's state {str(self.path)!r}, got {found}: it is an older copy, "
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
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing, and counted if anything was written. LedgerError once the owner has left."""
        count: int | None = None
        with self._exclusive():
            self._check_stays()
            before = self.database.total_changes
            yield self.database
            if self.database.total_changes != before:
                (count,) = self.database.execute(f"{_COUNT} RETURNING acknowledged").fetchone()
        if count is not None:
            self._keep_count(count)

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """All or nothing, and nobody else in between: another process may hold the same file."""
        self.database.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.database.execute("COMMIT")
        except BaseException:
            if self.database.in_transaction:  # a full disk has ended it, and is what to speak of
                self.database.execute("ROLLBACK")
            raise

    @contextmanager
    def errors(self) -> Iterator[sqlite3.Connection]:
        """One thread at a time; what SQLite raises is a LedgerError that names the file."""
        try:
            with self._lock:
                yield self.database
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_CORRUPT:
                raise self._damaged() from None
            raise LedgerError(
                f"Expected to read and write the client's record {str(self.path)!r}, got: {error}."
            ) from None


class Record(AbstractContextManager["Record"]):
    """Open with `Record.open`, close with `close` or by leaving its context."""

    def __init__(
        self, file: RecordFile, epsilon: float, delta: float, *, new_record: bool, other_database: bool, settled: bool
    ) -> None:
        self._file, self._database = file, file.database
        self._limits = epsilon, delta
        self._new_record, self._other_database, self._settled = new_record, other_database, settled
        # Of the coordinator's store with which runs are agreed to now, and answered: None where nobody tells.
        self._root: str | None = None
        self._incarnation: str | None = None
        with file.errors() as database:  # number of the last run that another process agreed to
            (self._before,) = database.execute("SELECT coalesce(max(rowid), 0) FROM runs").fetchone()
        self._named = False  # whether persons were named here: without it the record answers for one user alone
        self._again = set[str]()  # of those up to it the ones that this process has agreed to, too

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        epsilon: float,
        delta: float,
        new_record: bool = False,
        other_database: bool = False,
        leaving: bool = False,
        settled: bool = False,
    ) -> Self:
        """Return the record in `path`, a new one if there is none, with its owner's lifetime limits, of one person.

        `new_record` takes it for all that there is, though it is older than its count or than what a coordinator knows;
        `other_database` takes a coordinator's store for all that there is, though it is older than what was seen. With
        `settled` nobody is charged, or new: who is, was said when runs were announced, not when somebody is asked.
        LedgerError for a file that is no record, or not whole, or older; and for one of an owner who has left, unless
        it is opened for `leaving`.
        """
        file = RecordFile.connect(path, new_record=new_record, leaving=leaving)
        try:
            return cls(file, epsilon, delta, new_record=new_record, other_database=other_database, settled=settled)
        except BaseException:
            file.close()
            raise

    def register(self, names: Sequence[str], most: int | None = None) -> Persons:
        """Return the number of each person of a silo, by its name, shape (k,): -1 for a person who has left, or is one
        too many. New persons follow in the order given, up to `most` in all; a number is for ever.

        Names are kept as salted digests. A new person is charged for the open runs for which its budget suffices.
        Raises LedgerError for the record of one user who has answered.
        """
        self._named = True
        if self._settled:
            numbers, left = self.known(names)
            return np.where([since is None for since in left], numbers, -1)
        with self._file.errors(), self._file.transaction() as database:
            found = database.execute("SELECT salt FROM silo").fetchone()
            if found is None:
                if database.execute("SELECT 1 FROM shares WHERE given").fetchone():
                    raise LedgerError(
                        "Expected the record of a silo, or a new one, got that of one user, who has answered with it. "
                        "Give the silo a record, a key and a certificate of its own."
                    )
                found = (secrets.token_bytes(32),)
                database.execute("INSERT INTO silo VALUES (?)", found)
            digests = [_digest(found[0], name) for name in names]
            known = {row[0]: row[1] if row[2] is None else -1 for row in database.execute(_PEOPLE)}
            before = free = len(known)
            for digest in digests:
                if digest not in known:
                    known[digest] = free if most is None or free < most else -1
                    free += known[digest] >= 0
            new = [(number, digest) for digest, number in known.items() if number >= before]
            database.executemany("INSERT INTO people (person, digest) VALUES (?, ?)", new)
            if new:
                for terms in database.execute(_OPEN).fetchall():
                    self._charge(Agreement(*terms), np.arange(before, free), people=free)
            return np.array([known[digest] for digest in digests], np.int64)

    def known(self, names: Sequence[str]) -> tuple[Persons, list[str | None]]:
        """Return the number of each name, -1 of one without any, and since when it has left; nothing is written."""
        with self._file.errors() as database:
            salt = database.execute("SELECT salt FROM silo").fetchone()
            people = {row[0]: (row[1], row[2]) for row in database.execute(_PEOPLE)}
            found = [(-1, None) if salt is None else people.get(_digest(salt[0], name), (-1, None)) for name in names]
            return np.array([number for number, _ in found], np.int64), [left for _, left in found]

    @property
    def people(self) -> int:
        """How many persons have a number, whether they have left or not; 0 in the record of one user."""
        with self._file.errors() as database:
            return int(database.execute("SELECT count(*) FROM people").fetchone()[0])

    @property
    def departures(self) -> list[str]:
        """When persons have left, from the first."""
        with self._file.errors() as database:
            rows = database.execute("SELECT departed FROM people WHERE departed IS NOT NULL ORDER BY departed")
            return [row[0] for row in rows]

    def witness(self, known: Sequence[tuple[str, float, float]]) -> None:
        """Compare with what a coordinator says: names, ε and δ of runs that this key has agreed to.

        LedgerError if the record lacks one: it is an older copy, or the coordinator lies, which can only keep this
        client away. A record opened as a `new_record` counts them as spent instead, by everybody, and answers nothing
        more in them.

        A run that another process agreed to, that was never answered, and that it does not speak of has not begun
        there: nobody is charged for it any more, until it is announced and agreed to again.
        """
        with self._file.errors(), self._file.transaction() as database:
            have = {row[0] for row in database.execute("SELECT run FROM runs")}
            lacking = [each for each in known if each[0] not in have]
            if lacking and not self._new_record:
                raise LedgerError(
                    f"Expected {str(self._file.path)!r} to know run {printable(lacking[0][0])!r}, which its "
                    f"coordinator says that this key has agreed to, but it lacks {len(lacking)} such: it is an older "
                    "copy, or another's. Put back the newer one. If there is none, say --new-state: they are then "
                    "counted as spent."
                )
            database.executemany(_ENTER_TOLD, lacking)  # everybody is charged, and they have ended here
            if len(known) < MOST_TOLD:
                begun = {run for run, *_ in known} | self._again
                for (run,) in database.execute(_UNBEGUN, (self._root, self._before)).fetchall():
                    share = Share.of(database, run)
                    if run not in begun and not share.given:
                        Share(np.zeros_like(share.charged), share.answered, share.counts, 0).write(database, run)
                        database.execute("UPDATE runs SET charged = 0 WHERE run = ?", (run,))

    def _everybody(self) -> Persons:
        """Every person with a number, or the one user."""
        return np.arange(max(1, self.people))

    def seen(self, place: str) -> int:
        """Return rows of the lifetime ledger that were seen of the coordinator at this address."""
        with self._file.errors() as database:
            found = database.execute("SELECT max(rows) FROM books WHERE place = ?", (place,)).fetchone()
            return int(found[0] or 0)

    def saw(self, place: str, claim: StoreClaim, named: int) -> None:
        """Keep what a coordinator at an address says of its store, after `seen` has `named` rows to it.

        LedgerError for a store that is older than the one that was seen, or another, or that lacks a run which is
        charged here; a record opened for `other_database` takes it, and asks for those runs no more.
        """
        root, incarnation = claim.incarnations[0], claim.incarnations[-1]
        with self._file.errors(), self._file.transaction() as database:
            query = "SELECT root, incarnation, rows, head FROM books WHERE root = ? OR place = ? ORDER BY root = ? DESC"
            found = database.execute(query, (root, place, root)).fetchone()
            seen = None if found is None else Seen(*found)
            wrong = None if seen is None else objection(seen, claim, named)
            lacking = []
            if seen is not None and seen.incarnation != incarnation:  # otherwise rows and hash say as much
                charged = "SELECT run FROM runs JOIN shares USING (run) WHERE books = ? AND given AND epsilon < 9e999"
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
                    "is nothing else, say --accept-other-database: what it has forgotten then counts here alone."
                )
            if wrong is not None:
                database.execute("DELETE FROM books WHERE place = ?", (place,))
                database.executemany("UPDATE runs SET books = NULL WHERE run = ?", [(run,) for run in lacking])
            row = (root, place, incarnation, claim.rows, claim.head)
            if database.execute("SELECT * FROM books WHERE root = ?", (root,)).fetchone() != row:
                database.execute("INSERT OR REPLACE INTO books VALUES (?, ?, ?, ?, ?)", row)
            self._root, self._incarnation = root, incarnation

    def leave(self, *, key: str, time: str) -> Farewell:
        """Erase all but that the owner has left and what was spent, in one transaction: nothing is answered any more,
        by whichever process has the file open. Again is the same, as of the first time."""
        with self._file.errors(), self._file.transaction() as database:
            if (said := Farewell.read(database)) is None:
                tables = ("runs", "answers", "books")
                counts = [database.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables]
                said = Farewell(time, key, *self.spent, *counts)
                said.write(database)
            return said

    def close(self) -> None:
        """Close the file; nothing is lost without it."""
        self._file.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def spent(self) -> tuple[float, float]:
        """(ε, δ) charged so far over all runs: the most of any person."""
        with self._file.errors():
            epsilon, delta = self.charged(self._everybody()).max(axis=0)
        return float(epsilon), float(delta)

    def charged(self, those: Persons) -> Sums:
        """Return ε and δ charged so far over all runs, of each of these persons, shape (k, 2)."""
        with self._file.errors() as database:
            return _spent(database, those)

    def charges(self, those: Persons) -> list[Charge]:
        """Return every run that was agreed to, from the first, and which of these persons are charged for it."""
        with self._file.errors() as database:
            found = []
            for run, agreed, promise, epsilon, delta, ended, answers, people, everybody in database.execute(
                _CHARGES
            ).fetchall():
                share = Share.of(database, run)
                charged = at(share.charged, those) | bool(everybody)
                answered = at(share.answered, those)
                said = run, agreed, promise, epsilon, delta, bool(ended), answers, people
                found.append(Charge(*said, charged, answered))
            return found

    def agree(self, agreement: Agreement) -> str | None:
        """Agree to a run, durably, and charge everybody whose budget suffices. Return None, or why not: other terms
        than before, or nobody's budget suffices.

        Terms, limits and who has left alone decide, not who was asked or has answered in earlier runs: that may be
        secret (docs/privacy/lifetime.md#ol1). A repeated call also charges persons who are new, or have budget by now.
        """
        a = agreement
        with self._file.errors(), self._file.transaction() as database:
            found = database.execute("SELECT terms, ended FROM runs WHERE run = ?", (a.run,)).fetchone()
            if found is not None and found[0] != a.terms:
                return "its terms are not those of its first announcement"
            if found is None and self._settled:
                return "it was asked about before it was announced"
            (many,) = database.execute("SELECT count(*) FROM runs WHERE NOT ended").fetchone()
            if found is None and many >= _MOST_OPEN:
                return "too many runs are open that were agreed to: their coordinators end some first"
            everybody = self._everybody()
            if not (found is not None and found[1]) and not self._settled:
                self._charge(a, everybody, people=len(everybody))
            if not Share.of(database, a.run).charged.any():
                before = _spent(database, everybody[:1], besides=a.run)[0]
                for name, had, wanted, limit in zip("εδ", before, (a.epsilon, a.delta), self._limits, strict=True):
                    if fsum((had, wanted)) > limit:
                        return (
                            f"its {name} = {wanted:g} and the {had:g} spent before exceed the lifetime limit {limit:g}"
                        )
                return "nobody has room for it"
        if found is not None:
            self._again.add(a.run)
        return None

    def _charge(self, agreement: Agreement, those: Persons, *, people: int) -> None:
        """Charge those of them who are not yet, are here and have room."""
        a, database = agreement, self._database
        new = ~at(Share.of(database, a.run).charged, those) & _here(database, those)
        sums = _spent(database, those[new], plus=[(a.epsilon, a.delta)], besides=a.run)
        new[new] = (sums <= self._limits).all(axis=1)
        if new.any():
            time = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S}+00:00"
            row = (a.run, a.terms, a.epsilon, a.delta, a.participations, self._root, time, people, a.promise)
            database.execute(_ENTER, row)
            share, size = Share.of(database, a.run), int(those[new].max()) + 1
            charged, answered, counts = (
                np.pad(values, (0, max(0, size - len(values))))
                for values in (share.charged, share.answered, share.counts)
            )
            charged[those[new]] = True
            counts = counts.astype(np.min_scalar_type(a.participations))
            Share(charged, answered, counts, share.given).write(database, a.run)

    def promise(self, run: str) -> str | None:
        """Return what was announced of a run that was agreed to, as `Agreement` has it; None of any other."""
        with self._file.errors() as database:
            query = "SELECT coalesce(promise, '') FROM runs WHERE run = ?"
            found = database.execute(query, (run,)).fetchone()
            return None if found is None else str(found[0])

    def recall(self, run: str, round: int, digest: bytes | None = None) -> bytes | None:
        """Return the answer already made to this question, to be sent again, or to any in this round; None once a later
        round was answered."""
        with self._file.errors() as database:
            query = "SELECT digest, answer FROM answers WHERE run = ? AND round = ?"
            kept = database.execute(query, (run, round)).fetchone() or (None, None)
            return kept[1] if digest in (None, kept[0]) and not self._is_past(run, round) else None

    def _is_past(self, run: str, round: int) -> bool:
        """Whether a later round was answered to a coordinator. It commits a round before it asks the next, and a run
        ends where its database is restored: one that asks an earlier round has an older copy, and does not say so."""
        later = "SELECT 1 FROM answers WHERE run = ? AND round > ? AND books IS NOT NULL"
        return self._database.execute(later, (run, round)).fetchone() is not None

    def may_answer(
        self,
        run: str,
        round: int,
        those: Persons = ONE_USER,
        *,
        spends: tuple[float, float] = (0.0, 0.0),
        may: May | None = None,
        further: bool = False,
    ) -> tuple[Mask, str | None]:
        """Return which of these persons may give a new answer in this round, shape (k,), and if none of them may, why
        not the first; for no persons at all, why nobody may. By default of the one user.

        The answer `spends` (ε, δ) by itself: a local report. `may` says whether the plan has a user in this round who
        was in some others. With `further` others may have answered in it. A person who may not is as one who is away:
        nothing may tell why.
        """
        with self._file.errors() as database:
            nobody = np.zeros(len(those), bool)
            query = "SELECT epsilon, delta, participations, ended FROM runs WHERE run = ?"
            terms = database.execute(query, (run,)).fetchone()
            if terms is None:
                return nobody, "the run was not agreed to"
            *promised, participations, ended = terms
            if ended:
                return nobody, "the run has ended"
            if self._is_past(run, round):
                return nobody, "a later round was answered: the coordinator's database was put back to before it"
            query = "SELECT persons FROM answers WHERE run = ? AND round = ?"
            answered = database.execute(query, (run, round)).fetchone()
            if answered is not None and (not further or at(_unpacked(answered[0]), those).any()):
                return nobody, "the round was already answered, to another question"
            if may is not None:
                rounds = database.execute("SELECT round FROM answers WHERE run = ?", (run,)).fetchall()
                if not may([row[0] for row in rounds], round):
                    return nobody, "the plan has no user in this round who was in those that were answered"
            if not self._named and self.people:
                return nobody, "the record is that of a silo's persons, not of one user"
            share = Share.of(database, run)
            given = at(share.counts, those)
            # Both sides are for replacing one user. In a run of trust model local the charge is what was announced,
            # which this enforces. In another one the coordinator keeps the announced promise, and this the person's
            # lifetime limit: a zero-out promise is charged twice, so reports may come to that.
            own = _reported(database, run, those, bool(given.any()), spends)
            reasons = (
                (~_here(database, those), "the person has left, or is none of this silo's"),
                (~at(share.charged, those), "the lifetime limit leaves no room for the run"),
                (given >= participations, f"all {participations} answers of the run were given"),
                ((own > promised).any(axis=1), "local reports would spend more than was agreed to"),
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
        further: bool = False,
    ) -> bytes | None:
        """Write an answer that has the rows of these persons, then return what may be sent: this answer, or the one
        kept before for the same question; None if some of them may not answer (any more).

        If they are `further` ones, the answer has the rows of those who have answered in this round before, too; it may
        be to this very question, where somebody has come since.
        """
        with self._file.errors(), self._file.transaction() as database:
            if not further and (before := self.recall(run, round, digest)) is not None:
                return before
            allowed, _ = self.may_answer(run, round, those, spends=spends, may=may, further=further)
            if not len(those) or not allowed.all():
                return None
            # Last the answer: who sums ε over rounds reads none.
            query = "SELECT persons, epsilon, delta FROM answers WHERE run = ? AND round = ?"
            earlier = database.execute(query, (run, round)).fetchone() if further else None
            everybody = those if earlier is None else np.append(np.flatnonzero(_unpacked(earlier[0])), those)
            if earlier is not None:  # one row for all of them: of each as much as of the one who spends most
                spends = max(spends[0], earlier[1]), max(spends[1], earlier[2])
            row = (run, round, digest, *spends, self._incarnation, _packed(mask(everybody)), answer)
            database.execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
            share = Share.of(database, run)
            share.answered[those] = True
            share.counts[those] += 1
            Share(share.charged, share.answered, share.counts, share.given + len(those)).write(database, run)
        return answer

    def end(self, run: str, *, begun: bool = True) -> bool:
        """Erase the answers of a run that has ended; that they were given, and what was spent, stays. Nobody is charged
        for a run that had not `begun`, by its coordinator, if nothing was answered in it.

        Return whether this is news: a coordinator reports ended runs to every client that comes back.
        """
        with self._file.errors() as database:
            if not database.execute("SELECT 1 FROM runs WHERE run = ? AND ended = 0", (run,)).fetchone():
                return False
            with self._file.transaction():
                share = Share.of(database, run)
                free = not begun and not share.given
                database.execute("UPDATE runs SET ended = 1, charged = charged AND NOT ? WHERE run = ?", (free, run))
                charged = np.zeros_like(share.charged) if free else share.charged
                Share(charged, share.answered, share.counts, share.given).write(database, run, open_=False)
                database.execute("UPDATE answers SET answer = NULL, persons = NULL WHERE run = ?", (run,))
        self._again.discard(run)
        return True

    def depart(self, name: str, *, time: str) -> Departure:
        """Remove a person from a silo: in one transaction its row leaves all answers to come, and those that were kept.

        A kept answer with its row is erased whole, as the coordinator could tell from a second one whose row is gone.
        Again is the same, as of the first time. LedgerError for a name that this record does not know.
        """
        with self._file.errors(), self._file.transaction() as database:
            (person,), (left,) = self.known([name])
            if person < 0:
                raise LedgerError(
                    "Expected a person whom this record knows, got another. Check how the name is written."
                )
            if left is None:
                database.execute("UPDATE people SET departed = ? WHERE person = ?", (time, int(person)))
            kept = database.execute(
                "SELECT rowid, persons FROM answers WHERE answer IS NOT NULL AND persons IS NOT NULL"
            )
            erased = [(row,) for row, persons in kept.fetchall() if at(_unpacked(persons), np.array([person]))[0]]
            database.executemany("UPDATE answers SET answer = NULL WHERE rowid = ?", erased)
            ((epsilon, delta),) = _spent(database, np.array([person]))
        spent = float(epsilon), float(delta)
        return Departure(name, int(person), left or time, str(self._file.path), *spent, len(erased))


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """Of one run: who is charged, and how many answers each has given, while it is open; all of one length n."""

    charged: Mask
    answered: Mask  # who has ever
    counts: NDArray[np.unsignedinteger]
    given: int  # answers of persons in all, also once the run has ended

    @classmethod
    def of(cls, database: sqlite3.Connection, run: str) -> "Share":
        """Of a run; nobody is charged in one without any."""
        query = "SELECT given, charged, answered, counts FROM shares WHERE run = ?"
        found = database.execute(query, (run,)).fetchone()
        if found is None:
            return cls(np.zeros(0, bool), np.zeros(0, bool), np.zeros(0, np.uint8), 0)
        given, charged, answered, counts = found
        often = b"" if counts is None else zlib.decompress(counts[1:])
        counted = (
            np.frombuffer(often, f"<u{counts[0]}").copy() if often else np.zeros(len(_unpacked(charged)), np.uint8)
        )
        return cls(_unpacked(charged), _unpacked(answered), counted, given)

    def write(self, database: sqlite3.Connection, run: str, *, open_: bool = True) -> None:
        """Keep it; of a run that is over without how often each has answered."""
        size = self.counts.itemsize
        counts = bytes([size]) + zlib.compress(self.counts.astype(f"<u{size}").tobytes(), 1) if open_ else None
        kept = _packed(self.charged), _packed(self.answered), counts
        row = (run, self.given, *kept, _mark(*kept))
        database.execute("INSERT OR REPLACE INTO shares VALUES (?, ?, ?, ?, ?, ?)", row)


_PEOPLE = "SELECT digest, person, departed FROM people ORDER BY person"


def _digest(salt: bytes, name: str) -> bytes:
    """Of a person's name, 16 bytes."""
    return blake2b(name.encode(), digest_size=16, key=salt, person=b"quoron-person").digest()


def _here(database: sqlite3.Connection, persons: Persons) -> Mask:
    """Return which of them have a number and have not left, shape (k,)."""
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
        kept[:] = True if everybody else at(_unpacked(charged), persons)
    return _summed(held, [row[:2] for row in rows], plus)


def _summed(held: Mask, costs: Sequence[tuple[float, float]], plus: Sequence[tuple[float, float]]) -> Sums:
    """Of each column (R, k) of those `costs` that it has, and `plus` these; alike columns are summed once."""
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
    held = np.array([at(_unpacked(row[2]), persons) for row in rows], bool).reshape(len(rows), len(persons))
    return _summed(held, [row[:2] for row in rows], [spends])


def mask(persons: Persons) -> Mask:
    """Return a bit for each person up to the last of these."""
    bits = np.zeros(int(persons.max(initial=-1)) + 1, bool)
    bits[persons] = True
    return bits


def _packed(bits: Mask) -> bytes:
    """A bit each, for the file."""
    return len(bits).to_bytes(4, "little") + zlib.compress(np.packbits(bits).tobytes(), 1)


def _unpacked(kept: bytes) -> Mask:
    many, bits = int.from_bytes(kept[:4], "little"), np.frombuffer(zlib.decompress(kept[4:]), np.uint8)
    return np.unpackbits(bits, count=many).astype(bool)


def at(values: NDArray[_Number], persons: Persons) -> NDArray[_Number]:
    """Of these persons; zero beyond the last."""
    inside = (persons >= 0) & (persons < len(values))
    found = np.zeros(len(persons), values.dtype)
    found[inside] = values[persons[inside]]
    return found


def _mark(charged: bytes, answered: bytes, counts: bytes | None) -> bytes:
    kept = b"".join(len(part).to_bytes(8, "little") + part for part in (charged, answered, counts or b""))
    return blake2b(kept, digest_size=8, person=b"quoron-share").digest()


def welcomed(path: Path) -> bool:
    """Return whether a record knows a coordinator, or cannot tell; nothing is written."""
    if not path.exists():
        return False
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            return bool(database.execute("SELECT count(*) FROM books").fetchone()[0])
    except sqlite3.Error:
        return True
