"""The file of a client's record: whole, the newest, and written all or nothing.

    file = RecordFile.connect(Path("record.sqlite"), anew=False, leaving=False)
    with file.errors(), file.transaction() as database:
        database.execute(...)

Stored in SQLite with full synchronisation: what was written survives a crash and a loss of power. Between two writes
all of it is in the one file, and how much was written is counted, in the file and beside it (`-acknowledged`): a copy
that is older, empty or torn is refused by name.

What a client's record says of an owner who has left, and all that it says then.

    said = read(database)       # None for an owner who takes part
    said = write(database, key, time, spent)

Both belong to a transaction of `Record`, whose tables these are.

Whom a client's record charges: the persons of a silo, each by a number of its own, or the one user of a client.

    seats = register(database, ["anna", "ben"])          # 0, 1: for ever theirs; -1 once somebody has left
    charge(database, "spring", seats, participations=40) # both are charged for this run
    count(database, "spring", seats)                     # and have answered once more in it
    spent(database, seats)                               # ε and δ of each, shape (2, 2)

The record keeps a salted digest of each name, so the file reveals nobody's name. An adversary who has the file can
check a guessed name, as the salt is in it. Of a run the record keeps one row, however many the persons are: who is
charged and who has answered, a bit each, and how often, while the run is open.

All of it belongs to a transaction of `Record`, whose tables these are. Sums of ε and of δ are correctly rounded.
"""

import os
import secrets
import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import astuple, dataclass
from hashlib import blake2b
from math import fsum
from pathlib import Path
from threading import RLock
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from quoron_client.durable import Tally
from quoron_privacy.errors import LedgerError

LEFT = """CREATE TABLE left_for_good (
    time TEXT NOT NULL, key TEXT NOT NULL, epsilon REAL NOT NULL, delta REAL NOT NULL,
    runs INTEGER NOT NULL, answers INTEGER NOT NULL, books INTEGER NOT NULL
) STRICT"""


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

    def refusal(self, path: Path) -> str:
        """Return why the record answers nothing."""
        return (
            f"Expected the record of a user who takes part, got {str(path)!r}, whose user has left on "
            f"{self.time[:10]}, for good: it answers nothing any more. Anyone who begins again does so as another "
            f"user, with a key and a record of its own, and has spent ε = {self.epsilon:g} before."
        )


def read(database: sqlite3.Connection) -> Farewell | None:
    """Return what the record says; None for an owner who has not left."""
    if not database.execute("SELECT 1 FROM sqlite_schema WHERE name = 'left_for_good'").fetchone():
        return None
    return Farewell(*database.execute("SELECT * FROM left_for_good").fetchone())


def write(database: sqlite3.Connection, key: str, time: str, spent: tuple[float, float]) -> Farewell:
    """Erase every run, answer and coordinator's store, overwritten by `secure_delete`, and say so."""
    counts = [database.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("runs", "answers", "books")]
    for table in ("answers", "shares", "runs", "books", "people", "silo"):
        database.execute(f"DELETE FROM {table}")
    database.execute(LEFT)
    said = Farewell(time, key, *spent, *counts)
    database.execute("INSERT INTO left_for_good VALUES (?, ?, ?, ?, ?, ?, ?)", astuple(said))
    return said


TABLES = """
CREATE TABLE silo (salt BLOB NOT NULL) STRICT;
CREATE TABLE people (
    person INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE, departed TEXT
) STRICT;
CREATE INDEX gone ON people (departed) WHERE departed IS NOT NULL;
CREATE TABLE shares (
    run TEXT PRIMARY KEY REFERENCES runs, given INTEGER NOT NULL, charged BLOB NOT NULL, answered BLOB NOT NULL,
    counts BLOB, mark BLOB NOT NULL
) STRICT
"""
FOUND = """(SELECT total(given) FROM shares), (SELECT count(*) FROM people),
    (SELECT count(*) FROM people WHERE departed IS NOT NULL)"""
