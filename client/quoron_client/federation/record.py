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
    >>> record.may_answer("r", 1, seats), record.charged(seats)[:, 0]
    (array([False, False,  True]), array([1.5, 1.5, 1.5]))
    >>> record.depart("carla", time="2026-01-02T03:04:05+00:00").person, record.may_answer("r", 1, seats).any()
    (2, np.False_)
    >>> record.close()

It does not trust the coordinator. For each round of a run there is one answer, made once: written here before it is
sent, sent again for the same question, and refused for any other. Rounds go forward: once a later one was answered
nothing is sent of an earlier one, also if the coordinator's database was restored since. Flower reports no database,
and rounds may go back: there, too, each has one answer. A person is charged in full for a run when it is agreed to,
whether the person is then asked or not. The charges of all runs add up, which is sound however the coordinator composes
them, and stay within the limits, which are those of one person. A person without budget, or who has left, is not in an
answer, as if away (docs/privacy/lifetime.md#ol1).

How the file survives crashes, and is distinguished from an older copy of itself, is in `record_file`. A record that
lacks a run which a coordinator says this key has agreed to is refused by name. An owner without another record declares
so (`anew`): runs that coordinators report are then entered as spent, by everybody. In turn the record keeps what it has
seen of each coordinator's store, and refuses an older one by name.

Answers may be functions of the owner's data, so the file is its owner's alone, and answers are erased when the run has
ended. Without the file these protections are lost: keep it with the data. For an owner who leaves (`leave`) everything
is erased but that it has left and what was spent, and from then on nothing opens the file to answer. For a person who
leaves a silo (`depart`) that person's answers are erased.

Which store a coordinator says that it keeps, and whether it is older than what this client has seen of it.

    >>> word, head = "0" * 16, "a" * 64
    >>> claim = StoreClaim((word,), rows=7, head=head, then=head, charged=frozenset())
    >>> print(objection(Seen(word, word, 7, head), claim, 7))
    None
    >>> print(objection(Seen(word, word, 8, head), claim, 8))
    7 rows of the lifetime ledger, where this client saw 8

A store has a random word from its beginning, and one more each time it is restored: the last is its incarnation.
Within one, rows of the lifetime ledger are only ever added, and each row's hash depends on all before it. A store that
was restored, and says so, may have fewer: it must know every run that this client has been charged for.

A coordinator that lies can keep this client away, and lower nothing: its own record decides what it answers.
"""

import re
import sqlite3
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from math import fsum
from pathlib import Path
from typing import Self

import numpy as np

from quoron_client.federation import record_file
from quoron_client.federation.record_file import ONE_USER, Mask, Persons, RecordFile, Share, Sums
from quoron_client.protocol.charges import MOST_TOLD, run_mark
from quoron_privacy.errors import LedgerError, WireError, printable
from quoron_protos.v1 import federation_pb2 as federation

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
    promise: str  # JSON; empty where it is not known
    epsilon: float
    delta: float
    ended: bool
    answers: int  # rounds that were answered
    people: int  # that the silo had while it was open; 1 of a user
    charged: Mask  # of the persons asked about
    answered: Mask


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
_MOST_RESTORED = 1000
_WORD, _HASH = re.compile("[0-9a-f]{16}"), re.compile("[0-9a-f]{64}")


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


def keep(database: sqlite3.Connection, place: str, claim: StoreClaim, named: int, *, other: bool) -> None:
    """Write what is said into a client's record, in a transaction of `Record`; LedgerError as `Record.saw`."""
    root = claim.incarnations[0]
    query = "SELECT root, incarnation, rows, head FROM books WHERE root = ? OR place = ? ORDER BY root = ? DESC"
    found = database.execute(query, (root, place, root)).fetchone()
    seen = None if found is None else Seen(*found)
    wrong = None if seen is None else objection(seen, claim, named)
    lacking = []
    if seen is not None and seen.incarnation != claim.incarnations[-1]:  # otherwise rows and hash say as much
        charged = "SELECT run FROM runs JOIN shares USING (run) WHERE books = ? AND given AND epsilon < 9e999"
        lacking = claim.lacks(row[0] for row in database.execute(charged, (root,)).fetchall())
    if wrong is None and lacking:
        wrong = (
            f"a lifetime ledger without run {printable(lacking[0])!r}, and {len(lacking)} such in all, which "
            "was answered here: the operator enters what is missing (quoron ledger charge --spent)"
        )
    if seen is not None and wrong is not None and not other:
        raise LedgerError(
            f"Expected the database of coordinator {place} that this client has seen, incarnation "
            f"{seen.incarnation} of {seen.rows} rows, or a newer one, got {wrong}. The coordinator's database is "
            "older than what this client saw, or another: its operator puts back the newer one. If there is "
            "nothing else, say --accept-other-database: what it has forgotten then counts here alone."
        )
    if wrong is not None:
        database.execute("DELETE FROM books WHERE place = ?", (place,))
        database.executemany("UPDATE runs SET books = NULL WHERE run = ?", [(run,) for run in lacking])
    row = (root, place, claim.incarnations[-1], claim.rows, claim.head)
    if database.execute("SELECT * FROM books WHERE root = ?", (root,)).fetchone() != row:
        database.execute("INSERT OR REPLACE INTO books VALUES (?, ?, ?, ?, ?)", row)


May = Callable[[Collection[int], int], bool]  # rounds that were answered, another one


@dataclass(frozen=True, slots=True)
class Departure:
    """A person who has left a silo."""

    person: int
    time: str  # ISO 8601, UTC, to the second; the first time
    answers: int  # that were kept, had its row, and are erased
    epsilon: float  # that it was charged, which nothing takes back
    delta: float


class Record(AbstractContextManager["Record"]):
    """Open with `Record.open`, close with `close` or by leaving its context."""

    def __init__(
        self, file: RecordFile, epsilon: float, delta: float, *, anew: bool, other_database: bool, settled: bool
    ) -> None:
        self._file, self._database = file, file.database
        self._limits = epsilon, delta
        self._anew, self._other_database, self._settled = anew, other_database, settled
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
        anew: bool = False,
        other_database: bool = False,
        leaving: bool = False,
        settled: bool = False,
    ) -> Self:
        """Return the record in `path`, a new one if there is none, with its owner's lifetime limits, of one person.

        `anew` takes it for all that there is, though it is older than its count or than what a coordinator knows;
        `other_database` takes a coordinator's store for all that there is, though it is older than what was seen. With
        `settled` nobody is charged, or new: who is, was said when runs were announced, not when somebody is asked.
        LedgerError for a file that is no record, or not whole, or older; and for one of an owner who has left, unless
        it is opened for `leaving`.
        """
        file = RecordFile.connect(path, anew=anew, leaving=leaving)
        try:
            return cls(file, epsilon, delta, anew=anew, other_database=other_database, settled=settled)
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
            before = len(self._everybody()) if record_file.are_registered(database) else 0
            numbers = record_file.register(database, names, most)
            if (many := len(self._everybody())) > before:
                for terms in database.execute(_OPEN).fetchall():
                    self._charge(Agreement(*terms), np.arange(before, many), people=many)
            return numbers

    def known(self, names: Sequence[str]) -> tuple[Persons, list[str | None]]:
        """Return the number of each name, -1 of one without any, and since when it has left; nothing is written."""
        with self._file.errors() as database:
            return record_file.known(database, names)

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
        client away. A record opened `anew` counts them as spent instead, by everybody, and answers nothing more in
        them.

        A run that another process agreed to, that was never answered, and that it does not speak of has not begun
        there: nobody is charged for it any more, until it is announced and agreed to again.
        """
        with self._file.errors(), self._file.transaction() as database:
            have = {row[0] for row in database.execute("SELECT run FROM runs")}
            lacking = [each for each in known if each[0] not in have]
            if lacking and not self._anew:
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
        (many,) = self._database.execute("SELECT count(*) FROM people").fetchone()
        return np.arange(max(1, many))

    def _within(self, sums: Sums) -> Mask:
        """Whether sums of ε and δ, shape (k, 2), are within the limits, shape (k,)."""
        return np.logical_and(sums[:, 0] <= self._limits[0], sums[:, 1] <= self._limits[1])

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
        with self._file.errors(), self._file.transaction() as database:
            keep(database, place, claim, named, other=self._other_database)
            self._root, self._incarnation = claim.incarnations[0], claim.incarnations[-1]

    def leave(self, *, key: str, time: str) -> record_file.Farewell:
        """Erase all but that the owner has left and what was spent, in one transaction: nothing is answered any more,
        by whichever process has the file open. Again is the same, as of the first time."""
        with self._file.errors(), self._file.transaction():
            return record_file.read(self._database) or record_file.write(self._database, key, time, self.spent)

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
            return record_file.spent(database, those)

    def charges(self, those: Persons) -> list[Charge]:
        """Return every run that was agreed to, from the first, and which of these persons are charged for it."""
        with self._file.errors() as database:
            found = []
            for run, agreed, promise, epsilon, delta, ended, answers, people, everybody in database.execute(
                _CHARGES
            ).fetchall():
                share = Share.of(database, run)
                charged = record_file.at(share.charged, those) | bool(everybody)
                answered = record_file.at(share.answered, those)
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
                before = record_file.spent(database, everybody[:1], besides=a.run)
                return self._beyond_limits(before[0], (a.epsilon, a.delta)) or "nobody has room for it"
        if found is not None:
            self._again.add(a.run)
        return None

    def _charge(self, agreement: Agreement, those: Persons, *, people: int) -> None:
        """Charge those of them who are not yet, are here and have room."""
        a, database = agreement, self._database
        new = ~record_file.at(Share.of(database, a.run).charged, those) & record_file.here(database, those)
        new[new] = self._within(record_file.spent(database, those[new], plus=[(a.epsilon, a.delta)], besides=a.run))
        if new.any():
            time = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S}+00:00"
            row = (a.run, a.terms, a.epsilon, a.delta, a.participations, self._root, time, people, a.promise)
            database.execute(_ENTER, row)
            record_file.charge(database, a.run, those[new], participations=a.participations)

    def promise(self, run: str) -> str | None:
        """Return what was announced of a run that was agreed to, as `Agreement` has it; None of any other."""
        with self._file.errors() as database:
            query = "SELECT coalesce(promise, '') FROM runs WHERE run = ?"
            found = database.execute(query, (run,)).fetchone()
            return None if found is None else str(found[0])

    def kept(self, run: str, round: int) -> bytes | None:
        """Return what was kept of an answer in a round, to any question; None if a later round was answered."""
        with self._file.errors() as database:
            query = "SELECT answer FROM answers WHERE run = ? AND round = ?"
            found = database.execute(query, (run, round)).fetchone()
            return None if found is None or self._is_past(run, round) else found[0]

    def recall(self, run: str, round: int, digest: bytes) -> bytes | None:
        """Return the answer already made to this question, to be sent again; None once a later round was answered."""
        with self._file.errors() as database:
            query = "SELECT answer FROM answers WHERE run = ? AND round = ? AND digest = ?"
            found = database.execute(query, (run, round, digest)).fetchone()
            return None if found is None or self._is_past(run, round) else found[0]

    def _is_past(self, run: str, round: int) -> bool:
        """Whether a later round was answered to a coordinator. It commits a round before it asks the next, and a run
        ends where its database is restored: one that asks an earlier round has an older copy, and does not say so."""
        later = "SELECT 1 FROM answers WHERE run = ? AND round > ? AND books IS NOT NULL"
        return self._database.execute(later, (run, round)).fetchone() is not None

    def objection(
        self,
        run: str,
        round: int,
        those: Persons = ONE_USER,
        *,
        spends: tuple[float, float] = (0.0, 0.0),
        may: May | None = None,
    ) -> str | None:
        """Return why none of these persons may give a new answer in this round, or None; by default of the one user.
        For no persons at all, return why nobody may.

        The answer `spends` (ε, δ) by itself: a local report. `may` says whether the plan has a user in this round who
        was in some others.
        """
        with self._file.errors():
            return self._judged(run, round, those, spends, may)[1]

    def may_answer(
        self,
        run: str,
        round: int,
        those: Persons,
        *,
        spends: tuple[float, float] = (0.0, 0.0),
        may: May | None = None,
        further: bool = False,
    ) -> Mask:
        """Which of these persons may give a new answer in this round, shape (k,); `further` to those who have
        answered in it, and these are others.

        The others are as those who are away: nothing may tell why.
        """
        with self._file.errors():
            return self._judged(run, round, those, spends, may, further=further)[0]

    def _judged(
        self,
        run: str,
        round: int,
        asked: Persons,
        spends: tuple[float, float],
        may_be: May | None = None,
        *,
        further: bool = False,
    ) -> tuple[Mask, str | None]:
        """Which of them may answer, and if none of them may, why not the first."""
        database = self._database
        nobody = np.zeros(len(asked), bool)
        query = "SELECT epsilon, delta, participations, ended FROM runs WHERE run = ?"
        terms = database.execute(query, (run,)).fetchone()
        if terms is None:
            return nobody, "the run was not agreed to"
        *promised, participations, ended = terms
        if ended:
            return nobody, "the run has ended"
        if self._is_past(run, round):
            return nobody, "a later round was answered: the coordinator's database was put back to before it"
        answered = database.execute("SELECT persons FROM answers WHERE run = ? AND round = ?", (run, round)).fetchone()
        if answered is not None and (not further or record_file.are_among(answered[0], asked)):
            return nobody, "the round was already answered, to another question"
        if may_be is not None:
            rounds = database.execute("SELECT round FROM answers WHERE run = ?", (run,)).fetchall()
            if not may_be([each[0] for each in rounds], round):
                return nobody, "the plan has no user in this round who was in those that were answered"
        if not self._named and record_file.are_registered(database):
            return nobody, "the record is that of a silo's persons, not of one user"
        share = Share.of(database, run)
        given = record_file.at(share.counts, asked)
        # Both sides are for replacing one user. In a run of trust model local the charge is what was announced, which
        # this enforces. In another one the coordinator keeps the announced promise, and this the person's lifetime
        # limit: a zero-out promise is charged twice, so reports may come to that.
        own = record_file.reported(database, run, asked, given, spends)
        reasons = (
            (~record_file.here(database, asked), "the person has left, or is none of this silo's"),
            (~record_file.at(share.charged, asked), "the lifetime limit leaves no room for the run"),
            (given >= participations, f"all {participations} answers of the run were given"),
            ((own > promised).any(axis=1), "local reports would spend more than was agreed to"),
        )
        may = ~np.logical_or.reduce([each for each, _ in reasons])
        if may.any() or not len(asked):
            return may, None
        return may, next(why for each, why in reasons if each[0])

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
            if not len(those) or not self._judged(run, round, those, spends, may, further=further)[0].all():
                return None
            # Last the answer: who sums ε over rounds reads none.
            query = "SELECT persons, epsilon, delta FROM answers WHERE run = ? AND round = ?"
            earlier = database.execute(query, (run, round)).fetchone() if further else None
            everybody = record_file.mask(those) if earlier is None else record_file.union(earlier[0], those)
            if earlier is not None:  # one row for all of them: of each as much as of the one who spends most
                spends = max(spends[0], earlier[1]), max(spends[1], earlier[2])
            row = (run, round, digest, *spends, self._incarnation, record_file.packed(everybody), answer)
            database.execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
            record_file.count(database, run, those)
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
                free = not begun and not Share.of(database, run).given
                database.execute("UPDATE runs SET ended = 1, charged = charged AND NOT ? WHERE run = ?", (free, run))
                record_file.close(database, run, release=free)
        self._again.discard(run)
        return True

    def depart(self, name: str, *, time: str) -> Departure:
        """Remove a person from a silo: in one transaction its row leaves all answers to come, and those that were kept.

        A kept answer with its row is erased whole, as the coordinator could tell from a second one whose row is gone.
        Again is the same, as of the first time. LedgerError for a name that this record does not know.
        """
        with self._file.errors(), self._file.transaction() as database:
            person, time, answers = record_file.depart(database, name, time)
            ((epsilon, delta),) = record_file.spent(database, np.array([person]))
        return Departure(person, time, answers, float(epsilon), float(delta))

    def _beyond_limits(self, spent: Sums, cost: Sequence[float]) -> str | None:
        for name, before, wanted, limit in zip(("ε", "δ"), spent, cost, self._limits, strict=True):
            if fsum((before, wanted)) > limit:
                return f"its {name} = {wanted:g} and the {before:g} spent before exceed the lifetime limit {limit:g}"
        return None
