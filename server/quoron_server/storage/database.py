"""The database of a coordinator or a second server, through SQLAlchemy: one SQLite file, or a PostgreSQL server by URL.

    Database("sqlite:///coordinator.sqlite")
    Database("postgresql://quoron@db.example/quoron")     # pip install '.[postgres]'

A process that opens a database as its own (`sole`) is the only one: SQLite by an exclusive lock on the file, PostgreSQL
by an advisory lock of the one connection that does all the writing. When that connection breaks, the next use makes a
new one, takes the lock again and checks that nobody else has owned the database in between.

What a `Store` promises holds here, too; `pip install 'quoron[federation]'` brings SQLAlchemy.
"""

import re
import secrets
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import sqlalchemy as sa

from quoron_privacy.errors import ConfigError, LedgerError, LedgerUnavailable
from quoron_server.storage.store import OUTSIDE, Execute, Row, Store, Table, connect, sqlite_error

LOCK = 0x71756F726F6E  # "quoron": the holder of this advisory lock owns the PostgreSQL database
OWNED = "3s"  # for the lock of a process that has just been killed
_POSTGRES = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
    "application_name": "quoron",
    # A connection that died without a word is noticed by the server too, which then gives the lock back.
    "options": "-c search_path=quoron -c tcp_keepalives_idle=10 -c tcp_keepalives_interval=5"
    " -c tcp_keepalives_count=3 -c client_min_messages=warning",
}

_TYPES = {"INTEGER": sa.Integer, "BIGINT": sa.BigInteger, "TEXT": sa.Text, "BLOB": sa.LargeBinary}


def parse(url: str) -> sa.URL:
    """Return the URL with its driver; ConfigError if it names neither a SQLite file nor a PostgreSQL database."""
    try:
        parsed = sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError):  # never repeated: it could be a password
        raise ConfigError(
            "Expected a database such as sqlite:///file.sqlite or postgresql://user@host/name, got something else."
        ) from None
    kind = parsed.get_backend_name()
    if kind == "postgresql":
        return parsed.set(drivername="postgresql+psycopg")
    if kind == "sqlite" and parsed.database not in (None, "", ":memory:") and not parsed.query:
        return parsed.set(drivername="sqlite")
    shown = parsed.render_as_string(hide_password=True)
    raise ConfigError(f"Expected a database sqlite:///FILE or postgresql://USER@HOST/NAME, got {shown}.")


def make_engine(url: sa.URL) -> sa.Engine:
    """An engine without a pool. ConfigError without a driver."""
    common: dict[str, Any] = {"hide_parameters": True}  # they can be noise keys
    if url.get_backend_name() == "sqlite":
        creator: Any = partial(connect, str(url.database))
        engine = sa.create_engine(url, creator=creator, poolclass=sa.pool.NullPool, **common)
        sa.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
        return engine
    try:
        common |= {"poolclass": sa.pool.NullPool, "isolation_level": "READ COMMITTED"}
        engine = sa.create_engine(url, connect_args=_POSTGRES, **common)
    except ModuleNotFoundError as error:
        raise ConfigError(
            "Expected the package psycopg for PostgreSQL. Install it: pip install '.[postgres]' in the repository."
        ) from error
    sa.event.listen(engine, "connect", _durable_postgres)
    return engine


