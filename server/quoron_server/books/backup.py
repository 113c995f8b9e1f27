"""Copies of the books while they are used, with a digest: what they hold at one instant, and nothing by halves.

    sha256 = back_up(database, Path("monday.backup"))
    copy = read(Path("monday.backup"))

A backup is every row of one transaction as lines of JSON, from SQLite or PostgreSQL for either, and holds no secret of
an unfinished run unless that is asked for. Every transaction that was acknowledged before it began is in it. Putting it
back: `restoring`.

Books put back from a copy are others than those that were copied: a new incarnation, in which what was open is held.

    restored = restore(Path("monday.backup"), "postgresql://quoron@db/quoron")
    continue_held(database, "summer")

What the books wrote after the copy may have been seen. So every run that was open is held until it is cancelled, or
until somebody says that it goes on: that makes one more copy of it for each time that the books were put back since it
went on last, and each is charged as the run was (docs/privacy/restored-books.md#rb2).
"""

import base64
import glob
import hashlib
import json
import math
import os
import re
import secrets
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from quoron_client.durable import PRIVATE, sync_folder
from quoron_privacy.accounts.lifetime import Charge, Spent, compose
from quoron_privacy.errors import ConfigError, LedgerError, LedgerUnavailable
from quoron_server.books import ledger, lifetime_ledger, registry
from quoron_server.books.database import Database, as_metadata, parse
from quoron_server.books.store import FORMAT, now, verify_rows

_KIND = "quoron backup 1"
_ONE_INSTANT = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"  # in PostgreSQL
_SECRETS = ledger.SECRETS.name
SCHEMAS = (registry.SCHEMA, as_metadata(lifetime_ledger.SCHEMA), as_metadata(ledger.SCHEMA))
TABLES: dict[str, sa.Table] = {name: table for schema in SCHEMAS for name, table in schema.tables.items()}
Rows = dict[str, list[dict[str, Any]]]  # by table


@dataclass(frozen=True, slots=True)
class Copy:
    """What a backup holds."""

    incarnations: tuple[str, ...]  # of the books that it was taken from
    rows: Rows


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


def _lines(database: Database, *, with_secrets: bool) -> Iterator[bytes]:
    with database.together() as connection:
        if database.path is None:
            connection.execute(sa.text(_ONE_INSTANT))
        there = set(sa.inspect(connection).get_table_names())
        header = {"kind": _KIND, "format": FORMAT, "made": now(), "with_secrets": with_secrets}
        yield _line(header | {"incarnations": database.incarnations})
        for name, table in TABLES.items():
            if name not in there or (name == _SECRETS and not with_secrets):
                continue
            stored = {
                each["name"] for each in sa.inspect(connection).get_columns(name)
            }  # an earlier version's are fewer
            columns = [column for column in table.columns if column.name in stored]
            yield _line({"table": name, "columns": [column.name for column in columns]})
            for row in connection.execute(sa.select(*columns).order_by(*table.primary_key.columns)):
                yield _line([_plain(value) for value in row])


def read(source: Path) -> Copy:
    """A backup; LedgerError unless its digest is right."""
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


_RUNS = registry.RUNS
_COPY = " (copy "  # no run's name holds a space


@dataclass(frozen=True, slots=True)
class Restored:
    """What was put back."""

    incarnation: str  # random word of these books
    held: tuple[str, ...]  # open runs that do not go on
    continued: tuple[str, ...]  # open runs that go on, each charged as one more copy


