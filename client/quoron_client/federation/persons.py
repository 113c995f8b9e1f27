"""Whom a client's record charges: the persons of a silo, each by a number of its own, or the one user of a client.

    seats = register(database, ["anna", "ben"])        # 0, 1: for ever theirs; -1 once somebody has left
    add(database, "spring", seats, participations=40)  # both have answered once more in this run
    spent(database, seats)                             # ε and δ of each, shape (2, 2)

Of a name the record keeps a salted digest, so whoever finds the file learns nobody's name from it; whoever has the file
and guesses a name can check the guess, as the salt is in it. Of a run it keeps one row, however many the persons are:
who is charged, a bit each, and how often each has answered, while the run is open.

All of it belongs to a transaction of `Record`, whose tables these are. Sums of ε and of δ are correctly rounded.
"""

import secrets
import sqlite3
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import fsum
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.errors import LedgerError

TABLES = """
CREATE TABLE silo (salt BLOB NOT NULL) STRICT;
CREATE TABLE people (
    person INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE, since INTEGER NOT NULL, departed TEXT
) STRICT;
CREATE INDEX gone ON people (departed) WHERE departed IS NOT NULL;
CREATE TABLE shares (
    run TEXT PRIMARY KEY REFERENCES runs, given INTEGER NOT NULL, charged BLOB NOT NULL, counts BLOB, mark BLOB NOT NULL
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
    """Of one run: who is charged, shape (n,), and how many answers each has given, while it is open."""

    charged: Mask
    counts: Counts

    def of(self, persons: Persons) -> tuple[Mask, Counts]:
        """Both for these persons, shape (k,) each; those that are not charged yet may be beyond n."""
        return _at(self.charged, persons), _at(self.counts, persons)


def are_registered(database: sqlite3.Connection) -> bool:
    """Whether this is the record of a silo: some person has a number."""
    return database.execute("SELECT 1 FROM people LIMIT 1").fetchone() is not None


def register(database: sqlite3.Connection, names: Sequence[str], most: int | None = None) -> Persons:
    """The number of each name, shape (k,): new ones follow in the order given, up to `most` in all.

    -1 for whoever has left, or is one too many. LedgerError for the record of one user who has answered.
    """
    found = database.execute("SELECT salt FROM silo").fetchone()
    if found is None:
        if database.execute("SELECT 1 FROM shares").fetchone():
            raise LedgerError(
                "Expected the record of a silo, or a new one, got that of one user, who has answered with it. Give "
                "the silo a record, a key and a certificate of its own."
            )
        found = (secrets.token_bytes(32),)
        database.execute("INSERT INTO silo VALUES (?)", found)
    digests = [digest(found[0], name) for name in names]
    known = {row[0]: row[1] if row[2] is None else -1 for row in database.execute(_PEOPLE)}
    free = len(known)
    (since,) = database.execute(_FIRST_OPEN).fetchone()
    new = []
    for each in digests:
        if each not in known:
            known[each] = free if most is None or free < most else -1
            if known[each] >= 0:
                new.append((free, each, since))
                free += 1
    database.executemany("INSERT INTO people (person, digest, since) VALUES (?, ?, ?)", new)
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
# Whoever comes can be asked in every run that is open then, and in later ones.
_FIRST_OPEN = "SELECT coalesce(min(rowid), (SELECT coalesce(max(rowid), 0) + 1 FROM runs)) FROM runs WHERE NOT ended"


def digest(salt: bytes, name: str) -> bytes:
    """Of a person's name, 16 bytes."""
    return blake2b(name.encode(), digest_size=16, key=salt, person=b"quoron-person").digest()


def here(database: sqlite3.Connection, persons: Persons) -> Mask:
    """Which of them have a number and have not left, shape (k,)."""
    if not are_registered(database):
        return np.equal(persons, 0)
    (many,) = database.execute("SELECT count(*) FROM people").fetchone()
    gone = [row[0] for row in database.execute("SELECT person FROM people WHERE departed IS NOT NULL")]
    return np.logical_and(np.isin(persons, np.arange(many)), ~np.isin(persons, gone))


def share(database: sqlite3.Connection, run: str) -> Share:
    """Of a run; nobody is charged in one without any."""
    found = database.execute("SELECT charged, counts FROM shares WHERE run = ?", (run,)).fetchone()
    if found is None:
        return Share(np.zeros(0, bool), np.zeros(0, np.uint8))
    charged = unpacked(found[0])
    return Share(charged, np.zeros(0, np.uint8) if found[1] is None else _counts(found[1]))


def add(
    database: sqlite3.Connection, run: str, persons: Persons, *, participations: int, answered: bool = True
) -> None:
    """Charge these persons for a run and, if they have `answered`, count one more answer of each."""
    before, size = share(database, run), int(persons.max(initial=-1)) + 1
    charged = np.zeros(max(size, len(before.charged)), bool)
    counts = np.zeros(len(charged), np.min_scalar_type(participations))
    charged[: len(before.charged)] = before.charged
    counts[: len(before.counts)] = before.counts
    charged[persons] = True
    counts[persons] += answered
    _write(database, run, int(counts.sum(dtype=np.int64)), packed(charged), _compressed(counts))


