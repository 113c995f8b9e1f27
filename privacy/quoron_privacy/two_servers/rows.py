"""Integer rows of users, by what a round asks, and their exact sums in ℤ/2⁶⁴.

    >>> sheet = RoundSheet((Block("gradient", 2, 1 << 28, "clipped"),))
    >>> reduction = ClippedRows(sheet, norm=1.0)
    >>> rows = reduction.rows(np.array([[0.6, 0.8], [np.nan, 0.0]]), np.array([True, True]))
    >>> (rows[0] / 2**28).round(6).tolist(), rows[1].tolist()
    ([0.6, 0.8], [0, 0])

A row is what one user masks: weights, the root of two of a moment's entries and all else stand *in* it, so that nothing
but a sum in whole steps is left to do. Everything is cut towards zero, and a row that is not finite, too long in exact
integers or not there is the zero row. Statement and proofs: docs/privacy/two-servers.md#rows.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.errors import ConfigError, RunError
from quoron_privacy.means.clipping import clip_rows
from quoron_privacy.release import packed
from quoron_privacy.two_servers.ring import fits
from quoron_privacy.two_servers.sheet import Block as Block
from quoron_privacy.two_servers.sheet import RoundSheet

Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]
Mask = NDArray[np.bool_]
Integers = NDArray[np.int64]
Words = NDArray[np.uint64]

ROOT = 1.4142135623730949  # below √2


@dataclass(frozen=True, slots=True, eq=False)
class RingSums:
    """A sum of rows in the ring. What an engine hands out holds the helper's noise, and the chain it is labelled by.

    Not a number before the coordinator's own noise is in: no float, no comparison, no log.
    """

    total: Words  # (k,)
    chain: bytes | None = None  # None until the helper's noise is in
    answered: int = 0  # rows that are in it: both servers know whose

    def __add__(self, other: "RingSums") -> "RingSums":
        if self.chain is not None or other.chain is not None:
            raise RunError("Expected sums without noise to add to one another, got one that holds the helper's.")
        return RingSums(self.total + other.total, None, self.answered + other.answered)


class RingReduction(Protocol):
    """All that a round reads of users' answers, as rows of whole steps."""

    @property
    def sheet(self) -> RoundSheet:
        """What the plan says of the round."""

    @property
    def chains(self) -> tuple[bytes, ...]:
        """Those after the lists of the rounds before: what the helper's noise is labelled by, with this round's."""

    def rows(self, values: Matrix, answered: Mask) -> Integers:
        """The row of each user, (users, k): what a client masks."""

    def of(self, values: Matrix, answered: Mask) -> RingSums:
        """Their exact sum."""


def admitted(rows: Integers, sheet: RoundSheet) -> Integers:
    """`rows`, with zeros for those that are longer than the sheet admits."""
    for row in rows:
        if not fits(row, sheet):
            row[:] = 0
    return rows


def total(rows: Integers, answered: Mask) -> RingSums:
    """The sum of rows, (users, k), in the ring."""
    made: Words = np.ascontiguousarray(rows).view(np.uint64).sum(axis=0, dtype=np.uint64)
    return RingSums(made, None, int(np.count_nonzero(answered)))


@dataclass(frozen=True, slots=True, eq=False)
class ClippedRows:
    """⌊U clip_C(v - c) / C⌋, towards zero; any two are at most 2U apart, exactly."""

    sheet: RoundSheet  # one block, "clipped"
    norm: float  # C
    centre: Vector | None = None  # c, (d,); None is zero
    chains: tuple[bytes, ...] = ()

    def rows(self, values: Matrix, answered: Mask) -> Integers:
        """See RingReduction."""
        (block,) = self.sheet.blocks
        unit = clip_rows(np.where(answered[:, None], values, 0.0), self.norm, self.centre) / self.norm
        return admitted(np.trunc(np.where(answered[:, None], unit, 0.0) * block.unit).astype(np.int64), self.sheet)

    def of(self, values: Matrix, answered: Mask) -> RingSums:
        """See RingReduction."""
        return total(self.rows(values, answered), answered)


@dataclass(frozen=True, slots=True, eq=False)
class MomentRows:
    """⌊U vec(ZᵀZ)⌋, towards zero, Z a triangular factor over R in the unit ball; entries off the diagonal times √2."""

    sheet: RoundSheet  # one block, "moment", of d (d + 1) / 2 numbers
    dimension: int  # d
    norm: float  # R
    chains: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        if self.sheet.length != packed(self.dimension):
            raise ConfigError(f"Expected a block of {packed(self.dimension)} numbers, got {self.sheet.length}.")

    def rows(self, values: Matrix, answered: Mask) -> Integers:
        """See RingReduction."""
        (block,) = self.sheet.blocks
        across, down = np.triu_indices(self.dimension)
        isometric = np.where(across == down, 1.0, ROOT) * block.unit
        usable = clip_rows(np.where(answered[:, None], values, 0.0), self.norm) / self.norm
        made = np.zeros(usable.shape, np.int64)
        factor = np.zeros((self.dimension, self.dimension))
        for row, own in zip(made, usable, strict=True):
            factor[across, down] = own
            row[:] = np.trunc((factor.T @ factor)[across, down] * isometric)
        return admitted(made, self.sheet)

    def of(self, values: Matrix, answered: Mask) -> RingSums:
        """See RingReduction."""
        return total(self.rows(values, answered), answered)
