"""What was promised to every group of users over all runs: an append-only chain of rows, and a limit that it keeps.

    ledger = PopulationLedger(Store(Path("ledger.sqlite")))   # or a coordinator's Database
    ledger.limit("everyone", epsilon=4.0, delta=1e-5)
    ledger.charge("summer", "everyone", epsilon=1.0, delta=1e-6)    # before the run's first question
    ledger.end("summer", "complete")                                # cancelled and failed runs stay charged in full

A row is (sequence, time, kind, payload, hash) with hash = SHA-256(previous hash, the rest as canonical JSON): changing,
deleting or swapping rows breaks the chain. That the *last* rows are gone can only be seen by someone who knows the hash
of one of them: beside a SQLite file that of the last row is kept, with the count of its transactions. Against somebody
who writes there too, and for PostgreSQL, keep exports elsewhere, and give the head of the last one to `verify`.

Source: docs/privacy/lifetime.md#lt1 to lifetime#lt4. How rows are written: docs/durability.md.
"""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Unpack

from quoron_privacy.accounts.lifetime import Account, Charge, Limit, Promise, Spent, compose, gaussian
from quoron_privacy.errors import BudgetExceeded, ConfigError, LedgerError, OtherVersion
from quoron_server.storage.store import (
    OUTSIDE,
    START,
    Execute,
    Row,
    Store,
    Table,
    canonical,
    now,
    row_hash,
    signed,
    unsigned,
    verify_rows,
    verify_stored,
)

CHAIN = "population"
_READ = ("charge", "limit", "submit", "give-back")  # kinds whose payload decides or tells something later
_COLUMNS = {"sequence": "INTEGER", "time": "TEXT", "kind": "TEXT", "payload": "TEXT", "hash": "TEXT"}
_chain = Table(CHAIN, {name: f"{kind} NOT NULL" for name, kind in _COLUMNS.items()}, ("sequence",))
SCHEMA = (_chain,)  # for `backup`


@dataclass(slots=True)
class Known:
    """What one process has read of a chain and found whole: decisions are made by it and by the rows behind it."""

    count: int = 0  # rows
    head: str = START
    charges: dict[str, Charge] = field(default_factory=dict)  # by run, in order
    held: dict[str, list[Charge]] = field(default_factory=dict)  # by group, in order; less what was given back
    accounts: dict[str, Account] = field(default_factory=dict)  # of groups with a limit
    noted: set[str] = field(default_factory=set)  # releases and ends
    elsewhere: set[str] = field(default_factory=set)  # what other tools carry out
    plans: dict[str, str] = field(default_factory=dict)  # by run: the digest of the plan that was submitted

    def take(self, row: Row, text: str | None = None) -> None:
        """The next row, which is whole; its payload as text where that is at hand, so that it need not be made."""
        payload = json.loads(text) if text is not None and row["kind"] in _READ else row["payload"]
        if row["kind"] == "charge":
            charge = _charge(payload)
            self.charges[charge.run] = charge
            if payload.get("elsewhere"):
                self.elsewhere.add(charge.run)
            self.held.setdefault(charge.group, []).append(charge)
            if charge.group in self.accounts:
                self.accounts[charge.group] = self.accounts[charge.group].after(charge)
        elif row["kind"] == "limit":
            limit = Limit(**unsigned(payload))
            self.accounts[limit.group] = limit.account(self.held.get(limit.group, ()))
        elif row["kind"] == "give-back":
            held = self.held[group := self.charges[payload["run"]].group]
            held[-1] = replace(held[-1], mu=payload["mu"])
            self.accounts[group] = self.accounts[group].limit.account(held)
        else:
            if row["kind"] == "submit":
                self.plans[payload["run"]] = payload["plan"]
            self.noted.add(f"{row['kind']} {canonical(payload) if text is None else text}")
        self.count, self.head = row["sequence"] + 1, row["hash"]