Persons = NDArray[np.int64]
Mask = NDArray[np.bool_]
Sums = NDArray[np.float64]
Counts = NDArray[np.unsignedinteger]
_Number = TypeVar("_Number", bound=np.generic)
ONE_USER: Persons = np.zeros(1, np.int64)
ONE_USER.setflags(write=False)


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """Of one run: who is charged, and how many answers each has given, while it is open; all of one length n."""

    charged: Mask
    answered: Mask  # who has ever
    counts: Counts
    given: int  # answers of persons in all, also once the run has ended

    @classmethod
    def of(cls, database: sqlite3.Connection, run: str) -> "Share":
        """Of a run; nobody is charged in one without any."""
        query = "SELECT given, charged, answered, counts FROM shares WHERE run = ?"
        found = database.execute(query, (run,)).fetchone()
        if found is None:
            return cls(np.zeros(0, bool), np.zeros(0, bool), np.zeros(0, np.uint8), 0)
        charged = unpacked(found[1])
        counts = np.zeros(len(charged), np.uint8) if found[3] is None else _counts(found[3])
        return cls(charged, unpacked(found[2]), counts, found[0])

    def write(self, database: sqlite3.Connection, run: str, *, open_: bool = True) -> None:
        """Keep it; of a run that is over without how often each has answered."""
        kept = packed(self.charged), packed(self.answered), _compressed(self.counts) if open_ else None
        row = (run, self.given, *kept, _mark(*kept))
        database.execute("INSERT OR REPLACE INTO shares VALUES (?, ?, ?, ?, ?, ?)", row)


def are_registered(database: sqlite3.Connection) -> bool:
    """Return whether this is the record of a silo: some person has a number."""
    return database.execute("SELECT 1 FROM people LIMIT 1").fetchone() is not None


def register(database: sqlite3.Connection, names: Sequence[str], most: int | None = None) -> Persons:
    """Return the number of each name, shape (k,): new ones follow in the order given, up to `most` in all.

    It is -1 for a person who left, or is one too many. Raises LedgerError for the record of one user who has answered.
    """
    found = database.execute("SELECT salt FROM silo").fetchone()
    if found is None:
        if database.execute("SELECT 1 FROM shares WHERE given").fetchone():
            raise LedgerError(
                "Expected the record of a silo, or a new one, got that of one user, who has answered with it. Give "
                "the silo a record, a key and a certificate of its own."
            )
        found = (secrets.token_bytes(32),)
        database.execute("INSERT INTO silo VALUES (?)", found)
    digests = [digest(found[0], name) for name in names]
    known = {row[0]: row[1] if row[2] is None else -1 for row in database.execute(_PEOPLE)}
    free = len(known)
    new = []
    for each in digests:
        if each not in known:
            known[each] = free if most is None or free < most else -1
            if known[each] >= 0:
                new.append((free, each))
                free += 1
    database.executemany("INSERT INTO people (person, digest) VALUES (?, ?)", new)
    return np.array([known[each] for each in digests], np.int64)


def known(database: sqlite3.Connection, names: Sequence[str]) -> tuple[Persons, list[str | None]]:
    """Return the number of each name, -1 of one without any, and since when it has left; nobody is given a new one."""
    salt = database.execute("SELECT salt FROM silo").fetchone()
    if salt is None:
        return np.full(len(names), -1), [None] * len(names)
    people = {row[0]: (row[1], row[2]) for row in database.execute(_PEOPLE)}
    found = [people.get(digest(salt[0], name), (-1, None)) for name in names]
    return np.array([each[0] for each in found], np.int64), [each[1] for each in found]


_PEOPLE = "SELECT digest, person, departed FROM people ORDER BY person"


def digest(salt: bytes, name: str) -> bytes:
    """Of a person's name, 16 bytes."""
    return blake2b(name.encode(), digest_size=16, key=salt, person=b"quoron-person").digest()


def here(database: sqlite3.Connection, persons: Persons) -> Mask:
    """Return which of them have a number and have not left, shape (k,)."""
    if not are_registered(database):
        return np.equal(persons, 0)
    (many,) = database.execute("SELECT count(*) FROM people").fetchone()
    gone = [row[0] for row in database.execute("SELECT person FROM people WHERE departed IS NOT NULL")]
    inside: Mask = (persons >= 0) & (persons < many)
    return np.logical_and(inside, ~np.isin(persons, gone)) if gone else inside


def charge(database: sqlite3.Connection, run: str, persons: Persons, *, participations: int) -> None:
    """These persons are charged for a run in which each may answer so often."""
    before, size = Share.of(database, run), int(persons.max(initial=-1)) + 1
    size = max(size, len(before.charged))
    charged, answered = _longer(before.charged, size, bool), _longer(before.answered, size, bool)
    charged[persons] = True
    counts = _longer(before.counts, size, np.min_scalar_type(participations))
    Share(charged, answered, counts, before.given).write(database, run)


def count(database: sqlite3.Connection, run: str, persons: Persons) -> None:
    """These persons, who are charged for a run, have answered once more in it."""
    before = Share.of(database, run)
    answered, counts = before.answered.copy(), before.counts.copy()
    answered[persons] = True
    counts[persons] += 1
    Share(before.charged, answered, counts, before.given + len(persons)).write(database, run)


