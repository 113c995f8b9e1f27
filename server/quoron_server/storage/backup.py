"""Copies of the database while it is used, with a digest; and a database restored from one, in which open runs end.

    sha256 = back_up(database, Path("monday.backup"))
    copy = read(Path("monday.backup"))
    restored = restore(Path("monday.backup"), "postgresql://quoron@db/quoron")

A backup is every row of one transaction as lines of JSON, from SQLite or PostgreSQL for either, and holds no secret of
an unfinished run. Every transaction that was acknowledged before it began is in it.

A restored database has a new incarnation. What the one that was copied released after the copy is not in it, so every
run that was open has ended: nothing is released a second time, and the charges stay as they are
(docs/privacy/restored-databases.md#rb2).
"""

import base64
import hashlib
import json
import os
import secrets
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quoron_client.durable import PRIVATE, clear, sync_folder
from quoron_privacy.errors import LedgerError, LedgerUnavailable
from quoron_server.storage import ledger, lifetime_ledger, registry
from quoron_server.storage.database import Database, parse
from quoron_server.storage.store import FORMAT, Table, listed, now, verify_rows

_KIND = "quoron backup 1"
_ONE_INSTANT = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"  # in PostgreSQL
SCHEMA = (*registry.SCHEMA, *lifetime_ledger.SCHEMA, *ledger.SCHEMA)
TABLES: dict[str, Table] = {  # that a backup holds: no secrets of unfinished runs
    table.name: table for table in SCHEMA if table is not ledger.SECRETS
}
Rows = dict[str, list[dict[str, Any]]]  # by table

ENDED = (
    "The database was restored from a backup while this run was open. What the run released since is not in it, so the "
    "run has ended and its charge stays. Submit a new run."
)


@dataclass(frozen=True, slots=True)
class Copy:
    """What a backup holds."""

    incarnations: tuple[str, ...]  # of the store that it was taken from
    rows: Rows


def back_up(database: Database, out: Path) -> str:
    """Write a backup that is complete or not there at all; its SHA-256. LedgerError if something is there already."""
    hashed = hashlib.sha256()
    if out.exists():
        raise LedgerError(f"Expected no file at {out}, found one. Give a backup a name of its own.")
    with _draft(out, f"write a backup to {out}") as draft:
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE)
        with os.fdopen(handle, "wb") as stream:
            for line in _lines(database):
                hashed.update(line)
                stream.write(line)
            stream.write(_line({"sha256": hashed.hexdigest()}))
            stream.flush()
            os.fsync(stream.fileno())
        os.link(draft, out)  # unlike a renaming it replaces nothing
        sync_folder(out.parent)
    return hashed.hexdigest()


def _lines(database: Database) -> Iterator[bytes]:
    with database.writing() as connection:
        if database.path is None:
            connection.execute(_ONE_INSTANT)
        there = database.tables
        header = {"kind": _KIND, "format": FORMAT, "made": now()}
        yield _line(header | {"incarnations": database.incarnations})
        for name, table in TABLES.items():
            if name not in there:
                continue
            yield _line({"table": name, "columns": [*table.columns]})
            for row in connection.execute(f"SELECT {listed(table.columns)} FROM {name} ORDER BY {listed(table.key)}"):
                yield _line([_plain(value) for value in row])


def read(source: Path) -> Copy:
    """Return a backup; LedgerError unless its digest is right."""
    damaged = LedgerError(f"Expected a whole database backup in {source}, got something else. Take another.")
    try:
        content = source.read_bytes()
    except OSError as error:
        raise LedgerError(f"Expected a backup at {source}, cannot read it: {error.strerror}.") from None
    body, _, last = content.removesuffix(b"\n").rpartition(b"\n")
    try:
        if json.loads(last) != {"sha256": hashlib.sha256(body + b"\n").hexdigest()}:
            raise damaged
        lines = iter(body.split(b"\n"))
        start = json.loads(next(lines))
        if start["kind"] != _KIND or start["format"] != FORMAT:
            raise LedgerError(
                f"Expected {_KIND!r} of format {FORMAT} in {source}, got {start['kind']!r} of {start['format']}. Use "
                "the version that wrote it."
            )
        found: Rows = {}
        rows, columns = found.setdefault("", []), []
        for line in lines:
            entry = json.loads(line)
            if isinstance(entry, dict):
                rows, columns = found.setdefault(TABLES[entry["table"]].name, []), entry["columns"]
            else:
                rows.append(dict(zip(columns, map(_value, entry), strict=True)))
        return Copy(tuple(map(str, start["incarnations"])), found)
    except (ValueError, KeyError, TypeError, StopIteration):
        raise damaged from None


