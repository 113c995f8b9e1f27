"""Whose each row of a table is, and which rows of one user count: the first so many, by a public number.

    >>> max_rows(items_per_user=5, features=20, weighted=False)
    762600
    >>> first_rows(np.array([0, 1, 0, 0]), 2).tolist()
    [True, True, True, False]

Nobody's rows may decide how much memory and time a run takes: a user with 6·10⁷ rows would end it, and whether a run
ends is something that others see. So a user's items are the first `max_rows` of its rows: TIMES the declared items per
user, or as many as take BYTES, whichever is more. That number follows from declarations alone. Whether a row is among
the first of its user depends on that user's own rows and their order alone. So for tables that differ in one user the
items of all others are the same, and every guarantee for a user's data holds as it is.
"""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from quoron_client.data import columns
from quoron_client.data.users import Numbering

FIRST = 1 << 20  # rows that are read before any is left out


def group(table: pa.Table, user: str, *, without_rows: bool = False) -> tuple[int, NDArray[np.int64]]:
    """Return the number of users n, and whose each row is, shape (N,): users are numbered in the order of their names.

    All rows count, whether they can be used or not, so that n does not depend on values. A categorical column may
    declare users that have no row (any more): with `without_rows` they count too. Raises DataError for a row without a
    user, which is nobody's, and else for such users.
    """
    numbering = Numbering(user)
    numbering.add(table)
    numbers = numbering.numbers()
    users, ranks = numbering.ranks(without_rows=without_rows)
    return users, ranks[numbers].astype(np.int64)


TIMES = 1000  # the declared items per user
BYTES = 1 << 26  # of one user's items, that are never too many


def max_rows(items_per_user: int, features: int, *, weighted: bool) -> int:
    """Return rows of one user that count, at most, of a table whose rows become so many features."""
    width = 4 * features + 8 * (1 + weighted)
    return max(TIMES * items_per_user, BYTES // width)


def first_rows(owners: NDArray[np.int64], most: int) -> NDArray[np.bool_]:
    """Return which rows (N,) are among the first `most` of their user, row i being that of user owners[i]."""
    counted = np.ones(len(owners), np.bool_)
    many = np.bincount(owners) > most if len(owners) > most else np.zeros(0, np.bool_)
    if many.any():
        rows = np.flatnonzero(many[owners])
        rows = rows[np.argsort(owners[rows], kind="stable")]
        counted[rows] = before(owners[rows], np.ones(len(rows), np.int64)) < most
    return counted


def before(users: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Of runs that lie user by user, run i being `rows[i]` rows of users[i]: rows of the same user before each (R,)."""
    all_before = np.cumsum(rows) - rows
    begins = np.flatnonzero(np.diff(users, prepend=users[:1] - 1))
    lengths = np.diff(np.append(begins, len(users)))
    return all_before - np.repeat(all_before[begins], lengths)


def first_rows_of_users(table: pa.Table, user: str, most: int) -> pa.Table:
    """Return the first `most` rows of each user of the column `user`; a row without a user is one of nobody's."""
    coded = columns.users(table, user).dictionary_encode(null_encoding="encode")
    counted = first_rows(coded.indices.to_numpy(zero_copy_only=False).astype(np.int64), most)
    return table.filter(pa.array(counted))