class PopulationLedger:
    """The chain of one database. Every method is one transaction; a repeated request changes nothing.

    | request                                              | what happens                                |
    | ---------------------------------------------------- | ------------------------------------------- |
    | the same charge again, as after a crash              | nothing: it is on the chain                 |
    | another charge for a run that has one                | OtherVersion                                |
    | a run of ours with the name of another tool's        | OtherVersion                                |
    | a charge that would exceed the group's limit         | BudgetExceeded, nothing written             |
    | a limit below what is counted already                | ConfigError, unless it is said to be so     |
    | a clock that jumps                                   | an odd time; order and hashes do not use it |

    Every row is verified when this process first reads it, before anything is decided by it or written behind it.
    After that only rows that are new are read, and the last of those that are known, which has to be as it was. A row
    changed underneath a running process decides nothing there, and is found by `rows`, `verify` and `export`, which
    read all of it, and by the next process.
    """

    def __init__(self, database: Store, clock: Callable[[], str] = now, *, known: Known | None = None) -> None:
        """Makes its table if it is missing. `known` is what this process has read of the same chain before."""
        self._database, self._clock = database, clock
        self._known, self._lock = Known() if known is None else known, threading.RLock()
        database.ensure(SCHEMA)

    def charge(
        self,
        run: str,
        group: str,
        *,
        lost: float = 0.0,
        statement: str = "",
        elsewhere: bool = False,
        spent: bool = False,
        drawn: Row | None = None,
        by: str = "",
        **promise: Unpack[Promise],
    ) -> Charge:
        """Charge `run` in full to `group`, before its first question, for a guarantee as `Charge`. Return the charge.

        With `mu`, the run's releases are μ-GDP under the same adjacency with exact noise, and `variation` is how far
        the noise is from that, in total variation. In place of `mu`, `near` are the (μ, t) with which it is μ-GDP
        but for t, for replacing one user; `mu` and `lost` are one such pair. With `elsewhere`, another tool carries out
        the run; with `spent` it has done so already, so the charge is entered even beyond the limit. For an auditor,
        `drawn` says by which public randomness its members were drawn, and from which users.
        BudgetExceeded if the group's limit leaves no room; ConfigError if a number is none.
        """
        with self._adding() as (known, append):
            if lost:
                said = gaussian(promise.get("mu"), lost)
                promise["mu"], promise["near"] = said["mu"], said["near"]
            wanted = _admitted(known, run, group, elsewhere=elsewhere, spent=spent, **promise)
            if run not in known.charges:
                marked = ({"elsewhere": True} if elsewhere else {}) | ({"drawn": drawn} if drawn else {})
                append("charge", asdict(wanted) | {"statement": statement} | marked | signed(by))
        return wanted

    def check(self, run: str, group: str, **promise: Unpack[Promise]) -> Charge:
        """Return what `charge` would do now, without doing it; raises what it would raise."""
        return _admitted(self._now(), run, group, **promise)

    def submit(self, run: str, group: str, *, plan: str, by: str) -> None:
        """Note who asks for `run`, with the digest of its plan; call it before the run is taken on."""
        self._note("submit", {"run": run, "group": group, "plan": plan} | signed(by))

    def cancel(self, run: str, *, by: str) -> None:
        """Note who cancels `run`; call it before the run is ended."""
        self._note("cancel", {"run": run, "plan": self._now().plans.get(run, "")} | signed(by))

    def give_back(self, run: str, mu: float) -> bool:
        """Count `run`, which stopped early, with the μ of the rounds that were carried out. Whether it is counted so.

        Only while it is its group's last charge, and in the Gaussian account of a limit (lifetime#lt2).
        """
        with self._adding() as (known, append):
            held = known.held.get(known.charges[run].group, [])
            last, account = held[-1], known.accounts.get(held[-1].group)
            if last.run != run or last.mu is None or account is None:
                return False
            before = account.limit.account(held[:-1])
            if not before.square < before.after(last).square:
                return False
            if mu < last.mu:
                append("give-back", {"run": run, "mu": mu} | signed())
        return True

    def release(self, run: str, what: dict[str, Any]) -> None:
        """Note that `run` has made something public; `what` is JSON-compatible and holds no secret."""
        self._note("release", {"run": run, **what})

    @contextmanager
    def seat(self, what: dict[str, Any]) -> Iterator[None]:
        """Note that a user has another key, or is forgotten, in one transaction with what the block does."""
        with self._lock:  # before the database's, as everywhere
            try:
                with self._database.writing():
                    yield
                    self._note("seat", what)
            except BaseException:
                self._known = Known()  # a row that it believes it has written is not there
                raise

    def end(self, run: str, state: str) -> None:
        """Note that `run` asks no more questions. Its charge stays."""
        self._note("end", {"run": run, "state": state})

    def limit(
        self,
        group: str,
        *,
        epsilon: float,
        delta: float,
        gaussian_share: float = 0.0,
        exceeded: bool = False,
        by: str = "",
    ) -> Limit:
        """From now on, refuse runs that would bring `group` beyond (ε, δ); see `Limit` for the share.

        ConfigError for a limit below what it counts of the charges so far, unless `exceeded` says that this is meant:
        then nothing fits any more.
        """
        limit = Limit(group, epsilon, delta, gaussian_share)
        with self._adding() as (known, append):
            before = known.accounts.get(group)
            if before is None or before.limit != limit:
                counted = limit.account(known.held.get(group, ()))
                if not counted.holds and not exceeded:
                    raise ConfigError(
                        f"Expected a limit of population {group!r} above what it would count already, got "
                        f"{limit.words()}, of which it would count {counted.words()}: no run would fit any "
                        "more. Set a higher one, or say that this is meant (--exceeded)."
                    )
                append("limit", asdict(limit) | signed(by))
        return limit

    def account(self, group: str) -> Account | None:
        """What the limit of `group` counts and leaves; None if nobody has set one. It is what `charge` decides by."""
        return self._now().accounts.get(group)

    def charged(self, run: str) -> Charge | None:
        """Return the charge of `run`; None if it has none."""
        return self._now().charges.get(run)

    def standing(self, rows: int) -> tuple[int, str, str]:
        """How many rows there are, the hash of the last, and that of the last of the first `rows`; "" if fewer."""
        with self._lock, self._database.transaction() as execute:
            known = self._latest(execute)
            then = execute("SELECT hash FROM population WHERE sequence = ?", [rows - 1])
        return known.count, known.head, START if rows == 0 else then[0]["hash"] if then else ""

    def groups(self) -> list[str]:
        """Return every group with a charge or a limit, by name."""
        return sorted({*(known := self._now()).held, *known.accounts})

    def charges(self, group: str) -> list[Charge]:
        """Return the charges of `group`, in order."""
        return list(self._now().held.get(group, ()))

    def spent(self, group: str) -> Spent:
        """Everything charged to `group`, composed as by `compose`."""
        return compose(self.charges(group))

    def rows(self) -> list[Row]:
        """Return the chain in order, all of it verified; LedgerError names the first row that is wrong."""
        with self._database.transaction() as execute:
            return self._read(execute)

    def verify(self, expected_head: str | None = None) -> str:
        """Return the hash of the last row, after checking every row; LedgerError names the first row that is wrong.

        `expected_head` is the head of an earlier export: the chain must still run through it.
        """
        return verify_rows(self.rows(), expected_head)

    def export(self) -> str:
        """The verified chain with its head and each group's totals, as JSON; `verify_export` reads it anywhere."""
        return export_of(self.rows())

    def _now(self) -> Known:
        with self._lock, self._database.transaction() as execute:
            return self._latest(execute)

    def _latest(self, execute: Execute) -> Known:
        """Return what is known, with the rows that are new; within a transaction, so that they are committed."""
        known = self._known
        rows = _stored(execute, since=max(0, known.count - 1))
        if known.count:
            last = rows.pop(0) if rows else {"sequence": None, "hash": None}
            if (last["sequence"], last["hash"]) != (known.count - 1, known.head):
                self._read(execute)  # which names the row
                raise LedgerError(
                    f"Population ledger: row {known.count - 1} is gone, or was written again with those before it, "
                    "since this process read it. Compare with your last export.",
                )
        verify_stored(rows, known.head, known.count)
        if not known.count:
            self._require_head(rows)
        for row in rows:
            known.take(row, row["payload"])
        return known

    def _read(self, execute: Execute) -> list[Row]:
        """Return the whole chain, verified."""
        rows = _stored(execute, since=0)
        verify_stored(rows, START, 0)
        self._require_head(rows)
        return [row | {"payload": json.loads(row["payload"])} for row in rows]

    def _require_head(self, rows: Sequence[Row]) -> None:
        """LedgerError unless all rows of a chain run through the head beside the count; begun where none is kept."""
        kept, path = self._database.head, self._database.path
        if path is not None and kept and all(row["hash"] != kept for row in rows):
            raise LedgerError(
                f"Population ledger: rows at its end are gone or were written again. {path.name}-acknowledged keeps "
                f"the hash of its last row, {kept}, and no row of {path} has it. Put back the newest copy of both "
                "files. If there is nothing else, `quoron admin restore` takes the file for what it is.",
                outside=OUTSIDE,
            )
        if rows and not kept:
            self._database.keep_head(rows[-1]["hash"])

    def _note(self, kind: str, payload: Row) -> None:
        with self._adding() as (known, append):
            if f"{kind} {canonical(payload)}" not in known.noted:
                append(kind, payload)

    @contextmanager
    def _adding(self) -> Iterator[tuple[Known, Callable[[str, Row], None]]]:
        """What is known, and how to write a row behind it; it is known once the transaction is there for good."""
        written: list[Row] = []
        with self._lock:
            with self._database.transaction() as execute:
                self._database.serialise(execute)
                known = self._latest(execute)

                def append(kind: str, payload: Row) -> None:
                    row = {"sequence": known.count, "time": self._clock(), "kind": kind, "payload": payload}
                    text = canonical(payload)
                    head = row_hash(known.head, row, text)
                    _chain.insert(execute, row | {"hash": head, "payload": text})
                    self._database.keep_head(head)
                    written.append(row | {"hash": head})

                yield known, append
            for row in written:
                known.take(row)


