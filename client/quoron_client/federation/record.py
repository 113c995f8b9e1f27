"""A client's own durable record: what it has answered, and what its owner has thereby spent.

    >>> from tempfile import mkdtemp
    >>> record = Record.open(Path(mkdtemp()) / "record.sqlite", epsilon=2.0, delta=1e-5)
    >>> terms = Agreement("r", bytes(16), epsilon=1.5, delta=1e-6, participations=1)
    >>> record.agree(terms), record.keep("r", 0, b"question", b"answer")
    (None, b'answer')
    >>> record.keep("r", 0, b"question", b"another"), record.keep("r", 1, b"later", b"answer"), record.spent
    (b'answer', None, (1.5, 1e-06))
    >>> record.close()

It does not trust the coordinator. For each round of a run there is one answer, made once: written here before it is
sent, sent again for the same question, and refused for any other. Rounds go forward: once a later one was answered
nothing is sent of an earlier one, unless the coordinator's books were restored since and say so. On Flower nobody
tells of books, and rounds may go back: there, too, each has one answer. A run is charged in full with its first answer,
or at a start without one (`witness`); the charges of all runs add up, which is sound however the coordinator composes
them, and stay within the owner's limits.

Stored in SQLite with full synchronisation: an answer that was sent survives a crash and a loss of power. Between two
writes all of it is in the one file, and how much was written is counted, in the file and beside it (`-acknowledged`): a
copy that is older, empty or torn is refused by name, and so is one that lacks a run which a coordinator says this key
has agreed to. Whoever has nothing else says so (`anew`): what coordinators say is then entered as spent. In turn it
keeps what it has seen of each coordinator's books, and refuses older ones by name (`books`).

Answers may be functions of the owner's data, so the file is its owner's alone, and they are erased when the run has
ended. Whoever loses the file loses these protections: keep it with the data. An owner who leaves (`leave`) has all of
it erased but that it has left and what was spent, and from then on nothing opens the file to answer.
"""

import os
import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from math import fsum
from pathlib import Path
from threading import RLock
from typing import Self

from quoron_client.durable import Tally
from quoron_client.federation import farewell
from quoron_client.federation.books import BooksClaim, Seen, objection
from quoron_privacy.errors import LedgerError, printable

May = Callable[[Collection[int], int], bool]  # rounds that were answered, another one
_VERSION = 4
_MOST_OPEN = 1000  # agreements without an answer, which nothing rests on: a coordinator could announce runs for ever
_TABLES = """
CREATE TABLE runs (
    run TEXT PRIMARY KEY, terms BLOB NOT NULL, epsilon REAL NOT NULL, delta REAL NOT NULL,
    participations INTEGER NOT NULL, charged INTEGER NOT NULL DEFAULT 0, ended INTEGER NOT NULL DEFAULT 0,
    books TEXT
) STRICT;
CREATE TABLE answers (
    run TEXT NOT NULL REFERENCES runs, round INTEGER NOT NULL, digest BLOB NOT NULL,
    epsilon REAL NOT NULL, delta REAL NOT NULL, books TEXT, answer BLOB, PRIMARY KEY (run, round)
) STRICT;
CREATE TABLE books (
    root TEXT PRIMARY KEY, place TEXT NOT NULL, incarnation TEXT NOT NULL, rows INTEGER NOT NULL, head TEXT NOT NULL
) STRICT;
CREATE TABLE written (
    acknowledged INTEGER NOT NULL, runs INTEGER NOT NULL, charged INTEGER NOT NULL, ended INTEGER NOT NULL,
    answers INTEGER NOT NULL, books INTEGER NOT NULL
) STRICT;
INSERT INTO written VALUES (0, 0, 0, 0, 0, 0);
PRAGMA user_version = 4;
"""
_FOUND = """(SELECT count(*) FROM runs), (SELECT total(charged) FROM runs), (SELECT total(ended) FROM runs),
    (SELECT count(*) FROM answers), (SELECT total(rows + 1) FROM books)"""
