"""Whose each row of a table is: users are numbered in the order of their names, however their rows come.

How many rows of one user count: the first so many in the table's own order, by a number that is public.

    >>> most_rows(items_per_user=5, features=20, weighted=False)
    762600
    >>> first_rows(np.array([0, 1, 0, 0]), 2).tolist()
    [True, True, True, False]

Nobody's rows may decide how much memory and time a run takes: a user with 6·10⁷ rows would end it, and whether a run
ends is something that others see. So a user's items are the first `most_rows` of its rows: TIMES the declared items per
user, or as many as take BYTES, whichever is more. That number follows from declarations alone. Whether a row is among
the first of its user depends on that user's own rows and their order alone. So for tables that differ in one user the
items of all others are the same, and every guarantee for a user's data holds as it is.
"""

import hashlib
import sys

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from quoron_client.data import columns
from quoron_privacy.errors import DataError

Codes = NDArray[np.int32]
_FIRST = 1 << 20  # rows that wait before they are numbered
_BYTES = 1 << 26  # of their names: one user's name may be long


class Numbering:
    """The users of a table that is read batch by batch. Names are kept once each, and for rows that wait."""

    def __init__(self, user: str) -> None:
        self.waiting = 0  # rows without a number yet
        self._user, self._bytes = user, 0
        self._known: pa.Array | None = None  # names, in the order in which they were met
        self._values: list[pa.Array] = []
        self._declared: list[pa.Array] = []  # by a categorical column, whether they have rows or not

    def __len__(self) -> int:
        """Users that have a number."""
        return 0 if self._known is None else len(self._known)

    @property
    def is_full(self) -> bool:
        """Whether rows that wait are to be numbered: they, or their names, take more room than what is kept."""
        kept = 0 if self._known is None else self._known.nbytes
        return self.waiting >= max(_FIRST, len(self)) or self._bytes >= max(_BYTES, kept)

    def add(self, table: pa.Table) -> None:
        """The rows that follow."""
        values = columns.users(table, self._user)
        self._values.append(values)
        self.waiting += len(values)
        self._bytes += values.nbytes
        for chunk in table.column(self._user).chunks:
            if pa.types.is_dictionary(chunk.type) and not any(map(chunk.dictionary.equals, self._declared[-1:])):
                self._declared.append(chunk.dictionary)

    def numbers(self) -> Codes:
        """Of all rows that wait: their users by the order in which they were met."""
        known = len(self)
        both = pa.concat_arrays([*([] if self._known is None else [self._known]), *self._values])
        coded = both.dictionary_encode(null_encoding="encode")
        self._known, self._values, self.waiting = coded.dictionary, [], 0
        self._bytes = 0
        return np.asarray(columns.stored(coded.indices)[known:], np.int32)

    def ranks(self, *, without_rows: bool) -> tuple[int, Codes]:
        """Return how many users there are, and the number of each that was met, in the order of their names.

        Those that a categorical column declares and that have no row (any more) count `without_rows`; else they are a
        DataError, as is a row without a user, which is nobody's.
        """
        known, named = self._named()
        columns.check_users(known, self._user)
        if len(named) > len(known) and not without_rows:
            raise DataError(
                f"Expected items for every user of column {self._user!r}, got declared users without any; drop unused "
                "categories."
            )
        ranks = np.empty(len(named), np.int32)
        ranks[columns.stored(pc.sort_indices(named))] = np.arange(len(named))
        return len(named), ranks[: len(known)]

    def names(self) -> list[str]:
        """Of all users, with rows or without, as text, in the order of their numbers."""
        return list(self._texts().to_pylist())

    @property
    def digest(self) -> bytes:
        """Of the same: of users that are numbered otherwise another. Private, since names are."""
        letters, ends = columns.letters(self._texts())
        found = hashlib.blake2b(np.diff(ends).tobytes(), digest_size=32, person=b"quoron-users")
        found.update(letters[ends[0] : ends[-1]].tobytes())
        return found.digest()

    def _texts(self) -> pa.Array:
        named = self._named()[1]
        values = named.take(pc.sort_indices(named))
        try:
            return columns.texts(pa.table({self._user: values}), self._user)
        except DataError:  # dates and the like
            return values.cast(pa.large_string())

    def _named(self) -> tuple[pa.Array, pa.Array]:
        """The names that were met, and these with those that are declared alone."""
        known = self._known if self._known is not None else pa.nulls(0, pa.large_string())
        read = (columns.users(pa.table({self._user: each}), self._user) for each in self._declared)
        return known, pc.unique(pa.concat_arrays([known, *read])).drop_null() if self._declared else known


