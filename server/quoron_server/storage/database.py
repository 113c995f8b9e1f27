"""The database of a coordinator or a second server, by its URL: one SQLite file, or a database of a PostgreSQL server.

    Database("sqlite:///coordinator.sqlite")
    Database("postgresql://quoron@db.example/quoron")     # pip install '.[postgres]'

A process that opens a database as its own (`sole`) is the only one: SQLite by an exclusive lock on the file, PostgreSQL
by an advisory lock of the one connection that does all the writing. When that connection breaks, the next use makes a
new one, takes the lock again and checks that nobody else has owned the database in between.

What a `Store` promises holds here, too.
"""

import re
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from quoron_privacy.errors import ConfigError, LedgerError, LedgerUnavailable
from quoron_privacy.kernels.on_first_use import OnFirstUse
from quoron_server.storage.store import OUTSIDE, Execute, Row, Store

if TYPE_CHECKING:
    import psycopg
else:
    psycopg = OnFirstUse("psycopg")  # of PostgreSQL alone

LOCK = 0x71756F726F6E  # "quoron": the holder of this advisory lock owns the PostgreSQL database
OWNED = "3s"  # for the lock of a process that has just been killed
_POSTGRES: dict[str, Any] = {
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


def parse(url: str) -> Path | None:
    """Return the file of a SQLite URL, None of a PostgreSQL one; ConfigError if it names neither."""
    try:
        parts = urlsplit(url)
        good = "://" in url and parts.port != 0
    except ValueError:  # of a port that is no number
        good = False
    if not good:  # never repeated: it could be a password
        raise ConfigError(
            "Expected a database such as sqlite:///file.sqlite or postgresql://user@host/name, got something else."
        )
    if parts.scheme == "postgresql":
        return None
    file = url.removeprefix("sqlite:///")
    if file in (url, "", ":memory:") or "?" in file:
        raise ConfigError(f"Expected a database sqlite:///FILE or postgresql://USER@HOST/NAME, got {_shown(url)}.")
    return Path(file)


def _shown(url: str) -> str:
    """Return a URL without a password."""
    return re.sub("://([^:@/]*):.*@", r"://\1:***@", url.partition("?")[0])


class Database(Store):
    """A `store` by its URL."""

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
        path = parse(url)
        self._url, self._sole, self._owner = url, sole and path is None, ""
        if path is None:
            try:
                self.failures, self.refusals = (psycopg.Error,), psycopg.IntegrityError
            except ModuleNotFoundError as error:
                raise ConfigError(
                    "Expected the package psycopg for PostgreSQL. Install it: pip install '.[postgres]' in the "
                    "repository."
                ) from error
            self.begin = "BEGIN ISOLATION LEVEL READ COMMITTED"
            self.catalogue = "SELECT tablename AS name FROM pg_tables WHERE schemaname = 'quoron'"
        super().__init__(path, name=_shown(url), create=create, as_it_is=as_it_is)

    def serialise(self, execute: Execute) -> None:
        """Until the end of this transaction nobody else who calls this writes. A SQLite file has one process anyway."""
        if self.path is None:
            execute("SELECT pg_advisory_xact_lock(?)", [LOCK + 1])

    def _connect(self) -> Any:
        if self.path is not None:
            return super()._connect()
        fresh = psycopg.connect(self._url, autocommit=True, **_POSTGRES)  # transactions begin and end where we say
        try:
            _require_durable(fresh)
            if self._sole:
                self._own(fresh)
        except BaseException:
            fresh.close()
            raise
        return fresh

    def _own(self, connection: Any) -> None:
        """Take the owner's lock of a PostgreSQL database, waiting a little for a process that has just been killed.

        LedgerError if another has owned it since this one lost its connection.
        """
        connection.execute(f"SET lock_timeout = '{OWNED}'")
        try:
            connection.execute("SELECT pg_advisory_lock(%s)", [LOCK])
        except psycopg.errors.LockNotAvailable:
            raise LedgerUnavailable(
                f"Cannot use the ledger {self.name}: another coordinator owns it. Wait for it or end it.",
                outside=OUTSIDE,
            ) from None
        connection.execute("SET lock_timeout = 0")
        if self._owner and connection.execute("SELECT owner FROM meta").fetchall() != [(self._owner,)]:
            raise LedgerError(
                f"Another coordinator has owned {self.name} since this one lost its connection. "
                "Start this one again: it continues from what the other wrote.",
                outside=OUTSIDE,
            )

    def _taken(self, execute: Execute) -> None:
        if self._sole:
            owner = secrets.token_hex(8)
            execute("UPDATE meta SET owner = ?", [owner])
            self._owner = owner

    def _lost(self, connection: Any) -> bool:
        return self.path is None and bool(connection.closed)

    def _execute(self, connection: Any, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        sql = sql if self.path is not None else sql.replace("?", "%s").replace(" BLOB", " BYTEA")
        return super()._execute(connection, sql, parameters)

    def _formats(self, execute: Execute, create: bool) -> list[Any]:
        if self.path is None and create and execute("SELECT to_regnamespace('quoron') AS there") == [{"there": None}]:
            execute("CREATE SCHEMA quoron")
        return super()._formats(execute, create)

    def _as_ledger_error(self, error: Any) -> LedgerError:
        if self.path is not None:
            return super()._as_ledger_error(error)
        text = (error.diag.message_primary or str(error)).strip().partition("\n")[0].rstrip(".")
        message = f"Cannot use the ledger {self.name}: {text}. "
        if isinstance(error, psycopg.IntegrityError | psycopg.ProgrammingError | psycopg.DataError):
            return LedgerError(message + "It may be damaged or not a quoron ledger.", outside=OUTSIDE)
        return LedgerUnavailable(message + "Try again: nothing is ever written by halves.", outside=OUTSIDE)


def _require_durable(connection: Any) -> None:
    """Never acknowledge what a power loss could take back."""
    query = "SELECT current_setting('fsync'), current_setting('synchronous_commit')"
    fsync, synchronous = connection.execute(query).fetchone()
    if synchronous in ("off", "local"):  # stronger settings wait for replicas too: leave them
        connection.execute("SET synchronous_commit = on")
    if fsync != "on":
        raise LedgerError("Expected a PostgreSQL server with fsync = on, got off: a power loss would undo the ledger.")
