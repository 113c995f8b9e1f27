"""One user's own table as items, by a run's public rules.

What is wrong with the file or its columns is an error, told to the owner: the header of a file of text alone says so,
or the schema of another. What is wrong with the rows is not: the coordinator would learn it. Rows that cannot be used
are left out. Where none is left, the items become one that is not finite, which is rejected, or in the
local model counts as a gradient of zero, like anybody's.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from quoron_client.compute.enforcement import bounded
from quoron_client.data import people, tables
from quoron_client.data.dialect import Dialect
from quoron_client.data.first_rows import Reading
from quoron_client.data.items import ItemBatch
from quoron_client.federation.terms import Terms
from quoron_privacy.errors import DataError
from quoron_privacy.kernels.on_first_use import OnFirstUse

if TYPE_CHECKING:
    from quoron_client.data import fused
else:
    fused = OnFirstUse("quoron_client.data.fused")  # who only connects needs no items yet

MOST_NUMBERS = 1 << 28  # of a user's items, 1 GiB, of the first rows: how many features one becomes the run announces
LOOKED_AT = 1 << 22  # rows that tell whether a file is several people's


@dataclass(frozen=True, slots=True, eq=False)
class OwnItems:
    """A user's items within the public bounds, and what the owner should know of them and nobody else."""

    batch: ItemBatch
    problem: str | None  # why no row can be used; None: some can
    notice: str | None = None  # how many rows were left out


def read_own_table(path: Path, reading: Reading | None = None, dialect: Dialect | None = None) -> pa.Table:
    """The table in a file, or the rows that are kept. Raises DataError, which names the file."""
    try:
        held = tables.opened(path, dialect)
        return tables.read(held, None if held.names else held.seen(), reading)
    except DataError as error:
        raise DataError(f"Data file {str(path)!r}: {error}") from None


def check_one_user(path: Path, *, one_user: bool, items_per_user: int | None, dialect: Dialect | None = None) -> None:
    """DataError for a file that looks like that of several people, unless its owner said that it is one user.

    For the owner's eyes, before anybody hears of this client: whether it is refused is a function of the data. Raises
    DataError as `read_own_table` does, too.
    """
    first = max(LOOKED_AT, people.MANY * (items_per_user or 0) + 1)
    table = read_own_table(path, Reading(first), dialect)
    why = None if one_user else people.several(table, items_per_user)
    if why is not None:
        raise DataError(
            f"Data file {str(path)!r}: Expected the rows of one person, got {why}. A client is one user: nothing is "
            "promised to the people in it one by one. Say whose each row is with --user COLUMN, for a silo, each of "
            "whose people is a user; or, if all rows are to be one user's, say so with --one-user (QUORON_ONE_USER=1)."
        )


def opened(path: Path, terms: Terms, dialect: Dialect | None = None, *more: str) -> tables.Opened:
    """A file with the columns that a run reads, as they are announced, and `more`. DataError for any other."""
    rules = terms.columns
    try:
        held = tables.opened(path, dialect)
        rules.check(held.empty(rules.columns))
        if more:
            held.empty(more)
    except DataError as error:
        raise DataError(f"Data file {str(path)!r}: {error}") from None
    if rules.dimension != terms.features:
        raise DataError(f"Expected columns that become {terms.features} features, as announced, got {rules.dimension}.")
    return held


def unusable(path: Path, error: Exception) -> str:
    """What its owner is told of rows: consent must not depend on it, and other libraries' words may quote a value."""
    known = isinstance(error, DataError)
    said = str(error) if known else f"Expected rows that can be used, got {type(error).__name__}."
    return f"Data file {str(path)!r}: {said}"


def own_items(path: Path, terms: Terms, dialect: Dialect | None = None) -> OwnItems:
    """The items of the user whose rows are in `path`, encoded as a population's table would be.

    Raises DataError for a file that is not there, lacks a column, or has one stored as another type.
    """
    rules, loss = terms.columns, terms.make_loss()
    held, width = opened(path, terms, dialect), rules.dimension
    problem = notice = None
    try:
        most = max(1, MOST_NUMBERS // width)
        found = tables.read(held, rules.columns, Reading(most + 1))
        table = found.slice(0, most)
        if found.num_rows > most:
            notice = f"Data file {str(path)!r}: Expected at most {most:,} rows, got more. Only the first so many count."
        encoded = fused.encoded(rules, table)
        counts = encoded.counts
        if counts.dropped:
            blamed = ", ".join(f"{name!r} ({count:,})" for name, count in counts.unusable.items() if count)
            without = (
                f"Data file {str(path)!r}: Expected rows that can be used, got {counts.dropped:,} of {counts.rows:,} "
                f"that cannot, by column: {blamed}."
            )
            notice = without if notice is None else f"{notice} {without}"
        if counts.dropped == counts.rows:
            problem, notice = notice, None
            batch = _unusable(width)
        else:
            batch = encoded.batch(1, np.zeros(counts.rows, np.int64))
    except Exception as error:
        batch, problem = _unusable(width), unusable(path, error)
    return OwnItems(bounded(batch, loss), problem, notice)


def _unusable(width: int) -> ItemBatch:
    """One item that is not finite."""
    return ItemBatch(np.full((1, width), np.nan, np.float32), np.zeros(1), np.array([0, 1]))