def group(table: pa.Table, user: str, *, without_rows: bool = False) -> tuple[int, NDArray[np.int64]]:
    """Return the number of users n, and whose each row is, shape (N,): users are numbered in the order of their names.

    All rows count, whether they can be used or not, so that n does not depend on values. A categorical column may
    declare users that have no row (any more): with `without_rows` they count too. Raises DataError for a row without a
    user, which is nobody's, and else for such users.
    """
    found = Numbering(user)
    found.add(table)
    numbers = found.numbers()
    many, ranks = found.ranks(without_rows=without_rows)
    return many, ranks[numbers].astype(np.int64)


TIMES = 1000  # the declared items per user
BYTES = 1 << 26  # of one user's items, that are never too many


def most_rows(items_per_user: int, features: int, *, weighted: bool) -> int:
    """Return rows of one user that count, at most, of a table whose rows become so many features."""
    width = 4 * features + 8 * (1 + weighted)
    return max(TIMES * items_per_user, BYTES // width)


def first_rows(owners: NDArray[np.int64], most: int) -> NDArray[np.bool_]:
    """Return which rows (N,) are among the first `most` of their user, row i being that of user owners[i]."""
    kept = np.ones(len(owners), np.bool_)
    many = np.bincount(owners) > most if len(owners) > most else np.zeros(0, np.bool_)
    if many.any():
        rows = np.flatnonzero(many[owners])
        rows = rows[np.argsort(owners[rows], kind="stable")]
        kept[rows] = before(owners[rows], np.ones(len(rows), np.int64)) < most
    return kept


def before(users: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Of runs that lie user by user, run i being `rows[i]` rows of users[i]: rows of the same user before each (R,)."""
    all_before = np.cumsum(rows) - rows
    begins = np.flatnonzero(np.diff(users, prepend=users[:1] - 1))
    lengths = np.diff(np.append(begins, len(users)))
    return all_before - np.repeat(all_before[begins], lengths)


def only_first(table: pa.Table, owners: NDArray[np.int64], most: int) -> tuple[pa.Table, NDArray[np.int64]]:
    """Return the first `most` rows of every user of a table, and whose each is; the table itself if nobody has more."""
    kept = first_rows(owners, most)
    return (table, owners) if kept.all() else (table.filter(pa.array(kept)), owners[kept])


class Reading:
    """A table that is read piece by piece, of which never more is in memory than twice what counts, and a little.

    The user column is `user`; without one all rows are one user's. A row without a user is one of nobody's.
    """

    def __init__(self, most: int, user: str | None = None) -> None:
        self._most, self._user = most, user
        self._parts: list[pa.Table] = []
        self._rows, self._next = 0, max(_FIRST, most)

    @classmethod
    def all(cls) -> "Reading":
        """Of which every row counts."""
        return cls(sys.maxsize)

    def add(self, part: pa.Table) -> None:
        """The rows that follow."""
        if self._user is None:
            part = part.slice(0, max(0, self._most - self._rows))
            if not part.num_rows and self._parts:
                return
        self._parts.append(part)
        self._rows += part.num_rows
        if self._user is not None and self._rows > self._next:
            self._parts = [self._cut(pa.concat_tables(self._parts))]
            self._rows = self._parts[0].num_rows
            self._next = 2 * max(self._rows, self._next // 2)

    def _cut(self, table: pa.Table) -> pa.Table:
        coded = columns.users(table, str(self._user)).dictionary_encode(null_encoding="encode")
        kept = first_rows(coded.indices.to_numpy(zero_copy_only=False).astype(np.int64), self._most)
        return table if kept.all() else _in_one_piece(table.filter(pa.array(kept)))

    def table(self) -> pa.Table:
        """Return the table; a user with too many rows still has some more than `most`."""
        return pa.concat_tables(self._parts)


def _in_one_piece(table: pa.Table) -> pa.Table:
    """But for categories: what words several dictionaries have decides whether Arrow can make one of them."""
    coded = [pa.types.is_dictionary(each.type) for each in table.schema]
    plain = iter(table.select(np.flatnonzero(np.logical_not(coded)).tolist()).combine_chunks().columns)
    parts = [whole if own else next(plain) for own, whole in zip(coded, table.columns, strict=True)]
    return pa.table(parts, schema=table.schema)
