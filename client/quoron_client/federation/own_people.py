"""A silo's own table as the items of its persons, by a run's public rules.

    names = names_in(Path("patients.parquet"), "patient_id")
    held = own_people(Path("patients.parquet"), terms, "patient_id", people=300)

As `own_table`, person by person: what is wrong with the file or its columns is an error, told to the owner; what is
wrong with rows is not, and concerns the person alone whose rows they are. Rows of nobody, without a name in the user
column, are left out.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from quoron_client.compute.enforcement import bounded
from quoron_client.data import columns, tables
from quoron_client.data.encoding import Encoding
from quoron_client.data.formats import Dialect
from quoron_client.data.fused import Gathering
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
        numbering = Numbering(user)
        for batch in tables.opened(path, dialect).batches((user,)):
            numbering.add(batch)
            if numbering.is_full:
                numbering.numbers()
        if numbering.waiting:
            numbering.numbers()
        numbering.ranks(without_rows=True)
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
    gathering, nobodys = Gathering(rules, user, most, rows=held.rows), False
    for batch in held.batches(tuple(dict.fromkeys((*rules.columns, user)))):
        somebodys = columns.somebodys(columns.users(batch, user))
        if somebodys.false_count:
            batch, nobodys = batch.filter(somebodys), True
        gathering.add(batch)
    gathered = gathering.end()
    unusable = int(np.count_nonzero(gathered.marks[:, 0] & 1))
    said = [f"{unusable:,} rows that cannot be used"] if unusable else []
    said += ["rows of nobody"] if nobodys else []
    notice = f"Expected rows that can be used, got {' and '.join(said)}. They are left out." if said else None
    return gathered.items(gathered.users + 1, zero_rows=False), gathering.names, notice
