"""The write-ahead ledger of one run: what was spent, what was released, and the state to resume from.

Order of writes in every round, each one durable before the next step starts:

    spend(question)      before the question leaves: these users have now participated
    commit(state, ...)   the new state with every release and its noise, before anyone sees it

After a crash at any point, `resume_point` gives the last committed state. The round after it is asked again only as the
identical question (same digest): the same participation of the same users, with the same noise, so the same bits.

Stored in SQLite with write-ahead logging and full synchronisation; one process at a time holds it.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from quorate_client.questions import Question
from quorate_protos.errors import LedgerError
from quorate_server.algorithm import Release

FORMAT = 1
_schema = sa.MetaData()
_run = sa.Table(
    "run",
    _schema,
    sa.Column("format", sa.Integer, nullable=False),
    sa.Column("config_digest", sa.Text, nullable=False),
    sa.Column("plan", sa.Text, nullable=False),
    sa.Column("noise_key", sa.LargeBinary),  # secret; erased when the run is complete
    sa.Column("model", sa.LargeBinary),  # the released model, once the run is complete
)
_spent = sa.Table(
    "spent",
    _schema,
    sa.Column("round", sa.Integer, primary_key=True),
    sa.Column("question", sa.Text),  # digest; a function of un-noised iterates, so erased when the run is complete
    sa.Column("users", sa.Integer, nullable=False),
    sa.Column("gradient_evaluations", sa.Integer, nullable=False),
)
_commits = sa.Table(
    "commits",
    _schema,
    sa.Column("round", sa.Integer, primary_key=True),  # -1 is the initial state
    sa.Column("state", sa.LargeBinary),  # of the last commit only, until the run is complete: it may hold noise
    sa.Column("releases", sa.Text, nullable=False),
    sa.Column("event", sa.Text, nullable=False),
)


class Ledger:
    """One run's ledger file. Create or open it, use it as a context manager."""

    def __init__(self, path: Path) -> None:
        """Use `create` or `open`."""
        self.path = path
        self._engine = sa.create_engine(sa.URL.create("sqlite", database=str(path)), poolclass=sa.pool.StaticPool)
        sa.event.listen(self._engine, "connect", _make_durable)

    @classmethod
    def create(cls, path: Path, *, plan: str, config_digest: str, noise_key: bytes) -> "Ledger":
        """A new ledger at `path`, complete or not there at all. LedgerError if something is there already."""
        if path.exists():
            raise LedgerError(f"Expected no ledger at {path}, found one. Resume that run or choose another folder.")
        draft = cls(path.with_suffix(".new"))
        for leftover in path.parent.glob(draft.path.name + "*"):
            leftover.unlink()
        draft.path.touch(mode=0o600)  # it will hold the noise key; its journal inherits the mode
        with draft, draft._writing() as connection:
            _schema.create_all(connection)
            row = {"format": FORMAT, "config_digest": config_digest, "plan": plan}
            connection.execute(_run.insert().values(noise_key=noise_key, **row))
        os.replace(draft.path, path)
        sync_folder(path.parent)
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> "Ledger":
        """The ledger at `path`. LedgerError if missing, unreadable, of another format, or in use."""
        if not path.is_file():
            raise LedgerError(f"Expected a ledger at {path}, found none. Start the run with `quorate simulate`.")
        ledger = cls(path)
        stored = ledger._row().format
        if stored != FORMAT:
            ledger.close()
            raise LedgerError(
                f"Expected ledger format {FORMAT} in {path}, got {stored}. Use the version that wrote it."
            )
        return ledger

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Release the file."""
        self._engine.dispose()

    @property
    def plan_json(self) -> str:
        """The plan as it was when the run began."""
        return str(self._row().plan)

    @property
    def config_digest(self) -> str:
        """Digest of the resolved configuration that the run belongs to."""
        return str(self._row().config_digest)

    @property
    def noise_key(self) -> bytes:
        """The secret of the noise source; LedgerError once the run is complete, when it has been erased."""
        key = self._row().noise_key
        if key is None:
            raise LedgerError(
                f"Expected an unfinished run in {self.path}, but it is complete and its noise key erased."
            )
        return bytes(key)

    @property
    def finished(self) -> bool:
        """Whether the run is complete."""
        return self._row().model is not None

    @property
    def model(self) -> NDArray[np.float64]:
        """The released model of a complete run, shape (d,); LedgerError before."""
        stored = self._row().model
        if stored is None:
            raise LedgerError(f"Expected a complete run in {self.path}, but it is not. Continue it first.")
        return np.frombuffer(stored, dtype="<f8").astype(np.float64)

    def resume_point(self) -> tuple[int, bytes] | None:
        """Round and encoded state of the last commit; None before the initial state, and once the run is complete."""
        rows = self._all(sa.select(_commits.c.round, _commits.c.state).order_by(_commits.c.round.desc()).limit(1))
        return (int(rows[0].round), bytes(rows[0].state)) if rows and rows[0].state is not None else None

    def spend(self, question: Question, *, users: int, gradient_evaluations: int) -> None:
        """Write the cohort, of `users` planned, as spent. A round already spent must be the identical question."""
        print_ = digest(question)
        with self._writing() as connection:
            before = connection.execute(sa.select(_spent).where(_spent.c.round == question.round)).first()
            if before is None:
                row = {"round": question.round, "question": print_, "users": users}
                connection.execute(_spent.insert().values(gradient_evaluations=gradient_evaluations, **row))
            elif before.question != print_:
                raise LedgerError(
                    f"Round {question.round} was already asked another question; continuing would ask users twice. "
                    "Use the same code and configuration that began this run."
                )

    def commit(self, round_: int, state: bytes, releases: Sequence[Release], event: dict[str, Any]) -> None:
        """Write round `round_`'s new state and releases in one transaction; `event` must be JSON-compatible."""
        told = json.dumps([asdict(release) for release in releases])
        with self._writing() as connection:
            connection.execute(_commits.update().values(state=None))
            row = {"round": round_, "state": state, "releases": told, "event": json.dumps(event)}
            connection.execute(_commits.insert().values(**row))

    def finish(self, model: NDArray[np.float64]) -> None:
        """Keep the released model, and erase what could undo its privacy: noise key, last state, question digests."""
        with self._writing() as connection:
            connection.execute(_run.update().values(model=model.astype("<f8").tobytes(), noise_key=None))
            connection.execute(_commits.update().values(state=None))
            connection.execute(_spent.update().values(question=None))
        with self._guarded(), self._engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")

    def events(self) -> list[dict[str, Any]]:
        """The committed rounds' events, in order."""
        rows = self._all(sa.select(_commits.c.event).where(_commits.c.round >= 0).order_by(_commits.c.round))
        return [json.loads(row.event) for row in rows]

    def releases(self) -> list[tuple[int, Release]]:
        """(round, release) for everything made public, in order."""
        rows = self._all(sa.select(_commits.c.round, _commits.c.releases).order_by(_commits.c.round))
        return [(row.round, Release(**told)) for row in rows for told in json.loads(row.releases)]

    def spent(self, *, before: int | None = None) -> dict[str, int]:
        """Totals over every question that left (in rounds < `before`): rounds, users, gradient_evaluations."""
        sums = [sa.func.coalesce(sa.func.sum(_spent.c[name]), 0) for name in ("users", "gradient_evaluations")]
        query = sa.select(sa.func.count(), *sums).select_from(_spent)
        row = self._all(query if before is None else query.where(_spent.c.round < before))[0]
        return dict(zip(("rounds", "users", "gradient_evaluations"), map(int, row), strict=True))

    def _row(self) -> Any:
        rows = self._all(sa.select(_run))
        if len(rows) != 1:
            raise LedgerError(f"Expected one run in {self.path}, found {len(rows)}. The file is not a quorate ledger.")
        return rows[0]

    def _all(self, query: Any) -> Sequence[Any]:
        with self._guarded(), self._engine.connect() as connection:
            return connection.execute(query).all()

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        with self._guarded(), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except sa.exc.DatabaseError as error:
            cause = str(error.orig)
            fix = {
                "database is locked": "Another process holds this run: wait for it or end it.",
                "database or disk is full": "Free some space, then `quorate resume` this run.",
            }.get(cause, "The file may be damaged or not a quorate ledger.")
            raise LedgerError(f"Cannot use the ledger {self.path}: {cause}. {fix}") from error


def digest(question: Question) -> str:
    """A fingerprint of everything the clients are sent, and of who they are."""
    sent = {each.name: getattr(question.task, each.name) for each in fields(question.task)}
    sent["cohort"] = question.cohort
    arrays = {name: value for name, value in sent.items() if isinstance(value, np.ndarray)}
    plain = {name: value.shape if name in arrays else value for name, value in sent.items()}
    hashed = hashlib.blake2b(repr((question.round, type(question.task).__name__, plain)).encode(), digest_size=16)
    for array in arrays.values():
        hashed.update(np.ascontiguousarray(array).tobytes())
    return hashed.hexdigest()


def _make_durable(connection: Any, _record: Any) -> None:
    for setting in ("locking_mode=EXCLUSIVE", "journal_mode=WAL", "synchronous=FULL", "secure_delete=ON"):
        connection.execute(f"PRAGMA {setting}").close()


def sync_folder(folder: Path) -> None:
    """Make what was created or renamed in `folder` durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
