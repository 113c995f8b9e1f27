"""How a connection to SQLite or PostgreSQL is made so that what it acknowledges is durable. For `database` only."""

from functools import cache, partial
from typing import Any

import sqlalchemy as sa

from quoron_privacy.errors import ConfigError, LedgerError, LedgerUnavailable
from quoron_server.books.store import OUTSIDE, connect, sqlite_error

LOCK = 0x71756F726F6E  # "quoron": whoever holds this advisory lock owns the PostgreSQL database
PATIENCE = "3s"  # for the lock of a process that has just been killed
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


def parse(url: str) -> sa.URL:
    """The URL with its driver; ConfigError if it names neither a SQLite file nor a PostgreSQL database."""
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


def make_engine(url: sa.URL, patience: float) -> sa.Engine:
    """An engine without a pool, which waits `patience` seconds for a SQLite file. ConfigError without a driver."""
    common: dict[str, Any] = {"hide_parameters": True}  # they can be noise keys
    if url.get_backend_name() == "sqlite":
        dialect, compiled = _sqlite()
        creator: Any = partial(connect, str(url.database), patience)
        pool = sa.pool.NullPool(creator, dialect=dialect)
        engine = sa.Engine(pool, dialect, url, execution_options={"compiled_cache": compiled}, **common)
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


@cache
def _sqlite() -> tuple[sa.Dialect, dict[Any, Any]]:
    """SQLite's dialect and the statements compiled in it, for every file: compiling takes longer than executing.

    A compiled statement keeps what was written into it: secrets are parameters of its execution instead.
    """
    engine = sa.create_engine("sqlite://")
    engine.connect().close()  # it asks the library for its version
    return engine.dialect, {}


def own(connection: sa.Connection, name: str) -> None:
    """Take the owner's lock of a PostgreSQL database, waiting a little for a process that has just been killed."""
    connection.execute(sa.text(f"SET lock_timeout = '{PATIENCE}'"))
    try:
        connection.execute(sa.select(sa.func.pg_advisory_lock(LOCK)))
    except sa.exc.OperationalError as error:
        if getattr(error.orig, "sqlstate", None) != "55P03":
            raise
        raise LedgerUnavailable(
            f"Cannot use the ledger {name}: another coordinator owns it. Wait for it or end it.", outside=OUTSIDE
        ) from None
    connection.execute(sa.text("SET lock_timeout = 0"))
    connection.commit()


def as_ledger_error(error: Exception, name: str, *, sqlite: bool) -> LedgerError:
    """The same in our words: LedgerUnavailable when another try may succeed. Never the values of a row."""
    original: Any = getattr(error, "orig", None) or error
    text = getattr(getattr(original, "diag", None), "message_primary", None) or str(original)
    if sqlite:
        return sqlite_error(text, name)
    message = f"Cannot use the ledger {name}: {text.strip().partition(chr(10))[0].rstrip('.')}. "
    if isinstance(error, sa.exc.IntegrityError | sa.exc.ProgrammingError | sa.exc.DataError):
        return LedgerError(message + "It may be damaged or not a quoron ledger.", outside=OUTSIDE)
    return LedgerUnavailable(message + "Try again: nothing is ever written by halves.", outside=OUTSIDE)


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