def _durable_postgres(connection: Any, _record: Any) -> None:
    """Never acknowledge what a power loss could take back."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('fsync'), current_setting('synchronous_commit')")
        fsync, synchronous = cursor.fetchone()
        if synchronous in ("off", "local"):  # stronger settings wait for replicas too: leave them
            cursor.execute("SET synchronous_commit = on")
    connection.commit()
    if fsync != "on":
        raise LedgerError("Expected a PostgreSQL server with fsync = on, got off: a power loss would undo the ledger.")


class Database(Store):
    """A `store`, of which `writing` gives SQLAlchemy's connection."""

    failures = (sa.exc.DBAPIError, sa.exc.PendingRollbackError, sa.exc.ResourceClosedError)
    refusals = sa.exc.IntegrityError

    def __init__(
        self,
        url: str,
        *,
        create: bool = True,
        sole: bool = True,
        as_it_is: bool = False,
    ) -> None:
        """Open the database at `url`; `create` makes what is missing, `sole=False` works beside a running coordinator.

        `sole=False` makes a difference for PostgreSQL only: a SQLite file has one process at a time. `as_it_is` is for
        `restoring` alone: whatever a SQLite file holds is all that there is, and its count begins there.
        """
        parsed = parse(url)
        path = Path(parsed.database or "") if parsed.get_backend_name() == "sqlite" else None
        self._engine = make_engine(parsed)
        self._sole, self._owner = sole and path is None, ""
        super().__init__(path, name=parsed.render_as_string(hide_password=True), create=create, as_it_is=as_it_is)

    def ensure(self, tables: sa.MetaData | Sequence[Table]) -> None:
        """Make those of `tables` that are missing."""
        made = tables if isinstance(tables, sa.MetaData) else as_metadata(tables)
        with self.writing() as connection:
            if not set(made.tables) <= self._tables(connection):
                made.create_all(connection)

    def all(self, query: sa.Executable) -> Sequence[Any]:
        """Return every row of `query`."""
        with self.writing() as connection:
            return list(connection.execute(query))

    def serialise(self, execute: Execute) -> None:
        """Until the end of this transaction nobody else who calls this writes. A SQLite file has one process anyway."""
        if self.path is None:
            execute("SELECT pg_advisory_xact_lock(?)", [LOCK + 1])

    def _connect(self) -> sa.Connection:
        fresh = self._engine.connect()
        try:
            if self._sole:
                self._own(fresh)
        except BaseException:
            self._end(fresh)
            raise
        return fresh

    def _own(self, connection: sa.Connection) -> None:
        """Take the owner's lock of a PostgreSQL database, waiting a little for a process that has just been killed.

        LedgerError if another has owned it since this one lost its connection.
        """
        connection.execute(sa.text(f"SET lock_timeout = '{OWNED}'"))
        try:
            connection.execute(sa.select(sa.func.pg_advisory_lock(LOCK)))
        except sa.exc.OperationalError as error:
            if getattr(error.orig, "sqlstate", None) != "55P03":
                raise
            raise LedgerUnavailable(
                f"Cannot use the ledger {self.name}: another coordinator owns it. Wait for it or end it.",
                outside=OUTSIDE,
            ) from None
        connection.execute(sa.text("SET lock_timeout = 0"))
        connection.commit()
        if self._owner:
            ((last,),) = connection.exec_driver_sql("SELECT owner FROM meta")
            connection.commit()
            if last != self._owner:
                raise LedgerError(
                    f"Another coordinator has owned {self.name} since this one lost its connection. "
                    "Start this one again: it continues from what the other wrote.",
                    outside=OUTSIDE,
                )

    def _taken(self, connection: sa.Connection) -> None:
        if self._sole:
            owner = secrets.token_hex(8)
            self._execute(connection, "UPDATE meta SET owner = ?", [owner])
            self._owner = owner

    def _end(self, connection: sa.Connection) -> None:
        for step in (connection.invalidate, connection.close):
            with suppress(sa.exc.SQLAlchemyError):
                step()

    def _lost(self, connection: sa.Connection) -> bool:
        return connection.closed or connection.invalidated

    @contextmanager
    def _begun(self, connection: sa.Connection) -> Iterator[None]:
        with connection.begin():
            yield

    def _execute(self, connection: sa.Connection, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        found = connection.exec_driver_sql(sql if self.path else sql.replace("?", "%s"), tuple(parameters))
        return [dict(row) for row in found.mappings()] if found.returns_rows else []

    def _tables(self, connection: sa.Connection) -> set[str]:
        return set(sa.inspect(connection).get_table_names())

    def _make(self, connection: sa.Connection, tables: Sequence[Table]) -> None:
        if self.path is None and connection.scalar(sa.text("SELECT to_regnamespace('quoron')")) is None:
            connection.execute(sa.text("CREATE SCHEMA quoron"))
        as_metadata(tables).create_all(connection)

    def _raw(self, connection: sa.Connection) -> sqlite3.Connection:
        return cast(sqlite3.Connection, connection.connection.driver_connection)

    def _as_ledger_error(self, error: Exception) -> LedgerError:
        original: Any = getattr(error, "orig", None) or error
        text = getattr(getattr(original, "diag", None), "message_primary", None) or str(original)
        if self.path is not None:
            return sqlite_error(text, self.name)
        message = f"Cannot use the ledger {self.name}: {text.strip().partition(chr(10))[0].rstrip('.')}. "
        if isinstance(error, sa.exc.IntegrityError | sa.exc.ProgrammingError | sa.exc.DataError):
            return LedgerError(message + "It may be damaged or not a quoron ledger.", outside=OUTSIDE)
        return LedgerUnavailable(message + "Try again: nothing is ever written by halves.", outside=OUTSIDE)


def as_metadata(tables: Iterable[Table]) -> sa.MetaData:
    """Return the same tables in SQLAlchemy's words, which makes them in either kind of database."""
    made = sa.MetaData()
    for table in tables:
        columns: list[sa.Column[Any]] = [
            sa.Column(
                name,
                _TYPES[kind.split()[0]],
                primary_key=name in table.key,
                autoincrement=False,
                nullable="NOT NULL" not in kind,
                server_default=default[1] if (default := re.search("DEFAULT '(.*)'", kind)) else None,
            )
            for name, kind in table.columns.items()
        ]
        sa.Table(table.name, made, *columns)
    return made
