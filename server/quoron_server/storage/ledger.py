"""The write-ahead ledger of one run: what was spent, what was released, and the state to resume from.

    spend(question)      before the question leaves: these users have now participated
    commit(state, ...)   the new state with every release and its noise, before anyone sees it; spends the next question

Both are durable before the next step starts (a simulation's: `relax`); rounds that no one sees may be `unseen` in the
commit of a later one. After a crash at any point, `resume_point` gives the last committed state, and the round after it
is asked again only as the identical question (same digest): the same participation of the same users. Where secret
coins choose whom a round asks (`Question.drawn`) what every user is asked is the same; the coins are new, and so is all
noise. Every row has a digest of what it says, checked whenever it is read.

What a power loss can and cannot take: docs/durability.md.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quoron_client.durable import clear, require_no_rest, sync_folder
from quoron_client.protocol.questions import Question
from quoron_privacy.errors import LedgerError, LedgerUnavailable, OtherVersion
from quoron_privacy.release import Release
from quoron_server.algorithm import names_of
from quoron_server.plan import ESTIMATES, EVALUATED, PLANNED, PREFACE
from quoron_server.storage.store import Execute, Row, Store, Table

_ALONE = "run"  # the name of the one run in a run folder's file
_runs = Table(
    "run_ledgers",
    {
        "run": "TEXT NOT NULL",
        "config_digest": "TEXT NOT NULL",
        "plan": "TEXT NOT NULL",
        "seal": "TEXT",
        "model": "BLOB",  # the released model, once the run is complete
        "model_seal": "TEXT",
    },
    ("run",),
)
_unreleased = Table(  # deleted when the run is complete
    "unreleased",
    {
        "run": "TEXT NOT NULL",
        "noise_key": "BLOB NOT NULL",
        "key_seal": "TEXT",
        "round": "INTEGER",  # of the last commit; -1 is the initial state
        "state": "BLOB",  # after that round; may hold noise and un-noised iterates
        "state_seal": "TEXT",
        "inputs": "BLOB",  # digests of private inputs, where this process holds them
    },
    ("run",),
)
_spent = Table(
    "spent",
    {
        "run": "TEXT NOT NULL",
        "round": "INTEGER NOT NULL",
        "question": "TEXT",  # digest; a function of un-noised iterates, so erased when the run is complete
        "users": "INTEGER NOT NULL",
        "gradient_evaluations": "BIGINT NOT NULL",
        "seal": "TEXT",  # of all but the question
    },
    ("run", "round"),
)
_commits = Table(
    "commits",
    {
        "run": "TEXT NOT NULL",
        "round": "INTEGER NOT NULL",  # -1: initial state; others below 0: before
        "releases": "TEXT NOT NULL",
        "event": "TEXT NOT NULL",
        "seal": "TEXT",
    },
    ("run", "round"),
)
SCHEMA, SECRETS = (_runs, _unreleased, _spent, _commits), _unreleased  # for `backup`
_BEFORE = {
    (),
    (PREFACE,),
    (ESTIMATES,),
    (ESTIMATES, PLANNED),
    (ESTIMATES, PLANNED, PREFACE),
}  # rounds before the initial state
_SEALED = {  # what each seal is of
    "seal": ("run", "config_digest", "plan"),
    "model_seal": ("run", "model"),
    "key_seal": ("run", "noise_key"),
    "state_seal": ("run", "round", "state"),
    "spent": ("run", "round", "users", "gradient_evaluations"),
    "commits": ("run", "round", "releases", "event"),
}


def digest(question: Question) -> str:
    """Return a fingerprint of everything the clients are sent, and of who they are unless secret coins say so.

    A ledger keeps it to recognise a question that was asked before, and erases it at the end.
    """
    hashed = hashlib.blake2b(digest_size=16)
    for part in _parts(question.lasting):
        hashed.update(len(part).to_bytes(8, "little"))
        hashed.update(part)
    return hashed.hexdigest()


def _parts(value: Any) -> Iterator[bytes]:
    """Yield all that a value holds, arrays whole."""
    if isinstance(value, np.ndarray):
        yield repr((value.dtype.str, value.shape)).encode()
        yield np.ascontiguousarray(value).tobytes()
    elif (names := names_of(type(value))) is not None or isinstance(value, tuple):
        named = value if names is None else [getattr(value, name) for name in names]
        yield f"{type(value).__name__} {len(named)}".encode()
        for part in named:
            yield from _parts(part)
    else:
        yield repr(value).encode()


class Ledger(AbstractContextManager["Ledger"]):
    """One run's ledger: a file (`create`, `open`) or a part of a database (`begin`, `within`). A context manager."""

    def __init__(self, database: Store, run: str, path: Path | None = None) -> None:
        """Use `create`, `open`, `begin` or `within`. With a `path` the database is this ledger's own."""
        self.run = run
        self.path: Path | str = path or f"{database.name} (run {run})"
        self._database = database
        self._owns = path is not None
        self._newly = -1  # the last round that this start spent, and none before it

    @classmethod
    def create(cls, path: Path, *, plan: str, config_digest: str, noise_key: bytes) -> "Ledger":
        """Return a new ledger at `path`, complete or not there at all. LedgerError if something is there already."""
        if path.exists():
            raise LedgerError(f"Expected no ledger at {path}, found one. Resume that run or choose another folder.")
        draft = path.with_suffix(".new")
        require_no_rest(path)
        try:
            clear(draft)
            with Store(draft) as database:
                cls.begin(database, _ALONE, plan=plan, config_digest=config_digest, noise_key=noise_key)
                database.as_new()  # or its content could be in a journal that the new name leaves behind
            os.replace(draft, path)
            sync_folder(path.parent)
            clear(draft)
        except OSError as error:
            raise LedgerUnavailable(
                f"Cannot make a ledger at {path}: {error.strerror}. Make room, then try again."
            ) from error
        finally:
            with suppress(OSError):
                clear(draft)
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> "Ledger":
        """Return the ledger at `path`. LedgerError if missing, unreadable, of another format, or in use."""
        if not path.is_file():
            raise LedgerError(f"Expected a ledger at {path}, found none. Start the run with `quoron simulate`.")
        ledger = cls(Store(path, create=False), _ALONE, path)
        try:
            if ledger._database.rows("PRAGMA integrity_check") != [{"integrity_check": "ok"}]:
                raise ledger._changed()
            ledger._row()
        except BaseException:
            ledger.close()
            raise
        return ledger

    @classmethod
    def begin(cls, database: Store, run: str, *, plan: str, config_digest: str, noise_key: bytes) -> "Ledger":
        """A new ledger of `run` in `database`, complete or not there at all. LedgerError if the run has one already."""
        if cls.begun(database, run) is not None:
            raise LedgerError(f"Expected no ledger of run {run} in {database.name}, found one. Continue that run.")
        with database.transaction() as execute:
            row = {"run": run, "config_digest": config_digest, "plan": plan}
            _runs.insert(execute, row | {"seal": _seal("seal", row)})
            secret: dict[str, Any] = {"run": run, "noise_key": noise_key}
            _unreleased.insert(execute, secret | {"key_seal": _seal("key_seal", secret)})
        return cls(database, run)

    @classmethod
    def within(cls, database: Store, run: str) -> "Ledger":
        """Return the ledger of `run` in `database`. LedgerError if it has none."""
        found = cls.begun(database, run)
        if found is None:
            raise LedgerError(f"Expected a ledger of run {run} in {database.name}, found none. Begin the run first.")
        return found

    @classmethod
    def begun(cls, database: Store, run: str) -> "Ledger | None":
        """Return the ledger of `run` in `database`; None if it has none."""
        database.ensure(SCHEMA)
        return cls(database, run) if database.rows("SELECT run FROM run_ledgers WHERE run = ?", [run]) else None

    @classmethod
    def unreleased(cls, database: Store) -> set[str]:
        """Runs in `database` whose secrets it still holds."""
        database.ensure(SCHEMA)
        return {row["run"] for row in database.rows("SELECT run FROM unreleased")}

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the file; a shared database stays open."""
        if self._owns:
            self._database.close()

    def relax(self) -> None:
        """As `Store.relax`, where a file is this ledger's own: of a simulation, which computes its rounds again."""
        if self._owns:
            self._database.relax()

    @property
    def plan_json(self) -> str:
        """The plan as it was when the run began."""
        return str(self._row()["plan"])

    @property
    def config_digest(self) -> str:
        """Digest of the resolved configuration that the run belongs to."""
        return str(self._row()["config_digest"])

    @property
    def noise_key(self) -> bytes:
        """The secret of the noise source; LedgerError after the run's end, when it has been erased."""
        rows = self._of(_unreleased, "run", "noise_key", "key_seal")
        if not rows:
            raise self._ended()
        self._check("key_seal", rows[0])
        return bytes(rows[0]["noise_key"])

    def same_inputs(self, *digests: bytes) -> bool:
        """Return whether an unfinished run computes with the private inputs of these digests: those of the first call.

        Later calls may append digests. They are erased with the noise key: LedgerError after the end.
        """
        given = b"".join(digests)
        with self._database.transaction() as execute:
            rows = execute("SELECT inputs FROM unreleased WHERE run = ?", [self.run])
            if not rows:
                raise self._ended()
            held = bytes(rows[0]["inputs"] or b"")
            if given.startswith(held):
                execute("UPDATE unreleased SET inputs = ? WHERE run = ?", [given, self.run])
        return given.startswith(held) or held.startswith(given)

    @property
    def finished(self) -> bool:
        """Whether the run is complete."""
        return self._row()["model"] is not None

    @property
    def model(self) -> NDArray[np.float64]:
        """The released model of a complete run, shape (d,); LedgerError before."""
        row = self._row()
        stored = row["model"]
        if stored is None:
            raise LedgerError(f"Expected a complete run in {self.path}, but it is not. Continue it first.")
        self._check("model_seal", row)
        return np.frombuffer(stored, dtype="<f8").astype(np.float64)

    def resume_point(self) -> tuple[int, bytes] | None:
        """Round and encoded state of the last commit; None before the initial state and after the run's end."""
        rows = self._of(_unreleased, "run", "round", "state", "state_seal")
        if not rows or (rows[0]["state"] is None and rows[0]["state_seal"] is None):
            return None
        self._check("state_seal", rows[0])
        if rows[0]["state"] is None:  # what comes before the first round is released, and nothing else has been
            return None
        return int(rows[0]["round"]), bytes(rows[0]["state"])

    def spend(self, question: Question, users: int, gradient_evaluations: int) -> None:
        """Write the cohort, of `users` planned, as spent. A round spent before as another question is OtherVersion.

        A round counts once, also where secret coins have it ask others when it is asked again.
        """
        print_ = digest(question)
        with self._database.transaction() as execute:
            this = [self.run, question.round]
            before = execute("SELECT question FROM spent WHERE run = ? AND round = ?", this)
            if not before:
                if not execute("SELECT run FROM unreleased WHERE run = ?", [self.run]):
                    raise LedgerError(f"Expected an unfinished run in {self.path}, but it has ended: nobody is asked.")
                self._newly = question.round
                self._spend(execute, question.round, print_, users, gradient_evaluations)
            elif before[0]["question"] != print_:
                raise OtherVersion(
                    f"Round {question.round} was already asked another question; continuing would ask users twice. "
                    "Use the same code and configuration that began this run."
                )

    def withdraw(self, *, after: int) -> None:
        """Take back the last round that this start, and none before it, wrote as spent, if it is `after` that one."""
        if self._newly > after:
            self._database.rows("DELETE FROM spent WHERE run = ? AND round = ?", [self.run, self._newly])
        self._newly = -1

    def released(self, stage: int) -> dict[str, Any] | None:
        """Return a stage's event: `ESTIMATES`, `PLANNED` or `PREFACE` before any round, `EVALUATED` with the model."""
        return next((json.loads(row["event"]) for row in self._committed() if row["round"] == stage), None)

    def draw_once(self, stage: int, draw: Callable[[], tuple[Sequence[Release], dict[str, Any]]]) -> dict[str, Any]:
        """Return what a charged run released at a stage; if that is nothing yet, draw it now and commit it.

        `draw` gives ledger entries and a JSON-compatible event. Nobody sees what a kill left uncommitted.
        """
        found = self.released(stage)
        if found is None:
            self.commit(stage, None, *draw())
            found = self.released(stage)
            assert found is not None
        return found

    def commit(
        self,
        round_: int,
        state: bytes | None,
        releases: Sequence[Release],
        event: dict[str, Any],
        spending: tuple[Question, int, int] | None = None,
        unseen: Sequence[tuple[int, Sequence[Release], dict[str, Any], int, int]] = (),
        *,
        plan: str | None = None,
    ) -> None:
        """Write round `round_`'s new state and releases in one transaction; `event` must be JSON-compatible.

        With `spending` it spends the next round, too, as `spend`. With a `plan` the run goes on by that one. `unseen`
        are the rounds before it that are not yet written: their releases and events, users and gradient evaluations of
        the question that followed. LedgerError if the run has ended or has come to this round before.
        """
        here = "UPDATE unreleased SET round = ?, state = ?, state_seal = ?"
        here += " WHERE run = ? AND (round IS NULL OR round < ?) RETURNING run"
        with self._database.transaction() as execute:
            seal = _seal("state_seal", {"run": self.run, "round": round_, "state": state})
            if not execute(here, [round_, state, seal, self.run, unseen[0][0] if unseen else round_]):
                raise LedgerError(
                    f"Expected round {round_} to be new in {self.path}, but it is there or the run has ended."
                )
            for earlier, entries, said, users, evaluations in unseen:
                self._write(execute, earlier, entries, said)
                self._spend(execute, earlier + 1, None, users, evaluations)  # its question has been answered
            self._write(execute, round_, releases, event)
            if spending is not None:
                self.spend(*spending)
            if plan is not None:
                seal = _seal("seal", {"run": self.run, "config_digest": self.config_digest, "plan": plan})
                execute("UPDATE run_ledgers SET plan = ?, seal = ? WHERE run = ?", [plan, seal, self.run])

    def finish(
        self, model: NDArray[np.float64], releases: Sequence[Release] = (), event: dict[str, Any] | None = None
    ) -> None:
        """Keep the released model, and erase what could undo its privacy: noise key, last state, question digests.

        With an `event` what was released of users that were held out is kept as well, in the same transaction.
        """
        with self._database.transaction() as execute:
            if not self._erase(execute):
                raise LedgerError(f"Expected an unfinished run in {self.path}, but it has ended: it releases no more.")
            if event is not None:
                self._write(execute, EVALUATED, releases, event)
            self._release(execute, model)
        self._database.checkpoint()

    def take_over(self, other: "Ledger") -> None:
        """Hold what another ledger of the same run holds, which is complete, in place of what is here."""
        model, rows = other.model, {table: other._of(table) for table in (_spent, _commits)}
        with self._database.transaction() as execute:
            for table, found in rows.items():
                execute(f"DELETE FROM {table.name} WHERE run = ?", [self.run])
                for row in found:
                    own = row | {"run": self.run}
                    table.insert(execute, own | {"seal": _seal(table.name, own)})
            self._erase(execute)
            self._release(execute, model)
        self._database.checkpoint()

    def abandon(self) -> None:
        """Erase the same secrets of a run that will never be complete. It cannot go on; what it spent stays spent."""
        with self._database.transaction() as execute:
            self._erase(execute)
        self._database.checkpoint()

    def _spend(
        self, execute: Execute, round_: int, question: str | None, users: int, gradient_evaluations: int
    ) -> None:
        row = {"run": self.run, "round": round_, "users": users, "gradient_evaluations": gradient_evaluations}
        _spent.insert(execute, row | {"question": question, "seal": _seal("spent", row)})

    def _write(self, execute: Execute, round_: int, releases: Sequence[Release], event: dict[str, Any]) -> None:
        entries = [{name: getattr(release, name) for name in names_of(Release) or ()} for release in releases]
        row = {"run": self.run, "round": round_, "releases": json.dumps(entries), "event": json.dumps(event)}
        _commits.insert(execute, row | {"seal": _seal("commits", row)})

    def _erase(self, execute: Execute) -> bool:
        """Return whether there was anything left to erase."""
        execute("UPDATE spent SET question = NULL WHERE run = ?", [self.run])
        return bool(execute("DELETE FROM unreleased WHERE run = ? RETURNING run", [self.run]))

    def _release(self, execute: Execute, model: NDArray[np.float64]) -> None:
        kept = model.astype("<f8").tobytes()
        seal = _seal("model_seal", {"run": self.run, "model": kept})
        execute("UPDATE run_ledgers SET model = ?, model_seal = ? WHERE run = ?", [kept, seal, self.run])

    def events(self) -> list[dict[str, Any]]:
        """Return the committed rounds' events, in order."""
        return [json.loads(row["event"]) for row in self._committed() if row["round"] >= 0]

    def releases(self) -> list[tuple[int, Release]]:
        """(round, release) for everything made public, in order."""
        return [(row["round"], Release(**entry)) for row in self._committed() for entry in json.loads(row["releases"])]

    def spent(self) -> dict[str, int]:
        """Totals over every question that left, or may have: rounds, users, gradient_evaluations."""
        rows = self._of(_spent)
        self._check_all("spent", rows, first=0)
        names = ("users", "gradient_evaluations")
        return {"rounds": len(rows)} | {name: sum(int(row[name]) for row in rows) for name in names}

    def _row(self) -> Row:
        rows = self._of(_runs)
        if len(rows) != 1:
            raise LedgerError(f"Expected one run in {self.path}, found {len(rows)}. The file is not a quoron ledger.")
        self._check("seal", rows[0])
        return rows[0]

    def _committed(self) -> list[Row]:
        with self._database.writing():  # or a commit between two of them would look like a change
            rows, last, asked = self._of(_commits), self._of(_unreleased, "round"), self._of(_spent, "round")
            complete = asked[-1]["round"] if asked and self.finished else None
        before = [row for row in rows if row["round"] < -1]
        if tuple(row["round"] for row in before if row["round"] != EVALUATED) not in _BEFORE:
            raise self._changed()
        for row in before:
            self._check("commits", row)
        self._check_all("commits", rows[len(before) :], first=-1)
        if last and last[0]["round"] is not None and (not rows or rows[-1]["round"] != last[0]["round"]):
            raise self._changed()
        if complete is not None and (not rows or rows[-1]["round"] < complete):  # every question had led to a commit
            raise self._changed()
        return rows

    def _check_all(self, which: str, rows: Sequence[Row], *, first: int) -> None:
        """Raise LedgerError unless these are all rounds from the first on, as they were written."""
        for round_, row in enumerate(rows, first):
            self._check(which, row)
            if row["round"] != round_:
                raise self._changed()

    def _check(self, which: str, row: Mapping[str, Any]) -> None:
        kept = row["seal" if which in ("spent", "commits") else which]
        if _seal(which, row) != kept:
            raise self._changed()

    def _ended(self) -> LedgerError:
        return LedgerError(
            f"Expected an unfinished run in {self.path}, but it has ended and its noise key is erased. Begin a new run."
        )

    def _changed(self) -> LedgerError:
        return LedgerError(
            f"Expected {self.path} as it was written, but something in it has changed. Put back a copy that is whole, "
            "or begin a new run."
        )

    def _of(self, table: Table, *names: str) -> list[Row]:
        """Return what a table holds of this run, in order: all columns, or these."""
        columns, order = ", ".join(names or table.columns), ", ".join(table.key)
        return self._database.rows(f"SELECT {columns} FROM {table.name} WHERE run = ? ORDER BY {order}", [self.run])


def _seal(which: str, row: Mapping[str, Any]) -> str:
    """Return a digest of what a row says, against disks and editors: it has no key."""
    hashed = hashlib.blake2b(digest_size=16, person=which.encode())
    for name in _SEALED[which]:
        value = row[name]
        kind, data = ("b", value) if isinstance(value, bytes | memoryview) else ("s", str(value).encode())
        hashed.update(f"{kind}{len(data)} ".encode())
        hashed.update(data)
    return hashed.hexdigest()
