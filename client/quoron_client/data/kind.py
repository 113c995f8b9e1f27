"""What every feature answers: whoever reads a table asks a feature, never which kind it is.

Each is read in one of two ways, of each value alone:

| `is_number` | is read by                                                       | becomes                            |
| ----------- | ---------------------------------------------------------------- | ---------------------------------- |
| true        | `values(table)`, (N,) float64, NaN where there is none           | one column, [low, high] to [-1, 1] |
| false       | `codes(table)`, (N,) int64 below `width`, -1 where there is none | `width` columns of which one is 1  |

A row without a number cannot be used, or has the middle; one without a code is all zeros. Where `middle` is a code, not
None, a row without one is like a row without a number: it cannot be used, or has that code.
"""

from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.kernels.on_first_use import OnFirstUse

if TYPE_CHECKING:  # a coordinator has rules, but no table
    import pyarrow as pa

    from quoron_client.data import columns
else:
    columns = OnFirstUse("quoron_client.data.columns")  # it brings pyarrow

Vector = NDArray[np.float64]
Codes = NDArray[np.int64]
Misfit = tuple[Literal["number", "category"], str, str]  # what it is, what does not fit in words, and the fix


class Kind:
    """What is true of most; a kind of its own says what differs."""

    __slots__ = ()
    column: str  # the table's, that it is made of
    low: float  # of a number only: the public least
    high: float  # and largest

    @property
    def title(self) -> str:
        """What people call it: the column, with the part of it where there are several."""
        return self.column

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns it becomes."""
        raise NotImplementedError

    @property
    def width(self) -> int:
        """How many columns it becomes."""
        return 1

    @property
    def implied(self) -> int:
        """Columns it becomes that its declaration does not list one by one: a few bytes may stand for many."""
        return 0

    @property
    def is_number(self) -> bool:
        """Whether it is read by `values`; else by `codes`."""
        return False

    @property
    def is_stored(self) -> bool:
        """Whether its numbers are those of the column as it is stored."""
        return False

    @property
    def is_open(self) -> bool:
        """Whether its public values are still to be found in the data. For simulation only."""
        return False

    @property
    def middle(self) -> int | None:
        """The code of a row without one under `missing="middle"`; None where it is all zeros."""
        return None

    @property
    def misfit(self) -> Misfit:
        """What it is, what a value is that does not fit, in words, and the fix."""
        raise NotImplementedError

    def check(self, table: "pa.Table") -> None:
        """Raises DataError unless the table has the column once, of a type that can be read; looks at no value."""
        columns.check(table, self.column)

    def values(self, table: "pa.Table") -> Vector:
        """Numbers of all rows, shape (N,), NaN where a value is none. Raises DataError as `check` does."""
        raise NotImplementedError

    def codes(self, table: "pa.Table") -> Codes:
        """Which of its columns is 1, of all rows, shape (N,); -1 for none. Raises DataError as `check` does."""
        raise NotImplementedError
