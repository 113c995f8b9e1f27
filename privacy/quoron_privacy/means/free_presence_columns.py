"""Where each column lies and how wide it is: a mean over users of a few bounded numbers a column.

A user's moment tells the mean of its items and their root mean square about any place, column by column. Looked at in a
window about c of half width w, with μ the mean, r the root mean square about c:

    m = clip((μ - c) / w, ±1)    s = min(r / w, 1)    q = s²    z = 1[all items are at -1], 1[at 0], 1[at 1]

|m| <= s <= 1, so the squares of what two users differ by in these, 3/2 of those of s and q and half of those of z, are
never more than 5 together, where those of m alone may be 4. Statement and proof: docs/privacy/free-presence.md#p6.
"""

from dataclasses import dataclass
from math import sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.errors import ConfigError, VerificationError, count
from quoron_privacy.gaussian import GaussianNoise, mean_sensitivity
from quoron_privacy.kernels.on_first_use import OnFirstUse
from quoron_privacy.means.free_presence import Rows, each_piece
from quoron_privacy.noise.streams import RandomStream
from quoron_privacy.release import MaskedBlock, NoisySums, Release, Sums, packed, sum_bits

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
Mask = NDArray[np.bool_]

loops = OnFirstUse("quoron_privacy.means.free_presence_loops")

KINDS = 6  # of numbers a column: m, s, q and z at three places
HERE = 0.3162277  # below √0.1: what says "here", beside 4.5/5 of a row
WEIGHTS = sqrt(1 / 5), sqrt(1.5 / 5), sqrt(1.5 / 5), *(sqrt(0.5 / 5),) * 3  # times 1 / √k


class Columns(NamedTuple):
    """A release of `ColumnMean`, (k,) or (3, k); noise included, so any number."""

    mean: Vector  # of m
    spread: Vector  # of s
    square: Vector  # of q
    still: Matrix  # of z, at -1, 0 and 1
    presence: float


@dataclass(frozen=True, slots=True)
class ColumnMean:
    """N(0, scale²) on the mean of (m, s, q, z) of k columns, weighted, over √k, and of who is here.

    Formal guarantee: `effective_mu`-GDP with exact noise under either adjacency (free-presence#p6), for every answer of
    every user. It draws 6k + 1 Gaussian samples.

    | input                                                              | what happens                   |
    | ------------------------------------------------------------------ | ------------------------------ |
    | outside its window                                                 | as at its end                  |
    | non-finite factor, no item beside a constant feature, absent user | the zero row; the divisor stays |
    """

    columns: int  # k
    users: int  # n, the divisor
    scale: float  # of each number of a row of length 1 at most

    def __post_init__(self) -> None:
        count(columns=self.columns, users=self.users)
        _ = self._gaussian

    @classmethod
    def for_mu(cls, *, columns: int, users: int, mu: float) -> "ColumnMean":
        """The least noise for a μ-GDP release; Infeasible if rounding to the grid alone costs μ."""
        sensitivity = column_sensitivity(columns, users)
        noise = GaussianNoise.for_mu(sensitivity=sensitivity, mu=mu, dimension=KINDS * columns + 1)
        return cls(columns, users, noise.scale)

    @property
    def effective_mu(self) -> float:
        """μ of the release."""
        return self._gaussian.effective_mu(KINDS * self.columns + 1)

    @property
    def deviations(self) -> tuple[float, float, float, float]:
        """Of a number of the mean, of the spread, of the square and of the shares at a place."""
        mean, spread, square, still = (self.scale * sqrt(self.columns) / each for each in WEIGHTS[:4])
        return mean, spread, square, still

    @property
    def presence_deviation(self) -> float:
        """Of the share of users who answer."""
        return self.scale / HERE

    def release(
        self, factors: Rows, answered: Mask, windows: Matrix, scale: float, constant: bool, stream: RandomStream
    ) -> Columns:
        """From factors (n, d (d + 1) / 2); see `ColumnSum`."""
        return self.release_sums(ColumnSum(self.users, windows, scale, constant).of(factors, answered), stream)

    def release_sums(self, sums: Sums, stream: RandomStream) -> Columns:
        """From the sums that `ColumnSum` makes."""
        row: Vector | NoisySums = sums if isinstance(sums, NoisySums) else self._mean(sums)
        noised = self._gaussian.release(row, stream)
        own = noised[:-1].reshape(KINDS, self.columns) * (sqrt(self.columns) / np.array(WEIGHTS))[:, None]
        return Columns(own[0], own[1], own[2], own[3:], float(noised[-1]) / HERE)

    @property
    def masked(self) -> tuple[MaskedBlock, ...]:
        """Of a user: its row."""
        return (("columns", "columns", KINDS * self.columns + 1, 1 / self.users / self.scale),)

    def _mean(self, sums: Sums) -> Vector:
        unit = 2.0 ** sum_bits(sums.answered, self.users)
        return np.append(sums.total / unit, HERE * float(sums.cells[0])) / self.users

    def entry(self) -> Release:
        """The ledger entry of the release."""
        parameters = {"sensitivity": self._gaussian.sensitivity, "scale": self.scale, "divisor": self.users}
        return Release("column-mean", parameters | {"columns": self.columns})

    @property
    def _gaussian(self) -> GaussianNoise:
        return GaussianNoise(column_sensitivity(self.columns, self.users), self.scale)


