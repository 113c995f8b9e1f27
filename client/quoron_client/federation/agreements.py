"""The runs in a client's record: what was agreed to, and what a silo's account shows of it.

All of it belongs to a transaction of `Record`, whose tables these are.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from quoron_client.federation import persons
from quoron_client.federation.persons import Mask, Persons, Share

_MOST_OPEN = 1000  # runs: a coordinator could announce them for ever


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
    promise: str  # JSON; empty where it was not told
    epsilon: float
    delta: float
    ended: bool
    answers: int  # rounds that were answered
    people: int  # that the silo had while it was open; 1 of a user
    charged: Mask  # of the persons asked about
    answered: Mask


def enter(database: sqlite3.Connection, agreement: Agreement, *, books: str | None, people: int) -> None:
    """Somebody is charged for an agreement, which may be new, among so many people that there are."""
    a, time = agreement, f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S}+00:00"
    database.execute(
        "INSERT INTO runs (run, terms, epsilon, delta, participations, books, agreed, people, promise, charged) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 1) ON CONFLICT DO UPDATE SET charged = 1, people = excluded.people",
        (a.run, a.terms, a.epsilon, a.delta, a.participations, books, time, people, a.promise),
    )


def promise(database: sqlite3.Connection, run: str) -> str | None:
    """What was announced of a run that was agreed to; None of any other."""
    found = database.execute("SELECT coalesce(promise, '') FROM runs WHERE run = ?", (run,)).fetchone()
    return None if found is None else str(found[0])


def enter_told(database: sqlite3.Connection, told: Sequence[tuple[str, float, float]]) -> None:
    """Everybody is charged for runs that only a coordinator knows: their names, ε and δ. They have ended here."""
    database.executemany(
        "INSERT INTO runs (run, terms, epsilon, delta, participations, charged, ended, everybody) "
        "VALUES (?, x'', ?, ?, 0, 1, 1, 1) ON CONFLICT DO NOTHING",
        told,
    )


def open_ones(database: sqlite3.Connection) -> list[Agreement]:
    """Runs that somebody is charged for and that have not ended, from the first."""
    query = """SELECT run, terms, epsilon, delta, participations, promise FROM runs
        WHERE charged AND NOT ended ORDER BY rowid"""
    return [Agreement(*row) for row in database.execute(query).fetchall()]


def too_many(database: sqlite3.Connection) -> bool:
    """Whether so many runs are open that no other is agreed to."""
    return int(database.execute("SELECT count(*) FROM runs WHERE NOT ended").fetchone()[0]) >= _MOST_OPEN


def end(database: sqlite3.Connection, run: str, *, begun: bool) -> None:
    """A run has ended: its answers are erased. Whoever was charged stays so, unless it had not begun."""
    release = not begun and not Share.of(database, run).given
    database.execute("UPDATE runs SET ended = 1, charged = charged AND NOT ? WHERE run = ?", (release, run))
    persons.close(database, run, release=release)


def release(database: sqlite3.Connection, begun: set[str], *, books: str | None, before: int) -> None:
    """Nobody is charged for runs of these books, up to this number, that were not answered and have not begun."""
    query = "SELECT run FROM runs WHERE charged AND NOT ended AND NOT everybody AND books = ? AND rowid <= ?"
    for (run,) in database.execute(query, (books, before)).fetchall():
        share = Share.of(database, run)
        if run not in begun and not share.given:
            Share(np.zeros_like(share.charged), share.answered, share.counts, 0).write(database, run)
            database.execute("UPDATE runs SET charged = 0 WHERE run = ?", (run,))


def charges(database: sqlite3.Connection, those: Persons) -> list[Charge]:
    """Every run that was agreed to, from the first, and which of these persons are charged for it, and answered."""
    query = """SELECT run, agreed, coalesce(promise, ''), epsilon, delta, ended,
        (SELECT count(*) FROM answers WHERE answers.run = runs.run), coalesce(people, 1), everybody
        FROM runs ORDER BY runs.rowid"""
    found = []
    for run, agreed, promise, epsilon, delta, ended, answers, people, everybody in database.execute(query).fetchall():
        share = Share.of(database, run)
        of = persons.at(share.charged, those) | bool(everybody), persons.at(share.answered, those)
        found.append(Charge(run, agreed, promise, epsilon, delta, bool(ended), answers, people, *of))
    return found