def close(database: sqlite3.Connection, run: str) -> None:
    """A run has ended: who was charged stays, how often each has answered is of no use any more."""
    found = database.execute("SELECT given, charged FROM shares WHERE run = ?", (run,)).fetchone()
    if found is not None:
        _write(database, run, int(found[0]), bytes(found[1]), None)
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
        if _at(unpacked(persons), np.array([person]))[0]:
            database.execute("UPDATE answers SET answer = NULL WHERE rowid = ?", (row,))
            erased += 1
    return person, before or time, erased


def spent(
    database: sqlite3.Connection,
    persons: Persons,
    *,
    plus: Sequence[tuple[float, float]] = (),
    besides: str = "",
    by_terms: bool = False,
) -> Sums:
    """ε and δ of each person over all runs but one, and `plus` these, shape (k, 2).

    `by_terms`: a run of private attendance counts for whoever could have been asked in it, from when it was agreed to,
    whatever was asked, so that the sums are a function of what is public.
    """
    rows = database.execute(_BY_TERMS if by_terms else _CHARGED, (besides,)).fetchall()
    since = _since(database, persons) if by_terms else persons
    held = np.zeros((len(rows), len(persons)), bool)
    for kept, (number, _, _, everybody, public, charged) in zip(held, rows, strict=True):
        if everybody:
            kept[:] = True
        elif by_terms and not public:
            kept[:] = since <= number
        elif charged is not None:
            kept[:] = _at(unpacked(charged), persons)
    patterns, which = np.unique(np.packbits(held, axis=0).T, axis=0, return_inverse=True)
    costs = [(row[1], row[2]) for row in rows]
    sums = np.empty((len(patterns), 2))
    for total, pattern in zip(sums, patterns, strict=True):
        bits = np.unpackbits(pattern, count=len(rows)) if rows else ()
        all_of = [*(cost for cost, bit in zip(costs, bits, strict=True) if bit), *plus]
        total[:] = fsum(each[0] for each in all_of), fsum(each[1] for each in all_of)
    return sums[which.ravel()]


_COSTS = "SELECT runs.rowid, epsilon, delta, everybody, public, shares.charged FROM runs LEFT JOIN shares USING (run)"
_CHARGED = f"{_COSTS} WHERE runs.charged AND run != ? ORDER BY runs.rowid"
_BY_TERMS = f"{_COSTS} WHERE (runs.charged OR NOT public) AND run != ? ORDER BY runs.rowid"


def reported(
    database: sqlite3.Connection,
    run: str,
    persons: Persons,
    counts: Counts,
    spends: tuple[float, float],
) -> Sums:
    """ε and δ of each person's local reports in a run, with one more that spends so much, shape (k, 2)."""
    sums = np.tile(np.array(spends), (len(persons), 1))
    again = np.flatnonzero(counts)
    query = "SELECT epsilon, delta, persons FROM answers WHERE run = ? AND (epsilon > 0 OR delta > 0)"
    given = database.execute(query, (run,)).fetchall() if len(again) else []
    held = np.array([_at(unpacked(row[2]), persons[again]) for row in given], bool).reshape(len(given), len(again))
    for index, bits in zip(again, held.T, strict=True):
        own = [spends, *(row[:2] for row, bit in zip(given, bits, strict=True) if bit)]
        sums[index] = fsum(each[0] for each in own), fsum(each[1] for each in own)
    return sums


def whole(database: sqlite3.Connection) -> bool:
    """Whether what is kept of each run is what was written: a torn copy has some pages of before."""
    rows = database.execute("SELECT charged, counts, mark FROM shares")
    return all(mark == _mark(charged, counts) for charged, counts, mark in rows)


def mask(persons: Persons) -> Mask:
    """A bit for each person up to the last of these."""
    bits = np.zeros(int(persons.max(initial=-1)) + 1, bool)
    bits[persons] = True
    return bits


def are_among(kept: bytes, persons: Persons) -> bool:
    """Whether any of these has a bit in what the file says."""
    return bool(_at(unpacked(kept), persons).any())


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


def _at(values: NDArray[_Number], persons: Persons) -> NDArray[_Number]:
    """Of these persons; zero beyond the last."""
    inside = (persons >= 0) & (persons < len(values))
    found = np.zeros(len(persons), values.dtype)
    found[inside] = values[persons[inside]]
    return found


def _since(database: sqlite3.Connection, persons: Persons) -> Persons:
    """The first run in which each could be asked: its number."""
    found = np.array([row[0] for row in database.execute("SELECT since FROM people ORDER BY person")], np.int64)
    return _at(found, persons)


def _write(database: sqlite3.Connection, run: str, given: int, charged: bytes, counts: bytes | None) -> None:
    row = (run, given, charged, counts, _mark(charged, counts))
    database.execute("INSERT OR REPLACE INTO shares VALUES (?, ?, ?, ?, ?)", row)


def _mark(charged: bytes, counts: bytes | None) -> bytes:
    return blake2b(charged + (counts or b""), digest_size=8, person=b"quoron-share").digest()
