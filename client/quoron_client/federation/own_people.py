"""A silo's own table as the items of its persons, by a run's public rules.

    names = names_in(Path("patients.parquet"), "patient_id")
    held = own_people(Path("patients.parquet"), terms, "patient_id", people=300)

As `own_table`, person by person: what is wrong with the file or its columns is an error, told to the owner; what is
wrong with rows is not, and concerns the person alone whose rows they are. Rows of nobody, without a name in the user
column, are left out.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from quoron_client.compute.enforcement import bounded
from quoron_client.data import columns, tables
from quoron_client.data.dialect import Dialect
from quoron_client.data.encoding import Encoding
from quoron_client.data.gathering import Gathering
from quoron_client.data.items import ItemBatch
from quoron_client.data.users import Numbering
from quoron_client.federation.own_table import OwnItems, opened, unusable
from quoron_client.federation.terms import Terms
from quoron_privacy.errors import DataError

MOST_NUMBERS = 1 << 30  # of all persons' items, 4 GiB: each has the same part of it, whatever the others hold


@dataclass(frozen=True, slots=True, eq=False)
class OwnPeople(OwnItems):
    """Items of the persons of a silo, in the order of their names, and last of one more who has none."""

    names: tuple[str, ...] = ()


def names_in(path: Path, user: str, dialect: Dialect | None = None) -> list[str]:
    """The persons in a file, in the order of their names, whether their rows can be used or not. DataError for a file
    that cannot be read, has no such column, or rows of nobody."""
    try:
        numbering, nobodys = Numbering(user), 0
        for batch, without in _named(tables.opened(path, dialect), (user,), user):
            nobodys += without
            numbering.add(batch)
            if numbering.is_full:
                numbering.numbers()
        if numbering.waiting:
            numbering.numbers()
        if nobodys:
            raise DataError(
                f"Expected a person in every row of column {user!r}, got {nobodys:,} rows without one. Leave these "
                "rows out, or say whose they are."
            )
        return numbering.names()
    except DataError as error:
        raise DataError(f"Data file {str(path)!r}: {error}") from None


def own_people(path: Path, terms: Terms, user: str, *, people: int, dialect: Dialect | None = None) -> OwnPeople:
    """The items of the persons whose rows are in `path`, of a silo of so many.

    A person's items are the first of its rows, as many as a number says that is the same for all. Raises DataError for
    a file that is not there, lacks a column, or has one stored as another type.
    """
    rules, loss = terms.columns, terms.make_loss()
    held = opened(path, terms, dialect, user)
    try:
        most = max(1, MOST_NUMBERS // (max(1, rules.dimension) * people))
        batch, names, notice = _gathered(held, rules, user, most)
    except Exception as error:
        nothing = ItemBatch(np.zeros((0, rules.dimension), np.float32), np.zeros(0), np.zeros(2, np.int64))
        return OwnPeople(nothing, unusable(path, error))
    told = None if notice is None else f"Data file {str(path)!r}: {notice}"
    return OwnPeople(bounded(batch, loss), None, told, tuple(names))


def _gathered(held: tables.Opened, rules: Encoding, user: str, most: int) -> tuple[ItemBatch, list[str], str | None]:
    gathering, nobodys = Gathering(rules, user, most, rows=held.rows), 0
    for batch, without in _named(held, tuple(dict.fromkeys((*rules.columns, user))), user):
        nobodys += without
        gathering.add(batch)
    gathered = gathering.end()
    unusable = int(np.count_nonzero(gathered.marks[:, 0] & 1))
    said = [f"{unusable:,} rows that cannot be used"] if unusable else []
    said += [f"{nobodys:,} rows of nobody"] if nobodys else []
    notice = f"Expected rows that can be used, got {' and '.join(said)}. They are left out." if said else None
    return gathered.items(gathered.users + 1, zero_rows=False), gathering.names, notice


def _named(held: tables.Opened, names: tuple[str, ...], user: str) -> Iterator[tuple[pa.Table, int]]:
    """Batches without the rows of nobody, and how many these were."""
    for batch in held.batches(names):
        without = columns.unnamed(values := columns.users(batch, user))
        if without:
            batch = batch.filter(columns.somebodys(values))
        yield batch, without
