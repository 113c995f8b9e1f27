"""What a client's record says of an owner who has left, and all that it says then.

    said = read(database)       # None for an owner who takes part
    said = write(database, key, time, spent)

Both belong to a transaction of `Record`, whose tables these are.
"""

import sqlite3
from dataclasses import astuple, dataclass
from pathlib import Path

LEFT = """CREATE TABLE left_for_good (
    time TEXT NOT NULL, key TEXT NOT NULL, epsilon REAL NOT NULL, delta REAL NOT NULL,
    runs INTEGER NOT NULL, answers INTEGER NOT NULL, books INTEGER NOT NULL
) STRICT"""


@dataclass(frozen=True, slots=True)
class Farewell:
    """All that a record says of an owner who has left."""

    time: str  # ISO 8601, UTC, to the second
    key: str  # SHA-256 of the public key, if it was told
    epsilon: float  # spent over all runs, which nothing takes back
    delta: float
    runs: int  # rows that were erased: runs, what was answered in them, and coordinators' books
    answers: int
    books: int

    def refusal(self, path: Path) -> str:
        """Why the record answers nothing."""
        return (
            f"Expected the record of a user who takes part, got {str(path)!r}, whose user has left on "
            f"{self.time[:10]}, for good: it answers nothing any more. Whoever begins anew does so as another user, "
            f"with a key and a record of its own, and has spent ε = {self.epsilon:g} before."
        )


def read(database: sqlite3.Connection) -> Farewell | None:
    """What it says; None for an owner who has not left."""
    if not database.execute("SELECT 1 FROM sqlite_schema WHERE name = 'left_for_good'").fetchone():
        return None
    return Farewell(*database.execute("SELECT * FROM left_for_good").fetchone())


def write(database: sqlite3.Connection, key: str, time: str, spent: tuple[float, float]) -> Farewell:
    """Erase every run, answer and coordinator's books, overwritten by `secure_delete`, and say so."""
    counts = [database.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("runs", "answers", "books")]
    for table in ("answers", "shares", "runs", "books", "people", "silo"):
        database.execute(f"DELETE FROM {table}")
    database.execute(LEFT)
    said = Farewell(time, key, *spent, *counts)
    database.execute("INSERT INTO left_for_good VALUES (?, ?, ?, ?, ?, ?, ?)", astuple(said))
    return said
