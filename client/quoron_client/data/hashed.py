"""A text of too many values to list them: each falls into one of a declared number of buckets, by a public hash.

    >>> import pyarrow as pa
    >>> Hashed("code", 64).codes(pa.table({"code": ["E11.9", "I10", None, "E11.9"]})).tolist()
    [51, 57, -1, 51]

The bucket of a value is SipHash-2-4 of its text in UTF-8 modulo the number of buckets. The key, 16 bytes of BLAKE2b of
the column's name, is public: two columns fall together in different places, and whoever picks values that do moves his
own rows alone. Which bucket a value has depends on nothing else: not on the machine, the file or what others hold.

Source: Aumasson & Bernstein (2012), SipHash: a fast short-input PRF.
"""

from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import ConfigDict

from quoron_client.data import spans
from quoron_client.data.kind import Codes, Kind, Misfit
from quoron_privacy.errors import ConfigError
from quoron_privacy.kernels.on_first_use import OnFirstUse

if TYPE_CHECKING:  # a coordinator has rules, but no table
    import pyarrow as pa

    from quoron_client.data import columns, hashed_loops
else:
    columns = OnFirstUse("quoron_client.data.columns")  # it brings pyarrow
    hashed_loops = OnFirstUse("quoron_client.data.hashed_loops")  # compiled


@dataclass(frozen=True, slots=True)
class Hashed(Kind):
    """One 0/1 column for each bucket that a value's hash may fall into; a missing value is all zeros."""

    column: str
    buckets: int

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    def __post_init__(self) -> None:
        whole: Any = self.buckets
        if type(whole) is not int or not 2 <= whole <= spans.MOST:
            raise ConfigError(
                f"Expected from 2 to {spans.MOST:,} buckets for column {self.column!r}, got {whole!r}. Some four times "
                "the values that matter keep most of them apart."
            )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns it becomes."""
        return tuple(f"{self.column} in bucket {place} of {self.buckets}" for place in range(self.buckets))

    @property
    def width(self) -> int:
        """How many columns it becomes."""
        return self.buckets

    @property
    def implied(self) -> int:
        """All of them."""
        return self.buckets

    @property
    def misfit(self) -> Misfit:
        """What it is, what a value is that does not fit, in words, and the fix."""
        return "category", "missing", "If it is missing, all is well."

    def codes(self, table: "pa.Table") -> Codes:
        """The bucket of each value's text, shape (N,); -1 where it is missing. Raises DataError as `check` does."""
        values = columns.texts(table, self.column)
        key = np.frombuffer(blake2b(self.column.encode(errors="replace"), digest_size=16).digest(), "<u8")
        found = np.empty(len(values), np.int64)
        hashed_loops.buckets(*columns.letters(values), int(key[0]), int(key[1]), self.buckets, found)
        found[columns.missing(values)] = -1
        return found
