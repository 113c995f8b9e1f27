"""The second server's store: runs that it has consented to, and for each round the one list that it has answered.

A reply is durable before it is sent, in one transaction with its list; of a list stay the fingerprints and the chain,
no seal. When a run ends all of that is erased but its name and its plan's digest, which stay for ever: a run that was
closed is never opened again. Keys are in no database (`keys`).
"""

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from quoron_privacy.errors import LedgerError
from quoron_server.storage.database import Database

OPEN, CLOSED, EXPIRED = "open", "closed", "expired"
RESTORED = "restored"  # ended, as the database was restored from a copy while the run was open
_schema = sa.MetaData()
_runs = sa.Table(
    "helped_runs",
    _schema,
    sa.Column("run", sa.Text, primary_key=True),
    sa.Column("coordinator", sa.Text, nullable=False),  # fingerprint of its certificate's key
    sa.Column("plan_digest", sa.LargeBinary, nullable=False),
    sa.Column("specification", sa.Text, nullable=False),
    sa.Column("spec", sa.Text, nullable=False),
    sa.Column("consent", sa.LargeBinary, nullable=False),
    sa.Column("expires", sa.Integer, nullable=False),  # seconds since 1970
    sa.Column("state", sa.Text, nullable=False),
)
_lists = sa.Table(
    "helped_lists",
    _schema,
    sa.Column("run", sa.Text, primary_key=True),
    sa.Column("round", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("chain", sa.LargeBinary, nullable=False),  # of all lists up to this one
    sa.Column("fingerprints", sa.LargeBinary, nullable=False),  # 32 bytes each, in order
    sa.Column("left_out", sa.LargeBinary, nullable=False),  # of these
    sa.Column("reply", sa.LargeBinary, nullable=False),
)


@dataclass(frozen=True, slots=True)
class HelpedRun:
    """A run as the second server knows it."""

    run: str
    coordinator: str
    plan_digest: bytes
    specification: str
    spec: str
    consent: bytes
    expires: int
    state: str = OPEN

    def words(self) -> str:
        """One line for its operator: state, plan, and when its keys end."""
        ends = f"{datetime.fromtimestamp(self.expires, UTC):%Y-%m-%d %H:%M} UTC" if self.state == OPEN else "destroyed"
        return f"{self.run}  {self.state}  plan {self.plan_digest.hex():.12}  keys {ends}"


@dataclass(frozen=True, slots=True)
class AnsweredList:
    """The list of a round, and what was said to it."""

    round: int
    chain: bytes
    fingerprints: bytes
    left_out: bytes
    reply: bytes


class HelpedRunStore:
    """Runs and lists in one database. Every method is one transaction and may be repeated."""

    def __init__(self, database: Database) -> None:
        self._database = database
        database.ensure(_schema)

    def runs(self) -> list[HelpedRun]:
        """All of them, those that have ended among them."""
        return [HelpedRun(*row) for row in self._database.all(sa.select(_runs).order_by(_runs.c.run))]

    def run(self, run: str) -> HelpedRun | None:
        """One of them."""
        found = self._database.all(sa.select(_runs).where(_runs.c.run == run))
        return HelpedRun(*found[0]) if found else None

    def add(self, run: HelpedRun) -> None:
        """A run that is consented to."""
        with self._database.writing() as connection:
            connection.execute(_runs.insert().values(**asdict(run)))

    def lists(self, run: str) -> list[AnsweredList]:
        """Those that were answered, by round."""
        query = sa.select(_lists).where(_lists.c.run == run).order_by(_lists.c.round)
        return [AnsweredList(*row[1:]) for row in self._database.all(query)]

    def rounds(self, run: str) -> int:
        """How many were."""
        (found,) = self._database.all(sa.select(sa.func.count()).select_from(_lists).where(_lists.c.run == run))
        return int(found[0])

    def answered(self, run: str, round_: int) -> AnsweredList | None:
        """The list of a round, if it was answered."""
        found = self._database.all(sa.select(_lists).where(_lists.c.run == run, _lists.c.round == round_))
        return AnsweredList(*found[0][1:]) if found else None

    def answer(self, run: str, answered: AnsweredList, before: bytes) -> None:
        """Keep a reply that was not sent yet. LedgerError unless it is to the next list, after the chain `before`."""
        with self._database.writing() as connection:
            last = sa.select(_lists.c.round, _lists.c.chain).where(_lists.c.run == run).order_by(_lists.c.round.desc())
            found = connection.execute(last.limit(1)).first()
            rounds, chain = (0, bytes(len(before))) if found is None else (found[0] + 1, found[1])
            if (answered.round, before) != (rounds, chain):
                raise LedgerError(f"Expected the list of round {rounds} of run {run}, got one of {answered.round}.")
            connection.execute(_lists.insert().values(run=run, **asdict(answered)))

    def end(self, run: str, state: str) -> bool:
        """Erase all of a run but its name and its plan's digest; whether it was open."""
        with self._database.writing() as connection:
            open_ = sa.and_(_runs.c.run == run, _runs.c.state == OPEN)
            nothing: dict[str, Any] = {"specification": "", "spec": "", "consent": b"", "state": state}
            news: bool = connection.execute(_runs.update().where(open_).values(**nothing)).rowcount > 0
            if news:
                connection.execute(_lists.delete().where(_lists.c.run == run))
        if news:
            self._database.checkpoint()
        return news