def close(database: sqlite3.Connection, run: str, *, release: bool) -> None:
    """A run has ended: who was charged stays, unless nobody was asked and they are to be released."""
    before = Share.of(database, run)
    nobody = np.zeros_like(before.charged)
    closed = Share(nobody if release else before.charged, before.answered, before.counts, before.given)
    closed.write(database, run, open_=False)
    database.execute("UPDATE answers SET answer = NULL, persons = NULL WHERE run = ?", (run,))


def depart(database: sqlite3.Connection, name: str, time: str) -> tuple[int, str, int]:
    """Enter that a person has left. Return its number, since when, and how many kept answers with it were erased.

    LedgerError for a name that the record does not know.
    """
    salt = database.execute("SELECT salt FROM silo").fetchone()
    query = "SELECT person, departed FROM people WHERE digest = ?"
    found = None if salt is None else database.execute(query, (digest(salt[0], name),)).fetchone()
    if found is None:
        raise LedgerError("Expected a person whom this record knows, got another. Check how the name is written.")
    person, before = found
    database.execute("UPDATE people SET departed = ? WHERE person = ? AND departed IS NULL", (time, person))
    erased = 0
    kept = database.execute("SELECT rowid, persons FROM answers WHERE answer IS NOT NULL AND persons IS NOT NULL")
    for row, persons in kept.fetchall():
        if at(unpacked(persons), np.array([person]))[0]:
            database.execute("UPDATE answers SET answer = NULL WHERE rowid = ?", (row,))
            erased += 1
    return person, before or time, erased


def spent(
    database: sqlite3.Connection, persons: Persons, *, plus: Sequence[tuple[float, float]] = (), besides: str = ""
) -> Sums:
    """Return ε and δ that each person is charged over all runs but one, and `plus` these, shape (k, 2)."""
    rows = database.execute(_CHARGED, (besides,)).fetchall()
    held = np.zeros((len(rows), len(persons)), bool)
    for kept, (_, _, everybody, charged) in zip(held, rows, strict=True):
        kept[:] = True if everybody else at(unpacked(charged), persons)
    return _summed(held, [row[:2] for row in rows], plus)


def _summed(held: Mask, costs: Sequence[tuple[float, float]], plus: Sequence[tuple[float, float]]) -> Sums:
    """Of each column (R, k) of those `costs` that it has, and `plus` these; alike columns are summed once."""
    if not costs:
        return np.full((held.shape[1], 2), [fsum(each[0] for each in plus), fsum(each[1] for each in plus)])
    patterns, which = np.unique(np.packbits(held, axis=0).T, axis=0, return_inverse=True)
    sums = np.empty((len(patterns), 2))
    for total, pattern in zip(sums, patterns, strict=True):
        bits = np.unpackbits(pattern, count=len(costs))
        all_of = [*(cost for cost, bit in zip(costs, bits, strict=True) if bit), *plus]
        total[:] = fsum(each[0] for each in all_of), fsum(each[1] for each in all_of)
    return sums[which.ravel()]


_CHARGED = """SELECT epsilon, delta, everybody, shares.charged FROM runs LEFT JOIN shares USING (run)
    WHERE runs.charged AND run != ? ORDER BY runs.rowid"""


def reported(
    database: sqlite3.Connection,
    run: str,
    persons: Persons,
    counts: Counts,
    spends: tuple[float, float],
) -> Sums:
    """Return ε and δ of each person's local reports in a run, with one more that spends so much, shape (k, 2)."""
    query = "SELECT epsilon, delta, persons FROM answers WHERE run = ? AND (epsilon > 0 OR delta > 0)"
    given = database.execute(query, (run,)).fetchall() if counts.any() else []
    held = np.array([at(unpacked(row[2]), persons) for row in given], bool).reshape(len(given), len(persons))
    return _summed(held, [row[:2] for row in given], [spends])


def whole_persons(database: sqlite3.Connection) -> bool:
    """Return whether what is kept of each run is what was written: a torn copy has some pages of before."""
    rows = database.execute("SELECT mark, charged, answered, counts FROM shares")
    return all(mark == _mark(*kept) for mark, *kept in rows)


def mask(persons: Persons) -> Mask:
    """Return a bit for each person up to the last of these."""
    bits = np.zeros(int(persons.max(initial=-1)) + 1, bool)
    bits[persons] = True
    return bits


def are_among(kept: bytes, persons: Persons) -> bool:
    """Return whether any of these has a bit in what the file says."""
    return bool(at(unpacked(kept), persons).any())


def union(kept: bytes, persons: Persons) -> Mask:
    """Return a bit for each of these persons, and for each person who has one in `kept`."""
    return mask(np.append(np.flatnonzero(unpacked(kept)), persons))


