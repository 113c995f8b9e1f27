"""What a mechanism reads of a cohort, what it has made public, and what counts as a neighbour: words that all share.

Where single rows are not needed a mechanism reads sums, exact in integers. Those of parts of a cohort add to those of
the whole, in any order, so they can be made where the rows are: by threads, by other processes, on a device. Loops that
make them are beside their mechanisms.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

import numpy as np

from quoron_privacy.arrays import Integers, Mask, Matrix
from quoron_privacy.errors import ConfigError, count

Adjacency = Literal["replace-one", "zero-out", "none"]
# Of a block of two servers' rows (two_servers.spec): name, kind, numbers, and its unit in deviations of all noise.
MaskedBlock = tuple[str, str, int, float]
LENGTHS = ("radius", "scale", "sensitivity")  # parameters in the unit of the value itself


@dataclass(frozen=True, slots=True)
class Release:
    """One value made public by a mechanism: its ledger entry, without the value itself."""

    mechanism: str  # "gaussian", "outlier-filter", ...
    parameters: Mapping[str, float]  # scale, sensitivity, ...

    def scaled(self, radius: float) -> "Release":
        """Return the entry of the same value `radius` times as long: whatever is a length in it is multiplied."""
        lengths = {name: radius * value for name, value in self.parameters.items() if name in LENGTHS}
        return Release(self.mechanism, {**self.parameters, **lengths})


@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """Sums over users, exact in integers. Those of disjoint parts of a cohort add, in any order, to those of all."""

    total: Annotated[Integers, "d"]  # on the reduction's grid
    cells: Annotated[Integers, "c"]  # what the norms of users' rows say, c = 4
    clipped: Annotated[int, range(1 << 31)]  # rows that were shortened
    answered: Annotated[int, range(1 << 31)]  # rows counted

    def __add__(self, other: "Sums") -> "Sums":
        return Sums(
            self.total + other.total,
            self.cells + other.cells,
            self.clipped + other.clipped,
            self.answered + other.answered,
        )


@dataclass(frozen=True, slots=True, eq=False)
class NoisySums(Sums):
    """The sum of a cohort's weighted rows with the noise of two servers in it, in steps: released as it stands.

    A step is 2⁻³⁰ deviations of one server's noise. What a mechanism makes of it is arithmetic on what is public. There
    are no `cells`, and who was `clipped` is not reported: what rows say of their norms is in `total`.
    """

    @classmethod
    def of(cls, total: Integers, answered: int) -> "NoisySums":
        """Return all blocks of a round, one after the other, (k,), of so many users as both servers see."""
        return cls(total, np.zeros(4, np.int64), 0, answered)

    def __getitem__(self, block: slice) -> "NoisySums":
        return NoisySums.of(self.total[block], self.answered)


class Reduction(Protocol):
    """All that a mechanism reads of a cohort's rows: single rows are not needed."""

    def of(self, values: Matrix, answered: Mask) -> Sums:
        """Return the sums of some of the cohort's users; values (k, d), answered (k,)."""


def sum_bits(rows: int, divisor: int) -> int:
    """b such that `rows` integers of magnitude at most 2ᵇ sum to less than 2⁶²; depends on the divisor alone.

    At most 51, so that one addition makes integers of floats (`simd.whole`).
    ConfigError beyond 64 · divisor rows: more than a planned divisor can be wrong by.
    """
    count(divisor=divisor)
    if rows > 64 * divisor:
        raise ConfigError(f"Expected at most 64 * divisor rows, got {rows} with divisor={divisor}.")
    return min(51, 56 - divisor.bit_length())


def packed(dimension: int, rows: int | None = None) -> int:
    """d (d + 1) / 2: numbers in the vector of a symmetric matrix, and in a triangular factor, or its first few rows."""
    count(dimension=dimension)
    left = 0 if rows is None else max(0, dimension - rows)
    return (dimension * (dimension + 1) - left * (left + 1)) // 2


def guaranteed(
    epsilon: float,
    delta: float,
    adjacency: str,
    against: str,
    theorem: str,
    *,
    whom: str = "user",
    assuming: Iterable[str] = (),
) -> str:
    """Return how the sentence of every guarantee begins, without its full stop."""
    assumed = "; ".join(assuming)
    return (
        f"({epsilon:g}, {delta:g})-differential privacy for all items of any one {whom} at once, adjacency "
        f"{adjacency}: protects against {against}{f'; assuming {assumed}' if assumed else ''}; by {theorem}"
    )
