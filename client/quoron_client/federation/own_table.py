"""One user's own table as items, by a run's public rules.

A fault of the file or its columns is an error, shown to the owner: the header of a file of text alone says so, or the
schema of another. A fault of the rows is not: the coordinator would learn of it. Rows that cannot be used are left out.
Where none is left, the items become one that is not finite, which is rejected, or in the local model counts as a
gradient of zero, like anybody's.

Whether a client's table looks like that of several people. If so, its owner is asked.

A client's whole table is one user. Where a hospital runs one client for all of its patients, the guarantee is for the
hospital, and for none of its patients. A table looks like that of several people if

| what                                         | when                                                                 |
| -------------------------------------------- | -------------------------------------------------------------------- |
| a column's name is that of people            | `patient`, `user_id`, `SubjectNo`, `MRN`, and it has two values      |
| a column repeats like an identifier          | text or whole numbers, but neither dates, times nor years; 20 values |
|                                              | or more, each in two rows on the average, none in more than a fifth  |
|                                              | of the rows; each in one block, but that one in ten may come again   |
|                                              | or 50 or more, each at most thrice as often as the one in the middle |

It is a question, not a finding: the rows of one person's orders look so too, and shuffled rows of people of whom some
have many and others few, whose column is called `x`, do not.

A silo's own table as the items of its persons, by a run's public rules.

    names = names_in(Path("patients.parquet"), "patient_id")
    held = own_items(Path("patients.parquet"), terms, user="patient_id", people=300)

As one user's, person by person: a fault of rows concerns the person alone whose rows they are. Rows without a name in
the user column are left out.
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from quoron_client.compute.enforcement import bounded
from quoron_client.data import columns, fused, tables
from quoron_client.data.encoding import Encoding
from quoron_client.data.formats import Dialect
from quoron_client.data.fused import Gathered, Gathering
from quoron_client.data.items import ItemBatch
from quoron_client.data.users import Numbering
from quoron_client.federation.terms import Terms
from quoron_privacy.errors import DataError

FEWEST, EVEN = 20, 50  # values of an identifier that is known by its blocks, and by how evenly it repeats
_WORDS = "user|patient|person|people|client|customer|subject|member|participant|respondent|proband|resident|employee"
_WORDS += "|student|pupil|child|donor|tenant|voter|citizen|household|kunde|mitarbeiter|teilnehmer"
_NUMBERED = "id|ids|no|nr|num|number|nummer|key|code|uuid|guid|hash|name|ref|index|pseudonym"
_NAMED = re.compile(rf"(({_WORDS})(in|en|n|s)?({_NUMBERED})?|uid|mrn|ssn|usubjid|subjid|ptid|patid|pseudonym)")
_DATE = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}([T ].*)?|\d{1,2}:\d{2}(:.*)?|(19|20)\d\d([01]\d[0-3]\d)?")


def several(table: pa.Table) -> str | None:
    """Return why a table looks like that of several people, without a value or a number of it; None if it does not.

    A column is named by its place: the first row of a file without a header is somebody's.
    """
    for place, name in enumerate(table.column_names, 1):
        try:
            found = columns.texts(table, name)
        except DataError:  # dates and the like, or a column that is there twice
            continue
        coded = found.drop_null().dictionary_encode()
        values, codes = coded.dictionary.to_pylist(), coded.indices.to_numpy()
        if len(values) > 1 and _NAMED.fullmatch(re.sub(r"[\W_]", "", name).lower()):
            return f"several values in column {place}, whose name says that it is of people"
        if _repeats(codes, len(values)) and _identifies(values):
            return f"values in column {place} that repeat like an identifier"
    return None


def _repeats(codes: "np.ndarray[tuple[int], np.dtype[np.int64]]", values: int) -> bool:
    """Return whether values that are as many come in blocks, each of several rows, or evenly."""
    if values < FEWEST or len(codes) < 2 * values:
        return False
    counts = np.bincount(codes)
    blocks = 1 + int(np.count_nonzero(np.diff(codes)))
    in_blocks = blocks <= 1.1 * values and counts.max() <= len(codes) / 5
    return in_blocks or (values >= EVEN and counts.max() <= 3 * np.median(counts))


def _identifies(values: list[str]) -> bool:
    """Return whether they are text or whole numbers, and neither dates, times nor years."""
    said = np.array([columns.parsed(value) for value in values])
    measured = not np.isnan(said).any() and not np.all(said == np.round(said))
    return not measured and not all(_DATE.fullmatch(value) for value in values)


_ONE = "\0"  # of a column of ours: whose each row is, where all are one user's
MOST_NUMBERS = 1 << 28  # of a user's items, 1 GiB, of the first rows: how many features one becomes the run announces
LOOKED_AT = 1 << 22  # rows that tell whether a file is several people's


@dataclass(frozen=True, slots=True, eq=False)
class OwnItems:
    """A user's items within the public bounds, or those of a silo's persons in the order of their names; and what the
    owner should know of them and nobody else."""

    batch: ItemBatch
    problem: str | None  # why no row can be used; None: some can
    notice: str | None = None  # how many rows were left out
    names: tuple[str, ...] = ()  # of a silo's persons; the last user of the batch is one more who has none


def read_own_table(path: Path, dialect: Dialect | None = None, *, most: int = sys.maxsize) -> pa.Table:
    """Return the table in a file, or its first `most` rows. Raises DataError, which names the file."""
    try:
        held = tables.opened(path, dialect)
        return tables.read(held, keep=lambda table: table.slice(0, most), most=most).slice(0, most)
    except DataError as error:
        raise DataError(f"Data file {str(path)!r}: {error}") from None


def check_one_user(path: Path, *, one_user: bool, dialect: Dialect | None = None) -> None:
    """Raise DataError for a file that looks like that of several people, unless its owner said that it is one user.

    For the owner's eyes, before anybody hears of this client: whether it is refused is a function of the data. Raises
    DataError as `read_own_table` does, too.
    """
    table = read_own_table(path, dialect, most=LOOKED_AT)
    why = None if one_user else several(table)
    if why is not None:
        raise DataError(
            f"Data file {str(path)!r}: Expected the rows of one person, got {why}. A client is one user: nothing is "
            "guaranteed to the people in it one by one. Say whose each row is with --user COLUMN, for a silo, each of "
            "whose people is a user; or, if all rows are to be one user's, say so with --one-user (QUORON_ONE_USER=1)."
        )


def opened(path: Path, terms: Terms, dialect: Dialect | None = None, *more: str) -> tables.Opened:
    """Return a file with the columns that a run reads, as they are announced, and `more`. DataError for any other."""
    rules = terms.columns
    try:
        held = tables.opened(path, dialect)
        rules.check(held.empty(rules.columns))
        if more:
            held.empty(more)
    except DataError as error:
        raise DataError(f"Data file {str(path)!r}: {error}") from None
    return held


def unusable(path: Path, error: Exception) -> str:
    """Return what the owner reads of rows: consent must not depend on it, and other libraries may quote a value."""
    known = isinstance(error, DataError)
    said = str(error) if known else f"Expected rows that can be used, got {type(error).__name__}."
    return f"Data file {str(path)!r}: {said}"


def own_items(
    path: Path, terms: Terms, dialect: Dialect | None = None, *, user: str | None = None, people: int = 1
) -> OwnItems:
    """Return the items of the user whose rows are in `path`, or of each of so many people whom the column `user` names.

    Encoded as a population's table would be. A person's items are the first of its rows, as many as a number says that
    is the same for all. Raises DataError for a file that is not there, lacks a column, or has one stored as another
    type.
    """
    rules, loss, problem = terms.columns, terms.make_loss(), None
    held, width = opened(path, terms, dialect, *(() if user is None else (user,))), rules.dimension
    numbers = MOST_NUMBERS if user is None else MAX_NUMBERS_OF_ALL
    try:
        gathered, names, notice = _gathered(held, rules, user, max(1, numbers // (max(1, width) * people)))
    except Exception as error:
        nothing = ItemBatch(np.zeros((0, width), np.float32), np.zeros(0), np.zeros(2, np.int64))
        return OwnItems(bounded(_unusable(width) if user is None else nothing, loss), unusable(path, error))
    if notice is not None:
        notice = f"Data file {str(path)!r}: {notice}"
    if user is not None:
        batch = gathered.items(gathered.users + 1, zero_rows=False)
    elif gathered.block.kept.any():
        batch = gathered.items(1)
    else:
        batch, problem, notice = _unusable(width), notice, None
    return OwnItems(bounded(batch, loss), problem, notice, tuple(names))


def _gathered(
    held: tables.Opened, rules: Encoding, user: str | None, most: int
) -> tuple[Gathered, list[str], str | None]:
    """Return a file's rows, the first `most` of each person's, the persons' names, and what the owner should know."""
    gathering, rows, unnamed = Gathering(rules, user or _ONE, most, rows=held.rows), 0, False
    for batch in held.batches(tuple(dict.fromkeys((*rules.columns, *(() if user is None else (user,)))))):
        if user is None:
            batch = batch.append_column(_ONE, pa.array(np.zeros(batch.num_rows, np.int64)))
        elif (named := columns.somebodys(columns.users(batch, user))).false_count:
            batch, unnamed = batch.filter(named), True
        gathering.add(batch)
        rows += batch.num_rows
    gathered, said = gathering.end(), list[str]()
    count, dropped = len(gathered.owners), ~gathered.block.kept
    if rows > count:
        said.append(f"Expected at most {most:,} rows of one person, got more. Only the first so many count.")
    if dropped.any():
        needed = {"label", "weight", *(("number",) if rules.missing == "drop" else ())}  # or a row is left out
        those = [(place, column) for place, column in enumerate(fused.declared_columns(rules)) if column.kind in needed]
        unfit = {column.name: np.count_nonzero(gathered.block.unfit(place)[dropped]) for place, column in those}
        blamed = ", ".join(f"{name!r} ({many:,})" for name, many in unfit.items() if many)
        bad = int(np.count_nonzero(dropped))
        said.append(f"Expected rows that can be used, got {bad:,} of {count:,} that cannot, by column: {blamed}.")
    if unnamed:
        said.append("Expected rows of users, got some without one, which are left out.")
    return gathered, gathering.names, " ".join(said) or None


def _unusable(width: int) -> ItemBatch:
    """One item that is not finite."""
    return ItemBatch(np.full((1, width), np.nan, np.float32), np.zeros(1), np.array([0, 1]))


MAX_NUMBERS_OF_ALL = 1 << 30  # of all persons' items, 4 GiB: each has the same part of it, whatever the others hold


def names_in(path: Path, user: str, dialect: Dialect | None = None) -> list[str]:
    """The persons in a file, in the order of their names, whether their rows can be used or not. DataError for a file
    that cannot be read, has no such column, or rows of nobody."""
    try:
        numbering = Numbering(user)
        for batch in tables.opened(path, dialect).batches((user,)):
            numbering.add(batch)
            if numbering.is_full:
                numbering.numbers()
        numbering.ranks(without_rows=True)
        return numbering.names()
    except DataError as error:
        raise DataError(f"Data file {str(path)!r}: {error}") from None
