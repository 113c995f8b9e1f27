"""The database under every ledger: one SQLite file, or a PostgreSQL server by URL. Whole transactions or nothing.

    Database("sqlite:///coordinator.sqlite")
    Database("postgresql://quoron@db.example/quoron")     # pip install '.[postgres]'

A process that opens a database as its own (`sole`) is the only one: SQLite by an exclusive lock on the file, PostgreSQL
by an advisory lock of the one connection that does all the writing. When that connection breaks, the next use makes a
new one, takes the lock again and checks that nobody else has owned the database in between.

What survives a kill, a broken connection and a power loss, and why: docs/durability.md.
"""

import errno
import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import sqlalchemy as sa

from quoron_privacy.errors import LedgerError, LedgerUnavailable
from quoron_server.books.connections import (
    FULL,
    LOCK,
    OUTSIDE,
    SQLITE_PATIENCE,
    as_ledger_error,
    make_engine,
    own,
    parse,
)
from quoron_server.books.durable import Tally, sync_folder

FORMAT = 6
_schema = sa.MetaData()
_meta = sa.Table(
    "meta",
    _schema,
    sa.Column("format", sa.Integer, nullable=False),
    sa.Column("owner", sa.Text),  # random word of the last process that owned the database
    sa.Column("incarnation", sa.Text),  # random words of these books: one more, the last, each time they are restored
    sa.Column("acknowledged", sa.Integer, nullable=False, server_default="0"),  # transactions that wrote; SQLite only
)


