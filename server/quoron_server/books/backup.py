"""Copies of the books while they are used, with a digest: what they hold at one instant, and nothing by halves.

    sha256 = back_up(database, Path("monday.backup"))
    copy = read(Path("monday.backup"))

A backup is every row of one transaction as lines of JSON, from SQLite or PostgreSQL for either, and holds no secret of
an unfinished run unless that is asked for. Every transaction that was acknowledged before it began is in it. Putting it
back: `restoring`.
"""

import base64
import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from quoron_client.durable import PRIVATE, sync_folder
from quoron_privacy.errors import LedgerError, LedgerUnavailable
from quoron_server.books import ledger, lifetime_ledger, registry
from quoron_server.books.database import Database, as_metadata
from quoron_server.books.store import FORMAT, now

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
