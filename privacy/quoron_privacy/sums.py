"""What a mechanism reads of a cohort where single rows are not needed: sums, exact in integers.

Sums of parts of a cohort add to the sums of the whole, in any order, so they can be made where the rows are: by
threads, by other processes, on a device. Here is what they are, and what makes them; loops are beside their mechanisms.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]
Mask = NDArray[np.bool_]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """Sums over users, exact in integers. Those of disjoint parts of a cohort add, in any order, to those of all."""

    total: Integers  # on the reduction's grid, (d,)
    cells: Integers  # users by the norm of their row, (4,)
    clipped: int  # rows that were shortened
    answered: int  # rows counted

    def __add__(self, other: "Sums") -> "Sums":
        return Sums(
            self.total + other.total,
            self.cells + other.cells,
            self.clipped + other.clipped,
            self.answered + other.answered,
        )


class Reduction(Protocol):
    """All that a mechanism reads of a cohort's rows: single rows are not needed."""

    def of(self, values: Matrix, answered: Mask) -> Sums:
        """The sums of some of the cohort's users; values (k, d), answered (k,)."""


class LoopReduction(Reduction, Protocol):
    """One that a compiled loop makes of rows while they are in cache."""

    def around(self, dimension: int) -> Vector:
        """The centre, (d,)."""

    @property
    def scales(self) -> tuple[float, float, float]:
        """Clip norm, quantile radius, steps of the grid in one clip norm."""

    @property
    def adding(self) -> int:
        """Address of the loop, a `cfunc` of type `clipping.SUMMING`.

        The first four of its counts are `Sums.cells`, the fifth is `Sums.clipped`.
        """
