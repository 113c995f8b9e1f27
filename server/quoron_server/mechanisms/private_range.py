"""Private ranges: for each rotated coordinate a bin near the middle of what users hold, by the exponential mechanism.

    cost(bin) = max(users below, users above);     P(bin) ∝ e^(-ε cost / 2)

Replacing a user moves every cost by at most one, so a choice is ε-bounded-range. Weights are integers made so that this
holds for them and not only for what they stand for, and the draw is exact.

Source: Bassily & Sun (2023), Algorithm 6, after Feldman & Steinke (2017). Proof: docs/privacy/private-mean.md.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal, localcontext
from functools import lru_cache

import numpy as np
from numba import njit
from numpy.typing import NDArray

from quoron_protos.errors import ConfigError
from quoron_server._validate import count, positive
from quoron_server.accounting.bounded_range import bounded_range_mu
from quoron_server.algorithm import Release
from quoron_server.mechanisms.clipping import clip_rows
from quoron_server.mechanisms.hadamard import Signs, padded, rotate, rotate_back
from quoron_server.noise import RandomStream

Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]
Counts = NDArray[np.int64]

_MANTISSA = 128  # bits of a weight
_DIGITS = Context(prec=70, rounding=ROUND_HALF_EVEN)  # 39 for the weight, 10 for the largest exponent, and to spare
_LN2 = _DIGITS.ln(Decimal(2))
_MOST_COORDINATES = 1 << 22  # numbers of the rotated block in work at a time


@dataclass(frozen=True, slots=True)
class PrivateRange:
    """`bins` bins of equal width on [-half_width, half_width] in every coordinate.

    Formal guarantee: each coordinate's choice is `epsilon`-bounded-range under replace-one, so a release is
    `mu(dimension)`-GDP, for every dataset and whatever the rotation.

    | input                             | what happens                                            |
    | --------------------------------- | ------------------------------------------------------- |
    | absent or non-finite row          | counts as the zero vector: the number of users is fixed |
    | coordinate outside the range      | counts for the bin at that end                          |
    | several bins of equal cost        | equally likely                                          |
    """

    epsilon: float  # ε₁, of each coordinate
    bins: int
    half_width: float  # a

    def __post_init__(self) -> None:
        positive(epsilon=self.epsilon, half_width=self.half_width)
        count(bins=self.bins)
        if not 1e-9 <= self.epsilon <= 1000:
            raise ConfigError(f"Expected epsilon in [1e-9, 1000], got epsilon={self.epsilon:g}.")

    @property
    def width(self) -> float:
        """Of a bin."""
        return 2 * self.half_width / self.bins

    def mu(self, dimension: int) -> float:
        """GDP parameter of one release: √d₂ choices' worth. Padded coordinates carry signal and are paid for."""
        return math.sqrt(padded(dimension)) * bounded_range_mu(self.epsilon)

    def release(self, values: Matrix, answered: NDArray[np.bool_], signs: Signs, stream: RandomStream) -> Vector:
        """A point near the middle of the rows, shape (d,); values (k, d), answered (k,), public signs (d,)."""
        rows = clip_rows(np.where(answered[:, None], values, 0.0), 1e100)  # non-finite rows become zeros
        length = padded(rows.shape[1])
        counts = np.zeros((length, self.bins), np.int64)
        block = max(1, _MOST_COORDINATES // length)
        for start in range(0, len(rows), block):
            _tally(rotate(rows[start : start + block], signs), self.half_width, counts)
        chosen = np.array([self.choose(row, stream) for row in counts])
        point: Vector = rotate_back((chosen + 0.5) * self.width - self.half_width, signs)[0]
        return point

    def choose(self, counts: Counts, stream: RandomStream) -> int:
        """One bin, given how many users each holds; shape (bins,)."""
        return stream.weighted_choice(weights(costs(counts), self.epsilon))

    def entry(self, dimension: int) -> Release:
        """The ledger entry of one release."""
        figures = {"epsilon": self.epsilon, "choices": float(padded(dimension)), "bins": float(self.bins)}
        return Release("private-range", figures)


def costs(counts: Counts) -> Counts:
    """max(users below, users above) of every bin, shape (bins,)."""
    reached = np.cumsum(counts)
    worst: Counts = np.maximum(reached - counts, reached[-1] - reached)
    return worst


def weights(cost: Sequence[int] | Counts, epsilon: float) -> list[int]:
    """Integers ∝ W(cost), W(c) = e^(-ε c / 2) with W(c) / W(c + 1) in [1, e^(ε/2)] in exact arithmetic.

    W has 128 bits and is a function of c and ε only; one common power of two is divided out.
    """
    parts = {c: _weight(c, epsilon) for c in {int(c) for c in cost}}
    least = min(exponent for _, exponent in parts.values())
    whole = {c: mantissa << (exponent - least) for c, (mantissa, exponent) in parts.items()}
    return [whole[int(c)] for c in cost]


@lru_cache(maxsize=1 << 16)
def _weight(cost: int, epsilon: float) -> tuple[int, int]:
    """(mantissa, exponent) of W(cost): floor at 128 bits of exp(-ε′ cost / 2), ε′ = ε (1 - 2⁻⁶⁰).

    Floors are monotone, and e^(ε′/2) times the rounding 1 + 2⁻¹²⁶ of a ratio stays below e^(ε/2).
    """
    with localcontext(_DIGITS):
        logarithm = -Decimal(epsilon) * (1 - Decimal(2) ** -60) * cost / 2
        exponent = int((logarithm / _LN2).to_integral_value(ROUND_FLOOR))
        scaled = (logarithm + (_MANTISSA - 1 - exponent) * _LN2).exp()
    return int(scaled.to_integral_value(ROUND_FLOOR)), exponent


@njit(cache=True)
def _tally(rotated, half_width, counts):  # type: ignore[no-untyped-def]
    """Adds every row to the bins of its coordinates; counts (d₂, bins)."""
    bins = counts.shape[1]
    for i in range(len(rotated)):
        for j in range(rotated.shape[1]):
            place = (rotated[i, j] / half_width + 1.0) * (bins / 2)
            # The comparisons are False for NaN, which an overflow of finite rows could leave.
            index = np.int64(place) if 0.0 <= place < bins else (bins - 1 if place >= bins else 0)
            counts[j, index] += 1