def restore(
    source: Path, url: str, *, continue_open: bool = False, head: str | None = None, lost: Sequence[str] = ()
) -> Restored:
    """Make books at `url`, where there are none, from a backup: all of it, or nothing.

    `continue_open` lets running runs go on, as one more copy each. `head` is the hash of a row of the lifetime ledger
    that somebody kept: LedgerError if the backup is older. `lost` are incarnations that were restored from a copy of
    the same books, were used and are gone: what went on in them was a copy too. LedgerError for a backup that is not
    whole, and where there are books already; BudgetExceeded if a copy has no room; ConfigError for words that are none.
    """
    copy, parsed = read(source), parse(url)
    chain = sorted(copy.rows.get(lifetime_ledger.CHAIN, []), key=lambda row: int(row["sequence"]))
    verify_rows([row | {"payload": json.loads(row["payload"])} for row in chain], head)
    for word in lost:
        if re.fullmatch("[0-9a-f]{16}", word) is None:
            raise ConfigError(f"Expected the 16 digits of an incarnation, got {word!r}. A client's refusal has them.")
    if parsed.get_backend_name() != "sqlite":
        with Database(url) as database:
            return _fill(database, copy, lost, continue_open=continue_open)
    path = Path(parsed.database or "")
    if any(each.exists() for each in (path, path.with_name(path.name + "-acknowledged"))):
        raise LedgerError(f"Expected no books at {path}, found some, or their count. Restore beside them.")
    draft = _draft(path)
    try:
        with Database(_sqlite(draft)) as database:
            restored = _fill(database, copy, lost, continue_open=continue_open)
            database.as_new()
        os.link(draft, path)
        sync_folder(path.parent)
    except OSError as error:
        raise LedgerUnavailable(f"Cannot restore books to {path}: {error.strerror}.") from error
    finally:
        _clear(draft)
    with Database(url, create=False):  # begins the count
        return restored


def accept(
    path: Path,
    *,
    continue_open: bool = False,
    head: str | None = None,
    lost: Sequence[str] = (),
    charge: Callable[[str], object] | None = None,
) -> Restored:
    """Take a SQLite file for all that there is, though it is older than its count or has none; as `restore`.

    The ledger of a run folder is charged elsewhere: `charge` does that, is given the new incarnation, and comes first.
    """
    if not path.is_file():
        raise LedgerError(f"Expected books at {path}, found none.")
    draft = _draft(path)
    try:
        with closing(sqlite3.connect(path)) as raw:  # what is in its journal belongs to it
            raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE))
        shutil.copyfile(path, draft)
        with Database(_sqlite(draft), create=False, as_it_is=True) as database:
            for schema in SCHEMAS:
                database.ensure(schema)
            lifetime_ledger.PopulationLedger(database).verify(head)
            with database.together() as connection:
                restored = _put_back(database, connection, database.incarnations, lost, continue_open=continue_open)
            alone = _alone(database)
            database.as_new()
        if alone and charge is not None:
            charge(restored.incarnation)
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


def continue_held(database: Database, run: str, promise: Mapping[str, Any] | None = None, *, by: str = "") -> int:
    """Let a held run go on: the number of copies that were charged, each as the run was, and all or none.

    A run that had not begun has no charge: `promise` is what it will be charged, as `PopulationLedger.charge` takes it,
    because it may have begun since; None if it promises nothing. ConfigError for a run that is not held, LedgerError
    for one whose secrets are gone, BudgetExceeded if the copies have no room; it is then held as before.
    """
    with database.together() as connection:
        row = connection.execute(sa.select(_RUNS).where(_RUNS.c.run == run)).first()
        if row is None or row.state not in registry.OPEN or not row.held:
            found = "none of that name" if row is None else f"{row.state}{'' if row.held else ', not held'}"
            raise ConfigError(
                f"Expected a run that is held since its books were restored, got {run!r}: {found}. `quoron runs` lists "
                "them."
            )
        return _let_go(database, connection, row, promise, by)


def _fill(database: Database, copy: Copy, lost: Sequence[str], *, continue_open: bool) -> Restored:
    with database.together() as connection:
        if set(sa.inspect(connection).get_table_names()) & set(TABLES):
            raise LedgerError(f"Expected an empty database at {database.name}, found books. Restore beside them.")
        for schema in SCHEMAS:
            schema.create_all(connection)
        for name, rows in copy.rows.items():
            if rows:
                connection.execute(TABLES[name].insert(), rows)
        return _put_back(database, connection, copy.incarnations, lost, continue_open=continue_open)


