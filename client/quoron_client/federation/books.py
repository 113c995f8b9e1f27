"""Which books a coordinator says that it keeps, and whether they are older than what this client has seen of them.

    >>> word, head = "0" * 16, "a" * 64
    >>> claim = BooksClaim((word,), rows=7, head=head, then=head, charged=frozenset())
    >>> print(objection(Seen(word, word, 7, head), claim, 7))
    None
    >>> print(objection(Seen(word, word, 8, head), claim, 8))
    7 rows of the lifetime ledger, where this client saw 8

Books have a random word from their beginning, and one more each time they are restored: the last is their incarnation.
Within one, rows of the lifetime ledger are only ever added, and each row's hash depends on all before it. Books that
were restored, and say so, may have fewer: they must know every run that this client has been charged for.

A coordinator that lies can keep this client away, and lower nothing: its own record decides what it answers.
"""

import re
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass

from quoron_client.protocol.charges import MOST_TOLD, run_mark
from quoron_privacy.errors import LedgerError, WireError, printable
from quoron_protos.v1 import federation_pb2 as federation

_MOST_RESTORED = 1000
_WORD, _HASH = re.compile("[0-9a-f]{16}"), re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class BooksClaim:
    """What a coordinator says of its books."""

    incarnations: tuple[str, ...]  # from the first
    rows: int  # of the lifetime ledger
    head: str  # hash of the last; of 64 zeros without one
    then: str  # hash of the last row of those that the client named; empty if there are fewer
    charged: frozenset[int] | None  # marks of runs that are charged to this client's group; None if not all were told

    @classmethod
    def read(cls, message: federation.Books) -> "BooksClaim":
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
            raise WireError("Expected to hear which books these are, got something else.")
        return cls(
            words, message.rows, message.head, message.then, None if len(charged) == MOST_TOLD else frozenset(charged)
        )

    def lacks(self, runs: Iterable[str]) -> list[str]:
        """Those of `runs` that are not charged in these books, as far as can be told."""
        return [] if self.charged is None else [run for run in runs if run_mark(run) not in self.charged]


@dataclass(frozen=True, slots=True)
class Seen:
    """What a client has seen of a coordinator's books."""

    root: str  # the word with which they began
    incarnation: str
    rows: int
    head: str


def objection(seen: Seen, claim: BooksClaim, named: int) -> str | None:
    """In which way books are older than, or others than, those that were seen; None if they are neither.

    `named` is the number of rows of which the hash was asked.
    """
    if claim.incarnations[0] != seen.root:
        return f"others, which began as {claim.incarnations[0]}"
    if seen.incarnation not in claim.incarnations:
        return f"incarnation {claim.incarnations[-1]}, which comes from before that or beside it"
    if seen.incarnation != claim.incarnations[-1]:
        return None  # restored since, and openly
    if claim.rows < seen.rows:
        return f"{claim.rows} rows of the lifetime ledger, where this client saw {seen.rows}"
    if seen.rows and named == seen.rows and claim.then != seen.head:
        return f"other rows among the first {seen.rows} of the lifetime ledger"
    return None


def rows_seen(database: sqlite3.Connection, place: str) -> int:
    """Rows of the lifetime ledger that a client's record has seen of the coordinator at this address."""
    return int(database.execute("SELECT max(rows) FROM books WHERE place = ?", (place,)).fetchone()[0] or 0)


def keep(database: sqlite3.Connection, place: str, claim: BooksClaim, named: int, *, other: bool) -> None:
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
            f"Expected the books of coordinator {place} that this client has seen, incarnation "
            f"{seen.incarnation} of {seen.rows} rows, or newer ones, got {wrong}. The coordinator's books are "
            "older than what this client saw, or others: its operator puts back the newer ones. If there is "
            "nothing else, say --accept-other-database: what they have forgotten then counts here alone."
        )
    if wrong is not None:
        database.execute("DELETE FROM books WHERE place = ?", (place,))
        database.executemany("UPDATE runs SET books = NULL WHERE run = ?", [(run,) for run in lacking])
    row = (root, place, claim.incarnations[-1], claim.rows, claim.head)
    if database.execute("SELECT * FROM books WHERE root = ?", (root,)).fetchone() != row:
        database.execute("INSERT OR REPLACE INTO books VALUES (?, ?, ?, ?, ?)", row)
