"""What every ledger is written to: whole transactions or nothing, in one SQLite file or in a coordinator's database.

    with Store(Path("ledger.sqlite")) as store, store.transaction() as execute:
        rows = execute("SELECT kind FROM population WHERE sequence >= ?", [3])

A `Store` needs the standard library alone: a run folder's ledger and one's own lifetime ledger are such files. A
coordinator's `database.Database` is one, too, or has PostgreSQL in its place. SQL is written once, for both: columns
of `Table`, values as `?`. Rows that are chained (`row_hash`) cannot be changed, removed or moved unseen.

What survives a kill, a broken connection and a power loss, and why: docs/durability.md.
"""

import errno
import functools
import hashlib
import json
import secrets
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, Self, get_args, get_origin

from quoron_client.durable import PRIVATE, HighWaterMark, sync_folder
from quoron_privacy.errors import LedgerError, LedgerUnavailable

START = "0" * 64
KINDS = ("limit", "charge", "give-back", "release", "end", "seat", "submit", "cancel")
SIGNED = ("by", "software")  # who did it, where an operator did, and with which code: beside what it says
Row = dict[str, Any]
Execute = Callable[..., list[Row]]  # a statement within a transaction, and the values of each `?` in it: its rows

_TOLD = {name: name for name in ("software", "run", "plan", "epsilon", "delta")} | {"group": "population"}

FORMAT = 6
TIMEOUT = 1.0  # seconds, for another program that has the file open
OUTSIDE = "The coordinator cannot use its ledger now. Its log says why."  # to callers over a network
FULL = "The disk of the coordinator's ledger is full."  # in place of that
SETTINGS = (
    "locking_mode=EXCLUSIVE",
    "journal_mode=WAL",
    "synchronous=FULL",
    "fullfsync=ON",
    "checkpoint_fullfsync=ON",
    "secure_delete=ON",
)
_TYPES: dict[Any, str] = {str: "TEXT", int: "BIGINT", bytes: "BLOB"}
_RESERVED = ("user", "group")  # words of SQL that are columns here
_TOGETHER = 100  # rows that one statement writes
_FULL = "database or disk is full"
_MACHINE = {  # what SQLite says about the machine, not about the file
    "database is locked": "Another process holds this run or database, or reads the file: wait for it or end it.",
    _FULL: "Free some space. A coordinator goes on by itself then; others by `quoron resume`.",
    "disk I/O error": "Look at the disk, then try again.",
}


@functools.cache
def software() -> str:
    """Return the code that runs here, by its version."""
    try:
        return f"quoron {version('quoron')}"
    except PackageNotFoundError:
        return "quoron, not installed"


def signed(by: str = "") -> Row:
    """Return what stands beside what a row says; by nobody where a run does it in its course."""
    return {"software": software()} | ({"by": by} if by else {})


def unsigned(payload: Row) -> Row:
    """Return what a row says, without that."""
    return {name: value for name, value in payload.items() if name not in SIGNED}


def acts(rows: Sequence[Row]) -> list[Row]:
    """Who submitted, cancelled and limited what, and what was spent, in order and with which code, of a verified chain.

    Each has `time`, `what`, `by`, `software` and, as far as they belong to it, `run`, `population`, `plan`, `epsilon`
    and `delta`. The operator who submitted a run made its charge, unless it was entered for another tool.
    """
    found: list[Row] = []
    submitted: dict[Any, Row] = {}
    for row in rows:
        payload = row["payload"]
        if row["kind"] not in ("submit", "cancel", "limit", "charge", "give-back"):
            continue
        act = {"time": row["time"], "what": row["kind"], "by": payload.get("by", "")}
        act |= {word: payload[name] for name, word in _TOLD.items() if name in payload}
        run = payload.get("run")
        if row["kind"] == "submit":
            submitted[run] = payload
        elif row["kind"] == "charge" and run in submitted:
            act |= {"plan": submitted[run].get("plan", ""), "by": act["by"] or submitted[run].get("by", "")}
        found.append(act)
    return found