def _line(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True).encode() + b"\n"


def _plain(value: Any) -> Any:
    return {"b": base64.b64encode(bytes(value)).decode()} if isinstance(value, bytes | memoryview) else value


def _value(value: Any) -> Any:
    return base64.b64decode(value["b"], validate=True) if isinstance(value, dict) else value


@dataclass(frozen=True, slots=True)
class Restored:
    """What was put back."""

    incarnation: str  # random word of this database
    ended: tuple[str, ...]  # runs that were open


def restore(source: Path, url: str, *, head: str | None = None) -> Restored:
    """Make a database at `url`, where there is none, from a backup: all of it, or nothing. Runs that were open end.

    `head` is the hash of a row of the lifetime ledger that somebody kept: LedgerError if the backup is older, for one
    that is not whole, and where there is a database already.
    """
    copy, path = read(source), parse(url)
    chain = sorted(copy.rows.get(lifetime_ledger.CHAIN, []), key=lambda row: int(row["sequence"]))
    verify_rows([row | {"payload": json.loads(row["payload"])} for row in chain], head)
    if path is None:
        with Database(url) as database:
            return _fill(database, copy)
    if any(file.exists() for file in (path, path.with_name(path.name + "-acknowledged"))):
        raise LedgerError(f"Expected no database at {path}, found one, or its count. Restore to another.")
    with _draft(path, f"restore a database to {path}") as draft:
        with Database(f"sqlite:///{draft}") as database:
            restored = _fill(database, copy)
            database.as_new()
        os.link(draft, path)
        sync_folder(path.parent)
    with Database(url, create=False):  # begins the count
        return restored


def accept(path: Path, *, head: str | None = None) -> Restored:
    """Take a SQLite file for all that there is, though it is older than its count or has none; as `restore`."""
    if not path.is_file():
        raise LedgerError(f"Expected a database at {path}, found none.")
    with _draft(path, f"restore the database at {path}") as draft:
        with closing(sqlite3.connect(path)) as raw:  # what is in its journal belongs to it
            raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE))
        shutil.copyfile(path, draft)
        with Database(f"sqlite:///{draft}", create=False, as_it_is=True) as database:
            database.ensure(SCHEMA)
            lifetime_ledger.PopulationLedger(database).verify(head)
            with database.writing():
                restored = _put_back(database, database.incarnations)
            database.as_new()
        os.replace(draft, path)  # until its count is gone it is refused, as before
        path.with_name(path.name + "-acknowledged").unlink(missing_ok=True)
        sync_folder(path.parent)
    with Database(f"sqlite:///{path}", create=False):  # begins the count
        return restored


def _fill(database: Database, copy: Copy) -> Restored:
    with database.transaction() as execute:
        if database.tables & set(TABLES):
            raise LedgerError(f"Expected an empty database at {database.name}, found tables. Restore to another.")
        database.ensure(SCHEMA)
        for name, rows in copy.rows.items():
            if rows:
                TABLES[name].insert(execute, *rows)
        return _put_back(database, copy.incarnations)


def _put_back(database: Database, before: Sequence[str]) -> Restored:
    """Return a new incarnation, and the end of every open run, in the transaction that restores the database.

    A run whose model is there already is complete. `RunStore.settle` writes the last lines of the lifetime ledger.
    """
    database.renew(before)
    runs = registry.Registry(database)
    known, ended = {row.run for row in runs.runs()}, []
    for row in runs.runs():
        if row.state in registry.OPEN:
            complete = (found := ledger.Ledger.begun(database, row.run)) is not None and found.finished
            runs.set_state(row.run, *(("complete", None) if complete else ("cancelled", ENDED)))
            ended += [] if complete else [row.run]
    unreleased = ledger.Ledger.unreleased(database)
    for run in unreleased:
        ledger.Ledger.within(database, run).abandon()
    return Restored(database.incarnations[-1], (*ended, *sorted(unreleased - known)))  # a run folder has no registry


@contextmanager
def _draft(path: Path, doing: str) -> Iterator[Path]:
    """A name beside `path` for what takes its place once it is whole; nothing of it is left afterwards."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    try:
        yield draft
    except sqlite3.Error as error:
        raise LedgerError(f"Cannot {doing}: {error}.") from None
    except OSError as error:
        raise LedgerUnavailable(f"Cannot {doing}: {error.strerror}.") from error
    finally:
        with suppress(OSError):
            clear(draft)