def _put_back(
    database: Database, connection: sa.Connection, before: Sequence[str], lost: Sequence[str], *, continue_open: bool
) -> Restored:
    """A new incarnation, in the transaction that puts the books back: nothing that was open goes on by itself."""
    if not continue_open and _alone(database):
        raise LedgerError(
            "Expected books of runs that have ended, got those of one that is open: going on from a copy costs one "
            "more copy of it (docs/privacy/restored-books.md). Say --continue, or begin a new run."
        )
    gone = [word for word in dict.fromkeys(lost) if word not in before]
    database.renew([*before, *gone])
    here = _RUNS.c.state.in_(registry.OPEN)
    connection.execute(_RUNS.update().where(here).values(held=_RUNS.c.held + 1 + len(gone)))
    held, going = [], []
    for row in connection.execute(sa.select(_RUNS).where(here).order_by(_RUNS.c.number)).all():
        if continue_open and row.state == "running":
            _let_go(database, connection, row, None, "")
            going.append(row.run)
        else:
            held.append(row.run)
    return Restored(database.incarnation, tuple(held), (*going, *_alone(database)))


def _alone(database: Database) -> list[str]:
    """Open runs of which only the ledger is here: that of a run folder, which knows of no other run."""
    known = {row.run for row in database.all(sa.select(_RUNS.c.run))}
    return sorted(ledger.Ledger.unreleased(database) - known)


def _let_go(database: Database, connection: sa.Connection, row: Any, promise: Mapping[str, Any] | None, by: str) -> int:
    if ledger.Ledger.begun(database, row.run) and row.run not in ledger.Ledger.unreleased(database):
        raise LedgerError(
            f"Expected the secrets of run {row.run}, without which it cannot go on: they were left out of the backup. "
            "Restore without continuing, then cancel it."
        )
    population = lifetime_ledger.PopulationLedger(database)
    charge = population.charged(row.run)
    charged = promise if charge is None else asdict(charge)
    connection.execute(_RUNS.update().where(_RUNS.c.run == row.run).values(held=0))
    if charged is None:
        return 0
    for copy in copies(row.run, database.incarnation, row.held):
        charge_copy(population, row.run, copy, charged, by)
    if charge is None:
        population.check(**{**charged, "run": row.run})  # it will have to begin besides
    return int(row.held)


def copies(run: str, incarnation: str, number: int = 1) -> list[str]:
    """Names of the charges of so many more copies of a run that goes on in an incarnation."""
    return [f"{run}{_COPY}{incarnation}{'' if one == 1 else f', {one}'})" for one in range(1, number + 1)]


def charge_helped(database: Database, run: str, number: int) -> None:
    """A run of two servers, whose helper's books were put back, is so many copies by now: all of them, or none, and
    again is the same. BudgetExceeded if there is no room."""
    population = lifetime_ledger.PopulationLedger(database)
    with database.together():
        if (charge := population.charged(run)) is not None:
            for one in range(2, number + 1):
                copy = f"{run}{_COPY}of the second server's, {one})"
                if population.charged(copy) is None:
                    charge_copy(population, run, copy, asdict(charge), whose="the second server's restored books")


def copies_of(population: lifetime_ledger.PopulationLedger, run: str) -> list[Charge]:
    """The charges of a run, and of every other copy of it."""
    charge = population.charged(run)
    every = [] if charge is None else population.charges(charge.group)
    return [each for each in every if each.run == run or each.run.startswith(run + _COPY)]


def together(charges: Sequence[Charge]) -> Spent:
    """What copies of a run promise together, for replacing one user: at one's δ where that can be said."""
    alone = compose(charges, charges[0].delta)
    return alone if alone.epsilon < math.inf else compose(charges)


def charge_copy(
    population: lifetime_ledger.PopulationLedger,
    run: str,
    copy: str,
    promise: Mapping[str, Any],
    by: str = "",
    *,
    whose: str = "restored books",
) -> None:
    """One more copy of a run, for what the run is charged. BudgetExceeded if there is no room."""
    statement = f"one more copy of {run}, which went on from {whose}"
    population.charge(**{**promise, "run": copy}, statement=statement, by=by)
    population.end(copy, "restored")


def _sqlite(path: Path) -> str:
    return sa.URL.create("sqlite", database=str(path)).render_as_string()


def _draft(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")


def _clear(draft: Path) -> None:
    for leftover in draft.parent.glob(glob.escape(draft.name) + "*"):
        with suppress(OSError):
            leftover.unlink()