def row_hash(previous: str, row: Row, payload: str | None = None) -> str:
    """SHA-256 of the previous row's hash and this row without its own, as hexadecimal digits.

    `payload` is the row's as canonical JSON, where that is at hand.
    """
    payload = canonical(row["payload"]) if payload is None else payload
    kind, time = json.dumps(row["kind"]), json.dumps(row["time"])
    text = f'{{"kind":{kind},"payload":{payload},"sequence":{json.dumps(row["sequence"])},"time":{time}}}'
    return hashlib.sha256((previous + text).encode()).hexdigest()


def verify_rows(rows: Sequence[Row], expected_head: str | None = None) -> str:
    """Return the head of a chain of rows; LedgerError names the first row that does not belong where it is.

    >>> row = {"sequence": 0, "time": "", "kind": "end", "payload": {"run": "summer", "state": "complete"}}
    >>> verify_rows([row | {"hash": row_hash(START, row)}]) == row_hash(START, row)
    True
    """
    verify_stored([row | {"payload": canonical(row["payload"])} for row in rows], START, 0)
    heads = [START, *(str(row["hash"]) for row in rows)]
    if expected_head is not None and expected_head not in heads:
        raise LedgerError(
            f"Population ledger: no row has the hash {expected_head}; rows at the end are gone or were written again. "
            "Compare with the export that it came from."
        )
    return heads[-1]


def verify_export(text: str, expected_head: str | None = None) -> str:
    """Return the head of an export, after checking every row; LedgerError if it is none or does not hold together."""
    try:
        document = json.loads(text)
        rows, stated = list(document["rows"]), document["head"]
        head = verify_rows(rows, expected_head)
    except (ValueError, KeyError, TypeError) as error:
        raise LedgerError("Expected an export of a population ledger, got something else.") from error
    if head != stated:
        raise LedgerError(f"Expected the export to end at its head {stated}, got {head}. Rows at the end are gone.")
    return head


def verify_stored(rows: Sequence[Row], head: str, first: int) -> None:
    """LedgerError names the first of stored rows behind a head that does not belong where it is.

    The hash is of the text as it is stored: whatever says the same in other words is not what was written.
    """
    for sequence, row in enumerate(rows, first):
        if row["sequence"] != sequence:
            raise LedgerError(
                f"Population ledger: expected row {sequence}, found row {row['sequence']}. Rows are gone."
            )
        try:
            whole = row["kind"] in KINDS and row_hash(head, row, row["payload"]) == row["hash"]
        except (ValueError, TypeError):  # of another type, or no text
            whole = False
        if not whole:
            raise LedgerError(
                f"Population ledger: row {sequence} ({row['kind']}) is not what was written, or what came before it is "
                "not. Compare with your last export."
            )
        head = row["hash"]