def packed(bits: Mask) -> bytes:
    """Return a bit each, for the file."""
    return len(bits).to_bytes(4, "little") + zlib.compress(np.packbits(bits).tobytes(), 1)


def unpacked(kept: bytes) -> Mask:
    """From the file."""
    many, bits = int.from_bytes(kept[:4], "little"), np.frombuffer(zlib.decompress(kept[4:]), np.uint8)
    return np.unpackbits(bits, count=many).astype(bool)


def _compressed(counts: Counts) -> bytes:
    return bytes([counts.itemsize]) + zlib.compress(counts.astype(f"<u{counts.itemsize}").tobytes(), 1)


def _counts(kept: bytes) -> Counts:
    return np.frombuffer(zlib.decompress(kept[1:]), f"<u{kept[0]}")


def at(values: NDArray[_Number], persons: Persons) -> NDArray[_Number]:
    """Of these persons; zero beyond the last."""
    inside = (persons >= 0) & (persons < len(values))
    found = np.zeros(len(persons), values.dtype)
    found[inside] = values[persons[inside]]
    return found


def _longer(values: NDArray[Any], size: int, kind: Any) -> NDArray[Any]:
    found = np.zeros(size, kind)
    found[: len(values)] = values
    return found


def _mark(charged: bytes, answered: bytes, counts: bytes | None) -> bytes:
    kept = b"".join(len(each).to_bytes(8, "little") + each for each in (charged, answered, counts or b""))
    return blake2b(kept, digest_size=8, person=b"quoron-share").digest()


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
{TABLES};
CREATE TABLE written (
    acknowledged INTEGER NOT NULL, runs INTEGER NOT NULL, charged INTEGER NOT NULL, ended INTEGER NOT NULL,
    answers INTEGER NOT NULL, books INTEGER NOT NULL, given INTEGER NOT NULL, people INTEGER NOT NULL,
    departed INTEGER NOT NULL
) STRICT;
INSERT INTO written VALUES (0, 0, 0, 0, 0, 0, 0, 0, 0);
PRAGMA user_version = {VERSION};
"""
_COUNTED = "runs, charged, ended, answers, books, given, people, departed"
_FOUND = f"""(SELECT count(*) FROM runs), (SELECT total(charged) FROM runs), (SELECT total(ended) FROM runs),
    (SELECT count(*) FROM answers), (SELECT total(rows + 1) FROM books), {FOUND}"""
_COUNT = f"UPDATE written SET ({_COUNTED}) = (SELECT {_FOUND}), acknowledged = acknowledged + 1"


class RecordFile:
    """One connection to the file, for one thread at a time. Open with `RecordFile.connect`."""

    def __init__(self, database: sqlite3.Connection, path: Path, *, anew: bool, leaving: bool) -> None:
        self.database, self.path = database, path
        self._anew, self._leaving = anew, leaving
        self._lock = RLock()  # closing waits for what is being written
        self._tally = Tally(path)

    @classmethod
    def connect(cls, path: Path, *, anew: bool, leaving: bool) -> Self:
        """Return the file in `path`, a new one if there is none; LedgerError as `Record.open`."""
        try:
            # The journals take the file's permissions.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        except (OSError, sqlite3.Error) as error:
            raise LedgerError(f"Expected a client's record at {str(path)!r}, cannot open it: {error}.") from None
        file = cls(database, path, anew=anew, leaving=leaving)
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
        whole = [row[0] for row in self.database.execute("PRAGMA integrity_check")] == ["ok"]
        rows = self.database.execute(f"SELECT {_COUNTED} FROM written").fetchall() if whole else []
        if (
            not whole
            or rows != [tuple(map(int, self.database.execute(f"SELECT {_FOUND}").fetchone()))]
            or not whole_persons(self.database)
        ):
            raise self._damaged()

    def _damaged(self) -> LedgerError:
        return LedgerError(
            f"Expected a whole client's state in {str(self.path)!r}, got one that was damaged, or copied in the "
            "middle of a write. Put back a copy that is whole. If there is none, move it away and say --new-state."
        )

    def _check_stays(self) -> None:
        """LedgerError for an owner who has left."""
        said = None if self._leaving else read(self.database)
        if said is not None:
            raise LedgerError(said.refusal(self.path))

    def _check_count(self) -> None:
        (found,) = self.database.execute("SELECT acknowledged FROM written").fetchone()
        if self._anew:
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


def welcomed(path: Path) -> bool:
    """Return whether a record knows a coordinator, or cannot tell; nothing is written."""
    if not path.exists():
        return False
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            return bool(database.execute("SELECT count(*) FROM books").fetchone()[0])
    except sqlite3.Error:
        return True
