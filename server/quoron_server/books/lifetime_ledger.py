"""What was promised to every group of users over all runs: an append-only chain of rows, and a limit that it keeps.

    ledger = PopulationLedger(database)
    ledger.limit("everyone", epsilon=4.0, delta=1e-5)
    ledger.charge("summer", "everyone", epsilon=1.0, delta=1e-6)    # before the run's first question
    ledger.end("summer", "complete")                                # cancelled and failed runs stay charged in full

A row is (sequence, time, kind, payload, hash) with hash = SHA-256(previous hash, the rest as canonical JSON): changing,
deleting or swapping rows breaks the chain. That the *last* rows are gone can only be seen by someone who knows the hash
of one of them: keep exports elsewhere, and give the head of the last one to `verify`.

Source: docs/privacy/lifetime.md (theorems 1 to 4). How rows are written: docs/durability.md.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa

from quoron_privacy.errors import BudgetExceeded, ConfigError, LedgerError, OtherVersion
from quoron_privacy.lifetime import Charge, Limit, Spent, compose
from quoron_server.books.database import Database, now

START = "0" * 64
KINDS = ("limit", "charge", "release", "end")
_schema = sa.MetaData()
_chain = sa.Table(
    "population",
    _schema,
    sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("time", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("payload", sa.Text, nullable=False),
    sa.Column("hash", sa.Text, nullable=False),
)
Row = dict[str, Any]


class PopulationLedger:
    """The chain of one database. Every method is one transaction; a repeated request changes nothing.

    | request                                              | what happens                                |
    | ---------------------------------------------------- | ------------------------------------------- |
    | the same charge again, as after a crash              | nothing: it is on the chain                 |
    | another charge for a run that has one                | OtherVersion                                |
    | a charge that would exceed the group's limit         | BudgetExceeded, nothing written             |
    | a clock that jumps                                   | an odd time; order and hashes do not use it |
    """

    def __init__(self, database: Database, clock: Callable[[], str] = now) -> None:
        """Makes its table if it is missing."""
        self._database, self._clock = database, clock
        database.ensure(_schema)

    def charge(
        self,
        run: str,
        group: str,
        *,
        epsilon: float,
        delta: float,
        mu: float | None = None,
        variation: float = 0.0,
        adjacency: str = "replace-one",
        statement: str = "",
    ) -> Charge:
        """Charge `run` in full to `group`; call it before the run's first question. The charge that now stands.

        `mu` says that everything the run releases is μ-GDP, under the same adjacency, with noise that is exact;
        `variation` how far the noise is from that, in total variation. BudgetExceeded if the group's limit leaves no
        room; ConfigError if a number is none.
        """
        with self._database.writing() as connection:
            self._database.serialise(connection)
            rows = _read(connection)
            wanted = _admitted(
                rows, run, group, epsilon=epsilon, delta=delta, mu=mu, variation=variation, adjacency=adjacency
            )
            if wanted not in charges_of(rows).values():
                self._append(connection, rows, "charge", asdict(wanted) | {"statement": statement})
        return wanted

    def check(
        self,
        run: str,
        group: str,
        *,
        epsilon: float,
        delta: float,
        mu: float | None = None,
        variation: float = 0.0,
        adjacency: str = "replace-one",
    ) -> Charge:
        """What `charge` would do now, without doing it; raises what it would raise."""
        promise = {"epsilon": epsilon, "delta": delta, "mu": mu, "variation": variation, "adjacency": adjacency}
        return _admitted(self.rows(), run, group, **promise)

    def release(self, run: str, what: dict[str, Any]) -> None:
        """Note that `run` has made something public; `what` is JSON-compatible and holds no secret."""
        self._note("release", {"run": run, **what})

    def end(self, run: str, state: str) -> None:
        """Note that `run` asks no more questions. Its charge stays."""
        self._note("end", {"run": run, "state": state})

    def limit(self, group: str, *, epsilon: float, delta: float, gaussian_share: float = 0.0) -> Limit:
        """From now on, refuse runs that would bring `group` beyond (ε, δ); see `Limit` for the share."""
        limit = Limit(group, epsilon, delta, gaussian_share)
        with self._database.writing() as connection:
            self._database.serialise(connection)
            rows = _read(connection)
            if limits_of(rows).get(group) != limit:
                self._append(connection, rows, "limit", asdict(limit))
        return limit

    def limit_of(self, group: str) -> Limit | None:
        """The limit that holds now; None if nobody has set one."""
        return limits_of(self.rows()).get(group)

    def groups(self) -> list[str]:
        """Every group with a charge or a limit, by name."""
        rows = self.rows()
        return sorted({charge.group for charge in charges_of(rows).values()} | set(limits_of(rows)))

    def charges(self, group: str) -> list[Charge]:
        """The charges of `group`, in order."""
        return [charge for charge in charges_of(self.rows()).values() if charge.group == group]

    def spent(self, group: str, delta: float | None = None) -> Spent:
        """Everything charged to `group`, composed; `delta` as in `accounting.lifetime.compose`."""
        return compose(self.charges(group), delta)

    def rows(self) -> list[Row]:
        """The chain in order, verified; LedgerError names the first row that is wrong."""
        with self._database.writing() as connection:
            return _read(connection)

    def verify(self, expected_head: str | None = None) -> str:
        """The hash of the last row, after checking every row; LedgerError names the first row that is wrong.

        `expected_head` is the head of an earlier export: the chain must still run through it.
        """
        return verify_rows(self.rows(), expected_head)

    def export(self) -> str:
        """The verified chain with its head and each group's totals, as JSON; `verify_export` reads it anywhere."""
        return export_of(self.rows())

    def _note(self, kind: str, payload: Row) -> None:
        with self._database.writing() as connection:
            self._database.serialise(connection)
            rows = _read(connection)
            if not any(row["kind"] == kind and row["payload"] == payload for row in rows):
                self._append(connection, rows, kind, payload)

    def _append(self, connection: sa.Connection, rows: Sequence[Row], kind: str, payload: Row) -> None:
        row = {"sequence": len(rows), "time": self._clock(), "kind": kind, "payload": payload}
        hashed = row_hash(rows[-1]["hash"] if rows else START, row)
        connection.execute(_chain.insert(), row | {"payload": _canonical(payload), "hash": hashed})


