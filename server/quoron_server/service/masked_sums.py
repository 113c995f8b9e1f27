"""What the coordinator keeps of a round of two servers until it is committed: its list's chain, and its masked sum.

Durable before the list leaves, so that the helper's reply finds it after a kill. After the round's commit only the
chain is left: no sum, and not how many were in it. Answers are in no book.
"""

from dataclasses import dataclass

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from quoron_privacy.errors import LedgerUnavailable, OtherVersion
from quoron_server.books.database import Database

Words = NDArray[np.uint64]
SCHEMA = sa.MetaData()
SUMS = sa.Table(
    "masked_rounds",
    SCHEMA,
    sa.Column("run", sa.Text, primary_key=True),
    sa.Column("round", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("chain", sa.LargeBinary, nullable=False),  # of all lists, as they were sent
    # What follows is erased when the round is committed.
    sa.Column("used", sa.LargeBinary),  # of all lists without those whom the helper left out, if nobody is now
    sa.Column("total", sa.LargeBinary),  # of masked answers
    sa.Column("answered", sa.Integer),
)


class HelperAway(LedgerUnavailable):
    """The helper cannot be reached now: the run waits for it, and goes on."""


class HelperDisagrees(OtherVersion):
    """The helper does not answer what it was asked: the run is left as it is."""


@dataclass(frozen=True, slots=True)
class Held:
    """A round whose list was sent, or was about to be."""

    chain: bytes
    used: bytes | None
    total: Words | None
    answered: int


class MaskedSums:
    """In the coordinator's database. Every method is one transaction and may be repeated."""

    def __init__(self, database: Database) -> None:
        self._database = database
        database.ensure(SCHEMA)

    def chain_before(self, run: str, round_: int) -> bytes:
        """After the list of the round before, as it was sent."""
        query = sa.select(SUMS.c.chain).where(SUMS.c.run == run, SUMS.c.round == round_ - 1)
        found = self._database.all(query)
        if not found:
            raise HelperDisagrees(
                f"Expected the chain of lists of run {run} up to round {round_} in these books, found none: they were "
                "put back. Cancel the run."
            )
        return bytes(found[0][0])

    def held(self, run: str, round_: int) -> Held | None:
        """A round that is not committed, if its list was made."""
        found = self._database.all(sa.select(SUMS).where(SUMS.c.run == run, SUMS.c.round == round_))
        if not found:
            return None
        row = found[0]
        return Held(
            row.chain, row.used, None if row.total is None else np.frombuffer(row.total, "<u8"), row.answered or 0
        )

    def hold(self, run: str, round_: int, held: Held) -> None:
        """Keep the list and the sum of a round, in place of one that the helper has not heard of."""
        total = None if held.total is None else held.total.astype("<u8").tobytes()
        row = {"chain": held.chain, "used": held.used, "total": total, "answered": held.answered}
        with self._database.writing() as connection:
            connection.execute(SUMS.delete().where(SUMS.c.run == run, SUMS.c.round == round_))
            connection.execute(SUMS.insert().values(run=run, round=round_, **row))

    def forget(self, run: str, *, before: int | None = None) -> None:
        """Erase what is kept of sums, of rounds `before` one that is committed, or of all."""
        which = sa.and_(SUMS.c.run == run, SUMS.c.answered.is_not(None))
        if before is not None:
            which = sa.and_(which, SUMS.c.round < before)
        with self._database.writing() as connection:
            connection.execute(SUMS.update().where(which).values(used=None, total=None, answered=None))
        self._database.checkpoint()
