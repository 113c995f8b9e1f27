"""Copies of the books while they are used, with a digest, and books put back from one: a new incarnation.

    sha256 = back_up(database, Path("monday.backup"))
    restored = restore(Path("monday.backup"), "sqlite:///coordinator.sqlite")

A backup is every row of one transaction as lines of JSON, from SQLite or PostgreSQL for either, and holds no secret of
an unfinished run unless that is asked for. What the books wrote after it may have been seen: so restored books hold
every run that was open until it is cancelled, or until somebody says that it goes on, which makes one more copy of it
and is charged as one (docs/privacy/restored-books.md#rb2).
"""

import base64
import hashlib
import json
import os
import secrets
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from quoron_privacy.errors import LedgerError, LedgerUnavailable
from quoron_server.books import ledger, lifetime_ledger, registry
from quoron_server.books.connections import parse
from quoron_server.books.database import FORMAT, Database, now
from quoron_server.books.durable import PRIVATE, sync_folder

_KIND = "quoron backup 1"
_SECRETS = ledger.SECRETS.name
_SCHEMAS = (registry.SCHEMA, lifetime_ledger.SCHEMA, ledger.SCHEMA)
_TABLES: dict[str, sa.Table] = {name: table for schema in _SCHEMAS for name, table in schema.tables.items()}


@dataclass(frozen=True, slots=True)
class Restored:
    """What was put back."""

    incarnation: str  # random word of these books
    held: tuple[str, ...]  # open runs that do not go on
    continued: tuple[str, ...]  # open runs that go on, each charged as one more copy


def back_up(database: Database, out: Path, *, with_secrets: bool = False) -> str:
    """Write a backup that is complete or not there at all; its SHA-256. LedgerError if something is there already.

    `with_secrets` keeps what unfinished runs need to go on: whoever reads it can take their noise off.
    """
    hashed = hashlib.sha256()
    draft = out.with_name(f".{out.name}.{secrets.token_hex(8)}.new")
    try:
        if out.exists():
            raise LedgerError(f"Expected no file at {out}, found one. Give a backup a name of its own.")
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE)
        with os.fdopen(handle, "wb") as stream:
            for line in _lines(database, with_secrets=with_secrets):
                hashed.update(line)
                stream.write(line)
            stream.write(_line({"sha256": hashed.hexdigest()}))
            stream.flush()
            os.fsync(stream.fileno())
        os.link(draft, out)  # unlike a renaming it replaces nothing
        sync_folder(out.parent)
    except OSError as error:
        raise LedgerUnavailable(f"Cannot write a backup to {out}: {error.strerror}.") from error
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
    return hashed.hexdigest()


def restore(source: Path, url: str, *, continue_open: bool = False, head: str | None = None) -> Restored:
    """Make books at `url`, where there are none, from a backup.

    `continue_open` lets running runs go on, as one more copy each. `head` is the hash of a row of the lifetime ledger
    that somebody kept: LedgerError if the backup is older. LedgerError for a backup that is not whole, and, with
    nothing written, where there are books already; BudgetExceeded if a copy has no room.
    """
    rows, parsed = _read(source), parse(url)
    chain = sorted(rows.get(lifetime_ledger.CHAIN, []), key=lambda row: int(row["sequence"]))
    lifetime_ledger.verify_rows([row | {"payload": json.loads(row["payload"])} for row in chain], head)
    if parsed.get_backend_name() != "sqlite":
        with Database(url) as database:
            return _fill(database, rows, continue_open=continue_open)
    path = Path(parsed.database or "")
    if any(each.exists() for each in (path, path.with_name(path.name + "-acknowledged"))):
        raise LedgerError(f"Expected no books at {path}, found some, or their count. Restore beside them.")
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    try:
        with Database(_sqlite(draft)) as database:
            restored = _fill(database, rows, continue_open=continue_open)
            database.as_new()
        os.link(draft, path)
        sync_folder(path.parent)
    except OSError as error:
        raise LedgerUnavailable(f"Cannot restore books to {path}: {error.strerror}.") from error
    finally:
        _clear(draft)
    with Database(url, create=False):  # begins the count
        return restored


def accept(path: Path, *, continue_open: bool = False, head: str | None = None) -> Restored:
    """Take a SQLite file for all that there is, though it is older than its count or has none; as `restore`."""
    if not path.is_file():
        raise LedgerError(f"Expected books at {path}, found none.")
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    try:
        with closing(sqlite3.connect(path)) as raw:  # what is in its journal belongs to it
            raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE))
        shutil.copyfile(path, draft)
        with Database(_sqlite(draft), create=False, as_it_is=True) as database:
            for schema in _SCHEMAS:
                database.ensure(schema)
            lifetime_ledger.PopulationLedger(database).verify(head)
            with database.writing() as connection:
                _hold(database, connection)
            restored = _continued(database, continue_open=continue_open)
            database.as_new()
        os.replace(draft, path)  # until its count is gone it is refused, as before
        path.with_name(path.name + "-acknowledged").unlink(missing_ok=True)
        sync_folder(path.parent)
    except sqlite3.Error as error:
        raise LedgerError(f"Cannot use the books at {path}: {error}.") from None
    except OSError as error:
        raise LedgerUnavailable(f"Cannot restore the books at {path}: {error.strerror}.") from error
    finally:
        _clear(draft)
    with Database(_sqlite(path), create=False):  # begins the count
        return restored