def known_of(rows: Sequence[Row]) -> Known:
    """Return what a verified chain says, for decisions."""
    known = Known()
    for row in rows:
        known.take(row)
    return known


def export_of(rows: Sequence[Row]) -> str:
    """Return a chain of rows with its head and each group's totals, as JSON; `verify_export` reads it anywhere."""
    held = known_of(rows).held
    totals = {group: asdict(compose(held[group])) for group in sorted(held)}
    document = {"format": 1, "head": verify_rows(rows), "groups": totals, "rows": rows}
    return json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


def _charge(payload: Row) -> Charge:
    given = {key: value for key, value in unsigned(payload).items() if key not in ("statement", "elsewhere", "drawn")}
    return Charge(**given | {"near": tuple((mu, lost) for mu, lost in payload.get("near", ()))})


def _stored(execute: Execute, *, since: int) -> list[Row]:
    """Return rows as they are stored, in order."""
    where, which = ("WHERE sequence >= ? ", [since]) if since else ("", [])
    return execute(f"SELECT {', '.join(_chain.columns)} FROM population {where}ORDER BY sequence", which)


def _admitted(
    known: Known, run: str, group: str, *, elsewhere: bool = False, spent: bool = False, **promise: Unpack[Promise]
) -> Charge:
    """The charge of a run: the one that stands if it is the same promise, otherwise one that the limit has room for."""
    if (promise.get("mu") is not None or promise.get("near")) and not promise.get("variation"):
        raise ConfigError(
            "Expected variation > 0 with mu, got none: no sampler of noise is exact (noise.total_variation)."
        )
    wanted = Charge(run, group, **promise)
    if run in known.charges:
        if known.charges[run].promise != wanted.promise or elsewhere != (run in known.elsewhere):
            raise OtherVersion(
                f"Expected run {run!r} as it was charged, got another guarantee or population, or a run of another "
                "tool. Choose a new name."
            )
        return known.charges[run]
    account = known.accounts.get(group)
    if account is not None and not spent and not account.after(wanted).holds:
        raise BudgetExceeded(
            f"Run {run!r} with {wanted.words()} would exceed the limit of population {group!r}, "
            f"{account.limit.words()}; counted so far: {account.words()}. {account.fitting(wanted)} "
            "Ask for less, or let the operator raise the limit."
        )
    return wanted