def canonical(value: Any) -> str:
    """JSON of which there is one for each value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """A table, for SQLite and PostgreSQL: INTEGER, BIGINT, FLOAT, TEXT or BLOB columns."""

    name: str
    columns: Mapping[str, str]
    key: tuple[str, ...] = ()
    unique: str = ""  # a column whose values all differ

    @classmethod
    def of(cls, name: str, kind: Any, *key: str, unique: str = "") -> "Table":
        """Return the table whose rows are instances of a dataclass of texts, whole numbers and bytes, or of None."""
        return cls(name, {item.name: _column(item.type) for item in fields(kind)}, key, unique)

    @property
    def sql(self) -> str:
        """What makes it."""
        ends = [f"PRIMARY KEY ({listed(self.key)})"] if self.key else []
        ends += [f"UNIQUE ({self.unique})"] if self.unique else []
        lines = [*(f"{listed([name])} {kind}" for name, kind in self.columns.items()), *ends]
        return f"CREATE TABLE {self.name} (\n\t" + ", \n\t".join(lines) + "\n)"

    def insert(self, execute: Execute, *rows: Row) -> None:
        """Write more rows, all with the same columns."""
        for start in range(0, len(rows), _TOGETHER):
            some = rows[start : start + _TOGETHER]
            values = ", ".join([f"({marks(some[0])})"] * len(some))
            given = [value for row in some for value in row.values()]
            execute(f"INSERT INTO {self.name} ({listed(some[0])}) VALUES {values}", given)


def _column(kind: Any) -> str:
    """Return what SQL says of a column of values of this type."""
    kinds = [type(option) if get_origin(kind) is Literal else option for option in get_args(kind) or (kind,)]
    return _TYPES[kinds[0]] if type(None) in kinds else f"{_TYPES[kinds[0]]} NOT NULL"


def listed(names: Iterable[str]) -> str:
    """Return names of columns as SQL has them."""
    return ", ".join(f'"{name}"' if name in _RESERVED else name for name in names)


def marks(values: Collection[Any]) -> str:
    """Return a `?` for each value."""
    return ", ".join("?" * len(values))


_META = Table(
    "meta",
    {
        "format": "INTEGER NOT NULL",
        "owner": "TEXT",  # random word of the last process that owned the database
        "incarnation": "TEXT",  # random words of this store: one more, the last, each time it is restored
        "acknowledged": "INTEGER DEFAULT '0' NOT NULL",  # transactions that wrote; SQLite only
    },
)
SCHEMA = (_META,)


class Store:
    """One database and the one connection to it. Thread-safe: one transaction at a time. Calls block.

    | what happens                                   | what is raised                                 |
    | ---------------------------------------------- | ---------------------------------------------- |
    | no connection, connection lost, disk full      | LedgerUnavailable; the next call connects again |
    | it has been closed                             | LedgerError: another may have opened it since  |
    | another process owns it                        | LedgerUnavailable                              |
    | another process has owned it in between        | LedgerError: this process must start again     |
    | another format, or something else than ours    | LedgerError                                    |
    | a SQLite file that has lost what it had        | LedgerError                                    |
    | a URL that names no such database              | ConfigError                                    |
    """

    failures: tuple[type[Exception], ...] = (sqlite3.Error,)  # of the connection
    refusals: type[Exception] = sqlite3.IntegrityError  # among them: of a statement alone
    begin = "BEGIN IMMEDIATE"
    catalogue = "SELECT name FROM sqlite_master WHERE type = 'table'"

    def __init__(
        self,
        path: Path | None,
        *,
        name: str = "",
        create: bool = True,
        as_it_is: bool = False,
        timeout: float = TIMEOUT,
    ) -> None:
        """Open the SQLite file at `path`, for which others wait `timeout` seconds; `create` makes what is missing."""
        self.name, self.path = name or f"sqlite:///{path}", path
        self.failing = ""  # since the last write failed: why, as is said over a network
        self._as_it_is, self._timeout = as_it_is, timeout
        self._mutex = threading.RLock()
        self._connection: Any = None
        self._joined: Any = None
        self._over = self._relaxed = False
        self._tally = None if path is None else HighWaterMark(path)
        self._head, self._next_head = "", ""  # of the audit log: what is kept beside the count, and will be
        try:
            self._prepare(create)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the database back, for good."""
        with self._mutex:
            self._over = True
            self._drop()

    def ensure(self, tables: Sequence[Table]) -> None:
        """Make those of `tables` that are missing."""
        with self.transaction() as execute:
            there = self.tables
            for table in tables:
                if table.name not in there:
                    execute(table.sql)

    @property
    def tables(self) -> set[str]:
        """The names of all tables that are there."""
        return {str(row["name"]) for row in self.rows(self.catalogue)}

    @contextmanager
    def writing(self) -> Iterator[Any]:
        """One transaction: durable when the block has ended without an error, otherwise as if it had never begun.

        All that this thread does with the database within the block belongs to it. LedgerUnavailable if the connection
        breaks. If it breaks in the last step, the commit, the transaction is there as a whole or not at all, and only
        the database knows: read before writing again.
        """
        with self._mutex:
            if self._joined is not None:  # this thread's, as it has the mutex
                yield self._joined
                return
            try:
                connection = self._connected()
                with self._begun(connection):
                    self._joined = connection
                    before, self._next_head = self._written(connection), self._head
                    yield connection
                    wrote = self._written(connection) != before or self._next_head != self._head
                    count = self._counted(connection) if wrote else None
            except self.failures as error:
                if not isinstance(error, self.refusals):
                    self._drop()
                found = self._as_ledger_error(error)
                self.failing = found.outside if isinstance(found, LedgerUnavailable) else self.failing
                raise found from error
            finally:
                self._joined = None
            if count is not None:
                self._head = self._next_head
                if not self._relaxed:
                    self._keep(count)
                self.failing = ""

    @contextmanager
    def transaction(self) -> Iterator[Execute]:
        """The same, for statements that are written once for every kind of database."""
        with self.writing() as connection:
            yield partial(self._execute, connection)

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Return the rows of one statement, in a new transaction or the current one."""
        with self.transaction() as execute:
            return execute(sql, parameters)

    @property
    def head(self) -> str:
        """The head of the audit log that is kept beside a SQLite file; "" if none is."""
        return self._head

    def keep_head(self, head: str) -> None:
        """Keep this head, that of the audit log within this transaction, once the transaction is durable."""
        if self._tally is not None:
            self._next_head = head

    @property
    def incarnations(self) -> tuple[str, ...]:
        """The random words of this store: that with which it began, and one for each time it was restored.

        No other store has the last of them.
        """
        return tuple(str(self.rows("SELECT incarnation FROM meta")[0]["incarnation"]).split())

    def renew(self, before: Sequence[str]) -> None:
        """Give a restored store one more random word, after those `before` of the store that it was copied from."""
        self.rows("UPDATE meta SET incarnation = ?", [" ".join([*before, secrets.token_hex(8)])])

    def probe(self) -> None:
        """Raises what any use would raise now; after a write that failed, what a write would."""
        with self.transaction() as execute:
            if self.failing:
                execute("UPDATE meta SET format = ?", [FORMAT])
            else:
                execute("SELECT format FROM meta")
        self.failing = ""

    def serialise(self, execute: Execute) -> None:
        """Until the end of this transaction nobody else who calls this writes. A SQLite file has one process anyway."""

    def relax(self) -> None:
        """Let a power loss, but no kill, take back what was written since the journal was folded into a SQLite file."""
        with self._mutex:
            self._connected().execute("PRAGMA synchronous=NORMAL")
            self._relaxed = True

    def checkpoint(self) -> None:
        """Fold SQLite's journal into the file: no copy is left of what was erased, and the file alone is whole.

        Within a transaction it does nothing: the caller that opened it folds afterwards.
        """
        with self._mutex:
            if self.path is not None and self._joined is None:
                self._folded()

    def as_new(self) -> None:
        """Leave a SQLite file as one that has acknowledged nothing yet, all in itself; close it then, and move it.

        LedgerUnavailable if that cannot be written: the file is then incomplete without its journal.
        """
        with self._mutex:
            self._folded("UPDATE meta SET acknowledged = 0")

    def _folded(self, last: str = "") -> None:
        raw = self._connected()
        try:
            raw.execute(last)
            busy, left, _ = raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except sqlite3.Error as error:
            raise sqlite_error(str(error), self.name) from error
        if busy or left > 0:
            raise LedgerUnavailable(f"Cannot fold the journal of {self.name}: it is in use.", outside=OUTSIDE)
        if self._relaxed:
            self._keep(int(raw.execute("SELECT acknowledged FROM meta").fetchone()[0]))

    def _counted(self, connection: Any) -> int | None:
        """One more transaction that wrote, in the same transaction."""
        if self._tally is None:
            return None
        one_more = "UPDATE meta SET acknowledged = acknowledged + 1 RETURNING acknowledged"
        return int(self._execute(connection, one_more)[0]["acknowledged"])

    def _check_tally(self, found: int) -> None:
        """Raise LedgerError if the file holds less than it has acknowledged, or that cannot be read.

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
                "somebody. Put back what is missing, or go on with another database. If there is nothing else, `quoron "
                "admin restore` takes it for what it is.",
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
            with suppress(*self.failures):
                held.close()

    def _connected(self) -> Any:
        """Return the one connection, made again if it was lost."""
        if self._over:
            raise LedgerError(f"Expected a ledger that is open, got {self.name}, which has been closed. Open it again.")
        if self._connection is None or self._lost(self._connection):
            self._drop()
            self._connection = self._connect()
        return self._connection

    def _prepare(self, create: bool) -> None:
        if self.path is not None and create and not self.path.exists():
            try:
                self.path.touch(mode=PRIVATE)  # it will hold noise keys; its journal inherits the mode
                sync_folder(self.path.parent)
            except OSError as error:
                raise LedgerError(f"Cannot make a ledger at {self.path}: {error.strerror}.") from error
        if self.path is not None and not self.path.is_file():
            raise LedgerError(f"Expected a ledger at {self.path}, found none.")
        with self.transaction() as execute:
            stored = self._formats(execute, create)
            if stored != [FORMAT]:
                formats = ", ".join(map(str, stored)) or "none"
                raise LedgerError(
                    f"Expected ledger format {FORMAT} in {self.name}, got {formats}. Use the version that wrote it."
                )
            self._taken(execute)
        if self.path is not None:
            self._check_tally(int(self.rows("SELECT acknowledged FROM meta")[0]["acknowledged"]))
            self._folded()  # a copy of the file alone is then one of a store that needs its count, and never of none

    def _formats(self, execute: Execute, create: bool) -> list[Any]:
        tables = self.tables
        if create and not tables:
            self._check_tally(0)
            self.ensure(SCHEMA)
            _META.insert(execute, {"format": FORMAT, "incarnation": secrets.token_hex(8)})
        elif "meta" not in tables:
            raise LedgerError(f"Expected a ledger in {self.name}, found something else: it is not a quoron ledger.")
        return [row["format"] for row in execute("SELECT format FROM meta")]

    def _lost(self, connection: Any) -> bool:
        """Return whether it cannot be used any more."""
        return False

    def _taken(self, execute: Execute) -> None:
        """What an owner writes when it begins, in the first transaction."""

    def _written(self, connection: Any) -> int:
        """Return rows that this connection has written so far; 0 where that is not counted."""
        return 0 if self.path is None else int(connection.total_changes)

    def _connect(self) -> Any:
        return connect(str(self.path), self._timeout)

    @contextmanager
    def _begun(self, connection: Any) -> Iterator[None]:
        connection.execute(self.begin)
        try:
            yield
            connection.execute("COMMIT")
        except BaseException:
            with suppress(*self.failures):
                connection.rollback()
            raise

    def _execute(self, connection: Any, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        found = connection.execute(sql, parameters)
        names = [column[0] for column in found.description or ()]
        return [dict(zip(names, row, strict=True)) for row in found] if names else []

    def _as_ledger_error(self, error: Exception) -> LedgerError:
        return sqlite_error(str(error), self.name)


def connect(path: str, timeout: float = TIMEOUT) -> sqlite3.Connection:
    """Return a connection to a SQLite file that acknowledges nothing which a power loss could take back."""
    made = sqlite3.connect(path, timeout=timeout, check_same_thread=False, isolation_level=None)
    try:
        for setting in SETTINGS:  # transactions begin and end where we say
            made.execute(f"PRAGMA {setting}").close()
    except BaseException:
        made.close()
        raise
    return made


def sqlite_error(text: str, name: str) -> LedgerError:
    """What SQLite says, in our words: LedgerUnavailable when another try may succeed. Never the values of a row."""
    cause = text.strip().partition("\n")[0]
    message = f"Cannot use the ledger {name}: {cause.rstrip('.')}. "
    if cause in _MACHINE:
        return LedgerUnavailable(message + _MACHINE[cause], outside=FULL if cause == _FULL else OUTSIDE)
    return LedgerError(message + "The file may be damaged or not a quoron ledger.", outside=OUTSIDE)


def now() -> str:
    """Return the time, for people to read. Nothing is ever ordered or decided by a clock."""
    return datetime.now(UTC).isoformat(timespec="seconds")
