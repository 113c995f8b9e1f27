"""Whose each row of a table is: users are numbered in the order of their names, however their rows come."""

import hashlib

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
        """Return users that have a number."""
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
        if self.waiting:
            self.numbers()
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
        """Return the names that were met, and these with those that are declared alone."""
        known = self._known if self._known is not None else pa.nulls(0, pa.large_string())
        read = (columns.users(pa.table({self._user: names}), self._user) for names in self._declared)
        return known, pc.unique(pa.concat_arrays([known, *read])).drop_null() if self._declared else known