_COUNT = (
    f"UPDATE written SET (runs, charged, ended, answers, books) = (SELECT {_FOUND}), acknowledged = acknowledged + 1"
)


@dataclass(frozen=True, slots=True)
class Agreement:
    """What is agreed about a run before anything is answered; it never changes."""

    run: str
    terms: bytes  # digest of everything announced
    epsilon: float  # what it is charged, for replacing one user: a zero-out promise costs more than it says
    delta: float
    participations: int


class Record:
    """Open with `Record.open`, close with `close` or by leaving its context."""

    def __init__(self, database: sqlite3.Connection, path: Path, epsilon: float, delta: float) -> None:
        self._database, self._path = database, path
        self._limits = epsilon, delta
        self._lock = RLock()  # one thread at a time; closing waits for what is being written
        self._tally = Tally(path)
        self._anew = self._other_books = self._leaving = False
        # Of the coordinator's books with which runs are agreed to now, and answered: None where nobody tells.
        self._root: str | None = None
        self._incarnation: str | None = None
        self._before = 0  # number of the last run that another process agreed to

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        epsilon: float,
        delta: float,
        anew: bool = False,
        other_books: bool = False,
        leaving: bool = False,
    ) -> Self:
        """The record in `path`, a new one if there is none, with its owner's lifetime limits.

        `anew` takes it for all that there is, though it is older than its count or than what a coordinator knows;
        `other_books` takes a coordinator's books for all that there is, though they are older than what was seen.
        LedgerError for a file that is no record, or not whole, or older; and for one of an owner who has left, unless
        it is opened for `leaving`.
        """
        try:
            # The journals take the file's permissions.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        except (OSError, sqlite3.Error) as error:
            raise LedgerError(f"Expected a client's record at {str(path)!r}, cannot open it: {error}.") from None
        record = cls(database, path, epsilon, delta)
        record._anew, record._other_books, record._leaving = anew, other_books, leaving
        try:
            record._prepare()
        except BaseException:
            database.close()
            raise
        return record

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
                elif version != _VERSION:
                    raise LedgerError(
                        f"Expected a client's record of version {_VERSION} in {str(self._path)!r}, got {version}. "
                        "It is another file, or of another release."
                    )
                self._check_whole()
                self._check_count()
                self._check_stays()
                (self._before,) = self._database.execute("SELECT coalesce(max(rowid), 0) FROM runs").fetchone()

    def _check_whole(self) -> None:
        """A copy that was made in the middle of a write has pages of before and of after."""
        whole = [row[0] for row in self._database.execute("PRAGMA integrity_check")] == ["ok"]
        rows = (
            self._database.execute("SELECT runs, charged, ended, answers, books FROM written").fetchall()
            if whole
            else []
        )
        if not whole or rows != [tuple(map(int, self._database.execute(f"SELECT {_FOUND}").fetchone()))]:
            raise LedgerError(
                f"Expected a whole client's record in {str(self._path)!r}, got one that was damaged, or copied in the "
                "middle of a write. Put back a copy that is whole. If there is none, move it away and say --new-record."
            )

    def _check_stays(self) -> None:
        """LedgerError for an owner who has left."""
        said = None if self._leaving else farewell.read(self._database)
        if said is not None:
            raise LedgerError(said.refusal(self._path))

    def _check_count(self) -> None:
        (found,) = self._database.execute("SELECT acknowledged FROM written").fetchone()
        if self._anew:
            self._keep_count(found)
            return
        try:
            kept = self._tally.read()
        except (OSError, ValueError):
            kept = -1
        if kept == -1 or (kept is None and found):
            what = "something unreadable" if kept else "none"
            raise LedgerError(
                f"Expected the number of writes of the client's record {str(self._path)!r} in "
                f"{self._tally.path.name!r} beside it, got {what}: the record may be an older copy. Put back both. If "
                "there is nothing else, say --new-record: what the coordinator knows is then counted as spent."
            )
        if kept is not None and found < kept:
            raise LedgerError(
                f"Expected {kept} writes in the client's record {str(self._path)!r}, got {found}: it is an older copy, "
                "or was removed, and what it lacks may have been spent. Put back the newer one. If there is none, say "
                "--new-record: what the coordinator knows is then counted as spent."
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

    def witness(self, known: Sequence[tuple[str, float, float]]) -> None:
        """Compare with what a coordinator says: names, ε and δ of runs that this key has agreed to.

        LedgerError if the record lacks one: it is an older copy, or the coordinator lies, which can only keep this
        client away. A record opened `anew` counts them as spent instead, and answers nothing more in them.

        A run that another process agreed to and that has no answer here counts as spent from now on: this may be a copy
        of before its first answer, and nobody can tell.
        """
        with self._errors(), self._transaction():
            have = {row[0] for row in self._database.execute("SELECT run FROM runs")}
            lacking = [each for each in known if each[0] not in have]
            if lacking and not self._anew:
                raise LedgerError(
                    f"Expected {str(self._path)!r} to know run {printable(lacking[0][0])!r}, which its coordinator "
                    f"says that this key has agreed to, but it lacks {len(lacking)} such: it is an older copy, or "
                    "another's. Put back the newer one. If there is none, say --new-record: they are then counted as "
                    "spent."
                )
            for run, epsilon, delta in lacking:
                self._database.execute(
                    "INSERT INTO runs VALUES (?, ?, ?, ?, 0, 1, 1, NULL) ON CONFLICT DO NOTHING",
                    (run, b"", epsilon, delta),
                )
            for run, _, _ in known:
                self._count(run)

    def _count(self, run: str) -> None:
        """Charge an open run that another process agreed to; beyond the limits it also ends."""
        query = "SELECT epsilon, delta FROM runs WHERE run = ? AND NOT charged AND NOT ended AND rowid <= ?"
        found = self._database.execute(query, (run, self._before)).fetchone()
        if found is not None:
            ended = self._beyond_limits(*found) is not None
            self._database.execute("UPDATE runs SET charged = 1, ended = ? WHERE run = ?", (ended, run))

    def seen(self, place: str) -> int:
        """Rows of the lifetime ledger that were seen of the coordinator at this address."""
        with self._errors():
            found = self._database.execute("SELECT max(rows) FROM books WHERE place = ?", (place,)).fetchone()
        return int(found[0] or 0)

    def saw(self, place: str, claim: BooksClaim, named: int) -> None:
        """Keep what a coordinator at an address says of its books, after `seen` has `named` rows to it.

        LedgerError for books that are older than, or others than, those that were seen, or that lack a run which is
        charged here; a record opened for `other_books` takes them, and asks for those runs no more.
        """
        with self._errors(), self._transaction():
            root = claim.incarnations[0]
            query = "SELECT root, incarnation, rows, head FROM books WHERE root = ? OR place = ? ORDER BY root = ? DESC"
            found = self._database.execute(query, (root, place, root)).fetchone()
            seen = None if found is None else Seen(*found)
            wrong = None if seen is None else objection(seen, claim, named)
            lacking = []
            if seen is not None and seen.incarnation != claim.incarnations[-1]:  # otherwise rows and hash say as much
                charged = "SELECT run FROM runs WHERE books = ? AND charged AND epsilon < 9e999"
                lacking = claim.lacks(row[0] for row in self._database.execute(charged, (root,)).fetchall())
            if wrong is None and lacking:
                wrong = (
                    f"a lifetime ledger without run {printable(lacking[0])!r}, and {len(lacking)} such in all, which "
                    "was answered here: the operator enters what is missing (quoron ledger charge --spent)"
                )
            if seen is not None and wrong is not None and not self._other_books:
                raise LedgerError(
                    f"Expected the books of coordinator {place} that this client has seen, incarnation "
                    f"{seen.incarnation} of {seen.rows} rows, or newer ones, got {wrong}. The coordinator's books are "
                    "older than what this client saw, or others: its operator puts back the newer ones. If there is "
                    "nothing else, say --other-books: what they have forgotten then counts in this record alone."
                )
            if wrong is not None:
                self._database.execute("DELETE FROM books WHERE place = ?", (place,))
                self._database.executemany("UPDATE runs SET books = NULL WHERE run = ?", [(run,) for run in lacking])
            row = (root, place, claim.incarnations[-1], claim.rows, claim.head)
            if self._database.execute("SELECT * FROM books WHERE root = ?", (root,)).fetchone() != row:
                self._database.execute("INSERT OR REPLACE INTO books VALUES (?, ?, ?, ?, ?)", row)
            self._root, self._incarnation = root, claim.incarnations[-1]

    def leave(self, *, key: str, time: str) -> farewell.Farewell:
        """Erase all but that the owner has left and what was spent, in one transaction: nothing is answered any more,
        by whichever process has the file open. Again is the same, as of the first time."""
        with self._errors(), self._transaction():
            return farewell.read(self._database) or farewell.write(self._database, key, time, self.spent)

    def close(self) -> None:
        """Close the file; nothing is lost without it."""
        with self._lock:
            self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def spent(self) -> tuple[float, float]:
        """(ε, δ) charged so far, over all runs."""
        with self._errors():
            rows = self._database.execute("SELECT epsilon, delta FROM runs WHERE charged").fetchall()
        return fsum(row[0] for row in rows), fsum(row[1] for row in rows)

    def agree(self, agreement: Agreement) -> str | None:
        """Agree to a run, durably; None, or why not: other terms than before, or more than the owner's limits."""
        a = agreement
        with self._errors(), self._transaction():
            found = self._database.execute("SELECT terms, charged FROM runs WHERE run = ?", (a.run,)).fetchone()
            if found is not None and found[0] != a.terms:
                return "its terms are not those of its first announcement"
            if not (found is not None and found[1]):
                objection = self._beyond_limits(a.epsilon, a.delta)
                if objection is not None:
                    return objection
            if found is None:
                row = (a.run, a.terms, a.epsilon, a.delta, a.participations, self._root)
                self._database.execute(
                    "INSERT INTO runs (run, terms, epsilon, delta, participations, books) VALUES (?, ?, ?, ?, ?, ?)",
                    row,
                )
                self._database.execute(
                    "DELETE FROM runs WHERE NOT charged AND rowid <= (SELECT max(rowid) FROM runs) - ?", (_MOST_OPEN,)
                )
        return None

    def recall(self, run: str, round: int, digest: bytes) -> bytes | None:
        """The answer already made to this very question, to be sent again; None too once a later round was answered."""
        with self._errors():
            found = self._database.execute(
                "SELECT answer FROM answers WHERE run = ? AND round = ? AND digest = ?", (run, round, digest)
            ).fetchone()
            return None if found is None or self._is_past(run, round) else found[0]

    def _is_past(self, run: str, round: int) -> bool:
        """Whether a later round was answered to the books as they are. They commit a round before they ask the next:
        where they ask an earlier one, they were put back behind their own back."""
        later = "SELECT 1 FROM answers WHERE run = ? AND round > ? AND books = ?"
        return self._database.execute(later, (run, round, self._incarnation)).fetchone() is not None

    def objection(
        self, run: str, round: int, *, spends: tuple[float, float] = (0.0, 0.0), may: "May | None" = None
    ) -> str | None:
        """Why a new answer in this round may not be given, or None. It `spends` (ε, δ) by itself: a local report.

        `may` says whether the plan has one user in this round, who was in some others.
        """
        with self._errors():
            terms = self._database.execute(
                "SELECT epsilon, delta, participations, charged, ended FROM runs WHERE run = ?", (run,)
            ).fetchone()
            given = self._database.execute("SELECT round, epsilon, delta FROM answers WHERE run = ?", (run,)).fetchall()
            past = self._is_past(run, round)
        if terms is None:
            return "the run was not agreed to"
        promised_epsilon, promised_delta, participations, charged, ended = terms
        if ended:
            return "the run has ended"
        if past:
            return "a later round was answered: the coordinator's books were put back to before it"
        if any(row[0] == round for row in given):
            return "the round was already answered, to another question"
        if len(given) >= participations:
            return f"all {participations} answers of the run were given"
        if may is not None and not may({row[0] for row in given}, round):
            return "the plan has no user in this round who was in those that were answered"
        # Both sides are for replacing one user. In a run of exposure local the charge is what was announced, and this
        # enforces it. In another one the coordinator keeps the announced promise, and this the owner's lifetime limit:
        # a zero-out promise is charged twice, so reports may come to that.
        own = fsum((spends[0], *(row[1] for row in given))), fsum((spends[1], *(row[2] for row in given)))
        if own[0] > promised_epsilon or own[1] > promised_delta:
            return "local reports would spend more than was agreed to"
        return None if charged else self._beyond_limits(promised_epsilon, promised_delta)

    def keep(
        self,
        run: str,
        round: int,
        digest: bytes,
        answer: bytes,
        *,
        spends: tuple[float, float] = (0.0, 0.0),
        may: "May | None" = None,
    ) -> bytes | None:
        """Write an answer and charge the run, then return what may be sent: this answer, or the one kept before for
        the same question; None if there is an `objection`."""
        with self._errors(), self._transaction():
            before = self.recall(run, round, digest)
            if before is not None:
                return before
            if self.objection(run, round, spends=spends, may=may) is not None:
                return None
            row = (run, round, digest, *spends, self._incarnation, answer)  # last: who sums ε over rounds reads none
            self._database.execute("INSERT INTO answers VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            self._database.execute("UPDATE runs SET charged = 1 WHERE run = ?", (run,))
        return answer

    def end(self, run: str) -> bool:
        """Erase the answers of a run that has ended; that they were given, and what was spent, stays.

        Whether this is news: a coordinator tells of the runs that ended to whoever comes back.
        """
        with self._errors():
            if not self._database.execute("SELECT 1 FROM runs WHERE run = ? AND ended = 0", (run,)).fetchone():
                return False
            with self._transaction():
                self._database.execute("UPDATE runs SET ended = 1 WHERE run = ?", (run,))
                self._database.execute("UPDATE answers SET answer = NULL WHERE run = ?", (run,))
        return True

    def _beyond_limits(self, epsilon: float, delta: float) -> str | None:
        spent = self.spent
        for name, before, wanted, limit in zip(("ε", "δ"), spent, (epsilon, delta), self._limits, strict=True):
            if fsum((before, wanted)) > limit:
                return f"its {name} = {wanted:g} and the {before:g} spent before exceed the lifetime limit {limit:g}"
        return None

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All or nothing, and counted if anything was written."""
        count: int | None = None
        with self._exclusive():
            self._check_stays()
            before = self._database.total_changes
            yield
            if self._database.total_changes != before:
                (count,) = self._database.execute(f"{_COUNT} RETURNING acknowledged").fetchone()
        if count is not None:
            self._keep_count(count)

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """All or nothing, and nobody else in between: another process may hold the same file."""
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            with self._lock:
                yield
        except sqlite3.Error as error:
            raise LedgerError(
                f"Expected to read and write the client's record {str(self._path)!r}, got: {error}."
            ) from None


def welcomed(path: Path) -> bool:
    """Whether a record knows a coordinator, or cannot tell; nothing is written."""
    if not path.exists():
        return False
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            return bool(database.execute("SELECT count(*) FROM books").fetchone()[0])
    except sqlite3.Error:
        return True