class Database:
    """One database and the one connection to it. Thread-safe: one transaction at a time. Calls block.

    | what happens                                   | what is raised                                 |
    | ---------------------------------------------- | ---------------------------------------------- |
    | no connection, connection lost, disk full      | LedgerUnavailable; the next call connects anew |
    | it has been closed                             | LedgerError: another may have opened it since  |
    | another process owns it                        | LedgerUnavailable                              |
    | another process has owned it in between        | LedgerError: this process must start again     |
    | another format, or something else than ours    | LedgerError                                    |
    | a SQLite file that has lost what it had        | LedgerError                                    |
    | a URL that names no such database              | ConfigError                                    |
    """

    def __init__(
        self,
        url: str,
        *,
        create: bool = True,
        sole: bool = True,
        as_it_is: bool = False,
        patience: float = SQLITE_PATIENCE,
    ) -> None:
        """Open the database at `url`; `create` makes what is missing, `sole=False` works beside a running coordinator.

        `sole=False` makes a difference for PostgreSQL only: a SQLite file has one process at a time, for which others
        wait `patience` seconds. `as_it_is` is for `restoring` alone: whatever a SQLite file holds is all that there is,
        and its count begins there.
        """
        self._url = parse(url)
        self.name = self._url.render_as_string(hide_password=True)
        self.sqlite = self._url.get_backend_name() == "sqlite"
        self._sole = sole and not self.sqlite
        self._as_it_is = as_it_is
        self._owner: str | None = None
        self._mutex = threading.RLock()
        self._connection: sa.Connection | None = None
        self._joined: sa.Connection | None = None
        self._over = False
        self._engine = make_engine(self._url, patience)
        self.failing = ""  # since the last write failed: why, as is said over a network
        self._tally = Tally(Path(self._url.database)) if self.sqlite and self._url.database else None
        self._head, self._next_head = "", ""  # of the audit log: what is kept beside the count, and will be
        try:
            self._prepare(create)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Database":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Give the database back, for good."""
        with self._mutex:
            self._over = True
            self._drop()
            self._engine.dispose()

    def ensure(self, tables: sa.MetaData) -> None:
        """Make those of `tables` that are missing."""
        with self.writing() as connection:
            if not set(tables.tables) <= set(sa.inspect(connection).get_table_names()):
                tables.create_all(connection)

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """One transaction: durable when the block has ended without an error, otherwise as if it had never begun.

        LedgerUnavailable if the connection breaks. If it breaks in the last step, the commit, the transaction is there
        as a whole or not at all, and only the database knows: read before writing again.
        """
        with self._mutex:
            if self._joined is not None:  # this thread's, as it has the mutex
                yield self._joined
                return
            try:
                connection = self._connected()
                with connection.begin():
                    before, self._next_head = _changes(connection), self._head
                    yield connection
                    wrote = _changes(connection) != before or self._next_head != self._head
                    count = self._counted(connection) if wrote else None
            except (sa.exc.DBAPIError, sa.exc.PendingRollbackError, sa.exc.ResourceClosedError) as error:
                if not isinstance(error, sa.exc.IntegrityError):
                    self._drop()
                found = as_ledger_error(error, self.name, sqlite=self.sqlite)
                self.failing = found.outside if isinstance(found, LedgerUnavailable) else self.failing
                raise found from error
            if count is not None:
                self._head = self._next_head
                self._keep(count)
                self.failing = ""

    @property
    def head(self) -> str:
        """The head of the audit log that is kept beside a SQLite file; "" if none is."""
        return self._head

    def keep_head(self, head: str) -> None:
        """Keep this head, that of the audit log within this transaction, once the transaction is durable."""
        if self._tally is not None:
            self._next_head = head

    @contextmanager
    def together(self) -> Iterator[sa.Connection]:
        """One transaction, as `writing`, of all that this thread does with the database within the block."""
        with self._mutex, self.writing() as connection:
            before, self._joined = self._joined, connection
            try:
                yield connection
            finally:
                self._joined = before

    def all(self, query: Any) -> Sequence[Any]:
        """Every row of `query`."""
        with self.writing() as connection:
            return connection.execute(query).all()

    @property
    def path(self) -> Path | None:
        """The SQLite file; None for PostgreSQL."""
        return Path(self._url.database) if self.sqlite and self._url.database else None

    @property
    def incarnations(self) -> tuple[str, ...]:
        """The random words of these books: that with which they began, and one for each time they were restored."""
        with self.writing() as connection:
            return tuple(incarnations(connection))

    @property
    def incarnation(self) -> str:
        """The last of them, which no other books have."""
        return self.incarnations[-1]

    def renew(self, connection: sa.Connection, before: Sequence[str]) -> None:
        """Restored books are others than those `before`, that they were copied from."""
        words = " ".join([*before, secrets.token_hex(8)])
        connection.execute(_meta.update().values(incarnation=words))

    def probe(self) -> None:
        """Raises what any use would raise now; after a write that failed, what a write would."""
        with self.writing() as connection:
            if self.failing:
                connection.execute(_meta.update().values(format=FORMAT))
            else:
                connection.execute(sa.select(_meta.c.format)).all()
        self.failing = ""

    def serialise(self, connection: sa.Connection) -> None:
        """Until the end of this transaction nobody else who calls this writes. A SQLite file has one process anyway."""
        if not self.sqlite:
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(LOCK + 1)))

    def checkpoint(self) -> None:
        """Fold SQLite's journal into the file: no copy is left of what was erased, and the file alone is whole."""
        if self.sqlite:
            with self._mutex:
                self._folded()

    def as_new(self) -> None:
        """Leave a SQLite file as one that has acknowledged nothing yet, all in itself; close it then, and move it.

        LedgerUnavailable if that cannot be written: the file is then incomplete without its journal.
        """
        with self._mutex:
            self._folded(_meta.update().values(acknowledged=0))

    def _folded(self, last: sa.Update | None = None) -> None:
        raw: Any = self._connected().connection.driver_connection
        try:
            if last is not None:
                raw.execute(str(last.compile(dialect=self._engine.dialect, compile_kwargs={"literal_binds": True})))
            busy, left, _ = raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except self._engine.dialect.loaded_dbapi.Error as error:
            raise as_ledger_error(sa.exc.DatabaseError("", None, error), self.name, sqlite=True) from error
        if busy or left > 0:
            raise LedgerUnavailable(f"Cannot fold the journal of {self.name}: it is in use.", outside=OUTSIDE)

    def _counted(self, connection: sa.Connection) -> int | None:
        """One more transaction that wrote, in the same transaction."""
        if self._tally is None:
            return None
        one_more = _meta.update().values(acknowledged=_meta.c.acknowledged + 1).returning(_meta.c.acknowledged)
        return int(connection.execute(one_more).scalar_one())

    def _check_tally(self, found: int) -> None:
        """LedgerError if the file holds less than it has acknowledged, or nobody can tell.

        A count is begun, before anything is acknowledged, where there is none.
        """
        if self._tally is None:
            return
        try:
            kept, self._head = self._tally.read() or (None, "")
        except (OSError, ValueError):
            raise LedgerError(
                f"Expected the number of acknowledged transactions in {self._tally.path}, got something unreadable. "
                "Remove it if you know what it said; `quoron admin restore` then takes the file for what it is.",
                outside=OUTSIDE,
            ) from None
        if self._as_it_is:
            kept, self._head = None, ""
        elif kept is None and found:
            raise LedgerError(
                f"Expected the number of acknowledged transactions beside {self.name}, in {self._tally.path.name}, "
                "found none: the file was copied or put back without it, and may be older than what somebody was "
                "shown. Put back both. If there is nothing else, `quoron admin restore` takes it for what it is.",
                outside=OUTSIDE,
            )
        if kept is not None and found < kept:
            raise LedgerError(
                f"Expected {kept} acknowledged transactions in {self.name}, got {found}: its journal was cut short or "
                "damaged, or it was restored from a backup, or removed. What is missing may have been shown to "
                "somebody. Put back what is missing, or go on with other books. If there is nothing else, "
                "`quoron admin restore` takes it for what it is.",
                outside=OUTSIDE,
            )
        if kept is None:
            self._keep(found)

    def _keep(self, count: int) -> None:
        if self._tally is not None:
            try:
                self._tally.write(count, self._head)
            except OSError as error:
                self.failing = FULL if error.errno == errno.ENOSPC else OUTSIDE
                raise LedgerUnavailable(
                    f"Cannot write {self._tally.path}: {error.strerror}.", outside=self.failing
                ) from error

    def _drop(self) -> None:
        held, self._connection = self._connection, None
        if held is not None:
            _end(held)

    def _connected(self) -> sa.Connection:
        """The one connection, made anew if it was lost; by an owner only if nobody else has been one since."""
        if self._over:
            raise LedgerError(f"Expected a ledger that is open, got {self.name}, which has been closed. Open it again.")
        if self._connection is None or self._connection.closed or self._connection.invalidated:
            self._drop()
            fresh = self._engine.connect()
            try:
                if self._sole:
                    own(fresh, self.name)
                    self._check_owner(fresh)
            except BaseException:
                _end(fresh)
                raise
            self._connection = fresh
        return self._connection

    def _check_owner(self, connection: sa.Connection) -> None:
        if self._owner is not None:
            last = connection.execute(sa.select(_meta.c.owner)).scalar()
            connection.commit()
            if last != self._owner:
                raise LedgerError(
                    f"Another coordinator has owned {self.name} since this one lost its connection. "
                    "Start this one again: it continues from what the other wrote.",
                    outside=OUTSIDE,
                )

    def _prepare(self, create: bool) -> None:
        path = Path(self._url.database or "")
        if self.sqlite and create and not path.exists():
            try:
                path.touch(mode=0o600)  # it will hold noise keys; its journal inherits the mode
                sync_folder(path.parent)
            except OSError as error:
                raise LedgerError(f"Cannot make a ledger at {path}: {error.strerror}.") from error
        if self.sqlite and not path.is_file():
            raise LedgerError(f"Expected a ledger at {path}, found none.")
        with self.writing() as connection:
            stored = self._formats(connection, create)
            if stored != [FORMAT]:
                formats = ", ".join(map(str, stored)) or "none"
                raise LedgerError(
                    f"Expected ledger format {FORMAT} in {self.name}, got {formats}. Use the version that wrote it."
                )
            owner = secrets.token_hex(8)
            if self._sole:
                connection.execute(_meta.update().values(owner=owner))
        self._owner = owner
        if self.sqlite:
            self._check_tally(int(self.all(sa.select(_meta.c.acknowledged))[0][0]))
            self._folded()  # a copy of the file alone is then one of books that need their count, and never of none

    def _formats(self, connection: sa.Connection, create: bool) -> list[Any]:
        tables = sa.inspect(connection).get_table_names()
        if create and not tables:
            self._check_tally(0)
            if not self.sqlite and connection.scalar(sa.text("SELECT to_regnamespace('quoron')")) is None:
                connection.execute(sa.text("CREATE SCHEMA quoron"))
            _schema.create_all(connection)
            connection.execute(_meta.insert().values(format=FORMAT, incarnation=secrets.token_hex(8)))
        elif "meta" not in tables and "run" in tables:  # format 1 had one run a file, and said so there
            return list(connection.execute(sa.text("SELECT format FROM run")).scalars())
        elif "meta" not in tables:
            raise LedgerError(f"Expected a ledger in {self.name}, found something else: it is not a quoron ledger.")
        return list(connection.execute(sa.select(_meta.c.format)).scalars())


def incarnations(connection: sa.Connection) -> list[str]:
    """As `Database.incarnations`, within a transaction."""
    return str(connection.scalar(sa.select(_meta.c.incarnation))).split()


def now() -> str:
    """The time, for people to read. Nothing is ever ordered or decided by a clock."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _end(connection: sa.Connection) -> None:
    for step in (connection.invalidate, connection.close):
        with suppress(sa.exc.SQLAlchemyError):
            step()


def _changes(connection: sa.Connection) -> int:
    """Rows that this connection has written so far; 0 where that is not counted."""
    return int(getattr(connection.connection.driver_connection, "total_changes", 0))