def row_hash(previous: str, row: Row) -> str:
    """SHA-256 of the previous row's hash and this row without its own, as hexadecimal digits."""
    told = {name: row[name] for name in ("sequence", "time", "kind", "payload")}
    return hashlib.sha256((previous + _canonical(told)).encode()).hexdigest()


def verify_rows(rows: Sequence[Row], expected_head: str | None = None) -> str:
    """The head of a chain of rows; LedgerError names the first row that does not belong where it is."""
    head, heads = START, {START}
    for sequence, row in enumerate(rows):
        if row["sequence"] != sequence:
            raise LedgerError(
                f"Population ledger: expected row {sequence}, found row {row['sequence']}. Rows are gone."
            )
        if row["kind"] not in KINDS or row_hash(head, row) != row["hash"]:
            raise LedgerError(
                f"Population ledger: row {sequence} ({row['kind']}) is not what was written, or what came before it is "
                "not. Compare with your last export."
            )
        head = row["hash"]
        heads.add(head)
    if expected_head is not None and expected_head not in heads:
        raise LedgerError(
            f"Population ledger: no row has the hash {expected_head}; rows at the end are gone or were written anew. "
            "Compare with the export that it came from."
        )
    return head


def verify_export(text: str, expected_head: str | None = None) -> str:
    """The head of an export, after checking every row; LedgerError if it is none or does not hold together."""
    try:
        told = json.loads(text)
        rows, stated = list(told["rows"]), told["head"]
        head = verify_rows(rows, expected_head)
    except (ValueError, KeyError, TypeError) as error:
        raise LedgerError("Expected an export of a population ledger, got something else.") from error
    if head != stated:
        raise LedgerError(f"Expected the export to end at its head {stated}, got {head}. Rows at the end are gone.")
    return head


def charges_of(rows: Sequence[Row]) -> dict[str, Charge]:
    """Every charge of a verified chain, by run and in order."""
    charges = {}
    for row in rows:
        if row["kind"] == "charge":
            told = {name: value for name, value in row["payload"].items() if name != "statement"}
            charges[told["run"]] = Charge(**told)
    return charges


def limits_of(rows: Sequence[Row]) -> dict[str, Limit]:
    """The limit that holds now, by group."""
    limits = [Limit(**row["payload"]) for row in rows if row["kind"] == "limit"]
    return {limit.group: limit for limit in limits}


def export_of(rows: Sequence[Row]) -> str:
    """A chain of rows with its head and each group's totals, as JSON; `verify_export` reads it anywhere."""
    totals = {}
    for group in sorted({charge.group for charge in charges_of(rows).values()}):
        held = [charge for charge in charges_of(rows).values() if charge.group == group]
        totals[group] = asdict(compose(held))
    told = {"format": 1, "head": verify_rows(rows), "groups": totals, "rows": rows}
    return json.dumps(told, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


def _read(connection: sa.Connection) -> list[Row]:
    """The whole chain, verified: nothing is ever decided by, or written behind, a row that was changed."""
    rows = []
    for each in connection.execute(sa.select(_chain).order_by(_chain.c.sequence)):
        row: Row = dict(each._mapping)
        try:
            row["payload"] = json.loads(row["payload"])
            same = _canonical(row["payload"]) == each.payload
        except (ValueError, TypeError):
            same = False
        if not same:
            raise LedgerError(
                f"Population ledger: row {row['sequence']} holds no canonical JSON. Compare with an export."
            )
        rows.append(row)
    verify_rows(rows)
    return rows


def _admitted(rows: Sequence[Row], run: str, group: str, **promise: Any) -> Charge:
    """The charge of a run: the one that stands if it is the same promise, otherwise one that the limit has room for."""
    if promise.get("mu") is not None and not promise.get("variation"):
        raise ConfigError(
            "Expected variation > 0 with mu, got none: no sampler of noise is exact (noise.total_variation)."
        )
    charges = charges_of(rows)
    wanted = Charge(run, group, **promise)
    if run in charges:
        if charges[run].promise != wanted.promise:
            raise OtherVersion(
                f"Expected run {run!r} as it was charged, got another promise or group. Choose a new name."
            )
        return charges[run]
    limit = limits_of(rows).get(group)
    held = [charge for charge in charges.values() if charge.group == group]
    if limit is not None and not limit.has_room(held, wanted):
        raise BudgetExceeded(
            f"Run {run!r} with {wanted.words()} would exceed the limit of group {group!r}, {limit.words()}; "
            f"charged so far: {compose(held).words()}. Ask for less, or let the operator raise the limit."
        )
    return wanted


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