@dataclass(frozen=True, slots=True, eq=False)
class ColumnSum:
    """Σ ⌊row 2ᵇ⌋ towards zero over factors, row of length 1 at most, and in the first of `cells` who is here.

    Columns are numbers over the constant feature where there is one, the last, else numbers times `scale`.
    """

    users: int  # n, the divisor
    windows: Matrix  # (2, k): centres, half widths
    scale: float
    constant: bool

    def __post_init__(self) -> None:
        count(users=self.users)
        windows = np.asarray(self.windows)
        sound = windows.ndim == 2 and windows.shape[0] == 2 and windows.shape[1] > 0 and np.isfinite(windows).all()
        if not (sound and (windows[1] > 0).all() and 0 < self.scale < np.inf):
            raise ConfigError("Expected windows of shape (2, k), finite, half widths above 0, got others.")

    @property
    def length(self) -> int:
        """Of a row, but for who is here."""
        return KINDS * int(np.shape(self.windows)[1])

    @property
    def numbers(self) -> int:
        """Of a factor."""
        return packed(int(np.shape(self.windows)[1]) + self.constant)

    def weights(self, unit: float) -> Vector:
        """Of a number of each kind, (KINDS,): what it is at most, in steps of which `unit` are 1."""
        return np.array(WEIGHTS) / sqrt(np.shape(self.windows)[1]) * unit

    def of(self, factors: Rows, answered: Mask) -> Sums:
        """See clipping.Reduction. ConfigError for factors of another length."""
        sums: list[tuple[NDArray[np.int64], int]] = []

        def added(rows: Matrix, own: slice) -> None:
            total = np.zeros(self.length, np.int64)
            sums.append((total, self.add(rows, answered[own], 2.0 ** sum_bits(0, self.users), total)))

        each_piece(factors, self.numbers, added)
        total = sum((each for each, _ in sums), np.zeros(self.length, np.int64))
        here = sum(each for _, each in sums)
        return Sums(total, np.array([here, 0, 0, 0], np.int64), 0, int(np.count_nonzero(answered)))

    def add(self, rows: Matrix, answered: Mask, unit: float, total: NDArray[np.int64]) -> int:
        """Add rows to the total, and say how many there are."""
        weights = self.weights(unit)
        windows = np.ascontiguousarray(self.windows, np.float64)
        return int(loops.sum_columns(rows, answered, windows, self.scale, self.constant, weights, total))


def column_sensitivity(columns: int, users: int) -> float:
    """1 / n, with what the grid adds: see free-presence#p6."""
    off = 2 * sqrt(KINDS * columns) * (2.0 ** -sum_bits(0, users) + 2.0**-50)
    return mean_sensitivity(1.0, users, "zero-out") * (1 + off)


def _require_layout() -> None:
    """VerificationError unless rows of one column are at most 1 apart, and as far from nobody's: all of a grid."""
    steps = np.linspace(0.0, 1.0, 5)
    made = [
        (part * s, s, s * s, *still) for s in steps for part in (*-steps, *steps) for still in [*np.eye(3), [0] * 3]
    ]
    rows = np.array(made) * np.array(WEIGHTS)
    apart = ((rows[:, None] - rows) ** 2).sum(axis=-1).max()
    if not (len(WEIGHTS) == KINDS and max(apart, (rows**2).sum(axis=1).max() + HERE**2) <= 1 + 1e-12):
        raise VerificationError(f"Expected {KINDS} weights of rows that are at most 1 apart, got {WEIGHTS}, {HERE}.")


_require_layout()  # once, where it is imported
