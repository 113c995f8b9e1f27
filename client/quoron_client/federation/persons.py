"""Whom a client's record charges: the persons of a silo, each by a number of its own, or the one user of a client.

    seats = register(database, ["anna", "ben"])          # 0, 1: for ever theirs; -1 once somebody has left
    charge(database, "spring", seats, participations=40) # both are charged for this run
    count(database, "spring", seats)                     # and have answered once more in it
    spent(database, seats)                               # ε and δ of each, shape (2, 2)

Of a name the record keeps a salted digest, so whoever finds the file learns nobody's name from it; whoever has the file
and guesses a name can check the guess, as the salt is in it. Of a run it keeps one row, however many the persons are:
who is charged and who has answered, a bit each, and how often, while the run is open.

All of it belongs to a transaction of `Record`, whose tables these are. Sums of ε and of δ are correctly rounded.
"""

import secrets
import sqlite3
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import fsum
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.errors import LedgerError

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
    """Whether this is the record of a silo: some person has a number."""
    return database.execute("SELECT 1 FROM people LIMIT 1").fetchone() is not None


def register(database: sqlite3.Connection, names: Sequence[str], most: int | None = None) -> Persons:
    """The number of each name, shape (k,): new ones follow in the order given, up to `most` in all.

    -1 for whoever has left, or is one too many. LedgerError for the record of one user who has answered.
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
    """The number of each name, -1 of one without any, and since when it has left; nobody is given a new one."""
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
    """Which of them have a number and have not left, shape (k,)."""
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
    """A person has left: its number, since when, and how many kept answers were erased because it was in them.

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
    """ε and δ that each person is charged over all runs but one, and `plus` these, shape (k, 2)."""
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
    """ε and δ of each person's local reports in a run, with one more that spends so much, shape (k, 2)."""
    query = "SELECT epsilon, delta, persons FROM answers WHERE run = ? AND (epsilon > 0 OR delta > 0)"
    given = database.execute(query, (run,)).fetchall() if counts.any() else []
    held = np.array([at(unpacked(row[2]), persons) for row in given], bool).reshape(len(given), len(persons))
    return _summed(held, [row[:2] for row in given], [spends])


def whole(database: sqlite3.Connection) -> bool:
    """Whether what is kept of each run is what was written: a torn copy has some pages of before."""
    rows = database.execute("SELECT mark, charged, answered, counts FROM shares")
    return all(mark == _mark(*kept) for mark, *kept in rows)


def mask(persons: Persons) -> Mask:
    """A bit for each person up to the last of these."""
    bits = np.zeros(int(persons.max(initial=-1)) + 1, bool)
    bits[persons] = True
    return bits


def are_among(kept: bytes, persons: Persons) -> bool:
    """Whether any of these has a bit in what the file says."""
    return bool(at(unpacked(kept), persons).any())


def union(kept: bytes, persons: Persons) -> Mask:
    """A bit for each of these, and for whoever has one in what the file says."""
    return mask(np.append(np.flatnonzero(unpacked(kept)), persons))


def packed(bits: Mask) -> bytes:
    """A bit each, for the file."""
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
