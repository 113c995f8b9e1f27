"""The file of a client's record: whole, the newest, and written all or nothing.

    file = RecordFile.connect(Path("record.sqlite"), anew=False, leaving=False)
    with file.errors(), file.transaction() as database:
        database.execute(...)

Stored in SQLite with full synchronisation: what was written survives a crash and a loss of power. Between two writes
all of it is in the one file, and how much was written is counted, in the file and beside it (`-acknowledged`): a copy
that is older, empty or torn is refused by name.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import RLock
from typing import Self

from quoron_client.durable import Tally
from quoron_client.federation import farewell, persons
from quoron_privacy.errors import LedgerError

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
{persons.TABLES};
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
    (SELECT count(*) FROM answers), (SELECT total(rows + 1) FROM books), {persons.FOUND}"""
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
        """The file in `path`, a new one if there is none; LedgerError as `Record.open`."""
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
                        "It is another file, or of another release."
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
            or not persons.whole(self.database)
        ):
            raise self._damaged()

    def _damaged(self) -> LedgerError:
        return LedgerError(
            f"Expected a whole client's state in {str(self.path)!r}, got one that was damaged, or copied in the "
            "middle of a write. Put back a copy that is whole. If there is none, move it away and say --new-state."
        )

    def _check_stays(self) -> None:
        """LedgerError for an owner who has left."""
        said = None if self._leaving else farewell.read(self.database)
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
    """Whether a record knows a coordinator, or cannot tell; nothing is written."""
    if not path.exists():
        return False
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            return bool(database.execute("SELECT count(*) FROM books").fetchone()[0])
    except sqlite3.Error:
        return True
