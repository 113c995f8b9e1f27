"""What every feature answers: whoever reads a table asks a feature, never which kind it is.

Each value is read alone, by `read(table)`, in one of two ways:

| `is_number` | `read` gives                                            | becomes                            |
| ----------- | ------------------------------------------------------- | ---------------------------------- |
| true        | numbers, (N,) float64, NaN where there is none          | one column, [low, high] to [-1, 1] |
| false       | codes, (N,) int64 below `width`, -1 where there is none | `width` columns of which one is 1  |

A row without a number cannot be used, or has the middle; one without a code is all zeros. Where `middle` is a code, not
None, a row without one is like a row without a number: it cannot be used, or has that code.
"""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.kernels.on_first_use import OnFirstUse

if TYPE_CHECKING:  # a coordinator has rules, but no table
    import pyarrow as pa

    from quoron_client.data import columns as columns
else:
    columns = OnFirstUse("quoron_client.data.columns")  # it brings pyarrow: for all declarations, here

Vector = NDArray[np.float64]
Codes = NDArray[np.int64]
Misfit = tuple[Literal["number", "category"], str, str]  # what it is, what does not fit in words, and the fix


class Kind(ABC):
    """What is true of most; a kind of its own says what differs, and how it is read."""

    __slots__ = ()
    column: str  # the table's, that it is made of
    low: float  # of a number only: the public least
    high: float  # and largest

    @property
    def title(self) -> str:
        """What people call it: the column, with the part of it where there are several."""
        return self.column

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """Names of the columns it becomes."""

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
        """Whether `read` gives numbers; else codes."""
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
        """The code of a row without one under `missing="midpoint"`; None where it is all zeros."""
        return None

    @property
    @abstractmethod
    def misfit(self) -> Misfit:
        """What it is, what a value is that does not fit, in words, and the fix."""

    def check(self, table: "pa.Table") -> None:
        """Raises DataError unless the table has the column once, of a type that can be read; looks at no value."""
        columns.check(table, self.column)

    @abstractmethod
    def read(self, table: "pa.Table") -> NDArray[Any]:
        """Numbers or codes of all rows, shape (N,), as `is_number` says. Raises DataError as `check` does."""