def _lines(database: Database, *, with_secrets: bool) -> Iterator[bytes]:
    with database.writing() as connection:
        if not database.sqlite:
            connection.execute(sa.text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"))
        there = set(sa.inspect(connection).get_table_names())
        yield _line({"kind": _KIND, "format": FORMAT, "made": now(), "with_secrets": with_secrets})
        for name, table in _TABLES.items():
            if name not in there or (name == _SECRETS and not with_secrets):
                continue
            yield _line({"table": name, "columns": [column.name for column in table.columns]})
            for row in connection.execute(sa.select(table).order_by(*table.primary_key.columns)):
                yield _line([_plain(value) for value in row])


def _read(source: Path) -> dict[str, list[dict[str, Any]]]:
    """Rows by table; LedgerError unless the digest is right."""
    damaged = LedgerError(f"Expected a whole backup of quoron's books in {source}, got something else. Take another.")
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
        found: dict[str, list[dict[str, Any]]] = {}
        rows, columns = found.setdefault("", []), []
        for line in lines:
            told = json.loads(line)
            if isinstance(told, dict):
                rows, columns = found.setdefault(_TABLES[told["table"]].name, []), told["columns"]
            else:
                rows.append(dict(zip(columns, map(_value, told), strict=True)))
    except (ValueError, KeyError, TypeError, StopIteration):
        raise damaged from None
    return found


def _fill(database: Database, found: dict[str, list[dict[str, Any]]], *, continue_open: bool) -> Restored:
    with database.writing() as connection:
        if set(sa.inspect(connection).get_table_names()) & set(_TABLES):
            raise LedgerError(f"Expected an empty database at {database.name}, found books. Restore beside them.")
        for schema in _SCHEMAS:
            schema.create_all(connection)
        for name, rows in found.items():
            if rows:
                connection.execute(_TABLES[name].insert(), rows)
        _hold(database, connection)
    return _continued(database, continue_open=continue_open)


def _hold(database: Database, connection: sa.Connection) -> None:
    """A new incarnation, in the transaction that puts the books back: nothing that was open goes on by itself."""
    connection.execute(registry.RUNS.update().where(registry.RUNS.c.state.in_(registry.OPEN)).values(held=1))
    database.renew(connection)


def _continued(database: Database, *, continue_open: bool) -> Restored:
    """What is held, and what goes on: each run is charged as one more copy before it may."""
    runs, population = registry.RUNS, lifetime_ledger.PopulationLedger(database)
    keys = {row.run for row in database.all(sa.select(ledger.SECRETS.c.run))}
    known = database.all(sa.select(runs).order_by(runs.c.number))
    open_ = [row for row in known if row.state in registry.OPEN]
    going = [row.run for row in open_ if continue_open and row.state == "running"]
    for run in going:
        if run not in keys:
            raise LedgerError(
                f"Expected the secrets of run {run}, without which it cannot go on: they were left out of the backup. "
                "Restore without continuing, then cancel it."
            )
    alone = sorted(keys - {row.run for row in known})
    if alone and not continue_open:  # the ledger of a run folder, which knows of no other run
        raise LedgerError(
            "Expected books of runs that have ended, got those of one that is open: going on from a copy costs one "
            "more copy of it (docs/privacy/restored-books.md). Say --continue-restored, or begin a new run."
        )
    for run in going:
        _charge_copy(population, run, database.incarnation)
    if going:
        with database.writing() as connection:
            connection.execute(runs.update().where(runs.c.run.in_(going)).values(held=0))
    held = tuple(row.run for row in open_ if row.run not in going)
    return Restored(database.incarnation, held, (*going, *alone))


def _charge_copy(population: "lifetime_ledger.PopulationLedger", run: str, incarnation: str) -> None:
    charge = population.charged(run)
    if charge is not None:
        told = {**asdict(charge), "run": f"{run} (copy {incarnation})"}
        population.charge(**told, statement=f"one more copy of {run}, which went on from restored books")
        population.end(told["run"], "restored")


def _line(told: Any) -> bytes:
    return json.dumps(told, separators=(",", ":"), ensure_ascii=True).encode() + b"\n"


def _plain(value: Any) -> Any:
    return {"b": base64.b64encode(bytes(value)).decode()} if isinstance(value, bytes | memoryview) else value


def _value(told: Any) -> Any:
    return base64.b64decode(told["b"], validate=True) if isinstance(told, dict) else told


def _sqlite(path: Path) -> str:
    return sa.URL.create("sqlite", database=str(path)).render_as_string()


def _clear(draft: Path) -> None:
    for leftover in draft.parent.glob(draft.name + "*"):
        with suppress(OSError):
            leftover.unlink()
